"""Rules of a release of Kafka, as JSON: ``python -m tests.brokers.release_rules 3.9.1``.

A process has one JVM, and so the classes of one release.
"""

import json
import sys
from typing import Any

import jpype

from pylog_spark.java import find_java
from storage_core.config import known_keys
from storage_core.config.values import OTHER_TYPES
from tests.oracle.jars import jars_of
from tests.oracle.jvm import JVM_OPTIONS, LIBJVM, QUICK, java
from tests.oracle.test_config_against_kafka import TEXTS

_COMMON = "org.apache.kafka.server.common."
_SIZES = ("13", "14", "1024")


def keys() -> tuple[set[str], set[str]]:
    """Return topic keys and broker-wide keys: ours, and those that differ in a release."""
    topic = {name for name, key in known_keys().items() if key.scope == "topic"}
    broker = {each.name for key in known_keys().values() for each in key.broker_names}
    broker.add("cordoned.log.dirs")
    for types in OTHER_TYPES.values():
        for name in types:
            (broker if name in broker or name.startswith(("log.", "node.")) else topic).add(name)
    return topic, broker


def texts_of(name: str) -> tuple[str, ...]:
    """Return the texts that are tried for a key."""
    return () if name == "cordoned.log.dirs" else (*TEXTS, *_SIZES)


def _taken_by_broker(name: str, key: Any, text: str) -> bool:
    properties = java("java.util.HashMap")()
    properties.put(name, text)
    alone = java("org.apache.kafka.common.config.ConfigDef")()
    alone.define(key)
    try:
        alone.parse(properties)
    except jpype.JException:
        return False
    return True


def _taken_by_topic(name: str, text: str) -> bool:
    properties = java("java.util.Properties")()
    properties.put(name, text)
    try:
        java("org.apache.kafka.storage.internals.log.LogConfig").fromProps(
            java("java.util.HashMap")(), properties
        )
    except jpype.JException:
        return False
    return True


def _rules() -> dict[str, Any]:
    topic, broker = keys()
    versions = java(f"{_COMMON}MetadataVersion")
    try:
        features = java(f"{_COMMON}Feature")
    except TypeError:  # as it was called before 4.0
        features = java(f"{_COMMON}Features")
    first = next(each for each in versions.VERSIONS if int(each.featureLevel()) > 0)
    last = versions.latestProduction()
    names = {str(n) for n in java("org.apache.kafka.storage.internals.log.LogConfig").configNames()}
    definition = java("kafka.server.KafkaConfig").configDef().configKeys()
    return {
        "levels": {
            "metadata.version": [int(first.featureLevel()), int(last.featureLevel())],
            **{
                str(each.featureName()): [0, int(each.latestProduction())]
                for each in features.PRODUCTION_FEATURES
            },
        },
        "topic": {
            name: [text for text in texts_of(name) if _taken_by_topic(name, text)]
            for name in sorted(topic & names)
        },
        "broker": {
            name: [
                text
                for text in texts_of(name)
                if _taken_by_broker(name, definition.get(name), text)
            ]
            for name in sorted(broker)
            if definition.get(name) is not None
        },
    }


if __name__ == "__main__":
    jpype.startJVM(
        str(find_java().runtime / LIBJVM),
        *(*JVM_OPTIONS, *QUICK),
        classpath=[str(jar) for jar in jars_of(sys.argv[1])],
        convertStrings=False,
    )
    sys.stdout.write(json.dumps(_rules()))
