"""Check the batches of an append and their records. Records are checked where their batch stays
as it is."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    CODEC_MASK,
    MAGIC_V2,
    NO_TIMESTAMP,
)
from storage_core.kernels._jit import kernel
from storage_core.kernels.batch_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    RECORD_COUNT,
    SIZE,
    check_batch_crc,
)
from storage_core.kernels.record_scan import parse_record

# What a batch breaks.
DONE: Final = 0
OTHER_EPOCH: Final = 1
MOVED: Final = 2  # a client's batch does not begin at offset 0
TOO_LARGE: Final = 3
WRONG_CRC: Final = 4
UNKNOWN_CODEC: Final = 5
OUT_OF_ORDER: Final = 6

ANY_EPOCH: Final = -2
_LAST_CODEC: Final = 4
_NO_OFFSET: Final = -1


@kernel
def check_batches(
    data: NDArray[np.uint8],
    table: NDArray[np.int64],
    append_count: int,
    only_epoch: int,
    must_begin_at_0: bool,  # numba takes no keyword-only arguments
    max_bytes: int,
    must_rise: bool,  # as above
) -> tuple[int, int]:
    """Check batches in Kafka's order, and set CRC_OK.

    Args:
        data: uint8[], the batches.
        table: int64[COLUMN_COUNT, n], theirs.
        append_count: How many are to be appended; of the others only the first two rules hold.
        only_epoch: Leader epoch that all must have, ANY_EPOCH for none.
        must_begin_at_0: Whether base offsets of v2 batches must be 0.
        max_bytes: Largest size.
        must_rise: Whether last offsets must rise.

    Returns:
        (row, status): the first batch that breaks a rule, and which; (n, DONE) without one.
    """
    last_offset = np.int64(_NO_OFFSET)
    for row in range(table.shape[1]):
        is_v2 = table[MAGIC, row] >= MAGIC_V2
        if only_epoch != ANY_EPOCH and table[LEADER_EPOCH, row] != only_epoch:
            return row, OTHER_EPOCH
        if must_begin_at_0 and is_v2 and table[BASE_OFFSET, row] != 0:
            return row, MOVED
        if row >= append_count:
            continue
        if table[SIZE, row] > max_bytes:
            return row, TOO_LARGE
        if not check_batch_crc(data, table, row):
            return row, WRONG_CRC
        if table[ATTRIBUTES, row] & CODEC_MASK > _LAST_CODEC:
            return row, UNKNOWN_CODEC
        if must_rise and table[LAST_OFFSET, row] <= last_offset:
            return row, OUT_OF_ORDER
        last_offset = table[LAST_OFFSET, row]
    return table.shape[1], DONE


# In place of a limit.
NO_LIMIT_MS: Final = 2**63 - 1

# Records of a batch that stays as it is.
REFUSED: Final = 1  # a record is malformed or breaks a rule; which one, a closer look tells
HAS_GAPS: Final = 2  # all is well, but offsets inside are not 0, 1, 2


@kernel
def check_records(
    source: NDArray[np.uint8],
    start: int,
    end: int,
    table: NDArray[np.int64],
    row: int,
    needs_key: bool,  # numba takes no keyword-only arguments
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    max_body_bytes: int,
) -> tuple[int, int]:
    """Check the records of a v2 batch in one walk. The batch does not claim append time.

    Args:
        source: uint8[], the records, not compressed.
        table: int64[COLUMN_COUNT, n], batches.
        needs_key: Whether every record has to have a key.
        before_max_ms: How far behind the clock a timestamp may lie, or NO_LIMIT_MS.
        after_max_ms: How far ahead of it, or NO_LIMIT_MS.

    Returns:
        (status, max_timestamp): DONE, HAS_GAPS or REFUSED; NO_TIMESTAMP without a timestamp.
    """
    status = DONE
    max_timestamp = np.int64(NO_TIMESTAMP)
    position = start
    for i in range(table[RECORD_COUNT, row]):
        record = parse_record(source, position, end)
        if record.next_position < 0 or record.body_bytes > max_body_bytes:
            return REFUSED, max_timestamp
        if needs_key and record.key_length < 0:
            return REFUSED, max_timestamp
        timestamp = table[BASE_TIMESTAMP, row] + record.timestamp_delta
        if timestamp != NO_TIMESTAMP:
            behind_ms = now_ms - timestamp
            if behind_ms > before_max_ms or -behind_ms > after_max_ms:
                return REFUSED, max_timestamp
        max_timestamp = max(max_timestamp, timestamp)
        if table[BASE_OFFSET, row] + record.offset_delta != i:
            status = HAS_GAPS
        position = record.next_position
    if position != end:
        return REFUSED, max_timestamp
    return status, max_timestamp
