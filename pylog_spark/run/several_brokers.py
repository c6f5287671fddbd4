"""Log directories of several brokers, told from those of one."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from pylog_spark.run.catalogs import read_meta_properties
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY, read_cluster_metadata
from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.roles import local_path
from storage_core.checkpoint.broker_files import MetaProperties
from storage_core.errors import PylogError, StorageError
from storage_core.filenames import META_PROPERTIES_FILE, TopicPartition
from storage_core.roots.open_root import LogRoot, open_root


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadBroker:
    """Log directories that get no verdict because they cannot be read."""

    broker: int | None  # node id, None where no file that can be read says it
    roots: tuple[str, ...]
    error: str


def split_by_broker(
    roots: Sequence[LogRoot],
) -> tuple[dict[int, list[LogRoot]], list[UnreadBroker]]:
    """Tell log directories of several brokers from those of one.

    They are of several if two nodes of one cluster have a replica of the same partition: one broker
    has one in a single directory. Otherwise one broker has a directory that is not its own, which
    is a finding.

    Args:
        roots: Local log directories; some of them perhaps cannot be read.

    Returns:
        The log directories by node id, and those that get no verdict: no file that can be read
        says whose they are, or others of their broker cannot be read. Nothing where all are of one
        broker.
    """
    by_broker: dict[int, list[LogRoot]] = {}
    replicas: dict[int, set[TopicPartition]] = {}
    unread: list[UnreadBroker] = []
    clusters = set()
    for root in roots:
        alone = f"`pylog doctor {quote(root.location)} --role broker` says how to mend it"
        error = f"{root.location}: {META_PROPERTIES_FILE} does not say whose it is: {alone}"
        try:
            held = _replicas(root)
            meta = read_meta_properties(root.location)
        except StorageError as failure:
            is_forbidden = isinstance(failure.__cause__, PermissionError)
            way = "run this as its owner, or as root" if is_forbidden else "is its disk mounted?"
            error, meta = f"{failure}: {way}", None
        except PylogError as failure:
            error, meta = f"{failure}: {alone}", None
        if meta is None or meta.node_id is None:
            unread.append(UnreadBroker(broker=None, roots=(root.location,), error=error))
            continue
        clusters.add(meta.cluster_id)
        by_broker.setdefault(meta.node_id, []).append(root)
        replicas.setdefault(meta.node_id, set()).update(held)
    is_shared = sum(map(len, replicas.values())) > len(set().union(*replicas.values()))
    if len(clusters) > 1 or not is_shared:
        return {}, []
    if unread:
        registered = _count_registered([root for own in by_broker.values() for root in own])
        for broker, own in list(by_broker.items()):
            if len(own) < registered.get(broker, 0):
                locations = tuple(root.location for root in by_broker.pop(broker))
                error = f"broker {broker}: {len(own)} of its {registered[broker]} log directories "
                error += "can be read: no verdict on it"
                unread.append(UnreadBroker(broker=broker, roots=locations, error=error))
    return dict(sorted(by_broker.items())), unread if by_broker else []


def _count_registered(roots: Sequence[LogRoot]) -> dict[int, int]:
    """Return each broker's number of log directories by the newest metadata."""
    copies = []
    for root in roots:
        directory = Path(root.location) / CLUSTER_METADATA_DIRECTORY
        if directory.is_dir():
            with suppress(PylogError):
                copies.append(read_cluster_metadata(directory, is_recovered=True))
    newest = max(copies, key=lambda copy: copy.end_offset, default=None)
    brokers = {} if newest is None else newest.brokers
    return {node_id: len(broker.log_directories) for node_id, broker in brokers.items()}


def owner_of(root: LogRoot) -> MetaProperties | None:
    """Return whose a log directory is, None where no file says it."""
    try:
        return read_meta_properties(root.location)
    except PylogError:
        return None  # which is a finding


def _replicas(root: LogRoot) -> set[TopicPartition]:
    path = local_path(root.location)
    if path is None:
        return set()
    kinds = map(classify_directory, open_root(Path(path), role=root.role).directories())
    return {
        partition
        for kind, partition in kinds
        if kind is DirectoryKind.PARTITION and partition is not None
    }
