"""Every table's columns, declared once.

The Arrow side is what executors and readers without a JVM use; ``spark_ddl`` gives the same table
to Spark. Nothing here imports pyspark. Each column carries what it means as its comment, which
Spark, Delta and a reader of this file see alike.

Rows that people read (results, findings, runs, operations, plans, partitions, segments) name the
partition by root, topic and number. Rows that travel between the stages of one job name it by its
``ordinal``, the row number in the table of planned partitions that the driver holds.
"""

import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from pylog_spark.text import valid_texts


class Action(enum.StrEnum):
    """What a run, or a result row, is about; RUN is a night of several steps, a row is of one."""

    RUN = "run"
    COMPACT = "compact"
    RECOVER = "recover"
    RETAIN = "retain"
    VERIFY = "verify"
    UNDO = "undo"
    PURGE = "purge"
    INGEST = "ingest"
    MATERIALIZE = "materialize"
    SURVEY = "survey"


class Status(enum.StrEnum):
    """How an action on one partition ended."""

    PLANNED = "planned"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


class Reason(enum.StrEnum):
    """Why a partition was left alone, or was not done; stable codes."""

    CONFIG_UNKNOWN = "CONFIG_UNKNOWN"
    NOT_COMPACTED = "NOT_COMPACTED"
    CLEANER_DISABLED = "CLEANER_DISABLED"
    NOTHING_TO_CLEAN = "NOTHING_TO_CLEAN"
    RATIO_BELOW_MINIMUM = "RATIO_BELOW_MINIMUM"
    NO_HIGH_WATERMARK = "NO_HIGH_WATERMARK"
    UNCLEAN_SHUTDOWN = "UNCLEAN_SHUTDOWN"
    RECOVERY_REQUIRED = "RECOVERY_REQUIRED"
    TIERED = "TIERED"
    INTERNAL_METADATA = "INTERNAL_METADATA"
    FUTURE_DIRECTORY = "FUTURE_DIRECTORY"
    DELETE_DIRECTORY = "DELETE_DIRECTORY"
    STRAY_DIRECTORY = "STRAY_DIRECTORY"
    INVALID_DIRECTORY_NAME = "INVALID_DIRECTORY_NAME"
    DUPLICATE_PARTITION = "DUPLICATE_PARTITION"
    NO_SPACE = "NO_SPACE"
    SEGMENT_SPLIT = "SEGMENT_SPLIT"
    BUDGET_SPENT = "BUDGET_SPENT"
    DELETES_TOO_MUCH = "DELETES_TOO_MUCH"
    CLOCK_PAST_RETENTION = "CLOCK_PAST_RETENTION"
    SWITCHED_OFF = "SWITCHED_OFF"
    REMOTE_STORAGE = "REMOTE_STORAGE"
    INCONSISTENT_TOPIC_ID = "INCONSISTENT_TOPIC_ID"
    NOTHING_TO_RECOVER = "NOTHING_TO_RECOVER"
    NOTHING_TO_RETAIN = "NOTHING_TO_RETAIN"
    COMPACTED = "COMPACTED"
    INPUTS_CHANGED = "INPUTS_CHANGED"
    CHANGED_SINCE_RUN = "CHANGED_SINCE_RUN"
    RUN_NOT_ENDED = "RUN_NOT_ENDED"
    ALREADY_UNDONE = "ALREADY_UNDONE"
    PURGED = "PURGED"
    NOTHING_TO_INGEST = "NOTHING_TO_INGEST"
    OVERLAPPING_SEGMENTS = "OVERLAPPING_SEGMENTS"
    MIXED_REPLICAS = "MIXED_REPLICAS"
    MISSING_SEGMENTS = "MISSING_SEGMENTS"
    UNFINISHED_SWAP = "UNFINISHED_SWAP"
    NO_SEGMENTS = "NO_SEGMENTS"
    NOTHING_TO_MATERIALIZE = "NOTHING_TO_MATERIALIZE"
    TARGET_NOT_EMPTY = "TARGET_NOT_EMPTY"
    TARGET_IS_OLDER = "TARGET_IS_OLDER"
    CUTS_BELOW_HIGH_WATERMARK = "CUTS_BELOW_HIGH_WATERMARK"
    CUTS_TOO_MUCH = "CUTS_TOO_MUCH"
    CUTS_WHOLE_LOG = "CUTS_WHOLE_LOG"


