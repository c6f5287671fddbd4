"""``pylog audit``: who may lead, and what would be lost; ``pylog timeline``: who has led."""

import base64
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Final

from pylog_spark.cli.jobs import role_notes, view_run
from pylog_spark.cli.runner import Call, Tasks, Work
from pylog_spark.cluster.attest import ATTESTED_KEYS, Attestation, attest
from pylog_spark.cluster.audit.driver import (
    ANSWER_KEYS,
    ELECTION_FILE,
    REASSIGNMENT_FILE,
    RESTORE_FILE,
    Audit,
    Timeline,
    audit,
    read_timeline,
)
from pylog_spark.cluster.audit.elections import (
    Remark,
    Starts,
    describe_start,
    own_replicas,
    rank_of,
)
from pylog_spark.cluster.cli.differences import COPIES, DIFFERENCES, prepare_brokers
from pylog_spark.cluster.truncate import plan_followers
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.declared import (
    ALLOW_TRUNCATE,
    ATTEST,
    COPY,
    COPY_PREFIX,
    ELECTION_OUT,
    FAIL_ON,
    FORMER_TIMELINE,
    LEADER,
    LEADER_EPOCH,
    LEVEL,
    LOST_KEYS,
    OFFSET_MAP,
    PLAN_OUT,
    SALVAGE,
    STATE,
    UP,
)
from pylog_spark.options.option import CommandLine, Option
from pylog_spark.report import PARTITION, number_column, size_text
from pylog_spark.run.run import is_as_bad
from pylog_spark.run.run_report import RunReport
from pylog_spark.text import readable_bytes
from pylog_spark.view import (
    NOTHING,
    Block,
    Column,
    OutputLine,
    Row,
    Sentence,
    Table,
    TableKind,
    View,
    lines_of,
)
from storage_core.errors import ConfigError
from storage_core.maintenance.verification.findings import Severity
from storage_core.maintenance.verification.prescription import heal_commands
from storage_core.wording import count_text, time_text

# Of a loss, in the order in which they hurt.
_KINDS_OF_LOSS: Final = {
    "committed": "committed",
    "uncommitted": "never committed",
    "unknown": "perhaps committed",
}

# By the style of a verdict: records are lost whatever starts, or under the wrong leader.
_SEVERITIES: Final = {"bold red": Severity.ERROR, "bold yellow": Severity.WARN}
_SHOWN_RANGES: Final = 3
# Of a key on a terminal.
_SHOWN_BYTES: Final = 32
# Of the cuts under a leader.
_OF_CUTS: Final = (PLAN_OUT, SALVAGE, ALLOW_TRUNCATE)
_OF_LOSSES: Final = (LEADER_EPOCH, UP, ELECTION_OUT, LOST_KEYS, FAIL_ON)
# By an option that makes another answer: the options that it leaves no room for, and why.
_ALONE: Final[Mapping[Option[Any], tuple[tuple[Option[Any], ...], str]]] = {
    LEADER: (_OF_LOSSES, "says who leads"),
    LEVEL: ((LEADER, *_OF_LOSSES), "lists differences and no more"),
    COPY: (
        (ATTEST, LEADER, LEVEL, FORMER_TIMELINE, *_OF_LOSSES),
        "compares with copies and no more",
    ),
    FORMER_TIMELINE: ((LEADER, LEVEL, STATE, *_OF_LOSSES), "shows changes and no more"),
    ATTEST: (
        (STATE, LEADER, LEVEL, FORMER_TIMELINE, *_OF_LOSSES),
        "writes markers and shows no more",
    ),
}


