"""Signals that wait for the end of a block.

A process of its own raises them: in that of the tests Polars, Spark and a JVM have handlers, too.
"""

import json
import sys

import pytest

from tests.kit.program import run_to_end

# Prints what happened in each situation, in order. A run of tests in the background ignores Ctrl-C
# from its start.
PROGRAM = """
import json, signal, threading
from pylog_spark.session import held_signals

def stop(*_):
    raise SystemExit(143)

def handle_signals():
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.default_int_handler)

def in_a_block(number, times=1):
    steps = []
    try:
        with held_signals():
            for _ in range(times):
                signal.raise_signal(number)
                steps.append("went on")
    except BaseException as error:
        steps.append(type(error).__name__)
    return steps

happened = {}
handle_signals()
for name, number in (("Ctrl-C", signal.SIGINT), ("SIGTERM", signal.SIGTERM)):
    happened[name] = in_a_block(number)
    try:
        signal.raise_signal(number)
    except BaseException as error:
        happened[name].append(type(error).__name__)
happened["a second one"] = in_a_block(signal.SIGINT, 2)

told = happened["the block's own handler"] = []
with held_signals():
    signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda number, _: told.append(number))

signal.signal(signal.SIGINT, signal.SIG_IGN)
happened["ignored"] = [*in_a_block(signal.SIGINT), signal.getsignal(signal.SIGINT).name]

handle_signals()
ended = happened["another thread"] = []
def enter():
    with held_signals():
        ended.append("ended")
thread = threading.Thread(target=enter)
thread.start()
thread.join()
print(json.dumps(happened))
"""
EXPECTED = {
    "Ctrl-C": ["went on", "KeyboardInterrupt", "KeyboardInterrupt"],
    "SIGTERM": ["went on", "SystemExit", "SystemExit"],
    "a second one": ["went on", "KeyboardInterrupt"],  # it does not wait
    "the block's own handler": [2],  # it stays, and is told
    "ignored": ["went on", "SIG_IGN"],
    "another thread": ["ended"],
}


@pytest.fixture(scope="module")
def happened() -> dict[str, list[object]]:
    return json.loads(run_to_end([sys.executable, "-c", PROGRAM], check=True).stdout)


@pytest.mark.parametrize("situation", EXPECTED)
def test_a_signal_waits_for_the_end_of_the_block(happened, situation):
    assert happened[situation] == EXPECTED[situation]
