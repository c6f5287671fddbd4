"""The columns of tables, declared once as dataclasses. The dataclass gives rows and schema.

The schema is what executors and readers without a JVM use; ``rows.spark_ddl`` gives the same table
to Spark. Nothing here imports pyspark. Each column carries what it means as its comment, which
Spark, Delta and a reader of this file see alike.

Here are the rows that people read, and those of partitions that are listed, observed and planned.
They name the partition by root, topic and number. What a task tells the driver or another task is a
message, declared in the task's module. It names a partition of the run by its ``ordinal``, the row
number in the table of planned partitions that the driver holds.
"""

from dataclasses import dataclass
from typing import Final

from pylog_spark.rows import (
    Binary,
    Int32,
    Number,
    Numbers,
    Real,
    Text,
    Texts,
    Time,
    Truth,
    column,
    schema_of,
)
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.errors import describe_failure
from storage_core.filenames import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionName:
    """How people name a partition."""

    root: str = column("log directory, as the run was given it")
    topic: Text = column("topic, null where the directory's name gives none")
    partition: Int32 = column("number of the partition, null as the topic is")

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition, in a row that has one."""
        return TopicPartition(str(self.topic), self.partition or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The error that a row carries; nothing where there is none."""

    error_class: Text = column("class of the error, null without one")
    error: Text = column("what went wrong, with file and position")

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Return an exception as a row carries it."""
        return cls(**describe_failure(error))

    def __bool__(self) -> bool:
        return self.error_class is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """By what retention of a topic went."""

    retention_ms: Number = column("age by which retention went, -1 for none; null elsewhere")
    retention_bytes: Number = column("size by which it went, -1 for none; null elsewhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFiles:
    """A directory's files in a listing or inventory; null if unread."""

    file_names: Texts = column("its files, null where they were not listed")
    file_bytes: Numbers = column("their lengths")
    file_times_ms: Numbers = column("their modification times, epoch milliseconds")
    file_etags: Texts = column("the store's tags of their contents, empty without")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """What became of one partition, whatever was done to it."""

    run_id: str = column("the run that wrote the row")
    name: PartitionName
    action: str = column("compact, ...")
    status: Text = column("planned, done, skipped or failed")
    reason: Text = column("stable code that says why it was skipped, null otherwise")
    bytes_before: Number = column("bytes of all .log files")
    bytes_after: Number = column("the same afterwards; an upper bound while planned")
    records_before: Number = column("records of the partition, null where none were read")
    records_after: Number = column("the same afterwards, null while planned")
    segments_before: Number = column("segments of the partition")
    segments_after: Number = column("the same afterwards, null while planned")
    duration_ms: int = column("time that tasks spent on it, summed over the tasks")
    failure: Failure = Failure()
    directory: Text = column("the partition's own directory; a copy or remains have others")
    limits: RetentionLimits = RetentionLimits()
    records_without_key: Number = column(
        "records that compaction drops, or would, for they have no key; null for none"
    )