def _losses(row: Row) -> str:
    """Return the loss under each leader, and which replicas cannot be read."""
    answer = row["details"]
    if answer is None:
        return f"could not be compared: {row['error']}"
    elections = answer["elections"]
    candidates = sorted(answer["candidates"], key=rank_of)
    elected = None
    if elections and elections["leader"] is not None:
        elected = next((c for c in candidates if c["broker"] == elections["leader"]), None)
    texts = [_describe_election(elections, elected)] if elections else []
    texts += [
        f"broker {each['broker']} cannot open its replica: {each['error']}"
        for each in answer["replicas"]
        if each.get("error")
    ]
    texts += [
        each["message"] for each in answer["remarks"] if each["code"] in _REMARKS_ABOUT_IDENTITY
    ]
    leaders: dict[str, list[int]] = {}
    for each in candidates:
        if each["lost"]["records"] and each is not elected:
            leaders.setdefault(_loss_text(each["lost"]), []).append(each["broker"])
        elif not each["lost"]["records"] and not each["safe"]:
            texts.append(f"broker {each['broker']} has damage")
    texts += [
        f"broker {' or '.join(map(str, brokers))} as leader loses {loss}"
        for loss, brokers in leaders.items()
    ]
    texts += _stops_of_committed_reads(answer)
    if answer["unseen"]:
        brokers = ", ".join(map(str, answer["unseen"]))
        texts.append(f"of broker {brokers} no directory was read")
    return "; ".join(texts)


def _stops_of_committed_reads(answer: Row) -> Iterator[str]:
    """Yield where open transactions hold committed reads back, and under which leaders."""
    logs = {each["broker"]: each for each in own_replicas(answer) if each.get("open_transactions")}
    stops: dict[tuple[int, int], list[int]] = {}
    for each in answer["candidates"]:
        log, stable = logs.get(each["broker"]), each["last_stable_offset"]
        if log is not None and stable < log["log_end"]:
            producer = log["open_transactions"][0]["producer_id"]
            stops.setdefault((stable, producer), []).append(each["broker"])
    for (stable, producer), brokers in stops.items():
        yield (
            f"committed reads stop at {stable:,} under broker {' or '.join(map(str, brokers))}, "
            f"until the open transaction of producer {producer} ends"
        )


def _describe_election(elections: Row, elected: Row | None) -> str:
    """Return whom the controller elects, and what is lost then.

    Args:
        elected: The candidate; None where nobody is elected, or nothing of it was read.
    """
    leader, late = elections["leader"], elections["late"]
    if leader is None:
        brokers = " or ".join(map(str, elections["waits_for"]))
        return f"no leader before broker {brokers} starts"
    text = f"broker {leader} leads {_WAYS[elections['by']]}"
    if elected is None:
        text += "; what that loses is not known"
    elif not elected["lost"]["records"]:
        text += ", and nothing is lost"
    else:
        text += f" and loses {_loss_text(elected['lost'])}"
    if late is not None:
        other = "nobody" if late["leader"] is None else f"broker {late['leader']}"
        text += f"; or {other} leads, if Kafka hears of a new log directory too late"
    return text


# What a person has to know of a partition before its losses.
_REMARKS_ABOUT_IDENTITY: Final = frozenset(
    {
        Remark.LEADER_EPOCH_UNKNOWN,
        Remark.LEADER_EPOCH_FENCED,
        Remark.EPOCH_DOUBTFUL,
        Remark.TOPIC_ID_INCONSISTENT,
        Remark.TOPIC_ID_UNKNOWN,
    }
)
# What is counted in a line above the table.
_COUNTED_REMARKS: Final = {
    Remark.OFFLINE: "without a leader",
    Remark.UNDER_MIN_ISR: "under min.insync.replicas",
    Remark.UNDER_REPLICATED: "under-replicated",
    Remark.REPLICA_OFFLINE: "with a replica that cannot be opened",
    Remark.HIGH_WATERMARK_STALE: "with a stale high watermark",
    Remark.BROKER_UNCLEAN: "whose ISR or ELR loses a broker that counts as killed",
}
_WAYS: Final = {
    "isr": "by a clean election",
    "elr": "by a clean election from the ELR",
    "last_known_leader": "as the last known leader, with unclean elections off",
    "unclean": "by an unclean election",
}
# What the words of a loss mean, where they occur.
_MEANINGS: Final = {
    "committed": "committed: below the high watermark, so that acks=all was answered",
    "uncommitted": "never committed: an in-sync replica never had them; only acks=1 was answered",
    "unknown": "perhaps committed: after the last checkpoint; nobody can tell from the disks",
}
_OF_LEADERS: Final = "may lead: who loses nothing that was committed for sure, and has no damage"


