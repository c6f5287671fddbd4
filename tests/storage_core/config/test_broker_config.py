"""Broker keys that are no topic's default, those of the cleaner among them."""

import math

import pytest

from storage_core.config import (
    KAFKA_DEDUPE_BUFFER_BYTES,
    BrokerCompressionType,
    BrokerConfig,
    CleanerConfig,
    OffsetMapHash,
    Recompression,
    known_keys,
)
from storage_core.errors import ConfigError

INT_MAX = 2_147_483_647
LONG_MAX = 9_223_372_036_854_775_807

# Key, default, lowest, highest.
NUMBERS = [
    ("num.recovery.threads.per.data.dir", 2, 1, INT_MAX),
    ("transaction.max.timeout.ms", 900_000, 1, INT_MAX),
    ("offsets.topic.num.partitions", 50, 1, INT_MAX),
    ("offsets.retention.minutes", 10_080, 1, INT_MAX),
    ("offset.metadata.max.bytes", 4_096, -INT_MAX - 1, INT_MAX),
    ("transaction.state.log.num.partitions", 50, 1, INT_MAX),
    ("log.retention.check.interval.ms", 300_000, 1, LONG_MAX),
    ("log.cleaner.backoff.ms", 15_000, 0, LONG_MAX),
    ("log.flush.offset.checkpoint.interval.ms", 60_000, 0, INT_MAX),
    ("log.flush.start.offset.checkpoint.interval.ms", 60_000, 0, INT_MAX),
    ("log.initial.task.delay.ms", 30_000, 0, LONG_MAX),
    ("replica.high.watermark.checkpoint.interval.ms", 5_000, -LONG_MAX - 1, LONG_MAX),
    ("replica.lag.time.max.ms", 30_000, -LONG_MAX - 1, LONG_MAX),
    ("replica.fetch.max.bytes", 1_048_576, 0, INT_MAX),
    ("replica.fetch.wait.max.ms", 500, -INT_MAX - 1, INT_MAX),
    ("replica.fetch.min.bytes", 1, -INT_MAX - 1, INT_MAX),
    ("replica.fetch.response.max.bytes", 10_485_760, 0, INT_MAX),
    ("replica.fetch.backoff.ms", 1_000, 0, INT_MAX),
]


@pytest.mark.parametrize(
    ("key", "default", "lowest", "highest"), NUMBERS, ids=[row[0] for row in NUMBERS]
)
@pytest.mark.item("CFG-32", "CFG-34", "CFG-35", "CFG-36")
def test_a_broker_number_has_kafkas_default_and_bounds(key, default, lowest, highest):
    field = key.replace(".", "_")
    assert getattr(BrokerConfig(), field) == default
    for value in (lowest, highest):
        assert getattr(BrokerConfig.from_settings({key: str(value)}), field) == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ConfigError) as raised:
            BrokerConfig.from_settings({key: str(value)})
        assert raised.value.key == key


def test_every_broker_key_is_tested_here():
    keys = {key for key, known in known_keys().items() if known.scope == "broker"}
    others = {"node.id", "broker.id", "log.dirs", "log.dir", "process.roles"}
    others |= {"cordoned.log.dirs"}
    assert keys == {row[0] for row in NUMBERS} | others


@pytest.mark.item("CFG-31")
@pytest.mark.parametrize(
    ("settings", "directories"),
    [
        pytest.param({}, (), id="none is said"),
        pytest.param({"log.dir": "/a"}, ("/a",), id="the old key"),
        pytest.param({"log.dirs": "/a , /b,/a", "log.dir": "/c"}, ("/a", "/b"), id="repeats fold"),
    ],
)
def test_log_directories_come_from_the_list_or_the_old_key(settings, directories):
    assert BrokerConfig.from_settings(settings).directories == directories


