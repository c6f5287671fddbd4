"""The index of a round: pass one's results, asked by pass two.

``pass_one.py`` makes it in process; spread over executors it comes of a merge of partial indexes
(``merged.py``), or of keys that were exchanged by hash (``exchanged_index.py``).
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import Codec
from storage_core.kernels.offset_table import ORDINAL_BITS
from storage_core.kernels.record_scan import EXPANDED, IN_WINDOW
from storage_core.maintenance.compaction.offset_map import KeyBlock, OffsetMap
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.records.batch_table import BatchNotes
from storage_core.records.codecs import Arena
from storage_core.records.payload import Payload
from storage_core.records.reader import Window, WindowRoom

# Buffers that are used again for every window of a round.
#
# The first touch of a page costs as much as the work on what then lies in it, so neither a segment
# nor the second pass begins with new memory.


_LEAST_NOTES: Final = 1024


class WindowBuffers:
    """Memory for what is made of one window.

    Attributes:
        raw: For rebuilt records before they are compressed.
    """

    def __init__(self, plan: CompactionPlan) -> None:
        self.keys = KeyBlock(plan.offset_map_hash, bytes.fromhex(plan.hash_key))
        self.arena = Arena()
        self.raw = Arena()
        self.packed = Arena()
        self.out = Arena()
        self._notes = BatchNotes.empty(0)

    def notes(self, count: int) -> BatchNotes:
        """Return room for the notes of the window's batches."""
        if len(self._notes) < count:
            self._notes = BatchNotes.empty(count + count // 2)
        return self._notes.rows(0, count)

    def more_notes(self, count: int = 0) -> BatchNotes:
        """Return all the room that there is for notes: for more batches than a number."""
        if len(self._notes) <= count:
            self.notes(max(2 * count, _LEAST_NOTES))
        return self._notes


class RoundBuffers:
    """The buffers of one round, used in turns. A segment goes on with them where the one before it
    ended.

    Attributes:
        windows: Where the windows themselves lie, as `scan_windows` takes them.
    """

    def __init__(self) -> None:
        self.windows: deque[WindowRoom] = deque()
        self._buffers: deque[WindowBuffers] = deque()

    def reserve(self, count: int, plan: CompactionPlan) -> None:
        """Provide buffers for so many windows, valid at the same time."""
        while len(self._buffers) < count:
            self.windows.append(WindowRoom())
            self._buffers.append(WindowBuffers(plan))

    @property
    def following(self) -> WindowBuffers:
        """What `next` will return."""
        return self._buffers[0]

    def next(self) -> WindowBuffers:
        """Return the buffers for what is made of the next window."""
        self._buffers.rotate(-1)
        return self._buffers[-1]


# Keep decompressed records from pass one for pass two. They are kept while there is room.
#
# Pass two needs the batches again of which some records stay. Where both passes run in one process
# it asks here first; what it does not find it decompresses once more.

# The most that is kept between the passes. Later batches have more records that stay, so the
# earlier ones go first.
KEPT_BYTES: Final = 128 * 1024 * 1024
# And how many times the bytes of a log: small ones are cleaned many at a time, and a few bytes may
# expand to very many.
KEPT_RATIO: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptBatches:
    """A payload's facts about the batches of a window, without the window."""

    window_bytes: int
    # int64[batches], where they begin, counted from the window's first byte.
    position: NDArray[np.int64]
    size: NDArray[np.int64]  # int64[batches], how many bytes they have
    arena: NDArray[np.uint8]  # uint8[], as in Payload
    place: NDArray[np.int64]  # int64[batches], as in BatchNotes; the next two, too
    records_start: NDArray[np.int64]  # int64[batches]
    records_end: NDArray[np.int64]  # int64[batches]


class KeptRecords:
    """Decompressed records of whole windows, by file and position. The first ones go first. Any
    thread may take what one has put.

    Args:
        limit_bytes: The most to keep, at least 0.
    """

    def __init__(self, limit_bytes: int = 0) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._entries: OrderedDict[tuple[str, int], _KeptBatches] = OrderedDict()
        self._taking = threading.Lock()

    def put(self, payload: Payload) -> bool:
        """Keep a payload; return whether its arena was taken over. Such an arena may not be used
        again.

        Only one that has all of a window and nothing of the formats before v2 is kept.
        """
        window = payload.window
        size = payload.arena.size
        is_whole = payload.first_row == 0 and payload.end_row == len(window.batches)
        if not size or size > self._limit_bytes or not is_whole:
            return False
        if not (payload.notes.place <= EXPANDED).all():
            return False
        while self._used_bytes + size > self._limit_bytes:
            _, gone = self._entries.popitem(last=False)
            self._used_bytes -= gone.arena.size
        self._used_bytes += size
        self._entries[window.file, window.file_position] = _KeptBatches(
            window_bytes=len(window.data),
            # The window's table is overwritten by the next one's.
            position=window.batches.position.copy(),
            size=window.batches.size.copy(),
            arena=payload.arena,
            place=payload.notes.place.copy(),
            records_start=payload.notes.records_start.copy(),
            records_end=payload.notes.records_end.copy(),
        )
        return True

    def take(self, window: Window, wanted: NDArray[np.bool_], notes: BatchNotes) -> Payload | None:
        """Return and forget the wanted batches of a window. None where one of them was not kept.

        Args:
            wanted: bool[batches].
            notes: Those of the window, to which the places of the records are added.
        """
        place = window.file, window.file_position
        entry = self._entries.get(place)
        batches = window.batches
        if entry is None or entry.window_bytes != len(window.data):
            return None
        # Some of the batches may be left out.
        rows = np.searchsorted(entry.position[:-1], batches.position)
        if (entry.position[rows] != batches.position).any() or (
            entry.size[rows] != batches.size
        ).any():
            return None
        is_compressed = (batches.codec != Codec.NONE) & (batches.record_count != 0)
        is_missing = batches.is_legacy | (is_compressed & (entry.place[rows] == IN_WINDOW))
        if (wanted & is_missing).any():
            return None
        with self._taking:
            self._used_bytes -= self._entries.pop(place).arena.size
        notes.place[:] = entry.place[rows]
        notes.records_start[:] = entry.records_start[rows]
        notes.records_end[:] = entry.records_end[rows]
        payload = Payload(
            window=window,
            batches=batches,
            first_row=0,
            end_row=len(batches),
            arena=entry.arena,
            notes=notes,
        )
        payload.check_counts(wanted)
        return payload


# Keep hashes of keys from pass one for pass two. Pass two puts those of the records that stay into
# sidecars.
#
# What is not kept costs the next round something, and nothing else: it hashes those keys again.

# The most that is kept: 320 MB of them.
KEPT_HASHES: Final = 16_000_000


# Ordinals, and the halves of their hashes.
_Part = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]


