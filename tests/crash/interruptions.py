"""The ways in which work on a directory may end too early: a process killed, the power lost.

``PYLOG_CRASH_ALL=1`` (``make crash``) tries every point of every way, but for rounds and undos of
golden logs, which lose their power at every fifth. Without it a loss of power is tried at few
points of few cases, always the same ones, among them always the end of the work: what somebody was
told to be done must be there.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from storage_core.commit import claim as commit_claim
from storage_core.store.local import LocalStore
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash
from tests.kit.power_loss import Disk, Loss

ALL = os.environ.get("PYLOG_CRASH_ALL", "0") == "1"
# Changes that a killed process may have made by half.
_TEARING = frozenset({"write_file", "copy_range", "keep", "restore", "write_record"})

Work = Callable[[LocalStore | FaultyStore], object]


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

    def can_strike(self, change: str) -> bool:
        """Whether a change may end in this way; only some can be left by half."""
        return self.way is not Moment.TORN or change in _TEARING

    def strikes(
        self,
        work: Work,
        directory: Path,
        *,
        reset: Callable[[], object],
        root: Path | None = None,
        stride: int = 1,
    ) -> Iterator[str]:
        """Interrupt some work at one point after the other.

        Args:
            work: Changes a directory through the store that it is given.
            directory: The directory.
            reset: Makes everything as it was before the work.
            root: Below it is everything that a loss of power concerns; None for the directory.
            stride: Of how many points one is tried.

        Yields:
            Where it was; the directory is what was left, until the next one is asked for.

        Raises:
            AssertionError: The work came to its end where it should have been interrupted.
        """
        if isinstance(self.way, Loss):
            for point in power_losses(
                lambda: work(LocalStore(directory)),
                root or directory,
                self.way,
                reset=reset,
                stride=stride,
            ):
                yield f"{self.name} {point}"
            return
        number = 0
        while True:
            reset()
            store = FaultyStore(LocalStore(directory), stop_at=number, moment=self.way)
            try:
                with unsynced():
                    work(store)
            except SimulatedCrash:
                method = store.changes[-1]
            else:
                _require_all(number, store.changes)
                return
            if self.can_strike(method):
                yield f"{self.name} change {number}: {method}"
            number += stride


KILLS = [Interruption(moment) for moment in Moment]
POWER = [Interruption(Loss.EVERYTHING), Interruption(Loss.CONTENTS)]


def each_way(cases: Sequence[Any], kills: Sequence[Interruption]) -> list[Any]:
    """Pair cases, which have names, with kills; and the first, or all, with the losses of power."""
    return [
        pytest.param(case, way, id=f"{case.name}-{way.name}")
        for case in cases
        for way in [*kills, *(POWER if ALL or case is cases[0] else [])]
    ]


def power_losses(
    work: Callable[[], object],
    root: Path,
    loss: Loss,
    *,
    reset: Callable[[], object],
    stride: int = 1,
) -> Iterator[str]:
    """Lose the power before each change of a name and each sync, and at the end of the work.

    Args:
        work: Changes what is below the root.
        root: The folder that a loss of power concerns.
        loss: What is lost.
        reset: Makes everything as it was before the work.
        stride: Of how many points one is tried; the end always is.

    Yields:
        Where it was; what is below the root is what was left, until the next one is asked for.

    Raises:
        AssertionError: The work came to its end where the power should have been lost.
    """
    number = 0
    while True:
        reset()
        disk = Disk(root)
        was_stopped = disk.run(work, stop_at=number)
        disk.leave(loss, seed=number)
        if not was_stopped:
            _require_all(number, disk.changes)
            yield f"after all {len(disk.changes)} changes"
            return
        yield f"before change {number}"
        number += stride


def _require_all(number: int, changes: Sequence[str]) -> None:
    """Refuse a store, or a disk, that lets a work end though it has more changes than that."""
    assert number >= len(changes), f"not stopped at {number} of {len(changes)} changes"


def is_end(where: str) -> bool:
    """Whether the work was done, and whoever asked for it knew, before the power was lost."""
    return "after all" in where


@contextmanager
def restarted() -> Iterator[None]:
    """Let the machine be another one than before: it was started anew."""
    boot = SimpleNamespace(read_text=lambda: "the boot after the power was back")
    with patch.object(commit_claim, "_BOOT_FILE", boot):
        yield


@contextmanager
def unsynced() -> Iterator[None]:
    """Sync nothing: a killed process, unlike a loss of power, loses nothing that was not."""
    with patch.object(os, "fsync", lambda _: None):
        yield
