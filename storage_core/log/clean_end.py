"""Read the end of a cleanly closed log by few requests.

Loading a log tells more than that: damage, what a broker would repair, transactions that are open.
Of most logs there is none of it, and then the end is all that a load would add to a listing. The
rules are the loader's own, and so are the functions that read.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from storage_core.checkpoint.checkpoint_files import MAX_LEADER_EPOCH_BYTES
from storage_core.errors import PylogError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY
from storage_core.index.segment_indexes import WARM_BYTES, OffsetIndex
from storage_core.index.transaction_index import parse_transaction_index
from storage_core.local_files import open_in, read_limited
from storage_core.log.batch_search import MAX_INDEX_BYTES, next_offset_in
from storage_core.log.loading_log import parse_epochs
from storage_core.log.producer_snapshot import MAX_SNAPSHOT_BYTES, parse_snapshot_table
from storage_core.store.local import LocalFileReader

# The entries with which Kafka's search begins, and the one before them.
_NEWEST_ENTRY_BYTES: Final = WARM_BYTES + OFFSET_INDEX_ENTRY.itemsize


def read_clean_end(
    folder: int, directory: Path, *, bases: tuple[int, int], log_start: int, others: Collection[str]
) -> int | None:
    """Return the log end offset of a cleanly closed log. None if only a load of the log can tell.

    Whoever gets none has to load the log. What lies in segments before the newest is not looked at.

    Args:
        folder: The partition directory, open; its segments have offset and time indexes.
        bases: The base offsets of the oldest and of the newest segment.
        log_start: The partition's entry in the log-start checkpoint, 0 without one.
    """
    oldest, newest = bases
    snapshot = max((name for name in others if name.endswith(SNAPSHOT_SUFFIX)), default=None)
    try:
        for name in others:
            if name.endswith(TXN_INDEX_SUFFIX):
                # Entries that make a load recover or fail are refused.
                with _opened(folder, name) as descriptor:
                    data = read_limited(descriptor, MAX_INDEX_BYTES)
                parse_transaction_index(name, offset_of(name) or 0, data)
        if LEADER_EPOCH_FILE in others:
            with _opened(folder, LEADER_EPOCH_FILE) as descriptor:
                parse_epochs(read_limited(descriptor, MAX_LEADER_EPOCH_BYTES))
        index = _read_newest_entries(folder, newest)
        if index is None:
            return None
        name = log_file(newest)
        with closing(LocalFileReader(directory, name, open_in(folder, name))) as reader:
            end = next_offset_in(reader, index)
    except PylogError:
        return None
    start = max(oldest, log_start)
    if end < start or not _has_settled_producers(folder, snapshot, start=start, end=end):
        return None
    return end


def _read_newest_entries(folder: int, base_offset: int) -> OffsetIndex | None:
    """Return an offset index, or the end that a search looks at.

    None if entries are out of order, so that the search goes elsewhere, or the file was cut
    meanwhile.
    """
    entry_bytes = OFFSET_INDEX_ENTRY.itemsize
    with _opened(folder, segment_file(base_offset, OFFSET_INDEX_SUFFIX)) as descriptor:
        whole = os.fstat(descriptor).st_size // entry_bytes * entry_bytes
        wanted = min(whole, _NEWEST_ENTRY_BYTES)
        content = os.pread(descriptor, wanted, whole - wanted) if wanted else b""
    if len(content) < wanted:
        return None  # it has been cut since
    index = OffsetIndex.parse(base_offset, content)
    if wanted < whole:
        offsets = index.entries["relative_offset"]
        return index if offsets[0] < offsets[-1] else None
    return index


def _has_settled_producers(folder: int, snapshot: str | None, *, start: int, end: int) -> bool:
    """Whether the newest snapshot suffices for a load, without open transactions."""
    if snapshot is None:
        return True  # after a clean shutdown there were no producers then
    at = offset_of(snapshot)
    if at is None or at > end:
        return False
    if at <= start:
        return start == end  # it is removed, and a replay follows
    if at < end:
        return False
    with _opened(folder, snapshot) as descriptor:
        return not _has_open_transaction(read_limited(descriptor, MAX_SNAPSHOT_BYTES))


def _has_open_transaction(content: bytes) -> bool:
    """Whether a snapshot has an open transaction, or cannot be read."""
    try:
        table = parse_snapshot_table("", content)
    except PylogError:
        return True
    return bool((table["current_txn_first_offset"] >= 0).any())


@contextmanager
def _opened(folder: int, name: str) -> Iterator[int]:
    descriptor = open_in(folder, name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
