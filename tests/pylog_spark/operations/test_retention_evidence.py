"""Whose word a limit of retention is."""

from types import SimpleNamespace

import pytest

from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.ledger import spark_ledger
from pylog_spark.operations.retain.driver import FormerLimits, RunEvidence
from pylog_spark.options import JobOptions
from storage_core.catalog.topic_catalog import build_topic_catalog
from storage_core.catalog.topic_dump import TopicDump
from tests.storage_core.catalog.test_topic_catalog import cluster

NOW_MS = 1_795_000_000_000
DAY_MS = 86_400_000
KEY = "retention.ms"
OWN = {"t": {KEY: "1"}}


def dump(age_ms: int, settings: dict[str, str]) -> TopicDump:
    return TopicDump(file="dump", taken_ms=NOW_MS - age_ms, topics={"t": settings})


def doubt(options: dict, sources: dict) -> str | None:
    said = {"now_ms": NOW_MS, "topic_dump_max_age_ms": 7 * DAY_MS} | options
    run = SimpleNamespace(
        job=SimpleNamespace(options=JobOptions(**said)), checkpoint_times={"r": 5}
    )
    catalogs = {"r": build_topic_catalog(**sources)}
    evidence = RunEvidence(run, SimpleNamespace(catalogs=catalogs))
    return evidence.doubt("r", "t", KEY)


FILE = {"log.retention.hours": "1"}
BELIEVED = {
    "the topic's own": ({}, {"metadata": cluster(OWN)}),
    "beside other keys that were said": (
        {},
        {
            "metadata": cluster(OWN),
            "explicit": {"t": {"flush.ms": "1"}},
            "settings": {"min.cleanable.dirty.ratio": "0"},
        },
    ),
    "the broker's file": (
        {"broker_settings": FILE},
        {"metadata": cluster({"t": {}}), "broker": FILE},
    ),
    "a default that the broker's file leaves as it is": (
        {"broker_settings": {"num.io.threads": "8"}},
        {"metadata": cluster({"t": {}})},
    ),
    "a dynamic setting of the cluster": (
        {},
        {"metadata": cluster({"t": {}}, {"": {"log.retention.ms": "2"}})},
    ),
    "a new export": ({}, {"dumps": [dump(7 * DAY_MS, {KEY: "1"})]}),
}
SAID = "is what --set or a --config file says"
DEFAULT = "is Kafka's default: the broker's own is in no --server-properties"
DOUBTED = {
    "assumed": ("is an assumed default", {}, {"assume_defaults": ["*"]}),
    "known to a file alone": (
        "is a default of a topic that only a --config file knows",
        {},
        {"explicit": {"t": {"flush.ms": "1"}}},
    ),
    "a file over the cluster": (
        SAID,
        {},
        {"metadata": cluster(OWN), "explicit": {"*": {KEY: "2"}}},
    ),
    "--set over the cluster": (SAID, {}, {"metadata": cluster(OWN), "settings": {KEY: "2"}}),
    "--set of the broker": (
        "is what --set says of the broker",
        {"broker_overrides": FILE, "broker_settings": FILE},
        {"metadata": cluster({"t": {}}), "broker": FILE, "broker_overrides": FILE},
    ),
    "an old export": (
        "is of a --topic-dump that is older than topic_dump_max_age",
        {},
        {"dumps": [dump(7 * DAY_MS + 1, {KEY: "1"})]},
    ),
    "a default that a broker's file may change": (DEFAULT, {}, {"metadata": cluster({"t": {}})}),
    "left out by a new export": (DEFAULT, {}, {"dumps": [dump(0, {})]}),
}


@pytest.mark.parametrize(("options", "sources"), BELIEVED.values(), ids=BELIEVED)
def test_what_the_cluster_or_its_broker_says_is_believed(options, sources):
    assert doubt(options, sources) is None


@pytest.mark.parametrize(("why", "options", "sources"), DOUBTED.values(), ids=DOUBTED)
def test_what_somebody_else_says_is_doubted_by_key_and_reason(why, options, sources):
    assert (doubt(options, sources) or "").startswith(f"its {KEY} {why}")


@pytest.mark.parametrize(("is_said", "known"), [(False, 5), (True, None)])
def test_the_time_of_a_file_is_no_measure_of_a_clock_that_was_said(is_said, known):
    options = JobOptions(now_ms=NOW_MS, now_is_said=is_said)
    run = SimpleNamespace(job=SimpleNamespace(options=options), checkpoint_times={"r": 5})
    evidence = RunEvidence(run, SimpleNamespace(catalogs={}))
    assert evidence.checkpoint_ms("r") == known
    assert evidence.checkpoint_ms("another") is None


def test_without_a_ledger_nobody_knows_what_was():
    run = SimpleNamespace(job=SimpleNamespace(options=JobOptions(now_ms=NOW_MS)), engine=None)
    evidence = RunEvidence(run, SimpleNamespace(catalogs={}))
    assert evidence.former_limits({("r", "t")}) == {}


@pytest.mark.thorough
@pytest.mark.spark
def test_a_run_that_refused_one_partition_of_a_topic_has_made_no_new_limit(spark, monkeypatch):
    schema = (
        "root string, topic string, run_id string, action string, reason string, "
        "retention_ms long, retention_bytes long"
    )
    rows = [
        ("r", "t", "1", "retain", "NOTHING_TO_RETAIN", 30 * DAY_MS, -1),
        ("r", "t", "2", "retain", "NOTHING_TO_RETAIN", 5, -1),
        ("r", "t", "2", "retain", "DELETES_TOO_MUCH", 5, -1),
        ("r", "t", "2", "retain", None, 5, -1),
        ("r", "other", "2", "retain", None, 7, 8),
        ("r", "other", "1", "retain", None, 90 * DAY_MS, -1),
        # What this run has written down already is not what was.
        ("r", "other", "4", "retain", None, 1, 1),
        ("r", "t", "3", "compact", None, None, None),
    ]
    frame = spark.createDataFrame(rows, schema)
    monkeypatch.setattr(spark_ledger, "read_table", lambda *_: frame)
    monkeypatch.setattr(spark_ledger, "driver_reaches", lambda *_: False)
    run = SimpleNamespace(
        place=spark,
        job=SimpleNamespace(
            options=JobOptions(now_ms=NOW_MS, ledger="ledger"), run_id="4", title="retain"
        ),
        engine=SparkEngine(spark, tag="evidence"),
    )
    evidence = RunEvidence(run, SimpleNamespace(catalogs={}))
    assert evidence.former_limits({("r", "t"), ("r", "other")}) == {
        ("r", "t"): FormerLimits("1", 30 * DAY_MS, -1),
        ("r", "other"): FormerLimits("2", 7, 8),
    }
