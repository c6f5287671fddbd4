"""What there is in the bytes that recovery cuts: batches that can still be read among them."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from storage_core.errors import CorruptRecordError
from storage_core.formats.batch_v2 import BATCH_LENGTH_AT, LENGTH_OVERHEAD
from storage_core.log.loaded_log import Cut
from storage_core.records.batch_table import BatchTable
from storage_core.records.reader import CrcCheck, Large, Tail, scan_windows
from storage_core.store.base import FileReader, LogStore


def lost_batches(store: LogStore, cut: Cut) -> Iterator[tuple[int, BatchTable]]:
    """Yield the whole batches with a right checksum in what is cut, in file order.

    After a batch that is none the search goes on where its length says that the next one begins;
    where that leads nowhere, the rest of the file has no batch that anybody could find for sure.

    Args:
        store: The partition directory.
        cut: A stretch of one of its files.

    Yields:
        (position, batches): where in the file the batches' positions count from, and the batches.

    Raises:
        StorageError: The store failed.
    """
    end = cut.position + cut.size_bytes
    with closing(store.open_file(cut.file)) as reader:
        position: int | None = cut.position
        while position is not None and position < end:
            after = position
            try:
                for window in scan_windows(
                    reader,
                    start=position,
                    end=end,
                    crc=CrcCheck.NOTE,
                    tail=Tail.STOP,
                    large=Large.HEADER,
                ):
                    after = window.file_position + window.data.size
                    good = np.flatnonzero(window.batches.crc_ok == 1)
                    if good.size:
                        columns = window.batches.columns[:, good]
                        yield window.file_position, BatchTable(columns)
            except CorruptRecordError:
                pass
            position = _next_start(reader, after, end)


def count_lost_records(store: LogStore, cut: Cut) -> int:
    """Return how many records the readable batches in a cut have; a legacy wrapper counts as one.

    Raises:
        StorageError: The store failed.
    """
    return sum(int(batches.counted_records.sum()) for _, batches in lost_batches(store, cut))


def _next_start(reader: FileReader, position: int, end: int) -> int | None:
    """Return where the batch at a position that could not be read says that it ends, else None."""
    field = np.empty(LENGTH_OVERHEAD, np.uint8)
    if reader.read_into(position, field) < LENGTH_OVERHEAD:
        return None
    length = int.from_bytes(field[BATCH_LENGTH_AT:].tobytes(), "big", signed=True)
    after = position + LENGTH_OVERHEAD + length
    return after if length > 0 and after < end else None
