"""Where an export goes: a new folder, visible by one rename, or a new prefix of a bucket.

A folder is written beside the wanted one, and renamed when all parts are there. A bucket renames
nothing: parts appear one by one, and ``_SUCCESS`` comes last, as readers of Spark's and Hadoop's
files expect. Whatever is killed leaves a folder, or objects without ``_SUCCESS``, that the next
export to the same place removes: a lock, or a lease, tells the dead from the living.
"""

import fcntl
import glob
import os
import re
import secrets
import shutil
import socket
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

from pylog_spark.options.choices import ExportFormat
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError
from storage_core.filenames import LEASE_FILE
from storage_core.store import open_object_store
from storage_core.store.lease import LeaseProof, acquire_lease, require_lease
from storage_core.store.local import storage_errors, sync_folder
from storage_core.store.object_store import KeepsParts, ObjectStore, require_conditional_writes
from storage_core.store.open_objects import OPENERS, is_url

_OPTION: Final = "--out"
_MARK: Final = ".pylog-export-"
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# What readers of Spark's and Hadoop's files leave out begins with an underscore.
_SUCCESS: Final = "_SUCCESS"
_CLAIM: Final = "_pylog-export"
_CLAIM_KEY: Final = f"{_CLAIM}/{LEASE_FILE}"
_PART: Final = re.compile(r"(?:[^/]+/)?part-[0-9]{5,}-[0-9a-f]{16}\.(?:parquet|csv|jsonl)")


class NewOut(Protocol):
    """An export's new place, while it is written."""

    folder: str  # where tasks write: a path, or a URL
    lease: LeaseProof | None  # what a task has to hold; None for a folder

    def make_folders(self, names: Collection[str]) -> None:
        """Make the folders of topics."""

    def keep_only(self, names: Collection[str]) -> None:
        """Remove the files of tasks that ran twice; the names are those of files to keep."""

    def publish(self) -> None:
        """Make the export visible, or complete."""


def check_out(out: str, to: ExportFormat) -> None:
    """Refuse a place that is taken, or that could not be made."""
    if is_url(out):
        _check_prefix(out, to)
    else:
        check_new(Path(out))


