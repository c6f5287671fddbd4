"""Findings of verification: their stable codes and severities. Codes are stable: scripts count
and filter by them. ``finding_kinds`` explains each."""

import enum
import os
from dataclasses import dataclass
from typing import Final

from storage_core.catalog.roles import Role
from storage_core.local_files import ROOT_USER
from storage_core.log.open_transactions import MAX_TRANSACTION_TIMEOUT_MS


class Severity(enum.StrEnum):
    """The severity of a finding, mildest first.

    INFO: worth knowing. HARMLESS: looks like damage, and changes nothing that anybody reads or
    that Kafka does. WARN: costs something, such as a slow start or a wrong age; no record is lost.
    ERROR: records are lost, unreadable, or readable though they should not be. FATAL: a broker
    does not start with it, does not load the partition, or deletes its log at the start.
    """

    INFO = "info"
    HARMLESS = "harmless"
    WARN = "warn"
    ERROR = "error"
    FATAL = "fatal"

    @property
    def rank(self) -> int:
        """0 for the mildest; a higher one is worse."""
        return _RANKS[self]


_RANKS: Final = {severity: rank for rank, severity in enumerate(Severity)}


class Stops(enum.Enum):
    """The part of a start prevented by a kind of fatal finding.

    NOTHING: it is lost or wrong, and the broker starts. DIRECTORY: the broker goes on without the
    log directory; where that is the only one, or has the cluster's metadata, it ends. BROKER: it
    ends.
    """

    NOTHING = 0
    DIRECTORY = 1
    BROKER = 2


