"""What retention has to know of a partition, and the rules of its topic: plain values."""

from dataclasses import dataclass
from typing import Self

from storage_core.config import CleanupPolicy, LogConfig
from storage_core.errors import ConfigError
from storage_core.formats.batch_v2 import NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """What a topic's configuration says about old segments.

    Attributes:
        deletes: Whether size and age count: the policy has ``delete``. A log start counts always.
        retention_bytes: ``retention.bytes``; negative for no limit.
        retention_ms: ``retention.ms``; negative for no limit.
    """

    deletes: bool
    retention_bytes: int
    retention_ms: int

    @classmethod
    def of(cls, config: LogConfig) -> Self:
        """Return the rules of a topic.

        Raises:
            ConfigError: The topic is tiered: which of its segments were uploaded is not known here.
        """
        if config.remote_storage_enable:
            raise ConfigError(
                "remote.storage.enable",
                "true",
                "only segments that were uploaded may go from a tiered topic, and which these are "
                "cannot be seen in its files",
            )
        return cls(
            deletes=CleanupPolicy.DELETE in config.cleanup_policy,
            retention_bytes=config.retention_bytes,
            retention_ms=config.retention_ms,
        )

    @property
    def size_limit(self) -> int | None:
        """The most bytes that the log should have, None for no limit."""
        return self.retention_bytes if self.deletes and self.retention_bytes >= 0 else None

    @property
    def age_limit_ms(self) -> int | None:
        """The age that no segment should exceed, None for no limit."""
        return self.retention_ms if self.deletes and self.retention_ms >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSegment:
    """One segment.

    Attributes:
        base_offset: Names its files.
        size_bytes: Of its records.
        modified_ms: Last modification of the records file, epoch milliseconds.
        files: Names of its files: the records first, then its indexes in Kafka's order.
        max_timestamp: Of the last time index entry, NO_TIMESTAMP where there is none; None if it
            was not read, because the decision did not get that far.
    """

    base_offset: int
    size_bytes: int
    modified_ms: int
    files: tuple[str, ...]
    max_timestamp: int | None

    @property
    def largest_timestamp(self) -> int | None:
        """Age of the segment's newest record: by the time index, else by the file."""
        if self.max_timestamp is None:
            return None
        return self.max_timestamp if self.max_timestamp > NO_TIMESTAMP else self.modified_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionState:
    """A partition, as far as retention has to know it.

    Attributes:
        location: Path or URL of the partition directory.
        segments: In order of base offsets, at least one, the active one last.
        log_start_offset: First offset that may be read.
        log_end_offset: Offset of the next record; None if it was not looked for, because the
            decision did not get as far as the active segment.
        high_watermark: Segments that hold offsets at or above it stay; None for the log's end.
        snapshot_offsets: Of the producer snapshots.
        leftovers: What an earlier deletion that was cut short has left: ``.deleted`` files, and
            indexes without their records.
        has_epoch_file: Whether there is a leader epoch file.
    """

    location: str
    segments: tuple[RetentionSegment, ...]
    log_start_offset: int
    log_end_offset: int | None
    high_watermark: int | None
    snapshot_offsets: frozenset[int]
    leftovers: tuple[str, ...]
    has_epoch_file: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments' records."""
        return sum(segment.size_bytes for segment in self.segments)
