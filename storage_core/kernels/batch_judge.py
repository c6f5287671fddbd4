"""What becomes of the batches of a window: what their headers and bitmaps say, row by row.

The rules are the cleaner's (`maintenance.compaction.survival`), which asks for them in this order:
`note_batches` when a window comes, `judge_batches` before any of its records is looked at,
`place_records` once some are open, `decide_fates` when they have been filtered.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    MAGIC_V2,
    NO_TIMESTAMP,
)
from storage_core.kernels._jit import kernel
from storage_core.kernels.batch_filter import (
    BY_BITS,
    DISCARD_RECORDS,
    DROP,
    FILTER,
    KEEP_RECORDS,
    SETTLED,
    preview_batches,
)
from storage_core.kernels.batch_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    LAST_OFFSET,
    MAGIC,
    POSITION,
    RECORD_COUNT,
)
from storage_core.kernels.batch_write import GONE, HEADER_ONLY, REBUILT, VERBATIM
from storage_core.kernels.record_scan import INDEXED, OPENED

# In place of an ordinal: the record lies before the dirty part.
NOT_DIRTY: Final = -(2**62)
# Of note_batches: there are more batches of formats v0 and v1 than were noted, or more records.
MORE_LEGACY: Final = -1
MORE_RECORDS: Final = -2
NO_ROW: Final = -1


@kernel
def note_batches(  # arrays side by side
    columns: NDArray[np.int64],
    dirty_position: int,
    noted: NDArray[np.uint8],
    legacy_counts: NDArray[np.int64],
    first_ordinal: int,
    most_records: int,
    flags: NDArray[np.uint8],
    record_count: NDArray[np.int64],
    first_bit: NDArray[np.int64],
    own_ordinal: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Give each batch of a window what pass one noted of it.

    Args:
        columns: int64[COLUMN_COUNT, n], the batches.
        dirty_position: Where in the window the dirty part begins.
        noted: uint8[], flags of the batches from there on, 0 of those after them.
        legacy_counts: int64[], records of the legacy batches whose ordinals are known.
        first_ordinal: Of the first record that has one.
        most_records: How many ordinals the segment has.
        flags: Set to uint8[n], what was noted.
        record_count: Set to int64[n], by pass one where that knows it, else by the header.
        first_bit: Set to int64[n], the ordinal of the first record from the batch on.
        own_ordinal: Set to int64[n], the ordinal of a batch's first record, or of the last record
            before it where it has none; NOT_DIRTY before the dirty part.

    Returns:
        (dirty, legacy, next_ordinal): how many batches lie in the dirty part, MORE_LEGACY where
        legacy_counts were too few, MORE_RECORDS where there are more ordinals than there should be;
        how many of legacy_counts were used; the ordinal after the last.
    """
    dirty = legacy = 0
    ordinal = np.int64(first_ordinal)
    for row in range(columns.shape[1]):
        is_dirty = columns[POSITION, row] >= dirty_position
        flags[row] = noted[dirty] if is_dirty and dirty < noted.size else 0
        dirty += is_dirty
        record_count[row] = columns[RECORD_COUNT, row]
        first_bit[row] = ordinal
        if flags[row] & OPENED:
            if columns[MAGIC, row] < MAGIC_V2:
                if legacy == legacy_counts.size:
                    return MORE_LEGACY, legacy, ordinal
                record_count[row] = legacy_counts[legacy]
                legacy += 1
            if not 0 <= record_count[row] <= most_records - ordinal:
                return MORE_RECORDS, legacy, ordinal
            own_ordinal[row] = ordinal
            ordinal += record_count[row]
        else:
            own_ordinal[row] = ordinal - 1 if is_dirty else NOT_DIRTY
    return dirty, legacy, ordinal


