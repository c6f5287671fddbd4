"""Whole nightlies, driver and workers, that stop at a change: what is left opens and is finished.

Renames, links, removals and cuts of all processes are counted as they come, in the log directory,
in the scratch files and in the trash; before one of them, or after it, everything stops at once.
Then (a) our loader and (b) Kafka's LogManager open what is left, and a consumer gets every record
that the finished night keeps, and none that was not there before it; then (c) the next nightly
ends with the bytes of one that was not stopped. ``PYLOG_CRASH_ALL=1`` (``make crash``) stops at 100
points of each of three kinds of roots, evenly spread, ``PYLOG_CRASH_NIGHTS`` says another number;
without it one of the three is stopped at two.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from storage_core.catalog.roles import Role
from storage_core.config import CleanerConfig
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from storage_core.log.log_loader import LogLoader
from storage_core.store.local import LocalStore
from storage_core.testing.compare import read_tree
from tests.crash.interruptions import ALL
from tests.crash.stopping import CONTROL
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.oracle.log_directory import consumed_records, load_log_directory
from tests.partition_views import data_records
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, BrokerDirectory, broker_directory
from tests.pylog_spark.crashed_roots import crashed_directory, logs_of
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin

COMPACTED = ["clean-headers-none-s101", "clean-emptysegments-s231"]
SWEPT = ["retain-size-s501", "retain-compact-delete-s501"]
TORN = COMPACTED[0]
POINTS = int(os.environ.get("PYLOG_CRASH_NIGHTS", "100")) if ALL else 2
LONGEST_SECONDS = 60 + 60 * POINTS

pytestmark = [
    pytest.mark.crash,
    pytest.mark.spark,
    pytest.mark.timeout(LONGEST_SECONDS, method="thread"),
]


@dataclass(frozen=True, slots=True)
class Lab:
    """Where nightlies are stopped, and over what.

    Attributes:
        folder: For everything.
        root: What the first nightly is made over, and its copies.
        role: The role of ``log`` in ``made``.
    """

    folder: Path
    root: BrokerDirectory
    role: Role

    def pairs(self) -> Iterator[dict[str, Any]]:
        """Run the program; yield what it says of the undisturbed nightly, then of each pair."""
        control, options = self.folder / "control", self.folder / "options.json"
        options.write_text(json.dumps({"role": self.role, "configs": self.root.configs}))
        (self.folder / "work").mkdir()
        arguments = [self.folder / "made", self.folder / "work", options, POINTS]
        with (
            (self.folder / "errors").open("wb") as errors,
            subprocess.Popen(
                [sys.executable, "-m", "tests.crash.stopped_nights", *map(str, arguments)],
                cwd=REPOSITORY,
                env=environment(PYTHONPATH=str(REPOSITORY), **{CONTROL: str(control)}),
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            ) as program,
        ):
            try:
                assert program.stdout is not None
                for line in program.stdout:
                    yield json.loads(line)
                program.wait(60)
            finally:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)
        assert program.returncode == 0, (self.folder / "errors").read_text()


def aged(path: Path) -> None:
    """Make a file or folder so old that it is purged."""
    os.utime(path, (FIRST_ROUNDS_MS // 1000 - 86_400 * 30,) * 2)


def broker_lab(tmp_path: Path, *, is_closed: bool) -> Lab:
    """Return a broker's directory with something to do for every step of a nightly."""
    made = tmp_path / "made"
    made.mkdir()
    names = [*COMPACTED, *SWEPT]
    if is_closed:
        root = broker_directory(made / "log", names)
        (made / "trash").mkdir()
    else:
        crashed = crashed_directory(made / "log", names)
        # Half of a batch that nobody had acknowledged.
        with logs_of(crashed.path / f"{TORN}-0")[-1].open("ab") as log:
            log.write(b"torn")
        assert crashed.facts is not None
        root = crashed.facts
    deleted = root.path / f"{COMPACTED[1]}-0" / "00000000000000000000.log.deleted"
    deleted.write_bytes(b"replaced long ago")
    aged(deleted)
    gone = root.path / "gone-0.2cbd1f3c2e4d4c1c8d1f2a3b4c5d6e7f-delete"
    shutil.copytree(root.path / f"{COMPACTED[1]}-0", gone)
    aged(gone)
    return Lab(tmp_path, root, Role.BROKER)


def managed_lab(tmp_path: Path) -> Lab:
    """Return a managed root on a local disk, of the same partitions."""
    root = broker_directory(tmp_path / "origin", [*COMPACTED, *SWEPT])
    (tmp_path / "made").mkdir()
    managed_twin(root, tmp_path / "made" / "log")
    return Lab(tmp_path, root, Role.MANAGED)


