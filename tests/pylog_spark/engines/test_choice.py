"""Which engine runs the tasks of a run, and which one its looks."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pylog_spark.engines.choice import Local, open_engine, open_look_engine
from pylog_spark.engines.local_engine import LocalEngine


@dataclass(frozen=True)
class Seen:
    """Which process looked."""

    process: int


def see(number: int) -> Iterator[Seen]:
    """Yield which process looks."""
    del number
    yield Seen(os.getpid())


def test_where_the_slots_are_here_the_driver_looks(spark: Any):
    with open_engine(spark, tag="looks") as engine:
        looks = open_look_engine(spark, engine)
        assert looks.slots == engine.slots
        with looks:
            rows = looks.spread([0, 1], see, Seen)
            seen = list(looks.receive(rows, Seen, "look", is_look=True))
    assert seen == [Seen(os.getpid())] * 2


@pytest.mark.parametrize("master", ["spark://far:7077", "yarn", "local-cluster[2,1,1024]"])
def test_what_executors_see_executors_look_at(master: str, monkeypatch: pytest.MonkeyPatch):
    class Context:
        """Of a session on a cluster."""

        def __init__(self) -> None:
            self.master = master

    class Session:
        """That session."""

        sparkContext = Context()  # noqa: N815  # Spark's name

    monkeypatch.setattr("pylog_spark.engines.session_facts.is_connect", lambda _session: False)
    engine: Any = object()
    assert open_look_engine(Session(), engine) is engine  # type: ignore[arg-type]


def test_without_spark_there_is_one_engine():
    engine = LocalEngine(1)
    assert open_look_engine(Local(1), engine) is engine
