"""The verdict on log directories: advice, reasons, next commands.

``forecast_start`` sums up a broker's start, ``decide`` asks one rule after the other. A forecast of
time has three numbers, and all are shown: the speed of one reader just now, the broker's recovery
threads, and our tasks.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from shlex import quote
from typing import Final

from storage_core.catalog.roles import Role
from storage_core.checkpoint.lock import LockState
from storage_core.maintenance.verification.observed_root import Start
from storage_core.maintenance.verification.prescription import recover_command
from storage_core.wording import count_text

# Bytes that one thread of Kafka 4.4 checks in a second, with all of them in the file cache, by
# ``make bench`` on the design's machine.
BROKER_BYTES_PER_SECOND: Final = 1.4e9
# A reader of unmeasured speed: a slow network disk.
ASSUMED_BYTES_PER_SECOND: Final = 200e6
# For fewer bytes, a measured rate is that of the start, not of reading.
LEAST_MEASURED_BYTES: Final = 64 << 20
# Opening and closing a segment's files, and its part of producer state.
SECONDS_A_SEGMENT: Final = 0.002
# A Spark session and its workers, and processes of this machine, before the first byte is read.
SPARK_START_SECONDS: Final = 20.0
LOCAL_START_SECONDS: Final = 2.0
# A shorter saving is not worth a repair.
_WORTH_SECONDS: Final = 60.0
_SHOWN_ERRORS: Final = 5
# By whether other replicas exist: yes, no, unknown.
_REPLICAS: Final = {
    True: "start the other replicas first, so that this broker does not lead",
    False: "there is no other replica: look for a backup before a start lowers the watermark",
    None: (
        "start the other replicas first, so that this broker does not lead; if there are none, "
        "look for a backup"
    ),
}


class Advice(enum.StrEnum):
    """The verdict on log directories; the first that applies."""

    IN_USE = "in-use"
    DO_NOT_START = "do-not-start"
    LOOK_BEFORE_START = "look-before-start"
    RECOVER = "recover"
    START_BROKER = "start-broker"
    COPY_DAMAGED = "copy-damaged"
    COPY_WHOLE = "copy-whole"
    NO_PARTITION = "no-partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionForecast:
    """Effects of a broker's start on one partition."""

    root: str
    name: str
    read_bytes: int = 0  # bytes that are read to recover it; 0 for a log that is only opened
    rebuilt_segments: int = 0  # segments whose indexes are built anew
    split_segments: int = 0
    cut_bytes: int = 0  # bytes of records that are cut, removed segments included
    cut_records: int = 0
    deleted_segments: int = 0  # segments that are removed whole
    # Offsets below the checkpointed high watermark that the log does not have afterwards.
    lost_below_high_watermark: int = 0
    log_end_offset: int | None = None  # where the log ends afterwards; None where it is not loaded
    error: str = ""  # why a broker does not load it; empty where it does
    start: Start = Start.OPENED  # the start's action on the directory
    gone_records: int = 0  # readable records that are not cut, and that the broker no longer serves

    @property
    def is_recovered(self) -> bool:
        """Whether a broker does more than open it."""
        return bool(self.read_bytes or self.rebuilt_segments or self.cut_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootState:
    """The state of one log directory."""

    location: str
    role: Role
    is_clean: bool  # whether it has the marker of a clean shutdown
    lock: LockState
    partitions: int
    size_bytes: int
    start: Start = Start.OPENED  # OPENED, or OFFLINE where a broker goes on without it


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRates:
    """Rates of reading and checking, measured or assumed."""

    bytes_per_second: float  # one reader, as measured, or assumed
    is_measured: bool
    broker_threads: int  # ``num.recovery.threads.per.data.dir``
    our_tasks: int  # how many tasks we run at a time
    our_start_seconds: float = SPARK_START_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """Effects of a broker's start on all directories, in sum."""

    recovered_partitions: int
    read_bytes: int
    rebuilt_segments: int  # segments whose indexes are built anew
    cut_bytes: int
    cut_records: int
    deleted_segments: int  # segments that are removed whole
    refused: int  # partitions that a broker does not load; it does not start then
    broker_seconds: float  # how long a broker takes
    our_seconds: float  # how long ``pylog recover`` takes
    gone_records: int = 0  # readable records of logs that are set aside, emptied or deleted
    is_up: bool = True  # whether a broker serves clients afterwards
    # Whether the cluster's metadata was read, which says whose the logs are.
    has_metadata: bool = True
    lacks_metadata: bool = False
    # How many log directories the broker registered besides those that were named.
    absent_directories: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The advice, with reasons and commands."""

    advice: Advice
    headline: str
    reasons: tuple[str, ...] = ()  # why, line by line
    commands: tuple[str, ...] = ()  # the next commands, in order
    cut_records: int = 0  # readable records that the commands cut; they are kept


def measure_pace(
    *, read_bytes: int, read_seconds: float, broker_threads: int, our_tasks: int, is_local: bool
) -> ReadRates:
    """Return the pace that a verification showed.

    Args:
        read_seconds: Time of its tasks, summed.
        broker_threads: ``num.recovery.threads.per.data.dir``.
        our_tasks: How many tasks we run at a time.
        is_local: Whether these are processes of this machine, without Spark.
    """
    is_measured = read_bytes >= LEAST_MEASURED_BYTES and read_seconds > 0
    return ReadRates(
        bytes_per_second=read_bytes / read_seconds if is_measured else ASSUMED_BYTES_PER_SECOND,
        is_measured=is_measured,
        broker_threads=max(broker_threads, 1),
        our_tasks=max(our_tasks, 1),
        our_start_seconds=LOCAL_START_SECONDS if is_local else SPARK_START_SECONDS,
    )


def forecast_start(partitions: Sequence[PartitionForecast], pace: ReadRates) -> StartForecast:
    """Sum up a broker's start and its duration, with ours beside.

    A broker recovers each log directory with its own threads, one log a thread, and the slowest
    directory decides. We spread segments, so that neither a big partition nor a directory does.
    """
    broker_rate = min(pace.bytes_per_second, BROKER_BYTES_PER_SECOND)
    by_root: dict[str, list[PartitionForecast]] = {}
    for partition in partitions:
        by_root.setdefault(partition.root, []).append(partition)
    broker_seconds = 0.0
    for of_root in by_root.values():
        costs = [
            entry.read_bytes / broker_rate + entry.rebuilt_segments * SECONDS_A_SEGMENT
            for entry in of_root
        ]
        shared = fsum(costs) / pace.broker_threads
        broker_seconds = max(broker_seconds, shared, *costs)
    read_bytes = sum(entry.read_bytes for entry in partitions)
    rebuilt = sum(entry.rebuilt_segments for entry in partitions)
    work = read_bytes / pace.bytes_per_second + rebuilt * SECONDS_A_SEGMENT
    return StartForecast(
        recovered_partitions=sum(entry.is_recovered for entry in partitions),
        read_bytes=read_bytes,
        rebuilt_segments=rebuilt,
        cut_bytes=sum(entry.cut_bytes for entry in partitions),
        cut_records=sum(entry.cut_records for entry in partitions),
        deleted_segments=sum(entry.deleted_segments for entry in partitions),
        refused=sum(bool(entry.error) for entry in partitions),
        broker_seconds=broker_seconds,
        our_seconds=pace.our_start_seconds + work / pace.our_tasks,
        gone_records=sum(entry.gone_records for entry in partitions),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Readable records that were cut earlier and can be put back behind the end of their logs."""

    folder: str
    records: int
    logs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known of the log directories that a verdict is about."""

    roots: Sequence[RootState]
    partitions: Sequence[PartitionForecast]  # a broker's start on each partition
    start: StartForecast  # the same in sum
    fatal: int  # findings of severity fatal
    errors: int  # findings of severity error
    low_ends: int = 0  # how many of these are logs that end below their high watermark
    # Whether logs that lack acknowledged records have other replicas; None if that is not known.
    has_replicas: bool | None = None
    commands: tuple[str, ...] = ()  # the plan against errors and worse, in order
    # Readable records that these commands cut and keep, by partition.
    planned_cuts: Mapping[str, int] = field(default_factory=dict)
    waiting: Sequence[Waiting] = ()
    is_only_broker: bool = False  # whether the node is known to be no controller
    # Why no recovery of the broker's directories would begin; empty where one would.
    hindrance: str = ""
    needs: Sequence[str] = ()  # what a start needs besides these directories, a sentence each
    tier: Sequence[str] = ()  # what of the logs lies in their tier, a sentence each

    @property
    def names(self) -> str:
        """The log directories, as on a command line."""
        return " ".join(quote(root.location) for root in self.roots)

    @property
    def other_errors(self) -> int:
        """Errors besides the logs that end below their high watermark."""
        return self.errors - self.low_ends


def decide(situation: Situation) -> Verdict:
    """Return the verdict of the first rule that applies."""
    for root in situation.roots:
        if root.lock.is_held:
            return _in_use(situation, root)
    if all(root.role.facts.is_synced for root in situation.roots):
        verdict = _judge_copy(situation)
        return replace(verdict, reasons=(*verdict.reasons, *situation.tier))
    verdict = next(filter(None, (rule(situation) for rule in _RULES)))
    reasons = [*verdict.reasons, *map(_waiting_reason, situation.waiting)]
    if verdict.advice is not Advice.DO_NOT_START:
        reasons += [*_unknown_effects(situation), *situation.needs]
    reasons += situation.tier
    commands = verdict.commands
    if situation.hindrance and verdict.advice is not Advice.START_BROKER:
        first = (
            f"`pylog recover` refuses these log directories: {situation.hindrance}. Correct that "
            "first and run `pylog doctor` again: it then prints the commands for the recovery"
        )
        reasons, commands = [first, *reasons], situation.commands
    return replace(
        verdict,
        reasons=tuple(reasons),
        commands=commands,
        cut_records=sum(situation.planned_cuts.values()),
    )


def _in_use(situation: Situation, root: RootState) -> Verdict:
    pid = root.lock.holder_pid
    who = "another process" if pid is None else f"process {pid}"
    command = f" ({root.lock.command})" if root.lock.command else ""
    return Verdict(
        advice=Advice.IN_USE,
        headline=f"{root.location} is in use by {who}{command}: leave it alone.",
        reasons=(
            "that process holds the lock, so the findings may already be out of date",
            "a recovery or a second broker would be refused",
        ),
        commands=(f"pylog verify {situation.names} --live",),
    )


def _judge_copy(situation: Situation) -> Verdict:
    """Return the verdict on a copy that another program keeps syncing."""
    start, names = situation.start, situation.names
    problems = situation.fatal + situation.errors
    cut = count_text(start.cut_bytes, "byte")
    if not any(root.partitions for root in situation.roots):
        return Verdict(
            advice=Advice.NO_PARTITION,
            headline=f"No partition in {names}: there is nothing to check and nothing to start.",
            reasons=(
                "a log directory has a folder <topic>-<partition> for each partition",
                (
                    "a folder of tiered storage (KIP-405) is no log directory: its segments have a "
                    "topic id and a segment id for a name, and only their brokers know their order"
                ),
            ),
        )
    if problems or start.cut_records or start.refused:
        return Verdict(
            advice=Advice.COPY_DAMAGED,
            headline="The copy is damaged; compare it with its source before you need it.",
            reasons=(
                f"{count_text(problems, 'finding is an error', 'findings are errors')} or worse",
                (
                    f"a broker that starts on it would cut {cut} with "
                    f"{count_text(start.cut_records, 'readable record')}, and refuse "
                    f"{count_text(start.refused, 'partition')}"
                ),
            ),
            commands=(f"pylog verify {names} --role mirror --deep --output json",),
        )
    return Verdict(
        advice=Advice.COPY_WHOLE,
        headline="The copy is complete, except for files that are still being synced.",
        reasons=(f"a broker that starts on it would cut {cut} of torn tails",),
    )


def _stops(situation: Situation) -> Verdict | None:
    """The broker would stop, or delete a log."""
    start, fatal = situation.start, situation.fatal
    if not fatal and not start.refused:
        return None
    refused = [entry for entry in situation.partitions if entry.error]
    reasons = [f"{entry.name}: {entry.error}" for entry in refused[:_SHOWN_ERRORS]]
    if len(refused) > len(reasons):
        reasons.append(f"and {len(refused) - len(reasons)} more partitions")
    if fatal:
        reasons.append(
            f"first fix {count_text(fatal, 'fatal finding')}, listed with the fix for each; then "
            "run `pylog doctor` again"
        )
    counts = ((start.refused, "partition"), (fatal, "fatal finding"))
    causes = " and ".join(count_text(number, noun) for number, noun in counts if number)
    return Verdict(
        advice=Advice.DO_NOT_START,
        headline=(
            f"Do not start the broker: it would stop at once, or delete a log, because of {causes}."
        ),
        reasons=(*reasons, *_cuts_of_start(start), *_cuts_of_commands(situation)),
        commands=situation.commands,
    )


def _loses(situation: Situation) -> Verdict | None:
    """The broker would start, and lose records."""
    # A partition and a move's copy of it have the same name.
    cut: Counter[str] = Counter()
    low: Counter[str] = Counter()
    for entry in situation.partitions:
        cut[entry.name] += entry.cut_records + entry.gone_records
        low[entry.name] += entry.lost_below_high_watermark
    cut, low = +cut, +low
    created = {entry.name: 1 for entry in situation.partitions if entry.start is Start.CREATED}
    if cut:
        records = count_text(sum(cut.values()), "readable record")
        headline = f"The broker would start and lose {records} of {_names(cut)}; save them first."
    elif low:
        offsets = count_text(sum(low.values()), "offset")
        headline = (
            f"The broker would start, but {_names(low)} would end {offsets} below the high "
            "watermark."
        )
    elif created and situation.other_errors:
        logs = count_text(len(created), "empty partition")
        headline = (
            f"The broker would start with {logs} in place of {_names(created)}; find the logs "
            "first."
        )
    else:
        return None
    return Verdict(
        advice=Advice.LOOK_BEFORE_START,
        headline=headline,
        reasons=(*_losses(situation), *_cuts_of_commands(situation)),
        commands=situation.commands,
    )


def _leaves_errors(situation: Situation) -> Verdict | None:
    """The broker would start and lose nothing more, but errors would remain."""
    if situation.other_errors:
        remaining = f"{count_text(situation.other_errors, 'error')} would remain"
    elif situation.low_ends:
        logs = count_text(situation.low_ends, "log ends", "logs end")
        remaining = f"{logs} below the high watermark"
    else:
        return None
    cuts = "".join(f"; {cut}" for cut in _cuts_of_commands(situation))
    return Verdict(
        advice=Advice.LOOK_BEFORE_START,
        headline=f"The broker would start, but {remaining}{cuts}.",
        reasons=tuple(_losses(situation)),
        commands=situation.commands,
    )


def _reuses_offsets(situation: Situation) -> Verdict | None:
    """A start would give offsets of cut records to new ones."""
    if not situation.waiting:
        return None
    brokers = [root for root in situation.roots if root.role.facts.is_owned_by_broker]
    locations = [root.location for root in brokers]
    quoted = " ".join(map(quote, locations))
    records = count_text(sum(each.records for each in situation.waiting), "readable record")
    replays = [
        f"pylog salvage replay {quote(each.folder)} {quoted} --role broker --dry-run"
        for each in situation.waiting
    ]
    is_clean = all(root.is_clean for root in brokers)
    return Verdict(
        advice=Advice.LOOK_BEFORE_START,
        headline=(
            f"Do not start yet: you can put back {records}, cut earlier; a start would give their "
            "offsets to new records."
        ),
        commands=tuple(replays if is_clean else [recover_command(locations), *replays]),
    )


def _lacks_metadata(situation: Situation) -> Verdict | None:
    """A controller would rename every log."""
    if not situation.start.lacks_metadata or situation.is_only_broker:
        return None
    return Verdict(
        advice=Advice.LOOK_BEFORE_START,
        headline=(
            "Do not start yet: no named directory has the cluster's metadata, and an only "
            "controller without it renames every log to -stray."
        ),
        commands=situation.commands,
    )


def _lacks_directories(situation: Situation) -> Verdict | None:
    """The broker has log directories that were not named."""
    absent = situation.start.absent_directories
    if not absent:
        return None
    directories = count_text(absent, "log directory", "log directories")
    created = sum(entry.start is Start.CREATED for entry in situation.partitions)
    return Verdict(
        advice=Advice.LOOK_BEFORE_START,
        headline=f"Do not start yet: the broker registered {directories} that you did not name.",
        reasons=(
            (
                f"a start without that creates {count_text(created, 'empty partition')}, and the "
                "broker may lead with them"
            ),
            "run again with every directory of log.dirs",
        ),
        commands=situation.commands,
    )


def _starts(situation: Situation) -> Verdict:
    """The broker starts and loses nothing."""
    roots, start = situation.roots, situation.start
    recovered = start.recovered_partitions
    times = (
        f"a broker would recover in {seconds_text(start.broker_seconds)}, `pylog recover` in "
        f"{seconds_text(start.our_seconds)}"
    )
    if start.broker_seconds - start.our_seconds > _WORTH_SECONDS:
        return Verdict(
            advice=Advice.RECOVER,
            headline="Recover first: the broker then starts at once.",
            reasons=(
                times,
                f"{count_text(recovered, 'partition needs', 'partitions need')} recovery",
            ),
            commands=(recover_command([root.location for root in roots]),),
        )
    if recovered:
        return Verdict(
            advice=Advice.START_BROKER,
            headline="Just start the broker: it repairs this itself.",
            reasons=(
                times,
                (
                    f"the broker recovers {count_text(recovered, 'partition')} and cuts "
                    f"{count_text(start.cut_bytes, 'byte')} of torn batches, but no readable record"
                ),
            ),
        )
    if not any(root.partitions for root in roots):
        reasons = (
            (
                "there is no log. If the broker had logs before, this is another disk; if the "
                "broker leads with it, the other replicas are cut to nothing"
            ),
            "run `pylog doctor` with the directories of all brokers to see what a start would lose",
        )
    else:
        is_clean = all(root.is_clean for root in roots)
        reasons = (
            "every log was closed" if is_clean else "no log needs recovery",
            "no finding would stop the broker",
        )
    return Verdict(advice=Advice.START_BROKER, headline="Just start the broker.", reasons=reasons)


_RULES: Final[Sequence[Callable[[Situation], Verdict | None]]] = (
    *(_stops, _loses, _leaves_errors, _reuses_offsets),
    *(_lacks_metadata, _lacks_directories, _starts),
)


def _losses(situation: Situation) -> Iterator[str]:
    """Yield the reasons about records that are lost already, or would be."""
    start, replicas = situation.start, _REPLICAS[situation.has_replicas]
    lost = sum(entry.lost_below_high_watermark for entry in situation.partitions)
    yield from _cuts_of_start(start)
    if start.gone_records:
        yield (
            f"a start would rename, empty or delete logs with {start.gone_records} records: each "
            "log has a finding with the reason"
        )
    if lost:
        yield (
            f"{count_text(lost, 'offset')} below a checkpointed high watermark would be missing "
            f"after a start: {replicas}"
        )
    if situation.low_ends:
        logs = count_text(situation.low_ends, "log ends below its", "logs end below their")
        yield (
            f"{logs} checkpointed high watermark: acknowledged records are missing at the end; "
            f"{replicas}"
        )
    if situation.other_errors:
        findings = count_text(situation.other_errors, "finding is an error", "findings are errors")
        yield (f"{findings}, listed with the fix for each: records or indexes there cannot be read")


def _cuts_of_start(start: StartForecast) -> Iterator[str]:
    if start.cut_records:
        cut = f"{count_text(start.cut_records, 'readable record')}, {start.cut_bytes:,} bytes"
        if start.deleted_segments:
            cut += f", including {count_text(start.deleted_segments, 'whole segment')}"
        yield f"a start would cut {cut}"


def _cuts_of_commands(situation: Situation) -> Iterator[str]:
    """Yield what the commands cut, if that is more than a start cuts."""
    planned = situation.planned_cuts
    records = sum(planned.values())
    if records > situation.start.cut_records:
        of_logs = f"{count_text(records, 'readable record')} of {_names(planned)}"
        yield f"the commands cut {of_logs} and keep a copy"


def _waiting_reason(waiting: Waiting) -> str:
    return (
        f"{waiting.folder} keeps {count_text(waiting.records, 'readable record')} behind the end "
        f"of {count_text(waiting.logs, 'log')}: put them back (`pylog salvage replay`), or move "
        "the folder away if you do not want them"
    )


def _unknown_effects(situation: Situation) -> Iterator[str]:
    """Yield the effects of a start that the forecast does not know."""
    start = situation.start
    linked = [entry.name for entry in situation.partitions if entry.start is Start.UNKNOWN]
    if linked:
        logs = count_text(len(linked), "log")
        yield f"pylog follows no links: it did not check {logs}, first {linked[0]}"
    if start.lacks_metadata and situation.is_only_broker:
        yield (
            "process.roles is broker: the node fetches the cluster's metadata from its "
            "controllers, and may then rename logs to -stray, or miss some"
        )
    elif start.lacks_metadata:
        # A start depends on the node's role, which no file of a log directory tells.
        yield from (
            (
                "a directory of log.dirs or metadata.log.dir that you did not name may have "
                "__cluster_metadata-0: run again with all of them"
            ),
            (
                "an only controller without it starts an empty cluster and renames every log to "
                "-stray: restore __cluster_metadata-0 from a backup first"
            ),
            (
                "a node that is only a broker fetches it from its controllers, and may start: "
                "confirm that with --set process.roles=broker, or with its --server-properties"
            ),
            "a ZooKeeper broker never had it: its own release may start, Kafka 4 does not",
        )
    elif not start.has_metadata:
        yield (
            "the named log directories have no readable __cluster_metadata-0: a broker may rename "
            "logs to -stray, or miss some; an only controller without it renames every log"
        )


def _names(numbers: Mapping[str, int]) -> str:
    """Return the name with the largest number, and the count of others."""
    first = max(numbers, key=lambda name: numbers[name])
    more = len(numbers) - 1
    return first if not more else f"{first} and {count_text(more, 'more partition')}"


def seconds_text(seconds: float) -> str:
    """Return an estimated time as a person says it."""
    if seconds < 1:
        return "less than a second"
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"about {count_text(round(seconds), 'second')}"
    return f"about {seconds / 60:.0f} minutes"
