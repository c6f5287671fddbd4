"""Decide the fate of each batch of a window.

The headers and bitmaps of the batches decide, row by row. The rules are the cleaner's
(`maintenance.compaction.survival`), which asks for them in this order: `note_batches` or
`sift_batches` when a window comes, `judge_batches` before any of its records is looked at,
`place_records` once some are open, `decide_fates` when they have been filtered. Each fills columns
of `batch_notes`.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    HEADER_UP_TO_MAGIC_BYTES,
    LAST_OFFSET_DELTA_AT,
    MAGIC_AT,
    MAGIC_V2,
    NO_TIMESTAMP,
    RECORD_COUNT_AT,
    TRANSACTIONAL_BIT,
)
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_filter import (
    BY_BITS,
    DISCARD_RECORDS,
    DROP,
    FILTER,
    KEEP_RECORDS,
    SETTLED,
    preview_batches,
)
from storage_core.kernels.batch_notes import (
    ACTION,
    DELETE_HORIZON,
    FATE,
    FIRST_BIT,
    FIRST_RECORD,
    FLAGS,
    IS_LOOKED_UP,
    IS_REBUILT,
    KEEPS_ALL_TOMBSTONES,
    KEEPS_TOMBSTONES,
    LOSES_TRANSACTION,
    MARKS,
    NEEDS_RECORDS,
    NOT_DIRTY,
    NOTED_BIT,
    NOTED_BIT_END,
    NOTED_FLAG,
    NOTED_FLAG_END,
    NOTED_LEGACY,
    NOTED_LEGACY_END,
    NOTED_RANK,
    NOTED_START,
    OWN_RANK,
    PASS_ONE_COUNT,
    RETAINS_EMPTY,
    STEP,
    SURVIVORS,
    TOMBSTONES,
)
from storage_core.kernels.batch_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    LAST_OFFSET,
    MAGIC,
    NO_ROOM,
    POSITION,
    RECORD_COUNT,
    TRUNCATED,
    find_size,
    read_batch,
)
from storage_core.kernels.batch_write import GONE, HEADER_ONLY, REBUILT, VERBATIM
from storage_core.kernels.record_scan import DONE, HAS_KEYLESS, INDEXED, OPENED
from storage_core.kernels.survivors import count_range
from storage_core.kernels.varint import read_i16, read_i32, read_i64

# Of note_batches: there are more batches of formats v0 and v1 than were noted, or more records.
# These are no numbers of a scan.
MORE_LEGACY: Final = 11
MORE_RECORDS: Final = 12
NO_ROW: Final = -1


@inlined_kernel
def _note_batch(
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    row: int,
    segment: int,
    is_dirty: bool,  # numba takes no keyword-only arguments
    noted: NDArray[np.int64],
    flags: NDArray[np.uint8],
    legacy_counts: NDArray[np.int64],
) -> int:
    """Give the next batch of a segment its notes, and move on; return a status of note_batches."""
    own_flags = np.int64(0)
    if is_dirty and noted[NOTED_FLAG, segment] < noted[NOTED_FLAG_END, segment]:
        own_flags = np.int64(flags[noted[NOTED_FLAG, segment]])
        noted[NOTED_FLAG, segment] += 1
    bit, rank = noted[NOTED_BIT, segment], noted[NOTED_RANK, segment]
    count = table[RECORD_COUNT, row]
    notes[FLAGS, row] = own_flags
    notes[FIRST_BIT, row] = bit
    notes[MARKS, row] = 0
    if own_flags & OPENED:
        if table[MAGIC, row] < MAGIC_V2:
            if noted[NOTED_LEGACY, segment] == noted[NOTED_LEGACY_END, segment]:
                return MORE_LEGACY
            count = legacy_counts[noted[NOTED_LEGACY, segment]]
            noted[NOTED_LEGACY, segment] += 1
        if not 0 <= count <= noted[NOTED_BIT_END, segment] - bit:
            return MORE_RECORDS
        notes[OWN_RANK, row] = rank
        noted[NOTED_RANK, segment] = rank + count
        noted[NOTED_BIT, segment] = bit + count
    else:
        notes[OWN_RANK, row] = rank - 1 if is_dirty else NOT_DIRTY
    notes[PASS_ONE_COUNT, row] = count
    return DONE


@kernel
def note_batches(
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    row_bounds: NDArray[np.int64],
    begins: NDArray[np.int64],
    noted: NDArray[np.int64],
    flags: NDArray[np.uint8],
    legacy_counts: NDArray[np.int64],
) -> tuple[int, int]:
    """Give each batch of a window its notes from pass one. The columns FLAGS to PASS_ONE_COUNT are
    filled; MARKS are cleared.

    Args:
        table: int64[COLUMN_COUNT, n], the batches.
        notes: int64[NOTE_COUNT, n].
        row_bounds: int64[segments + 1], first row of each segment, and n.
        begins: int64[segments], where byte 0 of each lies in the window.
        noted: int64[NOTED_COUNT, segments], what is noted of each; it moves on.
        flags: uint8[], those of their batches; 0 of those after them.
        legacy_counts: int64[], records of the legacy batches whose ordinals are known.

    Returns:
        (status, row): DONE; MORE_LEGACY where legacy_counts were too few, MORE_RECORDS where there
        are more ordinals than there should be, and at which batch.
    """
    for segment in range(begins.size):
        dirty_position = begins[segment] + noted[NOTED_START, segment]
        for row in range(row_bounds[segment], row_bounds[segment + 1]):
            is_dirty = table[POSITION, row] >= dirty_position
            status = _note_batch(table, notes, row, segment, is_dirty, noted, flags, legacy_counts)
            if status != DONE:
                return status, row
    return DONE, NO_ROW


@inlined_kernel
def _count_dead(
    data: NDArray[np.uint8],
    position: int,
    size: int,
    noted: NDArray[np.int64],
    flags: NDArray[np.uint8],
    words: NDArray[np.uint64],
    latest_offset: int,
) -> int:
    """Return the number of records of the next batch of a dirty part if nothing is left of it,
    unless its header is retained; else NO_ROW."""
    next_flag = noted[NOTED_FLAG, 0]
    if next_flag >= noted[NOTED_FLAG_END, 0] or size < HEADER_BYTES:
        return NO_ROW
    kind = np.int64(flags[next_flag]) & (INDEXED | OPENED | HAS_KEYLESS)
    if kind != INDEXED | OPENED or data[np.uint64(position + MAGIC_AT)] != MAGIC_V2:
        return NO_ROW
    first, count = noted[NOTED_BIT, 0], read_i32(data, position + RECORD_COUNT_AT)
    if not 0 <= count <= noted[NOTED_BIT_END, 0] - first:
        return NO_ROW
    attributes = read_i16(data, position + ATTRIBUTES_AT)
    if attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) or count_range(words, first, first + count):
        return NO_ROW
    return count if _last_offset(data, position) <= latest_offset else NO_ROW


@inlined_kernel
def _last_offset(data: NDArray[np.uint8], position: int) -> int:
    """Return the last offset of the batch of format v2 at a position."""
    return read_i64(data, position) + read_i32(data, position + LAST_OFFSET_DELTA_AT)


@kernel
def sift_batches(
    data: NDArray[np.uint8],
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    dirty_position: int,
    noted: NDArray[np.int64],
    flags: NDArray[np.uint8],
    legacy_counts: NDArray[np.int64],
    words: NDArray[np.uint64],
    latest_offset: int,
    retained: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Do what ``scan_batches`` and ``note_batches`` do, and leave batches out of which nothing
    stays. The first batch is never left out.

    Args:
        data: uint8[n], a window of one segment.
        table: int64[COLUMN_COUNT, capacity], out: the headers.
        notes: int64[NOTE_COUNT, capacity], out.
        dirty_position: Where in data the dirty part begins.
        noted: int64[NOTED_COUNT, 1], as of note_batches; the next two, too.
        words: uint64[], bitmaps of survivors.
        latest_offset: How far the log is mapped.
        retained: int64[], last offsets of batches whose headers may stay; they rise.

    Returns:
        (count, end, status, left_out): as ``scan_batches``; or MORE_LEGACY or MORE_RECORDS, of the
        batch at ``end``, row ``count``. And how many records were left out.
    """
    row = left_out = next_retained = 0
    position = np.int64(0)
    while data.size - position > HEADER_UP_TO_MAGIC_BYTES:
        size, status = find_size(data, position, data.size)
        if status != DONE:
            return row, position, status, left_out
        is_dirty = position >= dirty_position
        if row > 0 and is_dirty:
            dead = _count_dead(data, position, size, noted, flags, words, latest_offset)
            if dead != NO_ROW:
                last_offset = _last_offset(data, position)
                while next_retained > 0 and retained[next_retained - 1] >= last_offset:
                    next_retained -= 1
                while next_retained < retained.size and retained[next_retained] < last_offset:
                    next_retained += 1
                if next_retained == retained.size or retained[next_retained] != last_offset:
                    noted[NOTED_FLAG, 0] += 1
                    noted[NOTED_BIT, 0] += dead
                    noted[NOTED_RANK, 0] += dead
                    left_out += dead
                    position += size
                    continue
        if row == table.shape[1] or row == notes.shape[1]:
            return row, position, NO_ROOM, left_out
        read_batch(data, position, size, table, row)
        status = _note_batch(table, notes, row, 0, is_dirty, noted, flags, legacy_counts)
        if status != DONE:
            return row, position, status, left_out
        row += 1
        position += size
    return row, position, DONE if position == data.size else TRUNCATED, left_out


