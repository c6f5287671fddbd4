"""Whole nightlies, driver and workers, that stop at a change: what is left opens and is finished.

Renames, links, removals and cuts of all processes are counted as they come, in the log directory,
in the scratch files and in the trash; before one of them, or after it, everything stops at once.
Then (a) our loader and (b) Kafka's LogManager open what is left, and a consumer gets every record
that the finished night keeps, and none that was not there before it; then (c) the next nightly
ends with the bytes of one that was not stopped.

Between the two nightlies comes nobody; or a broker that loads every log, acknowledges some records
and is killed before its first checkpoint; or a person who recovers some partitions by hand. After
the last two there is no twin to compare bytes with: then a consumer gets what it gets after a night
that was not stopped, and what the broker has acknowledged.

Nightlies are stopped in two ways. Processes are killed: at three points of one root, a visitor at
each; ``PYLOG_CRASH_ALL=1`` (``make crash``): at 100 of each of three roots, all visitors at each;
``PYLOG_CRASH_NIGHTS`` says another number. Or one nightly runs to its end on a disk that is kept
before and after each of its changes, and each of the states that the disk had comes back for each
visitor: ``PYLOG_NIGHTS=1/1`` (``make nights``).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from storage_core.catalog.roles import Role
from storage_core.config import CleanerConfig
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, LOG_START_FILE, TopicPartition
from storage_core.log.log_loader import LogLoader
from storage_core.store.local import LocalStore
from tests.crash.disk_images import ImagedDisk, can_mount
from tests.crash.interruptions import ALL
from tests.crash.stopping import CONTROL
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.kit.compare import read_tree
from tests.kit.faulty_store import NEVER
from tests.kit.one_partition import recover_partition
from tests.kit.partition_views import data_records
from tests.oracle.log_directory import consumed_records, load_and_die, load_log_directory
from tests.oracle.records import NewBatch, NewRecord
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    BrokerDirectory,
    broker_directory,
    read_points,
)
from tests.pylog_spark.crashed_roots import crashed_directory, logs_of
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin

COMPACTED = ["clean-headers-none-s101", "clean-emptysegments-s231"]
# Works on the root in a folder, and returns what checks it once the next nightly has ended.
Visit = Callable[[Path, str], Callable[[], None]]
SWEPT = ["retain-size-s501", "retain-compact-delete-s501"]
TORN = COMPACTED[0]
NOBODY, BROKER, PERSON = "nobody", "broker", "person"
VISITORS = [NOBODY, BROKER, PERSON]
POINTS = int(os.environ.get("PYLOG_CRASH_NIGHTS", "100")) if ALL else len(VISITORS)
LONGEST_SECONDS = 60 + 60 * POINTS * (len(VISITORS) if ALL else 1)
# Which part of all states of the disk, of how many parts.
NIGHTS = os.environ.get("PYLOG_NIGHTS", "")
PART, PARTS = map(int, NIGHTS.split("/")) if NIGHTS else (1, 1)

pytestmark = [
    pytest.mark.crash,
    pytest.mark.spark,
    pytest.mark.timeout(6 * 3600 if NIGHTS else LONGEST_SECONDS, method="thread"),
]
ONLY_ALL = pytest.mark.skipif(not ALL, reason="nightlies over two more roots: make crash")
ONLY_NIGHTS = [
    pytest.mark.skipif(not NIGHTS, reason="every state of the disk of a nightly: make nights"),
    pytest.mark.skipif(not can_mount(), reason="mounting images of a disk needs root"),
]


@dataclass(frozen=True, slots=True)
class Lab:
    """Where nightlies are stopped, and over what."""

    # For everything; ``made`` in it is what the first nightly gets, ``log`` in that the root
    folder: Path
    root: BrokerDirectory  # what it is made of
    role: Role  # the role of the root
    visitors: Sequence[str] = (NOBODY,)  # who comes between two nightlies

    @property
    def made(self) -> Path:
        return self.folder / "made"

    @property
    def undisturbed(self) -> Path:
        """What a nightly that was not stopped has left, once there was one."""
        return self.folder / "undisturbed"


@dataclass(frozen=True, slots=True)
class Stop:
    """What a nightly that stopped has left."""

    number: int  # of the change: twice that, one more if it stopped after it
    change: list[str]  # what was changed last or next, if anything
    visitor: str  # who comes now
    end: Path  # the folder that it has left
    left: Path | None  # a copy of it; None where it was looked at before


@dataclass(frozen=True, slots=True)
class Night:
    """What became of a nightly."""

    status: int | None  # its exit status, None if it was stopped
    changes: list[str]  # what it has changed, and where, in order
    kept: list[str]  # the images of the disk that were kept, by the numbers of their points


class Nights:
    """Nightlies of a program with a session of its own.

    Args:
        program: See ``stopped_nights.py``.
    """

    def __init__(self, program: "subprocess.Popen[str]", errors: Path) -> None:
        self._program = program
        self._errors = errors

    def run(
        self,
        folder: Path,
        *,
        stop_at: int = NEVER,
        images: Path | None = None,
        is_spread: bool = False,
    ) -> Night:
        """Run one over ``log`` in a folder."""
        asked = {
            "folder": str(folder),
            "stop_at": stop_at,
            "images": images and str(images),
            "is_spread": is_spread,
        }
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps(asked) + "\n")
        self._program.stdin.flush()
        answer = self._program.stdout.readline()
        assert answer, self._errors.read_text()
        return Night(**json.loads(answer))

    def run_undisturbed(self, folder: Path, *, images: Path | None = None) -> Night:
        """Run one to its end that is spread over the workers, as those that are stopped."""
        night = self.run(folder, images=images, is_spread=True)
        assert night.status == 0, self._errors.read_text()
        return night


@contextmanager
def nights_of(lab: Lab) -> Iterator[Nights]:
    """Start the program, and end it."""
    options = json.dumps({"role": lab.role, "configs": lab.root.configs})
    errors = lab.folder / "errors"
    with (
        errors.open("wb") as written,
        subprocess.Popen(
            [sys.executable, "-m", "tests.crash.stopped_nights", options],
            cwd=REPOSITORY,
            env=environment(PYTHONPATH=str(REPOSITORY), **{CONTROL: str(lab.folder / "control")}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            start_new_session=True,
        ) as program,
    ):
        try:
            yield Nights(program, errors)
            assert program.stdin is not None
            program.stdin.close()
            program.wait(60)
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == 0, errors.read_text()


def killed(lab: Lab, nights: Nights) -> Iterator[Stop]:
    """Stop a nightly at some points, evenly spread, for each visitor anew.

    In a copy of what it left no file would be the one that it left. Without ``ALL`` the visitors
    take turns.
    """
    shutil.copytree(lab.made, lab.undisturbed)
    points = 2 * len(nights.run_undisturbed(lab.undisturbed).changes)
    # Odd, so that changes are stopped before they are made as often as after.
    stride = max(1, (points // POINTS - 1) | 1)
    chosen = range(stride // 2, points, stride)[:POINTS]
    assert len(chosen) == min(POINTS, points)
    for turn, number in enumerate(chosen):
        for visitor in lab.visitors if ALL else [lab.visitors[turn % len(lab.visitors)]]:
            end, left = (lab.folder / f"{what}-{number}-{visitor}" for what in ("end", "left"))
            shutil.copytree(lab.made, end)
            stopped = nights.run(end, stop_at=number, is_spread=True)
            assert stopped.status is None, f"not stopped at {number} of {points}"
            shutil.copytree(end, left)
            yield Stop(number, stopped.changes[-1:], visitor, end, left)
            shutil.rmtree(left)
            shutil.rmtree(end)


def imaged(lab: Lab, nights: Nights) -> Iterator[Stop]:
    """Bring back, for each visitor, each state that the disk had at the changes of one nightly."""
    with ImagedDisk.made(lab.folder / "images", lab.folder / "end") as disk:
        shutil.copytree(lab.made, disk.path, dirs_exist_ok=True)
        night = nights.run_undisturbed(disk.path, images=disk.images)
        assert len(night.kept) == 2 * len(night.changes)
        shutil.copytree(disk.path, lab.undisturbed)
        # The first point of each state.
        points = {state: number for number, state in reversed(list(enumerate(night.kept)))}
        states = sorted(points, key=points.__getitem__)
        note(f"{len(night.changes)} changes, {len(states)} states; part {PART} of {PARTS}")
        for state in states[PART - 1 :: PARTS]:
            number = points[state]
            change = night.changes[number // 2 : number // 2 + 1]
            for turn, visitor in enumerate(lab.visitors):
                disk.restore(state)
                left = None
                if turn == 0:
                    left = lab.folder / "left"
                    shutil.copytree(disk.path, left)
                yield Stop(number, change, visitor, disk.path, left)
                if left is not None:
                    shutil.rmtree(left)


def note(text: str) -> None:
    """Print a line at once: this takes hours."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


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
    return Lab(tmp_path, root, Role.BROKER, VISITORS)


