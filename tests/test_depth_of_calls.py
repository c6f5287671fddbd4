"""How many of our functions are on the way of a compaction, for whoever reads or debugs it.

From ``__main__`` to where the process waits for the tasks that change files, and from such a task
to the rename that the kernel is asked for. Frames of typer, click and Python are not counted. A
function that only calls another one lengthens both; where a number rises, look whether it has to.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.golden_broker import broker_origin, unpack_broker

REPOSITORY = Path(__file__).resolve().parents[1]
OURS = tuple(f"{REPOSITORY / package}{os.sep}" for package in ("pylog_spark", "storage_core"))
# Three start the program, three are typer's, two the command's, three the operation's, five bring a
# wave to its last stage, two ask the engine.
MOST_TO_A_TASK = 18
MOST_TO_THE_RENAME = 8
# Noted is the stack wherever a thread waits for a stage, and at each rename, also in the processes
# of tasks: these import this module as they do all that tasks need.
PROBE = """
import json, runpy, sys
from pathlib import Path
from pylog_spark.engines import local_engine

STACKS = Path(__file__).with_suffix(".jsonl")

def note(kind):
    frame, stack = sys._getframe(2), []
    while frame is not None:
        stack.insert(0, (frame.f_code.co_filename, frame.f_code.co_qualname))
        frame = frame.f_back
    with STACKS.open("a") as file:
        file.write(json.dumps([kind, stack]) + "\\n")

def wait_for(self, outcome, plain=local_engine.LocalEngine.wait_for):
    note("wait")
    return plain(self, outcome)

def modules_of_tasks(plain=local_engine.modules_of_tasks):
    return [*plain(), "probe"]

sys.addaudithook(lambda event, _: note("rename") if event == "os.rename" else None)
if __name__ == "__main__":
    local_engine.LocalEngine.wait_for = wait_for
    local_engine.modules_of_tasks = modules_of_tasks
    runpy.run_module("pylog_spark", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def stacks(tmp_path_factory) -> list[tuple[str, list[str]]]:
    """Our functions on each stack that was noted, outermost first, with what it was noted at."""
    folder = tmp_path_factory.mktemp("depth")
    root = unpack_broker(folder / "log")
    probe = folder / "probe.py"
    probe.write_text(PROBE)
    clock = int(broker_origin()["clock_ms"]) + 3_600_000
    words = f"compact {root} --role broker --now-ms {clock} --engine local --topics user-profiles"
    subprocess.run(
        [sys.executable, probe, *words.split()],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    noted = map(json.loads, probe.with_suffix(".jsonl").read_text().splitlines())
    return [(kind, list(our_functions(stack))) for kind, stack in noted]


def our_functions(stack: list[tuple[str, str]]) -> Iterator[str]:
    for file, name in stack:
        if file.startswith(OURS):
            yield f"{Path(file).relative_to(REPOSITORY)} {name}"


@pytest.mark.thorough
def test_the_way_from_the_program_to_a_task_is_short(stacks):
    ways = [way for kind, way in stacks if kind == "wait" and "run/waves.py" in " ".join(way)]
    longest = max((way for way in ways if way[0].startswith("pylog_spark/__main__.py")), key=len)
    assert len(longest) <= MOST_TO_A_TASK, "\n".join(longest)


@pytest.mark.thorough
def test_the_way_from_a_task_to_the_rename_of_its_commit_is_short(stacks):
    ways = [
        way[next(n for n, name in enumerate(way) if "compact/task.py" in name) :]
        for kind, way in stacks
        if kind == "rename" and "commit/executor.py" in " ".join(way)
    ]
    longest = max(ways, key=len)
    assert len(longest) <= MOST_TO_THE_RENAME, "\n".join(longest)
