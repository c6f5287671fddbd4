"""Tell the cost of work on managed roots before anything is written. The roots are on object
stores.

Requests are what such a store charges for, beside bytes. They follow from the plan: how many
segments are read, how many groups become new ones. A retry, a second attempt of a task or a
manifest that several tasks of one process share make small differences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pylog_spark.report import size_text
from pylog_spark.schemas import Status
from storage_core.roots.open_root import LogRoot
from storage_core.store.bucket_settings import RemarkCode, inspect_bucket
from storage_core.store.object_files import BLOCK_BYTES
from storage_core.wording import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCost:
    """What the compaction of some partitions asks of a store."""

    partitions: int = 0
    gets: int = 0
    puts: int = 0  # PUT requests, parts of uploads among them
    heads: int = 0
    read_bytes: int = 0
    written_bytes: int = 0  # upper bound of the bytes that are written

    def __add__(self, other: "StoreCost") -> "StoreCost":
        return StoreCost(
            partitions=self.partitions + other.partitions,
            gets=self.gets + other.gets,
            puts=self.puts + other.puts,
            heads=self.heads + other.heads,
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
        )


def bucket_notes(roots: Sequence[LogRoot]) -> tuple[str, ...]:
    """Return notes on costs and write rules of managed roots' buckets.

    Uploads that stay are left out: `pylog ingest`, which fills a managed root, says it of each.
    """
    return tuple(
        f"{root.location}: {remark.code}: {remark.message}"
        for root in roots
        if root.role.facts.has_manifests
        for remark in inspect_bucket(root.location)
        if remark.code is not RemarkCode.PARTS_STAY
    )


def compaction_notes(roots: Sequence[LogRoot], plans: pa.Table) -> tuple[str, ...]:
    """Return a line for each managed root in which something is due.

    Args:
        plans: Rows of ``schemas.PLAN``.
    """
    names = ["root", "status", "cleanable_bytes", "segments", "groups", "segment_bytes"]
    rows = [row for row in plans.select(names).to_pylist() if row["status"] == Status.PLANNED]
    notes = []
    for root in roots:
        if not root.role.facts.has_manifests:
            continue
        costs = [
            cost_of_round(row["segment_bytes"], row["cleanable_bytes"], row["groups"])
            for row in rows
            if row["root"] == root.location
        ]
        if costs:
            notes.append(f"{root.location}: {describe_cost(sum(costs, StoreCost()))}")
    return tuple(notes)


def cost_of_round(segment_bytes: Sequence[int], dirty_bytes: int, groups: int) -> StoreCost:
    """Return about what the compaction of one partition costs.

    Args:
        segment_bytes: Sizes of the segments that are read in pass two.
    """
    segments, source_bytes = len(segment_bytes), sum(segment_bytes)
    reads = _blocks(dirty_bytes) + sum(_blocks(size) for size in segment_bytes)
    # Once for the plan and once for the commit: of each segment its small files, as one object,
    # and its first batch; and what the partition as a whole has.
    small = 2 * (2 * segments + 2)
    # Each task opens the generation; each group and each commit asks for the lease.
    opened = segments + groups + 3
    leases = groups + 2
    parts = _blocks(source_bytes) + 2 * groups if source_bytes > BLOCK_BYTES else groups
    return StoreCost(
        partitions=1,
        gets=reads + small + opened + leases,
        puts=parts + groups + 2,
        heads=2 * groups,
        read_bytes=source_bytes + dirty_bytes,
        written_bytes=source_bytes,
    )


def describe_cost(cost: StoreCost) -> str:
    """Return a cost as a line of a report."""
    return (
        f"compacting {count_text(cost.partitions, 'partition')} takes about {cost.gets:,} GET, "
        f"{cost.puts:,} PUT and {cost.heads:,} HEAD requests, {size_text(cost.read_bytes)} to read "
        f"and at most about {size_text(cost.written_bytes)} to write"
    )


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES)
