"""Our configs and Kafka's say the same of the same settings, and refuse the same."""

from collections.abc import Mapping
from typing import Any

import jpype
import pytest

from storage_core.catalog.topic_catalog import INTERNAL_TOPICS
from storage_core.config import (
    BrokerConfig,
    CleanerConfig,
    LogConfig,
    effective_settings,
    known_keys,
    merge_broker_layers,
)
from storage_core.config.values import render
from storage_core.errors import ConfigError
from tests.oracle.jvm import java, java_map

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

TOPIC_KEYS = [key for key, known in known_keys().items() if known.scope == "topic"]
SMALLEST_INDEX_BYTES = 12
TEXTS = [
    *("", " ", "0", "1", "-1", "-2", "-3", "2", "4", "9", "10", "11", "12", "17", "18", "22", "23"),
    *(
        "+5",
        " 7 ",
        "007",
        "1.0",
        ".5",
        "1.",
        "1e0",
        "0.5f",
        "1.5",
        "-0.1",
        "-0",
        "1e400",
        "Infinity",
    ),
    *("1_000", "10k", "0x10", "true", "TRUE", "false", "yes", "null", "*", "0:1", "0:1,2:3", "0-1"),
    *("1048575", "1048576", "2147483639", "2147483640", "2147483647", "2147483648", "-131072"),
    *("-131073", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("compact", "delete", "Compact", "compact,delete", "delete , compact", "compact,compact"),
    *("compact,", ",", "compact,,delete", "none", "uncompressed", "zstd", "lz4", "snappy", "gzip"),
    *("producer", "CreateTime", "LogAppendTime", "createtime"),
]
# A broker's ways to say the defaults of topics; the time keys in every combination that matters.
BROKERS: list[dict[str, str]] = [
    {},
    {"log.retention.hours": "2"},
    {"log.retention.hours": "-2"},
    {"log.retention.hours": "0"},
    {"log.retention.hours": "2", "log.retention.minutes": "3"},
    {"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"},
    {"log.retention.minutes": "0"},
    {"log.retention.minutes": "-7"},
    {"log.retention.ms": "0"},
    {"log.retention.ms": "-7"},
    {"log.retention.hours": "2147483647"},
    {"log.roll.hours": "2"},
    {"log.roll.hours": "0"},
    {"log.roll.hours": "2", "log.roll.ms": "1"},
    {"log.roll.ms": "0"},
    {"log.roll.jitter.hours": "2"},
    {"log.roll.jitter.hours": "2", "log.roll.jitter.ms": "1"},
    {"log.roll.jitter.ms": "-1"},
    {"log.flush.scheduler.interval.ms": "5"},
    {"log.flush.scheduler.interval.ms": "5", "log.flush.interval.ms": "6"},
    {"log.flush.scheduler.interval.ms": "-5"},
    {"log.cleanup.policy": "compact,delete", "log.cleaner.min.cleanable.ratio": "0.25"},
    {"log.cleaner.min.compaction.lag.ms": "6", "log.cleaner.max.compaction.lag.ms": "5"},
    {
        "log.segment.bytes": "1048576",
        "log.index.size.max.bytes": "65536",
        "log.preallocate": "true",
    },
    {"log.segment.bytes": "1048575"},
    {"message.max.bytes": "5", "max.decompressed.message.bytes": "6"},
    {"log.message.timestamp.type": "LogAppendTime", "log.message.timestamp.after.max.ms": "1"},
    {"compression.type": "gzip", "compression.gzip.level": "9", "min.insync.replicas": "2"},
    {"log.segment.delete.delay.ms": "1", "log.cleaner.delete.retention.ms": "2"},
    {"log.local.retention.ms": "5", "log.remote.copy.lag.bytes": "6"},
]
CLEANERS: list[dict[str, str]] = [
    {},
    {"log.cleaner.threads": "0"},
    {"log.cleaner.threads": "-1"},
    {"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097153"},
    {"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097154"},
    {"log.cleaner.dedupe.buffer.size": "1048576"},
    {"log.cleaner.dedupe.buffer.size": "1048577"},
    {"log.cleaner.io.buffer.size": "0", "log.cleaner.io.buffer.load.factor": "1"},
    {"log.cleaner.io.buffer.size": "-1"},
    {"log.cleaner.io.max.bytes.per.second": "1e6", "log.cleaner.enable": "false"},
    {"producer.id.expiration.ms": "0"},
    {"producer.id.expiration.ms": "1"},
]


def kafka_topic_config(settings: Mapping[str, str]) -> dict[str, str] | None:
    """Return Kafka's values of all topic keys as texts, None if it refuses the settings."""
    log_config = java("org.apache.kafka.storage.internals.log.LogConfig")
    try:
        log_config.validate(java_map(settings.items()))
        config = log_config(java_map(settings.items()))
    except jpype.JException:
        return None
    values = {key: text_of(config.values().get(key)) for key in TOPIC_KEYS}
    return values | {"segment.bytes": str(config.segmentSize())}


def text_of(value: Any) -> str:
    """Return a Java value as our `render` writes it; a list sorted, as a set is."""
    if value is None:
        return ""
    if isinstance(value, jpype.JClass("java.util.List")):
        return ",".join(sorted(str(item) for item in value if str(item)))
    if isinstance(value, jpype.JClass("java.lang.Double")):
        return repr(float(value))
    return str(value.toString())


def our_topic_config(settings: Mapping[str, str]) -> dict[str, str] | None:
    try:
        LogConfig.from_topic_overrides(settings)
    except ConfigError:
        return None
    return {setting.key: setting.value for setting in effective_settings(settings)}


def kafka_config(settings: Mapping[str, str]) -> Any:
    """Return a broker's whole config; raises a Java exception if a broker would not start."""
    properties = java("java.util.Properties")()
    required = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "controller.quorum.voters": "1@localhost:9093",
        "log.dirs": "/data/a,/data/b",
    }
    for key, text in (required | dict(settings)).items():
        properties.put(key, text)
    return java("kafka.server.KafkaConfig").fromProps(properties, False)


