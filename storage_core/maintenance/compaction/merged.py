"""Merge partial indexes into everything pass two needs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from storage_core.json_values import from_json, to_json
from storage_core.kernels.survivors import mark_ordinals
from storage_core.log.open_transactions import TransactionRows, TransactionTracker
from storage_core.maintenance.compaction.index import (
    BYTES_READ,
    MESSAGES_READ,
    CompactionIndex,
    IndexedSegments,
    IndexStats,
)
from storage_core.maintenance.compaction.offset_map import OffsetMap
from storage_core.maintenance.compaction.partial import (
    PartialIndex,
    find_aborted,
    rows_of_suspects,
)
from storage_core.maintenance.compaction.pass_one import index_of_map
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments
from storage_core.records.packing import pack_arrays, unpack_arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStart:
    """One group of pass two, and the transaction tracker before it."""

    base_offsets: tuple[int, ...]
    tracker: str  # state of the tracker, as TransactionTracker.state gives it


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedIndex:
    """All partial indexes of a round in one, for pass two. Pass two needs nothing else."""

    index: CompactionIndex  # as a round in process would have built it
    groups: tuple[GroupStart, ...]  # what pass two has to do, oldest first
    # Whether a record may have to be looked up in the offset map: where pass one saw every record
    # of the round, the bitmaps alone decide.
    needs_map: bool

    def to_bytes(self) -> bytes:
        """Return the merged index as bytes, for the processes of pass two."""
        index = self.index
        arrays = {"words": index.words} | index.segments.to_arrays()
        facts = {
            "latest_offset": index.latest_offset,
            "stats": asdict(index.stats),
            "needs_map": self.needs_map,
            "groups": [[list(group.base_offsets), group.tracker] for group in self.groups],
        }
        whole = index.offset_map if self.needs_map else OffsetMap()
        arrays["low"], arrays["high"], arrays["rank"] = whole.entries()
        return pack_arrays(facts, arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> "MergedIndex":
        """Return what to_bytes packed."""
        facts, arrays = unpack_arrays(data)
        whole = OffsetMap.from_entries(arrays["low"], arrays["high"], arrays["rank"])
        return cls(
            index=CompactionIndex(
                offset_map=whole,
                segments=IndexedSegments.from_arrays(arrays),
                words=arrays["words"],
                latest_offset=facts["latest_offset"],
                stats=IndexStats(**facts["stats"]),
            ),
            groups=tuple(
                GroupStart(base_offsets=tuple(bases), tracker=tracker)
                for bases, tracker in facts["groups"]
            ),
            needs_map=facts["needs_map"],
        )


def merge_indexes(plan: CompactionPlan, partials: Sequence[PartialIndex]) -> MergedIndex:
    """Merge the partial indexes of a round.

    Args:
        partials: One for each of the plan's ``round_segments``, in any order.
    """
    ordered = sorted(partials, key=lambda partial: partial.base_offset)
    expected = [segment.base_offset for segment in plan.round_segments]
    if [partial.base_offset for partial in ordered] != expected:
        raise ValueError(
            f"expected partial indexes of {expected}, "
            f"found {[partial.base_offset for partial in ordered]}"
        )
    dirty = [partial for partial in ordered if partial.is_dirty]
    index = _merge_keys(plan, dirty)
    return MergedIndex(
        index=index,
        groups=start_groups(
            plan, index.end_offset, {partial.base_offset: partial.rows for partial in ordered}
        ),
        needs_map=bool(plan.aborted_of_round)
        or not all(partial.is_dirty for partial in ordered)
        or any(partial.base_offset < plan.first_dirty_offset for partial in ordered),
    )


def _merge_keys(plan: CompactionPlan, dirty: Sequence[PartialIndex]) -> CompactionIndex:
    whole = OffsetMap()
    suspects = (
        (partial.first_dirty_row, rows_of_suspects(plan, partial.rows)) for partial in dirty
    )
    for partial, is_aborted in zip(dirty, find_aborted(plan, suspects), strict=True):
        for low, high, rank in partial.keys:
            whole.put(low, high, rank, len(rank))
        for low, high, rank, row in partial.suspects:
            lives = ~is_aborted[row]
            whole.put(low[lives], high[lives], rank[lives], int(lives.sum()))
    indexed = IndexedSegments.join(partial.segment for partial in dirty)
    return index_of_map(indexed, whole, plan.end_offset - 1)


def start_groups(
    plan: CompactionPlan, end_offset: int, rows: Mapping[int, TransactionRows]
) -> tuple[GroupStart, ...]:
    """Run pass two's tracker over a round; note its state before groups.

    Args:
        rows: The transactional and control batches of each of them, by base offset.
    """
    tracker = TransactionTracker()
    starts = []
    for group in group_segments(plan, end_offset):
        bases = tuple(segment.base_offset for segment in group)
        starts.append(GroupStart(base_offsets=bases, tracker=json.dumps(tracker.state())))
        for base in bases:
            tracker.add_aborted(plan.aborted_near(base))
            tracker.decide(rows[base])
    return tuple(starts)


# Build pass two's inputs after a key exchange: fold, group indexes. The fold goes over all
# segments of the partition.
#
# A group gets bitmaps of all of its records, those below the dirty section included: it needs no
# offset map.


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedRound:
    """What the fold found."""

    groups: tuple[GroupStart, ...]  # the groups of pass two, oldest first
    bytes_read: int  # bytes of batches of the dirty section
    messages_read: int  # records of those, markers included


def group_of_segment(plan: CompactionPlan) -> list[int]:
    """Return the group number of each segment of the round."""
    groups = group_segments(plan, plan.end_offset)
    return [number for number, group in enumerate(groups) for _ in group]


def fold_facts(plan: CompactionPlan, facts: Mapping[int, bytes]) -> FoldedRound:
    """Put the facts of all segments together.

    Args:
        facts: Content of the facts message of each segment, by its number.
    """
    segments = plan.round_segments
    if sorted(facts) != list(range(len(segments))):
        raise ValueError(f"expected facts of {len(segments)} segments, found {sorted(facts)}")
    rows, bytes_read, messages_read = {}, 0, 0
    for number, segment in enumerate(segments):
        _, arrays = unpack_arrays(facts[number])
        rows[segment.base_offset] = TransactionRows.from_arrays(arrays)
        noted = IndexedSegments.from_arrays(arrays)
        bytes_read += noted.sum_of(BYTES_READ)
        messages_read += noted.sum_of(MESSAGES_READ)
    return FoldedRound(
        groups=start_groups(plan, plan.end_offset, rows),
        bytes_read=bytes_read,
        messages_read=messages_read,
    )


def facts_for_pass_two(content: bytes) -> bytes:
    """Return a segment's facts without its transactions. Pass two needs all the others."""
    _, arrays = unpack_arrays(content)
    return pack_arrays({}, IndexedSegments.from_arrays(arrays).to_arrays())


