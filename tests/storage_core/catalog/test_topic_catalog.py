"""Who says which config a topic has, dumps of tools among them."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.catalog import topic_dump
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    read_cluster_metadata,
)
from storage_core.catalog.log_directories import find_foreign_format
from storage_core.catalog.metadata_image import TopicMetadata
from storage_core.catalog.topic_catalog import (
    INTERNAL_TOPICS,
    TopicConfigSource,
    build_topic_catalog,
)
from storage_core.catalog.topic_dump import TopicDump, parse_topic_dump
from storage_core.config import CleanupPolicy, LogConfig
from storage_core.errors import CheckpointError, ConfigError
from tests.kit.golden_data import Golden

TOPIC_ID = "6OhPo7FvRwiN63dAgYqoUA"


def cluster(
    configs: dict[str, dict[str, str]], brokers: dict[str, dict[str, str]] | None = None
) -> ClusterMetadata:
    """Return the metadata of a cluster with these topics."""
    return ClusterMetadata(
        topics={
            name: TopicMetadata(name=name, topic_id=TOPIC_ID, partitions={}) for name in configs
        },
        topic_configs=configs,
        ignored_topic_keys={"odd": ("confluent.tier.enable",)},
        broker_configs=brokers or {},
        brokers={},
        feature_levels={},
        snapshot=None,
        end_offset=0,
        last_timestamp_ms=-1,
        skipped={},
        unknown={},
        notes=(),
    )


def test_a_topic_that_no_source_knows_has_no_config():
    catalog = build_topic_catalog(
        metadata=cluster({"known": {}}), explicit={"said-*": {}}, settings={"retention.ms": "1"}
    )
    assert catalog.config_for("unknown") is None
    assert catalog.find("unknown") is None
    assert catalog.topic_id("unknown") is None
    assert build_topic_catalog().config_for("unknown") is None


def test_what_the_cluster_knows_counts_with_its_id():
    catalog = build_topic_catalog(
        metadata=cluster({"t": {"cleanup.policy": "compact"}, "plain": {}, "odd": {}})
    )
    entry = catalog.find("t")
    assert (entry.topic_id, entry.source) == (TOPIC_ID, TopicConfigSource.CLUSTER_METADATA)
    config = catalog.config_for("t")
    assert config.is_compacted
    assert catalog.config_for("plain") == LogConfig()
    odd = catalog.find("odd")
    assert odd.ignored_keys == ("confluent.tier.enable",)


def test_an_internal_topic_of_the_cluster_has_what_the_cluster_says_and_nothing_besides():
    entry = build_topic_catalog(metadata=cluster({"__consumer_offsets": {}})).find(
        "__consumer_offsets"
    )
    assert entry.source is TopicConfigSource.CLUSTER_METADATA
    assert entry.config_overrides == {}


def test_names_count_after_globs_and_later_globs_after_earlier_ones():
    catalog = build_topic_catalog(
        explicit={
            "orders": {"retention.ms": "3"},
            "o*": {"retention.ms": "1", "segment.ms": "1", "flush.ms": "1"},
            "*s": {"segment.ms": "2"},
            "other": {"flush.ms": "9"},
        }
    )
    config = catalog.config_for("orders")
    assert (config.retention_ms, config.segment_ms, config.flush_ms) == (3, 2, 1)
    entry = catalog.find("orders")
    assert (entry.source, entry.topic_id) == (TopicConfigSource.EXPLICIT, None)
    assert catalog.find("Order") is None


def test_an_export_counts_for_topics_that_the_metadata_does_not_know():
    dump = TopicDump(
        file="dump",
        taken_ms=0,
        topics={"t": {"retention.ms": "7"}, "only-there": {"retention.ms": "8", "flush.ms": "1"}},
        ignored_keys={"only-there": ("confluent.tier.enable",)},
    )
    catalog = build_topic_catalog(
        metadata=cluster({"t": {"retention.ms": "1"}}),
        dumps=[dump],
        broker={"log.retention.ms": "9", "log.roll.ms": "5"},
        explicit={"only-*": {"flush.ms": "2"}},
    )
    known, there = catalog.find("t"), catalog.find("only-there")
    assert known.source is TopicConfigSource.CLUSTER_METADATA
    assert known.config_overrides == {"retention.ms": "1"}
    assert there.source is TopicConfigSource.IMPORTED_DUMP
    assert (there.topic_id, there.ignored_keys) == (None, ("confluent.tier.enable",))
    config = catalog.config_for("only-there")
    assert (config.retention_ms, config.flush_ms, config.segment_ms) == (8, 2, 5)
    assert pickle.loads(pickle.dumps(catalog)) == catalog


def test_what_is_said_overrides_the_cluster_key_by_key():
    catalog = build_topic_catalog(
        metadata=cluster({"t": {"retention.ms": "1", "segment.ms": "1", "flush.ms": "1"}}),
        explicit={"t": {"segment.ms": "2", "flush.ms": "2"}},
        settings={"flush.ms": "3"},
    )
    config = catalog.config_for("t")
    assert (config.retention_ms, config.segment_ms, config.flush_ms) == (1, 2, 3)
    entry = catalog.find("t")
    assert (entry.source, entry.topic_id) == (TopicConfigSource.CLUSTER_METADATA, TOPIC_ID)


def test_defaults_are_assumed_only_where_it_was_allowed():
    catalog = build_topic_catalog(assume_defaults=["log-*"], settings={"flush.ms": "3"})
    entry = catalog.find("log-a")
    assert entry.source is TopicConfigSource.ASSUMED
    config = catalog.config_for("log-a")
    assert (config.flush_ms, CleanupPolicy.DELETE in config.cleanup_policy) == (3, True)
    assert catalog.config_for("a") is None


@pytest.mark.item("CFG-37")
def test_broker_wide_settings_stand_behind_every_topic_in_kafkas_order():
    brokers = {
        "": {"log.retention.ms": "2", "log.segment.bytes": "2000000", "min.insync.replicas": "2"},
        "1": {"log.retention.ms": "3"},
        "2": {"log.retention.ms": "4"},
    }
    file = {"log.retention.hours": "1", "log.roll.ms": "7", "log.segment.bytes": "1500000"}
    metadata = cluster({"t": {}, "own": {"retention.ms": "9"}}, brokers)

    def retention(topic: str, **sources: object) -> tuple[int, int, int]:
        catalog = build_topic_catalog(metadata=metadata, **sources)  # type: ignore[arg-type]
        config = catalog.config_for(topic)
        return config.retention_ms, config.segment_bytes, config.segment_ms

    week = 604_800_000
    assert retention("t") == (2, 2_000_000, week)
    assert retention("t", broker=file) == (2, 2_000_000, 7)
    assert retention("t", broker=file, node_id=1) == (3, 2_000_000, 7)
    assert retention("t", broker=file, node_id=9) == (2, 2_000_000, 7)
    hours = {"log.retention.hours": "2"}
    assert retention("t", node_id=1, broker_overrides=hours) == (7_200_000, 2_000_000, week)
    assert retention("own", node_id=1, broker_overrides=hours) == (9, 2_000_000, week)


def test_a_bad_setting_of_one_topic_is_an_error_of_that_topic():
    catalog = build_topic_catalog(metadata=cluster({"bad": {"segment.bytes": "14"}, "good": {}}))
    assert catalog.config_for("good") == LogConfig()
    with pytest.raises(ConfigError, match=r"segment\.bytes"):
        catalog.config_for("bad")


def test_a_dynamic_default_that_a_broker_ignores_is_no_error_of_every_topic():
    metadata = replace(
        cluster({"t": {}}),
        broker_configs={"": {"log.segment.bytes": "1024", "log.retention.ms": "777"}},
    )
    catalog = build_topic_catalog(metadata=metadata, node_id=1)
    assert catalog.config_for("t") == LogConfig(retention_ms=777)


def test_a_cordoned_directory_outside_of_log_dirs_drops_the_dynamic_configs():
    metadata = replace(
        cluster({"t": {}}),
        broker_configs={
            "": {"log.retention.ms": "777"},
            "1": {"cordoned.log.dirs": "/d2", "log.retention.bytes": "9"},
        },
    )

    def config(**known: object) -> LogConfig | None:
        catalog = build_topic_catalog(metadata=metadata, node_id=1, **known)  # type: ignore[arg-type]
        return catalog.config_for("t")

    counted = LogConfig(retention_ms=777, retention_bytes=9)
    assert config() == counted
    assert config(directories=["/d1", "/d2"]) == counted
    assert config(directories=["/d1"]) == LogConfig()
    # Perhaps log.dirs has it, and it was not named: then nobody knows.
    with pytest.raises(ConfigError, match=r"cordoned\.log\.dirs: /d2 .* is not in log\.dirs"):
        config(directories=["/d1"], are_all_directories=False)


@pytest.mark.thorough
def test_a_catalog_travels_to_executors(tmp_path: Path):
    root = Golden("broker-dir").unpack(tmp_path)
    metadata = read_cluster_metadata(root / CLUSTER_METADATA_DIRECTORY)
    catalog = build_topic_catalog(metadata=metadata, node_id=1)
    data = pickle.dumps(catalog)
    assert len(data) < 3_000
    assert pickle.loads(data) == catalog


def test_a_brokers_topics_have_the_config_that_the_broker_ran_with(tmp_path: Path):
    golden = Golden("broker-dir")
    root = golden.unpack(tmp_path)
    catalog = build_topic_catalog(
        metadata=read_cluster_metadata(root / CLUSTER_METADATA_DIRECTORY),
        node_id=1,
        broker={"log.index.size.max.bytes": "65536"},
    )
    for name, facts in golden.case["expected"].items():
        topic = name.rpartition("-")[0]
        if topic in golden.case["topics"]:
            expected = LogConfig.from_topic_overrides(facts["config"])
            assert catalog.config_for(topic) == expected


SHORT = {"cleanup.policy": "delete", "retention.ms": "60000", "retention.bytes": "1"}
OF_ALL_TOPICS = {
    "assumed": {"assume_defaults": ["*"]},
    "assumed, with --set": {"assume_defaults": ["*"], "settings": SHORT},
    "said of a glob": {"explicit": {"*": SHORT, "__*": SHORT}},
    "in a dump that leaves the defaults out": {
        "dumps": [TopicDump(file="dump", taken_ms=0, topics={name: {} for name in INTERNAL_TOPICS})]
    },
    "known to the cluster, with --set": {"metadata": cluster(INTERNAL_TOPICS), "settings": SHORT},
}


@pytest.mark.parametrize("sources", OF_ALL_TOPICS.values(), ids=OF_ALL_TOPICS)
def test_what_is_said_of_many_topics_lets_no_record_of_an_internal_topic_go(sources):
    catalog = build_topic_catalog(**sources)
    for topic in INTERNAL_TOPICS:
        config = catalog.config_for(topic)
        assert config == LogConfig.from_topic_overrides(INTERNAL_TOPICS[topic])
        assert config.is_compacted or config.retention_ms == config.retention_bytes == -1


def test_an_internal_topic_has_what_its_own_name_says():
    catalog = build_topic_catalog(
        explicit={
            "__consumer_offsets": {"cleanup.policy": "compact,delete", "retention.ms": "7"},
            "__*": {"segment.ms": "5", "retention.ms": "6"},
        }
    )
    config = catalog.config_for("__consumer_offsets")
    assert (config.is_compacted, CleanupPolicy.DELETE in config.cleanup_policy) == (True, True)
    assert (config.retention_ms, config.segment_ms) == (7, 5)
    assert config.segment_bytes == 104_857_600
    assert catalog.config_for("__transaction_state") is not None
    assert build_topic_catalog(assume_defaults=["o*"]).config_for("__consumer_offsets") is None


def test_internal_topics_have_what_a_broker_of_kafka_4_4_created_them_with(tmp_path: Path):
    root = Golden("broker-dir").unpack(tmp_path)
    metadata = read_cluster_metadata(root / CLUSTER_METADATA_DIRECTORY)
    # The one replica of that cluster was told to be enough.
    said = {"__transaction_state": {"min.insync.replicas": "1"}}
    for topic in ("__consumer_offsets", "__transaction_state"):
        created = metadata.topic_configs[topic]
        assert created == {**INTERNAL_TOPICS[topic], **said.get(topic, {})}


WRITTEN_MS = 1_700_000_000_000
TAKEN_MS = 1_690_000_000_000

# As ConfigCommand of Kafka 4.4 prints it: every key with --all, else only what the topic sets.
ALL = """\
All configs for topic orders are:
  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}
  confluent.tier.enable=true sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:confluent.tier.enable=true}
  leader.replication.throttled.replicas= sensitive=false synonyms={}
  message.timestamp.type=null sensitive=true synonyms={}
  retention.ms=86400000 sensitive=false synonyms={STATIC_BROKER_CONFIG:log.retention.hours=24}
