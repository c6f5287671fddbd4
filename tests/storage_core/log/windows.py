"""Batches as the windows of a segment that was never on a disk."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage_core.records.reader import Window, scan_windows
from tests.kit.legacy import AnyBatch, encode_any


class BytesReader:
    """A file that is a string of bytes."""

    name = "00000000000000000000.log"

    def __init__(self, data: bytes) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self.size_bytes = len(data)

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        piece = self._data[position : position + target.size]
        target[: piece.size] = piece
        return piece.size

    def close(self) -> None: ...


def windows_of(batches: Sequence[AnyBatch], **settings: Any) -> Iterator[Window]:
    """Scan batches; settings are those of scan_windows."""
    return scan_windows(BytesReader(b"".join(map(encode_any, batches))), **settings)
