"""Check a segment's three indexes against their rules and the log.

Indexes carry no checksum, and Kafka uses whatever an offset or time index says when it loads a log.
These checks are of two depths. From an index alone: what Kafka's own sanity check of an index looks
at, and that entries rise. With the segment's batches: each offset entry against the batch at its
position, each time entry against the batch that holds the offset it names.

What look-ups work with is right, whichever version wrote it. Before 3.9.1 an append of many batches
gave one offset entry, of its first batch's position and its last batch's last offset, or of that
batch's last record where the cleaner wrote it; before 3.8 a time entry named the record with the
largest timestamp, not the end of that record's batch.

A finding stands for every entry that breaks the same rule and shows the first, so that an index of
a million wrong entries gives as short a list as one of a single wrong entry.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
    TXN_INDEX_VERSION,
)
from storage_core.index.segment_indexes import AbortedTxn


class IndexFault(enum.Enum):
    """A rule that an index breaks; the value is its stable code."""

    # Harmless: an unclean shutdown leaves zeros, a torn copy half an entry.
    PADDED = "index-padded"
    RAGGED = "index-ragged"
    # Checks of Kafka's own sanity check of an index.
    LAST_OFFSET_BELOW_BASE = "index-last-offset-below-base"
    LAST_TIMESTAMP_BELOW_FIRST = "index-last-timestamp-below-first"
    # Rules that every appended index keeps.
    OFFSET_NOT_RISING = "index-offset-not-rising"
    POSITION_NOT_RISING = "index-position-not-rising"
    TIMESTAMP_NOT_RISING = "index-timestamp-not-rising"
    UNKNOWN_VERSION = "index-unknown-version"
    FIRST_OFFSET_ABOVE_LAST = "index-first-offset-above-last"
    # Rules that need the log.
    NO_BATCH = "index-no-batch"
    WRONG_OFFSET = "index-wrong-offset"
    WRONG_TIMESTAMP = "index-wrong-timestamp"
    NEWER_RECORD_BEFORE = "index-newer-record-before"
    LARGEST_TIMESTAMP_MISSING = "index-largest-timestamp-missing"
    TRANSACTION_MISSING = "index-transaction-missing"
    TRANSACTION_UNKNOWN = "index-transaction-unknown"

    @property
    def is_harmless(self) -> bool:
        """Whether neither Kafka's behaviour nor any read depends on it."""
        return self in {IndexFault.PADDED, IndexFault.RAGGED}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFinding:
    """A rule that is broken, and where first."""

    fault: IndexFault
    # Number of the first entry that breaks it, from 0; the count of entries where it concerns the
    # whole file.
    entry: int
    position: int
    expected: int  # the right value: an offset, a timestamp, a version or a byte count
    actual: int  # the actual value, of the same kind
    count: int = 1  # how many entries break it


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBatches:
    """A segment's batches in file order, for checks of its indexes."""

    position: NDArray[np.int64]  # int64[n], byte positions in the .log
    base_offset: NDArray[np.int64]  # int64[n]
    last_offset: NDArray[np.int64]  # int64[n]
    max_timestamp: NDArray[np.int64]  # int64[n], NO_TIMESTAMP where a batch has none


def count_used_entries(entries: NDArray[np.void]) -> int:
    """Return the number of entries before a preallocated index's zeros.

    An offset index never holds (0, 0): the first batch of a segment gets no entry. A time index
    may hold it once, for a record of timestamp 0; it is taken for padding.

    Args:
        entries: OFFSET_INDEX_ENTRY[n] or TIME_INDEX_ENTRY[n].
    """
    is_used = np.zeros(len(entries), np.bool_)
    for name in entries.dtype.names or ():
        is_used |= entries[name] != 0
    used = np.flatnonzero(is_used)
    return int(used[-1]) + 1 if used.size else 0


def audit_offset_index(
    base_offset: int,
    data: bytes,
    batches: SegmentBatches | None = None,
    *,
    file_bytes: int | None = None,
) -> list[IndexFinding]:
    """Check an offset index.

    Args:
        data: The file, with or without the zeros at its end.
        batches: The segment's batches for the deep audit, None to check the index alone.
        file_bytes: Length of the file, None for that of the data.

    Returns:
        At most one finding a rule; none if all is well.
    """
    entries, findings = _parse(data, OFFSET_INDEX_ENTRY, file_bytes)
    offset = base_offset + entries["relative_offset"].astype(np.int64)
    position = entries["position"].astype(np.int64)
    check = _Checker(OFFSET_INDEX_ENTRY.itemsize, findings)
    if len(offset) and offset[-1] < base_offset:
        check.entry(
            IndexFault.LAST_OFFSET_BELOW_BASE, len(offset) - 1, base_offset, int(offset[-1])
        )
    check.rows(
        IndexFault.OFFSET_NOT_RISING, _not_above_previous(offset), lambda: _after(offset), offset
    )
    check.rows(
        IndexFault.POSITION_NOT_RISING,
        _not_above_previous(position),
        lambda: _after(position),
        position,
    )
    if batches is None:
        return findings
    row, is_there = _find(batches.position, position)
    check.rows(IndexFault.NO_BATCH, ~is_there, lambda: _at(batches.position, row), position)
    # The position may be in any batch from there on: no batch before it is looked up by the entry.
    holder, is_held = _find_holder(batches, offset)
    is_right = is_held & (holder >= row)
    is_wrong = is_there & ~is_right
    check.rows(IndexFault.WRONG_OFFSET, is_wrong, lambda: _at(batches.last_offset, row), offset)
    return findings


