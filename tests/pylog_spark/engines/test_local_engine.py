"""The local engine: which task gets which rows, and what becomes of tasks whose process dies."""

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import yaml

from pylog_spark.engines import local_engine
from pylog_spark.engines.choice import Local, open_engine
from pylog_spark.engines.engine import AnyEngine, run_apart
from pylog_spark.engines.errors import TaskFailedError
from pylog_spark.engines.local_engine import LocalEngine, LocalPublished
from pylog_spark.engines.spark_engine import map_in_arrow
from pylog_spark.ledger.tables import LedgerTable
from pylog_spark.operations import undo as undo_module
from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.undo import undo
from pylog_spark.options import Strategy
from pylog_spark.rows import Binary, Int32, Number, column, schema_of
from pylog_spark.tasks import worker
from pylog_spark.tasks.worker import freeze_modules
from storage_core import interruption
from storage_core.errors import ConfigError
from tests.crash.work.run_of_undo import RUN, compaction_in
from tests.kit.program import run_to_end
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
from tests.storage_core.maintenance.verification.log_root import NOW_MS, ONLY_BROKER, log_root

# A flag of a process, from Linux's include/linux/sched.h: it is being ended.
PF_EXITING = 0x4

ROWS = pa.schema([("root", pa.string()), ("number", pa.int64()), ("unit", pa.int32())])
SEEN = pa.schema([("number", pa.int64()), ("task", pa.string()), ("place", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    unit: Int32 = column("a task")
    number: Number = column("a number")
    cell: Binary = column("bytes")


CELLS = schema_of(Cell)


def engine_of(slots: int = 2) -> AnyEngine:
    return open_engine(Local(slots), tag="test")


@pytest.fixture(scope="module")
def engine() -> Iterator[AnyEngine]:
    """One for all tests that leave it as it was."""
    with engine_of() as opened:
        yield opened


def numbers_of(unit: list[int]) -> Iterator[pa.RecordBatch]:
    rows = [{"root": "/ab"[: 1 + n % 2], "number": n, "unit": n % 3} for n in unit]
    yield pa.RecordBatch.from_pylist(rows, ROWS)


def note_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in their order, with a name that no other task has."""
    task, place = os.urandom(8).hex(), 0
    for batch in batches:
        for number in batch.column("number").to_pylist():
            yield pa.RecordBatch.from_pylist(
                [{"number": number, "task": task, "place": place}], SEEN
            )
            place += 1


def tasks_of(table: pa.Table) -> list[list[int]]:
    """Return the numbers of each task, in the order in which it got them."""
    tasks: dict[str, list[int]] = {}
    for row in table.to_pylist():
        tasks.setdefault(row["task"], []).append(row["number"])
    return list(tasks.values())


@pytest.mark.parametrize("is_look", [False, True], ids=["processes", "here"])
def test_rows_are_dealt_out_as_they_are_by_spark(engine, is_look):
    units = [list(range(first, 60, 4)) for first in range(4)]

    def seen(rows):
        return tasks_of(engine.collect(rows.map(note_task, SEEN), SEEN, "t", is_look=is_look))

    made = engine.each(units, numbers_of, ROWS)
    assert seen(made) == units
    evenly = seen(made.deal_out(7))
    assert sorted(map(len, evenly)) == [8, 8, 8, 9, 9, 9, 9]
    assert sorted(chain(*evenly)) == list(range(60))
    by_unit = seen(made.to_units(3).sort_within("number"))
    assert by_unit == [list(range(first, 60, 3)) for first in range(3)]
    by_key = seen(made.union(made).deal_by(["number"], 5))
    assert sorted(chain(*by_key)) == sorted([*range(60), *range(60)])
    assert all(task.count(number) == 2 for task in by_key for number in task)
    lanes = seen(made.deal_by(["number"], 7, lanes={"/a": range(2)}))
    odd = [{number % 2 for number in task} for task in lanes]
    assert odd.count({1}) == 2
    assert odd.count({0}) == 5


def test_nulls_come_first_as_they_do_in_spark(engine):
    def work(_unit: int) -> Iterator[pa.RecordBatch]:
        rows = [{"number": n, "root": "x"} for n in (3, None, 1, None, 2)]
        yield pa.RecordBatch.from_pylist(rows, ROWS)

    rows = engine.each([0], work, ROWS).deal_out(1).sort_within("root", "number")
    found = engine.collect(rows, ROWS, "t", is_look=True)
    assert found["number"].to_pylist() == [None, None, 1, 2, 3]


@pytest.mark.thorough
def test_large_cells_go_in_pieces_through_files_that_are_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    size = 3_000_000

    def work(number: int) -> Iterator[Cell]:
        yield Cell(unit=0, number=number, cell=np.full(size, number, np.uint8).tobytes())

    def join(cells: Iterator[Cell]) -> Iterator[Cell]:
        for each in cells:
            yield replace(each, cell=bytes(each.cell or b""))

    with engine_of() as engine:
        spread = engine.spread([2, 1, 0], work, Cell)
        ordered = spread.to_units(1).sort_within("number", "part")
        found = list(engine.receive(engine.map_messages(ordered, Cell, join, Cell), Cell, "t"))
        (folder,) = tmp_path.iterdir()
        assert list(folder.iterdir()) == []
        assert [each.number for each in found] == [0, 1, 2]
        assert [set(each.cell) for each in found] == [{0}, {1}, {2}]
        assert {len(each.cell) for each in found} == {size}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_rows_that_are_kept_are_made_once_for_all_who_read_them(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    notes = tmp_path / "notes"
    notes.mkdir()
    place = str(notes)
    size = 300_000  # more than travels with the answer of a task

    def work(number: int) -> Iterator[pa.RecordBatch]:
        Path(place, os.urandom(8).hex()).touch()
        cell = np.full(size, number, np.uint8).tobytes()
        yield pa.RecordBatch.from_pylist([{"unit": number, "number": number, "cell": cell}], CELLS)

    for is_look in (False, True):
        with engine_of() as engine:
            kept = engine.keep(engine.each([0, 1, 2], work, CELLS), "t", is_look=is_look)
            assert len(list(notes.iterdir())) == 3
            for read_here in (True, False):
                found = engine.collect(kept, CELLS, "t", is_look=read_here)
                assert found["number"].to_pylist() == [0, 1, 2]
                assert [set(cell.as_py()) for cell in found["cell"]] == [{0}, {1}, {2}]
            again = kept.union(kept).to_units(3).map(note_task, SEEN)
            assert tasks_of(engine.collect(again, SEEN, "t")) == [[0, 0], [1, 1], [2, 2]]
            assert len(list(notes.iterdir())) == 3
            assert engine.hand_over(kept) is None
            engine.release()
            assert [file for folder in tmp_path.glob("pylog-*") for file in folder.iterdir()] == []
        for note in notes.iterdir():
            note.unlink()


def process_of(value: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([{"number": value, "task": str(os.getpid()), "place": 0}])


def test_only_what_looks_is_done_in_the_drivers_process(engine):
    here = str(os.getpid())
    rows = engine.each(list(range(4)), process_of, SEEN)
    assert set(engine.collect(rows, SEEN, "t", is_look=True)["task"].to_pylist()) == {here}
    assert here not in engine.collect(rows, SEEN, "t")["task"].to_pylist()


def test_what_is_published_is_read_in_tasks_until_it_is_released(engine):
    value = engine.publish({"key": 7})
    again = engine.publish([1, 2])

    def work(_unit: int) -> Iterator[pa.RecordBatch]:
        number = value.value["key"] + len(again.value)
        yield pa.RecordBatch.from_pylist([{"number": number, "task": "", "place": 0}])

    rows = engine.each([0], work, SEEN)
    assert engine.collect(rows, SEEN, "t")["number"].to_pylist() == [9]
    engine.release()
    with pytest.raises(TaskFailedError, match="t: task 1 of 1: FileNotFoundError"):
        engine.collect(rows, SEEN, "t")


def dying(folder: Path, times: int):
    """Return work that kills its process so many times with each unit."""
    place = str(folder)

    def work(unit: int) -> Iterator[pa.RecordBatch]:
        deaths = len(list(Path(place).glob(f"{unit}-*")))
        if deaths < times:
            Path(place, f"{unit}-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from process_of(unit)

    return work


@pytest.mark.thorough
def test_a_task_whose_process_dies_is_done_by_another_one(engine, tmp_path):
    rows = engine.each([0, 1, 2], dying(tmp_path, 3), SEEN)
    assert engine.collect(rows, SEEN, "t")["number"].to_pylist() == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 9


@pytest.mark.thorough
def test_a_task_whose_processes_die_again_and_again_fails_the_stage(engine, tmp_path):
    rows = engine.each([0], dying(tmp_path, 99), SEEN)
    with pytest.raises(TaskFailedError, match=r"merge: task 1 of 1: the process died .* 4 times"):
        engine.collect(rows, SEEN, "merge")
    assert len(list(tmp_path.iterdir())) == 4
    # The others are there as before.
    assert engine.collect(engine.each([5], process_of, SEEN), SEEN, "t").num_rows == 1


def test_looks_are_made_one_after_the_other(engine):
    """Beside each other they would hand the interpreter's lock over at every call."""

    def look(number: int) -> Iterator[pa.RecordBatch]:
        began = time.perf_counter_ns()
        time.sleep(0.02)
        rows = [{"number": began, "root": "x"}, {"number": time.perf_counter_ns(), "root": "x"}]
        yield pa.RecordBatch.from_pylist(rows, ROWS)

    found = engine.collect(engine.each([0, 1, 2, 3], look, ROWS), ROWS, "t", is_look=True)
    times = found["number"].to_pylist()
    assert times == sorted(times)


@pytest.mark.parametrize("is_look", [False, True], ids=["processes", "here"])
def test_an_error_of_a_task_is_the_stages(engine, is_look):
    def work(unit: int) -> Iterator[pa.RecordBatch]:
        if unit == 2:
            raise KeyError("lost")
        yield from process_of(unit)

    rows = engine.each([0, 1, 2, 3], work, SEEN)
    with pytest.raises(TaskFailedError, match="observe: task 3 of 4: KeyError: 'lost'"):
        engine.collect(rows, SEEN, "observe", is_look=is_look)


def test_after_an_error_no_process_works_any_more(tmp_path):
    def work(unit: int) -> Iterator[pa.RecordBatch]:
        Path(tmp_path, f"{os.getpid()}").touch()
        time.sleep(300)
        yield from process_of(unit)

    def interrupted(engine: AnyEngine) -> None:
        stage = engine.alongside(lambda: engine.collect(engine.each([0, 1], work, SEEN), SEEN, "t"))
        limit = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < limit:
            time.sleep(0.02)
        assert not stage.done()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), engine_of() as engine:
        interrupted(engine)
    processes = [int(path.name) for path in tmp_path.iterdir()]
    assert len(processes) == 2
    assert not any(is_alive(process) for process in processes)


def is_alive(process: int) -> bool:
    """Whether a process may still run what it was told.

    Not a corpse that waits for its parent, nor one that the kernel is ending: its connections are
    closed before it has become a corpse.
    """
    try:
        state, *facts = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except FileNotFoundError:
        return False
    is_exiting = bool(int(facts[5]) & PF_EXITING)
    return state not in "ZX" and not is_exiting


SCRIPT = """
import os, sys, time
from pathlib import Path
from pylog_spark.engines.choice import Local, open_engine
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import CUT
from storage_core.interruption import watch

if sys.argv[2] == "our program":
    watch()

def work(path):
    Path(path, str(os.getpid())).touch()
    time.sleep(600)
    yield rows_to_batch(CUT, [])

try:
    with open_engine(Local(2), tag="interrupted") as engine:
        engine.collect(engine.each([sys.argv[1]] * 2, work, CUT), CUT, "a long one")
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["our program", "a program"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_processes_end_with_their_driver_however_that_ends(tmp_path, kind, number, status):
    driver = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path), kind], cwd=Path.cwd())
    try:
        limit = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < limit:
            time.sleep(0.05)
        processes = [int(path.name) for path in tmp_path.iterdir()]
        assert len(processes) == 2
        os.kill(driver.pid, number)
        assert driver.wait(timeout=60) == status
        while any(map(is_alive, processes)) and time.monotonic() < limit:
            time.sleep(0.05)
        assert not any(map(is_alive, processes))
    finally:
        driver.kill()


FORKS = """
import os, sys, threading
from pathlib import Path
from pylog_spark.engines.choice import Local, open_engine
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import CUT
from storage_core.interruption import watch

def work(path):
    # The process, that which forked it, and the parent of that.
    template = os.getppid()
    parent = Path(f"/proc/{template}/stat").read_text().rpartition(") ")[2].split()[1]
    streams = [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1)]
    commands = {Path(f"/proc/{each}/cmdline").read_bytes() for each in (template, parent)}
    print("to nowhere")
    line = " ".join(map(str, [os.getpgid(0) == template, parent, len(commands), *streams]))
    Path(path).write_text(line)
    yield rows_to_batch(CUT, [])

if "watched" in sys.argv:
    watch()
if "busy" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
with open_engine(Local(1), tag="forks") as engine:
    engine.collect(engine.each([sys.argv[1]], work, CUT), CUT, "who forks")
print(os.getpid(), *sys.argv[2:])
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "is_fork"), [(["watched"], True), (["watched", "busy"], False), ([], False)]
)
def test_our_own_program_forks_its_workers_unless_a_thread_is_at_work(tmp_path, words, is_fork):
    seen = tmp_path / "seen"
    command = [sys.executable, "-c", FORKS, str(seen), *words]
    # The library has no care for forks of its threads; the program starts none.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, cwd=Path.cwd(), env=environment, capture_output=True, text=True, check=True
    )
    process = ended.stdout.split()[0]
    assert ended.stdout.split() == [process, *words]
    leads, parent, programs, *streams = seen.read_text().split()
    assert (leads, parent, programs == "1") == ("True", process, is_fork)
    assert streams[1] == os.devnull
    assert not is_fork or streams[0] == os.devnull


