"""What a run keeps in the trash, and how it says so.

::

    <trash>/<run id>/run.json                       the run: when, what, on which log directories
    <trash>/<run id>/<path of a partition>/0000/    its first commit of that partition
        kept/<name>                                 files that the commit replaced, cut or removed
        record.json                                 what they are; there before the commit began
        left.json                                   every file that the commit left
        undo.json                                   there once somebody has begun to undo it

The path of a partition is its absolute path without the first slash. A run that commits a
partition twice (retention, then compaction) has ``0001`` beside ``0000``.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from storage_core.errors import CheckpointError, StorageError
from storage_core.plan.fingerprint import FileFingerprint, decode_fingerprints
from storage_core.store.local import storage_errors

RECORD_FILE: Final = "record.json"
LEFT_FILE: Final = "left.json"
UNDO_FILE: Final = "undo.json"
RUN_FILE: Final = "run.json"
KEPT_FOLDER: Final = "kept"
# Written into the folder of the kept files when all of them are there.
SYNCED_FILE: Final = ".synced"
_FORMAT: Final = "pylog-trash"
_RUN_FORMAT: Final = "pylog-trash-run"
_VERSION: Final = 1
_NUMBER_DIGITS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashRecord:
    """One commit on one partition, as its trash knows it.

    Attributes:
        run_id: The run.
        action: What it did: compact, retain, recover.
        directory: Path of the partition directory.
        kept: Files of the directory that the commit replaced, cut or removed, as they were.
        before: Names of all files that the directory had before the commit.
    """

    run_id: str
    action: str
    directory: str
    kept: tuple[FileFingerprint, ...]
    before: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return _encode(_FORMAT, asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes, *, file: str) -> "TrashRecord":
        """Return the record that ``to_bytes`` wrote.

        Raises:
            CheckpointError: It is none, or of another version.
        """
        fields = _decode(_FORMAT, content, file=file)
        return cls(
            run_id=fields["run_id"],
            action=fields["action"],
            directory=fields["directory"],
            kept=tuple(FileFingerprint(**kept) for kept in fields["kept"]),
            before=tuple(fields["before"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedRoot:
    """A log directory as a run found it.

    Attributes:
        location: Its path.
        was_clean: Whether it had the marker of a clean shutdown.
        checkpoints: Entries of its checkpoint files, by file and ``<topic>-<partition>``.
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

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        return _encode(_RUN_FORMAT, asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes, *, file: str) -> "TrashedRun":
        """Return what ``to_bytes`` wrote.

        Raises:
            CheckpointError: It is none, or of another version.
        """
        fields = _decode(_RUN_FORMAT, content, file=file)
        return cls(
            run_id=fields["run_id"],
            action=fields["action"],
            started_ms=fields["started_ms"],
            roots=tuple(TrashedRoot(**root) for root in fields["roots"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashedCommit:
    """The trash of one commit, as it was read.

    Attributes:
        folder: Where it is.
        record: What was kept.
        left: What the commit left; None where it did not come to its end.
        undo: What is known of an undo: None, ``begun`` or ``done``.
    """

    folder: Path
    record: TrashRecord
    left: tuple[FileFingerprint, ...] | None
    undo: str | None

    def kept_path(self, name: str) -> Path:
        """Return where a file is kept."""
        return self.folder / KEPT_FOLDER / name


BEGUN: Final = "begun"
DONE: Final = "done"


def encode_undo(state: str) -> bytes:
    """Return the content of ``undo.json``."""
    return json.dumps({"state": state}).encode()


def partition_folder(run_folder: Path, directory: Path) -> Path:
    """Return where a run keeps what it takes from a partition."""
    return Path(run_folder, *directory.absolute().parts[1:])


def commit_folder(folder: Path, number: int) -> Path:
    """Return where a partition's commit of that number keeps its files."""
    return folder / f"{number:0{_NUMBER_DIGITS}d}"


def commit_numbers(folder: Path) -> list[int]:
    """Return the numbers of the commits in a partition's folder, ascending."""
    if not folder.is_dir():
        return []
    with storage_errors(folder):
        names = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal() and len(name) == _NUMBER_DIGITS)


def read_run(run_folder: Path) -> TrashedRun:
    """Read what a run says of itself.

    Raises:
        CheckpointError: It cannot be understood.
        StorageError: It cannot be read.
    """
    path = run_folder / RUN_FILE
    with storage_errors(path):
        content = path.read_bytes()
    return TrashedRun.from_bytes(content, file=str(path))


def read_commit(folder: Path) -> TrashedCommit:
    """Read the trash of one commit.

    Raises:
        CheckpointError: It cannot be understood.
        StorageError: It cannot be read.
    """
    path = folder / RECORD_FILE
    content = _read(path)
    if content is None:
        raise StorageError(str(path), "no such file: the commit did not begin")
    left = _read(folder / LEFT_FILE)
    undo = _read(folder / UNDO_FILE)
    return TrashedCommit(
        folder=folder,
        record=TrashRecord.from_bytes(content, file=str(path)),
        left=None if left is None else decode_fingerprints(left),
        undo=None if undo is None else str(json.loads(undo)["state"]),
    )


def list_commits(run_folder: Path) -> Iterator[Path]:
    """Yield the folder of every commit of a run whose record is there, in no special order.

    Raises:
        StorageError: The disk failed.
    """
    with storage_errors(run_folder):
        for place, folders, files in os.walk(run_folder):
            if RECORD_FILE in files and Path(place).name.isdecimal():
                yield Path(place)
                folders.clear()


def _read(path: Path) -> bytes | None:
    with storage_errors(path):
        return path.read_bytes() if path.exists() else None


def _encode(kind: str, fields: dict[str, Any]) -> bytes:
    return json.dumps({"format": kind, "version": _VERSION, **fields}).encode()


def _decode(kind: str, content: bytes, *, file: str) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise CheckpointError(file, 0, f"expected JSON: {error}") from error
    found = (fields.get("format"), fields.get("version")) if isinstance(fields, dict) else fields
    if found != (kind, _VERSION):
        raise CheckpointError(file, 0, f"expected format {kind} {_VERSION}, found {found}")
    return dict(fields)
