"""Single batches of a log that is open for appends."""

from collections.abc import Sequence
from contextlib import closing
from typing import Final

import numpy as np

from storage_core.filenames import OFFSET_INDEX_SUFFIX, log_file, segment_file
from storage_core.formats.batch_v2 import MAX_BATCH_BYTES, NO_TIMESTAMP, Codec
from storage_core.index.offset_index import OffsetIndex
from storage_core.log.end_offset import MAX_INDEX_BYTES
from storage_core.records.payload import Limits, open_batches
from storage_core.records.reader import CrcCheck, Tail, Window, scan_windows
from storage_core.store.base import LogStore

_WINDOW_BYTES: Final = 1 << 20


def find_first_batch_timestamp(store: LogStore, base_offset: int) -> int:
    """Return the largest timestamp of a segment's first batch, NO_TIMESTAMP without one."""
    with closing(store.open_file(log_file(base_offset))) as reader:
        windows = scan_windows(
            reader,
            window_bytes=1,  # it grows to the one batch
            crc=CrcCheck.SKIP,
            tail=Tail.STOP,
        )
        for window in windows:
            return int(window.batches.max_timestamp[0])
    return NO_TIMESTAMP


def find_batch_base_offset(
    store: LogStore, base_offsets: Sequence[int], offset: int
) -> int | None:
    """Return the first offset of the first batch that reaches an offset, None without one.

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


def _find_in_segment(store: LogStore, base_offset: int, offset: int) -> int | None:
    name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
    index = OffsetIndex.parse(base_offset, store.read_file(name, limit_bytes=MAX_INDEX_BYTES))
    with closing(store.open_file(log_file(base_offset))) as reader:
        windows = scan_windows(
            reader,
            start=index.look_up(offset),
            window_bytes=_WINDOW_BYTES,
            crc=CrcCheck.SKIP,
            tail=Tail.STOP,
        )
        for window in windows:
            reaching = (window.batches.last_offset >= offset).nonzero()[0]
            if reaching.size:
                return _first_offset(window, int(reaching[0]))
    return None


def _first_offset(window: Window, row: int) -> int:
    batches = window.batches
    if not batches.is_legacy[row] or batches.codec[row] == Codec.NONE:
        return int(batches.base_offset[row])
    # A compressed legacy message tells it only when it is opened.
    wanted = np.zeros(len(batches), np.bool_)
    wanted[row] = True
    limits = Limits(max_record_bytes=MAX_BATCH_BYTES, max_batch_bytes=MAX_BATCH_BYTES)
    return int(open_batches(window, wanted, row, limits).batches.base_offset[row])
