"""An index file, which may be long and all holes, piece by piece for who goes through it once."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import StorageError
from storage_core.store.base import LogStore

# Most indexes are one piece: on an object store each is a request.
_PIECE_BYTES: Final = 4 << 20


def read_entries(
    store: LogStore, name: str, entry: np.dtype[Any], *, limit_bytes: int
) -> Iterator[NDArray[np.void]]:
    """Yield the entries of an index in their order; a tail shorter than an entry is left out.

    Args:
        store: The partition directory.
        name: Of the file.
        entry: What it is made of.
        limit_bytes: The most that the file may have.

    Yields:
        entry[n], n > 0, valid until the next piece is asked for.

    Raises:
        StorageError: It cannot be read, or is longer than limit_bytes.
    """
    with closing(store.open_file(name)) as reader:
        if reader.size_bytes > limit_bytes:
            reason = f"is longer than the {limit_bytes} bytes it may have: {reader.size_bytes}"
            raise StorageError(f"{store.location}/{name}", reason)
        end = reader.size_bytes - reader.size_bytes % entry.itemsize
        piece_bytes = _PIECE_BYTES - _PIECE_BYTES % entry.itemsize
        buffer = np.empty(min(end, piece_bytes), np.uint8)
        position = 0
        while position < end:
            filled = reader.read_into(position, buffer[: end - position])
            filled -= filled % entry.itemsize
            if not filled:  # it is shorter by now
                return
            yield buffer[:filled].view(entry)
            position += filled
