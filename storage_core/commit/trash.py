"""What a run keeps in the trash: where, in which words, and held against whom.

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
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from storage_core.commit.fingerprint import (
    FileFingerprint,
    decode_fingerprints,
    parse_fingerprint,
)
from storage_core.errors import (
    CheckpointError,
    GuardRefusedError,
    ManifestError,
    StorageError,
)
from storage_core.json_text import MAX_INTEGER, JsonFields, parse_json_object
from storage_core.local_files import (
    facts_of,
    open_folder,
    open_in,
    read_limited,
    require_ours,
    scan_folder,
)
from storage_core.store.local import plain_path, storage_errors, write_record

RECORD_FILE: Final = "record.json"
LEFT_FILE: Final = "left.json"
UNDO_FILE: Final = "undo.json"
RUN_FILE: Final = "run.json"
RAISED_FILE: Final = "raised-log-starts.json"
KEPT_FOLDER: Final = "kept"
# Written into the folder of the kept files when all of them are there.
SYNCED_FILE: Final = ".synced"
_FORMAT: Final = "pylog-trash"
_RUN_FORMAT: Final = "pylog-trash-run"
_RAISED_FORMAT: Final = "pylog-trash-log-starts"
_VERSION: Final = 1
_NUMBER_DIGITS: Final = 4
_RUN: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Entries of a checkpoint are Java longs, and may be below zero.
_LEAST_OFFSET: Final = -MAX_INTEGER - 1
# Some hundred thousand files, or partitions.
_MOST_BYTES: Final = 256 << 20
# The states of an undo.
BEGUN: Final = "begun"
DONE: Final = "done"
_UNDO: Final = re.compile(f"{BEGUN}|{DONE}")
# The folders, by filesystem and inode, that are held by what goes on here: by callers up the stack.
_HELD: Final[ContextVar[frozenset[tuple[int, int]]]] = ContextVar(
    "trash_held_here", default=frozenset()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedCommit:
    """One commit on one partition, as its trash knows it.

    Attributes:
        folder: Its own folder in the trash.
        run_id: The run.
        action: What it did: compact, retain, recover.
        directory: Path of the partition directory.
        kept: Files of the directory that the commit replaced, cut or removed, as they were.
        before: Names of all files that the directory had before the commit.
        left: What the commit left; None where it did not come to its end.
        undo: What is known of an undo: None, ``begun`` or ``done``.
    """

    folder: Path
    run_id: str
    action: str
    directory: Path
    kept: tuple[FileFingerprint, ...]
    before: tuple[str, ...]
    left: tuple[FileFingerprint, ...] | None = None
    undo: str | None = None

    @property
    def kept_folder(self) -> Path:
        """Where files are kept."""
        return self.folder / KEPT_FOLDER

    def kept_path(self, name: str) -> Path:
        """Return where a file is kept."""
        return self.kept_folder / name

    def encode_record(self) -> bytes:
        """Return what is written down before the commit begins, as JSON."""
        fields = {
            "run_id": self.run_id,
            "action": self.action,
            "directory": str(self.directory),
            "kept": [asdict(file) for file in self.kept],
            "before": self.before,
        }
        return _encode(_FORMAT, fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedRoot:
    """A log directory as a run found it.

    Attributes:
        location: Its path.
        was_clean: Whether it had the marker of a clean shutdown.
        checkpoints: Entries of its checkpoint files, by file and ``<topic>-<partition>``; a file
            that was malformed is not among them.
    """

    location: str
    was_clean: bool
    checkpoints: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedRun:
    """A run that keeps what it takes away.

    Attributes:
        run_id: The run.
        action: The command that asked for it.
        started_ms: When it began, epoch milliseconds.
        roots: Its log directories.
    """

    run_id: str
    action: str
    started_ms: int
    roots: tuple[TrashedRoot, ...]

    def encode(self) -> bytes:
        """Return it as JSON."""
        return _encode(_RUN_FORMAT, asdict(self))


def encode_undo(state: str) -> bytes:
    """Return the content of ``undo.json``."""
    return json.dumps({"state": state}).encode()


def commit_folder(run_folder: Path, directory: Path, number: int) -> Path:
    """Return where a run's commit of that number on a partition keeps its files."""
    return _partition_folder(run_folder, directory) / f"{number:0{_NUMBER_DIGITS}d}"


def commit_folders(run_folder: Path, directory: Path) -> list[Path]:
    """Return the folders of a run's commits on a partition that are there, oldest first.

    Raises:
        StorageError: They cannot be listed.
    """
    folder = _partition_folder(run_folder, directory)
    if not folder.is_dir():
        return []
    with storage_errors(folder):
        names = sorted(entry.name for entry in scan_folder(folder) if entry.is_folder)
    return [folder / name for name in names if _is_number(name)]


def new_commit_folder(run_folder: Path, directory: Path) -> Path:
    """Return the folder of a run's next commit on a partition, which is not there yet."""
    numbers = (int(folder.name) for folder in commit_folders(run_folder, directory))
    return commit_folder(run_folder, directory, max(numbers, default=-1) + 1)


