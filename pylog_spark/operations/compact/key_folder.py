"""Share scratch files of keys and merged maps among tasks. The tasks are those of one wave, on one
host.

Not every root has a place that all tasks of a run see. Names carry the run and the wave, so that a
wave's files can go when it has ended, those of killed attempts too.
"""

import uuid
from pathlib import Path

from pylog_spark.tasks.run_context import WriteContext
from storage_core.filenames import SCRATCH_PREFIX
from storage_core.roots.root import RootAccess


def new_prefix(access: RootAccess, location: str, context: WriteContext) -> Path:
    """Return a path, but for its ending, that no other attempt has."""
    folder = access.shared_folder(location)
    if folder is None:
        raise TypeError(f"{location}: tasks share no folder there")
    return folder / f"{_wave_prefix(context)}{uuid.uuid4().hex}"


def remove_files(prefix: Path) -> None:
    """Remove the files of one attempt."""
    for path in prefix.parent.glob(f"{prefix.name}*"):
        path.unlink(missing_ok=True)


def remove_wave(access: RootAccess, location: str, context: WriteContext) -> None:
    """Remove a wave's scratch files for a partition. Files of the wave that lie where the
    partition's files do go, too."""
    folder = access.shared_folder(location)
    if folder is not None:
        for path in folder.glob(f"{_wave_prefix(context)}*"):
            path.unlink(missing_ok=True)


def _wave_prefix(context: WriteContext) -> str:
    return f"{SCRATCH_PREFIX}{context.run.run_id}-{context.wave}-"
