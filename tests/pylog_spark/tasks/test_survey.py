"""What a listing alone says of one partition, by its cleanup policies."""

import pyarrow as pa
import pytest

from pylog_spark.operations.survey_task import survey_partitions
from pylog_spark.options import JobOptions
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import PARTITION
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.checkpoint.checkpoints import Checkpoints
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    REPLICATION_FILE,
    TopicPartition,
    log_file,
)

NOW_MS = 1_795_000_000_000
DAY_MS = 86_400_000
# Written four, three, two, one and no days ago.
SEGMENTS = [(100 * number, 1000, NOW_MS - (4 - number) * DAY_MS) for number in range(5)]


def surveyed(settings: dict[str, str], *, log_start: int | None = None, cleaned: int = 0) -> dict:
    partition = TopicPartition("t", 0)
    context = RunContext(
        run_id="run",
        options=JobOptions(now_ms=NOW_MS),
        hash_key=bytes(16),
        catalogs={"/r": TopicCatalog(explicit={"t": settings})},
        unclean_roots=frozenset(),
    )
    row = {
        "root": "/r",
        "topic": "t",
        "partition": 0,
        "role": "mirror",
        "directory": "/r/t-0",
        "kind": "partition",
        "file_names": [log_file(base) for base, _, _ in SEGMENTS],
        "file_bytes": [size for _, size, _ in SEGMENTS],
        "file_times_ms": [at for _, _, at in SEGMENTS],
        "file_etags": [""] * len(SEGMENTS),
    }
    checkpoints = Checkpoints(
        entries={
            REPLICATION_FILE: {partition: 450},
            LOG_START_FILE: {} if log_start is None else {partition: log_start},
            CLEANER_FILE: {partition: cleaned},
        }
    )
    batches = survey_partitions(
        iter([rows_to_batch(PARTITION, [row])]), context, lambda _: checkpoints
    )
    (found,) = pa.Table.from_batches(batches).to_pylist()
    assert found["error"] is None
    return found


BOTH = {"cleanup.policy": "compact,delete", "retention.ms": str(2 * DAY_MS)}


def test_what_is_compacted_and_deleted_loses_what_is_too_old_and_is_cleaned():
    row = surveyed(BOTH)
    assert (row["status"], row["policy"]) == ("planned", "compact+delete")
    assert (row["removable_segments"], row["removable_bytes"]) == (2, 2000)
    assert (row["bytes_after"], row["segments_after"]) == (3000, 3)
    assert (row["blocked_by"], row["wait_ms"]) == ("WITHIN_TIME", 1)
    assert row["cleanable_bytes"] == 4000
    assert row["due_bytes"] == 4000 + 2000


def test_what_expires_is_due_though_nothing_is_to_be_cleaned():
    row = surveyed(BOTH, cleaned=400)
    assert (row["status"], row["reason"], row["due_bytes"]) == ("planned", None, 2000)
    assert (row["cleanable_bytes"], row["clean_bytes"]) == (0, 4000)


@pytest.mark.parametrize(("log_start", "removable"), [(None, 0), (200, 2)])
def test_what_is_only_compacted_loses_what_lies_below_its_log_start(log_start, removable):
    row = surveyed({"cleanup.policy": "compact"}, log_start=log_start, cleaned=400)
    assert row["removable_segments"] == removable
    assert row["status"] == ("planned" if removable else "skipped")
    assert row["reason"] == (None if removable else "NOTHING_TO_CLEAN")


def test_what_is_only_deleted_says_nothing_of_cleaning():
    row = surveyed({"cleanup.policy": "delete", "retention.ms": "-1"})
    assert (row["status"], row["reason"]) == ("skipped", "NOTHING_TO_RETAIN")
    assert row["cleanable_bytes"] is None
