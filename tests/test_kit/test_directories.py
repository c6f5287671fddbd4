"""Partition directories against those that Kafka closed."""

import struct
from pathlib import Path

import pytest

from tests.kit.builders import BatchSpec, RecordSpec, some_batches
from tests.kit.compare import read_tree
from tests.kit.decode import decode_segment
from tests.kit.directories import (
    AbortedTxnSpec,
    ProducerSpec,
    SegmentSpec,
    encode_leader_epochs,
    encode_producer_snapshot,
    encode_txn_index,
    index_files,
    leader_epochs,
    write_partition,
)
from tests.kit.golden_data import Golden, Side, goldens

CLOSED = [g for g in goldens("clean-*") if not g.case["expected"].get("nothing_to_clean")]


@pytest.mark.parametrize("golden", CLOSED, ids=lambda golden: golden.name)
def test_the_indexes_are_those_of_kafkas_cleaned_segments(golden: Golden, tmp_path: Path):
    directory = golden.unpack(tmp_path, Side.AFTER)
    interval = golden.case["config"].get("index.interval.bytes", 4096)
    cleaned = [
        log
        for log in sorted(directory.glob("*.log"))
        if int(log.stem) < golden.case["expected"]["next"]
    ]
    for log in cleaned:
        batches = [
            (batch.last_offset, batch.header["max_timestamp"], batch.size)
            for batch in decode_segment(log.read_bytes())[0]
        ]
        found = index_files(int(log.stem), batches, index_interval_bytes=interval)
        assert found == (
            log.with_suffix(".index").read_bytes(),
            log.with_suffix(".timeindex").read_bytes(),
        )


@pytest.mark.parametrize("golden", goldens("clean-txn-*-3"), ids=lambda golden: golden.name)
def test_snapshots_and_transaction_indexes_are_encoded_as_kafka_does(
    golden: Golden, tmp_path: Path
):
    for path in sorted(golden.unpack(tmp_path).iterdir()):
        data = path.read_bytes()
        if path.suffix == ".snapshot":
            entries = struct.iter_unpack(">qhiqiqiq", data[10:])
            names = ProducerSpec.__dataclass_fields__
            producers = [ProducerSpec(**dict(zip(names, row, strict=True))) for row in entries]
            assert encode_producer_snapshot(producers) == data
        elif path.suffix == ".txnindex":
            rows = [row[1:] for row in struct.iter_unpack(">hqqqq", data)]
            names = AbortedTxnSpec.__dataclass_fields__
            aborted = [AbortedTxnSpec(**dict(zip(names, row, strict=True))) for row in rows]
            assert encode_txn_index(aborted) == data


def test_an_empty_snapshot_has_ten_bytes():
    assert encode_producer_snapshot([]) == bytes.fromhex("0001 48674bc7 00000000")


def test_epochs_begin_where_they_rise():
    specs = [BatchSpec(base_offset=i, leader_epoch=e) for i, e in enumerate([0, 0, 2, 2, 1, -1, 5])]
    assert leader_epochs(specs) == [(0, 0), (2, 2), (5, 6)]
    assert encode_leader_epochs([(0, 0), (2, 17)]) == "0\n2\n0 0\n2 17\n"
    assert encode_leader_epochs([]) == "0\n0\n"


def test_the_index_entry_stands_at_the_batch_after_the_interval():
    offset_index, time_index = index_files(
        100, [(101, 5, 50), (103, 9, 51), (105, 7, 10), (107, 9, 10)], index_interval_bytes=100
    )
    assert offset_index == struct.pack(">ii", 5, 101)
    assert time_index == struct.pack(">qi", 9, 3)


def test_a_partition_has_the_files_of_a_clean_close(tmp_path: Path):
    first = some_batches(count=3, records=2)
    last = [BatchSpec(base_offset=6, leader_epoch=4, records=(RecordSpec(key=b"k", value=None),))]
    aborted = AbortedTxnSpec(producer_id=1, first_offset=0, last_offset=4, last_stable_offset=5)
    directory = write_partition(
        tmp_path / "topic-0",
        [
            SegmentSpec(base_offset=0, batches=first, aborted=[aborted], modified_ms=123_456),
            SegmentSpec(base_offset=6, batches=last, torn_tail=b"torn", producers=[]),
            SegmentSpec(base_offset=7, producers=[ProducerSpec(producer_id=9, last_offset=3)]),
        ],
    )
    files = read_tree(directory)
    assert sorted(files) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000000.txnindex",
        "00000000000000000006.index",
        "00000000000000000006.log",
        "00000000000000000006.snapshot",
        "00000000000000000006.timeindex",
        "00000000000000000007.index",
        "00000000000000000007.log",
        "00000000000000000007.snapshot",
        "00000000000000000007.timeindex",
        "leader-epoch-checkpoint",
    ]
    assert files["leader-epoch-checkpoint"] == b"0\n2\n0 0\n4 6\n"
    assert files["00000000000000000006.log"].endswith(b"torn")
    assert files["00000000000000000007.log"] == files["00000000000000000007.index"] == b""
    assert len(files["00000000000000000007.snapshot"]) == 10 + 46
    first_log = directory / "00000000000000000000.log"
    assert first_log.stat().st_mtime_ns == 123_456_000_000
