"""Build and parse the names of a Kafka log's files and directories. No other module does so.

A partition directory is ``<topic>-<partition>``. Its files are named by the base offset of their
segment, zero padded to 20 digits, plus a suffix; a transient suffix may follow the first one
(``00000000000000000042.log.swap``). A producer snapshot is named by the offset up to which its
state is complete.
"""

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from storage_core.errors import InvalidNameError

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"
# Suffixes of transient files.
TRANSIENT_SUFFIXES: Final = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)
# A KRaft snapshot that is being removed: Kafka's log loader ignores it (REC-02).
CHECKPOINT_DELETED_SUFFIX: Final = ".checkpoint.deleted"
TEMPORARY_SUFFIX: Final = ".tmp"
# Records as Kafka wrote them up to 0.7; no later version reads them.
ANCIENT_SUFFIX: Final = ".kafka"

LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"

RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
CLEANER_FILE: Final = "cleaner-offset-checkpoint"
REPLICATION_FILE: Final = "replication-offset-checkpoint"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
META_PROPERTIES_FILE: Final = "meta.properties"
LOCK_FILE: Final = ".lock"
REMOTE_INDEX_CACHE_DIRECTORY: Final = "remote-log-index-cache"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
REMOTE_LOG_TOPIC: Final = "__remote_log_metadata"
# A snapshot of the cluster's metadata: its end offset and epoch, then this.
CLUSTER_SNAPSHOT_SUFFIX: Final = ".checkpoint"
# The snapshot that a cluster starts with, beside the metadata log.
BOOTSTRAP_SNAPSHOT_FILE: Final = "bootstrap.checkpoint"
# A node's last knowledge and vote in elections of the metadata log's leader.
QUORUM_STATE_FILE: Final = "quorum-state"
# Names in a managed root: its marker, its lease, the record of its purges, the configs of its
# topics; of each partition the manifest, former manifests and data; see docs/managed-format.md.
MANAGED_ROOT_FILE: Final = "pylog-root.json"
TOPIC_CONFIGS_FILE: Final = "pylog-topics.json"
LEASE_FILE: Final = "lease.json"
PURGED_FILE: Final = "purged.json"
MANIFEST_FILE: Final = "manifest.json"
HISTORY_DIRECTORY: Final = "history"
DATA_DIRECTORY: Final = "data"
COMPANIONS_SUFFIX: Final = ".companions"

# Our scratch files in a partition directory begin with no digit and end with no Kafka suffix, so
# that its loader ignores them.
SCRATCH_PREFIX: Final = "pylog-scratch-"
# The folder beside a log directory for a write of ``df.write`` until its commit.
STAGING_PREFIX: Final = "pylog-write-"

SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
# Suffixes of a segment's files and of snapshots.
SEGMENT_FILE_SUFFIXES: Final = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)
INDEX_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

MAX_TOPIC_LENGTH: Final = 249
MAX_OFFSET: Final = 2**63 - 1
MAX_PARTITION: Final = 2**31 - 1
_MOST_NAME: Final = 255

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]+")
_NUMBER: Final = re.compile(r"[0-9]+")
# Names are parsed several times while their directory is read, and many are equal.
_PARSED_NAMES: Final = 1 << 12
# A look lists a log directory several times, and each of its names comes once a time.
_PARSED_DIRECTORIES: Final = 1 << 14
_CLUSTER_SNAPSHOT: Final = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
_UNIQUE_DIRECTORY: Final = re.compile(
    r"(?P<partition>\S+-\S+)\.[^\s.]+-(?P<state>delete|future|stray)"
)


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A topic's name and a partition's number, from 0."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def validate_topic(topic: str) -> str:
    """Return the name if Kafka would take it for a topic."""
    if topic in {"", ".", ".."}:
        raise InvalidNameError(topic, "is not a topic name")
    if len(topic) > MAX_TOPIC_LENGTH:
        raise InvalidNameError(topic, f"a topic name has at most {MAX_TOPIC_LENGTH} characters")
    if not _TOPIC.fullmatch(topic):
        raise InvalidNameError(topic, "a topic name has only letters, digits, '.', '_' and '-'")
    return topic