def _partition_folder(run_folder: Path, directory: Path) -> Path:
    return Path(run_folder, *plain_path(directory).parts[1:])


def _is_number(name: str) -> bool:
    return name.isdecimal() and len(name) == _NUMBER_DIGITS


def find_run_folder(path: Path, directory: Path) -> Path | None:
    """Return the folder of the run of which a commit on a partition kept, or said, something.

    Args:
        path: Where that is, in any trash.
        directory: The partition's.

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
    """Return the run's folder, None if this is not called as its commit on the partition is."""
    names = plain_path(directory).parts[1:]
    if not _is_number(folder.name) or folder.parent.parts[-len(names) :] != names:
        return None
    return folder.parents[len(names)]


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Hold the trash of a run for the time of the block.

    Args:
        folder: The run's; it is there.

    Raises:
        GuardRefusedError: Another process holds it: the run itself, an undo of it, or a purge.
        StorageError: It cannot be opened or locked, or was purged at this moment.
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
    """Hold the trash of a run for the time of the block, if it is not held here already.

    For the commits of a run that was killed, which are finished by whoever next works on its log
    directory: that may be the undo of the very same run.

    Raises:
        GuardRefusedError: Somebody else holds it.
        StorageError: It is not there any more, or cannot be opened or locked.
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
    """Read what a run says of itself.

    Raises:
        CheckpointError: It cannot be understood, or is of another run than its folder.
        GuardRefusedError: Somebody else may have written it.
        StorageError: It cannot be read.
    """
    path = run_folder / RUN_FILE
    with _malformed():
        kept = _read(path)
        fields = _decode(_RUN_FORMAT, kept.content, file=str(path))
        run = TrashedRun(
            run_id=fields.word("run_id", pattern=_RUN),
            action=fields.word("action"),
            started_ms=fields.integer("started_ms"),
            roots=tuple(map(_parse_root, fields.objects("roots"))),
        )
    kept.require_ours(*(root.location for root in run.roots))
    if run.run_id != run_folder.name:
        raise CheckpointError(str(path), 0, f"is of run {run.run_id}, not of its folder's")
    return run


def write_raised(run_folder: Path, raised: Mapping[str, Mapping[str, int]]) -> None:
    """Write down to what log starts are going to be raised, before they are; durable.

    What stands there of other log directories stays: their disks failed, and nobody has given
    these log starts back.

    Args:
        run_folder: The run's.
        raised: New log starts, by log directory and ``<topic>-<partition>``.

    Raises:
        CheckpointError: What is there already cannot be understood.
        StorageError: The disk failed.
    """
    _put_raised(run_folder, {**_read_all_raised(run_folder), **raised})


def drop_raised(run_folder: Path, locations: Collection[str]) -> None:
    """Take that away again: the commits that log starts were raised for have ended.

    Or the log starts have been given back.

    Args:
        run_folder: The run's.
        locations: Of these log directories.

    Raises:
        CheckpointError: What is there cannot be understood.
        StorageError: The disk failed.
    """
    raised = _read_all_raised(run_folder)
    left = {root: starts for root, starts in raised.items() if root not in locations}
    if left:
        _put_raised(run_folder, left)
        return
    path = run_folder / RAISED_FILE
    with storage_errors(path):
        path.unlink(missing_ok=True)


def read_raised(run_folder: Path, location: str) -> dict[str, int]:
    """Return to what a run that was killed had raised log starts of a log directory, if it had.

    Of some of them the commit may have been made, and others may never have been raised.

    Raises:
        CheckpointError: It cannot be understood.
        StorageError: It cannot be read.
    """
    return _read_all_raised(run_folder).get(location, {})


def _put_raised(run_folder: Path, raised: Mapping[str, Mapping[str, int]]) -> None:
    roots = [{"location": root, "log_starts": dict(starts)} for root, starts in raised.items()]
    write_record(run_folder / RAISED_FILE, _encode(_RAISED_FORMAT, {"roots": roots}))


def _read_all_raised(run_folder: Path) -> dict[str, dict[str, int]]:
    path = run_folder / RAISED_FILE
    if not path.exists():
        return {}
    with _malformed():
        kept = _read(path)
        fields = _decode(_RAISED_FORMAT, kept.content, file=str(path))
        raised = {
            root.text("location"): _parse_entries(root.fields("log_starts"))
            for root in fields.objects("roots")
        }
    kept.require_ours(*raised)
    return raised


def read_commit(folder: Path) -> TrashedCommit:
    """Read the trash of one commit.

    Raises:
        CheckpointError: It cannot be understood, or names files that are elsewhere.
        GuardRefusedError: Somebody else may have written it.
        StorageError: It cannot be read.
    """
    with _malformed():
        kept, fields = _read_record(folder)
        commit = TrashedCommit(
            folder=folder,
            run_id=fields.word("run_id", pattern=_RUN),
            action=fields.word("action"),
            directory=_directory_of(fields, folder),
            kept=tuple(map(parse_fingerprint, fields.objects("kept"))),
            before=fields.file_names("before"),
        )
    kept.require_ours(commit.directory)
    return replace(
        commit,
        left=_read_left(folder / LEFT_FILE, commit.directory),
        undo=_read_undo(folder / UNDO_FILE, commit.directory),
    )


def read_subject(folder: Path) -> tuple[Path, str]:
    """Return (directory, action) of a commit: which partition it was about, and what it did.

    Of what it kept nothing is read: a run has very many commits, and a commit very many files.

    Raises:
        CheckpointError: It cannot be understood.
        GuardRefusedError: Somebody else may have written it.
        StorageError: It cannot be read.
    """
    with _malformed():
        kept, fields = _read_record(folder)
        directory, action = _directory_of(fields, folder), fields.word("action")
    kept.require_ours(directory)
    return directory, action


def _read_record(folder: Path) -> tuple["_TrashFile", JsonFields]:
    path = folder / RECORD_FILE
    if not path.exists():
        raise StorageError(str(path), "no such file: the commit did not begin")
    kept = _read(path)
    return kept, _decode(_FORMAT, kept.content, file=str(path))


def _directory_of(fields: JsonFields, folder: Path) -> Path:
    """Return the partition directory that a commit says it was about: that of its folder's name."""
    directory = Path(fields.text("directory"))
    if not directory.is_absolute() or _run_folder_of(folder, directory) is None:
        why = f"is of {directory}, not of the directory that its folder is named after"
        raise CheckpointError(str(folder / RECORD_FILE), 0, why)
    return directory


