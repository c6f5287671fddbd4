"""Scans of segments: one answer whatever the windows, wherever they were made."""

import dataclasses
from contextlib import closing

import numpy as np
import pytest

from storage_core.filenames import log_file
from storage_core.formats.batch_v2 import TimestampType
from storage_core.kernels.producer_scan import TIMESTAMP
from storage_core.log.segment_scan import ScanStop, SegmentScan, scan_segment
from storage_core.records import checked_headers
from storage_core.store.local import LocalStore
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    end_txn_marker,
    some_batches,
)
from tests.kit.golden_data import goldens
from tests.kit.golden_loading import loading_of, plan_golden
from tests.kit.legacy import encode_any, encoded
from tests.storage_core.records.memory_file import MemoryFile

GOLDENS = [
    golden
    for golden in [*goldens("recover-*"), *goldens("overflow-*-recover*"), *goldens("load-*")]
    if "error" not in golden.case["expected"]
]


def scan_of(data, base_offset=0, **settings):
    defaults = {"index_interval_bytes": 100, "max_index_bytes": 1 << 20}
    return scan_segment(MemoryFile(data), base_offset, **defaults | settings)


def same(one, other):
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(SegmentScan)
    )


def test_a_whole_segment_is_valid_to_its_end():
    data = encoded(some_batches(count=4, records=5, base_offset=0))
    scan = scan_of(data)
    assert scan.stop is ScanStop.END
    assert (scan.valid_bytes, scan.next_offset, scan.batches, scan.records) == (
        len(data),
        20,
        4,
        20,
    )


@pytest.mark.item("REC-13")
def test_the_valid_part_ends_before_the_batch_that_is_cut_anywhere():
    whole = encoded(some_batches(count=3, records=2, base_offset=0))
    last = len(encoded(some_batches(count=2, records=2, base_offset=0)))
    for end in range(last, len(whole)):
        scan = scan_of(whole[:end])
        assert (scan.valid_bytes, scan.next_offset) == (last, 4)
        assert (scan.stop is ScanStop.END) is (end == last)


@pytest.mark.item("REC-16")
def test_index_entries_that_do_not_rise_stop_a_scan():
    batches = some_batches(count=3, records=2, base_offset=0)
    scan = scan_of(encoded([*batches, *batches]), index_interval_bytes=0)
    assert scan.stop is ScanStop.INDEX_ORDER
    assert "does not rise" in scan.reason


@pytest.mark.parametrize("offset", [2**31, -1], ids=["too far above", "below the base"])
def test_an_offset_that_does_not_fit_stops_a_scan(offset):
    base = 5
    near = BatchSpec(records=(RecordSpec(key=b"k", value=b"v"),), base_offset=base)
    far = dataclasses.replace(near, base_offset=base + offset)
    scan = scan_of(encoded([near, far]), base_offset=base)
    assert scan.stop is ScanStop.OVERFLOW
    assert scan.batches == 1


def test_an_index_without_room_stops_a_scan():
    data = encoded(some_batches(count=5, records=5, base_offset=0))
    scan = scan_of(data, index_interval_bytes=0, max_index_bytes=12)
    assert scan.stop is ScanStop.INDEX_FULL


def test_new_leader_epochs_are_noted_with_their_first_offsets():
    batches = [
        BatchSpec(
            records=(RecordSpec(key=b"k", value=b"v"),), base_offset=offset, leader_epoch=epoch
        )
        for offset, epoch in enumerate([2, 2, 5, 3, 5, 7])
    ]
    for window_bytes in (1, 1 << 20):
        scan = scan_of(encoded(batches), window_bytes=window_bytes)
        assert scan.epochs.tolist() == [[2, 0], [5, 2], [7, 5]]


@pytest.mark.sampled(28)
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_a_scan_is_the_same_in_small_windows_and_after_a_journey(golden, tmp_path):
    store = LocalStore(golden.unpack(tmp_path))
    config = loading_of(golden)["config"]
    for file in store.list_files():
        if not file.name.endswith(".log"):
            continue
        base = int(file.name.removesuffix(".log"))
        found = []
        for window_bytes in (1, 1 << 20):
            with closing(store.open_file(log_file(base))) as reader:
                found.append(
                    scan_segment(
                        reader,
                        base,
                        index_interval_bytes=config.index_interval_bytes,
                        max_index_bytes=config.segment_index_bytes,
                        window_bytes=window_bytes,
                    )
                )
        assert same(*found)
        assert same(found[0], SegmentScan.from_bytes(found[0].to_bytes()))


@pytest.mark.sampled(19)
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_threads_lead_to_the_same_operations(golden, tmp_path, monkeypatch):
    monkeypatch.setattr(checked_headers, "_STRETCH_BYTES", 1000)
    store = LocalStore(golden.unpack(tmp_path))
    alone, together = (plan_golden(golden, store, threads=count) for count in (1, 3))
    assert together.operations == alone.operations
    assert together.repairs == alone.repairs


@pytest.mark.sampled(27)
@pytest.mark.item("REC-30")
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_scans_made_beforehand_lead_to_the_same_operations(golden, tmp_path):
    store = LocalStore(golden.unpack(tmp_path))
    config = loading_of(golden)["config"]
    scans = {}
    for file in store.list_files():
        if file.name.endswith(".log"):
            base = int(file.name.removesuffix(".log"))
            with closing(store.open_file(file.name)) as reader:
                scan = scan_segment(
                    reader,
                    base,
                    index_interval_bytes=config.index_interval_bytes,
                    max_index_bytes=config.segment_index_bytes,
                )
            scans[base] = SegmentScan.from_bytes(scan.to_bytes())
    alone = plan_golden(golden, store)
    spread = plan_golden(golden, store, scans=scans)
    assert spread.operations == alone.operations
    assert spread.log_end_offset == alone.log_end_offset
    if not alone.repairs.split:
        assert spread.repairs.scanned_bytes == 0


@pytest.mark.item("PRD-04")
@pytest.mark.parametrize(
    ("timestamp_type", "delete_horizon_ms", "told"),
    [
        (TimestampType.CREATE_TIME, None, SOME_TIME_MS),
        (TimestampType.CREATE_TIME, SOME_TIME_MS + 5, SOME_TIME_MS),
        (TimestampType.LOG_APPEND_TIME, None, SOME_TIME_MS + 9),
    ],
)
def test_a_marker_has_the_timestamp_of_its_record_whatever_the_header_says(
    timestamp_type, delete_horizon_ms, told
):
    marker = end_txn_marker(
        base_offset=0, producer_id=3, producer_epoch=2, delete_horizon_ms=delete_horizon_ms
    )
    changed = dataclasses.replace(
        marker, timestamp_type=timestamp_type, max_timestamp=SOME_TIME_MS + 9
    )
    assert scan_of(encode_any(changed)).events[TIMESTAMP].tolist() == [told]
