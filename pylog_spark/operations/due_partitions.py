"""From a table of plans to the partitions that are due, each with its strategy; and its outcome."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from pylog_spark.operations.disks import Disks
from pylog_spark.options import Strategy, Tuning
from pylog_spark.planning import (
    MAP_ENTRY_BYTES,
    Demand,
    MapBudgets,
    choose_buckets,
    choose_strategy,
    choose_unit_bytes,
    count_records_at_most,
    estimate_map_bytes,
)
from pylog_spark.schemas import Reason, Status
from pylog_spark.tasks.commit import PartitionWork
from pylog_spark.tasks.failures import describe_failure
from pylog_spark.tasks.observe import decode_plan
from storage_core.filenames import TopicPartition

_NAMED_PARTITIONS: Final = 3
_ROWS_AT_ONCE: Final = 1000
# Partial maps as they come, and a table of which between a quarter and a half is used, beside the
# one that it outgrew.
_FILED_COPIES: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLimits:
    """How much one task and one round are given.

    Attributes:
        least_unit_bytes: A task gets at least this much to read.
        most_unit_bytes: A task gets at most this much to read.
        budget_bytes: Bytes of offset maps published together.
        slots: Tasks that run at the same time.
        can_broadcast: Whether the session has broadcast variables.
        max_keys: Keys that an offset map may hold, None without a limit.
        strategy: What the caller asks for.
        files_bytes: Bytes of an offset map that one task may merge in scratch files.
        bucket_bytes: Bytes of key entries that one task gets where keys are exchanged.
        wave_bytes: Bytes of segments that a wave may hold.
        wave_tasks: Segments that a wave may hold.
        disks: How many tasks may be at one local disk.
    """

    least_unit_bytes: int
    most_unit_bytes: int
    budget_bytes: int
    slots: int
    can_broadcast: bool
    max_keys: int | None
    strategy: Strategy = Strategy.AUTO
    files_bytes: int = Tuning().files_max_bytes
    bucket_bytes: int = Tuning().shuffle_bucket_bytes
    wave_bytes: int = Tuning().wave_max_bytes
    wave_tasks: int = Tuning().wave_max_tasks
    disks: Disks = field(default_factory=Disks)

    def unit_bytes(self, total_bytes: int) -> int:
        """Return what one task should be given when this much is to be read in all."""
        return choose_unit_bytes(
            total_bytes,
            slots=self.slots,
            least_bytes=self.least_unit_bytes,
            most_bytes=self.most_unit_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePartition:
    """A partition that is to be cleaned.

    Attributes:
        plans: The table of plans.
        ordinal: Its row there.
        root: Its log directory.
        directory: Its own directory: a path, or the location of a managed partition.
        partition: Its name.
        size_bytes: Bytes of the segments to be cleaned.
        segment_bytes: The size of each of them; none where one task cleans all.
        extra_bytes: Upper bound of the disk space that it needs meanwhile.
        map_bytes: Upper bound of its merged index.
        plan_bytes: Bytes of its plan where that travels inside of closures, 0 where it does not.
        strategy: How it is cleaned.
        buckets: Into how many its keys are dealt out, where they are.
    """

    plans: pa.Table = field(repr=False, compare=False)
    ordinal: int
    root: str
    directory: str
    partition: TopicPartition
    size_bytes: int
    segment_bytes: tuple[int, ...]
    extra_bytes: int
    map_bytes: int
    plan_bytes: int
    strategy: Strategy
    buckets: int = 1

    @property
    def work(self) -> PartitionWork:
        """What tasks are told of it; read from the table, which many partitions make large."""
        return PartitionWork(
            ordinal=self.ordinal,
            root=self.root,
            topic=self.partition.topic,
            log_start_checkpoint=self.plans["log_start_checkpoint"][self.ordinal].as_py(),
            plan=self.plans["plan"][self.ordinal].as_py(),
        )

    @property
    def demand(self) -> Demand:
        """What it needs while its round runs."""
        is_filed = self.strategy is Strategy.FILES
        is_published = self.strategy is Strategy.BROADCAST
        return Demand(
            map_bytes=self.plan_bytes + (self.map_bytes if is_published else 0),
            disk_bytes=self.extra_bytes + (self.map_bytes * _FILED_COPIES if is_filed else 0),
            read_bytes=self.size_bytes,
            tasks=1 if self.strategy is Strategy.WHOLE else len(self.segment_bytes),
        )


@dataclass(slots=True)
class Outcome:
    """What became of one partition.

    Attributes:
        columns: Of its result row, where that differs from what the plan says.
        duration_ms: Time that tasks spent on it since it was planned.
        next_offset: Its cleaner point, None if it was not cleaned.
        was_touched: Whether it failed after its files had begun to change.
        rounds: Numbers of each round, ``CleanerStats`` as JSON.
    """

    columns: dict[str, Any] = field(default_factory=dict)
    duration_ms: int = 0
    next_offset: int | None = None
    was_touched: bool = False
    rounds: tuple[str, ...] = ()

    @classmethod
    def failed(cls, error: Exception) -> "Outcome":
        """Return what becomes of a partition of which an error keeps the run away."""
        outcome = cls()
        outcome.fail(describe_failure(error))
        return outcome

    @classmethod
    def refused(cls, reason: Reason, why: str) -> "Outcome":
        """Return what becomes of a partition that is left alone for a reason."""
        outcome = cls()
        outcome.refuse(reason, why)
        return outcome

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to be done for the partition."""
        return bool(self.columns)

    def after(self, former: "Outcome | None") -> "Outcome":
        """Return the outcome of this round and the ones before it together."""
        if former is None:
            return self
        columns = dict(self.columns)
        if "records_before" in former.columns:
            columns["records_before"] = former.columns["records_before"]
        return Outcome(
            columns=columns,
            duration_ms=former.duration_ms + self.duration_ms,
            next_offset=self.next_offset,
            was_touched=self.was_touched,
            rounds=former.rounds + self.rounds,
        )

    def fail(self, row: Mapping[str, Any]) -> None:
        """Take over the error of a row."""
        error = {name: row[name] for name in ("error_class", "error")}
        self.columns = {"status": Status.FAILED.value, **error}

    def refuse(self, reason: Reason, why: str) -> None:
        """Leave the partition alone for a reason."""
        self.columns = {"status": Status.SKIPPED.value, "reason": reason.value, "error": why}

    def finish(self, row: Mapping[str, Any]) -> None:
        """Take over the row of a commit."""
        if row.get("was_split"):
            self.refuse(Reason.SEGMENT_SPLIT, row["error"])
            self.columns["operations"] = row["operations"]
            return
        if row["error_class"] is not None:
            self.fail(row)
            self.was_touched = bool(row["touched"])
            return
        names = ("bytes_after", "records_before", "records_after", "segments_after")
        self.columns = {"status": Status.DONE.value, **{name: row[name] for name in names}}
        self.columns["operations"] = row["operations"]
        self.next_offset = row["next_offset"]
        said = row.get("statistics")
        self.rounds = () if said is None else (said,)