def managed_lab(tmp_path: Path) -> Lab:
    """Return a managed root on a local disk, of the same partitions."""
    root = broker_directory(tmp_path / "origin", [*COMPACTED, *SWEPT])
    (tmp_path / "made").mkdir()
    managed_twin(root, tmp_path / "made" / "log")
    return Lab(tmp_path, root, Role.MANAGED)


def try_all(
    lab: Lab,
    stops: Callable[[Lab, Nights], Iterator[Stop]],
    check_left: Callable[[Path, str], None],
    state: Callable[[Path], Any],
    visits: Mapping[str, Visit],
) -> None:
    """Check every pair of nightlies; the first ten failures are told together.

    Args:
        stops: How the first of each pair is stopped.
        check_left: Checks what a stopped nightly has left.
        state: What the next one, if nobody comes between, ends with.
        visits: What others do between the two, by their names; what they return checks what the
            next nightly ends with.
    """
    tried = Counter[str]()
    failures: list[str] = []
    expected = None
    with nights_of(lab) as nights:
        for stop in stops(lab, nights):
            where = f"point {stop.number}, {stop.change}, then {stop.visitor}"
            try:
                if stop.left is not None:
                    check_left(stop.left, where)
                check_end = (
                    visits[stop.visitor](stop.end, where) if stop.visitor in visits else None
                )
                assert nights.run(stop.end).status == 0, where
                if check_end is None:
                    expected = expected or state(lab.undisturbed)
                    assert state(stop.end) == expected, where
                else:
                    check_end()
            except Exception:  # noqa: BLE001 - told below
                failures.append(f"{where}\n{traceback.format_exc()}")
                note(failures[-1])
                if len(failures) == 10:
                    break
            tried[stop.visitor] += 1
            if tried.total() % 100 == 0:
                note(f"{dict(tried)}, {len(failures)} failed")
    assert not failures, "\n".join(failures)
    assert set(tried) == set(lab.visitors)
    note(f"stopped at {tried[NOBODY]} points; in all {dict(tried)}")


