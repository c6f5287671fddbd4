"""Directories that Kafka loads in a way that this project does not follow (docs/differences.md).

Kafka's loader makes an index of zeros for a swap file that has none, and leaves a segment in place
whose split it began before it had taken note of the segment, unless the first part has its name.
It opens compressed legacy messages that its search for an offset passes, and does not load a log
where that fails. It does not truncate a log with an offset index that ends in zeros behind its
limit.
"""

import struct
import zlib
from pathlib import Path
from typing import Final

from storage_core.filenames import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_of,
)
from storage_core.formats.batch_v2 import (
    CODEC_MASK,
    LAST_OFFSET_DELTA_AT,
    MAGIC_AT,
    MAGIC_V2,
)
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET
from storage_core.formats.legacy import ENTRY_ATTRIBUTES_AT, ENTRY_CRC_AT, ENTRY_CRC_START
from tests.kit.file_damage import batch_positions

MAX_MAGIC: Final = 127
OFFSET_BYTES: Final = 8


def is_loaded_otherwise(directory: Path) -> bool:
    """Return whether a partition directory is one of those."""
    names = {path.name for path in directory.iterdir()}
    lowest_cleaned = min(
        (offset_of(name) or 0 for name in names if name.endswith(CLEANED_SUFFIX)), default=None
    )
    for name in names:
        if not name.removesuffix(SWAP_SUFFIX).endswith(LOG_SUFFIX):
            continue
        is_dropped = lowest_cleaned is not None and (offset_of(name) or 0) >= lowest_cleaned
        if name.endswith(SWAP_SUFFIX) and is_dropped:
            continue
        index = name.replace(LOG_SUFFIX, OFFSET_INDEX_SUFFIX)
        if name.endswith(SWAP_SUFFIX) and index not in names:
            return True
        has_txns = name.replace(LOG_SUFFIX, TXN_INDEX_SUFFIX) in names
        if (index not in names or has_txns) and _overflows(directory / name):
            return True
    return False


def has_bad_legacy_set(directory: Path) -> bool:
    """Return whether a compressed legacy message of a partition has a wrong CRC."""
    for path in directory.iterdir():
        data = path.read_bytes()
        if LOG_SUFFIX in path.name and any(
            _is_bad_set(data[position : position + size])
            for position, size in batch_positions(data)
        ):
            return True
    return False


def has_long_index(directory: Path, most_bytes: int) -> bool:
    """Return whether an offset index is longer than ``segment.index.bytes`` allows."""
    return any(
        path.stat().st_size > most_bytes for path in directory.glob(f"*{OFFSET_INDEX_SUFFIX}")
    )


def _is_bad_set(entry: bytes) -> bool:
    if len(entry) <= ENTRY_ATTRIBUTES_AT or MAGIC_V2 <= entry[MAGIC_AT] <= MAX_MAGIC:
        return False
    (stored,) = struct.unpack_from(">I", entry, ENTRY_CRC_AT)
    is_compressed = entry[ENTRY_ATTRIBUTES_AT] & CODEC_MASK != 0
    return is_compressed and zlib.crc32(entry[ENTRY_CRC_START:]) != stored


def _overflows(log: Path) -> bool:
    """Return whether an offset of a segment does not fit it, nor has its first part its name."""
    data, base_offset = log.read_bytes(), offset_of(log.name) or 0
    if data[:OFFSET_BYTES] == base_offset.to_bytes(OFFSET_BYTES, "big"):
        return False
    for position, size in batch_positions(data):
        (last,) = struct.unpack_from(">q", data, position)
        has_delta = size >= LAST_OFFSET_DELTA_AT + 4
        if has_delta and MAGIC_V2 <= data[position + MAGIC_AT] <= MAX_MAGIC:
            last += struct.unpack_from(">i", data, position + LAST_OFFSET_DELTA_AT)[0]
        if not 0 <= last - base_offset <= MAX_RELATIVE_OFFSET:
            return True
    return False
