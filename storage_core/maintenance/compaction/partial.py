"""Spread pass one over processes: one partial index for each segment. The partial indexes are
merged afterwards.

A segment can be indexed without knowing the ones before it, but for one thing: whether a
transactional batch was aborted depends on what came before. The keys of the batches that may be
(their producer has an aborted transaction in the range: a *suspect*) are therefore kept apart, by
batch, until the merge has run the transaction tracker over all segments in order.

Keys are gathered in a small map, so that of the records of one key that lie near each other only
the newest goes on; a full map is emptied. What comes out may hold a key several times, once a
map: the merge keeps the largest rank.

Only rounds without a limit of keys can be spread like this (``CompactionPlan.max_keys`` is None).
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import StorageError
from storage_core.json_values import parse_json
from storage_core.local_files import create_file, open_file
from storage_core.log.loaded_log import SegmentState
from storage_core.log.open_transactions import TransactionRows, TransactionTracker
from storage_core.maintenance.compaction.index import IndexedSegment
from storage_core.maintenance.compaction.offset_map import OffsetMap
from storage_core.maintenance.compaction.pass_one import (
    NO_ROW,
    Choice,
    CleanPart,
    HashedBatches,
    SegmentReading,
    Stop,
)
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.throttler import Throttler
from storage_core.records.packing import pack_arrays, unpack_arrays
from storage_core.records.reader import Window
from storage_core.store.base import LogStore

# Store key entries and arrays in scratch files, mapped into memory. They are for processes of one
# host.
#
# A *stream* is a file of rows ``uint64[n, columns]``, appended to block by block and mapped when
# it is complete. A *set* is a file of named arrays with a few facts: a line of JSON that says
# where each array begins, then the arrays, each at a multiple of 64 bytes. Both live no longer
# than the wave that made them, on the host that made them: bytes are in the machine's own order,
# nothing is synced.

_ALIGNMENT: Final = 64
_MAX_HEAD_BYTES: Final = 16 << 20  # facts of one set, and a line for each of its arrays
# What a reader takes out of a mapped stream at a time: 24 MiB of 24-byte rows.
BLOCK_ROWS: Final = 1 << 20

T = TypeVar("T")


class _NewFile:
    """A file that is created; a context manager that closes it."""

    def __init__(self, path: Path, columns: int) -> None:
        self._path = path
        self._columns = columns
        self._file = _failing_as_storage(path, lambda: os.fdopen(create_file(path), "rb+"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class StreamWriter(_NewFile):
    """Appends rows to a stream."""

    rows = 0

    def append(self, *columns: NDArray[Any]) -> None:
        """Append rows given as columns of 64-bit numbers, all of one length."""
        rows = np.empty((len(columns[0]), self._columns), np.uint64)
        for number, column in enumerate(columns):
            rows[:, number] = column.view(np.uint64)
        _failing_as_storage(self._path, lambda: self._file.write(rows.data))
        self.rows += len(rows)


def read_stream(path: Path, columns: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the rows of a complete stream in blocks, copied by columns.

    Yields:
        uint64[columns, n], n at most BLOCK_ROWS; a row of it is contiguous.
    """
    mapped = _map(path, np.uint64, (-1, columns))
    for first in range(0, len(mapped), BLOCK_ROWS):
        yield np.ascontiguousarray(mapped[first : first + BLOCK_ROWS].T)