def audit_time_index(
    base_offset: int,
    data: bytes,
    batches: SegmentBatches | None = None,
    *,
    is_closed: bool = True,
    file_bytes: int | None = None,
) -> list[IndexFinding]:
    """Check a time index.

    Args:
        data: The file, with or without the zeros at its end.
        batches: The segment's batches for the deep audit, None to check the index alone.
        is_closed: Whether the segment's largest timestamp must be its last entry, as it is in every
            segment that was rolled, cleaned or cleanly closed.
        file_bytes: Length of the file, None for that of the data.

    Returns:
        At most one finding a rule; none if all is well.
    """
    entries, findings = _parse(data, TIME_INDEX_ENTRY, file_bytes)
    offset = base_offset + entries["relative_offset"].astype(np.int64)
    timestamp = entries["timestamp"].astype(np.int64)
    check = _Checker(TIME_INDEX_ENTRY.itemsize, findings)
    last = len(offset) - 1
    if last >= 0 and timestamp[-1] < timestamp[0]:
        first_time = int(timestamp[0])
        check.entry(IndexFault.LAST_TIMESTAMP_BELOW_FIRST, last, first_time, int(timestamp[-1]))
    if last >= 0 and offset[-1] < base_offset:
        check.entry(IndexFault.LAST_OFFSET_BELOW_BASE, last, base_offset, int(offset[-1]))
    check.rows(
        IndexFault.TIMESTAMP_NOT_RISING,
        _not_above_previous(timestamp),
        lambda: _after(timestamp),
        timestamp,
    )
    falling = np.concatenate([np.zeros(min(1, len(offset)), np.bool_), np.diff(offset) < 0])
    check.rows(IndexFault.OFFSET_NOT_RISING, falling, lambda: np.roll(offset, 1), offset)
    if batches is None:
        return findings
    _compare_times(check, offset, timestamp, batches)
    largest = int(batches.max_timestamp.max(initial=NO_TIMESTAMP))
    indexed = int(timestamp[-1]) if last >= 0 else NO_TIMESTAMP
    # A record of timestamp 0 alone looks like padding, see count_used_entries.
    if is_closed and indexed < largest and largest > 0:
        check.entry(IndexFault.LARGEST_TIMESTAMP_MISSING, len(offset), largest, indexed)
    return findings


def audit_transaction_index(
    base_offset: int, data: bytes, aborted: Sequence[AbortedTxn] | None = None
) -> list[IndexFinding]:
    """Check a transaction index.

    Args:
        data: The whole file; empty for a segment without one.
        aborted: The aborted transactions whose markers lie in the segment, as the log tells them,
            for the deep audit; None to look at the index alone.

    Returns:
        At most one finding a rule; none if all is well. Expected and found are last offsets,
        the offsets of the markers, unless the rule is about something else.
    """
    entry_bytes = TXN_INDEX_ENTRY.itemsize
    count = len(data) // entry_bytes
    entries = np.frombuffer(data, TXN_INDEX_ENTRY, count)
    findings: list[IndexFinding] = []
    check = _Checker(entry_bytes, findings)
    if len(data) % entry_bytes:
        check.entry(IndexFault.RAGGED, count, count * entry_bytes, len(data))
    version = entries["version"].astype(np.int64)
    last = entries["last_offset"].astype(np.int64)
    first = entries["first_offset"].astype(np.int64)
    wanted_version = np.full(count, TXN_INDEX_VERSION, np.int64)
    base = np.full(count, base_offset, np.int64)
    is_other = version != wanted_version
    check.rows(IndexFault.UNKNOWN_VERSION, is_other, lambda: wanted_version, version)
    check.rows(IndexFault.LAST_OFFSET_BELOW_BASE, last < base, lambda: base, last)
    check.rows(IndexFault.OFFSET_NOT_RISING, _not_above_previous(last), lambda: _after(last), last)
    check.rows(IndexFault.FIRST_OFFSET_ABOVE_LAST, first > last, lambda: last, first)
    if aborted is None:
        return findings
    names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    rows = list(zip(*(entries[name].tolist() for name in names), strict=True))
    wanted = [tuple(getattr(txn, name) for name in names) for txn in aborted]
    expected_rows, present_rows = set(wanted), set(rows)
    is_unknown = np.array([row not in expected_rows for row in rows], np.bool_)
    nothing = np.full(count, -1, np.int64)
    check.rows(IndexFault.TRANSACTION_UNKNOWN, is_unknown, lambda: nothing, last)
    missing = [row for row in wanted if row not in present_rows]
    if missing:
        check.entry(IndexFault.TRANSACTION_MISSING, count, missing[0][2], -1, count=len(missing))
    return findings


