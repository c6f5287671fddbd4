"""A disk that loses what was not synced, as one does when the power fails.

A killed process leaves every byte that it wrote: the kernel has them. When the machine goes down
with it, only what was synced is sure to be there: of a file the content (and time and mode) that it
had when ``fsync`` was last called on it, of a folder the names that were in it then. What became of
the rest is the filesystem's choice. Three choices bound what is met in practice:

- nothing happened that was not synced;
- the names are all there, the contents are not, which is how ext4 and XFS write: changes of names
  and sizes get into a journal, in their order, before the data are anywhere;
- of each file either all its changes of name are there or none, in no order, as in btrfs, whose
  log of a folder or a file takes what belongs to it and leaves the rest.

The work itself runs on the real disk, through the real calls; ``os.fsync`` and all calls that
change names are watched, and the power fails before one of them.
"""

import enum
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from storage_core.store import local, syncing
from tests.kit.faulty_store import NEVER, SimulatedCrash

# What changes names, and with how many paths; the first of them counts where there are two.
_RENAMING: Final = ("replace", "rename", "link")
_NAMING: Final = ("unlink", "remove", "mkdir", "rmdir", "truncate")
_SYNCING: Final = ("fsync", "fdatasync")
_BY_DESCRIPTOR: Final = (*_SYNCING, "ftruncate")


class Loss(enum.Enum):
    """What a power loss takes of all that was not synced."""

    EVERYTHING = "everything"
    CONTENTS = "contents"
    SOME_NAMES = "contents and some names"


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One version of a file."""

    content: bytes
    modified_ns: int
    mode: int


@dataclass(slots=True)
class _Tree:
    """Folders and files by inode number."""

    # The entries of each folder: the inode by its name
    folders: dict[int, dict[str, int]] = field(default_factory=dict)
    # The files; of one that was never synced there is nothing
    files: dict[int, _File] = field(default_factory=dict)


class Disk:
    """What is on a disk below a folder, and what would be there after a power loss.

    Args:
        root: The folder; everything below it is on the disk when a work begins.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._prefix = f"{root.absolute()}{os.sep}"
        self._inode = 0
        self._durable = _Tree()
        self._present = _Tree()
        self._pins: dict[int, int] = {}
        self._stop_at = NEVER
        self._is_dead = False
        self._lock = threading.RLock()
        # Names of the calls of the last work, in order, as far as it came: changes of names and
        # syncs
        self.changes: list[str] = []

    def run(self, work: Callable[[], object], *, stop_at: int = NEVER) -> bool:
        """Do some work until the power fails.

        Args:
            stop_at: Before which of its changes and syncs the power fails, from 0; after the last
                if it has fewer, or NEVER.

        Returns:
            Whether the work was stopped.
        """
        self._durable, self.changes = _Tree(), []
        self._inode = self._root.stat().st_ino
        self._stop_at, self._is_dead = stop_at, False
        try:
            self._note_all(self._root)
            with self._watched():
                try:
                    work()
                except SimulatedCrash:
                    if not self._is_dead:
                        raise
                else:
                    self._present = _scan(self._root)
        finally:
            for descriptor in self._pins.values():
                os.close(descriptor)
            self._pins.clear()
        return self._is_dead

    def leave(self, loss: Loss, *, seed: int = 0) -> None:
        """Bring the folder into the state in which it is found when the power is back.

        Args:
            seed: Chooses among what may have become of each file, where there is a choice.
        """
        shutil.rmtree(self._root)
        self._root.mkdir()
        choice = _Choice(self._durable, self._present, loss, seed)
        self._make(self._root, self._inode, choice, {})

    def _make(self, folder: Path, inode: int, choice: "_Choice", made: dict[int, Path]) -> None:
        for name, child in sorted(choice.entries(inode).items()):
            path = folder / name
            if choice.is_folder(child):
                path.mkdir()
                self._make(path, child, choice, made)
            elif child in made:
                path.hardlink_to(made[child])
            else:
                file = choice.file(child, name)
                path.write_bytes(file.content)
                path.chmod(file.mode)
                os.utime(path, ns=(file.modified_ns, file.modified_ns))
                made[child] = path

    @contextmanager
    def _watched(self) -> Iterator[None]:
        names = (*_RENAMING, *_NAMING, *_BY_DESCRIPTOR)
        originals = {name: getattr(os, name) for name in names}
        for name, original in originals.items():
            setattr(os, name, self._watch(name, original))
        try:
            # A sync of the whole filesystem promises no less than that of each file. Nobody sees
            # the calls of machine code.
            with (
                patch.object(syncing, "way_of", lambda *_: syncing.Way.ALONE),
                patch.object(local, "delete_names", lambda *_: 0),
            ):
                yield
        finally:
            for name, original in originals.items():
                setattr(os, name, original)

    def _watch(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(target: Any, *others: Any, **options: Any) -> Any:
            path = path_of(target, options.get("dir_fd", options.get("src_dir_fd")))
            if not f"{path}{os.sep}".startswith(self._prefix):
                return original(target, *others, **options)
            with self._lock:
                self._fail_or_note(name)
                if name in _SYNCING:
                    return self._sync(target)
                return original(target, *others, **options)

        return watched

    def _fail_or_note(self, name: str) -> None:
        if self._is_dead:
            raise SimulatedCrash("there is no power")
        if len(self.changes) == self._stop_at:
            self._is_dead = True
            self._present = _scan(self._root)
            raise SimulatedCrash(f"the power failed before {self._stop_at}: {name}")
        self.changes.append(name)

    def _sync(self, descriptor: int) -> None:
        """Note what a file or folder is from here on; the real disk need not be troubled."""
        facts = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}")
        self._pin(path, facts.st_ino)
        if stat.S_ISDIR(facts.st_mode):
            self._note_folder(path, facts.st_ino)
        else:
            self._durable.files[facts.st_ino] = _read(path, facts)

    def _note_folder(self, path: Path, inode: int) -> None:
        entries = {entry.name: entry.inode() for entry in os.scandir(path)}
        for name, child in entries.items():
            self._pin(path / name, child)
            if (path / name).is_dir():
                self._durable.folders.setdefault(child, {})
        self._durable.folders[inode] = entries

    def _note_all(self, folder: Path) -> None:
        self._pin(folder, folder.stat().st_ino)
        self._note_folder(folder, folder.stat().st_ino)
        for path in folder.iterdir():
            if path.is_dir():
                self._note_all(path)
            else:
                facts = path.stat()
                self._durable.files[facts.st_ino] = _read(path, facts)

    def _pin(self, path: Path, inode: int) -> None:
        """Hold an inode, so that its number is given to nothing else while the work runs."""
        if inode not in self._pins:
            self._pins[inode] = os.open(path, os.O_PATH | os.O_CLOEXEC)


