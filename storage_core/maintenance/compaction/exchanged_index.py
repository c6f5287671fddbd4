"""Build pass two's inputs after a key exchange: fold, group indexes. The fold goes over all
segments of the partition.

A group gets bitmaps of all of its records, those below the dirty section included: it needs no
offset map.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from storage_core.json_values import from_json, to_json
from storage_core.kernels.survivors import mark_ordinals
from storage_core.maintenance.compaction.index import (
    CompactionIndex,
    IndexedSegment,
    IndexStats,
    bitmap_bounds,
)
from storage_core.maintenance.compaction.key_exchange import unpack_rows
from storage_core.maintenance.compaction.merged import GroupStart, start_groups
from storage_core.maintenance.compaction.offset_map import OffsetMap
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments
from storage_core.records.packing import pack_arrays, unpack_arrays


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
        numbers, rows[segment.base_offset] = unpack_rows(facts[number])
        bytes_read += numbers["bytes_read"]
        messages_read += numbers["messages_read"]
    return FoldedRound(
        groups=start_groups(plan, plan.end_offset, rows),
        bytes_read=bytes_read,
        messages_read=messages_read,
    )


def facts_for_pass_two(content: bytes) -> bytes:
    """Return a segment's facts without its transactions. Pass two needs all the others."""
    return pack_arrays(*IndexedSegment.from_parts(*unpack_arrays(content)).to_parts())


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
        segments: list[IndexedSegment] = []
        survivors: list[list[NDArray[np.uint32]]] = []
        wanted = frozenset(self.start.base_offsets)
        for number, segment in enumerate(self.plan.round_segments):
            if segment.base_offset not in wanted:
                continue
            if number not in self._facts:
                raise ValueError(f"nothing is known of segment {segment.base_offset}")
            segments.append(IndexedSegment.from_parts(*unpack_arrays(self._facts[number])))
            survivors.append(self._survivors.pop(number, []))
        bounds = bitmap_bounds(segments)
        words = np.zeros(int(bounds[-1]), np.uint64)
        for first_word, parts in zip(bounds[:-1].tolist(), survivors, strict=True):
            for ordinals in parts:
                mark_ordinals(np.array(ordinals), first_word, words)
        return CompactionIndex(
            offset_map=OffsetMap(),
            segments={segment.base_offset: segment for segment in segments},
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
