"""Read a log at rest as a broker serves it.

That is fetches, isolation, offsets for points in time.

A fetch names bytes of one file, it does not hold them. Where a bound or a size cuts a batch, what
is left of it comes along: whoever reads a slice ends at its last whole batch, and leaves out the
records of its first batch that lie below the offset asked for.
"""

import enum
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import InvalidFetchSizeError, OffsetOutOfRangeError
from storage_core.filenames import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, log_file, segment_file
from storage_core.index.segment_indexes import AbortedTxn, OffsetIndex, TimeIndex, collect_aborted
from storage_core.log.batch_search import (
    MAX_INDEX_BYTES,
    BatchPlace,
    checked_start,
    find_batch_for_offset,
)
from storage_core.log.loaded_log import LoadedLog, SegmentState
from storage_core.log.open_transactions import TransactionTracker
from storage_core.records.reader import DEFAULT_WINDOW_BYTES, Tail, Window, scan_windows
from storage_core.store.base import FileReader, LogStore


class Isolation(enum.Enum):
    """How far a read may see."""

    LOG_END = "log_end"  # everything, as a follower fetches
    READ_UNCOMMITTED = "read_uncommitted"  # up to the high watermark
    READ_COMMITTED = "read_committed"  # up to the last stable offset, aborted transactions named


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Where a read has to stop."""

    offset: int  # first offset of the batch that holds the bound, which is left out whole
    segment_base_offset: int  # base offset of that batch's segment
    position: int  # where in its file the batch begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """What a read returns."""

    file: str  # name of the .log file; empty where there is nothing to read
    segment_base_offset: int  # base offset of its segment
    position: int  # where in the file the slice begins: at a batch
    size_bytes: int  # length of the slice
    # Whether the size allowed for less than the first batch
    is_first_batch_incomplete: bool = False
    # For a committed read, the aborted transactions that reach into the slice
    aborted: tuple[AbortedTxn, ...] = ()


_Index = TypeVar("_Index", OffsetIndex, TimeIndex)


class LazyIndexes:
    """The indexes of one partition's segments.

    A file that is missing is as an empty one; nothing is read twice.

    Args:
        names: The files that there are; one that is not among them is not looked for.
        limit_bytes: The most that an index may have.
    """

    def __init__(self, store: LogStore, names: frozenset[str], *, limit_bytes: int) -> None:
        self._store = store
        self._names = names
        self._limit_bytes = limit_bytes
        self._offsets: dict[int, OffsetIndex] = {}
        self._times: dict[int, TimeIndex] = {}

    def offset_index(self, base_offset: int) -> OffsetIndex:
        """Return the offset index of a segment."""
        if base_offset not in self._offsets:
            self._offsets[base_offset] = self._open(OffsetIndex, base_offset, OFFSET_INDEX_SUFFIX)
        return self._offsets[base_offset]

    def time_index(self, base_offset: int) -> TimeIndex:
        """Return the time index of a segment."""
        if base_offset not in self._times:
            self._times[base_offset] = self._open(TimeIndex, base_offset, TIME_INDEX_SUFFIX)
        return self._times[base_offset]

    def _open(self, kind: type[_Index], base_offset: int, suffix: str) -> _Index:
        name = segment_file(base_offset, suffix)
        if name not in self._names:
            return kind.parse(base_offset, b"")
        return kind.of_file(
            base_offset,
            partial(self._store.open_file, name),
            f"{self._store.location}/{name}",
            limit_bytes=self._limit_bytes,
        )


class LogReader:
    """Reads one loaded log.

    The list of segments and all bounds are those of the load: what is appended or removed later
    is not seen. Indexes are opened when they are first needed.

    Args:
        store: The partition directory, after the operations of the load if there were any.
        log: The log as it was loaded from there.
    """

    def __init__(self, store: LogStore, log: LoadedLog) -> None:
        self.store = store
        self.log = log
        names = frozenset(file.name for file in store.list_files())
        self._names = names
        self.indexes = LazyIndexes(store, names, limit_bytes=MAX_INDEX_BYTES)
        self._bases = np.array([segment.base_offset for segment in log.segments], np.int64)

    def read(
        self,
        start_offset: int,
        *,
        max_bytes: int,
        isolation: Isolation = Isolation.LOG_END,
        min_one_message: bool = False,
    ) -> Fetch:
        """Fetch from an offset on.

        Args:
            start_offset: The slice begins with the batch that holds it or follows it.
            max_bytes: The most that the slice may have, at least 0.
            min_one_message: Whether the first batch comes whole, even if it is larger.
        """
        if max_bytes < 0:
            raise InvalidFetchSizeError(self.log.location, max_bytes)
        self._check_range(start_offset)
        bound = self.bound(isolation)
        if start_offset >= bound.offset:
            return _nothing(bound)
        for number in range(self._floor(start_offset), len(self.log.segments)):
            segment = self.log.segments[number]
            place = self.translate(segment, start_offset)
            if place is None:
                continue
            allowed = max(max_bytes, place.size_bytes) if min_one_message else max_bytes
            end = self._end_of(segment, bound)
            fetch = Fetch(
                file=self._file(segment),
                segment_base_offset=segment.base_offset,
                position=place.position,
                size_bytes=0 if end is None else min(end - place.position, allowed),
                is_first_batch_incomplete=0 < allowed < place.size_bytes and end is not None,
            )
            if isolation is Isolation.READ_COMMITTED:
                return self._with_aborted(fetch, number, start_offset)
            return fetch
        return _nothing(self.bound(Isolation.LOG_END))

    def read_bytes(self, fetch: Fetch) -> bytes:
        """Return the bytes of a slice."""
        data = np.empty(fetch.size_bytes, np.uint8)
        if not fetch.size_bytes:
            return b""
        with closing(self.store.open_file(fetch.file)) as reader:
            return data[: reader.read_into(fetch.position, data)].tobytes()

    def bound(self, isolation: Isolation) -> Bound:
        """Return where reads of an isolation end."""
        log = self.log
        offset = {
            Isolation.LOG_END: log.log_end_offset,
            Isolation.READ_UNCOMMITTED: log.high_watermark,
            Isolation.READ_COMMITTED: log.last_stable_offset,
        }[isolation]
        if offset < log.log_end_offset:
            for segment in log.segments[self._floor(offset) :]:
                place = self.translate(segment, offset)
                if place is not None:
                    return Bound(
                        offset=place.base_offset,
                        segment_base_offset=segment.base_offset,
                        position=place.position,
                    )
        active = log.active_segment
        return Bound(
            offset=log.log_end_offset,
            segment_base_offset=active.base_offset,
            position=active.size_bytes,
        )

    def translate(self, segment: SegmentState, offset: int) -> BatchPlace | None:
        """Return the batch of a segment with an offset, or the next.

        None without one.
        """
        with closing(self.open_segment(segment)) as reader:
            position = self.indexes.offset_index(segment.base_offset).look_up(offset)
            start = checked_start(reader, segment.base_offset, segment.size_bytes, position, offset)
            return find_batch_for_offset(reader, offset, start=start, end=segment.size_bytes)

    def open_segment(self, segment: SegmentState) -> FileReader:
        """Open the .log file of a segment."""
        return self.store.open_file(self._file(segment))

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that reach into [first_offset, end_offset)."""
        return self._aborted_from(self._floor(first_offset), first_offset, end_offset)

    def _with_aborted(self, fetch: Fetch, number: int, start_offset: int) -> Fetch:
        """Add the aborted transactions that may have data in a slice."""
        index = self.indexes.offset_index(fetch.segment_base_offset)
        upper = index.find_offset_at(fetch.position + fetch.size_bytes)
        if upper is None:
            following = self.log.segments[number + 1 : number + 2]
            upper = following[0].base_offset if following else self.log.log_end_offset
        return Fetch(
            file=fetch.file,
            segment_base_offset=fetch.segment_base_offset,
            position=fetch.position,
            size_bytes=fetch.size_bytes,
            is_first_batch_incomplete=fetch.is_first_batch_incomplete,
            aborted=tuple(self._aborted_from(number, start_offset, upper)),
        )

    def _aborted_from(self, number: int, first_offset: int, end_offset: int) -> list[AbortedTxn]:
        indexes = (segment.aborted for segment in self.log.segments[number:])
        return collect_aborted(indexes, fetch_offset=first_offset, upper_bound_offset=end_offset)

    def _end_of(self, segment: SegmentState, bound: Bound) -> int | None:
        """Return the read limit of a segment; None beyond the bound."""
        if segment.base_offset < bound.segment_base_offset:
            return segment.size_bytes
        return bound.position if segment.base_offset == bound.segment_base_offset else None

    def _floor(self, offset: int) -> int:
        """Return the last segment's number with base <= offset, or 0."""
        return max(0, int(np.searchsorted(self._bases, offset, side="right")) - 1)

    def _file(self, segment: SegmentState) -> str:
        name = log_file(segment.base_offset)
        return name if name in self._names else segment.log_file

    def _check_range(self, offset: int) -> None:
        log = self.log
        if not max(log.log_start_offset, int(self._bases[0])) <= offset <= log.log_end_offset:
            raise OffsetOutOfRangeError(
                log.location, offset, log.log_start_offset, log.log_end_offset
            )


