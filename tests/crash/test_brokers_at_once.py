"""Any process of a run is killed at any moment, and a broker comes at once: it loses nothing.

``PYLOG_LOCK_ROUNDS=200`` (``make locks``) says how many runs lose processes, ``PYLOG_LOCK_SEED``
which and when; with all tests there are few.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import yaml

from storage_core import kafka_log
from tests.crash.acknowledging_broker import CONFIG, TOPIC
from tests.crash.killed_programs import _descendants
from tests.crash.test_foreign_locks import command_of, gives_shares, is_over, wait_until
from tests.jobs.spark_programs import REPOSITORY, environment

ROUNDS = int(os.environ.get("PYLOG_LOCK_ROUNDS", "2"))
SEED = int(os.environ.get("PYLOG_LOCK_SEED", "1"))
META = "version=1\nnode.id=1\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n"

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900 + 60 * ROUNDS)]


@contextmanager
def broker(directory: Path, number: int) -> Iterator[subprocess.Popen[str]]:
    """Start a broker that waits to be told."""
    command = [sys.executable, "-m", "tests.crash.acknowledging_broker", directory, str(number)]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen[str]) -> None:
    """Have a broker go on."""
    process.stdin.write("\n")
    process.stdin.flush()


@contextmanager
def started(directory: Path, config: Path, errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a nightly on this machine; it has ended afterwards."""
    command = [sys.executable, "-m", "pylog_spark", "run", directory, "--role", "broker"]
    command += ["--engine", "local", "--master", "local[2]", "--config", config]
    with errors.open("wb") as output:
        run = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment(), stdout=output, stderr=output
        )
    try:
        yield run
    finally:
        run.kill()
        run.wait()


def keys_in(directory: Path) -> set[tuple[int, int, str]]:
    """Return partition, offset and key of every record."""
    table = kafka_log.open_logs(directory).read(TOPIC, columns=["partition", "offset", "key"])
    return {
        (row["partition"], row["offset"], row["key"].decode())
        for row in table.to_table().to_pylist()
    }


@pytest.mark.thorough
@pytest.mark.item("FLT-10", "FLT-14", "DIR-02")
def test_no_acknowledged_record_is_lost_whatever_process_is_killed(tmp_path):
    directory, config = tmp_path / "log", tmp_path / "config.yaml"
    directory.mkdir()
    (directory / "meta.properties").write_text(META)
    config.write_text(yaml.safe_dump({"topics": {TOPIC: CONFIG}}))
    chance = random.Random(SEED)
    acknowledged: set[tuple[int, int, str]] = set()
    with broker(directory, 0) as first:
        tell(first)
        acknowledged |= set(map(tuple, json.loads(first.stdout.readline())))
        first.communicate("\n")
    # How long a run lasts once it has the lock, as the last one says that was left alone.
    seconds = 1.0
    killed = 0
    for number in range(1, ROUNDS + 1):
        errors = tmp_path / f"errors-{number}"
        with broker(directory, number) as other, started(directory, config, errors) as run:
            wait_until(partial(has_lock_or_is_over, run))
            began = time.monotonic()
            tell(other)
            with suppress(subprocess.TimeoutExpired):
                run.wait(chance.random() * seconds)
            victims = kill_some(run, chance)
            killed += bool(victims)
            run.wait()
            if not victims:
                seconds = time.monotonic() - began
            new = json.loads(other.stdout.readline())
            wait_until(partial(are_over, victims))
            tell(other)
            changed = json.loads(other.stdout.readline())
        story = (SEED, number, run.returncode, errors.read_text())
        assert changed == [], story
        acknowledged |= set(map(tuple, new))
        assert acknowledged <= keys_in(directory), story
    with started(directory, config, errors) as last:
        assert last.wait() == 0, errors.read_text()
    assert acknowledged <= keys_in(directory)
    sys.stdout.write(f"{killed} of {ROUNDS} runs lost a process\n")


def kill_some(run: subprocess.Popen[bytes], chance: random.Random) -> list[int]:
    """Kill one process of a run, two or all; return all that it had, or none if it is over."""
    everybody = [run.pid, *_descendants(run.pid)]
    if run.poll() is not None:
        return []
    count = chance.choice([1, 1, 1, 2, len(everybody)])
    for victim in chance.sample(everybody, min(count, len(everybody))):
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    return everybody


def are_over(pids: list[int]) -> bool:
    """Whether no process does anything any more."""
    return all(map(is_over, pids))


def has_lock_or_is_over(run: subprocess.Popen[bytes]) -> bool:
    """Whether a run has the lock: its holder listens. Or it has ended before."""
    holders = [pid for pid in _descendants(run.pid) if "lock_holder" in command_of(pid)]
    return any(map(gives_shares, holders)) or run.poll() is not None
