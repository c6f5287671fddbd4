"""Rows of records to write, as arrays over any memory."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class RecordRows(NamedTuple):
    """Records to write, one row each.

    A kernel takes all of them as one argument. Sources of bytes are read only: a kernel compiles
    once for each kind of array that it is given. Spans have been checked against their buffers
    before (``records.new_records``).
    """

    keys: NDArray[np.uint8]
    key_start: NDArray[np.int64]
    key_length: NDArray[np.int64]  # negative for null
    values: NDArray[np.uint8]
    value_start: NDArray[np.int64]
    value_length: NDArray[np.int64]  # negative for null
    timestamps: NDArray[np.int64]
    offsets: NDArray[np.int64]  # rising; or empty: one after the other
    header_first: NDArray[np.int64]  # int64[n + 1], of each record its first header
    header_keys: NDArray[np.uint8]
    header_key_start: NDArray[np.int64]
    header_key_length: NDArray[np.int64]
    header_values: NDArray[np.uint8]
    header_value_start: NDArray[np.int64]
    header_value_length: NDArray[np.int64]  # negative for null
    body_bytes: NDArray[np.int64]  # of each record, what it has after its length, by cut_batches
