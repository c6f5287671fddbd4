"""The ways in which work may end too early: a process killed, the power lost.

``PYLOG_CRASH_ALL=1`` (``make crash``) tries every point of every way, but for rounds and undos of
golden logs, which lose their power at every fifth. Without it a loss of power is tried at few
points of few cases, always the same ones, among them always the end of the work: what somebody was
told to be done must be there.
"""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

from storage_core.commit import claim as commit_claim
from storage_core.store import syncing
from tests.kit.faulty_store import Moment, SimulatedCrash
from tests.kit.power_loss import Disk, Loss

ALL = os.environ.get("PYLOG_CRASH_ALL", "0") == "1"


class StoppedWork(ABC):
    """Work that may be stopped anywhere, and what must be true then."""

    # Changes that a killed process may have made by half
    torn: ClassVar[frozenset[str]] = frozenset()

    disk: Path  # the folder below which is all that a loss of power concerns
    original: Path  # the same as it was before the work

    def reset(self) -> None:
        """Make everything as it was before the work."""
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.copytree(self.original, self.disk)

    @abstractmethod
    def run(self) -> None:
        """Do the work."""

    @abstractmethod
    def run_until(self, stop_at: int, moment: Moment) -> Sequence[str]:
        """Do the work until the process dies at one of its changes.

        Args:
            stop_at: Number of the change, from 0. The work comes to its end if it has fewer.
            moment: When, of this change, the process dies.

        Returns:
            The changes that it came to, in order: the name of each, perhaps with its place after a
            space.
        """

    @abstractmethod
    def check(self, where: str) -> None:
        """Judge what was left, and what the work makes of it that is done again.

        Args:
            where: The point at which it stopped, for the assertions.
        """

    def check_all(self) -> None:
        """Judge all stops together; most have nothing more to say."""
        return

    @contextmanager
    def context(self) -> Iterator[None]:
        """Make what surrounds the work as it is to find it."""
        yield


@dataclass(frozen=True, slots=True)
class Interruption:
    """One way to end too early: at a moment of a change, or by a loss of power."""

    way: Moment | Loss

    @property
    def name(self) -> str:
        if isinstance(self.way, Moment):
            return f"killed {self.way.value}"
        return f"power lost with {self.way.value}"

    @property
    def is_of_power(self) -> bool:
        return isinstance(self.way, Loss)

    def strikes(self, work: StoppedWork, *, stride: int = 1, seeds: int = 1) -> Iterator[str]:
        """Interrupt some work at one point after the other.

        Args:
            stride: Of how many points one is tried; the end of the work is always one of those at
                which the power is lost.
            seeds: How often each loss of power is tried, where chance says what is lost.

        Yields:
            Where it was; what the work leaves is there, until the next one is asked for.
        """
        if isinstance(self.way, Loss):
            return self._power_losses(work, self.way, stride, seeds)
        return self._kills(work, self.way, stride)

    def _kills(self, work: StoppedWork, moment: Moment, stride: int) -> Iterator[str]:
        number, tried = 0, 0
        while True:
            work.reset()
            with unsynced():
                changes = work.run_until(number, moment)
            if len(changes) <= number:
                break
            if _can_strike(work, moment, changes[number]):
                tried += 1
                yield f"{self.name} change {number}: {changes[number]}"
            number += stride
        expected = [change for change in changes[::stride] if _can_strike(work, moment, change)]
        assert tried == len(expected), "the work is not the same each time"

    def _power_losses(
        self, work: StoppedWork, loss: Loss, stride: int, seeds: int
    ) -> Iterator[str]:
        number, was_stopped = 0, True
        while was_stopped:
            work.reset()
            disk = Disk(work.disk)
            was_stopped = disk.run(work.run, stop_at=number)
            assert was_stopped or number >= len(disk.changes), f"not stopped at {number}"
            if not was_stopped and number == 0:
                return  # It changes nothing: there is no point at which the power could be lost.
            point = f"before change {number}" if was_stopped else f"after all {len(disk.changes)}"
            for seed in range(seeds):
                disk.leave(loss, seed=seed + seeds * number)
                yield f"{self.name} {point}" + (f", seed {seed}" if seeds > 1 else "")
            number += stride


KILLS = [Interruption(moment) for moment in Moment]
# What comes after a change is what comes before the next, where all that a kill leaves is on disk
# and each change is one that counts.
KILLS_OF_CHANGES = KILLS if ALL else KILLS[:2]
POWER = [Interruption(Loss.EVERYTHING), Interruption(Loss.CONTENTS)]
# Names are kept in no order.
UNORDERED = [Interruption(Loss.SOME_NAMES)]


def _can_strike(work: StoppedWork, moment: Moment, change: str) -> bool:
    """Whether a change may end in this way; only some can be left by half."""
    return moment is not Moment.TORN or change.split(" ", maxsplit=1)[0] in work.torn


def until_it_dies(work: Callable[[], object], changes: Sequence[str], stop_at: int) -> None:
    """Do some work that is to die at a change.

    Args:
        changes: Where it writes down what it changes.
    """
    with suppress(SimulatedCrash):
        work()
        assert len(changes) <= stop_at, f"not stopped at {stop_at} of {len(changes)} changes"


def is_end(where: str) -> bool:
    """Whether the work was done, and whoever asked for it knew, before the power was lost."""
    return "after all" in where


@contextmanager
def restarted() -> Iterator[None]:
    """Let the machine be another one than before: it was started anew."""
    boot = "the boot after the power was back"
    with patch.object(commit_claim, "_read_boot", lambda _: boot):
        yield


@contextmanager
def unsynced() -> Iterator[None]:
    """Sync nothing: a killed process, unlike a loss of power, loses nothing that was not."""
    with (
        patch.object(os, "fsync", lambda _: None),
        patch.object(syncing, "way_of", lambda *_: syncing.Way.ALONE),
    ):
        yield
