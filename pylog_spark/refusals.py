"""The table of refusals: the meaning of each guard's code. A partition that is skipped has such a
code, too.

``docs/refusals.md`` shows this table, ``pylog explain CODE`` a row of it, and runs a line of it
below their own tables, for what a person can do something about.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pylog_spark.house import additions
from pylog_spark.schemas import ALLOWED_BY, Reason
from storage_core.coordinators.offsets_audit import CommitFinding
from storage_core.coordinators.transactions import TransactionEnding
from storage_core.errors import (
    BadBytesError,
    ChangedWhileReadError,
    CheckpointError,
    ConfigError,
    ContradictedAgeError,
    GuardRefusedError,
    KeylessRecordsError,
    PylogError,
    RecoveryRequiredError,
    StorageError,
)
from storage_core.maintenance.ingest.observe import LeftReason
from storage_core.maintenance.retention.plan import Predicate
from storage_core.maintenance.verification.verdict import Advice
from storage_core.messages.internal_records import Problem
from storage_core.store.bucket_settings import RemarkCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a code means, and the way out."""

    means: str  # why something was left alone or refused
    way: str = ""  # what to do, and what that claims; empty where nothing is to be done


# Of partitions, in the order of ``schemas.Reason``.
REASONS: Final[Mapping[Reason, Refusal]] = {
    Reason.CONFIG_UNKNOWN: Refusal(
        means="no source says what the topic's config is",
        way="`pylog config init ROOT > topics.yaml`, fill it in, then `--config topics.yaml`; or "
        "`--topic-dump FILE`, or `--assume-defaults TOPIC`, which claims Kafka's defaults",
    ),
    Reason.METADATA_UNKNOWN: Refusal(
        means="the broker's copy of the cluster's metadata is damaged, or it has two that differ: "
        "any topic's config may be another one by now",
        way="`pylog doctor ROOT...` says where and what to do; until then nothing is deleted, "
        "compacted or recovered there",
    ),
    Reason.NOT_COMPACTED: Refusal(means="the topic's policy is not compact"),
    Reason.CLEANER_DISABLED: Refusal(
        means="the broker's config switches its log cleaner off",
        way="`--set log.cleaner.enable=true`, if this run may clean nevertheless",
    ),
    Reason.NOTHING_TO_CLEAN: Refusal(means="nothing new lies between the checkpoint and the head"),
    Reason.RATIO_BELOW_MINIMUM: Refusal(
        means="less of the log is dirty than min.cleanable.dirty.ratio",
        way="wait, or `--set min.cleanable.dirty.ratio=0` to clean it now",
    ),
    Reason.NO_HIGH_WATERMARK: Refusal(
        means="no checkpoint says up to where the log is replicated, and the metadata does not "
        "say that it has one replica",
        way="`--high-watermark log-end`, which claims that all there is was replicated",
    ),
    Reason.UNCLEAN_SHUTDOWN: Refusal(
        means="the log directory was not cleanly shut down",
        way="`pylog recover ROOT --role broker --salvage DIR --dry-run`, then without --dry-run",
    ),
    Reason.RECOVERY_REQUIRED: Refusal(
        means="this log has to be recovered before anything else: an index is missing, a swap was "
        "not finished, or it ends too early",
        way="`pylog recover ROOT --role broker --topics TOPIC --from-start --salvage DIR --dry-run`"
        ", then without --dry-run",
    ),
    Reason.TIERED: Refusal(
        means="the topic has segments in remote storage, which files do not show",
        way="none here: its brokers look after it",
    ),
    Reason.INTERNAL_METADATA: Refusal(means="it is the cluster's own log, which is never touched"),
    Reason.FUTURE_DIRECTORY: Refusal(means="it is a copy on its way to another log directory"),
    Reason.DELETE_DIRECTORY: Refusal(
        means="its partition was deleted, and the directory waits for that",
        way="`pylog purge ROOT --role broker`, or the broker's next start",
    ),
    Reason.STRAY_DIRECTORY: Refusal(
        means="its broker found that it does not own the partition, and set it aside",
        way=(
            "a disk of another cluster: `pylog transplant`; else `pylog purge ROOT --role broker "
            "--dry-run` says whether anybody misses it; then remove the directory"
        ),
    ),
    Reason.INVALID_DIRECTORY_NAME: Refusal(
        means="the directory's name is no partition's; a broker does not start with it",
        way="with the broker stopped, move it out of the log directory",
    ),
    Reason.LINKED_DIRECTORY: Refusal(
        means="the directory is a link, and no link is followed; a broker follows it",
        way="mount the folder in its place (`mount --bind`), or move it into a log directory of "
        "its own",
    ),
    Reason.DUPLICATE_PARTITION: Refusal(
        means="the partition is in two log directories of one broker",
        way="`pylog inspect` shows both; move the wrong one away, with the broker stopped",
    ),
    Reason.NO_SPACE: Refusal(
        means="the new segments do not fit beside the old ones",
        way="make room (`pylog free ROOT`), or lower `--min-free`",
    ),
    Reason.SEGMENT_SPLIT: Refusal(
        means="a segment has to be split before it can be cleaned",
        way="`pylog recover ROOT --role broker --topics TOPIC --from-start --dry-run`, "
        "then without --dry-run",
    ),
    Reason.BUDGET_SPENT: Refusal(
        means="--max-bytes or --max-duration was reached before its turn",
        way="run again, or with a larger `--max-bytes` or `--max-duration`",
    ),
    Reason.DELETES_TOO_MUCH: Refusal(
        means="retention would remove a larger share than --max-delete-ratio by a doubtful limit",
        way="`--max-delete-ratio 1`, which claims that the topic's limits are right",
    ),
    Reason.CLOCK_PAST_RETENTION: Refusal(
        means="the clock is further from the newest record than the topic's retention.ms",
        way="`--override CLOCK_PAST_RETENTION`, which claims that the clock is right",
    ),
    Reason.SWITCHED_OFF: Refusal(
        means="the owner put the file pylog-off there",
        way="remove the file; its first line says why it lies there",
    ),
    Reason.REMOTE_STORAGE: Refusal(
        means="the directory's broker kept segments remotely, and nobody says "
        "whether this topic did",
        way="say `remote.storage.enable: false` of the topic in --config, or "
        "`--override REMOTE_STORAGE`, which claims that it has none there",
    ),
    Reason.INCONSISTENT_TOPIC_ID: Refusal(
        means="the directory is of another topic of the same name",
        way="compare its id with the topic's (`kafka-topics.sh --describe`); move out the old one",
    ),
    Reason.INCONSISTENT_CLUSTER_ID: Refusal(
        means="the log directory is of another cluster than the one that was written down",
        way="name the log directory that the records were cut from; `--as-records` writes them",
    ),
    Reason.INCONSISTENT_EPOCHS: Refusal(
        means="below the cut the log has other leader epochs than the log that was cut: its "
        "records are others",
        way="another replica took its place: `pylog salvage replay FOLDER ROOT --as-records` "
        "writes the salvaged records for a producer",
    ),
    Reason.NOTHING_TO_RECOVER: Refusal(means="the log is whole and was closed"),
    Reason.NOTHING_TO_RETAIN: Refusal(means="nothing has expired"),
    Reason.COMPACTED: Refusal(
        means="the topic is compacted: `pylog compact` works on it, and takes what has expired"
    ),
    Reason.COMMIT_UNFINISHED: Refusal(
        means="a run was killed in the middle of its commit here, which the next run finishes",
        way="apply this plan, which finishes it, then plan again",
    ),
    Reason.INPUTS_CHANGED: Refusal(
        means="a file changed since the plan was made",
        way="make the plan anew with --dry-run --plan-out, and apply that",
    ),
    Reason.CHANGED_SINCE_RUN: Refusal(
        means="a file is not what the run left, so that undoing would lose what came after",
        way="none by itself: the trash has the run's files, by name",
    ),
    Reason.RUN_NOT_ENDED: Refusal(
        means="the run that is to be undone did not end",
        way="start the same job again, which finishes it; then undo",
    ),
    Reason.ALREADY_UNDONE: Refusal(means="the run was undone before"),
    Reason.PURGED: Refusal(means="what the run kept was purged: it cannot be undone any more"),
    Reason.NOTHING_TO_INGEST: Refusal(means="the managed root has all closed segments"),
    Reason.OVERLAPPING_SEGMENTS: Refusal(
        means="a segment of the mirror reaches into the next one",
        way="let the sync copy one replica alone, into a new prefix, and ingest that",
    ),
    Reason.MIXED_REPLICAS: Refusal(
        means="the segments come from several replicas",
        way="let the sync copy one replica alone, into a new prefix, and ingest that",
    ),
    Reason.MISSING_SEGMENTS: Refusal(
        means="the mirror lacks segments between the last ingest and what it has",
        way="let the sync copy them; if the broker deleted them, its log start has to say so",
    ),
    Reason.UNFINISHED_SWAP: Refusal(
        means="the broker was replacing segments while it was copied",
        way="wait for the next sync, then ingest",
    ),
    Reason.NO_SEGMENTS: Refusal(means="the directory has no segment"),
    Reason.NOTHING_TO_MATERIALIZE: Refusal(means="the target has all of it"),
    Reason.TARGET_NOT_EMPTY: Refusal(
        means="the target has files of somebody else", way="name a folder that is empty"
    ),
    Reason.TARGET_IS_OLDER: Refusal(
        means="the target was written from an older generation", way="name a folder that is empty"
    ),
    Reason.CUTS_BELOW_HIGH_WATERMARK: Refusal(
        means="a cut would end the log below what all replicas in sync had",
        way="take it from another replica; where there is none: `--allow-truncate --salvage DIR`",
    ),
    Reason.CUTS_COMMITTED_RECORDS: Refusal(
        means="a follower would lose committed records that its leader does not have",
        way="choose another leader by `pylog audit`; where there is none: plan with "
        "`--allow-committed-loss --salvage DIR`",
    ),
    Reason.CUTS_READABLE_RECORDS: Refusal(
        means="readable records would be cut, and nobody knows whether they were acknowledged",
        way="`--allow-truncate --salvage DIR`, which keeps what is cut",
    ),
    Reason.CUTS_TOO_MUCH: Refusal(
        means="more than --max-truncate-bytes would be cut",
        way="look at the dry run, then a larger `--max-truncate-bytes`, with `--salvage DIR`",
    ),
    Reason.CUTS_WHOLE_LOG: Refusal(
        means="nothing would be left of the log",
        way="take it from another replica; where there is none: `--allow-truncate --salvage DIR`",
    ),
    Reason.NEGATIVE_TIMESTAMP: Refusal(
        means="a record that stays has a timestamp below -1; Kafka's cleaner gives such a log up",
        way="`--set keep.negative.timestamps=true`, which does what Kafka would if it did not",
    ),
    Reason.AGE_CONTRADICTED: Refusal(
        means="a time index, or a file's time, says that a segment is too old, and its records are "
        "younger; a broker deletes it, or cleans it before its lag",
        way="`pylog recover ROOT --role broker --topics TOPIC --from-start --salvage DIR`, which "
        "rebuilds the time indexes, before a broker starts",
    ),
    Reason.BEGINS_ANEW: Refusal(
        means="the log has no segment and would begin anew below the offset at which its "
        "checkpoints and snapshots end it",
        way="bring its .log files back; if it was empty, make the file of 0 bytes that "
        "`pylog doctor ROOT` names; `--allow-truncate` claims that its offsets may begin anew",
    ),
    Reason.RECORDS_WITHOUT_KEY: Refusal(
        means="most records that a round of compaction reads have no key, and would be dropped: "
        "the topic's policy may have been delete before",
        way="look at the policy (`pylog config show ROOT`); `--override RECORDS_WITHOUT_KEY` "
        "claims that they may go",
    ),
}
# Of whole runs, by the code of the guard. Where one is of partitions too, it stands above.
GUARDS: Final[Mapping[str, Refusal]] = {
    "ROLE_NOT_SAID": Refusal(
        means="nobody said what the root is, and the command writes",
        way="`--role broker` or `--role managed`",
    ),
    "ROLE_IS_READ_ONLY": Refusal(
        means="the root is a mirror: its sync owns the files",
        way="`--role broker`, if it is a copy that is yours; or `pylog ingest` into a managed root",
    ),
    "NOT_A_MANAGED_ROOT": Refusal(
        means="the root has no pylog-root.json",
        way="`--role broker` for a broker's directory; `pylog ingest MIRROR ROOT` makes one",
    ),
    "LOG_DIRECTORY_IN_USE": Refusal(
        means="a broker or another run works there",
        way="stop it; only `pylog verify --live` looks meanwhile",
    ),
    "METADATA_COPY_PRESENT": Refusal(
        means="a log directory has a copy of `__cluster_metadata`, which knows more",
        way="`pylog metadata promote` gives it to a voter; to do without it, move it away",
    ),
    "ATTEST_INCOMPLETE": Refusal(
        means="`pylog audit --attest` was not given all directories, or a replica is not there",
        way="give the log directories of all brokers; a broker without its replicas starts last",
    ),
    "ATTEST_DIFFERENT": Refusal(
        means="replicas do not have the same, so that a leader would lose something",
        way="`pylog audit` shows what; start the brokers in the order that loses least",
    ),
    "ATTEST_UNRECOVERED": Refusal(
        means="a log directory has no marker of a clean shutdown",
        way="`pylog recover ROOT --role broker`, then `--attest` again",
    ),
    "ATTEST_EPOCH_UNKNOWN": Refusal(
        means="the metadata in the directories do not say a broker's last epoch, or are too old",
        way="give the directory that has the newest `__cluster_metadata-0`, too",
    ),
    "LOCK_LOST": Refusal(
        means="the lock of the directory is not this run's any more: nothing was written after",
        way="run again when nobody else works there",
    ),
    "LEASE_HELD": Refusal(means="another run has the managed root", way="wait for its end"),
    "LEASE_LOST": Refusal(
        means="the lease ran out or went to another run: nothing was committed after",
        way="run again",
    ),
    "FOREIGN_FORMAT": Refusal(
        means="the directory is another system's", way="`--override FOREIGN_FORMAT`, if it is not"
    ),
    "FILESYSTEM_UNSAFE": Refusal(
        means="renames, locks and syncs there are not what they are on a disk",
        way="copy the directory to a local disk",
    ),
    "FILESYSTEM_UNKNOWN": Refusal(
        means="nobody has tried whether the file system keeps its promises",
        way="copy the directory to a known one, or `--override FILESYSTEM_UNKNOWN`",
    ),
    "NOT_THE_OWNER": Refusal(
        means="this process is neither the directory's owner nor root",
        way="run as its owner, or `--override NOT_THE_OWNER`",
    ),
    "MIXED_DIRECTORIES": Refusal(
        means="the roots are of several brokers or clusters", way="one run for each of them"
    ),
    "CLOCK_BEFORE_CHECKPOINT": Refusal(
        means="this machine's clock is behind the newest checkpoint",
        way="set the clock right, or say the time: `--now-ms MS`",
    ),
    "RECOVERY_IS_REPORT_ONLY": Refusal(
        means="logs on object stores and in managed roots are not cut",
        way="`pylog materialize` them, recover the copy, ingest it into a new root",
    ),
    "TRASH_IN_USE": Refusal(means="another command works in the trash", way="wait for its end"),
    "PLAN_OF_ANOTHER_USER": Refusal(
        means="somebody else may have written the plan: its file, or its folder, is not this "
        "user's or root's alone",
        way="make the plan again as this user, in a folder that nobody else can write",
    ),
    "SALVAGE_OF_ANOTHER_USER": Refusal(
        means="others than those who may write the log may have written what was salvaged from it",
        way="look who owns it and may write it; give it to the owner of the log alone",
    ),
    "TRASH_OF_ANOTHER_USER": Refusal(
        means="the trash belongs to neither this user, nor root, nor the directory's owner",
        way="run as the directory's owner, or name another folder: `--trash DIR`",
    ),
    "CLAIM_OF_ANOTHER_USER": Refusal(
        means="another user than this one left word of unfinished work in the directory",
        way="run as the user who ran it before, or as root",
    ),
    "RUN_IS_OVER": Refusal(
        means="a task was still at work when its run had ended: it committed nothing after",
        way="run again",
    ),
    "UNDO_BEGUN": Refusal(
        means="an undo of the run was begun and has not ended",
        way="`pylog undo` the run again, then purge",
    ),
    "NOT_KAFKAS": Refusal(
        means="the directory to be removed is not what Kafka makes of a deleted partition",
        way="look what it is, and move it out of the log directory",
    ),
    "NOT_OURS": Refusal(
        means="the trash of the run has something that is no regular file",
        way="look what it is, and move it out of the trash",
    ),
    "CUTS_RECORDS": Refusal(
        means="the log has damage, and making anew what is derived from it would cut records",
        way="`pylog doctor ROOT` says how to mend the log first",
    ),
    "READ_ONLY_STORE": Refusal(
        means="the place is a mirror on an object store, which is only read",
        way="`pylog ingest` it into a managed root",
    ),
    "UNSAFE_STORE": Refusal(
        means="the object store does not keep the promises of conditional writes",
        way="use a store that has If-Match and If-None-Match",
    ),
    "LEASE_NOT_HELD": Refusal(
        means="a change of the managed root was tried without its lease: a mistake of this program",
        way="run again, and report it",
    ),
    "SYNC_MAY_WRITE": Refusal(
        means="objects are to be adopted in place, and nobody said that their sync has stopped",
        way="stop the sync, then `--sync-stopped`",
    ),
    "TARGET_IN_USE": Refusal(
        means="another run writes the target at this moment", way="wait for its end"
    ),
    "TARGET_IS_A_BROKERS": Refusal(
        means="the target has meta.properties: new records would be on no other replica",
        way="write a directory of its own",
    ),
    "NO_STAGING": Refusal(
        means="the target is a mount point, or lies in a broker's log directory: nothing beside it "
        "can be renamed into it",
        way="name a folder below the mount point",
    ),
    "WRITE_SUPERSEDED": Refusal(
        means="a later write to the directory has begun, or this host does not see the directory",
        way="write again when the other has ended, on a disk that all hosts see",
    ),
    "LOG_CHANGED": Refusal(
        means="somebody else has appended to a log that the write would go on with",
        way="write into a directory of its own, or with mode overwrite",
    ),
}


