"""Small partitions made by hand, cleaned, and taken apart again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import snapshot_file
from storage_core.maintenance.compaction.partition import CleanResult
from storage_core.maintenance.compaction.plan import CleanRequest
from tests.kit import directories
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.golden_cleaning import Cleaning
from tests.kit.legacy import AnyBatch
from tests.kit.partition_views import batches_in

NOW = SOME_TIME_MS
RETENTION_MS = 1000
P, Q = 1000, 2000
Record = tuple[int, bytes | None, bytes | None]


def record(key: bytes | None, value: bytes | None = b"v", **fields: Any) -> RecordSpec:
    """A record, by its place."""
    return RecordSpec(key=key, value=value, **fields)


def batch(base_offset: int, *records: RecordSpec, **fields: Any) -> BatchSpec:
    """A batch, by its place."""
    return BatchSpec(records=records, base_offset=base_offset, **fields)


def produced(
    base_offset: int, *records: RecordSpec, producer_id: int = P, **fields: Any
) -> BatchSpec:
    """A batch of an idempotent producer, its sequences equal to the offsets."""
    identity = {"producer_epoch": 0, "base_sequence": base_offset} | fields
    return batch(base_offset, *records, producer_id=producer_id, **identity)


def write_log(
    directory: Path,
    *segments: Sequence[AnyBatch],
    aborted: Mapping[int, Sequence[directories.AbortedTxnSpec]] | None = None,
    producers: Sequence[directories.ProducerSpec] = (),
    **settings: Any,
) -> Path:
    """Write closed segments and an empty active one.

    Args:
        directory: Where to.
        segments: The batches of each.
        aborted: Transaction index entries by number of the segment.
        producers: Those that the log knows at its end.
        settings: Of write_partition.
    """
    entries = aborted or {}
    parts = [
        directories.SegmentSpec(
            base_offset=batches[0].base_offset,
            batches=batches,
            aborted=entries.get(number, ()),
            modified_ms=NOW - 1_000_000 + 1000 * number,
        )
        for number, batches in enumerate(segments)
    ]
    end = segments[-1][-1].next_offset
    directories.write_partition(
        directory, [*parts, directories.SegmentSpec(base_offset=end)], **settings
    )
    (directory / snapshot_file(end)).write_bytes(directories.encode_producer_snapshot(producers))
    return directory


def cleaning(
    *,
    now_ms: int = NOW,
    overrides: Mapping[str, object] | None = None,
    cleaner: CleanerConfig | None = None,
    first_dirty_offset: int | None = None,
    first_uncleanable_offset: int | None = None,
    **checkpoints: int | None,
) -> Cleaning:
    """A round at a clock; delete.retention.ms is a second, every dirty log is due."""
    settings = {
        "cleanup.policy": "compact",
        "delete.retention.ms": RETENTION_MS,
        "min.cleanable.dirty.ratio": 0,
    } | dict(overrides or {})
    return Cleaning(
        config=LogConfig.from_topic_overrides({key: str(v) for key, v in settings.items()}),
        cleaner=cleaner or CleanerConfig(),
        request=CleanRequest(
            now_ms=now_ms,
            checkpoints=PartitionCheckpoints(**checkpoints),
            first_dirty_offset=first_dirty_offset,
            first_uncleanable_offset=first_uncleanable_offset,
        ),
    )


def clean(directory: Path, **settings: Any) -> CleanResult:
    """Make a round; settings are those of cleaning."""
    return cleaning(**settings).clean(directory)


def records_in(directory: Path) -> list[Record]:
    """Return (offset, key, value) of all records, markers included, in order."""
    return [
        (found.offset, found.key, found.value)
        for each in batches_in(directory)
        for found in each.records
    ]


def bases_in(directory: Path) -> list[int]:
    """Return the base offsets of the segments."""
    return sorted(int(path.stem) for path in directory.glob("*.log"))
