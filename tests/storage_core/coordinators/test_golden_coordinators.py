"""Coordinators' partitions and logs that real brokers left."""

from pathlib import Path
from typing import Any

import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.coordinators.coordinator_log import (
    ReplayedRecord,
    TransactionEnd,
    replay_partition,
)
from storage_core.coordinators.groups import CommitKey, GroupImage
from storage_core.coordinators.offsets_audit import ObservedLog, observe_log
from storage_core.coordinators.transactions import TransactionImage, TransactionState
from storage_core.errors import CorruptRecordError
from storage_core.filenames import SNAPSHOT_SUFFIX, TopicPartition
from storage_core.log.settled_store import settle
from storage_core.store.local import LocalStore
from tests.kit.golden_data import Golden, goldens

LOG = "00000000000000000000.log"
TIMEOUT_MS = 300_000


def events_of(root: Path, topic: str) -> list[ReplayedRecord | TransactionEnd]:
    return [
        event
        for directory in sorted(root.glob(f"{topic}-*"))
        for event in replay_partition(settle(LocalStore(directory)), topic)
    ]


@pytest.mark.sampled(1)
@pytest.mark.item("REP-16", "REP-17")
@pytest.mark.parametrize("name", ["broker-dir", "broker-dir-unclean"])
def test_the_offsets_that_are_committed_are_those_that_the_broker_answered(name, tmp_path):
    golden = Golden(name)
    image = GroupImage()
    for event in events_of(golden.unpack(tmp_path), "__consumer_offsets"):
        image.apply(event)
    answered = {
        CommitKey(group, *_split(place)): offset
        for group, places in golden.case["committed_offsets"].items()
        for place, offset in places.items()
    }
    found = {key: commit.offset for key, commit in image.offsets.items()}
    assert {key: found[key] for key in answered} == answered
    assert {key.group for key in found} == {*golden.case["committed_offsets"], "tx-group"}
    assert not image.undecoded
    assert not image.pending


def _split(place: str) -> tuple[str, int]:
    topic, _, number = place.rpartition("-")
    return topic, int(number)


@pytest.mark.item("REP-18")
def test_a_transaction_that_was_open_when_the_broker_was_killed_is_ongoing(tmp_path: Path):
    root = Golden("broker-dir-unclean").unpack(tmp_path)
    image = TransactionImage()
    for event in events_of(root, "__transaction_state"):
        image.apply(event)
    assert not image.undecoded
    (ongoing,) = [entry for entry in image.entries if entry.is_in_flight]
    assert (ongoing.transactional_id, ongoing.state) == ("tx-open", TransactionState.ONGOING)
    assert ongoing.partitions == (
        TopicPartition("payments.txn", 0),
        TopicPartition("payments.txn", 1),
    )
    for place in ongoing.partitions:
        log = observe(root / str(place))
        (opened,) = log.open_transactions
        assert opened.producer_id == ongoing.producer_id
        assert log.bounds.log_start_offset <= opened.first_offset < log.bounds.log_end_offset


@pytest.mark.thorough
def test_records_come_in_the_order_of_the_log_with_markers_between_them(tmp_path: Path):
    root = Golden("broker-dir").unpack(tmp_path)
    for directory in sorted(root.glob("__consumer_offsets-*")):
        store = settle(LocalStore(directory))
        offsets = [event.offset for event in replay_partition(store, "__consumer_offsets")]
        assert offsets == sorted(offsets)
        later = list(replay_partition(store, "__consumer_offsets", start_offset=7))
        assert [event.offset for event in later] == [offset for offset in offsets if offset >= 7]
    ends = [e for e in events_of(root, "__consumer_offsets") if isinstance(e, TransactionEnd)]
    assert {end.is_commit for end in ends} == {True, False}


@pytest.mark.thorough
@pytest.mark.item("REP-16")
def test_what_lies_before_damage_is_replayed(tmp_path: Path):
    directory = Golden("broker-dir").unpack(tmp_path) / "__consumer_offsets-0"
    whole = list(replay_partition(settle(LocalStore(directory)), "__consumer_offsets"))
    log = directory / LOG
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    # A window ends before a batch whose checksum is wrong.
    found: list[Any] = []
    with pytest.raises(CorruptRecordError) as raised:
        found.extend(replay_partition(settle(LocalStore(directory)), "__consumer_offsets"))
    assert raised.value.file == LOG
    assert found == whole[: len(found)]


def observe(directory: Path) -> ObservedLog:
    return observe_log(
        settle(LocalStore(directory)),
        now_ms=10**13,
        max_transaction_timeout_ms=TIMEOUT_MS,
        checkpoints=PartitionCheckpoints(),
        tier_start=lambda _: None,
    )


@pytest.mark.item("REP-18")
@pytest.mark.parametrize("golden", goldens("clean-txn-*"), ids=lambda golden: golden.name)
def test_a_copy_without_producer_snapshots_has_the_same_open_transactions(golden, tmp_path):
    directory = golden.unpack(tmp_path)
    whole = observe(directory)
    for path in directory.glob(f"*{SNAPSHOT_SUFFIX}"):
        path.unlink()
    copied = observe(directory)
    assert copied.bounds.log_end_offset == whole.bounds.log_end_offset
    assert [_facts(each) for each in copied.open_transactions] == [
        _facts(each) for each in whole.open_transactions
    ]


def _facts(opened: Any) -> tuple[int, int, int, bool]:
    return opened.producer_id, opened.producer_epoch, opened.first_offset, opened.is_late


def test_some_of_these_copies_have_an_open_transaction(tmp_path: Path):
    opened = [
        observe(golden.unpack(tmp_path / golden.name)).open_transactions
        for golden in goldens("clean-txn-open*")
    ]
    assert any(opened)