All configs for topic a.b-c_D are:
  retention.ms=86400000 sensitive=false synonyms={STATIC_BROKER_CONFIG:log.retention.hours=24}
"""  # noqa: E501  # lines of Kafka's
DYNAMIC = """\
Dynamic configs for topic __consumer_offsets are:
  cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact}
Dynamic configs for topic plain are:
"""


def parse(text: str | bytes) -> TopicDump:
    content = text if isinstance(text, bytes) else text.encode()
    return parse_topic_dump(content, file="dump", modified_ms=WRITTEN_MS)


def document(**changes) -> str:
    plain = {"format": "pylog-topics", "version": 1, "taken_ms": TAKEN_MS, "topics": {}}
    return json.dumps(plain | changes)


def line_of(text: str | bytes) -> int:
    with pytest.raises(CheckpointError) as caught:
        parse(text)
    assert str(caught.value).startswith("dump")
    assert len(str(caught.value)) < 500
    return caught.value.line


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_what_kafkas_tool_prints_is_read_with_the_values_in_force(ends: str):
    dump = parse(ALL.replace("\n", ends))
    assert dump.topics == {
        "orders": {
            "cleanup.policy": "compact,delete",
            "leader.replication.throttled.replicas": "",
            "retention.ms": "86400000",
        },
        "a.b-c_D": {"retention.ms": "86400000"},
    }
    assert dump.ignored_keys == {"orders": ("confluent.tier.enable",)}
    # The tool says no time: that of the file counts.
    assert dump.taken_ms == WRITTEN_MS


def test_a_topic_without_settings_of_its_own_is_known():
    dump = parse(DYNAMIC)
    assert dump.topics == {"__consumer_offsets": {"cleanup.policy": "compact"}, "plain": {}}


def test_json_says_its_own_time():
    topics = {"orders": {"cleanup.policy": "compact", "retention.ms": -1, "preallocate": True}}
    dump = parse("\ufeff" + document(topics=topics))
    assert dump.taken_ms == TAKEN_MS
    assert dump.topics == {
        "orders": {"cleanup.policy": "compact", "retention.ms": "-1", "preallocate": "true"}
    }


def test_equal_settings_of_many_topics_are_one_object():
    text = "".join(
        f"All configs for topic t{n} are:\n  flush.ms=1 sensitive=false synonyms={{}}\n"
        for n in range(100)
    )
    assert len({id(settings) for settings in parse(text).topics.values()}) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 0),
        ("\n\n", 0),
        ("  flush.ms=1 sensitive=false synonyms={}\n", 1),
        (DYNAMIC + "Error: timed out\n", 4),
        (ALL + "  flush.ms\n", 9),
        (ALL + "  flush.ms=1\n", 9),
        (ALL + "All configs for topic orders are:\n", 9),
        (ALL.replace("confluent.tier.enable", "cleanup.policy"), 3),
        (ALL.replace("a.b-c_D", "a/b"), 7),
        (ALL.replace("a.b-c_D", "a" * 250), 7),
        (ALL.encode() + b"\xff\n", 9),
        ('{\n "format": "pylog-topics",\n version: 1}', 3),
        (b'{\n "format": "\xff"}', 2),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_what_cannot_be_understood_is_named_with_its_line(text: str | bytes, line: int):
    assert line_of(text) == line


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        document(format="other"),
        document(version=2),
        document(taken_ms=-1),
        document(taken_ms=True),
        document(taken_ms=10**30),
        document(more=1),
        document(topics=[]),
        document(topics={"t": "x"}),
        document(topics={"t": {"flush.ms": None}}),
        document(topics={"t": {"flush.ms": 1.5}}),
        document(topics={"a/b": {}}),
        document().replace('"topics": {}', '"topics": {"t": {}, "t": {}}'),
        document(taken_ms=0).replace('"taken_ms": 0', '"taken_ms": NaN'),
        document(taken_ms=0).replace('"taken_ms": 0', f'"taken_ms": {"9" * 5000}'),
        '{"a":' * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_json_of_another_form_is_refused(text: str):
    line_of(text)


SYNONYMS = " sensitive=false synonyms={"
HOSTILE = {
    "a line that almost ends as a setting, again and again": DYNAMIC + "  a=" + SYNONYMS * 150_000,
    "an object with a name that stands twice among many": document(
        topics={f"t{number}": {} for number in range(60_000)}
    ).replace('"t59998"', '"t59999"'),
}


@pytest.mark.thorough
@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_long_and_wrong_is_refused_in_no_time(text: str):
    """In a time that grew with the square of the length it took minutes."""
    line_of(text)


def test_the_first_place_where_synonyms_begin_ends_the_value():
    text = DYNAMIC + f"  flush.ms=1{SYNONYMS}X:a=b{SYNONYMS}}}}}\n"
    assert parse(text).topics["plain"] == {"flush.ms": "1"}


def test_a_file_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(topic_dump, "MAX_DUMP_BYTES", 10)
    assert line_of(DYNAMIC) == 0


@given(st.lists(st.sampled_from(ALL.splitlines()) | st.text(max_size=60), max_size=12))
def test_any_text_is_read_or_refused(lines: list[str]):
    try:
        dump = parse("\n".join(lines).encode("utf-8", "replace"))
    except CheckpointError:
        return
    assert dump.topics


KAFKAS = [
    ".lock",
    "__cluster_metadata-0",
    "__consumer_offsets-49",
    "cleaner-offset-checkpoint",
    "current-0",
    "meta.properties",
    "orders-0",
    "redpanda-0",
    "remote-log-index-cache",
]


def test_what_kafka_keeps_is_nobody_elses():
    assert find_foreign_format(KAFKAS) is None


@pytest.mark.parametrize(
    ("entry", "product"),
    [
        ("redpanda", "Redpanda"),
        ("kafka_internal", "Redpanda"),
        ("commitlog", "Apache RocketMQ"),
        ("current", "Apache BookKeeper (Pulsar)"),
        ("_confluent-tier-state-3", "Confluent Server with Tiered Storage"),
    ],
)
def test_one_entry_that_only_another_system_has_is_enough(entry, product):
    found = find_foreign_format([*KAFKAS, entry])
    assert (found.product, found.evidence) == (product, entry)
