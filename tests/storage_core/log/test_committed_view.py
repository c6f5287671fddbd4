"""Aborted transactions and last stable offset: cheap where companions are, right without them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given

from storage_core.errors import CorruptRecordError
from storage_core.log.committed_view import load_committed_view, scan_committed_view
from storage_core.store import LocalStore
from tests.kit.builders import some_batches
from tests.kit.directories import ProducerSpec, SegmentSpec, write_partition
from tests.kit.golden_data import Golden
from tests.kit.transaction_logs import TransactionLog, transaction_logs

NOW_MS = 1_700_000_000_000


@pytest.mark.item("RD-07")
@given(log=transaction_logs())
def test_indexes_and_headers_tell_the_same(log: TransactionLog):
    with TemporaryDirectory() as folder:
        whole = LocalStore(log.write(Path(folder) / "a-0", with_companions=True))
        bare = LocalStore(log.write(Path(folder) / "b-0", with_companions=False))
        by_index = load_committed_view(whole, now_ms=NOW_MS)
        by_headers = load_committed_view(bare, now_ms=NOW_MS)
    assert by_headers.last_stable_offset == log.last_stable_offset
    assert by_index.last_stable_offset == log.last_stable_offset
    for first in range(0, log.end_offset, 3):
        for end in range(first, log.end_offset, 4):
            aborted = by_headers.aborted_between(first, end)
            assert set(by_index.aborted_between(first, end)) == set(aborted)


@pytest.mark.item("RD-07")
@given(log=transaction_logs())
def test_between_two_offsets_stand_the_transactions_that_reach_in(log: TransactionLog):
    everything = {aborted for segment in log.segments for aborted in segment.aborted}
    with TemporaryDirectory() as folder:
        store = LocalStore(log.write(Path(folder) / "a-0", with_companions=True))
        view = load_committed_view(store, now_ms=NOW_MS)
    for first in range(log.end_offset):
        found = {(a.producer_id, a.first_offset) for a in view.aborted_between(first, first + 2)}
        reaching = {
            (a.producer_id, a.first_offset)
            for a in everything
            if a.last_offset >= first and a.first_offset < first + 2
        }
        assert found == reaching


@pytest.mark.parametrize("is_index_there", [True, False])
def test_the_markers_tell_what_aborted_whatever_became_of_the_indexes(
    tmp_path: Path, is_index_there: bool
):
    directory = Golden("broker-dir").unpack(tmp_path) / "payments.txn-0"
    store = LocalStore(directory)
    expected = load_committed_view(store, now_ms=NOW_MS)
    assert expected.aborted_between(0, 200)
    if not is_index_there:
        (directory / "00000000000000000000.index").unlink()
    (directory / "00000000000000000000.txnindex").unlink()
    assert load_committed_view(store, now_ms=NOW_MS) == expected


def test_the_log_start_bounds_what_is_stable(tmp_path: Path):
    directory = write_partition(
        tmp_path / "t-0",
        [
            SegmentSpec(base_offset=0, batches=some_batches(count=4)),
            SegmentSpec(
                base_offset=4,
                batches=some_batches(count=1, base_offset=4),
                producers=[ProducerSpec(producer_id=1, current_txn_first_offset=0)],
            ),
        ],
    )
    view = load_committed_view(LocalStore(directory), now_ms=NOW_MS, log_start_checkpoint=2)
    assert view.last_stable_offset == 2


def test_a_log_without_transactions_is_stable_to_its_end(tmp_path: Path):
    batches = some_batches(count=3, records=2)
    directory = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)])
    view = scan_committed_view(LocalStore(directory))
    assert (view.last_stable_offset, view.aborted_between(0, 6)) == (6, [])


def test_damage_to_the_batches_themselves_is_an_error(tmp_path: Path):
    batches = some_batches(count=3)
    directory = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)])
    log = directory / "00000000000000000000.log"
    # Zeros alone would be the end of the log.
    log.write_bytes(log.read_bytes() + bytes(99) + b"\1")
    with pytest.raises(CorruptRecordError):
        load_committed_view(LocalStore(directory), now_ms=NOW_MS)
