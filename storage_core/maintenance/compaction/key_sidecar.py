"""The key sidecar of a cleaned segment, for the next round. It says what the round has to know of
the segment, without its records.

    header (128 bytes)   magic, version, MAC, base offset, bytes of the segment, batches, keys,
                         CRC-32C of the hashes; little-endian, zeros behind
    table                int64[COLUMN_COUNT, batches], the headers as ``batch_scan`` has them
    flags                uint8[batches], as pass one notes them, to a multiple of 8 with zeros
    low, high            uint64[keys] each: SipHash of the keys of the batches with ordinals

A batch without flags has to be read by the next round. One with INDEXED and OPENED has a hash a
record. A control batch has INDEXED alone: its records stay as they are, as long as nothing is the
matter with its transaction. HAS_TOMBSTONE says that some records have no value, and that the batch
has its delete horizon.

The MAC (BLAKE2b under the secret of the folder) covers the header, which version of which file the
segment is, the table, the flags. So a sidecar of another segment, of one that somebody has cleaned
since, of another secret, or one that somebody has changed, is none.
"""

import hashlib
import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final

import crc32c
import numpy as np
from numpy.typing import NDArray

from storage_core.errors import ChangedWhileReadError, StorageError
from storage_core.filenames import LOG_SUFFIX, segment_file
from storage_core.formats.batch_v2 import HEADER_BYTES as BATCH_HEADER_BYTES
from storage_core.formats.batch_v2 import MAGIC_V2
from storage_core.kernels.batch_scan import (
    COLUMN_COUNT,
    CRC_OK,
    DONE,
    POSITION,
    read_control_types,
    scan_batches,
)
from storage_core.kernels.batch_write import GONE
from storage_core.kernels.record_scan import HAS_TOMBSTONE, INDEXED, OPENED
from storage_core.kernels.survivors import NOWHERE, pick_hashes
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
from storage_core.maintenance.compaction.index import CompactionIndex
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import Payload
from storage_core.records.reader import Window
from storage_core.store.base import FileReader, LogStore, version_of
from storage_core.store.local import LocalFileReader

MAGIC: Final = b"pylgkeys"
VERSION: Final = 1
HEADER_BYTES: Final = 128
# A larger one is neither written nor read: it is held in memory whole.
MAX_SIDECAR_BYTES: Final = 1 << 30
_HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("hashes_crc", "<u4"),
        ("base_offset", "<i8"),
        ("segment_bytes", "<i8"),
        ("batches", "<u8"),
        ("keys", "<u8"),
        ("mac", "V16"),
    ]
)
_MAC_BYTES: Final = 16
_ALIGNMENT: Final = 8
_WORD_BYTES: Final = 8
_FLAGS: Final = (0, INDEXED, INDEXED | OPENED, INDEXED | OPENED | HAS_TOMBSTONE)

Halves = tuple[NDArray[np.uint64], NDArray[np.uint64]]

NO_KEYS: Final[Halves] = (np.empty(0, np.uint64), np.empty(0, np.uint64))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentVersion:
    """Which version of which segment a sidecar is of."""

    base_offset: int
    size_bytes: int
    version: str  # what the store says of the file, as ``VersionedReader`` has it


