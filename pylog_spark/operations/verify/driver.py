"""Verify every batch, index and small file of log directories. Nothing is written to them.

One stage: a task a unit of segments; then one a partition that was cut into several units. Findings
stay where tasks are; the driver gets their counts, the worst of them, and a row a partition.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Local, Place
from pylog_spark.engines.engine import HandedOver
from pylog_spark.operations.verify.task import (
    FINDING_ROW,
    LARGEST_ACTIVE_INDEX,
    NOT_VERIFIED,
    PARTITION_ROW,
    SegmentSizes,
    Stretch,
    Target,
    VerifiedRow,
    facts_of_stretches,
    fold_verified,
    measure_segments,
    place_finding,
    verify_stretches,
)
from pylog_spark.options import JobOptions
from pylog_spark.options.declared import METRICS_FILE
from pylog_spark.options.load import broker_config
from pylog_spark.outcomes import Action, Status
from pylog_spark.rows import rows_to_batch, schema_of
from pylog_spark.run.guards import check_ledger, check_outside
from pylog_spark.run.job import Job, new_job
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
from pylog_spark.run.progress import OnProgress, ProgressMeter
from pylog_spark.run.run import Run, is_as_bad
from pylog_spark.run.run_report import Report
from pylog_spark.schemas import FINDING, RECORDED_FINDING, RESULT
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.message import PART, with_part
from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.clock import Clock
from storage_core.config import NEWEST_RELEASE
from storage_core.errors import ConfigError
from storage_core.maintenance.verification.findings import Severity, VerifyOptions
from storage_core.maintenance.verification.log_directories import (
    VERIFIED_KINDS,
    verify_log_directories,
)
from storage_core.maintenance.verification.observed_root import ObservedRoot
from storage_core.maintenance.verification.prescription import recovered_together

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pylog_spark.engines.spark_engine import SparkRows


# Verify log directories themselves, and choose the partitions to verify.


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRoots:
    """Log directories that were looked at."""

    observed: tuple[ObservedRoot, ...]
    rows: tuple[VerifiedRow, ...]
    targets: tuple[Target, ...]
    # Directories that a broker loads before it deletes or leaves them.
    set_aside: tuple[Target, ...] = ()


def observe_roots(
    roots: Sequence[tuple[str, Role]],
    topics: TopicFilter,
    *,
    is_live: bool,
    release: str = NEWEST_RELEASE,
) -> VerifiedRoots:
    """Look at log directories, and choose the partitions to be verified.

    Args:
        is_live: Somebody may be writing: checkpoints and logs are of different times.
    """
    observed, placed = verify_log_directories(roots, release=release)
    role_of = dict(roots)
    together = recovered_together(role_of)
    rows = [
        place_finding(
            each.finding,
            root=each.root,
            directory=None,
            partition=each.partition,
            role=role_of[each.root],
            roots=together[each.root],
        )
        for each in placed
        if each.partition is None or topics.admits(each.partition.topic)
    ]
    targets: list[Target] = []
    set_aside: list[Target] = []
    for root in observed:
        for entry in root.entries:
            name = entry.topic_partition
            if entry.is_link or name is None or not topics.admits(name.topic):
                continue
            if entry.kind in VERIFIED_KINDS:
                targets.append(_target(root, entry, len(targets), together, is_live=is_live))
            elif entry.kind in {DirectoryKind.DELETE, DirectoryKind.STRAY}:
                set_aside.append(_target(root, entry, NOT_VERIFIED, together, is_live=is_live))
    return VerifiedRoots(
        observed=tuple(observed),
        rows=tuple(rows),
        targets=tuple(targets),
        set_aside=tuple(set_aside),
    )


def _target(
    root: ObservedRoot,
    entry: SubDirectory,
    ordinal: int,
    together: Mapping[str, tuple[str, ...]],
    *,
    is_live: bool,
) -> Target:
    if entry.topic_partition is None:
        raise ValueError(f"{entry.path} is no partition")
    # A checkpoint that is older than the log is nothing new; the start of the log has to be known.
    checkpoints = root.checkpoints_of(entry.topic_partition)
    live = PartitionCheckpoints(log_start_offset=checkpoints.log_start_offset)
    return Target(
        ordinal=ordinal,
        root=root.location,
        directory=entry.path,
        partition=entry.topic_partition,
        context=root.context_of(entry),
        checkpoints=live if is_live else checkpoints,
        roots=together[root.location],
    )


# What a verification is asked for, and what it answers.

# So many findings are handed to whoever looks at a report; the ledger and the DataFrame have all.
DEFAULT_SHOWN: Final = 1000
# So many are put in one order, the worst first; more than that in the order of each severity.
ORDERED_FINDINGS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """What a verification is asked for, beside the options of all jobs."""

    is_deep: bool = False  # also open every batch: its records, and snapshots against a replay
    is_live: bool = False  # somebody may be writing meanwhile: files may vanish or grow
    # Findings of this severity or worse make the exit status 1; None for none.
    fail_on: Severity | None = Severity.ERROR
    shown: int = DEFAULT_SHOWN  # how many findings the report holds, worst first
    # The release of Kafka that is to start, one of ``FEATURE_LEVELS``.
    release: str = NEWEST_RELEASE


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCount:
    """How many findings there are of a code and severity."""

    severity: str
    code: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(Report):
    """What a verification found."""

    # Rows of ``VerifiedRow`` of the partitions of the results, with their offsets.
    verified: tuple[dict[str, Any], ...]
    counts: tuple[FindingCount, ...]  # findings by severity and code, worst first
    # The worst findings, of ``schemas.RECORDED_FINDING``; as many as were asked for.
    findings: tuple[dict[str, Any], ...]
    roots: VerifiedRoots
    read_bytes: int
    read_ms: int  # time that tasks spent on that, summed over the tasks
    _findings: "HandedOver[SparkRows] | None" = field(repr=False)

    def findings_frame(self) -> "DataFrame":
        """Return all findings as a DataFrame of ``schemas.FINDING``."""
        if self._findings is None:
            reason = "keeps no findings beyond the run: ask for more in the request (shown)"
            raise ConfigError("PLACE", "Local", reason)
        return self._findings.rows.frame.select(*FINDING.names)

    def frame(self, _spark: "SparkSession") -> "DataFrame":
        return self.findings_frame()

    def release(self) -> None:
        """Let Spark forget the findings; their DataFrame cannot be read any more."""
        if self._findings is not None:
            self._findings.free()


# Select a verification's findings: all, counts by kind, the worst.
#
# Tasks have ``VerifiedRow`` as rows; each function here makes of them what the driver, or the
# ledger, gets.

_VERIFIED: Final = schema_of(VerifiedRow)
# A row a partition: its numbers, or the error because of which there are none.
VERIFIED_PARTITION: Final = pa.schema(
    [
        _VERIFIED.field(name)
        for name in (
            *("row", "ordinal", "root", "topic", "partition", "segments", "bytes", "records"),
            *("log_start_offset", "log_end_offset", "read_bytes", "read_ms"),
            *("error_class", "error", LARGEST_ACTIVE_INDEX),
        )
    ]
)
FINDING_COUNT: Final = pa.schema(
    [
        *(_VERIFIED.field(name) for name in ("root", "severity", "code")),
        pa.field("count", pa.int64()),
    ]
)
_SEVERITIES: Final = pa.array(
    [severity.value for severity in sorted(Severity, key=lambda each: -each.rank)]
)
# A finding as the driver gets it: with the number of its partition in the run, and its rank.
RANKED_FINDING: Final = pa.schema(
    [
        *(_VERIFIED.field(name) for name in ("row", "ordinal", "root", *FINDING.names)),
        pa.field("badness", pa.int32()),
    ]
)
# What comes first of findings: the worst, then by their places.
WORST_FIRST: Final = ("badness", "root", "topic", "partition", "file", "position", "code")


def verified_partitions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of partitions, of ``VERIFIED_PARTITION``."""
    for rows in _of_kind(batches, PARTITION_ROW):
        yield rows.select(VERIFIED_PARTITION.names)


