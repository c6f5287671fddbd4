"""A run of several processes that stops as a whole, at one change of what is below a folder.

Renames, links, removals and cuts are counted over all processes, driver and Python workers, in the
order in which they come. At the chosen one the process that makes it ends, and whoever wants to
change something afterwards ends, too: a worker by SIGKILL, the driver, which is to go on with the
next attempt, by ``SimulatedCrash``. Writing into a file counts as part of the change before it: no
file is read by its name before it has got that by one of these calls.

As ``spark.python.daemon.module`` this module is what Spark starts its workers from.
"""

import fcntl
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storage_core.testing.faulty_store import NEVER, SimulatedCrash
from storage_core.testing.power_loss import path_of

# Where the workers find what is watched.
CONTROL: Final = "PYLOG_TEST_STOPPING"
_CHANGES: Final = (
    "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stopping:
    """When everything stops, in files that all processes see.

    Attributes:
        control: The folder of these files, outside of what is watched.
    """

    control: Path

    def begin(self, watched: Path, *, stop_at: int = NEVER) -> None:
        """Count from 0 again.

        Args:
            watched: The folder below which changes count.
            stop_at: Everything stops before change ``stop_at // 2``, or after it if that is odd.
        """
        self.control.mkdir(exist_ok=True)
        (self.control / "made").write_text("")
        (self.control / "is_dead").unlink(missing_ok=True)
        (self.control / "plan").write_text(f"{stop_at} {watched.absolute()}")

    @property
    def made(self) -> list[str]:
        """What was changed, in order, with the path below what is watched."""
        return (self.control / "made").read_text().splitlines()

    @property
    def is_dead(self) -> bool:
        """Whether it has come to that."""
        return (self.control / "is_dead").exists()

    def watch(self, end: Callable[[str], None]) -> None:
        """Watch the changes that this process makes from now on.

        Args:
            end: Ends this process, or the work in it.
        """
        for name in _CHANGES:
            setattr(os, name, self._watched(name, getattr(os, name), end))

    def _watched(
        self, name: str, original: Callable[..., Any], end: Callable[[str], None]
    ) -> Callable[..., Any]:
        def watched(target: Any, *others: Any, **options: Any) -> Any:
            path = path_of(target, options.get("dir_fd", options.get("src_dir_fd")))
            stop_at, _, folder = (self.control / "plan").read_text().partition(" ")
            if not path.startswith(f"{folder}{os.sep}"):
                return original(target, *others, **options)
            with (self.control / "made").open("a") as made:
                # One change at a time, of all processes; released with the file.
                fcntl.flock(made, fcntl.LOCK_EX)
                if self.is_dead:
                    end(f"dead before {name} {path}")
                number = len(self.made)
                if number == int(stop_at) // 2 and int(stop_at) % 2 == 0:
                    self._die(end, f"before {name} {path}")
                made.write(f"{name} {path.removeprefix(folder)}\n")
                made.flush()
                try:
                    return original(target, *others, **options)
                finally:
                    # Though it failed, as the removal of a file that is not there does.
                    if number == int(stop_at) // 2:
                        self._die(end, f"after {name} {path}")

        return watched

    def _die(self, end: Callable[[str], None], where: str) -> None:
        (self.control / "is_dead").touch()
        end(where)


def crash(where: str) -> None:
    """End the work of this process, which itself is needed again."""
    raise SimulatedCrash(where)


def kill(_: str) -> None:
    """End this process as the kernel does for its memory."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from pyspark.daemon import manager

    Stopping(Path(os.environ[CONTROL])).watch(kill)
    manager()
