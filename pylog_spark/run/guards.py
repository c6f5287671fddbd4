"""What is checked before a run touches anything."""

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Final
from urllib.parse import unquote, urlsplit

from pylog_spark.options import JobOptions
from pylog_spark.options.declared import METRICS_FILE
from pylog_spark.run.catalogs import read_meta_properties
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    read_cluster_metadata,
)
from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.roles import local_path, require_role
from storage_core.checkpoint.broker_files import MetaProperties, is_same_broker, validate_one_broker
from storage_core.errors import (
    ConfigError,
    GuardRefusedError,
    LogDirectoryNotFoundError,
    PylogError,
    StorageError,
)
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    MANAGED_ROOT_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from storage_core.local_files import entry_names
from storage_core.maintenance.compaction.key_sidecar import check_sidecar_folder
from storage_core.maintenance.verification.prescription import recover_command
from storage_core.redaction import has_password, plain_places
from storage_core.roots.guards import check_local_directory, check_off_object
from storage_core.roots.open_root import LogRoot, open_root
from storage_core.store.local import plain_path
from storage_core.wording import time_text

# Whether a run was given every log directory of its broker.
#
# The marker of a clean shutdown in one directory is a claim about the broker: if another directory
# of it lies elsewhere and was not recovered, the claim would be false.

_LOG_DIR_KEYS: Final = ("log.dirs", "log.dir")


def check_configured(location: str, options: JobOptions) -> None:
    """Refuse a broker's log directory missing from the broker's own file. Without that file, or
    directories in it, any directory may be the broker's."""
    configured = _paths_of(options)
    if configured and Path(location).resolve() not in {Path(path).resolve() for path in configured}:
        raise LogDirectoryNotFoundError(
            location,
            f"is not in log.dirs, which has {', '.join(configured)}; where the broker's disks are "
            "mounted elsewhere, say --set log.dirs=... with their paths here",
        )


def find_missing_directories(roots: Sequence[LogRoot], options: JobOptions) -> dict[str, list[str]]:
    """Return, by root, evidence of further log directories of its broker. These directories are
    missing from the run.

    Two sources are asked: the registration of the broker in the cluster's metadata, by the ids of
    directories, and the broker's own file, by their paths.
    """
    properties = {root.location: read_meta_properties(root.location) for root in roots}
    metadata = _read_metadata(roots)
    present = {Path(root.location).resolve() for root in roots}
    by_file = [path for path in _paths_of(options) if Path(path).resolve() not in present]
    missing: dict[str, list[str]] = {}
    for root in roots:
        own = properties[root.location]
        paths, nowhere = list(by_file), False
        reasons = [f"the broker's log directory {path} was not given" for path in by_file]
        if own is not None:
            here = {
                other.directory_id
                for other in properties.values()
                if other is not None and is_same_broker(own, other)
            }
            for location, cluster in metadata.items():
                if not is_same_broker(own, properties[location]) or own.node_id is None:
                    continue
                registered = cluster.brokers.get(own.node_id)
                ids = () if registered is None else registered.log_directories
                absent = sorted(set(ids) - here)
                if absent:
                    beside = _find_beside(present, own, absent)
                    places = [
                        f"{each} (directory.id), which is {beside[each]}"
                        if each in beside
                        else f"{each} (directory.id)"
                        for each in absent
                    ]
                    reasons.append(
                        f"log directories of the broker were not given: {', '.join(places)}"
                    )
                    paths += [path for path in beside.values() if path not in paths]
                    nowhere = nowhere or len(beside) < len(absent)
        if reasons:
            whole = recover_command([*(one.location for one in roots), *paths])
            which = "give all of them"
            if nowhere and not by_file:
                which += ", those too whose paths only log.dirs of the broker says"
            missing[root.location] = [*reasons, f"{which}: {whole}"]
    return missing


def _read_metadata(roots: Sequence[LogRoot]) -> dict[str, ClusterMetadata]:
    """Return the metadata that a start would use, by root. Where that cannot be read nothing is
    recovered, and another message says why."""
    metadata = {}
    for root in roots:
        directory = Path(root.location) / CLUSTER_METADATA_DIRECTORY
        if directory.is_dir():
            with suppress(PylogError):
                metadata[root.location] = read_cluster_metadata(directory, is_recovered=True)
    return metadata


def _find_beside(
    roots: Collection[Path], broker: MetaProperties, ids: Sequence[str]
) -> dict[str, str]:
    """Return, by id, a broker's log directories beside the given ones."""
    places: dict[str, str] = {}
    for folder in sorted({root.parent for root in roots}):
        with suppress(OSError):
            for path in (folder / name for name in sorted(entry_names(folder, may_be_link=True))):
                # A neighbour may be anything: what cannot be read is none of the broker's.
                with suppress(PylogError, OSError):
                    other = read_meta_properties(str(path)) if path.is_dir() else None
                    if other is None or not is_same_broker(broker, other) or path in roots:
                        continue
                    if other.directory_id is not None and other.directory_id in ids:
                        places.setdefault(other.directory_id, str(path))
    return places