# What lifts the refusal of a deletion by a guard, for those that a run should count.
ALLOWED_BY: Final[Mapping[str, str]] = {
    Reason.DELETES_TOO_MUCH: "--max-delete-ratio 1",
    Reason.CLOCK_PAST_RETENTION: f"--override {Reason.CLOCK_PAST_RETENTION}",
}


class RunEvent(enum.StrEnum):
    """A run leaves two rows; one that has no END died."""

    START = "START"
    END = "END"


def _column(name: str, arrow_type: pa.DataType, comment: str) -> pa.Field:
    return pa.field(name, arrow_type, metadata={"comment": comment})


_TEXT: Final = pa.string()
_NUMBER: Final = pa.int64()
_PARTITION_NAME: Final = [
    _column("root", _TEXT, "log directory, as the run was given it"),
    _column("topic", _TEXT, "topic, null where the directory's name gives none"),
    _column("partition", pa.int32(), "number of the partition, null as the topic is"),
]
_ORDINAL: Final = _column("ordinal", _NUMBER, "row of the partition in the run's own table")
_ERROR: Final = [
    _column("error_class", _TEXT, "class of the error, null without one"),
    _column("error", _TEXT, "what went wrong, with file and position"),
]

_RETENTION_LIMITS: Final = [
    _column("retention_ms", _NUMBER, "age by which retention went, -1 for none; null elsewhere"),
    _column("retention_bytes", _NUMBER, "size by which it went, -1 for none; null elsewhere"),
]

# What a listing or an inventory has found in a partition directory; null where nobody has looked.
_LISTED_FILES: Final = [
    _column("file_names", pa.list_(_TEXT), "its files, null where they were not listed"),
    _column("file_bytes", pa.list_(_NUMBER), "their lengths"),
    _column("file_times_ms", pa.list_(_NUMBER), "their modification times, epoch milliseconds"),
    _column("file_etags", pa.list_(_TEXT), "the store's tags of their contents, empty without"),
]

RESULT: Final = pa.schema(
    [
        _column("run_id", _TEXT, "the run that wrote the row"),
        *_PARTITION_NAME,
        _column("action", _TEXT, "compact, ..."),
        _column("status", _TEXT, "planned, done, skipped or failed"),
        _column("reason", _TEXT, "stable code that says why it was skipped, null otherwise"),
        _column("bytes_before", _NUMBER, "bytes of all .log files"),
        _column("bytes_after", _NUMBER, "the same afterwards; an upper bound while planned"),
        _column("records_before", _NUMBER, "records of the partition, null where none were read"),
        _column("records_after", _NUMBER, "the same afterwards, null while planned"),
        _column("segments_before", _NUMBER, "segments of the partition"),
        _column("segments_after", _NUMBER, "the same afterwards, null while planned"),
        _column("duration_ms", _NUMBER, "time that tasks spent on it, summed over the tasks"),
        *_ERROR,
        _column("directory", _TEXT, "the partition's own directory; a copy or remains have others"),
        *_RETENTION_LIMITS,
    ]
)

_FINDING_COLUMNS: Final = [
    _column("severity", _TEXT, "info, harmless, warn, error or fatal"),
    _column("code", _TEXT, "stable code of the kind of finding"),
    _column("topic", _TEXT, "topic, null where it is about a whole directory"),
    _column("partition", pa.int32(), "number of the partition, null as the topic is"),
    _column("file", _TEXT, "file it is about"),
    _column("position", _NUMBER, "byte position in that file"),
    _column("offset", _NUMBER, "offset of the record it is about"),
    _column("message", _TEXT, "what was found"),
    _column("fix", _TEXT, "the command or step that mends it"),
]

FINDING: Final = pa.schema(_FINDING_COLUMNS)

# A finding as the ledger keeps it.
RECORDED_FINDING: Final = pa.schema(
    [
        _column("run_id", _TEXT, "the run that found it"),
        _column("root", _TEXT, "log directory, as the run was given it"),
        *_FINDING_COLUMNS,
    ]
)

# What tasks of a verification hand on: findings, facts of segments that another task has to put
# together, and one row a partition with its numbers.
VERIFIED: Final = pa.schema(
    [
        _column("row", _TEXT, "finding, facts or partition"),
        _ORDINAL,
        _column("root", _TEXT, "log directory, as the run was given it"),
        *_FINDING_COLUMNS,
        _column("first_offset", _NUMBER, "where the segments begin that the facts are of"),
        _column("facts", pa.binary(), "zlib over JSON; null unless row is facts"),
        _column("segments", _NUMBER, "segments of the partition"),
        _column("bytes", _NUMBER, "bytes of all .log files"),
        _column("records", _NUMBER, "records that its batches count"),
        _column("log_start_offset", _NUMBER, "first offset"),
        _column("log_end_offset", _NUMBER, "just past the last batch"),
        _column("read_bytes", _NUMBER, "bytes of batches that were read"),
        _column("read_ms", _NUMBER, "time that tasks spent on reading them"),
        *_ERROR,
    ]
)

