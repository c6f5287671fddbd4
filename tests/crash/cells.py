"""The crash matrix: operation x store x step, work that is stopped at every single change.

A cell is an operation on one case of one store. It says how the case is set up, what the operation
is, and what of it must be true wherever it stopped. ``test_matrix.py`` stops it, in every way of
``interruptions.py``, and shows what was left to Kafka. What counts as a change is said by the three
kinds of work here: calls of a log directory's store, requests to a store of objects, or calls of
functions by all that a run does.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pytest

from storage_core.store import ObjectStore, local
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL, POWER, Interruption, StoppedWork, until_it_dies
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash
from tests.kit.wrapped_objects import FaultyObjects


class WorkOnDirectory(StoppedWork):
    """Work on a partition's directory; what counts is each change that its store is asked for."""

    torn = frozenset({"write_file", "copy_range", "keep", "restore", "write_record"})
    directory: Path  # what it changes

    @cached_property
    def disk(self) -> Path:  # type: ignore[override]
        return self.directory

    @abstractmethod
    def do(self, store: LogStore) -> None:
        """Do the work through a store of the directory."""

    def run(self) -> None:
        self.do(LocalStore(self.directory))

    def run_until(self, stop_at: int, moment: Moment) -> Sequence[str]:
        store = FaultyStore(LocalStore(self.directory), stop_at=stop_at, moment=moment)
        until_it_dies(lambda: self.do(store), store.changes, stop_at)
        return store.changes


class WorkOfKafka(WorkOnDirectory):
    """One that Kafka judges, too."""

    now_ms: int
    overrides: Mapping[str, Any]  # the topic's settings
    # What the checkpoints say of the partition, as ``open_partition`` takes it
    checkpoints: Mapping[str, int]
    # Whether Kafka is to take the directory for cleanly shut down: each of these
    shutdowns: ClassVar[Sequence[bool]] = (False, True)

    @abstractmethod
    def check_kafkas(self, theirs: Path, answer: Any, where: str, *, clean_shutdown: bool) -> None:
        """Judge what Kafka, with a directory of its own, made of what was left, and its answer."""

    def check_beside(self, theirs: Path, where: str) -> None:
        """Compare what we make of what was left with what Kafka made of it last."""
        return

    def tidy(self) -> None:
        """Remove what Kafka has no business with, before it looks."""
        return


class WorkOnObjects(StoppedWork):
    """Work on a managed root; what counts is each request that changes an object."""

    torn = frozenset({"put", "put_file", "put_if_absent", "put_if_match", "delete"})
    objects: ObjectStore  # the root, as ``reset`` has made it
    # Method and key of each change of the last work that was to be killed
    changes: Sequence[tuple[str, str]] = ()

    @abstractmethod
    def do(self, objects: ObjectStore) -> None:
        """Do the work through a store of the root's objects."""

    def run(self) -> None:
        self.do(self.objects)

    def run_until(self, stop_at: int, moment: Moment) -> Sequence[str]:
        faulty = FaultyObjects(self.objects, stop_at=stop_at, moment=moment)
        until_it_dies(lambda: self.do(faulty), faulty.changes, stop_at)
        self.changes = faulty.changes
        return [f"{method} {key}" for method, key in faulty.changes]

    def was_committed(self, way: Interruption) -> bool:
        """Whether the last work was killed once its manifest had been replaced."""
        methods = [method for method, _ in self.changes]
        return "put_if_match" in methods and (
            methods[-1] != "put_if_match" or way.way is Moment.AFTER
        )


@dataclass(frozen=True, slots=True)
class Call:
    """A function whose calls are changes."""

    owner: Any  # its module or class
    name: str  # its name there
    is_change: Callable[..., bool] = lambda *_, **__: True  # which calls are, by their arguments


def calls_of(owner: Any, *names: str) -> tuple[Call, ...]:
    """Return functions of one module or class whose calls all are changes."""
    return tuple(Call(owner, name) for name in names)


def creates(_path: Any, flags: int, *_: Any, **__: Any) -> bool:
    """Whether ``os.open`` makes a file."""
    return bool(flags & os.O_CREAT)


class WorkOfRun(StoppedWork):
    """All that a run does, driver and tasks, in this process."""

    # What counts as a change. A dead process makes none of them any more.
    calls: ClassVar[Sequence[Call]]

    def run_until(self, stop_at: int, moment: Moment) -> Sequence[str]:
        changes: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            for call in self.calls:
                stopping = _stopping(call, changes, stop_at, moment)
                patch.setattr(call.owner, call.name, stopping)
            # File by file: machine code makes calls that nobody sees.
            patch.setattr(local, "delete_names", lambda *_: 0)
            until_it_dies(self.run, changes, stop_at)
        return changes


def _stopping(call: Call, changes: list[str], stop_at: int, moment: Moment) -> Any:
    original = getattr(call.owner, call.name)

    def stopping(*args: Any, **options: Any) -> Any:
        if not call.is_change(*args, **options):
            return original(*args, **options)
        if len(changes) > stop_at >= 0:
            raise SimulatedCrash("dead")
        changes.append(call.name)
        if len(changes) - 1 != stop_at:
            return original(*args, **options)
        if moment is Moment.AFTER:
            with suppress(FileNotFoundError):  # a removal in case something is there
                made = original(*args, **options)
                if call.owner is os and call.name == "open":
                    os.close(made)
        raise SimulatedCrash(call.name)

    return stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An operation on one case of one store."""

    operation: str  # what it is called
    store: str = "log directory"  # where what it works on lies
    case: str
    # Sets it up in a folder, to be stopped in a way
    make: Callable[[Path, Interruption], StoppedWork]
    ways: Sequence[Interruption]  # in which ways it is stopped
    kafka_ways: Sequence[Interruption] = field(default=())  # in which of them Kafka is asked
    stride: int = 1  # of how many points one is tried where a process is killed
    power_stride: int = 1  # the same of losses of power
    kafka_stride: int = 1  # of kills, where Kafka is asked
    kafka_power_stride: int = 1  # of losses of power, where Kafka is asked
    seeds: int = 1  # how often each loss of power is tried, where chance says what is lost

    def stride_of(self, way: Interruption, *, for_kafka: bool = False) -> int:
        """Return of how many points of a way one is tried."""
        if for_kafka:
            return self.kafka_power_stride if way.is_of_power else self.kafka_stride
        return self.power_stride if way.is_of_power else self.stride


def power_of(cell_number: int) -> list[Interruption]:
    """Return the losses of power that a cell gets: the first of its operation, or all."""
    return POWER if ALL or cell_number == 0 else []


def parameters(cells: Sequence[Cell], *, for_kafka: bool = False) -> list[Any]:
    """Return each cell in each of its ways, as parameters of a test."""
    return [
        pytest.param(cell, way, id=f"{cell.operation}-{cell.store}-{cell.case}-{way.name}")
        for cell in cells
        for way in (cell.kafka_ways if for_kafka else cell.ways)
    ]
