"""Undoing the commits of a run on one partition directory, the newest first."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_core.commit.executor import commit
from storage_core.commit.fingerprint import FileFingerprint, fingerprint_files
from storage_core.commit.keep import is_same_filesystem
from storage_core.commit.plan import Plan
from storage_core.commit.trash import DONE, KEPT_FOLDER, TrashedCommit, read_commit
from storage_core.commit.undo_plan import (
    NOTHING,
    Files,
    files_before,
    plan_undo,
    verify_kept,
    verify_left,
)
from storage_core.errors import ChangedWhileReadError, GuardRefusedError
from storage_core.filenames import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, kind_of
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore

_TRANSIENT = (CLEANED_SUFFIX, SWAP_SUFFIX)
# Plans what a log loader does with a swap that was killed. Loading lies above this floor, for what
# it finds out becomes operations of this one.
PlanSettling = Callable[[LogStore], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndonePartition:
    """What an undo did to a partition, or would do.

    Attributes:
        bytes_before: Bytes of its ``.log`` files before the undo.
        bytes_after: The same afterwards.
        segments_before: How many ``.log`` files there were.
        segments_after: How many there are.
        plans: What it takes, commit by commit.
    """

    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int
    plans: tuple[Plan, ...]

    @property
    def steps(self) -> int:
        """How many operations it takes."""
        return sum(len(plan.operations) for plan in self.plans)

    @property
    def copied_bytes(self) -> int:
        """Bytes that are copied because the trash is on another filesystem."""
        return sum(plan.peak_extra_bytes for plan in self.plans)


def check_partition(store: LogStore, folders: Sequence[Path]) -> UndonePartition:
    """Return what undoing the commits of one run would do; nothing is written.

    Args:
        store: The partition directory.
        folders: The commits' trash, oldest first.

    Raises:
        GuardRefusedError: The run did not come to its end on the partition.
        ChangedWhileReadError: A file of the partition is not what the run left, or one in the
            trash is not what the run kept.
        CheckpointError: The trash cannot be understood.
        StorageError: The disk failed.
    """
    found = files = files_of(store)
    plans = []
    for trashed in _to_undo(folders):
        _check_whole(store, trashed)
        transient = [name for name in files if name.endswith(_TRANSIENT)]
        if transient and trashed.undo is None:
            raise ChangedWhileReadError(transient[0], NOTHING, str(files[transient[0]]))
        if not transient:
            verify_left(trashed, files)
        plans.append(_plan(store, trashed, files))
        files = files_before(trashed, files)
    return _summarise(found, files, plans)


def undo_partition(
    store: LogStore, folders: Sequence[Path], *, settling: PlanSettling
) -> UndonePartition:
    """Undo the commits of one run, the newest first; what a killed undo left is finished.

    Args:
        store: The partition directory, under Kafka's lock.
        folders: The commits' trash, oldest first.
        settling: Brings a swap that a killed undo left to its end, or back to its beginning.

    Raises:
        PylogError: As ``check_partition``; what was undone until then stays.
    """
    found = files_of(store)
    plans = [undo_commit(store, trashed, settling) for trashed in _to_undo(folders)]
    return _summarise(found, files_of(store), plans)


def is_undone(store: LogStore, folders: Sequence[Path]) -> bool:
    """Whether a partition is exactly what it was before the run, every file of it.

    Args:
        store: The partition directory.
        folders: The commits' trash, oldest first; at least one.

    Raises:
        CheckpointError: The trash cannot be understood.
        StorageError: The disk failed.
    """
    commits = [read_commit(folder) for folder in reversed(folders)]
    expected = {file.name: file for file in commits[0].left or ()}
    for trashed in commits:
        expected = files_before(trashed, expected)
    found = files_of(store)
    return expected.keys() == found.keys() and all(
        file.matches(found[name]) for name, file in expected.items()
    )


def undo_commit(store: LogStore, trashed: TrashedCommit, settling: PlanSettling) -> Plan:
    """Undo one commit and return the operations that it took.

    Raises:
        PylogError: As ``check_partition``.
    """
    _check_whole(store, trashed)
    if trashed.undo is not None:
        commit(settling(store), store)
    files = files_of(store)
    verify_left(trashed, files)
    plan = _plan(store, trashed, files)
    commit(plan, store)
    return plan


def files_of(store: LogStore) -> dict[str, FileFingerprint]:
    """Return the fingerprints of a directory's files by name."""
    return {file.name: file for file in fingerprint_files(store)}


def _to_undo(folders: Sequence[Path]) -> Iterator[TrashedCommit]:
    """Yield the commits that are not undone yet, the newest first."""
    for folder in reversed(folders):
        trashed = read_commit(folder)
        if trashed.undo != DONE:
            yield trashed


def _check_whole(store: LogStore, trashed: TrashedCommit) -> None:
    """Check that the run ended on the partition, and that the trash has what it kept."""
    kept = trashed.folder / KEPT_FOLDER
    if trashed.left is None:
        raise GuardRefusedError(
            "RUN_NOT_ENDED",
            f"{store.location}: run {trashed.record.run_id} was stopped in the middle of its "
            f"commit here, so what it left is not known; what it replaced lies in {kept}",
        )
    if trashed.record.kept:
        files = files_of(LocalStore(kept))
        verify_kept(trashed, files)


def _plan(store: LogStore, trashed: TrashedCommit, found: Files) -> Plan:
    is_copy = not is_same_filesystem(Path(store.location), trashed.folder)
    return plan_undo(trashed, found, location=store.location, is_copy=is_copy)


def _summarise(before: Files, after: Files, plans: Sequence[Plan]) -> UndonePartition:
    old, new = _log_sizes(before), _log_sizes(after)
    return UndonePartition(
        bytes_before=sum(old),
        bytes_after=sum(new),
        segments_before=len(old),
        segments_after=len(new),
        plans=tuple(plans),
    )


def _log_sizes(files: Files) -> list[int]:
    return [file.size_bytes for file in files.values() if kind_of(file.name) == LOG_SUFFIX]