def list_commits(run_folder: Path) -> Iterator[Path]:
    """Yield the folder of every commit of a run whose record is there, in no special order.

    Raises:
        StorageError: The disk failed.
    """
    with storage_errors(run_folder):
        for place, folders, files in walk_folders(run_folder):
            if RECORD_FILE in files and Path(place).name.isdecimal():
                yield Path(place)
                folders.clear()


def walk_folders(
    folder: Path, *, topdown: bool = True
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder as ``os.walk`` does, which leaves out in silence what it cannot list.

    Raises:
        OSError: A folder cannot be listed.
    """
    yield from os.walk(folder, topdown=topdown, onerror=_fail)


def _fail(error: OSError) -> None:
    raise error


def _read_left(path: Path, directory: Path) -> tuple[FileFingerprint, ...] | None:
    if not path.exists():
        return None
    kept = _read(path)
    kept.require_ours(directory)
    with _malformed():
        return decode_fingerprints(kept.content, file=str(path))


def _read_undo(path: Path, directory: Path) -> str | None:
    if not path.exists():
        return None
    kept = _read(path)
    kept.require_ours(directory)
    with _malformed():
        return parse_json_object(kept.content, str(path)).word("state", pattern=_UNDO)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrashFile:
    """A small file of a trash as it was read.

    Attributes:
        path: Of the file.
        content: All of it.
        facts: Of the folder it was read in, and of itself.
    """

    path: Path
    content: bytes
    facts: tuple[os.stat_result, os.stat_result]

    def require_ours(self, *directories: str | Path) -> None:
        """Refuse what another user may have written: it says what goes into which directory.

        Args:
            directories: That it is about. Who owns all of them can do to them what an undo does.

        Raises:
            GuardRefusedError: It is not ours, nor theirs.
        """
        found = [facts_of(Path(place), may_be_link=True) for place in directories]
        owners = {None if facts is None else facts.st_uid for facts in found}
        (owner,) = owners if len(owners) == 1 else {None}
        for facts in self.facts:
            try:
                require_ours(facts, *(() if owner is None else (owner,)))
            except OSError as error:
                text = f"{self.path}: {error.strerror}"
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


def _encode(kind: str, fields: dict[str, Any]) -> bytes:
    return json.dumps({"format": kind, "version": _VERSION, **fields}).encode()


def _decode(kind: str, content: bytes, *, file: str) -> JsonFields:
    fields = parse_json_object(content, file)
    fields.require_format(kind, _VERSION)
    return fields


def _parse_root(fields: JsonFields) -> TrashedRoot:
    checkpoints = fields.fields("checkpoints")
    return TrashedRoot(
        location=fields.text("location"),
        was_clean=fields.boolean("was_clean"),
        checkpoints={
            name: _parse_entries(checkpoints.fields(name)) for name in checkpoints.names()
        },
    )


def _parse_entries(entries: JsonFields) -> dict[str, int]:
    return {name: entries.integer(name, least=_LEAST_OFFSET) for name in entries.names()}


@contextmanager
def _malformed() -> Iterator[None]:
    """Turn what is wrong with a field into the error of a small file of ours."""
    try:
        yield
    except ManifestError as error:
        where = f"{error.field}: " if error.field else ""
        raise CheckpointError(error.file, 0, f"{where}{error.reason}") from error
