"""Numbers of a round and of a run, under Kafka's names. A round has those of ``CleanerStats``, a
run those of the cleaner's gauges."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from storage_core.maintenance.compaction.index import IndexStats
from storage_core.maintenance.compaction.rewrite import RewriteStats


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerStats:
    """What one round on one partition read and wrote."""

    map_bytes_read: int
    map_messages_read: int  # records of those, markers included
    bytes_read: int  # bytes of batches read while cleaning
    bytes_written: int
    messages_read: int  # records looked at while cleaning; those of batches dropped whole are not
    messages_written: int
    invalid_messages_read: int  # records without a key that were dropped
    keys: int  # distinct keys of the dirty section
    # Share of the offset map's slots that were used; None without a limit.
    buffer_utilization: float | None
    elapsed_secs: float  # time that tasks spent on both passes, summed
    elapsed_index_secs: float | None  # on the first of them; None where they were not told apart

    @classmethod
    def of(
        cls,
        index: IndexStats,
        rewrite: RewriteStats,
        *,
        slots: int | None,
        elapsed_secs: float,
        elapsed_index_secs: float | None = None,
    ) -> "CleanerStats":
        """Put the numbers of both passes together.

        Args:
            rewrite: Of pass two.
            slots: Slots of a map of the configured size, None without a size.
            elapsed_secs: Time spent on both.
            elapsed_index_secs: Time spent on pass one, None where that is not known.
        """
        return cls(
            map_bytes_read=index.bytes_read,
            map_messages_read=index.messages_read,
            keys=index.keys,
            buffer_utilization=None if slots is None else index.keys / slots,
            elapsed_secs=elapsed_secs,
            elapsed_index_secs=elapsed_index_secs,
            bytes_read=rewrite.bytes_read,
            bytes_written=rewrite.bytes_written,
            messages_read=rewrite.messages_read,
            messages_written=rewrite.messages_written,
            invalid_messages_read=rewrite.invalid_messages_read,
        )

    @property
    def size_reduction(self) -> float:
        """Share of the bytes read that went; 0.0 where none were read."""
        return 1 - self.bytes_written / self.bytes_read if self.bytes_read else 0.0

    @property
    def message_reduction(self) -> float:
        """Share of the records read that went; 0.0 where none were read."""
        return 1 - self.messages_written / self.messages_read if self.messages_read else 0.0

    def to_json(self) -> str:
        """Return the numbers as one JSON object."""
        fields: dict[str, Any] = asdict(self) | {
            "size_reduction_percent": round(100 * self.size_reduction, 1),
            "message_reduction_percent": round(100 * self.message_reduction, 1),
        }
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> "CleanerStats":
        """Return the numbers that to_json wrote."""
        fields = json.loads(text)
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerTotals:
    """The totals of Kafka's cleaner over all its logs. Percentages are cut to whole ones, as
    there."""

    max_dirty_percent: int  # of the partition that was dirtiest among those due
    cleaner_recopy_percent: int  # bytes written for 100 bytes read
    max_buffer_utilization_percent: int  # of the fullest offset map; 0 without a limit of keys
    max_clean_time_secs: int  # of the partition that took longest
    max_compaction_delay_secs: int  # by which max.compaction.lag.ms was exceeded, at most
    cleanable_partitions: int
    delayed_partitions: int  # how many of them were past max.compaction.lag.ms
    uncleanable_partitions_count: int  # how many could not be cleaned because of an error
    uncleanable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedLog:
    """What the totals need of one partition that was due."""

    cleanable_ratio: float  # its share of dirty bytes
    cleanable_bytes: int
    compaction_delay_ms: int  # by which max.compaction.lag.ms was exceeded, 0 if it was not
    has_failed: bool  # whether an error kept it from being cleaned
    stats: CleanerStats | None  # of its round; None if it was not cleaned


def total_of(logs: Iterable[CleanedLog]) -> CleanerTotals:
    """Return the totals of a run."""
    listed = list(logs)
    stats = [log.stats for log in listed if log.stats is not None]
    read, written = sum(s.bytes_read for s in stats), sum(s.bytes_written for s in stats)
    failed = [log for log in listed if log.has_failed]
    fills = [s.buffer_utilization or 0.0 for s in stats]
    delays = [log.compaction_delay_ms for log in listed]
    return CleanerTotals(
        max_dirty_percent=int(100 * max((log.cleanable_ratio for log in listed), default=0.0)),
        # As Kafka, which divides by at least one.
        cleaner_recopy_percent=int(100 * written / max(read, 1)),
        max_buffer_utilization_percent=int(100 * max(fills, default=0.0)),
        max_clean_time_secs=int(max((s.elapsed_secs for s in stats), default=0.0)),
        max_compaction_delay_secs=int(max(delays, default=0) / 1000),
        cleanable_partitions=len(listed),
        delayed_partitions=sum(delay > 0 for delay in delays),
        uncleanable_partitions_count=len(failed),
        uncleanable_bytes=sum(log.cleanable_bytes for log in failed),
    )
