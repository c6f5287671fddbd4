"""Metadata records from bytes; Kafka's own bytes are decoded in tests/oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.catalog.metadata_image import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    Fencing,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    SkippedRecord,
    TopicRecord,
    TransactionMark,
    TransactionRecord,
    decode_metadata_record,
)
from storage_core.errors import CorruptClusterMetadataError
from tests.storage_core.catalog import metadata_bytes as md
from tests.storage_core.catalog.metadata_bytes import DIRECTORY, ID_A


def decode(value: bytes) -> MetadataRecord:
    return decode_metadata_record(value, file="f", offset=7)


def test_a_topic_is_decoded():
    assert decode(md.topic("t")) == TopicRecord(name="t", topic_id=ID_A)


def test_unknown_tagged_fields_are_skipped():
    value = md.frame(md.TOPIC, md.string("t") + md.uuid(ID_A) + md.tags({9: b"new"}))
    assert decode(value) == TopicRecord(name="t", topic_id=ID_A)


def test_a_partition_of_each_version_is_decoded():
    start = md.int32(3) + md.uuid(ID_A) + md.numbers(1, 2) + md.numbers(2)
    start += md.numbers(4) + md.numbers(5) + md.int32(2) + md.int32(8) + md.int32(9)
    expected = PartitionRecord(
        topic_id=ID_A,
        partition=3,
        replicas=(1, 2),
        isr=(2,),
        removing_replicas=(4,),
        adding_replicas=(5,),
        leader=2,
        leader_epoch=8,
        partition_epoch=9,
    )
    assert decode(md.frame(md.PARTITION, start + md.tags({0: b"\x01"}))) == expected
    directories = md.array([md.uuid(DIRECTORY), md.uuid(ID_A)])
    second = decode(md.frame(md.PARTITION, start + directories + md.NO_TAGS, version=1))
    assert isinstance(second, PartitionRecord)
    assert second.directories == (DIRECTORY, ID_A)
    elr = md.tags({1: md.numbers(1), 2: md.numbers(1, 2)})
    third = decode(md.frame(md.PARTITION, start + directories + elr, version=2))
    assert isinstance(third, PartitionRecord)
    assert third.eligible_leader_replicas == (1,)
    assert third.last_known_eligible_leader_replicas == (1, 2)


def test_a_partition_change_says_only_what_changed():
    nothing = PartitionChangeRecord(topic_id=ID_A, partition=1)
    assert decode(md.partition_change(1, ID_A, {})) == nothing
    changed = decode(
        md.partition_change(
            1,
            ID_A,
            {
                0: md.numbers(),
                1: md.int32(-1),
                2: md.numbers(7, 8),
                3: md.array(None),
                8: md.array([md.uuid(DIRECTORY)]),
            },
        )
    )
    assert changed == PartitionChangeRecord(
        topic_id=ID_A,
        partition=1,
        isr=(),
        leader=-1,
        replicas=(7, 8),
        removing_replicas=None,
        directories=(DIRECTORY,),
    )


def test_a_config_and_its_removal_are_decoded_and_its_value_is_not_shown():
    record = decode(md.config("1", "ssl.key.password", "secret", resource_type=4))
    assert record == ConfigRecord(
        resource_type=4, resource_name="1", key="ssl.key.password", value="secret"
    )
    assert "secret" not in repr(record)
    removed = decode(md.config("t", "retention.ms", None))
    assert isinstance(removed, ConfigRecord)
    assert removed.value is None


def test_a_broker_is_decoded_with_its_directories():
    assert decode(md.register_broker(3)) == RegisterBrokerRecord(
        broker_id=3, broker_epoch=11, fenced=True
    )
    record = decode(md.register_broker(3, {0: md.array([md.uuid(DIRECTORY)]), 1: md.array([])}))
    assert record == RegisterBrokerRecord(
        broker_id=3,
        broker_epoch=11,
        fenced=True,
        log_directories=(DIRECTORY,),
        cordoned_log_directories=(),
    )


@pytest.mark.parametrize("version", range(5))
def test_a_broker_of_each_version_is_decoded(version: int):
    assert decode(md.register_broker(3, version=version)) == RegisterBrokerRecord(
        broker_id=3, broker_epoch=11, fenced=True
    )


def test_a_change_of_a_broker_is_decoded():
    body = md.int32(3) + bytes(7) + b"\x0b"
    value = md.frame(md.BROKER_CHANGE, body + md.tags({0: b"\xff"}), version=3)
    assert decode(value) == BrokerRegistrationChangeRecord(
        broker_id=3, broker_epoch=11, fencing=Fencing.UNFENCE
    )


@pytest.mark.parametrize(
    ("api_key", "mark"),
    [
        (md.BEGIN, TransactionMark.BEGIN),
        (md.END, TransactionMark.END),
        (md.ABORT, TransactionMark.ABORT),
    ],
)
def test_the_marks_of_a_transaction_are_decoded(api_key: int, mark: TransactionMark):
    assert decode(md.mark(api_key)) == TransactionRecord(mark=mark)
    named = md.frame(api_key, md.tags({0: md.string("Bootstrap records")}))
    assert decode(named) == TransactionRecord(mark=mark)


def test_types_that_concern_no_log_are_skipped_without_being_read():
    assert decode(md.frame(md.NO_OP, b"whatever")) == SkippedRecord(api_key=20, is_known=True)
    assert decode(md.frame(11, b"credentials")) == SkippedRecord(api_key=11, is_known=True)
    assert decode(md.frame(4711, b"", version=9)) == SkippedRecord(api_key=4711, is_known=False)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(b"", "expected 1 bytes, found 0", id="empty value"),
        pytest.param(md.frame(2, b"", frame_version=0), "frame version 1, found 0", id="frame 0"),
        pytest.param(md.frame(2, b"", frame_version=2), "frame version 1, found 2", id="frame 2"),
        pytest.param(md.frame(md.TOPIC, b"", version=1), "versions up to 0", id="newer topic"),
        pytest.param(
            md.frame(md.PARTITION, b"", version=3), "versions up to 2", id="newer partition"
        ),
        pytest.param(md.topic("t") + b"\x00", "1 more bytes", id="bytes after the record"),
        pytest.param(md.topic("t")[:-5], "expected 16 bytes", id="record that ends too soon"),
        pytest.param(
            md.partition_change(1, ID_A, {1: md.int32(1) + b"\x00"}), "1 more", id="tag too long"
        ),
    ],
)
def test_what_cannot_be_understood_is_an_error_with_file_and_offset(value: bytes, reason: str):
    with pytest.raises(CorruptClusterMetadataError, match=reason) as raised:
        decode(value)
    assert (raised.value.file, raised.value.offset) == ("f", 7)


@given(st.binary(max_size=80), st.integers(0, 30), st.integers(0, 4))
def test_no_bytes_do_anything_but_decode_or_raise(body: bytes, api_key: int, version: int):
    try:
        decode(md.frame(api_key, body, version=version))
    except CorruptClusterMetadataError:
        return