def _loss_text(lost: Row) -> str:
    """Return how much is lost, of which kind, and since when."""
    kinds = {text: lost[name] for name, text in _KINDS_OF_LOSS.items() if lost[name]}
    if len(kinds) == 1:
        parts = [f"all {text}" for text in kinds]
    else:
        parts = [f"{records:,} {text}" for text, records in kinds.items()]
    spans = [f"{first:,} to {last:,}" for first, last, _ in lost["ranges"][:_SHOWN_RANGES]]
    more = len(lost["ranges"]) - len(spans)
    parts.append(f"offsets {', '.join(spans)}" + (f" and {more:,} more ranges" if more else ""))
    parts.append(size_text(lost["bytes"]))
    if lost["first_timestamp_ms"] is not None:
        parts.append(f"from {time_text(lost['first_timestamp_ms'])} on")
    if lost["keys"]:
        keys = (base64.b64decode(key) for key in lost["keys"])
        shown = ", ".join(readable_bytes(key, limit=_SHOWN_BYTES) for key in keys)
        parts.append(f"first keys: {shown}")
    return f"{count_text(lost['records'], 'record')} ({', '.join(parts)})"


_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        number_column("replicas", "replicas", rank=3),
        number_column("high watermark", "high_watermark", rank=2),
        number_column("differ from", "divergence", rank=1),
        Column(
            heading="may lead",
            cell=lambda row: ", ".join(map(str, row["safe"] or ())) or "nobody",
            style=lambda row: "" if row["safe"] else "bold red",
        ),
    ),
    note=_losses,
    note_heading="what would be lost",
)


def run_audit(line: CommandLine) -> int:
    """Run the audit, or the command that was an option of it before."""
    if LEADER not in line and any(option in line for option in _OF_CUTS):
        reason = "is needed beside --plan-out, --salvage and --allow-committed-loss"
        raise ConfigError(LEADER.label, None, reason)
    if COPY not in line and (COPY_PREFIX in line or OFFSET_MAP in line):
        reason = "is needed beside --copy-prefix and --offset-map"
        raise ConfigError(COPY.label, None, reason)
    for option, (others, reason) in _ALONE.items():
        for other in others:
            if option in line and other in line:
                raise ConfigError(other.label, None, f"{option.label} {reason}")
    former = {COPY: COPIES, FORMER_TIMELINE: TIMELINE, LEVEL: DIFFERENCES}
    return next((work for option, work in former.items() if option in line), AUDIT)(line)


def _audit(call: Call, place: Any) -> Audit | Attestation | RunReport:
    if call.line[ATTEST]:
        return attest(place, call.locations, call.options)
    leader, state = call.line[LEADER], call.line[STATE]
    if leader is None:
        return audit(
            place,
            call.locations,
            call.options,
            state=state,
            up=call.line[UP],
            leader_epoch=call.line[LEADER_EPOCH],
            election_out=call.line[ELECTION_OUT],
            most_keys=call.line[LOST_KEYS],
        )
    report = plan_followers(place, call.locations, call.options, leader=leader, state=state)
    planned = {result["root"] for result in report.results.to_pylist()}
    unsaid = role_notes(
        (root for root in call.roots if root.location in planned), "`pylog apply` will refuse it"
    )
    return report.with_notes([*call.notes, *unsaid])


