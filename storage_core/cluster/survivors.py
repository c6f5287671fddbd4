"""Find records missing from a compacted log without a cleaner's reason. Neither the record nor a
newer one of its key is there.

A cleaner removes a record when its key has a newer one, a deletion (tombstone) after its time, a
record of an aborted transaction, and one without a key. Everything else has to be there still.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage_core.cluster.log_batches import BatchRows, LogReader, ReadDepth
from storage_core.cluster.offset_ranges import Ranges, count, is_within
from storage_core.cluster.resting_log import RestingLog
from storage_core.index.transaction_index import AbortedTxn
from storage_core.kernels.key_hash import siphash_each
from storage_core.log.committed_view import scan_committed_view
from storage_core.log.directory_view import DirectoryView

# Keys in memory at once. More keys take several passes.
_MOST_KEYS: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Records of a log, in order of offsets."""

    offset: NDArray[np.int64]  # int64[n]
    epoch: NDArray[np.int64]  # int64[n]
    segment: NDArray[np.int64]  # int64[n], base offset of the segment of each
    position: NDArray[np.int64]  # int64[n], of its batch in that segment's file


@dataclass(frozen=True, slots=True)
class Keys:
    """Keyed records that are not of an aborted transaction."""

    halves: NDArray[np.uint64]  # uint64[2, n], hashes of the keys
    # int64[5, n], offset, epoch, segment, position, and whether it is a tombstone.
    facts: NDArray[np.int64]


def find_lost(has: RestingLog, lacks: RestingLog, missing: Ranges) -> tuple[LostRecords, int]:
    """Return records missing from a compacted log without a newer one.

    Returns:
        The records, and how many bytes were read to find out.
    """
    passes = 1 + count(missing) // _MOST_KEYS
    parts: list[NDArray[np.int64]] = [np.empty((5, 0), np.int64)]
    read_bytes = 0
    for number in range(passes):
        wanted, mine = _read_keys(has, number, passes, missing)
        other, theirs = _read_keys(lacks, number, passes, None)
        parts.append(find_unexplained(wanted, other))
        read_bytes += mine + theirs
    facts = np.concatenate(parts, axis=1)
    facts = facts[:, np.argsort(facts[0])]
    return LostRecords(*facts[:4]), read_bytes


def find_unexplained(
    wanted: Keys, other: Keys, places: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return missing records without a newer one in the other log. A newer record has the same key.

    Args:
        places: Behind which offset of that log each would be; None for its own offset.
    """
    names, of_wanted = np.unique(wanted.halves[0], return_inverse=True)
    newest = np.full(len(names), -1, np.int64)
    slot = np.minimum(np.searchsorted(names, other.halves[0]), max(len(names) - 1, 0))
    is_known = names[slot] == other.halves[0] if len(names) else np.zeros(len(slot), np.bool_)
    np.maximum.at(newest, slot[is_known], other.facts[0, is_known])
    offset = wanted.facts[0]
    # For each key, its newest missing record.
    last = np.full(len(names), -1, np.int64)
    np.maximum.at(last, of_wanted, offset)
    is_last = last[of_wanted] == offset
    is_expired = np.zeros(len(names), np.bool_)
    is_expired[of_wanted[is_last & (wanted.facts[4] != 0)]] = True
    is_lost = newest[of_wanted] <= (offset if places is None else places)
    is_lost &= ~is_expired[of_wanted]
    return wanted.facts[:, is_lost]


def _read_keys(log: RestingLog, number: int, passes: int, only: Ranges | None) -> tuple[Keys, int]:
    """Return a log's keys for one pass of several, and bytes read."""
    halves: list[NDArray[np.uint64]] = [np.empty((2, 0), np.uint64)]
    facts: list[NDArray[np.int64]] = [np.empty((5, 0), np.int64)]
    read_bytes = 0
    assert log.view is not None  # noqa: S101  # it was compared
    aborted = scan_committed_view(log.view.store).aborted
    transactions = [txn for _, txns in aborted for txn in txns]
    for rows in _committed_rows(log.view, log.base_offsets, transactions, only):
        for group in rows.groups():
            read_bytes += int(group.batches.size.sum())
            table = group.records()
            offset = table["offset"].to_numpy()
            is_wanted = np.asarray(table["key"].is_valid(), np.bool_)
            if only is not None:
                is_wanted &= is_within(offset, only)
            table, offset = table.filter(pa.array(is_wanted)), offset[is_wanted]
            hashes = _hash(table["key"].combine_chunks())
            is_of_pass = hashes[0] % np.uint64(passes) == number
            row = np.searchsorted(group.batches.last_offset, offset)
            tombstone = np.asarray(table["value"].is_null(), np.int64)
            columns = [
                offset,
                table["epoch"].to_numpy(),
                group.segment[row],
                group.batches.position[row],
                tombstone,
            ]
            halves.append(hashes[:, is_of_pass])
            facts.append(np.stack(columns)[:, is_of_pass])
    return Keys(np.concatenate(halves, axis=1), np.concatenate(facts, axis=1)), read_bytes


def _committed_rows(
    view: DirectoryView,
    base_offsets: tuple[int, ...],
    aborted: list[AbortedTxn],
    only: Ranges | None,
) -> Iterator[BatchRows]:
    """Yield batches with a right checksum, of data that did not abort."""
    reader = LogReader(view, base_offsets, ReadDepth.CHECKSUMS)
    while True:
        reader.fill()
        if reader.is_at_end:
            return
        rows = reader.rows
        batches = rows.batches
        is_wanted = (batches.crc_ok != 0) & ~batches.is_control
        for txn in aborted:
            is_wanted &= (
                ~batches.is_transactional
                | (batches.producer_id != txn.producer_id)
                | (batches.base_offset < txn.first_offset)
                | (batches.last_offset > txn.last_offset)
            )
        if only is not None:
            at = np.searchsorted(only[:, 1], rows.lowest)
            starts = np.append(only[:, 0], np.iinfo(np.int64).max)
            is_wanted &= starts[at] <= batches.last_offset
        yield rows.take(is_wanted)
        reader.rows = rows.take(np.zeros(len(rows), np.bool_))


def _hash(keys: pa.BinaryArray) -> NDArray[np.uint64]:
    """Hash keys, none of them null, into halves, uint64[2, n]."""
    _, offsets, data = keys.buffers()
    if not len(keys):
        return np.empty((2, 0), np.uint64)
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    halves = np.stack([ends[:-1], np.diff(ends)]).astype(np.uint64)
    content = np.zeros(1, np.uint8) if data is None or not len(data) else data
    siphash_each(np.frombuffer(content, np.uint8), halves[0], halves[1], 0, len(keys), 0, 0)
    return halves