def _nothing(bound: Bound) -> Fetch:
    return Fetch(
        file="",
        segment_base_offset=bound.segment_base_offset,
        position=bound.position,
        size_bytes=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedWindow:
    """Some batches in file order."""

    window: Window  # the batches and their bytes; valid until the next one is asked for
    visible: NDArray[np.bool_]  # bool[batches], which of them a consumer sees
    first_offset: int  # records of the first batch below it were not asked for


def consume(
    reader: LogReader, start_offset: int, *, isolation: Isolation, max_bytes: int
) -> Iterator[ConsumedWindow]:
    """Read a log from an offset to where the isolation ends.

    Control batches are never visible; to a committed read the data of aborted transactions is not
    either.

    Args:
        start_offset: From the log start to the log end.
        max_bytes: How much to fetch at a time; a larger batch comes whole.
    """
    offset = start_offset
    while True:
        fetch = reader.read(offset, max_bytes=max_bytes, isolation=isolation, min_one_message=True)
        if fetch.size_bytes == 0:
            return
        committed = TransactionTracker(fetch.aborted)
        next_offset = offset
        with closing(reader.store.open_file(fetch.file)) as file:
            for window in scan_windows(
                file,
                start=fetch.position,
                end=fetch.position + fetch.size_bytes,
                # A batch that is larger comes whole, if its CRC is right.
                window_bytes=min(fetch.size_bytes, DEFAULT_WINDOW_BYTES),
                tail=Tail.STOP,
            ):
                batches = window.batches
                visible = ~batches.is_control
                if isolation is Isolation.READ_COMMITTED:
                    visible = committed.visible(batches)
                next_offset = int(batches.last_offset[-1]) + 1
                yield ConsumedWindow(window=window, visible=visible, first_offset=offset)
        if next_offset <= offset:  # the bound cut the only batch: nothing whole is left
            return
        offset = next_offset
