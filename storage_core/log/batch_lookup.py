"""Single batches of a log that is open for appends."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from storage_core.filenames import OFFSET_INDEX_SUFFIX, log_file, segment_file
from storage_core.formats.batch_v2 import MAX_BATCH_BYTES
from storage_core.index.offset_index import OffsetIndex
from storage_core.log.batch_search import (
    find_batch_for_offset,
    first_batch_timestamp,
    first_offset_of,
)
from storage_core.log.end_offset import MAX_INDEX_BYTES
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import Limits
from storage_core.records.reader import Window, read_whole, scan_headers
from storage_core.store.base import LogStore

_LIMITS = Limits(max_record_bytes=MAX_BATCH_BYTES, max_batch_bytes=MAX_BATCH_BYTES)


def find_first_batch_timestamp(store: LogStore, base_offset: int) -> int:
    """Return the largest timestamp of a segment's first batch, NO_TIMESTAMP without one."""
    with closing(store.open_file(log_file(base_offset))) as reader:
        return first_batch_timestamp(reader)


def find_batch_base_offset(store: LogStore, base_offsets: Sequence[int], offset: int) -> int | None:
    """Return the first offset of the batch that holds an offset or follows it, None without one.

    Args:
        store: The partition directory.
        base_offsets: Of the segments, in order.
        offset: At or above the log start offset.
    """
    floor = max((base for base in base_offsets if base <= offset), default=0)
    for base in base_offsets:
        if base >= floor:
            found = _find_in_segment(store, base, offset)
            if found is not None:
                return found
    return None


def find_first_offset(file: str, data: NDArray[np.uint8], batches: BatchTable) -> int:
    """Return the first offset of the first of some batches in memory.

    Args:
        file: What to call them in messages.
        data: uint8[], the batches.
        batches: At least one.
    """
    return first_offset_of(Window(file, 0, data, batches), 0, _LIMITS)


def _find_in_segment(store: LogStore, base_offset: int, offset: int) -> int | None:
    name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
    index = OffsetIndex.parse(base_offset, store.read_file(name, limit_bytes=MAX_INDEX_BYTES))
    with closing(store.open_file(log_file(base_offset))) as reader:
        found = find_batch_for_offset(reader, offset, start=index.look_up(offset))
        if found is None:
            return None
        windows = scan_headers(reader, start=found.position, end=found.position + found.size_bytes)
        for window in windows:
            if window.batches.is_message_set[0]:
                return first_offset_of(read_whole(reader, window), 0, _LIMITS)
            return int(window.batches.base_offset[0])
    return None
