"""The crash matrix: operations on a partition, which are stopped at every single change they make.

A cell is an operation on one log. It says how the log is set up, what the operation is, and what of
it must be true wherever it stopped. ``test_matrix.py`` stops it, in every way of
``interruptions.py``, and shows what was left to Kafka.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from storage_core.store.base import LogStore
from tests.crash.interruptions import ALL, POWER, Interruption


class StoppedWork(ABC):
    """An operation on a directory that may be stopped anywhere.

    Attributes:
        directory: What it changes.
        disk: Below it is all that a loss of power concerns; None for the directory.
    """

    directory: Path
    disk: Path | None = None

    @abstractmethod
    def reset(self) -> None:
        """Make everything as it was before the operation."""

    @abstractmethod
    def run(self, store: LogStore) -> None:
        """Do the operation through a store."""

    @abstractmethod
    def check(self, where: str) -> None:
        """Judge what was left, and what the operation makes of it that is made again.

        Args:
            where: The point at which it stopped, for the assertions.
        """

    def check_all(self) -> None:
        """Judge all stops together; most have nothing more to say."""
        return

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Make what surrounds the directory as the operation is to find it."""
        yield


class WorkOfKafka(StoppedWork):
    """One that Kafka judges, too.

    Attributes:
        now_ms: Kafka's clock.
        overrides: The topic's settings.
        checkpoints: What the checkpoints say of the partition, as ``open_partition`` takes it.
        shutdowns: Whether Kafka is to take the directory for cleanly shut down: each of these.
    """

    now_ms: int
    overrides: Mapping[str, Any]
    checkpoints: Mapping[str, int]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An operation on one log.

    Attributes:
        operation: What it is called.
        case: The log's name.
        make: Sets it up in a folder, to be stopped in a way.
        ways: In which ways it is stopped.
        kafka_ways: In which of them Kafka is asked.
        stride: Of how many points one is tried where a process is killed.
        power_stride: The same of losses of power.
        kafka_stride: Of kills, where Kafka is asked.
        kafka_power_stride: Of losses of power, where Kafka is asked.
    """

    operation: str
    case: str
    make: Callable[[Path, Interruption], StoppedWork]
    ways: Sequence[Interruption]
    kafka_ways: Sequence[Interruption] = field(default=())
    stride: int = 1
    power_stride: int = 1
    kafka_stride: int = 1
    kafka_power_stride: int = 1

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
        pytest.param(cell, way, id=f"{cell.operation}-{cell.case}-{way.name}")
        for cell in cells
        for way in (cell.kafka_ways if for_kafka else cell.ways)
    ]
