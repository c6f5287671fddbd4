"""Check each batch of a segment, alone and against earlier ones. The check takes one pass."""

import enum
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import BadBytesError, CorruptRecordError, UnsupportedCompressionError
from storage_core.formats.batch_v2 import MAGIC_V2, NO_TIMESTAMP
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET
from storage_core.kernels.batch_scan import BAD_CONTROL_RECORD
from storage_core.log.leader_epoch_cache import EpochRun, find_epoch_runs
from storage_core.log.open_transactions import OpenSpan
from storage_core.maintenance.verification.collector import KEPT_OF_A_KIND, FindingCollector
from storage_core.maintenance.verification.files import SegmentFiles
from storage_core.maintenance.verification.findings import Code, VerifyOptions
from storage_core.maintenance.verification.indexes import IndexedBatches
from storage_core.maintenance.verification.transactions import (
    AbortedTransaction,
    ProducerSpans,
    SegmentTransactions,
    TransactionScan,
)
from storage_core.records.checked_headers import BatchFinder, scan_checked_headers
from storage_core.records.payload import Limits, RecordColumns, decode_records
from storage_core.records.reader import CrcCheck, Large, Tail, Window, find_zeros, scan_windows
from storage_core.store.base import FileReader

# Read the batches of a damaged segment, also safely behind damage.
#
# Kafka's own reader ends at the first bytes that are no batch. Here the search for the next one
# goes on, and only what cannot be chance counts as a batch: the bytes of format v2, a length that
# fits, an offset that follows, a checksum that is right.

_MAX_GAPS: Final = 64


class TailKind(enum.StrEnum):
    """The bytes behind the last batch of a segment."""

    NOTHING = "nothing"
    TORN = "torn"  # the start of a batch
    ZEROS = "zeros"
    GARBAGE = "garbage"  # it is already reported as a finding
    SHRUNK = "shrunk"  # nothing: the file was cut during the read


class BatchStream:
    """Windows of whole batches of one segment. It is iterated once, and then tells how the segment
    ended.

    Args:
        window_bytes: How much to hold at a time.
        keeps_records: Whether the windows have the records, too, not only what headers say.
        threads: How many threads check what is read without its records.

    Attributes:
        end_position: Just past the last batch that was yielded.
        tail: The content behind it.
    """

    def __init__(
        self,
        reader: FileReader,
        base_offset: int,
        *,
        window_bytes: int,
        keeps_records: bool,
        threads: int,
        findings: FindingCollector,
    ) -> None:
        self.end_position = 0
        self.tail = TailKind.NOTHING
        self._reader = reader
        self._base_offset = base_offset
        self._window_bytes = window_bytes
        self._keeps_records = keeps_records
        self._threads = threads
        self._findings = findings
        self._largest_offset = base_offset - 1
        self._finder = BatchFinder(reader, reader.size_bytes)

    def __iter__(self) -> Generator[Window]:
        size = self._reader.size_bytes
        for _ in range(_MAX_GAPS):
            reason = yield from self._read_on()
            start = self.end_position
            if reason is None and start == size:
                return
            if not self._read(size - 1, 1).size:  # the file was longer when it was opened
                remaining = self._read(self.end_position, self._window_bytes).size
                yield from self._read_on(end=self.end_position + remaining)
                self.tail = TailKind.SHRUNK
                return
            if find_zeros(self._reader, start, size) == start:
                self.tail = TailKind.ZEROS
                return
            following = self._finder.find(
                start + 1,
                self._largest_offset + 1,
                self._base_offset + MAX_RELATIVE_OFFSET + 1,
            )
            if following is None:
                self.tail = TailKind.TORN if reason is None else TailKind.GARBAGE
                if reason is not None:
                    self._report(start, f"{reason}; no batch follows in {size - start} bytes")
                return
            skipped = following - start
            text = reason or "the batch says that it is longer than the rest of the file"
            self._report(start, f"{text}; the next batch was found {skipped} bytes further on")
            self.end_position = following
        self.tail = TailKind.GARBAGE
        self._report(self.end_position, f"more than {_MAX_GAPS} gaps: the rest was not read")

    def note_offset(self, last_offset: int) -> None:
        """Note the last good offset as floor for later batches."""
        self._largest_offset = max(self._largest_offset, last_offset)

    def _read_on(self, end: int | None = None) -> Generator[Window, None, str | None]:
        """Yield windows from end_position on; return the reason for the end. The reason is None
        at a tail or at the end of the file."""
        try:
            with closing(self._windows(end)) as windows:
                for window in windows:
                    self.end_position = window.file_position + window.size_bytes
                    yield window
        except CorruptRecordError as error:
            return error.reason
        return None

    def _windows(self, end: int | None) -> Generator[Window]:
        if not self._keeps_records:
            return scan_checked_headers(
                self._reader,
                start=self.end_position,
                end=end,
                window_bytes=self._window_bytes,
                large=Large.VALID,
                threads=self._threads,
            )
        return scan_windows(
            self._reader,
            start=self.end_position,
            end=end,
            window_bytes=self._window_bytes,
            crc=CrcCheck.NOTE,
            tail=Tail.STOP,
            large=Large.VALID,
        )

    def _report(self, position: int, message: str) -> None:
        self._findings.add(
            Code.BATCH_LENGTH_IMPOSSIBLE,
            message,
            file=self._reader.name,
            position=position,
            offset=self._largest_offset + 1,
        )

    def _read(self, position: int, size_bytes: int) -> NDArray[np.uint8]:
        target = np.empty(size_bytes, np.uint8)
        return target[: self._reader.read_into(position, target)]


