"""Appends: the files that ours leave are those of Kafka's UnifiedLog."""

import dataclasses
import os
import random

import jpype
import pyarrow as pa
import pytest

from storage_core.formats.batch_v2 import (
    BATCH_HEADER,
    CRC_START,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    Codec,
)
from storage_core.formats.control import ControlType
from storage_core.log.append.validator import ProducerSettings
from storage_core.log.producer_state import AppendOrigin
from storage_core.records.new_records import NewRecords
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    encode_batch,
    end_txn_marker,
    with_valid_crc,
)
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.oracle.appends import (
    START_MS,
    BothLogs,
    RandomAppends,
    legacy_set,
    memory_records,
    random_config,
)
from tests.oracle.jvm import java, java_bytes, kafka_failures, python_bytes
from tests.oracle.records import INTERNAL, _java_headers, compression

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

ROUNDS = int(os.environ.get("PYLOG_ORACLE_EXAMPLES", "8"))
STEPS = 60
ALL_CODECS = tuple(Codec)


def play(root, seed, *, recompresses, codecs):
    dice = random.Random(seed)
    config = random_config(dice, recompresses=recompresses)
    logs = BothLogs(root, config, recompresses=recompresses)
    plan = RandomAppends(logs, dice, codecs=codecs)
    for _ in range(STEPS):
        plan.step()
    logs.close()
    exactness = Exactness.RECORDS if recompresses else Exactness.BYTES
    differences = compare_partitions(read_tree(logs.theirs_at), read_tree(logs.ours_at), exactness)
    assert not differences, "\n".join([str(logs.settings), *map(str, differences)])
    return plan


@pytest.mark.sampled(1)
@pytest.mark.item("APP-01", "APP-02", "APP-04", "APP-05", "APP-13", "APP-17", "APP-20", "PRD-10")
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_the_same_appends_leave_the_same_bytes(seed, tmp_path):
    play(tmp_path, seed, recompresses=False, codecs=(Codec.NONE,))


@pytest.mark.thorough
@pytest.mark.item("APP-05", "APP-06", "APP-10")
@pytest.mark.parametrize("seed", range(1000, 1000 + ROUNDS))
def test_compressed_batches_that_stay_as_they_came_leave_the_same_bytes(seed, tmp_path):
    play(tmp_path, seed, recompresses=False, codecs=ALL_CODECS)


@pytest.mark.thorough
@pytest.mark.item("APP-05", "APP-10")
@pytest.mark.parametrize("seed", range(2000, 2000 + ROUNDS))
def test_batches_that_are_compressed_anew_have_the_same_records(seed, tmp_path):
    play(tmp_path, seed, recompresses=True, codecs=ALL_CODECS)


def compare_directories(logs, exactness=Exactness.BYTES):
    logs.close()
    differences = compare_partitions(read_tree(logs.theirs_at), read_tree(logs.ours_at), exactness)
    assert not differences, "\n".join(map(str, differences))


