"""``pylog`` whose first commit waits for the test, in whatever process it is made.

    python -m tests.crash.paused_program FOLDER HOW ARGUMENTS...

Whoever is about to commit writes its process id into ``paused`` in the folder. Then it waits for a
file ``go`` there, or stops as by a frozen disk, as HOW says (``wait``, ``stop``). It has planned
what it is going to do by then; with ``amid`` behind HOW it has done the first steps of it.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pylog_spark.cli import program
from storage_core.commit.claim import CommitClaim
from storage_core.roots import broker
from storage_core.roots.broker import BrokerAccess
from storage_core.roots.root import Prepare

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]
POLL_SECONDS = 0.01


def pause() -> None:
    """Wait, unless another one does, or has."""
    # Another thread would empty a file of the same name, and so the one that is linked to it.
    own = FOLDER / f"pausing-{os.getpid()}-{threading.get_ident()}"
    own.write_text(str(os.getpid()))
    try:
        os.link(own, FOLDER / "paused")
    except FileExistsError:
        return
    if HOW.startswith("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
    while not (FOLDER / "go").exists():
        time.sleep(POLL_SECONDS)


class PausingAccess(BrokerAccess):
    """A log directory in which commits wait; as a class of this program it travels by value."""

    __slots__ = ()

    def commit(self, location: str, work: str, prepare: Prepare) -> dict[str, Any]:
        """Commit under the partition's claim, and wait."""
        if HOW.endswith("amid"):
            return self._commit_amid(location, work, prepare)

        def prepare_and_pause(store: Any) -> Any:
            prepared = prepare(store)
            if prepared.plan is not None:
                pause()
            return prepared

        return BrokerAccess.commit(self, location, work, prepare_and_pause)

    def _commit_amid(self, *arguments: Any) -> dict[str, Any]:
        append = CommitClaim._append

        def append_and_pause(claim: CommitClaim, line: bytes) -> None:
            append(claim, line)
            if "done" in json.loads(line):
                pause()

        CommitClaim._append = append_and_pause
        try:
            return BrokerAccess.commit(self, *arguments)
        finally:
            CommitClaim._append = append

    @contextmanager
    def alone(self, location: str) -> Iterator[Any]:
        """Open a partition, as an undo does, and wait."""
        with BrokerAccess.alone(self, location) as store:
            pause()
            yield store


def pausing(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return work that waits before it begins."""

    def paused(*arguments: Any, **named: Any) -> Any:
        pause()
        return work(*arguments, **named)

    return paused


if __name__ == "__main__":
    broker.BrokerAccess = PausingAccess
    broker.apply_purge = pausing(broker.apply_purge)
    sys.exit(program.run(sys.argv[3:]))
