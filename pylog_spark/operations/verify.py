"""Verify log directories: every batch, every index, every small file; nothing is written to them.

One job: a task a unit of segments, then one a partition that was cut into several units. Findings
stay where Spark keeps its rows; the driver gets their counts, the worst of them, and a row a
partition.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from pylog_spark.arrow_tasks import map_in_arrow
from pylog_spark.discovery import resolve_roots
from pylog_spark.ledger import LedgerTable
from pylog_spark.operations.verify_report import (
    FindingCount,
    VerifyReport,
    VerifyRequest,
    recorded_findings,
)
from pylog_spark.options import JobOptions
from pylog_spark.options.broker import broker_config
from pylog_spark.run.dispatch import Published
from pylog_spark.run.exit_rule import is_as_bad
from pylog_spark.run.guards import check_ledger
from pylog_spark.run.job import Job, new_job
from pylog_spark.run.planning import (
    ITEM_OVERHEAD_BYTES,
    LOOK_TASKS_PER_SLOT,
    WorkItem,
    choose_unit_bytes,
    pack_units,
)
from pylog_spark.run.run import Run
from pylog_spark.schemas import (
    FINDING,
    RESULT,
    VERIFIED,
    Action,
    Status,
    rows_to_batch,
)
from pylog_spark.tasks.cells import PART
from pylog_spark.tasks.verification import (
    FACTS_ROW,
    FINDING_ROW,
    PARTITION_ROW,
    Stretch,
    Target,
    fold_verified,
    measure_segments,
    verify_stretches,
)
from pylog_spark.tasks.verified_roots import observe_roots
from storage_core.clock import Clock
from storage_core.maintenance.verification.findings import Severity
from storage_core.maintenance.verification.options import VerifyOptions

_SIZES: Final = pa.schema(
    [
        pa.field("ordinal", pa.int64()),
        pa.field("directory", pa.string()),
        pa.field("offsets", pa.list_(pa.int64())),
        pa.field("sizes", pa.list_(pa.int64())),
    ]
)


def verify(
    spark: SparkSession,
    roots: Sequence[str | Path],
    options: JobOptions,
    request: VerifyRequest | None = None,
    *,
    clock: Clock | None = None,
) -> VerifyReport:
    """Verify every partition of log directories.

    Args:
        spark: The session.
        roots: Paths of log directories.
        options: Which topics, which role, where the ledger is.
        request: How deep to look, and what makes the run fail.
        clock: For the times in the ledger.

    Raises:
        ConfigError: A root is no directory, is there twice, or would hold the ledger.
        StorageError: A root cannot be listed.
        pyspark.errors.PySparkException: Spark failed.
    """
    log_roots = resolve_roots(roots, said=options.role)
    check_ledger(log_roots, options.ledger)
    request = request or VerifyRequest()
    job = new_job(Action.VERIFY.value, log_roots, options, clock=clock, request=asdict(request))
    with Run(spark, job) as run:
        return verify_step(run, request)


def verify_step(run: Run, request: VerifyRequest) -> VerifyReport:
    """Verify every partition of the roots of a run that is open, and report it.

    Args:
        run: The run; what was found is in its record when this returns.
        request: How deep to look, and what makes the run fail.

    Raises:
        StorageError: A root cannot be listed.
        pyspark.errors.PySparkException: Spark failed.
    """
    job, dispatcher = run.job, run.dispatcher
    roots = observe_roots(
        [(root.location, root.role) for root in job.roots], job.topics, is_live=request.is_live
    )
    of_roots = dispatcher.frame_of(rows_to_batch(VERIFIED, roots.rows))
    frame = of_roots
    kept: list[DataFrame] = []
    if roots.targets:
        frame = frame.unionByName(_verify_targets(run, request, roots.targets, kept))
    # Everything below asks for some of these rows: they are computed once. Memory first, then disk.
    frame = frame.persist()
    kept.append(frame)
    counts, findings, verified = _collect(run, request, frame)
    results = _results(job, verified)
    if run.recorder.ledger is not None:
        run.recorder.results(results)
        run.recorder.ledger.append_frame(
            LedgerTable.FINDINGS, recorded_findings(frame, job.run_id), number=0
        )
    worst = max((Severity(count.severity) for count in counts), default=None, key=_rank)
    return run.report(
        VerifyReport,
        results,
        has_findings=is_as_bad(worst, request.fail_on),
        verified=tuple(verified),
        counts=tuple(counts),
        findings=tuple(findings),
        roots=roots,
        read_bytes=sum(row["read_bytes"] or 0 for row in verified),
        read_ms=sum(row["read_ms"] or 0 for row in verified),
        _frame=frame,
        _free=_freeing(kept, dispatcher.hand_over()),
    )


def _rank(severity: Severity) -> int:
    return severity.rank


def _freeing(kept: Sequence[DataFrame], free_published: Callable[[], None]) -> Callable[[], None]:
    def free() -> None:
        for frame in kept:
            frame.unpersist()
        free_published()

    return free


def verify_options(options: JobOptions, request: VerifyRequest) -> VerifyOptions:
    """Return what tasks are told."""
    return VerifyOptions(
        now_ms=options.now_ms,
        is_deep=request.is_deep,
        is_live=request.is_live,
        transaction_timeout_ms=broker_config(options).transaction_max_timeout_ms,
    )


def _verify_targets(
    run: Run, request: VerifyRequest, targets: Sequence[Target], kept: list[DataFrame]
) -> DataFrame:
    """Return the rows of all targets; what is kept for them is added to the list."""
    dispatcher = run.dispatcher
    stretches = _cut(run, targets)
    options = verify_options(run.job.options, request)

    def work(unit: tuple[Stretch, ...]) -> Iterator[pa.RecordBatch]:
        return verify_stretches(unit, options)

    verified = dispatcher.spread(_units(run, stretches), work, VERIFIED)
    is_cut = {stretch.target.ordinal for stretch, _ in stretches if not stretch.is_whole}
    if not is_cut:
        return _whole_rows(verified)
    # Facts are read twice, once to be put together and once to be left out.
    verified = verified.persist()
    kept.append(verified)
    parts = dispatcher.publish(
        {target.ordinal: target for target in targets if target.ordinal in is_cut}
    )
    facts = verified.where(F.col("row") == FACTS_ROW)
    if run.disks.per_disk is None:
        facts = facts.repartition(
            min(len(is_cut), LOOK_TASKS_PER_SLOT * dispatcher.slots), "ordinal"
        )
    else:
        facts = run.disks.deal_out(dispatcher, facts, key="ordinal")
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
    job, dispatcher = run.job, run.dispatcher
    places = [
        {"ordinal": target.ordinal, "directory": target.directory, "root": target.root}
        for target in targets
    ]

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return measure_segments(batches, _SIZES)

    listed = dispatcher.frame_of(pa.RecordBatch.from_pylist(places))
    dealt = run.disks.deal_out(dispatcher, listed, rows=len(places))
    frame = dispatcher.map_rows(dealt, measure, _SIZES)
    sizes = dispatcher.collect(frame, _SIZES, f"{job.title} {job.places}: list segments")
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
        slots=run.dispatcher.slots,
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


def _collect(
    run: Run, request: VerifyRequest, frame: DataFrame
) -> tuple[list[FindingCount], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return counts of the findings, the worst of them, and the rows of the partitions."""
    job, dispatcher = run.job, run.dispatcher
    is_finding = F.col("row") == FINDING_ROW
    dispatcher.describe(f"{job.title} {job.places}: verify")
    names = ["ordinal", "root", "topic", "partition", "segments", "bytes", "records"]
    names += ["log_start_offset", "log_end_offset", "read_bytes", "read_ms"]
    verified = frame.where(F.col("row") == PARTITION_ROW).select(*names, "error_class", "error")
    rows: list[dict[str, Any]] = verified.toArrow().to_pylist()
    dispatcher.describe(f"{job.title} {job.places}: count findings")
    counted = frame.where(is_finding).groupBy("severity", "code").count().toArrow().to_pylist()
    rank = F.create_map(*[F.lit(value) for s in Severity for value in (s.value, s.rank)])
    worst = (
        frame.where(is_finding)
        .orderBy(
            rank[F.col("severity")].desc(), "root", "topic", "partition", "file", "position", "code"
        )
        .limit(request.shown)
        .select("root", *FINDING.names)
    )
    found = [{"run_id": job.run_id, **row} for row in worst.toArrow().to_pylist()]
    counts = [FindingCount(**row) for row in counted]
    counts.sort(key=lambda count: (-Severity(count.severity).rank, -count.count, count.code))
    rows.sort(key=lambda row: (row["root"], row["topic"] or "", row["partition"] or 0))
    return counts, found, rows


def _results(job: Job, verified: Sequence[Mapping[str, Any]]) -> pa.Table:
    rows = [
        {
            "run_id": job.run_id,
            "root": row["root"],
            "topic": row["topic"],
            "partition": row["partition"],
            "action": Action.VERIFY.value,
            "status": (Status.DONE if row["error"] is None else Status.FAILED).value,
            "bytes_before": row["bytes"],
            "bytes_after": row["bytes"],
            "records_before": row["records"],
            "records_after": row["records"],
            "segments_before": row["segments"],
            "segments_after": row["segments"],
            "duration_ms": row["read_ms"],
            "error_class": row["error_class"],
            "error": row["error"],
        }
        for row in verified
    ]
    return pa.Table.from_batches([rows_to_batch(RESULT, rows)], schema=RESULT)
