"""Spread a verification over tasks, in one stage or two. The first has a task a unit of segments,
the second a task a partition.

A big partition is cut into stretches of whole segments; what its tasks found out is put together
in the second stage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pylog_spark.operations.verify.report import VerifyRequest
from pylog_spark.operations.verify.task import (
    SegmentSizes,
    Stretch,
    Target,
    VerifiedRow,
    facts_of_stretches,
    fold_verified,
    measure_segments,
    verify_stretches,
)
from pylog_spark.operations.verify.verified_roots import VerifiedRoots
from pylog_spark.options.broker import broker_config
from pylog_spark.rows import schema_of
from pylog_spark.run.planning import (
    ITEM_OVERHEAD_BYTES,
    LOOK_TASKS_PER_SLOT,
    WorkItem,
    WorkUnit,
    are_looked_at_here,
    are_read_here,
    count_look_tasks,
    pack_units,
)
from pylog_spark.run.run import Run
from pylog_spark.tasks.cells import PART, with_part
from storage_core.maintenance.verification.options import VerifyOptions


def verify_targets(run: Run, request: VerifyRequest, roots: VerifiedRoots) -> Any:
    """Return a verification's rows in pieces, for several readings.

    Args:
        request: How deep to look.
    """
    job, engine = run.job, run.engine
    of_roots = engine.spread([roots.rows], iter, VerifiedRow)
    if not roots.targets:
        return of_roots
    items = _cut(run, roots.targets)
    units = _units(run, items)
    options = VerifyOptions(
        now_ms=job.options.now_ms,
        threads=run.readers_of(units),
        is_deep=request.is_deep,
        is_live=request.is_live,
        transaction_timeout_ms=broker_config(job.options).transaction_max_timeout_ms,
    )
    work = partial(verify_stretches, options=options)
    title = f"{job.title} {job.places}: verify"
    verified = engine.spread([unit.values for unit in units], work, VerifiedRow)
    is_look = are_read_here(items)
    rows = engine.keep(of_roots.union(verified), title, is_look=is_look)
    is_cut = {item.value.target.ordinal for item in items if not item.value.is_whole}
    if not is_cut:
        return rows
    targets = engine.publish(
        {target.ordinal: target for target in roots.targets if target.ordinal in is_cut}
    )

    def fold(facts: Iterator[VerifiedRow]) -> Iterator[VerifiedRow]:
        return fold_verified(facts, targets.value, options)

    facts = rows.map(facts_of_stretches, with_part(schema_of(VerifiedRow)))
    if run.disks.per_disk is None:
        tasks = min(len(is_cut), LOOK_TASKS_PER_SLOT * engine.slots)
        facts = facts.deal_by(["ordinal"], tasks)
    else:
        facts = run.disks.deal_out(engine, facts, key="ordinal")
    ordered = facts.sort_within("ordinal", "first_offset", PART)
    folded = engine.map_messages(ordered, VerifiedRow, fold, VerifiedRow)
    return rows.union(engine.keep(folded, title, is_look=is_look))


def _cut(run: Run, targets: Sequence[Target]) -> list[WorkItem[Stretch]]:
    """Return the stretches of partitions to verify. A small partition is one whole stretch, a
    big one several."""
    job, engine = run.job, run.engine
    items = [
        WorkItem(value=target, size_bytes=0, disk=run.disks.of(target.root)) for target in targets
    ]
    tasks = count_look_tasks(len(targets), slots=engine.slots)
    looks = -(-len(targets) // tasks)
    units = pack_units(items, unit_bytes=looks * ITEM_OVERHEAD_BYTES, per_disk=run.disks.per_disk)
    sizes = {
        each.ordinal: each
        for each in engine.ask(
            [unit.values for unit in units],
            measure_segments,
            SegmentSizes,
            f"{job.title} {job.places}: list segments",
            is_look=are_looked_at_here(len(targets)),
        )
    }
    unit_bytes = run.unit_bytes(sum(sum(each.sizes) for each in sizes.values()))
    return [
        WorkItem(value=stretch, size_bytes=size, disk=run.disks.of(target.root))
        for target in targets
        for stretch, size in cut_partition(
            replace(target, directory=sizes[target.ordinal].directory),
            sizes[target.ordinal].offsets,
            sizes[target.ordinal].sizes,
            unit_bytes=unit_bytes,
        )
    ]


def cut_partition(
    target: Target, offsets: Sequence[int], sizes: Sequence[int], *, unit_bytes: int
) -> list[tuple[Stretch, int]]:
    """Cut a partition into stretches of about one unit each. A stretch is whole segments.

    Returns:
        The stretches with their bytes; one that is whole where the partition fits in one.
    """
    starts, filled = [0], 0
    for number, size in enumerate(sizes):
        if filled and filled + size > unit_bytes:
            starts.append(number)
            filled = 0
        filled += size
    if len(starts) == 1:
        whole = Stretch(target=target, size_bytes=sum(sizes))
        return [(whole, whole.size_bytes + ITEM_OVERHEAD_BYTES * len(sizes))]
    ends: list[int | None] = [*starts[1:], None]
    return [
        (
            Stretch(
                target=target,
                first_offset=0 if start == 0 else offsets[start],
                end_offset=None if end is None else offsets[end],
                size_bytes=sum(sizes[start:end]),
            ),
            sum(sizes[start:end]),
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def _units(run: Run, items: Sequence[WorkItem[Stretch]]) -> list[WorkUnit[Stretch]]:
    unit_bytes = run.unit_bytes(sum(item.size_bytes for item in items))
    return pack_units(items, unit_bytes=unit_bytes, per_disk=run.disks.per_disk)
