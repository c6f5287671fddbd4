"""Remove for good what was put aside, once its time is over: by a broker or by a run of ours.

In a broker's directory that are ``.deleted`` files and directories of deleted partitions, which
the broker would remove itself; in the trash, what runs replaced or removed; in a managed root,
generations and objects that no manifest within the grace period names. No records are read, and a
Spark session is needed only to write the ledger.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from pylog_spark.discovery import LogRoot, resolve_roots
from pylog_spark.operations.managed_purge import PurgedPartition, purge_managed
from pylog_spark.options import JobOptions
from pylog_spark.roots.broker_root import BrokerRoot
from pylog_spark.roots.managed_root import ManagedRoot
from pylog_spark.roots.writable_root import WritableRoot, failures_of, writable_root
from pylog_spark.run.catalogs import build_catalogs, dump_notes
from pylog_spark.run.guards import check_roots
from pylog_spark.run.job import Job, new_run_id, open_recorder
from pylog_spark.run.recording import STEPS, Recorder
from pylog_spark.run.run_report import RunReport, exit_code_of, summarise
from pylog_spark.schemas import Action, Reason, Status
from pylog_spark.tasks.failures import describe_failure, error_of
from pylog_spark.tasks.listing import TopicFilter, directory_location, list_partitions
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.owners_word import OFF_SWITCH_FILE, is_switched_off
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.clock import Clock, SystemClock
from storage_core.commit import commit
from storage_core.commit.purge import (
    Purge,
    find_runs,
    plan_purge_directory,
    plan_purge_partition,
    plan_purge_trash,
)
from storage_core.commit.trash import hold_run
from storage_core.config import LogConfig
from storage_core.errors import ConfigError, GuardRefusedError, PylogError
from storage_core.filenames import TopicPartition
from storage_core.store import LocalStore

_DEFAULT_DELAY_MS: Final = LogConfig().file_delete_delay_ms
_SWEPT: Final = frozenset({DirectoryKind.PARTITION, DirectoryKind.FUTURE, DirectoryKind.STRAY})
_SUPERSEDED: Final = "no generation that is kept names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeScope:
    """What a purge is about.

    Attributes:
        recorder: Keeps the record.
        run_id: The run that purges; its own trash stays.
        roots: The log directories and managed roots.
        held: The same under their locks and leases; none for a dry run.
        catalogs: What is known of their topics, by root.
        topics: Which topics.
        trash: The folder of the trash, None for none.
        now_ms: The run's clock, epoch milliseconds.
        older_than_ms: How long trash and superseded generations are kept.
        dry_run: Whether nothing is removed.
    """

    recorder: Recorder
    run_id: str
    roots: Sequence[LogRoot]
    held: Mapping[str, WritableRoot]
    catalogs: Mapping[str, TopicCatalog]
    topics: TopicFilter
    trash: str | None
    now_ms: int
    older_than_ms: int
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gone:
    """What was removed of one directory, or would be.

    Attributes:
        files: How many files or objects.
        size_bytes: Their bytes.
        steps: What was applied, described; nothing in a dry run.
    """

    files: int
    size_bytes: int
    steps: Sequence[Mapping[str, Any]]


def purge(
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> RunReport:
    """Purge log directories, managed roots and the trash, under their locks.

    Args:
        roots: Log directories and managed roots; none for the trash alone.
        options: The trash, the time, which topics, the ledger, and whether this is a dry run.
        spark: The session that writes the ledger; None where there is none.
        clock: For the name of the run, and the times in the ledger.

    Raises:
        ConfigError: There is nothing to purge, a root is no directory, or a ledger has no session.
        GuardRefusedError: A root's role was not said or is read-only, or it is in use.
        StorageError: The disk of the only root failed.
        PylogError: The cluster's metadata or a root's own files cannot be read.
    """
    started = time.perf_counter()
    clock = clock or SystemClock()
    action = Action.PURGE.value
    log_roots = tuple(resolve_roots(roots, said=options.role)) if roots else ()
    if not log_roots and options.trash is None:
        raise ConfigError("ROOT", None, "expected a log directory, a managed root or --trash")
    # Beside roots it may be that no run has kept anything there yet.
    if not log_roots and not Path(options.trash or "").is_dir():
        raise ConfigError("--trash", options.trash, "no such directory")
    check_roots(log_roots, options)
    job = Job(run_id=new_run_id(clock), action=action, roots=log_roots, options=options)
    recorder = open_recorder(spark, job, clock)
    held: dict[str, WritableRoot] = {}
    with recorder.whole_run(), ExitStack() as stack:
        for root in () if options.dry_run else log_roots:
            opened = writable_root(
                root,
                run_id=job.run_id,
                mark_clean=options.mark_clean,
                is_alone=len(log_roots) == 1,
            )
            held[root.location] = stack.enter_context(opened)
        scope = PurgeScope(
            recorder=recorder,
            run_id=job.run_id,
            roots=log_roots,
            held=held,
            catalogs=build_catalogs(log_roots, options),
            topics=TopicFilter(topics=options.include, exclude=options.exclude),
            trash=options.trash,
            now_ms=options.now_ms,
            older_than_ms=options.purge_after_ms,
            dry_run=options.dry_run,
        )
        results = purge_roots(scope)
    failures = failures_of(held)
    failed = (
        f"{location}: the disk failed, and nothing more was purged there: {failure}"
        for location, failure in failures.items()
    )
    summary = summarise(results, duration_ms=round((time.perf_counter() - started) * 1000))
    report = RunReport(
        run_id=job.run_id,
        action=action,
        dry_run=options.dry_run,
        notes=(*dump_notes(options), *failed),
        results=results,
        summary=summary,
        exit_code=exit_code_of(results, failures=failures),
    )
    recorder.end(summary, exit_code=report.exit_code)
    return report


def purge_roots(scope: PurgeScope, listed: pa.Table | None = None) -> pa.Table:
    """Purge what is old enough; a row of ``schemas.RESULT`` for each directory that had any.

    What is wrong with one directory is in its row and stops no other. The rows, and what was done,
    are in the run's record when this returns.

    Args:
        scope: What to purge; its log directories are locked.
        listed: Rows of ``schemas.PARTITION``: the directories of brokers in which there may be
            something; None to list them.

    Raises:
        StorageError: A managed root cannot be listed.
    """
    steps = (partial(_purge_log_directories, listed), _purge_managed_roots, _purge_trash)
    return scope.recorder.each_result(
        {"action": Action.PURGE.value, **row} for step in steps for row in step(scope)
    )


def _purge_log_directories(listed: pa.Table | None, scope: PurgeScope) -> Iterator[dict[str, Any]]:
    for root in scope.roots:
        if root.role is not Role.BROKER:
            continue
        held = scope.held.get(root.location)
        if held is not None and held.failure is not None:
            continue  # the run says so in its notes, and does nothing more there
        if listed is None:
            rows = list_partitions(root.location, root.role.value, scope.topics)
        else:
            of_root = listed.filter(pc.equal(listed["root"], root.location))
            rows = of_root.sort_by("directory").to_pylist()
        deleted = _DeletedPartitions(rows, scope, held)
        for row in rows:
            name = {key: row.get(key) for key in ("root", "topic", "partition", "directory")}
            error = error_of({"error_class": None, **row})
            if error is not None:
                yield name | error
                continue
            kind = DirectoryKind(row["kind"])
            if kind in _SWEPT:
                yield from _row(name, _partition_plan(scope, row), scope)
            elif kind is DirectoryKind.DELETE:
                begin = partial(deleted.forget, row)
                yield from _row(name, _directory_plan(scope, row), scope, begin)


def _partition_plan(scope: PurgeScope, row: Mapping[str, Any]) -> Callable[[], Purge]:
    def plan() -> Purge:
        return plan_purge_partition(
            Path(row["directory"]),
            now_ms=scope.now_ms,
            delay_ms=_delay_ms(scope.catalogs.get(row["root"]), row["topic"]),
        )

    return plan


def _directory_plan(scope: PurgeScope, row: Mapping[str, Any]) -> Callable[[], Purge]:
    def plan() -> Purge:
        # The topic is gone, and its config with it.
        return plan_purge_directory(
            Path(row["directory"]), now_ms=scope.now_ms, delay_ms=_DEFAULT_DELAY_MS
        )

    return plan


class _DeletedPartitions:
    """The deleted partitions of one log directory, whose entries have to leave its checkpoints.

    A broker does that when it renames the directory. One that died in between has not, and entries
    of a partition that is created again would count for the new one: so they go before any of its
    files does. Those of all directories that this purge removes go together, for each time every
    checkpoint is read whole, and the log directory listed.

    Args:
        rows: What lies in the log directory.
        scope: The purge.
        root: The log directory under its lock; None in a dry run.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], scope: PurgeScope, root: WritableRoot | None
    ) -> None:
        self._rows = rows
        self._scope = scope
        self._root = root
        self._forgotten: set[TopicPartition] = set()

    def forget(self, row: Mapping[str, Any]) -> None:
        """Take out the entries of a directory that goes now, and of those that go after it."""
        partition = _partition_of(row)
        if isinstance(self._root, BrokerRoot) and partition not in self._forgotten:
            going = self._due | {partition}
            self._root.drop_entries(going)
            if self._root.failure is not None:
                raise self._root.failure
            self._forgotten |= going

    @cached_property
    def _due(self) -> frozenset[TopicPartition]:
        """Those whose directories go in this purge.

        The plans are made again when it is their turn: together they name every file.
        """
        return frozenset(
            _partition_of(row)
            for row in self._rows
            if row.get("kind") == DirectoryKind.DELETE and self._goes(row)
        )

    def _goes(self, row: Mapping[str, Any]) -> bool:
        try:
            found = _directory_plan(self._scope, row)()
            _check_switch(found)
        except (PylogError, OSError):
            return False  # its own row will say why
        return bool(found.plans)


