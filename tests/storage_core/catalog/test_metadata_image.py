"""What a run of metadata records adds up to."""

import pytest

from storage_core.catalog.metadata_image import MetadataImage, decode_metadata_record
from storage_core.errors import CorruptClusterMetadataError
from tests.storage_core.catalog import metadata_bytes as md
from tests.storage_core.catalog.metadata_bytes import DIRECTORY, ID_A, ID_B


def image_of(*values: bytes) -> MetadataImage:
    image = MetadataImage()
    for offset, value in enumerate(values):
        record = decode_metadata_record(value, file="f", offset=offset)
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