def find_due(
    plans: pa.Table, limits: RoundLimits, *, shares_files: Callable[[str], bool]
) -> list[DuePartition]:
    """Return the planned rows of a table of plans, in its order, each with its strategy.

    Args:
        plans: Rows of ``schemas.PLAN``.
        limits: How much one task and one round are given.
        shares_files: Whether the tasks on a root share a scratch folder.
    """
    columns = [name for name in plans.column_names if name != "plan"]
    due = []
    for ordinal, row in planned_rows(plans.select(columns)):
        map_bytes = estimate_map_bytes(
            offset_span=row["first_uncleanable_offset"] - row["first_dirty_offset"],
            dirty_bytes=row["cleanable_bytes"],
            capacity=limits.max_keys,
        )
        size_bytes = sum(row["segment_bytes"])
        strategy = choose_strategy(
            asked=limits.strategy,
            is_one_unit=len(row["segment_bytes"]) == 1
            or size_bytes <= limits.unit_bytes(size_bytes),
            map_bytes=map_bytes,
            budgets=MapBudgets(
                broadcast_bytes=limits.budget_bytes,
                files_bytes=limits.files_bytes,
                can_broadcast=limits.can_broadcast,
                # Of what tasks share in files nobody could say how many read them at once.
                can_share_files=shares_files(row["root"]) and limits.disks.per_disk is None,
                slots=limits.slots,
            ),
            is_bounded=limits.max_keys is not None,
        )
        buckets = 1
        if strategy is Strategy.SHUFFLE:
            first_base = decode_plan(plans["plan"][ordinal].as_py()).segments[0].base_offset
            entries = count_records_at_most(
                offset_span=row["first_uncleanable_offset"] - first_base, size_bytes=size_bytes
            )
            buckets = choose_buckets(
                entry_bytes=entries * MAP_ENTRY_BYTES,
                bucket_bytes=limits.bucket_bytes,
                slots=limits.slots,
            )
        due.append(
            DuePartition(
                plans=plans,
                ordinal=ordinal,
                root=row["root"],
                directory=row["directory"],
                partition=TopicPartition(row["topic"], row["partition"]),
                size_bytes=size_bytes,
                segment_bytes=() if strategy is Strategy.WHOLE else tuple(row["segment_bytes"]),
                extra_bytes=row["peak_extra_bytes"],
                map_bytes=map_bytes,
                plan_bytes=0 if limits.can_broadcast else plans["plan"][ordinal].as_buffer().size,
                strategy=strategy,
                buckets=buckets,
            )
        )
    return due


def planned_rows(plans: pa.Table) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and row of what is planned, a few at a time: each has a list of segments."""
    for first in range(0, plans.num_rows, _ROWS_AT_ONCE):
        for number, row in enumerate(plans.slice(first, _ROWS_AT_ONCE).to_pylist()):
            if row["status"] == Status.PLANNED:
                yield first + number, row


def name_partitions(partitions: Sequence[DuePartition]) -> str:
    """Return the names of partitions for a title, or of the first few."""
    names = [str(partition.partition) for partition in partitions[:_NAMED_PARTITIONS]]
    more = len(partitions) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
