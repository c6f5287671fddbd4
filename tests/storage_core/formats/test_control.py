"""Key and value of a control record."""

import struct

import numpy as np
import pytest

from storage_core.formats.control import (
    CONTROL_KEY,
    CONTROL_KEY_BYTES,
    END_TXN_VALUE,
    END_TXN_VALUE_BYTES,
    NO_CONTROL_RECORD,
    ControlType,
)


@pytest.mark.item("FMT-12")
def test_a_key_is_a_version_and_a_type():
    key = np.frombuffer(struct.pack(">hh", 3, -7), CONTROL_KEY)[0]
    assert (int(key["version"]), int(key["type"]), CONTROL_KEY_BYTES) == (3, -7, 4)
    names = ["ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER"]
    names += ["KRAFT_VERSION", "KRAFT_VOTERS"]
    assert [ControlType[name].value for name in names] == list(range(7))
    assert NO_CONTROL_RECORD not in set(ControlType)


@pytest.mark.item("FMT-13")
def test_a_markers_value_is_a_version_and_the_coordinators_epoch():
    value = np.frombuffer(struct.pack(">hi", 0, 2**31 - 1), END_TXN_VALUE)[0]
    assert (int(value["version"]), int(value["coordinator_epoch"])) == (0, 2**31 - 1)
    assert END_TXN_VALUE_BYTES == 6