@dataclass(frozen=True, kw_only=True)  # no slots: what is asked often is kept
class KeySidecar:
    """What a sidecar says."""

    batches: BatchTable  # of the segment, all of them; positions are those in its file
    flags: NDArray[np.uint8]  # uint8[batches]
    low: NDArray[np.uint64]  # uint64[keys]
    high: NDArray[np.uint64]  # uint64[keys]

    @cached_property
    def key_count(self) -> NDArray[np.int64]:
        """How many hashes each batch has, int64[batches]."""
        return np.where(self.flags & OPENED, self.batches.record_count, 0)

    @cached_property
    def first_key(self) -> NDArray[np.int64]:
        """First hash of each batch, and the end, int64[batches + 1]. The end is that of the last
        batch."""
        return np.concatenate([[0], np.cumsum(self.key_count)])

    def rows(self, first: int, end: int) -> "KeySidecar":
        """Return what it says of batches [first, end), without copying."""
        keys = slice(int(self.first_key[first]), int(self.first_key[end]))
        return KeySidecar(
            batches=self.batches.rows(first, end),
            flags=self.flags[first:end],
            low=self.low[keys],
            high=self.high[keys],
        )

    @property
    def nbytes(self) -> int:
        """How many bytes it takes in a file, without header and padding."""
        arrays = self.batches.columns, self.flags, self.low, self.high
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarOutline:
    """A sidecar of which the hashes are only counted: what its header is made of."""

    table: NDArray[np.uint8]  # uint8[], the columns of its batches
    flags: NDArray[np.uint8]  # uint8[batches]
    keys: int
    hashes_crc: int  # CRC-32C of all lower halves, then of all upper ones

    def header(self, of: SegmentVersion, secret: bytes) -> bytes:
        """Return the header of a sidecar of this segment."""
        header = np.zeros((), _HEADER)
        header["magic"], header["version"] = MAGIC, VERSION
        header["base_offset"], header["segment_bytes"] = of.base_offset, of.size_bytes
        header["batches"], header["keys"] = self.flags.size, self.keys
        header["hashes_crc"] = self.hashes_crc
        header["mac"] = np.void(_mac(header, of, secret, self.table, self.flags))
        return header.tobytes().ljust(HEADER_BYTES, b"\0")


def write_body(parts: Sequence[KeySidecar], file: BinaryIO) -> SidecarOutline:
    """Write what follows the header of a sidecar.

    Args:
        parts: Of the sidecar, at least one, in the order of their batches; positions are those in
            the segment.
    """
    table = np.concatenate([part.batches.columns for part in parts], axis=1)
    flags = np.concatenate([part.flags for part in parts])
    file.write(table.data)
    file.write(flags.data)
    file.write(bytes(-flags.size % _ALIGNMENT))
    hashes_crc = 0
    # Block by block: together they would take as much memory again.
    for half in (*(part.low for part in parts), *(part.high for part in parts)):
        hashes_crc = crc32c.crc32c(half.data, hashes_crc)
        file.write(half.data)
    return SidecarOutline(
        table=table.reshape(-1).view(np.uint8),
        flags=flags,
        keys=sum(part.low.size for part in parts),
        hashes_crc=hashes_crc,
    )


def _mac(
    header: NDArray[np.void],
    of: SegmentVersion,
    secret: bytes,
    table: NDArray[np.uint8],
    flags: NDArray[np.uint8],
) -> bytes:
    unsigned = header.copy()
    unsigned["mac"] = np.void(bytes(_MAC_BYTES))
    digest = hashlib.blake2b(unsigned.tobytes(), digest_size=_MAC_BYTES, key=secret)
    digest.update(of.version.encode())
    digest.update(table.data)
    digest.update(flags.data)
    return digest.digest()


class BadSidecarError(Exception):
    """A sidecar that is none of the segment; the text says why."""


