"""Find the batch of an offset by offset indexes and batch headers.

A load believes an offset index as Kafka does. Reads of a directory that nobody loaded believe it
where a good batch stands at the position that it names: a wrong index costs them time, no records.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import BadBytesError, CorruptRecordError
from storage_core.filenames import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    MAX_OFFSET,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.formats.batch_v2 import (
    BATCH_LENGTH_AT,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MAX_BATCH_BYTES,
    NO_TIMESTAMP,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY
from storage_core.index.segment_indexes import OffsetIndex, PagedEntries, read_last_entry, read_used
from storage_core.kernels.batch_scan import COLUMN_COUNT, scan_batches
from storage_core.log.directory_view import DirectoryView
from storage_core.records.batch_table import BatchTable
from storage_core.records.file_starts import read_starts
from storage_core.records.payload import Limits, open_batches
from storage_core.records.reader import (
    CrcCheck,
    Large,
    Tail,
    Window,
    read_whole,
    scan_headers,
    scan_windows,
)
from storage_core.store.base import FileInfo, FileReader, LogStore

# Find gaps between the segments of a log, and judge them.
#
# A segment begins at the offset where the one before it ended. Compaction makes gaps between them:
# records at the end of a segment go, and the file of one that was merged into another. Kafka loads
# a log with any gap and its consumers skip it, so nothing but the files tells a segment that was
# compacted away from one that somebody lost. What they tell:
#
# - Indexes without their log: the log is lost. Whatever Kafka deletes, it renames first.
# - An empty log between others whose indexes have entries: its records are lost. Where compaction
#   removes all of a segment's records, its indexes are empty too.
# - A gap above what the cleaner's checkpoint explains, without any trace of compaction beside it
#   (holes between or inside of batches, delete horizons; a follower copies those of its leader): a
#   segment is lost, unless compaction left whole batches only.
# - A gap in a log that is compacted, where all files of a segment are gone: nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Offsets that no segment has."""

    first_offset: int
    end_offset: int | None  # just past the last one; None where the log ends with them
    evidence: str  # the evidence that they are missing, for a person

    def reaches_into(self, start_offset: int, end_offset: int | None) -> bool:
        """Whether a read of [start_offset, end_offset) would have come to it."""
        is_behind = end_offset is not None and self.first_offset >= end_offset
        return not is_behind and (self.end_offset is None or self.end_offset > start_offset)


def find_lost_logs(files: Iterable[FileInfo], removed: Collection[str]) -> list[Gap]:
    """Return the segments whose records a listing shows to be lost.

    Args:
        files: The directory's files, as a load would leave them.
        removed: Names that a load takes away: a segment with one among them was deleted.
    """
    sizes = {file.name: file.size_bytes for file in files}
    bases = sorted({offset_of(name) or 0 for name in sizes if kind_of(name) == LOG_SUFFIX})
    deleted = {offset_of(name) for name in removed}
    lost: dict[int, str] = {}
    for name in sizes:
        base = offset_of(name)
        if kind_of(name) not in INDEX_SUFFIXES or base is None or base in deleted:
            continue
        # Below the first segment a deletion may have been interrupted.
        if log_file(base) not in sizes and bases and base > bases[0]:
            lost.setdefault(base, f"{log_file(base)} is missing beside its {name}")
    for base in bases[:-1]:
        entries = sum(
            sizes.get(segment_file(base, suffix), 0)
            for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )
        if entries and not sizes[log_file(base)]:
            lost[base] = f"{log_file(base)} is empty, its indexes are not"
    return [
        Gap(
            first_offset=base,
            end_offset=_next(bases, base),
            evidence=lost[base],
        )
        for base in sorted(lost)
    ]


def _next(bases: Sequence[int], base: int) -> int | None:
    """Return the first sorted offset above a base; None without."""
    number = bisect_right(bases, base)
    return bases[number] if number < len(bases) else None