RUN: Final = pa.schema(
    [
        _column("run_id", _TEXT, "the run"),
        _column("event", _TEXT, "START or END; a run without an END row died"),
        _column("at", pa.timestamp("us", tz="UTC"), "when the row was written"),
        _column("action", _TEXT, "the command: compact, run"),
        _column("roots", pa.list_(_TEXT), "log directories it was given"),
        _column("version", _TEXT, "version of the program"),
        _column("now_ms", _NUMBER, "the one clock of the run, epoch milliseconds"),
        _column("options", _TEXT, "its options, as JSON"),
        _column("exit_code", pa.int32(), "exit status, null at the start and after an error"),
        _column("partitions_done", _NUMBER, "result rows with status done"),
        _column("partitions_skipped", _NUMBER, "result rows with status skipped"),
        _column("partitions_failed", _NUMBER, "result rows with status failed"),
        _column("bytes_before", _NUMBER, "bytes of the partitions that were done"),
        _column("bytes_after", _NUMBER, "the same afterwards"),
        _column("duration_ms", _NUMBER, "from start to end of the run"),
        *_ERROR,
    ]
)

OPERATION: Final = pa.schema(
    [
        _column("run_id", _TEXT, "the run that did it"),
        *_PARTITION_NAME,
        _column("step", _NUMBER, "number of the operation in its plan, from 0"),
        _column("operation", _TEXT, "kind: RenameFile, DeleteFile, ..."),
        _column("file", _TEXT, "file it acted on, or whose name it gave away"),
        _column("target", _TEXT, "new name of a renamed file"),
        _column("size_bytes", _NUMBER, "bytes written, or length after a truncation"),
        _column("reason", _TEXT, "why"),
    ]
)

PARTITION: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("role", _TEXT, "broker, mirror or managed"),
        _column("directory", _TEXT, "path of the directory, or where a store opens it"),
        _column("kind", _TEXT, "partition, metadata, future, delete, stray or foreign"),
        *_LISTED_FILES,
        *_ERROR,
    ]
)

# A run of directories of a root that one task lists together.
LISTING_RUN: Final = pa.schema(
    [
        _column("root", _TEXT, "log directory, as the run was given it"),
        _column("role", _TEXT, "broker, mirror or managed"),
        _column("directories", pa.list_(_TEXT), "names, in the order of keys"),
        *_ERROR,
    ]
)

# What an ingest takes of one partition of a mirror, and what that costs.
INGEST: Final = pa.schema(
    [
        _column("root", _TEXT, "managed root, as the run was given it"),
        _column("topic", _TEXT, "topic, null where the directory's name gives none"),
        _column("partition", pa.int32(), "number of the partition, null as the topic is"),
        _column("mirror", _TEXT, "the mirror"),
        _column("directory", _TEXT, "name of the directory in the mirror"),
        _column("status", _TEXT, "planned, done, skipped or failed"),
        _column("reason", _TEXT, "stable code that says why it was skipped"),
        _column("bytes_before", _NUMBER, "bytes of all .log files of the managed partition"),
        _column("segments_before", _NUMBER, "its segments"),
        _column("taken_bytes", _NUMBER, "bytes of the .log files that are taken"),
        _column("taken_segments", _NUMBER, "segments that are taken"),
        _column("left_segments", _NUMBER, "new segments that stay for another time"),
        _column("left_because", _TEXT, "why the first of them stays: OPEN, NOT_SETTLED, ..."),
        _column("end_offset", _NUMBER, "up to where the mirror has been taken then"),
        _column("high_watermark", _NUMBER, "as it is attested, null where by nobody"),
        _column("list_requests", _NUMBER, "pages of listings"),
        _column("get_requests", _NUMBER, "reads"),
        _column("head_requests", _NUMBER, "questions about single objects"),
        _column("copy_requests", _NUMBER, "copies that the store makes by itself"),
        _column("put_requests", _NUMBER, "writes"),
        _column("copied_bytes", _NUMBER, "bytes that the store copies by itself"),
        _column("moved_bytes", _NUMBER, "bytes that are read and written again"),
        *_LISTED_FILES,
        _column("listed_ms", _NUMBER, "when they were listed, epoch milliseconds"),
        _column("duration_ms", _NUMBER, "time it took"),
        *_ERROR,
    ]
)

