"""Records at even distances: which ones, how many, and how little is read for them."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import ConfigError
from storage_core.formats.control import ControlType
from storage_core.kafka_log import LATEST, open_logs
from storage_core.reading import ranges
from storage_core.reading.sampling import WINDOW_BYTES
from tests.kit.builders import BatchSpec, RecordSpec, end_txn_marker
from tests.kit.directories import SegmentSpec, write_partition

VALUE = b"v" * 4000
PER_BATCH = 4


def batches(first: int, count: int, **fields: Any) -> Iterator[BatchSpec]:
    for base in range(first, first + count * PER_BATCH, PER_BATCH):
        records = tuple(RecordSpec(key=b"%d" % (base + n), value=VALUE) for n in range(PER_BATCH))
        yield BatchSpec(base_offset=base, records=records, **fields)


def sample(root: Path, count: int, **how: Any) -> list[tuple[int, int]]:
    records = open_logs(root).read(end=LATEST, range_bytes=WINDOW_BYTES, **how)
    found = [
        (partition, offset)
        for batch in records.sample(count)
        for partition, offset in zip(
            batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True
        )
    ]
    assert found == sorted(set(found))
    return found


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of batches each window had that was read."""
    told: list[int] = []
    scan = ranges.scan_windows

    def counting(*arguments: Any, **named: Any) -> Iterator[Any]:
        for window in scan(*arguments, **named):
            told.append(int(window.batches.size.sum()))
            yield window

    monkeypatch.setattr(ranges, "scan_windows", counting)
    return told


def test_a_small_log_gives_exactly_as_many_at_even_distances(tmp_path: Path):
    write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=list(batches(0, 1)))])
    write_partition(tmp_path / "t-1", [SegmentSpec(base_offset=0, batches=list(batches(0, 3)))])
    assert sample(tmp_path, 8) == [(0, 1), (0, 3)] + [(1, n) for n in range(1, 12, 2)]
    assert len(sample(tmp_path, 15)) == 15
    assert len(sample(tmp_path, 1000)) == 16


@pytest.mark.thorough
def test_a_large_log_is_read_in_windows_only(tmp_path: Path, read_bytes: list[int]):
    for number, count in ((0, 600), (1, 200)):
        segments = [SegmentSpec(base_offset=0, batches=list(batches(0, count)))]
        write_partition(tmp_path / f"t-{number}", segments)
    found = sample(tmp_path, 16)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    assert size > 16 * 10 * WINDOW_BYTES
    assert sum(read_bytes) <= 16 * WINDOW_BYTES
    assert [sum(p == number for p, _ in found) for number in (0, 1)] == [12, 4]
    for number, records in ((0, 2400), (1, 800)):
        offsets = [offset for p, offset in found if p == number]
        distances = [later - former for former, later in pairwise(offsets)]
        even = records / len(offsets)
        assert all(0.9 * even <= distance <= 1.1 * even for distance in distances), distances
        assert 0.4 * even <= offsets[0] <= 0.6 * even
    assert sample(tmp_path, 16) == found


def test_holes_take_no_places(tmp_path: Path):
    dense, far = list(batches(0, 300)), list(batches(10_000_000, 300))
    write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=[*dense, *far])])
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 10001200\n")
    found = [offset for _, offset in sample(tmp_path, 20)]
    assert len(found) == 20
    assert sum(offset < 1200 for offset in found) == 10
    assert min(offset for offset in found if offset > 1200) >= 10_000_000


def test_bounds_hold(tmp_path: Path):
    segments = [SegmentSpec(base_offset=0, batches=list(batches(0, 600)))]
    write_partition(tmp_path / "t-0", segments)
    records = open_logs(tmp_path).read(start=500, end=1500, range_bytes=WINDOW_BYTES)
    found = [row["offset"] for batch in records.sample(10) for row in batch.to_pylist()]
    assert len(found) == 10
    assert 500 <= found[0] < 600
    assert 1400 <= found[-1] < 1500


@pytest.mark.thorough
def test_records_of_aborted_transactions_are_not_chosen(tmp_path: Path):
    producer = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    aborted = list(batches(0, 300, **producer))
    marker = end_txn_marker(
        base_offset=1200, producer_id=7, producer_epoch=0, control_type=ControlType.ABORT
    )
    seen = list(batches(1201, 300))
    write_partition(
        tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=[*aborted, marker, *seen])]
    )
    found = [offset for _, offset in sample(tmp_path, 10, isolation="read_committed")]
    assert found
    assert min(found) > 1200
    assert len(found) == 10
    assert len([1 for _, offset in sample(tmp_path, 10) if offset < 1200]) == 5


def test_what_is_missing_is_said(tmp_path: Path):
    write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=list(batches(0, 2)))])
    logs = open_logs(tmp_path)
    with pytest.raises(ConfigError, match="LATEST"):
        logs.read().sample(3)
    with pytest.raises(ConfigError, match="at least 1"):
        logs.read(end=LATEST).sample(0)
    (batch,) = logs.read(end=LATEST, columns=["value"]).sample(1)
    assert batch.to_pydict() == {"value": [VALUE]}