def _view(call: Call, report: Audit | Attestation | RunReport) -> View:
    match report:
        case Attestation():
            return _view_attestation(report)
        case RunReport():
            return view_run(call, report)
    rows = report.rows.to_pylist()

    def lines() -> Iterator[OutputLine | str]:
        yield from lines_of("partition", report.answers())
        yield from report.notes

    failed = report.unread or any(row["error"] for row in rows)
    details = details_of(report)
    verdict = _verdict(details)
    if report.starts is not None:
        verdict = _verdict_of_starts(report.starts, _unseen_brokers(details))
    if report.unread_partitions:
        verdict = _with_unread(verdict, report.unread_partitions)
    is_bad = is_as_bad(_SEVERITIES.get(verdict.style), call.line[FAIL_ON].severity)
    status = ExitCode.FINDINGS if is_bad else ExitCode.DONE
    return View(
        lines=lines(),
        csv=("partition", ANSWER_KEYS),
        blocks=_blocks(call, report, details, verdict),
        notes=call.notes,
        status=ExitCode.PARTLY_FAILED if failed else status,
    )


def _view_attestation(report: Attestation) -> View:
    """Return the view of the markers that were written."""
    verdict = "All replicas have the same: their brokers keep their places in ISR and ELR."
    return View(
        lines=lines_of("attested", report.rows()),
        csv=("attested", ATTESTED_KEYS),
        blocks=[
            Sentence(verdict, "bold green"),
            f"  {report.belief}",
            *(
                f"  {row['root']}: the marker now names epoch {row['broker_epoch']} of broker "
                f"{row['broker']}"
                for row in report.rows()
            ),
            *(f"  {each.root}: its marker named it already" for each in report.others),
        ],
        status=ExitCode.DONE,
    )


def _view_timeline(call: Call, timeline: Timeline) -> View:
    """Return the view of leaders, ISR and ELR of partitions over time."""
    rows = timeline.rows.to_pylist()

    def lines() -> Iterator[OutputLine | str]:
        yield from lines_of("change", rows)
        yield from timeline.notes

    def blocks() -> Iterator[Block]:
        yield from (f"  {note}" for note in (timeline.belief, *timeline.notes))
        yield ""
        yield Table(kind=_TIMELINE_TABLE, rows=rows)

    return View(
        lines=lines(),
        csv=("change", timeline.rows.column_names),
        blocks=blocks(),
        notes=call.notes,
        status=ExitCode.PARTLY_FAILED if timeline.unread else ExitCode.DONE,
    )


_TIMELINE_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        Column(
            heading="time",
            cell=lambda row: (
                "before the snapshot" if row["offset"] is None else time_text(row["timestamp_ms"])
            ),
        ),
        number_column("offset", "offset", rank=2),
        Column(
            heading="leader",
            cell=lambda row: "nobody" if row["leader"] < 0 else str(row["leader"]),
            style=lambda row: "bold red" if row["leader"] < 0 else "",
        ),
        number_column("epoch", "leader_epoch", rank=1),
        Column(heading="ISR", cell=lambda row: ", ".join(map(str, row["isr"])) or NOTHING),
        Column(heading="ELR", cell=lambda row: ", ".join(map(str, row["elr"])) or NOTHING),
    ),
)


def _unseen_brokers(details: Iterable[Row]) -> set[int]:
    """Return brokers with replicas of which no directory was read."""
    return {broker for row in details if row["details"] for broker in row["details"]["unseen"]}


