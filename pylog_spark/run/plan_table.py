"""The driver's table of plans: sort, check across directories and report."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.options import Order
from pylog_spark.outcomes import Reason, Status
from pylog_spark.rows import read_rows, rows_to_batch, schema_of
from pylog_spark.schemas import RESULT, Failure
from pylog_spark.tasks.message import PartitionCommit
from storage_core.errors import GuardRefusedError, KeylessRecordsError, NegativeTimestampError
from storage_core.filenames import TopicPartition, directory_state
from storage_core.store.generations import unpinned

# What became of one partition, whatever was done to it.

# Errors that leave a log as it is: no failure of a night.
_REFUSALS: Final = {
    KeylessRecordsError.__name__: Reason.RECORDS_WITHOUT_KEY,
    NegativeTimestampError.__name__: Reason.NEGATIVE_TIMESTAMP,
}


@dataclass(slots=True)
class Outcome:
    """What became of one partition."""

    # Of its result row, where that differs from what the plan says.
    columns: dict[str, Any] = field(default_factory=dict)
    duration_ms: int = 0  # time that tasks spent on it since it was planned
    next_offset: int | None = None  # its cleaner point, None if it was not cleaned
    was_touched: bool = False  # whether it failed after its files had begun to change
    rounds: tuple[str, ...] = ()  # numbers of each round of compaction, ``CleanerStats`` as JSON

    @classmethod
    def of(cls, row: PartitionCommit) -> "Outcome":
        """Return the outcome that a task tells."""
        outcome = cls(duration_ms=row.duration_ms)
        if row.failure:
            outcome.fail(row.failure)
            outcome.was_touched = row.touched
            return outcome
        outcome.columns = {
            "status": Status.DONE.value,
            "bytes_after": row.bytes_after,
            "segments_after": row.segments_after,
            "operations": row.operations,
        }
        return outcome

    @classmethod
    def failed(cls, error: Exception) -> "Outcome":
        """Return the outcome of a partition out of reach by an error."""
        outcome = cls()
        outcome.fail(Failure.of(error))
        return outcome

    @classmethod
    def refused(cls, reason: Reason, why: str) -> "Outcome":
        """Return the outcome of a partition left alone for a reason."""
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
        name = "records_without_key"
        keyless = (former.columns.get(name) or 0) + (columns.get(name) or 0)
        if keyless:
            columns[name] = keyless
        return Outcome(
            columns=columns,
            duration_ms=former.duration_ms + self.duration_ms,
            next_offset=self.next_offset,
            was_touched=self.was_touched,
            rounds=former.rounds + self.rounds,
        )

    def fail(self, failure: Failure) -> None:
        """Take over the error of a row.

        Kafka's cleaner gives up a log for a negative timestamp each time: that is no failure of a
        night, it is a partition that stays as it is.
        """
        self.columns = {"status": Status.FAILED.value, **asdict(failure)}
        reason = _REFUSALS.get(failure.error_class or "")
        if reason is not None:
            self.columns |= {"status": Status.SKIPPED.value, "reason": reason.value}

    def refuse(self, reason: Reason, why: str) -> None:
        """Leave the partition alone for a reason."""
        self.columns = {"status": Status.SKIPPED.value, "reason": reason.value, "error": why}


_KEPT_NAMES: Final = (
    *("root", "topic", "partition", "directory", "status", "reason", "error_class", "error"),
)
# Of a retention alone.
_LIMITS: Final = ("retention_ms", "retention_bytes")

# By which column what is due is put in order, and how; None for the name alone.
_SORTED_BY: Final[Mapping[Order, tuple[str, str | None]]] = {
    Order.URGENCY: ("cleanable_ratio", "descending"),
    Order.LARGEST: ("cleanable_bytes", "descending"),
    Order.SMALLEST: ("cleanable_bytes", "ascending"),
    Order.NAME: ("cleanable_ratio", None),
}

# Root and directory; root, topic and number of a row that is about no directory.
RowKey = tuple[str | int | None, ...]

# Each has a list of segments.
_ROWS_AT_ONCE: Final = 1000
_RESULT_NAMES: Final = frozenset(RESULT.names)
_ORDINAL: Final = "ordinal"

T = TypeVar("T")


def row_key(row: Mapping[str, Any]) -> RowKey:
    """Return what tells the rows about one partition directory from all others.

    A topic and a number do not: ``x-0`` may stand beside ``x-0.<id>-delete`` or a copy of it. The
    generation of a managed partition does not count: it rises from step to step.
    """
    if row["directory"] is None:
        return row["root"], row["topic"], row["partition"]
    return row["root"], unpinned(row["directory"])


def row_keys(plans: pa.Table) -> list[RowKey]:
    """Return the keys of a table's rows, in its order."""
    columns = ["root", "topic", "partition", "directory"]
    return [row_key(row) for row in plans.select(columns).to_pylist()]


