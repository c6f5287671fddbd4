"""Only the files of a partition that a load would leave.

Whoever reads takes no lock, and a swap of segments is many renames: in the middle of one, or after
one that was cut short, the plain names are neither the old log nor the new one. So a directory is
listed until two listings agree, what lies in it is settled as a loader settles it, without writing,
and from then on each name means the very file that was listed, whatever that is called meanwhile.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeGuard

import crc32c
import numpy as np
from numpy.typing import NDArray

from storage_core.commit import CommitPlan
from storage_core.errors import ChangedWhileReadError, InvalidNameError, StorageError, located
from storage_core.filenames import (
    CHECKPOINT_DELETED_SUFFIX,
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    MAX_OFFSET,
    OFFSET_INDEX_SUFFIX,
    SCRATCH_PREFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSIENT_SUFFIXES,
    is_of_no_segment,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.json_values import Count, FileName, SystemText, whole
from storage_core.local_files import create_file
from storage_core.log.batch_search import find_next_offset
from storage_core.log.directory_view import DirectoryView
from storage_core.store import open_store
from storage_core.store.base import (
    FileInfo,
    FileReader,
    IdentifyingStore,
    LogStore,
    ReadOnlyStore,
    SliceReader,
    read_limited,
    read_range,
)
from storage_core.store.syncing import WriteBehind, sync

# Settle the leftovers of an interrupted swap: the loader's passes 1-3.
#
# ``.cleaned`` files are unfinished and go; so do ``.swap`` files at or above the lowest of them.
# The other ``.swap`` files are complete: what they replace goes, then they lose the suffix.
# ``.deleted`` files only waited for their end.


def plan_settling(store: LogStore) -> CommitPlan:
    """Plan what settles the leftovers of a directory, and nothing else."""
    view = DirectoryView(store)
    settle_leftovers(view)
    return CommitPlan(location=store.location, operations=tuple(view.operations))


def settle_leftovers(view: DirectoryView) -> None:
    """Plan the loader's passes 1 to 3 on a directory."""
    if not any(map(is_unfinished_name, view.names)):
        return
    _validate_names(view)
    _sweep_scratch(view)
    _drop_deleted(view)
    _drop_unfinished(view)
    _drop_replaced(view)
    _finish_swaps(view)


def _sweep_scratch(view: DirectoryView) -> None:
    for name in view.names:
        if name.startswith(SCRATCH_PREFIX):
            view.delete_now(name, "scratch file of a run that was killed")


def _drop_deleted(view: DirectoryView) -> None:
    for name in view.names:
        if name.endswith(DELETED_SUFFIX) and not name.endswith(CHECKPOINT_DELETED_SUFFIX):
            view.delete_now(name, "leftover of a deletion that was decided before")


def _validate_names(view: DirectoryView) -> None:
    for name in view.names:
        if is_of_no_segment(name):
            raise InvalidNameError(
                name,
                "expected the number of a segment before the first dot; Kafka does not load a "
                "log with such a file: move it away",
            )


def _drop_unfinished(view: DirectoryView) -> None:
    cleaned = [name for name in view.names if name.endswith(CLEANED_SUFFIX)]
    lowest = min(
        (offset for name in cleaned if (offset := offset_of(name)) is not None), default=MAX_OFFSET
    )
    unfinished = [
        name
        for name in view.names
        if name.endswith(SWAP_SUFFIX)
        and (offset := offset_of(name)) is not None
        and offset >= lowest
    ]
    for name in unfinished:
        view.delete_now(name, f"swap that was not complete: a .cleaned file at {lowest} is left")
    if unfinished:
        view.sync("without .cleaned files these would count")
    for name in cleaned:
        view.delete_now(name, "leftover of a cleaning that did not finish")


def _drop_replaced(view: DirectoryView) -> None:
    first, end = MAX_OFFSET, -1
    for name in view.names:
        if not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            continue
        base = offset_of(name)
        if base is None:
            continue
        index = name.removesuffix(LOG_SUFFIX + SWAP_SUFFIX) + OFFSET_INDEX_SUFFIX + SWAP_SUFFIX
        first = min(first, base)
        end = max(end, find_next_offset(view, base, name, index))
    replaced = [
        name
        for name in view.names
        if not name.endswith(SWAP_SUFFIX)
        and (offset := offset_of(name)) is not None
        and first <= offset < end
    ]
    for name in replaced:
        view.delete_now(name, f"replaced by the swap of offsets {first} to {end}")
    if replaced:
        view.sync("without the suffix the swap would not replace them any more")


