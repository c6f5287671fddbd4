"""A run of several processes that stops as a whole, at one change of what is below a folder.

Renames, links, removals and cuts are counted over all processes, driver and Python workers, in the
order in which they come. At the chosen one the process that makes it ends, and whoever wants to
change something afterwards ends, too: a worker by SIGKILL, the driver, which is to go on with the
next attempt, by ``SimulatedCrash``. Writing into a file counts as part of the change before it: no
file is read by its name before it has got that by one of these calls.

Or the run goes on, and before and after each change an image of the disk is kept: what would be
there, had everything stopped.

As ``spark.python.daemon.module`` this module is what Spark starts its workers from.
"""

import fcntl
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storage_core.store import local, syncing
from tests.crash.disk_images import ImagedDisk
from tests.kit.faulty_store import NEVER, SimulatedCrash
from tests.kit.power_loss import path_of

# Where the workers find what is watched.
CONTROL: Final = "PYLOG_TEST_STOPPING"
_CHANGES: Final = (
    "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stopping:
    """When everything stops, in files that all processes see."""

    control: Path  # the folder of these files, outside of what is watched

    def begin(self, watched: Path, *, stop_at: int = NEVER, images: Path | None = None) -> None:
        """Count from 0 again.

        Args:
            stop_at: A point. Everything stops before change ``stop_at // 2``, or after it if that
                is odd.
            images: Where an image of the disk that is mounted at ``watched`` is kept of each point;
                None for none.
        """
        self.control.mkdir(exist_ok=True)
        (self.control / "made").write_text("")
        (self.control / "kept").write_text("")
        (self.control / "is_dead").unlink(missing_ok=True)
        plan = {
            "stop_at": stop_at,
            "watched": str(watched.absolute()),
            "images": images and str(images),
        }
        (self.control / "plan").write_text(json.dumps(plan))

    @property
    def made(self) -> list[str]:
        """What was changed, in order, with the path below what is watched."""
        return (self.control / "made").read_text().splitlines()

    @property
    def kept(self) -> list[str]:
        """The names of the images that were kept, by the numbers of their points."""
        return (self.control / "kept").read_text().splitlines()

    @property
    def is_dead(self) -> bool:
        """Whether it has come to that."""
        return (self.control / "is_dead").exists()

    def watch(self, end: Callable[[str], None]) -> None:
        """Watch the changes that this process makes from now on.

        It waits for no disk any more: whoever is killed leaves what he wrote, synced or not. Files
        are deleted one by one: nobody sees the calls of machine code.

        Args:
            end: Ends this process, or the work in it.
        """
        os.fsync = lambda _: None
        syncing.way_of = lambda *_: syncing.Way.ALONE
        local.delete_names = lambda *_: 0
        for name in _CHANGES:
            setattr(os, name, self._watched(name, getattr(os, name), end))

    def _watched(
        self, name: str, original: Callable[..., Any], end: Callable[[str], None]
    ) -> Callable[..., Any]:
        def watched(target: Any, *others: Any, **options: Any) -> Any:
            path = path_of(target, options.get("dir_fd", options.get("src_dir_fd")))
            plan = json.loads((self.control / "plan").read_text())
            folder = plan["watched"]
            if not path.startswith(f"{folder}{os.sep}"):
                return original(target, *others, **options)
            with (self.control / "made").open("a") as made:
                # One change at a time, of all processes; released with the file.
                fcntl.flock(made, fcntl.LOCK_EX)
                if self.is_dead:
                    end(f"dead before {name} {path}")
                number = len(self.made)
                self._reach(2 * number, plan, end, f"before {name} {path}")
                made.write(f"{name} {path.removeprefix(folder)}\n")
                made.flush()
                try:
                    return original(target, *others, **options)
                finally:
                    # Though it failed, as the removal of a file that is not there does.
                    self._reach(2 * number + 1, plan, end, f"after {name} {path}")

        return watched

    def _reach(
        self, point: int, plan: dict[str, Any], end: Callable[[str], None], where: str
    ) -> None:
        if plan["images"]:
            state = ImagedDisk(Path(plan["images"]), Path(plan["watched"])).keep()
            with (self.control / "kept").open("a") as kept:
                kept.write(f"{state}\n")
        if point == plan["stop_at"]:
            (self.control / "is_dead").touch()
            end(where)


def crash(where: str) -> None:
    """End the work of this process, which itself is needed again."""
    raise SimulatedCrash(where)


def kill(_: str) -> None:
    """End this process as the kernel does for its memory."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Stopping(Path(os.environ[CONTROL])).watch(kill)
    # Only now: what these modules take from ``os`` is watched, too.
    from tests.kit.spark_workers import fork_workers

    fork_workers()