def _blocks(
    call: Call, report: Audit, details: Sequence[Row], verdict: Sentence
) -> Iterator[Block]:
    starts = report.starts
    if report.unread:
        unread = count_text(len(report.unread), "log directory", "log directories")
        text = f"{unread} cannot be read: nothing of what follows counts what is there."
        yield Sentence(text, "bold red")
    yield verdict
    yield f"  {report.belief}"
    yield from (f"  {note}" for note in (*report.notes, *(() if starts is None else starts.notes)))
    counts = Counter(
        code
        for row in details
        if row["details"] is not None
        for code in {each["code"] for each in row["details"]["remarks"]}
    )
    if any(counts[code] for code in _COUNTED_REMARKS):
        remarks = (
            f"{counts[code]:,} {text}" for code, text in _COUNTED_REMARKS.items() if counts[code]
        )
        yield f"  partitions: {', '.join(remarks)}"
    yield ""
    yield from loss_blocks(details)
    yield from _healings(details)
    is_harmless = all(
        row["error"] is None and len(row["safe"]) == row["replicas"] for row in details
    )
    if starts is None and report.brokers and not is_harmless:
        roots = " ".join(quote(root.location) for root in call.roots)
        up = ",".join(map(str, report.brokers))
        yield ""
        yield Sentence(
            f"next, for whom the controller elects: pylog audit {roots} --up {up}", "bold"
        )
    folder = call.line[ELECTION_OUT]
    if folder is not None:
        yield ""
        yield from _next_commands(report, folder)


def _healings(details: Sequence[Row]) -> Iterator[Block]:
    """Yield what heals damaged replicas, broker by broker."""
    roots: dict[int, list[str]] = {}
    damaged: set[int] = set()
    for row in details:
        for each in () if row["details"] is None else row["details"]["replicas"]:
            if each["broker"] is not None:
                own = roots.setdefault(each["broker"], [])
                own += [] if each["root"] in own else [each["root"]]
                damaged |= {each["broker"]} if each.get("damage") else set()
    for broker in sorted(damaged):
        for command in heal_commands(broker, dict(sorted(roots.items())))[:1]:
            yield f"broker {broker} has damage; what another has of it: {command}"


def details_of(report: Audit) -> list[Row]:
    """Return an audit's rows, each with its whole answer as ``details``."""
    rows = report.rows.to_pylist()
    return [
        {**row, "details": None if row["answer"] is None else answer}
        for row, answer in zip(rows, report.answers(), strict=True)
    ]


def loss_blocks(details: Sequence[Row]) -> Iterator[Block]:
    """Yield the partitions with a leader's loss; count the others."""
    losing = [row for row in details if _losses(row)]
    yield Table(kind=_TABLE, rows=losing)
    others = len(details) - len(losing)
    if others:
        yield f"{count_text(others, 'more partition')}: whoever leads, nothing is lost"
    losses = [
        each["lost"] for row in losing if row["details"] for each in row["details"]["candidates"]
    ]
    meanings = [text for kind, text in _MEANINGS.items() if any(lost[kind] for lost in losses)]
    if meanings:
        yield _OF_LEADERS
        yield from meanings


def _next_commands(report: Audit, folder: Path) -> Iterator[str]:
    """Yield what to do with the files for Kafka's commands."""
    manual = None if report.starts is None else report.starts.manual
    if manual is None:
        yield f"{folder} was not made: no other leader loses less."
        return
    counts = sorted(Counter(report.leaders.values()).items())
    leaders = ", ".join(f"{broker} of {count_text(of, 'partition')}" for broker, of in counts)
    yield f"{folder} has files that make the best candidate the leader: broker {leaders}."
    first = ", then ".join(map(str, manual.start.brokers))
    yield (
        f"Start {first}. While these partitions have no leader, run Kafka's commands "
        "(with --bootstrap-server):"
    )
    reassign = "    kafka-reassign-partitions.sh --execute --reassignment-json-file"
    if REASSIGNMENT_FILE in report.election_files:
        yield f"{reassign} {quote(str(folder / REASSIGNMENT_FILE))}"
    file = quote(str(folder / ELECTION_FILE))
    yield f"    kafka-leader-election.sh --election-type UNCLEAN --path-to-json-file {file}"
    if manual.later:
        later = ", then ".join(map(str, manual.later))
        if REASSIGNMENT_FILE in report.election_files:
            yield (
                f"Then start {later}, only when the first command, with --verify in place of "
                "--execute, says that it is complete. Before that, Kafka deletes its directory."
            )
        else:
            yield f"Then start {later}, and not before."
    if RESTORE_FILE in report.election_files:
        yield "The first file leaves out brokers that are away. Once all are back, add them again:"
        yield f"{reassign} {quote(str(folder / RESTORE_FILE))}"


