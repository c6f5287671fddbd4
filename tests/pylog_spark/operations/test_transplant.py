"""A transplant goes on where it was: what is in place stays, whoever did it."""

from pathlib import Path

import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.operations.transplant import driver
from pylog_spark.operations.transplant.driver import (
    TransplantOptions,
    TransplantReport,
    transplant,
)
from pylog_spark.options import JobOptions, Tuning
from pylog_spark.schemas import Status
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.catalog.roles import Role
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from tests.kit.directories import SegmentSpec
from tests.storage_core.catalog import metadata_bytes as md
from tests.storage_core.maintenance.transplant.clusters import (
    BATCHES,
    NOW_MS,
    Target,
    write_properties,
    write_source,
)

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
    disks = Target(folder=tmp_path / "target", values=values).disks
    for node, disk in enumerate(disks, start=1):
        write_properties(disk, node)
        (disk / CLEAN_SHUTDOWN_FILE).write_text('{"version":0,"brokerEpoch":7}')
    (tmp_path / "target" / CLUSTER_METADATA_DIRECTORY).rename(disks[0] / CLUSTER_METADATA_DIRECTORY)
    return disks


def run(sources: list[Path], disks: list[Path]) -> TransplantReport:
    """Give all partitions away, each by a task of its own, four tasks at once."""
    options = JobOptions(
        role=Role.BROKER,
        now_ms=NOW_MS,
        tuning=Tuning(unit_min_bytes=1, unit_max_bytes=1, shuffle_bucket_bytes=256),
    )
    return transplant(Local(1), sources, disks, options, TransplantOptions())


def statuses(report: TransplantReport) -> list[str]:
    return list(report.details["status"].to_pylist())


def test_a_row_names_the_log_directory_of_the_log_that_goes(
    source: Path, disks: list[Path], tmp_path: Path
):
    shorter = tmp_path / "shorter"
    write_source(shorter, [SegmentSpec(base_offset=0, batches=BATCHES[:2])])
    report = run([shorter, source], disks)
    assert set(report.details["root"].to_pylist()) == {str(source)}
    assert set(report.results["root"].to_pylist()) == {str(source)}


def test_partitions_go_wave_by_wave_and_a_killed_run_keeps_its_waves(
    source: Path, disks: list[Path], monkeypatch
):
    true_put = driver.put_in_place
    waves: list[int] = []

    def put_in_place(built, *others):
        waves.append(len(built))
        if len(waves) == 2:
            raise KeyboardInterrupt
        return true_put(built, *others)

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