class KeptHashes:
    """Hashes of keys by segment and ordinal, up to a limit. Later ones are not kept where there is
    no room.

    Args:
        limit: The most to keep, at least 0.
    """

    def __init__(self, limit: int = 0) -> None:
        self._left = limit
        self._parts: dict[int, list[_Part]] = {}

    def put(self, base_offset: int, keys: KeyBlock, first_rank: int) -> None:
        """Keep the hashes of some batches of a segment. The ranks of the segment begin at
        first_rank."""
        if self._left <= 0:
            # The segment's ordinals would have holes.
            self._parts.pop(base_offset, None)
            return
        self._left -= keys.count
        here = slice(keys.count)
        part = (
            keys.rank[here] - first_rank,
            keys.low[here].copy(),
            keys.high[here].copy(),
        )
        self._parts.setdefault(base_offset, []).append(part)

    def take(
        self, base_offset: int, record_count: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]] | None:
        """Return and forget the hashes of a segment's records. None where not all of them were
        kept.

        Returns:
            (low, high): uint64[record_count], by ordinal; 0 for a record that was not hashed.
        """
        parts = self._parts.pop(base_offset, None)
        if parts is None:
            return None
        halves = np.zeros((2, record_count), np.uint64)
        for ordinal, low, high in parts:
            if not ordinal.size:
                continue
            place: NDArray[np.int64] | slice = ordinal
            if ordinal[-1] - ordinal[0] == ordinal.size - 1:
                place = slice(int(ordinal[0]), int(ordinal[-1]) + 1)  # copied at once
            halves[0, place], halves[1, place] = low, high
        return halves[0], halves[1]


NO_OFFSET = -1
_WORD_BITS = 64


# What pass one counts of a segment.
BASE_OFFSET: Final = 0
START_POSITION: Final = 1
BATCHES: Final = 2  # from there on
LEGACY_SETS: Final = 3  # those of them that are of a legacy format and have ordinals
RECORDS: Final = 4  # that have ordinals
BYTES_READ: Final = 5  # bytes of the batches of its dirty part
MESSAGES_READ: Final = 6  # records of those, markers included
NOTED_COLUMNS: Final = 7


