"""Read a segment's batches and records until the first bad one. They come a block at a time."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    MAX_QUORUM_STATE_BYTES,
    parse_clean_shutdown,
    parse_meta_properties,
    parse_quorum_state,
)
from storage_core.checkpoint.checkpoints import (
    MAX_OFFSET_CHECKPOINT_BYTES,
    MAX_PARTITION_METADATA_BYTES,
    parse_leader_epochs,
    parse_offset_checkpoint,
    parse_partition_metadata,
)
from storage_core.clock import epoch_ms
from storage_core.errors import (
    BadBytesError,
    CorruptRecordError,
    InvalidRecordError,
    UnsupportedCompressionError,
)
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    MAX_OFFSET,
    META_PROPERTIES_FILE,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    QUORUM_STATE_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    kind_of,
    offset_of,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY, TXN_INDEX_ENTRY
from storage_core.index.segment_indexes import read_entries, read_transactions
from storage_core.kernels import record_scan
from storage_core.log.batch_search import MAX_INDEX_BYTES
from storage_core.log.committed_view import CommittedView
from storage_core.log.open_transactions import TransactionTracker
from storage_core.log.producer_snapshot import MAX_SNAPSHOT_BYTES, parse_producer_snapshot
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import DEFAULT_LIMITS, Payload, RecordColumns, open_batches
from storage_core.records.reader import CrcCheck, Large, Tail, Window, find_zeros, scan_windows
from storage_core.store.base import LogStore

# The part of a log in a dump: start, end, most records.

# Whatever damaged bytes say, below what can be asked for.
_FIRST_OFFSET: Final = -(2**63)


class DumpBounds:
    """Cuts a dump to its bounds, batch after batch. Batches come in the order of their offsets.

    A time stands for the first record at or after it, as it does for a consumer.

    Args:
        start: First offset, or a time; None for the beginning.
        end: Just past the last offset, or a time; None for the end.
        most: How many records at most, at least one; None for all.

    Attributes:
        is_over: Whether nothing more is to be shown.
    """

    def __init__(
        self,
        start: int | datetime | None = None,
        end: int | datetime | None = None,
        most: int | None = None,
    ) -> None:
        self._start = start if isinstance(start, int) else _FIRST_OFFSET
        self._end = end if isinstance(end, int) else MAX_OFFSET
        self._start_ms = epoch_ms(start) if isinstance(start, datetime) else None
        self._end_ms = epoch_ms(end) if isinstance(end, datetime) else None
        self._left = most
        self._is_range = start is not None or end is not None
        self.is_over = False

    @property
    def is_range(self) -> bool:
        """Whether there is a start or an end."""
        return self._is_range

    def may_have(self, base_offset: int, next_base_offset: int | None) -> bool:
        """Whether a segment may have something that is to be shown."""
        is_before = next_base_offset is not None and next_base_offset <= self._start
        return not (self.is_over or is_before or base_offset >= self._end)

    def rows(self, batches: BatchTable) -> tuple[int, int]:
        """Return the range of batches with a possible part in the dump. It is the first of them,
        and the one behind the last."""
        if not self._is_range:
            return 0, len(batches)
        may_be = (batches.last_offset >= self._start) & batches.may_reach_below(self._end)
        if self._start_ms is not None:
            may_be &= batches.max_timestamp >= self._start_ms
        (rows,) = np.nonzero(may_be)
        if len(batches) and int(batches.base_offset[-1]) >= self._end:
            self.is_over |= not bool(batches.is_message_set[-1])
        if not rows.size:
            return 0, 0
        # Behind the first record at or after a time there are older ones, too.
        last = int(rows[-1]) if self._start_ms is None else len(batches) - 1
        return int(rows[0]), last + 1

    def cut(
        self, records: RecordColumns, first_row: int, end_row: int
    ) -> tuple[RecordColumns, int, int] | None:
        """Return the dumped part of batches: records, first batch, end.

        Args:
            records: Those of the batches that are opened, in order.

        Returns:
            None for nothing.
        """
        is_shown: NDArray[np.bool_] = np.ones(len(records), np.bool_)
        if self._is_range:
            is_shown = (records.offset >= self._start) & (records.offset < self._end)
        if self._start_ms is not None:
            is_shown &= np.logical_or.accumulate(is_shown & (records.timestamp >= self._start_ms))
            if not is_shown.any():
                return None
            self._start_ms = None
            first_row = int(records.batch[np.argmax(is_shown)])
        if self._end_ms is not None:
            is_late = np.logical_or.accumulate(is_shown & (records.timestamp >= self._end_ms))
            if is_late.any():
                end_row = self._end_at(records, is_shown & ~is_late, first_row)
                is_shown &= ~is_late
        if self._left is not None:
            is_counted = np.cumsum(is_shown) <= self._left
            self._left -= int((is_shown & is_counted).sum())
            is_shown &= is_counted
            if not self._left:
                end_row = self._end_at(records, is_shown, first_row)
        if end_row <= first_row:
            return None
        return records.select(is_shown), first_row, end_row

    def take_entry(self) -> bool:
        """Count an entry, and return whether it is shown. It is of a file without records."""
        if self._left is not None:
            if not self._left:
                return False
            self._left -= 1
        return True

    def _end_at(self, records: RecordColumns, is_shown: NDArray[np.bool_], first_row: int) -> int:
        """Mark the end; return the row behind the last shown batch."""
        self.is_over = True
        (rows,) = np.nonzero(is_shown)
        return int(records.batch[rows[-1]]) + 1 if rows.size else first_row


# Entries of a log's small files: indexes, producer snapshots, checkpoints.

# What a line says: its type, then its fields under Kafka's names in snake case.
Entry = tuple[str, dict[str, Any]]
EntryParser = Callable[[LogStore, str], Iterator[Entry]]

# Of an index, as Python's objects: those take many times the room of the file.
_ENTRIES_AT_A_TIME: Final = 1 << 12


def parser_of(name: str) -> EntryParser | None:
    """Return the parser for a file's name, None without one."""
    return _BY_NAME.get(name) or _BY_SUFFIX.get(kind_of(name) or "")


