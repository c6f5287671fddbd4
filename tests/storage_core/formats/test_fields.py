"""Positions of fields in a layout."""

import numpy as np
import pytest

from storage_core.formats.fields import field_at

LAYOUT = np.dtype([("first", ">i2"), ("second", ">i8"), ("third", "u1")])


def test_a_field_begins_where_the_ones_before_it_end():
    assert [field_at(LAYOUT, name) for name in ("first", "second", "third")] == [0, 2, 10]


@pytest.mark.parametrize("layout", [LAYOUT, np.dtype("i8")], ids=["a layout", "a bare number"])
def test_a_field_that_is_not_there_has_no_position(layout):
    with pytest.raises(KeyError):
        field_at(layout, "fourth")
