"""Pass two: filter a group's segments into one cleaned segment. It is written as scratch files."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
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
from storage_core.kernels.batch_scan import HAS_CODEC
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
from storage_core.maintenance.compaction.pass_one import check_batches, join_run
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
from storage_core.store.copying import LEAST_GAP_BYTES, CopiedRange, CopiesStretches
from storage_core.store.syncing import WriteBehind, sync
from storage_core.threads import in_order

# Makes open files durable, by their descriptors, or notes that this is to be done.
MakeDurable = Callable[..., None]
SCRATCH_SUFFIX = ".part"
# How many bytes of records are rebuilt before they are compressed, while they are still in the
# CPU's cache. One batch may have more.
RAW_BYTES: Final = 1024 * 1024
# How many bytes of batches that stay are copied at a time: they are still in the CPU's cache.
COPY_BYTES: Final = 256 * 1024
_LEAST_LONG: Final = -(2**63)


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
    """One finished file of a cleaned segment."""

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
    make_durable: MakeDurable = sync,
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
        make_durable: Called with the open files of each group; may keep them for later.
    """
    pass_two = _PassTwo(store, plan, index, tracker, sidecars, threads, throttler)
    with closing(pass_two.pieces(groups)) as pieces:
        for group in groups:
            with scratch() as folder:
                prefix = _prefix(folder, attempt, group)
                with _created_log(prefix) as log:
                    writer = _GroupWriter(pass_two, group, prefix, log)
                    stays = pass_two.write(pieces, writer)
                    cleaned = writer.leave() if stays else writer.finish(make_durable)
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
    pass_two = _PassTwo(store, plan, index, tracker)
    with closing(pass_two.pieces(groups)) as pieces, Path(os.devnull).open("wb") as nowhere:
        for group in groups:
            writer = _GroupWriter(pass_two, group, _prefix(Path(os.devnull), "", group), nowhere)
            pass_two.write(pieces, writer)
            yield writer.measure()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Batches as they are to be written."""

    out: NDArray[np.uint8]  # uint8[], their bytes, valid until the buffers are used again
    window: Window  # where they come from
    row: NDArray[np.int64]  # int64[n], of each in the window
    end_row: int  # row of the window behind the last batch that went into it
    size: NDArray[np.int64]  # int64[n], bytes of each
    last_offset: NDArray[np.int64]  # int64[n]
    max_timestamp: NDArray[np.int64]  # int64[n]
    stats: RewriteStats  # those of the window's first block count what was read for all of them
    keys: KeySidecar | None  # what a sidecar says of them, None where nobody asks


@dataclass(frozen=True, slots=True, kw_only=True)
class _NotedWindow:
    """A window, and all that depends on what lies before it."""

    judge: SegmentFilter
    window: Window
    notes: BatchNotes  # what pass one noted of it; all that follows is added to them
    left_out: int  # how many records lie in batches that the window leaves out
    discard: NDArray[np.bool_]  # bool[n], whether nothing refers to a batch any more
    ended: list[AbortedTxn]
    buffers: WindowBuffers

    def first_block(self, plan: CompactionPlan) -> _Block:
        """Check the window and filter its first block; any thread may call it."""
        window, checks_crc = self.window, self.judge.checks_crc
        self.judge.observe(window, self.notes, self.discard)
        # As in pass one: batch by batch, right before its keys, where those are looked up.
        checks_later = (
            checks_crc and window.batches.are_plain and bool(self.notes.have(IS_LOOKED_UP).any())
        )
        if checks_crc and not checks_later:
            check_crc(window)
        check_batches(window)
        try:
            read = RewriteStats(
                messages_read=self.left_out,
                bytes_read=len(window.data),
                source_records=self.left_out + count_records_in(window),
            )
            block = self._block(plan, 0, checks_crc=checks_later)
        except BadBytesError:
            if checks_later:  # of what seems to be wrong in a window it is the cause
                check_crc(window)
            raise
        return replace(block, stats=read + block.stats)

    def blocks(self, plan: CompactionPlan, first: _Block) -> Iterator[_Block]:
        """Yield the survivors in blocks. Each block is valid until the next."""
        block = first
        yield block
        while block.end_row < len(self.window.batches):
            block = self._block(plan, block.end_row)
            yield block

    def _block(self, plan: CompactionPlan, first_row: int, *, checks_crc: bool = False) -> _Block:
        fates = self.judge.judge(
            self.window, self.notes, first_row, self.buffers, checks_crc=checks_crc
        )
        return _build(plan, fates, self.buffers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToldSegment:
    """A source segment whose key sidecar tells what its windows would."""

    judge: SegmentFilter
    known: KnownSegment
    version: str  # of the file that the sidecar is of
    discard: NDArray[np.bool_]  # bool[batches], whether nothing refers to a batch any more
    ended: list[AbortedTxn]


# What is read of groups, in order; None where a group ends.
_Piece = _NotedWindow | _ToldSegment | None
# The same, with the first block of each window.
_Filtered = tuple[_NotedWindow, _Block] | _ToldSegment | None


class _PassTwo:
    """Pass two over consecutive groups: ordered I/O, concurrent filtering."""

    def __init__(
        self,
        store: LogStore,
        plan: CompactionPlan,
        index: CompactionIndex,
        tracker: TransactionTracker,
        sidecars: PartitionSidecars | None = None,
        threads: int = 1,
        throttler: Throttler | None = None,
    ) -> None:
        self.store = store
        self.plan = plan
        self.sidecars = sidecars
        self.throttler = throttler or Throttler(UNLIMITED)
        self._index = index
        self._tracker = tracker
        self._pace = plan.pace(threads, is_mapped=is_mapped(store))
        self._producers = ProducerLookup(plan)
        # Windows of the segments behind one with a sidecar may lie in the others meanwhile.
        self._told_pool = index.pool if self._pace.threads == 1 else RoundBuffers()

    def pieces(self, groups: Sequence[Sequence[SegmentState]]) -> Generator[_Filtered]:
        """Read groups; their windows are filtered beside each other."""
        return in_order(self._read(groups), self._filter, threads=self._pace.threads)

    def _read(self, groups: Sequence[Sequence[SegmentState]]) -> Generator[_Piece]:
        run_bytes = 0 if self.sidecars is not None else self._pace.run_bytes
        for group in groups:
            for run in self.plan.runs_of(group, run_bytes):
                yield from self._read_run(run)
            yield None

    def _read_run(self, run: Sequence[SegmentState]) -> Generator[_Piece]:
        """Read segments in one window, or else each alone."""
        self._index.pool.reserve(self._pace.at_once, self.plan)
        joined = join_run(self.store, run, self._index.pool)
        if joined is not None:
            judge = SegmentFilter(self.plan, self._index, self._producers, run)
            yield self._note(judge, joined, self._index.pool, self._decide)
            return
        for source in run:
            self._tracker.add_aborted(self.plan.aborted_near(source.base_offset))
            with closing(self.store.open_file(source.log_file)) as reader:
                known = self._known_segment(reader, source)
                judge = SegmentFilter(
                    self.plan,
                    self._index,
                    self._producers,
                    [source],
                    known_segment=known,
                    tells_keys=self.sidecars is not None,
                )
                if known is None:
                    yield from self._windows(judge, reader, self._index.pool, self._decide)
                else:
                    check_batches(known.window())
                    discard, ended = self._decide(known.window())
                    yield _ToldSegment(
                        judge=judge,
                        known=known,
                        version=version_of(reader),
                        discard=discard,
                        ended=ended,
                    )

    def _known_segment(self, reader: FileReader, source: SegmentState) -> KnownSegment | None:
        """Return what a sidecar tells of a source segment.

        None where there is none that can be trusted, or where pass one has read the keys.
        """
        if self.sidecars is None or source.base_offset in self._index.segments.numbers:
            return None
        sidecar = self.sidecars.read(reader, source.base_offset)
        if sidecar is None:
            return None
        return KnownSegment.ask(source.log_file, sidecar, self._index, self.plan.now_ms)

    def _decide(self, window: Window) -> tuple[NDArray[np.bool_], list[AbortedTxn]]:
        """Return which batches nothing refers to any more, and the aborted transactions that end
        in the window."""
        rows, transactions = TransactionRows.select(window.batches)
        discard = np.zeros(len(window.batches), bool)
        discard[rows], ended = self._tracker.decide(transactions)
        return discard, ended

    def _windows(
        self,
        judge: SegmentFilter,
        reader: FileReader,
        pool: RoundBuffers,
        decide: Callable[[Window], tuple[NDArray[np.bool_], list[AbortedTxn]]],
        start: int = 0,
        end: int | None = None,
    ) -> Generator[_NotedWindow]:
        """Read a segment's windows, each noted; batches of which nothing stays may be left out."""
        pool.reserve(self._pace.at_once, self.plan)
        for window in scan_windows(
            reader,
            start=start,
            end=end,
            window_bytes=self._pace.window_bytes,
            crc=CrcCheck.LATER if judge.checks_crc else CrcCheck.SKIP,
            rooms=pool.windows,
            find=partial(judge.sift, pool) if judge.can_sift else None,
        ):
            yield self._note(judge, window, pool, decide, is_noted=judge.can_sift)

    def _note(
        self,
        judge: SegmentFilter,
        window: Window,
        pool: RoundBuffers,
        decide: Callable[[Window], tuple[NDArray[np.bool_], list[AbortedTxn]]],
        *,
        is_noted: bool = False,
    ) -> _NotedWindow:
        """Note of the next window what earlier batches decide, unless `SegmentFilter.sift` has."""
        discard, ended = decide(window)
        buffers = pool.next()
        notes = buffers.notes(len(window.batches))
        if not is_noted:
            judge.note(window, notes)
        return _NotedWindow(
            judge=judge,
            window=window,
            notes=notes,
            left_out=judge.left_out if is_noted else 0,
            discard=discard,
            ended=ended,
            buffers=buffers,
        )

    def _filter(self, piece: _Piece) -> _Filtered:
        """Filter a window's first block; leave other pieces for the writer."""
        if isinstance(piece, _NotedWindow):
            return piece, piece.first_block(self.plan)
        return piece

    def write(self, pieces: Iterator[_Filtered], writer: "_GroupWriter") -> bool:
        """Hand what is left of the next group to a writer.

        Returns:
            Whether the group is one segment that stays as it is, and nothing was written.
        """
        stays = False
        for piece in pieces:
            if piece is None:
                break
            if isinstance(piece, _ToldSegment):
                stays = self._write_told(piece, writer)
            else:
                self._write_window(*piece, writer)
        return stays

    def _write_told(self, told: _ToldSegment, writer: "_GroupWriter") -> bool:
        """Write a segment with a sidecar, filtered; like `write`."""
        known, batches = told.known, told.known.sidecar.batches
        writer.aborted += told.ended
        foreseen = told.judge.foresee(known, told.discard)
        if writer.is_same(batches, foreseen):
            writer.count_unread(batches, foreseen.was_read, stays=True)
            return True
        with closing(self.store.open_file(known.file)) as reader:
            if version_of(reader) != told.version:
                expected = "the file that its key sidecar is of"
                raise ChangedWhileReadError(known.file, expected, "another one")
            for stretch in find_stretches(batches.size, foreseen):
                if not stretch.is_read:
                    writer.copy(reader, known, stretch, foreseen)
                    continue
                # The tracker has seen all batches of the segment.
                read = self._windows(
                    told.judge,
                    reader,
                    self._told_pool,
                    lambda window: (told.discard[known.rows_of(window)], []),
                    int(batches.position[stretch.first_row]),
                    int(batches.position[stretch.end_row - 1] + batches.size[stretch.end_row - 1]),
                )
                with closing(in_order(read, self._filter, threads=self._pace.threads)) as pieces:
                    self.write(pieces, writer)
        return False

    def _write_window(self, noted: _NotedWindow, first: _Block, writer: "_GroupWriter") -> None:
        """Write what is left of a window."""
        window = noted.window
        self.throttler.use(len(window.data))
        writer.aborted += noted.ended
        for block in noted.blocks(self.plan, first):
            writer.write(block)
            self.throttler.use(block.out.size)