RESULT: Final = schema_of(ResultRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """What a verification found."""

    severity: Text = column("info, harmless, warn, error or fatal")
    code: Text = column("stable code of the kind of finding")
    topic: Text = column("topic, null where it is about a whole directory")
    partition: Int32 = column("number of the partition, null as the topic is")
    file: Text = column("file it is about")
    position: Number = column("byte position in that file")
    offset: Number = column("offset of the record it is about")
    message: Text = column("what was found")
    fix: Text = column("the command or step that mends it")


FINDING: Final = schema_of(FindingRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFindingRow:
    """A finding as the ledger keeps it."""

    run_id: str = column("the run that found it")
    root: str = column("log directory, as the run was given it")
    finding: FindingRow = FindingRow()


RECORDED_FINDING: Final = schema_of(RecordedFindingRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """The start or the end of a run."""

    run_id: str = column("the run")
    event: str = column("START or END; a run without an END row died")
    at: Time = column("when the row was written")
    action: str = column("the command: compact, run")
    roots: Texts = column("log directories it was given")
    version: Text = column("version of the program")
    now_ms: Number = column("the one clock of the run, epoch milliseconds")
    options: Text = column("its options, as JSON")
    exit_code: Int32 = column("exit status, null at the start and after an error")
    partitions_done: Number = column("result rows with status done")
    partitions_skipped: Number = column("result rows with status skipped")
    partitions_failed: Number = column("result rows with status failed")
    bytes_before: Number = column("bytes of the partitions that were done")
    bytes_after: Number = column("the same afterwards")
    duration_ms: int = column("from start to end of the run")
    failure: Failure = Failure()


RUN: Final = schema_of(RunRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """One operation on a file that a run has applied."""

    run_id: str = column("the run that did it")
    name: PartitionName
    step: Number = column("number of the operation in its plan, from 0")
    operation: Text = column("kind: RenameFile, DeleteFile, ...")
    file: Text = column("file it acted on, or whose name it gave away")
    target: Text = column("new name of a renamed file")
    size_bytes: Number = column("bytes written, or length after a truncation")
    reason: Text = column("why")


OPERATION: Final = schema_of(OperationRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition directory, and its files where they were listed."""

    name: PartitionName
    role: Text = column("broker, mirror or managed")
    directory: Text = column("path of the directory, or where a store opens it")
    kind: Text = column("partition, metadata, future, delete, stray or foreign")
    files: ListedFiles = ListedFiles()
    failure: Failure = Failure()


PARTITION: Final = schema_of(PartitionRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRow:
    """An ingest of one partition of a mirror, with its cost."""

    root: str = column("managed root, as the run was given it")
    topic: Text = column("topic, null where the directory's name gives none")
    partition: Int32 = column("number of the partition, null as the topic is")
    mirror: Text = column("the mirror")
    directory: Text = column("name of the directory in the mirror")
    status: Text = column("planned, done, skipped or failed")
    reason: Text = column("stable code that says why it was skipped")
    bytes_before: Number = column("bytes of all .log files of the managed partition")
    segments_before: Number = column("its segments")
    taken_bytes: Number = column("bytes of the .log files that are taken")
    taken_segments: Number = column("segments that are taken")
    left_segments: Number = column("new segments that stay for another time")
    left_because: Text = column("why the first of them stays: OPEN, NOT_SETTLED, ...")
    end_offset: Number = column("up to where the mirror has been taken then")
    high_watermark: Number = column("as it is attested, null where by nobody")
    list_requests: Number = column("pages of listings")
    get_requests: Number = column("reads")
    head_requests: Number = column("questions about single objects")
    copy_requests: Number = column("copies that the store makes by itself")
    put_requests: Number = column("writes")
    copied_bytes: Number = column("bytes that the store copies by itself")
    moved_bytes: Number = column("bytes that are read and written again")
    files: ListedFiles = ListedFiles()
    listed_ms: Number = column("when they were listed, epoch milliseconds")
    duration_ms: int = column("time it took")
    failure: Failure = Failure()


INGEST: Final = schema_of(IngestRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyRow:
    """Expected retention and compaction of a partition, as listings tell."""

    name: PartitionName
    directory: Text = column("path of the partition directory")
    status: Text = column("planned where something is due, skipped or failed")
    reason: Text = column("stable code that says why nothing is due")
    policy: Text = column("cleanup policies of the topic")
    bytes: Number = column("bytes of all .log files")
    segments: Number = column("segments of the partition")
    due_bytes: Number = column("bytes that would be removed, or read to be cleaned")
    removable_bytes: Number = column("bytes of the segments that retention removes")
    removable_segments: Number = column("how many these are")
    blocked_by: Text = column("stable code that says what keeps the oldest that stays")
    wait_ms: Number = column("until that one is too old, null where age does not count")
    clean_bytes: Number = column("bytes of the clean section")
    cleanable_bytes: Number = column("bytes of the dirty section")
    cleanable_ratio: Real = column("dirty bytes over both")
    bytes_after: Number = column("bytes of all .log files after retention")
    segments_after: Number = column("segments after retention")
    duration_ms: int = column("time it took")
    failure: Failure = Failure()


SURVEY: Final = schema_of(SurveyRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationRow:
    """A partition's explanation: when and why it is cleaned or deleted. The answer may be now,
    later or never."""

    name: PartitionName
    directory: Text = column("name of its directory")
    about: Text = column("cleaning or deletion; null with an error")
    is_due: Truth = column("whether something would be done now")
    held_by: Text = column("stable code of what holds it back, null where it is due")
    text: Text = column("the answer in one line")
    from_ms: Number = column("from when on it is due, epoch milliseconds; null without a time")
    condition: Text = column("what has to happen before; empty where nothing has to")
    failure: Failure = Failure()


EXPLANATION: Final = schema_of(ExplanationRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializedRow:
    """What a plain directory has of a managed partition."""

    name: PartitionName
    status: Text = column("planned, done, skipped or failed")
    reason: Text = column("stable code that says why it was skipped")
    generation: Number = column("which one of the partition")
    bytes: Number = column("bytes of all .log files")
    segments: Number = column("segments of the partition")
    all_bytes: Number = column("bytes of all files")
    get_requests: Number = column("reads, at least")
    checkpoints: PartitionCheckpoints = column(
        "as the generation has it, null without", PartitionCheckpoints()
    )
    duration_ms: int = column("time it took")
    failure: Failure = Failure()


MATERIALIZED: Final = schema_of(MaterializedRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransplantRow:
    """What becomes of a partition that is given to another cluster."""

    name: PartitionName
    target: Text = column("its name in the target")
    status: Text = column("planned, done, skipped or failed")
    reason: Text = column("stable code that says why it stays")
    detail: Text = column("the same in words; of one that goes, what a person has to know")
    source: Text = column("path of the log that is taken")
    directories: Texts = column("directories that get it")
    topic_id: Text = column("id of its topic in the target")
    leader_epoch: Number = column("epoch of all its batches there")
    log_start_offset: Number = column("first offset of the new log")
    log_end_offset: Number = column("offset that its next record gets")
    newest_ms: Number = column("largest timestamp, epoch milliseconds; null where none is known")
    aborted_transactions: Number = column("open transactions that are aborted")
    cut_bytes: Number = column("bytes of the source that do not go")
    size_bytes: Number = column("bytes of the new segments")
    duration_ms: int = column("time it took")
    failure: Failure = Failure()
    aborted_records: Number = column("records in those that are aborted")
    committed_transactions: Number = column("open transactions that are committed")
    committed_records: Number = column("records in them")
    undecided_transactions: Number = column("open transactions that were committed perhaps")
    undecided_records: Number = column("records in them")


TRANSPLANT: Final = schema_of(TransplantRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRow:
    """What becomes of a partition of a tier that is given to a new cluster."""

    name: PartitionName
    status: Text = column("planned, done, skipped or failed")
    reason: Text = column("stable code that says why it is not given")
    detail: Text = column("the same in words; of one that is given, what a person has to know")
    directory: Text = column("directory that it gets")
    topic_id: Text = column("id of its topic, as in the lost cluster")
    log_start_offset: Number = column("first offset that brokers read")
    log_end_offset: Number = column("end of the tier: later records were on the disks only")
    segments: Number = column("segments that brokers read in the tier")
    left_out_segments: Number = column("segments in the tier that no broker reads")
    tier_bytes: Number = column("bytes of the segments that brokers read")
    open_transactions: Number = column("transactions without an end in the tier")
    open_offset: Number = column("where the first of them began; null without one")
    failure: Failure = Failure()


ATTACH: Final = schema_of(AttachRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDirectoryRow:
    """A partition directory's files in one stretch of an inventory."""

    root: str = column("log directory, as the run was given it")
    role: Text = column("broker, mirror or managed")
    directory: Text = column("name of the directory")
    files: ListedFiles = ListedFiles()


LISTED_DIRECTORY: Final = schema_of(ListedDirectoryRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """A segment of a partition, as its files' names and sizes tell."""

    name: PartitionName
    directory: Text = column("path of the partition directory")
    base_offset: Number = column("lowest offset the segment may hold")
    size_bytes: Number = column("bytes of the .log file")
    modified_ms: Number = column("modification time of the .log file, epoch milliseconds")
    index_bytes: Number = column("bytes of the offset index, null without one")
    time_index_bytes: Number = column("bytes of the time index, null without one")
    txn_index_bytes: Number = column("bytes of the transaction index, null without one")
    is_active: Truth = column("whether it is the last segment")
    failure: Failure = Failure()


SEGMENT: Final = schema_of(SegmentRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """The replicas of one partition together; nothing of them was changed."""

    topic: str = column("topic")
    partition: Int32 = column("number of the partition")
    topic_id: Text = column("id of the topic, null where no file says it")
    replicas: Number = column("replicas that its brokers can open, those that are missing left out")
    high_watermark: Number = column("estimate: up to it records are on all in-sync replicas")
    divergence: Number = column("first offset at which two replicas have other records")
    safe: tuple[Number, ...] = column("brokers that may lead: nothing committed would be lost")
    lost_records: Number = column("records that are lost where the best candidate leads")
    lost_committed: Number = column("those of them that were committed")
    answer: Text = column("all that is known, as JSON: replicas, candidates, what each would lose")
    duration_ms: int = column("time it took to find out")
    failure: Failure = Failure()


AUDIT: Final = schema_of(AuditRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One partition directory's plan, with its observation."""

    name: PartitionName
    directory: Text = column("path of the partition directory")
    status: Text = column("planned, skipped or failed")
    reason: Text = column("stable code that says why it was skipped")
    bytes: Number = column("bytes of all .log files")
    segments: Number = column("segments of the partition")
    first_dirty_offset: Number = column("where the dirty section begins")
    first_uncleanable_offset: Number = column("where cleaning has to stop")
    clean_bytes: Number = column("bytes of the clean section")
    cleanable_bytes: Number = column("bytes of the dirty section")
    cleanable_ratio: Real = column("dirty bytes over both")
    compaction_delay_ms: Number = column("by which max.compaction.lag.ms is exceeded")
    groups: Number = column("groups of segments that become one segment each, at least")
    bytes_after: Number = column("upper bound of the bytes afterwards")
    peak_extra_bytes: Number = column("upper bound of the disk space needed meanwhile")
    checkpoint_reset: Truth = column("whether the cleaner's checkpoint is corrected")
    log_start_checkpoint: Number = column("entry of the log-start checkpoint, 0 without")
    plan: Binary = column("the plan, zlib over JSON; null unless planned")
    loaded_files: Text = column("digest of its files, null unless planned")
    load_writes: Text = column("what a load writes, as JSON; null where it changes more")
    segment_bytes: Numbers = column("sizes of the segments to be cleaned")
    duration_ms: int = column("time it took to observe and plan")
    failure: Failure = Failure()


PLAN: Final = schema_of(PlanRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFigures:
    """What retention takes of a partition, and what keeps the rest."""

    bytes: Number = column("bytes of all .log files")
    segments: Number = column("segments of the partition")
    deleted_bytes: Number = column("bytes of the segments that go")
    deleted_segments: Number = column("how many segments go")
    by_log_start_segments: Number = column("those that lie below the log start offset")
    by_log_start_bytes: Number = column("their bytes")
    by_size_segments: Number = column("those that go for retention.bytes")
    by_size_bytes: Number = column("their bytes")
    by_time_segments: Number = column("those that go for retention.ms")
    by_time_bytes: Number = column("their bytes")
    old_log_start_offset: Number = column("first offset that may be read, before")
    log_start_offset: Number = column("the same afterwards")
    rolls: Truth = column("whether all segments go, and an empty one takes their place")
    percent: Number = column("size afterwards, in percent of retention.bytes; 0 without that")
    blocked_by: Text = column("stable code that says what keeps the oldest segment that stays")
    blocked_offset: Number = column("base offset of that segment, null if it is new")
    blocked_timestamp: Number = column("its largest timestamp, where that counts")
    wait_ms: Number = column("until it is too old, null where age does not count")
    newest_timestamp: Number = column("of the newest record, if segments go for their age")
    limits: RetentionLimits = RetentionLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlanRow:
    """What retention observed and planned, a row a partition directory."""

    name: PartitionName
    directory: Text = column("path of the partition directory")
    status: Text = column("planned, skipped or failed")
    reason: Text = column("stable code that says why it was skipped")
    figures: RetentionFigures = RetentionFigures()
    bytes_after: Number = column("bytes of all .log files afterwards")
    segments_after: Number = column("segments afterwards")
    first_base_offset: Number = column("base offset of the first segment afterwards")
    removed: Numbers = column("base offsets of the segments that go")
    log_start_checkpoint: Number = column("entry of the log-start checkpoint, null without")
    high_watermark: Number = column("nothing at or above it goes; null for the log's end")
    is_replicated: Truth = column("whether all that goes is below the checkpointed one")
    loaded_files: Text = column("digest of its files, null unless planned")
    log_end: Number = column("offset of the next record, null unless planned")
    operations: Text = column("operations on files of a dry run, as JSON")
    duration_ms: int = column("time it took to observe and plan")
    failure: Failure = Failure()


RETENTION_PLAN: Final = schema_of(RetentionPlanRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRow:
    """An observation's rows for one step of a run, as one value."""

    step: Text = column("retain, compact, sweep or purge")
    rows: Binary = column("rows of that step's own schema, as an Arrow stream")


OBSERVED: Final = schema_of(ObservedRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRecordRow:
    """The time of a partition's newest record, due or not."""

    name: PartitionName
    directory: Text = column("path of the partition directory")
    status: Text = column("failed where it could not be read")
    reason: Text = column("always null")
    newest_timestamp: Number = column("of the newest record; null without, or not read")
    duration_ms: int = column("time it took to look")
    failure: Failure = Failure()


NEWEST_RECORD: Final = schema_of(NewestRecordRow)


# What is behind a result row, beside the columns of ``RESULT``: steps of plans, described.
STEPS: Final = "steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRow:
    """Retention's deletions of one partition, and the rest's reasons to stay. Reports show it to
    people and programs."""

    name: PartitionName
    status: Text = column("planned, done, skipped or failed")
    figures: RetentionFigures = RetentionFigures()
    operations: Text = column("operations of a dry run, as JSON; a run's are in its ledger")
    directory: Text = column("path of the partition directory")


RETENTION: Final = schema_of(RetentionRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRow:
    """One round of compaction: bytes and records read and written. The columns have the names of
    Kafka's cleaner."""

    run_id: str = column("the run")
    name: PartitionName
    round: Number = column("which round of the run on this partition, from 1")
    cleanable_ratio: Real = column("dirty bytes over all of them, before the run")
    compaction_delay_ms: Number = column("by which max.compaction.lag.ms was exceeded")
    map_bytes_read: Number = column("bytes of batches read for their keys")
    map_messages_read: Number = column("records of those, markers included")
    keys: Number = column("distinct keys of the dirty section")
    buffer_utilization: Real = column("share of the map's slots, null without limit")
    bytes_read: Number = column("bytes of batches read while cleaning")
    bytes_written: Number = column("bytes of batches kept")
    messages_read: Number = column("records looked at while cleaning")
    messages_written: Number = column("records kept")
    invalid_messages_read: Number = column("records without a key that were dropped")
    size_reduction_percent: Real = column("bytes that went, of 100 read")
    message_reduction_percent: Real = column("records that went, of 100 read")
    elapsed_secs: Real = column("time that tasks spent on both passes, summed")
    elapsed_index_secs: Real = column("on the first, null where not told apart")


CLEANING: Final = schema_of(CleaningRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryWorkRow:
    """Recovery's work on each partition directory, before it is read."""

    name: PartitionName
    directory: Text = column("path of the partition directory")
    status: Text = column("planned, skipped or failed")
    reason: Text = column("stable code that says why it was skipped")
    bytes: Number = column("bytes of all .log files")
    segments: Number = column("segments of the partition")
    is_clean: Truth = column("whether its directory has the clean-shutdown marker")
    checkpoints: PartitionCheckpoints = column("entry of its checkpoint", PartitionCheckpoints())
    scan_offsets: Numbers = column("base offsets of the segments to be read")
    scan_bytes: Numbers = column("their sizes")
    leader: Int32 = column("broker that it is cut to follow, null where it is only recovered")
    truncations: Numbers = column("offsets of these cuts, in order")
    committed_records: Number = column("committed records that the cuts take")
    stays_eligible: Truth = column("whether its broker may stay in ISR and ELR after them")
    healing: Text = column("what heals it before it is recovered, as JSON; null for nothing")
    duration_ms: int = column("time it took to look")
    failure: Failure = Failure()


RECOVERY_WORK: Final = schema_of(RecoveryWorkRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRow:
    """The outcome of recovery for one partition, real or planned. Reports show it to people and
    programs."""

    name: PartitionName
    log_start_offset: Number = column("first offset of the log")
    log_end_offset: Number = column("next offset of the log")
    high_watermark: Number = column("what the replication checkpoint said, null if nothing")
    rebuilt_segments: Number = column("segments whose indexes are built anew")
    steps: Number = column("operations on files")
    operations: Text = column("operations of a dry run, as JSON; a run's are in its ledger")
    directory: Text = column("path of the partition directory")


RECOVERY: Final = schema_of(RecoveryRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRow:
    """What recovery cuts, a row a file."""

    name: PartitionName
    status: Text = column("planned, done, or skipped where a guard refused it")
    file: Text = column("file that is cut")
    position: Number = column("where the cut begins, bytes")
    size_bytes: Number = column("bytes that are cut")
    records: Number = column("records of readable batches among them")
    first_offset: Number = column("first offset that the log does not have any more")
    is_whole_segment: Truth = column("whether the segment is removed")
    salvaged_to: Text = column("where it was set aside, null if nowhere")
    reason: Text = column("why")


CUT: Final = schema_of(CutRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageRow:
    """Where a log is damaged, and what heals it."""

    name: PartitionName
    state: Text = column("FILLED, or the stable code that says why it is left")
    first_offset: Number = column("first offset that may be missing")
    end_offset: Number = column("first offset that is there again, null at the end of the log")
    file: Text = column("file with the first bytes that are no batch, null where none are")
    position: Number = column("where they begin, bytes")
    size_bytes: Number = column("bytes that are no valid batches")
    filled_bytes: Number = column("bytes that take their place")
    filled_batches: Number = column("batches that these are")
    donors: Texts = column("directories of the replicas that have them")
    reason: Text = column("why it is left")
    directory: Text = column("path of the partition directory")
    failure: Failure = Failure()


DAMAGE: Final = schema_of(DamageRow)

# What SQL has beside topics, here and on Spark: views of the source, behind a prefix.
SQL_PREFIX: Final = "pylog_"
# These are made of whole roots.
SQL_ROOT_VIEWS: Final = ("groups", "consumer_offsets", "transactions", "open_transactions")
SQL_VIEWS: Final = ("partitions", "segments", *SQL_ROOT_VIEWS)
