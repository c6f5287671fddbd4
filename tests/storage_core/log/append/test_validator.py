"""What a leader checks and stamps, and when it rolls; cases against Kafka are in tests/oracle."""

import contextlib
import dataclasses
import gzip
import random
import struct
import zlib

import numpy as np
import pytest

from storage_core import errors
from storage_core.formats.batch_v2 import MAX_BATCH_BYTES, Codec, TimestampType
from storage_core.log.append import validator
from storage_core.log.append.segment import (
    RollParams,
    SegmentAge,
    choose_roll_offset,
    choose_segment_jitter_ms,
    should_roll,
    time_waited_for_roll_ms,
)
from storage_core.log.producer_state import AppendOrigin
from storage_core.records.batch_builder import BatchSettings, build_all
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, encode_batch, with_valid_crc
from tests.kit.decode import decode_segment
from tests.storage_core.records.new_columns import columns_of

HOUR_MS = 3_600_000
SETTINGS = validator.ValidatorSettings(
    partition="t-0",
    now_ms=SOME_TIME_MS,
    target_codec=Codec.NONE,
    target_level=None,
    is_compacted=False,
    to_magic=2,
    timestamp_type=TimestampType.CREATE_TIME,
    timestamp_before_max_ms=2**63 - 1,
    timestamp_after_max_ms=HOUR_MS,
    leader_epoch=7,
    origin=AppendOrigin.CLIENT,
    max_record_bytes=1_000_000,
)
RECORDS = tuple(
    RecordSpec(key=b"k%d" % i, value=b"v" * i, timestamp=SOME_TIME_MS - i) for i in range(4)
)


def validate(data, *, first_offset=100, **changes):
    settings = dataclasses.replace(SETTINGS, **changes)
    own = np.frombuffer(bytearray(data), np.uint8)
    found = validator.analyze_append(
        own,
        partition="t-0",
        origin=settings.origin,
        leader_epoch=7,
        max_message_bytes=MAX_BATCH_BYTES,
    )
    return validator.validate_and_assign_offsets(
        own,
        found.batches,
        source_codec=found.source_codec,
        first_offset=first_offset,
        settings=settings,
    )


def v2(**fields):
    return encode_batch(BatchSpec(**({"records": RECORDS, "leader_epoch": -1} | fields)))


def legacy(magic, codec=Codec.NONE, records=RECORDS):
    columns = columns_of([dataclasses.replace(record, headers=()) for record in records])
    return build_all(columns, BatchSettings(magic=magic, codec=codec)).data.tobytes()


@pytest.mark.item("APP-05")
@pytest.mark.parametrize("codec", Codec)
def test_a_batch_that_may_stay_gets_offsets_and_epoch_and_keeps_its_bytes(codec):
    data = v2(codec=codec)
    valid = validate(data, target_codec=codec)
    assert not valid.is_rebuilt
    assert valid.next_offset == 104
    [batch] = decode_segment(valid.data.tobytes())[0]
    assert (batch.base_offset, batch.last_offset, batch.crc_ok) == (100, 103, True)
    assert batch.header["partition_leader_epoch"] == 7
    assert valid.data.tobytes()[16:] == data[16:]
    assert valid.batches.base_offset.tolist() == [100]


@pytest.mark.item("APP-05", "APP-10")
def test_a_batch_in_another_codec_is_built_anew():
    valid = validate(v2(codec=Codec.GZIP, producer_id=3, producer_epoch=1, base_sequence=4))
    assert valid.is_rebuilt
    [batch] = decode_segment(valid.data.tobytes())[0]
    assert batch.header["attributes"] == 0
    assert (batch.header["producer_id"], batch.header["base_sequence"]) == (3, 4)
    assert [record.key for record in batch.records] == [record.key for record in RECORDS]


@pytest.mark.item("APP-06")
@pytest.mark.parametrize(
    "data", [v2() + v2(), legacy(1, Codec.GZIP) + legacy(1, Codec.GZIP)], ids=["v2", "compressed"]
)
def test_an_append_has_one_batch_unless_it_is_plain_and_old(data):
    with pytest.raises(errors.InvalidRecordError):
        validate(data)
    assert validate(legacy(1)).next_offset == 104