# Facts about a verified segment, small enough to be sent between tasks.


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """Facts about a verified segment that its partition needs."""

    base_offset: int
    first_offset: int  # base offset of its first batch, -1 without batches
    last_offset: int  # largest last offset, -1 without batches
    size_bytes: int
    end_position: int
    tail: TailKind  # the content behind it
    batches: int
    bad_batches: int  # number of batches with a wrong checksum
    records: int  # records that the good ones count; legacy entries count as one
    max_timestamp: int  # largest of all batches, -1 without any
    has_producers: bool  # whether an idempotent producer wrote here
    epochs: tuple[EpochRun, ...]  # runs of batches of one leader epoch, in file order
    transactions: SegmentTransactions
    read_seconds: float  # time it took to read and check

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> "SegmentFacts":
        """Return facts from the values of ``dataclasses.asdict``, after JSON."""
        saved = values["transactions"]
        transactions = SegmentTransactions(
            spans=tuple(
                ProducerSpans(
                    **{**spans, "before": _span(spans["before"]), "after": _span(spans["after"])}
                )
                for spans in saved["spans"]
            ),
            aborted=tuple(AbortedTransaction(**entry) for entry in saved["aborted"]),
            abort_markers=tuple(saved["abort_markers"]),
        )
        changes = {
            "tail": TailKind(values["tail"]),
            "epochs": tuple(EpochRun(**run) for run in values["epochs"]),
            "transactions": transactions,
        }
        return cls(**{**values, **changes})


def _span(values: list[int] | None) -> OpenSpan | None:
    return None if values is None else OpenSpan(*values)


# Each bad batch costs another look at its window: an attacker must not choose either number.
_MAX_BAD_IN_A_WINDOW: Final = 20
# A log has a handful of epochs; hostile bytes may claim one for each batch.
_MAX_EPOCHS: Final = 100_000
_NO_OFFSET: Final = -1
# Rows of a batch table, of which some may wait for the next good batch.
_POSITION, _BASE, _LAST, _TIME, _GOOD = range(5)
_MAX_WAITING: Final = 100_000


def check_records(
    window: Window,
    is_good: NDArray[np.bool_],
    options: VerifyOptions,
    findings: FindingCollector,
) -> None:
    """Report batches whose records cannot be read, or contradict the batch.

    Args:
        is_good: bool[batches], those whose checksum is right.
        options: Options with the bounds on a batch's decompressed size.
    """
    limits = Limits(
        max_record_bytes=options.max_record_bytes, max_batch_bytes=options.max_batch_bytes
    )
    wanted = is_good & (window.batches.magic <= MAGIC_V2) & (window.batches.magic >= 0)
    for _ in range(_MAX_BAD_IN_A_WINDOW):
        try:
            for columns in decode_records(window, wanted, limits):
                _check_columns(window, columns, findings)
                wanted[: columns.payload.end_row] = False
        except BadBytesError as error:
            starts = window.batches.position + window.file_position
            row = max(int(np.searchsorted(starts, error.position, side="right")) - 1, 0)
            is_codec = isinstance(error, UnsupportedCompressionError)
            findings.add(
                Code.CODEC_UNKNOWN if is_codec else Code.RECORDS_MALFORMED,
                error.reason,
                file=window.file,
                position=window.position_of(row),
                offset=int(window.batches.base_offset[row]),
            )
            # Batches of that block before the bad one are read again without it.
            wanted[row] = False
        else:
            return
    findings.add(
        Code.RECORDS_MALFORMED,
        f"more than {_MAX_BAD_IN_A_WINDOW} such batches in {window.data.size} bytes: the rest of "
        "them was not opened",
        file=window.file,
        position=window.file_position,
    )


