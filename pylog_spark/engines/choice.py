"""Choose where a run's tasks go: Spark's executors, or this machine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from pylog_spark.engines.engine import AnyEngine
from storage_core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# By path of a partition directory the base offsets of its logs, ascending, and their lengths.
ListedLogs: TypeAlias = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
_LOCAL_MASTER: Final = re.compile(r"local(\[(?P<count>[1-9][0-9]{0,3}|\*)\])?")


@dataclass(frozen=True, slots=True)
class Local:
    """This machine: processes of its own, no JVM."""

    # How many tasks run at the same time; None for the processors that there are.
    slots: int | None = None
    # What was listed when this machine was chosen, as far as it was kept.
    listed: ListedLogs = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of_master(cls, master: str | None) -> "Local":
        """Return this machine, with as many slots as ``local[N]`` says."""
        if master is None:
            return cls()
        match = _LOCAL_MASTER.fullmatch(master)
        if match is None:
            reason = "--engine local works on this machine: expected local[N] or no master"
            raise ConfigError("--master", master, reason)
        count = match["count"]
        return cls(int(count) if count and count != "*" else None)


Place: TypeAlias = "SparkSession | Local"


def open_engine(place: Place, *, tag: str) -> AnyEngine:
    """Return the engine for one run, a context manager.

    Args:
        tag: Tells the run's tasks from those of others, where they are shown.
    """
    # Each needs much that the other does not.
    if isinstance(place, Local):
        from pylog_spark.engines.local_engine import LocalEngine  # noqa: PLC0415

        return LocalEngine(place.slots)
    from pylog_spark.engines.spark_engine import SparkEngine  # noqa: PLC0415

    return SparkEngine(place, tag=tag)


def open_look_engine(place: Place, engine: AnyEngine) -> AnyEngine:
    """Return the engine for a run's small looks, like ``open_engine`` otherwise.

    Where the slots of a session lie in this machine, its driver has looked before the session has
    planned a job: those are the driver's own. Elsewhere only executors may see the disks.
    """
    if isinstance(place, Local):
        return engine
    from pylog_spark.engines.session_facts import is_local  # noqa: PLC0415

    return open_engine(Local(engine.slots), tag="") if is_local(place) else engine
