"""Truncate a loaded log to an offset, with all its files."""

import errno
import operator
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from storage_core.checkpoint.checkpoints import MAX_LEADER_EPOCH_BYTES
from storage_core.errors import CorruptIndexError, IndexFullError, PylogError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.formats.batch_v2 import HEADER_BYTES, MAGIC_V2
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import (
    WARM_BYTES,
    OffsetIndex,
    TimeIndex,
    encode_transaction_index,
    parse_transaction_index,
    truncate_aborted,
    truncate_offset_index,
    truncate_time_index,
)
from storage_core.kernels import batch_scan
from storage_core.kernels.batch_scan import COLUMN_COUNT, DONE, check_crcs, scan_batches
from storage_core.local_files import OpenFolder, facts_in, open_with_facts
from storage_core.log.batch_search import (
    MAX_INDEX_BYTES,
    find_position,
    next_offset_in,
    read_offset_index,
)
from storage_core.log.loaded_log import FollowerEnd, read_aborted
from storage_core.log.loading_log import LoadingLog, parse_epochs
from storage_core.log.producer_snapshot import MAX_SNAPSHOT_BYTES, parse_snapshot_table
from storage_core.records.reader import scan_headers
from storage_core.store.local import LocalFileReader

# Read the end of a cleanly closed log by few requests.
#
# Loading a log tells more than that: damage, what a broker would repair, transactions that are
# open. Of most logs there is none of it, and then the end is all that a load would add to a
# listing. The rules are the loader's own, and so are the functions that read.

# The entries with which Kafka's search begins, and the one before them.
NEWEST_ENTRIES: Final = WARM_BYTES // OFFSET_INDEX_ENTRY.itemsize + 1
# Behind the last entry of an offset index there are usually less than 4 KiB and a batch.
_MOST_TAIL_BYTES: Final = 1 << 16
_MOST_TAIL_BATCHES: Final = 128
_ENTRIES_OF: Final = {
    OFFSET_INDEX_SUFFIX: OFFSET_INDEX_ENTRY,
    TIME_INDEX_SUFFIX: TIME_INDEX_ENTRY,
}
_OF_LAST_BATCHES: Final = (
    batch_scan.MAGIC,
    batch_scan.SIZE,
    batch_scan.BASE_OFFSET,
    batch_scan.LAST_OFFSET,
)


def read_clean_end(
    folder: OpenFolder,
    directory: str | Path,
    *,
    bases: tuple[int, int],
    log_start: int,
    others: Collection[str],
    most_index_bytes: int = MAX_INDEX_BYTES,
) -> int | None:
    """Return the end of a cleanly closed log: the offset of its next record. None if only a load of
    the log can tell, or there are open transactions.

    Whoever gets none has to load the log. What lies in segments before the newest is not looked at.

    Args:
        folder: The partition directory, open; its segments have offset and time indexes.
        bases: The base offsets of the oldest and of the newest segment.
        log_start: The partition's entry in the log-start checkpoint, 0 without one.
        most_index_bytes: ``segment.index.bytes``, to which a broker resizes the newest indexes.
    """
    oldest, newest = bases
    snapshot = None
    try:
        for name in others:
            if name.endswith(TXN_INDEX_SUFFIX):
                # Entries that make a load recover or fail are refused.
                data = _read_whole(folder, name, MAX_INDEX_BYTES)
                parse_transaction_index(name, offset_of(name) or 0, data)
            elif name.endswith(SNAPSHOT_SUFFIX):
                snapshot = name if snapshot is None else max(snapshot, name)
        if LEADER_EPOCH_FILE in others:
            check_epochs(_read_whole(folder, LEADER_EPOCH_FILE, MAX_LEADER_EPOCH_BYTES))
        index = _read_newest_entries(folder, newest)
        if index is None or not _can_resize_indexes(folder, newest, most_index_bytes):
            return None
        name = log_file(newest)
        end = _read_tail(folder, name, index)
        if end is None:
            descriptor, facts = open_with_facts(folder.descriptor, name)
            with closing(LocalFileReader(Path(directory), name, descriptor, facts)) as reader:
                end = next_offset_in(reader, index)
    except PylogError:
        return None
    start = max(oldest, log_start)
    if end < start or not _has_settled_producers(folder, snapshot, start=start, end=end):
        return None
    return end


def _read_whole(folder: OpenFolder, name: str, limit_bytes: int) -> bytes:
    content, facts = folder.read(name, 0, limit_bytes)
    if len(content) < facts.st_size:
        raise OSError(errno.EFBIG, f"is longer than the {limit_bytes} bytes it may have")
    return content


