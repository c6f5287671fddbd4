"""Read a segment's batches and records until the first bad one. They come a block at a time."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pylog_spark.cli.dump_bounds import DumpBounds
from pylog_spark.cli.dump_entries import Entry
from storage_core.errors import (
    BadBytesError,
    CorruptRecordError,
    InvalidRecordError,
    UnsupportedCompressionError,
)
from storage_core.filenames import offset_of
from storage_core.kernels import record_scan
from storage_core.log.committed_view import CommittedView
from storage_core.log.transaction_tracker import TransactionTracker
from storage_core.records.batch_table import BatchTable
from storage_core.records.columns import RecordColumns
from storage_core.records.payload import DEFAULT_LIMITS, Payload, open_batches
from storage_core.records.reader import CrcCheck, Large, Tail, Window, find_zeros, scan_windows
from storage_core.store.base import LogStore

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
    def record_ends(self) -> list[int]:
        """Where in the records each batch's end."""
        rows = np.arange(self.first_row, self.end_row)
        ends: list[int] = np.searchsorted(self.records.batch, rows, side="right").tolist()
        return ends


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