def only_planned(plans: pa.Table, keys: Collection[RowKey]) -> pa.Table:
    """Return the planned rows of these partition directories."""
    statuses = plans["status"].to_pylist()
    return _take(
        plans,
        [
            number
            for number, key in enumerate(row_keys(plans))
            if key in keys and statuses[number] == Status.PLANNED
        ],
    )


def sort_plans(plans: pa.Table, order: Order = Order.URGENCY) -> pa.Table:
    """Return the rows in report order: due ones as requested, then others.

    Kafka cleans the filthiest log first; equal ones follow by name. Whole columns are compared: of
    a hundred thousand rows no object is made.
    """
    is_due = pc.equal(plans["status"], Status.PLANNED.value)
    name, direction = _SORTED_BY[order]
    urgency = pc.if_else(is_due, pc.fill_null(plans[name].cast(pa.float64()), 0.0), 0.0)
    by_urgency = [] if direction is None else [(urgency, direction)]
    return sort_rows(plans, (pc.invert(is_due).cast(pa.int8()), "ascending"), *by_urgency)


def sort_rows(
    rows: pa.Table,
    *order: tuple[pa.ChunkedArray, str],
    names: Sequence[str] = ("topic", "partition", "root"),
) -> pa.Table:
    """Return rows sorted by some columns, ascending or descending, and then by their names.

    A directory that is no partition has no topic; it stands last, as nulls do.
    """
    keyed = rows.select(list(names))
    for number, (column, _) in enumerate(order):
        keyed = keyed.append_column(str(number), column)
    keys = [(str(number), direction) for number, (_, direction) in enumerate(order)]
    keys += [(name, "ascending") for name in names]
    return rows.take(pc.sort_indices(keyed, sort_keys=keys))


def refuse_duplicates(plans: pa.Table, brokers: Mapping[str, object]) -> pa.Table:
    """Fail every partition held in two directories of one broker. It is unknown which one is right.

    Args:
        plans: Rows of ``schemas.PLAN``, or of another table of partition directories.
        brokers: Which broker each root belongs to; roots of equal values are one broker's.
    """
    holders = defaultdict(list)
    suspects = _named_twice(plans)
    names = ["root", "topic", "partition", "directory", "reason"]
    rows = _take(plans.select(names), suspects).to_pylist()
    for number, row in zip(suspects, rows, strict=True):
        is_renamed = directory_state(Path(row["directory"]).name) is not None
        if not is_renamed and row["reason"] != Reason.INTERNAL_METADATA:
            holders[brokers[row["root"]], row["topic"], row["partition"]].append(number)
    duplicates = {number: held for held in holders.values() if len(held) > 1 for number in held}
    if not duplicates:
        return plans
    places = {number: row["directory"] for number, row in zip(suspects, rows, strict=True)}
    refused = _refused_rows(plans, duplicates, places)
    order = np.arange(plans.num_rows)
    order[list(duplicates)] = plans.num_rows + np.arange(len(duplicates))
    return pa.concat_tables([plans, refused]).take(pa.array(order))


def _named_twice(plans: pa.Table) -> list[int]:
    """Return the rows with a topic and number of another row. Whole columns are compared."""
    rows = np.flatnonzero(pc.is_valid(plans["topic"]))
    named = plans.select(["topic", "partition"]).take(rows)
    topics = named["topic"].combine_chunks().dictionary_encode().indices.to_numpy()
    names = (topics.astype(np.int64) << 32) + named["partition"].to_numpy()
    _, name, count = np.unique(names, return_inverse=True, return_counts=True)
    numbers: list[int] = rows[count[name] > 1].tolist()
    return numbers


