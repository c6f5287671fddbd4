"""Pass one for key sets that fit no single process: what each segment says, as messages.

The keys of a round are dealt out by their hash into *buckets*, small enough for one task each. A
segment sends each bucket its share of the keys, and of the records that have to ask whether a
newer one has their key: those below the dirty section. A bucket knows all records of its keys, so
it can say of each who survives (``key_bucket.py``), and pass two needs neither keys nor a map.

What is not about keys (batches' flags, transactions) goes to one task, the *fold*, which has to
see all segments of the partition in order (``exchanged_index.py``).
"""

import enum
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.log.transaction_tracker import TransactionRows
from storage_core.maintenance.compaction.index import (
    check_batches,
    legacy_counts_of,
    rank_of,
    start_position,
)
from storage_core.maintenance.compaction.key_sink import CHUNK_KEYS, ChunkedKeys, SuspectBlock
from storage_core.maintenance.compaction.key_sink import KeyBlock as Keys
from storage_core.maintenance.compaction.offset_map import KeyBlock
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.throttler import UNLIMITED, Throttler
from storage_core.records.packing import pack_arrays, unpack_arrays
from storage_core.records.payload import Payload, open_batches
from storage_core.records.reader import CrcCheck, Window, scan_windows
from storage_core.store.base import LogStore

# In place of a bucket: the task that sees the facts of all segments.
FOLD: Final = -1
# Keys of one message: with 24 or 32 bytes each, a megabyte at most.
MESSAGE_KEYS: Final = 1 << 15
_LOWEST_OFFSET: Final = -(2**63)
_HALF: Final = np.uint64(32)