def test_slots_are_those_of_a_local_master():
    assert Local.of_master("local[3]") == Local(3)
    assert (
        Local.of_master(None) == Local.of_master("local[*]") == Local.of_master("local") == Local()
    )
    with pytest.raises(ConfigError, match="--engine local works on this machine"):
        Local.of_master("yarn")
    with engine_of(3) as engine:
        assert engine.slots == 3


COMMANDS = """
import json, sys
from pylog_spark.cli.program import run
statuses = [run(command) for command in json.loads(sys.argv[1])]
heavy = {"pyspark", "py4j", "delta"} & {name.partition(".")[0] for name in sys.modules}
sys.exit(f"imported: {sorted(heavy)}" if heavy else max(statuses))
"""


def run_without_java(folder: Path, *commands: list[object]) -> str:
    """Run commands in one process that would find no Java; return what they print."""
    done = run_to_end(
        [
            sys.executable,
            "-c",
            COMMANDS,
            json.dumps([[*map(str, command)] for command in commands]),
        ],
        cwd=folder,
        env=os.environ | {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"},
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.thorough
def test_a_night_on_this_machine_needs_no_spark_and_leaves_what_kafka_left(tmp_path):
    names = ["clean-headers-none-s101", "clean-hw-none-s161"]
    root = broker_directory(tmp_path / "log", names)
    topics = tmp_path / "topics.yaml"
    topics.write_text(yaml.safe_dump({"topics": root.configs}))
    night = ["run", root.path, "--role", "broker", "--config", topics, "--engine", "local"]
    night += ["--now-ms", FIRST_ROUNDS_MS, "--ledger", tmp_path / "ledger"]
    assert ", engine local" in run_without_java(tmp_path, night)
    assert differences_from_kafka(root.path, names, tmp_path) == []
    assert {path.name for path in (tmp_path / "ledger").iterdir()} == set(LedgerTable)


@pytest.mark.thorough
def test_what_looks_or_repairs_takes_this_machine_by_itself(tmp_path):
    """Neither a session nor the package, which takes seconds to import."""
    root, ledger = log_root(tmp_path / "log").path, tmp_path / "ledger"
    now = ["--now-ms", NOW_MS, "--output", "json"]
    answers = run_without_java(
        tmp_path,
        ["verify", root, "--deep", "--ledger", ledger, *now],
        ["survey", root, "--assume-defaults", "*", *now],
        ["doctor", root, *ONLY_BROKER, *now],
        ["explain", root, "--assume-defaults", "*", *now],
        ["ingest", root, tmp_path / "managed", "--dry-run", "--settle", "0s", "--output", "json"],
        ["compact", root, "--role", "broker", "--dry-run", "--assume-defaults", "*", *now],
        ["purge", root, "--role", "broker", "--ledger", ledger, *now],
    )
    rows = [json.loads(line) for line in answers.splitlines()]
    found = [row.get("action", row["type"]) for row in rows if row.get("engine") == "local"]
    assert found == ["verify", "survey", "diagnosis", "ingest", "compact", "purge"]
    assert not any(row.get("engine") == "spark" for row in rows)


@pytest.mark.thorough
def test_threads_of_looks_load_values_while_others_are_freed(tmp_path, hasty_threads):
    def load_some(thread: int) -> list[int]:
        numbers = []
        for number in range(100):
            file = tmp_path / f"{thread}-{number}"
            file.write_bytes(cloudpickle.dumps(number))
            numbers.append(LocalPublished(str(file)).value)
            file.unlink()
        return numbers

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(load_some, range(8))) == [list(range(100))] * 8


@pytest.mark.parametrize(
    ("slots", "tasks", "threads"), [(4, 1, 4), (4, 3, 1), (4, 9, 1), (2, 0, 2)]
)
def test_idle_slots_are_the_threads_of_the_tasks_that_run(slots, tasks, threads):
    with LocalEngine(slots) as engine:
        assert engine.threads_of(tasks) == threads


def test_work_that_outlives_its_engine_leaves_no_folder(tmp_path, monkeypatch):
    """A signal ends the run while a thread beside the main one begins a stage."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with LocalEngine(1) as engine:
        pass
    with pytest.raises(RuntimeError, match="the engine was closed"):
        engine.publish(1)
    assert list(tmp_path.iterdir()) == []


# What a Python task does beside its work.


@pytest.fixture
def thawed(monkeypatch):
    """A process as a worker begins."""
    monkeypatch.setattr(worker, "_frozen_modules", 0)
    gc.unfreeze()


def collected(things: list[list[str]]) -> bool:
    """Whether the collector looks through a list, as through all that is not kept from it."""
    return any(found is things for found in gc.get_objects())


@pytest.mark.thorough
@pytest.mark.usefixtures("thawed")
def test_what_is_imported_is_kept_from_the_collector_once():
    before: list[list[str]] = [[]]
    freeze_modules()
    assert gc.get_freeze_count() > 10_000
    after: list[list[str]] = [[]]
    freeze_modules()
    assert not collected(before)
    assert collected(after)


@pytest.mark.thorough
@pytest.mark.usefixtures("thawed")
def test_what_a_later_task_imports_is_kept_from_it_too(monkeypatch):
    freeze_modules()
    later: list[list[str]] = [[]]
    monkeypatch.setitem(sys.modules, "imported_later", later)
    freeze_modules()
    assert not collected(later)


@pytest.mark.thorough
@pytest.mark.spark
def test_every_task_does_it(spark):
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"frozen": gc.get_freeze_count()}])

    frame = map_in_arrow(spark.range(0, 2, 1, 2), work, pa.schema([("frozen", pa.int64())]))
    assert all(row.frozen > 10_000 for row in frame.collect())


# What is done with Spark after an error, and what is said of it.


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


# Processes that are killed after their task was done: it is done again, to the byte.


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


@pytest.mark.thorough
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