def _paths_of(options: JobOptions) -> list[str]:
    settings = {**options.broker_settings, **options.broker_overrides}
    for key in _LOG_DIR_KEYS:
        if key in settings:
            return [path.strip() for path in settings[key].split(",") if path.strip()]
    return []


# Log directories of several brokers, told from those of one.


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


_COPY_NOTE: Final = (
    "a {role} root is only reported on: it cannot fetch again what is cut. To cut a local copy "
    "that is yours, say --role broker; a local mirror also takes --allow-truncate and --salvage DIR"
)
_LOG_DIRECTORY_MARKS: Final = (
    META_PROPERTIES_FILE,
    MANAGED_ROOT_FILE,
    # A log directory that lost the first, or never had it, has some of these.
    RECOVERY_POINT_FILE,
    LOG_START_FILE,
    REPLICATION_FILE,
    CLEANER_FILE,
)
_KEY_SIDECARS: Final = "--key-sidecars"
_NOW_SWITCH: Final = "--now-ms"
# The clock is read before Spark starts, and a broker that still runs writes checkpoints meanwhile:
# that it runs is what has to be said then.
_CLOCK_TOLERANCE_MS: Final = 120_000


def check_roots(
    roots: Sequence[LogRoot],
    options: JobOptions,
    *,
    may_write_mirror: bool = False,
    are_of_brokers: bool = False,
) -> None:
    """Refuse a run that may not be made on these roots.

    Args:
        may_write_mirror: Whether the owner allowed even a mirror to be changed.
        are_of_brokers: Whether they may be of several brokers.
    """
    for root in roots:
        if root.role.facts.is_owned_by_broker and local_path(root.location) is None:
            raise ConfigError("--role", root.role, f"{root.location} is no directory of this host")
        if root.role.facts.is_owned_by_broker:
            check_configured(root.location, options)
        if not options.dry_run and not (may_write_mirror and root.role.facts.is_synced):
            require_role(root.role if root.is_said else None, root.location)
        if not options.dry_run and local_path(root.location) is None:
            check_off_object(root.location)
        elif not options.dry_run:
            check_local_directory(root.location, options.limits.overrides)
        _check_clock(root, options)
    check_ledger(roots, options.ledger)
    check_outside(METRICS_FILE.label, options.metrics_file, roots)
    _check_trash(roots, options.trash)
    check_key_sidecars(options.cleaner.key_sidecars, roots)
    check_outside("--plan-out", options.plan_out, roots)
    if not are_of_brokers:
        _check_one_broker([root for root in roots if root.role.facts.is_owned_by_broker])


def _check_clock(root: LogRoot, options: JobOptions) -> None:
    """Refuse the machine's clock if it is wrong for sure. A clock from an option is not checked."""
    if options.now_is_said:
        return
    newest = root.open().newest_write_ms()
    if options.now_ms + _CLOCK_TOLERANCE_MS < newest:
        raise GuardRefusedError(
            "CLOCK_BEFORE_CHECKPOINT",
            f"{root.location}: this machine's clock says {time_text(options.now_ms)}, the newest "
            f"{'run' if root.role.facts.has_manifests else 'checkpoint'} is of {time_text(newest)}",
            f"{_NOW_SWITCH} {newest}",
        )


def check_ledger(roots: Sequence[LogRoot], ledger: str | None) -> None:
    """Refuse a ledger in a log directory: its folder stops a broker."""
    if ledger is None:
        return
    if has_password(ledger):
        reason = "Spark writes a URL into its logs; give the password as a setting of spark.hadoop"
        raise ConfigError("--ledger", ledger, reason)
    scheme, path = _split_url(ledger)
    if scheme in {"", "file"}:
        # Spark takes the path of a URL as it stands, other programs without its escapes.
        for place in {path, unquote(path)}:
            check_outside("--ledger", place, roots, value=ledger)
        return
    for root in roots:
        if _is_below(ledger, root.location):
            raise ConfigError("--ledger", ledger, f"lies inside the root {root.location}")


def _split_url(place: str) -> tuple[str, str]:
    """Return scheme and path of a URL, also ``file:/a``, as Hadoop."""
    parts = urlsplit(place)
    if parts.scheme == "file" or "://" in place:
        return parts.scheme, parts.path
    return "", place


def _is_below(url: str, root: str) -> bool:
    """Whether a URL leads into a root that is one."""
    (scheme, _, place), (of_root, _, folder) = url.partition("://"), root.partition("://")
    is_same_store = {scheme, of_root} <= {"s3", "s3a", "s3n"} or scheme == of_root
    return bool(folder) and is_same_store and f"{place}/".startswith(folder.rstrip("/") + "/")


