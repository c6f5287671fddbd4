"""Batch header fields as Arrow columns, by batch or by record."""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.records.batch_table import (
    TIMESTAMP_TYPES,
    BatchTable,
    codec_name,
    control_name,
)

_TIME: Final = pa.timestamp("us", tz="UTC")
_MICROSECONDS: Final = 1000
_LARGEST_MS: Final = (2**63 - 1) // _MICROSECONDS

# Named as in ``pylog dump --json``.
BATCH_TYPES: Final[dict[str, pa.DataType]] = {
    "file": pa.string(),
    "position": pa.int64(),
    "base_offset": pa.int64(),
    "last_offset": pa.int64(),
    "magic": pa.int32(),
    "size": pa.int64(),
    "codec": pa.string(),
    "timestamp_type": pa.string(),
    "max_timestamp": _TIME,
    "producer_id": pa.int64(),
    "producer_epoch": pa.int32(),
    "base_sequence": pa.int32(),
    "last_sequence": pa.int32(),
    "is_transactional": pa.bool_(),
    "is_control": pa.bool_(),
    "control_type": pa.string(),
    "leader_epoch": pa.int32(),
    "delete_horizon": _TIME,
    "record_count": pa.int32(),
}


def batch_column(
    name: str, file: str, file_position: int, batches: BatchTable, rows: NDArray[np.int64]
) -> pa.Array:
    """Return a column of BATCH_TYPES.

    Args:
        rows: Their indexes, one for each element of the column.
    """
    match name:
        case "file":
            column = pa.repeat(pa.scalar(file), len(rows))
        case "position":
            column = pa.array(batches.position[rows] + file_position)
        case "codec":
            column = _names(batches.codec[rows], codec_name)
        case "timestamp_type":
            column = _names(batches.timestamp_type_id[rows], TIMESTAMP_TYPES.__getitem__)
        case "control_type":
            column = _names(batches.control_type[rows], control_name)
        case "max_timestamp":
            times = batches.max_timestamp[rows]
            column = to_time(times, is_null=times == NO_TIMESTAMP)
        case "delete_horizon":
            has_none = ~batches.has_delete_horizon[rows]
            column = to_time(batches.base_timestamp[rows], is_null=has_none)
        case "record_count":
            # An entry's header before v2 has no count.
            counts = batches.record_count[rows].astype(np.int32)
            column = pa.array(counts, mask=batches.is_legacy[rows])
        case _:
            column = pa.array(getattr(batches, name)[rows]).cast(BATCH_TYPES[name])
    return column


def to_time(epoch_ms: NDArray[np.int64], *, is_null: NDArray[np.bool_]) -> pa.Array:
    """Return Spark's microseconds; a point in time beyond their range is null.

    Args:
        is_null: Mask of further nulls.
    """
    smallest, largest = epoch_ms.min(initial=0), epoch_ms.max(initial=0)
    if not is_null.any() and smallest >= -_LARGEST_MS and largest <= _LARGEST_MS:
        return pa.array(epoch_ms * _MICROSECONDS).view(_TIME)
    beyond = (epoch_ms > _LARGEST_MS) | (epoch_ms < -_LARGEST_MS) | is_null
    return pa.array(np.where(beyond, 0, epoch_ms) * _MICROSECONDS, mask=beyond).view(_TIME)


def _names(numbers: NDArray[np.int64], name: Callable[[int], str | None]) -> pa.Array:
    """Return each number's name; few numbers are different."""
    different, places = np.unique(numbers, return_inverse=True)
    names: Iterable[str | None] = map(name, different.tolist())
    dictionary = pa.array(list(names), pa.string())
    return dictionary.take(pa.array(places.astype(np.int64)))
