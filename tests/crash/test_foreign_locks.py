"""No change under somebody else's lock: processes of a run are killed or stand still amid a commit.

A task is stopped when it is about to commit, or has begun to. Then processes of the run are killed,
and another one takes the lock as a broker does, as soon as the kernel gives it. From there on no
file of the directory may change, whatever goes on again. ``PYLOG_CRASH_ALL=1`` (``make crash``)
asks for every case, a run of all tests for some.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from storage_core.clock import SystemClock
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, CLEANER_FILE
from tests.crash.killed_programs import _descendants
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.crashed_roots import NOW_MS, crashed_directory, forget_high_watermarks, tear

ALL = bool(os.environ.get("PYLOG_CRASH_ALL"))
LONGEST_SECONDS = 600
# A flag of a socket in /proc/net/unix, from Linux's include/linux/net.h.
LISTENS = 1 << 16
CLEANED = ["clean-everything-none-s101-1", "clean-group-all-s211"]
RETAINED = ["retain-both-s501", "retain-size-s501"]

pytestmark = pytest.mark.crash


def wait_until(holds: Callable[[], object]) -> None:
    """Return when something holds; fail after a while."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def command_of(pid: int) -> str:
    """Return the command line of a process, nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def state_of(pid: int) -> str:
    """Return the letter of a process's state; X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_over(pid: int) -> bool:
    """Whether a process does nothing any more."""
    return state_of(pid) in {"X", "Z"}


class Taker:
    """Another process that wants the lock."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.lock_taker", directory],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.has_lock = False

    def ask(self) -> str:
        """Have it answer once."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def tries(self) -> bool:
        """Have it try to take the lock; return whether it has it."""
        self.has_lock = self.has_lock or self.ask() == "taken"
        return self.has_lock

    def changes(self) -> list[str]:
        """Return which files others have changed since it has the lock."""
        assert self.has_lock
        return json.loads(self.ask())

    def end(self) -> None:
        """Let it end, which gives the lock back."""
        self._process.communicate("")


@pytest.fixture
def taking() -> Iterator[Callable[[Path], Taker]]:
    """Return what starts a taker; it ends with the test."""
    with ExitStack() as ended:

        def start(directory: Path) -> Taker:
            taker = Taker(directory)
            ended.callback(taker.end)
            return taker

        yield start


@dataclass(frozen=True, slots=True)
class Run:
    """A run whose task is paused."""

    driver: subprocess.Popen[bytes]
    task: int  # process of the task; the driver's where it does it itself
    folder: Path  # what it waits in
    errors: Path  # what it complains to

    def child(self, word: str) -> int:
        """Return its process that has a word in its command."""
        # Its forks have the same; they come behind it.
        found, *_ = [pid for pid in _descendants(self.driver.pid) if word in command_of(pid)]
        return found

    def kill(self, *pids: int) -> None:
        """Kill processes, and wait until they are gone."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        if self.driver.pid in pids:
            self.driver.wait()
        wait_until(lambda: all(map(is_over, pids)))

    def go(self) -> None:
        """Let the task go on."""
        (self.folder / "go").touch()
        with suppress(ProcessLookupError):
            os.kill(self.task, signal.SIGCONT)


@contextmanager
def paused(arguments: Sequence[object], folder: Path, how: str) -> Iterator[Run]:
    """Start ``pylog`` and wait until a task of it is paused; end all of it afterwards."""
    folder.mkdir()
    errors = folder / "errors"
    with errors.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.paused_program", folder, how, *map(str, arguments)],
            cwd=REPOSITORY,
            env=environment(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    everybody = [driver.pid]
    try:
        wait_until(lambda: (folder / "paused").exists() or driver.poll() is not None)
        assert driver.poll() is None, errors.read_text()
        task = int((folder / "paused").read_text())
        everybody += _descendants(driver.pid)
        wait_until(lambda: not how.startswith("stop") or state_of(task) == "T")
        yield Run(driver, task, folder, errors)
    finally:
        for pid in everybody:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        driver.wait()


def gives_shares(holder: int) -> bool:
    """Whether the holder of a lock gives out shares: from when it has it to the end of its run."""
    own = set()
    with suppress(OSError):
        for link in Path(f"/proc/{holder}/fd").iterdir():
            with suppress(OSError):
                own.add(str(link.readlink()))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    listening = {f"socket:[{fields[6]}]" for fields in lines if int(fields[3], 16) & LISTENS}
    return bool(own & listening)


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[[str], tuple[Path, list[object]]]:
    """Return what makes a directory in which an operation has something to do, and the command."""

    def prepare(operation: str) -> tuple[Path, list[object]]:
        directory, trash = tmp_path / "log", tmp_path / "trash"
        now_ms, options = FIRST_ROUNDS_MS, []
        if operation == "recover":
            made = crashed_directory(directory, CLEANED)
            forget_high_watermarks(directory)
            for partition in made.partitions():
                tear(partition)
            configs, now_ms = made.facts.configs, NOW_MS
        elif operation == "retain":
            configs = broker_directory(directory, RETAINED).configs
            options = ["--max-delete-ratio", "1", "--override", "CLOCK_PAST_RETENTION"]
        else:
            configs = broker_directory(directory, CLEANED).configs
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump({"topics": configs}))
        common = ["--role", "broker", "--now-ms", now_ms, "--config", config]
        if operation == "undo":
            done = run_pylog("compact", directory, *common, "--trash", trash)
            run_id = json.loads(done.splitlines()[-1])["run_id"]
            return directory, ["undo", run_id, "--trash", trash, "--config", config]
        if operation == "purge":
            for name in ("00000000000000000000.log.deleted", "00000000000000000001.log.deleted"):
                (directory / f"{CLEANED[0]}-0" / name).write_bytes(b"gone")
            common[3] = SystemClock().now_ms() + 10**9
        return directory, [operation, directory, *common, *options]

    return prepare


def run_pylog(*arguments: object) -> str:
    """Run a whole command on this machine; return its output, JSON a line."""
    command = [sys.executable, "-m", "pylog_spark", *map(str, arguments)]
    command += ["--engine", "local", "--output", "json"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def place_of(engine: str) -> list[str]:
    """Return the options that choose an engine."""
    return ["--engine", engine, "--master", "local[2]"]


def finish(run: Run, taker: Taker, others: Sequence[int] = ()) -> list[str]:
    """Let all go on that is left, and return what they changed under the other's lock."""
    run.go()
    wait_until(lambda: is_over(run.task) or not is_paused(run.task))
    wait_until(taker.tries)
    for pid in others:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: all(map(is_over, [run.driver.pid, run.task, *others])))
    return taker.changes()