@kernel
def judge_batches(
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    discard: NDArray[np.uint8],
    is_last: NDArray[np.uint8],
    words: NDArray[np.uint64],
    latest_offset: int,
    high_watermark: int,
    now_ms: int,
    keeps_legacy_tombstones: bool,  # kernels have no keywords
    recompresses_all: bool,
) -> None:
    """Settle the batches of a window by headers and bitmaps, where possible. ACTION, STEP, MARKS
    and SURVIVORS are set.

    Args:
        table: int64[COLUMN_COUNT, n], the batches.
        notes: int64[NOTE_COUNT, n]; of MARKS there is KEEPS_ALL_TOMBSTONES, the others are added.
        discard: uint8[n], whether nothing refers to a batch's transaction any more.
        is_last: uint8[n], whether it is the last batch of its producer.
        words: uint64[], bitmaps of survivors.
        latest_offset: How far the log is mapped.
        keeps_legacy_tombstones: Whether tombstones of formats before v2 stay.
        recompresses_all: Whether each batch of data is made anew.
    """
    for row in range(table.shape[1]):
        attributes = table[ATTRIBUTES, row]
        is_control = attributes & CONTROL_BIT != 0
        has_passed = attributes & DELETE_HORIZON_BIT != 0 and table[BASE_TIMESTAMP, row] <= now_ms
        is_legacy = table[MAGIC, row] < MAGIC_V2
        marks = notes[MARKS, row] & KEEPS_ALL_TOMBSTONES
        if is_last[row] != 0 or table[LAST_OFFSET, row] + 1 == high_watermark:
            marks |= RETAINS_EMPTY
        if discard[row] and (not is_control or has_passed):
            action = DISCARD_RECORDS if marks & RETAINS_EMPTY else DROP
        else:
            action = KEEP_RECORDS if is_control else FILTER
        if is_control and discard[row] != 0:
            marks |= LOSES_TRANSACTION
        if is_legacy or (recompresses_all and not is_control):
            marks |= IS_REBUILT
        if keeps_legacy_tombstones if is_legacy else not has_passed:
            marks |= KEEPS_TOMBSTONES
        # A compressed legacy message tells its first offset only when it is opened.
        may_be_below = table[BASE_OFFSET, row] <= latest_offset or (
            is_legacy and attributes & CODEC_MASK != 0
        )
        if action == FILTER and not notes[FLAGS, row] & INDEXED and may_be_below:
            marks |= IS_LOOKED_UP
        notes[ACTION, row] = action
        notes[MARKS, row] = marks
    preview_batches(table, notes, latest_offset, words)
    for row in range(table.shape[1]):
        step = notes[STEP, row]
        is_indexed = notes[FLAGS, row] & INDEXED != 0
        if notes[ACTION, row] == KEEP_RECORDS and is_indexed and not discard[row]:
            # A sidecar says so of control batches, nobody else: then their records stay.
            notes[SURVIVORS, row] = notes[PASS_ONE_COUNT, row]
            step = SETTLED
        if step == SETTLED and notes[MARKS, row] & IS_REBUILT and notes[SURVIVORS, row] > 0:
            step = BY_BITS  # even one of which all stays: an older format in v2
        notes[STEP, row] = step
        if step != SETTLED:
            notes[MARKS, row] |= NEEDS_RECORDS