# Of what a command says beside them.
REMARKS: Final[Mapping[str, Refusal]] = {
    # The verdict of `pylog doctor`.
    Advice.IN_USE: Refusal(
        means="a process holds a log directory's lock", way="leave it alone, or stop that process"
    ),
    Advice.DO_NOT_START: Refusal(
        means="a broker would stop at its start, or delete a log",
        way="the commands and findings of `pylog doctor`, then ask again",
    ),
    Advice.LOOK_BEFORE_START: Refusal(
        means="a broker would start, and lose records or leave errors",
        way="the commands and findings of `pylog doctor`, then ask again",
    ),
    Advice.RECOVER: Refusal(
        means="a broker would recover for long", way="`pylog recover ROOT --role broker` is faster"
    ),
    Advice.START_BROKER: Refusal(means="nothing keeps the broker from starting whole"),
    Advice.COPY_DAMAGED: Refusal(
        means="a copy has damage", way="compare it with its source before it is needed"
    ),
    Advice.COPY_WHOLE: Refusal(means="a copy is complete, but for files that are still synced"),
    Advice.NO_PARTITION: Refusal(
        means="no directory that was given has a partition",
        way="give the log directories themselves (log.dirs)",
    ),
    # Of a mirror's segments that `pylog ingest` leaves there.
    LeftReason.OPEN: Refusal(
        means="it is the newest segment of a mirror: a broker may still write to it",
        way="it is ingested once a broker has rolled it and the sync has copied the next one",
    ),
    LeftReason.NOT_SETTLED: Refusal(
        means="two listings differ about a segment, or about one before it: a sync is at work",
        way="ingest again when the sync has ended",
    ),
    LeftReason.ABOVE_HIGH_WATERMARK: Refusal(
        means="part of a mirror's segment may not be on all replicas in sync",
        way="ingest again after the next sync, which copies a higher high watermark",
    ),
    # Of a bucket.
    RemarkCode.ARCHIVED_OBJECTS: Refusal(
        means="objects of the bucket are in an archive: nothing reads them there",
        way="restore them, or name a bucket that keeps its objects readable",
    ),
    RemarkCode.KMS_WITHOUT_BUCKET_KEY: Refusal(
        means="each read and write of an object is one more request to KMS",
        way="switch the bucket key on",
    ),
    RemarkCode.LIFECYCLE_EXPIRES: Refusal(
        means="a lifecycle rule deletes objects by age: a manifest, or a ledger, would name "
        "objects that are gone",
        way="take the prefix out of the rule; `pylog purge` deletes what nothing needs",
    ),
    RemarkCode.LIFECYCLE_MOVES: Refusal(
        means="a lifecycle rule moves objects to a class that is dearer to read",
        way="take the prefix out of the rule, unless nobody reads there",
    ),
    RemarkCode.NOT_ASKED: Refusal(
        means="the store did not say a setting, or refused the question",
        way="allow the request that the message names, or look at the setting yourself",
    ),
    RemarkCode.OBJECT_LOCK: Refusal(
        means="versions cannot be deleted: retention and purge free no space before a lock ends",
        way="name a bucket without object lock, or count with the space",
    ),
    RemarkCode.PARTS_STAY: Refusal(
        means="no lifecycle rule aborts unfinished uploads: parts of a killed process stay, and "
        "are paid for",
        way="add a rule AbortIncompleteMultipartUpload, of a week for instance",
    ),
    RemarkCode.REPLICATED: Refusal(
        means="the bucket is copied elsewhere, where a manifest may arrive before its objects",
        way="read the copy only when its replication has caught up",
    ),
    RemarkCode.REQUESTER_PAYS: Refusal(means="whoever reads pays for requests and transfer"),
    RemarkCode.STORAGE_CLASS: Refusal(
        means="objects are of a class that is paid for by each byte that is read",
        way="name a bucket of the standard class, if they are read often",
    ),
    RemarkCode.VERSIONED: Refusal(
        means="what is replaced or deleted stays as an older version, and is paid for",
        way="add a lifecycle rule for noncurrent versions",
    ),
    # Of partitions that `pylog audit` looks at; one about ids is a finding's name, too.
    "UNDER_REPLICATED": Refusal(
        means="fewer replicas are in sync than the partition has",
        way="start the brokers of the others, and let them fetch",
    ),
    "UNDER_MIN_ISR": Refusal(
        means="fewer replicas are in sync than min.insync.replicas: writes with acks=all fail",
        way="start the brokers of the others, and let them fetch",
    ),
    "OFFLINE": Refusal(
        means="the partition has no leader", way="start a broker that `pylog audit` elects"
    ),
    "REPLICA_OFFLINE": Refusal(
        means="a broker cannot open its replica", way="`pylog doctor ROOT` says why"
    ),
    "HIGH_WATERMARK_STALE": Refusal(
        means="the leader's checkpoint of the high watermark is behind: readers wait until its "
        "followers have fetched",
    ),
    "BROKER_UNCLEAN": Refusal(
        means="a broker's directory has no marker of its last clean shutdown: it leaves the ISR",
        way="`pylog recover ROOT --role broker`, before it starts",
    ),
    "LEADER_EPOCH_UNKNOWN": Refusal(
        means="a log knows a later leader epoch than the cluster's metadata",
        way="give the directory with the newest `__cluster_metadata-0`",
    ),
    "LEADER_EPOCH_FENCED": Refusal(
        means="the cluster's metadata know a later leader epoch than the log",
    ),
    "TOPIC_ID_UNKNOWN": Refusal(
        means="no metadata has the topic id of a directory",
        way="`pylog metadata adopt`, if the topic is to have it again",
    ),
    "ROOT_UNREADABLE": Refusal(
        means="a log directory cannot be read: a replica may lie there that was not compared",
        way="mend its disk or its rights, and ask again",
    ),
    "ROOT_IN_USE": Refusal(
        means="a process holds the directory's lock: what it writes meanwhile may be missing",
        way="stop it, and ask again",
    ),
    # Of commits and transactions.
    CommitFinding.BEYOND_LOG_END: Refusal(
        means="a group has committed an offset that its log does not reach: the log was cut, or is "
        "another topic of that name",
        way="`kafka-consumer-groups.sh --reset-offsets`, once the log is right",
    ),
    CommitFinding.BELOW_LOG_START: Refusal(
        means="the records that a group would read next are gone",
        way="its consumers go on by auto.offset.reset; or `kafka-consumer-groups.sh "
        "--reset-offsets`",
    ),
    CommitFinding.EXPIRED: Refusal(
        means="the coordinator removes the commit at its next look",
        way="raise offsets.retention.minutes before the broker starts, to keep it",
    ),
    CommitFinding.METADATA_TOO_LARGE: Refusal(
        means="a commit's metadata are longer than offset.metadata.max.bytes",
        way="raise it; the next commit of the group is refused else",
    ),
    CommitFinding.WRONG_PARTITION: Refusal(
        means="a commit lies in a partition of `__consumer_offsets` that its coordinator does not "
        "read",
        way="the topic was made anew with other partitions: commit again",
    ),
    CommitFinding.NOT_LOADED: Refusal(
        means="a record of the same partition stops its coordinator's load: the group has none",
        way="`pylog doctor ROOT` names the record (COORDINATOR_NOT_LOADED)",
    ),
    TransactionEnding.ONGOING: Refusal(
        means="a transaction is open: its producer ends it, or its coordinator after its timeout"
    ),
    TransactionEnding.ENDING: Refusal(
        means="a transaction's outcome is decided: its coordinator writes the markers"
    ),
    TransactionEnding.OVERDUE: Refusal(
        means="a transaction is open beyond its timeout: its coordinator aborts it when it runs"
    ),
    TransactionEnding.HANGING: Refusal(
        means="no transactional id has an open transaction: nothing ends it",
        way="the command that `pylog transactions` prints, on the cluster",
    ),
    TransactionEnding.UNKNOWN: Refusal(
        means="the coordinator's partition of an open transaction is not here",
        way="give the directories that have `__transaction_state`",
    ),
    Problem.UNKNOWN_TYPE: Refusal(
        means="Kafka 4.4 has no such type of record: a broker ignores it"
    ),
    Problem.UNKNOWN_VERSION: Refusal(
        means="Kafka 4.4 does not know the version of a record; of groups it stops the "
        "coordinator's load",
        way="start the brokers with the release that wrote it",
    ),
    Problem.MALFORMED: Refusal(
        means="the bytes of a record are not what its type and version say",
        way="`pylog dump DIRECTORY` shows the record; another replica may have it whole",
    ),
}