def recorded_findings(batches: Iterable[pa.RecordBatch], run_id: str) -> Iterator[pa.RecordBatch]:
    """Yield the findings, of ``schemas.RECORDED_FINDING``."""
    names = RECORDED_FINDING.names[1:]
    for rows in _of_kind(batches, FINDING_ROW):
        run = pa.repeat(run_id, rows.num_rows)
        yield pa.RecordBatch.from_arrays(
            [run, *rows.select(names).columns], schema=RECORDED_FINDING
        )


def count_findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield how many findings there are of each root, severity and code."""
    keys = FINDING_COUNT.names[:-1]
    for rows in _of_kind(batches, FINDING_ROW):
        counts = Counter(zip(*(column.to_pylist() for column in rows.select(keys)), strict=True))
        counted = [dict(zip(keys, key, strict=True), count=n) for key, n in counts.items()]
        yield rows_to_batch(FINDING_COUNT, counted)


def rank_findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the findings with their rank, 0 for the worst; of ``RANKED_FINDING``."""
    names = RANKED_FINDING.names[:-1]
    for rows in _of_kind(batches, FINDING_ROW):
        badness = pc.index_in(rows["severity"], value_set=_SEVERITIES)
        yield pa.RecordBatch.from_arrays(
            [*rows.select(names).columns, badness], schema=RANKED_FINDING
        )


