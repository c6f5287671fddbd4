"""Diagnose log directories before a broker starts on them. First comes a verification, then a
forecast of the start for every partition."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.house import additions
from pylog_spark.operations.doctor.diagnosis import Diagnosis, Threads, put_together, to_foretell
from pylog_spark.operations.doctor.task import ForecastRow, forecast_partitions
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
from pylog_spark.rows import schema_of
from pylog_spark.run.catalogs import build_catalogs, require_known
from pylog_spark.run.guards import UnreadBroker, check_roots
from pylog_spark.run.job import new_job, unclean_roots
from pylog_spark.run.planning import WorkItem, are_read_here
from pylog_spark.run.run import Run
from pylog_spark.schemas import Action
from pylog_spark.view import Block
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.catalog.release_features import FEATURE_LEVELS
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import RECOVERY_FILES
from storage_core.checkpoint.lock import query_lock
from storage_core.errors import ConfigError, PylogError, StorageError
from storage_core.maintenance.verification.finding_kinds import KINDS, Cure, salvage_folder
from storage_core.maintenance.verification.findings import Code
from storage_core.maintenance.verification.verdict import Verdict, Waiting
from storage_core.roots.open_root import LogRoot, root_checkpoints

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


def diagnose(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    request: VerifyRequest,
    *,
    broker_threads: int,
    needs: Sequence[str] | None = None,
    on_findings: OnFindings | None = None,
) -> Diagnosis:
    """Verify log directories and advise on them; write nothing to them.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        broker_threads: ``num.recovery.threads.per.data.dir``.
        needs: What ``find_absent_voters`` says of these and other nodes' log directories; None to
            look at these.
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
        _check_readable(observed.targets)
        verification = verify_step(run, request, observed)
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
        hindrance=_hindrance(log_roots, options),
        needs=needs,
    )


def release_to_start(version: str) -> str:
    """Return the name of a release whose rules are known: ``3.9``.

    Raises:
        ConfigError: There is no such release, or its rules are not known.
    """
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


def _hindrance(roots: Sequence[LogRoot], options: JobOptions) -> str:
    """Return why a recovery of the broker could not begin; else empty.

    It reads what is of all partitions before it looks at one, and what cannot be read ends it.
    """
    brokers = [root for root in roots if root.role.facts.is_owned_by_broker]
    try:
        check_roots(brokers, replace(options, dry_run=True, now_is_said=True))
        require_known(build_catalogs(brokers, options))
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
    """Return all roots as a broker's if any one is. A root that lost its file is no copy.

    Nobody but a node of a cluster keeps its metadata.
    """
    is_broker = any(
        root.role.facts.is_owned_by_broker
        or Path(root.location, CLUSTER_METADATA_DIRECTORY).exists()
        for root in roots
    )
    return [replace(root, role=Role.BROKER) if is_broker else root for root in roots]


def _check_readable(targets: Sequence[Target]) -> None:
    """Refuse to judge files closed to this process. A broker, as another user, may be able to
    read them."""
    for target in targets:
        _require_access(target.directory)
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
    sizes = {row["ordinal"]: row["bytes"] or 0 for row in verification.partitions}
    items = [WorkItem(value=target, size_bytes=sizes.get(target.ordinal, 0)) for target in targets]
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
    work = partial(forecast_partitions, now_ms=options.now_ms, catalogs=catalogs, damaged=damaged)
    units = [unit.values for unit in run.pack(items)]
    forecasts = engine.collect(
        engine.spread(units, work, ForecastRow),
        schema_of(ForecastRow),
        f"{_TITLE}: what a broker's start would do",
        is_look=are_read_here(items),
    )
    numbers = {target.directory: number for number, target in enumerate(targets)}
    rows: list[dict[str, Any]] = forecasts.to_pylist()
    return sorted(rows, key=lambda row: numbers[row["directory"]])
