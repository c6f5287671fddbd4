"""Where key sidecars lie: a folder of their own, never a log directory.

It holds a secret and a folder a partition with a file a segment. Everything in it may be deleted at
any time: the next round costs what it would without, and begins anew. That is also how a secret is
changed. Nothing in it is synced, since what a lost power leaves of a sidecar is none.
"""

import hashlib
import logging
import os
import secrets
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import StorageError
from storage_core.filenames import LOG_SUFFIX, segment_file
from storage_core.local_files import create_file, entry_names, open_file, read_small
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
    """A sidecar of a segment that is not in its place yet.

    Attributes:
        base_offset: Of the segment.
        path: Where its file is.
        sidecar: What will be in it.
    """

    base_offset: int
    path: Path
    sidecar: KeySidecar


class SidecarFolder:
    """A folder of key sidecars.

    Args:
        folder: Its path; it is made when it is needed.

    Attributes:
        folder: The same.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, location: str) -> "PartitionSidecars | None":
        """Return the sidecars of a partition; None where the folder cannot be used.

        Args:
            location: Of the partition as it is now, without a generation.
        """
        digest = hashlib.blake2b(location.encode(), digest_size=8).hexdigest()
        name = Path(location).name[-_NAME_CHARACTERS:]
        try:
            self.folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            return PartitionSidecars(self.folder / f"{name}.{digest}", self._read_secret())
        except OSError as error:
            _log.info("no key sidecars in %s: %s", self.folder, error.strerror or error)
            return None

    def _read_secret(self) -> bytes:
        """Return the secret, which the first one to ask makes."""
        path = self.folder / _SECRET
        with suppress(FileNotFoundError):
            secret = read_small(path, SECRET_BYTES)
            if len(secret) == SECRET_BYTES:
                return secret
        # Of several who make one at the same time, one's counts: a link is never replaced.
        made = self.folder / f"{_SECRET}-{secrets.token_hex(8)}"
        with os.fdopen(create_file(made), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        try:
            with suppress(FileExistsError):
                os.link(made, path)
        finally:
            made.unlink()
        secret = read_small(path, SECRET_BYTES)
        if len(secret) != SECRET_BYTES:
            raise OSError(None, f"{_SECRET} has {len(secret)} bytes, expected {SECRET_BYTES}")
        return secret


class PartitionSidecars:
    """The key sidecars of one partition.

    Args:
        folder: Where they lie.
        secret: Of the folder, 16 bytes; the key of all hashes.

    Attributes:
        secret: The same.
    """

    def __init__(self, folder: Path, secret: bytes) -> None:
        self.secret = secret
        self._folder = folder
        self._attempt = secrets.token_hex(8)
        self._staged: list[StagedSidecar] = []

    def read(self, reader: FileReader, base_offset: int) -> KeySidecar | None:
        """Return the sidecar of a segment, None where there is none that can be trusted.

        Args:
            reader: The segment's log, open.
            base_offset: Its base offset.
        """
        of = _version_of(reader, base_offset)
        path = self._path(base_offset)
        if of is None:
            return None
        try:
            return decode_sidecar(_read(path), of, self.secret)
        except FileNotFoundError:
            return None
        except (OSError, BadSidecarError) as error:
            _log.info("%s is read as if it had no key sidecar: %s", reader.name, error)
            return None

    def stage(self, base_offset: int, sidecar: KeySidecar) -> None:
        """Write a sidecar of a segment that is not in its place yet; where that fails, none."""
        path = self._path(base_offset)
        path = path.with_name(f"{path.name}-{self._attempt}{_STAGED_SUFFIX}")
        try:
            self._folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            with os.fdopen(create_file(path), "wb") as file:
                file.write(bytes(HEADER_BYTES))
                for part in sidecar.body():
                    file.write(part.data)
        except OSError as error:
            _log.info("no key sidecar of %d: %s", base_offset, error.strerror or error)
            return
        self._staged.append(StagedSidecar(base_offset=base_offset, path=path, sidecar=sidecar))

    def publish(self, store: LogStore, base_offsets: Iterable[int]) -> None:
        """Put what was staged into its place, and remove what belongs to no segment any more.

        Args:
            store: The partition; its segments are in their places.
            base_offsets: Of all its segments.
        """
        try:
            for staged in self._staged:
                self._publish(store, staged)
            self._staged.clear()
            self._sweep({segment_file(base, SIDECAR_SUFFIX) for base in base_offsets})
        except (OSError, StorageError) as error:
            _log.info("no key sidecars in %s: %s", self._folder, error)

    def _publish(self, store: LogStore, staged: StagedSidecar) -> None:
        with closing(store.open_file(segment_file(staged.base_offset, LOG_SUFFIX))) as reader:
            of = _version_of(reader, staged.base_offset)
        columns = staged.sidecar.batches
        if of is None or of.size_bytes != int(columns.position[-1] + columns.size[-1]):
            return
        with os.fdopen(open_file(staged.path, os.O_RDWR), "r+b") as file:
            file.write(staged.sidecar.header(of, self.secret))
        staged.path.replace(self._path(staged.base_offset))

    def _sweep(self, wanted: Collection[str]) -> None:
        with suppress(FileNotFoundError):
            for name in entry_names(self._folder):
                if name not in wanted:
                    (self._folder / name).unlink()

    def _path(self, base_offset: int) -> Path:
        return self._folder / segment_file(base_offset, SIDECAR_SUFFIX)


def _read(path: Path) -> NDArray[np.uint8]:
    """Return a sidecar's bytes."""
    with os.fdopen(open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_SIDECAR_BYTES:
            raise BadSidecarError(f"{size} bytes, expected at most {MAX_SIDECAR_BYTES}")
        content = np.empty(size, np.uint8)
        if file.readinto(content.data) != size:
            raise BadSidecarError("the file ends while it is read")
    return content


def _version_of(reader: FileReader, base_offset: int) -> SegmentVersion | None:
    """Return which version of the segment is open, None where its store does not say."""
    version = version_of(reader)
    if not version:
        return None
    return SegmentVersion(base_offset=base_offset, size_bytes=reader.size_bytes, version=version)