# What retention and compaction would do to a partition, as far as its listing tells.
SURVEY: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("directory", _TEXT, "path of the partition directory"),
        _column("status", _TEXT, "planned where something is due, skipped or failed"),
        _column("reason", _TEXT, "stable code that says why nothing is due"),
        _column("policy", _TEXT, "cleanup policies of the topic"),
        _column("bytes", _NUMBER, "bytes of all .log files"),
        _column("segments", _NUMBER, "segments of the partition"),
        _column("due_bytes", _NUMBER, "bytes that would be removed, or read to be cleaned"),
        _column("removable_bytes", _NUMBER, "bytes of the segments that retention removes"),
        _column("removable_segments", _NUMBER, "how many these are"),
        _column("blocked_by", _TEXT, "stable code that says what keeps the oldest that stays"),
        _column("wait_ms", _NUMBER, "until that one is too old, null where age does not count"),
        _column("clean_bytes", _NUMBER, "bytes of the clean section"),
        _column("cleanable_bytes", _NUMBER, "bytes of the dirty section"),
        _column("cleanable_ratio", pa.float64(), "dirty bytes over both"),
        _column("bytes_after", _NUMBER, "bytes of all .log files after retention"),
        _column("segments_after", _NUMBER, "segments after retention"),
        _column("duration_ms", _NUMBER, "time it took"),
        *_ERROR,
    ]
)

# What a plain directory has of a managed partition.
MATERIALIZED: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("status", _TEXT, "planned, done, skipped or failed"),
        _column("reason", _TEXT, "stable code that says why it was skipped"),
        _column("generation", _NUMBER, "which one of the partition"),
        _column("bytes", _NUMBER, "bytes of all .log files"),
        _column("segments", _NUMBER, "segments of the partition"),
        _column("all_bytes", _NUMBER, "bytes of all files"),
        _column("get_requests", _NUMBER, "reads, at least"),
        _column("log_start_offset", _NUMBER, "as the generation has it, null without"),
        _column("recovery_point", _NUMBER, "as the generation has it, null without"),
        _column("high_watermark", _NUMBER, "as the generation has it, null without"),
        _column("cleaner_offset", _NUMBER, "as the generation has it, null without"),
        _column("duration_ms", _NUMBER, "time it took"),
        *_ERROR,
    ]
)

# The files of a partition directory that one stretch of an inventory has.
LISTED_DIRECTORY: Final = pa.schema(
    [
        _column("root", _TEXT, "log directory, as the run was given it"),
        _column("role", _TEXT, "broker, mirror or managed"),
        _column("directory", _TEXT, "name of the directory"),
        *_LISTED_FILES,
    ]
)

SEGMENT: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("directory", _TEXT, "path of the partition directory"),
        _column("base_offset", _NUMBER, "lowest offset the segment may hold"),
        _column("size_bytes", _NUMBER, "bytes of the .log file"),
        _column("modified_ms", _NUMBER, "modification time of the .log file, epoch milliseconds"),
        _column("index_bytes", _NUMBER, "bytes of the offset index, null without one"),
        _column("time_index_bytes", _NUMBER, "bytes of the time index, null without one"),
        _column("txn_index_bytes", _NUMBER, "bytes of the transaction index, null without one"),
        _column("is_active", pa.bool_(), "whether it is the last segment"),
        *_ERROR,
    ]
)

# What a broker's start would do to one partition; nothing of it was done.
FORECAST: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("directory", _TEXT, "path of the partition directory"),
        _column("read_bytes", _NUMBER, "bytes that are read to recover it"),
        _column("rebuilt_segments", _NUMBER, "segments whose indexes are built anew"),
        _column("split_segments", _NUMBER, "segments that are split"),
        _column("cut_bytes", _NUMBER, "bytes of records that are cut"),
        _column("cut_records", _NUMBER, "records in them that can still be read"),
        _column("deleted_segments", _NUMBER, "segments that are removed whole"),
        _column("lost_below_high_watermark", _NUMBER, "offsets below it that are gone afterwards"),
        _column("log_end_offset", _NUMBER, "where the log ends afterwards"),
        _column("cuts", _TEXT, "the first cuts, file and position, as JSON"),
        _column("duration_ms", _NUMBER, "time it took to find out"),
        *_ERROR,
    ]
)

