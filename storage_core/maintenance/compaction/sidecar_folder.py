"""The folder of key sidecars, never inside a log directory. It is a folder of their own.

It holds a secret and a folder a partition with a file a segment. Everything in it may be deleted at
any time: the next round costs what it would without, and begins anew. That is also how a secret is
changed. Nothing in it is synced, since what a lost power leaves of a sidecar is none.

A sidecar says which records are superseded: whoever can forge one has newest values removed. So the
folder, the secret and every sidecar are ours, and nobody else may write them; no link is followed.
"""

import hashlib
import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import StorageError
from storage_core.filenames import LOG_SUFFIX, segment_file
from storage_core.local_files import (
    create_in,
    is_there,
    open_folder_below,
    open_own_folder,
    open_own_in,
    read_limited,
    require_ours,
    scan_open,
)
from storage_core.maintenance.compaction.key_sidecar import (
    HEADER_BYTES,
    MAX_SIDECAR_BYTES,
    BadSidecarError,
    KeySidecar,
    SegmentVersion,
    decode_sidecar,
)
from storage_core.store.base import FileReader, LogStore, version_of

SECRET_BYTES: Final = 16
SIDECAR_SUFFIX: Final = ".keys"
_STAGED_SUFFIX: Final = ".part"
_SECRET: Final = "secret"  # noqa: S105  # the name of its file
_NAME_CHARACTERS: Final = 160
_FOLDER_MODE: Final = 0o700

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSidecar:
    """A sidecar of a segment that is not in its place yet."""

    base_offset: int
    name: str
    sidecar: KeySidecar


