"""SIGTERM and Ctrl-C: what ends a process at once, and what it ends itself."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.program import run_to_end

BEGIN = """
import os, signal, sys, threading
from storage_core import interruption
interruption.watch()
def ready():
    print("ready", flush=True)
def wait_for_request():
    while not interruption.is_requested():
        pass
"""


def run(code: str, *numbers: int, cwd: Path | None = None) -> tuple[int, str, str]:
    """Run a program; send it a signal each time that it has said "ready".

    Returns:
        Its exit status, the rest of its output, and what it said on standard error.
    """
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + code],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            for number in numbers:
                assert process.stdout.readline() == "ready\n"
                process.send_signal(number)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, output, errors


ENDS = [
    pytest.param(signal.SIGTERM, 143, "terminated", id="SIGTERM"),
    pytest.param(signal.SIGINT, 130, "interrupted", id="SIGINT"),
]


@pytest.mark.parametrize(("number", "status", "word"), ENDS)
def test_where_nothing_is_given_back_a_process_ends_at_once(number, status, word):
    code = "ready(); threading.Event().wait()"
    assert run(code, number) == (status, "", f"pylog: {word}\n")


def test_it_ends_while_nobody_reads_what_it_writes():
    """The system call begins again after each signal: no handler of Python's ends it."""
    code = """
reader, writer = os.pipe()
ready()
while True:
    os.write(writer, bytes(1 << 16))
"""
    assert run(code, signal.SIGTERM) == (143, "", "pylog: terminated\n")


def test_it_ends_while_nobody_reads_its_errors():
    code = """
reader, writer = os.pipe()
os.dup2(writer, 2)
os.set_blocking(2, False)
try:
    while True:
        os.write(2, bytes(1 << 16))
except BlockingIOError:
    os.set_blocking(2, True)
ready()
threading.Event().wait()
"""
    assert run(code, signal.SIGTERM) == (143, "", "")


@pytest.mark.parametrize(("number", "status", "word"), ENDS)
def test_in_a_block_the_main_thread_is_told_at_a_check(number, status, word):
    code = f"""
def other():
    wait_for_request()
    interruption.check()
    print("others go on")
thread = threading.Thread(target=other)
thread.start()
try:
    with interruption.ending_in_order():
        ready()
        thread.join()
        try:
            interruption.check()
        finally:
            print("given back")
except (KeyboardInterrupt, interruption.TerminatedError) as error:
    interruption.check()
    print(type(interruption.cause_of(OSError("a pipe is gone"))) is type(error))
sys.exit({status})
"""
    assert run(code, number) == (status, "others go on\ngiven back\nTrue\n", "")


def test_no_signal_is_raised_into_an_import(tmp_path: Path):
    """An error there would leave the import lock with somebody who is gone."""
    (tmp_path / "slow.py").write_text("import __main__ as m\nm.ready()\nm.wait_for_request()\n")
    code = """
from importlib.util import find_spec
with interruption.ending_in_order():
    import slow
    thread = threading.Thread(target=lambda: print(find_spec("slow") is not None, flush=True))
    thread.start()
    thread.join()
"""
    assert run(code, signal.SIGTERM, cwd=tmp_path) == (143, "True\n", "pylog: terminated\n")


def test_a_signal_that_was_not_heeded_ends_the_process_with_the_block():
    code = """
with interruption.ending_in_order():
    with interruption.ending_in_order():
        ready()
        wait_for_request()
    print("the outer block ends", flush=True)
print("goes on", flush=True)
"""
    assert run(code, signal.SIGTERM) == (143, "the outer block ends\n", "pylog: terminated\n")


def test_a_second_signal_does_not_wait():
    code = """
interruption._ONE_SIGNAL_SECONDS = -1.0
with interruption.ending_in_order():
    ready()
    wait_for_request()
    ready()
    threading.Event().wait()
"""
    ended = run(code, signal.SIGINT, signal.SIGTERM)
    assert ended == (130, "", "pylog: interrupted\n")


def test_one_signal_that_comes_twice_is_one():
    code = """
interruption._ONE_SIGNAL_SECONDS = 3600.0
with interruption.ending_in_order():
    ready()
    wait_for_request()
    signal.raise_signal(signal.SIGINT)
    try:
        interruption.check()
    except KeyboardInterrupt:
        print("in order")
"""
    assert run(code, signal.SIGINT) == (0, "in order\n", "")


def test_a_process_that_does_not_end_itself_is_ended(tmp_path: Path):
    code = f"""
interruption._PATIENCE_SECONDS = 0.01
folder = {str(tmp_path / "scratch")!r}
os.mkdir(folder)
file = {str(tmp_path / "file")!r}
open(file, "w").close()
with interruption.ending_in_order(), interruption.removed_at_end(folder), \\
        interruption.removed_at_end(file):
    ready()
    threading.Event().wait()
"""
    assert run(code, signal.SIGTERM) == (143, "", "pylog: terminated\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_folder_goes_that_another_process_still_fills(tmp_path: Path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    for number in range(300):
        (folder / f"old-{number}").touch()
    code = f"""
import subprocess
fill = "i=0; while [ $i -lt 200000 ] && : > {folder}/$i; do i=$((i+1)); done"
writer = subprocess.Popen(["/bin/bash", "-c", fill], stderr=subprocess.DEVNULL)
while not os.path.exists({str(folder / "100")!r}):
    pass
with interruption.removed_at_end({str(folder)!r}):
    ready()
    threading.Event().wait()
"""
    assert run(code, signal.SIGTERM) == (143, "", "pylog: terminated\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_no_thread_goes_on_in_a_folder_that_is_removed(tmp_path: Path):
    folder = tmp_path / "scratch"
    code = f"""
with interruption.removed_at_end({str(folder)!r}):
    for number in range(2000):
        os.makedirs({str(folder)!r} + "/old/" + str(number))
    ready()
    number = 0
    while True:
        # Made anew once it is gone; an error where it goes in between.
        os.makedirs({str(folder)!r} + "/" + str(number))
        os.rmdir({str(folder)!r} + "/" + str(number))
        number += 1
"""
    assert run(code, signal.SIGTERM) == (143, "", "pylog: terminated\n")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_is_ignored_stays_ignored():
    code = """
signal.raise_signal(signal.SIGINT)
# A library that takes it, as Spark does.
signal.signal(signal.SIGINT, lambda *_: None)
signal.raise_signal(signal.SIGINT)
interruption.take_signals()
signal.raise_signal(signal.SIGINT)
ready()
threading.Event().wait()
"""
    ignoring = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    with subprocess.Popen(
        [*ignoring, sys.executable, "-c", BEGIN + code], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 143
        finally:
            process.kill()


def test_signals_of_others_are_theirs():
    code = """
heard = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: heard.set())
ready()
heard.wait()
ready()
threading.Event().wait()
"""
    assert run(code, signal.SIGUSR1, signal.SIGTERM) == (143, "", "pylog: terminated\n")


def test_without_watch_nothing_is_different():
    code = """
import signal
from storage_core import interruption
# A run of tests in the background ignores it from its start.
signal.signal(signal.SIGINT, signal.default_int_handler)
with interruption.ending_in_order():
    interruption.check()
    interruption.take_signals()
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        error = OSError()
        print(interruption.cause_of(error) is error)
"""
    assert run_to_end([sys.executable, "-c", code], check=True).stdout == "True\n"