@pytest.mark.thorough
@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.item("FLT-08", "FLT-14", "CKP-04", "DIR-03")
@pytest.mark.parametrize(
    ("is_closed", "stops"),
    [
        pytest.param(True, killed, marks=ONLY_ALL, id="closed-killed"),
        pytest.param(False, killed, id="unclean-killed"),
        pytest.param(True, imaged, marks=ONLY_NIGHTS, id="closed-imaged"),
        pytest.param(False, imaged, marks=ONLY_NIGHTS, id="unclean-imaged"),
    ],
)
def test_a_night_over_a_brokers_directory_that_stops_is_finished_by_the_next(
    is_closed, stops, tmp_path
):
    lab = broker_lab(tmp_path, is_closed=is_closed)
    consumers = Consumers(lab)
    visits = {BROKER: consumers.broker, PERSON: consumers.person}
    try_all(lab, stops, consumers.check_left, lambda folder: broker_state(folder / "log"), visits)


class Consumers:
    """What consumers of a broker's directory are owed, whoever works on it.

    Args:
        lab: The directory as it is before the first nightly.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._before = consume(lab.root.path)

    @cached_property
    def _after(self) -> dict[str, list[Any]]:
        """What they get after a nightly that was not stopped."""
        return consume(self._lab.undisturbed / "log")

    def check_left(self, left: Path, where: str) -> None:
        """Check what a stopped nightly left."""
        check_opens(replace(self._lab.root, path=left / "log"), where)
        there = consume(left / "log")
        for name, kept in self._after.items():
            assert is_within(kept, there[name]), f"{name} lost records at {where}"
            assert is_within(there[name], self._before[name]), f"{name} at {where}"

    def broker(self, end: Path, where: str) -> Callable[[], None]:
        """Let a broker load the logs, acknowledge records and die; return what has to hold then."""
        batches = {f"{topic}-0": self._batch_for(f"{topic}-0") for topic in COMPACTED}
        load_and_die(
            end / "log", now_ms=FIRST_ROUNDS_MS, topics=self._lab.root.configs, batches=batches
        )
        visited = consume(end / "log")

        def check() -> None:
            there = consume(end / "log")
            for name, kept in self._after.items():
                if name not in batches:
                    assert there[name] == kept, f"{name}: {where}"
                    continue
                new = [record for record in visited[name] if record not in self._before[name]]
                assert len(new) == len(batches[name].records), f"{name}: {where}"
                # It may have begun another segment; so more may be compacted, never less.
                assert is_within(there[name], [*kept, *new]), f"{name}: {where}"
                assert latest(there[name]) == latest([*self._before[name], *new]), where

        return check

    def _batch_for(self, name: str) -> NewBatch:
        """Return a record of a key that there is, and one of a new key."""
        known = min(latest(self._before[name]))
        return NewBatch(
            records=tuple(
                NewRecord(key=key, value=b"acknowledged", timestamp=FIRST_ROUNDS_MS)
                for key in (b"a new key", known)
            )
        )

    def person(self, end: Path, where: str) -> Callable[[], None]:
        """Recover some partitions as ``pylog partition recover`` does; return what has to hold."""
        starts = read_points(end / "log", LOG_START_FILE)
        for topic in (COMPACTED[0], SWEPT[1]):
            recover_partition(
                end / "log" / f"{topic}-0",
                config=self._lab.root.config(topic),
                cleaner=CleanerConfig(),
                now_ms=FIRST_ROUNDS_MS,
                log_start_offset=starts.get(TopicPartition(topic, 0), 0),
            )

        def check() -> None:
            assert consume(end / "log") == self._after, where

        return check


def latest(records: list[Any]) -> dict[bytes, Any]:
    """Return the last record of each key, but for tombstones."""
    found = {record[2]: record for record in records}
    return {key: record for key, record in found.items() if record[3] is not None}


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


@pytest.mark.item("FLT-08", "FLT-14")
@pytest.mark.parametrize(
    "stops",
    [
        pytest.param(killed, marks=ONLY_ALL, id="killed"),
        pytest.param(imaged, marks=ONLY_NIGHTS, id="imaged"),
    ],
)
def test_a_night_over_a_managed_root_that_stops_is_finished_by_the_next(stops, tmp_path):
    lab = managed_lab(tmp_path)
    topics = list(lab.root.configs)

    def twin(folder: Path) -> ManagedTwin:
        return ManagedTwin(str(folder / "log"), lab.root)

    def records(folder: Path) -> dict[str, list[Any]]:
        return {topic: in_records(twin(folder).tree(topic), tmp_path / "tree") for topic in topics}

    def state(folder: Path) -> dict[str, Any]:
        root = twin(folder)
        return {topic: (root.tree(topic), root.store(topic).checkpoints) for topic in topics}

    before = records(lab.made)
    after: dict[str, list[Any]] = {}

    def check_left(left: Path, where: str) -> None:
        if not after:
            after.update(records(lab.undisturbed))
        there = records(left)
        for topic in topics:
            assert is_within(after[topic], there[topic]), f"{topic} lost records at {where}"
            assert is_within(there[topic], before[topic]), f"{topic} at {where}"

    try_all(lab, stops, check_left, state, {})


def in_records(tree: dict[str, bytes], folder: Path) -> list[Any]:
    """Return the data records of a partition's files."""
    folder.mkdir()
    for name, content in tree.items():
        (folder / name).write_bytes(content)
    found = [(r.offset, r.timestamp, r.key, r.value) for r in data_records(folder)]
    shutil.rmtree(folder)
    return found
