"""A signal amid a Spark job: the wait ends, the job is cancelled, the error is its own."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

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