class GapWatch:
    """Watch the batches of consecutive segments for gaps in the log.

    Args:
        cleaned_to: Up to where the log is known to have been compacted: gaps below are normal.

    Attributes:
        gaps: The others between segments, in order.
        is_compacted: Whether something was seen above that only compaction does.
    """

    def __init__(self, cleaned_to: int = 0) -> None:
        self.gaps: list[Gap] = []
        self.is_compacted = False
        self._cleaned_to = cleaned_to
        self._next_offset: int | None = None

    def add(self, batches: BatchTable) -> None:
        """Look at the next batches of a segment."""
        if not len(batches):
            return
        if not self.is_compacted:
            self.is_compacted = self._has_holes(batches)
        self._next_offset = int(batches.last_offset[-1]) + 1

    def end_segment(self, base_offset: int, next_base_offset: int | None) -> None:
        """Note the end of a segment and the start of the next."""
        end, self._next_offset = self._next_offset, None
        if end is None or next_base_offset is None:
            return
        if end >= next_base_offset or next_base_offset <= self._cleaned_to:
            return
        evidence = (
            f"{log_file(base_offset)} ends before offset {end}, "
            f"{log_file(next_base_offset)} is the next segment"
        )
        self.gaps.append(Gap(first_offset=end, end_offset=next_base_offset, evidence=evidence))

    def _has_holes(self, batches: BatchTable) -> bool:
        """Whether records or batches are missing; old formats do not say."""
        first, last = batches.base_offset, batches.last_offset
        says = ~batches.is_legacy & (first >= self._cleaned_to)
        is_thinned = batches.record_count != last - first + 1
        if bool((says & (is_thinned | batches.has_delete_horizon)).any()):
            return True
        if bool((says[1:] & (first[1:] > last[:-1] + 1)).any()):
            return True
        return self._next_offset is not None and bool(says[0] and first[0] > self._next_offset)