# One row per partition directory: what observation found and what the plan would do.
PLAN: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("directory", _TEXT, "path of the partition directory"),
        _column("status", _TEXT, "planned, skipped or failed"),
        _column("reason", _TEXT, "stable code that says why it was skipped"),
        _column("bytes", _NUMBER, "bytes of all .log files"),
        _column("segments", _NUMBER, "segments of the partition"),
        _column("first_dirty_offset", _NUMBER, "where the dirty section begins"),
        _column("first_uncleanable_offset", _NUMBER, "where cleaning has to stop"),
        _column("clean_bytes", _NUMBER, "bytes of the clean section"),
        _column("cleanable_bytes", _NUMBER, "bytes of the dirty section"),
        _column("cleanable_ratio", pa.float64(), "dirty bytes over both"),
        _column("compaction_delay_ms", _NUMBER, "by which max.compaction.lag.ms is exceeded"),
        _column("groups", _NUMBER, "groups of segments that become one segment each, at least"),
        _column("bytes_after", _NUMBER, "upper bound of the bytes afterwards"),
        _column("peak_extra_bytes", _NUMBER, "upper bound of the disk space needed meanwhile"),
        _column("checkpoint_reset", pa.bool_(), "whether the cleaner's checkpoint is corrected"),
        _column("log_start_checkpoint", _NUMBER, "entry of the log-start checkpoint, 0 without"),
        _column("plan", pa.binary(), "the plan, zlib over JSON; null unless planned"),
        _column("segment_bytes", pa.list_(_NUMBER), "sizes of the segments to be cleaned"),
        _column("duration_ms", _NUMBER, "time it took to observe and plan"),
        *_ERROR,
    ]
)

# What a round would make of a partition, exactly: both passes were made, nothing was written.
MEASURED: Final = pa.schema(
    [
        _ORDINAL,
        _column("bytes_after", _NUMBER, "bytes of all .log files"),
        _column("segments_after", _NUMBER, "segments of the partition"),
        _column("records_before", _NUMBER, "records of the partition, null where some are damaged"),
        _column("records_after", _NUMBER, "the same afterwards"),
        _column("duration_ms", _NUMBER, "time it took"),
        *_ERROR,
    ]
)

# What the files of a planned partition look like.
FINGERPRINT: Final = pa.schema(
    [
        _ORDINAL,
        _column("files", pa.binary(), "names, sizes and times, zlib over JSON; null with an error"),
        _column("duration_ms", _NUMBER, "time it took"),
        *_ERROR,
    ]
)

# Pass one: the keys of one segment with their last offsets.
PARTIAL_INDEX: Final = pa.schema(
    [
        _ORDINAL,
        _column("unit", pa.int32(), "number of the task that merges"),
        _column("segment", _NUMBER, "number of the segment in the plan"),
        _column("index", pa.binary(), "the partial index, null with an error or where it is filed"),
        _column("path", _TEXT, "its scratch files but for their endings, null where it is not"),
        _column("duration_ms", _NUMBER, "time it took"),
        *_ERROR,
    ]
)

# The merge: one row per partition.
MERGED_INDEX: Final = pa.schema(
    [
        _ORDINAL,
        _column("index", pa.binary(), "the merged index; null if too large, filed, or an error"),
        _column("path", _TEXT, "its scratch file, null where it is in no file"),
        _column("table_path", _TEXT, "that of its offset map, null where pass two needs none"),
        _column("numbers", _TEXT, "what pass one read and found, as JSON"),
        _column("group_bytes", pa.list_(_NUMBER), "source bytes of each group, in group order"),
        _column("end_offset", _NUMBER, "the cleaner point after the round"),
        _column("duration_ms", _NUMBER, "time of the merge and of the partial indexes before it"),
        *_ERROR,
    ]
)

# Keys that are exchanged by hash, on their way to a bucket or the fold, and the answers on their
# way to a group of pass two.
EXCHANGE: Final = pa.schema(
    [
        _ORDINAL,
        _column("unit", pa.int32(), "number of the task that gets it"),
        _column("group", _NUMBER, "group of pass two; 0 before that is known"),
        _column("kind", _NUMBER, "what it says, in the order in which it has to be heard"),
        _column("segment", _NUMBER, "number of the segment that it is from or about"),
        _column("content", pa.binary(), "packed arrays; null with an error"),
        _column("duration_ms", _NUMBER, "time that went into it"),
        *_ERROR,
    ]
)

