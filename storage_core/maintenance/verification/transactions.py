"""Collect a log's transactions segment by segment, then join them.

A segment alone cannot say whether its first marker ends a transaction that began before it. So it
says, for each producer, what stood before its first marker, and what is open after its last one;
folding these in offset order gives the open transactions of the log, and the aborted ones of each
segment, as a single replay would. What is kept grows with producers and aborted transactions, not
with batches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.control import ControlType
from storage_core.log.open_transactions import (
    OpenSpan,
    OpenTransactions,
    is_late,
)
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.findings import Code
from storage_core.records.reader import Window

_NONE: Final = -1
_FAR: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """A transaction that was aborted."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSpans:
    """One producer's transactions in one segment."""

    producer_id: int
    before: OpenSpan | None  # data before the first marker, None without any
    marker_offset: int = _NONE  # offset of the first marker, -1 without one
    is_abort: bool = False  # whether the first marker is an abort
    # Data after the last marker, None without any or without a marker.
    after: OpenSpan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTransactions:
    """The transactions of one segment."""

    spans: tuple[ProducerSpans, ...] = ()
    # Transactions that began and were aborted in this segment, after another marker of the same
    # producer.
    aborted: tuple[AbortedTransaction, ...] = ()
    abort_markers: tuple[int, ...] = ()


