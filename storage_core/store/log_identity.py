"""Read and compare the ids of a partition directory's log.

What was written down about a log (a plan, trash, a salvage) is about the log of one topic id in one
cluster. The offsets of another log mean other records.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from storage_core.checkpoint.broker_files import MAX_META_PROPERTIES_BYTES, parse_meta_properties
from storage_core.checkpoint.checkpoints import (
    MAX_PARTITION_METADATA_BYTES,
    parse_partition_metadata,
)
from storage_core.errors import InconsistentClusterIdError, InconsistentTopicIdError, StorageError
from storage_core.filenames import META_PROPERTIES_FILE, PARTITION_METADATA_FILE
from storage_core.json_values import OMITTED, Word
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """The ids of a log; None where no file says one."""

    topic_id: Annotated[Word | None, OMITTED] = None
    # The id in the log directory's ``meta.properties``.
    cluster_id: Annotated[Word | None, OMITTED] = None

    def require(self, expected: "LogIdentity", location: str) -> None:
        """Check that a partition directory still holds the same log. An id that only one side has
        contradicts nothing.

        Args:
            expected: The ids as they were written down; these are those that are there.
        """
        if None not in {expected.cluster_id, self.cluster_id} and (
            expected.cluster_id != self.cluster_id
        ):
            path = f"{Path(location).parent}/{META_PROPERTIES_FILE}"
            raise InconsistentClusterIdError(path, str(expected.cluster_id), str(self.cluster_id))
        if None not in {expected.topic_id, self.topic_id} and expected.topic_id != self.topic_id:
            path = f"{location}/{PARTITION_METADATA_FILE}"
            raise InconsistentTopicIdError(path, str(expected.topic_id), str(self.topic_id))


def topic_id_of(store: LogStore) -> str | None:
    """Return the topic id in ``partition.metadata``, None without the file."""
    # Ask a disk for this one file: a listing costs as much as the partition has files.
    if not isinstance(store, LocalStore) and all(
        file.name != PARTITION_METADATA_FILE for file in store.list_files()
    ):
        return None
    try:
        content = store.read_file(PARTITION_METADATA_FILE, limit_bytes=MAX_PARTITION_METADATA_BYTES)
    except StorageError as error:
        if isinstance(store, LocalStore) and isinstance(
            error.__cause__, FileNotFoundError | NotADirectoryError
        ):
            return None
        raise
    file = f"{store.location}/{PARTITION_METADATA_FILE}"
    return parse_partition_metadata(content, file=file).topic_id


def read_identity(store: LogStore) -> LogIdentity:
    """Return the ids of the log in a partition directory."""
    if not isinstance(store, LocalStore):
        return LogIdentity(topic_id=topic_id_of(store))
    cluster_id, root = None, LocalStore(Path(store.location).parent, may_be_link=True)
    if root.has(META_PROPERTIES_FILE):
        content = root.read_file(META_PROPERTIES_FILE, limit_bytes=MAX_META_PROPERTIES_BYTES)
        file = f"{root.location}/{META_PROPERTIES_FILE}"
        cluster_id = parse_meta_properties(content, file=file).cluster_id
    return LogIdentity(topic_id=topic_id_of(store), cluster_id=cluster_id)