def _offset_index(store: LogStore, name: str) -> Iterator[Entry]:
    for row, (relative, position) in enumerate(_pairs(store, name, OFFSET_INDEX_ENTRY)):
        if _is_padding(row, relative):
            return
        yield "index", {"offset": _base(name) + relative, "position": position}


def _time_index(store: LogStore, name: str) -> Iterator[Entry]:
    for row, (timestamp, relative) in enumerate(_pairs(store, name, TIME_INDEX_ENTRY)):
        if _is_padding(row, relative):
            return
        yield "timeindex", {"timestamp": timestamp, "offset": _base(name) + relative}


def _transaction_index(store: LogStore, name: str) -> Iterator[Entry]:
    position = 0
    for entries in _entries(store, name, TXN_INDEX_ENTRY):
        for transaction in read_transactions(name, _base(name), entries, start=position):
            yield "txnindex", asdict(transaction)
        position += entries.nbytes


def _small_file(
    limit_bytes: int,
    rows_of: Callable[[bytes, str], Iterable[dict[str, Any]]],
    kind: str = "checkpoint",
) -> EntryParser:
    """Return the parser of a file that is read whole.

    Args:
        limit_bytes: Of how many bytes it may be.
        rows_of: Returns the fields of each entry; it gets the content, and the name for errors.
    """

    def parse(store: LogStore, name: str) -> Iterator[Entry]:
        for fields in rows_of(store.read_file(name, limit_bytes=limit_bytes), name):
            yield kind, fields

    return parse


def _pairs(store: LogStore, name: str, entry: np.dtype[Any]) -> Iterator[tuple[int, int]]:
    for entries in _entries(store, name, entry):
        yield from entries.tolist()


def _entries(store: LogStore, name: str, entry: np.dtype[Any]) -> Iterator[NDArray[np.void]]:
    for piece in read_entries(store, name, entry, limit_bytes=MAX_INDEX_BYTES):
        for start in range(0, len(piece), _ENTRIES_AT_A_TIME):
            yield piece[start : start + _ENTRIES_AT_A_TIME]


def _base(name: str) -> int:
    return offset_of(name) or 0


def _is_padding(row: int, relative_offset: int) -> bool:
    """Whether an entry is padding: zeros at a preallocated index's end."""
    return row > 0 and relative_offset == 0