@pytest.mark.item("APP-07")
@pytest.mark.parametrize(
    ("fields", "to_magic", "kind"),
    [
        pytest.param({"last_offset_delta": -1}, 2, errors.InvalidRecordError, id="negative delta"),
        pytest.param({"record_count": 0}, 2, errors.InvalidRecordError, id="no records"),
        pytest.param(
            {"record_count": 3}, 2, errors.InvalidRecordError, id="count and offsets differ"
        ),
        pytest.param({"is_control": True}, 2, errors.InvalidRecordError, id="control batch"),
        pytest.param(
            {"producer_id": 1, "producer_epoch": 0}, 2, errors.InvalidRecordError, id="no sequence"
        ),
        pytest.param(
            {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True},
            1,
            errors.UnsupportedForMessageFormatError,
            id="transaction in an old format",
        ),
        pytest.param(
            {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
            0,
            errors.UnsupportedForMessageFormatError,
            id="producer in an old format",
        ),
    ],
)
def test_a_clients_batch_has_to_be_whole_and_its_own(fields, to_magic, kind):
    with pytest.raises(kind):
        validate(v2(**fields), to_magic=to_magic)


@pytest.mark.item("APP-08")
def test_records_without_a_key_are_named_by_their_index():
    records = tuple(
        dataclasses.replace(record, key=None if i % 2 else b"k") for i, record in enumerate(RECORDS)
    )
    with pytest.raises(errors.RecordValidationError) as caught:
        validate(v2(records=records), is_compacted=True)
    assert caught.value.record_indexes == (1, 3)
    assert validate(v2(records=records)).next_offset == 104
    many = tuple(RecordSpec(key=None) for _ in range(9))
    with pytest.raises(errors.RecordValidationError, match=r"9 records are refused.*: 0, 1, 2$"):
        validate(v2(records=many), is_compacted=True)


@pytest.mark.item("APP-08")
def test_messages_inside_a_compressed_set_have_its_format_and_a_right_crc():
    inner = bytearray(legacy(1, records=RECORDS[:2]))
    good = compressed_set(bytes(inner))
    assert validate(good, target_codec=Codec.GZIP, to_magic=1).next_offset == 102
    other = compressed_set(legacy(0, records=RECORDS[:1]) + legacy(0, records=RECORDS[:1]))
    with pytest.raises(errors.RecordValidationError):
        validate(other, target_codec=Codec.GZIP, to_magic=1)
    inner[-1] ^= 1
    with pytest.raises(errors.CorruptRecordError):
        validate(compressed_set(bytes(inner)), target_codec=Codec.GZIP, to_magic=1)
    nested = compressed_set(compressed_set(legacy(1)))
    with pytest.raises(errors.InvalidRecordError):
        validate(nested, target_codec=Codec.GZIP, to_magic=1)


def compressed_set(entries):
    """Return a v1 message around entries, made by hand."""
    value = gzip.compress(entries, mtime=0)
    body = struct.pack(">bbqi", 1, 1, SOME_TIME_MS, -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 1, len(message)) + message


@pytest.mark.item("APP-09")
@pytest.mark.parametrize(
    ("timestamp", "is_fine"),
    [
        (SOME_TIME_MS + HOUR_MS, True),
        (SOME_TIME_MS + HOUR_MS + 1, False),
        (SOME_TIME_MS - 50, True),
        (SOME_TIME_MS - 51, False),
        (-1, True),
    ],
)
def test_create_times_lie_within_their_limits(timestamp, is_fine):
    data = v2(records=(RECORDS[0], RecordSpec(key=b"k", timestamp=timestamp)))
    if is_fine:
        valid = validate(data, timestamp_before_max_ms=50)
        assert valid.max_timestamp == max(SOME_TIME_MS, timestamp)
    else:
        with pytest.raises(errors.InvalidTimestampError) as caught:
            validate(data, timestamp_before_max_ms=50)
        assert caught.value.record_indexes == (1,)


@pytest.mark.item("APP-09")
def test_append_time_is_stamped_on_the_batch_and_may_not_be_claimed():
    append_time = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "now_ms": SOME_TIME_MS + 9}
    valid = validate(v2(), **append_time)
    [batch] = decode_segment(valid.data.tobytes())[0]
    assert batch.header["attributes"] == 8
    assert batch.header["max_timestamp"] == valid.max_timestamp == SOME_TIME_MS + 9
    claimed = v2(timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=SOME_TIME_MS)
    with pytest.raises(errors.InvalidTimestampError):
        validate(claimed, **append_time)
    [batch] = decode_segment(validate(claimed).data.tobytes())[0]
    assert batch.header["attributes"] == 0, "on a create-time topic the claim is dropped"
    without = v2(timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=-1)
    with pytest.raises(errors.InvalidTimestampError):
        validate(without)


def test_a_compressed_batch_with_gaps_is_refused_as_kafka_cannot_build_it_anew():
    records = (RECORDS[0], dataclasses.replace(RECORDS[1], offset_delta=5))
    data = v2(records=records, codec=Codec.LZ4)
    with pytest.raises(errors.InvalidAppendError):
        validate(data, target_codec=Codec.LZ4, origin=AppendOrigin.COORDINATOR)


