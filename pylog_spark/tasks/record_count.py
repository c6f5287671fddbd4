"""How many records segments hold: by the headers of their batches, opened only where they must be.

Before message format v2 a compressed message does not say how many it holds.
"""

from collections.abc import Iterable
from contextlib import closing
from typing import Final

from storage_core.formats.batch_v2 import Codec
from storage_core.records.payload import Limits, open_batches
from storage_core.records.reader import CrcCheck, Tail, Window, scan_windows
from storage_core.store import LogStore

_WINDOW_BYTES: Final = 8 * 1024 * 1024
# The largest record that Kafka can hold, and CleanerConfig's limit of a decompressed batch.
_LIMITS: Final = Limits(max_record_bytes=2**31 - 9, max_batch_bytes=536_870_912)


def count_records(store: LogStore, files: Iterable[str]) -> int:
    """Return the number of records in .log files, control records included.

    What follows the last whole batch is not counted.

    Raises:
        BadBytesError: A length in a batch's header cannot be, or a compressed message of a format
            before v2 cannot be opened.
        StorageError: A file cannot be read.
    """
    count = 0
    for name in files:
        with closing(store.open_file(name)) as reader:
            for window in scan_windows(
                reader, window_bytes=_WINDOW_BYTES, crc=CrcCheck.SKIP, tail=Tail.STOP
            ):
                count += _count_in(window)
    return count


def _count_in(window: Window) -> int:
    batches = window.batches
    is_legacy = batches.is_legacy
    is_set = is_legacy & (batches.codec != Codec.NONE)
    count = int(batches.record_count[~is_legacy].sum()) + int((is_legacy & ~is_set).sum())
    row = 0
    while is_set[row:].any():
        payload = open_batches(window, is_set, row, _LIMITS)
        here = slice(row, payload.end_row)
        count += int(payload.batches.record_count[here][is_set[here]].sum())
        row = payload.end_row
    return count