@lru_cache(maxsize=_PARSED_DIRECTORIES)
def parse_partition_directory(name: str) -> TopicPartition:
    """Parse ``<topic>-<partition>``, split at the last hyphen."""
    topic, hyphen, number = name.rpartition("-")
    if not hyphen or not _NUMBER.fullmatch(number):
        raise InvalidNameError(name, "expected <topic>-<partition>")
    if int(number) > MAX_PARTITION:
        raise InvalidNameError(name, f"a partition number is at most {MAX_PARTITION}")
    return TopicPartition(validate_topic(topic), int(number))


def is_text(name: str) -> bool:
    """Tell whether a name is valid UTF-8. Python represents other bytes of a name as surrogate
    characters.

    The JVM of a broker makes a text of each name in a listing and asks the system by that text, so
    what has such a name is to it neither a file nor a directory.
    """
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def directory_state(name: str) -> str | None:
    """Return ``delete``, ``future`` or ``stray`` for a directory renamed so, else None."""
    match = _UNIQUE_DIRECTORY.fullmatch(name)
    return match["state"] if match else None


def log_file(base_offset: int) -> str:
    """Return the name of a segment's record file."""
    return segment_file(base_offset, LOG_SUFFIX)


def snapshot_file(offset: int) -> str:
    """Return the name of a producer snapshot, complete below an offset."""
    return segment_file(offset, SNAPSHOT_SUFFIX)


@lru_cache(maxsize=_PARSED_NAMES)
def segment_file(base_offset: int, suffix: str) -> str:
    """Return ``<base_offset in 20 digits><suffix>``."""
    if not 0 <= base_offset <= MAX_OFFSET:
        raise InvalidNameError(str(base_offset), "an offset lies between 0 and 2^63 - 1")
    return f"{base_offset:020d}{suffix}"


def settled_name(name: str) -> str:
    """Return a name without a transient file's suffixes."""
    for suffix in TRANSIENT_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


@lru_cache(maxsize=_PARSED_NAMES)
def offset_of(name: str) -> int | None:
    """Return the offset before a file name's first dot, else None."""
    stem = name.partition(".")[0]
    if "." not in name or not _NUMBER.fullmatch(stem) or int(stem) > MAX_OFFSET:
        return None
    return int(stem)


def is_of_no_segment(name: str) -> bool:
    """Tell whether a cleaning's file names no segment: a load refuses it."""
    return name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) and offset_of(name) is None


def is_file_name(name: str) -> bool:
    """Tell whether a log or metadata loader may read that file name. The file is in a partition
    directory."""
    is_one = name in {LEADER_EPOCH_FILE, PARTITION_METADATA_FILE}
    return is_one or offset_of(name) is not None or parse_cluster_snapshot(name) is not None


@lru_cache(maxsize=_PARSED_NAMES)
def kind_of(name: str) -> str | None:
    """Return the segment or snapshot suffix of a name, None if transient."""
    for suffix in SEGMENT_FILE_SUFFIXES:
        if name.endswith(suffix) and offset_of(name) is not None:
            return suffix
    return None


def sorted_logs(names: Iterable[str]) -> list[str]:
    """Return the .log files among some names, in order of segments."""
    logs = (name for name in names if kind_of(name) == LOG_SUFFIX)
    return sorted(logs, key=lambda name: offset_of(name) or 0)


def parse_renamed_directory(name: str) -> tuple[TopicPartition, str] | None:
    """Return partition and state of a directory that Kafka renamed, else None.

    In the name of a deleted or stray directory the topic may be cut: names have at most 255
    characters.
    """
    match = _UNIQUE_DIRECTORY.fullmatch(name)
    if match is None:
        return None
    return parse_partition_directory(match["partition"]), match["state"]


def deleted_directory(partition: TopicPartition) -> str:
    """Return a new name for the directory of a deleted partition. A broker that starts removes
    it. Source: ``LocalLog.logDeleteDirName``."""
    suffix = f"-{partition.partition}.{uuid.uuid4().hex}-delete"
    return f"{partition.topic[: _MOST_NAME - len(suffix)]}{suffix}"


def parse_cluster_snapshot(name: str) -> tuple[int, int] | None:
    """Return a metadata snapshot's exclusive end offset and epoch, else None. An unfinished
    snapshot gives None."""
    match = _CLUSTER_SNAPSHOT.fullmatch(name)
    return (int(match["offset"]), int(match["epoch"])) if match else None
