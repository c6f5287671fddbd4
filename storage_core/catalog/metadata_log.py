"""A file of the cluster's metadata log, segment or snapshot, as batches of record values."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from storage_core.errors import CorruptClusterMetadataError, CorruptRecordError
from storage_core.records.columns import decode_records
from storage_core.records.payload import Limits
from storage_core.records.reader import CrcCheck, Large, Tail, Window, scan_windows
from storage_core.store.base import FileReader
from storage_core.store.local import LocalStore

# Controllers write batches of at most 8 MiB.
_LIMITS: Final = Limits(max_record_bytes=1 << 26, max_batch_bytes=1 << 26)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBatch:
    """One batch.

    Attributes:
        base_offset: Offset of its first record.
        last_offset: Offset of its last record.
        timestamp_ms: Largest timestamp, epoch milliseconds.
        control_type: Number of its control type, None for a batch of data.
        values: The records' values with their offsets; none of a control batch.
    """

    base_offset: int
    last_offset: int
    timestamp_ms: int
    control_type: int | None
    values: tuple[tuple[int, bytes], ...]


class MetadataFile:
    """A segment or snapshot.

    Args:
        path: The file.
        may_be_torn: Whether bytes at its end that make no whole, valid batch are what a crash
            leaves of the batch being written; else they are corruption.
    """

    def __init__(self, path: Path, *, may_be_torn: bool) -> None:
        self._path = path
        self._may_be_torn = may_be_torn
        self._torn_at: int | None = None
        self._size_bytes = 0

    @property
    def torn_at(self) -> int | None:
        """Position behind the last whole batch, if bytes follow; known when all were read."""
        return self._torn_at

    @property
    def size_bytes(self) -> int:
        """Bytes of the file; known when the batches were read."""
        return self._size_bytes

    def batches(self) -> Iterator[MetadataBatch]:
        """Yield the batches in file order.

        Raises:
            CorruptRecordError: A batch is malformed or its CRC is wrong, other than at a torn end.
            InvalidRecordError: A record inside a valid batch is malformed.
            CorruptClusterMetadataError: A record has a key, or no value.
            StorageError: The file cannot be read.
        """
        with closing(LocalStore(self._path.parent).open_file(self._path.name)) as reader:
            position = 0
            end = self._size_bytes = reader.size_bytes
            while position < end:
                try:
                    for window, row_count in self._windows(reader, position, end):
                        yield from self._decode(window, row_count)
                        if row_count < len(window.batches):
                            self._torn_at = window.position_of(row_count)
                            return
                        position = window.file_position + len(window.data)
                    end = position
                except CorruptRecordError as error:
                    if not self._may_be_torn:
                        raise
                    # Batches before the damage may not have been read yet: read up to there.
                    end = error.position
            if position < reader.size_bytes:
                self._torn_at = position

    def _windows(self, reader: FileReader, start: int, end: int) -> Iterator[tuple[Window, int]]:
        """Yield windows, each with the number of batches before the first bad CRC."""
        if not self._may_be_torn:
            for window in scan_windows(reader, start=start, end=end):
                yield window, len(window.batches)
            return
        windows = scan_windows(
            reader, start=start, end=end, crc=CrcCheck.NOTE, tail=Tail.STOP, large=Large.VALID
        )
        for window in windows:
            bad = np.flatnonzero(window.batches.crc_ok == 0)
            yield window, int(bad[0]) if bad.size else len(window.batches)

    def _decode(self, window: Window, row_count: int) -> Iterator[MetadataBatch]:
        batches = window.batches
        wanted = ~batches.is_control
        wanted[row_count:] = False
        values: dict[int, list[tuple[int, bytes]]] = {}
        for columns in decode_records(window, wanted, _LIMITS):
            rows, offsets = columns.batch.tolist(), columns.offset.tolist()
            has_key = (columns.key_length >= 0).tolist()
            pairs = zip(offsets, columns.values().to_pylist(), strict=True)
            for row, keyed, (offset, value) in zip(rows, has_key, pairs, strict=True):
                if keyed or value is None:
                    reason = "expected a record without a key and with a value"
                    raise CorruptClusterMetadataError(str(self._path), offset, reason)
                values.setdefault(row, []).append((offset, value))
        for row in range(row_count):
            is_control = bool(batches.is_control[row])
            yield MetadataBatch(
                base_offset=int(batches.base_offset[row]),
                last_offset=int(batches.last_offset[row]),
                timestamp_ms=int(batches.max_timestamp[row]),
                control_type=int(batches.control_type[row]) if is_control else None,
                values=tuple(values.get(row, ())),
            )
