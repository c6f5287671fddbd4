"""Messages of tasks to the driver, or to other tasks.

A message says what became of one partition, or of a part of it, or has the error of that. It is a
dataclass in the module of the task that makes it. The engine makes rows of messages, and messages
of rows.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from pylog_spark.rows import Int32, Number, Text, column, row_reader, row_writer
from pylog_spark.schemas import STEPS, Failure, PartitionName, Status
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.cells import join_rows
from pylog_spark.tasks.failures import RefusalOf, run_and_log

MessageT = TypeVar("MessageT")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage:
    """The fields of every message about one partition of a run."""

    ordinal: int = column("row of the partition in the run's own table")
    duration_ms: int = column("time it took")
    failure: Failure = Failure()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCommit(TaskMessage):
    """The end of a task that changes a partition's files."""

    bytes_after: Number = column("bytes of all .log files")
    segments_after: Number = column("segments of the partition")
    operations: Text = column("the operations that were applied, as JSON")
    touched: bool = column("whether files may have been changed before the error")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryResult:
    """The result or forecast of an undo or purge in a directory."""

    topic: Text = column("topic, null for none")
    partition: Int32 = column("number of the partition, null for none")
    directory: Text = column("where it is")
    status: Text = column("planned, done, skipped or failed; null where there is nothing to do")
    reason: Text = column("stable code that says why it was left alone")
    bytes_before: Number = column("bytes of all .log files; of a purge bytes of what goes")
    bytes_after: Number = column("the same afterwards")
    segments_before: Number = column("segments of the partition")
    segments_after: Number = column("the same afterwards")
    steps: Text = column("the operations that were applied, as JSON")
    duration_ms: int = column("time it took")
    failure: Failure = Failure()

    def columns(self) -> dict[str, Any]:
        """Return columns of ``schemas.RESULT``, with the operations behind them."""
        return row_writer(DirectoryResult)(self) | {STEPS: json.loads(self.steps or "[]")}


def attempt(
    head: MessageT,
    work: Callable[[MessageT], MessageT],
    of: PartitionName | None = None,
    *,
    refusal_of: RefusalOf = lambda _: None,
) -> MessageT:
    """Return the message from work, or its error, with the duration.

    Args:
        head: The message but for its content; it has ``duration_ms`` and ``failure``. A failure
            that it comes with was logged where it happened.
        work: Returns the whole message for its head.
        of: The partition that it is about, for log lines; None where that is not known.
        refusal_of: Returns the reason of an error by which a partition is skipped; None for one by
            which it fails. For messages with ``status`` and ``reason``.
    """
    before: Any = head

    def failed(error: Exception) -> Any:
        reason = refusal_of(error)
        refusal = {} if reason is None else {"status": Status.SKIPPED.value, "reason": reason}
        return replace(before, failure=Failure.of(error), **refusal)

    def row_of(message: Any) -> Mapping[str, Any]:
        is_logged = before.failure and message.failure == before.failure
        return {} if is_logged else row_writer(type(head))(message)

    with log_fields(**({} if of is None else asdict(of))):
        message, duration_ms = run_and_log(partial(work, head), failed, row_of)
    ended: MessageT = replace(message, duration_ms=duration_ms)
    return ended


def fill(head: MessageT, columns: Mapping[str, Any]) -> MessageT:
    """Return a message with the columns that a commit has answered."""
    kind = type(head)
    row = row_writer(kind)(head)
    unknown = columns.keys() - row.keys()
    if unknown:
        raise KeyError(f"no such column: {', '.join(sorted(unknown))}")
    return row_reader(kind)({**row, **columns})


def join_messages(kind: type[MessageT], batches: Iterable[pa.RecordBatch]) -> Iterator[MessageT]:
    """Yield messages from their consecutive pieces, as ``cells.join_rows`` does."""
    return map(row_reader(kind), join_rows(batches))
