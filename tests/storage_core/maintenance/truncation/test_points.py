"""What a truncation leaves: logs as Kafka does, points, transaction indexes."""

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.formats.index_entries import TXN_INDEX_ENTRY
from storage_core.json_values import to_json
from storage_core.maintenance.recovery.partition import plan_truncation, truncated_cleaner_point
from storage_core.store import LocalStore
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import AbortedTxnSpec, SegmentSpec, write_partition
from tests.kit.golden_data import goldens
from tests.kit.golden_loading import problems_of
from tests.kit.one_partition import truncate_partition

NOW_MS = 1_700_000_000_000


def segment(base_offset: int) -> SegmentSpec:
    """Return a segment of ten records, each a batch."""
    return SegmentSpec(
        base_offset=base_offset,
        batches=[
            BatchSpec(base_offset=base_offset + n, records=(RecordSpec(key=b"%d" % n),))
            for n in range(10)
        ],
    )


@pytest.mark.item("CMP-44", "CKP-08")
@pytest.mark.parametrize(
    ("to", "point", "expected"),
    [
        pytest.param(15, 20, 10, id="below the active segment: down to the new one's base"),
        pytest.param(15, 10, 10, id="a point at the new base stays"),
        pytest.param(15, 4, 4, id="a point below it stays"),
        pytest.param(20, 20, 20, id="at the active segment's base nothing moves"),
        pytest.param(25, 20, 20, id="inside of the active segment nothing moves"),
        pytest.param(0, 20, 0, id="everything goes"),
    ],
)
def test_the_point_is_at_most_the_base_of_the_segment_that_becomes_active(
    tmp_path, to, point, expected
):
    directory = write_partition(tmp_path / "t-0", [segment(0), segment(10), segment(20)])
    result = truncate_partition(
        directory,
        config=LogConfig.from_topic_overrides({"cleanup.policy": "compact"}),
        cleaner=CleanerConfig(),
        now_ms=NOW_MS,
        to=to,
        cleaner_offset=point,
    )
    assert (result.log_end_offset, result.cleaner_checkpoint) == (to, expected)


@pytest.mark.item("CMP-44")
def test_without_an_entry_nothing_is_said_of_one(tmp_path):
    directory = write_partition(tmp_path / "t-0", [segment(0), segment(10)])
    result = truncate_partition(
        directory, config=LogConfig(), cleaner=CleanerConfig(), now_ms=NOW_MS, to=5
    )
    assert to_json(result) == '{"truncated": true, "log_end_offset": 5}'


def test_a_point_above_a_log_that_is_not_cut_below_its_active_segment_stays():
    assert truncated_cleaner_point(30, to=25, active_before=20, active_after=20) == 30


@pytest.mark.parametrize("to", [0, 5, 10, 25, 30])
def test_nothing_above_the_cut_counts_as_flushed(tmp_path, to):
    directory = write_partition(tmp_path / "t-0", [segment(0), segment(10), segment(20)])
    result, log = plan_truncation(
        LocalStore(directory), config=LogConfig(), cleaner=CleanerConfig(), now_ms=NOW_MS, to=to
    )
    assert (result.truncated, log.log_end_offset, log.recovery_point) == (to < 30, to, to)


ENTRY_BYTES = TXN_INDEX_ENTRY.itemsize
TAIL = b"\0" * 5


@pytest.mark.item("IDX-15")
@pytest.mark.parametrize(
    ("to", "expected_bytes"),
    [
        pytest.param(15, 2 * ENTRY_BYTES + len(TAIL), id="no entry goes, nor does the tail"),
        pytest.param(8, ENTRY_BYTES, id="an entry goes, and all behind it"),
        pytest.param(2, 0, id="all go"),
    ],
)
def test_a_tail_that_is_no_whole_entry_goes_only_with_an_entry(tmp_path, to, expected_bytes):
    aborted = [
        AbortedTxnSpec(producer_id=1, first_offset=0, last_offset=last, last_stable_offset=last + 1)
        for last in (4, 9)
    ]
    batches = [
        BatchSpec(base_offset=offset, records=(RecordSpec(key=b"k"),)) for offset in range(20)
    ]
    directory = write_partition(
        tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches, aborted=aborted)]
    )
    index = directory / "00000000000000000000.txnindex"
    with index.open("ab") as file:
        file.write(TAIL)
    truncate_partition(
        directory,
        config=LogConfig(),
        cleaner=CleanerConfig(),
        now_ms=NOW_MS,
        to=to,
        log_start_offset=0,
    )
    assert index.stat().st_size == expected_bytes


@pytest.mark.item("IDX-15", "CKP-12", "PRD-16")
@pytest.mark.parametrize("golden", goldens("truncate-*"), ids=lambda golden: golden.name)
def test_a_log_is_cut_at_an_offset_with_all_that_belongs_to_it(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []
