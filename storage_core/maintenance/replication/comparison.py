"""Replicas of a partition record by record: where they differ, what each has alone.

All logs are read once, side by side, in pieces of offsets. Batches that are the same in two of them
are told by their headers: offsets, epoch, checksum, size. Records are decoded only where a batch
has no such twin, and both logs have batches at its offsets, as where a cleaner went over one.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage_core.errors import BadBytesError
from storage_core.filenames import log_file
from storage_core.kernels import batch_scan
from storage_core.maintenance.replication.offset_ranges import Ranges, clip, of_offsets, union
from storage_core.maintenance.replication.replica import Damage, OpenedLog
from storage_core.records.batch_table import BatchTable
from storage_core.records.checked_headers import scan_checked_headers
from storage_core.records.columns import decode_records
from storage_core.records.payload import DEFAULT_LIMITS
from storage_core.records.reader import CrcCheck, Window, scan_windows

# Records of so many bytes of batches are held at once, of each log.
_MOST_BYTES: Final = 16 << 20
_MOST_OFFSET: Final = 2**63 - 1
_RECORDS: Final = pa.schema(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLogs:
    """Logs of a partition, compared with each other.

    Attributes:
        damage: Of each log.
        differences: First offset at which two differ, by their numbers, the smaller one first;
            None where they do not.
        missing: What a log lacks of another's records, by its number and the other's.
    """

    damage: tuple[tuple[Damage, ...], ...]
    differences: dict[tuple[int, int], int | None]
    missing: dict[tuple[int, int], Ranges]


def compare_logs(logs: Sequence[OpenedLog | None]) -> ComparedLogs:
    """Compare each log with each other one, by their batches with a right checksum.

    Args:
        logs: None for a log without a record.

    Raises:
        PylogError: Records cannot be read.
    """
    readers = [_LogReader(log) for log in logs]
    differences: dict[tuple[int, int], int | None] = {}
    missing: dict[tuple[int, int], list[Ranges]] = {}
    for pair in combinations(range(len(logs)), 2):
        differences[pair] = None
        missing[pair], missing[pair[::-1]] = [], []
    for start, end, parts in _pieces(readers):
        told = [_identity(part.batches) for part in parts]
        for pair in combinations(range(len(logs)), 2):
            one, two = pair
            alone = (
                parts[one].take(~np.isin(told[one], told[two])),
                parts[two].take(~np.isin(told[two], told[one])),
            )
            lowest, lacked = _compare(alone, start, end)
            known = differences[pair]
            if lowest is not None and (known is None or lowest < known):
                differences[pair] = lowest
            missing[pair].append(lacked[0])
            missing[pair[::-1]].append(lacked[1])
    return ComparedLogs(
        damage=tuple(tuple(reader.damage) for reader in readers),
        differences=differences,
        missing={pair: union(ranges) for pair, ranges in missing.items()},
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Batches of a log, in order of offsets.

    Attributes:
        log: The log.
        batches: Their headers; ``position`` is that in the file of the segment.
        segment: int64[n], base offset of the segment of each.
        lowest: int64[n], lowest offset that each may hold: a compressed legacy message does not
            tell it.
    """

    log: OpenedLog | None
    batches: BatchTable
    segment: NDArray[np.int64]
    lowest: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.batches)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "_Rows":
        """Return some of them."""
        batches = BatchTable(self.batches.columns[:, rows])
        return _Rows(self.log, batches, self.segment[rows], self.lowest[rows])

    def join(self, others: "_Rows") -> "_Rows":
        """Return these and those behind them."""
        columns = np.concatenate([self.batches.columns, others.batches.columns], axis=1)
        segment = np.concatenate([self.segment, others.segment])
        lowest = np.concatenate([self.lowest, others.lowest])
        return _Rows(self.log, BatchTable(columns), segment, lowest)

    def that_meet(self, others: "_Rows") -> NDArray[np.bool_]:
        """Return which of them may have records at the offsets of others."""
        if not len(others):
            return np.zeros(len(self), np.bool_)
        ends = np.maximum.accumulate(others.batches.last_offset)
        at = np.searchsorted(ends, self.lowest)
        is_met: NDArray[np.bool_] = (
            np.append(others.lowest, _MOST_OFFSET)[at] <= self.batches.last_offset
        )
        return is_met

    def records(self) -> pa.Table:
        """Return their records."""
        parts = [_RECORDS.empty_table()]
        for base_offset in np.unique(self.segment).tolist():
            assert self.log is not None  # noqa: S101  # it has rows
            with closing(self.log.view.open(log_file(base_offset))) as reader:
                for row in np.flatnonzero(self.segment == base_offset).tolist():
                    start = int(self.batches.position[row])
                    end = start + int(self.batches.size[row])
                    for window in scan_windows(reader, start=start, end=end, crc=CrcCheck.SKIP):
                        parts += _decode(window)
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

    def groups(self) -> Iterator["_Rows"]:
        """Yield them so many at a time as are held at once."""
        if len(self):
            piece = np.cumsum(self.batches.size) // _MOST_BYTES
            ends = [*(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(self)]
            first = 0
            for end in ends:
                yield self.take(np.arange(first, end))
                first = end


class _LogReader:
    """Reads the batches of a log from end to end, and checks every checksum.

    Attributes:
        damage: What is damaged, as far as it has read.
        rows: Batches that were read and not yet used.
        is_at_end: Whether no batch follows them.
    """

    def __init__(self, log: OpenedLog | None) -> None:
        self.damage: list[Damage] = [] if log is None else list(log.cut)
        empty = np.empty(0, np.int64)
        columns = np.empty((batch_scan.COLUMN_COUNT, 0), np.int64)
        self.rows = _Rows(log, BatchTable(columns), empty, empty)
        self.is_at_end = False
        self._next = 0
        self._windows = iter(()) if log is None else self._scan(log)

    def fill(self) -> None:
        """Read batches until there are some, or the log ends."""
        while not len(self.rows) and not self.is_at_end:
            rows = next(self._windows, None)
            if rows is None:
                self.is_at_end = True
            else:
                self.rows = self.rows.join(rows)

    def _scan(self, log: OpenedLog) -> Iterator[_Rows]:
        for base_offset in log.base_offsets:
            name = log_file(base_offset)
            file = log.view.place(name)[0]
            position = 0
            with closing(log.view.open(name)) as reader:
                try:
                    for window in scan_checked_headers(reader):
                        yield self._right_rows(log, file, base_offset, window)
                        position = window.file_position + window.size_bytes
                    if position < reader.size_bytes:
                        reason = f"{reader.size_bytes - position} bytes that are no whole batch"
                        self.damage.append(Damage(file=file, position=position, reason=reason))
                except BadBytesError as error:
                    bad = Damage(file=file, position=error.position, reason=str(error))
                    self.damage.append(bad)

    def _right_rows(self, log: OpenedLog, file: str, base_offset: int, window: Window) -> _Rows:
        columns = window.batches.columns.copy()
        columns[batch_scan.POSITION] += window.file_position
        is_right = columns[batch_scan.CRC_OK] != 0
        for at in columns[batch_scan.POSITION, ~is_right].tolist():
            bad = Damage(file=file, position=at, reason="its checksum is wrong")
            self.damage.append(bad)
        batches = BatchTable(columns)
        behind = np.concatenate([[self._next], batches.last_offset[:-1] + 1])
        self._next = int(batches.last_offset[-1]) + 1
        lowest = np.where(batches.is_message_set, behind, batches.base_offset)
        rows = _Rows(log, batches, np.full(len(batches), base_offset, np.int64), lowest)
        return rows.take(is_right)


def _pieces(readers: Sequence[_LogReader]) -> Iterator[tuple[int, int, list[_Rows]]]:
    """Yield ranges of offsets that follow each other, and the batches of each log that reach in."""
    start = 0
    while start < _MOST_OFFSET:
        for reader in readers:
            reader.fill()
        ends = [
            # Of a log whose offsets do not rise, too, a window is used at once.
            int(reader.rows.batches.last_offset.max()) + 1
            for reader in readers
            if not reader.is_at_end
        ]
        end = max(min(ends, default=_MOST_OFFSET), start + 1)
        parts = [reader.rows.take(reader.rows.lowest < end) for reader in readers]
        yield start, end, parts
        for reader in readers:
            reader.rows = reader.rows.take(reader.rows.batches.last_offset >= end)
        start = end


def _compare(
    alone: tuple[_Rows, _Rows], start: int, end: int
) -> tuple[int | None, tuple[Ranges, Ranges]]:
    """Compare two logs between two offsets.

    Args:
        alone: Of each log the batches that have no twin in the other.
        start: From here on.
        end: Below it.

    Returns:
        The first offset at which they differ, and what the first lacks of the second, and the
        other way round.
    """
    is_met = alone[0].that_meet(alone[1]), alone[1].that_meet(alone[0])
    lacked: tuple[list[Ranges], list[Ranges]] = ([], [])
    lowest: int | None = None
    for number in (0, 1):
        lacked[1 - number].append(alone[number].take(~is_met[number]).offsets())
    met = alone[0].take(is_met[0]), alone[1].take(is_met[1])
    groups = [int(group.batches.last_offset.max()) + 1 for group in met[0].groups()]
    bounds = [start, *groups[:-1], end] if groups else []
    for low, high in pairwise(bounds):
        tables = [_between(rows, low, high) for rows in met]
        same, other = _match(*tables)
        if len(other) and lowest is None:
            lowest = int(other.min())
        for number, table in enumerate(tables):
            lacked[1 - number].append(_without(table, same))
    ranges = [clip(union(parts), start=start, end=end) for parts in lacked]
    return lowest, (ranges[0], ranges[1])


def _identity(batches: BatchTable) -> NDArray[np.void]:
    """Return what a batch is told by, one value a batch."""
    columns = [batches.base_offset, batches.last_offset, batches.leader_epoch, batches.crc]
    rows = np.ascontiguousarray(np.stack([*columns, batches.size], axis=1))
    return rows.view([(str(number), np.int64) for number in range(rows.shape[1])]).ravel()


def _between(rows: _Rows, start: int, end: int) -> pa.Table:
    """Return the records of batches at offsets from start on, below end."""
    inside = rows.take((rows.lowest < end) & (rows.batches.last_offset >= start))
    table = inside.records()
    offset = table["offset"]
    return table.filter(pc.and_(pc.greater_equal(offset, start), pc.less(offset, end)))


def _decode(window: Window) -> Iterator[pa.Table]:
    wanted = np.ones(len(window.batches), np.bool_)
    for records in decode_records(window, wanted, DEFAULT_LIMITS):
        columns = [
            pa.array(records.offset),
            pa.array(window.batches.leader_epoch[records.batch]),
            pa.array(window.batches.is_control[records.batch]),
            pa.array(records.timestamp),
            records.keys(),
            records.values(),
            records.headers(),
        ]
        yield pa.table(columns, names=_RECORDS.names).cast(_RECORDS)


def _match(first: pa.Table, second: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offsets at which both have the same record, and those at which anything differs.

    A record in another epoch is still the same one to whoever reads it.
    """
    offsets, rows_1, rows_2 = np.intersect1d(
        first["offset"].to_numpy(), second["offset"].to_numpy(), return_indices=True
    )
    one, two = first.take(rows_1), second.take(rows_2)
    is_same = _have_same_headers(one["headers"], two["headers"])
    for name in ("timestamp", "key", "value"):
        is_same &= _are_equal(one[name], two[name])
    is_of_same_epoch = _are_equal(one["epoch"], two["epoch"])
    return offsets[is_same], offsets[~(is_same & is_of_same_epoch)]


def _are_equal(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return where two columns have the same; a null is like a null."""
    both_null = pc.and_(pc.is_null(first), pc.is_null(second))
    equal = pc.or_(pc.fill_null(pc.equal(first, second), fill_value=False), both_null)
    is_equal: NDArray[np.bool_] = np.asarray(equal, np.bool_)
    return is_equal


def _have_same_headers(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    counts = [np.asarray(pc.list_value_length(lists)) for lists in (first, second)]
    is_same: NDArray[np.bool_] = counts[0] == counts[1]
    owner = np.repeat(np.flatnonzero(is_same), counts[0][is_same])
    chosen = pa.array(is_same)
    one, two = (pc.list_flatten(lists.filter(chosen)) for lists in (first, second))
    for name in ("key", "value"):
        fields = [pc.struct_field(headers, name) for headers in (one, two)]
        is_same[owner[~_are_equal(*fields)]] = False
    return is_same


def _without(table: pa.Table, same: NDArray[np.int64]) -> Ranges:
    """Return the records of a table at other offsets, control records left out."""
    offsets = table["offset"].to_numpy()
    is_other = ~np.isin(offsets, same) & ~np.asarray(table["is_control"], np.bool_)
    return of_offsets(offsets[is_other], table["epoch"].to_numpy()[is_other])
