"""One segment: every batch, its own indexes, and what the partition has to know of it.

A segment is the unit of work. It is read once; with ``is_deep`` its records are decoded in the same
pass. What no segment can judge alone (overlaps, open transactions, epochs against the epoch file)
is handed on as facts, small enough to travel between tasks.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import StorageError
from storage_core.formats.batch_v2 import MAGIC_V2, MAX_BATCH_BYTES, NO_TIMESTAMP
from storage_core.formats.index_entries import (
    MAX_RELATIVE_OFFSET,
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
)
from storage_core.kernels.batch_scan import BAD_CONTROL_RECORD
from storage_core.maintenance.verification.batch_stream import BatchStream, TailKind
from storage_core.maintenance.verification.collector import KEPT_OF_A_KIND, FindingCollector
from storage_core.maintenance.verification.deep import check_records
from storage_core.maintenance.verification.files import SegmentFiles
from storage_core.maintenance.verification.findings import Code, Finding, Severity
from storage_core.maintenance.verification.indexes import (
    MAX_INDEX_BYTES,
    IndexedBatches,
    check_offset_index,
    check_time_index,
    drop_beyond_log,
)
from storage_core.maintenance.verification.options import Surroundings, VerifyOptions
from storage_core.maintenance.verification.transactions import (
    Aborted,
    OpenSpan,
    ProducerSpans,
    SegmentTransactions,
    TransactionScan,
)
from storage_core.records.batch_table import BatchTable
from storage_core.records.reader import Window
from storage_core.store.base import FileInfo, FileReader, LogStore

# A log has a handful of epochs; bytes that lie may claim one a batch.
_MAX_EPOCHS: Final = 100_000
_NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRun:
    """Neighbouring batches of one leader epoch.

    Attributes:
        epoch: The epoch.
        first_offset: Base offset of the first of them.
        last_offset: Last offset of the last of them.
    """

    epoch: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What the partition has to know of a segment that was read.

    Attributes:
        base_offset: The number that names its files.
        first_offset: Base offset of its first batch, -1 without batches.
        last_offset: Largest last offset, -1 without batches.
        size_bytes: Length of its .log file.
        end_position: Just past its last batch.
        tail: What is behind that.
        batches: Batches that were read.
        bad_batches: Those with a wrong checksum.
        records: Records that the good ones count; legacy entries count as one.
        max_timestamp: Largest of all batches, -1 without any.
        has_producers: Whether an idempotent producer wrote here.
        epochs: Runs of batches of one leader epoch, in file order.
        transactions: What it says of transactions.
        read_seconds: Time it took to read and check.
    """

    base_offset: int
    first_offset: int
    last_offset: int
    size_bytes: int
    end_position: int
    tail: TailKind
    batches: int
    bad_batches: int
    records: int
    max_timestamp: int
    has_producers: bool
    epochs: tuple[EpochRun, ...]
    transactions: SegmentTransactions
    read_seconds: float

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> "SegmentFacts":
        """Return facts from what ``dataclasses.asdict`` made of them, after JSON."""
        told = values["transactions"]
        transactions = SegmentTransactions(
            spans=tuple(
                ProducerSpans(
                    **{**spans, "before": _span(spans["before"]), "after": _span(spans["after"])}
                )
                for spans in told["spans"]
            ),
            aborted=tuple(Aborted(**entry) for entry in told["aborted"]),
            abort_markers=tuple(told["abort_markers"]),
        )
        changes = {
            "tail": TailKind(values["tail"]),
            "epochs": tuple(EpochRun(**run) for run in values["epochs"]),
            "transactions": transactions,
        }
        return cls(**{**values, **changes})


def _span(values: dict[str, int] | None) -> OpenSpan | None:
    return None if values is None else OpenSpan(**values)


