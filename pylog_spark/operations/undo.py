"""Undo a run on local log directories: put back what it replaced, cut or removed.

Everything that is needed lies in the trash of the run, so a Spark session is needed only to write
the ledger. A partition is only touched if every file of it is what the run left; of the others the
first file that is not is named, and they stay as they are.
"""

import json
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pylog_spark.discovery import LogRoot, resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.managed_undo import undo_managed
from pylog_spark.options import JobOptions
from pylog_spark.roots.broker_root import BrokerRoot
from pylog_spark.roots.killed_runs import (
    PARTITIONS,
    changed_partitions,
    decode_partitions,
    observe_partitions,
)
from pylog_spark.roots.managed_root import ManagedRoot
from pylog_spark.run.guards import check_ledger
from pylog_spark.run.job import Job, new_run_id, open_recorder
from pylog_spark.run.recording import STEPS
from pylog_spark.run.run_report import RunReport, exit_code_of, summarise
from pylog_spark.schemas import RESULT, Action, Reason, Status
from pylog_spark.tasks.failures import describe_failure
from pylog_spark.tasks.listing import TopicFilter
from pylog_spark.tasks.run_context import read_if_sound
from storage_core.catalog.owners_word import OFF_SWITCH_FILE, is_switched_off
from storage_core.catalog.roles import Role
from storage_core.clock import Clock, SystemClock
from storage_core.commit.trash import (
    RUN_FILE,
    TrashedRoot,
    hold_run,
    list_commits,
    read_commit,
    read_raised,
    read_run,
)
from storage_core.commit.undo import (
    UndonePartition,
    check_partition,
    is_undone,
    undo_partition,
)
from storage_core.errors import (
    ChangedWhileReadError,
    CheckpointError,
    ConfigError,
    GuardRefusedError,
    PartitionNotFoundError,
    StorageError,
)
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
    parse_partition_directory,
)
from storage_core.log.leftovers import plan_settling
from storage_core.store import LocalStore
from storage_core.store.json_fields import parse_json_object
from storage_core.store.local import write_record

