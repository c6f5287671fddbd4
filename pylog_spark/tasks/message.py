"""Messages of tasks to the driver, or to other tasks.

A message says what became of one partition, or of a part of it, or has the error of that. It is a
dataclass in the module of the task that makes it. The engine makes rows of messages, and messages
of rows.
"""

import hashlib
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from pylog_spark.outcomes import Reason, Status
from pylog_spark.rows import Binary, Int32, Number, Text, column, row_reader, row_writer
from pylog_spark.schemas import STEPS, Failure, PartitionName
from pylog_spark.structured_logs import log_fields
from storage_core.commit.plan import CommitPlan, is_scratch
from storage_core.errors import (
    ContradictedAgeError,
    NegativeTimestampError,
    RecoveryRequiredError,
    describe_failure,
)
from storage_core.json_values import to_json
from storage_core.store import LocalStore, open_store
from storage_core.store.log_identity import read_identity

# Cut large cells into pieces for Spark's row path. No row of any plan is then larger than that
# path bears.
#
# A value on its way through Spark is copied four or five times on the JVM's heap (from Arrow into
# a row, into the buffer of a shuffle, into the page of a sort, back into Arrow), and each task has
# its own. One cell of a hundred megabytes ends a JVM of Spark's default heap, and with it the
# whole run.
#
# So every row that tasks of ours hand on goes through ``cut_batches``: a row with a large value
# becomes several, numbered in the column ``part``. Those after the first repeat the numbers and
# the short texts of the row, by which rows are chosen, dealt out and sorted, and carry nothing
# else but the next piece. Whoever gets them puts them together again: ``join_table`` on the
# driver, ``join_rows`` in a task whose rows are sorted by what tells them apart, and by ``part``.

# The promise: no cell of any plan is larger.
MOST_CELL_BYTES: Final = 8 * 1024 * 1024
# What is cut at all, is cut well below that.
PIECE_BYTES: Final = 1024 * 1024
PART: Final = "part"
_PART_FIELD: Final = pa.field(
    PART, pa.int32(), metadata={"comment": "which piece of the row this is, from 0"}
)
# A list's own offsets.
_LIST_BYTES: Final = 16
# A longer text is no kind, status or name that rows are chosen by. Well below what is cut.
_LABEL_CHARACTERS: Final = 256
# No character takes more in UTF-8.
_MOST_CHARACTER_BYTES: Final = 4


