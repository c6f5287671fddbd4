"""Indexes are cut to what lies below an offset."""

import numpy as np
import pytest

from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import (
    AbortedTxn,
    truncate_aborted,
    truncate_offset_index,
    truncate_time_index,
)

BASE = 100
OFFSETS = (110, 120, 130)


def index(entry: np.dtype[np.void]) -> bytes:
    entries = np.zeros(len(OFFSETS), entry)
    entries["relative_offset"] = np.array(OFFSETS) - BASE
    entries[entry.names[1] if entry is OFFSET_INDEX_ENTRY else "timestamp"] = [7, 8, 9]
    return entries.tobytes()


@pytest.mark.item("IDX-15")
@pytest.mark.parametrize(
    ("offset", "left"),
    [
        pytest.param(99, 0, id="below the segment"),
        pytest.param(109, 0, id="below the first entry"),
        pytest.param(110, 0, id="at the first entry"),
        pytest.param(111, 1, id="above the first entry"),
        pytest.param(130, 2, id="at the last entry"),
        pytest.param(131, 3, id="above the last entry"),
    ],
)
@pytest.mark.parametrize("kind", ["offset", "time"])
def test_the_entries_below_the_offset_stay(kind, offset, left):
    entry = OFFSET_INDEX_ENTRY if kind == "offset" else TIME_INDEX_ENTRY
    truncate = truncate_offset_index if kind == "offset" else truncate_time_index
    data = index(entry)
    assert truncate(BASE, data, offset) == data[: left * entry.itemsize]


@pytest.mark.item("IDX-15")
def test_a_ragged_tail_goes_and_an_empty_index_stays_empty():
    assert truncate_offset_index(BASE, index(OFFSET_INDEX_ENTRY) + b"\0\0", 999) == index(
        OFFSET_INDEX_ENTRY
    )
    assert truncate_time_index(BASE, b"", 5) == b""


@pytest.mark.item("IDX-15")
@pytest.mark.parametrize(("offset", "left"), [(109, 0), (110, 0), (111, 1), (120, 1), (121, 2)])
def test_aborted_transactions_go_from_the_first_that_ends_too_late(offset, left):
    aborted = [
        AbortedTxn(producer_id=1, first_offset=100, last_offset=end, last_stable_offset=end + 1)
        for end in (110, 120)
    ]
    assert truncate_aborted(aborted, offset) == tuple(aborted[:left])
