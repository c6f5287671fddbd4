"""What is checked before a run touches anything."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pylog_spark.config import JobOptions
from pylog_spark.discovery import LogRoot
from pylog_spark.operations.broker_root import newest_checkpoint_ms
from pylog_spark.operations.catalogs import read_meta_properties
from pylog_spark.operations.managed_root import newest_write_ms
from pylog_spark.operations.missing_directories import check_configured
from pylog_spark.operations.root_guards import check_local_directory, check_off_object
from storage_core.catalog.roles import Role, local_path, require_said_role
from storage_core.checkpoint.meta_properties import validate_one_broker
from storage_core.errors import ConfigError, GuardRefusedError, PylogError

_NOW_SWITCH: Final = "--now-ms"
# The clock is read before Spark starts, and a broker that still runs writes checkpoints meanwhile:
# that it runs is what has to be said then.
_CLOCK_TOLERANCE_MS: Final = 120_000


def check_roots(
    roots: Sequence[LogRoot], options: JobOptions, *, may_write_mirror: bool = False
) -> None:
    """Refuse a run that may not be made on these roots.

    Args:
        roots: The log directories.
        options: What is to be done.
        may_write_mirror: Whether the owner allowed even a mirror to be changed.

    Raises:
        ConfigError: The ledger or the trash would lie inside a log directory, or a URL is said to
            be a broker's.
        LogDirectoryNotFoundError: The broker's own file does not have one of its directories.
        GuardRefusedError: A role was not said or allows no writing, the roots are of several
            brokers, the machine's own clock is behind the newest checkpoint, or a directory is
            not to be changed, or not by this process.
    """
    for root in roots:
        if root.role is Role.BROKER and local_path(root.location) is None:
            raise ConfigError("--role", root.role, f"{root.location} is no directory of this host")
        if root.role is Role.BROKER:
            check_configured(root.location, options)
        if not options.dry_run and not (may_write_mirror and root.role is Role.MIRROR):
            require_said_role(root.role if root.is_said else None, root.location)
        if not options.dry_run and local_path(root.location) is None:
            check_off_object(root.location)
        elif not options.dry_run:
            check_local_directory(root.location, options)
        _check_clock(root, options)
        check_ledger(root, options.ledger)
        check_trash(root, options.trash)
    _check_one_broker([root for root in roots if root.role is Role.BROKER])


def _check_clock(root: LogRoot, options: JobOptions) -> None:
    """Refuse the machine's clock if it is wrong for sure; one that was said is taken as it is."""
    if options.now_is_said:
        return
    is_managed = root.role is Role.MANAGED
    newest = (newest_write_ms if is_managed else newest_checkpoint_ms)(root.location)
    if options.now_ms + _CLOCK_TOLERANCE_MS < newest:
        raise GuardRefusedError(
            "CLOCK_BEFORE_CHECKPOINT",
            f"{root.location}: this machine's clock says {options.now_ms} ms, the newest "
            f"{'run' if is_managed else 'checkpoint'} is of {newest} ms",
            f"{_NOW_SWITCH} {newest}",
        )


def check_ledger(root: LogRoot, ledger: str | None) -> None:
    """Refuse a ledger in a log directory: a broker stops at a folder that is no partition."""
    place = None if ledger is None else local_path(ledger)
    if place is not None and place.resolve().is_relative_to(Path(root.location).resolve()):
        raise ConfigError("--ledger", ledger, f"lies inside the log directory {root.location}")


def check_trash(root: LogRoot, trash: str | None) -> None:
    """Refuse a trash in a log directory, for the same reason; nothing of managed roots gets there.

    Raises:
        ConfigError: It lies there.
    """
    if trash is None or root.role is Role.MANAGED or local_path(root.location) is None:
        return
    if Path(trash).resolve().is_relative_to(Path(root.location).resolve()):
        raise ConfigError("--trash", trash, f"lies inside the log directory {root.location}")


def _check_one_broker(roots: Sequence[LogRoot]) -> None:
    properties = {root.location: read_meta_properties(root.location) for root in roots}
    try:
        validate_one_broker({path: known for path, known in properties.items() if known})
    except PylogError as error:
        raise GuardRefusedError("MIXED_DIRECTORIES", str(error)) from error


def check_salvage(roots: Sequence[LogRoot], options: JobOptions) -> None:
    """Refuse a folder for salvage in a log directory, where it would keep a broker from starting.

    Raises:
        ConfigError: It lies in one.
    """
    if options.salvage is None:
        return
    place = Path(options.salvage).resolve()
    for root in roots:
        if place.is_relative_to(Path(root.location).resolve()):
            raise ConfigError(
                "--salvage", options.salvage, f"lies inside the log directory {root.location}"
            )