class SidecarFolder:
    """A folder of key sidecars.

    Args:
        folder: Its path; it is made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, location: str) -> "PartitionSidecars | None":
        """Return a partition's sidecars; None if the folder is unusable.

        Args:
            location: Of the partition as it is now, without a generation.
        """
        digest = hashlib.blake2b(location.encode(), digest_size=8).hexdigest()
        name = Path(location).name[-_NAME_CHARACTERS:]
        try:
            self.folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            with open_own_folder(self.folder) as folder:
                secret = _read_secret(folder)
        except OSError as error:
            _log.warning("no key sidecars in %s: %s", self.folder, error.strerror or error)
            return None
        return PartitionSidecars(self.folder, f"{name}.{digest}", secret)


def check_sidecar_folder(folder: Path) -> None:
    """Refuse a foreign folder for key sidecars. A folder that is not there yet will be ours."""
    if not is_there(folder):
        return
    with open_own_folder(folder) as opened, suppress(FileNotFoundError):
        os.close(open_own_in(opened, _SECRET))


def _read_secret(folder: int) -> bytes:
    """Return the secret of an open folder; make it if absent."""
    with suppress(FileNotFoundError):
        secret = _secret_in(folder)
        if len(secret) == SECRET_BYTES:
            return secret
    # Of several who make one at the same time, one's counts: a link is never replaced.
    scratch_name = f"{_SECRET}-{secrets.token_hex(8)}"
    with os.fdopen(create_in(folder, scratch_name), "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))
    try:
        with suppress(FileExistsError):
            os.link(scratch_name, _SECRET, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.unlink(scratch_name, dir_fd=folder)
    secret = _secret_in(folder)
    if len(secret) != SECRET_BYTES:
        raise OSError(None, f"{_SECRET} has {len(secret)} bytes, expected {SECRET_BYTES}")
    return secret


def _secret_in(folder: int) -> bytes:
    with os.fdopen(open_own_in(folder, _SECRET), "rb") as file:
        return read_limited(file.fileno(), SECRET_BYTES)


class PartitionSidecars:
    """The key sidecars of one partition.

    Args:
        name: Of the partition's own folder in there.
        secret: Of the folder, 16 bytes; the key of all hashes.
    """

    def __init__(self, folder: Path, name: str, secret: bytes) -> None:
        self.secret = secret
        self._folder = folder
        self._name = name
        self._attempt = secrets.token_hex(8)
        self._staged: list[StagedSidecar] = []

    def read(self, reader: FileReader, base_offset: int) -> KeySidecar | None:
        """Return a segment's sidecar, None without a trustworthy one."""
        of = _version_of(reader, base_offset)
        if of is None:
            return None
        try:
            with self._open() as folder:
                content = _read(folder, segment_file(base_offset, SIDECAR_SUFFIX))
            return decode_sidecar(content, of, self.secret)
        except FileNotFoundError:
            return None
        except (OSError, BadSidecarError) as error:
            _log.info("%s is read as if it had no key sidecar: %s", reader.name, error)
            return None

    def stage(self, base_offset: int, sidecar: KeySidecar) -> None:
        """Write the sidecar of a segment not yet in its place. Where that fails, there is none."""
        name = f"{segment_file(base_offset, SIDECAR_SUFFIX)}-{self._attempt}{_STAGED_SUFFIX}"
        try:
            with open_own_folder(self._folder) as home, suppress(FileExistsError):
                os.mkdir(self._name, mode=_FOLDER_MODE, dir_fd=home)
            with self._open() as folder, os.fdopen(create_in(folder, name), "wb") as file:
                file.write(bytes(HEADER_BYTES))
                for part in sidecar.body():
                    file.write(part.data)
        except OSError as error:
            _log.info("no key sidecar of %d: %s", base_offset, error.strerror or error)
            return
        self._staged.append(StagedSidecar(base_offset=base_offset, name=name, sidecar=sidecar))

    def publish(self, store: LogStore, base_offsets: Iterable[int]) -> None:
        """Publish the staged sidecars, and remove those without a segment.

        Args:
            store: The partition; its segments are in their places.
        """
        wanted = {segment_file(base, SIDECAR_SUFFIX) for base in base_offsets}
        try:
            with self._open() as folder:
                for staged in self._staged:
                    self._publish(folder, store, staged)
                self._staged.clear()
                for entry in scan_open(folder):
                    if entry.name not in wanted:
                        os.unlink(entry.name, dir_fd=folder)
        except FileNotFoundError:
            return  # nothing was ever staged
        except (OSError, StorageError) as error:
            _log.info("no key sidecars in %s: %s", self._folder / self._name, error)

    def _publish(self, folder: int, store: LogStore, staged: StagedSidecar) -> None:
        with closing(store.open_file(segment_file(staged.base_offset, LOG_SUFFIX))) as reader:
            of = _version_of(reader, staged.base_offset)
        columns = staged.sidecar.batches
        if of is None or of.size_bytes != int(columns.position[-1] + columns.size[-1]):
            return
        with os.fdopen(open_own_in(folder, staged.name, os.O_RDWR), "r+b") as file:
            file.write(staged.sidecar.header(of, self.secret))
        name = segment_file(staged.base_offset, SIDECAR_SUFFIX)
        os.replace(staged.name, name, src_dir_fd=folder, dst_dir_fd=folder)

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Open the partition's own folder for the time of a block. The folder has to be ours."""
        with (
            open_own_folder(self._folder) as home,
            open_folder_below(home, (self._name,)) as folder,
        ):
            require_ours(os.fstat(folder))
            yield folder


def _read(folder: int, name: str) -> NDArray[np.uint8]:
    """Return a sidecar's bytes."""
    with os.fdopen(open_own_in(folder, name), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_SIDECAR_BYTES:
            raise BadSidecarError(f"{size} bytes, expected at most {MAX_SIDECAR_BYTES}")
        content = np.empty(size, np.uint8)
        if file.readinto(content.data) != size:
            raise BadSidecarError("the file ends while it is read")
    return content


def _version_of(reader: FileReader, base_offset: int) -> SegmentVersion | None:
    """Return the open segment's version, None if its store has none."""
    version = version_of(reader)
    if not version:
        return None
    return SegmentVersion(base_offset=base_offset, size_bytes=reader.size_bytes, version=version)
