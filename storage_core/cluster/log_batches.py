"""Read several logs side by side, by pieces: ranges of offsets.

Each log is read once, from end to end or in some ranges of offsets. What a piece holds of each is
little, however long the logs are.
"""

import enum
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage_core.cluster.replica import Damage
from storage_core.cluster.resting_log import RestingLog
from storage_core.errors import BadBytesError, PylogError
from storage_core.filenames import OFFSET_INDEX_SUFFIX, log_file, segment_file
from storage_core.formats.batch_v2 import HEADER_BYTES
from storage_core.kernels import batch_scan
from storage_core.kernels.batch_digest import digest_batches, fold_digests
from storage_core.log.batch_search import ListedSegment, find_start_position
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leader_epoch_cache import DoubtfulRun, EpochRun, find_epoch_runs
from storage_core.records.batch_table import BatchTable
from storage_core.records.checked_headers import MOST_BYTES as MOST_HEADER_BYTES
from storage_core.records.checked_headers import (
    MOST_ROWS,
    headers_of,
    join_headers,
    scan_checked_headers,
)
from storage_core.records.payload import DEFAULT_LIMITS, decode_records
from storage_core.records.reader import (
    DEFAULT_WINDOW_BYTES,
    CrcCheck,
    Large,
    Tail,
    Window,
    find_zeros,
    scan_headers,
    scan_windows,
)
from storage_core.store.base import FileReader

# Sets of offsets with their epochs, as ranges.

Ranges = NDArray[np.int64]
_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1


def no_ranges() -> Ranges:
    """Return an empty set: int64[0, 3], first offset, last offset, epoch."""
    return np.empty((0, 3), np.int64)


def of_offsets(offsets: NDArray[np.int64], epochs: NDArray[np.int64]) -> Ranges:
    """Return offsets, in any order, as ranges of one offset each."""
    return np.column_stack([offsets, offsets, epochs])


def union(parts: Iterable[Ranges]) -> Ranges:
    """Unite sets of ranges, join neighbours, sort by epoch and offset."""
    rows = np.concatenate([no_ranges(), *parts])
    if len(rows) <= 1:
        return rows
    rows = rows[np.lexsort((rows[:, 0], rows[:, 2]))]
    # Up to a row, the largest last offset of its epoch: epochs are apart by more than any offset.
    reach = np.empty(len(rows), np.int64)
    starts = np.flatnonzero(np.diff(rows[:, 2], prepend=rows[0, 2] - 1))
    for first, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        reach[first:end] = np.maximum.accumulate(rows[first:end, 1])
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (rows[1:, 2] != rows[:-1, 2]) | (rows[1:, 0] > reach[:-1] + 1)
    at = np.flatnonzero(begins)
    ends = np.append(at[1:], len(rows)) - 1
    joined: Ranges = np.column_stack([rows[at, 0], reach[ends], rows[at, 2]])
    return joined[np.lexsort((joined[:, 2], joined[:, 0]))]


def clip(ranges: Ranges, *, start: int | None = None, end: int | None = None) -> Ranges:
    """Return the offsets at or above a start and below an end."""
    rows = ranges.copy()
    if start is not None:
        rows[:, 0] = np.maximum(rows[:, 0], start)
    if end is not None:
        rows[:, 1] = np.minimum(rows[:, 1], end - 1)
    return rows[rows[:, 0] <= rows[:, 1]]


def count(ranges: Ranges) -> int:
    """Return the number of offsets in ranges without overlaps in an epoch."""
    return int((ranges[:, 1] - ranges[:, 0] + 1).sum())


