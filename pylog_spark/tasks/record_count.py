"""How many records segments hold, by the headers of their batches."""

from collections.abc import Iterable
from contextlib import closing
from typing import Final

from storage_core.records.reader import CrcCheck, Tail, scan_windows
from storage_core.store import LogStore

_WINDOW_BYTES: Final = 8 * 1024 * 1024


def count_records(store: LogStore, files: Iterable[str]) -> int:
    """Return the number of records in .log files, control records included.

    Headers alone are looked at, and what follows the last whole batch is not counted.

    Raises:
        BadBytesError: A length in a batch's header cannot be.
        StorageError: A file cannot be read.
    """
    count = 0
    for name in files:
        with closing(store.open_file(name)) as reader:
            for window in scan_windows(
                reader, window_bytes=_WINDOW_BYTES, crc=CrcCheck.SKIP, tail=Tail.STOP
            ):
                count += int(window.batches.record_count.sum())
    return count
