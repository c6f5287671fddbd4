"""A signal amid a Spark job: the wait ends, the job is cancelled, the error is its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pylog_spark.discovery import LogRoot
from pylog_spark.options import JobOptions
from pylog_spark.run.job import new_job
from pylog_spark.run.run import Run
from pylog_spark.schemas import CutRow
from storage_core.catalog.roles import Role
from storage_core.clock import ManualClock
from storage_core.errors import StorageError
from storage_core.filenames import LOCK_FILE
from tests.jobs.spark_programs import REPOSITORY, environment

pytestmark = pytest.mark.spark

# A task that says that it runs and then takes longer than anybody waits.
SCRIPT = """
import signal, sys, time
from pathlib import Path
from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.schemas import CutRow
from pylog_spark.session import build_session
from tests.kit.spark_classes import FEW_ROWS

def work(path):
    Path(path).touch()
    time.sleep(600)
    yield from ()

session = build_session("local[1]", FEW_ROWS, delta=False)
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with SparkEngine(session, tag="interrupted") as engine:
        list(engine.ask([sys.argv[1]], work, CutRow, "a long one"))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.thorough
def test_ctrl_c_ends_a_job_that_runs_as_an_interrupt(tmp_path):
    started = tmp_path / "started"
    command = [sys.executable, "-c", SCRIPT, str(started)]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment())
    try:
        limit = time.monotonic() + 120
        while not started.exists() and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.1)
        assert started.exists()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=90) == 130
    finally:
        process.kill()


@pytest.mark.thorough
def test_ctrl_c_while_spark_starts_leaves_no_jvm_behind(tmp_path):
    """A JVM without an owner would keep the pipe open: nobody would read its end."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "meta.properties").touch()
    command = [sys.executable, "-m", "pylog_spark", "verify", tmp_path / "log"]
    command += ["--engine", "spark"]
    process = subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        limit = time.monotonic() + 60
        while not is_spark_starting(children) and time.monotonic() < limit:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        # The JVM, if it is still there, is of this group too.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert "pylog: interrupted" in said
    assert "Traceback" not in said


def is_spark_starting(children: Path) -> bool:
    """Whether one of some processes is Spark's launcher, or what became of it."""
    commands = [Path(f"/proc/{child}/cmdline") for child in children.read_text().split()]
    with suppress(OSError):
        return any(b"spark" in command.read_bytes() for command in commands)
    return False


NOW_MS = 1_700_000_000_000


def work_on(folder: str, unit: int, *, is_failing: bool) -> Iterator[CutRow]:
    """Show that a task works; one of two fails once both do, or works on as the other."""
    beat = Path(folder, str(unit))
    beat.touch()
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if is_failing and unit and Path(folder, "0").exists():
            raise ValueError("a task fails")
        beat.write_text(str(time.monotonic()))
        time.sleep(0.01)
    yield from ()


def wait_for_both(folder: Path) -> None:
    limit = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2 and time.monotonic() < limit:
        time.sleep(0.02)
    assert len(list(folder.iterdir())) == 2


def fail_beside_tasks(run: Run, folder: Path) -> None:
    """Fail as a driver does whose own disk is full, while its tasks work."""
    stage = run.engine.alongside(partial(fail_in_a_task, run, folder, is_failing=False))
    wait_for_both(folder)
    assert not stage.done()
    raise StorageError("plan.json", "No space left on device")


def fail_in_a_task(run: Run, folder: Path, *, is_failing: bool = True) -> None:
    work = partial(work_on, str(folder), is_failing=is_failing)
    list(run.engine.ask([0, 1], work, CutRow, "work"))


def fail_holding(run: Run, look: Callable[[], None], fail: Callable[[], None]) -> None:
    run.hold_roots()
    run.held.callback(look)  # before the lock is given back
    fail()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("fail", "said"),
    [(fail_beside_tasks, "No space left"), (fail_in_a_task, "a task fails")],
    ids=["driver", "task"],
)
def test_no_task_works_where_a_failed_run_has_given_back_its_locks(
    spark, tmp_path, fail: Callable[[Run, Path], None], said: str
):
    directory, folder = tmp_path / "log", tmp_path / "beats"
    directory.mkdir()
    folder.mkdir()
    root = LogRoot(location=str(directory), role=Role.BROKER, is_said=True)
    options = JobOptions(now_ms=NOW_MS, now_is_said=True, role=Role.BROKER)
    run = Run(spark, new_job("compact", [root], options, clock=ManualClock(NOW_MS)))
    beats: list[dict[str, str]] = []

    def look() -> None:
        assert (directory / LOCK_FILE).exists()
        beats.append({path.name: path.read_text() for path in folder.iterdir()})

    with pytest.raises(Exception, match=said), run:
        fail_holding(run, look, partial(fail, run, folder))
    assert not (directory / LOCK_FILE).exists()
    time.sleep(0.5)
    assert beats == [{path.name: path.read_text() for path in folder.iterdir()}]
