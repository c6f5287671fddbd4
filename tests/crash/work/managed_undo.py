"""An undo and a purge of a managed root.

What a reader sees of a partition is what the run left or what was before it, never a mix; a purge
changes nothing that anybody sees. The same command, given again, ends as one that was not killed.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.operations.purge import purge
from pylog_spark.operations.undo import undo
from pylog_spark.run.run_report import RunReport
from storage_core.clock import SystemClock
from storage_core.filenames import LEASE_FILE
from storage_core.roots import managed
from storage_core.roots.managed import HeldManagedRoot
from storage_core.store import ObjectStore
from tests.crash.cells import Cell, WorkOnObjects
from tests.crash.interruptions import KILLS, Interruption
from tests.kit.tasks_here import tasks_done_here
from tests.kit.wrapped_objects import TORN_KEY
from tests.pylog_spark.broker_roots import broker_directory
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin
from tests.pylog_spark.operations.test_managed_undo import HOUR, RUN, SMALL, options, publish


def undo_it(twin: ManagedTwin) -> RunReport:
    return undo(RUN, options(), roots=[twin.location])


def purge_it(twin: ManagedTwin) -> RunReport:
    late = SystemClock().now_ms() + 2 * HOUR
    return purge([twin.location], replace(options(now_ms=late), purge_after_ms=HOUR))


class AfterRun(WorkOnObjects):
    """A command over a root in which a run has made two generations of each partition."""

    def __init__(
        self, command: Callable[[ManagedTwin], RunReport], folder: Path, _way: Interruption
    ) -> None:
        self._command = command
        self._origin = broker_directory(folder / "log", SMALL)
        self._place, self._numbers = folder.name, count()
        self.reset()
        self._before = self._seen()
        self.run()
        self._expected, self._least = self._seen(), len(self._keys())

    def reset(self) -> None:
        url = f"memory://crash/{self._place}/{next(self._numbers)}"
        self._twin = managed_twin(self._origin, url)
        for topic in SMALL:
            publish(self._twin, topic, RUN, b"first")
            publish(self._twin, topic, RUN, b"second")
        self.objects = self._twin.objects

    def do(self, objects: ObjectStore) -> None:
        # The partitions are reached through a wrapper; the lease is not what is killed here.
        begin = HeldManagedRoot.__init__

        def begin_with_own(root: HeldManagedRoot, *arguments: Any, **named: Any) -> None:
            begin(root, *arguments, **named)
            root._objects = self.objects

        with pytest.MonkeyPatch.context() as patch, tasks_done_here():
            patch.setattr(managed, "open_object_store", lambda _url: objects)
            patch.setattr(HeldManagedRoot, "__init__", begin_with_own)
            assert self._command(self._twin).exit_code == 0

    def check(self, where: str) -> None:
        for (seen, _), (old, _), (new, _) in zip(
            self._seen(), self._before, self._expected, strict=True
        ):
            assert seen in (old, new), where
        # What is not purged can still be undone, what is not undone can still be purged.
        self.run()
        assert self._seen() == self._expected, where
        # A purge leaves as much as is needed, and no more.
        assert self._command is undo_it or len(self._keys()) == self._least, where

    def check_all(self) -> None:
        assert len(self.changes) >= len(SMALL)

    def _seen(self) -> list[Any]:
        return [(self._twin.tree(topic), self._twin.store(topic).checkpoints) for topic in SMALL]

    def _keys(self) -> set[str]:
        """Return all that lies there, but for names that differ from run to run."""
        keys = {info.key for info in self._twin.objects.list("")} - {LEASE_FILE, TORN_KEY}
        return {key for key in keys if "/history/" not in key}


CELLS = [
    Cell(
        operation=operation,
        store="managed root",
        case="two generations",
        make=partial(AfterRun, command),
        ways=KILLS,
    )
    for operation, command in (("undo", undo_it), ("purge", purge_it))
]
