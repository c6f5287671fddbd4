"""Broker keys that are no topic's default."""

import pytest

from storage_core.config import BrokerConfig, known_keys
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
def test_a_broker_number_has_kafkas_default_and_bounds(
    key: str, default: int, lowest: int, highest: int
):
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
def test_log_directories_come_from_the_list_or_the_old_key(
    settings: dict[str, str], directories: tuple[str, ...]
):
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
