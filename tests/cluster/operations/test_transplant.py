"""A transplant goes on where it was: what is in place stays, whoever did it."""

from pathlib import Path

import pytest

from pylog_spark.cluster import transplant as driver
from pylog_spark.cluster.transplant import (
    TransplantOptions,
    TransplantReport,
    transplant,
)
from pylog_spark.engines.choice import Local
from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions, Tuning
from pylog_spark.outcomes import Status
from pylog_spark.run.run_report import RunReport
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import (
    PartitionMetadata,
    encode_offset_checkpoint,
    encode_partition_metadata,
)
from storage_core.cluster.transplant import replica
from storage_core.commit import undo as commit_undo
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    PARTITION_METADATA_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from tests.cluster.transplant.clusters import Target
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec
from tests.kit.source_disk import BATCHES, NOW_MS, write_source
from tests.storage_core.catalog import metadata_bytes as md

PARTITIONS = 10


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "old"
    for number in range(PARTITIONS):
        write_source(root, name=f"orders-{number}")
    return root


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    values = [md.topic("orders"), *(md.partition(n, replicas=(1, 2)) for n in range(PARTITIONS))]
    disks = Target(folder=tmp_path / "target", values=values).as_brokers()
    for disk in disks:
        (disk / CLEAN_SHUTDOWN_FILE).write_text('{"version":0,"brokerEpoch":7}')
    return disks


def run(sources: list[Path], disks: list[Path], *, trash: Path | None = None) -> TransplantReport:
    """Give all partitions away, each by a task of its own, four tasks at once."""
    options = JobOptions(
        role=Role.BROKER,
        now_ms=NOW_MS,
        trash=None if trash is None else str(trash),
        tuning=Tuning(unit_min_bytes=1, unit_max_bytes=1, shuffle_bucket_bytes=256),
    )
    return transplant(Local(1), sources, disks, options, TransplantOptions(aborts_undecided=True))


def statuses(report: TransplantReport) -> list[str]:
    return list(report.details["status"].to_pylist())


@pytest.mark.thorough
def test_a_row_names_the_log_directory_of_the_log_that_goes(
    source: Path, disks: list[Path], tmp_path: Path
):
    shorter = tmp_path / "shorter"
    write_source(shorter, [SegmentSpec(base_offset=0, batches=BATCHES[:2])])
    report = run([shorter, source], disks)
    assert set(report.details["root"].to_pylist()) == {str(source)}
    assert set(report.results["root"].to_pylist()) == {str(source)}


@pytest.mark.thorough
def test_partitions_go_wave_by_wave_and_a_killed_run_keeps_its_waves(
    source: Path, disks: list[Path], monkeypatch
):
    true_put = driver.put_in_place
    waves: list[int] = []

    def put_in_place(built, *others, **trash):
        waves.append(len(built))
        if len(waves) == 2:
            raise KeyboardInterrupt
        return true_put(built, *others, **trash)

    with monkeypatch.context() as patch:
        patch.setattr(driver, "put_in_place", put_in_place)
        with pytest.raises(KeyboardInterrupt):
            run([source], disks)
    for disk in disks:
        folders = {path.name for path in disk.iterdir() if path.is_dir()}
        assert len(folders - {CLUSTER_METADATA_DIRECTORY}) == waves[0]
    monkeypatch.setattr(driver, "put_in_place", put_in_place)
    again = run([source], disks)
    assert waves == [4, 4, 4, 2]
    assert sorted(statuses(again)) == [Status.DONE] * 6 + [Status.SKIPPED] * 4
    assert statuses(run([source], disks)) == [Status.SKIPPED] * PARTITIONS
    # The target's logs were closed, and so are the new ones.
    assert all((disk / CLEAN_SHUTDOWN_FILE).read_text().endswith("7}") for disk in disks)


def trees(disks: list[Path]) -> list[dict[str, bytes]]:
    """Return all files of some disks but checkpoints without entries, and the marker."""
    files = [read_tree(disk) for disk in disks]
    return [
        {
            name: content
            for name, content in each.items()
            if content != b"0\n0\n" and name != CLEAN_SHUTDOWN_FILE
        }
        for each in files
    ]


