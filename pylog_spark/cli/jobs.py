"""The commands for recover, retain, compact and saved plans, with output."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow.compute as pc

from pylog_spark.cli.runner import (
    Call,
    Looked,
    PageLook,
    ProgressLine,
    Tasks,
    Work,
    engine_text,
    load_options,
    look_at_past_runs,
    prepare_roots,
    topic_notes,
)
from pylog_spark.cli.view_parts import (
    figures,
    history_section,
    picture_notes,
    segment_section,
    table_section,
)
from pylog_spark.discovery import resolve_roots
from pylog_spark.house import load
from pylog_spark.operations.free_space.biggest_segments import segments_after_run
from pylog_spark.options import JobOptions
from pylog_spark.options.declared import (
    CONFIG_FILES,
    DRY_RUN,
    ENGINE,
    FAIL_ON,
    LEDGER,
    MARK_CLEAN,
    MASTER,
    METRICS_FILE,
    METRICS_PUSH,
    OVERRIDE,
    PLAN,
    REPORT,
    ROOTS,
    RUN_ID,
    TRASH,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.outcomes import ALLOWED_BY, Action, Reason, Status
from pylog_spark.pictures import MOST_ROWS, before_and_after, dirty_ratios
from pylog_spark.refusals import ways_out
from pylog_spark.report import (
    CUT_TABLE,
    PLAN_TABLE,
    RESULT_TABLE,
    RETENTION_TABLE,
    growth_note,
    is_notable_retention,
    refusal_text,
    refused_deletions,
    summary_line,
)
from pylog_spark.run.guards import check_outside, check_recovery, check_roots, check_truncation
from pylog_spark.run.plan_file import SavedPlan, read_plan_file
from pylog_spark.run.plan_table import RowKey, row_key
from pylog_spark.run.run_report import RunReport, note_of_empty_root
from pylog_spark.tasks.listing import list_partitions
from pylog_spark.view import Block, OutputLine, Page, Section, Table, View, lines_of
from storage_core.catalog.roles import require_role
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import GuardRefusedError, PylogError
from storage_core.roots.open_root import LogRoot
from storage_core.store import open_object_store
from storage_core.store.generations import list_partitions as list_managed


def _job(
    name: str,
    operation: str,
    check: Callable[..., object] = check_roots,
    *,
    recovers: bool = False,
) -> Work:
    """Return the work of a job.

    Args:
        operation: Its module and name; another command imports none of it.
        recovers: Whether the operation reads so much that it shows progress, and cuts logs, so that
            ``--fail-on`` is about it.
    """

    def operate(call: Call, place: Any) -> RunReport:
        line, options = call.line, call.options
        work: Callable[..., RunReport] = load(operation)
        if recovers:
            with ProgressLine(is_shown=call.has_progress) as progress:
                report = work(
                    place,
                    line[ROOTS],
                    options,
                    on_progress=progress.on_progress,
                    fail_on=line[FAIL_ON].severity,
                )
        else:
            report = work(place, line[ROOTS], options)
        report = report.with_empty_roots(call.locations, are_topics_chosen=call.are_topics_chosen)
        report = report.with_unknown_configs(line[CONFIG_FILES]).with_notes(call.notes)
        refusals = role_notes(call.roots, "without --dry-run this is refused")
        return report.with_notes(refusals if options.dry_run else ())

    return Work(
        name=name,
        prepare=lambda line: prepare_roots(line, check),
        operate=operate,
        look_for_page=look_for_page,
        view=view_run,
        tasks=Tasks.HERE_IF_FEW,
        # A dry run writes no ledger, but asks it what retention the topics had.
        asks_ledger=True,
    )


def role_notes(roots: Iterable[LogRoot], what: str) -> Iterator[str]:
    """Yield a refusal for each root without an explicit role. The real work of a dry run or a plan
    would be refused there.

    Args:
        what: Of the refusal, before its reason.
    """
    for root in roots:
        if not root.is_said:
            try:
                require_role(None, root.location)
            except GuardRefusedError as refused:
                yield f"{what}: {refused}"


def _prepare_plan(line: CommandLine) -> Call:
    from pylog_spark.operations.apply import (  # noqa: PLC0415  # every operation
        ApplyOptions,
        options_of,
    )

    anew = ApplyOptions(
        dry_run=line[DRY_RUN],
        ledger=line[LEDGER],
        trash=line[TRASH],
        mark_clean=line.written(MARK_CLEAN),
        overrides=line[OVERRIDE],
        engine=line[ENGINE],
        master=line[MASTER],
        metrics_file=line[METRICS_FILE],
        metrics_push=line[METRICS_PUSH],
    )
    path = line[PLAN]
    plan = read_plan_file(path)
    options = options_of(plan, path, anew)
    check_outside(REPORT.label, line[REPORT], plan.roots)
    if plan.action != Action.RECOVER:
        is_of_brokers = plan.action in {Action.TRUNCATE, Action.HEAL}
        check = check_truncation if is_of_brokers else check_roots
        roots = [root.location for root in plan.roots]
        check(resolve_roots(roots, role=options.role), options)
    return Call(line=line, options=options, subject=plan, roots=plan.roots)


def _apply(call: Call, place: Any) -> RunReport:
    from pylog_spark.operations.apply import apply_saved  # noqa: PLC0415  # as above

    plan: SavedPlan = call.subject
    return apply_saved(place, plan, call.options)


def view_run(call: Call, report: RunReport) -> View:
    """Return the view of a run, real or planned."""
    rows = report.results.to_pylist()
    look = call.page_look
    return View(
        lines=_lines(report, rows),
        csv=("result", report.results.schema.names),
        blocks=_blocks(call, report, rows),
        page=None if look is None else lambda: run_page(report, look, now_ms=call.options.now_ms),
        status=report.exit_code,
    )


def look_for_page(call: Call, report: RunReport) -> PageLook:
    """Look at what a run has left: the segments of its biggest partitions, and its ledger."""
    segments: Looked
    try:
        segments = segments_after_run(
            call.roots, call.options, report.results.to_pylist(), most=MOST_ROWS
        )
    except PylogError as error:
        segments = error
    return PageLook(
        ledger=call.options.ledger,
        past_runs=look_at_past_runs(call.options.ledger),
        segments=segments,
    )


def run_page(report: RunReport, look: PageLook, *, now_ms: int) -> Page:
    """Return the page of a run."""
    rows = report.results.to_pylist()
    worked_on = [row for row in rows if row["status"] in {Status.DONE, Status.PLANNED}]
    what = "Dry run, nothing was written" if report.dry_run else f"Run {report.run_id}"
    retentions = [row for row in report.retentions.to_pylist() if is_notable_retention(row)]
    ratios = report.plans.select(["root", "topic", "partition", "directory", "cleanable_ratio"])
    return Page(
        title=f"pylog {report.action}",
        lead=f"{what}: {summary_line(rows)}{refusal_text(rows)}",
        notes=[*report.notes, *picture_notes()],
        sections=[
            Section(
                heading="Bytes before and after",
                blocks=figures(before_and_after(worked_on, is_planned=report.dry_run)),
            ),
            segment_section(look.segments, now_ms=now_ms),
            Section(
                heading="Dirty ratios, before the run",
                blocks=figures(
                    dirty_ratios(ratios.to_pylist(), lambda row: row["cleanable_ratio"])
                ),
            ),
            table_section(
                "What would be compacted",
                PLAN_TABLE,
                report.planned_rows() if report.dry_run else [],
            ),
            table_section("What recovery cuts", CUT_TABLE, report.cuts.to_pylist()),
            table_section("What retention removes", RETENTION_TABLE, retentions),
            table_section("Partitions", RESULT_TABLE, rows),
            history_section(look),
        ],
    )


def _lines(report: RunReport, rows: list[dict[str, Any]]) -> Iterator[OutputLine]:
    """Yield a run for a program: partition rows, then its own."""
    plans: dict[RowKey, dict[str, Any]] = {}
    if report.dry_run:
        plans = {row_key(plan): plan for plan in report.planned_rows()}
        for row in report.recoveries.to_pylist():
            plans[row_key(row)] = row | {"operations": json.loads(row["operations"] or "[]")}
    for row in rows:
        plan = plans.get(row_key(row))
        yield OutputLine("result", row if plan is None else {**row, "plan": plan})
    yield from lines_of("cut", report.cuts.to_pylist())
    for row in report.retentions.to_pylist():
        yield OutputLine("retention", row | {"operations": json.loads(row["operations"] or "[]")})
    run = {
        **report.run_row(),
        "cleaner": dict(report.cleaner),
        "refused_deletions": [
            {"reason": reason, "partitions": count, "allowed_by": ALLOWED_BY[reason]}
            for reason, count in refused_deletions(rows).items()
        ],
    }
    yield OutputLine("run", run)


def _blocks(call: Call, report: RunReport, rows: list[dict[str, Any]]) -> Iterator[Block]:
    planned = report.planned_rows() if report.dry_run else []
    if planned:
        yield Table(kind=PLAN_TABLE, rows=planned)
        yield from growth_note(planned)
        yield ""
    retentions = [row for row in report.retentions.to_pylist() if is_notable_retention(row)]
    for kind, of_kind in ((CUT_TABLE, report.cuts.to_pylist()), (RETENTION_TABLE, retentions)):
        if of_kind:
            yield Table(kind=kind, rows=of_kind)
            yield ""
    seconds = report.summary.duration_ms / 1000
    what = "dry run, nothing was written" if report.dry_run else f"run {report.run_id}"
    line = f"{what}: {summary_line(rows)} in {seconds:.1f} s, "
    line += f"{engine_text(report.engine, call)}{refusal_text(rows)}"
    if not call.is_wide:
        # A note counts them: of a directory without its cluster's metadata they are all of it.
        rows = [row for row in rows if row["reason"] != Reason.CONFIG_UNKNOWN]
    yield Table(kind=RESULT_TABLE, rows=rows)
    yield line
    yield from ways_out(row["reason"] for row in rows)
    yield from report.notes


RUN: Final = _job("run", "pylog_spark.operations.nightly:run_nightly", recovers=True)
RECOVER: Final = _job(
    "recover", "pylog_spark.operations.recover.driver:recover", check_recovery, recovers=True
)
RETAIN: Final = _job("retain", "pylog_spark.operations.retain.driver:retain")
COMPACT: Final = _job("compact", "pylog_spark.operations.compact.driver:compact")
APPLY: Final = Work(
    name="apply",
    prepare=_prepare_plan,
    operate=_apply,
    look_for_page=look_for_page,
    view=view_run,
    tasks=Tasks.HERE_IF_FEW,
    asks_ledger=True,
)


# ``pylog undo`` and ``purge``, with engine and ledger as for jobs. What does their tasks, and
# writes their ledger, is chosen as for jobs.


def _prepare_undo(line: CommandLine) -> Call:
    from pylog_spark.operations.undo import (  # noqa: PLC0415  # of this command alone
        check_undo,
        find_run_id,
    )

    options = load_options(line)
    run_id = find_run_id(line[RUN_ID], options.trash, line[ROOTS])
    roots = check_undo(run_id, options, line[ROOTS])
    notes = topic_notes(options, roots)
    if run_id != line[RUN_ID]:
        notes = (f"{line[RUN_ID]} is {run_id}", *notes)
    return Call(line=line, options=options, roots=roots, subject=run_id, notes=notes)


def _undo(call: Call, place: Any) -> RunReport:
    from pylog_spark.operations.undo import undo  # noqa: PLC0415  # as above

    report = undo(call.subject, call.options, roots=call.line[ROOTS], place=place)
    present = set(pc.unique(report.results["root"]).to_pylist())
    of_what = " of a topic that --topics and --exclude ask for" if call.are_topics_chosen else ""
    notes = (
        f"{root}: the run left nothing to undo there{of_what}"
        for root in call.locations
        if root not in present
    )
    return report.with_notes((*notes, *call.notes))


def _prepare_purge(line: CommandLine) -> Call:
    options = load_options(line)
    roots = resolve_roots(line[ROOTS], role=options.role) if line[ROOTS] else []
    check_roots(roots, options)
    notes = (*topic_notes(options, roots), *_notes_of_empty_roots(roots, options))
    return Call(line=line, options=options, notes=notes)


def _purge(call: Call, place: Any) -> RunReport:
    from pylog_spark.operations.purge import purge  # noqa: PLC0415  # of this command alone

    report = purge(call.line[ROOTS], call.options, place=place)
    return report.with_notes(call.notes)


def _notes_of_empty_roots(roots: Sequence[LogRoot], options: JobOptions) -> tuple[str, ...]:
    """Return a line for each root without a partition to purge. The purge was asked for there.

    A purge has no row of a partition that has nothing to purge, so its rows do not tell.
    """
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    return tuple(
        note_of_empty_root(
            root.location, are_topics_chosen=bool(options.include or options.exclude)
        )
        for root in roots
        if not _has_partition(root, topics)
    )


def _has_partition(root: LogRoot, topics: TopicFilter) -> bool:
    if root.role.facts.has_manifests:
        partitions = list_managed(open_object_store(root.location))
        return any(topics.admits(partition.topic) for partition in partitions)
    return bool(list_partitions(root.location, root.role.value, topics))


UNDO: Final = Work(
    name="undo",
    prepare=_prepare_undo,
    operate=_undo,
    look_for_page=look_for_page,
    view=view_run,
    tasks=Tasks.HERE,
)
PURGE: Final = Work(
    name="purge",
    prepare=_prepare_purge,
    operate=_purge,
    look_for_page=look_for_page,
    view=view_run,
    tasks=Tasks.HERE,
)
