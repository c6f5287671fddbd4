"""A read request: partitions, start, end and columns."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from storage_core.catalog.topic_filter import nearest_name
from storage_core.errors import ConfigError
from storage_core.filenames import CLUSTER_METADATA_TOPIC, TopicPartition

# Words for an offset, as in Kafka's protocol and in Spark's Kafka source.
LATEST: Final = -1
EARLIEST: Final = -2

DEFAULT_RANGE_BYTES: Final = 128 << 20  # as Spark reads files


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChoice:
    """Which partitions are read; without any of them, all."""

    names: frozenset[str] | None = None  # topics by name; None where another way was chosen
    # Regular expression that a topic's whole name has to match; None likewise.
    pattern: re.Pattern[str] | None = None
    assigned: frozenset[TopicPartition] | None = None  # partitions one by one; None likewise
    option: str = ""  # the reader's name for this choice, for messages
    may_be_missing: bool = False

    @property
    def is_everything(self) -> bool:
        """Whether no topic was chosen."""
        return self.names is None and self.pattern is None and self.assigned is None

    def admits(self, partition: TopicPartition) -> bool:
        """Whether a partition is read."""
        if self.assigned is not None:
            return partition in self.assigned
        if self.names is not None:
            return partition.topic in self.names
        return self.pattern is None or self.pattern.fullmatch(partition.topic) is not None

    def choose(
        self, present: Collection[TopicPartition], paths: Sequence[str]
    ) -> list[TopicPartition]:
        """Return the partitions that are read, in their order. Without a choice of topics the
        cluster's metadata log is left out."""
        if not self.may_be_missing:
            self._check_presence(present, ", ".join(paths))
        return sorted(
            partition
            for partition in present
            if self.admits(partition)
            and not (self.is_everything and partition.topic == CLUSTER_METADATA_TOPIC)
        )

    def _check_presence(self, present: Collection[TopicPartition], where: str) -> None:
        topics = {partition.topic for partition in present}
        missing = sorted((self.names or frozenset()) - topics)
        if missing:
            near = nearest_name(missing[0], topics)
            meant = "" if near is None else f"; did you mean {near}?"
            raise ConfigError(self.option, ",".join(missing), f"no such topic in {where}{meant}")
        absent = sorted((self.assigned or frozenset()).difference(present))
        if absent:
            named = ", ".join(map(str, absent))
            raise ConfigError(self.option, named, f"no such partition in {where}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One end of the range of offsets."""

    # The first record at or after this time: one for all partitions, or one for each of them; None
    # if it is not said by time. It wins over offsets, as in Spark.
    timestamps_ms: Mapping[TopicPartition, int] | int | None = None
    # Offset, LATEST or EARLIEST: one for all partitions, or one for each of them; None for the
    # log's own end.
    offsets: Mapping[TopicPartition, int] | int | None = None
    # Whether a log without a record at or after the time is read from its end, which is no record,
    # in place of an error.
    is_past_end_allowed: bool = False
    option: str = ""  # the reader's name for this bound, for messages

    @property
    def is_log_end(self) -> bool:
        """Whether nothing but the log's own end bounds the range."""
        return self.timestamps_ms is None and self.offsets is None

    @property
    def partitions(self) -> Collection[TopicPartition] | None:
        """The partitions with an offset or time of their own. None if all have the same one."""
        positions = self.offsets if self.timestamps_ms is None else self.timestamps_ms
        return positions.keys() if isinstance(positions, Mapping) else None

    def timestamp_of(self, partition: TopicPartition) -> int | None:
        """Return a partition's time, epoch milliseconds; None without a time bound."""
        timestamps = self.timestamps_ms
        return timestamps[partition] if isinstance(timestamps, Mapping) else timestamps

    def offset_of(self, partition: TopicPartition) -> int | None:
        """Return a partition's offset, LATEST or EARLIEST; None: the log's end."""
        return self.offsets[partition] if isinstance(self.offsets, Mapping) else self.offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What a reader asks for."""

    # Paths or URLs of log directories or of single partition directories, at least one.
    paths: tuple[str, ...]
    choice: TopicChoice
    starting: Bound
    ending: Bound
    columns: tuple[str, ...]  # names of the columns, in order
    # Only records with one of these keys, None being the null key; None for all records.
    keys: frozenset[bytes | None] | None = None
    fail_on_data_loss: bool = True  # whether offsets that are not there (any more) are an error
    is_committed: bool = False  # whether records of aborted and open transactions are left out
    # How much of the files a range is about, unless one batch is more.
    range_bytes: int = DEFAULT_RANGE_BYTES
    range_offsets: int | None = None  # how many offsets a range has at most; None for no such bound

    @property
    def is_of_whole_logs(self) -> bool:
        """Whether logs are read from end to end, without bounds."""
        has_bounds = not (self.starting.is_log_end and self.ending.is_log_end)
        return not has_bounds and self.range_offsets is None