def verify_segment(
    store: LogStore, segment: SegmentFiles, surroundings: Surroundings, options: VerifyOptions
) -> tuple[SegmentFacts, list[Finding]]:
    """Read a segment and its offset and time index.

    Args:
        store: The partition directory.
        segment: The segment, as a listing shows it.
        surroundings: Where it lies.
        options: How to look.

    Returns:
        The facts, and what was found. A file that cannot be read is a finding.
    """
    findings = FindingCollector()
    started = time.perf_counter()
    offset_index = _read_index(store, segment.offset_index, options, findings)
    time_index = _read_index(store, segment.time_index, options, findings)
    scan = _SegmentScan(segment, offset_index or b"", time_index or b"", options, findings)
    try:
        with closing(store.open_file(segment.log.name)) as reader:
            if reader.size_bytes > MAX_BATCH_BYTES:
                findings.add(
                    Code.SEGMENT_TOO_LARGE,
                    f"expected at most {MAX_BATCH_BYTES} bytes, found {reader.size_bytes}",
                    file=segment.log.name,
                )
            scan.read(reader)
    except StorageError as error:
        report_unreadable(segment.log.name, error, store, options, findings)
        return scan.facts(time.perf_counter() - started), findings.findings()
    _check_indexes(
        segment,
        offset_index,
        time_index,
        scan,
        surroundings=surroundings,
        options=options,
        findings=findings,
    )
    _report_tail(segment, scan, surroundings, options, findings)
    return scan.facts(time.perf_counter() - started), findings.findings()


def _check_indexes(  # noqa: PLR0913 - a segment, its indexes, where it lies, how to look
    segment: SegmentFiles,
    offset_index: bytes | None,
    time_index: bytes | None,
    scan: "_SegmentScan",
    *,
    surroundings: Surroundings,
    options: VerifyOptions,
    findings: FindingCollector,
) -> None:
    batches = scan.indexed.result()
    unclosed = Severity.HARMLESS if options.is_live else Severity.WARN
    severity = surroundings.tail_severity(unclosed) if segment.is_last else Severity.ERROR
    is_closed = not segment.is_last or (surroundings.is_clean and not surroundings.is_copy)
    if segment.offset_index is not None and offset_index is not None:
        offset_index = drop_beyond_log(
            segment.offset_index.name,
            offset_index,
            OFFSET_INDEX_ENTRY,
            log_ends_at=scan.end_position,
            severity=severity,
            findings=findings,
        )
        check_offset_index(segment, offset_index, batches, findings)
    if segment.time_index is not None and time_index is not None:
        kept = drop_beyond_log(
            segment.time_index.name,
            time_index,
            TIME_INDEX_ENTRY,
            log_ends_at=scan.next_offset - segment.base_offset,
            severity=severity,
            findings=findings,
        )
        check_time_index(
            segment,
            kept,
            batches,
            is_closed=is_closed and not options.is_live and len(kept) == len(time_index),
            findings=findings,
        )


def report_unreadable(
    name: str,
    error: StorageError,
    store: LogStore,
    options: VerifyOptions,
    findings: FindingCollector,
) -> None:
    """Report a file that could not be read; one that is gone has been deleted meanwhile."""
    is_gone = name not in {file.name for file in store.list_files()}
    if is_gone:
        findings.add(
            Code.CHANGED_WHILE_READ,
            "the file was listed and is gone",
            file=name,
            severity=Severity.INFO if options.is_live else None,
        )
    else:
        findings.add(Code.FILE_UNREADABLE, error.reason, file=name)


def _read_index(
    store: LogStore, file: FileInfo | None, options: VerifyOptions, findings: FindingCollector
) -> bytes | None:
    """Return the bytes of an index, None without one; one that cannot be read is reported."""
    if file is None:
        return None
    try:
        return store.read_file(file.name, limit_bytes=MAX_INDEX_BYTES)
    except StorageError as error:
        report_unreadable(file.name, error, store, options, findings)
        return None


