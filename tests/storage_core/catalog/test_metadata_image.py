"""Metadata records, and what a run of them adds up to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.catalog import metadata_image
from storage_core.errors import CorruptClusterMetadataError
from tests.storage_core.catalog import metadata_bytes as md
from tests.storage_core.catalog.metadata_bytes import DIRECTORY, ID_A, ID_B


def image_of(*values: bytes) -> metadata_image.MetadataImage:
    image = metadata_image.MetadataImage()
    for offset, value in enumerate(values):
        record = metadata_image.decode_metadata_record(value, file="f", offset=offset)
        image.apply(record, file="f", offset=offset)
    return image


def test_a_topic_with_partitions_and_settings():
    image = image_of(
        md.topic("t"),
        md.config("t", "retention.ms", "5"),
        md.config("t", "cleanup.policy", "compact"),
        md.config("t", "retention.ms", None),
        md.partition(0),
        md.partition(1, replicas=(2, 1)),
    )
    topic = image.topics()[ID_A]
    assert (topic.name, sorted(topic.partitions)) == ("t", [0, 1])
    assert topic.partitions[1].replicas == (2, 1)
    assert image.topic_configs == {"t": {"cleanup.policy": "compact"}}


def test_a_removed_topic_takes_its_settings_with_it_and_may_come_back():
    image = image_of(
        md.topic("t"),
        md.partition(0),
        md.config("t", "retention.ms", "5"),
        md.config("t", "confluent.tier.enable", "true"),
        md.remove_topic(),
        md.topic("t", ID_B),
    )
    assert list(image.topics()) == [ID_B]
    assert image.topics()[ID_B].partitions == {}
    assert (image.topic_configs, image.ignored_topic_keys) == ({}, {})


def test_a_change_touches_only_what_it_names_and_raises_the_epochs():
    image = image_of(
        md.topic("t"),
        md.partition(0, replicas=(1, 2)),
        md.partition_change(0, ID_A, {0: md.numbers(2)}),
        md.partition_change(0, ID_A, {1: md.int32(2), 6: md.numbers(1), 7: md.numbers(1)}),
    )
    partition = image.topics()[ID_A].partitions[0]
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2), (2,), 2)
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 2)
    assert partition.directories == (DIRECTORY, DIRECTORY)
    assert partition.eligible_leader_replicas == (1,)


@pytest.mark.parametrize("name", ["t", ""])
def test_eligible_leader_replicas_are_cleared_by_name_or_everywhere(name: str):
    image = image_of(
        md.topic("t"),
        md.partition(0),
        md.partition_change(0, ID_A, {6: md.numbers(1), 7: md.numbers(1)}),
        md.frame(28, md.string(name) + md.NO_TAGS),
    )
    partition = image.topics()[ID_A].partitions[0]
    assert partition.eligible_leader_replicas == ()
    assert partition.last_known_eligible_leader_replicas == ()


def test_only_the_settings_that_concern_us_are_kept():
    image = image_of(
        md.topic("t"),
        md.config("t", "confluent.tier.enable", "true"),
        md.config("", "log.retention.ms", "5", resource_type=4),
        md.config("1", "log.cleaner.threads", "2", resource_type=4),
        md.config("1", "ssl.key.password", "secret", resource_type=4),
        md.config("1", "root", "DEBUG", resource_type=8),
    )
    assert image.topic_configs == {}
    assert image.ignored_topic_keys == {"t": {"confluent.tier.enable"}}
    assert image.broker_configs == {
        "": {"log.retention.ms": "5"},
        "1": {"log.cleaner.threads": "2"},
    }
    assert "secret" not in repr(image)


def test_a_broker_joins_changes_and_leaves():
    directories = md.array([md.uuid(DIRECTORY)])
    change = md.int32(3) + bytes(8)
    joined = image_of(
        md.register_broker(3, {0: directories}),
        md.frame(17, change + md.tags({0: b"\xff"}), version=3),
    )
    assert joined.brokers[3].fenced is False
    assert joined.brokers[3].log_directories == (DIRECTORY,)
    changed = image_of(
        md.register_broker(3),
        md.frame(17, change + md.tags({2: directories, 3: md.array([])}), version=3),
        md.frame(8, md.int32(3) + bytes(8) + md.NO_TAGS),
        md.frame(7, md.int32(3) + bytes(8) + md.NO_TAGS),
    )
    assert changed.brokers[3].fenced is True
    assert changed.brokers[3].log_directories == (DIRECTORY,)
    assert changed.brokers[3].cordoned_log_directories == ()
    left = image_of(md.register_broker(3), md.frame(1, md.int32(3) + bytes(8) + md.NO_TAGS))
    assert left.brokers == {}


def test_feature_levels_are_set_and_removed():
    def level(number: int) -> bytes:
        return md.frame(12, md.string("metadata.version") + bytes([0, number]) + md.NO_TAGS)

    assert image_of(level(20), level(33)).feature_levels == {"metadata.version": 33}
    assert image_of(level(20), level(0)).feature_levels == {}


def test_the_last_block_of_producer_ids_says_which_is_next():
    def block(next_id: int) -> bytes:
        return md.frame(15, md.int32(1) + bytes(8) + next_id.to_bytes(8) + md.NO_TAGS)

    assert image_of().next_producer_id == 0
    assert image_of(block(1000), block(2000)).next_producer_id == 2000


def test_a_transaction_counts_at_its_end_or_never():
    begun = image_of(md.mark(md.BEGIN), md.topic("t"), md.partition(0))
    assert (begun.topics(), begun.in_transaction) == ({}, True)
    ended = image_of(md.mark(md.BEGIN), md.topic("t"), md.partition(0), md.mark(md.END))
    assert (list(ended.topics()), ended.in_transaction) == ([ID_A], False)
    aborted = image_of(
        md.topic("t"), md.mark(md.BEGIN), md.remove_topic(), md.mark(md.ABORT), md.partition(0)
    )
    assert list(aborted.topics()[ID_A].partitions) == [0]


def test_skipped_records_are_counted_by_type():
    image = image_of(*[md.frame(20, b"")] * 3, md.frame(99, b""))
    assert (image.skipped, image.unknown) == ({20: 3}, {99: 1})


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([md.partition(0)], id="partition of no topic"),
        pytest.param([md.topic("t"), md.partition_change(0, ID_A, {})], id="change of nothing"),
        pytest.param([md.remove_topic()], id="removal of no topic"),
        pytest.param([md.frame(17, md.int32(3) + bytes(8) + md.NO_TAGS)], id="no broker"),
        pytest.param([md.mark(md.END)], id="end without a begin"),
        pytest.param([md.mark(md.ABORT)], id="abort without a begin"),
        pytest.param([md.mark(md.BEGIN), md.mark(md.BEGIN)], id="two begins"),
        pytest.param([md.topic("../etc")], id="topic name that is a path"),
    ],
)
def test_a_contradiction_is_an_error_with_the_offset_of_the_record(values: list[bytes]):
    with pytest.raises(CorruptClusterMetadataError) as raised:
        image_of(*values)
    assert (raised.value.file, raised.value.offset) == ("f", len(values) - 1)


def decode(value: bytes) -> metadata_image.MetadataRecord:
    return metadata_image.decode_metadata_record(value, file="f", offset=7)


def test_a_topic_is_decoded():
    assert decode(md.topic("t")) == metadata_image.TopicRecord(name="t", topic_id=ID_A)


def test_unknown_tagged_fields_are_skipped():
    value = md.frame(md.TOPIC, md.string("t") + md.uuid(ID_A) + md.tags({9: b"new"}))
    assert decode(value) == metadata_image.TopicRecord(name="t", topic_id=ID_A)


def test_a_partition_of_each_version_is_decoded():
    start = md.int32(3) + md.uuid(ID_A) + md.numbers(1, 2) + md.numbers(2)
    start += md.numbers(4) + md.numbers(5) + md.int32(2) + md.int32(8) + md.int32(9)
    expected = metadata_image.PartitionRecord(
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
    assert isinstance(second, metadata_image.PartitionRecord)
    assert second.directories == (DIRECTORY, ID_A)
    elr = md.tags({1: md.numbers(1), 2: md.numbers(1, 2)})
    third = decode(md.frame(md.PARTITION, start + directories + elr, version=2))
    assert isinstance(third, metadata_image.PartitionRecord)
    assert third.eligible_leader_replicas == (1,)
    assert third.last_known_eligible_leader_replicas == (1, 2)


def test_a_partition_change_says_only_what_changed():
    nothing = metadata_image.PartitionChangeRecord(topic_id=ID_A, partition=1)
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
    assert changed == metadata_image.PartitionChangeRecord(
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
    assert record == metadata_image.ConfigRecord(
        resource_type=4, resource_name="1", key="ssl.key.password", value="secret"
    )
    assert "secret" not in repr(record)
    removed = decode(md.config("t", "retention.ms", None))
    assert isinstance(removed, metadata_image.ConfigRecord)
    assert removed.value is None


def test_a_broker_is_decoded_with_its_directories():
    assert decode(md.register_broker(3)) == metadata_image.RegisterBrokerRecord(
        broker_id=3, broker_epoch=11, fenced=True
    )
    record = decode(md.register_broker(3, {0: md.array([md.uuid(DIRECTORY)]), 1: md.array([])}))
    assert record == metadata_image.RegisterBrokerRecord(
        broker_id=3,
        broker_epoch=11,
        fenced=True,
        log_directories=(DIRECTORY,),
        cordoned_log_directories=(),
    )


@pytest.mark.parametrize("version", range(5))
def test_a_broker_of_each_version_is_decoded(version: int):
    assert decode(md.register_broker(3, version=version)) == metadata_image.RegisterBrokerRecord(
        broker_id=3, broker_epoch=11, fenced=True
    )


def test_a_change_of_a_broker_is_decoded():
    body = md.int32(3) + bytes(7) + b"\x0b"
    value = md.frame(md.BROKER_CHANGE, body + md.tags({0: b"\xff"}), version=3)
    assert decode(value) == metadata_image.BrokerRegistrationChangeRecord(
        broker_id=3, broker_epoch=11, fencing=metadata_image.Fencing.UNFENCE
    )


@pytest.mark.parametrize(
    ("api_key", "mark"),
    [
        (md.BEGIN, metadata_image.TransactionMark.BEGIN),
        (md.END, metadata_image.TransactionMark.END),
        (md.ABORT, metadata_image.TransactionMark.ABORT),
    ],
)
def test_the_marks_of_a_transaction_are_decoded(api_key: int, mark: metadata_image.TransactionMark):
    assert decode(md.mark(api_key)) == metadata_image.TransactionRecord(mark=mark)
    named = md.frame(api_key, md.tags({0: md.string("Bootstrap records")}))
    assert decode(named) == metadata_image.TransactionRecord(mark=mark)


def test_types_that_concern_no_log_are_skipped_without_being_read():
    assert decode(md.frame(md.NO_OP, b"whatever")) == metadata_image.SkippedRecord(
        api_key=20, is_known=True
    )
    assert decode(md.frame(11, b"credentials")) == metadata_image.SkippedRecord(
        api_key=11, is_known=True
    )
    assert decode(md.frame(4711, b"", version=9)) == metadata_image.SkippedRecord(
        api_key=4711, is_known=False
    )


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
