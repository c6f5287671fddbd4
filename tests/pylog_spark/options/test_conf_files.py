"""The files under conf/ agree with the code."""

import re
from pathlib import Path

import pytest
import yaml

from pylog_spark.options import TUNING_KEYS
from pylog_spark.options.load import read_config_file
from storage_core.catalog.topic_catalog import build_topic_catalog
from storage_core.config import CleanupPolicy, ConfigKey, Scope, known_keys

CONF = Path(__file__).parents[3] / "conf"
OURS: dict[str, ConfigKey] = {
    **{key: known for key, known in known_keys().items() if known.scope is Scope.PYLOG},
    **TUNING_KEYS,
}


def test_the_defaults_file_has_every_key_of_ours_with_its_default():
    assert read_config_file(CONF / "defaults.yaml")["settings"] == {
        key: known.default for key, known in OURS.items()
    }


@pytest.mark.parametrize("key", OURS)
def test_the_defaults_file_says_the_unit_or_the_choices_of_a_key(key: str):
    lines = (CONF / "defaults.yaml").read_text().splitlines()
    (line,) = [line for line in lines if line.strip().startswith(f"{key}:")]
    comment = line.partition("#")[2]
    known = OURS[key]
    expected = known.unit or known.valid
    assert set(re.findall(r"[a-z0-9]+", expected)) <= set(re.findall(r"[a-z0-9]+", comment))


def test_the_example_of_topic_configs_has_only_settings_that_kafka_takes():
    document = yaml.safe_load((CONF / "topics-example.yaml").read_text())
    assert set(document) == {"topics"}
    topics = read_config_file(CONF / "topics-example.yaml")["topics"]
    catalog = build_topic_catalog(explicit=topics)
    for name in topics:
        config = catalog.config_for(name.replace("*", "x"))
        assert config is not None
        assert config.cleanup_policy
    changelog = catalog.config_for("counts-changelog")
    assert changelog is not None
    assert (changelog.is_compacted, CleanupPolicy.DELETE in changelog.cleanup_policy) == (
        True,
        True,
    )
