"""Read copies of the cluster's metadata; bring voters and directories back."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from pylog_spark.options.arguments import said_as
from pylog_spark.run.catalogs import read_meta_properties
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.catalog.roles import local_path
from storage_core.checkpoint.broker_files import MetaProperties
from storage_core.cluster.metadata_copies import (
    ComparedCopies,
    MetadataCopy,
    compare_copies,
    one_cluster,
    read_copy,
)
from storage_core.cluster.metadata_promotion import (
    Promotion,
    plan_promotions,
    promote,
)
from storage_core.cluster.stray_adoption import (
    OwnedDirectory,
    StrayDirectory,
    adopt,
    plan_adoptions,
)
from storage_core.errors import ConfigError, PylogError
from storage_core.roots.open_root import find_root


def list_metadata_copies(roots: Sequence[str | Path], *, now_ms: int) -> list[ComparedCopies]:
    """Return what the copies in some log directories say, cluster by cluster.

    Nothing is written, and no lock is taken. A root that cannot be read is a copy with an error.

    Args:
        roots: Paths of log directories, of brokers and controllers; those without a copy pass.
    """
    copies: dict[str, MetadataCopy] = {}
    for root in roots:
        try:
            path, properties = _locate(root)
        except ConfigError:
            raise
        except PylogError as error:
            copies[str(root)] = MetadataCopy(root=str(root), properties=None, error=str(error))
            continue
        has_copy = path is not None and (path / CLUSTER_METADATA_DIRECTORY).is_dir()
        if has_copy and str(path) not in copies:
            copies[str(path)] = read_copy(str(path), properties, now_ms=now_ms)
    return compare_copies(copies.values())


def promote_copy(
    roots: Sequence[str | Path], targets: Mapping[int, Path], *, now_ms: int, dry_run: bool
) -> tuple[ComparedCopies, list[Promotion]]:
    """Give voters of the quorum the longest copy of the metadata.

    Args:
        roots: Paths of log directories, of brokers and controllers; those without a copy pass.
        targets: Log directories of voters without a copy, by node id.

    Returns:
        The copies, and what was done, or would be.
    """
    clusters = list_metadata_copies(roots, now_ms=now_ms)
    promotions = plan_promotions(clusters, targets)
    if not dry_run:
        for promotion in promotions:
            promote(promotion)
    cluster = next(each for each in clusters if promotions[0].source in each.copies)
    return cluster, promotions


def adopt_strays(
    roots: Sequence[str | Path], *, now_ms: int, dry_run: bool
) -> tuple[ComparedCopies, list[StrayDirectory]]:
    """Give stray directories back the names of the partitions that they are. What the longest
    readable copy of the metadata in the roots says decides.

    Args:
        roots: Paths of all log directories of one or more brokers.

    Returns:
        The copies, and all stray directories; those without a reason were renamed, or would be.
    """
    cluster = one_cluster(list_metadata_copies(roots, now_ms=now_ms))
    metadata = cluster.copies[0].metadata
    assert metadata is not None  # noqa: S101  # the copy was read
    owned = []
    for root in roots:
        path, own = _locate(root)
        if own is None or own.node_id is None or own.cluster_id != cluster.cluster_id:
            owner = "nobody's" if own is None else f"of node {own.node_id} in {own.cluster_id}"
            reason = f"expected a directory of cluster {cluster.cluster_id}, it is {owner}"
            raise ConfigError("ROOT", root, reason)
        owned.append(OwnedDirectory(location=str(path), node_id=own.node_id))
    strays = plan_adoptions(owned, metadata)
    due: dict[str, list[StrayDirectory]] = {}
    for stray in strays:
        if stray.reason is None:
            due.setdefault(stray.root, []).append(stray)
    for of_root in due.values() if not dry_run else ():
        adopt(of_root)
    return cluster, strays


def _locate(root: str | Path) -> tuple[Path | None, MetaProperties | None]:
    """Return a log directory's path and owner.

    Both are None for a root of another kind. Of a partition they are its log directory's.
    """
    with said_as("ROOT", root):
        files, _ = find_root(root)
        path = None if files.has_manifests else local_path(files.location)
        return path, None if path is None else read_meta_properties(str(path))


def find_absent_voters(roots: Sequence[str | Path], *, now_ms: int) -> list[str]:
    """Return a sentence for each quorum whose other controllers must also run."""
    sentences = []
    # An unreadable copy becomes a finding elsewhere.
    with suppress(PylogError, OSError):
        for cluster in list_metadata_copies(roots, now_ms=now_ms):
            if cluster.lacks_majority:
                nodes = [str(voter.node_id) for voter in cluster.voters]
                lost = ", ".join(str(voter.node_id) for voter in cluster.absent_voters)
                who = f"{cluster.majority} of the controllers {', '.join(nodes)} must run"
                places = " ".join(quote(copy.root) for copy in cluster.copies)
                who = who if len(nodes) > 1 else f"controller {nodes[0]} must run"
                sentences.append(
                    f"{who}; if the disks of {lost} are lost for good, see `pylog metadata "
                    f"show {places}`"
                )
    return sentences
