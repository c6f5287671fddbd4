"""Values, a mixed bag of settings, a broker's file, and layers of broker-wide settings."""

import enum
import math
import re

import pytest

from storage_core.config import (
    CleanerConfig,
    LogConfig,
    classify_settings,
    merge_broker_layers,
    parse_java_properties,
    parse_server_properties,
    split_settings,
)
from storage_core.config.values import (
    ValueType,
    boolean,
    choice,
    choice_set,
    double,
    gzip_level,
    int32,
    int64,
    render,
    retention_time,
    string_list,
    throttled_replicas,
)
from storage_core.errors import CheckpointError, ConfigError


def test_settings_are_told_apart_by_what_they_belong_to():
    groups = classify_settings(
        {
            "retention.ms": "1",
            "compression.type": "zstd",
            "log.retention.hours": "2",
            "log.cleaner.threads": "3",
            "verify.crc": "false",
            "log.dirs": "/a",
        }
    )
    assert groups.topic == {"retention.ms": "1", "compression.type": "zstd"}
    assert groups.topic_defaults == {"log.retention.hours": "2"}
    assert groups.cleaner == {"log.cleaner.threads": "3", "verify.crc": "false"}
    assert groups.broker == {"log.dirs": "/a"}


@pytest.mark.item("CFG-37", "ERR-14")
@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("log.retention.hour", "log.retention.hours"),
        ("offset_map.hash", "offset-map.hash"),
        ("log.cleaner.dedupe.buffer", "log.cleaner.dedupe.buffer.size"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name_of_any_group(key: str, near: str):
    with pytest.raises(ConfigError, match=f"did you mean {re.escape(near)}"):
        classify_settings({key: "1"})


def test_a_setting_like_nothing_known_is_refused_without_a_guess():
    with pytest.raises(ConfigError, match=r"unknown key$"):
        classify_settings({"qqqqqqqq": "1"})


@pytest.mark.item("CFG-37")
def test_splitting_turns_a_broker_default_into_its_topic_key_unless_that_is_set():
    topic, cleaner = split_settings(
        {
            "log.retention.hours": "2",
            "log.roll.hours": "1",
            "segment.ms": "5",
            "log.cleaner.min.cleanable.ratio": "0.25",
            "log.cleaner.io.buffer.size": "9",
            "log.flush.offset.checkpoint.interval.ms": "1",
        }
    )
    assert topic == {
        "retention.ms": "7200000",
        "segment.ms": "5",
        "min.cleanable.dirty.ratio": "0.25",
    }
    assert LogConfig.from_topic_overrides(topic).retention_ms == 7_200_000
    assert CleanerConfig.from_settings(cleaner).io_buffer_bytes == 9


@pytest.mark.item("CFG-36", "CFG-37")
def test_a_brokers_file_is_read_and_what_is_unknown_becomes_a_warning():
    data = b"""# The broker's own file
process.roles=broker,controller
log.dirs = /data/a, \\
           /data/b
log.retention.hours:5
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.threads=2
replica.fetch.max.bytes=9
ssl.keystore.password=secret
"""
    properties = parse_server_properties(data, file="server.properties")
    assert properties.settings == {
        "process.roles": "broker,controller",
        "log.dirs": "/data/a, /data/b",
        "log.retention.hours": "5",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "log.cleaner.threads": "2",
        "replica.fetch.max.bytes": "9",
    }
    assert properties.unknown_keys == ("ssl.keystore.password",)
    assert "secret" not in repr(properties)
    config = LogConfig.from_topic_overrides({}, broker=properties.settings)
    assert config.retention_ms == 18_000_000


def test_a_malformed_escape_names_the_file():
    with pytest.raises(CheckpointError, match=r"server\.properties: expected .uXXXX"):
        parse_java_properties(b"key=\\u12\n", file="server.properties")


def test_an_upper_layer_hides_the_other_names_of_what_it_sets():
    static = {"log.retention.ms": "1", "log.segment.bytes": "2000000", "log.roll.ms": "7"}
    cluster = {"log.retention.hours": "1", "min.insync.replicas": "2"}
    node = {"min.insync.replicas": "3"}
    merged = merge_broker_layers(static, cluster, node)
    assert merged == {
        "log.retention.hours": "1",
        "log.segment.bytes": "2000000",
        "log.roll.ms": "7",
        "min.insync.replicas": "3",
    }
    assert LogConfig.from_topic_overrides({}, broker=merged).retention_ms == 3_600_000


class Fruit(enum.StrEnum):
    APPLE = "apple"
    PEAR = "pear"


@pytest.mark.parametrize(
    ("value_type", "text", "value"),
    [
        pytest.param(boolean(), "true", True, id="boolean"),
        pytest.param(boolean(), " FALSE\t", False, id="boolean in capitals between blanks"),
        pytest.param(int32(), "+7", 7, id="plus sign"),
        pytest.param(int32(), "-2147483648", -(2**31), id="smallest int"),
        pytest.param(int32(), "2147483647", 2**31 - 1, id="largest int"),
        pytest.param(int32(), "0000000000000000000000042", 42, id="leading zeros"),
        pytest.param(int64(), "9223372036854775807", 2**63 - 1, id="largest long"),
        pytest.param(int64(), "-9223372036854775808", -(2**63), id="smallest long"),
        pytest.param(double(), ".5", 0.5, id="double without a leading digit"),
        pytest.param(double(), "1.", 1.0, id="double without a trailing digit"),
        pytest.param(double(), "1e3", 1000.0, id="exponent"),
        pytest.param(double(), "0.5d", 0.5, id="Java's suffix"),
        pytest.param(double(), "Infinity", math.inf, id="infinity"),
        pytest.param(choice(Fruit), " pear ", Fruit.PEAR, id="choice"),
        pytest.param(choice_set(Fruit), "pear , apple,pear", frozenset(Fruit), id="repeats fold"),
        pytest.param(choice_set(Fruit), "  ", frozenset(), id="empty list"),
        pytest.param(string_list(), "b, a,b", ("b", "a"), id="list keeps its order"),
        pytest.param(throttled_replicas(), "0:1 , 2:3", ("0:1", "2:3"), id="throttled replicas"),
        pytest.param(throttled_replicas(), "*", ("*",), id="all replicas"),
        pytest.param(gzip_level(), "-1", -1, id="gzip's own level"),
        pytest.param(gzip_level(), "9", 9, id="best gzip level"),
        pytest.param(retention_time(int64()), "-77", -1, id="negative retention is no limit"),
    ],
)
def test_a_type_parses_what_kafka_parses(value_type: ValueType, text: str, value: object):
    parsed = value_type.parse("some.key", text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        pytest.param(boolean(), "yes", id="yes is no boolean"),
        pytest.param(boolean(), "1", id="one is no boolean"),
        pytest.param(boolean(), "", id="empty boolean"),
        pytest.param(int32(), "", id="empty number"),
        pytest.param(int32(), "10k", id="unit"),
        pytest.param(int32(), "1_000", id="underscore"),
        pytest.param(int32(), "1.0", id="fraction"),
        pytest.param(int32(), "0x10", id="hexadecimal"),
        pytest.param(int32(), "+", id="sign alone"),
        pytest.param(int32(), "1 0", id="blank inside"),
        pytest.param(int32(), "\u0663", id="digit of another script"),
        pytest.param(int32(), "2147483648", id="one above int"),
        pytest.param(int32(), "-2147483649", id="one below int"),
        pytest.param(int64(), "9223372036854775808", id="one above long"),
        pytest.param(int64(), "9" * 100_000, id="endless number"),
        pytest.param(int32(at_least=4), "3", id="below the range"),
        pytest.param(int32(at_most=4), "5", id="above the range"),
        pytest.param(double(), "half", id="word"),
        pytest.param(double(), "", id="empty double"),
        pytest.param(double(), "NaN", id="not a number"),
        pytest.param(double(), "1e", id="exponent without digits"),
        pytest.param(double(at_least=0, at_most=1), "1.0000001", id="ratio above one"),
        pytest.param(double(at_least=0, at_most=1), "-1e-300", id="ratio below zero"),
        pytest.param(choice(Fruit), "Pear", id="choice in the wrong case"),
        pytest.param(choice_set(Fruit), "apple,,pear", id="empty item"),
        pytest.param(choice_set(Fruit), "apple,", id="empty last item"),
        pytest.param(choice_set(Fruit), "apple,plum", id="unknown item"),
        pytest.param(string_list(may_be_empty=False), " ", id="empty list"),
        pytest.param(throttled_replicas(), "0-1", id="replica without a colon"),
        pytest.param(throttled_replicas(), "*,0:1", id="all and one"),
        pytest.param(gzip_level(), "0", id="gzip level zero"),
        pytest.param(gzip_level(), "10", id="gzip level ten"),
        pytest.param(retention_time(int64()), "0", id="no retention at all"),
    ],
)
@pytest.mark.item("ERR-14")
def test_a_type_refuses_what_kafka_refuses(value_type: ValueType, text: str):
    with pytest.raises(ConfigError) as raised:
        value_type.parse("some.key", text)
    assert raised.value.key == "some.key"
    assert raised.value.kafka_code == 40


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (0.9, "0.9"),
        (7, "7"),
        (Fruit.PEAR, "pear"),
        (frozenset(Fruit), "apple,pear"),
        (("b", "a"), "b,a"),
    ],
)
def test_a_rendered_value_is_the_text_of_it(value: object, text: str):
    assert render(value) == text
