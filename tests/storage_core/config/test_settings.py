"""A mixed bag of settings, a broker's file, and layers of broker-wide settings."""

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
