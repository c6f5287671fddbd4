"""Processes that are killed after their task was done: it is done again, to the byte."""

import os
import signal
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from pylog_spark.engines import local_engine
from pylog_spark.engines.choice import Local
from pylog_spark.operations import undo as undo_module
from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.undo import undo
from pylog_spark.options import Strategy
from tests.crash.work.run_of_undo import RUN, compaction_in
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
    expected_points,
    read_points,
)
from tests.pylog_spark.managed_roots import managed_twin
from tests.pylog_spark.operations.test_managed_undo import RUN as MANAGED_RUN
from tests.pylog_spark.operations.test_managed_undo import options, publish

NAMES = ["clean-hw-none-s161", "clean-group-all-s211"]


class DyingEngine(local_engine.LocalEngine):
    """Lets the first attempt of each unit do all of its work, and then die."""

    deaths = Path()

    def spread(
        self,
        units: Sequence[object],
        work: Callable[[object], Iterable[object]],
        kind: type[object],
    ) -> local_engine.LocalRows:
        folder = str(self.deaths)

        def die_once(numbered: tuple[str, object]) -> Iterator[object]:
            name, unit = numbered
            messages = list(work(unit))
            marker = Path(folder, name)
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield from messages

        return super().spread([(uuid.uuid4().hex, unit) for unit in units], die_once, kind)


@pytest.mark.thorough
@pytest.mark.item("FLT-14")
@pytest.mark.parametrize("strategy", [Strategy.BROADCAST, Strategy.SHUFFLE, Strategy.WHOLE])
def test_what_is_done_again_leaves_what_kafka_left(tmp_path, monkeypatch, strategy):
    monkeypatch.setattr(local_engine, "LocalEngine", DyingEngine)
    monkeypatch.setattr(DyingEngine, "deaths", tmp_path / "deaths")
    (tmp_path / "deaths").mkdir()
    root = broker_directory(tmp_path / "log", NAMES)
    report = compact(Local(2), [root.path], root.options(FIRST_ROUNDS_MS), strategy=strategy)
    assert report.exit_code == 0
    assert report.results["status"].to_pylist() == ["done"] * len(NAMES)
    least = {Strategy.BROADCAST: 3, Strategy.SHUFFLE: 2, Strategy.WHOLE: 1}[strategy]
    assert len(list((tmp_path / "deaths").iterdir())) >= least
    assert differences_from_kafka(root.path, NAMES, tmp_path) == []
    assert read_points(root.path) == expected_points(NAMES)


@pytest.mark.thorough
@pytest.mark.item("FLT-14")
def test_an_undo_that_is_done_again_is_said_to_be_done(tmp_path, monkeypatch):
    compaction = compaction_in(tmp_path)
    monkeypatch.setattr(local_engine, "LocalEngine", DyingEngine)
    monkeypatch.setattr(DyingEngine, "deaths", tmp_path / "deaths")
    monkeypatch.setattr(undo_module, "_FEW", 0)
    (tmp_path / "deaths").mkdir()
    report = undo(RUN, compaction.options, place=Local(2))
    # A task looks, and another one undoes.
    assert len(list((tmp_path / "deaths").iterdir())) == 2
    assert (report.exit_code, report.summary.done) == (0, len(report.results))
    compaction.check_undone("undone twice")


@pytest.mark.item("FLT-14")
def test_an_undo_of_a_managed_root_that_is_done_again_is_said_to_be_done(tmp_path, monkeypatch):
    origin = broker_directory(tmp_path / "log", NAMES)
    reports = []
    for name in ("once", "twice"):
        twin = managed_twin(origin, tmp_path / name)
        before = {topic: twin.tree(topic) for topic in NAMES}
        for topic in NAMES:
            publish(twin, topic, MANAGED_RUN, b"of the run")
        if name == "twice":
            monkeypatch.setattr(local_engine, "LocalEngine", DyingEngine)
            monkeypatch.setattr(DyingEngine, "deaths", tmp_path / "deaths")
            monkeypatch.setattr(undo_module, "are_looked_at_here", lambda _: False)
            (tmp_path / "deaths").mkdir()
        report = undo(MANAGED_RUN, options(), roots=[twin.location], place=Local(2))
        assert (report.exit_code, report.summary.done) == (0, len(NAMES))
        reports.append(report.results.drop_columns(["run_id", "root", "directory", "duration_ms"]))
        assert {topic: twin.tree(topic) for topic in NAMES} == before
        assert [twin.store(topic).manifest.generation for topic in NAMES] == [3, 3]
    assert len(list((tmp_path / "deaths").iterdir())) == 1
    assert reports[0].to_pylist() == reports[1].to_pylist()
