"""Read copies of the cluster's metadata; give voters the longest."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pylog_spark.options.arguments import said_as
from storage_core.maintenance.inspection import inspect_root
from storage_core.maintenance.replication.metadata_copies import (
    ComparedCopies,
    compare_copies,
    read_copy,
)
from storage_core.maintenance.replication.metadata_promotion import (
    Promotion,
    plan_promotions,
    promote,
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


def promote_copy(
    roots: Sequence[str | Path], targets: Mapping[int, Path], *, now_ms: int, dry_run: bool
) -> tuple[ComparedCopies, list[Promotion]]:
    """Give voters of the quorum the longest copy of the metadata.

    Args:
        roots: Paths of log directories, of brokers and controllers; those without a copy pass.
        targets: Log directories of voters without a copy, by node id.
        now_ms: The run's clock, epoch milliseconds.
        dry_run: Only plan it.

    Returns:
        The copies, and what was done, or would be.

    Raises:
        PylogError: The errors of ``list_metadata_copies``, ``plan_promotions`` and ``promote``.
    """
    clusters = list_metadata_copies(roots, now_ms=now_ms)
    promotions = plan_promotions(clusters, targets)
    if not dry_run:
        for promotion in promotions:
            promote(promotion)
    cluster = next(each for each in clusters if promotions[0].source in each.copies)
    return cluster, promotions