def _finish_swaps(view: DirectoryView) -> None:
    """Drop the suffix of swaps, of logs first. A log still with its suffix would replace its own
    indexes."""
    swaps = [name for name in view.names if name.endswith(SWAP_SUFFIX)]
    logs = [name for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    for name in [*logs, *(name for name in swaps if name not in logs)]:
        view.rename(name, name.removesuffix(SWAP_SUFFIX), "completes an interrupted swap")
        if name in logs[:-1]:
            # Found between two logs with the suffix, it would be what these replace.
            view.sync("a lower segment is in place")


# Seconds to wait before each attempt to see a directory without changes.
_PAUSES: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class SettledStore(ReadOnlyStore):
    """The files of one partition as of its listing, settled.

    A file is opened if it is the one that was listed: under its name of then, or that which a swap
    gives it in its course. Of the active segment's log what was appended since does not show.

    Args:
        growing: Name of the log that somebody may append to; empty for none.
        removed: Names that were in the directory and that a load takes away.
    """

    def __init__(
        self,
        store: LogStore,
        files: Mapping[str, FileInfo],
        *,
        growing: str = "",
        removed: frozenset[str] = frozenset(),
    ) -> None:
        self._store = store
        self.files = files
        self.growing = growing
        self.removed = removed

    @property
    def location(self) -> str:
        """Path or URL of the directory."""
        return self._store.location

    def list_files(self) -> list[FileInfo]:
        """Return the files under the names that they have here, sorted."""
        return sorted(
            FileInfo(name, file.size_bytes, file.modified_ms, file.identity)
            for name, file in self.files.items()
        )

    def pick(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """Return the files of some names, for a store like this one."""
        return {name: self.files[name] for name in names if name in self.files}

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        with closing(self.open_file(name)) as reader:
            return read_limited(reader, f"{self.location}/{name}", limit_bytes)

    def open_file(self, name: str) -> FileReader:
        """Open a file for ranged reads, as long as it was."""
        listed = self.files.get(name)
        if listed is None:
            raise StorageError(f"{self.location}/{name}", "No such file or directory")
        reader = self._find(name, listed)
        listed_bytes, size_bytes = listed.size_bytes, reader.size_bytes
        if size_bytes == listed_bytes:
            return reader
        is_changed_log = kind_of(name) == LOG_SUFFIX and name != self.growing
        # A roll, or a stop, trims preallocated indexes of the active segment.
        is_cut_to_size = (
            kind_of(name) in {OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX}
            and self.growing
            and offset_of(name) == offset_of(self.growing)
        )
        if size_bytes < listed_bytes and is_cut_to_size:
            return reader
        if size_bytes < listed_bytes or is_changed_log:
            reader.close()
            raise self._changed(listed, f"{size_bytes} bytes")
        return SliceReader(reader, 0, listed_bytes)

    def _find(self, name: str, listed: FileInfo) -> FileReader:
        store = self._store
        if not listed.identity or not _is_identifying(store):
            return store.open_file(listed.name)
        others = (name, name + SWAP_SUFFIX, name + DELETED_SUFFIX)
        # A renamed file may be missed under both names.
        for candidate in (listed.name, *others, *others):
            reader = store.open_identified(candidate, listed.identity)
            if reader is not None:
                return reader
        raise self._changed(listed, "another file, or none")

    def _changed(self, listed: FileInfo, actual: str) -> ChangedWhileReadError:
        path = f"{self.location}/{listed.name}"
        return ChangedWhileReadError(path, f"the file of {listed.size_bytes} bytes", actual)


class PlannedStore(ReadOnlyStore):
    """The files of a partition once a load's plan has been applied.

    Args:
        view: View of the loaded and closed log.
    """

    def __init__(self, view: DirectoryView) -> None:
        self._view = view

    @property
    def location(self) -> str:
        """Path or URL of the directory."""
        return self._view.store.location

    def list_files(self) -> list[FileInfo]:
        """Return the files that there will be, sorted by name."""
        sources = ((name, self._view.source(name)) for name in self._view.names)
        return [FileInfo(name, file.size_bytes, file.modified_ms) for name, file in sources]

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        return self._view.read(name, limit_bytes=limit_bytes)

    def open_file(self, name: str) -> FileReader:
        """Open a file for ranged reads."""
        return self._view.open(name)


@located
def settle(store: LogStore) -> SettledStore:
    """Return a changing directory's partition as a load would leave it."""
    problem = ""
    for pause in _PAUSES:
        if pause:  # even a sleep of 0 seconds yields the processor
            time.sleep(pause)
        try:
            before = store.list_files()
            files = dict(_settled(store, before))
            if _is_same(before, store.list_files()):
                after = {file.name for file in files.values()}
                return SettledStore(
                    store,
                    files,
                    growing=_last_log(files),
                    removed=frozenset(file.name for file in before if file.name not in after),
                )
        except ChangedWhileReadError as error:
            problem = str(error)
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            problem = str(error)
    expected = f"a directory that stands still for a moment, in {len(_PAUSES)} attempts"
    raise ChangedWhileReadError(
        store.location, expected, problem or "one whose files are being renamed: try again"
    )


def settled_files(store: LogStore, listing: list[FileInfo]) -> list[FileInfo]:
    """Return the files a load would leave, by a directory's listing. If every name is settled,
    nothing is opened. Errors as of ``settle``."""
    return settle(store).list_files() if is_unfinished(listing) else listing


def is_unfinished(files: Iterable[FileInfo]) -> bool:
    """Whether there are names that a load would settle, or take away."""
    return any(is_unfinished_name(file.name) for file in files)


def is_unfinished_name(name: str) -> bool:
    """Whether a load would settle a file of this name, or take it away."""
    return name.endswith(TRANSIENT_SUFFIXES) or name.startswith(SCRATCH_PREFIX)


def _settled(store: LogStore, listing: list[FileInfo]) -> Iterator[tuple[str, FileInfo]]:
    """Yield each name a load leaves, with the file of its bytes."""
    by_name = {file.name: file for file in listing}
    if not is_unfinished(listing):
        yield from by_name.items()
        return
    view = DirectoryView(SettledStore(store, by_name, growing=_last_log(by_name)))
    settle_leftovers(view)
    for name in view.names:
        yield name, by_name[view.source(name).name]


def _is_same(before: list[FileInfo], after: list[FileInfo]) -> bool:
    return [(f.name, f.identity) for f in before] == [(f.name, f.identity) for f in after]


def _is_identifying(store: LogStore) -> TypeGuard[IdentifyingStore]:
    """Whether a store can identify its files. ``isinstance`` is slower: it compares whole
    protocols."""
    return hasattr(store, "open_identified")


def _last_log(names: Iterable[str]) -> str:
    logs = (name for name in names if kind_of(name) == LOG_SUFFIX)
    return max(logs, key=lambda name: offset_of(name) or 0, default="")


# A partition in which some segments consist of pieces of other files.
#
# The pieces lie in the partition itself or in other directories. Loading a log over such a store
# says what will be there once the segments are written, before a byte is.

# A file's time is kept in nanoseconds.
_MAX_MS: Final = (2**63 - 1) // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """Bytes of a file that become part of a segment."""

    directory: SystemText  # path or URL of the file's directory; empty for the partition itself
    file: FileName
    position: Count
    size_bytes: Count
    crc: Count | None = None  # their CRC-32C; None for bytes of the partition itself

    def __post_init__(self) -> None:
        if self.directory and self.crc is None:
            raise ValueError(f"a piece of {self.directory}/{self.file} has no checksum")


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecedSegment:
    """A segment made of pieces."""

    base_offset: Count
    # Modification time of its log, epoch milliseconds.
    modified_ms: Annotated[int, whole(most=_MAX_MS)]
    pieces: tuple[FilePiece, ...]  # its bytes, in order; none for a segment that goes

    @property
    def size_bytes(self) -> int:
        """Size of its log."""
        return sum(piece.size_bytes for piece in self.pieces)


class PieceReader:
    """Ranged reads of pieces one behind the other.

    Args:
        readers: The open pieces, in order.

    Attributes:
        readers: The open pieces, in order.
    """

    def __init__(self, name: str, readers: Sequence[FileReader], files: ExitStack) -> None:
        self.name = name
        self._files = files
        self.readers = readers
        self._ends = np.cumsum([reader.size_bytes for reader in readers])
        self.size_bytes = int(self._ends[-1])

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        """Fill target from position on and return how many bytes there were."""
        filled = 0
        number = int(np.searchsorted(self._ends, position, side="right"))
        while filled < target.size and number < len(self.readers):
            reader = self.readers[number]
            start = position + filled - (int(self._ends[number]) - reader.size_bytes)
            count = reader.read_into(start, target[filled : filled + reader.size_bytes - start])
            filled += count
            if start + count < reader.size_bytes:
                break
            number += 1
        return filled

    def close(self) -> None:
        """Release the files."""
        self._files.close()


class PiecedStore(ReadOnlyStore):
    """A partition as it is with segments of pieces in place. They have no indexes.

    Args:
        store: The partition directory, without unfinished files.
    """

    def __init__(self, store: LogStore, segments: Sequence[PiecedSegment]) -> None:
        self._store = store
        self._segments: Mapping[str, PiecedSegment] = {
            log_file(segment.base_offset): segment for segment in segments if segment.pieces
        }
        self._hidden = frozenset(
            name for segment in segments for name in segment_names(segment.base_offset)
        )

    @property
    def location(self) -> str:
        """Path or URL of the directory."""
        return self._store.location

    def list_files(self) -> list[FileInfo]:
        """Return the files that there will be, sorted by name."""
        others = [file for file in self._store.list_files() if file.name not in self._hidden]
        pieced = [
            FileInfo(name, segment.size_bytes, segment.modified_ms)
            for name, segment in self._segments.items()
        ]
        return sorted(others + pieced)

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole; errors as of the store."""
        return self._store.read_file(name, limit_bytes=limit_bytes)

    def open_file(self, name: str) -> FileReader:
        """Open a file for ranged reads."""
        segment = self._segments.get(name)
        if segment is None:
            return self._store.open_file(name)
        return open_segment(self._store, segment)


def segment_names(base_offset: int) -> list[str]:
    """Return the names that the files of a segment have."""
    return [segment_file(base_offset, suffix) for suffix in SEGMENT_SUFFIXES]


def open_segment(store: LogStore, segment: PiecedSegment) -> PieceReader:
    """Open the log of a segment of pieces.

    Args:
        store: The partition directory, without unfinished files.
        segment: The segment; it has pieces.
    """
    # Each file is opened once: there may be more pieces than a process may have open files.
    files: dict[tuple[str, str], FileReader] = {}
    with ExitStack() as stack:
        for piece in segment.pieces:
            if (piece.directory, piece.file) not in files:
                reader = _open_source(store, piece)
                stack.callback(reader.close)
                files[piece.directory, piece.file] = reader
        readers = [
            _slice(store, piece, files[piece.directory, piece.file]) for piece in segment.pieces
        ]
        return PieceReader(log_file(segment.base_offset), readers, stack.pop_all())


def _open_source(store: LogStore, piece: FilePiece) -> FileReader:
    """Open the whole file of a piece."""
    if not piece.directory:
        return store.open_file(piece.file)
    return settle(open_store(piece.directory)).open_file(piece.file)


def _slice(store: LogStore, piece: FilePiece, reader: FileReader) -> FileReader:
    """Return a piece of its open file."""
    end = piece.position + piece.size_bytes
    if reader.size_bytes < end:
        raise ChangedWhileReadError(
            f"{piece.directory or store.location}/{piece.file}",
            f"at least {end} bytes",
            f"{reader.size_bytes} bytes",
        )
    return SliceReader(reader, piece.position, piece.size_bytes)


def find_crc(reader: FileReader) -> int:
    """Return the CRC-32C of a file."""
    crc = 0
    for data in read_range(reader, 0, reader.size_bytes):
        crc = crc32c.crc32c(data.data, crc)
    return crc


def write_segment(store: LogStore, segment: PiecedSegment, path: Path) -> None:
    """Write the log of a segment of pieces; sync it.

    Args:
        store: The partition directory, without unfinished files.
        segment: The segment; it has pieces.
        path: The file, replaced if it is there.
    """
    try:
        path.unlink(missing_ok=True)
        with ExitStack() as stack, os.fdopen(create_file(path), "wb") as file:
            behind = WriteBehind(file.fileno())
            source = stack.enter_context(closing(open_segment(store, segment)))
            for piece, reader in zip(segment.pieces, source.readers, strict=True):
                crc = 0
                for data in read_range(reader, 0, reader.size_bytes):
                    crc = crc32c.crc32c(data.data, crc)
                    file.write(data.data)
                    behind.reach(file.tell())
                if piece.crc is not None and crc != piece.crc:
                    raise ChangedWhileReadError(
                        f"{piece.directory}/{piece.file}",
                        f"bytes with the checksum {piece.crc:#010x} at {piece.position}",
                        f"{crc:#010x}",
                    )
            file.flush()
            os.utime(file.fileno(), ns=(segment.modified_ms * 1_000_000,) * 2)
            sync(file.fileno())
    except OSError as error:
        raise StorageError(str(path), error.strerror or str(error)) from error
