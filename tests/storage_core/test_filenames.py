"""Names of files and directories: spelled in one place, parsed as Kafka parses them."""

import pytest

from storage_core import filenames
from storage_core.errors import InvalidNameError


@pytest.mark.item("SEG-01")
@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("orders-0", "orders", 0),
        ("my-dotted.topic_1-12", "my-dotted.topic_1", 12),
        ("a--3", "a-", 3),
        ("__consumer_offsets-49", "__consumer_offsets", 49),
        ("t-2147483647", "t", 2**31 - 1),
    ],
)
def test_a_partition_directory_is_split_at_its_last_hyphen(name, topic, partition):
    assert filenames.parse_partition_directory(name) == filenames.TopicPartition(topic, partition)
    assert str(filenames.TopicPartition(topic, partition)) == name


@pytest.mark.item("SEG-01", "ERR-07")
@pytest.mark.parametrize(
    "name", ["orders", "orders_0", "orders-", "-0", "orders-x", "or ders-0", "t-2147483648", "..-0"]
)
def test_other_directories_are_no_partitions(name):
    with pytest.raises(InvalidNameError) as refusal:
        filenames.parse_partition_directory(name)
    assert refusal.value.kafka_code == 17


@pytest.mark.item("SEG-01")
@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "ü", "x" * 250])
def test_names_that_kafka_refuses_are_no_topics(topic):
    with pytest.raises(InvalidNameError):
        filenames.validate_topic(topic)
    assert filenames.validate_topic("x" * 249) == "x" * 249


@pytest.mark.item("SEG-02")
def test_files_have_twenty_digits_and_are_read_with_any_number_of_them():
    assert filenames.log_file(42) == "00000000000000000042.log"
    assert filenames.snapshot_file(filenames.MAX_OFFSET) == "09223372036854775807.snapshot"
    for name, offset in [
        ("00000000000000000042.log", 42),
        ("42.log", 42),
        ("0042.index.swap", 42),
        ("9223372036854775808.log", None),
        ("42", None),
        ("x42.log", None),
        ("-1.log", None),
    ]:
        assert filenames.offset_of(name) == offset, name
    with pytest.raises(InvalidNameError):
        filenames.segment_file(-1, ".log")


@pytest.mark.item("SEG-02", "SEG-03")
def test_only_plain_suffixes_are_kinds_and_the_files_of_kafka_0_7_are_none():
    for suffix in (*filenames.SEGMENT_SUFFIXES, ".snapshot"):
        assert filenames.kind_of(filenames.segment_file(7, suffix)) == suffix
        for transient in (".cleaned", ".swap", ".deleted", ".tmp"):
            assert filenames.kind_of(filenames.segment_file(7, suffix) + transient) is None
    for name in ("00000000000.kafka", "foo.txt", "leader-epoch-checkpoint", "partition.metadata"):
        assert filenames.kind_of(name) is None