@dataclass(slots=True)
class ExchangedGroup:
    """Gathers what is sent to one group of pass two."""

    plan: CompactionPlan
    # The group, and the transaction tracker before it; None until it is known.
    start: GroupStart | None = None
    _facts: dict[int, bytes] = field(default_factory=dict)
    _survivors: dict[int, list[NDArray[np.uint32]]] = field(default_factory=dict)

    def put_facts(self, number: int, content: bytes) -> None:
        """Take the facts of one of its segments."""
        self._facts[number] = content

    def put_survivors(self, number: int, ordinals: NDArray[np.uint32]) -> None:
        """Take survivors of one of its segments."""
        self._survivors.setdefault(number, []).append(ordinals)

    def index(self) -> CompactionIndex:
        """Return the index of the group's segments."""
        if self.start is None:
            raise ValueError("nothing is known of the group")
        parts: list[IndexedSegments] = []
        survivors: list[list[NDArray[np.uint32]]] = []
        wanted = frozenset(self.start.base_offsets)
        for number, segment in enumerate(self.plan.round_segments):
            if segment.base_offset not in wanted:
                continue
            if number not in self._facts:
                raise ValueError(f"nothing is known of segment {segment.base_offset}")
            _, arrays = unpack_arrays(self._facts[number])
            parts.append(IndexedSegments.from_arrays(arrays))
            survivors.append(self._survivors.pop(number, []))
        segments = IndexedSegments.join(parts)
        bounds = segments.word_bounds
        words = np.zeros(int(bounds[-1]), np.uint64)
        for first_word, messages in zip(bounds[:-1].tolist(), survivors, strict=True):
            for ordinals in messages:
                mark_ordinals(np.array(ordinals), first_word, words)
        return CompactionIndex(
            offset_map=OffsetMap(),
            segments=segments,
            words=words,
            latest_offset=self.plan.end_offset - 1,
            stats=IndexStats(bytes_read=0, messages_read=0, keys=0),
        )


def encode_start(start: GroupStart) -> bytes:
    """Return the start of a group as bytes."""
    return to_json(start).encode()


def decode_start(content: bytes) -> GroupStart:
    """Return what encode_start encoded."""
    return from_json(GroupStart, content.decode())
