"""Directories that are told apart from Kafka's by names that it has not."""

import pytest

from storage_core.catalog.log_directories import find_foreign_format

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
    assert found is not None
    assert (found.product, found.evidence) == (product, entry)