class Code(enum.StrEnum):
    """Stable name of a kind of finding."""

    # Records.
    BATCH_CRC_WRONG = "BATCH_CRC_WRONG"
    BATCH_LENGTH_IMPOSSIBLE = "BATCH_LENGTH_IMPOSSIBLE"
    TORN_TAIL = "TORN_TAIL"
    ZERO_TAIL = "ZERO_TAIL"
    TORN_SEGMENT = "TORN_SEGMENT"
    MAGIC_UNKNOWN = "MAGIC_UNKNOWN"
    LEGACY_FORMAT = "LEGACY_FORMAT"
    CONTROL_RECORD_MALFORMED = "CONTROL_RECORD_MALFORMED"
    RECORD_COUNT_NEGATIVE = "RECORD_COUNT_NEGATIVE"
    RECORDS_MALFORMED = "RECORDS_MALFORMED"
    CODEC_UNKNOWN = "CODEC_UNKNOWN"
    RECORD_OFFSET_OUTSIDE_BATCH = "RECORD_OFFSET_OUTSIDE_BATCH"
    RECORD_NEWER_THAN_BATCH = "RECORD_NEWER_THAN_BATCH"
    NEGATIVE_TIMESTAMP = "NEGATIVE_TIMESTAMP"
    # Offsets and epochs.
    OFFSETS_NOT_RISING = "OFFSETS_NOT_RISING"
    OFFSET_BELOW_BASE = "OFFSET_BELOW_BASE"
    OFFSET_OVERFLOW = "OFFSET_OVERFLOW"
    SEGMENTS_OVERLAP = "SEGMENTS_OVERLAP"
    OFFSETS_MISSING = "OFFSETS_MISSING"
    SEGMENT_TOO_LARGE = "SEGMENT_TOO_LARGE"
    EPOCH_GOES_BACK = "EPOCH_GOES_BACK"
    EPOCH_DOUBTFUL = "EPOCH_DOUBTFUL"
    EPOCH_FILE_MISSING = "EPOCH_FILE_MISSING"
    EPOCH_FILE_BROKEN = "EPOCH_FILE_BROKEN"
    EPOCH_FILE_NOT_RISING = "EPOCH_FILE_NOT_RISING"
    EPOCH_FILE_SHORT = "EPOCH_FILE_SHORT"
    EPOCH_FILE_WRONG = "EPOCH_FILE_WRONG"
    TIERED_EPOCHS_MISSING = "TIERED_EPOCHS_MISSING"
    # Indexes.
    OFFSET_INDEX_MISSING = "OFFSET_INDEX_MISSING"
    TIME_INDEX_MISSING = "TIME_INDEX_MISSING"
    TIME_INDEX_EMPTY = "TIME_INDEX_EMPTY"
    TXN_INDEX_MISSING = "TXN_INDEX_MISSING"
    INDEX_PREALLOCATED = "INDEX_PREALLOCATED"
    INDEX_RAGGED = "INDEX_RAGGED"
    INDEX_BEYOND_LOG = "INDEX_BEYOND_LOG"
    OFFSET_INDEX_WRONG = "OFFSET_INDEX_WRONG"
    TIME_INDEX_WRONG = "TIME_INDEX_WRONG"
    TIME_INDEX_UNFINISHED = "TIME_INDEX_UNFINISHED"
    TIME_INDEX_PADDED = "TIME_INDEX_PADDED"
    TXN_INDEX_BROKEN = "TXN_INDEX_BROKEN"
    TXN_INDEX_VERSION_UNKNOWN = "TXN_INDEX_VERSION_UNKNOWN"
    TXN_INDEX_INCOMPLETE = "TXN_INDEX_INCOMPLETE"
    TXN_INDEX_WRONG = "TXN_INDEX_WRONG"
    # Producers and transactions.
    SNAPSHOT_CORRUPT = "SNAPSHOT_CORRUPT"
    SNAPSHOT_MISSING = "SNAPSHOT_MISSING"
    SNAPSHOT_STRAY = "SNAPSHOT_STRAY"
    SNAPSHOT_WRONG = "SNAPSHOT_WRONG"
    TRANSACTION_OPEN = "TRANSACTION_OPEN"
    TRANSACTION_HANGING = "TRANSACTION_HANGING"
    TRANSACTION_STATE_INVALID = "TRANSACTION_STATE_INVALID"
    # Records of coordinators.
    COORDINATOR_NOT_LOADED = "COORDINATOR_NOT_LOADED"
    COORDINATOR_RECORD_IGNORED = "COORDINATOR_RECORD_IGNORED"
    # Files of a partition.
    NO_SEGMENT = "NO_SEGMENT"
    INDEX_WITHOUT_LOG = "INDEX_WITHOUT_LOG"
    LEFTOVER = "LEFTOVER"
    SWAP_UNFINISHED = "SWAP_UNFINISHED"
    FILE_UNKNOWN = "FILE_UNKNOWN"
    SEGMENT_RENAMED = "SEGMENT_RENAMED"
    FILE_ANCIENT = "FILE_ANCIENT"
    FILE_NAME_UNPADDED = "FILE_NAME_UNPADDED"
    FILE_NAME_INVALID = "FILE_NAME_INVALID"
    FILE_UNREADABLE = "FILE_UNREADABLE"
    FILE_IS_FOLDER = "FILE_IS_FOLDER"
    FILE_FORBIDDEN = "FILE_FORBIDDEN"
    CHANGED_WHILE_READ = "CHANGED_WHILE_READ"
    PARTITION_METADATA_MISSING = "PARTITION_METADATA_MISSING"
    PARTITION_METADATA_BROKEN = "PARTITION_METADATA_BROKEN"
    PARTITION_METADATA_EMPTY = "PARTITION_METADATA_EMPTY"
    TOPIC_ID_INCONSISTENT = "TOPIC_ID_INCONSISTENT"
    # Checkpoints of a log directory.
    CHECKPOINT_BROKEN = "CHECKPOINT_BROKEN"
    CHECKPOINT_PARTITION_UNKNOWN = "CHECKPOINT_PARTITION_UNKNOWN"
    HIGH_WATERMARKS_UNKNOWN = "HIGH_WATERMARKS_UNKNOWN"
    RECOVERY_POINT_BEYOND_END = "RECOVERY_POINT_BEYOND_END"
    LOG_START_BEYOND_END = "LOG_START_BEYOND_END"
    HIGH_WATERMARK_BEYOND_END = "HIGH_WATERMARK_BEYOND_END"
    CLEANER_POINT_OUTSIDE_LOG = "CLEANER_POINT_OUTSIDE_LOG"
    # Log directories.
    UNCLEAN_SHUTDOWN = "UNCLEAN_SHUTDOWN"
    DIRECTORY_FOREIGN = "DIRECTORY_FOREIGN"
    DIRECTORY_DELETED = "DIRECTORY_DELETED"
    DIRECTORY_STRAY = "DIRECTORY_STRAY"
    DIRECTORY_FUTURE = "DIRECTORY_FUTURE"
    LOG_DIRECTORY_FORBIDDEN = "LOG_DIRECTORY_FORBIDDEN"
    LOG_DIRECTORY_ABSENT = "LOG_DIRECTORY_ABSENT"
    DISK_FULL = "DISK_FULL"
    PARTITION_DUPLICATE = "PARTITION_DUPLICATE"
    PARTITION_LINKED = "PARTITION_LINKED"
    PARTITION_STRAYED = "PARTITION_STRAYED"
    PARTITION_ABSENT = "PARTITION_ABSENT"
    FUTURE_ALONE = "FUTURE_ALONE"
    FUTURE_PROMOTED = "FUTURE_PROMOTED"
    FUTURE_BESIDE_LOG = "FUTURE_BESIDE_LOG"
    META_PROPERTIES_MISSING = "META_PROPERTIES_MISSING"
    META_PROPERTIES_BROKEN = "META_PROPERTIES_BROKEN"
    META_PROPERTIES_INCOMPLETE = "META_PROPERTIES_INCOMPLETE"
    DIRECTORIES_INCONSISTENT = "DIRECTORIES_INCONSISTENT"
    NODE_ID_WRONG = "NODE_ID_WRONG"
    # The cluster's metadata.
    CLUSTER_METADATA_BROKEN = "CLUSTER_METADATA_BROKEN"
    BOOTSTRAP_SNAPSHOT_CUT = "BOOTSTRAP_SNAPSHOT_CUT"
    CLUSTER_METADATA_CUT = "CLUSTER_METADATA_CUT"
    FEATURE_LEVEL_UNKNOWN = "FEATURE_LEVEL_UNKNOWN"
    TOPIC_CONFIG_REFUSED = "TOPIC_CONFIG_REFUSED"
    BROKER_CONFIG_IGNORED = "BROKER_CONFIG_IGNORED"
    QUORUM_STATE_BROKEN = "QUORUM_STATE_BROKEN"
    # A tier: what lies there, what its objects contain, what brokers know of it.
    TIER_OBJECT_UNKNOWN = "TIER_OBJECT_UNKNOWN"
    TIER_UPLOAD_UNFINISHED = "TIER_UPLOAD_UNFINISHED"
    TIER_TOPIC_TWICE = "TIER_TOPIC_TWICE"
    TIER_SEGMENT_INCOMPLETE = "TIER_SEGMENT_INCOMPLETE"
    TIER_OBJECT_SIZE_WRONG = "TIER_OBJECT_SIZE_WRONG"
    TIER_MANIFEST_BROKEN = "TIER_MANIFEST_BROKEN"
    TIER_OFFSETS_MISSING = "TIER_OFFSETS_MISSING"
    TIER_SEGMENTS_OVERLAP = "TIER_SEGMENTS_OVERLAP"
    TIER_SEGMENT_TWIN = "TIER_SEGMENT_TWIN"
    TIER_HISTORY_UNREAD = "TIER_HISTORY_UNREAD"
    TIER_CHUNK_BROKEN = "TIER_CHUNK_BROKEN"
    TIER_FILE_BROKEN = "TIER_FILE_BROKEN"
    TIER_END_WRONG = "TIER_END_WRONG"
    TIER_SEGMENT_UNRECORDED = "TIER_SEGMENT_UNRECORDED"
    TIER_SEGMENT_LOST = "TIER_SEGMENT_LOST"
    TIER_UPLOAD_STOPPED = "TIER_UPLOAD_STOPPED"
    TIER_DELETION_STOPPED = "TIER_DELETION_STOPPED"
    TIER_SEGMENT_LEAKED = "TIER_SEGMENT_LEAKED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding of verification."""

    code: Code
    severity: Severity
    message: str  # the expected and the actual content
    file: str = ""  # name of the file, or of a directory; empty where a whole partition is meant
    position: int | None = None  # byte position in that file, None where none is meant
    offset: int | None = None  # offset of a record, None where none is meant
    fix: str = ""  # the repair of this one; empty for the one of its kind