def test_kafka_knows_the_topic_keys_that_we_know():
    names = java("org.apache.kafka.storage.internals.log.LogConfig").configNames()
    assert {str(name) for name in names} == set(TOPIC_KEYS)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("key", TOPIC_KEYS)
@pytest.mark.item("CFG-01", "CFG-02", "CFG-03", "CFG-04", "CFG-05", "CFG-06", "CFG-07", "CFG-08")
@pytest.mark.item("CFG-09", "CFG-10", "CFG-11", "CFG-12", "CFG-13", "CFG-14", "CFG-15", "CFG-16")
@pytest.mark.item("CFG-17", "CFG-18", "CFG-19", "CFG-20", "CFG-21", "CFG-22", "CFG-23", "CFG-24")
def test_kafka_takes_and_refuses_the_same_texts_for_a_topic_key(key: str):
    assert our_topic_config({}) == kafka_topic_config({})
    for text in TEXTS:
        expected = kafka_topic_config({key: text})
        if expected is not None and int(expected["segment.index.bytes"]) < SMALLEST_INDEX_BYTES:
            expected = None  # Kafka takes what it cannot open an index with
        assert our_topic_config({key: text}) == expected, text


@pytest.mark.item("CFG-15")
def test_kafka_refuses_the_same_contradiction_of_lags():
    for least, most in (("5", "5"), ("6", "5")):
        settings = {"min.compaction.lag.ms": least, "max.compaction.lag.ms": most}
        assert our_topic_config(settings) == kafka_topic_config(settings)


@pytest.mark.parametrize("broker", BROKERS, ids=str)
@pytest.mark.item("CFG-10", "CFG-37")
def test_a_brokers_settings_give_topics_the_defaults_that_kafka_gives_them(broker: dict[str, str]):
    log_config = java("org.apache.kafka.storage.internals.log.LogConfig")
    overrides = {"flush.messages": "77"}
    try:
        defaults = kafka_config(broker).extractLogConfigMap()
        log_config.validateBrokerLogConfigValues(defaults, False)
        properties = java("java.util.Properties")()
        for key, text in overrides.items():
            properties.put(key, text)
        config = log_config.fromProps(defaults, properties)
        expected = {key: text_of(config.values().get(key)) for key in TOPIC_KEYS}
    except jpype.JException:
        expected = None
    try:
        LogConfig.from_topic_overrides(overrides, broker=broker)
        settings = effective_settings(overrides, broker=broker)
        ours = {setting.key: setting.value for setting in settings}
    except ConfigError:
        ours = None
    assert ours == expected


