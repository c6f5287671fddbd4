"""Exchange keys between segments and buckets, for too large key sets.

This is pass one for key sets that fit no single process: what segments say, and who hears it.

The keys of a round are dealt out by their hash into *buckets*, small enough for one task each. A
segment sends each bucket its share of the keys, and of the records that have to ask whether a
newer one has their key: those below the dirty section. A bucket knows all records of its keys, so
it can say of each who survives, and pass two needs neither keys nor a map.

What is not about keys (batches' flags, transactions) goes to one task, the *fold*, which has to
see all segments of the partition in order (``merged.py``).
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels.offset_table import ORDINAL_BITS, ORDINAL_MASK
from storage_core.log.open_transactions import TransactionRows
from storage_core.maintenance.compaction.offset_map import OffsetMap
from storage_core.maintenance.compaction.partial import (
    CHUNK_KEYS,
    KeyColumns,
    SegmentKeys,
    SuspectColumns,
    find_aborted,
    rows_of_suspects,
)
from storage_core.maintenance.compaction.pass_one import (
    LOWEST_OFFSET,
    CleanPart,
    HashedBatches,
    SegmentReading,
    Stop,
)
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.throttler import Throttler
from storage_core.records.packing import pack_arrays, unpack_arrays
from storage_core.store.base import LogStore

# In place of a bucket: the task that sees the facts of all segments.
FOLD: Final = -1
# Numbers of a key, and of one of a batch that may be aborted.
_KEY_WORDS: Final = 3
_SUSPECT_WORDS: Final = 4
# Keys of one message: with 24 or 32 bytes each, a megabyte at most.
MESSAGE_KEYS: Final = 1 << 15
# A megabyte of them: what travels as one message.
_SURVIVORS_AT_ONCE: Final = 1 << 18
_HALF: Final = np.uint64(32)


class MessageKind(enum.IntEnum):
    """The content of a message. A bucket has to hear the kinds in this order."""

    ROWS = 0  # transactions of the producers that have an aborted one
    KEYS = 1  # (low, high, rank) of records that count
    SUSPECTS = 2  # (low, high, rank, row), of batches that may be aborted
    QUERIES = 3  # (low, high, rank) of records that survive unless their key is newer elsewhere
    FACTS = 4  # for the fold


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMessage:
    """What one segment tells one task."""

    bucket: int
    kind: MessageKind
    number: int
    content: bytes  # packed arrays


def send_segment(
    store: LogStore,
    plan: CompactionPlan,
    number: int,
    *,
    buckets: int,
    throttler: Throttler | None = None,
    threads: int = 1,
) -> Iterator[KeyMessage]:
    """Read one segment of a round and yield its messages.

    Args:
        plan: The round, without a limit of keys.
        throttler: Slows the reading down.
    """
    mailbox = _Mailbox(number, buckets)
    sink = _AskingKeys(plan, mailbox)
    segment = plan.round_segments[number]
    reading = SegmentReading(
        store, plan, [[segment]], sink, number=number, throttler=throttler, threads=threads
    )
    for _ in reading.windows():
        yield from mailbox.drain()
    sink.flush()
    mailbox.flush_queries()
    yield from mailbox.drain()
    rows = sink.rows()
    if len(plan.aborted_producers):
        is_dirty = segment.base_offset in plan.number_of_dirty
        content = pack_arrays(
            {"first_dirty_row": sink.first_dirty_row if is_dirty else None},
            rows_of_suspects(plan, rows).to_arrays(),
        )
        for bucket in range(buckets):
            yield KeyMessage(bucket=bucket, kind=MessageKind.ROWS, number=number, content=content)
    content = pack_arrays({}, rows.to_arrays() | reading.results().to_arrays())
    yield KeyMessage(bucket=FOLD, kind=MessageKind.FACTS, number=number, content=content)


def unpack_columns(content: bytes | memoryview, columns: int) -> NDArray[np.uint64]:
    """Return the columns of a message of keys, uint64[columns, n]."""
    # A copy: kernels are compiled for arrays that can be written.
    return np.frombuffer(content, np.uint64).reshape(columns, -1).copy()


def unpack_rows(content: bytes) -> tuple[dict[str, Any], TransactionRows]:
    """Return the facts and transactions of a ROWS message."""
    facts, arrays = unpack_arrays(content)
    return facts, TransactionRows.from_arrays(arrays)


class _Mailbox:
    """Gathers keys and queries and deals them out into messages."""

    def __init__(self, number: int, buckets: int) -> None:
        self._number = number
        self._buckets = np.uint64(buckets)
        self._queries: list[KeyColumns] = []
        self._query_count = 0
        self._messages: list[KeyMessage] = []

    def put(self, keys: KeyColumns) -> None:
        """Take keys that count in any case."""
        self._deal(MessageKind.KEYS, keys)

    def put_suspects(self, keys: SuspectColumns) -> None:
        """Take keys of batches that may turn out to be aborted."""
        self._deal(MessageKind.SUSPECTS, keys)

    def put_queries(
        self, low: NDArray[np.uint64], high: NDArray[np.uint64], rank: NDArray[np.int64]
    ) -> None:
        """Take keys of records that ask."""
        self._queries.append((low.copy(), high.copy(), rank.copy()))
        self._query_count += len(rank)
        if self._query_count >= CHUNK_KEYS:
            self.flush_queries()

    def flush_queries(self) -> None:
        """Deal out the queries gathered so far."""
        if self._query_count:
            columns = [np.concatenate(column) for column in zip(*self._queries, strict=True)]
            self._queries, self._query_count = [], 0
            self._deal(MessageKind.QUERIES, columns)

    def drain(self) -> Iterator[KeyMessage]:
        """Yield the messages that are complete."""
        messages, self._messages = self._messages, []
        yield from messages

    def _deal(self, kind: MessageKind, columns: Any) -> None:
        high = columns[1]
        # The upper half of the upper word, scaled: the table of a bucket probes by the lower word.
        bucket = (((high >> _HALF) * self._buckets) >> _HALF).astype(np.uint32)
        order = np.argsort(bucket, kind="stable")
        ends = np.cumsum(np.bincount(bucket, minlength=int(self._buckets)))
        rows = np.stack([column.view(np.uint64)[order] for column in columns])
        begin = 0
        for number, end in enumerate(ends.tolist()):
            for first in range(begin, end, MESSAGE_KEYS):
                share = rows[:, first : min(first + MESSAGE_KEYS, end)]
                content = np.ascontiguousarray(share).tobytes()
                self._messages.append(
                    KeyMessage(bucket=number, kind=kind, number=self._number, content=content)
                )
            begin = end


class _AskingKeys(SegmentKeys):
    """Collect the keys of one segment; query those below the dirty section."""

    clean_part = CleanPart.KEYS

    def __init__(self, plan: CompactionPlan, mailbox: _Mailbox) -> None:
        super().__init__(plan, mailbox)
        self._mailbox = mailbox
        self._first_dirty_offset = plan.first_dirty_offset

    def take(self, batches: HashedBatches, *, is_dirty: bool) -> Stop | None:
        """Take keys from the first dirty offset on; those below it ask."""
        keys = batches.keys
        collected = np.empty(0, np.int64)
        if is_dirty:
            super().take(batches, is_dirty=True)
            if not batches.may_reach_below(self._first_dirty_offset):
                return None
            collected = keys.rank[: keys.count].copy()
            batches.hash_from(LOWEST_OFFSET)
        here = slice(0, keys.count)
        asks = ~np.isin(keys.rank[here], collected)
        self._mailbox.put_queries(
            keys.low[here][asks], keys.high[here][asks], keys.rank[here][asks]
        )
        return None


class KeyBucket:
    """Hears the messages of all segments to one bucket, ordered by kind."""

    def __init__(self, plan: CompactionPlan) -> None:
        self._plan = plan
        self._map = OffsetMap()
        # Of the dirty segments.
        self._rows: dict[int, tuple[int, TransactionRows]] = {}
        self._is_aborted: dict[int, NDArray[np.bool_]] | None = None
        # Records of aborted batches: what they have to ask waits until every key is there.
        self._late: list[KeyColumns] = []
        self._alive: list[NDArray[np.int64]] = []
        self._last_kind = MessageKind.ROWS

    @property
    def key_count(self) -> int:
        """Distinct keys of the dirty section so far."""
        return len(self._map)

    def hear(self, kind: MessageKind, number: int, content: bytes | memoryview) -> None:
        """Take one message."""
        if kind < self._last_kind:
            raise ValueError(f"a message of kind {kind.name} after one of {self._last_kind.name}")
        self._last_kind = kind
        if kind is MessageKind.ROWS:
            facts, rows = unpack_rows(bytes(content))
            if facts["first_dirty_row"] is not None:
                self._rows[number] = (facts["first_dirty_row"], rows)
        elif kind is MessageKind.KEYS:
            low, high, rank = unpack_columns(content, _KEY_WORDS)
            self._map.put(low, high, rank.view(np.int64), len(rank))
        elif kind is MessageKind.SUSPECTS:
            self._hear_suspects(number, content)
        else:
            low, high, rank = unpack_columns(content, _KEY_WORDS)
            self._ask(low, high, rank.view(np.int64))

    def survivors(self) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        """Yield, by segment of the round, the ordinals of its survivors. Many of one segment
        come in several arrays."""
        for low, high, rank in self._late:
            self._ask(low, high, rank)
        _, _, newest = self._map.entries()
        ranks = np.sort(np.concatenate([newest, *self._alive]))
        numbers = ranks >> ORDINAL_BITS
        ordinals = (ranks & ORDINAL_MASK).astype(np.uint32)
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        ends = [*begins[1:].tolist(), len(ranks)]
        for begin, end in zip(begins.tolist(), ends, strict=False):
            for first in range(begin, end, _SURVIVORS_AT_ONCE):
                here = slice(first, min(first + _SURVIVORS_AT_ONCE, end))
                yield int(numbers[begin]), ordinals[here]

    def _hear_suspects(self, number: int, content: bytes | memoryview) -> None:
        low, high, rank, row = unpack_columns(content, _SUSPECT_WORDS)
        if self._is_aborted is None:
            numbers = sorted(self._rows)
            aborted = find_aborted(self._plan, (self._rows[one] for one in numbers))
            self._is_aborted = dict(zip(numbers, aborted, strict=True))
        is_aborted = self._is_aborted[number][row.view(np.int64)]
        ranks = rank.view(np.int64)
        lives = ~is_aborted
        self._map.put(low[lives], high[lives], ranks[lives], int(lives.sum()))
        if is_aborted.any():
            self._late.append((low[is_aborted], high[is_aborted], ranks[is_aborted]))

    def _ask(
        self, low: NDArray[np.uint64], high: NDArray[np.uint64], rank: NDArray[np.int64]
    ) -> None:
        offsets = self._map.look_up(low, high, len(rank))
        self._alive.append(rank[rank >= offsets])
