"""The segments of a loaded log as their small files describe them."""

from contextlib import closing

from storage_core.errors import CorruptRecordError
from storage_core.filenames import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    log_file,
    segment_file,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.time_index import TimeIndex
from storage_core.index.transaction_index import AbortedTxn, parse_transaction_index
from storage_core.log.batch_search import first_batch_timestamp
from storage_core.log.directory_view import DirectoryView
from storage_core.log.end_offset import MAX_INDEX_BYTES
from storage_core.log.log_segment import SegmentState


def read_aborted(view: DirectoryView, base_offset: int) -> tuple[AbortedTxn, ...]:
    """Return the transaction index of a segment.

    Raises:
        IndexVersionError: An entry has an unknown version.
        CorruptIndexError: An entry ends below the segment.
    """
    name = segment_file(base_offset, TXN_INDEX_SUFFIX)
    data = view.read(name, limit_bytes=MAX_INDEX_BYTES) if name in view else b""
    return parse_transaction_index(name, base_offset, data)


def describe_segment(
    view: DirectoryView, base_offset: int, *, needs_first_timestamp: bool
) -> SegmentState:
    """Return what a segment's listing and indexes say.

    Args:
        view: The partition directory; the segment has its indexes.
        base_offset: Of the segment.
        needs_first_timestamp: Whether its first batch has to be read for it.

    Raises:
        CorruptIndexError: As `read_aborted`.
        StorageError: The store failed.
    """
    log_name = log_file(base_offset)
    time_name = segment_file(base_offset, TIME_INDEX_SUFFIX)
    times = TimeIndex.parse(base_offset, view.read(time_name, limit_bytes=MAX_INDEX_BYTES))
    log = view.source(log_name)
    index = view.source(segment_file(base_offset, OFFSET_INDEX_SUFFIX))
    entry_bytes = OFFSET_INDEX_ENTRY.itemsize
    return SegmentState(
        base_offset=base_offset,
        log_file=log.name,
        offset_index_file=index.name,
        size_bytes=log.size_bytes,
        modified_ms=log.modified_ms,
        offset_index_bytes=index.size_bytes // entry_bytes * entry_bytes,
        time_index_bytes=len(times.entries) * TIME_INDEX_ENTRY.itemsize,
        max_timestamp=times.last_timestamp,
        first_batch_timestamp=(
            _first_batch_timestamp(view, log_name) if needs_first_timestamp else NO_TIMESTAMP
        ),
        aborted=read_aborted(view, base_offset),
        has_txn_index=segment_file(base_offset, TXN_INDEX_SUFFIX) in view,
    )


def _first_batch_timestamp(view: DirectoryView, log_name: str) -> int:
    """Return the largest timestamp of a segment's first batch, NO_TIMESTAMP without one.

    A segment that begins with something else is loaded all the same: nobody may ever ask for it.
    """
    with closing(view.open(log_name)) as reader:
        try:
            return first_batch_timestamp(reader)
        except CorruptRecordError:
            return NO_TIMESTAMP
