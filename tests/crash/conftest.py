"""Kafka, for the tests that ask it; and a disk that nobody waits for."""

import os

import pytest

from tests.oracle.fixtures import kafka_jvm

__all__ = ["kafka_jvm"]


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch):
    """What was not synced is lost by a simulated disk where it matters, not by the real one."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