def try_all(
    lab: Lab, check_left: Callable[[Path, str], None], state: Callable[[Path], Any]
) -> None:
    """Check every pair of nightlies."""
    pairs = lab.pairs()
    undisturbed = next(pairs)
    assert undisturbed["status"] == 0, (lab.folder / "errors").read_text()
    expected = state(lab.folder / "work" / "undisturbed")
    points, tried = 2 * len(undisturbed["changes"]), 0
    for pair in pairs:
        where = f"point {pair['number']} of {points}: {pair['last']}"
        assert pair["was_stopped"], where
        check_left(Path(pair["left"]), where)
        assert pair["status"] == 0, where
        assert state(Path(pair["end"])) == expected, where
        shutil.rmtree(pair["left"])
        shutil.rmtree(pair["end"])
        tried += 1
    assert tried == min(POINTS, points)
    sys.stdout.write(f"stopped at {tried} of {points} points\n")


ONLY_ALL = pytest.mark.skipif(not ALL, reason="nightlies over two more roots: make crash")


@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.item("FLT-08", "FLT-14", "CKP-04", "DIR-03")
@pytest.mark.parametrize(
    "is_closed", [pytest.param(True, marks=ONLY_ALL), False], ids=["closed", "unclean"]
)
def test_a_night_over_a_brokers_directory_that_stops_is_finished_by_the_next(is_closed, tmp_path):
    lab = broker_lab(tmp_path, is_closed=is_closed)
    consumed = {"before": consume(lab.root.path)}

    def check_left(left: Path, where: str) -> None:
        if "after" not in consumed:
            consumed["after"] = consume(tmp_path / "work" / "undisturbed" / "log")
        check_opens(replace(lab.root, path=left / "log"), where)
        there = consume(left / "log")
        for name, kept in consumed["after"].items():
            assert is_within(kept, there[name]), f"{name} lost records at {where}"
            assert is_within(there[name], consumed["before"][name]), f"{name} at {where}"

    try_all(lab, check_left, lambda folder: broker_state(folder / "log"))


def consume(path: Path) -> dict[str, list[Any]]:
    """Return what a consumer gets of each partition, from Apache Kafka."""
    return {
        name: [(r.offset, r.timestamp, r.key, r.value) for r in records]
        for name, records in consumed_records(path, now_ms=FIRST_ROUNDS_MS).items()
    }


def is_within(some: list[Any], records: list[Any]) -> bool:
    """Whether some records are all among others."""
    return set(some) <= set(records)


def check_opens(root: BrokerDirectory, where: str) -> None:
    """Load every partition as a broker would, by what the directory says: ourselves and Kafka."""
    is_clean = (root.path / CLEAN_SHUTDOWN_FILE).exists()
    for topic in root.configs:
        LogLoader(
            LocalStore(root.path / f"{topic}-0"),
            config=root.config(topic),
            cleaner=CleanerConfig(),
            now_ms=FIRST_ROUNDS_MS,
            clean_shutdown=is_clean,
        ).load()
    loaded = load_log_directory(root.path, now_ms=FIRST_ROUNDS_MS, topics=root.configs)
    assert loaded.errors == {}, where
    assert loaded.had_clean_shutdown == is_clean, where


def broker_state(path: Path) -> dict[str, Any]:
    """Return the bytes of all partitions, the lines of the checkpoints, and the marker."""
    return {
        entry.name: read_tree(entry) if entry.is_dir() else sorted(entry.read_text().splitlines())
        for entry in sorted(path.iterdir())
        if entry.name != ".lock"
    }


@ONLY_ALL
@pytest.mark.item("FLT-08", "FLT-14")
def test_a_night_over_a_managed_root_that_stops_is_finished_by_the_next(tmp_path):
    lab = managed_lab(tmp_path)
    topics = list(lab.root.configs)

    def twin(folder: Path) -> ManagedTwin:
        return ManagedTwin(str(folder / "log"), lab.root)

    def records(folder: Path) -> dict[str, list[Any]]:
        return {topic: in_records(twin(folder).tree(topic), tmp_path / "tree") for topic in topics}

    def state(folder: Path) -> dict[str, Any]:
        root = twin(folder)
        return {topic: (root.tree(topic), root.store(topic).checkpoints) for topic in topics}

    before = records(tmp_path / "made")
    after: dict[str, list[Any]] = {}

    def check_left(left: Path, where: str) -> None:
        if not after:
            after.update(records(tmp_path / "work" / "undisturbed"))
        there = records(left)
        for topic in topics:
            assert is_within(after[topic], there[topic]), f"{topic} lost records at {where}"
            assert is_within(there[topic], before[topic]), f"{topic} at {where}"

    try_all(lab, check_left, state)


def in_records(tree: dict[str, bytes], folder: Path) -> list[Any]:
    """Return the data records of a partition's files."""
    folder.mkdir()
    for name, content in tree.items():
        (folder / name).write_bytes(content)
    found = [(r.offset, r.timestamp, r.key, r.value) for r in data_records(folder)]
    shutil.rmtree(folder)
    return found