def _read_tail(folder: OpenFolder, name: str, index: OffsetIndex) -> int | None:
    """Read from the batch of the last index entry to the file's end at once; None if these are
    other bytes than few batches of format v2, in order."""
    entries = index.entries
    position = int(entries["position"][-1]) if len(entries) else 0
    # A broker's preallocated zeros are no last entry.
    is_last = position == index.look_up(index.last_offset) and (position > 0 or len(entries) < 2)  # noqa: PLR2004
    if position < 0 or not is_last:
        return None
    content, facts = folder.read(name, position, _MOST_TAIL_BYTES)
    if not facts.st_size:
        return index.base_offset
    data = np.frombuffer(bytearray(content), np.uint8)
    table = np.empty((COLUMN_COUNT, _MOST_TAIL_BATCHES), np.int64)
    count, _, status = scan_batches(data, 0, len(content), table)
    if position + len(content) != facts.st_size or status != DONE or not count:
        return None
    # A few numbers are sooner looked at one by one than as arrays.
    magics, sizes, firsts, lasts = (table[column, :count].tolist() for column in _OF_LAST_BATCHES)
    is_plain = set(magics) == {MAGIC_V2} and min(sizes) >= HEADER_BYTES
    is_plain = is_plain and all(map(operator.le, firsts, lasts))
    is_plain = is_plain and all(map(operator.gt, firsts[1:], lasts))
    is_plain = is_plain and firsts[0] >= index.base_offset
    if len(entries):
        is_plain = is_plain and firsts[0] <= index.last_offset <= lasts[0]
    if not is_plain or (position and check_crcs(data, table[:, :count], 1) == 0):
        return None
    return int(lasts[-1]) + 1


def _can_resize_indexes(folder: OpenFolder, base_offset: int, most_bytes: int) -> bool:
    """Whether a broker can make the indexes of its active segment that large, for appends."""
    for suffix, entry in _ENTRIES_OF.items():
        facts = facts_in(folder.descriptor, segment_file(base_offset, suffix))
        if facts is None or facts.st_size // entry.itemsize > most_bytes // entry.itemsize:
            return False
    return True


def _read_newest_entries(folder: OpenFolder, base_offset: int) -> OffsetIndex | None:
    """Return an offset index, or the end that a search looks at.

    None if entries are out of order, so that the search goes elsewhere, or the file was cut
    meanwhile.
    """
    entry_bytes = OFFSET_INDEX_ENTRY.itemsize
    name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
    content, facts = folder.read_last(name, entry_bytes, NEWEST_ENTRIES)
    whole = facts.st_size // entry_bytes * entry_bytes
    if len(content) < min(whole, NEWEST_ENTRIES * entry_bytes):
        return None  # it has been cut since
    index = OffsetIndex.parse(base_offset, content)
    if len(content) < whole:
        offsets = index.entries["relative_offset"]
        return index if offsets[0] < offsets[-1] else None
    return index


def _has_settled_producers(
    folder: OpenFolder, snapshot: str | None, *, start: int, end: int
) -> bool:
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
    return not has_open_transaction(_read_whole(folder, snapshot, MAX_SNAPSHOT_BYTES))


# Logs without many producers or elections have equal small files.
@lru_cache(maxsize=1024)
def check_epochs(content: bytes) -> None:
    """Refuse an epoch file that no load reads."""
    parse_epochs(content)


@lru_cache(maxsize=1024)
def has_open_transaction(content: bytes) -> bool:
    """Whether a snapshot has an open transaction, or cannot be read."""
    try:
        table = parse_snapshot_table("", content)
    except PylogError:
        return True
    return bool((table["current_txn_first_offset"] >= 0).any())


# Few bytes follow the last entry of an index.
_WINDOW_BYTES = 1 << 20


def follow_leader(log: LoadingLog, offsets: Iterable[int]) -> FollowerEnd:
    """Cut a loaded log as a follower's broker does, round by round.

    Args:
        offsets: Offsets of the rounds, in order. One above the log's end empties the log, which
            then begins there: its leader has nothing older.
    """
    ages: dict[int, bool] = {}
    # After each cut below the former one, Kafka's cleaner begins again at the active segment.
    clean_ends: list[int] = []
    for offset in offsets:
        active = log.base_offsets[-1]
        if offset > log.log_end_offset:
            log.view.cut_last()
            _start_over(log, offset, f"the log starts over at the leader's first offset {offset}")
            _finish(log, offset)
            clean_ends.append(offset)
        elif _cut(log, offset, ages) and offset < active:
            clean_ends.append(log.base_offsets[-1])
    _close_time_index(log, ages)
    return FollowerEnd(
        log_end_offset=min(log.log_end_offset, log.read_next_offset()),
        clean_end_offset=min(clean_ends, default=None),
    )


def truncate_log(log: LoadingLog, offset: int) -> bool:
    """Cut a loaded log as a follower of a new leader does.

    Args:
        offset: The log's new end. A batch that reaches it goes as a whole.

    Returns:
        Whether the log ended above the offset.
    """
    ages: dict[int, bool] = {}
    is_cut = _cut(log, offset, ages)
    _close_time_index(log, ages)
    return is_cut