def write_set(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays and facts (as JSON) to a file."""
    described = [[name, str(array.dtype), list(array.shape)] for name, array in arrays.items()]
    head = json.dumps({"facts": facts, "arrays": described}).encode() + b"\n"

    def write() -> None:
        with os.fdopen(create_file(path), "wb") as file:
            file.write(head)
            for array in arrays.values():
                file.write(bytes(-file.tell() % _ALIGNMENT))
                file.write(np.ascontiguousarray(array).data)

    _failing_as_storage(path, write)


def map_set(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the facts and arrays of a file, mapped into memory. The arrays' bytes stay in the page
    cache.

    A change of an array is seen by nobody else, and not written back.
    """
    mapped = _map(path, np.uint8, (-1,))
    end = _failing_as_storage(path, lambda: _end_of_line(path))
    head = parse_json(mapped[:end].tobytes(), limit_bytes=_MAX_HEAD_BYTES)
    arrays: dict[str, NDArray[Any]] = {}
    position = end
    for name, kind, shape in head["arrays"]:
        position += -position % _ALIGNMENT
        size = int(np.dtype(kind).itemsize * np.prod(shape, dtype=np.int64))
        arrays[name] = mapped[position : position + size].view(kind).reshape(shape)
        position += size
    return head["facts"], arrays


class FiledTable(_NewFile):
    """A table's memory in a file instead of the process."""

    def extend(self, slots: int) -> NDArray[np.uint64]:
        """Extend the table to so many rows, with zeros behind. It keeps the rows that it has."""

        def extend() -> NDArray[np.uint64]:
            size = slots * self._columns * np.dtype(np.uint64).itemsize
            # With its blocks: a disk that is full is an error here, and a dead process later.
            os.posix_fallocate(self._file.fileno(), 0, size)
            table = np.memmap(self._file, np.uint64, "r+", shape=(slots, self._columns))
            return np.asarray(table)

        return _failing_as_storage(self._path, extend)


def map_table(path: Path, columns: int) -> NDArray[np.uint64]:
    """Map the current table of a `FiledTable`; changes stay in this process."""
    return _map(path, np.uint64, (-1, columns))


def _map(path: Path, kind: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    def open_mapped() -> NDArray[Any]:
        with os.fdopen(open_file(path), "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty([max(0, size) for size in shape], kind)
            # Copy on write: kernels are compiled for arrays that can be written.
            return np.asarray(np.memmap(file, kind, "c")).reshape(shape)

    return _failing_as_storage(path, open_mapped)


def _end_of_line(path: Path) -> int:
    with os.fdopen(open_file(path), "rb") as file:
        return len(file.readline(_MAX_HEAD_BYTES + 1))


def _failing_as_storage(path: Path, step: Callable[[], T]) -> T:
    try:
        return step()
    except OSError as error:
        raise StorageError(str(path), error.strerror or str(error)) from error


# Keys of the small map: 24 MiB of entries, and a table of 48 MiB.
CHUNK_KEYS: Final = 1 << 20
KEY_WORDS: Final = 3
SUSPECT_WORDS: Final = 4

# (low, high, rank), and with the row of the batch of each.
KeyColumns = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]
SuspectColumns = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]

_KEY_ARRAYS: Final = {"low": np.uint64, "high": np.uint64, "rank": np.int64}
_SUSPECT_ARRAYS: Final = {
    "suspect_low": np.uint64,
    "suspect_high": np.uint64,
    "suspect_rank": np.int64,
    "suspect_row": np.int64,
}


class KeyReceiver(Protocol):
    """Where the keys of one segment go."""

    def put(self, keys: KeyColumns) -> None:
        """Take keys that count in any case."""
        ...

    def put_suspects(self, keys: SuspectColumns) -> None:
        """Take keys of batches that may turn out to be aborted."""
        ...


class SegmentKeys:
    """Takes the keys of one segment, those of suspects apart.

    Args:
        plan: The round, without a limit of keys.

    Attributes:
        suspects: Rows of suspects' batches and markers that were seen so far.
        first_dirty_row: How many of them lie before the dirty part.
    """

    clean_part = CleanPart.HEADERS

    def __init__(self, plan: CompactionPlan, receiver: KeyReceiver) -> None:
        if plan.max_keys is not None:
            raise ValueError("a round with a limit of keys cannot be spread over segments")
        self.first_dirty_row = 0
        self._receiver = receiver
        self._producers = plan.aborted_producers
        self._rows: list[TransactionRows] = []
        self._suspect_row_count = 0
        self._map = OffsetMap()

    def choose(self, window: Window, *, is_dirty: bool) -> Choice:
        """Take note of transactions; all but control batches may have keys."""
        batches = window.batches
        rows, transactions = TransactionRows.select(batches)
        self._rows.append(transactions)
        of_suspect = np.isin(batches.producer_id, self._producers)
        wanted = ~batches.is_control
        of_suspect_rows = rows[of_suspect[rows]]
        suspect_row = np.full(len(batches), NO_ROW, np.int64)
        suspect_row[of_suspect_rows] = self._suspect_row_count + np.arange(len(of_suspect_rows))
        suspect_row[~(wanted & batches.is_transactional)] = NO_ROW
        self._suspect_row_count += len(of_suspect_rows)
        if not is_dirty:
            self.first_dirty_row = self._suspect_row_count
        return Choice(wanted, suspect_row)

    def take(self, batches: HashedBatches, *, is_dirty: bool) -> Stop | None:  # noqa: ARG002  # all are alike
        """Take keys into the small map; keep suspects apart. Of the records of one key that are
        in the map together, the newest goes on."""
        keys, count = batches.keys, batches.keys.count
        low, high, rank = keys.low[:count], keys.high[:count], keys.rank[:count]
        suspect_row = batches.choice.suspect_row[batches.payload.first_row + keys.batch[:count]]
        apart = suspect_row != NO_ROW
        if apart.any():
            self._receiver.put_suspects((low[apart], high[apart], rank[apart], suspect_row[apart]))
            low, high, rank = low[~apart], high[~apart], rank[~apart]
        self._map.put(low, high, rank, len(rank))
        if len(self._map) >= CHUNK_KEYS:
            self.flush()
        return None

    def flush(self) -> None:
        """Hand on what is in the small map."""
        if len(self._map):
            self._receiver.put(self._map.entries())
            self._map = OffsetMap()

    def rows(self) -> TransactionRows:
        """Return the transactional and control batches of all windows seen."""
        return TransactionRows.concatenate(self._rows)


def rows_of_suspects(plan: CompactionPlan, rows: TransactionRows) -> TransactionRows:
    """Return the rows of producers with aborted transactions. They can tell which batches of a
    round were aborted."""
    return rows.of_producers(plan.aborted_producers)


def find_aborted(
    plan: CompactionPlan, segments: Iterable[tuple[int, TransactionRows]]
) -> Iterator[NDArray[np.bool_]]:
    """Yield, segment by segment, which rows of suspects belong to aborted transactions.

    Args:
        segments: Of each dirty segment, oldest first: how many rows lie before its dirty part, and
            all its rows of suspects. Of those before nothing is aborted.
    """
    tracker = TransactionTracker()
    tracker.add_aborted(plan.aborted_of_round)
    for first_dirty_row, rows in segments:
        discard = np.zeros(len(rows), bool)
        discard[first_dirty_row:], _ = tracker.decide(rows.rows_from(first_dirty_row))
        yield discard


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialIndex:
    """What one segment of a round says."""

    segment: IndexedSegment  # what pass one noted of it
    # Whether its keys were collected; of the others only transactions are of interest.
    is_dirty: bool
    rows: TransactionRows  # the transactional and control batches of the whole segment
    first_dirty_row: int  # how many rows of suspects lie before its dirty part
    keys: tuple[KeyColumns, ...] = ()  # its keys, in blocks; one may come several times
    # Keys of suspects' records, with the row of suspects that each belongs to.
    suspects: tuple[SuspectColumns, ...] = ()
    # Of the streams that hold the keys in place of these blocks, None without.
    prefix: Path | None = None

    @property
    def base_offset(self) -> int:
        """Which segment."""
        return self.segment.base_offset

    def key_blocks(self) -> Iterator[KeyColumns]:
        """Yield the segment's keys; one may come several times."""
        if self.prefix is not None:
            for low, high, rank in read_stream(_keys_file(self.prefix), KEY_WORDS):
                yield low, high, rank.view(np.int64)
        yield from self.keys

    def suspect_blocks(self) -> Iterator[SuspectColumns]:
        """Yield the records of batches that may be aborted."""
        if self.prefix is not None:
            for low, high, rank, row in read_stream(_suspects_file(self.prefix), SUSPECT_WORDS):
                yield low, high, rank.view(np.int64), row.view(np.int64)
        yield from self.suspects

    def to_bytes(self) -> bytes:
        """Pack the partial index into bytes for another process. The other process belongs to
        the same run."""
        return pack_arrays(*self._parts())

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> "PartialIndex":
        """Return what to_bytes packed."""
        return cls._of(*unpack_arrays(data))

    def to_file(self, prefix: Path) -> None:
        """Write the partial index beside the streams that hold its keys."""
        write_set(_partial_file(prefix), *self._parts())

    @classmethod
    def from_file(cls, prefix: Path) -> "PartialIndex":
        """Return what to_file wrote, mapped into memory."""
        return cls._of(*map_set(_partial_file(prefix)), prefix=prefix)

    def _parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        facts = {"is_dirty": self.is_dirty, "first_dirty_row": self.first_dirty_row}
        segment, arrays = self.segment.to_parts()
        arrays |= _join(self.keys, _KEY_ARRAYS) | _join(self.suspects, _SUSPECT_ARRAYS)
        return facts | {"segment": segment}, arrays | self.rows.to_arrays()

    @classmethod
    def _of(
        cls, facts: dict[str, Any], arrays: dict[str, NDArray[Any]], prefix: Path | None = None
    ) -> "PartialIndex":
        low, high, rank = (arrays[name] for name in _KEY_ARRAYS)
        suspect_low, suspect_high, suspect_rank, row = (arrays[name] for name in _SUSPECT_ARRAYS)
        return cls(
            segment=IndexedSegment.from_parts(facts["segment"], arrays),
            is_dirty=facts["is_dirty"],
            rows=TransactionRows.from_arrays(arrays),
            first_dirty_row=facts["first_dirty_row"],
            keys=((low, high, rank),),
            suspects=((suspect_low, suspect_high, suspect_rank, row),),
            prefix=prefix,
        )


def _join(
    blocks: Iterable[KeyColumns | SuspectColumns], names: Mapping[str, type]
) -> dict[str, NDArray[Any]]:
    """Return the columns of all blocks end to end, by name."""
    listed = list(blocks)
    return {
        name: np.concatenate([np.empty(0, kind), *(block[number] for block in listed)])
        for number, (name, kind) in enumerate(names.items())
    }


class _MemoryReceiver:
    """Keeps the keys in memory."""

    def __init__(self) -> None:
        self.keys: list[KeyColumns] = []
        self.suspects: list[SuspectColumns] = []

    def put(self, keys: KeyColumns) -> None:
        self.keys.append(keys)

    def put_suspects(self, keys: SuspectColumns) -> None:
        self.suspects.append(keys)


class _FileReceiver(_MemoryReceiver):
    """Writes the keys to two streams; a context manager that closes them.

    Args:
        prefix: Path of the streams but for their endings.
    """

    def __init__(self, prefix: Path) -> None:
        super().__init__()
        self._keys = StreamWriter(_keys_file(prefix), KEY_WORDS)
        self._suspects = StreamWriter(_suspects_file(prefix), SUSPECT_WORDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keys.__exit__(kind, error, trace)
        self._suspects.__exit__(kind, error, trace)

    def put(self, keys: KeyColumns) -> None:
        self._keys.append(*keys)

    def put_suspects(self, keys: SuspectColumns) -> None:
        self._suspects.append(*keys)


def index_segment(
    store: LogStore,
    plan: CompactionPlan,
    segment: SegmentState,
    *,
    prefix: Path | None = None,
    throttler: Throttler | None = None,
    threads: int = 1,
) -> PartialIndex:
    """Read one segment of a round.

    Args:
        plan: The round, without a limit of keys.
        prefix: Path, but for their endings, of scratch files for ``PartialIndex.from_file``; None
            to keep the keys in memory.
        throttler: Slows the reading down.
    """
    number = plan.number_of_dirty.get(segment.base_offset)
    opened: AbstractContextManager[_MemoryReceiver] = (
        nullcontext(_MemoryReceiver()) if prefix is None else _FileReceiver(prefix)
    )
    with opened as receiver:
        sink = SegmentKeys(plan, receiver)
        indexed = SegmentReading(
            store,
            plan,
            segment,
            sink,
            number=number or 0,
            throttler=throttler,
            threads=threads,
        ).run()
        sink.flush()
    index = PartialIndex(
        segment=indexed,
        is_dirty=number is not None,
        rows=sink.rows(),
        first_dirty_row=sink.first_dirty_row,
        keys=tuple(receiver.keys),
        suspects=tuple(receiver.suspects),
        prefix=prefix,
    )
    if prefix is not None:
        index.to_file(prefix)
    return index


def _keys_file(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".keys")


def _suspects_file(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".suspects")


def _partial_file(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".partial")
