"""Topic keys: their defaults, bounds and precedence. The rows are Kafka's documentation."""

import dataclasses
import pickle

import pytest

from storage_core.config import CleanupPolicy, LogConfig, Origin, effective_settings, known_keys
from storage_core.errors import ConfigError

INT_MAX = 2_147_483_647
LONG_MAX = 9_223_372_036_854_775_807
HOUR_MS = 3_600_000
WEEK_MS = 604_800_000


def number(key: str, default: int, lowest: int, highest: int, item: str) -> list[object]:
    """Return a row for a whole number: key, default, accepted texts, refused texts."""
    accepted = {str(lowest): lowest, str(highest): highest}
    refused = [str(lowest - 1), str(highest + 1), "", "1.5", "many"]
    return row(key, default, accepted, refused, item)


def flag(key: str, item: str) -> list[object]:
    return row(key, False, {"true": True, "False": False}, ["yes", ""], item)


def row(
    key: str, default: object, accepted: dict[str, object], refused: list[str], item: str
) -> list[object]:
    return [key, default, accepted, refused, item]


ROWS = [
    row(
        "cleanup.policy",
        frozenset({"delete"}),
        {
            "compact": frozenset({"compact"}),
            "delete , compact,delete": frozenset({"compact", "delete"}),
            "": frozenset(),
        },
        ["Compact", "compact,", "none", "compact;delete"],
        "CFG-01",
    ),
    number("segment.bytes", 1_073_741_824, 1_048_576, INT_MAX, "CFG-02"),
    number("segment.ms", WEEK_MS, 1, LONG_MAX, "CFG-03"),
    number("segment.jitter.ms", 0, 0, LONG_MAX, "CFG-04"),
    number("segment.index.bytes", 10_485_760, 12, INT_MAX, "CFG-05"),
    number("index.interval.bytes", 4_096, 0, INT_MAX, "CFG-06"),
    number("flush.messages", LONG_MAX, 1, LONG_MAX, "CFG-07"),
    number("flush.ms", LONG_MAX, 0, LONG_MAX, "CFG-08"),
    flag("preallocate", "CFG-09"),
    number("retention.ms", WEEK_MS, -1, LONG_MAX, "CFG-10"),
    number("retention.bytes", -1, -LONG_MAX - 1, LONG_MAX, "CFG-11"),
    number("file.delete.delay.ms", 60_000, 0, LONG_MAX, "CFG-12"),
    number("delete.retention.ms", 86_400_000, 0, LONG_MAX, "CFG-13"),
    row(
        "min.cleanable.dirty.ratio",
        0.5,
        {"0": 0.0, "1": 1.0, "0.01": 0.01},
        ["-0.01", "1.01", "NaN", ""],
        "CFG-14",
    ),
    number("min.compaction.lag.ms", 0, 0, LONG_MAX, "CFG-15"),
    number("max.compaction.lag.ms", LONG_MAX, 1, LONG_MAX, "CFG-16"),
    number("max.message.bytes", 1_048_588, 0, INT_MAX, "CFG-17"),
    number("max.decompressed.message.bytes", 2_147_483_639, 1, 2_147_483_639, "CFG-18"),
    row(
        "compression.type",
        "producer",
        {name: name for name in ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")},
        ["none", "GZIP", ""],
        "CFG-19",
    ),
    row("compression.gzip.level", -1, {"-1": -1, "1": 1, "9": 9}, ["0", "10", "-2"], "CFG-19"),
    number("compression.lz4.level", 9, 1, 17, "CFG-19"),
    number("compression.zstd.level", 3, -131_072, 22, "CFG-19"),
    row(
        "message.timestamp.type",
        "CreateTime",
        {"CreateTime": "CreateTime", "LogAppendTime": "LogAppendTime"},
        ["createtime", ""],
        "CFG-20",
    ),
    number("message.timestamp.before.max.ms", LONG_MAX, 0, LONG_MAX, "CFG-21"),
    number("message.timestamp.after.max.ms", HOUR_MS, 0, LONG_MAX, "CFG-21"),
    number("min.insync.replicas", 1, 1, INT_MAX, "CFG-22"),
    flag("unclean.leader.election.enable", "CFG-23"),
    flag("remote.storage.enable", "CFG-24"),
    number("local.retention.ms", -2, -2, LONG_MAX, "CFG-24"),
    number("local.retention.bytes", -2, -2, LONG_MAX, "CFG-24"),
    flag("remote.log.copy.disable", "none"),
    flag("remote.log.delete.on.disable", "none"),
    number("remote.copy.lag.ms", 0, -1, LONG_MAX, "none"),
    number("remote.copy.lag.bytes", -1, -1, LONG_MAX, "none"),
    row("leader.replication.throttled.replicas", (), {"0:1": ("0:1",), "*": ("*",)}, ["x"], "none"),
    row("follower.replication.throttled.replicas", (), {"": ()}, ["0"], "none"),
    flag("errors.deadletterqueue.group.enable", "none"),
]
# Broker key, its text, the topic key it stands for, the value that this gives.
BROKER_ROWS = [
    ("log.cleanup.policy", "compact", "cleanup.policy", frozenset({"compact"})),
    ("log.segment.bytes", "2000000", "segment.bytes", 2_000_000),
    ("log.roll.ms", "5", "segment.ms", 5),
    ("log.roll.hours", "2", "segment.ms", 2 * HOUR_MS),
    ("log.roll.jitter.ms", "5", "segment.jitter.ms", 5),
    ("log.roll.jitter.hours", "2", "segment.jitter.ms", 2 * HOUR_MS),
    ("log.index.size.max.bytes", "65536", "segment.index.bytes", 65_536),
    ("log.index.interval.bytes", "1", "index.interval.bytes", 1),
    ("log.flush.interval.messages", "5", "flush.messages", 5),
    ("log.flush.interval.ms", "5", "flush.ms", 5),
    ("log.flush.scheduler.interval.ms", "6", "flush.ms", 6),
    ("log.preallocate", "true", "preallocate", True),
    ("log.retention.ms", "1", "retention.ms", 1),
    ("log.retention.ms", "-5", "retention.ms", -1),
    ("log.retention.minutes", "3", "retention.ms", 180_000),
    ("log.retention.minutes", "-3", "retention.ms", -1),
    ("log.retention.hours", "3", "retention.ms", 3 * HOUR_MS),
    ("log.retention.hours", "-9", "retention.ms", -1),
    ("log.retention.bytes", "40000", "retention.bytes", 40_000),
    ("log.segment.delete.delay.ms", "1", "file.delete.delay.ms", 1),
    ("log.cleaner.delete.retention.ms", "1", "delete.retention.ms", 1),
    ("log.cleaner.min.cleanable.ratio", "0.1", "min.cleanable.dirty.ratio", 0.1),
    ("log.cleaner.min.compaction.lag.ms", "1", "min.compaction.lag.ms", 1),
    ("log.cleaner.max.compaction.lag.ms", "9", "max.compaction.lag.ms", 9),
    ("message.max.bytes", "9", "max.message.bytes", 9),
    ("max.decompressed.message.bytes", "9", "max.decompressed.message.bytes", 9),
    ("compression.type", "zstd", "compression.type", "zstd"),
    ("compression.gzip.level", "9", "compression.gzip.level", 9),
    ("compression.lz4.level", "1", "compression.lz4.level", 1),
    ("compression.zstd.level", "1", "compression.zstd.level", 1),
    ("log.message.timestamp.type", "LogAppendTime", "message.timestamp.type", "LogAppendTime"),
    ("log.message.timestamp.before.max.ms", "1", "message.timestamp.before.max.ms", 1),
    ("log.message.timestamp.after.max.ms", "1", "message.timestamp.after.max.ms", 1),
    ("min.insync.replicas", "2", "min.insync.replicas", 2),
    ("unclean.leader.election.enable", "true", "unclean.leader.election.enable", True),
    ("log.local.retention.ms", "1", "local.retention.ms", 1),
    ("log.local.retention.bytes", "1", "local.retention.bytes", 1),
    ("log.remote.copy.lag.ms", "1", "remote.copy.lag.ms", 1),
    ("log.remote.copy.lag.bytes", "1", "remote.copy.lag.bytes", 1),
]


def value_of(config: LogConfig, key: str) -> object:
    return getattr(config, key.replace(".", "_"))


@pytest.mark.parametrize(
    ("key", "default", "accepted", "refused", "item"), ROWS, ids=[str(row[0]) for row in ROWS]
)
@pytest.mark.item(
    "CFG-01",
    "CFG-02",
    "CFG-03",
    "CFG-04",
    "CFG-05",
    "CFG-06",
    "CFG-07",
    "CFG-08",
    "CFG-09",
    "CFG-10",
    "CFG-11",
    "CFG-12",
    "CFG-13",
    "CFG-14",
    "CFG-15",
    "CFG-16",
    "CFG-17",
    "CFG-18",
    "CFG-19",
    "CFG-20",
    "CFG-21",
    "CFG-22",
    "CFG-23",
    "CFG-24",
)
def test_a_topic_key_has_kafkas_default_and_bounds(key, default, accepted, refused, item):
    assert value_of(LogConfig(), key) == default
    assert value_of(LogConfig.from_topic_overrides({}), key) == default
    # The largest lag goes with any smallest one.
    room = {"max.compaction.lag.ms": str(LONG_MAX)}
    for text, value in accepted.items():
        assert value_of(LogConfig.from_topic_overrides(room | {key: text}), key) == value
    for text in refused:
        with pytest.raises(ConfigError) as raised:
            LogConfig.from_topic_overrides({key: text})
        assert (raised.value.key, raised.value.value) == (key, text)


def test_every_topic_key_has_a_row_here():
    keys = {key for key, known in known_keys().items() if known.scope == "topic"}
    assert keys == {str(row[0]) for row in ROWS} | {"internal.segment.bytes"}


@pytest.mark.parametrize(("broker_key", "text", "key", "value"), BROKER_ROWS)
@pytest.mark.item("CFG-37")
def test_a_broker_key_is_the_default_of_its_topic_key(broker_key, text, key, value):
    assert value_of(LogConfig.from_topic_overrides({}, broker={broker_key: text}), key) == value


def test_every_broker_key_has_a_row_here():
    names = {name.name for key in known_keys().values() for name in key.broker_names}
    assert names == {row[0] for row in BROKER_ROWS}


@pytest.mark.item("CFG-37")
def test_the_same_key_at_all_levels_counts_at_the_topic():
    broker = {"log.retention.hours": "3", "log.retention.ms": "1", "log.retention.minutes": "2"}
    topic = LogConfig.from_topic_overrides({"retention.ms": "7"}, broker=broker)
    assert topic.retention_ms == 7
    assert LogConfig.from_topic_overrides({}, broker=broker).retention_ms == 1
    del broker["log.retention.ms"]
    assert LogConfig.from_topic_overrides({}, broker=broker).retention_ms == 120_000
    del broker["log.retention.minutes"]
    assert LogConfig.from_topic_overrides({}, broker=broker).retention_ms == 3 * HOUR_MS
    assert LogConfig.from_topic_overrides({}, broker={}).retention_ms == WEEK_MS


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("log.retention.ms", "0"),
        ("log.retention.minutes", "0"),
        ("log.retention.hours", "0"),
        ("log.roll.ms", "0"),
        ("log.roll.hours", "0"),
        ("log.roll.jitter.ms", "-1"),
        ("log.flush.scheduler.interval.ms", "-1"),
        ("log.index.size.max.bytes", "11"),
        ("log.segment.bytes", "1048575"),
    ],
)
@pytest.mark.item("CFG-10")
def test_a_broker_key_out_of_range_is_refused_by_its_own_name(key: str, text: str):
    with pytest.raises(ConfigError) as raised:
        LogConfig.from_topic_overrides({}, broker={key: text})
    assert raised.value.key == key