class _Choice:
    """What is left of a disk, folder by folder and file by file."""

    def __init__(self, durable: _Tree, present: _Tree, loss: Loss, seed: int) -> None:
        self._durable = durable
        self._present = present
        self._loss = loss
        self._seed = seed
        # Inode numbers are no property of the work; the order in which they are met is.
        self._kept: dict[int, bool] = {}
        self._named = {inode for entries in present.folders.values() for inode in entries.values()}
        self._chance = random.Random(seed)

    def is_folder(self, inode: int) -> bool:
        return inode in self._durable.folders or inode in self._present.folders

    def entries(self, folder: int) -> dict[str, int]:
        synced = self._durable.folders.get(folder, {})
        present = self._present.folders.get(folder, synced)
        if self._loss is Loss.EVERYTHING:
            return synced
        if self._loss is Loss.CONTENTS:
            return present
        # Both sides of a rename happen or neither.
        left = {name: inode for name, inode in present.items() if self._is_kept(inode)}
        for name, inode in synced.items():
            # A file that another one replaced is there as long as that one has not come.
            is_replaced = inode not in self._named and name in present
            if name not in left and (is_replaced or not self._is_kept(inode)):
                left[name] = inode
        return left

    def file(self, inode: int, name: str) -> _File:
        synced, present = self._durable.files.get(inode), self._present.files.get(inode)
        if present is None or self._loss is Loss.EVERYTHING:
            return synced or _File(content=b"", modified_ns=0, mode=0o644)
        if synced is not None and (
            synced.content == present.content or len(present.content) < len(synced.content)
        ):
            return replace(present, content=synced.content)
        return replace(present, content=self._torn(synced, present, name))

    def _is_kept(self, inode: int) -> bool:
        if inode not in self._kept:
            self._kept[inode] = self.is_folder(inode) or self._chance.random() < 1 / 2
        return self._kept[inode]

    def _torn(self, synced: _File | None, present: _File, name: str) -> bytes:
        """Return one of the contents that a file may have whose newest ones were not synced."""
        size = len(present.content)
        half = present.content[: size // 2]
        contents = (
            synced.content if synced else b"",
            bytes(size),
            half,
            half + bytes(size - len(half)),
        )
        chance = random.Random(f"{self._seed} {name}")
        return chance.choice(contents)


def _scan(folder: Path, tree: _Tree | None = None) -> _Tree:
    """Return what is on the real disk below a folder."""
    tree = _Tree() if tree is None else tree
    entries = tree.folders.setdefault(folder.stat().st_ino, {})
    for path in sorted(folder.iterdir()):
        facts = path.stat()
        entries[path.name] = facts.st_ino
        if stat.S_ISDIR(facts.st_mode):
            _scan(path, tree)
        elif facts.st_ino not in tree.files:
            tree.files[facts.st_ino] = _read(path, facts)
    return tree


def _read(path: Path, facts: os.stat_result) -> _File:
    return _File(
        content=path.read_bytes(),
        modified_ns=facts.st_mtime_ns,
        mode=stat.S_IMODE(facts.st_mode),
    )


def path_of(target: Any, folder: int | None) -> str:
    """Return the path that a call of the operating system is about."""
    if isinstance(target, int):
        return Path(f"/proc/self/fd/{target}").readlink().as_posix()
    if folder is None:
        return str(os.path.abspath(os.fspath(target)))  # noqa: PTH100 - links are not followed
    return f"{path_of(folder, None)}{os.sep}{os.fspath(target)}"