def _verdict_of_starts(starts: Starts, unseen: Collection[int]) -> Sentence:
    """Return what the brokers that start lose, the best order first.

    Args:
        unseen: Brokers with replicas of which no directory was read.
    """
    least, manual = describe_start(starts.least), starts.manual
    verdicts = [f"{least}."]
    if starts.least.brokers != starts.asked.brokers:
        verdicts.append(f"But: {describe_start(starts.asked)}.")
    if manual is not None:
        by_hand = describe_start(manual.start, manual)
        if manual.loses_less_than(starts.least):
            verdicts = [f"{by_hand}.", "Without that:", *verdicts]
        else:
            verdicts.append(f"Or: {by_hand}.")
    if unseen:
        brokers = ", ".join(map(str, sorted(unseen)))
        verdicts.append(f"What only broker {brokers} has is not counted: no directory was read.")
    verdict = " ".join(verdicts)
    style = "bold green"
    if starts.least.lost_committed:
        style = "bold red"
    elif unseen or any(starts.least.loss) or any(starts.asked.loss):
        style = "bold yellow"
    return Sentence(verdict[0].upper() + verdict[1:], style)


def _with_unread(verdict: Sentence, partitions: int) -> Sentence:
    """Return a verdict with the partitions of directories that were not named."""
    count = count_text(partitions, "partition")
    text = f"No log of {count} lies in the directories that were named: these are not counted."
    if verdict.style == "bold green":
        return Sentence(f"{text} Of the others nothing is lost, whoever leads.", "bold yellow")
    return Sentence(f"{text} {verdict.text}", verdict.style)


def _verdict(rows: Sequence[Row]) -> Sentence:
    """Return what a person has to know."""
    judged = [row for row in rows if row["details"] is not None and row["details"]["candidates"]]
    unsafe = [row["details"]["candidates"] for row in judged if not row["safe"]]
    lost = sum(all(each["lost"]["committed"] for each in candidates) for candidates in unsafe)
    some = sum(len(row["safe"] or ()) < len(row["details"]["candidates"]) for row in judged)
    if not rows:
        return Sentence("No partition is there to be compared.", "bold yellow")
    if unsafe:
        texts = []
        if lost:
            partitions = count_text(lost, "partition")
            texts.append(f"Committed records of {partitions} are lost whoever leads.")
        if len(unsafe) > lost:
            partitions = count_text(len(unsafe) - lost, "partition")
            texts.append(f"Replicas of {partitions} cannot be read, or are damaged.")
        return Sentence(" ".join(texts), "bold red")
    if some:
        text = (
            f"Of {count_text(some, 'partition')} the wrong leader loses committed records: "
            "who may lead stands below."
        )
        return Sentence(text, "bold yellow")
    if any(each["lost"]["unknown"] for row in judged for each in row["details"]["candidates"]):
        text = (
            "Whoever leads, nothing is lost that was committed for sure; what follows perhaps was."
        )
        return Sentence(text, "bold yellow")
    return Sentence("Whoever leads, no committed record is lost.", "bold green")


AUDIT: Final = Work(
    name="audit",
    prepare=prepare_brokers,
    operate=_audit,
    view=_view,
    tasks=Tasks.HERE_IF_FEW,
)
TIMELINE: Final = Work(
    name="timeline",
    prepare=prepare_brokers,
    operate=lambda call, _: read_timeline(call.locations, call.options),
    view=_view_timeline,
)