def columns_of(records):
    table = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.large_binary()),
        "timestamp": pa.array([record.timestamp for record in records], pa.int64()),
        "headers": pa.array(
            [[{"key": k, "value": v} for k, v in record.headers] for record in records],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
    return NewRecords.from_arrow(pa.table(table))


def kafkas_batches(records, *, codec, max_bytes, max_records, **producer):
    """Return the batches that Kafka's builder makes of records, filled as a producer fills them."""
    fields = {"producer_id": -1, "epoch": -1, "sequence": -1, "transactional": False} | producer
    first = 0
    while first < len(records):
        sequence = fields["sequence"]
        builder = java(INTERNAL + "MemoryRecordsBuilder")(
            java("java.nio.ByteBuffer").allocate(256),
            jpype.JByte(2),
            compression(codec),
            java("org.apache.kafka.common.record.TimestampType").CREATE_TIME,
            jpype.JLong(0),
            jpype.JLong(-1),
            jpype.JLong(fields["producer_id"]),
            jpype.JShort(fields["epoch"]),
            jpype.JInt(sequence if sequence < 0 else (sequence + first) % 2**31),
            fields["transactional"],
            False,
            jpype.JInt(-1),
            jpype.JInt(max_bytes),
        )
        count = 0
        for record in records[first : first + max_records]:
            parts = (
                jpype.JLong(record.timestamp),
                java_bytes(record.key),
                java_bytes(record.value),
                _java_headers(record.headers),
            )
            if not builder.hasRoomFor(*parts):
                break
            builder.append(*parts)
            count += 1
        first += count
        yield builder.build()


@pytest.mark.thorough
@pytest.mark.item("APP-04", "APP-05", "APP-09", "APP-10", "APP-13")
@pytest.mark.parametrize("seed", range(3000, 3000 + ROUNDS))
def test_columns_leave_the_bytes_of_their_batches_appended_one_by_one(seed, tmp_path):
    dice = random.Random(seed)
    config = random_config(dice, recompresses=False) | {
        "max.message.bytes": 1_048_588,
        "message.timestamp.before.max.ms": 2**63 - 1,
        "message.timestamp.after.max.ms": 3_600_000,
        "flush.messages": 2**63 - 1,  # ours looks once for many batches
    }
    codec = dice.choice(("none", "none", "none", "gzip", "zstd"))
    if codec != "none":
        config["internal.segment.bytes"] = 10_000_000
    logs = BothLogs(tmp_path, config, recompresses=codec != "none")
    plan = RandomAppends(logs, dice, codecs=(Codec.NONE,))
    for round_number in range(6):
        records = [
            dataclasses.replace(record, key=record.key or b"")
            for _ in range(dice.randrange(1, 30))
            for record in plan.records()
        ]
        producer = None
        fields = {}
        if dice.random() < 0.5:
            known = logs.ours.producers.get(7)
            sequence = 2**31 - 40 if known is None else known.next_sequence
            fields = {"producer_id": 7, "epoch": 2, "sequence": sequence, "transactional": True}
            producer = ProducerSettings(
                producer_id=7,
                producer_epoch=2,
                base_sequence=sequence if known is None else None,
                is_transactional=True,
            )
        limits = {"max_bytes": dice.choice((300, 1_000)), "max_records": dice.choice((3, 10**6))}
        if codec != "none":  # a producer guesses how far a batch will shrink
            limits = {"max_bytes": 10**6, "max_records": dice.choice((3, 20))}
        with kafka_failures():
            for batch in kafkas_batches(records, codec=codec, **limits, **fields):
                logs.theirs.log.appendAsLeader(batch, round_number)
        logs.ours.append_columns(
            columns_of(records),
            leader_epoch=round_number,
            codec=Codec[codec.upper()],
            batch_bytes=limits["max_bytes"],
            batch_records=limits["max_records"],
            producer=producer,
        )
        logs.compare()
        if fields and dice.random() < 0.7:
            plan.lead(
                encode_batch(
                    end_txn_marker(
                        base_offset=0,
                        producer_id=7,
                        producer_epoch=2,
                        control_type=dice.choice((ControlType.ABORT, ControlType.COMMIT)),
                        leader_epoch=-1,
                    )
                ),
                origin=AppendOrigin.COORDINATOR,
                version=1,
            )
        plan.time()
    compare_directories(logs, Exactness.BYTES if codec == "none" else Exactness.RECORDS)


def read_any(directory):
    """Return what Kafka reads of a log of any message format."""
    [log] = directory.glob("*.log")
    return [
        (
            int(batch.lastOffset()),
            int(batch.magic()),
            str(batch.compressionType().name),
            int(batch.maxTimestamp()),
            [
                (
                    int(r.offset()),
                    int(r.timestamp()),
                    python_bytes(r.key()),
                    python_bytes(r.value()),
                )
                for r in batch
            ],
        )
        for batch in memory_records(log.read_bytes()).batches()
    ]


@pytest.mark.sampled(10)
@pytest.mark.item("APP-05", "APP-10")
@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("to_magic", [0, 1, 2])
@pytest.mark.parametrize("source", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("target", ["producer", "uncompressed", "gzip", "lz4"])
def test_every_strategy_of_the_validator(magic, to_magic, source, target, tmp_path):
    logs = BothLogs(tmp_path, {"compression.type": target}, recompresses=True)
    records = [RecordSpec(key=b"k%d" % i, value=b"v" * i, timestamp=START_MS - i) for i in range(9)]
    if magic < 2:
        data = legacy_set(records, magic=magic, codec=source)
    else:
        data = encode_batch(
            BatchSpec(records=tuple(records), codec=Codec[source.upper()], leader_epoch=-1)
        )
    logs.append_as_leader(data, leader_epoch=3, to_magic=to_magic)
    assert logs.ours.log_end_offset == 9
    theirs, ours = logs.theirs_at, logs.ours_at
    logs.close()
    assert read_any(theirs) == read_any(ours)
    differences = compare_partitions(read_tree(theirs), read_tree(ours), Exactness.BYTES)
    is_compressed_anew = (source if target == "producer" else target) not in {
        "none",
        "uncompressed",
    }
    if not is_compressed_anew or (magic == to_magic == 2 and target in {"producer", source}):
        assert not differences, "\n".join(map(str, differences))


@pytest.mark.thorough
@pytest.mark.item("APP-03")
def test_input_that_is_cut_anywhere_leaves_what_was_whole(tmp_path):
    records = tuple(RecordSpec(key=b"k", value=b"v" * i) for i in range(2))
    parts = [
        encode_batch(BatchSpec(records=records, base_offset=base, leader_epoch=0))
        for base in (0, 2)
    ]
    data = b"".join(parts)
    for length in range(len(data) + 1):
        logs = BothLogs(tmp_path / str(length), {})
        logs.append_as_follower(data[:length], leader_epoch=0)
        whole = (length >= len(parts[0])) + (length == len(data))
        assert logs.ours.log_end_offset == 2 * whole
        compare_directories(logs)


@pytest.mark.item("APP-18")
def test_a_follower_takes_offsets_as_they_are_and_no_later_epoch(tmp_path):
    logs = BothLogs(tmp_path, {"max.message.bytes": 10})
    records = (RecordSpec(key=b"k", value=b"v"),)

    def batches(*places):
        return b"".join(
            encode_batch(BatchSpec(records=records, base_offset=base, leader_epoch=epoch))
            for base, epoch in places
        )

    assert logs.append_as_follower(batches((5, 1), (9, 2), (20, 3)), leader_epoch=2).offsets == (
        5,
        9,
    )
    assert logs.append_as_follower(batches((20, 3)), leader_epoch=2).offsets == (-1, -1)
    failure = logs.append_as_follower(batches((9, 2)), leader_epoch=2).failure
    assert failure == "UnexpectedAppendOffsetException"
    failure = logs.append_as_follower(batches((30, 2), (25, 2)), leader_epoch=2).failure
    assert failure == "OffsetsOutOfOrderException"
    compare_directories(logs)


@pytest.mark.item("APP-19")
def test_an_empty_follower_starts_over_where_the_first_batch_straddles_its_start(tmp_path):
    records = tuple(RecordSpec(key=b"k%d" % i, value=b"v") for i in range(21))
    batch = BatchSpec(records=records, base_offset=90, leader_epoch=4)
    logs = BothLogs(tmp_path, {}, log_start_offset=100)
    failure = logs.append_as_follower(encode_batch(batch), leader_epoch=4).failure
    assert failure == "UnexpectedAppendOffsetException"
    with kafka_failures():
        # What Kafka's Partition does about that exception.
        logs.theirs.log.truncateFullyAndStartAt(jpype.JLong(90), java("java.util.Optional").empty())
        logs.theirs.log.appendAsFollower(memory_records(encode_batch(batch)), 4)
    logs.ours.append_records_to_follower(encode_batch(batch), leader_epoch=4)
    logs.compare()
    assert (logs.ours.log_start_offset, logs.ours.log_end_offset) == (90, 111)
    compare_directories(logs)


@pytest.mark.item("APP-17", "SEG-06")
def test_a_time_index_of_one_entry_makes_every_append_roll(tmp_path):
    logs = BothLogs(tmp_path, {"segment.index.bytes": 12})
    for _ in range(5):
        logs.append_as_leader(
            encode_batch(BatchSpec(records=(RecordSpec(key=b"k"),), leader_epoch=-1)),
            leader_epoch=0,
        )
    assert [base for base, _ in logs.ours.segments] == [0, 1, 2, 3, 4]
    compare_directories(logs)


@pytest.mark.item("SEG-07")
def test_a_preallocated_segment_that_was_never_closed_is_recovered_by_kafka(tmp_path):
    config = {"preallocate": True, "segment.bytes": 1_048_576}
    logs = BothLogs(tmp_path, config)
    data = encode_batch(BatchSpec(records=(RecordSpec(key=b"k"),), leader_epoch=-1))
    logs.append_as_leader(data, leader_epoch=0)
    log = logs.ours_at / "00000000000000000000.log"
    assert log.stat().st_size == 1_048_576
    assert log.read_bytes().rstrip(b"\0") == (logs.theirs_at / log.name).read_bytes().rstrip(b"\0")
    logs.ours.abandon()
    with logs.kafka.open_partition(
        logs.ours_at, config=logs.settings, clean_shutdown=False
    ) as recovered:
        assert recovered.log_end_offset == 1
    assert log.stat().st_size == len(data)


@pytest.mark.thorough
@pytest.mark.item("APP-02", "APP-07", "APP-08")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("way", ["leader", "coordinator", "follower"])
def test_a_batch_with_a_flipped_bit_is_judged_as_kafka_judges_it(way, codec, tmp_path):
    dice = random.Random(f"{way} {codec}")
    logs = BothLogs(tmp_path, {"cleanup.policy": "compact"}, recompresses=True)
    kinds = set()
    for _ in range(400):
        end = logs.ours.log_end_offset
        spec = BatchSpec(
            records=tuple(RecordSpec(key=b"k%d" % i, timestamp=START_MS) for i in range(3)),
            base_offset=end if way == "follower" else 0,
            codec=codec,
            leader_epoch=5,
        )
        data = bytearray(encode_batch(spec))
        # Behind the CRC, but not the producer's fields: what they do is told in other tests; nor
        # the compressed bytes, at which compressors fail in their own ways.
        last = BATCH_HEADER.itemsize if codec is not Codec.NONE else len(data)
        places = [*range(CRC_START, PRODUCER_ID_AT), *range(RECORD_COUNT_AT, last)]
        data[dice.choice(places)] ^= 1 << dice.randrange(8)
        data = with_valid_crc(bytes(data))
        if way == "follower":
            answer = logs.append_as_follower(data, leader_epoch=5)
        else:
            origin = AppendOrigin[way.upper()] if way == "coordinator" else AppendOrigin.CLIENT
            answer = logs.append_as_leader(data, leader_epoch=5, origin=origin, version=1)
        kinds.add(answer.failure)
        if logs.ours.log_end_offset > 2**40:
            break
    assert None in kinds
    assert len(kinds) > 1