def decode_sidecar(content: NDArray[np.uint8], of: SegmentVersion, secret: bytes) -> KeySidecar:
    """Return what a sidecar says.

    Args:
        content: The file, uint8[n]; the result refers to it.
    """
    if content.size < HEADER_BYTES:
        raise BadSidecarError(f"{content.size} bytes, fewer than a header's {HEADER_BYTES}")
    header = content[: _HEADER.itemsize].view(_HEADER)[0]
    if (header["magic"], header["version"]) != (MAGIC, VERSION):
        raise BadSidecarError(f"expected {MAGIC!r} of version {VERSION}")
    if (header["base_offset"], header["segment_bytes"]) != (of.base_offset, of.size_bytes):
        raise BadSidecarError("it is of another segment, or of another length of it")
    count, keys = int(header["batches"]), int(header["keys"])
    padded = count + -count % _ALIGNMENT
    expected = HEADER_BYTES + COLUMN_COUNT * _WORD_BYTES * count + padded + 2 * _WORD_BYTES * keys
    if content.size != expected:
        raise BadSidecarError(f"{content.size} bytes, expected {expected}")
    flags_at = HEADER_BYTES + COLUMN_COUNT * _WORD_BYTES * count
    table, flags = content[HEADER_BYTES:flags_at], content[flags_at : flags_at + count]
    mac = _mac(np.array(header, _HEADER), of, secret, table, flags)
    if bytes(header["mac"]) != mac:
        raise BadSidecarError("the segment is another one, or the secret, or it was changed")
    hashes = content[flags_at + padded :]
    if crc32c.crc32c(hashes.data) != int(header["hashes_crc"]):
        raise BadSidecarError("the CRC-32C of the hashes is wrong")
    low, high = hashes.view(np.uint64).reshape(2, keys)
    sidecar = KeySidecar(
        batches=BatchTable(table.view(np.int64).reshape(COLUMN_COUNT, count)),
        flags=flags,
        low=low,
        high=high,
    )
    _check(sidecar, of)
    return sidecar