def _check_columns(window: Window, columns: RecordColumns, findings: FindingCollector) -> None:
    if not len(columns):
        return
    batches, batch = window.batches, columns.batch
    offset = columns.offset
    is_outside = (offset < batches.base_offset[batch]) | (offset > batches.last_offset[batch])
    is_outside |= np.append(False, (batch[1:] == batch[:-1]) & (offset[1:] <= offset[:-1]))
    is_outside &= ~batches.is_legacy[batch]
    for row in _first_of_each(batch, is_outside):
        _add(
            Code.RECORD_OFFSET_OUTSIDE_BATCH,
            f"a record says that it has offset {offset[row]}; the batch has "
            f"{batches.base_offset[batch[row]]} to {batches.last_offset[batch[row]]}, rising",
            window,
            int(batch[row]),
            findings,
        )
    negative = (columns.timestamp < NO_TIMESTAMP) & ~batches.has_negative_timestamp[batch]
    for row in _first_of_each(batch, negative):
        _add(
            Code.NEGATIVE_TIMESTAMP, _negative(int(offset[row])), window, int(batch[row]), findings
        )
    newer = columns.timestamp > batches.max_timestamp[batch]
    for row in _first_of_each(batch, newer & ~batches.is_legacy[batch]):
        _add(
            Code.RECORD_NEWER_THAN_BATCH,
            f"the record at offset {offset[row]} is of {columns.timestamp[row]} ms, the batch "
            f"says that none is newer than {batches.max_timestamp[batch[row]]} ms",
            window,
            int(batch[row]),
            findings,
        )


def _negative(offset: int) -> str:
    return f"a record from offset {offset} on has a timestamp below -1"


def _first_of_each(batch: NDArray[np.int64], is_bad: NDArray[np.bool_]) -> list[int]:
    """Return the first bad record of each batch."""
    bad = np.flatnonzero(is_bad)
    _, first = np.unique(batch[bad], return_index=True)
    return [int(row) for row in bad[first]]


def _add(code: Code, message: str, window: Window, row: int, findings: FindingCollector) -> None:
    findings.add(
        code,
        message,
        file=window.file,
        position=window.position_of(row),
        offset=int(window.batches.base_offset[row]),
    )


