"""The options of ``kafka-log``: spelled and meant as those of Spark's Kafka source."""

import pytest

from pylog_spark.source.options import parse_options
from storage_core.errors import ConfigError
from storage_core.filenames import TopicPartition
from storage_core.reading.request import Bound, ReadRequest


def parse(**options: str) -> ReadRequest:
    return parse_options({"path": "/logs", **options}).request


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
    options = parse_options(
        {"PATH": "/logs", "includeheaders": "TRUE", "failondataloss": "False"}
    ).request
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
        Bound(timestamps_ms=7, option="startingTimestamp"),
        Bound(timestamps_ms=9, option="endingTimestamp"),
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
        ({"minPartition": "3"}, "did you mean minPartitions?"),
        ({"view": "bathces"}, "there are: records, batches, segments"),
        ({"view": "batches", "keys": "a"}, "keys=a: means nothing in the view batches"),
        ({"view": "batches", "columns": "key"}, "expected names from: topic, partition, file"),
        ({"view": "segments", "startingOffsets": "earliest"}, "means nothing in the view segments"),
        ({"view": "groups", "includeHeaders": "true"}, "means nothing in the view groups"),
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


def test_times_are_said_in_json_for_each_partition():
    options = parse(
        startingOffsetsByTimestamp='{"a":{"0":7,"1":8}}',
        endingOffsetsByTimestamp='{"a":{"0":9,"1":9}}',
        startingOffsets='{"a":{"0":1}}',
        startingOffsetsByTimestampStrategy="latest",
    )
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    assert options.starting.timestamps_ms == {first: 7, second: 8}
    assert options.starting.is_past_end_allowed
    assert options.ending.timestamps_ms == {first: 9, second: 9}
    both = parse(startingTimestamp="5", startingOffsetsByTimestamp='{"a":{"0":7}}')
    assert both.starting.timestamps_ms == 5
    assert not both.starting.is_past_end_allowed


def test_everything_that_is_unknown_is_named_in_one_line():
    with pytest.raises(ConfigError) as refused:
        parse(subcribe="a", nonsense_of_mine="b", startingOffset="earliest")
    line = str(refused.value)
    assert "\n" not in line
    assert "nonsense_of_mine" in line
    assert "startingOffset (did you mean startingOffsets?)" in line
    assert "subcribe (did you mean subscribe?)" in line


def test_what_only_a_client_or_a_stream_needs_is_named_and_left_out():
    names = {
        "kafka.bootstrap.servers": "a:9092",
        "kafkaConsumer.pollTimeoutMs": "120000",
        "fetchOffset.numRetries": "3",
        "groupIdPrefix": "g",
        "maxOffsetsPerTrigger": "1000",
    }
    options = parse_options({"path": "/logs", **names})
    assert options.without_meaning == tuple(sorted(names))
    assert options.request == parse()


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, None),
        ({"keys": "a,b c"}, {b"a", b"b c"}),
        ({"keys": "ä"}, {"ä".encode()}),
        ({"keysBase64": "AP8=, YSxi"}, {b"\x00\xff", b"a,b"}),
        ({"keys": "a", "keysBase64": "Yg=="}, {b"a", b"b"}),
    ],
    ids=["none", "text", "no ascii", "base64", "both"],  # of sets the order differs by process
)
def test_keys_are_text_or_base64(options, keys):
    assert parse(**options).keys == keys


@pytest.mark.parametrize(
    ("text", "amount"),
    [("134217728b", 128 << 20), ("12k", 12 << 10), ("128MB", 128 << 20), ("7", 7), ("1g", 1 << 30)],
)
def test_bytes_are_written_as_spark_writes_them(text: str, amount: int):
    assert parse(maxPartitionBytes=text).range_bytes == amount


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"minPartitions": "0"}, "a number above 0"),
        ({"maxRecordsPerPartition": "many"}, "a number above 0"),
        ({"maxPartitionBytes": "0"}, "an amount of bytes"),
        ({"maxPartitionBytes": "12 parsecs"}, "an amount of bytes"),
        ({"keys": "a,,b"}, "separated by commas"),
        ({"keysBase64": "a"}, "in Base64"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "is no epoch milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "expected error or latest"),
        ({"paths": "/logs"}, "expected JSON"),
        ({"paths": "[1]"}, "expected JSON like"),
    ],
    ids=str,
)
def test_what_cannot_be_a_number_or_a_key_is_refused(options, said: str):
    with pytest.raises(ConfigError) as refused:
        parse(**options)
    assert said in str(refused.value)


def test_paths_are_one_several_or_a_pattern(tmp_path):
    for name in ("kafka-1", "kafka-2", "other", "kafka-[x]"):
        (tmp_path / name).mkdir()

    def paths(**options: str) -> list[str]:
        return [path.rpartition("/")[2] for path in parse_options(options).request.paths]

    assert paths(path=f"{tmp_path}/kafka-?") == ["kafka-1", "kafka-2"]
    assert paths(paths=f'["{tmp_path}/other", "{tmp_path}/kafka-*"]') == [
        "other",
        "kafka-1",
        "kafka-2",
        "kafka-[x]",
    ]
    # A directory of that very name is meant itself, and a URL is no pattern.
    assert paths(path=f"{tmp_path}/kafka-[x]") == ["kafka-[x]"]
    assert paths(path="s3://bucket/kafka-*") == ["kafka-*"]
    with pytest.raises(ConfigError, match="matches nothing"):
        paths(path=f"{tmp_path}/nothing-*")
    with pytest.raises(ConfigError, match="say what to read"):
        paths()