# Options of a verification, and the context for severities.


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Depth, clock and limits of a verification."""

    now_ms: int
    is_deep: bool = False  # also open every batch: its records, and snapshots against a replay
    is_live: bool = False  # somebody may be writing meanwhile: files may vanish or grow
    window_bytes: int = 8 << 20  # bytes of a segment that are held at a time, by each thread
    threads: int = 1  # how many threads check the batches of a segment, in a look that is not deep
    max_record_bytes: int = 2**31 - 1  # largest record that a batch may expand to, in a deep look
    max_batch_bytes: int = 1 << 30  # largest batch, decompressed, in a deep look
    # Longest time that a transaction may be open (``transaction.max.timeout.ms``).
    transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class BrokerUser:
    """The user that owns most of a log directory."""

    number: int  # the system's number of it

    def may(self, facts: os.stat_result, access: int) -> bool:
        """Whether the user has these rights, for a group's any group.

        Args:
            access: The bits of one digit of a file's mode.
        """
        if self.number == ROOT_USER:
            return True
        of_others = facts.st_mode | facts.st_mode >> 3
        mode = facts.st_mode >> 6 if facts.st_uid == self.number else of_others
        return mode & access == access


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryContext:
    """The role and state of a log directory, which decide some severities."""

    role: Role
    is_clean: bool  # whether it has the marker of a clean shutdown
    # The user to whom a broker's files must be open; None to check nobody.
    user: BrokerUser | None = None
    # Whether the cluster's metadata say that the topic has segments in remote storage.
    is_tiered: bool = False

    @property
    def is_copy(self) -> bool:
        """Whether a foreign sync writes here, so files may differ in age."""
        return self.role.facts.is_synced

    def tail_severity(self, unclosed: Severity) -> Severity:
        """Return the severity of bytes behind the last batch of a log.

        Args:
            unclosed: In a broker's directory that was not closed, where recovery cuts them.
        """
        if self.is_copy:
            return Severity.HARMLESS
        return Severity.ERROR if self.is_clean else unclosed

    def copy_severity(self, of_broker: Severity) -> Severity:
        """Return the severity of a checkpoint that is ahead of its log."""
        return Severity.WARN if self.is_copy else of_broker