@pytest.mark.item("CFG-37")
def test_a_broker_setting_that_concerns_no_topic_is_passed_over():
    broker = {"listeners": "PLAINTEXT://:9092", "ssl.key.password": "secret"}
    assert LogConfig.from_topic_overrides({}, broker=broker) == LogConfig()


@pytest.mark.item("CFG-37", "ERR-14")
@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("retention.mss", "retention.ms"),
        ("cleanup.policies", "cleanup.policy"),
        ("min.cleanable.ratio", "min.cleanable.dirty.ratio"),
    ],
)
def test_an_unknown_topic_key_is_refused_with_the_nearest_name(key: str, near: str):
    with pytest.raises(ConfigError, match=f"did you mean {near}") as raised:
        LogConfig.from_topic_overrides({key: "1"})
    assert raised.value.key == key


@pytest.mark.item("CFG-15")
def test_the_smallest_lag_may_equal_the_largest_but_not_exceed_it():
    lags = {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}
    assert LogConfig.from_topic_overrides(lags).min_compaction_lag_ms == 5
    with pytest.raises(ConfigError, match=r"max\.compaction\.lag\.ms, 4"):
        LogConfig.from_topic_overrides(lags | {"max.compaction.lag.ms": "4"})
    with pytest.raises(ConfigError, match="must not exceed"):
        LogConfig.from_topic_overrides(
            {"min.compaction.lag.ms": "5"}, broker={"log.cleaner.max.compaction.lag.ms": "4"}
        )


