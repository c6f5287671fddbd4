"""A broker's log directory of very many partitions, made of hard links to the files of a few.

Names, sizes, times and bytes are those of real logs, so that everything which looks at them works;
a partition costs an inode and two blocks of names. Topics are of three kinds: most have nothing
that is due, some have expired segments, some are dirty.
"""

import base64
import os
from collections.abc import Iterator
from pathlib import Path

from storage_core.checkpoint.checkpoints import (
    PartitionMetadata,
    encode_offset_checkpoint,
    encode_partition_metadata,
)
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
    snapshot_file,
)
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, encode_producer_snapshot, write_partition
from tests.storage_core.catalog import metadata_bytes as md

DAY_MS = 86_400_000
PARTITIONS_A_TOPIC = 100
# One segment begins where the one before ends: offsets that are missing would be findings.
OFFSETS_A_SEGMENT = 1
# A file has at most 65,000 names on ext4.
MOST_LINKS = 50_000
METADATA = "__cluster_metadata-0"
# Of a hundred topics so many are of each kind. On a day like others half of them are compacted, and
# one in twenty has something due; then days on which nothing is due, and everything.
KINDS = (("expired", 3), ("dirty", 2), ("clean", 30), ("ratio", 18), ("kept", 47))
NOTHING_DUE = (("clean", 30), ("ratio", 20), ("kept", 50))
ALL_DUE = (("expired", 50), ("dirty", 50))
Kinds = tuple[tuple[str, int], ...]
SETTINGS = {
    "expired": {"cleanup.policy": "delete", "retention.ms": str(20 * DAY_MS)},
    "dirty": {"cleanup.policy": "compact"},
    "clean": {"cleanup.policy": "compact"},
    "ratio": {"cleanup.policy": "compact"},
    "kept": {"cleanup.policy": "delete", "retention.ms": str(60 * DAY_MS)},
}


def kind_of_topic(topic: int, kinds: Kinds) -> str:
    place = topic * 37 % 100
    for kind, count in kinds:
        if place < count:
            return kind
        place -= count
    raise AssertionError(topic)


def topic_name(topic: int, kinds: Kinds) -> str:
    return f"{kind_of_topic(topic, kinds)}-{topic:05d}"


def topic_id(topic: int) -> str:
    return base64.urlsafe_b64encode((topic + 1).to_bytes(16)).decode().rstrip("=")


def write_linked_root(
    root: Path, partitions: int, *, segments: int, now_ms: int, kinds: Kinds = KINDS
) -> Path:
    """Write the directory as a broker leaves it that was stopped cleanly.

    Args:
        segments: Of each partition, half a day apart; the newest is of now_ms.
        now_ms: Epoch milliseconds.
        kinds: Of each hundred topics so many are of each kind.
    """
    root.mkdir(parents=True)
    (root.parent / "templates").mkdir(exist_ok=True)
    for first in range(0, partitions, MOST_LINKS):
        template = _template(root.parent / "templates" / f"t-{first}", segments, now_ms)
        names = sorted(path.name for path in template.iterdir())
        for number in range(first, min(first + MOST_LINKS, partitions)):
            topic, index = divmod(number, PARTITIONS_A_TOPIC)
            directory = root / f"{topic_name(topic, kinds)}-{index}"
            _link(template, names, directory)
            metadata = root.parent / "templates" / f"id-{topic}"
            if not metadata.exists():
                known = PartitionMetadata(version=0, topic_id=topic_id(topic))
                metadata.write_bytes(encode_partition_metadata(known))
            os.link(metadata, directory / PARTITION_METADATA_FILE)
    _write_files(root, partitions, segments, kinds)
    return root


def _template(directory: Path, segments: int, now_ms: int) -> Path:
    specs = []
    for number in range(segments):
        at = now_ms - (segments - 1 - number) * DAY_MS // 2
        base = number * OFFSETS_A_SEGMENT
        records = (RecordSpec(key=b"key", value=b"v" * 100, timestamp=at),)
        is_active = number == segments - 1
        batches = (BatchSpec(records=records, base_offset=base),)
        specs.append(
            SegmentSpec(
                base_offset=base,
                batches=batches,
                modified_ms=at,
                producers=() if is_active else None,
            )
        )
    write_partition(directory, specs)
    # A broker that closes a log writes its producers down once more.
    end = (segments - 1) * OFFSETS_A_SEGMENT + 1
    (directory / snapshot_file(end)).write_bytes(encode_producer_snapshot([]))
    return directory


def _link(template: Path, names: list[str], directory: Path) -> None:
    directory.mkdir()
    source, target = os.open(template, os.O_DIRECTORY), os.open(directory, os.O_DIRECTORY)
    try:
        for name in names:
            os.link(name, name, src_dir_fd=source, dst_dir_fd=target)
    finally:
        os.close(source)
        os.close(target)


def _partitions(partitions: int, kinds: Kinds) -> Iterator[tuple[str, TopicPartition]]:
    for number in range(partitions):
        topic, index = divmod(number, PARTITIONS_A_TOPIC)
        yield kind_of_topic(topic, kinds), TopicPartition(topic_name(topic, kinds), index)


def _write_files(root: Path, partitions: int, segments: int, kinds: Kinds) -> None:
    active = (segments - 1) * OFFSETS_A_SEGMENT
    end = active + 1
    points = {
        "clean": active,
        "ratio": (segments * 4 // 5) * OFFSETS_A_SEGMENT,
        "dirty": OFFSETS_A_SEGMENT,
    }
    of_kinds = list(_partitions(partitions, kinds))
    ends = {partition: end for _, partition in of_kinds}
    cleaned = {partition: points[kind] for kind, partition in of_kinds if kind in points}
    for name, offsets in {
        RECOVERY_POINT_FILE: ends,
        REPLICATION_FILE: ends,
        LOG_START_FILE: {},
        CLEANER_FILE: cleaned,
    }.items():
        (root / name).write_bytes(encode_offset_checkpoint(offsets))
    (root / "meta.properties").write_text(
        "version=1\nnode.id=1\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n"
    )
    (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":11}')
    values = []
    for topic in range(-(-partitions // PARTITIONS_A_TOPIC)):
        name = topic_name(topic, kinds)
        values += [md.topic(name, topic_id(topic))]
        values += [md.partition(n, topic_id(topic)) for n in range(PARTITIONS_A_TOPIC)]
        settings = SETTINGS[kind_of_topic(topic, kinds)]
        values += [md.config(name, key, text) for key, text in settings.items()]
    md.write_segment(root / METADATA, [md.batch(*values)])
