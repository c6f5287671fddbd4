"""Read the copies of the cluster's metadata that lie in log directories."""

from collections.abc import Sequence
from pathlib import Path

from pylog_spark.options.arguments import said_as
from storage_core.maintenance.inspection import inspect_root
from storage_core.maintenance.replication.metadata_copies import (
    ComparedCopies,
    compare_copies,
    read_copy,
)


def list_metadata_copies(roots: Sequence[str | Path], *, now_ms: int) -> list[ComparedCopies]:
    """Return what the copies in some log directories say, cluster by cluster.

    Nothing is written, and no lock is taken.

    Args:
        roots: Paths of log directories, of brokers and controllers; those without a copy pass.
        now_ms: The run's clock, epoch milliseconds.

    Raises:
        ConfigError: A root is not there.
        StorageError: A root cannot be listed.
        PylogError: The records of two copies cannot be compared.
    """
    copies = []
    for root in roots:
        with said_as("ROOT", root):
            view = inspect_root(root)
        if view.metadata is not None:
            copies.append(read_copy(view.files.location, view.properties, now_ms=now_ms))
    return compare_copies(copies)
