"""A partition in which some segments consist of pieces of other files.

The pieces lie in the partition itself or in other directories. Loading a log over such a store says
what will be there once the segments are written, before a byte is.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import crc32c
import numpy as np
from numpy.typing import NDArray

from storage_core.errors import ChangedWhileReadError, StorageError
from storage_core.filenames import SEGMENT_SUFFIXES, log_file, segment_file
from storage_core.json_values import Count, FileName, SystemText, whole
from storage_core.local_files import create_file
from storage_core.log.directory_view import SliceReader
from storage_core.log.settled_store import settle
from storage_core.store import open_store
from storage_core.store.base import FileInfo, FileReader, LogStore, ReadOnlyStore, read_range
from storage_core.turns import sync
from storage_core.write_behind import WriteBehind

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