@pytest.mark.parametrize("settings", CLEANERS, ids=str)
@pytest.mark.item("CFG-25", "CFG-26", "CFG-27", "CFG-28", "CFG-29", "CFG-30", "CFG-33")
def test_a_brokers_cleaner_takes_and_refuses_the_same(settings: dict[str, str]):
    try:
        broker = kafka_config(settings)
        cleaner = java("org.apache.kafka.storage.internals.log.CleanerConfig")(broker)
        expected = (
            int(cleaner.numThreads),
            int(cleaner.dedupeBufferSize),
            float(cleaner.dedupeBufferLoadFactor),
            int(cleaner.ioBufferSize),
            float(cleaner.maxIoBytesPerSecond),
            bool(cleaner.enableCleaner),
            int(broker.getInt("producer.id.expiration.ms").intValue()),
        )
    except jpype.JException:
        expected = None
    try:
        ours = CleanerConfig.from_settings(settings)
        found = (
            ours.threads,
            134_217_728 if ours.dedupe_buffer_bytes is None else ours.dedupe_buffer_bytes,
            ours.load_factor,
            ours.io_buffer_bytes,
            ours.io_max_bytes_per_second,
            ours.enabled,
            ours.producer_id_expiration_ms,
        )
    except ConfigError:
        found = None
    assert found == expected


@pytest.mark.item("CFG-31", "CFG-32", "CFG-34", "CFG-35", "CFG-36")
def test_the_other_broker_keys_have_kafkas_types_and_defaults():
    keys = java("org.apache.kafka.server.config.AbstractKafkaConfig").CONFIG_DEF.configKeys()
    # Ours are empty: a job is told its roots, and there is no node but the broker's own.
    not_set_here = {"node.id", "broker.id", "process.roles", "log.dirs", "log.dir"}
    for name, known in known_keys().items():
        if known.scope == "broker":
            kafkas = keys.get(name)
            kind = str(jpype.JObject(kafkas).getClass().getField("type").get(kafkas)).lower()
            assert kind == known.type.kind, name
            if name not in not_set_here:
                assert known.default == text_of(kafkas.defaultValue), name


@pytest.mark.parametrize(
    "settings",
    [
        {"log.dirs": "/a, /b,/a"},
        {"log.dirs": ""},
        {"log.dirs": "/a,,/b"},
        {"log.dirs": "/a", "cordoned.log.dirs": "*"},
        {"log.dirs": "/a", "cordoned.log.dirs": "/a"},
        {"log.dirs": "/a", "cordoned.log.dirs": "/b"},
        {"log.dirs": "/a", "cordoned.log.dirs": "*,/a"},
        {"log.dirs": "/a", "cordoned.log.dirs": ""},
    ],
    ids=str,
)
@pytest.mark.item("CFG-31")
def test_a_broker_has_the_same_log_directories(settings: dict[str, str]):
    try:
        broker = kafka_config(settings)
        expected = (
            tuple(map(str, broker.logDirs())),
            tuple(map(str, broker.cordonedLogDirs())),
        )
    except jpype.JException:
        expected = None
    try:
        ours = BrokerConfig.from_settings(settings)
        every = ours.cordoned_log_dirs == ("*",)
        found = (ours.directories, ours.directories if every else ours.cordoned_log_dirs)
    except ConfigError:
        found = None
    assert found == expected


def test_a_dynamic_setting_hides_the_same_other_names_as_in_kafka():
    dynamic = java("org.apache.kafka.server.config.DynamicBrokerConfig")
    for name in (name.name for key in known_keys().values() for name in key.broker_names):
        hidden = {str(synonym) for synonym in dynamic.brokerConfigSynonyms(name, False)}
        if name == "log.flush.scheduler.interval.ms":
            hidden.add("log.flush.interval.ms")  # cannot be set dynamically in Kafka
        lower = dict.fromkeys(hidden, "1")
        assert merge_broker_layers(lower, {name: "2"}) == {name: "2"}


def test_rendered_defaults_parse_to_themselves():
    for name, known in known_keys().items():
        if known.default:
            assert render(known.type.parse(name, known.default)) == known.default


def test_share_groups_have_the_topic_that_kafkas_coordinator_asks_for():
    """The topics of consumer groups and transactions are in the golden broker's own metadata."""
    shares = "org.apache.kafka.coordinator.share.ShareCoordinator"
    definition = java(f"{shares}Config").CONFIG_DEF
    parsed = java("org.apache.kafka.common.config.AbstractConfig")(definition, java_map({}))
    context = java("org.apache.kafka.common.utils.internals.LogContext")()
    nothing = [None] * 5
    service = java(f"{shares}Service")(context, java(f"{shares}Config")(parsed), *nothing)
    asked = {str(key): str(text) for key, text in service.shareGroupStateTopicConfigs().items()}
    assert asked == INTERNAL_TOPICS["__share_group_state"]
