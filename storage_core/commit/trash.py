"""The trash of a run: its folders, its records, and its lock.

::

    <trash>/<run id>/run.json                       the run: when, what, on which log directories
    <trash>/<run id>/raised-log-starts.json         while commits of retention are under way: to
                                                    what log starts were raised before them
    <trash>/<run id>/<path of a partition>/0000/    its first commit of that partition
        kept/<name>                                 files that the commit replaced, cut or removed
        record.json                                 what they are; there before the commit began
        left.json                                   every file that the commit left
        undo.json                                   there once somebody has begun to undo it

The path of a partition is its absolute path, without ``..``, without the first slash. A run that
commits a partition twice (retention, then compaction) has ``0001`` beside ``0000``.

The run's folder stands for its trash wherever that is handed on: tasks are given it, and an undo or
a purge finds it by the run's name. It is held, by a lock on the folder, by whoever writes, empties
or undoes it. The lock of a log directory does not do that: a purge of the trash asks for no log
directory, and an undo may be about others than the purge. Whoever finishes a commit of a killed run
writes into its trash, too, and holds it for that time.
"""

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Final, TypeVar

from storage_core.commit.plan import FINGERPRINTS, FileFingerprint
from storage_core.errors import (
    CheckpointError,
    GuardRefusedError,
    ManifestError,
    StorageError,
)
from storage_core.json_values import (
    OMITTED,
    ONE_LINE,
    Count,
    FileName,
    JsonFile,
    Key,
    SystemText,
    Word,
    word,
)
from storage_core.local_files import (
    facts_of,
    open_folder,
    open_in,
    read_limited,
    require_ours,
    scan_folder,
)
from storage_core.store.local import plain_path, storage_errors, write_record
from storage_core.store.log_identity import LogIdentity

RECORD_FILE: Final = "record.json"
LEFT_FILE: Final = "left.json"
UNDO_FILE: Final = "undo.json"
RUN_FILE: Final = "run.json"
RAISED_FILE: Final = "raised-log-starts.json"
KEPT_FOLDER: Final = "kept"
# Written into the folder of kept files when all of them are there.
SYNCED_FILE: Final = ".synced"
_NUMBER_DIGITS: Final = 4
_RunId = Annotated[str, word(r"[A-Za-z0-9._:-]{1,128}")]
# Some hundred thousand files, or partitions.
_MOST_BYTES: Final = 256 << 20
# Actions that put whole directories in place.
TRANSPLANT: Final = "transplant"
ATTACH: Final = "attach"
# The states of an undo.
BEGUN: Final = "begun"
DONE: Final = "done"
# The folders, by filesystem and inode, that callers up the stack hold.
_HELD: Final[ContextVar[frozenset[tuple[int, int]]]] = ContextVar(
    "trash_held_here", default=frozenset()
)


