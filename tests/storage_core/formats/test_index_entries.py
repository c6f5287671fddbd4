"""Entries of the three indexes."""

import struct

import numpy as np
import pytest

from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)


@pytest.mark.parametrize(
    ("entry", "form", "values"),
    [
        pytest.param(
            OFFSET_INDEX_ENTRY, ">ii", (7, -8), id="offset index", marks=pytest.mark.item("IDX-01")
        ),
        pytest.param(
            TIME_INDEX_ENTRY, ">qi", (-7, 8), id="time index", marks=pytest.mark.item("IDX-02")
        ),
        pytest.param(
            TXN_INDEX_ENTRY,
            ">hqqqq",
            (0, 1, -2, 2**62, 4),
            id="transaction index",
            marks=pytest.mark.item("IDX-04"),
        ),
    ],
)
def test_an_entry_is_its_numbers_end_to_end(entry, form, values):
    assert entry.itemsize == struct.calcsize(form)
    assert np.array([values, values], entry).tobytes() == struct.pack(form, *values) * 2


def test_entries_have_8_12_and_34_bytes():
    sizes = [kind.itemsize for kind in (OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY, TXN_INDEX_ENTRY)]
    assert sizes == [8, 12, 34]
