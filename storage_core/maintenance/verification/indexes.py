"""Verify indexes against their log: audit them, give faults a code."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.filenames import TXN_INDEX_SUFFIX, segment_file
from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)
from storage_core.index.audit import (
    IndexFault,
    IndexFinding,
    SegmentBatches,
    audit_offset_index,
    audit_time_index,
    audit_transaction_index,
    count_used_entries,
)
from storage_core.index.segment_indexes import UsedBytes
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.files import SegmentFiles
from storage_core.maintenance.verification.findings import Code, Severity
from storage_core.maintenance.verification.transactions import (
    AbortedTransaction,
    missing_and_unknown,
)
from storage_core.store.base import LogStore

# An index file is bounded by its own 31-bit positions; real ones have 10 MiB at most by default.
MAX_INDEX_BYTES: Final = 1 << 30

_HARMLESS: Final = {
    IndexFault.PADDED: Code.INDEX_PREALLOCATED,
    IndexFault.RAGGED: Code.INDEX_RAGGED,
}
# The checks of a broker on a transaction index; on failure it recovers the segment.
_BROKEN: Final = frozenset({IndexFault.LAST_OFFSET_BELOW_BASE, IndexFault.OFFSET_NOT_RISING})


class IndexedBatches:
    """Batches in a segment's indexes, and the newest time between them. Memory for an audit thus
    grows with the indexes, not with the log.

    Args:
        offset_index: The .index, without the zeros at its end.
    """

    def __init__(self, base_offset: int, offset_index: bytes, time_index: bytes) -> None:
        entries = np.frombuffer(
            offset_index, OFFSET_INDEX_ENTRY, len(offset_index) // OFFSET_INDEX_ENTRY.itemsize
        )
        times = np.frombuffer(
            time_index, TIME_INDEX_ENTRY, len(time_index) // TIME_INDEX_ENTRY.itemsize
        )
        self._positions = _distinct(entries["position"].astype(np.int64))
        named = np.concatenate([times["relative_offset"], entries["relative_offset"]])
        self._offsets = _distinct(named.astype(np.int64) + base_offset)
        self._parts: list[NDArray[np.int64]] = []

    def add(
        self,
        position: NDArray[np.int64],
        base_offset: NDArray[np.int64],
        last_offset: NDArray[np.int64],
        max_timestamp: NDArray[np.int64],
    ) -> None:
        """Add the next batches, in file order.

        Args:
            position: int64[n], where in the file they begin.
            base_offset: int64[n].
            last_offset: int64[n].
            max_timestamp: int64[n].
        """
        if not position.size:
            return
        is_named = _is_in(position, self._positions, position)
        is_named |= _is_in(base_offset, self._offsets, last_offset)
        # A run of batches without an entry is represented by its last one, with the run's largest
        # timestamp.
        ends = is_named.copy()
        ends[:-1] |= is_named[1:]
        ends[-1] = True
        last = np.flatnonzero(ends)
        starts = np.append(0, last[:-1] + 1)
        newest = np.maximum.reduceat(max_timestamp, starts)
        self._parts.append(np.stack([position[last], base_offset[last], last_offset[last], newest]))

    def result(self) -> SegmentBatches:
        """Return the batches so far."""
        nothing = np.empty((4, 0), np.int64)
        position, base_offset, last_offset, newest = np.concatenate([nothing, *self._parts], axis=1)
        return SegmentBatches(
            position=position,
            base_offset=base_offset,
            last_offset=last_offset,
            max_timestamp=newest,
        )


def drop_beyond_log(
    name: str,
    index: UsedBytes,
    entry: np.dtype[np.void],
    *,
    log_ends_at: int,
    severity: Severity,
    findings: FindingCollector,
) -> UsedBytes:
    """Return an index without its last entries beyond the log's end.

    A log that lost its end is a finding; that its indexes still know of it is one more, not one
    an entry.

    Args:
        log_ends_at: First position (of the log), or first offset above the base offset (for a time
            index), that no batch has.
    """
    content = index.content
    entries = np.frombuffer(content, entry, len(content) // entry.itemsize)
    used = count_used_entries(entries)
    column = "position" if entry == OFFSET_INDEX_ENTRY else "relative_offset"
    within = np.flatnonzero(entries[column][:used].astype(np.int64) < log_ends_at)
    count = int(within[-1]) + 1 if within.size else 0
    if count == used:
        return index
    findings.add(
        Code.INDEX_BEYOND_LOG,
        f"{used - count} entries from number {count} on refer to batches behind the log's end",
        file=name,
        position=count * entry.itemsize,
        severity=severity,
    )
    size = count * entry.itemsize
    return UsedBytes(content[:size], size)


def check_offset_index(
    segment: SegmentFiles, index: UsedBytes, batches: SegmentBatches, findings: FindingCollector
) -> None:
    """Report errors in an offset index."""
    if segment.offset_index is not None:
        for fault in audit_offset_index(
            segment.base_offset, index.content, batches, file_bytes=index.file_bytes
        ):
            _report(segment.offset_index.name, fault, Code.OFFSET_INDEX_WRONG, findings)


def check_time_index(
    segment: SegmentFiles,
    index: UsedBytes,
    batches: SegmentBatches,
    *,
    is_rising: bool,
    is_closed: bool,
    is_copy: bool,
    findings: FindingCollector,
) -> None:
    """Report errors in a time index.

    Args:
        index: The file's content.
        is_rising: Whether their offsets rise; an entry's batch cannot be told where they do not.
        is_closed: Whether the segment was rolled, cleaned or cleanly closed; retention takes it by
            its time index.
        is_copy: Whether it lies in a copy, from which no broker deletes.
    """
    if segment.time_index is None:
        return
    name = segment.time_index.name
    told_batches = batches if is_rising else None
    data = index.content
    used = np.frombuffer(data, TIME_INDEX_ENTRY, len(data) // TIME_INDEX_ENTRY.itemsize)
    newest = int(batches.max_timestamp.max(initial=-1))
    # At a close or roll a broker offers the last entry, and cuts off what was preallocated.
    is_aged = is_closed and newest > 0
    entries = index.file_bytes // TIME_INDEX_ENTRY.itemsize
    is_padded = is_aged and entries > count_used_entries(used)
    for fault in audit_time_index(
        segment.base_offset,
        data,
        told_batches,
        is_closed=is_closed,
        file_bytes=index.file_bytes,
    ):
        is_told_below = fault.fault is IndexFault.LARGEST_TIMESTAMP_MISSING or (
            is_padded and fault.fault is IndexFault.PADDED
        )
        if not is_told_below:
            _report(name, fault, Code.TIME_INDEX_WRONG, findings)
    indexed = int(used["timestamp"].max(initial=0))
    if not is_aged:
        return
    expected = f"expected a last entry for the newest record, of {newest} ms; found"
    severity = Severity.WARN if is_copy else None
    if is_padded:
        findings.add(
            Code.TIME_INDEX_PADDED,
            f"{expected} zeros: retention.ms deletes the segment",
            file=name,
            position=(entries - 1) * TIME_INDEX_ENTRY.itemsize,
            severity=severity,
        )
    elif indexed >= newest:
        return
    elif not used["timestamp"].any():
        is_early = segment.log.modified_ms < newest and not is_copy
        findings.add(
            Code.TIME_INDEX_EMPTY,
            f"expected an entry for the newest record, of {newest} ms; found none"
            + (f", and a file of {segment.log.modified_ms} ms" if is_early else ""),
            file=name,
            severity=Severity.ERROR if is_early else None,
        )
    else:
        findings.add(
            Code.TIME_INDEX_UNFINISHED, f"{expected} {indexed} ms", file=name, severity=severity
        )


def check_transaction_index(
    store: LogStore,
    segment: SegmentFiles,
    aborted: tuple[AbortedTransaction, ...],
    abort_markers: tuple[int, ...],
    findings: FindingCollector,
) -> None:
    """Report errors in a transaction index, its absence included."""
    if segment.txn_index is None:
        if aborted:
            name = segment_file(segment.base_offset, TXN_INDEX_SUFFIX)
            findings.add(
                Code.TXN_INDEX_MISSING,
                f"{len(aborted)} transactions were aborted in {segment.log.name}, the first by "
                f"the marker at offset {aborted[0].last_offset}",
                file=name,
                offset=aborted[0].first_offset,
            )
        return
    name = segment.txn_index.name
    data = store.read_file(name, limit_bytes=MAX_INDEX_BYTES)
    is_sound = True
    for fault in audit_transaction_index(segment.base_offset, data):
        code = Code.TXN_INDEX_BROKEN if fault.fault in _BROKEN else Code.TXN_INDEX_WRONG
        if fault.fault is IndexFault.UNKNOWN_VERSION:
            code = Code.TXN_INDEX_VERSION_UNKNOWN
        is_sound &= fault.fault.is_harmless
        _report(name, fault, code, findings)
    if is_sound:
        _compare_aborted(name, data, aborted, abort_markers, findings)


def _compare_aborted(
    name: str,
    data: bytes,
    aborted: tuple[AbortedTransaction, ...],
    abort_markers: tuple[int, ...],
    findings: FindingCollector,
) -> None:
    table = np.frombuffer(data, TXN_INDEX_ENTRY, len(data) // TXN_INDEX_ENTRY.itemsize)
    columns = (table[field].tolist() for field in ("producer_id", "first_offset", "last_offset"))
    entries = list(zip(*columns, strict=True))
    missing, unknown = missing_and_unknown(aborted, abort_markers, entries)
    if missing:
        first = missing[0]
        findings.add(
            Code.TXN_INDEX_INCOMPLETE,
            f"no entry for the transaction of producer {first.producer_id} from offset "
            f"{first.first_offset} to its abort at {first.last_offset}; {len(missing)} missing",
            file=name,
            offset=first.first_offset,
        )
    if unknown:
        producer_id, first_offset, last_offset = unknown[0]
        findings.add(
            Code.TXN_INDEX_WRONG,
            f"says that producer {producer_id} aborted offsets {first_offset} to {last_offset}, "
            f"but there is no abort marker; {len(unknown)} such entries",
            file=name,
            position=entries.index(unknown[0]) * TXN_INDEX_ENTRY.itemsize,
            offset=last_offset,
        )


def _report(file: str, fault: IndexFinding, code: Code, findings: FindingCollector) -> None:
    what = fault.fault.value.removeprefix("index-").replace("-", " ")
    message = f"entry {fault.entry}: {what}: expected {fault.expected}, found {fault.actual}"
    if fault.count > 1:
        message += f"; {fault.count} entries are wrong in this way"
    if fault.fault.is_harmless:
        message = f"entries end at byte {fault.position}, the file has {fault.actual} bytes"
    findings.add(
        _HARMLESS.get(fault.fault, code),
        message,
        file=file,
        position=fault.position,
    )


def _distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return distinct numbers, sorted, as numpy's unique; fast if nearly sorted."""
    numbers = np.sort(numbers, kind="stable")  # a merge of rising runs
    is_new = np.append(True, numbers[1:] != numbers[:-1])[: numbers.size]
    distinct: NDArray[np.int64] = numbers[is_new]
    return distinct


def _is_in(
    first: NDArray[np.int64], wanted: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Mark ranges, first to last, with one of the sorted values."""
    if not wanted.size:
        return np.zeros(first.size, np.bool_)
    at = np.minimum(np.searchsorted(wanted, first), wanted.size - 1)
    is_in: NDArray[np.bool_] = (wanted[at] >= first) & (wanted[at] <= last)
    return is_in