T = TypeVar("T")
_UNKNOWN: Final = LogIdentity()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSubject:
    """The partition and the kind of a commit."""

    run_id: _RunId
    action: Word  # the action: compact, retain, recover
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord(CommitSubject):
    """What is written down before a commit begins."""

    # Files of the directory that the commit replaced, cut or removed, as they were.
    former_files: Annotated[tuple[FileFingerprint, ...], Key("kept")]
    before: tuple[FileName, ...]
    # The log's ids; former versions did not say.
    identity: Annotated[LogIdentity, OMITTED] = _UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedCommit(CommitRecord):
    """One commit on one partition, as its trash knows it."""

    folder: Path
    # The directory's files after the commit; None if it did not end.
    files_after: tuple[FileFingerprint, ...] | None = None
    undo: str | None = None  # the state of an undo: None, ``begun`` or ``done``

    @property
    def is_placement(self) -> bool:
        """Whether a whole directory took the place of an empty one."""
        return self.action in {TRANSPLANT, ATTACH}

    @property
    def kept_folder(self) -> Path:
        """Where files are kept."""
        return self.folder / KEPT_FOLDER

    def kept_path(self, name: str) -> Path:
        """Return where a file is kept."""
        return self.kept_folder / name

    def encode_record(self) -> bytes:
        """Return what is written down before the commit begins, as JSON."""
        return _RECORD.encode(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedRoot:
    """A log directory as a run found it."""

    location: SystemText
    was_clean: bool  # whether it had the marker of a clean shutdown
    # Entries of its checkpoint files, by file and ``<topic>-<partition>``; a file that was
    # malformed is not among them.
    checkpoints: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedRun:
    """A run that keeps what it takes away."""

    run_id: _RunId
    action: Word
    started_ms: Count  # when it began, epoch milliseconds
    roots: tuple[TrashedRoot, ...]

    def encode(self) -> bytes:
        """Return it as JSON."""
        return _RUN.encode(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RaisedStarts:
    """New log starts of one log directory, by ``<topic>-<partition>``."""

    location: SystemText
    log_starts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _RaisedRoots:
    """To what a run raises log starts before its commits."""

    roots: tuple[_RaisedStarts, ...]


@dataclass(frozen=True, slots=True)
class _UndoProgress:
    """How far an undo of a commit is."""

    state: Annotated[str, word(f"{BEGUN}|{DONE}")]


_SUBJECT: Final = JsonFile(CommitSubject, "pylog-trash", layout=ONE_LINE, is_open=True)
_RECORD: Final = JsonFile(CommitRecord, "pylog-trash", layout=ONE_LINE, is_open=True)
_RUN: Final = JsonFile(TrashedRun, "pylog-trash-run", layout=ONE_LINE, is_open=True)
_RAISED: Final = JsonFile(_RaisedRoots, "pylog-trash-log-starts", layout=ONE_LINE, is_open=True)
_UNDO: Final = JsonFile(_UndoProgress, layout=ONE_LINE, is_open=True)


def encode_undo(state: str) -> bytes:
    """Return the content of ``undo.json``."""
    return _UNDO.encode(_UndoProgress(state))


S = TypeVar("S", bound=CommitSubject)


def commit_folder(run_folder: Path, directory: Path, number: int) -> Path:
    """Return the trash folder of a run's numbered commit on a partition. The folder has the
    files that the commit keeps."""
    return _partition_folder(run_folder, directory) / f"{number:0{_NUMBER_DIGITS}d}"


def commit_folders(run_folder: Path, directory: Path) -> list[Path]:
    """Return existing folders of a run's commits on a partition, oldest first."""
    folder = _partition_folder(run_folder, directory)
    if not folder.is_dir():
        return []
    with storage_errors(folder):
        names = sorted(entry.name for entry in scan_folder(folder) if entry.is_folder)
    return [folder / name for name in names if _is_number(name)]


def new_commit_folder(run_folder: Path, directory: Path) -> Path:
    """Return the free path for a run's next commit on a partition."""
    numbers = (int(folder.name) for folder in commit_folders(run_folder, directory))
    return commit_folder(run_folder, directory, max(numbers, default=-1) + 1)


def _partition_folder(run_folder: Path, directory: Path) -> Path:
    return Path(run_folder, *plain_path(directory).parts[1:])


def _is_number(name: str) -> bool:
    return name.isdecimal() and len(name) == _NUMBER_DIGITS


def find_run_folder(path: Path, directory: Path) -> Path | None:
    """Return the run folder of a commit's file in the trash.

    The commit is on the given partition; the file is kept in its folder, or is its record.

    Returns:
        None where no commit on the partition keeps or says something under this path.
    """
    if path.name in {RECORD_FILE, LEFT_FILE}:
        folder = path.parent
    elif path.parent.name == KEPT_FOLDER and path.name != "..":
        folder = path.parent.parent
    else:
        return None
    return _run_folder_of(folder, directory) if path.is_absolute() else None


def _run_folder_of(folder: Path, directory: Path) -> Path | None:
    """Return a commit folder's run folder; None if its name is another's. A folder of a commit
    on the partition has the name that ``commit_folder`` gives."""
    names = plain_path(directory).parts[1:]
    if not _is_number(folder.name) or folder.parent.parts[-len(names) :] != names:
        return None
    return folder.parents[len(names)]


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Hold the trash of a run for the time of the block.

    Args:
        folder: The run's; it is there.
    """
    with storage_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, folder)
        identity = _identity(os.fstat(descriptor))
        _HELD.set(_HELD.get() | {identity})
        try:
            yield
        finally:
            _HELD.set(_HELD.get() - {identity})
    finally:
        os.close(descriptor)


@contextmanager
def hold_run_again(folder: Path) -> Iterator[None]:
    """Hold the trash of a run for the block, unless held already.

    For the commits of a run that was killed, which are finished by whoever next works on its log
    directory: that may be the undo of the very same run.
    """
    with storage_errors(folder):
        identity = _identity(folder.stat())
    if identity in _HELD.get():
        yield
    else:
        with hold_run(folder):
            yield


def _lock(descriptor: int, folder: Path) -> None:
    with storage_errors(folder):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GuardRefusedError(
                "TRASH_IN_USE",
                f"{folder}: another process works with it at this moment: run {folder.name} "
                "itself, an undo of it, or a purge",
            ) from None
        if not folder.exists():
            raise StorageError(str(folder), "was purged at this moment")


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def read_run(run_folder: Path) -> TrashedRun:
    """Read what a run says of itself."""
    path = run_folder / RUN_FILE
    file = _read(path)
    run = file.parse(_RUN)
    file.require_ours(*(root.location for root in run.roots))
    if run.run_id != run_folder.name:
        raise CheckpointError(str(path), 0, f"is of run {run.run_id}, not of its folder's")
    return run


def write_raised(run_folder: Path, raised: Mapping[str, Mapping[str, int]]) -> None:
    """Write down new log starts before they are raised; durable. Entries of other log
    directories stay: their log starts were not given back."""
    _put_raised(run_folder, {**_read_all_raised(run_folder), **raised})


def drop_raised(run_folder: Path, locations: Collection[str]) -> None:
    """Remove raised log starts after their commits ended or were taken back."""
    raised = _read_all_raised(run_folder)
    remaining = {root: starts for root, starts in raised.items() if root not in locations}
    if remaining:
        _put_raised(run_folder, remaining)
        return
    path = run_folder / RAISED_FILE
    with storage_errors(path):
        path.unlink(missing_ok=True)


def read_raised(run_folder: Path, location: str) -> dict[str, int]:
    """Return a log directory's log starts raised by a killed run.

    Of some of them the commit may have been made, and others may never have been raised.
    """
    return dict(_read_all_raised(run_folder).get(location, {}))


def _put_raised(run_folder: Path, raised: Mapping[str, Mapping[str, int]]) -> None:
    roots = tuple(
        _RaisedStarts(location=root, log_starts=starts) for root, starts in raised.items()
    )
    write_record(run_folder / RAISED_FILE, _RAISED.encode(_RaisedRoots(roots)))


def _read_all_raised(run_folder: Path) -> dict[str, Mapping[str, int]]:
    path = run_folder / RAISED_FILE
    if not path.exists():
        return {}
    file = _read(path)
    raised = {root.location: root.log_starts for root in file.parse(_RAISED).roots}
    file.require_ours(*raised)
    return raised


def read_commit(folder: Path) -> TrashedCommit:
    """Read the trash of one commit."""
    record = _read_record(folder, _RECORD)
    files_after = _read_part(folder / LEFT_FILE, FINGERPRINTS, record.directory)
    undo = _read_part(folder / UNDO_FILE, _UNDO, record.directory)
    return TrashedCommit(
        folder=folder,
        **{each.name: getattr(record, each.name) for each in fields(record)},
        files_after=files_after,
        undo=None if undo is None else undo.state,
    )


def read_subject(folder: Path) -> tuple[Path, str]:
    """Return (directory, action) of a commit: its partition and its deed. The list of kept
    files, which may be long, is not read."""
    subject = _read_record(folder, _SUBJECT)
    return subject.directory, subject.action


def _read_record(folder: Path, form: JsonFile[S]) -> S:
    """Read a commit's record; its folder's name must match its partition."""
    path = folder / RECORD_FILE
    if not path.exists():
        raise StorageError(str(path), "no such file: the commit did not begin")
    file = _read(path)
    record = file.parse(form)
    directory = record.directory
    if not directory.is_absolute() or _run_folder_of(folder, directory) is None:
        why = f"is of {directory}, not of the directory that its folder is named after"
        raise CheckpointError(str(path), 0, why)
    file.require_ours(directory)
    return record


def require_own_kept(kept_folder: Path, directory: Path) -> None:
    """Refuse kept files if another user may have put them there."""
    with storage_errors(kept_folder), open_folder(kept_folder) as folder:
        facts = os.fstat(folder)
    _require_ours(kept_folder, [facts], [directory])


def list_commits(run_folder: Path) -> Iterator[Path]:
    """Yield the folder of every recorded commit of a run, unordered. A commit with a record file
    is recorded."""
    with storage_errors(run_folder):
        for place, folders, files in walk_folders(run_folder):
            if RECORD_FILE in files and Path(place).name.isdecimal():
                yield Path(place)
                folders.clear()


def walk_folders(
    folder: Path, *, topdown: bool = True
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder as ``os.walk`` does, but raise errors. ``os.walk`` ignores folders that it
    cannot list."""
    yield from os.walk(folder, topdown=topdown, onerror=_fail)


def _fail(error: OSError) -> None:
    raise error


def _read_part(path: Path, form: JsonFile[T], directory: Path) -> T | None:
    """Read another file of a commit on a partition; None without one."""
    if not path.exists():
        return None
    file = _read(path)
    file.require_ours(directory)
    return file.parse(form)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrashFile:
    """A small file of a trash as it was read."""

    path: Path
    content: bytes
    facts: tuple[os.stat_result, os.stat_result]  # stat results of its folder, and of itself

    def parse(self, form: JsonFile[T]) -> T:
        """Return what it holds."""
        try:
            return form.parse(self.content, str(self.path))
        except ManifestError as error:
            where = f"{error.field}: " if error.field else ""
            raise CheckpointError(error.file, 0, f"{where}{error.reason}") from error

    def require_ours(self, *directories: str | Path) -> None:
        """Refuse a file possibly written by another user. The file decides which files are put into
        which directory.

        Args:
            directories: That it is about. Who owns all of them can do to them what an undo does.
        """
        _require_ours(self.path, self.facts, directories)


def _require_ours(
    path: Path, all_facts: Iterable[os.stat_result], directories: Iterable[str | Path]
) -> None:
    statuses = [facts_of(Path(place), may_be_link=True) for place in directories]
    owners = {None if facts is None else facts.st_uid for facts in statuses}
    (owner,) = owners if len(owners) == 1 else {None}
    for facts in all_facts:
        try:
            require_ours(facts, *(() if owner is None else (owner,)))
        except OSError as error:
            text = f"{path}: {error.strerror}"
            raise GuardRefusedError("TRASH_OF_ANOTHER_USER", text) from error


def _read(path: Path) -> _TrashFile:
    with (
        storage_errors(path),
        open_folder(path.parent) as folder,
        os.fdopen(open_in(folder, path.name), "rb") as file,
    ):
        facts = os.fstat(folder), os.fstat(file.fileno())
        content = read_limited(file.fileno(), _MOST_BYTES)
    return _TrashFile(path=path, content=content, facts=facts)
