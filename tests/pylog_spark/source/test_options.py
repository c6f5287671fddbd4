"""The options of ``kafka-log``: spelled and meant as those of Spark's Kafka source."""

import pytest

from pylog_spark.source.options import parse_options
from storage_core.errors import ConfigError
from storage_core.filenames import TopicPartition
from storage_core.reading.request import Bound, ReadRequest


def parse(**options: str) -> ReadRequest:
    return parse_options({"path": "/logs", **options})


def test_nothing_said_means_everything():
    options = parse()
    assert options.columns == (
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    )
    assert options.choice.admits(TopicPartition("any", 7))
    assert (options.starting, options.ending) == (Bound(), Bound())
    assert (options.fail_on_data_loss, options.is_committed) == (True, False)


def test_names_are_taken_in_any_case_as_spark_hands_them_over():
    options = parse_options({"PATH": "/logs", "includeheaders": "TRUE", "failondataloss": "False"})
    assert options.columns[-1] == "headers"
    assert options.fail_on_data_loss is False


def test_settings_of_a_kafka_client_mean_nothing_here_and_may_stay():
    assert parse(**{"kafka.bootstrap.servers": "a:9092", "kafka.group.id": "g"}) == parse()


@pytest.mark.parametrize(
    ("choice", "admitted"),
    [
        ({"subscribe": "a, b"}, ["a-0", "b-0", "b-1"]),
        ({"subscribePattern": "b.*"}, ["b-0", "b-1", "bc-0"]),
        ({"subscribePattern": "b"}, ["b-0", "b-1"]),
        ({"assign": '{"b":[1],"bc":[0,5]}'}, ["b-1", "bc-0"]),
        ({}, ["a-0", "b-0", "b-1", "bc-0"]),
    ],
    ids=str,
)
def test_partitions_are_chosen_by_topic_pattern_or_one_by_one(choice, admitted):
    options = parse(**choice)
    there = [("a", 0), ("b", 0), ("b", 1), ("bc", 0)]
    partitions = [TopicPartition(topic, number) for topic, number in there]
    assert [str(p) for p in partitions if options.choice.admits(p)] == admitted


def test_offsets_are_said_in_json_with_minus_two_and_minus_one():
    options = parse(startingOffsets='{"a":{"0":23,"1":-2}}', endingOffsets='{"a":{"0":50,"1":-1}}')
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    assert options.starting == Bound(offsets={first: 23, second: -2}, option="startingOffsets")
    assert options.ending == Bound(offsets={first: 50, second: -1}, option="endingOffsets")


def test_a_time_wins_over_offsets():
    options = parse(startingTimestamp="7", startingOffsets="earliest", endingTimestamp="9")
    assert (options.starting, options.ending) == (
        Bound(timestamp_ms=7, option="startingTimestamp"),
        Bound(timestamp_ms=9, option="endingTimestamp"),
    )


@pytest.mark.parametrize("words", [("earliest", "latest"), ("EARLIEST", "Latest")])
def test_the_words_for_the_ends_are_the_defaults(words):
    assert parse(startingOffsets=words[0], endingOffsets=words[1]) == parse()


def test_columns_are_chosen_by_name_in_the_order_asked_for():
    assert parse(columns="offset, TIMESTAMPTYPE,headers,offset").columns == (
        "offset",
        "timestampType",
        "headers",
    )


def test_the_isolation_level_is_kafkas():
    assert parse(**{"kafka.isolation.level": "read_committed"}).is_committed is True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingoffset": "1"}, "did you mean startingOffsets?"),
        ({"minPartitions": "3"}, "unknown option"),
        ({"view": "batches"}, "there is only: records"),
        ({"subscribe": "a", "assign": "{}"}, "only one way to choose"),
        ({"subscribe": " , "}, "expected topics"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"assign": "a"}, 'expected JSON like {"topicA":[0,1]'),
        ({"assign": '{"a":1}'}, "expected JSON like"),
        ({"assign": '{"a":["x"]}'}, "is no partition"),
        ({"assign": '{"a":[true]}'}, "is no partition"),
        ({"assign": "[" * 100_000}, "expected JSON like"),
        ({"startingOffsets": "latest"}, "takes earliest or JSON"),
        ({"endingOffsets": "earliest"}, "takes latest or JSON"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "(latest) is not allowed here"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "(earliest) is not allowed here"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "is no offset"),
        ({"startingOffsets": '{"a":{"0":1.5}}'}, "is no offset"),
        ({"startingOffsets": '{"a":[1]}'}, "expected JSON like"),
        ({"startingTimestamp": "yesterday"}, "epoch milliseconds"),
        ({"endingTimestamp": "99999999999999999999"}, "epoch milliseconds"),
        ({"columns": "offset,valeu"}, "expected names from: key, value"),
        ({"columns": ""}, "expected names from"),
        ({"includeHeaders": "yes"}, "expected true or false"),
        ({"kafka.isolation.level": "serializable"}, "read_uncommitted or read_committed"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_meant_is_refused(options, said: str):
    with pytest.raises(ConfigError) as refused:
        parse(**options)
    assert said in str(refused.value)


def test_a_path_is_asked_for():
    with pytest.raises(ConfigError, match="say what to read"):
        parse_options({})
