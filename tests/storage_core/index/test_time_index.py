"""The time index, as far as it is read: its last entry."""

import numpy as np
import pytest

from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import TimeIndex

ENTRIES = np.array([(70, 2), (90, 8)], TIME_INDEX_ENTRY).tobytes()


@pytest.mark.parametrize("tail", range(12), ids=lambda tail: f"{tail} bytes")
def test_a_ragged_tail_is_no_entry(tail):
    index = TimeIndex.parse(100, ENTRIES + b"\x7f" * tail)
    assert (len(index.entries), index.last_timestamp) == (2, 90)


def test_an_empty_index_has_no_last_timestamp():
    assert TimeIndex.parse(100, b"").last_timestamp == -1


def test_what_the_bytes_say_is_taken_as_it_is():
    assert TimeIndex.parse(100, ENTRIES + bytes(24)).last_timestamp == 0