# An index file is bounded by its own 31-bit positions; real ones have 10 MiB at most by default.
MAX_INDEX_BYTES = 1 << 30
# Bytes behind the last index entry are few, except without an index.
_WINDOW_BYTES = 1 << 20
# The length of a v2 batch that is nothing but its header.
_NO_RECORDS = (HEADER_BYTES - LENGTH_OVERHEAD).to_bytes(LENGTH_OVERHEAD - BATCH_LENGTH_AT, "big")
_LIMITS = Limits(max_record_bytes=MAX_BATCH_BYTES, max_batch_bytes=MAX_BATCH_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """Where a batch stands."""

    position: int
    size_bytes: int
    # Its first offset; of a compressed legacy entry the last, which is all that its header tells.
    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment:
    """A segment as a listing shows it."""

    base_offset: int
    size_bytes: int  # length of its .log file then; what was appended later does not count
    has_offset_index: bool
    has_time_index: bool


def find_batch_for_offset(
    reader: FileReader, offset: int, *, start: int = 0, end: int | None = None
) -> BatchPlace | None:
    """Return the batch with an offset or the next; None at end.

    This is Kafka's walk: on to the first batch that begins at the offset or behind it, then back
    by one if that reaches the offset. It is the first batch that reaches the offset, except where
    batches do not stand in the order of their offsets.

    Args:
        start: Position of a batch that does not begin behind the one to be found.
        end: Where the segment ends, the end of the file if None.
    """
    previous = None
    for window in scan_headers(reader, start=start, end=end, window_bytes=_WINDOW_BYTES):
        reaching = np.flatnonzero(window.batches.base_offset >= offset)
        if reaching.size:
            row = int(reaching[0])
            place = _place(window, row)
            before = _place(window, row - 1) if row else previous
            if place.base_offset != offset and before and before.last_offset >= offset:
                return before
            return place
        previous = _place(window, len(window.batches) - 1)
    return previous if previous and previous.last_offset >= offset else None


def first_batch_timestamp(reader: FileReader, position: int = 0) -> int:
    """Return the largest timestamp of a batch, NO_TIMESTAMP without one.

    Args:
        position: Where the batch begins; 0 for a segment's first.
    """
    first = first_header(reader, position)
    return NO_TIMESTAMP if first is None else int(first.max_timestamp[0])


def first_header(reader: FileReader, position: int = 0) -> BatchTable | None:
    """Return a table of the batch at a position, without what a control record tells; None where
    no whole batch is left.

    Args:
        position: Where the batch begins; 0 for a segment's first.
    """
    header = np.empty(HEADER_BYTES, np.uint8)
    if reader.read_into(position, header) == HEADER_BYTES and header[MAGIC_AT] == MAGIC_V2:
        size = _number(header[BATCH_LENGTH_AT:LENGTH_OVERHEAD]) + LENGTH_OVERHEAD
        if HEADER_BYTES <= size <= reader.size_bytes - position:
            table = np.empty((COLUMN_COUNT, 1), np.int64)
            scan_batches(header, 0, size, table)  # of this format it reads nothing but headers
            return BatchTable(table)
    windows = scan_headers(
        reader,
        start=position,
        window_bytes=1,  # it grows to the size of the batch
    )
    first = next(windows, None)
    return None if first is None else first.batches.rows(0, 1)


def first_headers(store: LogStore, files: Sequence[str]) -> Iterator[BatchTable]:
    """Yield the headers of the first batches of segments, without their sizes and what a control
    record tells. A segment without a whole first batch has none.

    Those of most segments are one table, read together.
    """
    heads = np.zeros((len(files), HEADER_BYTES), np.uint8)
    bounds = np.arange(len(files) + 1) * HEADER_BYTES
    sizes = read_starts(store, files, heads.reshape(-1), bounds)
    is_whole = np.zeros(len(files), np.bool_)
    if sizes is not None:
        lengths = heads[:, BATCH_LENGTH_AT:LENGTH_OVERHEAD].copy().view(">i4")[:, 0]
        needed = lengths.astype(np.int64) + LENGTH_OVERHEAD
        is_v2 = heads[:, MAGIC_AT] == MAGIC_V2
        is_whole = is_v2 & (needed >= HEADER_BYTES) & (needed <= sizes)
        alone = heads[is_whole]
        # Of this format a scan reads nothing but headers: batches without records it is.
        alone[:, BATCH_LENGTH_AT:LENGTH_OVERHEAD] = np.frombuffer(_NO_RECORDS, np.uint8)
        table = np.empty((COLUMN_COUNT, len(alone)), np.int64)
        scan_batches(alone.reshape(-1), 0, alone.size, table)
        yield BatchTable(table)
    for file in compress(files, ~is_whole):
        with closing(store.open_file(file)) as reader, suppress(BadBytesError):
            first = first_header(reader)
            if first is not None:
                yield first


def first_offset_of(window: Window, row: int, limits: Limits) -> int:
    """Return the first offset of a batch; open a compressed legacy one.

    Args:
        limits: How large its records may become.
    """
    batches = window.batches
    if batches.is_message_set[row]:
        wanted = np.zeros(len(batches), np.bool_)
        wanted[row] = True
        batches = open_batches(window, wanted, row, limits).batches
    return int(batches.base_offset[row])


def read_offset_index(view: DirectoryView, base_offset: int, name: str) -> OffsetIndex:
    """Open an offset index for searches; a missing one counts as empty."""
    if name not in view:
        return OffsetIndex.parse(base_offset, b"")
    path = f"{view.store.location}/{name}"
    opened = partial(view.open, name)
    return OffsetIndex.of_file(base_offset, opened, path, limit_bytes=MAX_INDEX_BYTES)


def find_batch(
    view: DirectoryView, log_name: str, offset: int, from_position: int
) -> BatchPlace | None:
    """Return the batch of Kafka's search for an offset, from a position. A wrong index may name
    a negative position; the search then begins at the file's start."""
    with closing(view.open(log_name)) as reader:
        return find_batch_for_offset(reader, offset, start=max(from_position, 0))


def find_position(
    view: DirectoryView, log_name: str, offset: int, from_position: int
) -> int | None:
    """Return the first position from which a batch reaches an offset."""
    batch = find_batch(view, log_name, offset, from_position)
    return None if batch is None else batch.position


def find_next_offset(view: DirectoryView, base_offset: int, log_name: str, index_name: str) -> int:
    """Return the next offset of a segment; its base offset if empty. As in Kafka, the search
    starts at the batch of the last offset index entry."""
    return next_offset_by_index(view, log_name, read_offset_index(view, base_offset, index_name))


def next_offset_by_index(view: DirectoryView, log_name: str, index: OffsetIndex) -> int:
    """Return the offset after a segment's last batch, as `find_next_offset`."""
    with closing(view.open(log_name)) as reader:
        return next_offset_in(reader, index)


def next_offset_in(reader: FileReader, index: OffsetIndex) -> int:
    """Return the offset after a segment's last batch, as `find_next_offset`.

    Args:
        index: Its offset index, or as much of the end as a search for the last entry looks at.
    """
    last = index.last_offset
    batch = find_batch_for_offset(reader, last, start=max(index.look_up(last), 0))
    if batch is None:
        return index.base_offset
    return _end_offset(reader, batch.position, None, index.base_offset, Tail.STOP)


def find_batch_base_offset(
    view: DirectoryView, base_offsets: Sequence[int], offset: int
) -> int | None:
    """Return the base offset of the batch with or after an offset. None if there is no such batch.

    This is what Kafka makes of the first unstable offset of a log that it has just loaded: the
    batch may begin below it, or above it where compaction left a gap.

    Args:
        base_offsets: Base offsets of the segments, in order.
    """
    floor = max((base for base in base_offsets if base <= offset), default=0)
    for base in base_offsets:
        if base < floor:
            continue
        index = read_offset_index(view, base, segment_file(base, OFFSET_INDEX_SUFFIX))
        place = find_batch(view, log_file(base), offset, index.look_up(offset))
        if place is None:
            continue
        with closing(view.open(log_file(base))) as reader:
            end = place.position + place.size_bytes
            for window in scan_headers(reader, start=place.position, end=end):
                if window.batches.is_message_set[0]:
                    return first_offset_of(read_whole(reader, window), 0, _LIMITS)
                return place.base_offset
    return None


def find_start_position(store: LogStore, segment: ListedSegment, offset: int) -> int:
    """Return a start position that misses no batch reaching an offset.

    The offset index says it, if a good batch of a fitting offset stands where it points; else
    reading begins at 0. A wrong index costs time, never records.
    """
    if not segment.has_offset_index or offset <= segment.base_offset:
        return 0
    name = segment_file(segment.base_offset, OFFSET_INDEX_SUFFIX)
    entries = PagedEntries(
        partial(store.open_file, name),
        f"{store.location}/{name}",
        OFFSET_INDEX_ENTRY,
        limit_bytes=MAX_INDEX_BYTES,
    )
    # Kafka's search of an unclosed index ends in its zeros: all of the log would be read.
    entries.end_before_zeros()
    position = OffsetIndex(segment.base_offset, entries).look_up(offset)
    with closing(store.open_file(log_file(segment.base_offset))) as reader:
        return checked_start(reader, segment.base_offset, segment.size_bytes, position, offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTimes:
    """Largest timestamps of a few batches of a segment."""

    # Of the first batch, the last ones and the one that was asked for; NO_TIMESTAMP where they have
    # none.
    newest: int
    at_offset: int | None  # of the first batch that reaches the offset; None where no batch does


def sample_times(store: LogStore, segment: ListedSegment, offset: int) -> SampledTimes:
    """Read timestamps of a segment's first and last batches.

    The batch of one offset is read, too. Of a sound segment that is the last entry of its offset
    index and a few headers. Bytes that are no batches end the look.
    """
    newest, at_offset = NO_TIMESTAMP, None
    try:
        with closing(store.open_file(log_file(segment.base_offset))) as reader:
            newest = first_batch_timestamp(reader)
            start = checked_start(
                reader,
                segment.base_offset,
                segment.size_bytes,
                _last_indexed_position(store, segment),
                MAX_OFFSET,
            )
            is_in_tail = start == 0
            windows = scan_headers(
                reader, start=start, end=segment.size_bytes, window_bytes=_WINDOW_BYTES
            )
            for window in windows:
                times = window.batches.max_timestamp
                newest = max(newest, int(times.max()))
                is_in_tail |= int(window.batches.base_offset[0]) <= offset
                reaching = np.flatnonzero(window.batches.last_offset >= offset)
                if is_in_tail and at_offset is None and reaching.size:
                    at_offset = int(times[reaching[0]])
            if not is_in_tail:
                start = find_start_position(store, segment, offset)
                place = find_batch_for_offset(reader, offset, start=start, end=segment.size_bytes)
                if place is not None:
                    at_offset = first_batch_timestamp(reader, place.position)
    except BadBytesError:
        pass  # who asks has what was read before
    return SampledTimes(newest=max(newest, at_offset or NO_TIMESTAMP), at_offset=at_offset)


def _last_indexed_position(store: LogStore, segment: ListedSegment) -> int:
    """Return the position of an offset index's last entry, else 0."""
    if not segment.has_offset_index:
        return 0
    name = segment_file(segment.base_offset, OFFSET_INDEX_SUFFIX)
    with closing(store.open_file(name)) as reader:
        # Zeros at the end of an index that was not closed are no entries.
        last = read_last_entry(reader, OFFSET_INDEX_ENTRY, is_closed=False)
    return int(np.frombuffer(last, OFFSET_INDEX_ENTRY)["position"][0]) if last else 0


def find_cut_offsets(store: LogStore, segment: ListedSegment, *, part_bytes: int) -> list[int]:
    """Return offsets that cut a segment into parts of about equal size.

    They are where batches begin, as the offset index has it. Nothing else is asked: a segment
    without an index is not cut, and by a wrong index the parts are of unequal size.

    Args:
        part_bytes: How large a part may be, at least 1.

    Returns:
        First offsets of all parts but the first, ascending.
    """
    count = -(-segment.size_bytes // part_bytes)
    if count < 2 or not segment.has_offset_index:  # noqa: PLR2004  # one part
        return []
    name = segment_file(segment.base_offset, OFFSET_INDEX_SUFFIX)
    content, _ = read_used(store, name, OFFSET_INDEX_ENTRY, limit_bytes=MAX_INDEX_BYTES)
    count_of_entries = len(content) // OFFSET_INDEX_ENTRY.itemsize
    entries = np.frombuffer(content, OFFSET_INDEX_ENTRY, count_of_entries)
    # An entry of zeros, as an unclosed index ends in, has the offset of no batch.
    entries = entries[entries["position"] > 0]
    positions, offsets = entries["position"], entries["relative_offset"]
    count = min(count, len(positions) + 1)
    targets = np.arange(1, count, dtype=np.int64) * segment.size_bytes // count
    slots = np.searchsorted(positions, targets)
    # An entry has the last offset of its batch.
    cuts = segment.base_offset + offsets[slots[slots < len(offsets)]].astype(np.int64) + 1
    is_inside = (cuts > segment.base_offset) & (cuts <= MAX_OFFSET)
    return [int(cut) for cut in np.unique(cuts[is_inside])]


def checked_start(
    reader: FileReader, base_offset: int, size_bytes: int, position: int, offset: int
) -> int:
    """Return an index's position for an offset, 0 without a good batch.

    Args:
        position: The index's position.
    """
    if not 0 < position < size_bytes:
        return 0
    windows = scan_windows(
        reader,
        start=position,
        end=size_bytes,
        window_bytes=1,  # it grows to the size of the batch
        crc=CrcCheck.NOTE,
        tail=Tail.STOP,
        large=Large.HEADER,
    )
    try:
        first = next(windows, None)
    except BadBytesError:
        return 0
    if first is None:
        return 0
    first_offset = int(first.batches.base_offset[0])
    is_fitting = bool(first.batches.crc_ok[0] == 1) and base_offset <= first_offset <= offset
    return position if is_fitting else 0


def find_end_offset(store: LogStore, segment: ListedSegment) -> int:
    """Return the offset after a segment's last whole batch. In a segment without batches it is
    the base offset."""
    position = find_start_position(store, segment, MAX_OFFSET)
    with closing(store.open_file(log_file(segment.base_offset))) as reader:
        size_bytes = segment.size_bytes
        return _end_offset(reader, position, size_bytes, segment.base_offset, Tail.ZEROS)


def find_valid_end(store: LogStore, segment: ListedSegment) -> tuple[int, int]:
    """Return where a recovery would end a segment. Bytes before the last index entry are assumed to
    be valid.

    Returns:
        (end_offset, size_bytes): the offset and the position behind the last good batch.
    """
    end_offset = segment.base_offset
    size_bytes = find_start_position(store, segment, MAX_OFFSET)
    with closing(store.open_file(log_file(segment.base_offset))) as reader:
        windows = scan_windows(
            reader,
            start=size_bytes,
            end=segment.size_bytes,
            window_bytes=_WINDOW_BYTES,
            crc=CrcCheck.NOTE,
            tail=Tail.STOP,
            large=Large.HEADER,
        )
        try:
            for window in windows:
                (bad,) = np.nonzero(window.batches.crc_ok != 1)
                rows = int(bad[0]) if bad.size else len(window.batches)
                if rows:
                    end_offset = int(window.batches.last_offset[rows - 1]) + 1
                    place = _place(window, rows - 1)
                    size_bytes = place.position + place.size_bytes
                if bad.size:
                    break
        except CorruptRecordError:
            pass  # what follows is no batch: a recovery cuts it off
    return end_offset, size_bytes


def _end_offset(
    reader: FileReader, start: int, end: int | None, base_offset: int, tail: Tail
) -> int:
    """Return the offset after the last batch of a stretch. Without batches it is the base
    offset."""
    end_offset = base_offset
    windows = scan_headers(reader, start=start, end=end, window_bytes=_WINDOW_BYTES, tail=tail)
    for window in windows:
        end_offset = int(window.batches.last_offset[-1]) + 1
    return end_offset


def _number(field: NDArray[np.uint8]) -> int:
    return int.from_bytes(field.tobytes(), "big", signed=True)


def _place(window: Window, row: int) -> BatchPlace:
    batches = window.batches
    return BatchPlace(
        position=window.position_of(row),
        size_bytes=int(batches.size[row]),
        base_offset=int(batches.base_offset[row]),
        last_offset=int(batches.last_offset[row]),
    )
