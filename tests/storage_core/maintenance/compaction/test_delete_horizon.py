"""The delete horizon at the edge of what its 64 bits hold."""

from pathlib import Path

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.maintenance.compaction.plan import CleanRequest
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, encode_batch
from tests.kit.decode import DecodedBatch, decode_segment
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.one_partition import clean_partition

NOW_MS = SOME_TIME_MS + 1000
TOMBSTONE = BatchSpec(records=(RecordSpec(key=b"k", value=None),))


def cleaned_batches(directory: Path, *, delete_retention_ms: int) -> list[DecodedBatch]:
    """Clean a log whose first segment is one tombstone; return what is left of that segment."""
    active = BatchSpec(records=(RecordSpec(key=b"other"),), base_offset=1)
    segments = [
        SegmentSpec(base_offset=0, batches=[TOMBSTONE]),
        SegmentSpec(base_offset=1, batches=[active], producers=()),
    ]
    write_partition(directory, segments)
    clean_partition(
        directory,
        config=LogConfig.from_topic_overrides(
            {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": str(delete_retention_ms),
            }
        ),
        cleaner=CleanerConfig(),
        request=CleanRequest(
            now_ms=NOW_MS, high_watermark=None, log_start_offset=None, cleaner_checkpoint=None
        ),
    )
    return decode_segment((directory / f"{0:020d}.log").read_bytes())[0]


@pytest.mark.parametrize(
    "delete_retention_ms", [0, 1, 86_400_000, 2**63 - 1 - NOW_MS], ids=lambda ms: f"{ms} ms"
)
def test_a_horizon_that_fits_64_bits_is_set(tmp_path, delete_retention_ms):
    (batch,) = cleaned_batches(tmp_path / "t-0", delete_retention_ms=delete_retention_ms)
    assert batch.header["attributes"] & 0x40
    assert batch.header["base_timestamp"] == NOW_MS + delete_retention_ms
    assert batch.records[0].timestamp == SOME_TIME_MS


@pytest.mark.parametrize("delete_retention_ms", [2**63 - NOW_MS, 2**63 - 1])
def test_tombstones_that_are_to_stay_for_ever_get_no_horizon(tmp_path, delete_retention_ms):
    # Kafka's sum wraps to a negative number, which it takes for none: the batch stays as it is.
    cleaned_batches(tmp_path / "t-0", delete_retention_ms=delete_retention_ms)
    log = tmp_path / "t-0" / f"{0:020d}.log"
    assert log.read_bytes() == encode_batch(TOMBSTONE)
