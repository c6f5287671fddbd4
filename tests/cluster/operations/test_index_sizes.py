"""Doctor and audit open a log whose active indexes are large as a broker with its config does."""

import os
from pathlib import Path

import pytest

from pylog_spark.operations.doctor.task import forecast_partitions
from pylog_spark.operations.verify.task import Target
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.cluster.places import ReplicaPlace, parse_states
from storage_core.cluster.replica import open_replica
from storage_core.filenames import OFFSET_INDEX_SUFFIX, TopicPartition
from storage_core.maintenance.verification.findings import DirectoryContext
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition

NOW_MS = 1_700_000_000_000
SIZE_BYTES = 12 << 20  # above Kafka's default of 10 MiB


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a closed log with an offset index as long as its broker made it."""
    batch = BatchSpec(records=(RecordSpec(key=b"k", value=b"v"),))
    made = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=[batch])])
    os.truncate(made / f"{0:020}{OFFSET_INDEX_SUFFIX}", SIZE_BYTES)
    return made


@pytest.mark.parametrize(
    ("catalogs", "start"),
    [
        pytest.param({"t": {}}, "refused", id="default"),
        pytest.param({"t": {"segment.index.bytes": str(SIZE_BYTES)}}, "opened", id="as large"),
        pytest.param({"t": {"segment.index.bytes": str(SIZE_BYTES - 8)}}, "refused", id="lowered"),
        pytest.param({"t": {"segment.index.bytes": "many"}}, "refused", id="no number"),
        pytest.param({"other": {}}, "refused", id="unknown topic"),
        pytest.param(None, "refused", id="no catalog"),
    ],
)
def test_the_doctor_goes_by_the_config_of_the_topic(
    directory: Path, catalogs: dict[str, dict[str, str]] | None, start: str
):
    root = str(directory.parent)
    target = Target(
        ordinal=0,
        root=root,
        directory=str(directory),
        partition=TopicPartition("t", 0),
        checkpoints=PartitionCheckpoints(recovery_point=1),
        context=DirectoryContext(role=Role.BROKER, is_clean=True),
        roots=(),
    )
    known = {} if catalogs is None else {root: TopicCatalog(explicit=catalogs)}
    [row] = forecast_partitions([target], NOW_MS, known)
    assert row.start == start
    assert ("segment.index.bytes" in (row.failure.error or "")) is (start == "refused")


@pytest.mark.parametrize(
    ("most", "is_opened"), [(None, True), (SIZE_BYTES, True), (1 << 20, False)]
)
def test_an_audit_goes_by_the_state_of_the_partition(
    directory: Path, most: int | None, is_opened: bool
):
    config = "{}" if most is None else f'{{"segment.index.bytes": "{most}"}}'
    row = '{"topic": "t", "partition": 0, "topic_id": "x", "replicas": [1], "isr": [1], "config": '
    [state] = parse_states(f'{{"partitions": [{row}{config}}}]}}'.encode(), "states.json")
    place = ReplicaPlace(
        broker=1,
        root=str(directory.parent),
        directory=str(directory),
        kind=DirectoryKind.PARTITION,
        is_clean=True,
        checkpoints=PartitionCheckpoints(recovery_point=1),
    )
    opened = open_replica(place, NOW_MS, state.segment_index_bytes)
    assert (opened.log is not None) is is_opened
    assert ("segment.index.bytes" in opened.error) is not is_opened