@kernel
def judge_batches(  # arrays side by side
    columns: NDArray[np.int64],
    discard: NDArray[np.uint8],
    is_last: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    record_count: NDArray[np.int64],
    words: NDArray[np.uint64],
    first_bit: NDArray[np.int64],
    latest_offset: int,
    high_watermark: int,
    now_ms: int,
    keeps_legacy_tombstones: bool,  # kernels have no keywords
    recompresses_all: bool,
    action: NDArray[np.uint8],
    retains_empty: NDArray[np.uint8],
    loses_transaction: NDArray[np.uint8],
    is_rebuilt: NDArray[np.uint8],
    keeps_tombstones: NDArray[np.uint8],
    needs_records: NDArray[np.uint8],
    is_looked_up: NDArray[np.uint8],
    step: NDArray[np.uint8],
    kept: NDArray[np.int64],
) -> None:
    """Settle what headers and bitmaps settle of a window.

    Args:
        columns: int64[COLUMN_COUNT, n], the batches.
        discard: uint8[n], whether nothing refers to a batch's transaction any more.
        is_last: uint8[n], whether it is the last batch of its producer.
        flags: uint8[n], what is known of its records (record_scan.INDEXED and so on).
        record_count: int64[n], how many they are.
        words: uint64[], bitmaps of survivors.
        first_bit: int64[n], where a batch's bits begin.
        latest_offset: How far the log is mapped.
        high_watermark: Of the log.
        now_ms: Clock of the round.
        keeps_legacy_tombstones: Whether tombstones of formats before v2 stay.
        recompresses_all: Whether each batch of data is made anew.
        action: Set to uint8[n], DROP and so on.
        retains_empty: Set to uint8[n], whether the header stays without records.
        loses_transaction: Set to uint8[n], whether it is a marker that nothing refers to.
        is_rebuilt: Set to uint8[n], whether it is made anew, whatever it loses.
        keeps_tombstones: Set to uint8[n], whether its tombstones stay.
        needs_records: Set to uint8[n], whether they have to be looked at.
        is_looked_up: Set to uint8[n], whether they are looked up in the map: no bit tells of them.
        step: Set to uint8[n], SETTLED and so on.
        kept: Set to int64[n], as `preview_batches`.
    """
    for row in range(columns.shape[1]):
        attributes = columns[ATTRIBUTES, row]
        is_control = attributes & CONTROL_BIT != 0
        has_passed = attributes & DELETE_HORIZON_BIT != 0 and columns[BASE_TIMESTAMP, row] <= now_ms
        is_legacy = columns[MAGIC, row] < MAGIC_V2
        retains = is_last[row] != 0 or columns[LAST_OFFSET, row] + 1 == high_watermark
        if discard[row] and (not is_control or has_passed):
            action[row] = DISCARD_RECORDS if retains else DROP
        else:
            action[row] = KEEP_RECORDS if is_control else FILTER
        retains_empty[row] = retains
        loses_transaction[row] = is_control and discard[row] != 0
        is_rebuilt[row] = is_legacy or (recompresses_all and not is_control)
        keeps_tombstones[row] = keeps_legacy_tombstones if is_legacy else not has_passed
        # A compressed legacy message tells its first offset only when it is opened.
        may_be_below = columns[BASE_OFFSET, row] <= latest_offset or (
            is_legacy and attributes & CODEC_MASK != 0
        )
        is_unknown = action[row] == FILTER and not flags[row] & INDEXED
        is_looked_up[row] = is_unknown and may_be_below
    preview_batches(
        action,
        flags,
        columns[LAST_OFFSET],
        record_count,
        latest_offset,
        words,
        first_bit,
        0,
        columns.shape[1],
        kept,
        step,
    )
    for row in range(columns.shape[1]):
        if action[row] == KEEP_RECORDS and flags[row] & INDEXED and not discard[row]:
            # A sidecar says so of control batches, nobody else: then their records stay.
            kept[row] = record_count[row]
            step[row] = SETTLED
        if is_rebuilt[row] and step[row] == SETTLED and kept[row] > 0:
            step[row] = BY_BITS  # even one of which all stays: an older format in v2
        needs_records[row] = step[row] != SETTLED


@kernel
def place_records(  # arrays side by side
    action: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    needs_records: NDArray[np.uint8],
    expected: NDArray[np.int64],
    record_count: NDArray[np.int64],
    first_row: int,
    end_row: int,
    first_record: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Give the records of the rows in [first_row, end_row) that are looked at a place each.

    Args:
        action: uint8[n], DROP and so on.
        flags: uint8[n], what pass one noted.
        needs_records: uint8[n], whether the records of a batch are looked at.
        expected: int64[n], how many it has by pass one.
        record_count: int64[n], how many it has, opened.
        first_row: Where to begin.
        end_row: Where to end.
        first_record: Set to int64[n], the place of a batch's first record.

    Returns:
        (places, read, row): how many there are; how many records Kafka's cleaner looks at; NO_ROW,
        or which batch has not the records by which its bits were counted.
    """
    places = read = 0
    for row in range(record_count.size):
        first_record[row] = places
        if row < first_row or row >= end_row:
            continue
        count = expected[row]
        if needs_records[row]:
            count = record_count[row]
            if flags[row] & OPENED and expected[row] != count:
                return places, read, row
            places += count
        if action[row] != DROP:
            read += count
    return places, read, NO_ROW


@kernel
def decide_fates(  # arrays side by side
    columns: NDArray[np.int64],
    action: NDArray[np.uint8],
    retains_empty: NDArray[np.uint8],
    loses_transaction: NDArray[np.uint8],
    is_rebuilt: NDArray[np.uint8],
    kept: NDArray[np.int64],
    kept_tombstones: NDArray[np.int64],
    new_horizon_ms: int,
    fate: NDArray[np.uint8],
    delete_horizon_ms: NDArray[np.int64],
) -> None:
    """Set what becomes of each batch of a window, and the delete horizon of what is rebuilt.

    Args:
        columns: int64[COLUMN_COUNT, n], the batches.
        action: uint8[n], DROP and so on, and the next three are as of `judge_batches`.
        retains_empty: uint8[n].
        loses_transaction: uint8[n].
        is_rebuilt: uint8[n].
        kept: int64[n], records that stay.
        kept_tombstones: int64[n], tombstones among them.
        new_horizon_ms: Delete horizon of a batch that gets one; a negative one is none.
        fate: Set to uint8[n], batch_write.GONE and so on.
        delete_horizon_ms: Set to int64[n], NO_TIMESTAMP where the rebuilt batch has none.
    """
    for row in range(columns.shape[1]):
        has_horizon = columns[ATTRIBUTES, row] & DELETE_HORIZON_BIT != 0
        gets_horizon = (
            kept[row] > 0
            and not has_horizon
            and (kept_tombstones[row] > 0 or loses_transaction[row] != 0)
        )
        delete_horizon_ms[row] = NO_TIMESTAMP
        if action[row] == DROP or (kept[row] <= 0 and not retains_empty[row]):
            fate[row] = GONE
        elif kept[row] <= 0:
            fate[row] = HEADER_ONLY
        elif kept[row] == columns[RECORD_COUNT, row] and not gets_horizon and not is_rebuilt[row]:
            fate[row] = VERBATIM
        else:
            fate[row] = REBUILT
            horizon = new_horizon_ms if gets_horizon else columns[BASE_TIMESTAMP, row]
            if (has_horizon or gets_horizon) and horizon >= 0:
                delete_horizon_ms[row] = horizon