def _check_trash(roots: Sequence[LogRoot], trash: str | None) -> None:
    """Refuse a trash in a log directory, as with the ledger. Managed roots do not use a trash."""
    if not roots or any(not root.role.facts.keeps_generations for root in roots):
        check_outside("--trash", trash, roots)


def check_outside(
    option: str,
    place: str | Path | None,
    roots: Sequence[LogRoot] = (),
    *,
    value: object = None,
    log_directories: Iterable[Path] = (),
) -> None:
    """Refuse a place for our files inside any broker's log directory.

    What tells a log directory is that it is one of the run's, or what brokers and managed roots
    keep at its top. A place is inside of all the folders that its name leads through, and of those
    in which it lies once links are followed.

    Args:
        place: A path; None for none.
        value: What was said, where the place is only a part of it.
        log_directories: More of which it is known.
    """
    if place is None:
        return
    directories = {
        path.resolve()
        for root in roots
        if (path := local_path(plain_places(root.location))) is not None
    }
    directories |= {path.resolve() for path in log_directories}
    for path in dict.fromkeys((plain_path(Path(place)), Path(os.path.realpath(place)))):
        for folder in (path, *path.parents):
            is_marked = any(os.path.lexists(folder / name) for name in _LOG_DIRECTORY_MARKS)
            if is_marked or folder in directories:
                reason = f"lies inside the log directory {folder}"
                raise ConfigError(option, value or place, reason)


def check_key_sidecars(
    folder: str, roots: Sequence[LogRoot] = (), *, log_directories: Iterable[Path] = ()
) -> None:
    """Refuse a key-sidecar folder in a log directory, or not ours alone.

    Args:
        folder: As it was said; empty for none.
    """
    if not folder:
        return
    check_outside(_KEY_SIDECARS, folder, roots, log_directories=log_directories)
    try:
        check_sidecar_folder(Path(folder))
    except OSError as error:
        reason = f"{error.strerror or error}; name a folder that is not there yet"
        raise ConfigError(_KEY_SIDECARS, folder, reason) from error


def _check_one_broker(roots: Sequence[LogRoot]) -> None:
    properties = {root.location: read_meta_properties(root.location) for root in roots}
    try:
        validate_one_broker({path: meta for path, meta in properties.items() if meta})
    except PylogError as error:
        raise GuardRefusedError("MIXED_DIRECTORIES", str(error)) from error


def check_salvage(roots: Sequence[LogRoot], options: JobOptions) -> None:
    """Refuse a salvage folder in a log directory: it stops a broker."""
    check_outside("--salvage", options.salvage, roots)


def check_recovery(
    roots: Sequence[LogRoot], options: JobOptions
) -> tuple[JobOptions, tuple[str, ...]]:
    """Check that a recovery may be made; only report on copies. A copy is only cut on explicit
    demand.

    Returns:
        (options, notes): those to go on with, and what a reader should know of the run.
    """
    notes: tuple[str, ...] = ()
    copies = sorted({root.role.value for root in roots if not root.role.facts.is_owned_by_broker})
    may_cut_mirror = options.allow_truncate and options.salvage is not None
    if may_cut_mirror and not options.dry_run:
        _refuse_to_cut_objects(roots)
    if copies and not may_cut_mirror and not options.dry_run and options.role is not None:
        options = replace(options, dry_run=True)
        notes = (_COPY_NOTE.format(role=" or ".join(copies)),)
    check_roots(roots, options, may_write_mirror=may_cut_mirror)
    check_salvage(roots, options)
    return options, notes


def check_truncation(roots: Sequence[LogRoot], options: JobOptions) -> None:
    """Refuse to cut followers where that may not be done."""
    check_of_brokers(roots, "only replicas in a broker's directory are cut to follow a leader")
    check_roots(roots, options, are_of_brokers=True)
    check_salvage(roots, options)


def check_of_brokers(roots: Sequence[LogRoot], reason: str) -> None:
    """Refuse roots that are no broker's directory.

    Args:
        reason: Why none of another role may be among them.
    """
    for root in roots:
        if not root.role.facts.is_owned_by_broker:
            raise ConfigError("ROOT", root.location, f"is a {root.role.value} root; {reason}")


def _refuse_to_cut_objects(roots: Iterable[LogRoot]) -> None:
    """Refuse to cut logs on object stores and in managed roots. This version only reports there."""
    for root in roots:
        if root.role.facts.has_manifests or local_path(root.location) is None:
            raise GuardRefusedError(
                "RECOVERY_IS_REPORT_ONLY",
                f"{root.location}: a {root.role.value} root there is only reported on; to cut its "
                "logs, take a copy of it (`pylog materialize`, or your sync's own tool), recover "
                "that with --allow-truncate and --salvage DIR, and ingest it into a new root",
            )
