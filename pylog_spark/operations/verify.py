"""Verify log directories: every batch, every index, every small file; nothing is written to them.

One job: a task a unit of segments, then one a partition that was cut into several units. Findings
stay where Spark keeps its rows; the driver gets their counts, the worst of them, and a row a
partition.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.engine import Published, run_apart
from pylog_spark.engines.spark_engine import SparkEngine, SparkRows, map_in_arrow
from pylog_spark.ledger import LedgerTable
from pylog_spark.ledger.spark_ledger import SparkLedger
from pylog_spark.operations.verify_report import (
    FindingCount,
    VerifyReport,
    VerifyRequest,
    exit_code_of,
)
from pylog_spark.options import JobOptions
from pylog_spark.options.broker import broker_config
from pylog_spark.run.disks import Disks, find_disks
from pylog_spark.run.guards import check_ledger
from pylog_spark.run.job import Job, new_run_id, open_recorder
from pylog_spark.run.planning import (
    ITEM_OVERHEAD_BYTES,
    LOOK_TASKS_PER_SLOT,
    WorkItem,
    choose_unit_bytes,
    pack_units,
)
from pylog_spark.run.recording import Recorder
from pylog_spark.run.run_report import summarise
from pylog_spark.schemas import (
    FINDING,
    RESULT,
    VERIFIED,
    Action,
    Status,
    rows_to_batch,
)
from pylog_spark.tasks.cells import PART
from pylog_spark.tasks.listing import TopicFilter
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
from storage_core.clock import Clock, SystemClock
from storage_core.maintenance.verification.findings import Severity
from storage_core.maintenance.verification.options import VerifyOptions

_log: Final = logging.getLogger(__name__)

_SIZES: Final = pa.schema(
    [
        pa.field("ordinal", pa.int64()),
        pa.field("directory", pa.string()),
        pa.field("offsets", pa.list_(pa.int64())),
        pa.field("sizes", pa.list_(pa.int64())),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job(Job):
    """What all steps of one run know."""

    request: VerifyRequest
    disks: Disks

    @property
    def title(self) -> str:
        names = [root.location for root in self.roots]
        return f"pylog verify {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}"  # noqa: PLR2004


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
    clock = clock or SystemClock()
    log_roots = tuple(resolve_roots(roots, said=options.role))
    check_ledger(log_roots, options.ledger)
    job = _Job(
        run_id=new_run_id(clock),
        action=Action.VERIFY.value,
        options=options,
        request=request or VerifyRequest(),
        roots=log_roots,
        disks=find_disks(log_roots, options.limits.per_disk),
    )
    recorder = open_recorder(spark, job, clock, request=asdict(job.request))
    with SparkEngine(spark, tag=f"pylog-{job.run_id}") as dispatcher:
        try:
            recorder.start()
            report = _verify(dispatcher, job)
            _record(recorder, report)
        except BaseException as error:
            run_apart("write the run's END row", partial(recorder.fail, error))
            raise
    return report


def _verify(dispatcher: SparkEngine, job: _Job) -> VerifyReport:
    started = time.perf_counter()
    topics = TopicFilter(topics=job.options.include, exclude=job.options.exclude)
    roots = observe_roots(
        [(root.location, root.role) for root in job.roots], topics, is_live=job.request.is_live
    )
    of_roots = dispatcher.frame_of(rows_to_batch(VERIFIED, roots.rows))
    frame = of_roots
    kept: list[DataFrame] = []
    if roots.targets:
        frame = frame.unionByName(_verify_targets(dispatcher, job, roots.targets, kept))
    # Everything below asks for some of these rows: they are computed once. Memory first, then disk.
    frame = frame.persist()
    kept.append(frame)
    counts, findings, verified = _collect(dispatcher, job, frame)
    results = _results(job, verified)
    summary = summarise(results, duration_ms=round((time.perf_counter() - started) * 1000))
    return VerifyReport(
        run_id=job.run_id,
        results=results,
        verified=tuple(verified),
        counts=tuple(counts),
        findings=tuple(findings),
        roots=roots,
        summary=summary,
        read_bytes=sum(row["read_bytes"] or 0 for row in verified),
        read_ms=sum(row["read_ms"] or 0 for row in verified),
        exit_code=exit_code_of(summary.failed, counts, job.request.fail_on),
        _frame=frame,
        _free=_freeing(kept, dispatcher.hand_over()),
    )


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
    dispatcher: SparkEngine, job: _Job, targets: Sequence[Target], kept: list[DataFrame]
) -> DataFrame:
    """Return the rows of all targets; what is kept for them is added to the list."""
    stretches = _cut(dispatcher, job, targets)
    options = verify_options(job.options, job.request)

    def work(unit: tuple[Stretch, ...]) -> Iterator[pa.RecordBatch]:
        return verify_stretches(unit, options)

    verified = dispatcher.spread(_units(dispatcher, job, stretches), work, VERIFIED).frame
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
    if job.disks.per_disk is None:
        facts = facts.repartition(
            min(len(is_cut), LOOK_TASKS_PER_SLOT * dispatcher.slots), "ordinal"
        )
    else:
        facts = job.disks.deal_out(dispatcher, SparkRows(facts), key="ordinal").frame
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


def _cut(
    dispatcher: SparkEngine, job: _Job, targets: Sequence[Target]
) -> list[tuple[Stretch, int]]:
    """Return stretches with their bytes: a small partition whole, a big one in several."""
    places = [
        {"ordinal": target.ordinal, "directory": target.directory, "root": target.root}
        for target in targets
    ]

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return measure_segments(batches, _SIZES)

    listed = SparkRows(dispatcher.frame_of(pa.RecordBatch.from_pylist(places)))
    dealt = job.disks.deal_out(dispatcher, listed, count=len(places))
    frame = dispatcher.map_rows(dealt, measure, _SIZES)
    sizes = dispatcher.collect(frame, _SIZES, f"{job.title}: list segments")
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
    unit_bytes = _unit_bytes(dispatcher, job, sum(sum(of) for *_, of in known.values()))
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


def _unit_bytes(dispatcher: SparkEngine, job: _Job, total_bytes: int) -> int:
    tuning = job.options.tuning
    return choose_unit_bytes(
        total_bytes,
        slots=dispatcher.slots,
        least_bytes=tuning.unit_min_bytes,
        most_bytes=tuning.unit_max_bytes,
    )


def _units(
    dispatcher: SparkEngine, job: _Job, stretches: Sequence[tuple[Stretch, int]]
) -> list[tuple[Stretch, ...]]:
    items = [
        WorkItem(value=stretch, size_bytes=size, disk=job.disks.of(stretch.target.root))
        for stretch, size in stretches
    ]
    total = sum(size for _, size in stretches)
    unit_bytes = _unit_bytes(dispatcher, job, total)
    units = pack_units(items, unit_bytes=unit_bytes, per_disk=job.disks.per_disk)
    return [tuple(unit.values) for unit in units]


def _collect(
    dispatcher: SparkEngine, job: _Job, frame: DataFrame
) -> tuple[list[FindingCount], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return counts of the findings, the worst of them, and the rows of the partitions."""
    is_finding = F.col("row") == FINDING_ROW
    dispatcher.describe(f"{job.title}: verify")
    names = ["ordinal", "root", "topic", "partition", "segments", "bytes", "records"]
    names += ["log_start_offset", "log_end_offset", "read_bytes", "read_ms"]
    verified = frame.where(F.col("row") == PARTITION_ROW).select(*names, "error_class", "error")
    rows: list[dict[str, Any]] = verified.toArrow().to_pylist()
    dispatcher.describe(f"{job.title}: count findings")
    counted = frame.where(is_finding).groupBy("severity", "code").count().toArrow().to_pylist()
    rank = F.create_map(*[F.lit(value) for s in Severity for value in (s.value, s.rank)])
    worst = (
        frame.where(is_finding)
        .orderBy(
            rank[F.col("severity")].desc(), "root", "topic", "partition", "file", "position", "code"
        )
        .limit(job.request.shown)
        .select("root", *FINDING.names)
    )
    found = [{"run_id": job.run_id, **row} for row in worst.toArrow().to_pylist()]
    counts = [FindingCount(**row) for row in counted]
    counts.sort(key=lambda count: (-Severity(count.severity).rank, -count.count, count.code))
    rows.sort(key=lambda row: (row["root"], row["topic"] or "", row["partition"] or 0))
    return counts, found, rows


def _results(job: _Job, verified: Sequence[Mapping[str, Any]]) -> pa.Table:
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


def _record(recorder: Recorder, report: VerifyReport) -> None:
    if isinstance(recorder.ledger, SparkLedger):
        recorder.results(report.results)
        recorder.ledger.append_frame(LedgerTable.FINDINGS, report.recorded_frame(), number=0)
    recorder.end(report.summary, exit_code=report.exit_code)
