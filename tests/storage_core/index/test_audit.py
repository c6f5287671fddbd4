"""Findings about damaged indexes, one rule at a time."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from storage_core.filenames import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)
from storage_core.index.audit import (
    IndexFault,
    IndexFinding,
    SegmentBatches,
    audit_offset_index,
    audit_time_index,
    audit_transaction_index,
    count_used_entries,
)
from storage_core.index.segment_indexes import parse_transaction_index
from storage_core.records.reader import scan_windows
from storage_core.store.local import LocalStore
from tests.kit.golden_data import Golden, goldens

BASE = 100
# Four batches of 50 bytes with ten offsets each.
BATCHES = SegmentBatches(
    position=np.array([0, 50, 100, 150]),
    base_offset=np.array([100, 110, 120, 130]),
    last_offset=np.array([109, 119, 129, 139]),
    max_timestamp=np.array([5_000, 4_000, 7_000, 7_000]),
)


def offsets(*entries: tuple[int, int]) -> bytes:
    return np.array([(offset - BASE, at) for offset, at in entries], OFFSET_INDEX_ENTRY).tobytes()


def times(*entries: tuple[int, int]) -> bytes:
    return np.array([(time, offset - BASE) for time, offset in entries], TIME_INDEX_ENTRY).tobytes()


def transactions(*entries: tuple[int, int, int, int, int]) -> bytes:
    return np.array(list(entries), TXN_INDEX_ENTRY).tobytes()


def faults(findings: list[IndexFinding]) -> list[str]:
    """Return "FAULT entry expected actual" of findings."""
    return [f"{f.fault.name} {f.entry} {f.expected} {f.actual}" for f in findings]


GOOD_OFFSETS = offsets((119, 50), (139, 150))
GOOD_TIMES = times((5_000, 109), (7_000, 129))


@pytest.mark.item("IDX-16", "IDX-21")
def test_indexes_that_fit_their_log_are_fine():
    assert audit_offset_index(BASE, GOOD_OFFSETS, BATCHES) == []
    assert audit_time_index(BASE, GOOD_TIMES, BATCHES) == []
    assert audit_offset_index(BASE, b"", BATCHES) == []
    assert audit_transaction_index(BASE, b"", []) == []


def test_behind_a_batch_whose_offsets_fall_indexes_are_as_right_as_before():
    fallen = dataclasses.replace(BATCHES, last_offset=np.array([109, 119, 5, 139]))
    assert audit_offset_index(BASE, GOOD_OFFSETS, fallen) == []
    assert audit_time_index(BASE, times((5_000, 109), (7_000, 139)), fallen) == []


@pytest.mark.item("IDX-16", "IDX-21")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(GOOD_OFFSETS + b"\0\0\0", ["RAGGED 2 16 19"], id="ragged tail"),
        pytest.param(GOOD_OFFSETS + bytes(80), ["PADDED 2 16 96"], id="preallocated"),
        pytest.param(
            offsets((90, 50)),
            ["LAST_OFFSET_BELOW_BASE 0 100 90", "WRONG_OFFSET 0 119 90"],
            id="last offset below the base",
        ),
        pytest.param(
            offsets((139, 150), (119, 50)),
            ["OFFSET_NOT_RISING 1 140 119", "POSITION_NOT_RISING 1 151 50"],
            id="changed places",
        ),
        pytest.param(
            offsets((119, 50), (139, 151)), ["NO_BATCH 1 -1 151"], id="past the last batch"
        ),
        pytest.param(offsets((119, 49)), ["NO_BATCH 0 50 49"], id="inside of a batch"),
        pytest.param(offsets((108, 50)), ["WRONG_OFFSET 0 119 108"], id="shifted offset"),
        pytest.param(offsets((119, -1)), ["NO_BATCH 0 0 -1"], id="negative position"),
    ],
)
def test_an_offset_index_is_told_apart_from_its_log(data, expected):
    assert faults(audit_offset_index(BASE, data, BATCHES)) == expected


@pytest.mark.item("IDX-16", "IDX-18", "IDX-21")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(GOOD_TIMES + b"\0", ["RAGGED 2 24 25"], id="ragged tail"),
        pytest.param(GOOD_TIMES + bytes(24), ["PADDED 2 24 48"], id="preallocated"),
        pytest.param(
            times((7_000, 129), (5_000, 139)),
            [
                "LAST_TIMESTAMP_BELOW_FIRST 1 7000 5000",
                "TIMESTAMP_NOT_RISING 1 7001 5000",
                "WRONG_TIMESTAMP 1 7000 5000",
                "LARGEST_TIMESTAMP_MISSING 2 7000 5000",
            ],
            id="falling timestamps",
        ),
        pytest.param(
            times((5_000, 109), (7_000, 90)),
            ["LAST_OFFSET_BELOW_BASE 1 100 90", "OFFSET_NOT_RISING 1 109 90", "NO_BATCH 1 109 90"],
            id="last offset below the base",
        ),
        pytest.param(
            times((5_001, 109), (7_000, 129)), ["WRONG_TIMESTAMP 0 5000 5001"], id="wrong timestamp"
        ),
        pytest.param(
            times((5_000, 109), (7_000, 140)), ["NO_BATCH 1 -1 140"], id="no offset of a batch"
        ),
        pytest.param(
            times((4_000, 119), (7_000, 129)),
            ["NEWER_RECORD_BEFORE 0 5000 4000"],
            id="a newer record before",
        ),
        pytest.param(b"", ["LARGEST_TIMESTAMP_MISSING 0 7000 -1"], id="empty"),
        pytest.param(
            times((5_000, 109)),
            ["LARGEST_TIMESTAMP_MISSING 1 7000 5000"],
            id="without its last entry",
        ),
    ],
)
def test_a_time_index_is_told_apart_from_its_log(data, expected):
    assert faults(audit_time_index(BASE, data, BATCHES)) == expected


def test_a_time_entry_may_name_any_record_of_the_batch_with_its_timestamp():
    """Brokers before 3.8 name the record with the largest timestamp, or the first one."""
    assert audit_time_index(BASE, times((5_000, 108), (7_000, 120)), BATCHES) == []
    gap = dataclasses.replace(BATCHES, base_offset=np.array([100, 112, 120, 130]))
    assert faults(audit_time_index(BASE, times((5_000, 110), (7_000, 120)), gap)) == [
        "NO_BATCH 0 119 110"
    ]


def test_an_offset_entry_may_end_with_a_later_batch_of_the_same_append():
    """Brokers before 3.9.1 give an append of several batches one entry."""
    assert audit_offset_index(BASE, offsets((129, 50)), BATCHES) == []
    assert faults(audit_offset_index(BASE, offsets((109, 50)), BATCHES)) == [
        "WRONG_OFFSET 0 119 109"
    ]


@pytest.mark.parametrize("offset", [118, 127])
def test_an_offset_entry_of_the_cleaner_may_end_inside_of_a_batch(offset):
    """It names the last record that was kept; the batch still ends where it ended."""
    assert audit_offset_index(BASE, offsets((offset, 50)), BATCHES) == []
    gap = dataclasses.replace(BATCHES, base_offset=np.array([100, 110, 128, 130]))
    assert bool(audit_offset_index(BASE, offsets((offset, 50)), gap)) == (offset == 127)


@pytest.mark.item("IDX-18")
def test_an_open_segment_may_lack_its_last_time_entry():
    assert audit_time_index(BASE, times((5_000, 109)), BATCHES, is_closed=False) == []
    untimed = dataclasses.replace(BATCHES, max_timestamp=np.full(4, -1))
    assert audit_time_index(BASE, b"", untimed) == []


@pytest.mark.item("IDX-16", "IDX-19")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(
            transactions((0, 1, 100, 110, 111)) + b"\0", ["RAGGED 1 34 35"], id="ragged tail"
        ),
        pytest.param(
            transactions((9, 1, 100, 110, 111)), ["UNKNOWN_VERSION 0 0 9"], id="unknown version"
        ),
        pytest.param(
            transactions((0, 1, 80, 99, 111)),
            ["LAST_OFFSET_BELOW_BASE 0 100 99"],
            id="ends below the segment",
        ),
        pytest.param(
            transactions((0, 1, 100, 110, 111), (0, 2, 101, 110, 111)),
            ["OFFSET_NOT_RISING 1 111 110"],
            id="twice the same marker",
        ),
        pytest.param(
            transactions((0, 1, 120, 110, 111)),
            ["FIRST_OFFSET_ABOVE_LAST 0 110 120"],
            id="begins behind its end",
        ),
    ],
)
def test_a_transaction_index_breaks_a_rule_of_its_own(data, expected):
    assert faults(audit_transaction_index(BASE, data)) == expected


@pytest.mark.item("IDX-21")
def test_the_log_tells_which_aborted_transactions_are_missing_or_made_up():
    data = transactions((0, 1, 100, 110, 111), (0, 2, 101, 112, 113))
    both = parse_transaction_index("f", BASE, data)
    assert audit_transaction_index(BASE, data, both) == []
    assert faults(audit_transaction_index(BASE, data, both[:1])) == ["TRANSACTION_UNKNOWN 1 -1 112"]
    assert faults(audit_transaction_index(BASE, data[:34], both)) == [
        "TRANSACTION_MISSING 1 112 -1"
    ]


def test_one_finding_stands_for_all_entries_that_break_a_rule():
    shifted = offsets((108, 50), (118, 100), (128, 150))
    [finding] = audit_offset_index(BASE, shifted, BATCHES)
    assert (finding.fault, finding.entry, finding.position) == (IndexFault.WRONG_OFFSET, 0, 0)
    assert finding.count == 3


def test_only_what_no_reader_notices_is_harmless():
    harmless = {fault for fault in IndexFault if fault.is_harmless}
    assert harmless == {IndexFault.PADDED, IndexFault.RAGGED}


@pytest.mark.item("IDX-10")
@pytest.mark.parametrize("entry", [OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY], ids=["offset", "time"])
def test_the_zeros_of_a_preallocated_index_are_no_entries(entry):
    some = np.zeros(10, entry)
    some["relative_offset"][:3] = [4, 9, 12]
    assert count_used_entries(some) == 3
    assert count_used_entries(some[:3]) == 3
    assert count_used_entries(some[:0]) == 0
    assert count_used_entries(np.zeros(10, entry)) == 0


@pytest.mark.item("IDX-21")
@pytest.mark.parametrize("case", goldens("clean-*"), ids=lambda case: case.name)
def test_the_indexes_of_kafka_fit_its_logs(case: Golden, tmp_path: Path):
    directory = case.unpack(tmp_path)
    store = LocalStore(directory)
    for log in sorted(directory.glob("*.log")):
        base_offset = int(log.stem)
        batches = segment_batches(store, log.name)
        offset_data = log.with_suffix(OFFSET_INDEX_SUFFIX).read_bytes()
        assert serious(audit_offset_index(base_offset, offset_data, batches)) == []
        time_data = log.with_suffix(TIME_INDEX_SUFFIX).read_bytes()
        assert serious(audit_time_index(base_offset, time_data, batches)) == []
        aborted = log.with_suffix(TXN_INDEX_SUFFIX)
        if aborted.exists():
            assert audit_transaction_index(base_offset, aborted.read_bytes()) == []


def serious(findings: list[IndexFinding]) -> list[IndexFinding]:
    return [finding for finding in findings if not finding.fault.is_harmless]


def segment_batches(store: LocalStore, name: str) -> SegmentBatches:
    columns: list[tuple[list[int], ...]] = []
    reader = store.open_file(name)
    for window in scan_windows(reader):
        rows = range(len(window.batches))
        columns.append(
            (
                [window.position_of(row) for row in rows],
                window.batches.base_offset.tolist(),
                window.batches.last_offset.tolist(),
                window.batches.max_timestamp.tolist(),
            )
        )
    reader.close()
    position, base_offset, last_offset, max_timestamp = (
        np.array([number for part in columns for number in part[column]], np.int64)
        for column in range(4)
    )
    return SegmentBatches(
        position=position,
        base_offset=base_offset,
        last_offset=last_offset,
        max_timestamp=max_timestamp,
    )
