"""Which records of a window survive a round of compaction.

Two steps: ``preview_batches`` settles what the bitmaps alone settle, so that those batches are
never opened, or only copied from; ``filter_records`` opens the rest. What happens to a whole
batch is an *action*, decided before, from headers.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_notes import (
    ACTION,
    FIRST_BIT,
    FIRST_RECORD,
    FLAGS,
    IS_LOOKED_UP,
    KEEPS_TOMBSTONES,
    LOOK_UP_BIT,
    MARKS,
    PASS_ONE_COUNT,
    PLACE,
    RECORDS_END,
    RECORDS_START,
    STEP,
    SURVIVORS,
    TOMBSTONES,
)
from storage_core.kernels.batch_scan import BASE_OFFSET, LAST_OFFSET, RECORD_COUNT
from storage_core.kernels.record_scan import (
    BAD_RECORD,
    DONE,
    EXPANDED,
    HAS_KEYLESS,
    HAS_STRAY,
    HAS_TOMBSTONE,
    INDEXED,
    LEFTOVER,
    TOO_LARGE,
    parse_record,
)
from storage_core.kernels.survivors import count_range, is_set

# What is done with a batch.
DROP: Final = 0  # the whole batch goes, unopened
FILTER: Final = 1  # each record by key, offset and tombstone rules
KEEP_RECORDS: Final = 2  # every record stays
DISCARD_RECORDS: Final = 3  # every record goes, but the batch's header may stay

# What preview_batches says of a row.
SETTLED: Final = 0  # SURVIVORS is final, and nobody needs the records
TO_FILTER: Final = 1  # filter_records has to look at the records
BY_BITS: Final = 2  # SURVIVORS is final, and the bits say which records stay

NO_RECORD_OFFSET: Final = -(2**63)

# A record of this batch breaks the order of offsets, or has an impossible timestamp: a batch that
# is rebuilt from it would not be readable, and Kafka refuses it too.
BAD_ORDER: Final = 5
BAD_TIMESTAMP: Final = 6


@inlined_kernel
def _settle_by_bits(
    flags: int,
    last_offset: int,
    latest_offset: int,
    words: NDArray[np.uint64],
    first: int,
    end: int,
) -> tuple[int, int]:
    """Return (survivors, step) of a FILTER batch of which these bits tell.

    They decide about it alone when its flags have INDEXED and not HAS_KEYLESS and it lies below
    latest_offset: then a batch without a set bit goes, and one without a tombstone keeps exactly
    the records whose bits are set.
    """
    survivors, step = np.int64(0), np.int64(TO_FILTER)
    if flags & INDEXED and not flags & HAS_KEYLESS and last_offset <= latest_offset:
        alive = np.int64(count_range(words, first, end))
        if alive == 0:
            step = np.int64(SETTLED)
        elif not flags & HAS_TOMBSTONE:
            step = np.int64(SETTLED) if alive == end - first else np.int64(BY_BITS)
            survivors = alive
    return survivors, step


@kernel
def preview_batches(
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    latest_offset: int,
    words: NDArray[np.uint64],
) -> None:
    """Set SURVIVORS and STEP of batches by ACTION and the bitmaps. STEP is TO_FILTER for
    KEEP_RECORDS, and for some FILTER.

    Args:
        table: int64[COLUMN_COUNT, n], the batches.
        notes: int64[NOTE_COUNT, n].
        latest_offset: How far the log is mapped.
        words: uint64[], bitmaps of survivors.
    """
    for row in range(table.shape[1]):
        survivors, step = np.int64(0), np.int64(SETTLED)
        if notes[ACTION, row] == KEEP_RECORDS:
            step = np.int64(TO_FILTER)
        elif notes[ACTION, row] == FILTER:
            first = notes[FIRST_BIT, row]
            survivors, step = _settle_by_bits(
                notes[FLAGS, row],
                table[LAST_OFFSET, row],
                latest_offset,
                words,
                first,
                first + notes[PASS_ONE_COUNT, row],
            )
        notes[SURVIVORS, row] = survivors
        notes[STEP, row] = step


@kernel
def settle_look_ups(
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    flags: NDArray[np.uint8],
    latest_offset: int,
    words: NDArray[np.uint64],
) -> None:
    """Settle batches by the bitmaps of a look-up, where possible.

    Args:
        table: int64[COLUMN_COUNT, n], the batches, opened.
        notes: int64[NOTE_COUNT, n]; SURVIVORS and STEP of such batches are set.
        flags: uint8[n], what was seen of their records.
        latest_offset: How far the log is mapped.
        words: uint64[], bitmaps of what was looked up.
    """
    for row in range(table.shape[1]):
        # Of a stray record the header does not tell the truth.
        if not notes[MARKS, row] & IS_LOOKED_UP or flags[row] & HAS_STRAY:
            continue
        first = notes[LOOK_UP_BIT, row]
        survivors, step = _settle_by_bits(
            np.int64(flags[row]),
            table[LAST_OFFSET, row],
            latest_offset,
            words,
            first,
            first + table[RECORD_COUNT, row],
        )
        if step != TO_FILTER:
            notes[SURVIVORS, row] = survivors
            notes[STEP, row] = BY_BITS


@kernel
def filter_records(
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    words: NDArray[np.uint64],
    look_up_words: NDArray[np.uint64],
    latest_offset: int,
    max_body_bytes: int,
    keep: NDArray[np.uint8],
) -> tuple[int, int, int, int]:
    """Say which records stay of the batches that are TO_FILTER or BY_BITS.

    ``keep[FIRST_RECORD + i]`` belongs to record i of a batch. Whether it is the newest of its key,
    bit ``FIRST_BIT + i`` of words says, or ``LOOK_UP_BIT + i`` of look_up_words where the batch
    was looked up. TOMBSTONES gets a number, and SURVIVORS of the batches that are TO_FILTER.

    Args:
        data: uint8[], the window.
        arena: uint8[], records that do not lie in it.
        table: int64[COLUMN_COUNT, n], the batches.
        notes: int64[NOTE_COUNT, n].
        words: uint64[], bitmaps of survivors.
        look_up_words: uint64[], the same of what was looked up.
        latest_offset: How far the log is mapped.
        max_body_bytes: The largest record that was compressed.
        keep: uint8[], by record.

    Returns:
        (invalid, status, row, position): keyless records dropped; DONE, or why and where it
        stopped.
    """
    invalid = 0
    for row in range(table.shape[1]):
        notes[TOMBSTONES, row] = 0
        step = notes[STEP, row]
        if step == SETTLED:
            continue
        is_looked_up = notes[MARKS, row] & IS_LOOKED_UP != 0
        bits = look_up_words if is_looked_up else words
        bit = notes[LOOK_UP_BIT, row] if is_looked_up else notes[FIRST_BIT, row]
        count = table[RECORD_COUNT, row]
        first_record = notes[FIRST_RECORD, row]
        if step == BY_BITS:
            for i in range(count):
                keep[first_record + i] = 1 if is_set(bits, bit + i) else 0
            continue
        place, end = notes[PLACE, row], notes[RECORDS_END, row]
        source = arena if place else data
        position = notes[RECORDS_START, row]
        base_offset = table[BASE_OFFSET, row]
        keeps_all = notes[ACTION, row] == KEEP_RECORDS
        keeps_tombstones = notes[MARKS, row] & KEEPS_TOMBSTONES != 0
        survivors = tombstones = 0
        for i in range(count):
            record = parse_record(source, position, end)
            if record.next_position < 0:
                return invalid, BAD_RECORD, row, position
            if record.body_bytes > max_body_bytes and place == EXPANDED:
                return invalid, TOO_LARGE, row, position
            if record.offset_delta < 0:
                return invalid, BAD_ORDER, row, position
            if keeps_all or base_offset + record.offset_delta > latest_offset:
                stays = True
            elif record.key_length < 0:
                stays = False
                invalid += 1
            else:
                stays = is_set(bits, bit + i) and (record.value_length >= 0 or keeps_tombstones)
            keep[first_record + i] = 1 if stays else 0
            if stays:
                survivors += 1
                if record.value_length < 0:
                    tombstones += 1
            position = record.next_position
        notes[SURVIVORS, row], notes[TOMBSTONES, row] = survivors, tombstones
        if position != end and count:  # as Kafka, which does not look behind none
            return invalid, LEFTOVER, row, position
    return invalid, DONE, 0, 0
