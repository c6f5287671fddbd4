"""Kafka, for the tests that ask it; and memory that is given back."""

import pytest

from tests.kit.memory_objects import forget_memory
from tests.oracle.fixtures import kafka_jvm

__all__ = ["kafka_jvm"]


@pytest.fixture(autouse=True)
def _forgotten():
    """Every root in memory lies below one URL."""
    yield
    forget_memory("memory://crash")