# Pass two: the attempt-private files that one group became.
GROUP_MANIFEST: Final = pa.schema(
    [
        _ORDINAL,
        _column("group", _NUMBER, "number of the group in the merged index"),
        _column("manifest", _TEXT, "the group's scratch files, sizes and counts, as JSON"),
        _column("numbers", _TEXT, "what pass one read and found; on one row of an exchange"),
        _column("records", _NUMBER, "records of its source segments"),
        _column("duration_ms", _NUMBER, "time it took"),
        *_ERROR,
    ]
)

# The commit, and the clean of a whole partition in one task: one row per partition.
COMMIT: Final = pa.schema(
    [
        _ORDINAL,
        _column("next_offset", _NUMBER, "the cleaner point: first offset that is still dirty"),
        _column("bytes_after", _NUMBER, "bytes of all .log files"),
        _column("segments_after", _NUMBER, "segments of the partition"),
        _column("records_before", _NUMBER, "records of the partition"),
        _column("records_after", _NUMBER, "the same afterwards"),
        _column("touched", pa.bool_(), "whether files may have been changed before the error"),
        _column("operations", _TEXT, "the operations that were applied, as JSON"),
        _column("was_split", pa.bool_(), "whether a segment was split, and nothing cleaned"),
        _column("statistics", _TEXT, "numbers of the round by Kafka's names, as JSON"),
        _column("duration_ms", _NUMBER, "time it took"),
        *_ERROR,
    ]
)


_RETENTION_COLUMNS: Final = [
    _column("bytes", _NUMBER, "bytes of all .log files"),
    _column("segments", _NUMBER, "segments of the partition"),
    _column("deleted_bytes", _NUMBER, "bytes of the segments that go"),
    _column("deleted_segments", _NUMBER, "how many segments go"),
    _column("by_log_start_segments", _NUMBER, "those that lie below the log start offset"),
    _column("by_log_start_bytes", _NUMBER, "their bytes"),
    _column("by_size_segments", _NUMBER, "those that go for retention.bytes"),
    _column("by_size_bytes", _NUMBER, "their bytes"),
    _column("by_time_segments", _NUMBER, "those that go for retention.ms"),
    _column("by_time_bytes", _NUMBER, "their bytes"),
    _column("old_log_start_offset", _NUMBER, "first offset that may be read, before"),
    _column("log_start_offset", _NUMBER, "the same afterwards"),
    _column("rolls", pa.bool_(), "whether all segments go, and an empty one takes their place"),
    _column("percent", _NUMBER, "size afterwards, in percent of retention.bytes; 0 without that"),
    _column("blocked_by", _TEXT, "stable code that says what keeps the oldest segment that stays"),
    _column("blocked_offset", _NUMBER, "base offset of that segment, null if it is new"),
    _column("blocked_timestamp", _NUMBER, "its largest timestamp, where that counts"),
    _column("wait_ms", _NUMBER, "until it is too old, null where age does not count"),
    _column("newest_timestamp", _NUMBER, "of the newest record, if segments go for their age"),
    *_RETENTION_LIMITS,
]

# What retention observed and planned, a row a partition directory.
RETENTION_PLAN: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("directory", _TEXT, "path of the partition directory"),
        _column("status", _TEXT, "planned, skipped or failed"),
        _column("reason", _TEXT, "stable code that says why it was skipped"),
        *_RETENTION_COLUMNS,
        _column("bytes_after", _NUMBER, "bytes of all .log files afterwards"),
        _column("segments_after", _NUMBER, "segments afterwards"),
        _column("first_base_offset", _NUMBER, "base offset of the first segment afterwards"),
        _column("removed", pa.list_(_NUMBER), "base offsets of the segments that go"),
        _column("log_start_checkpoint", _NUMBER, "entry of the log-start checkpoint, null without"),
        _column("high_watermark", _NUMBER, "nothing at or above it goes; null for the log's end"),
        _column("is_replicated", pa.bool_(), "whether all that goes is below the checkpointed one"),
        _column("operations", _TEXT, "operations on files of a dry run, as JSON"),
        _column("duration_ms", _NUMBER, "time it took to observe and plan"),
        *_ERROR,
    ]
)

# What one look at partition directories tells the steps of a run; batches of rows as one value.
OBSERVED: Final = pa.schema(
    [
        _column("step", _TEXT, "retain, compact, sweep or purge"),
        _column("rows", pa.binary(), "rows of that step's own schema, as an Arrow stream"),
    ]
)