class _SegmentScan:
    """One pass over a segment."""

    def __init__(
        self,
        segment: SegmentFiles,
        offset_index: bytes,
        time_index: bytes,
        options: VerifyOptions,
        findings: FindingCollector,
    ) -> None:
        self._segment = segment
        self._options = options
        self._findings = findings
        self._transactions = TransactionScan(findings)
        self.indexed = IndexedBatches(segment.base_offset, offset_index, time_index)
        self.size_bytes = segment.log.size_bytes
        self.end_position = 0
        self.tail = TailKind.NOTHING
        self._first_offset = self._last_offset = _NO_OFFSET
        self._batches = self._bad_batches = self._records = 0
        self._max_timestamp = NO_TIMESTAMP
        self._has_producers = False
        self._epochs: list[EpochRun] = []
        self._is_legacy = False

    def read(self, reader: FileReader) -> None:
        """Read the file to its end.

        Raises:
            StorageError: It cannot be read.
        """
        self.size_bytes = reader.size_bytes
        stream = BatchStream(
            reader,
            self._segment.base_offset,
            window_bytes=self._options.window_bytes,
            findings=self._findings,
        )
        try:
            for window in stream:
                self._check(window)
                stream.note_offset(self._last_offset)
        finally:
            self.end_position, self.tail = stream.end_position, stream.tail

    @property
    def next_offset(self) -> int:
        """Just past the last batch, the base offset without any."""
        return self._largest_so_far + 1

    def facts(self, read_seconds: float) -> SegmentFacts:
        """Return what was learnt."""
        return SegmentFacts(
            base_offset=self._segment.base_offset,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
            size_bytes=self.size_bytes,
            end_position=self.end_position,
            tail=self.tail,
            batches=self._batches,
            bad_batches=self._bad_batches,
            records=self._records,
            max_timestamp=self._max_timestamp,
            has_producers=self._has_producers,
            epochs=tuple(self._epochs),
            transactions=self._transactions.result(),
            read_seconds=read_seconds,
        )

    def _check(self, window: Window) -> None:
        batches = window.batches
        is_good = batches.crc_ok == 1
        counts = is_good | self._is_plausible(batches, is_good)
        self._batches += len(batches)
        self._bad_batches += int((~is_good).sum())
        self._check_formats(window, is_good)
        self._check_offsets(window, counts)
        self.indexed.add(window, counts)
        if self._options.is_deep:
            check_records(window, is_good, self._options, self._findings)
        if is_good.any():
            self._records += int(np.where(is_good, np.abs(batches.record_count), 0).sum())
            self._has_producers |= bool((is_good & batches.has_producer_id).any())
            self._max_timestamp = max(
                self._max_timestamp, int(batches.max_timestamp[is_good].max())
            )
            self._check_epochs(window, is_good)
            self._transactions.add(window, is_good)

    def _is_plausible(self, batches: BatchTable, is_good: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which batches have offsets that fit between the good ones around them.

        Of a batch with a wrong checksum the header may well be right: what is counted and indexed
        then goes on as it does in Kafka.
        """
        end = self._segment.base_offset + MAX_RELATIVE_OFFSET + 1
        before = np.where(is_good, batches.last_offset, self._largest_so_far)
        before = np.maximum.accumulate(np.append(self._largest_so_far, before))[:-1]
        after = np.where(is_good, batches.base_offset, end)[::-1]
        after = np.minimum.accumulate(np.append(end, after))[:-1][::-1]
        fits: NDArray[np.bool_] = (batches.base_offset > before) & (batches.last_offset < after)
        return fits & (batches.last_offset >= batches.base_offset)

    @property
    def _largest_so_far(self) -> int:
        return max(self._last_offset, self._segment.base_offset - 1)

    def _check_formats(self, window: Window, is_good: NDArray[np.bool_]) -> None:
        batches = window.batches
        self._add_rows(
            Code.BATCH_CRC_WRONG,
            window,
            ~is_good,
            lambda row: (
                f"the stored checksum is {batches.crc[row]:#010x}; the bytes have another "
                f"({batches.size[row]} bytes, offsets {batches.base_offset[row]} to "
                f"{batches.last_offset[row]} as the header says)"
            ),
        )
        self._add_rows(
            Code.MAGIC_UNKNOWN,
            window,
            is_good & (batches.magic > MAGIC_V2),
            lambda row: f"expected magic 0, 1 or 2, found {batches.magic[row]}",
        )
        self._add_rows(
            Code.RECORD_COUNT_NEGATIVE,
            window,
            is_good & ~batches.is_legacy & (batches.record_count < 0),
            lambda row: f"expected a count, found {batches.record_count[row]}",
        )
        self._add_rows(
            Code.CONTROL_RECORD_MALFORMED,
            window,
            is_good & (batches.control_type == BAD_CONTROL_RECORD),
            lambda _: "expected a control record's key",
        )
        legacy = is_good & batches.is_legacy
        if legacy.any() and not self._is_legacy:
            self._is_legacy = True
            legacy[np.flatnonzero(legacy)[1:]] = False
            self._add_rows(
                Code.LEGACY_FORMAT,
                window,
                legacy,
                lambda row: f"a message of format v{batches.magic[row]}",
            )

    def _check_offsets(self, window: Window, counts: NDArray[np.bool_]) -> None:
        batches = window.batches
        rows = np.flatnonzero(counts)
        if not rows.size:
            return
        base, last = batches.base_offset[rows], batches.last_offset[rows]
        before = np.full(len(batches), _NO_OFFSET)
        before[rows] = np.append(self._last_offset, last)[:-1]
        self._add_rows(
            Code.OFFSETS_NOT_RISING,
            window,
            counts
            & ((batches.base_offset <= before) | (batches.last_offset < batches.base_offset)),
            lambda row: (
                f"offsets {batches.base_offset[row]} to {batches.last_offset[row]} follow "
                f"offset {before[row]}"
            ),
        )
        lowest = self._segment.base_offset
        highest = lowest + MAX_RELATIVE_OFFSET
        self._add_rows(
            Code.OFFSET_BELOW_BASE,
            window,
            counts & (batches.base_offset < lowest),
            lambda row: f"expected {lowest} or more, found {batches.base_offset[row]}",
        )
        self._add_rows(
            Code.OFFSET_OVERFLOW,
            window,
            counts & (batches.last_offset > highest),
            lambda row: f"expected {highest} or less, found {batches.last_offset[row]}",
        )
        if self._first_offset == _NO_OFFSET:
            self._first_offset = int(base[0])
        self._last_offset = max(self._last_offset, int(last.max()))

    def _check_epochs(self, window: Window, is_good: NDArray[np.bool_]) -> None:
        batches = window.batches
        rows = np.flatnonzero(is_good & (batches.leader_epoch >= 0))
        if not rows.size:
            return
        epochs = batches.leader_epoch[rows]
        base, last = batches.base_offset[rows], batches.last_offset[rows]
        starts = np.flatnonzero(np.append(True, epochs[1:] != epochs[:-1]))
        ends = np.append(starts[1:], rows.size) - 1
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            run = EpochRun(
                epoch=int(epochs[start]), first_offset=int(base[start]), last_offset=int(last[end])
            )
            before = self._epochs[-1] if self._epochs else run
            if len(self._epochs) >= _MAX_EPOCHS:
                return
            if run.epoch < before.epoch:
                self._findings.add(
                    Code.EPOCH_GOES_BACK,
                    f"leader epoch {run.epoch} follows {before.epoch}",
                    file=window.file,
                    position=window.position_of(int(rows[start])),
                    offset=run.first_offset,
                )
            if self._epochs and run.epoch == before.epoch:
                self._epochs[-1] = replace(before, last_offset=run.last_offset)
            else:
                self._epochs.append(run)

    def _add_rows(
        self,
        code: Code,
        window: Window,
        wanted: NDArray[np.bool_],
        describe: Callable[[int], str],
    ) -> None:
        """Report batches; of many, only the first are described."""
        rows = np.flatnonzero(wanted)
        for row in rows[:KEPT_OF_A_KIND].tolist():
            self._findings.add(
                code,
                describe(row),
                file=window.file,
                position=window.position_of(row),
                offset=int(window.batches.base_offset[row]),
            )
        self._findings.count(code, rows.size - KEPT_OF_A_KIND, file=window.file)


def _report_tail(
    segment: SegmentFiles,
    scan: _SegmentScan,
    surroundings: Surroundings,
    options: VerifyOptions,
    findings: FindingCollector,
) -> None:
    if scan.tail not in {TailKind.TORN, TailKind.ZEROS}:
        return
    left = scan.size_bytes - scan.end_position
    what = "zeros" if scan.tail is TailKind.ZEROS else "bytes of a batch that does not end"
    code = Code.ZERO_TAIL if scan.tail is TailKind.ZEROS else Code.TORN_TAIL
    is_expected = scan.tail is TailKind.ZEROS or options.is_live
    unclosed = Severity.HARMLESS if is_expected else Severity.WARN
    severity: Severity | None = surroundings.tail_severity(unclosed)
    if not segment.is_last:
        code, severity = Code.TORN_SEGMENT, None
    findings.add(
        code,
        f"{left} {what}, after {scan.end_position} bytes of batches",
        file=segment.log.name,
        position=scan.end_position,
        severity=severity,
    )
