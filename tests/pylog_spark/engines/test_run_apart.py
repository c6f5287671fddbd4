"""What is done with Spark after an error, and what is said of it."""

import logging

import pytest

from pylog_spark.engines.engine import run_apart
from storage_core import interruption


def fail() -> None:
    raise ConnectionError("the JVM is gone")


@pytest.mark.parametrize("is_requested", [False, True])
def test_a_step_that_fails_is_told_unless_a_signal_ended_all(
    is_requested: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(interruption, "is_requested", lambda: is_requested)
    with caplog.at_level(logging.WARNING):
        run_apart("interrupt the run's Spark jobs", fail)
    said = ["could not interrupt the run's Spark jobs: the JVM is gone"]
    assert caplog.messages == ([] if is_requested else said)