class SegmentPass:
    """One pass over a segment.

    Args:
        indexed: Where the batches go that its indexes may refer to.

    Attributes:
        tail: The content behind it.
        is_rising: Whether the offsets of all batches rise.
    """

    def __init__(
        self,
        segment: SegmentFiles,
        indexed: IndexedBatches,
        options: VerifyOptions,
        findings: FindingCollector,
    ) -> None:
        self._segment = segment
        self._options = options
        self._findings = findings
        self._transactions = TransactionScan(findings)
        self.indexed = indexed
        self.size_bytes = segment.log.size_bytes
        self.end_position = 0
        self.tail = TailKind.NOTHING
        self._first_offset = self._last_offset = _NO_OFFSET
        self._batches = self._bad_batches = self._records = 0
        self._max_timestamp = NO_TIMESTAMP
        self._has_producers = False
        self._epochs: list[EpochRun] = []
        self.is_rising = True
        self._is_legacy = False
        self._last_good_offset = _NO_OFFSET
        # Batches with a wrong checksum behind the last good one, rows as `_count` makes them.
        self._waiting = np.empty((5, 0), np.int64)

    def read(self, reader: FileReader) -> None:
        """Read the file to its end."""
        self.size_bytes = reader.size_bytes
        stream = BatchStream(
            reader,
            self._segment.base_offset,
            window_bytes=self._options.window_bytes,
            keeps_records=self._options.is_deep,
            threads=self._options.threads,
            findings=self._findings,
        )
        try:
            with closing(iter(stream)) as windows:
                for window in windows:
                    self._check(window)
                    stream.note_offset(self._last_offset)
        finally:
            self.end_position, self.tail = stream.end_position, stream.tail
            self._hand_on(self._waiting)

    @property
    def next_offset(self) -> int:
        """Just past the last batch, the base offset without any."""
        return self._largest_so_far + 1

    def facts(self, read_seconds: float) -> SegmentFacts:
        """Return facts about the segment."""
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
        self._batches += len(batches)
        self._bad_batches += int((~is_good).sum())
        self._check_formats(window, is_good)
        self._count(window, is_good)
        if self._options.is_deep:
            check_records(window, is_good, self._options, self._findings)
        if is_good.any():
            self._check_offsets(window, is_good)
            self._records += int(np.where(is_good, np.abs(batches.record_count), 0).sum())
            self._has_producers |= bool((is_good & batches.has_producer_id).any())
            self._max_timestamp = max(
                self._max_timestamp, int(batches.max_timestamp[is_good].max())
            )
            self._check_epochs(window, is_good)
            self._transactions.add(window, is_good)

    def _count(self, window: Window, is_good: NDArray[np.bool_]) -> None:
        """Count the batches up to the last good one; later ones wait."""
        batches = window.batches
        rows = np.stack(
            [
                batches.position + window.file_position,
                batches.base_offset,
                batches.last_offset,
                batches.max_timestamp,
                is_good.astype(np.int64),
            ]
        )
        rows = np.concatenate([self._waiting, rows], axis=1)
        good = np.flatnonzero(rows[_GOOD])
        end = int(good[-1]) + 1 if good.size else 0
        self._hand_on(rows[:, :end])
        self._waiting = rows[:, end : end + _MAX_WAITING].copy()

    def _hand_on(self, rows: NDArray[np.int64]) -> None:
        """Add good batches to the facts, and bad ones with fitting offsets. Fitting offsets lie
        between those of the good batches around.

        Of a batch with a wrong checksum the header may well be right: what is counted and indexed
        then goes on as it does in Kafka.
        """
        if not rows.shape[1]:
            return
        is_good = rows[_GOOD] != 0
        end = self._segment.base_offset + MAX_RELATIVE_OFFSET + 1
        largest = self._largest_so_far
        before = np.where(is_good, rows[_LAST], largest)
        before = np.maximum.accumulate(np.append(largest, before))[:-1]
        after = np.where(is_good, rows[_BASE], end)[::-1]
        after = np.minimum.accumulate(np.append(end, after))[:-1][::-1]
        fits = (rows[_BASE] > before) & (rows[_LAST] < after) & (rows[_LAST] >= rows[_BASE])
        counted = rows[:, is_good | fits]
        self.indexed.add(counted[_POSITION], counted[_BASE], counted[_LAST], counted[_TIME])
        if counted.shape[1]:
            if self._first_offset == _NO_OFFSET:
                self._first_offset = int(counted[_BASE, 0])
            self._last_offset = max(self._last_offset, int(counted[_LAST].max()))

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
        self._add_rows(
            Code.NEGATIVE_TIMESTAMP,
            window,
            is_good & batches.has_negative_timestamp,
            lambda row: _negative(int(batches.base_offset[row])),
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

    def _check_offsets(self, window: Window, is_good: NDArray[np.bool_]) -> None:
        batches = window.batches
        rows = np.flatnonzero(is_good)
        last = batches.last_offset[rows]
        before = np.full(len(batches), _NO_OFFSET)
        before[rows] = np.append(self._last_good_offset, last)[:-1]
        self._last_good_offset = int(last[-1])
        falls = is_good & (
            (batches.base_offset <= before) | (batches.last_offset < batches.base_offset)
        )
        self.is_rising = self.is_rising and not bool(falls.any())
        self._add_rows(
            Code.OFFSETS_NOT_RISING,
            window,
            falls,
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
            is_good & (batches.base_offset < lowest),
            lambda row: f"expected {lowest} or more, found {batches.base_offset[row]}",
        )
        self._add_rows(
            Code.OFFSET_OVERFLOW,
            window,
            is_good & (batches.last_offset > highest),
            lambda row: f"expected {highest} or less, found {batches.last_offset[row]}",
        )

    def _check_epochs(self, window: Window, is_good: NDArray[np.bool_]) -> None:
        batches = window.batches
        rows = np.flatnonzero(is_good & (batches.leader_epoch >= 0))
        for row, bare in find_epoch_runs(batches, rows):
            run = replace(bare, file=window.file, position=window.position_of(row))
            before = self._epochs[-1] if self._epochs else run
            if len(self._epochs) >= _MAX_EPOCHS:
                return
            if run.epoch < before.epoch:
                self._findings.add(
                    Code.EPOCH_GOES_BACK,
                    f"leader epoch {run.epoch} follows {before.epoch}",
                    file=window.file,
                    position=run.position,
                    offset=run.first_offset,
                )
            if self._epochs and run.epoch == before.epoch:
                self._epochs[-1] = before.followed_by(run)
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