def _build(plan: CompactionPlan, fates: WindowFates, buffers: WindowBuffers) -> _Block:
    """Make what is left of the batches that were judged; any thread may call it."""
    payload = fates.payload
    first_row, end_row = payload.first_row, payload.end_row
    row = first_row
    batches, notes = payload.batches.rows(row, end_row), payload.notes.rows(row, end_row)
    end = int(batches.position[-1] + batches.size[-1])
    content = payload.window.data[batches.position[0] : end]
    if (notes.fate == VERBATIM).all() and content.size == batches.size.sum():
        # They lie together as they are to be written.
        sizes, max_timestamp = batches.size, batches.max_timestamp
    else:
        codec = CODEC_OF.get(plan.recompression.codec)
        if codec is not None:  # None for each batch's own
            rebuilt = np.flatnonzero((notes.fate == REBUILT) & ~batches.is_control)
            batches.attributes[rebuilt] = (batches.attributes[rebuilt] & ~CODEC_MASK) | codec
        packs = codec is not None or payload.batches.kinds & HAS_CODEC != 0
        buffers.out.clear()
        while row < end_row:
            row += _write_some(plan, fates, row, buffers, packs=packs)
        content, sizes, max_timestamp = buffers.out.content, notes.new_size, notes.new_max_timestamp
    written = np.flatnonzero(notes.fate != GONE)
    return _Block(
        out=content,
        window=payload.window,
        row=written + first_row,
        end_row=end_row,
        size=sizes[written],
        last_offset=batches.last_offset[written],
        max_timestamp=max_timestamp[written],
        stats=RewriteStats(
            messages_read=fates.messages_read,
            messages_written=int(notes.survivors[written].sum()),
            bytes_written=content.size,
            invalid_messages_read=fates.invalid_messages,
        ),
        keys=None
        if fates.keys is None
        else sidecar_of_block(content, payload, fates.keep, fates.keys),
    )


