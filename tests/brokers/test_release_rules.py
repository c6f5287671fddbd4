"""Releases of Kafka know the keys and levels, and take the values, that our tables say."""

import json
import subprocess
import sys

import pytest

from storage_core.catalog.release_features import FEATURE_LEVELS
from storage_core.config import (
    merge_dynamic_configs,
    refused_file_settings,
    refused_topic_settings,
)
from storage_core.config.values import OTHER_TYPES
from tests.brokers.release_rules import keys, texts_of

pytestmark = [pytest.mark.brokers]

VERSIONS = ("3.9.1", "4.0.0", "4.1.1", "4.2.0", "4.3.0", "4.4.0")
# Kafka takes 4 to 11 bytes, and cannot open an index with them.
TOO_SMALL = {"4", "9", "10", "11", "007", " 7 ", "+5"}


def test_each_release_of_the_tables_is_asked():
    releases = {version.rpartition(".")[0] for version in VERSIONS}
    assert releases == set(FEATURE_LEVELS) == set(OTHER_TYPES)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.timeout(600)
def test_a_release_takes_and_refuses_what_the_tables_say(version: str):
    release = version.rpartition(".")[0]
    said = subprocess.run(
        [sys.executable, "-m", "tests.brokers.release_rules", version],
        check=True,
        stdout=subprocess.PIPE,
    )
    rules = json.loads(said.stdout)
    levels = FEATURE_LEVELS[release]
    assert {name: [each[0], each[-1]] for name, each in levels.items()} == rules["levels"]
    topic, broker = keys()
    unknown = {name for name, kind in OTHER_TYPES[release].items() if kind is None}
    assert (topic - unknown, broker - unknown) == (set(rules["topic"]), set(rules["broker"]))
    for name, taken in rules["topic"].items():
        ours = {t for t in texts_of(name) if not list(refused_topic_settings({name: t}, release))}
        assert ours == set(taken) - (TOO_SMALL if name == "segment.index.bytes" else set()), name
    for name in OTHER_TYPES["3.9"].keys() & rules["broker"].keys():
        for text in texts_of(name):
            merged = merge_dynamic_configs({}, {name: text}, {}, directories=None, release=release)
            assert bool(merged.ignored) == (text not in rules["broker"][name]), (name, text)
            refused = any(refused_file_settings({name: text}, release))
            assert refused == (text not in rules["broker"][name]), (name, text)
