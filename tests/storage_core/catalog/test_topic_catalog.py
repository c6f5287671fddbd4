"""Who says which config a topic has."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    read_cluster_metadata,
)
from storage_core.catalog.metadata_image import TopicMetadata
from storage_core.catalog.topic_catalog import (
    INTERNAL_TOPICS,
    TopicConfigSource,
    build_topic_catalog,
)
from storage_core.catalog.topic_dump import TopicDump
from storage_core.config import CleanupPolicy, LogConfig
from storage_core.errors import ConfigError
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
    assert entry is not None
    assert (entry.topic_id, entry.source) == (TOPIC_ID, TopicConfigSource.CLUSTER_METADATA)
    config = catalog.config_for("t")
    assert config is not None
    assert config.is_compacted
    assert catalog.config_for("plain") == LogConfig()
    odd = catalog.find("odd")
    assert odd is not None
    assert odd.ignored_keys == ("confluent.tier.enable",)


def test_an_internal_topic_of_the_cluster_has_what_the_cluster_says_and_nothing_besides():
    entry = build_topic_catalog(metadata=cluster({"__consumer_offsets": {}})).find(
        "__consumer_offsets"
    )
    assert entry is not None
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
    assert config is not None
    assert (config.retention_ms, config.segment_ms, config.flush_ms) == (3, 2, 1)
    entry = catalog.find("orders")
    assert entry is not None
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
    assert known is not None
    assert there is not None
    assert known.source is TopicConfigSource.CLUSTER_METADATA
    assert known.config_overrides == {"retention.ms": "1"}
    assert there.source is TopicConfigSource.IMPORTED_DUMP
    assert (there.topic_id, there.ignored_keys) == (None, ("confluent.tier.enable",))
    config = catalog.config_for("only-there")
    assert config is not None
    assert (config.retention_ms, config.flush_ms, config.segment_ms) == (8, 2, 5)
    assert pickle.loads(pickle.dumps(catalog)) == catalog


def test_what_is_said_overrides_the_cluster_key_by_key():
    catalog = build_topic_catalog(
        metadata=cluster({"t": {"retention.ms": "1", "segment.ms": "1", "flush.ms": "1"}}),
        explicit={"t": {"segment.ms": "2", "flush.ms": "2"}},
        settings={"flush.ms": "3"},
    )
    config = catalog.config_for("t")
    assert config is not None
    assert (config.retention_ms, config.segment_ms, config.flush_ms) == (1, 2, 3)
    entry = catalog.find("t")
    assert entry is not None
    assert (entry.source, entry.topic_id) == (TopicConfigSource.CLUSTER_METADATA, TOPIC_ID)


def test_defaults_are_assumed_only_where_it_was_allowed():
    catalog = build_topic_catalog(assume_defaults=["log-*"], settings={"flush.ms": "3"})
    entry = catalog.find("log-a")
    assert entry is not None
    assert entry.source is TopicConfigSource.ASSUMED
    config = catalog.config_for("log-a")
    assert config is not None
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
        assert config is not None
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
        assert config is not None
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
    assert config is not None
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