def subtract(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the offsets of the first set outside the second. Both sets are results of
    ``union``."""
    # Equal replicas are the rule: for these, the sets below took most of the time.
    if not len(ranges) or not len(others):
        return ranges
    if np.array_equal(ranges, others):
        return no_ranges()
    parts = [ranges[~np.isin(ranges[:, 2], others[:, 2])]]
    for epoch in np.intersect1d(ranges[:, 2], others[:, 2]).tolist():
        own, other = (rows[rows[:, 2] == epoch] for rows in (ranges, others))
        # Gaps of the second set: before, between and after its ranges.
        first = np.concatenate([[_LEAST], other[:, 1] + 1])
        last = np.concatenate([other[:, 0] - 1, [_MOST]])
        begin = np.searchsorted(last, own[:, 0])
        counts = np.maximum(np.searchsorted(first, own[:, 1], side="right") - begin, 0)
        row = np.repeat(np.arange(len(own)), counts)
        free = begin[row] + np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        bounds = np.maximum(own[row, 0], first[free]), np.minimum(own[row, 1], last[free])
        gaps = np.column_stack([*bounds, np.full(len(row), epoch)])
        parts.append(gaps[gaps[:, 0] <= gaps[:, 1]])
    return union(parts)


def intersect(ranges: Ranges, others: Ranges) -> Ranges:
    """Return what is in both sets; both are as ``union`` makes them."""
    return subtract(ranges, subtract(ranges, others))


def contain(
    ranges: Ranges, offsets: NDArray[np.int64], epochs: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which offsets, with their epochs, are in a set."""
    is_in = np.zeros(len(offsets), np.bool_)
    for epoch in np.unique(ranges[:, 2]).tolist():
        own = ranges[ranges[:, 2] == epoch]
        rows = np.flatnonzero(epochs == epoch)
        at = np.searchsorted(own[:, 0], offsets[rows], side="right") - 1
        is_in[rows] = (at >= 0) & (offsets[rows] <= own[at, 1])
    return is_in


def is_within(offsets: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which offsets lie in spans, whatever their epochs.

    Args:
        offsets: int64[n].
        spans: int64[m, 2 or more], first and last offset, rising and apart from each other.
    """
    at = np.searchsorted(spans[:, 1], offsets)
    is_inside: NDArray[np.bool_] = np.append(spans[:, 0], _MOST)[at] <= offsets
    return is_inside


# Bytes of batches of each log whose records are in memory at once.
MOST_BYTES: Final = 16 << 20
MOST_OFFSET: Final = 2**63 - 1
RECORDS: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("epoch", pa.int64()),
        ("is_control", pa.bool_()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
# Bytes just digested stay in a core's own cache.
_PIECE_BYTES: Final = 1 << 20
# A log has a handful of epochs; hostile bytes may claim one for each batch.
_MOST_EPOCHS: Final = 100_000
_MOST_FALLS: Final = 100


class ReadDepth(enum.Enum):
    """How much of each batch is looked at."""

    HEADERS = enum.auto()
    CHECKSUMS = enum.auto()
    DIGESTS = enum.auto()  # all of its bytes, and its checksum
    SUMS = enum.auto()  # all of its bytes


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Batches of a log, in order of offsets."""

    view: DirectoryView | None  # the log's directory, None for a log without a record
    batches: BatchTable  # their headers; ``position`` is that in the file of the segment
    segment: NDArray[np.int64]  # int64[n], base offset of the segment of each
    # int64[n], lowest offset that each may hold: a compressed legacy message does not tell it.
    lowest: NDArray[np.int64]
    # uint64[2, n], the halves of their digests, zeros where none were asked for.
    digests: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.batches)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "BatchRows":
        """Return some of them."""
        return BatchRows(
            self.view,
            BatchTable(self.batches.columns[:, rows]),
            self.segment[rows],
            self.lowest[rows],
            self.digests[:, rows],
        )

    def join(self, others: "BatchRows") -> "BatchRows":
        """Return these and those behind them."""
        columns = np.concatenate([self.batches.columns, others.batches.columns], axis=1)
        return BatchRows(
            self.view,
            BatchTable(columns),
            np.concatenate([self.segment, others.segment]),
            np.concatenate([self.lowest, others.lowest]),
            np.concatenate([self.digests, others.digests], axis=1),
        )

    def that_meet(self, others: "BatchRows") -> NDArray[np.bool_]:
        """Return which of them may have records at the offsets of others."""
        if not len(others):
            return np.zeros(len(self), np.bool_)
        ends = np.maximum.accumulate(others.batches.last_offset)
        at = np.searchsorted(ends, self.lowest)
        is_met: NDArray[np.bool_] = (
            np.append(others.lowest, MOST_OFFSET)[at] <= self.batches.last_offset
        )
        return is_met

    def records(self) -> pa.Table:
        """Return their records."""
        parts = [RECORDS.empty_table()]
        for base_offset in np.unique(self.segment).tolist():
            assert self.view is not None  # noqa: S101  # it has rows
            with closing(self.view.open(log_file(base_offset))) as reader:
                for row in np.flatnonzero(self.segment == base_offset).tolist():
                    start = int(self.batches.position[row])
                    end = start + int(self.batches.size[row])
                    epoch = int(self.batches.leader_epoch[row])
                    for window in scan_windows(reader, start=start, end=end, crc=CrcCheck.SKIP):
                        parts += _decode(window, epoch)
        return pa.concat_tables(parts)

    def offsets(self) -> Ranges:
        """Return the offsets of their records, control records left out."""
        data = self.take(~self.batches.is_control)
        batches = data.batches
        span = batches.last_offset - batches.base_offset + 1
        is_dense = (batches.counted_records == span) & ~batches.is_message_set
        columns = [batches.base_offset, batches.last_offset, batches.leader_epoch]
        parts = [np.column_stack(columns)[is_dense]]
        for group in data.take(~is_dense).groups():
            table = group.records()
            parts.append(of_offsets(table["offset"].to_numpy(), table["epoch"].to_numpy()))
        return union(parts)

    def groups(self) -> Iterator["BatchRows"]:
        """Yield them so many at a time as are held at once."""
        if len(self):
            piece = np.cumsum(self.batches.size) // MOST_BYTES
            ends = [*(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(self)]
            first = 0
            for end in ends:
                yield self.take(np.arange(first, end))
                first = end


def find_start(view: DirectoryView, base_offset: int, offset: int) -> int:
    """Return the position to read a segment from, for an offset."""
    names = log_file(base_offset), segment_file(base_offset, OFFSET_INDEX_SUFFIX)
    if offset <= base_offset or names[1] not in view:
        return 0
    segment = ListedSegment(
        base_offset=base_offset,
        size_bytes=view.source(names[0]).size_bytes,
        has_offset_index=True,
        has_time_index=False,
    )
    return find_start_position(view.store, segment, offset)


@dataclass(frozen=True, slots=True)
class EpochFall:
    """A batch with a lower leader epoch than one before it."""

    file: str
    position: int
    run: EpochRun
    before: int


class LogReader:
    """Reads the batches of a log from end to end.

    Args:
        view: Its directory, None for a log without a record.
        ranges: Only batches that begin in one of these, first and end offset, rising; None for all.

    Attributes:
        damage: The damage in the part read so far.
        rows: Batches that were read and not yet used.
        is_at_end: Whether no batch follows them.
        epochs: Leader epochs of batches with a right checksum, as they follow each other.
        falls: Where an epoch is lower than one before it.
        sparse_end: Just past the last batch with fewer records than offsets: a cleaner was there.
    """

    def __init__(
        self,
        view: DirectoryView | None,
        base_offsets: Sequence[int],
        look: ReadDepth,
        *,
        ranges: Sequence[tuple[int, int]] | None = None,
        doubtful: Sequence[DoubtfulRun] = (),
    ) -> None:
        self.damage: list[Damage] = []
        empty = np.empty(0, np.int64)
        columns = np.empty((batch_scan.COLUMN_COUNT, 0), np.int64)
        self.rows = BatchRows(view, BatchTable(columns), empty, empty, np.empty((2, 0), np.uint64))
        self.is_at_end = False
        self.read_bytes = 0
        self.epochs: list[EpochRun] = []
        self.falls: list[EpochFall] = []
        self.sparse_end = 0
        self._look = look
        self._ranges = ranges
        self._doubtful = doubtful
        self._next = 0
        self._windows = iter(()) if view is None else self._scan(view, base_offsets)

    def fill(self) -> None:
        """Read batches until there are some, or the log ends."""
        while not len(self.rows) and not self.is_at_end:
            rows = next(self._windows, None)
            if rows is None:
                self.is_at_end = True
            else:
                self.rows = self.rows.join(rows)

    def _scan(self, view: DirectoryView, base_offsets: Sequence[int]) -> Iterator[BatchRows]:
        for number, base_offset in enumerate(base_offsets):
            is_last = number + 1 == len(base_offsets)
            end_offset = MOST_OFFSET if is_last else base_offsets[number + 1]
            name = log_file(base_offset)
            file = view.place(name)[0]
            for first, end in self._ranges or [(0, MOST_OFFSET)]:
                if first >= end_offset or end <= base_offset:
                    continue
                start = position = find_start(view, base_offset, first)
                with closing(view.open(name)) as reader:
                    try:
                        for window, digests in self._look_at(reader, start):
                            rows = self._rows(view, base_offset, end_offset, window, digests)
                            position = window.file_position + window.size_bytes
                            self.read_bytes += (
                                HEADER_BYTES * len(window.batches)
                                if self._look is ReadDepth.HEADERS
                                else window.size_bytes
                            )
                            if self._ranges is not None:
                                base = rows.batches.base_offset
                                is_behind = bool((base >= end).any())
                                rows = rows.take((base >= first) & (base < end))
                            if self._look is ReadDepth.CHECKSUMS:
                                self._note_damage(file, rows)
                            self._note_epochs(file, rows.batches)
                            self._correct_epochs(rows.batches)
                            yield rows
                            if self._ranges is not None and is_behind:
                                break
                        else:
                            self._note_tail(file, position, reader)
                    except BadBytesError as error:
                        bad = Damage(file=file, position=error.position, reason=str(error))
                        self.damage.append(bad)

    def _look_at(
        self, reader: FileReader, start: int
    ) -> Generator[tuple[Window, NDArray[np.uint64]]]:
        if self._look in {ReadDepth.DIGESTS, ReadDepth.SUMS}:
            crc = CrcCheck.NOTE if self._look is ReadDepth.DIGESTS else CrcCheck.SKIP
            # There is nothing to search behind a range.
            most = MOST_HEADER_BYTES if self._ranges is None else _PIECE_BYTES
            yield from scan_digests(reader, start=start, crc=crc, most_bytes=most)
            return
        windows = (
            scan_headers(reader, start=start, tail=Tail.ZEROS)
            if self._look is ReadDepth.HEADERS
            else scan_checked_headers(reader, start=start)
        )
        for window in windows:
            yield window, np.zeros((2, len(window.batches)), np.uint64)

    def _rows(
        self,
        view: DirectoryView,
        base_offset: int,
        end_offset: int,
        window: Window,
        digests: NDArray[np.uint64],
    ) -> BatchRows:
        """Return the batches of a window at offsets between their neighbours.

        One whose offsets do not fit between theirs has been damaged outside of its checksum: it
        gets the offsets between theirs, and counts as damaged.
        """
        columns = window.batches.columns.copy()
        columns[batch_scan.POSITION] += window.file_position
        batches = BatchTable(columns)
        base, last = batches.base_offset, batches.last_offset
        before = np.concatenate([[self._next - 1], last[:-1]])
        after = np.concatenate([base[1:], [end_offset]])
        fits = (before < base) & (base <= last) & (last < after)
        is_odd = ~fits & (before + 1 < after) & ~batches.is_legacy
        length = np.clip(last - base, 0, after - before - 2)
        base[is_odd] = before[is_odd] + 1
        last[is_odd] = base[is_odd] + length[is_odd]
        if not window.is_whole and window.data.size and window.batches.crc_ok[0] == 0:
            is_odd[:] = True  # what its bytes are nobody knows
        # Nobody's batch is like one that nobody knows: not even in a log with the same damage.
        digests[0, is_odd] = np.uint64(zlib.crc32(view.store.location.encode()))
        digests[1, is_odd] = columns[batch_scan.POSITION, is_odd].astype(np.uint64)
        columns[batch_scan.CRC_OK, is_odd] = 0
        self._next = int(last[-1]) + 1
        lowest = np.where(batches.is_message_set, before + 1, base)
        segment = np.full(len(batches), base_offset, np.int64)
        return BatchRows(view, batches, segment, lowest, digests)

    def _note_damage(self, file: str, rows: BatchRows) -> None:
        for at in rows.batches.position[rows.batches.crc_ok == 0].tolist():
            reason = "its checksum is wrong, or its offsets do not fit"
            self.damage.append(Damage(file=file, position=at, reason=reason))

    def _note_epochs(self, file: str, batches: BatchTable) -> None:
        span = batches.last_offset - batches.base_offset + 1
        is_good = batches.crc_ok != 0
        is_sparse = is_good & ~batches.is_legacy & (batches.record_count < span)
        if is_sparse.any():
            self.sparse_end = int(batches.last_offset[is_sparse].max()) + 1
        rows = np.flatnonzero(is_good & (batches.leader_epoch >= 0))
        for row, bare in find_epoch_runs(batches, rows):
            run = replace(bare, file=file, position=int(batches.position[row]))
            before = self.epochs[-1] if self.epochs else run
            if run.epoch < before.epoch and len(self.falls) < _MOST_FALLS:
                self.falls.append(EpochFall(file, run.position, run, before.epoch))
            if self.epochs and run.epoch == before.epoch:
                self.epochs[-1] = before.followed_by(run)
            elif len(self.epochs) < _MOST_EPOCHS:
                self.epochs.append(run)

    def _correct_epochs(self, batches: BatchTable) -> None:
        for each in self._doubtful:
            is_in = batches.base_offset >= each.run.first_offset
            is_in &= batches.base_offset <= each.run.last_offset
            is_in &= batches.leader_epoch == each.run.epoch
            batches.columns[batch_scan.LEADER_EPOCH, is_in] = each.expected

    def _note_tail(self, file: str, position: int, reader: FileReader) -> None:
        size_bytes = reader.size_bytes - position
        if size_bytes and find_zeros(reader, position, reader.size_bytes) > position:
            reason = f"{size_bytes} bytes that are no whole batch"
            bad = Damage(file=file, position=position, reason=reason, is_tail=True)
            self.damage.append(bad)


def scan_digests(
    reader: FileReader, *, start: int = 0, crc: CrcCheck, most_bytes: int = MOST_HEADER_BYTES
) -> Generator[tuple[Window, NDArray[np.uint64]]]:
    """Yield the windows of a file with digests of their batches. For a batch larger than a window
    the header is digested and the checksum checked.

    Args:
        crc: Whether the other checksums are checked, too.
        most_bytes: How much of the file one of them stands for, about.
    """
    held: list[Window] = []
    digests: list[NDArray[np.uint64]] = []
    try:
        for window in scan_windows(
            reader,
            start=start,
            window_bytes=_PIECE_BYTES,
            mapped_bytes=DEFAULT_WINDOW_BYTES,
            crc=crc,
            tail=Tail.ZEROS,
            large=Large.HEADER,
        ):
            if not window.is_whole:
                if held:
                    yield join_headers(held), np.concatenate(digests, axis=1)
                    held, digests = [], []
                yield _digest_large(reader, window)
                continue
            halves = np.empty((2, len(window.batches)), np.uint64)
            digest_batches(window.data, window.batches.columns, halves)
            held.append(headers_of(window))
            digests.append(halves)
            size_bytes = window.file_position + window.size_bytes - held[0].file_position
            rows = sum(len(each.batches) for each in held)
            if rows >= MOST_ROWS or size_bytes >= most_bytes:
                yield join_headers(held), np.concatenate(digests, axis=1)
                held, digests = [], []
    except PylogError:
        if held:
            yield join_headers(held), np.concatenate(digests, axis=1)
        raise
    if held:
        yield join_headers(held), np.concatenate(digests, axis=1)


def _digest_large(reader: FileReader, window: Window) -> tuple[Window, NDArray[np.uint64]]:
    """Check a large batch's checksum, and digest its header."""
    end = window.file_position + window.size_bytes
    (checked,) = scan_windows(
        reader, start=window.file_position, end=end, crc=CrcCheck.NOTE, large=Large.HEADER
    )
    columns = checked.batches.columns.copy()
    columns[batch_scan.SIZE] = np.minimum(columns[batch_scan.SIZE], HEADER_BYTES)
    digests = np.empty((2, 1), np.uint64)
    digest_batches(checked.data, columns, digests)
    return checked, digests


def pieces(
    readers: Sequence[LogReader],
) -> Iterator[tuple[int, int, list[BatchRows]]]:
    """Yield consecutive ranges of offsets, with each log's batches in them. A batch belongs to
    every range that it overlaps."""
    start = 0
    while start < MOST_OFFSET:
        for reader in readers:
            reader.fill()
        ends = [
            # Even for a log with falling offsets, a window is used at once.
            int(reader.rows.batches.last_offset.max()) + 1
            for reader in readers
            if not reader.is_at_end
        ]
        end = max(min(ends, default=MOST_OFFSET), start + 1)
        parts = [reader.rows.take(reader.rows.lowest < end) for reader in readers]
        yield start, end, parts
        for reader in readers:
            reader.rows = reader.rows.take(reader.rows.batches.last_offset >= end)
        start = end


def _decode(window: Window, epoch: int) -> Iterator[pa.Table]:
    """Yield a batch's records; its epoch may be another one than that of its bytes."""
    wanted = np.ones(len(window.batches), np.bool_)
    for records in decode_records(window, wanted, DEFAULT_LIMITS):
        columns = [
            pa.array(records.offset),
            pa.array(np.full(len(records.offset), epoch, np.int64)),
            pa.array(window.batches.is_control[records.batch]),
            pa.array(records.timestamp),
            records.keys(),
            records.values(),
            records.headers(),
        ]
        yield pa.table(columns, names=RECORDS.names).cast(RECORDS)


# Digests of a replica, summed over fixed ranges of offsets.
#
# Ranges do not know of segments: replicas that rolled at other offsets have the same sums. Where
# sums differ, batches do; where they are equal, the batches are, in whatever order.

# For so many bytes of a log, sums take 1/4,096 of that, and little is read again for a difference.
_RANGE_BYTES: Final = 64 << 10
_MOST_RANGES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """Ranges of offsets of the same length, one behind the other."""

    first: int
    count: int
    shift: int  # each has ``2**shift`` offsets, from its number times that on

    @classmethod
    def of(cls, first_offset: int, end_offset: int, size_bytes: int) -> "OffsetRanges":
        """Return the ranges for logs between two offsets."""
        wanted = max(1, min(_MOST_RANGES, size_bytes // _RANGE_BYTES))
        length = max(1, -(-(end_offset - first_offset) // wanted))
        shift = (length - 1).bit_length()
        first = first_offset >> shift
        return cls(first, ((max(end_offset, 1) - 1) >> shift) - first + 1, shift)

    def bounds(self, mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Return first and end offset of the chosen ones, neighbours joined."""
        numbers = np.flatnonzero(mask)
        if not numbers.size:
            return []
        gaps = np.flatnonzero(np.diff(numbers) > 1)
        starts = numbers[np.append(0, gaps + 1)] + self.first
        ends = numbers[np.append(gaps, numbers.size - 1)] + self.first + 1
        return [
            (start << self.shift, end << self.shift)
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


def digest_log(log: RestingLog, ranges: OffsetRanges) -> tuple[NDArray[np.uint64], LogReader]:
    """Return digest sums of a replica's ranges, uint64[count, 2], and its reader. The reader has
    reached the log's end."""
    sums = np.zeros((ranges.count, 2), np.uint64)
    reader = LogReader(log.view, log.base_offsets, ReadDepth.SUMS)
    while True:
        reader.fill()
        rows = reader.rows
        if reader.is_at_end:
            return sums, reader
        columns = np.ascontiguousarray(rows.batches.columns)
        fold_digests(columns, np.ascontiguousarray(rows.digests), ranges.first, ranges.shift, sums)
        reader.rows = rows.take(np.zeros(len(rows), np.bool_))


def find_unequal(sums: Sequence[NDArray[np.uint64]]) -> NDArray[np.bool_]:
    """Return in which ranges not all replicas have the same sum."""
    unequal = np.zeros(len(sums[0]), np.bool_)
    for each in sums[1:]:
        unequal |= (each != sums[0]).any(axis=1)
    return unequal