# When the newest record of each partition directory was written, whatever is to be done there.
NEWEST_RECORD: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("directory", _TEXT, "path of the partition directory"),
        _column("status", _TEXT, "failed where it could not be read"),
        _column("reason", _TEXT, "always null"),
        _column("newest_timestamp", _NUMBER, "of the newest record; null without, or not read"),
        _column("duration_ms", _NUMBER, "time it took to look"),
        *_ERROR,
    ]
)

# What became of one partition that retention was due in.
SWEPT: Final = pa.schema(
    [
        _ORDINAL,
        _column("bytes_after", _NUMBER, "bytes of all .log files"),
        _column("segments_after", _NUMBER, "segments of the partition"),
        _column("operations", _TEXT, "the operations that were applied, as JSON"),
        _column("touched", pa.bool_(), "whether files may have been changed before the error"),
        _column("duration_ms", _NUMBER, "time it took"),
        *_ERROR,
    ]
)

# What retention took of one partition, and what keeps the rest; for people and programs outside.
RETENTION: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("status", _TEXT, "planned, done, skipped or failed"),
        *_RETENTION_COLUMNS,
        _column("operations", _TEXT, "operations of a dry run, as JSON; a run's are in its ledger"),
        _column("directory", _TEXT, "path of the partition directory"),
    ]
)

# What one round of compaction read and wrote, by the names of Kafka's cleaner.
CLEANING: Final = pa.schema(
    [
        _column("run_id", _TEXT, "the run"),
        *_PARTITION_NAME,
        _column("round", _NUMBER, "which round of the run on this partition, from 1"),
        _column("cleanable_ratio", pa.float64(), "dirty bytes over all of them, before the run"),
        _column("compaction_delay_ms", _NUMBER, "by which max.compaction.lag.ms was exceeded"),
        _column("map_bytes_read", _NUMBER, "bytes of batches read for their keys"),
        _column("map_messages_read", _NUMBER, "records of those, markers included"),
        _column("keys", _NUMBER, "distinct keys of the dirty section"),
        _column("buffer_utilization", pa.float64(), "share of the map's slots, null without limit"),
        _column("bytes_read", _NUMBER, "bytes of batches read while cleaning"),
        _column("bytes_written", _NUMBER, "bytes of batches kept"),
        _column("messages_read", _NUMBER, "records looked at while cleaning"),
        _column("messages_written", _NUMBER, "records kept"),
        _column("invalid_messages_read", _NUMBER, "records without a key that were dropped"),
        _column("size_reduction_percent", pa.float64(), "bytes that went, of 100 read"),
        _column("message_reduction_percent", pa.float64(), "records that went, of 100 read"),
        _column("elapsed_secs", pa.float64(), "time that tasks spent on both passes, summed"),
        _column("elapsed_index_secs", pa.float64(), "on the first, null where not told apart"),
    ]
)

# What recovery has to read of each partition directory, before it reads it.
RECOVERY_WORK: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("directory", _TEXT, "path of the partition directory"),
        _column("status", _TEXT, "planned, skipped or failed"),
        _column("reason", _TEXT, "stable code that says why it was skipped"),
        _column("bytes", _NUMBER, "bytes of all .log files"),
        _column("segments", _NUMBER, "segments of the partition"),
        _column("is_clean", pa.bool_(), "whether its directory has the clean-shutdown marker"),
        _column("recovery_point", _NUMBER, "entry of the recovery-point checkpoint, 0 without"),
        _column("log_start_offset", _NUMBER, "entry of the log-start checkpoint, 0 without"),
        _column("high_watermark", _NUMBER, "entry of the replication checkpoint, null without"),
        _column("scan_offsets", pa.list_(_NUMBER), "base offsets of the segments to be read"),
        _column("scan_bytes", pa.list_(_NUMBER), "their sizes"),
        _column("duration_ms", _NUMBER, "time it took to look"),
        *_ERROR,
    ]
)

# One segment that was read from end to end, on its way to the task that recovers its partition.
SEGMENT_SCAN: Final = pa.schema(
    [
        _ORDINAL,
        _column("unit", pa.int32(), "number of the task that recovers the partition"),
        _column("base_offset", _NUMBER, "of the segment"),
        _column("scan", pa.binary(), "what was found in it, null with an error"),
        _column("duration_ms", _NUMBER, "time it took"),
        *_ERROR,
    ]
)