def _write_some(
    plan: CompactionPlan, fates: WindowFates, row: int, buffers: WindowBuffers, *, packs: bool
) -> int:
    """Add batches from a row on to the output, as many as RAW_BYTES hold of those that are
    compressed anew; return how many.

    Args:
        packs: Whether any may be compressed anew.
    """
    payload = fates.payload
    least_timestamp = _LEAST_LONG if plan.keeps_negative_timestamps else NO_TIMESTAMP
    count, failure = payload.end_row - row, DONE
    buffers.packed.clear()
    if packs:
        count, failure = _compress_from(plan, fates, row, buffers, least_timestamp)
    done, status = 0, DONE
    if count:
        table = payload.batches.rows(row, row + count).columns
        columns = payload.notes.rows(row, row + count).columns
        out = buffers.out
        out.reserve(out.used + most_bytes(table, columns) + buffers.packed.used)
        out.used, done, status = write_batches(
            out.buffer,
            out.used,
            payload.window.data,
            payload.arena,
            table,
            columns,
            fates.keep,
            buffers.packed.buffer,
            least_timestamp,
        )
    if status == DONE:
        status = failure
    if status != DONE:
        row += done
        raise payload.error(status, row, int(payload.notes.records_start[row]))
    return done


def _compress_from(
    plan: CompactionPlan,
    fates: WindowFates,
    first_row: int,
    buffers: WindowBuffers,
    least_timestamp: int,
) -> tuple[int, int]:
    """Rebuild and compress batches from a row on, within RAW_BYTES. Those before it may be
    overwritten.

    Returns:
        (count, status): how many are done, at least one, unless the next is the bad one that a
        status of write_records is about.
    """
    payload = fates.payload
    batches = payload.batches.rows(first_row, payload.end_row)
    notes = payload.notes.rows(first_row, payload.end_row)
    buffers.raw.reserve(RAW_BYTES)
    while True:
        count, status = rebuild_compressed(
            buffers.raw.buffer,
            payload.window.data,
            payload.arena,
            batches.columns,
            notes.columns,
            fates.keep,
            least_timestamp,
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
        packed = compress_blocks(codec, blocks, buffers.packed, level=plan.recompression.level)
        notes.packed_end[rows[run]] = packed
        notes.packed_start[rows[run]] = np.concatenate([[begin], packed[:-1]])
    return count, status


def _prefix(folder: Path, attempt: str, group: Sequence[SegmentState]) -> Path:
    """Return how the paths of a group's scratch files begin."""
    return folder / f"{SCRATCH_PREFIX}{attempt}-{segment_file(group[0].base_offset, '')}"


def _scratch_file(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix + SCRATCH_SUFFIX)


@contextmanager
def _created_log(prefix: Path) -> Iterator[BinaryIO]:
    """Create a group's log file; remove all its scratch files after an error."""
    try:
        with os.fdopen(create_file(_scratch_file(prefix, LOG_SUFFIX)), "wb") as log:
            yield log
    except BaseException as error:
        for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            _scratch_file(prefix, suffix).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StorageError(str(prefix), error.strerror or str(error)) from error
        raise


class _GroupWriter:
    """Writes one cleaned segment and its indexes.

    Args:
        log: The open log file, or one that keeps nothing where only numbers are wanted.
    """

    def __init__(
        self, pass_two: _PassTwo, group: Sequence[SegmentState], prefix: Path, log: BinaryIO
    ) -> None:
        self._store = pass_two.store
        self._plan = pass_two.plan
        self._throttler = pass_two.throttler
        self._sidecars = pass_two.sidecars
        self._group = group
        self._base_offset = group[0].base_offset
        self._prefix = prefix
        self._log = log
        self._behind = WriteBehind(log.fileno())
        self._keys = SidecarBuilder()
        self._index = self._new_index()
        self._stats = RewriteStats()
        self._gaps: list[CopiedRange] = []
        self.aborted: list[AbortedTxn] = []

    def write(self, block: _Block) -> None:
        """Write the next batches."""
        if block.keys is not None:
            self._keys.add(block.keys, self._index.size_bytes)
        self._add_to_index(
            block.size,
            block.last_offset,
            block.max_timestamp,
            lambda number: block.window.place_of(int(block.row[number])),
        )
        self._log.write(block.out.data)
        self._behind.reach(self._index.size_bytes)
        self._stats += block.stats

    def _add_to_index(
        self,
        size: NDArray[np.int64],
        last_offset: NDArray[np.int64],
        max_timestamp: NDArray[np.int64],
        place_of: Callable[[int], tuple[str, int]],
    ) -> None:
        """Count batches that are about to be written.

        Args:
            place_of: Returns in which file, and where, a batch lies now.
        """
        if self._index.size_bytes + int(size.sum()) > MAX_BATCH_BYTES:
            raise StorageError(str(self._prefix), "the cleaned segment would exceed 2 GiB")
        number, error = self._index.add_until(size, last_offset, max_timestamp)
        if isinstance(error, OffsetOverflowError):
            # What has to be split is the segment that the batch comes from.
            raise OffsetOverflowError(*place_of(number), error.reason) from error
        if error is not None:
            raise error

    def copy(
        self, reader: FileReader, known: KnownSegment, stretch: BatchRun, foreseen: Foresight
    ) -> None:
        """Copy or drop a sidecar segment's batches without reading their records. Batches that stay
        are written as they are. What the store can copy by itself becomes a gap."""
        part = known.sidecar.rows(stretch.first_row, stretch.end_row)
        rows = part.batches
        start, size = int(rows.position[0]), int(rows.size.sum())
        was_read = foreseen.was_read[stretch.first_row : stretch.end_row]
        self.count_unread(rows, was_read, stays=stretch.stays)
        if not stretch.stays:
            return
        position = self._index.size_bytes
        self._keys.add(part, position)
        self._add_to_index(
            rows.size,
            rows.last_offset,
            rows.max_timestamp,
            lambda number: (reader.name, int(rows.position[number])),
        )
        piece_bytes = COPY_BYTES
        if isinstance(self._store, CopiesStretches):
            source = self._store.stretch_to_copy(known.file, start, size)
            if source is not None:
                self._gaps.append(CopiedRange(position=position, source=source))
                self._log.seek(size, os.SEEK_CUR)
                return
            piece_bytes = LEAST_GAP_BYTES  # each may be a request
        piece = np.empty(min(size, piece_bytes), np.uint8)
        for first in range(0, size, piece_bytes):
            target = piece[: size - first]
            self._throttler.use(2 * target.size)
            filled = reader.read_into(start + first, target)
            if filled < target.size:
                expected, actual = f"{start + size} bytes", f"{start + first + filled}"
                raise ChangedWhileReadError(reader.name, expected, actual)
            self._log.write(target.data)
            self._behind.reach(position + first + target.size)

    def is_same(self, batches: BatchTable, foreseen: Foresight) -> bool:
        """Whether a round would write the group's only segment unchanged. Its indexes would be
        the same, too.

        Args:
            batches: Those of the segment, as its sidecar tells.
        """
        segment = self._group[0]
        log_file = segment_file(self._base_offset, LOG_SUFFIX)
        index_file = segment_file(self._base_offset, OFFSET_INDEX_SUFFIX)
        if (
            len(self._group) > 1
            or (segment.log_file, segment.offset_index_file) != (log_file, index_file)
            or not (foreseen.is_settled & foreseen.stays).all()
            or segment.has_txn_index != bool(self.aborted)
        ):
            return False
        index = self._new_index()
        index.add(batches.size, batches.last_offset, batches.max_timestamp)
        try:
            return all(
                self._store.read_file(
                    segment_file(self._base_offset, suffix), limit_bytes=len(content)
                )
                == content
                for suffix, content in self._indexes(index).items()
            )
        except StorageError:  # one is missing, or too long
            return False

    def count_unread(
        self, batches: BatchTable, was_read: NDArray[np.bool_], *, stays: bool
    ) -> None:
        """Count batches as if they had been read."""
        size, records = int(batches.size.sum()), int(batches.record_count.sum())
        self._stats += RewriteStats(
            messages_read=int(batches.record_count[was_read].sum()),
            messages_written=records if stays else 0,
            bytes_read=size,
            bytes_written=size if stays else 0,
            source_records=records,
        )

    def measure(self) -> RewriteStats:
        """Return the numbers of a group that is not kept; refuse a full index here, too."""
        self._index.finish()
        return self._stats

    def leave(self) -> CleanedGroup:
        """Return the manifest of an unchanged segment; remove its scratch file."""
        _scratch_file(self._prefix, LOG_SUFFIX).unlink()
        return CleanedGroup(base_offsets=(self._base_offset,), files=(), stats=self._stats)

    def finish(self, make_durable: MakeDurable) -> CleanedGroup:
        """Write the indexes, make everything durable and return the manifest."""
        contents = self._indexes(self._index)
        if self._gaps:
            self._log.truncate()  # here: the last one may be the end
        with ExitStack() as opened:
            files = {LOG_SUFFIX: self._log}
            for suffix, content in contents.items():
                index = os.fdopen(create_file(_scratch_file(self._prefix, suffix)), "wb")
                files[suffix] = opened.enter_context(index)
                index.write(content)
            for suffix, file in files.items():
                self._adopt(file, suffix)
            make_durable(*(file.fileno() for file in files.values()))
        parts = self._keys.finish()
        if self._sidecars is not None and parts:
            self._sidecars.stage(self._base_offset, parts)
        sizes = {LOG_SUFFIX: self._index.size_bytes}
        sizes |= {suffix: len(content) for suffix, content in contents.items()}
        return CleanedGroup(
            base_offsets=tuple(segment.base_offset for segment in self._group),
            files=tuple(
                ScratchFile(
                    suffix=suffix,
                    path=str(_scratch_file(self._prefix, suffix)),
                    size_bytes=size,
                )
                for suffix, size in sizes.items()
            ),
            stats=self._stats,
            gaps=tuple(self._gaps),
        )

    def _new_index(self) -> IndexBuilder:
        return IndexBuilder(
            segment_file(self._base_offset, LOG_SUFFIX),
            self._base_offset,
            interval_bytes=self._plan.index_interval_bytes,
            max_index_bytes=self._plan.segment_index_bytes,
        )

    def _indexes(self, index: IndexBuilder) -> dict[str, bytes]:
        """Return the contents of the indexes, by suffix."""
        offsets, times = index.finish()
        contents = {OFFSET_INDEX_SUFFIX: offsets, TIME_INDEX_SUFFIX: times}
        if self.aborted:
            contents[TXN_INDEX_SUFFIX] = encode_transaction_index(self.aborted)
        return contents

    def _adopt(self, file: BinaryIO, suffix: str) -> None:
        """Give a scratch file its modification time, and owner, mode and extended attributes of the
        file with its suffix in the directory: given when the file is moved there, they would have
        to be synced once more."""
        file.flush()
        if isinstance(self._store, OwnedFiles):
            name = segment_file(self._base_offset, suffix)
            self._store.hand_on_ownership(file.fileno(), name)
        if suffix != TXN_INDEX_SUFFIX:
            # Before the sync: a time that is set after it may be lost when the power is.
            modified_ns = self._group[-1].modified_ms * 1_000_000
            os.utime(file.fileno(), ns=(modified_ns, modified_ns))
