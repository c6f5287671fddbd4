"""Make the metadata log of a node: whole or not at all.

It is written under a name that a start passes over, and renamed once all of it is on the disk.
Nothing is replaced but what ``kafka-storage format`` writes. The directory's identity follows the
log: a controller that has the one and not the other begins an empty cluster.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from storage_core.catalog.bootstrap_snapshot import BOOTSTRAP_SNAPSHOT
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    MetaProperties,
    encode_meta_properties,
    parse_meta_properties,
)
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.commit import CommitPlan, RestoreFile, SyncDirectory, WriteFile, commit
from storage_core.commit.scratch import METADATA_LOG, remove_unfinished, unfinished_name
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.filenames import LOCK_FILE, LOG_SUFFIX, META_PROPERTIES_FILE, kind_of
from storage_core.local_files import entry_names, facts_in, is_there, open_file, open_folder
from storage_core.store.local import LocalStore, make_folder_like, storage_errors


def missing_properties(directory: Path, wanted: MetaProperties) -> MetaProperties | None:
    """Return the identity that a directory lacks, None for none. Without a directory id a node
    gives its directory one when it starts."""
    if not is_there(directory, may_be_link=True) or not directory.is_dir():
        raise ConfigError("--into", directory, "no such directory")
    store = LocalStore(directory, may_be_link=True)
    if any(kind_of(entry.name) == LOG_SUFFIX for entry in store.scan()):
        raise ConfigError("--into", directory, "expected a log directory, found a log's files")
    if not store.has(META_PROPERTIES_FILE):
        return wanted
    data = store.read_file(META_PROPERTIES_FILE, limit_bytes=MAX_META_PROPERTIES_BYTES)
    present = parse_meta_properties(data, file=str(directory / META_PROPERTIES_FILE))
    for name in ("cluster_id", "node_id", "directory_id"):
        want, value = getattr(wanted, name), getattr(present, name)
        if want is not None and value != want:
            raise ConfigError(
                "--into", directory, f"expected {name} {want} in {META_PROPERTIES_FILE}: {value}"
            )
    return None


def has_at_most_format(directory: Path) -> bool:
    """Return whether a log directory's metadata log is absent, or just formatted."""
    log = directory / CLUSTER_METADATA_DIRECTORY
    with storage_errors(log):
        if not is_there(log, may_be_link=True):
            return True
    return [entry.name for entry in LocalStore(log).scan()] == [BOOTSTRAP_SNAPSHOT]


def has_only_metadata(directory: Path) -> bool:
    """Return whether a log directory has nothing but identity and metadata."""
    with storage_errors(directory):
        names = set(entry_names(directory, may_be_link=True))
    return names <= {META_PROPERTIES_FILE, CLUSTER_METADATA_DIRECTORY, LOCK_FILE}


def log_is_there(directory: Path) -> GuardRefusedError:
    """Return the refusal of a log directory that has a metadata log."""
    log = directory / CLUSTER_METADATA_DIRECTORY
    return GuardRefusedError("TARGET_NOT_EMPTY", f"{log} is there: nothing is replaced")


def write_metadata_log(
    directory: Path,
    lock: LogDirectoryLock,
    operations: Sequence[RestoreFile | WriteFile],
) -> None:
    """Write a metadata log, in place of a formatted one. The files get the owner of the
    directory."""
    home = LocalStore(directory, may_be_link=True)
    unfinished = directory / unfinished_name(METADATA_LOG)
    make_folder_like(home, unfinished)
    store = LocalStore(unfinished)
    last = SyncDirectory(reason="the log is whole")
    commit(CommitPlan(location=store.location, operations=(*operations, last)), store)
    for operation in operations:
        if isinstance(operation, RestoreFile):
            _own(home, unfinished / operation.name)
    lock.validate_held()
    with storage_errors(directory), open_folder(directory, may_be_link=True) as above:
        if facts_in(above, CLUSTER_METADATA_DIRECTORY) is not None:
            os.rename(
                CLUSTER_METADATA_DIRECTORY,
                unfinished_name(METADATA_LOG),
                src_dir_fd=above,
                dst_dir_fd=above,
            )
        os.rename(unfinished.name, CLUSTER_METADATA_DIRECTORY, src_dir_fd=above, dst_dir_fd=above)
        os.fsync(above)
    remove_unfinished(directory)


def write_identity(directory: Path, properties: MetaProperties | None) -> None:
    """Let a node start in a directory that has its metadata log.

    Args:
        properties: The content of its ``meta.properties``; None where that is there.
    """
    if properties is not None:
        store = LocalStore(directory, may_be_link=True)
        store.write_file(META_PROPERTIES_FILE, encode_meta_properties(properties))


def _own(home: LocalStore, file: Path) -> None:
    """Give a copied file the owner of the voter's directory."""
    with storage_errors(file):
        descriptor = open_file(file)
        try:
            home.hand_on_ownership(descriptor, file.name)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
