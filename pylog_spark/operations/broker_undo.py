"""Undo a run in a broker's log directory from the trash.

A partition is only touched if every file of it is what the run left; of the others the first file
that is not is named, and they stay as they are.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import pyarrow as pa

from pylog_spark.run.planning import count_look_tasks
from pylog_spark.run.run import Run
from pylog_spark.schemas import STEPS, UNDONE, Action, Reason, Status
from pylog_spark.tasks.undo import PartitionUndo, RaisedStart, check_undos, undo_partitions
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.commit.trash import TrashedRoot, list_commits, read_raised, read_subject
from storage_core.errors import CheckpointError, StorageError, describe_failure
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
    parse_partition_directory,
)
from storage_core.json_values import OMITTED, ONE_LINE, JsonFile, Word
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.roots.killed_runs import changed_partitions, observe_partitions
from storage_core.roots.open_root import root_checkpoints
from storage_core.store import LocalStore
from storage_core.store.local import write_record

# So many are undone by this process about as soon as others have started that could do it.
_FEW: Final = 32
_UNCLEAN_NOTE: Final = (
    "{root}: not marked as cleanly shut down, as it was not before the run, or when the undo "
    "began: a broker, or pylog recover, recovers it"
)
_FAILED_NOTE: Final = (
    "{root}: the disk failed, and the undo did no more there; given again when the disk is in "
    "order, the same undo does the rest: {failure}"
)
_MARKER_FILE: Final = "undo-marker-{number}.json"
# A line for each partition.
_MOST_MARKER_BYTES: Final = 64 << 20
_MALFORMED: Final = (
    "{problem}; the entries of this partition could not be put back, so its files were not touched "
    "either. A broker does not start with such a file: remove it when you have looked at it, and "
    "give the same undo again"
)
# Which checkpoints an action moves.
_CHECKPOINTS: Final[Mapping[str, Sequence[str]]] = {
    Action.COMPACT.value: (CLEANER_FILE,),
    Action.RETAIN.value: (LOG_START_FILE, CLEANER_FILE, RECOVERY_POINT_FILE),
    Action.RECOVER.value: (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE),
    Action.TRUNCATE.value: (
        *(RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE, CLEANER_FILE),
    ),
}

# By directory, columns of ``schemas.RESULT``.
Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeenMarker:
    """The marker of a log directory as an undo saw it first.

    Attributes:
        is_clean: Whether it was there.
        partitions: What ``observe_partitions`` said then; older versions did not say.
    """

    is_clean: bool
    partitions: Annotated[Mapping[str, Word] | None, OMITTED] = None


_MARKER: Final = JsonFile(_SeenMarker, layout=ONE_LINE, is_open=True)


class BrokerUndo:
    """The undo of a run in one log directory.

    Args:
        run: The undo.
        folder: The trash of the run that is undone.
        before: The directory as that run found it.
        number: Its place among the directories of that run.

    Attributes:
        rows: What became of its partitions.
        notes: What a reader of the report should know.
    """

    def __init__(self, run: Run, folder: Path, before: TrashedRoot, number: int) -> None:
        self.rows: Rows = {}
        self.notes: list[str] = []
        self._run = run
        self._folder = folder
        self._before = before
        self._marker_file = folder / _MARKER_FILE.format(number=number)
        self._root = HeldBrokerRoot(
            before.location,
            run_id=run.job.run_id,
            mark_clean=run.job.options.mark_clean,
            is_alone=len(run.job.roots) == 1,
        )
        self._lock = ExitStack()

    def hold(self) -> None:
        """Take the directory's lock, unless its disk fails.

        The run gives the lock back if nobody has done so before.

        Raises:
            GuardRefusedError: It is in use.
            StorageError: The disk failed, and there is no other root that could be undone.
        """
        self._run.held.enter_context(self._lock)
        self._run.roots[self._root.location] = self._root
        try:
            self._lock.enter_context(self._root)
        except StorageError as error:
            self._give_up(error)

    def check(self) -> None:
        """Say what would become of its partitions; nothing is written."""
        self.rows = self._check(self._find())

    def undo(self) -> None:
        """Undo its partitions, and give its lock back.

        Raises:
            StorageError: The disk failed, and there is no other root that could be undone.
        """
        # Whoever took the lock has finished what the run had begun when it was killed.
        chosen = self._find()
        is_whole = False
        try:
            with self._lock:
                if self._root.failure is None:
                    is_whole = self._undo(chosen)
        except StorageError as error:
            self._give_up(error)
        failure = self._root.failure
        if failure is not None:
            # Of the other partitions it is known what became of them before that.
            failed = {str(each.directory): _failed_row(each, failure) for each in chosen}
            self.rows = failed | self.rows
            self.notes.append(_FAILED_NOTE.format(root=self._root.location, failure=failure))
        elif is_whole:
            # The marker is there: nobody has to remember any more that it was.
            self._marker_file.unlink(missing_ok=True)
        self.rows = {str(each.directory): self.rows[str(each.directory)] for each in chosen}

    def results(self) -> Iterator[dict[str, Any]]:
        """Yield columns of ``schemas.RESULT`` of its partitions, and the operations behind them."""
        for row in self.rows.values():
            steps = row.get(STEPS)
            yield row | {STEPS: () if steps is None else json.loads(steps)}

    def _find(self) -> list[PartitionUndo]:
        return find_undos(self._folder, self._before, self._run.job.topics)

    def _give_up(self, error: StorageError) -> None:
        if self._root.is_alone:
            raise error
        self._root.give_up(error)

    def _undo(self, chosen: Sequence[PartitionUndo]) -> bool:
        """Undo partitions; return whether all are whole.

        If the disk fails before that, none is undone.

        First the marker goes, then the checkpoints are what they were: where one of that cannot be
        done, the files of the partitions stay as they are, and the same undo does it all later.
        """
        root, before = self._root, self._before
        checked = self._check(chosen)
        due = {
            place: each
            for each in chosen
            if checked[place := str(each.directory)]["status"] == Status.PLANNED.value
        }
        if not due:
            self.rows |= checked
            self._finish_marker(chosen)
            return False
        self.rows |= {place: row for place, row in checked.items() if place not in due}
        is_clean = remember_marker(
            self._marker_file,
            root,
            verified={
                each.directory.name
                for each in chosen
                if str(each.directory) in due or each.is_undone()
            },
        )
        root.begin_writing()
        # Half undone, the logs are as they were before they were recovered, perhaps: nobody may
        # believe the marker until all are, neither at the end of this run nor after a kill.
        root.claim_unclean()
        root.allow_commits(due)
        root.write_checkpoints(_entries_before(before, due.values(), _not_above))
        if root.failure is not None:
            return False
        work = partial(undo_partitions, access=root.access)
        ended = self._ask(list(due.values()), work, "put back")
        for place, row in ended.items():
            if row["reason"] == Reason.ALREADY_UNDONE.value:
                # By an attempt of this run that could not say so any more.
                ended[place] = checked[place] | {"status": Status.DONE.value}
        self.rows |= ended
        back = [each for place, each in due.items() if ended[place]["status"] == Status.DONE]
        root.write_checkpoints(_entries_before(before, back, _above))
        is_whole = all(row["status"] == Status.DONE.value for row in ended.values())
        root.settle_commits({}, is_whole=is_whole)
        if is_clean and before.was_clean:
            root.claim_clean()
        else:
            root.claim_unclean()
            self.notes.append(_UNCLEAN_NOTE.format(root=root.location))
        return is_whole

    def _check(self, chosen: Sequence[PartitionUndo]) -> Rows:
        """Return what would become of partitions; nothing is written."""
        before = self._before
        rows = self._ask(chosen, check_undos, "compare")
        problems = root_checkpoints(before.location, before.checkpoints, strict=False).problems
        for undo in chosen if problems else ():
            row = rows[str(undo.directory)]
            malformed = sorted(moved_checkpoints(undo) & problems.keys())
            if malformed and row["status"] == Status.PLANNED.value:
                row["status"] = Status.FAILED.value
                row["error_class"] = CheckpointError.__name__
                row["error"] = _MALFORMED.format(problem=problems[malformed[0]])
        return rows

    def _ask(
        self,
        chosen: Sequence[PartitionUndo],
        work: Callable[[Sequence[PartitionUndo]], Iterator[pa.RecordBatch]],
        what: str,
    ) -> Rows:
        """Return what tasks make of partitions, in their order."""
        if not chosen:
            return {}
        run = self._run
        tasks = count_look_tasks(len(chosen), slots=run.engine.slots)
        tasks = min(tasks, run.disks.per_disk or tasks)
        units = [chosen[number::tasks] for number in range(tasks)]
        title = f"{run.job.title}: {what} {len(chosen)} partitions of {self._before.location}"
        # Each holds the claim of its partition, so that they may be undone wherever they are.
        made = run.engine.collect(
            run.engine.spread(units, work, UNDONE), UNDONE, title, is_look=len(chosen) <= _FEW
        )
        rows = {row["directory"]: row for row in made.to_pylist()}
        return {
            place: _name_row(each) | rows[place]
            for each in chosen
            for place in (str(each.directory),)
        }

    def _finish_marker(self, chosen: Sequence[PartitionUndo]) -> None:
        """Write the marker of an undo killed just before it.

        It is written only if nothing else was left to do.

        Not if anything has changed since: then a broker may have removed it.
        """
        root = self._root
        if root.was_clean or not self._before.was_clean or not self._marker_file.is_file():
            return
        if not all(each.is_undone() for each in chosen):
            return
        verified = {each.directory.name for each in chosen}
        if remember_marker(self._marker_file, root, verified=verified):
            root.begin_writing()
            root.claim_clean()


def _entries_before(
    root: TrashedRoot, due: Iterable[PartitionUndo], names_of: Callable[[PartitionUndo], set[str]]
) -> dict[str, dict[TopicPartition, int | None]]:
    """Return the checkpoint entries from before the run, by file.

    A file that was malformed then has no former entries.

    Args:
        root: The log directory before the run.
        due: The partitions.
        names_of: Which files are meant.
    """
    entries: dict[str, dict[TopicPartition, int | None]] = {}
    for undo in due:
        for name in names_of(undo) & root.checkpoints.keys():
            before = root.checkpoints[name].get(str(undo.partition))
            entries.setdefault(name, {})[undo.partition] = before
    return entries


def _not_above(undo: PartitionUndo) -> set[str]:
    """Return the checkpoints that are put back before the files.

    With these former points the log is in order as the run left it, too.
    """
    names = moved_checkpoints(undo)
    return names & {LOG_START_FILE} if Action.TRUNCATE in undo.actions else names


def _above(undo: PartitionUndo) -> set[str]:
    """Return the checkpoints put back after the files.

    Their former points may lie above the log as the run left it.
    """
    return moved_checkpoints(undo) - _not_above(undo)


def _name_row(undo: PartitionUndo) -> dict[str, Any]:
    return {
        "root": undo.root,
        "topic": undo.partition.topic,
        "partition": undo.partition.partition,
        "directory": str(undo.directory),
    }


def _failed_row(undo: PartitionUndo, error: StorageError) -> dict[str, Any]:
    return _name_row(undo) | {"status": Status.FAILED.value, **describe_failure(error)}


def moved_checkpoints(undo: PartitionUndo) -> set[str]:
    """Return the checkpoints with entries moved by the run."""
    names = {name for action in undo.actions for name in _CHECKPOINTS.get(action, ())}
    return names | {LOG_START_FILE} if undo.has_raised_start else names


def find_undos(folder: Path, root: TrashedRoot, topics: TopicFilter) -> list[PartitionUndo]:
    """Return the partitions of a log directory to be undone.

    These are the partitions of which the run kept something.

    And those whose log start it raised and did not come to the rest: nothing of them was kept yet.
    """
    starts = _raised_starts(folder, root)
    commits: dict[Path, list[tuple[Path, str]]] = {}
    # One that was killed while it still kept files is not listed, and has changed nothing.
    for commit in sorted(list_commits(folder)):
        directory, action = read_subject(commit)
        commits.setdefault(directory, []).append((commit, action))
    begun = [
        PartitionUndo(
            root=root.location,
            directory=directory,
            partition=partition,
            commits=tuple(commit for commit, _ in oldest_first),
            actions=frozenset(action for _, action in oldest_first),
            start=starts.pop(partition, None),
        )
        for directory, oldest_first in commits.items()
        if str(directory.parent) == root.location
        for partition in (parse_partition_directory(directory.name),)
    ]
    others = [
        PartitionUndo(
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


def _raised_starts(folder: Path, root: TrashedRoot) -> dict[TopicPartition, RaisedStart]:
    """Return the log starts raised by a run, by partition.

    A run that was killed may have left them raised.
    """
    raised = read_raised(folder, root.location)
    if not raised:
        return {}
    before = root.checkpoints.get(LOG_START_FILE, {})
    read = root_checkpoints(root.location, [LOG_START_FILE], strict=False)
    now = read.entries.get(LOG_START_FILE, {})
    return {
        partition: RaisedStart(raised=start, before=before.get(name), now=now.get(partition))
        for name, start in raised.items()
        for partition in (parse_partition_directory(name),)
    }


def remember_marker(path: Path, held: HeldBrokerRoot, *, verified: Collection[str]) -> bool:
    """Return whether the directory had its marker when its undo began.

    While logs are half undone nobody may believe the marker: it is away from before the first file
    changes until the last one is as it was, and after a kill only this file tells of it.

    Not if somebody else has changed a partition since: a broker that left no marker, above all.

    Args:
        path: Where that is written down.
        held: The log directory.
        verified: The partitions that are, file by file, what the run or its undo left.
    """
    directory = Path(held.location)
    if path.is_file():
        content = LocalStore(path.parent).read_file(path.name, limit_bytes=_MOST_MARKER_BYTES)
        first = _MARKER.parse(content, str(path))
        if not first.is_clean:
            return False
        if not held.was_clean:
            if first.partitions is None:
                return False
            return not changed_partitions(first.partitions, directory, verified=verified)
    seen = _SeenMarker(is_clean=held.was_clean, partitions=observe_partitions(directory))
    write_record(path, _MARKER.encode(seen))
    return held.was_clean
