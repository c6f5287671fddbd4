"""Kafka, for the tests that ask it; a disk that nobody waits for; and memory that is given back."""

import os

import pytest

from storage_core.store.memory_objects import forget_memory
from tests.oracle.fixtures import kafka_jvm

__all__ = ["kafka_jvm"]


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch):
    """What was not synced is lost by a simulated disk where it matters, not by the real one."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def _forgotten():
    """Every root in memory lies below one URL."""
    yield
    forget_memory("memory://crash")