def _refused_rows(
    plans: pa.Table, duplicates: Mapping[int, Sequence[int]], directories: Mapping[int, str]
) -> pa.Table:
    """Return the failed rows of duplicate partitions, in key order."""
    changed = _take(plans, duplicates).to_pylist()
    for row, held in zip(changed, duplicates.values(), strict=True):
        places = ", ".join(sorted(directories[other] for other in held))
        row |= {
            "status": Status.FAILED.value,
            "reason": Reason.DUPLICATE_PARTITION.value,
            "error_class": GuardRefusedError.__name__,
            "error": f"one broker holds this partition in several directories: {places}",
        }
        if "plan" in row:
            row["plan"] = None
    return pa.Table.from_pylist(changed, schema=plans.schema)


def result_rows(
    plans: pa.Table,
    outcomes: Mapping[int, Outcome],
    *,
    run_id: str,
    action: str,
    only: Collection[int] | None = None,
) -> pa.Table:
    """Return the result rows of a run, in plan order.

    Args:
        plans: Rows of ``schemas.PLAN``.
        outcomes: What became of the planned ones, by their number; none for a dry run.
        only: The rows that are asked for, None for all.
    """
    numbers = np.arange(plans.num_rows) if only is None else np.array(sorted(only), np.int64)
    selection = plans if only is None else _take(plans, numbers)
    rows = _observed_results(selection, run_id=run_id, action=action)
    ended = {
        place: outcomes[number]
        for place, number in enumerate(numbers.tolist())
        if number in outcomes and outcomes[number].has_ended
    }
    if not ended:
        return rows
    changed = [
        _result(row, bytes_before, outcome)
        for row, bytes_before, outcome in zip(
            _take(rows, ended).to_pylist(),
            _take(selection, ended)["bytes"].to_pylist(),
            ended.values(),
            strict=True,
        )
    ]
    order = np.arange(rows.num_rows)
    order[list(ended)] = rows.num_rows + np.arange(len(ended))
    tail = pa.Table.from_batches([rows_to_batch(RESULT, changed)], schema=RESULT)
    return pa.concat_tables([rows, tail]).take(pa.array(order))


def _observed_results(plans: pa.Table, *, run_id: str, action: str) -> pa.Table:
    """Return the result rows of untouched partitions, column by column."""
    is_planned = pc.equal(plans["status"], Status.PLANNED.value)
    columns = {
        "run_id": pa.repeat(run_id, plans.num_rows),
        "action": pa.repeat(action, plans.num_rows),
        "bytes_before": plans["bytes"],
        "bytes_after": pc.if_else(is_planned, plans["bytes_after"], plans["bytes"]),
        "segments_before": plans["segments"],
        "segments_after": pc.if_else(is_planned, None, plans["segments"]),
    }
    for name in (*_KEPT_NAMES, "duration_ms", *_LIMITS):
        if name in plans.column_names:
            columns[name] = plans[name]
    for each in RESULT:
        columns.setdefault(each.name, pa.nulls(plans.num_rows, each.type))
    return pa.table({name: columns[name] for name in RESULT.names}).cast(RESULT)


def _result(row: dict[str, Any], bytes_before: int | None, outcome: Outcome) -> dict[str, Any]:
    """Return the result row of a partition to which something was done."""
    row["duration_ms"] += outcome.duration_ms
    unchanged = {"bytes_after": bytes_before, "segments_after": row["segments_before"]}
    row |= dict.fromkeys(unchanged) if outcome.was_touched else unchanged
    return row | {name: value for name, value in outcome.columns.items() if name in _RESULT_NAMES}


def _take(table: pa.Table, numbers: Iterable[int]) -> pa.Table:
    return table.take(pa.array(numbers, pa.int64()))


def read_planned(kind: type[T], plans: pa.Table) -> Iterator[T]:
    """Yield planned rows, with their segments, as objects, some at once.

    Args:
        kind: A dataclass; its columns are some of the table's, and ``ordinal``, a row's number.
    """
    (numbers,) = np.nonzero(pc.equal(plans["status"], Status.PLANNED.value).to_numpy())
    columns = plans.select([name for name in schema_of(kind).names if name != _ORDINAL])
    for first in range(0, len(numbers), _ROWS_AT_ONCE):
        some = pa.array(numbers[first : first + _ROWS_AT_ONCE])
        yield from read_rows(kind, columns.take(some).append_column(_ORDINAL, some))


def offsets_by_root(rows: pa.Table, column: str) -> dict[str, dict[TopicPartition, int]]:
    """Return a column's offsets as a root writes them down, by partition."""
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for row in rows.select(["root", "topic", "partition", column]).to_pylist():
        partition = TopicPartition(row["topic"], row["partition"])
        offsets.setdefault(row["root"], {})[partition] = row[column]
    return offsets
