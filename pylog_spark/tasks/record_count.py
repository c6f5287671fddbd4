"""How many records segments hold: those that nothing else reads."""

from collections.abc import Iterable
from contextlib import closing
from typing import Final

from storage_core.errors import BadBytesError
from storage_core.records.payload import count_records_in
from storage_core.records.reader import Tail, read_whole, scan_headers
from storage_core.store import LogStore

_WINDOW_BYTES: Final = 8 * 1024 * 1024


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
            for window in scan_headers(reader, window_bytes=_WINDOW_BYTES, tail=Tail.ZEROS):
                is_opened = window.batches.is_message_set.any()
                count += count_records_in(read_whole(reader, window) if is_opened else window)
    return count


def count_if_readable(store: LogStore, files: Iterable[str]) -> int | None:
    """Count the records of segments that a round does not read; None where they are damaged.

    Damage there is no business of that round, and not known to it: the counts stay unknown then.

    Raises:
        StorageError: A file cannot be read.
    """
    try:
        return count_records(store, files)
    except BadBytesError:
        return None