def _cut(log: LoadingLog, offset: int, ages: dict[int, bool]) -> bool:
    """Cut a log once; note whether Kafka then knows the segment's age."""
    if offset < 0:
        raise ValueError(f"expected an offset of at least 0, found {offset}")
    if offset >= log.log_end_offset:
        log.truncate_epochs(end=log.log_end_offset)
        return False
    log.view.cut_last()
    reason = f"the log is truncated to offset {offset}"
    if log.base_offsets[0] > offset:
        _start_over(log, offset, reason)
    else:
        for base_offset in [base for base in log.base_offsets if base > offset]:
            log.remove_segment(base_offset, reason)
        _truncate_active(log, offset, ages, reason)
        log.truncate_epochs(end=offset)
        log.log_start_offset = min(offset, log.log_start_offset)
    _finish(log, offset)
    return True


def _finish(log: LoadingLog, offset: int) -> None:
    log.log_end_offset = offset
    log.recovery_point = min(log.recovery_point, offset)
    log.producers.rebuild(
        log.base_offsets,
        log_start_offset=log.log_start_offset,
        end_offset=offset,
        after_clean_shutdown=False,
    )


def _start_over(log: LoadingLog, offset: int, reason: str) -> None:
    for base_offset in list(log.base_offsets):
        log.remove_segment(base_offset, reason)
    log.create_segment(offset)
    log.clear_epochs()
    log.producers.truncate_fully_and_start_at(offset)
    log.log_start_offset = offset


def _truncate_active(log: LoadingLog, offset: int, ages: dict[int, bool], reason: str) -> None:
    base_offset = log.base_offsets[-1]
    index_name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
    time_name = segment_file(base_offset, TIME_INDEX_SUFFIX)
    txn_name = segment_file(base_offset, TXN_INDEX_SUFFIX)
    index = read_offset_index(log.view, base_offset, index_name)
    position = find_position(log.view, log_file(base_offset), offset, index.look_up(offset))
    offsets = log.view.read(index_name, limit_bytes=MAX_INDEX_BYTES)
    log.view.write(index_name, truncate_offset_index(base_offset, offsets, offset), reason)
    times = log.view.read(time_name, limit_bytes=MAX_INDEX_BYTES)
    # Kafka knows the age of a segment it has just rebuilt or cut; otherwise it uses the index.
    is_age_known = ages.get(
        base_offset,
        log.is_rebuilt(base_offset) and TimeIndex.parse(base_offset, times).last_timestamp >= 0,
    )
    times = truncate_time_index(base_offset, times, offset)
    if txn_name in log.view:
        aborted = read_aborted(log.view, base_offset)
        remaining = truncate_aborted(aborted, offset)
        # Without a removed entry, a ragged tail stays, too.
        if len(remaining) < len(aborted):
            log.view.write(txn_name, encode_transaction_index(remaining), reason)
    if position is not None:
        log.cut_segment(base_offset, position, offset, reason)
    log.view.write(time_name, times, reason)
    last_ms = TimeIndex.parse(base_offset, times).last_timestamp
    if is_age_known or (base_offset not in ages and last_ms >= 0):
        newest_ms, _ = _newest_batch(log, base_offset, times)
        ages[base_offset] = newest_ms >= 0


def _close_time_index(log: LoadingLog, ages: Mapping[int, bool]) -> None:
    """Add the time-index entry of a close for newer batches."""
    base_offset = log.base_offsets[-1]
    if not ages.get(base_offset):
        return
    time_name = segment_file(base_offset, TIME_INDEX_SUFFIX)
    times = log.view.read(time_name, limit_bytes=MAX_INDEX_BYTES)
    newest_ms, last_offset = _newest_batch(log, base_offset, times)
    if newest_ms == TimeIndex.parse(base_offset, times).last_timestamp:
        return
    most = log.config.segment_index_bytes
    if len(times) + TIME_INDEX_ENTRY.itemsize > most:
        raise IndexFullError(
            time_name,
            len(times),
            f"no room for the last entry in the {most} bytes of segment.index.bytes",
        )
    entry = np.zeros(1, TIME_INDEX_ENTRY)
    entry["timestamp"] = newest_ms
    entry["relative_offset"] = last_offset - base_offset
    reason = "the newest batch of the segment that was cut"
    log.view.write(time_name, times + entry.tobytes(), reason)


def _newest_batch(log: LoadingLog, base_offset: int, times: bytes) -> tuple[int, int]:
    """Return the newest timestamp of a segment and its batch's last offset. The offset is -1 if
    no batch is newer than the time index's last entry."""
    time_index = TimeIndex.parse(base_offset, times)
    log_name, index_name = log_file(base_offset), segment_file(base_offset, OFFSET_INDEX_SUFFIX)
    index = read_offset_index(log.view, base_offset, index_name)
    position = index.look_up(time_index.last_entry.offset)
    if position < 0:
        raise CorruptIndexError(
            log_name, 0, f"the offset index leads to position {position}, before the file"
        )
    newest_ms, last_offset = time_index.last_timestamp, -1
    with closing(log.view.open(log_name)) as reader:
        for window in scan_headers(reader, start=position, window_bytes=_WINDOW_BYTES):
            row = int(window.batches.max_timestamp.argmax())
            timestamp = int(window.batches.max_timestamp[row])
            if timestamp > newest_ms:
                newest_ms, last_offset = timestamp, int(window.batches.last_offset[row])
    return newest_ms, last_offset