@kernel
def place_records(table: NDArray[np.int64], notes: NDArray[np.int64]) -> tuple[int, int, int]:
    """Set FIRST_RECORD, the place of each batch's first record. Only the records of batches that
    are looked at take a place each.

    Args:
        table: int64[COLUMN_COUNT, n], the batches, opened.
        notes: int64[NOTE_COUNT, n].

    Returns:
        (places, read, row): how many there are; how many records Kafka's cleaner looks at; NO_ROW,
        or which batch has not the records by which its bits were counted.
    """
    places = read = 0
    for row in range(table.shape[1]):
        notes[FIRST_RECORD, row] = places
        count = notes[PASS_ONE_COUNT, row]
        if notes[MARKS, row] & NEEDS_RECORDS:
            if notes[FLAGS, row] & OPENED and count != table[RECORD_COUNT, row]:
                return places, read, row
            count = table[RECORD_COUNT, row]
            places += count
        if notes[ACTION, row] != DROP:
            read += count
    return places, read, NO_ROW


@kernel
def decide_fates(table: NDArray[np.int64], notes: NDArray[np.int64], new_horizon_ms: int) -> None:
    """Set each batch's fate, and the delete horizon of rebuilt ones.

    Args:
        table: int64[COLUMN_COUNT, n], the batches.
        notes: int64[NOTE_COUNT, n].
        new_horizon_ms: Delete horizon of a batch that gets one; a negative one is none.
    """
    for row in range(table.shape[1]):
        survivors, marks = notes[SURVIVORS, row], notes[MARKS, row]
        has_horizon = table[ATTRIBUTES, row] & DELETE_HORIZON_BIT != 0
        gets_horizon = (
            survivors > 0
            and not has_horizon
            and (notes[TOMBSTONES, row] > 0 or marks & LOSES_TRANSACTION != 0)
        )
        delete_horizon = np.int64(NO_TIMESTAMP)
        if notes[ACTION, row] == DROP or (survivors <= 0 and not marks & RETAINS_EMPTY):
            fate = GONE
        elif survivors <= 0:
            fate = HEADER_ONLY
        elif survivors == table[RECORD_COUNT, row] and not gets_horizon and not marks & IS_REBUILT:
            fate = VERBATIM
        else:
            fate = REBUILT
            horizon = new_horizon_ms if gets_horizon else table[BASE_TIMESTAMP, row]
            if (has_horizon or gets_horizon) and horizon >= 0:
                delete_horizon = np.int64(horizon)
        notes[FATE, row] = fate
        notes[DELETE_HORIZON, row] = delete_horizon