def undo_last(trash: Path) -> RunReport:
    run_id = max(trash.iterdir(), key=lambda folder: folder.stat().st_mtime_ns).name
    return undo(run_id, JobOptions(trash=str(trash), now_ms=NOW_MS))


@pytest.fixture
def empty_log(disks: list[Path]) -> Path:
    """A log that the target's broker has made for the topic, with an entry in a checkpoint."""
    directory = disks[1] / "orders-3"
    directory.mkdir()
    for name in ("00000000000000000000.log", "leader-epoch-checkpoint"):
        (directory / name).touch()
    identity = PartitionMetadata(version=0, topic_id=md.ID_A)
    (directory / PARTITION_METADATA_FILE).write_bytes(encode_partition_metadata(identity))
    entries = {TopicPartition("orders", 3): 0, TopicPartition("clicks", 0): 5}
    (disks[1] / REPLICATION_FILE).write_bytes(encode_offset_checkpoint(entries))
    return directory


@pytest.mark.thorough
@pytest.mark.parametrize("is_same_disk", [True, False], ids=["linked", "copied"])
def test_an_undo_takes_all_of_it_back(
    source: Path, disks: list[Path], empty_log: Path, tmp_path: Path, is_same_disk: bool
):
    before, trash = trees(disks), tmp_path / "trash"
    with pytest.MonkeyPatch.context() as patch:
        if not is_same_disk:
            patch.setattr(commit_undo, "is_same_filesystem", lambda *_: False)
        assert statuses(run([source], disks, trash=trash)) == [Status.DONE] * PARTITIONS
        assert (empty_log / "leader-epoch-checkpoint").stat().st_size
        assert trees(disks) != before
        report = undo_last(trash)
        assert (report.exit_code, report.summary.done) == (0, 2 * PARTITIONS)
        assert trees(disks) == before
        assert all((disk / CLEAN_SHUTDOWN_FILE).read_text().endswith("-1}") for disk in disks)
        again = undo_last(trash)
        assert (again.exit_code, again.summary.done) == (0, 0)
        assert set(again.results["reason"].to_pylist()) == {"ALREADY_UNDONE"}
    # Nothing is left of it, and it can be done once more.
    assert statuses(run([source], disks)) == [Status.DONE] * PARTITIONS


@pytest.mark.thorough
def test_an_undo_takes_back_what_a_killed_run_had_put_in_place(
    source: Path, disks: list[Path], empty_log: Path, tmp_path: Path, monkeypatch
):
    before, true_name, count = trees(disks), replica._give_name, []

    def give_name(*names):
        count.append(names)
        if len(count) == 6:  # its record is in the trash
            raise KeyboardInterrupt
        true_name(*names)

    with monkeypatch.context() as patch:
        patch.setattr(replica, "_give_name", give_name)
        with pytest.raises(KeyboardInterrupt):
            run([source], disks, trash=tmp_path / "trash")
    assert trees(disks) != before
    report = undo_last(tmp_path / "trash")
    assert (report.exit_code, report.summary.done) == (0, 8)
    # No entry of a log that got no name is left, and no folder.
    assert trees(disks) == before


@pytest.mark.thorough
def test_a_replica_that_a_broker_has_changed_is_not_taken_back(
    source: Path, disks: list[Path], tmp_path: Path
):
    run([source], disks, trash=tmp_path / "trash")
    log = max((disks[0] / "orders-2").glob("*.log"))
    log.write_bytes(b"written since")
    report = undo_last(tmp_path / "trash")
    assert (report.exit_code, report.summary.done) == (3, 2 * PARTITIONS - 1)
    (row,) = [row for row in report.results.to_pylist() if row["status"] == Status.SKIPPED]
    assert (row["reason"], row["topic"], row["partition"]) == ("CHANGED_SINCE_RUN", "orders", 2)
    assert log.read_bytes() == b"written since"
    assert [path.name for path in disks[1].glob("orders-*")] == []