class TransactionScan:
    """Collects the transactions of one segment, window by window.

    Args:
        findings: Where batches are reported that contradict their producer's transaction.
    """

    def __init__(self, findings: FindingCollector) -> None:
        self._findings = findings
        self._transactions = OpenTransactions(keeps_ended=False)
        # Batches before a producer's first marker, whose transaction may have begun in other
        # segments.
        self._before: dict[int, ProducerSpans] = {}
        self._aborted: list[AbortedTransaction] = []
        self._abort_markers: list[int] = []

    def add(self, window: Window, is_good: NDArray[np.bool_]) -> None:
        """Add the next batches.

        Args:
            is_good: bool[batches], which of them count.
        """
        batches = window.batches
        is_marker = batches.is_control & np.isin(
            batches.control_type, (ControlType.ABORT, ControlType.COMMIT)
        )
        is_data = batches.is_transactional & ~batches.is_control
        in_play = is_good & batches.has_producer_id & (is_marker | is_data)
        open_producers = [*self._transactions.first_offsets]
        if not in_play.any() and not open_producers:
            return
        is_plain = is_good & batches.has_producer_id & ~batches.is_transactional
        is_plain &= ~batches.is_control
        producers = np.array(open_producers, np.int64)
        producers = np.concatenate([producers, np.unique(batches.producer_id[in_play])])
        in_play |= is_plain & np.isin(batches.producer_id, producers)
        rows = np.flatnonzero(in_play)
        if rows.size:
            self._add_groups(window, rows[np.argsort(batches.producer_id[rows], kind="stable")])

    def result(self) -> SegmentTransactions:
        """Return the transactions of the segment."""
        spans = self._transactions.spans
        marked = [
            replace(before, after=spans.pop(producer_id, None))
            for producer_id, before in self._before.items()
        ]
        unmarked = [ProducerSpans(producer_id=p, before=span) for p, span in spans.items()]
        return SegmentTransactions(
            spans=(*marked, *unmarked),
            aborted=tuple(self._aborted),
            abort_markers=tuple(self._abort_markers),
        )

    def _add_groups(self, window: Window, rows: NDArray[np.int64]) -> None:
        """Add rows sorted by producer, in groups; a marker ends a group."""
        batches = window.batches
        producer = batches.producer_id[rows]
        is_marker = batches.is_control[rows]
        is_data = batches.is_transactional[rows] & ~is_marker
        begins = np.ones(rows.size, np.bool_)
        begins[1:] = (producer[1:] != producer[:-1]) | is_marker[:-1]
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], rows.size) - 1
        first_data = np.minimum.reduceat(np.where(is_data, batches.base_offset[rows], _FAR), starts)
        newest = np.maximum.reduceat(np.where(is_data, batches.max_timestamp[rows], _NONE), starts)
        last_plain = np.maximum.reduceat(
            np.where(is_data | is_marker, _NONE, batches.base_offset[rows]), starts
        )
        ends_marked = is_marker[ends]
        is_abort = ends_marked & (batches.control_type[rows][ends] == ControlType.ABORT)
        self._abort_markers += sorted(batches.base_offset[rows][ends][is_abort].tolist())
        is_first = np.ones(starts.size, np.bool_)
        is_first[1:] = producer[starts][1:] != producer[starts][:-1]
        # A transaction that begins and commits inside of the window leaves no trace.
        tells = is_first | ~ends_marked | is_abort | (last_plain > first_data)
        for group in np.flatnonzero(tells).tolist():
            span = None
            if first_data[group] != _FAR:
                span = OpenSpan(first_offset=int(first_data[group]), newest_ms=int(newest[group]))
            marker = int(batches.base_offset[rows[ends[group]]]) if ends_marked[group] else _NONE
            producer_id = int(producer[starts[group]])
            self._check_plain(window, producer_id, int(last_plain[group]), span)
            self._add_group(producer_id, span, marker, is_abort=bool(is_abort[group]))

    def _add_group(
        self, producer_id: int, span: OpenSpan | None, marker: int, *, is_abort: bool
    ) -> None:
        if span is not None:
            self._transactions.extend(producer_id, span)
        if marker < 0:
            return
        ended = self._transactions.end(producer_id, marker)
        if producer_id not in self._before:
            self._before[producer_id] = ProducerSpans(
                producer_id=producer_id, before=ended, marker_offset=marker, is_abort=is_abort
            )
        elif is_abort and ended is not None:
            self._aborted.append(
                AbortedTransaction(
                    producer_id=producer_id, first_offset=ended.first_offset, last_offset=marker
                )
            )

    def _check_plain(
        self, window: Window, producer_id: int, last_plain: int, span: OpenSpan | None
    ) -> None:
        """Report a batch outside of transactions that follows its producer's open one."""
        first_offset = self._transactions.first_offsets.get(producer_id)
        if first_offset is None and span is not None:
            first_offset = span.first_offset
        if first_offset is None or last_plain < max(first_offset, 0):
            return
        row = int(np.flatnonzero(window.batches.base_offset == last_plain)[0])
        self._findings.add(
            Code.TRANSACTION_STATE_INVALID,
            f"the batch is not transactional, but its producer {producer_id} has had a "
            f"transaction open since offset {first_offset}",
            file=window.file,
            position=window.position_of(row),
            offset=last_plain,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTransactions:
    """The transactions of a log."""

    ongoing: dict[int, OpenSpan]  # open ones by producer
    # For each segment, those that its markers aborted and whose data is in the log, in the order of
    # their markers.
    aborted: tuple[tuple[AbortedTransaction, ...], ...]


def fold_transactions(segments: Iterable[SegmentTransactions]) -> LogTransactions:
    """Put together the transactions of a log's segments, in offset order."""
    transactions = OpenTransactions(keeps_ended=False)
    aborted: list[tuple[AbortedTransaction, ...]] = []
    for segment in segments:
        in_segment = list(segment.aborted)
        for spans in segment.spans:
            producer_id = spans.producer_id
            if spans.before is not None:
                transactions.extend(producer_id, spans.before)
            if spans.marker_offset < 0:
                continue
            ended = transactions.end(producer_id, spans.marker_offset)
            if spans.is_abort and ended is not None:
                in_segment.append(
                    AbortedTransaction(
                        producer_id=producer_id,
                        first_offset=ended.first_offset,
                        last_offset=spans.marker_offset,
                    )
                )
            if spans.after is not None:
                transactions.extend(producer_id, spans.after)
        aborted.append(tuple(sorted(in_segment, key=lambda entry: entry.last_offset)))
    return LogTransactions(ongoing=transactions.spans, aborted=tuple(aborted))


def describe_open(
    transactions: LogTransactions,
    *,
    now_ms: int,
    max_transaction_timeout_ms: int,
    findings: FindingCollector,
) -> None:
    """Report a log's open and hanging transactions. No coordinator ever ends a hanging transaction.

    Args:
        max_transaction_timeout_ms: The cluster's ``transaction.max.timeout.ms``.
    """
    oldest_first = sorted(transactions.ongoing.items(), key=lambda item: item[1].first_offset)
    for producer_id, span in oldest_first:
        hangs = is_late(
            span.newest_ms, now_ms=now_ms, max_transaction_timeout_ms=max_transaction_timeout_ms
        )
        findings.add(
            Code.TRANSACTION_HANGING if hangs else Code.TRANSACTION_OPEN,
            f"producer {producer_id} has had a transaction open since offset "
            f"{span.first_offset}; its newest batch is "
            f"{max(now_ms - span.newest_ms, 0) // 1000} s old",
            offset=span.first_offset,
        )


def missing_and_unknown(
    expected: Sequence[AbortedTransaction],
    abort_markers: Sequence[int],
    entries: Sequence[tuple[int, int, int]],
) -> tuple[list[AbortedTransaction], list[tuple[int, int, int]]]:
    """Compare a segment's aborts with the entries of its transaction index.

    Compaction may have removed a transaction's first batches: its entry then begins earlier. It
    may have removed all of them and left marker and entry.

    Args:
        entries: (producer id, first offset, last offset) of each entry.

    Returns:
        The aborts without an entry, and the entries without a marker.
    """
    by_marker = {(producer, last): first for producer, first, last in entries}
    missing = [
        abort
        for abort in expected
        if by_marker.get((abort.producer_id, abort.last_offset), _FAR) > abort.first_offset
    ]
    marked = set(abort_markers)
    unmarked = [entry for entry in entries if entry[2] not in marked]
    return missing, unmarked