# What mends the cause of an error; of the others the text says it.
_ERROR_WAYS: Final[Mapping[type[PylogError], str]] = {
    StorageError: "look at the disk, the file's rights or the object store that the text names, "
    "and run again",
    ConfigError: "change the option or the line of the file that the text names",
    GuardRefusedError: "the code in the text is explained alone: `pylog explain CODE`",
    BadBytesError: "`pylog doctor ROOT` says what is damaged and what mends it",
    CheckpointError: "`pylog doctor ROOT` says what is damaged and what mends it",
    RecoveryRequiredError: REASONS[Reason.RECOVERY_REQUIRED].way,
    KeylessRecordsError: REASONS[Reason.RECORDS_WITHOUT_KEY].way,
    ContradictedAgeError: REASONS[Reason.AGE_CONTRADICTED].way,
    ChangedWhileReadError: REASONS[Reason.INPUTS_CHANGED].way,
}


def explain_errors() -> dict[str, Refusal]:
    """Return meaning and way out of each error by its name."""
    errors: dict[str, Refusal] = {}
    kinds: list[type[PylogError]] = [PylogError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind is not PylogError:
            way = next((_ERROR_WAYS[base] for base in kind.__mro__ if base in _ERROR_WAYS), "")
            means = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
            errors[kind.__name__] = Refusal(
                means=means, way=way or "its text says what was expected, what was found, and where"
            )
    return errors


# Of what ``pylog explain`` asks of a log beside these reasons; retention's without the word for the
# predicate in front, which its codes have.
PREDICATES: Final[Mapping[str, Refusal]] = {
    "UNCLEANABLE": Refusal(
        means="the log cannot be loaded", way="`pylog doctor ROOT` says how to mend it"
    ),
    "DIRTY_RATIO": REASONS[Reason.RATIO_BELOW_MINIMUM],
    "MAX_COMPACTION_LAG": Refusal(
        means="what is dirty is younger than max.compaction.lag.ms, so that its share decides",
        way="wait, or `--set max.compaction.lag.ms=MS` with less",
    ),
    "MIN_COMPACTION_LAG": Refusal(
        means="records are younger than min.compaction.lag.ms",
        way="wait, or `--set min.compaction.lag.ms=0`",
    ),
    "OPEN_TRANSACTION": Refusal(
        means="a transaction is open: nothing from its first record on is cleaned",
        way="`pylog transactions ROOT` says whether it hangs, and what ends it",
    ),
    "HIGH_WATERMARK": Refusal(
        means="what lies above the high watermark of the checkpoint may be on no other replica",
        way=REASONS[Reason.NO_HIGH_WATERMARK].way,
    ),
    "ACTIVE_SEGMENT": Refusal(
        means="the active segment is never cleaned",
        way="wait until a broker rolls it (segment.ms, segment.bytes)",
    ),
    "NOT_DELETED": Refusal(means="the topic's policy has no delete"),
    "NOT_ASKED": Refusal(
        means="the topic sets no such limit",
        way="`--set retention.ms=MS` or `--set retention.bytes=BYTES`, where the policy has delete",
    ),
    "LAST_SEGMENT": Refusal(
        means="what is left is the active segment, which stays",
        way="wait until a broker rolls it (segment.ms, segment.bytes)",
    ),
    "ABOVE_LOG_START": Refusal(means="the segment reaches above the log start offset"),
    "WITHIN_SIZE": Refusal(
        means="without the segment the log would have less than retention.bytes",
        way="`--set retention.bytes=BYTES` with less",
    ),
    "WITHIN_TIME": Refusal(
        means="a record of the segment is younger than retention.ms",
        way="wait, or `--set retention.ms=MS` with less",
    ),
    "FUTURE_TIMESTAMP": Refusal(
        means="a record of the segment has a time that is still to come",
        way="`--set retention.bytes=BYTES`, which asks no time",
    ),
}
# What notes and the closing line of a run tell the way out of is not said twice.
_TOLD_ELSEWHERE: Final = frozenset({Reason.CONFIG_UNKNOWN, *ALLOWED_BY})


def _joined(*tables: Mapping[str, Refusal]) -> dict[str, Refusal]:
    return {code: refusal for table in tables for code, refusal in table.items()}


def all_guards() -> dict[str, Refusal]:
    """Return ``GUARDS`` with those of the houses above."""
    return _joined(GUARDS, *additions("guards"))


def all_remarks() -> dict[str, Refusal]:
    """Return ``REMARKS`` with those of the houses above."""
    return _joined(REMARKS, *additions("remarks"))


def ways_out(reasons: Iterable[str | None]) -> list[str]:
    """Return a line for each reason with a way out.

    Args:
        reasons: Of partitions, each as often as there are some; None for no reason.
    """
    counts = Counter(reasons)
    return [
        f"{reason} ({counts[reason]:,}): {REASONS[reason].way}"
        for reason in Reason
        if counts[reason] and REASONS[reason].way and reason not in _TOLD_ELSEWHERE
    ]


def predicate_of(code: str) -> str:
    """Return the name that PREDICATES has for a code of ``explain``."""
    words = (f"{word}_" for word in Predicate)
    return next((code.removeprefix(word) for word in words if code.startswith(word)), code)


def way_out_of(code: str) -> str:
    """Return the way out for a predicate of ``explain``; empty for none."""
    reason = next((one for one in Reason if one == code), None)
    if reason is not None:
        return REASONS[reason].way
    return PREDICATES[predicate_of(code)].way
