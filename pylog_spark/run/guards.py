"""What is checked before a run touches anything."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pylog_spark.options import JobOptions
from pylog_spark.options.declared import METRICS_FILE
from pylog_spark.run.catalogs import read_meta_properties
from pylog_spark.run.missing_directories import check_configured
from storage_core.catalog.roles import local_path, require_role
from storage_core.checkpoint.broker_files import validate_one_broker
from storage_core.errors import ConfigError, GuardRefusedError, PylogError
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    MANAGED_ROOT_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
)
from storage_core.maintenance.compaction.sidecar_folder import check_sidecar_folder
from storage_core.redaction import has_password
from storage_core.roots.guards import check_local_directory, check_off_object
from storage_core.roots.open_root import LogRoot
from storage_core.store.local import plain_path
from storage_core.wording import time_text

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
        path.resolve() for root in roots if (path := local_path(root.location)) is not None
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
