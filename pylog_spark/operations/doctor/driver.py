"""Diagnose log directories before a broker starts on them. First comes a verification, then a
forecast of the start for every partition."""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.house import additions
from pylog_spark.operations.doctor.task import (
    ForecastRow,
    config_of,
    forecast_partitions,
    open_at_once,
    to_forecast,
)
from pylog_spark.operations.salvage import look_at_salvage
from pylog_spark.operations.verify.driver import (
    ORDERED_FINDINGS,
    OnFindings,
    Verification,
    VerifiedRoots,
    VerifyRequest,
    observe_targets,
    tell_findings,
    verify_step,
)
from pylog_spark.operations.verify.task import Target
from pylog_spark.options import JobOptions
from pylog_spark.options.declared import STARTED_RELEASE
from pylog_spark.options.load import broker_config
from pylog_spark.outcomes import Action
from pylog_spark.rows import schema_of
from pylog_spark.run.catalogs import build_catalogs, require_known
from pylog_spark.run.guards import UnreadBroker, check_roots
from pylog_spark.run.job import new_job, unclean_roots
from pylog_spark.run.planning import WorkItem, are_read_here
from pylog_spark.run.run import Run
from pylog_spark.view import Block
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.catalog.log_directories import (
    DirectoryKind,
    SubDirectory,
    classify_directory,
)
from storage_core.catalog.metadata_image import decoded_once
from storage_core.catalog.release_features import FEATURE_LEVELS
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import RECOVERY_FILES
from storage_core.checkpoint.lock import LockState, query_lock
from storage_core.config import LogConfig
from storage_core.errors import ConfigError, PylogError, StorageError
from storage_core.filenames import (
    CLUSTER_METADATA_TOPIC,
    LOG_SUFFIX,
    TopicPartition,
    offset_of,
    sorted_logs,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.maintenance.verification.finding_kinds import (
    KINDS,
    Cure,
    command_of,
    salvage_folder,
)
from storage_core.maintenance.verification.findings import Code, Severity, Stops
from storage_core.maintenance.verification.observed_root import ObservedRoot, Start
from storage_core.maintenance.verification.prescription import (
    Complaint,
    Prescription,
    StartCut,
    prescribe,
)
from storage_core.maintenance.verification.verdict import (
    ReadRates,
    RootState,
    Situation,
    StartForecast,
    Verdict,
    Waiting,
    decide,
    forecast_start,
    measure_pace,
)
from storage_core.roots.open_root import LogRoot, open_root, root_checkpoints
from storage_core.roots.remote_logs import RemoteLogs
from storage_core.store import open_store
from storage_core.wording import count_text

# Join findings and forecasts into a diagnosis of log directories. It says what is wrong and what
# to do.

# A small file that cannot be read is an I/O error to Kafka, and takes its log directory offline.
_SMALL_FILE_ERRORS: Final = frozenset({"CheckpointError", "StorageError"})

# Of what hinders to know what is in a tier.
_SHOWN_PROBLEMS: Final = 3

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor says."""

    verdict: Verdict
    roots: tuple[RootState, ...]
    start: StartForecast  # what a broker's start would do
    pace: ReadRates  # what its times rest on
    # Of ``schemas.FINDING`` and more, worst first; as many as were asked for.
    findings: tuple[Row, ...]
    counts: tuple[tuple[str, str, int], ...]  # findings by (severity, code), worst first
    forecasts: tuple[Row, ...]  # columns of ``ForecastRow``, partitions with most to lose first
    failed: tuple[Row, ...]
    read_bytes: int
    engine: str  # what did the tasks: ``spark`` or ``local``, which is this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """How much is done at a time."""

    of_broker: int  # ``num.recovery.threads.per.data.dir``
    ours: int


def to_foretell(targets: Iterable[Target]) -> list[Target]:
    """Return the partitions that a broker's LogManager loads."""
    return [target for target in targets if target.partition.topic != CLUSTER_METADATA_TOPIC]


def put_together(  # noqa: PLR0913  # all that a diagnosis is made of
    roots: VerifiedRoots,
    *,
    findings: Sequence[Row],
    counts: Iterable[tuple[str, str, int]],
    verified: Sequence[Row],
    forecasts: Sequence[Row],
    threads: Threads,
    engine: str,
    catalogs: Mapping[str, TopicCatalog],
    waiting: Sequence[Waiting],
    is_only_broker: bool,
    hindrance: str,
    needs: Sequence[str],
    tier: Sequence[str],
) -> Diagnosis:
    """Return the diagnosis.

    Args:
        counts: Of all findings: severity, code, how many.
        threads: What the forecast counts with.
        catalogs: What is known of the topics of each root; empty where that cannot be read.
        waiting: What was cut from the logs, and waits to go back.
        is_only_broker: Whether the node is known to be no controller.
        hindrance: Why no recovery of the broker's directories would begin; empty where one would.
        needs: What a start needs besides, a sentence each.
        tier: What of the logs lies in their tier, a sentence each.
    """
    ordered = sorted(counts, key=lambda count: (-Severity(count[0]).rank, -count[2], count[1]))
    read_bytes = sum(row.get("read_bytes") or 0 for row in verified)
    pace = measure_pace(
        read_bytes=read_bytes,
        read_seconds=sum(row.get("read_ms") or 0 for row in verified) / 1000,
        broker_threads=threads.of_broker,
        our_tasks=threads.ours,
        is_local=engine == "local",
    )
    is_up, offline = _foresee_roots(roots, findings, forecasts)
    forecasts = _with_fates(roots, verified, forecasts, offline)
    partitions = [to_forecast(row) for row in forecasts]
    start = replace(
        forecast_start(partitions, pace),
        is_up=is_up,
        has_metadata=all(root.has_metadata for root in roots.observed),
        lacks_metadata=any(root.lacks_metadata for root in roots.observed),
        absent_directories=max((root.absent_directories for root in roots.observed), default=0),
    )
    states = tuple(_root_state(root, verified, offline) for root in roots.observed)
    by_severity: Counter[str] = Counter()
    for severity, _, count in ordered:
        by_severity[severity] += count
    plan = _plan(states, findings, forecasts, verified, is_hindered=bool(hindrance))
    planned: Counter[str] = Counter()
    for (_, partition), records in plan.cut_records.items():
        planned[str(partition)] += records
    low_end = (Severity.ERROR, Code.HIGH_WATERMARK_BEYOND_END)
    low_ends = sum(count for severity, code, count in ordered if (severity, code) == low_end)
    failed = [row for row in verified if row.get("error")]
    return Diagnosis(
        verdict=decide(
            Situation(
                roots=states,
                partitions=partitions,
                start=start,
                fatal=by_severity[Severity.FATAL],
                errors=by_severity[Severity.ERROR] + len(failed),
                low_ends=low_ends,
                has_replicas=_has_replicas(findings, forecasts, catalogs),
                commands=plan.commands,
                planned_cuts=planned,
                waiting=waiting,
                is_only_broker=is_only_broker,
                hindrance=hindrance,
                needs=needs,
                tier=tier,
            )
        ),
        roots=states,
        start=start,
        pace=pace,
        findings=tuple(findings),
        counts=tuple(ordered),
        forecasts=tuple(sorted(forecasts, key=_loss, reverse=True)),
        failed=tuple(failed),
        read_bytes=read_bytes,
        engine=engine,
    )


def _with_fates(
    roots: VerifiedRoots,
    verified: Sequence[Row],
    forecasts: Sequence[Row],
    offline: Collection[str],
) -> list[Row]:
    """Return the forecasts with what the cluster's metadata decides about directories.

    Of a log that is set aside, emptied or deleted all records are gone that can be read now; those
    that the copy in its place has are not.
    """
    fates = {path: fate for root in roots.observed for path, fate in root.fates.items()}
    records = {row["ordinal"]: row.get("records") or 0 for row in verified}
    of_directory = {target.directory: records.get(target.ordinal, 0) for target in roots.targets}
    promoted = {
        (row["topic"], row["partition"]): row["log_end_offset"] or 0
        for row in forecasts
        if DirectoryKind.FUTURE is classify_directory(row["directory"].rpartition("/")[2])[0]
        and row["directory"] not in fates
    }
    rows = []
    for row in forecasts:
        fate = fates.get(row["directory"])
        if row["directory"] not in of_directory:
            # Waits for its deletion, or was set aside before: it is loaded, and served to nobody.
            rows += [row] if row["start"] == Start.REFUSED else []
            continue
        if row["start"] == Start.REFUSED:
            rows.append(row)
            continue
        if row["root"] in offline:
            rows.append(row | {"start": Start.OFFLINE.value})
            continue
        if fate is None:
            rows.append(row)
            continue
        gone = of_directory[row["directory"]]
        if fate is Start.DELETED:
            end = promoted.get((row["topic"], row["partition"]), 0)
            gone = min(gone, max(0, (row["log_end_offset"] or 0) - end))
        rows.append(row | {"start": fate.value, "gone_records": gone, "cut_records": 0})
    shown = {row["directory"] for row in forecasts}
    nothing = dict.fromkeys(schema_of(ForecastRow).names)
    for root in roots.observed:
        for path, fate in root.fates.items():
            partition = classify_directory(Path(path).name)[1]
            if path not in shown and partition is not None:
                place = {"root": root.location, **asdict(partition), "directory": path}
                rows.append(nothing | place | {"start": fate.value})
    return [*rows, *_made_anew(roots, rows, offline)]


def _made_anew(
    roots: VerifiedRoots, forecasts: Iterable[Row], offline: Collection[str]
) -> Iterator[Row]:
    """Yield the empty logs created by a broker's start. The real ones lie elsewhere, where the
    broker does not look."""
    homes = {path: home for root in roots.observed for path, home in root.homes.items()}
    for row in forecasts:
        home = homes.get(row["directory"], "")
        place = home.rpartition("/")[0]
        if home and row["root"] in offline and place not in offline:
            names = {"root": place, "topic": row["topic"], "partition": row["partition"]}
            start = {"directory": home, "start": Start.CREATED.value}
            yield dict.fromkeys(schema_of(ForecastRow).names) | names | start


def _foresee_roots(
    roots: VerifiedRoots, findings: Iterable[Row], forecasts: Iterable[Row]
) -> tuple[bool, set[str]]:
    """Return whether the broker serves anybody, and its offline roots. Both are meant after its
    start.

    A broker does not go on without all of its log directories, nor without that of the cluster's
    metadata.
    """
    offline: set[str] = set()
    is_up = True
    keepers = {
        root.location
        for root in roots.observed
        if any(entry.kind is DirectoryKind.METADATA for entry in root.entries)
    }
    fatal = [row for row in findings if row["severity"] == Severity.FATAL]
    # All logs of a partition are opened before any is read: what is in them is not met any more.
    closed = {
        _partition_of(row)
        for row in fatal
        if row["code"] == Code.FILE_FORBIDDEN and row["file"].endswith(LOG_SUFFIX)
    }
    # Where a broker cannot read whose a directory is, it does not look into it.
    offline |= {row["root"] for row in fatal if row["code"] == Code.META_PROPERTIES_BROKEN}
    unseen = frozenset(offline)
    stops = [
        (row["root"], row["topic"], KINDS[Code(row["code"])].stops)
        for row in fatal
        if row["code"] == Code.FILE_FORBIDDEN or _partition_of(row) not in closed
    ]
    for row in forecasts:
        if row["start"] == Start.REFUSED and _partition_of(row) not in closed:
            is_file = row["error_class"] in _SMALL_FILE_ERRORS
            stops.append((row["root"], None, Stops.DIRECTORY if is_file else Stops.BROKER))
    for root, topic, what in stops:
        if root in unseen:
            continue
        if what is Stops.BROKER or (what is Stops.DIRECTORY and topic == CLUSTER_METADATA_TOPIC):
            is_up = False
        elif what is Stops.DIRECTORY:
            offline.add(root)
    is_up = is_up and not offline & keepers and len(offline) < len(roots.observed)
    return is_up, offline


def _partition_of(row: Row) -> tuple[str, str | None, int | None]:
    return row["root"], row["topic"], row["partition"]


def _root_state(root: ObservedRoot, verified: Sequence[Row], offline: Collection[str]) -> RootState:
    of_root = [row for row in verified if row["root"] == root.location]
    try:
        lock = query_lock(Path(root.location))
    except PylogError:
        # Who may not look at the lock file may not open the logs for writing either.
        lock = LockState(is_held=False)
    return RootState(
        location=root.location,
        role=root.context.role,
        is_clean=root.context.is_clean,
        lock=lock,
        partitions=len(of_root),
        size_bytes=sum(row.get("bytes") or 0 for row in of_root),
        start=Start.OFFLINE if root.location in offline else Start.OPENED,
    )


def _has_replicas(
    findings: Iterable[Row], forecasts: Iterable[Row], catalogs: Mapping[str, TopicCatalog]
) -> bool | None:
    """Return whether logs lacking acknowledged records have other replicas. None if nobody
    knows."""
    low = [row for row in findings if row["code"] == Code.HIGH_WATERMARK_BEYOND_END]
    low += [row for row in forecasts if row["lost_below_high_watermark"]]
    answers = {
        catalogs[row["root"]].has_other_replicas(partition)
        if row["root"] in catalogs and (partition := _partition(row)) is not None
        else None
        for row in low
    }
    # One that has others is reason enough to start these first.
    return True if True in answers else (False if answers == {False} else None)


def _plan(
    roots: Sequence[RootState],
    findings: Iterable[Row],
    forecasts: Iterable[Row],
    verified: Iterable[Row],
    *,
    is_hindered: bool,
) -> Prescription:
    """Return the commands against errors and worse, in order to run."""
    return prescribe(
        {root.location: root.role for root in roots},
        [
            Complaint(
                root=row["root"],
                partition=_partition(row),
                severity=Severity(row["severity"]),
                cure=KINDS[Code(row["code"])].cure,
                command=command_of(Code(row["code"]), row["fix"]) or "",
                is_unreadable=row["code"] == Code.FILE_UNREADABLE,
            )
            for row in findings
        ],
        [
            StartCut(
                root=row["root"],
                partition=TopicPartition(row["topic"], row["partition"]),
                size_bytes=row["cut_bytes"],
                is_doubtful=bool(row["cut_records"] or row["lost_below_high_watermark"]),
                records=row["cut_records"] or 0,
            )
            for row in forecasts
            if row["cut_bytes"]
        ],
        {(row["root"], _partition(row)): row["bytes"] or 0 for row in verified},
        {root.location for root in roots if is_hindered and root.role.facts.is_owned_by_broker},
        {(row["root"], _partition(row)): row["cut_from_start"] or 0 for row in forecasts},
    )


def _partition(row: Row) -> TopicPartition | None:
    return None if row["topic"] is None else TopicPartition(row["topic"], row["partition"])


def _loss(row: Row) -> tuple[Any, ...]:
    names = ("cut_records", "cut_bytes", "read_bytes", "rebuilt_segments")
    return (bool(row.get("error")), *(row.get(name) or 0 for name in names))


# What a house above says of more than one broker.


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralDiagnoses(ABC):
    """What the doctor says of several brokers."""

    verdict: Verdict
    brokers: Mapping[int, Diagnosis]  # the diagnosis of each, by node id
    unread: Sequence[UnreadBroker]

    @property
    @abstractmethod
    def is_part(self) -> bool:
        """Whether something could not be read or compared."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what a program is told beside the verdict; its list ``partitions`` is empty."""

    @abstractmethod
    def partitions(self) -> Iterator[Mapping[str, Any]]:
        """Yield what a program is told of each partition."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield what a person is told of partitions."""


_TITLE: Final = "pylog doctor"
# A multiple of the bytes of an entry of either index.
_BOTH_ENTRIES: Final = OFFSET_INDEX_ENTRY.itemsize * TIME_INDEX_ENTRY.itemsize


@decoded_once()
def diagnose(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    request: VerifyRequest,
    *,
    broker_threads: int,
    needs: Sequence[str] | None = None,
    beside: Iterable[str] = (),
    on_findings: OnFindings | None = None,
) -> Diagnosis:
    """Verify log directories and advise on them; write nothing to them.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        broker_threads: ``num.recovery.threads.per.data.dir``.
        needs: What ``find_absent_voters`` says of these and other nodes' log directories; None to
            look at these.
        beside: Log directories of other brokers, which may have listed segments of a tier.
        on_findings: Takes all findings, some at a time, however many there are.
    """
    log_roots = resolve_roots(roots, role=options.role)
    if options.role is None:
        log_roots = _of_a_broker(log_roots)
    # A look leaves no record.
    job = new_job(Action.VERIFY.value, log_roots, replace(options, dry_run=True))
    request = replace(request, shown=max(request.shown, ORDERED_FINDINGS))
    with Run(place, job) as run:
        observed = observe_targets(run, request)
        _check_folders(observed.targets)
        verification = verify_step(run, request, observed)
        _check_files(
            target
            for target in observed.targets
            if target.ordinal not in verification.active_indexes
        )
        catalogs = _catalogs(log_roots, options)
        forecasts = _foretell(run, observed, verification, catalogs)
        if on_findings is not None:
            tell_findings(run, verification, on_findings)
    if needs is None:
        needs = find_absent_voters([root.location for root in log_roots], options)
    return put_together(
        observed,
        findings=verification.worst,
        counts=[(count.severity, count.code, count.count) for count in verification.counts],
        verified=verification.partitions,
        forecasts=forecasts,
        threads=Threads(of_broker=broker_threads, ours=run.engine.slots),
        engine=run.engine.name,
        catalogs=catalogs,
        waiting=_waiting(log_roots, options),
        is_only_broker=broker_config(options).process_roles == ("broker",),
        hindrance=_hindrance(log_roots, options, catalogs),
        needs=needs,
        tier=_tell_tier(observed, beside),
    )


def _tell_tier(observed: VerifiedRoots, beside: Iterable[str]) -> list[str]:
    """Return which offsets lie in a tier, a sentence each; none where all logs are whole."""
    own = [root.location for root in observed.observed]
    remote = RemoteLogs(map(open_root, dict.fromkeys([*own, *beside])))
    chosen = {target.directory for target in observed.targets}
    away: list[str] = []
    problems: Counter[str] = Counter()
    for root in observed.observed:
        for entry in root.entries:
            if entry.path in chosen and entry.kind is DirectoryKind.PARTITION:
                with suppress(PylogError):  # the verification has reported it
                    found = _look_at_tier(root, entry, remote)
                    if found is not None:
                        away.append(found[0])
                        problems[found[1]] += 1
    del problems[""]
    if not away:
        return []
    first = away[0] if len(away) == 1 else f"such as {away[0]}"
    return [
        (
            f"{count_text(len(away), 'log begins', 'logs begin')} in the tier (remote storage): "
            f"{first}. A broker reads them there; `pylog cat TIER --with-local ROOT` needs none"
        ),
        *(
            f"{problem} ({count_text(count, 'log')})"
            for problem, count in problems.most_common(_SHOWN_PROBLEMS)
        ),
    ]


def _look_at_tier(
    root: ObservedRoot, entry: SubDirectory, remote: RemoteLogs
) -> tuple[str, str] | None:
    """Return the offsets of a log that lie in its tier, and why they may not; None without any."""
    partition = entry.topic_partition
    if partition is None:
        return None
    is_tiered = partition.topic in root.tiered_topics if root.has_metadata else None
    if is_tiered is False:
        return None
    own = root.checkpoints_of(partition)
    # Mostly a log is whole: nothing is listed again.
    if own.log_start_offset is None and not remote.has_tier:
        return None
    store = open_store(entry.path)
    logs = sorted_logs(file.name for file in store.list_files())
    base = (offset_of(logs[0]) or 0) if logs else 0
    start = remote.tier_start(store, partition, own, base, is_tiered=lambda: is_tiered)
    if start is None:
        return None
    problem = remote.uploads(store, partition).problem(start, base)
    return f"offsets {start} to {base - 1} of {partition}", problem


def release_to_start(version: str) -> str:
    """Return the name of a release whose rules are known: ``3.9``."""
    name = version.partition("-")[0]
    if name not in FEATURE_LEVELS:
        first, *_, last = FEATURE_LEVELS
        reason = f"expected a release from {first} to {last}"
        raise ConfigError(STARTED_RELEASE.label, version, reason)
    return name


def find_absent_voters(roots: Sequence[str | Path], options: JobOptions) -> list[str]:
    """Return which controllers have to run beside those in log directories, a sentence each."""
    return [
        sentence
        for find in additions("find_absent_voters")
        for sentence in find(roots, now_ms=options.now_ms)
    ]


def _hindrance(
    roots: Sequence[LogRoot], options: JobOptions, catalogs: Mapping[str, TopicCatalog]
) -> str:
    """Return why a recovery of the broker could not begin; else empty.

    It reads what is of all partitions before it looks at one, and what cannot be read ends it.

    Args:
        catalogs: Of these roots; empty where they could not be read.
    """
    brokers = [root for root in roots if root.role.facts.is_owned_by_broker]
    try:
        check_roots(brokers, replace(options, dry_run=True, now_is_said=True))
        is_known = catalogs and len(brokers) == len(roots)
        require_known(catalogs if is_known else build_catalogs(brokers, options))
        unclean_roots(brokers)
        for root in brokers:
            root_checkpoints(root.location, RECOVERY_FILES, strict=False)
            query_lock(Path(root.location))
    except PylogError as error:
        return str(error)
    return ""


def _waiting(roots: Sequence[LogRoot], options: JobOptions) -> list[Waiting]:
    """Return the salvaged ends of logs beside a broker's log directories."""
    places = [root.location for root in roots if root.role.facts.is_owned_by_broker]
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    waiting = []
    for folder in map(salvage_folder, places):
        # What is there may be of a run that is under way, or nothing of ours.
        with suppress(PylogError, OSError):
            rows = look_at_salvage(Path(folder), places, topics)
            free = [row for row in rows if row.log is not None and row.contents.free]
            if free:
                records = sum(row.contents.free for row in free)
                logs = len({row.salvaged.partition for row in free})
                waiting.append(Waiting(folder=folder, records=records, logs=logs))
    return waiting


def _catalogs(roots: Sequence[LogRoot], options: JobOptions) -> dict[str, TopicCatalog]:
    """Return the topic catalogs; empty if the metadata cannot be read."""
    try:
        return build_catalogs(roots, options)
    except PylogError:
        # Which is a finding, or will be one; here it only means that nobody knows of the topics.
        return {}


def _of_a_broker(roots: Sequence[LogRoot]) -> list[LogRoot]:
    """Return all roots as a broker's if any one is. A root that lost its file is no copy. Nobody
    but a node of a cluster keeps its metadata."""
    is_broker = any(
        root.role.facts.is_owned_by_broker
        or Path(root.location, CLUSTER_METADATA_DIRECTORY).exists()
        for root in roots
    )
    return [replace(root, role=Role.BROKER) if is_broker else root for root in roots]


def _check_folders(targets: Iterable[Target]) -> None:
    """Refuse to judge directories closed to this process. A broker, as another user, may be able
    to read them."""
    for target in targets:
        _require_access(target.directory)


def _check_files(targets: Iterable[Target]) -> None:
    """Refuse to judge files closed to this process. Of partitions that were verified together all
    were read."""
    for target in targets:
        with suppress(FileNotFoundError), os.scandir(target.directory) as entries:
            for entry in entries:
                _require_access(entry.path)


def _require_access(path: str) -> None:
    if not os.access(path, os.R_OK, effective_ids=True):
        reason = "this process may not read it: run it as the directory's owner, or as root"
        raise StorageError(path, reason)


def _foretell(
    run: Run,
    observed: VerifiedRoots,
    verification: Verification,
    catalogs: Mapping[str, TopicCatalog],
) -> list[dict[str, Any]]:
    """Forecast the broker's start; return one row per loaded partition. They are columns of
    ``ForecastRow``, in order."""
    targets = [*to_foretell(observed.targets), *observed.set_aside]
    if not targets:
        return []
    engine, options = run.engine, run.job.options
    verified = {row["ordinal"]: row for row in verification.partitions}
    cut = {
        (row["root"], row["topic"], row["partition"])
        for row in verification.worst
        if KINDS[Code(row["code"])].cure is Cure.CUT
    }
    damaged = frozenset(
        target.directory
        for target in targets
        if (target.root, target.partition.topic, target.partition.partition) in cut
    )
    config = cache(partial(config_of, catalogs=catalogs))
    opened = {
        target.ordinal
        for target in targets
        if target.directory not in damaged
        and target.ordinal in verification.active_indexes
        and _fits(
            verification.active_indexes[target.ordinal],
            config(target.root, target.partition.topic),
        )
    }
    rows = [
        open_at_once(target, verified[target.ordinal]["log_end_offset"])
        for target in targets
        if target.ordinal in opened
    ]
    items = [
        WorkItem(value=target, size_bytes=verified.get(target.ordinal, {}).get("bytes") or 0)
        for target in targets
        if target.ordinal not in opened
    ]
    work = partial(forecast_partitions, now_ms=options.now_ms, catalogs=catalogs, damaged=damaged)
    units = [unit.values for unit in run.pack(items)]
    forecasts = engine.collect(
        engine.spread(units, work, ForecastRow),
        schema_of(ForecastRow),
        f"{_TITLE}: what a broker's start would do",
        is_look=are_read_here(items),
    )
    numbers = {target.directory: number for number, target in enumerate(targets)}
    rows += forecasts.to_pylist()
    return sorted(rows, key=lambda row: numbers[row["directory"]])


def _fits(active_index_bytes: int, config: LogConfig) -> bool:
    """Whether a start opens a sound log and leaves it as it is: its indexes are not too large for
    its config."""
    return active_index_bytes <= config.segment_index_bytes // _BOTH_ENTRIES * _BOTH_ENTRIES
