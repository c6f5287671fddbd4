"""Share scratch files of keys and merged maps among tasks.

The tasks are those of one wave, on one host.

Only a broker's directory has a place that all tasks of a run see: they have to run on the host of
its lock anyway. Names carry the run and the wave, so that a wave's files can go when it has ended,
those of killed attempts too.
"""

import uuid
from pathlib import Path

from pylog_spark.tasks.run_context import WriteContext
from storage_core.commit.scratch import scratch_folder
from storage_core.filenames import SCRATCH_PREFIX
from storage_core.roots.broker import BrokerAccess
from storage_core.roots.root import RootAccess


def shares_files(access: RootAccess) -> bool:
    """Return whether a run's tasks can read each other's scratch files."""
    return isinstance(access, BrokerAccess)


def new_prefix(access: RootAccess, location: str, context: WriteContext) -> Path:
    """Return a path, but for its ending, that no other attempt has.

    Raises:
        TypeError: The root has no folder that all tasks see.
    """
    if not isinstance(access, BrokerAccess):
        raise TypeError(f"{location}: tasks share no folder there")
    folder = scratch_folder(access.shared, Path(location))
    return folder / f"{_wave_prefix(context)}{uuid.uuid4().hex}"


def remove_files(prefix: Path) -> None:
    """Remove the files of one attempt."""
    for path in prefix.parent.glob(f"{prefix.name}*"):
        path.unlink(missing_ok=True)


def remove_wave(access: RootAccess, location: str, context: WriteContext) -> None:
    """Remove a wave's scratch files for a partition.

    Files of the wave that lie where the partition's files do go, too.
    """
    if isinstance(access, BrokerAccess):
        folder = scratch_folder(access.shared, Path(location))
        for path in folder.glob(f"{_wave_prefix(context)}*"):
            path.unlink(missing_ok=True)


def _wave_prefix(context: WriteContext) -> str:
    return f"{SCRATCH_PREFIX}{context.run.run_id}-{context.wave}-"
