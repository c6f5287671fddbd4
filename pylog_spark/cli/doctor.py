"""``pylog doctor``: the state of log directories, and the next steps."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Any, Final

from pylog_spark.cli.runner import Call, Tasks, Work, engine_text, load_options, topic_notes
from pylog_spark.cli.view_parts import (
    FINDING_TABLE,
    count_blocks,
    finding_sections,
    picture_notes,
    table_section,
)
from pylog_spark.discovery import resolve_roots
from pylog_spark.exit_code import ExitCode
from pylog_spark.house import require_addition
from pylog_spark.operations.doctor.driver import (
    Diagnosis,
    SeveralDiagnoses,
    diagnose,
    find_absent_voters,
    release_to_start,
)
from pylog_spark.operations.verify.driver import VerifyRequest
from pylog_spark.options.choices import FailOn, OutputFormat
from pylog_spark.options.declared import (
    ALL_COMMANDS,
    ALLOW_TRUNCATE,
    DEEP,
    DRY_RUN,
    FAIL_ON,
    MAX_TRUNCATE_BYTES,
    OUTPUT,
    REPORT,
    ROOTS,
    SHOW,
    STARTED_RELEASE,
)
from pylog_spark.options.load import broker_config
from pylog_spark.options.option import CommandLine
from pylog_spark.report import (
    PARTITION,
    number_column,
    partition_name,
    size_column,
    size_text,
)
from pylog_spark.run.guards import UnreadBroker, check_outside, split_by_broker
from pylog_spark.schemas import FINDING
from pylog_spark.text import to_json
from pylog_spark.view import (
    Block,
    OutputLine,
    Page,
    Row,
    Section,
    Sentence,
    Table,
    TableKind,
    Verbatim,
    View,
    lines_of,
)
from storage_core.catalog.metadata_image import decoded_once
from storage_core.catalog.roles import Role, guess_role, local_path
from storage_core.errors import ConfigError
from storage_core.interruption import ending_in_order
from storage_core.maintenance.verification.finding_kinds import KINDS, Cure, command_of
from storage_core.maintenance.verification.findings import Code, Severity
from storage_core.maintenance.verification.verdict import Advice, RootState, Verdict, seconds_text
from storage_core.roots.open_root import LogRoot
from storage_core.store.open_objects import MANAGED_PREFIX, names_manifest
from storage_core.wording import count_text

# Findings for a program, a line each, until the whole of the answer is known; None for a person.
_Spool = IO[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Brokers:
    """The brokers that are diagnosed."""

    # Log directories by node id, if they are of several brokers.
    roots: Mapping[int, Sequence[LogRoot]]
    # Log directories beside these of which nothing says whose they are.
    unread: Sequence[UnreadBroker]
    # Where the findings of each go; one, under None, where there is one broker.
    spools: Mapping[int | None, _Spool]


_STYLES: Final = {
    Advice.IN_USE: "bold yellow",
    Advice.DO_NOT_START: "bold red",
    Advice.LOOK_BEFORE_START: "bold yellow",
    Advice.RECOVER: "bold cyan",
    Advice.START_BROKER: "bold green",
    Advice.COPY_DAMAGED: "bold red",
    Advice.COPY_WHOLE: "bold green",
    Advice.NO_PARTITION: "bold red",
}
# Of a verdict that keeps a broker from starting, whatever was found.
_AS_SEVERE: Final = {
    Advice.DO_NOT_START: Severity.FATAL,
    Advice.LOOK_BEFORE_START: Severity.ERROR,
    Advice.NO_PARTITION: Severity.ERROR,
}
_LIMIT: Final = re.compile(rf"{MAX_TRUNCATE_BYTES.label} (\d+)")
_SHOWN_FORECASTS: Final = 20
# In tables, where nobody says how many.
_SHOWN_FINDINGS: Final = 20
_SHOWN_COMMANDS: Final = 10
# What a broker's start would do to each partition.
_FORECAST_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        size_column("read", "read_bytes", rank=4),
        number_column("rebuild", "rebuilt_segments", rank=5),
        size_column("cut", "cut_bytes", rank=1),
        number_column("records cut", "cut_records", rank=2),
        number_column("segments gone", "deleted_segments", rank=3),
        number_column("ends at", "log_end_offset", rank=6),
    ),
    note=lambda row: row.get("error") or "",
    note_heading="a broker says",
)


def _prepare(line: CommandLine) -> Call:
    options = load_options(line, release=release_to_start(line[STARTED_RELEASE].version))
    _refuse_no_brokers(line[ROOTS], options.role)
    roots = resolve_roots(line[ROOTS], role=options.role, must_open=False)
    brokers, unread = split_by_broker(roots)
    if not brokers:
        # No verdict on one broker without all of its log directories.
        roots = resolve_roots(line[ROOTS], role=options.role)
    check_outside(REPORT.label, line[REPORT], roots)
    notes = topic_notes(options, roots)
    is_for_program = line[OUTPUT] is not OutputFormat.TABLE and SHOW not in line
    # A signal in between would leave the file by which Python tries the folder.
    with ending_in_order():
        spools = {
            broker: TemporaryFile("w+", encoding="utf-8") if is_for_program else None  # noqa: SIM115  # of the call
            for broker in brokers or (None,)
        }
    subject = _Brokers(roots=brokers, unread=unread, spools=spools)
    return Call(line=line, options=options, subject=subject, roots=roots, notes=notes)


@decoded_once()
def _diagnose(call: Call, place: Any) -> Diagnosis | SeveralDiagnoses:
    subject: _Brokers = call.subject
    needs = find_absent_voters(call.locations, call.options)

    def diagnose_one(broker: int | None, roots: Sequence[str]) -> Diagnosis:
        spool = subject.spools[broker]
        return diagnose(
            place,
            roots,
            call.options,
            VerifyRequest(
                is_deep=call.line[DEEP],
                shown=_shown(call),
                release=call.options.release,
            ),
            broker_threads=broker_config(call.options).num_recovery_threads_per_data_dir,
            needs=needs,
            beside=call.locations,
            on_findings=None if spool is None else partial(_spool, spool),
        )

    if not subject.roots:
        return diagnose_one(None, [root.location for root in call.roots])
    diagnose_brokers: Callable[..., SeveralDiagnoses] = require_addition(
        "diagnose_brokers", "a diagnosis of several brokers"
    )
    return diagnose_brokers(place, subject.roots, subject.unread, call.options, diagnose_one, needs)


def _spool(spool: IO[str], findings: Iterable[Row]) -> None:
    for finding in findings:
        spool.write(f"{to_json(finding, separators=(',', ':'), default=str)}\n")


def _shown(call: Call) -> int:
    shown = call.line[SHOW]
    return _SHOWN_FINDINGS if shown is None else shown


def _view(call: Call, report: Diagnosis | SeveralDiagnoses) -> View:
    cluster = None if isinstance(report, Diagnosis) else report
    diagnoses: list[tuple[int | None, Diagnosis]] = (
        [(None, report)] if isinstance(report, Diagnosis) else [*report.brokers.items()]
    )
    if cluster is None:
        blocks = _blocks(call, diagnoses[0][1])
    else:
        blocks = _cluster_blocks(call, diagnoses, cluster)
    return View(
        lines=_lines(call, diagnoses, cluster),
        csv=("finding", ("root", *FINDING.names)),
        blocks=blocks,
        notes=call.notes,
        page=lambda: doctor_page(report),
        status=_exit_code([diagnosis for _, diagnosis in diagnoses], cluster, call.line[FAIL_ON]),
    )


def _lines(
    call: Call,
    diagnoses: Sequence[tuple[int | None, Diagnosis]],
    cluster: SeveralDiagnoses | None,
) -> Iterator[OutputLine | str]:
    """Yield each diagnosis as one JSON object, or its findings as CSV."""
    is_csv = call.output is OutputFormat.CSV
    subject: _Brokers = call.subject
    for broker, diagnosis in diagnoses:
        spool = subject.spools[broker]
        findings: Iterable[str]
        if spool is None:
            findings = [to_json(one, default=str) for one in diagnosis.findings[: _shown(call)]]
        else:
            spool.seek(0)
            findings = map(str.rstrip, spool)
        if is_csv:
            yield from lines_of("finding", (json.loads(each) for each in findings))
            yield from lines_of("failed", diagnosis.failed)
        else:
            row = ({} if broker is None else {"broker": broker}) | _describe(diagnosis)
            yield OutputLine("diagnosis", row, items=("findings", findings))
    for spool in filter(None, subject.spools.values()):
        spool.close()
    if cluster is None:
        return
    if not is_csv:
        row = {
            **asdict(cluster.verdict),
            "brokers": list(cluster.brokers),
            "unread": [asdict(each) for each in cluster.unread],
            **cluster.facts(),
        }
        answers = (to_json(each, default=str) for each in cluster.partitions())
        yield OutputLine("cluster", row, items=("partitions", answers))
    yield from (each.error for each in cluster.unread)


def doctor_page(report: Diagnosis | SeveralDiagnoses) -> Page:
    """Return the page of a diagnosis, of one broker or of several."""
    verdict = report.verdict
    commands: list[Block] = [*map(Verbatim, verdict.commands), *_warnings(verdict)]
    sections = [Section(heading="What to run", blocks=commands)]
    if isinstance(report, Diagnosis):
        sections += _sections(report)
    else:
        for broker, diagnosis in report.brokers.items():
            sections += [
                replace(section, heading=f"Broker {broker}: {section.heading}")
                for section in _sections(diagnosis)
            ]
    return Page(
        title="pylog doctor",
        lead=verdict.headline,
        notes=[*verdict.reasons, *picture_notes()],
        sections=sections,
    )


def _sections(diagnosis: Diagnosis) -> list[Section]:
    """Return all of the page that is of one broker."""
    failed = [
        f"{partition_name(row)} in {row['root']} could not be verified: {row['error']}"
        for row in diagnosis.failed
    ]
    return [
        Section(heading="Log directories", blocks=[*map(_root_line, diagnosis.roots), *failed]),
        Section(heading="What a broker's start would do", blocks=_start_lines(diagnosis)),
        table_section(
            "Partition by partition", _FORECAST_TABLE, _worth_telling(diagnosis.forecasts)
        ),
        *finding_sections(diagnosis.counts, diagnosis.findings),
    ]


def _refuse_no_brokers(roots: Sequence[str], role: Role | None) -> None:
    """Refuse what no broker starts on: URLs and managed roots."""
    for root in roots:
        path = local_path(root.removeprefix(MANAGED_PREFIX))
        roles = [] if path is None else [guess_role(path), *filter(None, [role])]
        is_found = any(each.facts.has_manifests for each in roles)
        if path is None or names_manifest(root) or is_found:
            reason = "no broker starts on it; `pylog verify` looks at URLs and managed roots"
            raise ConfigError("ROOT", root, reason)


def _exit_code(
    diagnoses: Sequence[Diagnosis], cluster: SeveralDiagnoses | None, fail_on: FailOn
) -> int:
    is_part = cluster is not None and cluster.is_part
    if is_part or any(diagnosis.failed for diagnosis in diagnoses):
        return ExitCode.PARTLY_FAILED
    if fail_on.severity is None:
        return ExitCode.DONE
    ranks = [
        Severity(severity).rank for diagnosis in diagnoses for severity, _, _ in diagnosis.counts
    ]
    # `pylog doctor DIR && systemctl start kafka` starts no broker that has to wait.
    verdicts = [diagnosis.verdict for diagnosis in diagnoses]
    verdicts += [] if cluster is None else [cluster.verdict]
    ranks += [severity.rank for verdict in verdicts if (severity := _AS_SEVERE.get(verdict.advice))]
    worst = max(ranks, default=-1)
    return ExitCode.FINDINGS if worst >= fail_on.severity.rank else ExitCode.DONE


def _describe(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        **asdict(diagnosis.verdict),
        "roots": [asdict(root) for root in diagnosis.roots],
        "start": asdict(diagnosis.start),
        "pace": asdict(diagnosis.pace),
        "counts": [
            {"severity": severity, "code": code, "count": count}
            for severity, code, count in diagnosis.counts
        ],
        "findings": [],
        "partitions": list(diagnosis.forecasts),
        "failed": list(diagnosis.failed),
        "read_bytes": diagnosis.read_bytes,
        "engine": diagnosis.engine,
    }


def _cluster_blocks(
    call: Call,
    diagnoses: Sequence[tuple[int | None, Diagnosis]],
    cluster: SeveralDiagnoses,
) -> Iterator[Block]:
    yield from _verdict_blocks(call, cluster.verdict)
    for broker, diagnosis in diagnoses:
        # Of a broker that just starts all is said above.
        if diagnosis.verdict.advice not in {Advice.START_BROKER, Advice.COPY_WHOLE}:
            yield Sentence(f"Broker {broker}", "bold")
            yield from _blocks(call, diagnosis)
            yield ""
    yield from cluster.blocks()
    yield from _last_words(cluster.verdict)


def _verdict_blocks(call: Call, verdict: Verdict) -> Iterator[Block]:
    yield Sentence(verdict.headline, _STYLES[verdict.advice])
    yield from (f"  - {each}" for each in verdict.reasons)
    commands = verdict.commands
    if not call.line[ALL_COMMANDS]:
        commands = commands[:_SHOWN_COMMANDS]
    yield from (Sentence(f"    {each}", "bold") for each in commands)
    more = len(verdict.commands) - len(commands)
    if more:
        yield f"    and {more:,} more; {ALL_COMMANDS.label} shows them"
    yield from (f"  {warning}" for warning in _warnings(verdict))
    yield ""


def _last_words(verdict: Verdict) -> Iterator[Block]:
    """Yield the headline again, where it stays on the screen."""
    yield ""
    yield Sentence(verdict.headline, _STYLES[verdict.advice])
    if verdict.commands:
        yield Sentence(f"next: {verdict.commands[0]}", "bold")


def _blocks(call: Call, diagnosis: Diagnosis) -> Iterator[Block]:
    verdict = diagnosis.verdict
    yield from _verdict_blocks(call, verdict)
    yield from map(_root_line, diagnosis.roots)
    yield from _start_lines(diagnosis)
    forecasts = _worth_telling(diagnosis.forecasts)
    if forecasts:
        shown = forecasts if call.is_wide else forecasts[:_SHOWN_FORECASTS]
        yield ""
        yield Table(kind=_FORECAST_TABLE, rows=shown)
        if len(forecasts) > len(shown):
            more = count_text(len(forecasts) - len(shown), "more partition")
            yield f"and {more}; --wide shows them"
    yield f"Looked at with {engine_text(diagnosis.engine, call)}."
    for row in diagnosis.failed:
        place = f" in {row['root']}" if len(diagnosis.roots) > 1 else ""
        text = f"{partition_name(row)}{place} could not be verified: {row['error']}"
        yield Sentence(text, "bold red")
    least = Severity.WARN.rank
    bad = [row for row in diagnosis.findings if Severity(row["severity"]).rank >= least]
    bad = bad[: _shown(call)]
    if bad:
        of_all = sum(n for severity, _, n in diagnosis.counts if Severity(severity).rank >= least)
        yield ""
        yield Table(kind=FINDING_TABLE, rows=bad)
        if of_all > len(bad):
            more = f"{of_all - len(bad):,} more"
            yield f"{more}; {SHOW.flag} N prints more, {OUTPUT.flag} json all"
    if diagnosis.counts:
        yield ""
        yield from count_blocks(
            diagnosis.counts,
            [_without_second_cut(row, verdict.commands) for row in diagnosis.findings],
            all_by=ALL_COMMANDS.label,
            are_all=call.line[ALL_COMMANDS],
        )
    yield from _last_words(verdict)


def _without_second_cut(row: Row, commands: Sequence[str]) -> Row:
    """Return a finding; let its fix refer to the plan's cut. That is so if the plan has the same
    cut with a limit."""
    kind = KINDS[Code(row["code"])]
    command = command_of(Code(row["code"]), row["fix"])
    is_planned = Severity(row["severity"]).rank >= Severity.ERROR.rank and commands
    if not is_planned or command is None or kind.cure is not Cure.CUT:
        return row
    return {**row, "fix": f"{kind.fix}: what to run stands above, with {MAX_TRUNCATE_BYTES.label}"}


def _warnings(verdict: Verdict) -> list[str]:
    """Return what has to be known before the commands are run."""
    commands = verdict.commands
    if any(ALLOW_TRUNCATE.label in each and DRY_RUN.label not in each for each in commands):
        most = max(int(each) for command in commands for each in _LIMIT.findall(command))
        warning = (
            f"Commands with {ALLOW_TRUNCATE.label} delete records: "
            f"{verdict.cut_records:,} readable ones in all, at most "
            f"{most:,} bytes per log. {DRY_RUN.label} shows which. Delete nothing that another "
            "replica can give back: `pylog heal ROOT --donor DIR --role broker` shows what it has."
        )
        if verdict.cut_records:
            warning += (
                " What can be read goes back by `pylog salvage replay` before the broker is "
                "started: then only the damaged batches are lost."
            )
        return [warning]
    return []


def _start_lines(diagnosis: Diagnosis) -> list[str]:
    start, pace = diagnosis.start, diagnosis.pace
    rate = f"{size_text(round(pace.bytes_per_second))}/s a reader"
    basis = "as measured" if pace.is_measured else "assumed: too little was read to measure"
    readable = count_text(start.cut_records, "readable record")
    indexed = count_text(start.rebuilt_segments, "segment")
    does = [
        (start.read_bytes, f"read {size_text(start.read_bytes)}"),
        (start.rebuilt_segments, f"rebuild the indexes of {indexed}"),
        (start.cut_bytes, f"cut {size_text(start.cut_bytes)} with {readable}"),
        (start.deleted_segments, f"delete {count_text(start.deleted_segments, 'segment')}"),
        (start.refused, f"refuse {count_text(start.refused, 'partition')}"),
    ]
    work = ", ".join(text for number, text in does if number)
    what = count_text(start.recovered_partitions, "partition")
    lines = [f"A broker's start would recover {what}{': ' if work else ''}{work}."]
    if start.recovered_partitions:
        lines.append(
            f"That takes it {seconds_text(start.broker_seconds)} with {pace.broker_threads} "
            f"threads a directory; `pylog recover` {seconds_text(start.our_seconds)} with "
            f"{pace.our_tasks} tasks ({rate}, {basis})."
        )
    return lines


def _worth_telling(forecasts: Sequence[Row]) -> list[Row]:
    """Return the partitions with unusual work at a broker's start. Reading and indexing alone is
    usual."""
    names = ("cut_bytes", "error", "deleted_segments", "split_segments")
    return [row for row in forecasts if any(row.get(name) for name in names)]


def _root_line(root: RootState) -> str:
    marker = "cleanly shut down" if root.is_clean else "not cleanly shut down"
    lock = "nobody holds its lock"
    if root.lock.is_held:
        pid = root.lock.holder_pid
        lock = "its lock is held" if pid is None else f"its lock is held by process {pid}"
    return (
        f"{root.location}: {root.role}, {count_text(root.partitions, 'partition')}, "
        f"{size_text(root.size_bytes)}, {marker}, {lock}"
    )


DOCTOR: Final = Work(
    name="doctor",
    prepare=_prepare,
    operate=_diagnose,
    view=_view,
    tasks=Tasks.HERE_IF_FEW,
)