def test_gaps_between_log_directories_were_passed_over_up_to_4_1():
    settings = {"log.dirs": "/a , /b,,/a,"}
    old = BrokerConfig.from_settings(settings, release="4.1")
    assert old.directories == ("/a", "/b")
    with pytest.raises(ConfigError, match=r"log\.dirs=.*: has an empty item"):
        BrokerConfig.from_settings(settings, release="4.2")


@pytest.mark.item("CFG-31")
@pytest.mark.parametrize(
    ("key", "text"), [("log.dirs", ""), ("log.dir", " "), ("log.dirs", "/a,,")]
)
def test_an_empty_log_directory_is_refused(key: str, text: str):
    with pytest.raises(ConfigError, match="empty"):
        BrokerConfig.from_settings({key: text})


@pytest.mark.item("CFG-31")
def test_cordoned_directories_are_some_of_the_brokers_or_all():
    settings = {"log.dirs": "/a,/b"}
    one = BrokerConfig.from_settings(settings | {"cordoned.log.dirs": "/b"})
    assert one.cordoned_log_dirs == ("/b",)
    every = BrokerConfig.from_settings(settings | {"cordoned.log.dirs": "*"})
    assert every.cordoned_log_dirs == ("*",)
    none = BrokerConfig.from_settings(settings | {"cordoned.log.dirs": ""})
    assert none.cordoned_log_dirs == ()
    for text in ("/c", "*,/a"):
        with pytest.raises(ConfigError):
            BrokerConfig.from_settings(settings | {"cordoned.log.dirs": text})


def test_the_two_names_of_a_nodes_number_must_agree():
    assert BrokerConfig.from_settings({"node.id": "3", "broker.id": "3"}).node_id == 3
    with pytest.raises(ConfigError, match=r"node\.id says 3"):
        BrokerConfig.from_settings({"node.id": "3", "broker.id": "4"})


ROWS = [
    ("log.cleaner.threads", "threads", 1, {"1": 1}, ["-1", "2147483648", "x"]),
    (
        "log.cleaner.dedupe.buffer.size",
        "dedupe_buffer_bytes",
        None,
        {"1048577": 1_048_577, "9223372036854775807": 2**63 - 1},
        ["1048576", "0", "-1", "9223372036854775808"],
    ),
    (
        "log.cleaner.io.buffer.load.factor",
        "load_factor",
        0.9,
        {"0.5": 0.5, "1": 1.0},
        ["0", "-1", "1e-9", "1.001", "NaN", ""],
    ),
    (
        "log.cleaner.io.buffer.size",
        "io_buffer_bytes",
        524_288,
        {"0": 0, str(INT_MAX): INT_MAX},
        ["-1", str(INT_MAX + 1)],
    ),
    (
        "log.cleaner.io.max.bytes.per.second",
        "io_max_bytes_per_second",
        1.7976931348623157e308,
        {"-5": -5.0, "1e6": 1e6, "Infinity": math.inf},
        ["fast"],
    ),
    ("log.cleaner.enable", "enabled", True, {"false": False, "TRUE": True}, ["no"]),
    (
        "producer.id.expiration.ms",
        "producer_id_expiration_ms",
        86_400_000,
        {"1": 1, str(INT_MAX): INT_MAX},
        ["0", str(INT_MAX + 1)],
    ),
    (
        "offset-map.hash",
        "offset_map_hash",
        OffsetMapHash.SIPHASH,
        {"md5": OffsetMapHash.MD5, "siphash": OffsetMapHash.SIPHASH},
        ["MD5", "sha1"],
    ),
    ("verify.crc", "verify_crc", True, {"false": False}, ["0"]),
    (
        "recompress",
        "recompression",
        Recompression(),
        {
            "kafka": Recompression(),
            "fast": Recompression(codec=BrokerCompressionType.LZ4),
            "dense": Recompression(codec=BrokerCompressionType.ZSTD, level=19),
            " zstd:-5 ": Recompression(codec=BrokerCompressionType.ZSTD, level=-5),
            "gzip:9": Recompression(codec=BrokerCompressionType.GZIP, level=9),
            "lz4:17": Recompression(codec=BrokerCompressionType.LZ4, level=17),
            "snappy": Recompression(codec=BrokerCompressionType.SNAPPY),
            "uncompressed": Recompression(codec=BrokerCompressionType.UNCOMPRESSED),
        },
        [
            *("", "none", "producer", "ZSTD", "zstd:", "zstd:23", "zstd:-131073", "zstd:\u0663"),
            *("gzip:0", "lz4:18", "snappy:1", "zstd:1:2", "zstd:" + "9" * 5000, "kafka:3"),
        ],
    ),
    (
        "keep.negative.timestamps",
        "keeps_negative_timestamps",
        False,
        {"true": True},
        ["1"],
    ),
    ("recompress.all", "recompresses_all", False, {"true": True}, ["1"]),
    (
        "key.sidecars",
        "key_sidecars",
        "",
        {"": "", " /var/cache/keys ": "/var/cache/keys"},
        ["keys", "./keys", "s3://a/b", "/a/../b", "/a\0b"],
    ),
    (
        "max.decompressed.batch.bytes",
        "max_decompressed_batch_bytes",
        536_870_912,
        {"1": 1},
        ["0", str(INT_MAX + 1)],
    ),
    ("window.bytes", "window_bytes", 8_388_608, {"1": 1}, ["0"]),
    ("io.buffer.max.bytes", "max_io_buffer_bytes", 67_108_864, {"0": 0}, ["-1"]),
]