def with_part(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a table whose rows may come in pieces."""
    return schema.append(_PART_FIELD)


def cut_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows with a column ``part``, large values in several pieces."""
    for batch in batches:
        if batch.nbytes <= PIECE_BYTES:
            yield _numbered(batch, 0)
            continue
        first = gathered = 0
        for number in range(batch.num_rows):
            row = batch.slice(number, 1)
            size = row.nbytes
            if number > first and gathered + size > PIECE_BYTES:
                yield _numbered(batch.slice(first, number - first), 0)
                first, gathered = number, 0
            gathered += size
            if size > PIECE_BYTES:  # alone by now
                yield from _cut_row(row)
                first, gathered = number + 1, 0
        if first < batch.num_rows:
            yield _numbered(batch.slice(first), 0)


def slice_table(table: pa.Table) -> Iterator[pa.Table]:
    """Yield a driver's table in slices small enough for Spark. A table becomes one value of the
    plan, or one on the way into it."""
    slices = max(1, -(-table.nbytes // MOST_CELL_BYTES))
    step = max(1, -(-table.num_rows // slices))
    for first in range(0, table.num_rows, step):
        yield table.slice(first, step)


def join_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of a table of consecutive pieces."""
    parts = table[PART].to_numpy()
    plain = table.select(schema.names).cast(schema)
    if not parts.any():
        return plain
    # A row that is whole is followed by another first piece.
    starts = np.flatnonzero(parts == 0)
    ends = np.append(starts[1:], len(parts))
    done, first = [], 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end - start > 1:
            (row,) = join_rows(table.slice(start, end - start).to_batches())
            done += [
                plain.slice(first, start - first),
                pa.Table.from_pylist([row], schema=schema),
            ]
            first = end
    return pa.concat_tables([*done, plain.slice(first)])


def join_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield rows, without ``part``, from their consecutive pieces. Bytes are views of the
    batches where nothing was cut."""
    row: dict[str, Any] = {}
    pieces: dict[str, list[Any]] = {}
    for part, following in _plain_rows(batches):
        if part:
            for name in _cuttable(row):
                if following[name] is not None:
                    pieces.setdefault(name, [row[name]]).append(following[name])
            continue
        if row:
            yield row | {name: _join(values) for name, values in pieces.items()}
        row, pieces = following, {}
    if row:
        yield row | {name: _join(values) for name, values in pieces.items()}


def _numbered(batch: pa.RecordBatch, part: int) -> pa.RecordBatch:
    column = pa.array(np.full(batch.num_rows, part, np.int32))
    return pa.RecordBatch.from_arrays(
        [*batch.columns, column], schema=with_part(batch.schema.remove_metadata())
    )


def _cut_row(row: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    (values,) = row.to_pylist()
    cut = {name: _pieces(values[name]) for name in _cuttable(values)}
    for part in range(max(map(len, cut.values()))):
        if part:
            values = {name: None if name in cut else value for name, value in values.items()}
        here = {name: pieces[part] for name, pieces in cut.items() if part < len(pieces)}
        yield _numbered(pa.RecordBatch.from_pylist([values | here], schema=row.schema), part)


def _cuttable(row: dict[str, Any]) -> list[str]:
    """Return a row's filled columns of arbitrary length.

    A short text is not one of them: it stands in every piece. The last piece of a long one may be
    short, too; the first one tells.
    """
    kinds = (bytes, memoryview, str, list)
    return [
        name for name, value in row.items() if isinstance(value, kinds) and not _is_label(value)
    ]


def _is_label(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LABEL_CHARACTERS


def _pieces(value: Any) -> list[Any]:
    if isinstance(value, list):
        return _cut_list(value)
    step = PIECE_BYTES // _MOST_CHARACTER_BYTES if isinstance(value, str) else PIECE_BYTES
    return [value[begin : begin + step] for begin in range(0, len(value), step)] or [value]


def _cut_list(values: list[Any]) -> list[list[Any]]:
    pieces: list[list[Any]] = [[]]
    size = _LIST_BYTES
    for value in values:
        own = _MOST_CHARACTER_BYTES * len(value) + 8 if isinstance(value, str) else 8
        if size + own > PIECE_BYTES and pieces[-1]:
            pieces.append([])
            size = _LIST_BYTES
        pieces[-1].append(value)
        size += own
    return pieces


def _join(pieces: list[Any]) -> Any:
    if isinstance(pieces[0], str):
        return "".join(pieces)
    if isinstance(pieces[0], list):
        return [value for piece in pieces for value in piece]
    return b"".join(pieces)


def _plain_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows with their piece numbers; copy no bytes. Bytes stay in their batch."""
    for batch in batches:
        binary = [field.name for field in batch.schema if field.type == pa.binary()]
        others = [name for name in batch.schema.names if name not in {*binary, PART}]
        parts = batch.column(PART).to_pylist()
        for number, row in enumerate(batch.select(others).to_pylist()):
            for name in binary:
                value = batch.column(name)[number]
                row[name] = memoryview(value.as_buffer()) if value.is_valid else None
            yield parts[number], row


# Turn errors into columns of rows.
#
# Tasks yield rows for broken partitions, because Spark hands the driver a raised error as text and
# drops the good rows of the stage with it. Damage and failing disks are what rows are for. A
# mistake in the program must not be lost either: its row carries the place in the code, the
# partition counts as failed, and the others go on.

_log: Final = logging.getLogger(__name__)
T = TypeVar("T")
RefusalOf = Callable[[Exception], str | None]


def error_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a row's failure after another row's error, or None. The row could not be made
    because of that error; None is for no error."""
    if row["error_class"] is None:
        return None
    return {
        "status": Status.FAILED,
        "error_class": row["error_class"],
        "error": row["error"],
    }


def run_and_log(
    work: Callable[[], T],
    failed: Callable[[Exception], T],
    row_of: Callable[[T], Mapping[str, Any]],
) -> tuple[T, int]:
    """Return what work returns, or what its error becomes, and its milliseconds.

    Args:
        failed: Returns the value for an error; other partitions go on.
        row_of: Returns the columns of a value, for the log line of the end.
    """
    started = time.perf_counter()
    error = None
    try:
        value = work()
    except Exception as caught:  # noqa: BLE001  # the value carries it
        value, error = failed(caught), caught
    if _log.isEnabledFor(logging.INFO):
        _log_end(row_of(value), error)
    return value, round((time.perf_counter() - started) * 1000)


def attempt_row(
    name: Mapping[str, Any],
    work: Callable[[], dict[str, Any]],
    refusal_of: RefusalOf = lambda _: None,
) -> dict[str, Any]:
    """Return a partition's name and the columns of work, or its error. An error comes with its
    status; the duration is there in either case.

    Args:
        refusal_of: Returns the reason of an error by which the partition is skipped; None for one
            by which it fails.
    """

    def failed(error: Exception) -> dict[str, Any]:
        reason = refusal_of(error)
        status = Status.FAILED if reason is None else Status.SKIPPED
        return {"status": status, "reason": reason, **describe_failure(error)}

    with log_fields(**{key: name[key] for key in ("root", "topic", "partition")}):
        row, duration_ms = run_and_log(work, failed, dict)
    return {**name, **row, "duration_ms": duration_ms}


def attempt_directory(
    row: Mapping[str, Any],
    work: Callable[[], dict[str, Any]],
    refusal_of: RefusalOf = lambda _: None,
) -> dict[str, Any]:
    """Return ``attempt_row`` of a partition directory.

    Args:
        row: Of ``schemas.PARTITION``; an error that it carries is handed on, and nothing tried.
    """
    name = {key: row[key] for key in ("root", "topic", "partition", "directory")}
    return attempt_row(name, lambda: error_of(row) or work(), refusal_of)


def needs_recovery(error: Exception) -> Reason | None:
    """Return the reason to skip a log after an error. Nothing can be done to such a log yet;
    None for any other error."""
    if isinstance(error, NegativeTimestampError):
        return Reason.NEGATIVE_TIMESTAMP
    if isinstance(error, ContradictedAgeError):
        return Reason.AGE_CONTRADICTED
    return Reason.RECOVERY_REQUIRED if isinstance(error, RecoveryRequiredError) else None


def _log_end(row: Mapping[str, Any], error: Exception | None) -> None:
    """Log a partition's changed files, or the error of its work. Nothing else is logged.

    The driver logs a failure as an error when the row has reached it; this line comes at once, and
    has a traceback where no commit has made a row of the error before.
    """
    if row.get("error_class") is not None:
        directory = getattr(error, "directory", None)
        with log_fields(error_class=row["error_class"], directory=directory):
            _log.info("%s", row["error"], exc_info=error)
    elif row.get("operations") and row.get("status") in {None, Status.DONE}:
        operations = json.loads(row["operations"])
        with log_fields(operations=len(operations)):
            _log.info("committed")


def described_steps(steps: CommitPlan, ledger: str | None) -> str | None:
    """Return the operations of a commit as JSON; None where no ledger keeps them, and no log line
    counts them."""
    is_asked = ledger is not None or _log.isEnabledFor(logging.INFO)
    return json.dumps(list(steps.describe())) if is_asked else None


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
    operations: Text = column("the operations that were applied, as JSON; null if nobody asks")
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

    name = {} if of is None else {"root": of.root, "topic": of.topic, "partition": of.partition}
    with log_fields(**name):
        message, duration_ms = run_and_log(partial(work, head), failed, row_of)
    if message.duration_ms != duration_ms:  # as of few where there are very many
        message = replace(message, duration_ms=duration_ms)
    ended: MessageT = message
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


# List files and ids of planned partitions, for saved plans.

# Name, size and modification time of a file.
FileFacts = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint(TaskMessage):
    """What the files of a planned partition look like."""

    files: Binary = column("names, sizes and times, zlib over JSON; null with an error")
    identity: Text = column("topic id and cluster id, as JSON; null but for a local directory")


def fingerprint_partitions(items: Iterable[tuple[int, str]]) -> Iterator[Fingerprint]:
    """List partitions.

    Args:
        items: Ordinal and location of each.
    """
    for ordinal, location in items:
        yield attempt(Fingerprint(ordinal=ordinal), partial(_list, location))


def _list(location: str, head: Fingerprint) -> Fingerprint:
    store = open_store(location)
    facts = [
        (file.name, file.size_bytes, file.modified_ms)
        for file in store.list_files()
        if not is_scratch(file.name)
    ]
    # Of a managed root the manifest's generation says that it is the same.
    identity = to_json(read_identity(store)) if isinstance(store, LocalStore) else None
    return replace(head, files=encode_files(facts), identity=identity)


def encode_files(files: Iterable[FileFacts]) -> bytes:
    """Return a listing compressed for travel: its names repeat themselves."""
    return zlib.compress(json.dumps(list(files), separators=(",", ":")).encode())


def decode_files(content: bytes | None) -> tuple[FileFacts, ...]:
    """Return the listing that ``encode_files`` wrote, none for None."""
    if content is None:
        return ()
    return tuple((name, size, time) for name, size, time in json.loads(zlib.decompress(content)))


def digest_operations(text: str) -> str:
    """Return a digest of operations in JSON, however they are spaced."""
    canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
