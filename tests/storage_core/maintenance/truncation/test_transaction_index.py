"""What a truncation does to a transaction index."""

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.formats.index_entries import TXN_INDEX_ENTRY
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import AbortedTxnSpec, SegmentSpec, write_partition
from tests.kit.one_partition import truncate_partition

NOW_MS = 1_700_000_000_000
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