# What recovery made, or would make, of one partition.
RECOVERED: Final = pa.schema(
    [
        _ORDINAL,
        _column("status", _TEXT, "planned, done, skipped or failed"),
        _column("reason", _TEXT, "stable code that says why it was refused"),
        _column("log_start_offset", _NUMBER, "first offset of the log"),
        _column("log_end_offset", _NUMBER, "next offset of the log"),
        _column("first_base_offset", _NUMBER, "base offset of the first segment"),
        _column("bytes_after", _NUMBER, "bytes of all .log files"),
        _column("segments_after", _NUMBER, "segments of the partition"),
        _column("rebuilt_segments", _NUMBER, "segments whose indexes were built anew"),
        _column("cuts", _TEXT, "what is lost, as JSON: file, position, bytes, records, reason"),
        _column("salvage", _TEXT, "where the cuts were set aside, as JSON; null if nowhere"),
        _column("is_repaired", pa.bool_(), "whether anything is cut, split or built anew"),
        _column("steps", _NUMBER, "operations on files"),
        _column("operations", _TEXT, "the operations, as JSON"),
        _column("touched", pa.bool_(), "whether files may have been changed before the error"),
        _column("duration_ms", _NUMBER, "time it took, reading included"),
        *_ERROR,
    ]
)

# What recovery made, or would make, of one partition, for people and programs outside.
RECOVERY: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("log_start_offset", _NUMBER, "first offset of the log"),
        _column("log_end_offset", _NUMBER, "next offset of the log"),
        _column("high_watermark", _NUMBER, "what the replication checkpoint said, null if nothing"),
        _column("rebuilt_segments", _NUMBER, "segments whose indexes are built anew"),
        _column("steps", _NUMBER, "operations on files"),
        _column("operations", _TEXT, "operations of a dry run, as JSON; a run's are in its ledger"),
        _column("directory", _TEXT, "path of the partition directory"),
    ]
)

# What recovery cuts, a row a file.
CUT: Final = pa.schema(
    [
        *_PARTITION_NAME,
        _column("status", _TEXT, "planned, done, or skipped where a guard refused it"),
        _column("file", _TEXT, "file that is cut"),
        _column("position", _NUMBER, "where the cut begins, bytes"),
        _column("size_bytes", _NUMBER, "bytes that are cut"),
        _column("records", _NUMBER, "records of readable batches among them"),
        _column("first_offset", _NUMBER, "first offset that the log does not have any more"),
        _column("is_whole_segment", pa.bool_(), "whether the segment is removed"),
        _column("salvaged_to", _TEXT, "where it was set aside, null if nowhere"),
        _column("reason", _TEXT, "why"),
    ]
)


def spark_ddl(schema: pa.Schema, *, comments: bool = False) -> str:
    """Return a table's columns as Spark's DDL text, all of them nullable.

    Args:
        schema: One of this module's schemas.
        comments: Whether each column carries its comment, as a table that people open should.

    Raises:
        TypeError: A column has a type that no table here uses.
    """
    return ", ".join(_ddl_column(field, comments=comments) for field in schema)


def rows_to_batch(schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return rows as one record batch; columns that a row does not name are null.

    Texts that are no UTF-8, such as names of files that Kafka did not write, are spelled out.

    Raises:
        KeyError: A row names a column that the table does not have.
    """
    listed = list(rows)
    unknown = {name for row in listed for name in row} - set(schema.names)
    if unknown:
        raise KeyError(f"no such column: {', '.join(sorted(unknown))}")
    try:
        return pa.RecordBatch.from_pylist(listed, schema=schema)
    except UnicodeEncodeError:
        return pa.RecordBatch.from_pylist([valid_texts(row) for row in listed], schema=schema)


def rows_to_batches(
    schema: pa.Schema, rows: Iterable[Mapping[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of a few hundred: one batch a row costs Spark more than the row itself.

    Raises:
        KeyError: A row names a column that the table does not have.
    """
    iterator = iter(rows)
    while chunk := list(itertools.islice(iterator, _ROWS_IN_A_BATCH)):
        yield rows_to_batch(schema, chunk)


_ROWS_IN_A_BATCH: Final = 256
_SPARK_TYPES: Final = {
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}


def _ddl_column(field: pa.Field, *, comments: bool) -> str:
    comment = (field.metadata or {}).get(b"comment", b"").decode()
    tail = f" COMMENT '{comment.replace(chr(39), chr(92) + chr(39))}'" if comments else ""
    return f"`{field.name}` {_spark_type(field.type)}{tail}"


def _spark_type(arrow_type: pa.DataType) -> str:
    if pa.types.is_list(arrow_type):
        return f"ARRAY<{_spark_type(arrow_type.value_type)}>"
    if arrow_type not in _SPARK_TYPES:
        raise TypeError(f"no Spark type for {arrow_type}")
    return _SPARK_TYPES[arrow_type]
