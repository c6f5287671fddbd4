"""Digests of records, for comparison with a copy in another cluster.

A digest covers what such a copy still has of a record. Key, value and headers get 64 bits each, and
so does all of it together, with the timestamp. Offsets are left out, and so is what only batches
have. It finds damage; it does not stop whoever forges a log.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_digest import avalanche, digest_bytes, take_word
from storage_core.kernels.record_scan import (
    RECORD_BATCH,
    RECORD_HEADER_COUNT,
    RECORD_HEADER_START,
    RECORD_KEY_LENGTH,
    RECORD_KEY_START,
    RECORD_VALUE_LENGTH,
    RECORD_VALUE_START,
)
from storage_core.kernels.varint import read_varint

# Rows of the table of digests.
KEY: Final = 0
VALUE: Final = 1
HEADERS: Final = 2
IDENTITY: Final = 3
DIGEST_COUNT: Final = 4
# In place of the digest of what is null.
NULL_DIGEST: Final = np.uint64(0x9AE16A3B2F90404F)
_NO_HEADERS: Final = np.uint64(0)
_START: Final = np.uint64(0xC3A5C85C97CB3127)


@inlined_kernel
def _digest_field(source: NDArray[np.uint8], start: int, length: int) -> int:
    if length < 0:
        return NULL_DIGEST
    low, _ = digest_bytes(source, start, start + length)
    return np.uint64(low)


@kernel
def _digest_headers(source: NDArray[np.uint8], position: int, count: int) -> int:
    """Return the digest of headers, whose record scan has checked them."""
    total = _NO_HEADERS
    for _ in range(count):
        length, position = read_varint(source, position, source.size)
        key = np.uint64(_digest_field(source, position, length))
        length, position = read_varint(source, position + length, source.size)
        value = np.uint64(_digest_field(source, position, length))
        position += max(length, 0)
        total = np.uint64(avalanche(np.uint64(take_word(np.uint64(take_word(total, key)), value))))
    return total


@kernel
def digest_records(
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    in_arena: NDArray[np.uint8],
    records: NDArray[np.int64],
    timestamp: NDArray[np.int64],
    digests: NDArray[np.uint64],
) -> None:
    """Fill the digests of decoded records.

    Args:
        data: uint8[], one place where records lie.
        arena: uint8[], the other.
        in_arena: uint8[batches], which of them holds the records of each batch.
        records: int64[RECORD_COLUMN_COUNT, n], as ``record_scan`` decodes them.
        timestamp: int64[n], the part of the identity that the batches have.
        digests: uint64[DIGEST_COUNT, n], out.
    """
    for i in range(records.shape[1]):
        source = arena if in_arena[records[RECORD_BATCH, i]] else data
        key = np.uint64(
            _digest_field(source, records[RECORD_KEY_START, i], records[RECORD_KEY_LENGTH, i])
        )
        value = np.uint64(
            _digest_field(source, records[RECORD_VALUE_START, i], records[RECORD_VALUE_LENGTH, i])
        )
        headers = np.uint64(
            _digest_headers(
                source, records[RECORD_HEADER_START, i], records[RECORD_HEADER_COUNT, i]
            )
        )
        total = np.uint64(take_word(_START, key))
        total = np.uint64(take_word(total, value))
        total = np.uint64(take_word(total, headers))
        total = np.uint64(take_word(total, np.uint64(timestamp[i])))
        digests[KEY, i], digests[VALUE, i], digests[HEADERS, i] = key, value, headers
        digests[IDENTITY, i] = np.uint64(avalanche(total))
