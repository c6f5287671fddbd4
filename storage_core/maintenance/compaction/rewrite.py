"""Pass two: filter a group's segments into one cleaned segment. It is written as scratch files."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import (
    BadBytesError,
    ChangedWhileReadError,
    OffsetOverflowError,
    StorageError,
)
from storage_core.filenames import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SCRATCH_PREFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
)
from storage_core.formats.batch_v2 import CODEC_MASK, MAX_BATCH_BYTES, NO_TIMESTAMP, Codec
from storage_core.index.segment_indexes import AbortedTxn, IndexBuilder, encode_transaction_index
from storage_core.kernels.batch_notes import IS_LOOKED_UP
from storage_core.kernels.batch_write import (
    GONE,
    MAX_RECORD_GROWTH_BYTES,
    REBUILT,
    VERBATIM,
    most_bytes,
    rebuild_compressed,
    write_batches,
)
from storage_core.kernels.record_scan import DONE
from storage_core.local_files import create_file
from storage_core.log.loaded_log import SegmentState
from storage_core.log.open_transactions import TransactionRows, TransactionTracker
from storage_core.maintenance.compaction.index import CompactionIndex, RoundBuffers, WindowBuffers
from storage_core.maintenance.compaction.key_sidecar import (
    BatchRun,
    Foresight,
    KeySidecar,
    KnownSegment,
    PartitionSidecars,
    SidecarBuilder,
    find_stretches,
    sidecar_of_block,
)
from storage_core.maintenance.compaction.pass_one import check_batches
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.compaction.survival import (
    ProducerLookup,
    SegmentFilter,
    WindowFates,
)
from storage_core.maintenance.throttler import UNLIMITED, Throttler
from storage_core.records.batch_table import BatchNotes, BatchTable
from storage_core.records.codecs import CODEC_OF, Blocks, compress_blocks
from storage_core.records.payload import count_records_in
from storage_core.records.reader import CrcCheck, Window, check_crc, scan_windows
from storage_core.store.base import (
    FileReader,
    LogStore,
    OwnedFiles,
    is_mapped,
    version_of,
)
from storage_core.store.gaps import LEAST_GAP_BYTES, CopiedRange, CopiesStretches
from storage_core.threads import WriteBehind, call_together, in_order, sync

SCRATCH_SUFFIX = ".part"
# How many bytes of records are rebuilt before they are compressed, while they are still in the
# CPU's cache. One batch may have more.
RAW_BYTES: Final = 1024 * 1024
# How many bytes of batches that stay are copied at a time: they are still in the CPU's cache.
COPY_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteStats:
    """What pass two read and wrote; Kafka's names."""

    messages_read: int = 0  # records looked at; those of batches dropped whole are not
    messages_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0  # bytes of the cleaned segment's batches
    invalid_messages_read: int = 0  # records without a key that were dropped
    source_records: int = 0  # records of all source batches, control records included

    def __add__(self, other: "RewriteStats") -> "RewriteStats":
        return RewriteStats(
            messages_read=self.messages_read + other.messages_read,
            messages_written=self.messages_written + other.messages_written,
            bytes_read=self.bytes_read + other.bytes_read,
            bytes_written=self.bytes_written + other.bytes_written,
            invalid_messages_read=self.invalid_messages_read + other.invalid_messages_read,
            source_records=self.source_records + other.source_records,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchFile:
    """One finished, synced file of a cleaned segment."""

    suffix: str
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup:
    """The result of pass two on one group."""

    # Base offsets of the source segments; the first names the cleaned segment.
    base_offsets: tuple[int, ...]
    # Its files: log, offset index, time index, and a transaction index if it has entries; none
    # where the group is one segment that stays, every byte of it.
    files: tuple[ScratchFile, ...]
    stats: RewriteStats  # what was read and written; a segment that stays counts as both
    # What the log leaves out, in order: stretches that the store of the source can copy.
    gaps: tuple[CopiedRange, ...] = ()

    @property
    def places(self) -> dict[str, str]:
        """Where its files lie, by suffix."""
        return {file.suffix: file.path for file in self.files}

    def moved(self, places: Mapping[str, str]) -> "CleanedGroup":
        """Return the group with its files at new places, without gaps. The places go by suffix."""
        files = tuple(replace(file, path=places[file.suffix]) for file in self.files)
        return replace(self, files=files, gaps=())


def clean_groups(  # noqa: PLR0913  # what is read, what is known of it, and where it goes
    store: LogStore,
    plan: CompactionPlan,
    index: CompactionIndex,
    groups: Sequence[Sequence[SegmentState]],
    tracker: TransactionTracker,
    *,
    scratch: Callable[[], AbstractContextManager[Path]],
    attempt: str,
    throttler: Throttler | None = None,
    sidecars: PartitionSidecars | None = None,
    threads: int = 1,
) -> Generator[CleanedGroup]:
    """Filter groups of segments into scratch files; yield each finished group.

    Args:
        store: The partition directory; it is only read.
        groups: Consecutive segments each, one group after the other.
        tracker: As it stands after all segments before the groups; it is moved on.
        scratch: Opens a folder on the filesystem of the partition for the files of a group, until
            the next group is asked for.
        throttler: Slows reading and writing down.
        sidecars: Where keys of segments are known from, and those of the cleaned ones go; the
            plan's hash key is their secret. None for none, and then there are no gaps.
        threads: How many threads to use: with more than one, windows are filtered beside each
            other, and beside the writing and the syncs of the group before them.
    """
    filtering = _Filtering(store, plan, index, tracker, sidecars, threads)
    throttler = throttler or Throttler(UNLIMITED)
    with closing(filtering.pieces(groups)) as pieces:
        for group in groups:
            with scratch() as folder:
                with _GroupWriter(plan, group, folder, attempt, sidecars).opened() as writer:
                    stays = filtering.write(pieces, writer, throttler)
                    cleaned = writer.leave() if stays else writer.finish(store)
                yield cleaned


def measure_groups(
    store: LogStore,
    plan: CompactionPlan,
    index: CompactionIndex,
    groups: Sequence[Sequence[SegmentState]],
    tracker: TransactionTracker,
) -> Generator[RewriteStats]:
    """Filter groups as `clean_groups`, but yield only each one's numbers.

    Args:
        store: The partition directory; it is only read.
        groups: Consecutive segments each, one group after the other.
        tracker: As it stands after all segments before the groups; it is moved on.
    """
    filtering = _Filtering(store, plan, index, tracker, None, 1)
    with closing(filtering.pieces(groups)) as pieces:
        for group in groups:
            with _GroupWriter(plan, group, Path(os.devnull), "").measuring() as writer:
                filtering.write(pieces, writer, Throttler(UNLIMITED))
                yield writer.finish_measuring()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noted:
    """A window, and all that depends on what lies before it."""

    segment: "_Segment"
    window: Window
    notes: BatchNotes  # what pass one noted of it; all that follows is added to them
    discard: NDArray[np.bool_]  # bool[n], whether nothing refers to a batch any more
    ended: list[AbortedTxn]
    buffers: WindowBuffers


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentSummary:
    """Facts about a segment from its sidecar and from earlier batches."""

    segment: "_Segment"
    version: str
    known_segment: KnownSegment  # what the sidecar tells
    discard: NDArray[np.bool_]  # bool[batches], whether nothing refers to a batch any more
    ended: list[AbortedTxn]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutputBatches:
    """Batches as they are to be written."""

    # uint8[], their bytes, valid until the buffers of their window is used again.
    out: NDArray[np.uint8]
    end_row: int  # row of the window behind the last batch that went into it
    size: NDArray[np.int64]  # int64[n], bytes of each
    last_offset: NDArray[np.int64]  # int64[n]
    max_timestamp: NDArray[np.int64]  # int64[n]
    stats: RewriteStats
    keys: KeySidecar | None  # what a sidecar says of them, None where nobody asks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filtered:
    """What is left of a window, up to where memory ended."""

    noted: _Noted
    source_records: int  # records of its batches, control records included
    block: _OutputBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """A source segment and the filter for its windows. Any thread may filter any of them."""

    source: SegmentState
    judge: SegmentFilter
    rebuilding: "_Rebuilding"  # makes those that change
    checks_crc: bool  # whether pass one has not looked at its checksums

    def filter(self, noted: _Noted) -> _Filtered:
        """Check and filter a window; any thread may call it."""
        window = noted.window
        self.judge.observe(window, noted.notes, noted.discard)
        # As in pass one: batch by batch, right before its keys, where those are looked up.
        checks_later = (
            self.checks_crc
            and window.batches.are_plain
            and bool(noted.notes.have(IS_LOOKED_UP).any())
        )
        if self.checks_crc and not checks_later:
            check_crc(window)
        check_batches(window)
        try:
            return _Filtered(
                noted=noted,
                source_records=count_records_in(window),
                block=self._block(noted, 0, checks_crc=checks_later),
            )
        except BadBytesError:
            if checks_later:  # of what seems to be wrong in a window it is the cause
                check_crc(window)
            raise

    def blocks(self, first: _Filtered) -> Iterator[_OutputBatches]:
        """Yield the survivors of a window in blocks. Each block is valid until the next."""
        block = first.block
        yield block
        while block.end_row < len(first.noted.window.batches):
            block = self._block(first.noted, block.end_row)
            yield block

    def _block(self, noted: _Noted, first_row: int, *, checks_crc: bool = False) -> _OutputBatches:
        verdict = self.judge.judge(
            noted.window, noted.notes, first_row, noted.buffers, checks_crc=checks_crc
        )
        return self.rebuilding.build(verdict, noted.buffers)


_LEAST_LONG = -(2**63)
# What is read of groups: windows, segments with a sidecar, and None where a group ends.
_Piece = _Noted | _SegmentSummary | None
# The same, what is left of windows in place of them.
_Made = _Filtered | _SegmentSummary | None


class _Filtering:
    """Pass two over consecutive groups: ordered I/O, concurrent filtering.

    Args:
        store: As `clean_groups`, and so are all others.
    """

    def __init__(
        self,
        store: LogStore,
        plan: CompactionPlan,
        index: CompactionIndex,
        tracker: TransactionTracker,
        sidecars: PartitionSidecars | None,
        threads: int,
    ) -> None:
        self._store = store
        self._plan = plan
        self._index = index
        self._tracker = tracker
        self._sidecars = sidecars
        self._pace = plan.pace(threads, is_mapped=is_mapped(store))
        self._producers = ProducerLookup(plan)
        self._rebuilding = _Rebuilding(plan)
        # Windows of the segments behind one with a sidecar may lie in the others meanwhile.
        self._told_pool = index.pool if self._pace.threads == 1 else RoundBuffers()

    def pieces(self, groups: Sequence[Sequence[SegmentState]]) -> Generator[_Made]:
        """Read groups; what is left of windows is made beside each other."""
        return in_order(self._read(groups), _make, threads=self._pace.threads)

    def _read(self, groups: Sequence[Sequence[SegmentState]]) -> Generator[_Piece]:
        for group in groups:
            for source in group:
                self._tracker.add_aborted(self._plan.aborted_near(source.base_offset))
                with closing(self._store.open_file(source.log_file)) as reader:
                    known_segment = self._known_segment(reader, source)
                    segment = self._segment(source, known_segment)
                    if known_segment is None:
                        yield from self._read_windows(segment, reader)
                    else:
                        check_batches(known_segment.window())
                        discard, ended = self._decide(known_segment.window())
                        yield _SegmentSummary(
                            segment=segment,
                            version=version_of(reader),
                            known_segment=known_segment,
                            discard=discard,
                            ended=ended,
                        )
            yield None

    def _known_segment(self, reader: FileReader, source: SegmentState) -> KnownSegment | None:
        """Return what a sidecar tells of a source segment.

        None where there is none that can be trusted, or where pass one has read the keys.
        """
        if self._sidecars is None or source.base_offset in self._index.segments:
            return None
        sidecar = self._sidecars.read(reader, source.base_offset)
        if sidecar is None:
            return None
        return KnownSegment.ask(source.log_file, sidecar, self._index, self._plan.now_ms)

    def _segment(self, source: SegmentState, known_segment: KnownSegment | None) -> _Segment:
        plan, index = self._plan, self._index
        indexed = index.segments.get(source.base_offset)
        was_checked = indexed is not None and indexed.start_position == 0
        # A segment in which the map was full was checked only up to there.
        was_checked &= plan.end_of(source.base_offset) <= index.end_offset
        judge = SegmentFilter(
            plan,
            index,
            self._producers,
            source.base_offset,
            known_segment=known_segment,
            tells_keys=self._sidecars is not None,
        )
        return _Segment(
            source=source,
            judge=judge,
            rebuilding=self._rebuilding,
            checks_crc=plan.verify_crc and not was_checked,
        )

    def _read_windows(self, segment: _Segment, reader: FileReader) -> Generator[_Noted]:
        """Read a segment's windows, and note what earlier batches decide."""
        pool = self._index.pool
        for window in self._windows(segment, reader, pool, 0, None):
            discard, ended = self._decide(window)
            buffers = pool.next()
            notes = buffers.notes(len(window.batches))
            segment.judge.note(window, notes)
            yield _Noted(
                segment=segment,
                window=window,
                notes=notes,
                discard=discard,
                ended=ended,
                buffers=buffers,
            )

    def _read_stretch(
        self, summary: _SegmentSummary, stretch: BatchRun, reader: FileReader
    ) -> Generator[_Noted]:
        """Read a stretch of a segment with a sidecar. The tracker has seen all batches of the
        segment."""
        pool = self._told_pool
        batches, last = summary.known_segment.sidecar.batches, stretch.end_row - 1
        start = int(batches.position[stretch.first_row])
        end = int(batches.position[last] + batches.size[last])
        for window in self._windows(summary.segment, reader, pool, start, end):
            buffers = pool.next()
            notes = buffers.notes(len(window.batches))
            summary.segment.judge.note(window, notes)
            yield _Noted(
                segment=summary.segment,
                window=window,
                notes=notes,
                discard=summary.discard[summary.known_segment.rows_of(window)],
                ended=[],
                buffers=buffers,
            )

    def _windows(
        self,
        segment: _Segment,
        reader: FileReader,
        pool: RoundBuffers,
        start: int,
        end: int | None,
    ) -> Generator[Window]:
        pool.reserve(self._pace.at_once, self._plan)
        return scan_windows(
            reader,
            start=start,
            end=end,
            window_bytes=self._pace.window_bytes,
            crc=CrcCheck.LATER if segment.checks_crc else CrcCheck.SKIP,
            rooms=pool.windows,
        )

    def _decide(self, window: Window) -> tuple[NDArray[np.bool_], list[AbortedTxn]]:
        """Return the batches to discard, and the aborted transactions with an end. Nothing
        refers any more to a batch to discard. The transactions end in this window."""
        rows, transactions = TransactionRows.select(window.batches)
        discard = np.zeros(len(window.batches), bool)
        discard[rows], ended = self._tracker.decide(transactions)
        return discard, ended

    def write(self, pieces: Iterator[_Made], writer: "_GroupWriter", throttler: Throttler) -> bool:
        """Hand what is left of the next group to a writer.

        Returns:
            Whether the group is one segment that stays as it is, and nothing was written.
        """
        stays = False
        for piece in pieces:
            if piece is None:
                break
            if isinstance(piece, _SegmentSummary):
                stays = self._write_by_summary(piece, writer, throttler)
            else:
                _write_window(piece, writer, throttler)
        return stays

    def _write_by_summary(
        self, summary: _SegmentSummary, writer: "_GroupWriter", throttler: Throttler
    ) -> bool:
        """Write a segment with a sidecar, filtered; like `write`."""
        known_segment, segment = summary.known_segment, summary.segment
        writer.aborted.extend(summary.ended)
        foreseen = segment.judge.foresee(known_segment, summary.discard)
        if writer.is_same(self._store, segment.source, known_segment, foreseen):
            writer.pass_over(known_segment.sidecar.batches, foreseen)
            return True
        with closing(self._store.open_file(segment.source.log_file)) as reader:
            if version_of(reader) != summary.version:
                expected = "the file that its key sidecar is of"
                raise ChangedWhileReadError(segment.source.log_file, expected, "another one")
            for stretch in find_stretches(known_segment.sidecar.batches.size, foreseen):
                if stretch.is_read:
                    read = self._read_stretch(summary, stretch, reader)
                    windows = in_order(read, segment.filter, threads=self._pace.threads)
                    with closing(windows):
                        for window in windows:
                            _write_window(window, writer, throttler)
                else:
                    writer.copy(self._store, reader, known_segment, stretch, foreseen, throttler)
        return False


def _make(piece: _Piece) -> _Made:
    """Filter a window; leave other pieces for the writer."""
    return piece.segment.filter(piece) if isinstance(piece, _Noted) else piece


def _write_window(first: _Filtered, writer: "_GroupWriter", throttler: Throttler) -> None:
    """Write what is left of a window."""
    window = first.noted.window
    throttler.use(len(window.data))
    writer.source_records += first.source_records
    writer.aborted.extend(first.noted.ended)
    writer.bytes_read += len(window.data)
    for block in first.noted.segment.blocks(first):
        try:
            writer.write(block)
        except OffsetOverflowError as error:
            # What has to be split is the segment that it comes from.
            position = window.file_position
            raise OffsetOverflowError(window.file, position, error.reason) from error
        throttler.use(block.out.size)


class _Rebuilding:
    """Makes the batches of a verdict, for any thread."""

    def __init__(self, plan: CompactionPlan) -> None:
        # Of what is rebuilt; None for each batch's own.
        self._codec = CODEC_OF.get(plan.recompression.codec)
        self._level = plan.recompression.level
        self._least_timestamp = _LEAST_LONG if plan.keeps_negative_timestamps else NO_TIMESTAMP

    def build(self, verdict: WindowFates, buffers: WindowBuffers) -> _OutputBatches:
        """Make what is left of a block of batches."""
        payload = verdict.payload
        row, end_row = payload.first_row, payload.end_row
        batches, notes = payload.batches.rows(row, end_row), payload.notes.rows(row, end_row)
        if (notes.fate == VERBATIM).all():
            return _as_it_is(verdict)
        out = buffers.out
        out.clear()
        if self._codec is not None:
            rebuilt = np.flatnonzero((notes.fate == REBUILT) & ~batches.is_control)
            batches.attributes[rebuilt] = (batches.attributes[rebuilt] & ~CODEC_MASK) | self._codec
        while row < end_row:
            count, failure = self._compress_from(row, verdict, buffers)
            status = DONE
            if count:
                table = payload.batches.rows(row, row + count).columns
                columns = payload.notes.rows(row, row + count).columns
                out.reserve(out.used + most_bytes(table, columns) + buffers.packed.used)
                out.used, done, status = write_batches(
                    out.buffer,
                    out.used,
                    payload.window.data,
                    payload.arena,
                    table,
                    columns,
                    verdict.keep,
                    buffers.packed.buffer,
                    self._least_timestamp,
                )
                row += done
            if status == DONE:
                status = failure
            if status != DONE:
                raise payload.error(status, row, int(payload.notes.records_start[row]))
        return _block_of(verdict, out.content, notes.new_size, notes.new_max_timestamp)

    def _compress_from(
        self, first_row: int, verdict: WindowFates, buffers: WindowBuffers
    ) -> tuple[int, int]:
        """Rebuild and compress batches from a row on, within RAW_BYTES. Those before it may be
        overwritten.

        Returns:
            (count, status): how many are done, at least one, unless the next is the bad one that a
            status of write_records is about.
        """
        payload = verdict.payload
        batches = payload.batches.rows(first_row, payload.end_row)
        notes = payload.notes.rows(first_row, payload.end_row)
        buffers.packed.clear()
        buffers.raw.reserve(RAW_BYTES)
        while True:
            count, status = rebuild_compressed(
                buffers.raw.buffer,
                payload.window.data,
                payload.arena,
                batches.columns,
                notes.columns,
                verdict.keep,
                self._least_timestamp,
            )
            if count or status != DONE:
                break
            size = int(notes.records_end[0] - notes.records_start[0])
            buffers.raw.reserve(size + int(notes.survivors[0]) * MAX_RECORD_GROWTH_BYTES)
        codecs = batches.codec[:count]
        rows = np.flatnonzero((notes.fate[:count] == REBUILT) & (codecs != Codec.NONE))
        starts, ends, codecs = notes.packed_start[rows], notes.packed_end[rows], codecs[rows]
        bounds = [0, *(np.flatnonzero(np.diff(codecs)) + 1).tolist(), rows.size]
        for first, end in pairwise(bounds if rows.size else ()):
            run = slice(first, end)
            begin = buffers.packed.used
            blocks = Blocks(buffers.raw.buffer, starts[run], ends[run])
            codec = Codec(int(codecs[first]))
            packed = compress_blocks(codec, blocks, buffers.packed, level=self._level)
            notes.packed_end[rows[run]] = packed
            notes.packed_start[rows[run]] = np.concatenate([[begin], packed[:-1]])
        return count, status


def _as_it_is(verdict: WindowFates) -> _OutputBatches:
    """Return batches of which each stays: they are not put together anew."""
    payload = verdict.payload
    batches = payload.batches.rows(payload.first_row, payload.end_row)
    out = payload.window.data[batches.position[0] : batches.position[-1] + batches.size[-1]]
    return _block_of(verdict, out, batches.size, batches.max_timestamp)


def _block_of(
    verdict: WindowFates,
    out: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    max_timestamp: NDArray[np.int64],
) -> _OutputBatches:
    """Return the batches that were written of a verdict.

    Args:
        sizes: int64[n], how many each batch of the verdict has.
        max_timestamp: int64[n], of each.
    """
    payload = verdict.payload
    first_row, end_row = payload.first_row, payload.end_row
    batches, notes = (
        payload.batches.rows(first_row, end_row),
        payload.notes.rows(first_row, end_row),
    )
    is_written = notes.fate != GONE
    keys = None
    if verdict.keys is not None:
        keys = sidecar_of_block(out, payload, verdict.keep, verdict.keys)
    return _OutputBatches(
        keys=keys,
        out=out,
        end_row=end_row,
        size=sizes[is_written],
        last_offset=batches.last_offset[is_written],
        max_timestamp=max_timestamp[is_written],
        stats=RewriteStats(
            messages_read=verdict.messages_read,
            messages_written=int(notes.survivors[is_written].sum()),
            bytes_written=out.size,
            invalid_messages_read=verdict.invalid_messages,
        ),
    )


class _GroupWriter:
    """Writes one cleaned segment and its indexes."""

    def __init__(
        self,
        plan: CompactionPlan,
        group: Sequence[SegmentState],
        scratch: Path,
        attempt: str,
        sidecars: PartitionSidecars | None = None,
    ) -> None:
        self.sidecars = sidecars
        self._keys = SidecarBuilder()
        self._plan = plan
        self._group = group
        base_offset = group[0].base_offset
        self._prefix = scratch / f"{SCRATCH_PREFIX}{attempt}-{segment_file(base_offset, '')}"
        self._index = self._new_index()
        self._log: BinaryIO
        self._behind: WriteBehind
        self._stats = RewriteStats()
        self._gaps: list[CopiedRange] = []
        self.bytes_read = 0
        self.source_records = 0
        self.aborted: list[AbortedTxn] = []

    @contextmanager
    def opened(self) -> Iterator["_GroupWriter"]:
        """Open the log file; remove all files after an error."""
        try:
            with os.fdopen(create_file(self._path(LOG_SUFFIX)), "wb") as self._log:
                self._behind = WriteBehind(self._log.fileno())
                yield self
        except BaseException as error:
            for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                self._path(suffix).unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise StorageError(str(self._prefix), error.strerror or str(error)) from error
            raise

    @contextmanager
    def measuring(self) -> Iterator["_GroupWriter"]:
        """Write into nothing: only the numbers are asked for."""
        with Path(os.devnull).open("wb") as self._log:
            self._behind = WriteBehind(self._log.fileno())
            yield self

    def finish_measuring(self) -> RewriteStats:
        """Return the numbers; refuse a full index here, too."""
        self._index.finish()
        return self._all_stats

    def write(self, block: _OutputBatches) -> None:
        """Write the next batches."""
        if block.keys is not None:
            self._keys.add(block.keys, self._index.size_bytes)
        self._add_to_index(block.size, block.last_offset, block.max_timestamp)
        self._log.write(block.out.data)
        self._behind.reach(self._index.size_bytes)
        self._stats += block.stats

    def _add_to_index(
        self,
        size: NDArray[np.int64],
        last_offset: NDArray[np.int64],
        max_timestamp: NDArray[np.int64],
    ) -> None:
        if self._index.size_bytes + int(size.sum()) > MAX_BATCH_BYTES:
            raise StorageError(str(self._prefix), "the cleaned segment would exceed 2 GiB")
        self._index.add(size, last_offset, max_timestamp)

    def copy(
        self,
        store: LogStore,
        reader: FileReader,
        known_segment: KnownSegment,
        stretch: BatchRun,
        foreseen: Foresight,
        throttler: Throttler,
    ) -> None:
        """Copy or drop a sidecar segment's batches without reading their records. Batches that stay
        are written as they are.

        What the store can copy by itself becomes a gap.
        """
        part = known_segment.sidecar.rows(stretch.first_row, stretch.end_row)
        rows = part.batches
        start, size = int(rows.position[0]), int(rows.size.sum())
        was_read = foreseen.was_read[stretch.first_row : stretch.end_row]
        self._count_unread(rows, was_read, stays=stretch.stays)
        if not stretch.stays:
            return
        position = self._index.size_bytes
        self._keys.add(part, position)
        try:
            self._add_to_index(rows.size, rows.last_offset, rows.max_timestamp)
        except OffsetOverflowError as error:
            raise OffsetOverflowError(reader.name, start, error.reason) from error
        piece_bytes = COPY_BYTES
        if isinstance(store, CopiesStretches):
            source = store.stretch_to_copy(known_segment.file, start, size)
            if source is not None:
                self._gaps.append(CopiedRange(position=position, source=source))
                self._log.seek(size, os.SEEK_CUR)
                return
            piece_bytes = LEAST_GAP_BYTES  # each may be a request
        piece = np.empty(min(size, piece_bytes), np.uint8)
        for first in range(0, size, piece_bytes):
            target = piece[: size - first]
            throttler.use(2 * target.size)
            filled = reader.read_into(start + first, target)
            if filled < target.size:
                expected, actual = f"{start + size} bytes", f"{start + first + filled}"
                raise ChangedWhileReadError(reader.name, expected, actual)
            self._log.write(target.data)
            self._behind.reach(position + first + target.size)

    def is_same(
        self,
        store: LogStore,
        segment: SegmentState,
        known_segment: KnownSegment,
        foreseen: Foresight,
    ) -> bool:
        """Whether a round would write the group's only segment unchanged. Its indexes would be
        the same, too."""
        if len(self._group) > 1:
            return False
        log_file = segment_file(segment.base_offset, LOG_SUFFIX)
        index_file = segment_file(segment.base_offset, OFFSET_INDEX_SUFFIX)
        if (segment.log_file, segment.offset_index_file) != (log_file, index_file):
            return False
        if not (foreseen.is_settled & foreseen.stays).all():
            return False
        if segment.has_txn_index != bool(self.aborted):
            return False
        index = self._new_index()
        batches = known_segment.sidecar.batches
        index.add(batches.size, batches.last_offset, batches.max_timestamp)
        try:
            return all(
                store.read_file(segment_file(segment.base_offset, suffix), limit_bytes=len(content))
                == content
                for suffix, content in self._indexes(index).items()
            )
        except StorageError:  # one is missing, or too long
            return False

    def pass_over(self, batches: BatchTable, foreseen: Foresight) -> None:
        """Count a segment that stays as it is."""
        self._count_unread(batches, foreseen.was_read, stays=True)

    def _count_unread(
        self, batches: BatchTable, was_read: NDArray[np.bool_], *, stays: bool
    ) -> None:
        """Count batches as if they had been read."""
        size, records = int(batches.size.sum()), int(batches.record_count.sum())
        self.source_records += records
        self.bytes_read += size
        self._stats += RewriteStats(
            messages_read=int(batches.record_count[was_read].sum()),
            messages_written=records if stays else 0,
            bytes_written=size if stays else 0,
        )

    def leave(self) -> CleanedGroup:
        """Return the manifest of an unchanged segment; remove its scratch file."""
        self._path(LOG_SUFFIX).unlink()
        return CleanedGroup(
            base_offsets=(self._group[0].base_offset,), files=(), stats=self._all_stats
        )

    @property
    def _all_stats(self) -> RewriteStats:
        return self._stats + RewriteStats(
            bytes_read=self.bytes_read, source_records=self.source_records
        )

    def _indexes(self, index: IndexBuilder) -> dict[str, bytes]:
        """Return the contents of the indexes, by suffix."""
        offsets, times = index.finish()
        contents = {OFFSET_INDEX_SUFFIX: offsets, TIME_INDEX_SUFFIX: times}
        if self.aborted:
            contents[TXN_INDEX_SUFFIX] = encode_transaction_index(self.aborted)
        return contents

    def finish(self, store: LogStore) -> CleanedGroup:
        """Write the indexes, sync everything and return the manifest.

        Args:
            store: The partition directory. Its manners are given to the files before the one sync:
                what is to be given when they are moved there has to be synced once more.
        """
        contents = self._indexes(self._index)
        sizes = {LOG_SUFFIX: self._index.size_bytes}
        if self._gaps:
            self._log.truncate()  # here: the last one may be the end
        modified_ns = self._group[-1].modified_ms * 1_000_000
        hand_on = self._hand_on(store)
        writes = []
        for suffix, content in contents.items():
            own_ns = None if suffix == TXN_INDEX_SUFFIX else modified_ns
            adopt = partial(hand_on, suffix)
            writes.append(partial(_write_durably, self._path(suffix), content, adopt, own_ns))
            sizes[suffix] = len(content)
        adopt = partial(hand_on, LOG_SUFFIX)
        call_together(partial(_make_durable, self._log, adopt, modified_ns), *writes)
        sidecar = None if self.sidecars is None else self._keys.finish()
        if self.sidecars is not None and sidecar is not None:
            self.sidecars.stage(self._group[0].base_offset, sidecar)
        return CleanedGroup(
            base_offsets=tuple(segment.base_offset for segment in self._group),
            files=tuple(
                ScratchFile(suffix=suffix, path=str(self._path(suffix)), size_bytes=size)
                for suffix, size in sizes.items()
            ),
            stats=self._all_stats,
            gaps=tuple(self._gaps),
        )

    def _hand_on(self, store: LogStore) -> Callable[[str, int], None]:
        """Return a function to copy ownership to an open scratch file.

        The file gets owner, mode and extended attributes of the file with its suffix in the
        directory.
        """
        if not isinstance(store, OwnedFiles):
            return _keep_own
        base_offset = self._group[0].base_offset
        return lambda suffix, file: store.hand_on_ownership(file, segment_file(base_offset, suffix))

    def _new_index(self) -> IndexBuilder:
        base_offset = self._group[0].base_offset
        return IndexBuilder(
            segment_file(base_offset, LOG_SUFFIX),
            base_offset,
            interval_bytes=self._plan.index_interval_bytes,
            max_index_bytes=self._plan.segment_index_bytes,
        )

    def _path(self, suffix: str) -> Path:
        return self._prefix.with_name(self._prefix.name + suffix + SCRATCH_SUFFIX)


def _keep_own(_suffix: str, _descriptor: int) -> None:
    """Leave a file as its writer has made it."""


def _write_durably(
    path: Path, content: bytes, adopt: Callable[[int], None], modified_ns: int | None
) -> None:
    """Create a file and sync it, with an optional modification time."""
    with os.fdopen(create_file(path), "wb") as file:
        file.write(content)
        _make_durable(file, adopt, modified_ns)


def _make_durable(file: BinaryIO, adopt: Callable[[int], None], modified_ns: int | None) -> None:
    """Sync a file with owner, mode, attributes and optional modification time. The attributes
    are extended ones."""
    file.flush()
    adopt(file.fileno())
    if modified_ns is not None:
        # Before the sync: a time that is set after it may be lost when the power is.
        os.utime(file.fileno(), ns=(modified_ns, modified_ns))
    sync(file.fileno())