def test_a_record_that_expands_beyond_its_limit_is_refused():
    records = (RecordSpec(key=b"k", value=b"v" * 500, timestamp=SOME_TIME_MS),)
    packed = v2(records=records, codec=Codec.GZIP)
    assert validate(packed, target_codec=Codec.GZIP, max_record_bytes=600).next_offset == 101
    with pytest.raises(errors.InvalidRecordError):
        validate(packed, target_codec=Codec.GZIP, max_record_bytes=500)
    plain = v2(records=records)
    assert validate(plain, max_record_bytes=500).next_offset == 101


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_old_messages_become_one_batch(magic, codec):
    valid = validate(legacy(magic, codec), target_codec=codec)
    [batch] = decode_segment(valid.data.tobytes())[0]
    assert (batch.base_offset, batch.last_offset) == (100, 103)
    assert [record.value for record in batch.records] == [record.value for record in RECORDS]
    assert batch.header["max_timestamp"] == (SOME_TIME_MS if magic else -1)


def test_hostile_records_are_an_error_of_ours():
    good = v2()
    for position in range(61, len(good)):
        for bit in (0x80, 0x01, 0x10):
            bad = bytearray(good)
            bad[position] ^= bit
            with contextlib.suppress(errors.PylogError):
                validate(with_valid_crc(bytes(bad)), is_compacted=True)


AGE = SegmentAge(
    base_offset=100,
    size_bytes=500,
    first_batch_timestamp=1_000,
    created_ms=50_000,
    jitter_ms=0,
    is_index_full=False,
)
PARAMS = RollParams(
    max_segment_ms=10_000,
    max_segment_bytes=600,
    max_timestamp=11_000,
    last_offset=200,
    append_bytes=100,
    now_ms=55_000,
)


@pytest.mark.item("APP-13", "APP-14")
@pytest.mark.parametrize(
    ("age", "params", "expected"),
    [
        pytest.param({}, {}, False, id="on every boundary"),
        pytest.param({}, {"append_bytes": 101}, True, id="too large by a byte"),
        pytest.param({}, {"max_timestamp": 11_001}, True, id="too old by a millisecond"),
        pytest.param({"size_bytes": 0}, {"max_timestamp": 99_000}, False, id="old but empty"),
        pytest.param({"jitter_ms": 1}, {}, True, id="jitter makes it older"),
        pytest.param({"is_index_full": True}, {}, True, id="an index is full"),
        pytest.param({}, {"last_offset": 100 + 2**31 - 1}, False, id="last offset in reach"),
        pytest.param({}, {"last_offset": 100 + 2**31}, True, id="offset out of reach"),
        pytest.param({}, {"last_offset": 99}, True, id="offset below the base"),
        pytest.param(
            {"first_batch_timestamp": -1}, {"max_timestamp": 99_000}, False, id="by the clock"
        ),
        pytest.param({"first_batch_timestamp": -1}, {"now_ms": 60_001}, True, id="clock too old"),
        pytest.param({}, {"now_ms": 999_999}, False, id="a clock far ahead does not count"),
        pytest.param({}, {"max_timestamp": -1}, False, id="an append without timestamps"),
    ],
)
def test_a_segment_is_rolled_beyond_a_limit_and_not_on_it(age, params, expected):
    segment, append = dataclasses.replace(AGE, **age), dataclasses.replace(PARAMS, **params)
    assert should_roll(segment, append) is expected


@pytest.mark.item("APP-14")
def test_time_waited_is_that_of_the_records_and_may_be_negative():
    assert time_waited_for_roll_ms(AGE, PARAMS) == 10_000
    old = dataclasses.replace(PARAMS, max_timestamp=400)
    assert time_waited_for_roll_ms(AGE, old) == -600
    unknown = dataclasses.replace(AGE, first_batch_timestamp=-1)
    assert time_waited_for_roll_ms(unknown, PARAMS) == 5_000


@pytest.mark.item("APP-15")
def test_jitter_is_below_its_limit_and_the_segments_age():
    dice = random.Random(3)

    def draw(jitter_ms, segment_ms):
        return [
            choose_segment_jitter_ms(dice, segment_jitter_ms=jitter_ms, segment_ms=segment_ms)
            for _ in range(500)
        ]

    assert set(draw(0, 10)) == {0}
    assert set(draw(7, 1_000)) == set(range(7))
    assert set(draw(1_000, 5)) == set(range(5))


@pytest.mark.item("APP-16")
def test_a_legacy_append_wants_a_base_from_which_it_can_be_reached():
    assert choose_roll_offset(first_offset=5, last_offset=9) == 5
    assert choose_roll_offset(first_offset=None, last_offset=2**31) == 1