# Each is mostly waiting for a disk.
_WORKERS: Final = 8
# Which checkpoints an action moves.
_CHECKPOINTS: Final[Mapping[str, Sequence[str]]] = {
    Action.COMPACT.value: (CLEANER_FILE,),
    Action.RETAIN.value: (LOG_START_FILE, CLEANER_FILE, RECOVERY_POINT_FILE),
    Action.RECOVER.value: (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE),
}
_REFUSALS: Final = frozenset({Reason.CHANGED_SINCE_RUN, Reason.RUN_NOT_ENDED, Reason.PURGED})
_UNCLEAN_NOTE: Final = (
    "{root}: not marked as cleanly shut down, as it was not before the run, or when the undo "
    "began: a broker, or pylog recover, recovers it"
)
_FAILED_NOTE: Final = (
    "{root}: the disk failed, and the undo did no more there; given again when the disk is in "
    "order, the same undo does the rest: {failure}"
)
# What an undo of a log directory remembers, beside what the run says of itself.
_MARKER_FILE: Final = "undo-marker-{number}.json"
_IS_CLEAN: Final = "is_clean"
# A line for each partition.
_MOST_MARKER_BYTES: Final = 64 << 20
_MALFORMED: Final = (
    "{problem}; the entries of this partition could not be put back, so its files were not touched "
    "either. A broker does not start with such a file: remove it when you have looked at it, and "
    "give the same undo again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RaisedStart:
    """What a run that was killed may have left of a log start, raised before its commit began.

    Attributes:
        raised: To what the run raised it.
        before: What it was, None without an entry in the checkpoint.
        now: What it is, None without an entry.
    """

    raised: int
    before: int | None
    now: int | None

    @property
    def is_left(self) -> bool:
        """Whether records below it are hidden that the run has not removed."""
        return self.now == self.raised != self.before

    def verify(self) -> None:
        """Check that it is what the run left, or what it was before.

        Raises:
            ChangedWhileReadError: Somebody else has moved it.
        """
        if self.now not in {self.raised, self.before}:
            raise ChangedWhileReadError(
                LOG_START_FILE, f"the entry {self.raised} or {self.before}", str(self.now)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Undo:
    """One partition of a run that is to be undone.

    Attributes:
        root: Its log directory.
        directory: Its own.
        partition: Its name.
        commits: The trash of the run's commits on it, oldest first; none where the run was killed
            before it began with one.
        start: Its log start, where the run may have raised it for a commit that did not end.
    """

    root: str
    directory: Path
    partition: TopicPartition
    commits: tuple[Path, ...]
    start: _RaisedStart | None = None

    @property
    def checkpoints(self) -> set[str]:
        """The checkpoints in which the run moved its entries."""
        actions = {read_commit(folder).action for folder in self.commits}
        names = {name for action in actions for name in _CHECKPOINTS.get(action, ())}
        return names | {LOG_START_FILE} if self.has_raised_start else names

    @property
    def has_raised_start(self) -> bool:
        """Whether its log start is as the run raised it."""
        return self.start is not None and self.start.is_left

    def is_undone(self) -> bool:
        """Whether it is exactly what it was before the run; it is not if it is gone."""
        if self.has_raised_start:
            return False
        try:
            return not self.commits or is_undone(LocalStore(self.directory), self.commits)
        except PartitionNotFoundError:
            return False


@dataclass(slots=True, kw_only=True)
class _UndoneRoot:
    """What became of one log directory.

    Attributes:
        location: Its path.
        rows: Of its partitions, by directory.
        is_whole: Whether partitions were undone, and none of them in part.
        notes: What a reader of the report should know.
        failure: What the disk failed with, None if it did not.
    """

    location: str
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_whole: bool = False
    notes: list[str] = field(default_factory=list)
    failure: StorageError | None = None


def undo(
    run_id: str,
    options: JobOptions,
    *,
    roots: Sequence[str] = (),
    spark: "Place | None" = None,
    clock: Clock | None = None,
) -> RunReport:
    """Undo what a run did to partitions of local log directories or of managed roots.

    Args:
        run_id: The run, as its report and the ledger name it.
        options: The trash it was given, which topics, the ledger, and whether this is a dry run.
        roots: Managed roots that it worked on; local log directories stand in the trash.
        spark: The session that writes the ledger; None where ``deltalake`` does.
        clock: For the name of this run, and the times in the ledger.

    Raises:
        ConfigError: There is no trash, or it does not know the run; the ledger would lie inside of
            a log directory, or has no session.
        GuardRefusedError: A log directory is in use, or the run's trash is.
        CheckpointError: The trash cannot be understood.
        StorageError: The disk of the only root failed, or the trash cannot be read.
    """
    started = time.perf_counter()
    clock = clock or SystemClock()
    job = Job(
        run_id=new_run_id(clock),
        action=Action.UNDO.value,
        roots=check_undo(run_id, options, roots),
        options=options,
        undoes=run_id,
    )
    recorder = open_recorder(spark, job, clock)
    notes: list[str] = []
    failures: dict[str, StorageError] = {}
    tables: list[pa.Table] = []
    with recorder.whole_run(), ExitStack() as held:
        # All of them before the first is touched: whoever is refused one has changed nothing.
        managed = [
            ManagedRoot(root.location, run_id=job.run_id)
            for root in job.roots
            if root.role is Role.MANAGED
        ]
        for root in () if options.dry_run else managed:
            held.enter_context(root)
        if any(root.role is Role.BROKER for root in job.roots):
            folder = _run_folder(run_id, options.trash)
            held.enter_context(nullcontext() if options.dry_run else hold_run(folder))
            for undone in held.enter_context(closing(_undo_local(folder, job))):
                notes += undone.notes
                if undone.failure is not None:
                    failures[undone.location] = undone.failure
                tables.append(recorder.each_result(_named(undone.rows.values())))
        for root in managed:
            rows = undo_managed(root, run_id, options, job.run_id)
            tables.append(recorder.each_result(_named(rows)))
    results = pa.concat_tables(tables) if tables else RESULT.empty_table()
    summary = summarise(results, duration_ms=round((time.perf_counter() - started) * 1000))
    report = RunReport(
        run_id=job.run_id,
        action=job.action,
        dry_run=options.dry_run,
        notes=tuple(notes),
        results=results,
        summary=summary,
        exit_code=exit_code_of(results, refused_alone=_REFUSALS, failures=failures),
    )
    recorder.end(summary, exit_code=report.exit_code)
    return report


def check_undo(run_id: str, options: JobOptions, roots: Sequence[str] = ()) -> tuple[LogRoot, ...]:
    """Return the roots that an undo is about, before anything is touched.

    Args:
        run_id: The run that is undone.
        options: The trash and the ledger.
        roots: Managed roots; local log directories stand in the trash.

    Raises:
        ConfigError: There is no trash, it does not know the run, or the ledger would lie inside of
            a log directory.
        CheckpointError: The trash cannot be understood.
    """
    found = resolve_roots(roots, said=Role.MANAGED) if roots else []
    if options.trash is not None or not roots:
        run = read_run(_run_folder(run_id, options.trash))
        found += [
            LogRoot(location=root.location, role=Role.BROKER, is_said=True) for root in run.roots
        ]
    check_ledger(found, options.ledger)
    return tuple(found)


def _undo_local(folder: Path, job: Job) -> Generator[_UndoneRoot]:
    """Undo what a run did to local log directories, from its trash; yield what became of each."""
    run, options = read_run(folder), job.options
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    finds = [partial(_find, folder, root, topics) for root in run.roots]
    if options.dry_run:
        for root, find in zip(run.roots, finds, strict=True):
            rows = _check(root, find())
            yield _UndoneRoot(location=root.location, rows=rows)
        return
    with ExitStack() as all_roots:
        locked = [
            _LockedRoot(all_roots, root, find, job)
            for root, find in zip(run.roots, finds, strict=True)
        ]
        for number, opened in enumerate(locked):
            yield _undo_root(opened, folder / _MARKER_FILE.format(number=number))


class _LockedRoot:
    """One log directory of the run under its lock, unless its disk fails.

    Args:
        held: Gives the lock back if nobody has before.
        root: The directory as the run found it.
        find: Returns the partitions that are to be undone.
        job: The undo.

    Raises:
        GuardRefusedError: It is in use.
        StorageError: The disk failed, and there is no other root that could be undone.
    """

    def __init__(
        self, held: ExitStack, root: TrashedRoot, find: Callable[[], list[_Undo]], job: Job
    ) -> None:
        self.root = root
        self.find = find
        self.held = BrokerRoot(
            root.location,
            run_id=job.run_id,
            mark_clean=job.options.mark_clean,
            is_alone=len(job.roots) == 1,
        )
        self.until_given_back = held.enter_context(ExitStack())
        try:
            self.until_given_back.enter_context(self.held)
        except StorageError as error:
            if self.held.is_alone:
                raise
            self.held.give_up(error)


def _named(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield columns of result rows."""
    for row in rows:
        yield {"action": Action.UNDO.value, **row}


def _run_folder(run_id: str, trash: str | None) -> Path:
    if trash is None:
        raise ConfigError("--trash", None, "say where the run's trash is")
    folder = Path(trash, run_id)
    if Path(run_id).name != run_id or not (folder / RUN_FILE).is_file():
        raise ConfigError(
            "RUN",
            run_id,
            f"the trash {trash} has no run of that name: it kept nothing, or was purged",
        )
    return folder


def _find(folder: Path, root: TrashedRoot, topics: TopicFilter) -> list[_Undo]:
    """Return the partitions of a log directory of which the run kept something.

    And those whose log start it raised and did not come to the rest: nothing of them was kept yet.
    """
    starts = _raised_starts(folder, root)
    commits: dict[Path, list[Path]] = {}
    # One that was killed while it still kept files is not listed, and has changed nothing.
    for commit in sorted(list_commits(folder)):
        commits.setdefault(read_commit(commit).directory, []).append(commit)
    begun = [
        _Undo(
            root=root.location,
            directory=directory,
            partition=partition,
            commits=tuple(oldest_first),
            start=starts.pop(partition, None),
        )
        for directory, oldest_first in commits.items()
        if str(directory.parent) == root.location
        for partition in (parse_partition_directory(directory.name),)
    ]
    others = [
        _Undo(
            root=root.location,
            directory=Path(root.location, str(partition)),
            partition=partition,
            commits=(),
            start=start,
        )
        for partition, start in starts.items()
    ]
    chosen = [undo for undo in (*begun, *others) if topics.admits(undo.partition.topic)]
    return sorted(chosen, key=lambda undo: undo.partition)


def _raised_starts(folder: Path, root: TrashedRoot) -> dict[TopicPartition, _RaisedStart]:
    """Return what the run, if it was killed, may have left of log starts that it raised."""
    raised = read_raised(folder, root.location)
    if not raised:
        return {}
    before = root.checkpoints.get(LOG_START_FILE, {})
    now, _ = read_if_sound(root.location, LOG_START_FILE)
    return {
        partition: _RaisedStart(raised=start, before=before.get(name), now=now.get(partition))
        for name, start in raised.items()
        for partition in (parse_partition_directory(name),)
    }


def _check(root: TrashedRoot, chosen: Sequence[_Undo]) -> dict[str, dict[str, Any]]:
    """Return what would become of partitions, by directory; nothing is written."""
    rows = _each(chosen, check_partition, Status.PLANNED)
    problems = {name: read_if_sound(root.location, name)[1] for name in root.checkpoints}
    for undo, row in zip(chosen, rows, strict=True):
        found = [problems[name] for name in sorted(undo.checkpoints & problems.keys())]
        problem = next(filter(None, found), None)
        if problem is not None and row["status"] == Status.PLANNED.value:
            row["status"] = Status.FAILED.value
            row["error_class"] = CheckpointError.__name__
            row["error"] = _MALFORMED.format(problem=problem)
    return {row["directory"]: row for row in rows}


def _undo_root(locked: _LockedRoot, marker_file: Path) -> _UndoneRoot:
    """Undo the partitions of one log directory, and give its lock back.

    Raises:
        StorageError: The disk failed, and there is no other root that could be undone.
    """
    held, root = locked.held, locked.root
    undone = _UndoneRoot(location=root.location)
    # Whoever took the lock has finished what the run had begun when it was killed.
    chosen = locked.find()
    try:
        with locked.until_given_back:
            if held.failure is None:
                _undo_held(held, root, chosen, undone, marker_file)
    except StorageError as error:
        if held.is_alone:
            raise
        held.give_up(error)
    if held.failure is not None:
        # Of the other partitions it is known what became of them before that.
        undone.rows = {str(undo.directory): _failed_row(undo, held.failure) for undo in chosen} | (
            undone.rows
        )
        undone.failure = held.failure
        undone.notes.append(_FAILED_NOTE.format(root=root.location, failure=held.failure))
    elif undone.is_whole:
        # The marker is there: nobody has to remember any more that it was.
        marker_file.unlink(missing_ok=True)
    undone.rows = {str(undo.directory): undone.rows[str(undo.directory)] for undo in chosen}
    return undone


def _undo_held(
    held: BrokerRoot,
    root: TrashedRoot,
    chosen: Sequence[_Undo],
    undone: _UndoneRoot,
    marker_file: Path,
) -> None:
    """Undo the partitions of a log directory that is locked, unless its disk fails before that.

    First the marker goes, then the checkpoints are what they were: where one of that cannot be
    done, the files of the partitions stay as they are, and the same undo does it all later.
    """
    checked = _check(root, chosen)
    due = [
        undo for undo in chosen if checked[str(undo.directory)]["status"] == Status.PLANNED.value
    ]
    if not due:
        undone.rows |= checked
        _finish_marker(held, root, chosen, marker_file)
        return
    is_due = {str(undo.directory) for undo in due}
    undone.rows |= {place: row for place, row in checked.items() if place not in is_due}
    is_clean = _remember_marker(
        marker_file,
        held,
        verified={undo.directory.name for undo in chosen if undo in due or undo.is_undone()},
    )
    held.begin_writing()
    # Half undone, the logs are as they were before they were recovered, perhaps: nobody may
    # believe the marker until all are, neither at the end of this run nor after a kill.
    held.claim_unclean()
    held.allow_commits(())
    for name, entries in _entries_before(root, due).items():
        held.restore_checkpoint(name, entries)
    if held.failure is not None:
        return
    ended = {
        row["directory"]: row
        for row in _each(due, partial(undo_partition, settling=plan_settling), Status.DONE)
    }
    undone.rows |= ended
    undone.is_whole = all(row["status"] == Status.DONE.value for row in ended.values())
    held.settle_commits({}, is_whole=undone.is_whole)
    if is_clean and root.was_clean:
        held.claim_clean()
    else:
        held.claim_unclean()
        undone.notes.append(_UNCLEAN_NOTE.format(root=root.location))


def _finish_marker(
    held: BrokerRoot, root: TrashedRoot, chosen: Sequence[_Undo], marker_file: Path
) -> None:
    """Write the marker where an undo was killed when nothing but that was left to do.

    Not if anything has changed since: then a broker may have removed it.
    """
    if held.was_clean or not root.was_clean or not marker_file.is_file():
        return
    if not all(undo.is_undone() for undo in chosen):
        return
    if _remember_marker(marker_file, held, verified={undo.directory.name for undo in chosen}):
        held.begin_writing()
        held.claim_clean()


def _remember_marker(path: Path, held: BrokerRoot, *, verified: Collection[str]) -> bool:
    """Return whether the directory had its marker when its undo began; a killed one removed it.

    Not if somebody else has changed a partition since: a broker that left no marker, above all.

    Args:
        path: Where that is written down.
        held: The log directory.
        verified: The partitions that are, file by file, what the run or its undo left.
    """
    directory = Path(held.location)
    if path.is_file():
        content = LocalStore(path.parent).read_file(path.name, limit_bytes=_MOST_MARKER_BYTES)
        said = parse_json_object(content, str(path))
        if not said.boolean(_IS_CLEAN):
            return False
        if not held.was_clean:
            if PARTITIONS not in said.names():
                return False  # written by a version that did not say
            known = decode_partitions(said)
            return not changed_partitions(known, directory, verified=verified)
    seen = {_IS_CLEAN: held.was_clean, PARTITIONS: observe_partitions(directory)}
    write_record(path, json.dumps(seen).encode())
    return held.was_clean


def _entries_before(
    root: TrashedRoot, due: Sequence[_Undo]
) -> dict[str, dict[TopicPartition, int | None]]:
    """Return the entries of checkpoints as they were before the run, by file.

    They are put back first: with the former points, of which none is above the present one, the
    log is in order as the run left it, too. A file that was malformed then has no former entries.
    """
    entries: dict[str, dict[TopicPartition, int | None]] = {}
    for undo in due:
        for name in undo.checkpoints & root.checkpoints.keys():
            before = root.checkpoints[name].get(str(undo.partition))
            entries.setdefault(name, {})[undo.partition] = before
    return entries


def _each(
    chosen: Sequence[_Undo],
    work: Callable[[LocalStore, Sequence[Path]], UndonePartition],
    status: Status,
) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(_WORKERS) as pool:
        return list(pool.map(partial(_row, work=work, status=status), chosen))


def _require_switched_on(directory: Path) -> None:
    if is_switched_off(str(directory)):
        raise GuardRefusedError(Reason.SWITCHED_OFF.value, f"{directory}: {OFF_SWITCH_FILE}")


def _name_row(undo: _Undo) -> dict[str, Any]:
    return {
        "root": undo.root,
        "topic": undo.partition.topic,
        "partition": undo.partition.partition,
        "directory": str(undo.directory),
    }


def _failed_row(undo: _Undo, error: StorageError) -> dict[str, Any]:
    return _name_row(undo) | {"status": Status.FAILED.value, **describe_failure(error)}


def _row(
    undo: _Undo,
    *,
    work: Callable[[LocalStore, Sequence[Path]], UndonePartition],
    status: Status,
) -> dict[str, Any]:
    """Return a row of ``schemas.RESULT``, and the directory; what is wrong is in it."""
    started = time.perf_counter()
    row = _name_row(undo)
    try:
        _require_switched_on(undo.directory)
        if undo.start is not None and not undo.commits:
            undo.start.verify()
        done = work(LocalStore(undo.directory), undo.commits)
    except ChangedWhileReadError as error:
        row |= {"status": Status.SKIPPED.value, "reason": Reason.CHANGED_SINCE_RUN.value}
        row |= {"error": str(error)}
    except GuardRefusedError as error:
        row |= {"status": Status.SKIPPED.value, "reason": error.code, "error": error.reason}
    except Exception as error:  # noqa: BLE001  # the row carries it; the other partitions go on
        row |= {"status": Status.FAILED.value, **describe_failure(error)}
    else:
        if not done.steps and not undo.has_raised_start:
            row |= {"status": Status.SKIPPED.value, "reason": Reason.ALREADY_UNDONE.value}
        else:
            row["status"] = status.value
        if status is Status.DONE:
            row[STEPS] = [step for plan in done.plans for step in plan.describe()]
        row |= {
            "bytes_before": done.bytes_before,
            "bytes_after": done.bytes_after,
            "segments_before": done.segments_before,
            "segments_after": done.segments_after,
        }
    return row | {"duration_ms": round((time.perf_counter() - started) * 1000)}
