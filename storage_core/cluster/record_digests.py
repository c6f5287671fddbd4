"""Read a log's records as digests, by offset, piece by piece.

Control records are left out, and records below the log's start. A batch with a wrong checksum, or
with offsets that do not fit between its neighbours', is damage: nobody knows its records.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.cluster.log_batches import MOST_OFFSET, find_start
from storage_core.cluster.offset_ranges import is_within
from storage_core.cluster.resting_log import RestingLog
from storage_core.errors import BadBytesError
from storage_core.filenames import log_file
from storage_core.index.transaction_index import AbortedTxn
from storage_core.kernels import record_digest
from storage_core.kernels.record_digest import NULL_DIGEST, digest_records
from storage_core.log.directory_view import DirectoryView
from storage_core.records.batch_table import BatchTable
from storage_core.records.columns import decode_records
from storage_core.records.payload import DEFAULT_LIMITS
from storage_core.records.reader import CrcCheck, Large, Tail, Window, scan_windows

# Rows of a piece, int64[COLUMNS, n], that identify a record. Digests are bits, not numbers.
OFFSET: Final = 0
TIMESTAMP: Final = 1
KEY: Final = 2
VALUE: Final = 3
HEADERS: Final = 4
IDENTITY: Final = 5
IS_ABORTED: Final = 6
COLUMNS: Final = 7
NULL: Final = int(NULL_DIGEST.view(np.int64))

Rows = NDArray[np.int64]
# First and last offset of each, int64[n, 2], rising.
Spans = NDArray[np.int64]

_WINDOW_BYTES: Final = 1 << 20
_MOST_DAMAGE: Final = 1000


def no_rows() -> Rows:
    """Return a piece without a record."""
    return np.empty((COLUMNS, 0), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedBatch:
    """A batch that cannot be read, or bytes that are none."""

    file: str
    position: int
    first_offset: int
    last_offset: int
    reason: str


class RecordReader:
    """Reads the records of a log from an offset on.

    Args:
        has_times: Whether timestamps are part of the identity.
        skips_aborted: Whether records of aborted transactions are left out.
        spans: Only records at these offsets; None for all.

    Attributes:
        damage: The damage in the part read so far.
        sparse_end: Just past the last batch with fewer records than offsets: a cleaner was there.
        has_append_times: Whether the first batch has the time of the broker that wrote it; None
            before there is one.
    """

    def __init__(
        self,
        log: RestingLog,
        aborted: Sequence[AbortedTxn],
        *,
        has_times: bool = True,
        skips_aborted: bool = False,
        spans: Spans | None = None,
        first: int = 0,
    ) -> None:
        self.damage: list[DamagedBatch] = []
        self.read_bytes = 0
        self.sparse_end = 0
        self.has_append_times: bool | None = None
        self._log = log
        self._has_times = has_times
        self._skips_aborted = skips_aborted
        self._spans = spans
        self._first = max(first, log.log_start_offset)
        self._end = MOST_OFFSET
        if spans is not None:
            self._first = max(self._first, int(spans[0, 0])) if len(spans) else MOST_OFFSET
            self._end = int(spans[-1, 1]) + 1 if len(spans) else 0
        fields = [(each.producer_id, each.first_offset, each.last_offset) for each in aborted]
        self._aborted = np.array(fields, np.int64).reshape(-1, 3)
        self._next = 0
        self._pieces = iter(()) if log.view is None else self._scan(log.view)

    def read(self) -> Rows | None:
        """Return the next records, at least one; None at the end."""
        return next((rows for rows in self._pieces if rows.shape[1]), None)

    def _scan(self, view: DirectoryView) -> Iterator[Rows]:
        bases = self._log.base_offsets
        for base_offset, end_offset in zip(bases, [*bases[1:], MOST_OFFSET], strict=True):
            if end_offset <= self._first or base_offset >= self._end:
                continue
            name = log_file(base_offset)
            start = find_start(view, base_offset, self._first)
            with closing(view.open(name)) as reader:
                windows = scan_windows(
                    reader,
                    start=start,
                    window_bytes=_WINDOW_BYTES,
                    crc=CrcCheck.NOTE,
                    tail=Tail.ZEROS,
                    large=Large.VALID,
                )
                while self._next < self._end:
                    try:
                        window = next(windows, None)
                    except BadBytesError as error:
                        at = max(self._next, base_offset)
                        file = view.place(name)[0]
                        self._note(file, error.position, (at, at), str(error))
                        break
                    if window is None:
                        break
                    self.read_bytes += window.size_bytes
                    is_readable = self._judge(view.place(name)[0], end_offset, window)
                    yield from self._digest(window, is_readable)

    def _judge(self, file: str, end_offset: int, window: Window) -> NDArray[np.bool_]:
        """Return which batches can be read, and take note of the others."""
        batches = window.batches
        base, last = batches.base_offset, batches.last_offset
        before = np.concatenate([[self._next - 1], last[:-1]])
        after = np.concatenate([base[1:], [end_offset]])
        is_misplaced = ~((before < base) & (base <= last) & (last < after))
        # Between such offsets a neighbour's batch has no room.
        is_misplaced &= (before + 1 < after) & ~batches.is_legacy
        is_bad = is_misplaced | (batches.crc_ok == 0)
        is_bad |= not window.is_whole
        for row in np.flatnonzero(is_bad).tolist():
            first = int(base[row])
            reason = "the checksum is wrong"
            if is_misplaced[row]:
                first, reason = int(before[row]) + 1, "its offsets do not fit between others"
            if first >= self._first:
                span = first, max(first, min(int(last[row]), int(after[row]) - 1))
                self._note(file, window.position_of(row), span, reason)
        good = np.flatnonzero(~is_bad)
        if good.size:
            self._next = int(last[good].max()) + 1
            data = good[~batches.is_control[good]]
            if self.has_append_times is None and data.size:
                self.has_append_times = bool(batches.is_log_append_time[data[0]])
            is_sparse = ~is_bad & ~batches.is_legacy & (batches.record_count < last - base + 1)
            if is_sparse.any():
                self.sparse_end = max(self.sparse_end, int(last[is_sparse].max()) + 1)
        is_readable: NDArray[np.bool_] = ~is_bad
        return is_readable

    def _note(self, file: str, position: int, span: tuple[int, int], reason: str) -> None:
        if len(self.damage) < _MOST_DAMAGE:
            self.damage.append(
                DamagedBatch(
                    file=file,
                    position=position,
                    first_offset=span[0],
                    last_offset=span[1],
                    reason=reason,
                )
            )

    def _digest(self, window: Window, is_readable: NDArray[np.bool_]) -> Iterator[Rows]:
        batches = window.batches
        wanted = is_readable & ~batches.is_control & (batches.last_offset >= self._first)
        if self._spans is not None:
            at = np.searchsorted(self._spans[:, 1], batches.base_offset)
            starts = np.append(self._spans[:, 0], MOST_OFFSET)[at]
            wanted &= (starts <= batches.last_offset) | batches.is_message_set
        if not wanted.any():
            return
        is_aborted = self._find_aborted(batches)
        for records in decode_records(window, wanted, DEFAULT_LIMITS):
            timestamp = records.timestamp
            digests = np.empty((record_digest.DIGEST_COUNT, len(records)), np.uint64)
            payload = records.payload
            digest_records(
                window.data,
                payload.arena,
                payload.in_arena,
                np.ascontiguousarray(records.table),
                np.ascontiguousarray(timestamp) if self._has_times else np.zeros_like(timestamp),
                digests,
            )
            rows = np.empty((COLUMNS, len(records)), np.int64)
            rows[OFFSET], rows[TIMESTAMP] = records.offset, timestamp
            rows[KEY : IDENTITY + 1] = digests.view(np.int64)
            rows[IS_ABORTED] = is_aborted[records.batch]
            is_wanted = rows[OFFSET] >= self._first
            if self._skips_aborted:
                is_wanted &= rows[IS_ABORTED] == 0
            if self._spans is not None:
                is_wanted &= is_within(rows[OFFSET], self._spans)
            yield rows if is_wanted.all() else rows[:, is_wanted]

    def _find_aborted(self, batches: BatchTable) -> NDArray[np.bool_]:
        """Return which batches are of an aborted transaction."""
        is_aborted: NDArray[np.bool_] = np.zeros(len(batches), np.bool_)
        first, last = int(batches.base_offset[0]), int(batches.last_offset[-1])
        near = (self._aborted[:, 1] <= last) & (self._aborted[:, 2] >= first)
        for producer_id, begin, end in self._aborted[near].tolist():
            is_aborted |= (
                batches.is_transactional
                & (batches.producer_id == producer_id)
                & (batches.base_offset >= begin)
                & (batches.last_offset <= end)
            )
        return is_aborted
