"""A run of tests that is killed leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.remaining_processes import end_marked, marked_processes

REPOSITORY = Path(__file__).resolve().parents[2]
# What a test starts says that it runs: until then Linux shows no environment of it. Both say it at
# once, so each writes its line by one call; print makes two, where Python buffers nothing.
POLITE = "import os, time; os.write(1, b'runs\\n'); time.sleep(600)"
# Deaf to a polite request, in a session of its own.
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {POLITE}"
RUN = f"""
import os, subprocess, sys, time
from tests.kit.remaining_processes import end_with_this_process
end_with_this_process()
print(os.environ["PYLOG_TEST_RUN"], flush=True)
subprocess.Popen([sys.executable, "-c", {POLITE!r}])
subprocess.Popen([sys.executable, "-c", {DEAF!r}], start_new_session=True)
time.sleep(600)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL], ids=lambda way: way.name)
def test_all_that_a_killed_run_started_ends(way):
    outer = os.environ.copy()
    outer.pop("PYLOG_TEST_RUN", None)
    with subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=REPOSITORY, env=outer, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        mark = run.stdout.readline().strip()
        try:
            assert [run.stdout.readline() for _ in range(2)] == ["runs\n"] * 2
            assert len(marked_processes(mark)) == 2
            run.send_signal(way)
            run.wait()
            deadline = time.monotonic() + 60
            while marked_processes(mark) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert not marked_processes(mark)
        finally:
            end_marked(mark)
