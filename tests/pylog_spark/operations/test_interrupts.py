"""A signal amid a Spark job: the wait ends, the job is cancelled, the error is its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

# A task that says that it runs and then takes longer than anybody waits.
SCRIPT = """
import signal, sys, time
from pathlib import Path
from pylog_spark.operations.dispatch import Dispatcher
from pylog_spark.schemas import CUT, rows_to_batch
from pylog_spark.session import build_session

def work(path):
    Path(path).touch()
    time.sleep(600)
    yield rows_to_batch(CUT, [])

session = build_session("local[1]", {})
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with Dispatcher(session, tag="interrupted") as dispatcher:
        frame = dispatcher.spread([sys.argv[1]], work, CUT)
        dispatcher.collect(frame, CUT, "a long one")
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_ends_a_job_that_runs_as_an_interrupt(tmp_path):
    started = tmp_path / "started"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(started)], cwd=Path.cwd())
    try:
        limit = time.monotonic() + 120
        while not started.exists() and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.1)
        assert started.exists()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=90) == 130
    finally:
        process.kill()