def _partition_of(row: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def _delay_ms(catalog: TopicCatalog | None, topic: str | None) -> int:
    """Return how long a broker waits; Kafka's default where nobody knows the topic's config.

    That files with this suffix go is not a question of config: a broker's start drops them all.
    """
    config = None if catalog is None or topic is None else catalog.config_for(topic)
    return _DEFAULT_DELAY_MS if config is None else config.file_delete_delay_ms


def _purge_managed_roots(scope: PurgeScope) -> Iterator[dict[str, Any]]:
    for root in scope.roots:
        if root.role is not Role.MANAGED:
            continue
        held = scope.held.get(root.location)
        for purged in purge_managed(
            root.location,
            scope.topics,
            grace_start_ms=scope.now_ms - scope.older_than_ms,
            root=held if isinstance(held, ManagedRoot) else None,
        ):
            name = {
                "root": root.location,
                "topic": purged.partition.topic,
                "partition": purged.partition.partition,
                "directory": directory_location(root.location, root.role, str(purged.partition)),
            }
            yield from _attempt(name, partial(_managed_row, purged), scope)


def _managed_row(purged: PurgedPartition) -> _Gone:
    if purged.error is not None:
        raise purged.error
    steps = [
        {"operation": "DeleteObject", "name": key, "reason": _SUPERSEDED} for key in purged.objects
    ]
    return _Gone(files=len(steps), size_bytes=purged.size_bytes, steps=steps)


def _purge_trash(scope: PurgeScope) -> Iterator[dict[str, Any]]:
    if scope.trash is None:
        return
    for folder in find_runs(Path(scope.trash)):
        if folder.name != scope.run_id:
            yield from _trash_row(folder, scope)


def _row(
    name: Mapping[str, Any],
    plan: Callable[[], Purge],
    scope: PurgeScope,
    begin: Callable[[], None] = lambda: None,
) -> Iterator[dict[str, Any]]:
    """Yield the row of one directory, none if there is nothing in it to purge.

    Args:
        name: Whose it is.
        plan: Returns what goes.
        scope: The purge.
        begin: Called before the first file goes.
    """

    def work() -> _Gone:
        found = plan()
        _check_switch(found)
        if found.plans and not scope.dry_run:
            begin()
        return _apply(found, scope)

    return _attempt(name, work, scope)


def _check_switch(found: Purge) -> None:
    """Refuse to change what its owner has switched off.

    Raises:
        GuardRefusedError: There is something to remove, and the owner said no.
        StorageError: What the owner said cannot be read.
    """
    if found.plans and is_switched_off(str(found.location)):
        why = f"{found.location}: {OFF_SWITCH_FILE}"
        raise GuardRefusedError(Reason.SWITCHED_OFF.value, why)


def _trash_row(folder: Path, scope: PurgeScope) -> Iterator[dict[str, Any]]:
    def work() -> _Gone:
        with nullcontext() if scope.dry_run else hold_run(folder):
            found = plan_purge_trash(folder, now_ms=scope.now_ms, older_than_ms=scope.older_than_ms)
            return _apply(found, scope)

    return _attempt({"root": str(folder)}, work, scope)


def _apply(found: Purge, scope: PurgeScope) -> _Gone:
    """Commit what removes it, unless in a dry run; in what was done, paths begin at its place."""
    done: list[dict[str, Any]] = []
    for plan in () if scope.dry_run else found.plans:
        commit(plan, LocalStore(Path(plan.location)))
        below = Path(plan.location).relative_to(found.location)
        done += [
            {**step, "name": str(below / str(step.get("name", "")))} for step in plan.describe()
        ]
    return _Gone(files=found.files, size_bytes=found.size_bytes, steps=done)


def _attempt(
    name: Mapping[str, Any], work: Callable[[], _Gone], scope: PurgeScope
) -> Iterator[dict[str, Any]]:
    started = time.perf_counter()
    row = dict(name)
    try:
        gone = work()
    except GuardRefusedError as error:
        row |= {"status": Status.SKIPPED.value, "reason": error.code, "error": error.reason}
    except Exception as error:  # noqa: BLE001  # the row carries it; the other directories go on
        row |= {"status": Status.FAILED.value, **describe_failure(error)}
    else:
        if not gone.files:
            return
        status = Status.PLANNED if scope.dry_run else Status.DONE
        row |= {"status": status.value, "bytes_before": gone.size_bytes, "bytes_after": 0}
        row[STEPS] = gone.steps
    row["duration_ms"] = round((time.perf_counter() - started) * 1000)
    yield row