_OFFSET_CHECKPOINT: Final = _small_file(
    MAX_OFFSET_CHECKPOINT_BYTES,
    lambda data, file: (
        asdict(partition) | {"offset": offset}
        for partition, offset in parse_offset_checkpoint(data, file=file).items()
    ),
)
_BY_SUFFIX: Final[dict[str, EntryParser]] = {
    OFFSET_INDEX_SUFFIX: _offset_index,
    TIME_INDEX_SUFFIX: _time_index,
    TXN_INDEX_SUFFIX: _transaction_index,
    SNAPSHOT_SUFFIX: _small_file(
        MAX_SNAPSHOT_BYTES,
        lambda data, file: map(asdict, parse_producer_snapshot(file, data)),
        kind="snapshot",
    ),
}
_BY_NAME: Final[dict[str, EntryParser]] = {
    LEADER_EPOCH_FILE: _small_file(
        MAX_OFFSET_CHECKPOINT_BYTES,
        lambda data, file: (
            {"epoch": entry.epoch, "start_offset": entry.start_offset}
            for entry in parse_leader_epochs(data, file=file)
        ),
    ),
    PARTITION_METADATA_FILE: _small_file(
        MAX_PARTITION_METADATA_BYTES,
        lambda data, file: [asdict(parse_partition_metadata(data, file=file))],
    ),
    RECOVERY_POINT_FILE: _OFFSET_CHECKPOINT,
    LOG_START_FILE: _OFFSET_CHECKPOINT,
    CLEANER_FILE: _OFFSET_CHECKPOINT,
    REPLICATION_FILE: _OFFSET_CHECKPOINT,
    CLEAN_SHUTDOWN_FILE: _small_file(
        MAX_META_PROPERTIES_BYTES, lambda data, _: [asdict(parse_clean_shutdown(data))]
    ),
    META_PROPERTIES_FILE: _small_file(
        MAX_META_PROPERTIES_BYTES,
        lambda data, file: [asdict(parse_meta_properties(data, file=file))],
    ),
    QUORUM_STATE_FILE: _small_file(
        MAX_QUORUM_STATE_BYTES, lambda data, file: [parse_quorum_state(data, file=file)]
    ),
}


# A line of text for each record is made of many small Python objects, so that a small window
# already takes a hundred times its size.
_WINDOW_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatches:
    """Consecutive batches of a window with their records. They are valid until the next ones are
    asked for."""

    window: Window
    batches: BatchTable  # its batches, with what the opened ones say
    first_row: int
    end_row: int
    records: RecordColumns  # the records, in order

    @property
    def wrong_checksums(self) -> list[tuple[int, str]]:
        """Position and error of every batch with a wrong CRC."""
        ok = self.window.batches.crc_ok[self.first_row : self.end_row]
        rows = (np.flatnonzero(ok != 1) + self.first_row).tolist()
        offsets = self.window.batches.base_offset
        return [
            (
                self.window.position_of(row),
                f"the CRC of the batch at offset {offsets[row]} is wrong",
            )
            for row in rows
        ]

    @property
    def record_ends(self) -> NDArray[np.int64]:
        """Where in the records each batch's end, int64[batches]."""
        rows = np.arange(self.first_row, self.end_row)
        return np.searchsorted(self.records.batch, rows, side="right")


@dataclass(frozen=True, slots=True, kw_only=True)
class TornTail:
    """Bytes of an incomplete batch at a file's end. Their writer died, or still writes."""

    file: str
    position: int
    size_bytes: int
    is_zeros: bool


# What a file holds, piece by piece.
FileContent = DecodedBatches | TornTail | BadBytesError | Entry


def dump_segment(
    store: LogStore, name: str, committed: CommittedView | None, bounds: DumpBounds | None = None
) -> Iterator[DecodedBatches | TornTail | CorruptRecordError]:
    """Yield everything that a segment file holds.

    An error that is yielded is about a batch of which only the header was read; others follow.

    Args:
        committed: Leave out what a committed read does not see; None shows everything.
        bounds: Which part of the log is shown; None for all of it.
    """
    bounds = bounds or DumpBounds()
    with closing(store.open_file(name)) as reader:
        position = 0
        end_offset, transactions = None, None
        if committed is not None:
            end_offset = committed.last_stable_offset
            base = offset_of(name) or 0
            transactions = TransactionTracker(committed.aborted_between(base, end_offset))
        for window in scan_windows(
            reader,
            window_bytes=_WINDOW_BYTES,
            crc=CrcCheck.NOTE,
            tail=Tail.ZEROS,
            large=Large.VALID,
        ):
            first, end = bounds.rows(window.batches)
            rows = np.arange(len(window.batches))
            is_wanted = (rows >= first) & (rows < end)
            if transactions is not None and end_offset is not None:
                is_wanted &= transactions.visible(window.batches)
                is_wanted &= window.batches.may_reach_below(end_offset)
            for decoded in _decode(window, is_wanted & window.is_whole, end_offset, first, end):
                part = bounds.cut(decoded.records, decoded.first_row, decoded.end_row)
                if part is not None:
                    records, first_row, end_row = part
                    yield replace(decoded, records=records, first_row=first_row, end_row=end_row)
                if bounds.is_over:
                    return
            if not window.is_whole and is_wanted[0]:
                yield _not_shown(window)
            if bounds.is_over:
                return
            position = window.file_position + len(window.data)
        if position < reader.size_bytes:
            size_bytes = reader.size_bytes
            yield TornTail(
                file=name,
                position=position,
                size_bytes=size_bytes - position,
                is_zeros=find_zeros(reader, position, size_bytes) == position,
            )


