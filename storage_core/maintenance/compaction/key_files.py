"""Store key entries and arrays in scratch files, mapped into memory. They are for processes of one
host.

A *stream* is a file of rows ``uint64[n, columns]``, appended to block by block and mapped when it
is complete. A *set* is a file of named arrays with a few facts: a line of JSON that says where
each array begins, then the arrays, each at a multiple of 64 bytes. Both live no longer than the
wave that made them, on the host that made them: bytes are in the machine's own order, nothing is
synced.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import StorageError
from storage_core.json_text import parse_json
from storage_core.local_files import create_file, open_file

_ALIGNMENT: Final = 64
_MAX_HEAD_BYTES: Final = 16 << 20  # facts of one set, and a line for each of its arrays
# What a reader takes out of a mapped stream at a time: 24 MiB of 24-byte rows.
BLOCK_ROWS: Final = 1 << 20

T = TypeVar("T")


class _NewFile:
    """A file that is created; a context manager that closes it."""

    def __init__(self, path: Path, columns: int) -> None:
        self._path = path
        self._columns = columns
        self._file = _failing_as_storage(path, lambda: os.fdopen(create_file(path), "rb+"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class StreamWriter(_NewFile):
    """Appends rows to a stream."""

    rows = 0

    def append(self, *columns: NDArray[Any]) -> None:
        """Append rows given as columns of 64-bit numbers, all of one length."""
        rows = np.empty((len(columns[0]), self._columns), np.uint64)
        for number, column in enumerate(columns):
            rows[:, number] = column.view(np.uint64)
        _failing_as_storage(self._path, lambda: self._file.write(rows.data))
        self.rows += len(rows)


def read_stream(path: Path, columns: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the rows of a complete stream in blocks, copied by columns.

    Yields:
        uint64[columns, n], n at most BLOCK_ROWS; a row of it is contiguous.
    """
    mapped = _map(path, np.uint64, (-1, columns))
    for first in range(0, len(mapped), BLOCK_ROWS):
        yield np.ascontiguousarray(mapped[first : first + BLOCK_ROWS].T)


def write_set(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays and facts (as JSON) to a file."""
    described = [[name, str(array.dtype), list(array.shape)] for name, array in arrays.items()]
    head = json.dumps({"facts": facts, "arrays": described}).encode() + b"\n"

    def write() -> None:
        with os.fdopen(create_file(path), "wb") as file:
            file.write(head)
            for array in arrays.values():
                file.write(bytes(-file.tell() % _ALIGNMENT))
                file.write(np.ascontiguousarray(array).data)

    _failing_as_storage(path, write)


def map_set(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the facts and arrays of a file, mapped into memory. The arrays' bytes stay in the page
    cache.

    A change of an array is seen by nobody else, and not written back.
    """
    mapped = _map(path, np.uint8, (-1,))
    end = _failing_as_storage(path, lambda: _end_of_line(path))
    head = parse_json(mapped[:end].tobytes(), limit_bytes=_MAX_HEAD_BYTES)
    arrays: dict[str, NDArray[Any]] = {}
    position = end
    for name, kind, shape in head["arrays"]:
        position += -position % _ALIGNMENT
        size = int(np.dtype(kind).itemsize * np.prod(shape, dtype=np.int64))
        arrays[name] = mapped[position : position + size].view(kind).reshape(shape)
        position += size
    return head["facts"], arrays


class FiledTable(_NewFile):
    """A table's memory in a file instead of the process."""

    def extend(self, slots: int) -> NDArray[np.uint64]:
        """Extend the table to so many rows, with zeros behind. It keeps the rows that it has."""

        def extend() -> NDArray[np.uint64]:
            size = slots * self._columns * np.dtype(np.uint64).itemsize
            # With its blocks: a disk that is full is an error here, and a dead process later.
            os.posix_fallocate(self._file.fileno(), 0, size)
            table = np.memmap(self._file, np.uint64, "r+", shape=(slots, self._columns))
            return np.asarray(table)

        return _failing_as_storage(self._path, extend)


def map_table(path: Path, columns: int) -> NDArray[np.uint64]:
    """Map the current table of a `FiledTable`; changes stay in this process."""
    return _map(path, np.uint64, (-1, columns))


def _map(path: Path, kind: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    def open_mapped() -> NDArray[Any]:
        with os.fdopen(open_file(path), "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty([max(0, size) for size in shape], kind)
            # Copy on write: kernels are compiled for arrays that can be written.
            return np.asarray(np.memmap(file, kind, "c")).reshape(shape)

    return _failing_as_storage(path, open_mapped)


def _end_of_line(path: Path) -> int:
    with os.fdopen(open_file(path), "rb") as file:
        return len(file.readline(_MAX_HEAD_BYTES + 1))


def _failing_as_storage(path: Path, step: Callable[[], T]) -> T:
    try:
        return step()
    except OSError as error:
        raise StorageError(str(path), error.strerror or str(error)) from error
