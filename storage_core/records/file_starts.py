"""List partition directories and read parts of their files, of one directory or of many at once."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    SEGMENT_FILE_SUFFIXES,
)
from storage_core.formats.batch_v2 import HEADER_BYTES
from storage_core.kernels import file_starts as kernel
from storage_core.kernels._intrinsics import system_functions
from storage_core.kernels.batch_scan import COLUMN_COUNT, scan_stretches
from storage_core.kernels.file_starts import FACTS_WORDS, FUNCTIONS, read_files
from storage_core.local_files import CAREFUL
from storage_core.records.batch_table import BatchTable
from storage_core.store.base import HoldableStore, LogStore
from storage_core.store.folder_entries import c_strings

# None on a system that lacks one of them.
_FUNCTIONS: Final = system_functions(FUNCTIONS)
_LISTING: Final = system_functions(kernel.LISTING_FUNCTIONS)
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
# The names in a plain partition directory; the first ones with an offset in front.
KINDS: Final = (*SEGMENT_FILE_SUFFIXES, LEADER_EPOCH_FILE, PARTITION_METADATA_FILE)
LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, EPOCHS, METADATA = range(len(KINDS))
_NUMBERED: Final = len(SEGMENT_FILE_SUFFIXES)
_LONGEST: Final = max(map(len, KINDS)) + 1
_KNOWN: Final = np.array([list(name.encode().ljust(_LONGEST, b"\0")) for name in KINDS], np.uint8)
_LISTED_BYTES: Final = 1 << 15
_MOST_FILES: Final = 1 << 16

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFiles:
    """The files of folders by folder, kind and offset; logs are the last ones of a folder."""

    is_listed: NDArray[np.bool_]  # by folder; where false, it has no files here
    folders: Numbers  # of each file
    kinds: Numbers  # which of KINDS
    offsets: Numbers  # 0 of a kind without

    def of(self, is_wanted: NDArray[np.bool_]) -> "FolderFiles":
        """Return the files of some folders, which are numbered anew."""
        numbers = np.cumsum(is_wanted) - 1
        is_one = is_wanted[self.folders]
        return FolderFiles(
            is_listed=self.is_listed[is_wanted],
            folders=numbers[self.folders[is_one]],
            kinds=self.kinds[is_one],
            offsets=self.offsets[is_one],
        )

    def have(self, is_one: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return by folder whether it has such a file."""
        have: NDArray[np.bool_] = np.zeros(len(self.is_listed), np.bool_)
        have[self.folders[is_one]] = True
        return have

    def parts(self, rows: Numbers | None = None, *, most_bytes: int) -> Numbers:
        """Return what is wanted of files, all by default: their first bytes."""
        columns = np.stack([self.folders, self.kinds, self.offsets])
        parts = np.zeros(
            (kernel.PART_COLUMNS, len(self.kinds) if rows is None else len(rows)), np.int64
        )
        parts[: kernel.FILE_COLUMNS] = columns if rows is None else columns[:, rows]
        parts[kernel.MOST_BYTES] = most_bytes
        return parts

    @property
    def is_newest(self) -> NDArray[np.bool_]:
        """Of each file whether its folder has none of its kind with a larger offset."""
        is_one = np.ones(len(self.folders), np.bool_)
        is_one[:-1] = (np.diff(self.folders) != 0) | (np.diff(self.kinds) != 0)
        return is_one


class FoundParts:
    """What was read of files, by part; the length of one that was not read is -1."""

    def __init__(self, room: NDArray[np.uint8], found: Numbers) -> None:
        self.room, self._found = room, found
        self.starts, self.lengths, self.sizes, self.users, self.modes, self.positions = found

    @cached_property
    def _bytes(self) -> bytes:
        return self.room.tobytes()

    def of(self, is_wanted: NDArray[np.bool_]) -> "FoundParts":
        """Return some of the parts."""
        return FoundParts(self.room, self._found[:, is_wanted])

    def content(self, part: int) -> bytes:
        """Return the bytes of a part that was read."""
        start = int(self.starts[part])
        return self._bytes[start : start + int(self.lengths[part])]

    def bytes_of(self, rows: Numbers) -> NDArray[np.uint8]:
        """Return the bytes of some parts, one part after the other."""
        lengths = np.maximum(self.lengths[rows], 0)
        ends = np.cumsum(lengths)
        at = np.arange(ends[-1] if len(ends) else 0)
        found: NDArray[np.uint8] = self.room[
            at + np.repeat(self.starts[rows] - ends + lengths, lengths)
        ]
        return found

    def entries(self, rows: Numbers, entry: np.dtype[Any]) -> NDArray[np.void]:
        """Return the entries in some parts, one part after the other: entry[m]."""
        return self.bytes_of(rows).view(entry)