class MessageKind(enum.IntEnum):
    """What a message says; a bucket has to hear the kinds in this order."""

    ROWS = 0  # transactions of the producers that have an aborted one
    KEYS = 1  # (low, high, rank) of records that count
    SUSPECTS = 2  # (low, high, rank, row), of batches that may be aborted
    QUERIES = 3  # (low, high, rank) of records that survive unless their key is newer elsewhere
    FACTS = 4  # for the fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What one segment tells one task.

    Attributes:
        bucket: Which bucket, or FOLD.
        kind: What it says.
        number: Number of the segment in the round.
        content: Packed arrays.
    """

    bucket: int
    kind: MessageKind
    number: int
    content: bytes


def send_segment(
    store: LogStore,
    plan: CompactionPlan,
    number: int,
    *,
    buckets: int,
    throttler: Throttler | None = None,
) -> Iterator[Message]:
    """Read one segment of a round and yield what it has to say.

    Args:
        store: The partition directory.
        plan: The round, without a limit of keys.
        number: Of the segment in the round.
        buckets: How many buckets there are.
        throttler: Slows the reading down.

    Raises:
        BadBytesError: A batch or record is malformed; its text has file and position.
        StorageError: A file cannot be read.
    """
    if plan.max_keys is not None:
        raise ValueError("a round with a limit of keys cannot be spread over segments")
    yield from _Sender(store, plan, number, buckets, throttler or Throttler(UNLIMITED)).run()


def unpack_columns(content: bytes | memoryview, columns: int) -> NDArray[np.uint64]:
    """Return the columns of a message of keys, uint64[columns, n]."""
    # A copy: kernels are compiled for arrays that can be written.
    return np.frombuffer(content, np.uint64).reshape(columns, -1).copy()


def unpack_rows(content: bytes) -> tuple[dict[str, Any], TransactionRows]:
    """Return the facts and the transactions of a message of rows or facts."""
    facts, arrays = unpack_arrays(content)
    return facts, TransactionRows.from_arrays(arrays)


class _Mailbox:
    """Gathers keys and queries and deals them out into messages."""

    def __init__(self, number: int, buckets: int) -> None:
        self._number = number
        self._buckets = np.uint64(buckets)
        self._queries: list[Keys] = []
        self._query_count = 0
        self._messages: list[Message] = []

    def put(self, block: Keys) -> None:
        """Take keys that count in any case."""
        self._deal(MessageKind.KEYS, block)

    def put_suspects(self, block: SuspectBlock) -> None:
        """Take keys of batches that may turn out to be aborted."""
        self._deal(MessageKind.SUSPECTS, block)

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

    def drain(self) -> Iterator[Message]:
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
                    Message(bucket=number, kind=kind, number=self._number, content=content)
                )
            begin = end


class _Sender:
    """Reads one segment from its first byte to its last."""

    def __init__(
        self,
        store: LogStore,
        plan: CompactionPlan,
        number: int,
        buckets: int,
        throttler: Throttler,
    ) -> None:
        self._store = store
        self._plan = plan
        self._number = number
        self._buckets = buckets
        self._throttler = throttler
        self._segment = plan.round_segments[number]
        self._is_dirty = self._segment.base_offset in plan.number_of_dirty
        self._keys = KeyBlock(plan.offset_map_hash, bytes.fromhex(plan.hash_key))
        self._mailbox = _Mailbox(number, buckets)
        self._chunked = ChunkedKeys(self._mailbox)
        self._suspects = plan.aborted_producers
        self._rows: list[TransactionRows] = []
        self._suspect_rows: list[TransactionRows] = []
        self._suspect_row_count = 0
        self._first_dirty_row = 0
        self._flags: list[NDArray[np.uint8]] = []
        self._legacy_counts: list[NDArray[np.int64]] = []
        self._ordinal = 0
        self._bytes_read = 0
        self._messages_read = 0

    def run(self) -> Iterator[Message]:
        """Yield the messages of the segment, its facts last."""
        plan = self._plan
        crc = CrcCheck.RAISE if plan.verify_crc else CrcCheck.SKIP
        begin = start_position(self._store, plan, self._segment) if self._is_dirty else None
        with closing(self._store.open_file(self._segment.log_file)) as reader:
            for start, end, is_dirty in ((0, begin, False), (begin, None, True)):
                if start is None or start == end or (start and start >= reader.size_bytes):
                    continue
                if is_dirty:
                    self._first_dirty_row = self._suspect_row_count
                for window in scan_windows(
                    reader, start=start, end=end, window_bytes=plan.window_bytes, crc=crc
                ):
                    self._throttler.use(len(window.data))
                    check_batches(window)
                    self._read(window, is_dirty=is_dirty)
                    yield from self._mailbox.drain()
        self._chunked.flush()
        self._mailbox.flush_queries()
        yield from self._mailbox.drain()
        yield from self._facts()

    def _read(self, window: Window, *, is_dirty: bool) -> None:
        batches = window.batches
        rows, transactions = TransactionRows.select(batches)
        self._rows.append(transactions)
        of_suspect = np.isin(batches.producer_id, self._suspects)
        number_of_row = np.zeros(len(batches), np.int64)
        if of_suspect.any():
            chosen = of_suspect[rows]
            own = rows[chosen]
            number_of_row[own] = self._suspect_row_count + np.arange(len(own))
            self._suspect_row_count += len(own)
            self._suspect_rows.append(transactions.pick(chosen))
        wanted = ~batches.is_control
        is_suspect = wanted & batches.is_transactional & of_suspect
        row = 0
        while row < len(batches):
            payload = open_batches(window, wanted, row, self._plan.limits)
            flags = self._hash(
                payload,
                wanted,
                is_dirty=is_dirty,
                is_suspect=is_suspect[row:],
                number_of_row=number_of_row[row:],
            )
            self._flags.append(flags)
            self._legacy_counts.append(legacy_counts_of(payload, flags))
            here = slice(row, payload.end_row)
            counts = payload.batches.record_count[here]
            records = int(np.where(wanted[here], counts, 0).sum())
            self._ordinal += records
            if is_dirty:
                # A control batch has one record, whatever its header says.
                self._messages_read += records + int((~wanted[here]).sum())
            row = payload.end_row
        if is_dirty:
            self._bytes_read += len(window.data)

    def _hash(
        self,
        payload: Payload,
        wanted: NDArray[np.bool_],
        *,
        is_dirty: bool,
        is_suspect: NDArray[np.bool_],
        number_of_row: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        """Send the keys of a block on their way; return the flags of its batches."""
        here = slice(payload.first_row, payload.end_row)
        first = self._plan.first_dirty_offset
        lies_below = bool((wanted[here] & (payload.batches.base_offset[here] < first)).any())
        keys = self._keys
        put_ranks = np.empty(0, np.int64)
        if is_dirty:
            self._hash_from(payload, wanted, first)
            put_ranks = keys.rank[: keys.count].copy()
            self._chunked.take(keys, is_suspect, number_of_row)
        if not is_dirty or lies_below:
            self._hash_from(payload, wanted, _LOWEST_OFFSET)
            asks = ~np.isin(keys.rank[: keys.count], put_ranks)
            here = slice(0, keys.count)
            self._mailbox.put_queries(
                keys.low[here][asks], keys.high[here][asks], keys.rank[here][asks]
            )
        return keys.flags

    def _hash_from(self, payload: Payload, wanted: NDArray[np.bool_], first_offset: int) -> None:
        first_rank = rank_of(self._number, self._ordinal)
        self._keys.read(
            payload, wanted, self._plan.limits, first_offset=first_offset, first_rank=first_rank
        )

    def _facts(self) -> Iterator[Message]:
        if len(self._suspects):
            content = pack_arrays(
                {"first_dirty_row": self._first_dirty_row if self._is_dirty else None},
                TransactionRows.concatenate(self._suspect_rows).to_arrays(),
            )
            for bucket in range(self._buckets):
                yield Message(
                    bucket=bucket, kind=MessageKind.ROWS, number=self._number, content=content
                )
        facts = {
            "record_count": self._ordinal,
            "bytes_read": self._bytes_read,
            "messages_read": self._messages_read,
        }
        arrays = TransactionRows.concatenate(self._rows).to_arrays() | {
            "flags": np.concatenate([np.empty(0, np.uint8), *self._flags]),
            "legacy_counts": np.concatenate([np.empty(0, np.int64), *self._legacy_counts]),
        }
        yield Message(
            bucket=FOLD,
            kind=MessageKind.FACTS,
            number=self._number,
            content=pack_arrays(facts, arrays),
        )
