"""How a verification is spread over tasks: a task a unit of segments, then one a partition.

A big partition is cut into stretches of whole segments; what its tasks found out is put together
in the second stage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from pylog_spark.engines.engine import Published
from pylog_spark.engines.spark_engine import SparkRows, map_in_arrow, require_spark
from pylog_spark.operations.verify_report import VerifyRequest
from pylog_spark.options.broker import broker_config
from pylog_spark.run.planning import (
    ITEM_OVERHEAD_BYTES,
    LOOK_TASKS_PER_SLOT,
    WorkItem,
    choose_unit_bytes,
    pack_units,
)
from pylog_spark.run.run import Run
from pylog_spark.schemas import VERIFIED
from pylog_spark.tasks.cells import PART
from pylog_spark.tasks.verification import (
    FACTS_ROW,
    Stretch,
    Target,
    fold_verified,
    measure_segments,
    verify_stretches,
)
from storage_core.maintenance.verification.options import VerifyOptions

_SIZES: Final = pa.schema(
    [
        pa.field("ordinal", pa.int64()),
        pa.field("directory", pa.string()),
        pa.field("offsets", pa.list_(pa.int64())),
        pa.field("sizes", pa.list_(pa.int64())),
    ]
)


def verify_targets(
    run: Run, request: VerifyRequest, targets: Sequence[Target], kept: list[DataFrame]
) -> DataFrame:
    """Return the rows of all targets; what is kept for them is added to the list."""
    engine = require_spark(run.engine)
    stretches = _cut(run, targets)
    options = VerifyOptions(
        now_ms=run.job.options.now_ms,
        is_deep=request.is_deep,
        is_live=request.is_live,
        transaction_timeout_ms=broker_config(run.job.options).transaction_max_timeout_ms,
    )

    def work(unit: tuple[Stretch, ...]) -> Iterator[pa.RecordBatch]:
        return verify_stretches(unit, options)

    verified = engine.spread(_units(run, stretches), work, VERIFIED).frame
    is_cut = {stretch.target.ordinal for stretch, _ in stretches if not stretch.is_whole}
    if not is_cut:
        return _whole_rows(verified)
    # Facts are read twice, once to be put together and once to be left out.
    verified = verified.persist()
    kept.append(verified)
    parts = engine.publish(
        {target.ordinal: target for target in targets if target.ordinal in is_cut}
    )
    facts = verified.where(F.col("row") == FACTS_ROW)
    if run.disks.per_disk is None:
        facts = facts.repartition(min(len(is_cut), LOOK_TASKS_PER_SLOT * engine.slots), "ordinal")
    else:
        facts = run.disks.deal_out(engine, SparkRows(facts), key="ordinal").frame
    folded = _fold(facts.sortWithinPartitions("ordinal", "first_offset", PART), parts, options)
    others = verified.where(F.col("row") != FACTS_ROW)
    return _whole_rows(others).unionByName(folded)


def _whole_rows(verified: DataFrame) -> DataFrame:
    """Return the rows that are no facts: of one of more than a megabyte its first piece counts."""
    return verified.where(F.col(PART) == 0).drop(PART)


def _fold(
    facts: DataFrame, targets: Published[dict[int, Target]], options: VerifyOptions
) -> DataFrame:
    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from fold_verified(batches, targets.value, options)

    return map_in_arrow(facts, fold, VERIFIED)


def _cut(run: Run, targets: Sequence[Target]) -> list[tuple[Stretch, int]]:
    """Return stretches with their bytes: a small partition whole, a big one in several."""
    job, engine = run.job, require_spark(run.engine)
    places = [
        {"ordinal": target.ordinal, "directory": target.directory, "root": target.root}
        for target in targets
    ]

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return measure_segments(batches, _SIZES)

    listed = SparkRows(engine.frame_of(pa.RecordBatch.from_pylist(places)))
    dealt = run.disks.deal_out(engine, listed, count=len(places))
    frame = engine.map_rows(dealt, measure, _SIZES)
    sizes = engine.collect(frame, _SIZES, f"{job.title} {job.places}: list segments")
    known = dict(
        zip(
            sizes["ordinal"].to_pylist(),
            zip(
                sizes["directory"].to_pylist(),
                sizes["offsets"].to_pylist(),
                sizes["sizes"].to_pylist(),
                strict=True,
            ),
            strict=True,
        )
    )
    unit_bytes = _unit_bytes(run, sum(sum(of) for *_, of in known.values()))
    return [
        stretch
        for target in targets
        for stretch in cut_partition(
            replace(target, directory=known[target.ordinal][0]),
            *known[target.ordinal][1:],
            unit_bytes=unit_bytes,
        )
    ]


def cut_partition(
    target: Target, offsets: Sequence[int], sizes: Sequence[int], *, unit_bytes: int
) -> list[tuple[Stretch, int]]:
    """Cut a partition into stretches of whole segments, each about as large as a unit.

    Args:
        target: The partition.
        offsets: Base offsets of its segments, rising.
        sizes: Bytes of their .log files.
        unit_bytes: What one task gets to read.

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
        return [(Stretch(target=target), sum(sizes) + ITEM_OVERHEAD_BYTES * len(sizes))]
    ends: list[int | None] = [*starts[1:], None]
    return [
        (
            Stretch(
                target=target,
                first_offset=0 if start == 0 else offsets[start],
                end_offset=None if end is None else offsets[end],
            ),
            sum(sizes[start:end]),
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def _unit_bytes(run: Run, total_bytes: int) -> int:
    tuning = run.job.options.tuning
    return choose_unit_bytes(
        total_bytes,
        slots=run.engine.slots,
        least_bytes=tuning.unit_min_bytes,
        most_bytes=tuning.unit_max_bytes,
    )


def _units(run: Run, stretches: Sequence[tuple[Stretch, int]]) -> list[tuple[Stretch, ...]]:
    items = [
        WorkItem(value=stretch, size_bytes=size, disk=run.disks.of(stretch.target.root))
        for stretch, size in stretches
    ]
    total = sum(size for _, size in stretches)
    unit_bytes = _unit_bytes(run, total)
    units = pack_units(items, unit_bytes=unit_bytes, per_disk=run.disks.per_disk)
    return [tuple(unit.values) for unit in units]