@dataclass(frozen=True, kw_only=True)  # no slots: each run of segments asks for its place
class IndexedSegments:
    """What pass one noted of some segments, oldest first."""

    columns: NDArray[np.int64]  # int64[NOTED_COLUMNS, n], what it counted of each
    # uint8[], of each batch from the start positions on (record_scan.INDEXED and so on).
    flags: NDArray[np.uint8]
    # int64[], records of the batches of legacy formats that have ordinals: their headers do not
    # say.
    legacy_counts: NDArray[np.int64]

    @classmethod
    def join(cls, several: "Iterable[IndexedSegments]") -> "IndexedSegments":
        """Return several together, in their order."""
        parts = [_NO_SEGMENTS, *several]
        return cls(
            columns=np.concatenate([part.columns for part in parts], axis=1),
            flags=np.concatenate([part.flags for part in parts]),
            legacy_counts=np.concatenate([part.legacy_counts for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.columns[0])

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """Number of each segment among them, by base offset."""
        return {base: number for number, base in enumerate(self.columns[BASE_OFFSET].tolist())}

    @cached_property
    def word_bounds(self) -> NDArray[np.int64]:
        """int64[n + 1]: first 64-bit word of each segment's bitmap, and the total."""
        words = (self.columns[RECORDS] + (_WORD_BITS - 1)) // _WORD_BITS
        return np.concatenate([_ZERO, np.cumsum(words)])

    def sum_of(self, column: int) -> int:
        """Return what was counted of all segments together."""
        return int(self.columns[column].sum())

    def between(self, first: int, end: int) -> "IndexedSegments":
        """Return the segments of some numbers."""
        skipped, here = (self.columns[:, part].sum(axis=1) for part in (slice(first), slice(end)))
        return IndexedSegments(
            columns=self.columns[:, first:end],
            flags=self.flags[skipped[BATCHES] : here[BATCHES]],
            legacy_counts=self.legacy_counts[skipped[LEGACY_SETS] : here[LEGACY_SETS]],
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return its arrays by name, for packing. They are packed together with others."""
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "IndexedSegments":
        """Return what ``to_arrays`` took apart."""
        parts: dict[str, Any] = {name: arrays[name] for name in _ARRAYS}
        return cls(**parts)


_ARRAYS: Final = ("columns", "flags", "legacy_counts")
_ZERO: Final = np.zeros(1, np.int64)
_NO_SEGMENTS: Final = IndexedSegments(
    columns=np.empty((NOTED_COLUMNS, 0), np.int64),
    flags=np.empty(0, np.uint8),
    legacy_counts=np.empty(0, np.int64),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """What pass one read."""

    bytes_read: int
    messages_read: int  # records, markers included
    keys: int  # distinct keys found


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionIndex:
    """The result of pass one."""

    offset_map: OffsetMap  # every key's newest record, for records that have no bit
    segments: IndexedSegments  # what was noted of them
    words: NDArray[np.uint64]  # uint64[], survivors' bitmaps of all of them, one behind the other
    latest_offset: int  # records above it are not touched, -1 where nothing was mapped
    stats: IndexStats
    # Records of batches that were decompressed, some or none.
    records: KeptRecords = field(default_factory=KeptRecords)
    pool: RoundBuffers = field(default_factory=RoundBuffers)
    # Of the keys of the segments, some or none.
    hashes: KeptHashes = field(default_factory=KeptHashes)

    @property
    def end_offset(self) -> int:
        """Segments below it are rewritten, and the next round begins there."""
        return self.latest_offset + 1

    def bitmaps_of(self, first: int, end: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the survivors' bitmaps of the segments of some numbers, as a view, and int64[],
        the first bit of each of them."""
        bounds = self.segments.word_bounds[first : end + 1]
        return self.words[bounds[0] : bounds[-1]], (bounds[:-1] - bounds[0]) * _WORD_BITS


def words_for(record_count: int) -> int:
    """Return how many 64-bit words hold a bit for each record."""
    return (record_count + _WORD_BITS - 1) // _WORD_BITS


_Number = TypeVar("_Number", int, NDArray[np.int64])


def rank_of(segment_number: _Number, ordinal: _Number) -> _Number:
    """Return a rank: number of the dirty segment, then ordinal. The number is in the upper bits,
    the ordinal in the lower ones."""
    return ordinal + (segment_number << ORDINAL_BITS)
