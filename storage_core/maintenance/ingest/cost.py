"""What an ingest asks of the stores: requests and bytes, which is what they charge for."""

from dataclasses import dataclass
from typing import Final

from storage_core.filenames import OFFSET_INDEX_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX
from storage_core.maintenance.ingest.plan import Candidates, IngestPlan
from storage_core.maintenance.ingest.state import MirrorListing, MirrorSegment

_EDGES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestCost:
    """What a plan costs: requests to the stores, and bytes.

    Attributes:
        list_requests: Pages of listings, of the second look only.
        get_requests: Ranged and whole reads, of the plan and of the commit.
        copy_requests: Copies that the store makes by itself.
        put_requests: Writes, the manifest and its history among them.
        head_requests: Questions about single objects.
        copied_bytes: Bytes that the store copies by itself.
        moved_bytes: Bytes that are read and written again by us.
    """

    list_requests: int
    get_requests: int
    copy_requests: int
    put_requests: int
    head_requests: int
    copied_bytes: int
    moved_bytes: int


def cost_of(
    plan: IngestPlan,
    candidates: Candidates,
    listing: MirrorListing,
    *,
    in_place: bool,
    is_server_side: bool,
) -> IngestCost:
    """Count what a plan and its commit ask of the stores, as far as it can be known before.

    Args:
        plan: What is taken.
        candidates: What was read to decide that.
        listing: Of the mirror's directory.
        in_place: Whether objects are adopted where they are.
        is_server_side: Whether the store copies records by itself.
    """
    small = sum(file is not None for file in (listing.epoch_file, listing.metadata_file))
    looked_at = sum(_reads_of(segment) for segment in candidates.segments)
    base = IngestCost(
        list_requests=1,
        get_requests=1 + small + looked_at,
        copy_requests=0,
        put_requests=2 if plan.taken else 0,
        head_requests=0,
        copied_bytes=0,
        moved_bytes=0,
    )
    if not plan.taken or in_place:
        return base
    logs = [one.segment.log for one in plan.taken if one.segment.log.size_bytes]
    packs = len(plan.taken) + 2
    snapshots = sum(
        file.name.endswith(SNAPSHOT_SUFFIX) for one in plan.taken for file in one.segment.companions
    )
    return IngestCost(
        list_requests=1,
        get_requests=base.get_requests + snapshots + (0 if is_server_side else len(logs)),
        copy_requests=len(logs) if is_server_side else 0,
        put_requests=base.put_requests + packs + (0 if is_server_side else len(logs)),
        head_requests=len(logs),
        copied_bytes=plan.record_bytes if is_server_side else 0,
        moved_bytes=plan.companion_bytes + (0 if is_server_side else plan.record_bytes),
    )


def _reads_of(segment: MirrorSegment) -> int:
    """Return how many reads the edges of a segment take: its indexes, its head and its tail."""
    indexes = [file for file in segment.companions if file.name.endswith(_EDGES)]
    return len(indexes) + (2 if segment.log.size_bytes else 0)
