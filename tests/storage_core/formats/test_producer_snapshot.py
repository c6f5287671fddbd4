"""The layout of a producer snapshot."""

import struct
from pathlib import Path

import numpy as np
import pytest

from storage_core.formats.producer_snapshot import (
    CRC_START,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    SNAPSHOT_VERSION,
)
from tests.kit.golden_data import Golden, goldens


@pytest.mark.parametrize("golden", goldens("clean-txn-none-*"), ids=lambda golden: golden.name)
def test_kafkas_snapshots_have_this_layout(golden: Golden, tmp_path: Path):
    seen = 0
    for path in sorted(golden.unpack(tmp_path).glob("*.snapshot")):
        data = path.read_bytes()
        header = np.frombuffer(data, SNAPSHOT_HEADER, 1)[0]
        assert header["version"] == SNAPSHOT_VERSION
        entries = np.frombuffer(data, SNAPSHOT_ENTRY, offset=SNAPSHOT_HEADER.itemsize)
        assert header["entry_count"] == len(entries)
        assert entries.tolist() == list(struct.iter_unpack(">qhiqiqiq", data[10:]))
        seen += len(entries)
    assert seen


def test_the_crc_covers_everything_after_itself():
    assert (CRC_START, SNAPSHOT_HEADER.itemsize, SNAPSHOT_ENTRY.itemsize) == (6, 10, 46)
