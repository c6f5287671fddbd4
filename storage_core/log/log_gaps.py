"""Find gaps between the segments of a log, and judge them.

A segment begins at the offset where the one before it ended. Compaction makes gaps between them:
records at the end of a segment go, and the file of one that was merged into another. Kafka loads a
log with any gap and its consumers skip it, so nothing but the files tells a segment that was
compacted away from one that somebody lost. What they tell:

- Indexes without their log: the log is lost. Whatever Kafka deletes, it renames first.
- An empty log between others whose indexes have entries: its records are lost. Where compaction
  removes all of a segment's records, its indexes are empty too.
- A gap above what the cleaner's checkpoint explains, without any trace of compaction beside it
  (holes between or inside of batches, delete horizons; a follower copies those of its leader): a
  segment is lost, unless compaction left whole batches only.
- A gap in a log that is compacted, where all files of a segment are gone: nothing.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from storage_core.filenames import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.records.batch_table import BatchTable
from storage_core.store.base import FileInfo


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