class FoundBatches:
    """The batches in some parts that were read."""

    def __init__(self, parts: FoundParts, rows: Numbers) -> None:
        lengths = np.maximum(parts.lengths[rows], 0)
        columns = np.empty((COLUMN_COUNT, int(lengths.sum()) // HEADER_BYTES + 1), np.int64)
        ends, self.statuses = np.empty((2, len(rows)), np.int64)
        count = scan_stretches(
            parts.room, parts.starts[rows], lengths, columns, ends, self.statuses
        )
        self.table = BatchTable(columns[:, :count])
        # Of each batch the number of its part, and whether it is the first one there.
        self.owners = np.repeat(np.arange(len(rows)), np.diff(ends, prepend=0))
        self.is_first = np.diff(self.owners, prepend=-1) != 0


class Folders:
    """Many plain partition directories on local disks, which machine code lists and reads.

    A folder that is a link, a file that is none, another user's file: whatever ``local_files``
    looks at closely is not listed or read here.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths, path_at = c_strings((*paths, ""))
        self._path_at = path_at[:-1]

    def list_files(self) -> FolderFiles:
        """List all folders."""
        is_listed = np.zeros(len(self._path_at), np.uint8)
        tables = [np.zeros((kernel.FILE_COLUMNS, 0), np.int64)]
        first = 0
        while _LISTING is not None and first < len(is_listed):
            table = np.empty((kernel.FILE_COLUMNS, _MOST_FILES), np.int64)
            done, count = kernel.list_folders(
                _LISTING,
                _FOLDER,
                self._paths,
                self._path_at[first:],
                _KNOWN,
                _NUMBERED,
                np.empty(_LISTED_BYTES // 8, np.uint64).view(np.uint8),
                is_listed[first:],
                table,
            )
            table[kernel.FOLDER] += first
            tables.append(table[:, :count])
            first += done
        files = np.concatenate(tables, axis=1)
        folders, kinds, offsets = files
        order = np.lexsort((offsets, -kinds, folders))
        folders, kinds, offsets = files[:, order]
        return FolderFiles(
            is_listed=is_listed.view(np.bool_), folders=folders, kinds=kinds, offsets=offsets
        )

    def read(self, parts: Numbers, *, most_of_folder: int) -> FoundParts:
        """Read parts of files.

        Args:
            parts: int64[PART_COLUMNS, n], columns as of the kernel. Before a part BY_ENTRY stands
                the index of its folder.
            most_of_folder: How many bytes are read of a folder at most.
        """
        # Those of a folder stand side by side.
        order = np.argsort(parts[kernel.FOLDER], kind="stable")
        table = np.take(parts, order, axis=1)
        found = np.zeros((kernel.FOUND_COLUMNS, len(order)), np.int64)
        of_all = len(self._path_at) * most_of_folder
        room = np.empty(min(of_all, int(table[kernel.MOST_BYTES].sum())), np.uint8)
        used = 0
        if _FUNCTIONS is None:
            found[kernel.LENGTH] = -1
        else:
            used = kernel.read_parts(
                _FUNCTIONS,
                _FOLDER,
                os.O_RDONLY | CAREFUL,
                self._paths,
                self._path_at,
                _KNOWN,
                _NUMBERED,
                table,
                most_of_folder,
                np.empty(20 + _LONGEST, np.uint8),
                np.empty(FACTS_WORDS, np.uint32),
                room,
                found,
            )
        as_asked = np.empty_like(found)
        as_asked[:, order] = found
        return FoundParts(room[:used].copy(), as_asked)


def read_starts(
    store: LogStore, files: Sequence[str], room: NDArray[np.uint8], bounds: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Read the starts of files at one call of machine code.

    Args:
        room: uint8[k], out: what was read.
        bounds: int64[n + 1], rising, within the room: where each file's bytes begin and end, at
            most. Behind the end of a shorter file the room is left as it was.

    Returns:
        int64[n], how long each file is. None where one has to be opened by ``store.open_file``,
        which knows every case.
    """
    if _FUNCTIONS is None or not files or not isinstance(store, HoldableStore):
        return None
    names, name_at = c_strings(files)
    sizes = np.zeros(len(files), np.int64)
    try:
        with store.folder() as folder:
            count = read_files(
                _FUNCTIONS,
                folder,
                os.fstat(folder).st_uid,
                os.O_RDONLY | CAREFUL,
                names,
                name_at,
                room,
                bounds,
                np.zeros(FACTS_WORDS, np.uint32),
                sizes,
            )
    except OSError:
        return None
    return sizes if count == len(files) else None