class _Checker:
    """Collects findings about the entries of one index."""

    def __init__(self, entry_bytes: int, findings: list[IndexFinding]) -> None:
        self._entry_bytes = entry_bytes
        self._findings = findings

    def entry(
        self, fault: IndexFault, entry: int, expected: int, actual: int, *, count: int = 1
    ) -> None:
        """Note that one entry breaks a rule."""
        self._findings.append(
            IndexFinding(
                fault=fault,
                entry=entry,
                position=entry * self._entry_bytes,
                expected=expected,
                actual=actual,
                count=count,
            )
        )

    def rows(
        self,
        fault: IndexFault,
        is_bad: NDArray[np.bool_],
        expected: Callable[[], NDArray[np.int64]],
        actual: NDArray[np.int64],
    ) -> None:
        """Note the first entry with a fault, and their number. ``expected`` is called only if there
        is a fault, which is rare."""
        if is_bad.any():
            bad = np.flatnonzero(is_bad)
            row = int(bad[0])
            self.entry(fault, row, int(expected()[row]), int(actual[row]), count=int(bad.size))


def _parse(
    data: bytes, entry: np.dtype[np.void], file_bytes: int | None
) -> tuple[NDArray[np.void], list[IndexFinding]]:
    """Return the entries in use, and findings about the file's rest."""
    file_bytes = len(data) if file_bytes is None else file_bytes
    count = file_bytes // entry.itemsize
    entries: NDArray[np.void] = np.frombuffer(data, entry, len(data) // entry.itemsize)
    findings: list[IndexFinding] = []
    check = _Checker(entry.itemsize, findings)
    if file_bytes % entry.itemsize:
        check.entry(IndexFault.RAGGED, count, count * entry.itemsize, file_bytes)
    used = count_used_entries(entries)
    if used < count:
        size = used * entry.itemsize
        check.entry(IndexFault.PADDED, used, size, count * entry.itemsize, count=count - used)
    return entries[:used], findings


def _compare_times(
    check: _Checker,
    offset: NDArray[np.int64],
    timestamp: NDArray[np.int64],
    batches: SegmentBatches,
) -> None:
    row, is_there = _find_holder(batches, offset)
    check.rows(IndexFault.NO_BATCH, ~is_there, lambda: _at(batches.last_offset, row), offset)
    batch_timestamp = _at(batches.max_timestamp, row)
    check.rows(
        IndexFault.WRONG_TIMESTAMP,
        is_there & (batch_timestamp != timestamp),
        lambda: batch_timestamp,
        timestamp,
    )
    largest = _at(np.maximum.accumulate(batches.max_timestamp), row)
    is_newer = is_there & (batch_timestamp == timestamp) & (largest > timestamp)
    check.rows(IndexFault.NEWER_RECORD_BEFORE, is_newer, lambda: largest, timestamp)


def _not_above_previous(column: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of values not above their predecessors; first is False."""
    is_bad = np.zeros(len(column), np.bool_)
    is_bad[1:] = column[1:] <= column[:-1]
    return is_bad


def _after(column: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each entry's least allowed value: its predecessor's plus one."""
    least: NDArray[np.int64] = np.roll(column, 1) + 1
    return least


def _find(
    column: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the first row >= each wanted value, and whether they equal. The column must ascend."""
    row = np.searchsorted(column, wanted).astype(np.int64)
    return row, (row < len(column)) & (_at(column, row) == wanted)


def _find_holder(
    batches: SegmentBatches, offset: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the first batch ending at or above each offset. A mask tells whether the batch
    contains the offset."""
    # In a broken log with falling last offsets, Kafka's walk still reaches the first one.
    row, _ = _find(np.maximum.accumulate(batches.last_offset), offset)
    is_held: NDArray[np.bool_] = row < len(batches.last_offset)
    is_held = is_held & (_at(batches.base_offset, row) <= offset)
    return row, is_held


def _at(column: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return column[row], -1 for a row past the end."""
    padded: NDArray[np.int64] = np.append(column, np.int64(-1))
    values: NDArray[np.int64] = padded[np.minimum(row, len(column))]
    return values