def findings_of(batches: Iterable[pa.RecordBatch], severity: str) -> Iterator[pa.RecordBatch]:
    """Yield the findings of one severity, of ``RANKED_FINDING``."""
    for rows in rank_findings(batches):
        yield rows.filter(pc.equal(rows["severity"], severity))


def first_rows(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Yield up to a number of a task's first rows. The others are passed over."""
    remaining_rows = most
    for rows in batches:
        yield rows.slice(0, remaining_rows)
        remaining_rows -= min(remaining_rows, rows.num_rows)


def _of_kind(batches: Iterable[pa.RecordBatch], kind: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a kind; of several pieces, the first."""
    for batch in batches:
        yield batch.filter(pc.and_(pc.equal(batch["row"], kind), pc.equal(batch[PART], 0)))


# Spread a verification over tasks, in one stage or two. The first has a task a unit of segments,
# the second a task a partition.
#
# A big partition is cut into stretches of whole segments; what its tasks found out is put together
# in the second stage.


def verify_targets(
    run: Run,
    request: VerifyRequest,
    roots: VerifiedRoots,
    watch: Callable[[Sequence[int]], object] | None = None,
) -> Any:
    """Return a verification's rows in pieces, for several readings.

    Args:
        request: How deep to look.
        watch: Told how many bytes each task will read, before they run; None for nobody.
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
    if watch is not None:
        watch([0, *(unit.size_bytes for unit in units)])
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
    # Of what was listed when this machine was chosen, each partition is known.
    listed = run.place.listed if isinstance(run.place, Local) else {}
    sizes = {
        target.ordinal: SegmentSizes.of(target, listed[target.directory])
        for target in targets
        if target.directory in listed
    }
    unlisted = [target for target in targets if target.ordinal not in sizes]
    if unlisted:
        sizes |= {each.ordinal: each for each in _ask_for_sizes(run, unlisted)}
    unit_bytes = run.unit_bytes(sum(sum(each.sizes) for each in sizes.values()))
    return [
        WorkItem(value=stretch, size_bytes=size, disk=run.disks.of(target.root))
        for target in targets
        for stretch, size in cut_partition(
            target
            if target.directory == sizes[target.ordinal].directory
            else replace(target, directory=sizes[target.ordinal].directory),
            sizes[target.ordinal].offsets,
            sizes[target.ordinal].sizes,
            unit_bytes=unit_bytes,
        )
    ]


def _ask_for_sizes(run: Run, targets: Sequence[Target]) -> Iterable[SegmentSizes]:
    job, engine = run.job, run.engine
    items = [
        WorkItem(value=target, size_bytes=0, disk=run.disks.of(target.root)) for target in targets
    ]
    looks = -(-len(targets) // count_look_tasks(len(targets), slots=engine.slots))
    units = pack_units(items, unit_bytes=looks * ITEM_OVERHEAD_BYTES, per_disk=run.disks.per_disk)
    return engine.ask(
        [unit.values for unit in units],
        measure_segments,
        SegmentSizes,
        f"{job.title} {job.places}: list segments",
        is_look=are_looked_at_here(len(targets)),
    )


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


# Takes rows of findings, some at a time.
OnFindings = Callable[[Sequence[Mapping[str, Any]]], None]


def verify(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    request: VerifyRequest | None = None,
    *,
    clock: Clock | None = None,
    on_findings: OnFindings | None = None,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Verify all partitions of log directories; record and report the findings.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        options: Which topics, which role, where the ledger is.
        request: How deep to look, and what makes the run fail.
        clock: For the times in the ledger.
        on_findings: Takes all findings, some at a time, however many there are.
        on_progress: Told how far the tasks have come.
    """
    log_roots = resolve_roots(roots, role=options.role, may_be_tiers=True)
    check_ledger(log_roots, options.ledger)
    check_outside(METRICS_FILE.label, options.metrics_file, log_roots)
    request = request or VerifyRequest()
    job = new_job(
        Action.VERIFY.value, log_roots, options, clock=clock, request=asdict(request), outputs=()
    )
    with Run(place, job) as run:
        observed = observe_targets(run, request)
        verification = verify_step(run, request, observed, on_progress)
        return report_verification(
            run, verification, observed, fail_on=request.fail_on, on_findings=on_findings
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a verification found, while its run is open."""

    rows: Any  # of ``VerifiedRow``, in pieces, where tasks have them
    partitions: tuple[dict[str, Any], ...]
    # Of sound logs that were verified together, by ordinal: bytes of the larger index of the active
    # segment.
    active_indexes: Mapping[int, int]
    counts: tuple[FindingCount, ...]  # findings by severity and code, worst first
    # Findings of each root by severity, under the names that metrics have.
    gauges: Mapping[str, Mapping[str, int]]
    # The worst findings, of ``findings.RANKED_FINDING``; as many as were asked for.
    worst: tuple[dict[str, Any], ...]


def report_verification(
    run: Run,
    verification: "Verification",
    roots: VerifiedRoots,
    *,
    fail_on: Severity | None,
    on_findings: OnFindings | None,
) -> VerifyReport:
    """Record what an open run has found, and return its report."""
    job = run.job
    results = _results(job, verification.partitions)
    run.recorder.results(results)
    recorded = verification.rows.map(
        partial(recorded_findings, run_id=job.run_id), RECORDED_FINDING
    )
    run.recorder.findings(run.engine, recorded)
    if on_findings is not None:
        tell = partial(_tell_recorded, job, on_findings)
        tell_findings(run, verification, tell)
    worst = Severity(verification.counts[0].severity) if verification.counts else None
    return run.report(
        VerifyReport,
        results,
        has_findings=is_as_bad(worst, fail_on),
        verified=verification.partitions,
        counts=verification.counts,
        gauges=verification.gauges,
        findings=tuple(_recorded(job, row) for row in verification.worst),
        roots=roots,
        read_bytes=sum(row["read_bytes"] or 0 for row in verification.partitions),
        read_ms=sum(row["read_ms"] or 0 for row in verification.partitions),
        _findings=run.engine.hand_over(recorded),
    )


def observe_targets(run: Run, request: VerifyRequest) -> VerifiedRoots:
    """Return a run's log directories and the partitions to verify."""
    roots = [(root.location, root.role) for root in run.job.roots]
    return observe_roots(roots, run.job.topics, is_live=request.is_live, release=request.release)


@log_fields(step=Action.VERIFY.value)
def verify_step(
    run: Run,
    request: VerifyRequest,
    roots: VerifiedRoots,
    on_progress: OnProgress | None = None,
) -> Verification:
    """Verify every partition of the roots of a run that is open.

    Args:
        request: How deep to look.
        roots: Of ``observe_targets``.
        on_progress: Told how far the tasks have come.
    """
    with ExitStack() as stack:
        watch = watching(run, stack, on_progress)
        return gather(run, verify_targets(run, request, roots, watch), shown=request.shown)


def watching(
    run: Run, stack: ExitStack, on_progress: OnProgress | None
) -> Callable[[Sequence[int]], object] | None:
    """Return what begins to watch a stage by the bytes that each of its tasks reads.

    Rows that are kept are computed at once, or when they are read first: the watch ends with the
    stack.
    """
    if on_progress is None:
        return None

    def watch(sizes: Sequence[int]) -> None:
        meter = ProgressMeter(run.engine, total_bytes=sum(sizes), report=on_progress)
        stack.enter_context(meter.stage([(size, 0) for size in sizes]))

    return watch


def gather(run: Run, rows: Any, *, shown: int) -> Verification:
    """Return what rows of findings and partitions say, for the driver.

    Args:
        rows: Of ``VerifiedRow``, in pieces, for several readings.
        shown: How many findings it holds.
    """
    title = f"{run.job.title} {run.job.places}"
    partitions = run.engine.collect(
        rows.map(verified_partitions, VERIFIED_PARTITION),
        VERIFIED_PARTITION,
        f"{title}: collect partitions",
        is_look=True,
    )
    counts = run.engine.collect(
        rows.map(count_findings, FINDING_COUNT),
        FINDING_COUNT,
        f"{title}: count findings",
        is_look=True,
    )
    # Each task chooses among its own findings, and one among these.
    first = partial(first_rows, most=shown)
    ranked = rows.map(rank_findings, RANKED_FINDING)
    worst_rows = ranked.sort_within(*WORST_FIRST).map(first, RANKED_FINDING)
    worst_rows = worst_rows.deal_out(1).sort_within(*WORST_FIRST).map(first, RANKED_FINDING)
    worst = run.engine.collect(
        worst_rows, RANKED_FINDING, f"{title}: choose the worst findings", is_look=True
    )
    active = partitions.select(["ordinal", LARGEST_ACTIVE_INDEX]).to_pydict()
    by_name = sorted(
        partitions.drop_columns([LARGEST_ACTIVE_INDEX]).to_pylist(),
        key=lambda row: (row["root"], row["topic"] or "", row["partition"] or 0),
    )
    return Verification(
        rows=rows,
        partitions=tuple(by_name),
        active_indexes={
            ordinal: size_bytes
            for ordinal, size_bytes in zip(*active.values(), strict=True)
            if size_bytes is not None
        },
        counts=_sum_counts(counts),
        gauges=_gauges(counts, [root.location for root in run.job.roots]),
        worst=tuple(worst.drop_columns(["badness"]).to_pylist()),
    )


def tell_findings(run: Run, verification: Verification, on_findings: OnFindings) -> None:
    """Hand over all findings of an open run, worst severity first.

    Args:
        on_findings: Takes them, some at a time.
    """
    if sum(count.count for count in verification.counts) <= len(verification.worst):
        on_findings(verification.worst)
        return
    severities = dict.fromkeys(count.severity for count in verification.counts)
    for severity in severities:
        findings = verification.rows.map(partial(findings_of, severity=severity), RANKED_FINDING)
        ordered = findings.sort_within(*WORST_FIRST)
        title = f"{run.job.title}: findings of severity {severity}"
        for batch in run.engine.stream(ordered, RANKED_FINDING, title):
            on_findings(batch.drop_columns(["badness"]).to_pylist())


def _tell_recorded(job: Job, on_findings: OnFindings, rows: Sequence[Mapping[str, Any]]) -> None:
    on_findings([_recorded(job, row) for row in rows])


def _recorded(job: Job, row: Mapping[str, Any]) -> dict[str, Any]:
    return {"run_id": job.run_id, **{name: row[name] for name in RECORDED_FINDING.names[1:]}}


def _sum_counts(counts: pa.Table) -> tuple[FindingCount, ...]:
    """Return the number of findings per severity and code, worst first."""
    sums: Counter[tuple[str, str]] = Counter()
    for row in counts.to_pylist():
        sums[row["severity"], row["code"]] += row["count"]
    summed = [
        FindingCount(severity=severity, code=code, count=count)
        for (severity, code), count in sums.items()
    ]
    summed.sort(key=lambda count: (-Severity(count.severity).rank, -count.count, count.code))
    return tuple(summed)


def _gauges(counts: pa.Table, roots: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return how many findings each root has of each severity."""
    gauges = {root: {f"findings-{each.value}": 0 for each in Severity} for root in roots}
    for row in counts.to_pylist():
        gauges[row["root"]][f"findings-{row['severity']}"] += row["count"]
    return gauges


def _results(job: Job, verified: Sequence[Mapping[str, Any]]) -> pa.Table:
    rows = [
        {
            "run_id": job.run_id,
            "root": row["root"],
            "topic": row["topic"],
            "partition": row["partition"],
            "action": job.action,
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