def check_new(path: Path) -> None:
    """Refuse a file or folder that is there, or that could not be made."""
    folder = path.absolute().parent
    if path.exists():
        raise ConfigError(_OPTION, path, "is there already; expected a new name")
    if not folder.is_dir():
        raise ConfigError(_OPTION, path, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise ConfigError(_OPTION, path, f"this process may not write into {folder}")


def new_out(out: str) -> AbstractContextManager[NewOut]:
    """Return the place of a new export. What is left of it at the end is removed."""
    return _new_prefix(out) if is_url(out) else _new_folder(Path(out))


def require_claim(url: str, proof: LeaseProof) -> None:
    """Check that an export to a bucket still has its place, before a part of it appears there.

    Raises:
        LeaseLostError: Another export took it.
    """
    require_lease(open_object_store(f"{url}/{_CLAIM}"), proof, now_ms=SystemClock().now_ms())


class _Folder:
    """A scratch folder beside the wanted one."""

    def __init__(self, out: Path, scratch: Path) -> None:
        self.folder = str(scratch)
        self.lease: LeaseProof | None = None
        self._out = out
        self._scratch = scratch

    def make_folders(self, names: Collection[str]) -> None:
        with storage_errors(self._scratch):
            for name in names:
                (self._scratch / name).mkdir()

    def keep_only(self, names: Collection[str]) -> None:
        with storage_errors(self._scratch):
            for path in self._scratch.rglob("*"):
                if path.is_file() and str(path.relative_to(self._scratch)) not in names:
                    path.unlink()

    def publish(self) -> None:
        with storage_errors(self._out):
            for path in self._scratch.iterdir():
                if path.is_dir():
                    sync_folder(path)
            sync_folder(self._scratch)
            check_new(self._out)  # another export may have been faster
            self._scratch.rename(self._out)
            sync_folder(self._out.absolute().parent)


@contextmanager
def _new_folder(out: Path) -> Iterator[_Folder]:
    with scratch_beside(out) as scratch:
        yield _Folder(out, scratch)


@contextmanager
def scratch_beside(out: Path) -> Iterator[Path]:
    """Make a folder for what becomes ``out`` by a rename; remove those of processes that died."""
    _remove_remains(out)
    scratch = out.absolute().parent / f".{out.name}{_MARK}{secrets.token_hex(8)}"
    with storage_errors(scratch):
        scratch.mkdir()
        descriptor = os.open(scratch, _OPEN_FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(descriptor)


def _remove_remains(out: Path) -> None:
    """Remove what commands with the same ``--out`` have left that were killed."""
    for folder in out.absolute().parent.glob(f".{glob.escape(out.name)}{_MARK}*"):
        try:
            descriptor = os.open(folder, _OPEN_FOLDER | os.O_NOFOLLOW)
        except OSError:
            continue  # another export has just removed it, or it is none of ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # it is being written
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


class _Prefix:
    """A prefix of a bucket whose lease is held."""

    def __init__(self, objects: ObjectStore, proof: LeaseProof) -> None:
        self.folder = objects.url
        self.lease: LeaseProof | None = proof
        self.is_published = False
        self._proof = proof
        self._objects = objects

    def make_folders(self, names: Collection[str]) -> None:
        """Do nothing: a bucket has no folders."""

    def keep_only(self, names: Collection[str]) -> None:
        there = (info.key for info in self._objects.list())
        self._objects.delete([key for key in there if _PART.fullmatch(key) and key not in names])

    def publish(self) -> None:
        require_claim(self.folder, self._proof)
        self._objects.put_if_absent(_SUCCESS, b"")
        self.is_published = True


@contextmanager
def _new_prefix(url: str) -> Iterator[_Prefix]:
    """Claim a prefix without objects, or with those of an export that was killed."""
    objects = open_object_store(url)
    may_have_parts = _check_objects(objects)
    claims = open_object_store(f"{objects.url}/{_CLAIM}")
    require_conditional_writes(claims)
    holder = f"export on {socket.gethostname()}, process {os.getpid()}"
    with acquire_lease(claims, holder=holder) as lease:
        place = _Prefix(objects, lease.proof)
        try:
            lease.keep_renewing()
            _check_objects(objects, may_have_parts=may_have_parts)
            place.keep_only(())
            if isinstance(objects, KeepsParts):
                objects.abort_uploads(before_ms=SystemClock().now_ms())
            yield place
        finally:
            if lease.is_current():
                if not place.is_published:
                    place.keep_only(())
                claims.delete([LEASE_FILE])


def _check_prefix(out: str, to: ExportFormat) -> None:
    scheme = out.partition("://")[0]
    if scheme not in OPENERS:
        raise ConfigError(
            _OPTION,
            out,
            "expected a folder of this machine, or one it mounts, or s3://BUCKET/PREFIX",
        )
    if to is ExportFormat.DELTA:
        raise ConfigError(_OPTION, out, "a Delta table is written to a folder of this machine")
    _check_objects(open_object_store(out))


def _check_objects(objects: ObjectStore, *, may_have_parts: bool = True) -> bool:
    """Refuse a prefix with objects; return whether an export has begun there without an end.

    Args:
        may_have_parts: Whether the parts of such an export may be there.
    """
    first_part = ""
    is_claimed = False
    for info in objects.list():
        if info.key == _CLAIM_KEY:
            is_claimed = True
        elif may_have_parts and _PART.fullmatch(info.key):
            first_part = first_part or info.key
        elif not info.key.startswith(f"{_CLAIM}/"):
            raise _taken(objects, info.key)
    if first_part and not is_claimed:
        raise _taken(objects, first_part)
    return is_claimed


def _taken(objects: ObjectStore, key: str) -> ConfigError:
    reason = f"has objects already, such as {key}; expected a prefix without objects"
    return ConfigError(_OPTION, objects.url, reason)
