"""One bucket of a round's keys: who of all records that have them survives."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels.offset_table import ORDINAL_BITS, ORDINAL_MASK
from storage_core.log.transaction_tracker import TransactionRows, TransactionTracker
from storage_core.maintenance.compaction.key_exchange import (
    MessageKind,
    unpack_columns,
    unpack_rows,
)
from storage_core.maintenance.compaction.key_sink import KEY_WORDS, SUSPECT_WORDS, KeyBlock
from storage_core.maintenance.compaction.offset_map import OffsetMap
from storage_core.maintenance.compaction.plan import CompactionPlan

# A megabyte of them: what travels as one message.
_SURVIVORS_AT_ONCE: Final = 1 << 18


class KeyBucket:
    """Hears the messages of all segments to one bucket, ordered by kind.

    Args:
        plan: The round.
    """

    def __init__(self, plan: CompactionPlan) -> None:
        self._plan = plan
        self._map = OffsetMap()
        self._rows: dict[int, tuple[int | None, TransactionRows]] = {}
        self._discard: dict[int, NDArray[np.bool_]] | None = None
        # Records of aborted batches: what they have to ask waits until every key is there.
        self._late: list[KeyBlock] = []
        self._alive: list[NDArray[np.int64]] = []
        self._last_kind = MessageKind.ROWS

    @property
    def key_count(self) -> int:
        """Distinct keys of the dirty section so far."""
        return len(self._map)

    def hear(self, kind: MessageKind, number: int, content: bytes | memoryview) -> None:
        """Take one message.

        Args:
            kind: What it says.
            number: Segment that it comes from.
            content: As the segment packed it.
        """
        if kind < self._last_kind:
            raise ValueError(f"a message of kind {kind.name} after one of {self._last_kind.name}")
        self._last_kind = kind
        if kind is MessageKind.ROWS:
            facts, rows = unpack_rows(bytes(content))
            self._rows[number] = (facts["first_dirty_row"], rows)
        elif kind is MessageKind.KEYS:
            low, high, rank = unpack_columns(content, KEY_WORDS)
            self._map.put(low, high, rank.view(np.int64), len(rank))
        elif kind is MessageKind.SUSPECTS:
            self._hear_suspects(number, content)
        else:
            low, high, rank = unpack_columns(content, KEY_WORDS)
            self._ask(low, high, rank.view(np.int64))

    def survivors(self) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        """Yield, by segment of the round, the ordinals of those of its records that survive.

        Many of one segment come in several arrays.
        """
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
        low, high, rank, row = unpack_columns(content, SUSPECT_WORDS)
        if self._discard is None:
            self._discard = self._decide()
        is_aborted = self._discard[number][row.view(np.int64)]
        ranks = rank.view(np.int64)
        lives = ~is_aborted
        self._map.put(low[lives], high[lives], ranks[lives], int(lives.sum()))
        if is_aborted.any():
            self._late.append((low[is_aborted], high[is_aborted], ranks[is_aborted]))

    def _decide(self) -> dict[int, NDArray[np.bool_]]:
        """Run the tracker over the producers in question; return which rows are aborted."""
        tracker = TransactionTracker()
        tracker.add_aborted(self._plan.aborted_of_round)
        decided = {}
        for number, (first, rows) in sorted(self._rows.items()):
            discard = np.zeros(len(rows.producer_id), bool)
            if first is not None:
                discard[first:], _ = tracker.decide(rows.rows_from(first))
            decided[number] = discard
        return decided

    def _ask(
        self, low: NDArray[np.uint64], high: NDArray[np.uint64], rank: NDArray[np.int64]
    ) -> None:
        found = self._map.look_up(low, high, len(rank))
        self._alive.append(rank[rank >= found])
