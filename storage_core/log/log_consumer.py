"""What a consumer gets to see of a log at rest, fetch by fetch, as columns of batches."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage_core.log.isolation import ReadCommitted
from storage_core.log.log_reader import Isolation, LogReader
from storage_core.records.reader import DEFAULT_WINDOW_BYTES, Tail, Window, scan_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedWindow:
    """Some batches in file order.

    Attributes:
        window: The batches and their bytes; valid until the next one is asked for.
        visible: bool[batches], which of them a consumer sees.
        first_offset: Records of the first batch below it were not asked for.
    """

    window: Window
    visible: NDArray[np.bool_]
    first_offset: int


def consume(
    reader: LogReader, start_offset: int, *, isolation: Isolation, max_bytes: int
) -> Iterator[ConsumedWindow]:
    """Read a log from an offset to where the isolation ends.

    Control batches are never visible; to a committed read the data of aborted transactions is not
    either.

    Args:
        reader: The log.
        start_offset: From the log start to the log end.
        isolation: How far to read.
        max_bytes: How much to fetch at a time; a larger batch comes whole.

    Raises:
        OffsetOutOfRangeError: The log does not have the offset.
        CorruptRecordError: A batch that is read is damaged.
        StorageError: The store failed.
    """
    offset = start_offset
    while True:
        fetch = reader.read(offset, max_bytes=max_bytes, isolation=isolation, min_one_message=True)
        if fetch.size_bytes == 0:
            return
        committed = ReadCommitted(fetch.aborted)
        next_offset = offset
        with closing(reader.store.open_file(fetch.file)) as file:
            for window in scan_windows(
                file,
                start=fetch.position,
                end=fetch.position + fetch.size_bytes,
                # A batch that is larger comes whole, if its CRC is right.
                window_bytes=min(fetch.size_bytes, DEFAULT_WINDOW_BYTES),
                tail=Tail.STOP,
            ):
                batches = window.batches
                visible = ~batches.is_control
                if isolation is Isolation.READ_COMMITTED:
                    visible = committed.visible(batches)
                next_offset = int(batches.last_offset[-1]) + 1
                yield ConsumedWindow(window=window, visible=visible, first_offset=offset)
        if next_offset <= offset:  # the bound cut the only batch: nothing whole is left
            return
        offset = next_offset
