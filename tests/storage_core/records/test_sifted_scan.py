"""A scan that leaves batches out: the headers and the error of one that leaves out none."""

import numpy as np
import pytest

from storage_core.records import sifted_scan
from storage_core.records.reader import CrcCheck, Tail, scan_windows
from storage_core.records.sifted_scan import scan_sifted
from tests.kit.builders import SOME_TIME_MS
from tests.storage_core.records.memory_file import DescriptorFile, SharedMemoryFile
from tests.storage_core.records.test_checked_headers import DAMAGES, scanned

EVERYTHING, NOTHING = (0, 2 * SOME_TIME_MS), (0, 1)


@pytest.mark.parametrize("data", DAMAGES)
@pytest.mark.parametrize("tail", [Tail.RAISE, Tail.ZEROS])
@pytest.mark.parametrize("times_ms", [EVERYTHING, NOTHING])
def test_what_is_left_out_hides_no_damage_of_what_follows(monkeypatch, data, tail, times_ms):
    for name in ("_LEAST_BYTES", "_PAGE_BYTES", "_STRETCH_BYTES"):
        monkeypatch.setattr(sifted_scan, name, 1)
    monkeypatch.setattr(sifted_scan, "_ROWS_AT_A_TIME", 6)
    how = {"start": 0, "end": len(data), "window_bytes": 2000, "tail": tail}
    expected, error = scanned(scan_windows, data, crc=CrcCheck.LATER, **how)
    for file_of in (SharedMemoryFile, DescriptorFile):
        rows, found = scanned(scan_sifted, data, file_of, times_ms=times_ms, **how)
        assert found == error
        np.testing.assert_array_equal(rows, expected)
