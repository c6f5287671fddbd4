"""The job of a run: its name, its roots, its options. All steps of any operation use it."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pylog_spark.engines.choice import Place
from pylog_spark.ledger import open_ledger
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action
from pylog_spark.run.catalogs import build_catalogs, read_meta_properties
from pylog_spark.run.plan_file import SavedPlan, expected_operations, saved_plan
from pylog_spark.run.recording import Recorder, open_listeners
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.broker_files import read_clean_shutdown
from storage_core.clock import Clock, SystemClock
from storage_core.maintenance.compaction.partition import HASH_KEY_BYTES
from storage_core.redaction import without_secrets
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.guards import has_remote_storage
from storage_core.roots.open_root import LogRoot
from storage_core.store.local import plain_path

_SHOWN_ROOTS: Final = 3
# Whose plans have operations: they are known once the tasks of the dry run have read.
_PLANNED_STEPS: Final = frozenset({Action.RECOVER, Action.TRUNCATE, Action.HEAL})
_NOT_RECORDED: Final = frozenset({"spark_conf", "metrics_file", "metrics_push"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of an operation."""

    run_id: str
    action: str
    roots: tuple[LogRoot, ...]
    options: JobOptions
    # For its name and the times in the ledger; what is decided follows ``options.now_ms``.
    clock: Clock = field(default_factory=SystemClock)
    # Reasons that a step of it does not write down: another step does.
    unsaid: frozenset[str] = frozenset()
    # What its command was asked for besides the options of all jobs.
    request: Mapping[str, object] = field(default_factory=dict)
    # Locations that it writes, where these are not its log directories.
    outputs: tuple[str, ...] | None = None
    # The plan that it applies, None if it makes its own. All steps work by this one, read when the
    # run began, whatever becomes of its file meanwhile.
    saved: SavedPlan | None = field(default=None, repr=False)

    @property
    def title(self) -> str:
        """Its name for Spark's user interface."""
        return f"pylog {self.action}"

    @property
    def places(self) -> str:
        """The first of its log directories, for the same."""
        shown = ", ".join(root.location for root in self.roots[:_SHOWN_ROOTS])
        return shown if len(self.roots) <= _SHOWN_ROOTS else f"{shown} and more"

    @property
    def topics(self) -> TopicFilter:
        """Which topics it is about."""
        return TopicFilter(topics=self.options.include, exclude=self.options.exclude)


def new_job(  # what all runs have, and what some have
    action: str,
    roots: Iterable[LogRoot],
    options: JobOptions,
    *,
    clock: Clock | None = None,
    saved: SavedPlan | None = None,
    unsaid: frozenset[str] = frozenset(),
    request: Mapping[str, object] | None = None,
    outputs: tuple[str, ...] | None = None,
) -> Job:
    """Return a new run with a unique name; names sort by time.

    Args:
        options: What to do, and how; ``plan_in`` names the plan that it applies, if there is one.
        clock: As in ``Job``; None for this machine's.
        saved: That plan where it was read already; None to read it here.
    """
    clock = clock or SystemClock()
    at = datetime.fromtimestamp(clock.now_ms() / 1000, tz=UTC)
    return Job(
        run_id=f"{at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}",
        action=action,
        roots=tuple(roots),
        options=options,
        clock=clock,
        unsaid=unsaid,
        request=request or {},
        outputs=outputs,
        saved=saved or saved_plan(options),
    )


def run_context(job: Job, unclean: frozenset[str]) -> RunContext:
    """Return what every task of a run is told.

    Args:
        unclean: Broker roots without the marker of a clean shutdown.
    """
    options, saved = job.options, job.saved
    # Settings of the session may hold passwords; what was exported is in the catalogs.
    shared = replace(options, spark_conf={}, topic_dump=None)
    return RunContext(
        run_id=job.run_id,
        options=shared,
        hash_key=secrets.token_bytes(HASH_KEY_BYTES),
        catalogs=build_catalogs(job.roots, options) if saved is None else saved.catalogs,
        expected_recoveries=None if saved is None else expected_operations(saved, _PLANNED_STEPS),
        unclean_roots=unclean,
        remote_roots=_remote_roots(job),
    )


def run_trash(job: Job) -> Path | None:
    """Return the run's folder in the trash, if any. The folder keeps files that the run removes
    from local directories."""
    trash = job.options.trash
    return None if trash is None else plain_path(Path(trash)) / job.run_id


def _remote_roots(job: Job) -> frozenset[str]:
    """Return the roots with segments in remote storage, unless overridden. Their broker has
    moved segments there."""
    if "REMOTE_STORAGE" in job.options.limits.overrides:
        return frozenset()
    return frozenset(root.location for root in job.roots if has_remote_storage(root.location))


def brokers_of(roots: Sequence[LogRoot]) -> dict[str, object]:
    """Return a value per root, equal for roots of one broker. A root without a broker id stands
    for itself."""
    brokers: dict[str, object] = {}
    for root in roots:
        meta = read_meta_properties(root.location)
        brokers[root.location] = (meta.cluster_id, meta.node_id) if meta else root.location
    return brokers


def unclean_roots(roots: Sequence[LogRoot]) -> frozenset[str]:
    """Return the broker roots without the marker of a clean shutdown."""
    return frozenset(
        root.location
        for root in roots
        if root.role.facts.is_owned_by_broker
        and read_clean_shutdown(BrokerRoot(Path(root.location))) is None
    )


def open_recorder(place: Place, job: Job) -> Recorder:
    """Open the record of a run; a dry run keeps none.

    Args:
        place: What writes the ledger: a Spark session, or this machine.
    """
    options = job.options
    roots = tuple(root.location for root in job.roots)
    ledger = None
    if options.ledger is not None and not options.dry_run:
        ledger = open_ledger(place, options.ledger, run_id=job.run_id)
    # Settings of the session may hold passwords; nothing that is done depends on them, or on who
    # is told of it.
    request = {
        name: value
        for name, value in asdict(replace(options, topic_dump=None)).items()
        if name not in _NOT_RECORDED
    }
    if options.topic_dump is not None:
        # Of what was exported only where it stands: a cluster has many topics.
        request["topic_dump"] = [options.topic_dump.file, options.topic_dump.taken_ms]
    request |= job.request
    return Recorder(
        ledger=ledger,
        clock=job.clock,
        unsaid=job.unsaid,
        outputs=roots if job.outputs is None else job.outputs,
        listeners=open_listeners(options),
        facts={
            "run_id": job.run_id,
            "action": job.action,
            "roots": list(roots),
            "now_ms": options.now_ms,
            "options": without_secrets(json.dumps(request, default=_plain, sort_keys=True)),
        },
    )


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