def is_paused(pid: int) -> bool:
    return state_of(pid) == "T"


def sampled(*cases: tuple[str, ...]) -> list[object]:
    """Return cases as parameters; those behind a plus only with all of them."""
    return [
        pytest.param(*case, id="-".join(case)) for *case, when in cases if ALL or when == "always"
    ]


EVERYBODY = sampled(
    ("local", "recover", "wait", "always"),
    ("local", "compact", "wait", "all"),
    ("local", "compact", "wait-amid", "all"),
    ("local", "retain", "wait", "all"),
    ("local", "retain", "wait-amid", "all"),
    ("local", "undo", "wait", "all"),
    ("local", "purge", "wait", "all"),
    ("spark", "recover", "stop", "all"),
    ("spark", "compact", "stop", "always"),
    ("spark", "retain", "stop-amid", "all"),
)


@pytest.mark.thorough
@pytest.mark.item("FLT-10", "DIR-02")
@pytest.mark.parametrize(("engine", "operation", "how"), EVERYBODY)
def test_a_task_that_stands_still_changes_nothing_when_all_others_are_killed(
    prepared, taking, tmp_path, engine, operation, how
):
    directory, command = prepared(operation)
    taker = taking(directory)
    with paused([*command, *place_of(engine)], tmp_path / "run", how) as run:
        holder = run.child("lock_holder")
        others = [
            pid
            for pid in _descendants(run.driver.pid)
            if pid not in {run.task, holder} and "daemon" not in command_of(pid)
        ]
        run.kill(run.driver.pid, *others)
        wait_until(lambda: taker.tries() or not gives_shares(holder))
        if not is_over(run.task):
            assert not taker.tries() or not is_paused(run.task)
        assert finish(run, taker) == []


HOLDER = sampled(
    ("local", "recover", "wait", "all"),
    ("local", "compact", "wait", "always"),
    ("local", "compact", "wait-amid", "all"),
    ("local", "retain", "wait", "all"),
    ("local", "undo", "wait", "always"),
    ("local", "purge", "wait", "always"),
    ("spark", "recover", "wait", "all"),
    ("spark", "compact", "wait-amid", "all"),
    ("spark", "retain", "wait", "all"),
)


@pytest.mark.thorough
@pytest.mark.item("FLT-10", "DIR-02")
@pytest.mark.parametrize(("engine", "operation", "how"), HOLDER)
def test_a_run_whose_lock_holder_is_killed_says_so_and_writes_nothing_under_anothers_lock(
    prepared, taking, tmp_path, engine, operation, how
):
    directory, command = prepared(operation)
    taker = taking(directory)
    with paused([*command, *place_of(engine)], tmp_path / "run", how) as run:
        cleaner_points = (directory / CLEANER_FILE).read_bytes()
        run.kill(run.child("lock_holder"))
        taker.tries()
        assert finish(run, taker) == []
        assert run.driver.wait() == 3, run.errors.read_text()
        assert "LOCK_LOST" in run.errors.read_text()
    assert (directory / CLEANER_FILE).read_bytes() == cleaner_points
    assert operation == "purge" or not (directory / CLEAN_SHUTDOWN_FILE).exists()


TEMPLATE = sampled(
    ("compact", "wait", "always"),
    ("recover", "wait", "all"),
    ("retain", "wait-amid", "all"),
)


@pytest.mark.thorough
@pytest.mark.item("FLT-10", "DIR-02")
@pytest.mark.parametrize(("operation", "how"), TEMPLATE)
def test_a_worker_whose_template_is_killed_ends_with_it(prepared, taking, tmp_path, operation, how):
    directory, command = prepared(operation)
    taker = taking(directory)
    with paused([*command, *place_of("local")], tmp_path / "run", how) as run:
        run.kill(run.child("serve_forks"))
        wait_until(lambda: is_over(run.task) or run.driver.poll() is not None)
        wait_until(lambda: taker.tries() or run.driver.poll() is not None)
        assert finish(run, taker) == []
        assert is_over(run.task)


@pytest.mark.spark
@pytest.mark.item("FLT-10", "DIR-02")
@pytest.mark.parametrize(
    ("operation", "how"), sampled(("compact", "wait", "all"), ("retain", "wait-amid", "all"))
)
def test_a_task_of_a_jvm_that_stands_still_changes_nothing_when_the_driver_is_killed(
    prepared, taking, tmp_path, operation, how
):
    directory, command = prepared(operation)
    taker = taking(directory)
    with paused([*command, *place_of("spark")], tmp_path / "run", how) as run:
        holder, jvm = run.child("lock_holder"), run.child("org.apache.spark.deploy.SparkSubmit")
        os.kill(jvm, signal.SIGSTOP)
        run.kill(run.driver.pid)
        wait_until(lambda: taker.tries() or not gives_shares(holder))
        assert finish(run, taker, [jvm]) == []
