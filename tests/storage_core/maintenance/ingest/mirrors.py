"""Mirrors for tests: a partition as a broker left it, put into a store of objects."""

from pathlib import Path

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.filenames import parse_partition_directory
from storage_core.maintenance.ingest import partition
from storage_core.store import ManagedStore, ObjectDirectory
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import ProducerSpec, SegmentSpec, write_partition


def batch(base_offset, *, records=2, leader_epoch=0, timestamp=1_000):
    return BatchSpec(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        records=tuple(
            RecordSpec(key=b"k%d" % n, value=b"v" * 50, timestamp=timestamp + base_offset + n)
            for n in range(records)
        ),
    )


def segment(base_offset, *, batches=3, leader_epoch=0, producers=True, torn_tail=b""):
    """A segment of so many batches of two records, from its base offset on."""
    return SegmentSpec(
        base_offset=base_offset,
        batches=[
            batch(base_offset + 2 * number, leader_epoch=leader_epoch) for number in range(batches)
        ],
        torn_tail=torn_tail,
        modified_ms=10_000 + base_offset,
        producers=[ProducerSpec(producer_id=7)] if producers else None,
    )


def write_files(folder: Path, *segments, name="orders-0", topic_id=None) -> Path:
    directory = write_partition(folder / name, segments, index_interval_bytes=100)
    if topic_id is not None:
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    return directory


def sync(directory: Path, objects, *, only=None, delete=False) -> None:
    """Copy a directory's files into a store, as somebody's sync does."""
    if delete:
        objects.delete([info.key for info in objects.list(f"{directory.name}/")])
    for path in sorted(directory.iterdir()):
        if only is None or only(path.name):
            objects.put(f"{directory.name}/{path.name}", path.read_bytes())


def mirror_of(objects, name="orders-0", first=None) -> partition.MirrorPartition:
    files = ObjectDirectory(objects, name)
    mirror = partition.MirrorPartition(objects=objects, directory=name, files=files, first=())
    return partition.MirrorPartition(
        objects=objects,
        directory=name,
        files=files,
        first=tuple(mirror.list_again() if first is None else first),
    )


def target_of(objects, name="orders-0", attempt_id=None) -> ManagedStore:
    return ManagedStore(
        objects, parse_partition_directory(name), attempt_id=attempt_id, is_new=True
    )


def ingest(mirror_objects, managed_objects, *, name="orders-0", rules=None, **said):
    """Take what is new; returns the plan and the store as it was used."""
    rules = rules or partition.IngestRules()
    mirror = mirror_of(mirror_objects, name, said.pop("first", None))
    target = target_of(managed_objects, name, said.pop("attempt_id", None))
    planned = partition.observe_and_plan(mirror, target, rules, PartitionCheckpoints(**said))
    if planned.has_work:
        partition.commit_ingest(
            planned, mirror, target, rules, commitment=partition.Commitment(run_id="run", result={})
        )
    return planned, target