@pytest.mark.item("CFG-02")
def test_the_internal_segment_size_overrides_without_a_limit():
    for overrides in ({}, {"segment.bytes": "2000000"}):
        config = LogConfig.from_topic_overrides({**overrides, "internal.segment.bytes": "9"})
        assert config.segment_bytes == 9


def test_policies_are_told_apart():
    both = LogConfig.from_topic_overrides({"cleanup.policy": "compact,delete"})
    assert both.is_compacted
    assert both.cleanup_policy == {CleanupPolicy.COMPACT, CleanupPolicy.DELETE}
    assert not LogConfig().is_compacted
    assert LogConfig().cleanup_policy == {CleanupPolicy.DELETE}
    nothing = LogConfig(cleanup_policy=frozenset())
    assert not nothing.is_compacted
    assert nothing.cleanup_policy == frozenset()


def test_a_compacted_segment_closes_in_time_for_its_lag():
    assert LogConfig(max_compaction_lag_ms=5).max_segment_ms == WEEK_MS
    compacted = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    assert compacted.max_segment_ms == WEEK_MS
    assert dataclasses.replace(compacted, max_compaction_lag_ms=5).max_segment_ms == 5


def test_effective_settings_name_value_origin_and_source():
    settings = effective_settings(
        {"cleanup.policy": "compact", "internal.segment.bytes": "9"},
        broker={"log.retention.hours": "1"},
    )
    by_key = {setting.key: setting for setting in settings}
    assert [setting.key for setting in settings] == sorted(by_key)
    policy, retention = by_key["cleanup.policy"], by_key["retention.ms"]
    assert (policy.value, policy.origin) == ("compact", Origin.TOPIC)
    assert (retention.value, retention.origin) == ("3600000", Origin.BROKER)
    assert retention.source_key == "log.retention.hours"
    assert by_key["segment.bytes"].value == "9"
    assert by_key["segment.bytes"].source_key == "internal.segment.bytes"
    assert (by_key["flush.ms"].value, by_key["flush.ms"].origin) == (str(LONG_MAX), Origin.DEFAULT)


def test_a_config_survives_pickling():
    config = LogConfig.from_topic_overrides({"cleanup.policy": "compact,delete"})
    assert pickle.loads(pickle.dumps(config)) == config
