"""Whether a run was given every log directory of its broker.

The marker of a clean shutdown in one directory is a claim about the broker: if another directory of
it lies elsewhere and was not recovered, the claim would be false.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pylog_spark.options import JobOptions
from pylog_spark.run.catalogs import read_meta_properties
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    read_cluster_metadata,
)
from storage_core.checkpoint.broker_files import MetaProperties, is_same_broker
from storage_core.errors import LogDirectoryNotFoundError, PylogError
from storage_core.local_files import entry_names
from storage_core.maintenance.verification.prescription import recover_command
from storage_core.roots.open_root import LogRoot

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