def _not_shown(window: Window) -> CorruptRecordError:
    """Return the error about a large batch with a wrong CRC. Only its header was read."""
    batches = window.batches
    return CorruptRecordError(
        window.file,
        window.file_position,
        f"the batch at offset {batches.base_offset[0]} has {batches.size[0]} bytes and a wrong "
        "CRC: its records are not shown",
        offset=int(batches.base_offset[0]),
    )


def _decode(
    window: Window, wanted: NDArray[np.bool_], end_offset: int | None, row: int, end: int
) -> Iterator[DecodedBatches]:
    """Yield a window's batches from row to before end."""
    while row < end:
        payload, end_row, bad = _open(window, wanted, row)
        end_row = min(end_row, end)
        records, problem = _read_records(payload, wanted, row, end_row)
        if problem is not None:
            end_row, bad = _row_at(window, problem), problem
        if end_offset is not None:
            records = records.select(records.offset < end_offset)
        # The batch that is bad is shown too: its header says what it claims to be. Only a message
        # set has no header of its own, and says its first offset where it can be opened.
        is_shown = bad is not None and not window.batches.is_message_set[end_row]
        shown_end = end_row + is_shown
        yield DecodedBatches(
            window=window,
            batches=payload.batches,
            first_row=row,
            end_row=shown_end,
            records=records,
        )
        if bad is not None:
            raise bad
        row = end_row


def _open(
    window: Window, wanted: NDArray[np.bool_], row: int
) -> tuple[Payload, int, BadBytesError | None]:
    """Return opened batches from row on, their end, and an error. The error is about the batch
    behind them."""
    bad: BadBytesError | None = None
    bad_row = 0
    while True:
        try:
            payload = open_batches(window, wanted, row, DEFAULT_LIMITS)
        except (CorruptRecordError, InvalidRecordError, UnsupportedCompressionError) as error:
            # What is found first need not stand first: batches are opened in several steps.
            bad, bad_row = error, _row_at(window, error)
            wanted = wanted & (np.arange(len(wanted)) < bad_row)
        else:
            return payload, payload.end_row if bad is None else bad_row, bad


def _read_records(
    payload: Payload, wanted: NDArray[np.bool_], first_row: int, end_row: int
) -> tuple[RecordColumns, BadBytesError | None]:
    """Return the wanted batches' records up to an error, and the error.

    Of a bad batch there are those that Kafka's reader hands out before it stops: none if it is
    compressed, and where bytes are left over not the last one, with which it notices them.
    """
    rows = np.flatnonzero(wanted[first_row:end_row]) + first_row
    counts = payload.batches.record_count[rows]
    table = np.empty((record_scan.RECORD_COLUMN_COUNT, int(counts.sum())), np.int64)
    count, status, bad_row, position = record_scan.decode_records(
        payload.window.data,
        payload.arena,
        payload.batches.record_count,
        payload.notes.columns,
        rows,
        DEFAULT_LIMITS.max_record_bytes,
        table,
    )
    table = table[:, :count]
    if status == record_scan.DONE:
        return RecordColumns(payload=payload, table=table), None
    if payload.notes.place[bad_row] != record_scan.IN_WINDOW:
        table = table[:, table[record_scan.RECORD_BATCH] < bad_row]
    elif status == record_scan.LEFTOVER:
        table = table[:, :-1]
    return RecordColumns(payload=payload, table=table), payload.error(status, bad_row, position)


def _row_at(window: Window, error: BadBytesError) -> int:
    """Return the batch that an error is about."""
    position = error.position - window.file_position
    return int(np.searchsorted(window.batches.position, position))
