"""Kafka, for the tests that ask it."""

from tests.oracle.fixtures import kafka_jvm

__all__ = ["kafka_jvm"]