def _check(sidecar: KeySidecar, of: SegmentVersion) -> None:
    """Refuse a sidecar with facts impossible in a segment. Even whoever knows the secret may
    have made a mistake."""
    batches = sidecar.batches
    ends = np.cumsum(batches.size)
    is_good = (
        (batches.position == ends - batches.size)
        & (batches.size >= BATCH_HEADER_BYTES)
        & (batches.size <= of.size_bytes)
        & (batches.magic == MAGIC_V2)
        & (batches.record_count >= 0)
        & (batches.record_count <= batches.last_offset - batches.base_offset + 1)
        & np.isin(sidecar.flags, _FLAGS)
        & (((sidecar.flags & OPENED) == 0) | ~batches.is_control)
    )
    end = int(ends[-1]) if ends.size else 0
    counts = sidecar.key_count
    is_counted = bool((counts <= sidecar.low.size).all()) and int(counts.sum()) == sidecar.low.size
    if not is_good.all() or end != of.size_bytes or not is_counted:
        raise BadSidecarError("what it says of the batches contradicts itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKeys:
    """Hashes of the keys of a block with surviving records. Pass two keeps some records of each
    of its batches."""

    noted: Halves  # (low, high), uint64[] each: of pass one, or of the source segment's sidecar
    looked_up: Halves  # (low, high), uint64[] each: of the look-up in pass two


def sidecar_of_block(
    out: NDArray[np.uint8], payload: Payload, keep: NDArray[np.uint8], keys: BlockKeys
) -> KeySidecar:
    """Return a sidecar of a block's output batches. Positions are those in out.

    Args:
        out: uint8[n], their bytes.
        keep: uint8[], by record.
    """
    first_row, end_row = payload.first_row, payload.end_row
    batches, notes = (
        payload.batches.rows(first_row, end_row),
        payload.notes.rows(first_row, end_row),
    )
    is_written = notes.fate != GONE
    written = int(is_written.sum())
    table = np.empty((COLUMN_COUNT, written + 1), np.int64)
    count, _, status = scan_batches(out, 0, out.size, table)
    if (count, status) != (written, DONE):
        raise AssertionError(f"{written} batches were written, and {count} are there")
    read_control_types(out, table, count)
    low, high = np.empty((2, int(notes.survivors[notes.hashes != NOWHERE].sum())), np.uint64)
    picked = pick_hashes(
        batches.record_count, notes.columns, keep, *keys.noted, *keys.looked_up, low, high
    )
    return KeySidecar(
        batches=BatchTable(table[:, :count]),
        flags=notes.sidecar_flags[is_written].astype(np.uint8),
        low=low[:picked],
        high=high[:picked],
    )


class SidecarBuilder:
    """Gathers the sidecar of a segment while that is written."""

    def __init__(self) -> None:
        self._parts: list[KeySidecar] = []
        self._size_bytes = HEADER_BYTES

    def add(self, part: KeySidecar, position: int) -> None:
        """Add the next batches' part; they lie at position in the segment."""
        if not len(part.batches):
            return
        columns = part.batches.columns.copy()
        columns[POSITION] += position - columns[POSITION, 0]
        self._size_bytes += part.nbytes
        if self._size_bytes > MAX_SIDECAR_BYTES:
            self._parts.clear()
        else:
            self._parts.append(replace(part, batches=BatchTable(columns)))

    def finish(self) -> list[KeySidecar]:
        """Return the parts of the sidecar; none if it is empty or too large."""
        return self._parts


# Judge a clean segment by its sidecar, to read only changed batches. A batch is read only where
# something happens to it.
#
# The sidecar stands in for pass one, which has not read the segment: the keys that the round's map
# does not hold are those whose records stay, a bit each.

# Shorter stretches of batches to which nothing happens are read with their neighbours.
LEAST_RUN_BYTES: Final = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """Consecutive batches of a segment."""

    first_row: int
    end_row: int
    is_read: bool  # whether they are read and judged; otherwise what becomes of them is known
    stays: bool  # of those that are not read, whether they stay, every byte of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """The fate of a segment's batches before any is read."""

    is_settled: NDArray[np.bool_]  # bool[batches], whether it is known what becomes of them
    stays: NDArray[np.bool_]  # bool[batches], whether they stay as they are
    # bool[batches], whether Kafka's cleaner would look at their records.
    was_read: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSegment:
    """A segment with a sidecar, asked by a round."""

    file: str
    sidecar: KeySidecar
    # uint8[batches], what pass one would have noted of them; but that a batch has tombstones is
    # left out where nothing happens to them.
    flags: NDArray[np.uint8]
    keeps_all_tombstones: NDArray[np.bool_]  # bool[batches], where that is
    words: NDArray[np.uint64]  # uint64[], the survivors' bitmap

    @classmethod
    def ask(
        cls, file: str, sidecar: KeySidecar, index: CompactionIndex, now_ms: int
    ) -> "KnownSegment":
        """Look up all keys of a segment in a round's map. The segment lies before the round's
        dirty part."""
        batches = sidecar.batches
        counts = sidecar.key_count
        words, absent = index.offset_map.mark_absent(sidecar.low, sidecar.high, counts)
        has_time = batches.has_delete_horizon & (batches.base_timestamp > now_ms)
        has_tombstone = (sidecar.flags & HAS_TOMBSTONE) != 0
        keeps_all = has_tombstone & has_time & (absent == counts)
        flags = sidecar.flags.copy()
        flags[keeps_all] &= ~np.uint8(HAS_TOMBSTONE)
        return cls(
            file=file, sidecar=sidecar, flags=flags, keeps_all_tombstones=keeps_all, words=words
        )

    def window(self) -> Window:
        """Return all batches as a window without their bytes."""
        nothing = np.empty(0, np.uint8)
        return Window(self.file, 0, nothing, self.sidecar.batches, is_whole=False)

    def rows_of(self, window: Window) -> slice:
        """Return which batches of the sidecar a window has that was read."""
        table = self.sidecar.batches
        first = int(np.searchsorted(table.position, window.file_position))
        here = slice(first, first + len(window.batches))
        expected, actual = table.columns[:, here], window.batches.columns
        if expected.shape == actual.shape:
            is_other = expected != actual
            # The position counts from the window, and whether the CRC is right is another matter.
            is_other[POSITION] = window.file_position + actual[POSITION] != expected[POSITION]
            is_other[CRC_OK] = False
            if not is_other.any():
                return here
        raise ChangedWhileReadError(
            self.file, "the batches that its key sidecar tells of", "others, after that was written"
        )


def find_stretches(size: NDArray[np.int64], foreseen: Foresight) -> list[BatchRun]:
    """Cut a segment into stretches that are read, stay, or go.

    Args:
        size: int64[batches], bytes of each.
    """
    kind = np.where(foreseen.is_settled, np.where(foreseen.stays, 1, 2), 0)
    bounds = _bounds(kind)
    run_bytes = np.add.reduceat(size, bounds[:-1]) if size.size else size
    is_short = (run_bytes < LEAST_RUN_BYTES) & (len(bounds) > 2)  # noqa: PLR2004  # one run is whole
    kind[np.repeat(is_short, np.diff(bounds))] = 0
    bounds = _bounds(kind)
    return [
        BatchRun(
            first_row=first,
            end_row=end,
            is_read=bool(kind[first] == 0),
            stays=bool(kind[first] == 1),
        )
        for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]


def _bounds(kind: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the start of each run of one kind, and the end."""
    inner = np.flatnonzero(np.diff(kind)) + 1
    return np.concatenate([[0], inner, [kind.size]]) if kind.size else np.zeros(1, np.int64)


# The folder of key sidecars, never inside a log directory. It is a folder of their own.
#
# It holds a secret and a folder a partition with a file a segment. Everything in it may be deleted
# at any time: the next round costs what it would without, and begins anew. That is also how a
# secret is changed. Nothing in it is synced, since what a lost power leaves of a sidecar is none.
#
# A sidecar says which records are superseded: whoever can forge one has newest values removed. So
# the folder, the secret and every sidecar are ours, and nobody else may write them; no link is
# followed.

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
    outline: SidecarOutline
    segment_bytes: int


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
                name = segment_file(base_offset, SIDECAR_SUFFIX)
                content = _read(self._folder / self._name, folder, name)
            return decode_sidecar(content, of, self.secret)
        except FileNotFoundError:
            return None
        except (OSError, StorageError, BadSidecarError) as error:
            _log.info("%s is read as if it had no key sidecar: %s", reader.name, error)
            return None

    def stage(self, base_offset: int, parts: Sequence[KeySidecar]) -> None:
        """Write the sidecar of a segment not yet in its place. Where that fails, there is none.

        Args:
            parts: As of `write_body`.
        """
        name = f"{segment_file(base_offset, SIDECAR_SUFFIX)}-{self._attempt}{_STAGED_SUFFIX}"
        try:
            with open_own_folder(self._folder) as home, suppress(FileExistsError):
                os.mkdir(self._name, mode=_FOLDER_MODE, dir_fd=home)
            with self._open() as folder, os.fdopen(create_in(folder, name), "wb") as file:
                file.write(bytes(HEADER_BYTES))
                outline = write_body(parts, file)
        except OSError as error:
            _log.info("no key sidecar of %d: %s", base_offset, error.strerror or error)
            return
        last = parts[-1].batches
        self._staged.append(
            StagedSidecar(
                base_offset=base_offset,
                name=name,
                outline=outline,
                segment_bytes=int(last.position[-1] + last.size[-1]),
            )
        )

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
        if of is None or of.size_bytes != staged.segment_bytes:
            return
        with os.fdopen(open_own_in(folder, staged.name, os.O_RDWR), "r+b") as file:
            file.write(staged.outline.header(of, self.secret))
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


def _read(path: Path, folder: int, name: str) -> NDArray[np.uint8]:
    """Return a sidecar's bytes, mapped where that can be.

    Args:
        path: Of the folder, for errors.
    """
    descriptor = open_own_in(folder, name)
    facts = os.fstat(descriptor)
    with closing(LocalFileReader(path, name, descriptor, facts, may_map=True)) as reader:
        size = reader.size_bytes
        if size > MAX_SIDECAR_BYTES:
            raise BadSidecarError(f"{size} bytes, expected at most {MAX_SIDECAR_BYTES}")
        content = reader.map(0, size)
        if content is None:
            content = np.empty(size, np.uint8)
            if reader.read_into(0, content) != size:
                raise BadSidecarError("the file ends while it is read")
    return content


def _version_of(reader: FileReader, base_offset: int) -> SegmentVersion | None:
    """Return the open segment's version, None if its store has none."""
    version = version_of(reader)
    if not version:
        return None
    return SegmentVersion(base_offset=base_offset, size_bytes=reader.size_bytes, version=version)