@pytest.mark.parametrize(
    ("key", "field", "default", "accepted", "refused"), ROWS, ids=[row[0] for row in ROWS]
)
@pytest.mark.item("CFG-25", "CFG-26", "CFG-27", "CFG-28", "CFG-29", "CFG-30", "CFG-33")
def test_a_cleaner_key_has_its_default_and_bounds(key, field, default, accepted, refused):
    assert getattr(CleanerConfig(), field) == default
    assert CleanerConfig.from_settings({}) == CleanerConfig()
    for text, value in accepted.items():
        assert getattr(CleanerConfig.from_settings({key: text}), field) == value
    for text in refused:
        with pytest.raises(ConfigError) as raised:
            CleanerConfig.from_settings({key: text})
        assert raised.value.key == key


def test_every_cleaner_key_has_a_row_here():
    keys = {key for key, known in known_keys().items() if known.scope in {"cleaner", "pylog"}}
    assert keys == {row[0] for row in ROWS}


@pytest.mark.item("CFG-25")
def test_no_thread_at_all_is_refused_although_kafkas_validator_lets_it_pass():
    with pytest.raises(ConfigError, match="does not start"):
        CleanerConfig.from_settings({"log.cleaner.threads": "0"})


@pytest.mark.item("CFG-26")
def test_each_thread_needs_more_than_a_mebibyte_of_the_map():
    settings = {"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097153"}
    with pytest.raises(ConfigError, match="1048576"):
        CleanerConfig.from_settings(settings)
    settings["log.cleaner.dedupe.buffer.size"] = "2097154"
    assert CleanerConfig.from_settings(settings).threads == 2
    assert KAFKA_DEDUPE_BUFFER_BYTES == 134_217_728


@pytest.mark.item("CFG-27")
def test_a_map_that_would_hold_no_key_is_refused():
    slots = 134_217_728 // 24
    settings = {"log.cleaner.io.buffer.load.factor": repr(1 / slots)}
    with pytest.raises(ConfigError, match=f"{slots} slots"):
        CleanerConfig.from_settings(settings)
    settings["log.cleaner.io.buffer.load.factor"] = repr(1.01 / slots)
    assert CleanerConfig.from_settings(settings).load_factor > 0


def test_an_unknown_cleaner_key_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"did you mean log\.cleaner\.threads"):
        CleanerConfig.from_settings({"log.cleaner.thread": "1"})
