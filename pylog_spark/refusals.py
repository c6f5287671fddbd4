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
from pylog_spark.outcomes import ALLOWED_BY, Reason
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
from storage_core.maintenance.ingest.plan import LeftReason
from storage_core.maintenance.retention.plan import Predicate
from storage_core.maintenance.verification.verdict import Advice
from storage_core.messages.internal_records import Problem
from storage_core.store.bucket_settings import RemarkCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a code means, and the way out."""

    means: str  # why something was left alone or refused
    way: str = ""  # what to do, and what that claims; empty where nothing is to be done


# Of partitions, in the order of ``outcomes.Reason``.
REASONS: Final[Mapping[Reason, Refusal]] = {
    Reason.CONFIG_UNKNOWN: Refusal(
        means="no source has the topic's config",
        way="run `pylog config init ROOT > topics.yaml`, fill in the file and name it with "
        "`--config topics.yaml`; or use `--topic-dump FILE`, or `--assume-defaults TOPIC` if the "
        "topic has Kafka's defaults",
    ),
    Reason.METADATA_UNKNOWN: Refusal(
        means="the broker's copy of the cluster's metadata is damaged, or the broker has two "
        "copies that differ: the known configs may be out of date",
        way="run `pylog doctor ROOT...` and follow it; until then no run deletes, compacts or "
        "recovers logs there",
    ),
    Reason.NOT_COMPACTED: Refusal(means="the topic's policy is not compact"),
    Reason.CLEANER_DISABLED: Refusal(
        means="the broker's config switches its log cleaner off",
        way="if this run may compact all the same: `--set log.cleaner.enable=true`",
    ),
    Reason.NOTHING_TO_CLEAN: Refusal(means="the log has no new records below its uncleanable head"),
    Reason.RATIO_BELOW_MINIMUM: Refusal(
        means="the log's dirty share is below min.cleanable.dirty.ratio",
        way="wait, or compact it now with `--set min.cleanable.dirty.ratio=0`",
    ),
    Reason.NO_HIGH_WATERMARK: Refusal(
        means="no checkpoint has the log's high watermark, and the metadata does not say that the "
        "partition has one replica",
        way="if every record in the log was replicated: `--high-watermark log-end`",
    ),
    Reason.UNCLEAN_SHUTDOWN: Refusal(
        means="the log directory was not cleanly shut down",
        way="run `pylog recover ROOT --role broker --salvage DIR --dry-run`, then without "
        "--dry-run",
    ),
    Reason.RECOVERY_REQUIRED: Refusal(
        means="this log must be recovered first: an index is missing, a swap is unfinished, or the"
        " log ends too early",
        way="run `pylog recover ROOT --role broker --topics TOPIC --from-start --salvage DIR "
        "--dry-run`, then without --dry-run",
    ),
    Reason.TIERED: Refusal(
        means="the topic is tiered (remote storage): only its brokers change its logs",
        way="none: its brokers maintain it; `pylog inspect` shows up to where it was uploaded",
    ),
    Reason.INTERNAL_METADATA: Refusal(
        means="this is the cluster's own metadata log, which pylog never changes"
    ),
    Reason.FUTURE_DIRECTORY: Refusal(
        means="the directory is an unfinished copy that a broker is moving to another log directory"
    ),
    Reason.DELETE_DIRECTORY: Refusal(
        means="the partition was deleted, and its directory is waiting for removal",
        way="start the broker, which removes it, or run `pylog purge ROOT --role broker`",
    ),
    Reason.STRAY_DIRECTORY: Refusal(
        means="a broker renamed the directory to -stray, because it does not own the partition",
        way="if the disk is from another cluster: `pylog transplant`; else run `pylog purge ROOT "
        "--role broker --dry-run` to see who needs it, then remove the directory",
    ),
    Reason.INVALID_DIRECTORY_NAME: Refusal(
        means="the directory's name is not a partition's name; a broker does not start with it",
        way="stop the broker and move the directory out of the log directory",
    ),
    Reason.LINKED_DIRECTORY: Refusal(
        means="the directory is a link: a broker follows links, pylog does not",
        way="mount the folder in place of the link (`mount --bind`), or move it into a log "
        "directory of its own",
    ),
    Reason.DUPLICATE_PARTITION: Refusal(
        means="the partition is in two log directories of one broker",
        way="`pylog inspect` shows both; stop the broker and move the wrong one away",
    ),
    Reason.NO_SPACE: Refusal(
        means="the disk has no room for the new segments beside the old ones",
        way="make room (`pylog free ROOT`), or lower `--min-free`",
    ),
    Reason.SEGMENT_SPLIT: Refusal(
        means="a segment must be split before compaction",
        way="run `pylog recover ROOT --role broker --topics TOPIC --from-start --dry-run`, then "
        "without --dry-run",
    ),
    Reason.BUDGET_SPENT: Refusal(
        means="the run reached --max-bytes or --max-duration before this partition",
        way="run again, or raise `--max-bytes` or `--max-duration`",
    ),
    Reason.DELETES_TOO_MUCH: Refusal(
        means="retention would delete more than --max-delete-ratio, and one of its limits is "
        "doubtful",
        way="if the topic's limits are right: `--max-delete-ratio 1`",
    ),
    Reason.CLOCK_PAST_RETENTION: Refusal(
        means="by this machine's clock the newest record is older than the topic's retention.ms",
        way="if the clock is right: `--override CLOCK_PAST_RETENTION`",
    ),
    Reason.SWITCHED_OFF: Refusal(
        means="the directory has a file pylog-off, with which its owner keeps pylog out",
        way="read the first line of the file, which gives the reason; then remove the file",
    ),
    Reason.REMOTE_STORAGE: Refusal(
        means="the directory's broker had remote storage, and no source says whether this topic "
        "used it",
        way="if the topic has no segments there: set `remote.storage.enable: false` for it in "
        "--config, or use `--override REMOTE_STORAGE`",
    ),
    Reason.INCONSISTENT_TOPIC_ID: Refusal(
        means="the directory belongs to another topic with the same name",
        way="compare its id with the topic's (`kafka-topics.sh --describe`), and move the old "
        "directory out",
    ),
    Reason.INCONSISTENT_CLUSTER_ID: Refusal(
        means="the log directory and the salvage are from different clusters",
        way="name the log directory from which the records were cut; or write the records with "
        "`--as-records`",
    ),
    Reason.INCONSISTENT_EPOCHS: Refusal(
        means="below the cut the log has other leader epochs than the salvage, so its records are "
        "different",
        way="the log is another replica now: write the salvaged records for a producer, with "
        "`pylog salvage replay FOLDER ROOT --as-records`",
    ),
    Reason.NOTHING_TO_RECOVER: Refusal(means="the log is complete and was closed"),
    Reason.NOTHING_TO_RETAIN: Refusal(means="no segment has expired"),
    Reason.COMPACTED: Refusal(
        means="the topic is compacted: `pylog compact` cleans it, and deletes its expired segments"
    ),
    Reason.COMMIT_UNFINISHED: Refusal(
        means="a run was killed during its commit here",
        way="apply this plan, which finishes the commit, then plan again",
    ),
    Reason.INPUTS_CHANGED: Refusal(
        means="a file changed since the plan was made",
        way="make a new plan with --dry-run --plan-out, and apply that",
    ),
    Reason.CHANGED_SINCE_RUN: Refusal(
        means="a file has changed since the run: undo would lose the later changes",
        way="none automatic: the trash has the run's files, under their names",
    ),
    Reason.RUN_NOT_ENDED: Refusal(
        means="the run has not ended",
        way="start the same job again, which finishes the run; then undo it",
    ),
    Reason.ALREADY_UNDONE: Refusal(means="the run is already undone"),
    Reason.PURGED: Refusal(
        means="the trash of the run was purged, so you cannot undo the run any more"
    ),
    Reason.NOTHING_TO_INGEST: Refusal(means="the managed root already has all closed segments"),
    Reason.OVERLAPPING_SEGMENTS: Refusal(
        means="a segment of the mirror overlaps the next one",
        way="let the sync copy one replica only, into a new prefix, and ingest that",
    ),
    Reason.MIXED_REPLICAS: Refusal(
        means="the segments come from several replicas",
        way="let the sync copy one replica only, into a new prefix, and ingest that",
    ),
    Reason.MISSING_SEGMENTS: Refusal(
        means="the mirror has a gap: segments are missing after the last ingest",
        way="let the sync copy them; if the broker deleted them, let the sync copy its log start "
        "checkpoint",
    ),
    Reason.OFFSETS_IN_TIER: Refusal(
        means="the log begins in the topic's tier (remote storage), which the mirror lacks",
        way="take both: `pylog ingest TIER MANAGED --with-local MIRROR`; or only what the mirror "
        "has: `--allow-data-loss`",
    ),
    Reason.UNFINISHED_SWAP: Refusal(
        means="the copy was made while the broker was replacing segments",
        way="wait for the next sync, then ingest",
    ),
    Reason.NO_SEGMENTS: Refusal(means="the directory has no segment"),
    Reason.NOTHING_TO_MATERIALIZE: Refusal(means="the target already has all segments"),
    Reason.TARGET_NOT_EMPTY: Refusal(
        means="the target has files that pylog did not write", way="name an empty folder"
    ),
    Reason.TARGET_IS_OLDER: Refusal(
        means="the target was written from an older generation", way="name an empty folder"
    ),
    Reason.CUTS_BELOW_HIGH_WATERMARK: Refusal(
        means="a cut would remove records below the high watermark, which all in-sync replicas had",
        way="fetch the partition from another replica; if there is none: `--allow-truncate "
        "--salvage DIR`",
    ),
    Reason.CUTS_COMMITTED_RECORDS: Refusal(
        means="a follower would lose committed records that its leader does not have",
        way="choose another leader with `pylog audit`; if there is none, plan with "
        "`--allow-committed-loss --salvage DIR`",
    ),
    Reason.CUTS_READABLE_RECORDS: Refusal(
        means="a cut would remove readable records that may have been acknowledged",
        way="cut them and keep a copy: `--allow-truncate --salvage DIR`",
    ),
    Reason.CUTS_TOO_MUCH: Refusal(
        means="a cut would remove more than --max-truncate-bytes",
        way="look at the dry run, then raise `--max-truncate-bytes`, with `--salvage DIR`",
    ),
    Reason.CUTS_WHOLE_LOG: Refusal(
        means="a cut would remove the whole log",
        way="fetch the partition from another replica; if there is none: `--allow-truncate "
        "--salvage DIR`",
    ),
    Reason.NEGATIVE_TIMESTAMP: Refusal(
        means="a record to keep has a timestamp below -1; Kafka's cleaner cannot clean such a log",
        way="clean it all the same and keep the timestamps: `--set keep.negative.timestamps=true`",
    ),
    Reason.AGE_CONTRADICTED: Refusal(
        means="a time index or a file's time makes a segment look older than its records: a broker"
        " deletes or compacts it too early",
        way="before a broker starts, rebuild the time indexes: `pylog recover ROOT --role broker "
        "--topics TOPIC --from-start --salvage DIR`",
    ),
    Reason.BEGINS_ANEW: Refusal(
        means="the log has no segment, and would begin again below the end that its checkpoints "
        "and snapshots give",
        way="bring its .log files back; if the log was empty, create the file of 0 bytes that "
        "`pylog doctor ROOT` names; if its offsets may begin again: `--allow-truncate`",
    ),
    Reason.RECORDS_WITHOUT_KEY: Refusal(
        means="compaction would drop most records that it reads, because they have no key: the "
        "topic's policy may have been delete before",
        way="check the policy (`pylog config show ROOT`); if the records may be dropped: "
        "`--override RECORDS_WITHOUT_KEY`",
    ),
}
# Of whole runs, by the code of the guard. Where one is of partitions too, it stands above.
GUARDS: Final[Mapping[str, Refusal]] = {
    "ROLE_NOT_SAID": Refusal(
        means="the command writes, and needs the role of the root",
        way="add `--role broker` to confirm that this is a broker's directory; or `--role managed`",
    ),
    "ROLE_IS_READ_ONLY": Refusal(
        means="the root is a mirror: only its sync writes there",
        way="if it is a copy of your own: `--role broker`; else `pylog ingest` it into a managed "
        "root",
    ),
    "NOT_A_MANAGED_ROOT": Refusal(
        means="the root has no pylog-root.json",
        way="for a broker's directory: `--role broker`; to create a managed root: `pylog ingest "
        "MIRROR ROOT`",
    ),
    "LOG_DIRECTORY_IN_USE": Refusal(
        means="a broker or another run uses the directory",
        way="stop it first; meanwhile only `pylog verify --live` can read there",
    ),
    "METADATA_COPY_PRESENT": Refusal(
        means="a log directory has a copy of `__cluster_metadata`, which is better than a rebuilt "
        "one",
        way="give the copy to a voter with `pylog metadata promote`; to rebuild all the same, move"
        " the copy away",
    ),
    "ATTEST_INCOMPLETE": Refusal(
        means="`pylog audit --attest` did not get all log directories, or a replica is missing",
        way="name the log directories of all brokers; start a broker with missing replicas last",
    ),
    "ATTEST_DIFFERENT": Refusal(
        means="the replicas differ, so a leader would lose records",
        way="`pylog audit` shows the differences; start the brokers in the order that loses least",
    ),
    "ATTEST_UNRECOVERED": Refusal(
        means="a log directory has no marker of a clean shutdown",
        way="`pylog recover ROOT --role broker`, then `--attest` again",
    ),
    "ATTEST_EPOCH_UNKNOWN": Refusal(
        means="the metadata in the directories is too old, or does not have a broker's last epoch",
        way="also name the directory that has the newest `__cluster_metadata-0`",
    ),
    "LOCK_LOST": Refusal(
        means="this run has lost the lock of the directory; it wrote nothing afterwards",
        way="make sure that no other process works there, and run again",
    ),
    "LEASE_HELD": Refusal(means="another run holds the managed root", way="wait until it ends"),
    "LEASE_LOST": Refusal(
        means="the lease expired or another run took it; this run committed nothing afterwards",
        way="run again",
    ),
    "FOREIGN_FORMAT": Refusal(
        means="the directory belongs to another system",
        way="if it does not: `--override FOREIGN_FORMAT`",
    ),
    "FILESYSTEM_UNSAFE": Refusal(
        means="the file system does not rename, lock and sync as a disk does",
        way="copy the directory to a local disk",
    ),
    "FILESYSTEM_UNKNOWN": Refusal(
        means="the file system is not tested: its renames, locks and syncs may not be safe",
        way="copy the directory to a known file system, or use `--override FILESYSTEM_UNKNOWN`",
    ),
    "NOT_THE_OWNER": Refusal(
        means="this process is neither the directory's owner nor root",
        way="run as its owner, or use `--override NOT_THE_OWNER`",
    ),
    "MIXED_DIRECTORIES": Refusal(
        means="the roots belong to several brokers or clusters", way="start one run for each broker"
    ),
    "CLOCK_BEFORE_CHECKPOINT": Refusal(
        means="this machine's clock is behind the newest checkpoint",
        way="correct the clock, or name the time: `--now-ms MS`",
    ),
    "RECOVERY_IS_REPORT_ONLY": Refusal(
        means="pylog does not cut logs on object stores and in managed roots",
        way="write a copy with `pylog materialize`, recover the copy, and ingest it into a new "
        "root",
    ),
    "TRASH_IN_USE": Refusal(means="another command uses the trash", way="wait until it ends"),
    "PLAN_OF_ANOTHER_USER": Refusal(
        means="another user may have written the plan: others own or can write its file or folder",
        way="make the plan again as this user, in a folder that only this user can write",
    ),
    "SALVAGE_OF_ANOTHER_USER": Refusal(
        means="users who cannot write the log can write its salvage",
        way="check the salvage's owner and permissions; give it to the owner of the log alone",
    ),
    "TRASH_OF_ANOTHER_USER": Refusal(
        means="the trash belongs to another user: not to this one, root or the directory's owner",
        way="run as the directory's owner, or name another folder with `--trash DIR`",
    ),
    "CLAIM_OF_ANOTHER_USER": Refusal(
        means="another user's unfinished work is in the directory",
        way="run as that user, or as root",
    ),
    "RUN_IS_OVER": Refusal(
        means="a task was still running after its run had ended; it committed nothing afterwards",
        way="run again",
    ),
    "UNDO_BEGUN": Refusal(
        means="an undo of the run has begun and has not ended",
        way="`pylog undo` the run again, then purge",
    ),
    "NOT_KAFKAS": Refusal(
        means="the directory to remove does not look like a partition that Kafka deleted",
        way="look at it, and move it out of the log directory",
    ),
    "NOT_OURS": Refusal(
        means="the trash of the run contains an entry that is not a regular file",
        way="look at it, and move it out of the trash",
    ),
    "CUTS_RECORDS": Refusal(
        means="the log is damaged, and rebuilding its indexes would cut records",
        way="repair the log first, as `pylog doctor ROOT` says",
    ),
    "READ_ONLY_STORE": Refusal(
        means="the place is a mirror on an object store, and pylog only reads mirrors",
        way="`pylog ingest` it into a managed root",
    ),
    "UNSAFE_STORE": Refusal(
        means="the object store's conditional writes are not safe",
        way="use a store that has If-Match and If-None-Match",
    ),
    "LEASE_NOT_HELD": Refusal(
        means="pylog tried to change the managed root without its lease: a defect of pylog",
        way="run again, and report the defect",
    ),
    "SYNC_MAY_WRITE": Refusal(
        means="the managed root would use the mirror's objects, and their sync may still be "
        "running",
        way="stop the sync, then add `--sync-stopped`",
    ),
    "TARGET_IN_USE": Refusal(means="another run is writing the target", way="wait until it ends"),
    "TARGET_IS_A_BROKERS": Refusal(
        means="the target is a broker's directory (meta.properties): new records would have no "
        "other replica",
        way="write into a separate directory",
    ),
    "NO_STAGING": Refusal(
        means="the target is a mount point, or lies in a broker's log directory: pylog cannot "
        "rename a folder into it",
        way="name a folder below the mount point",
    ),
    "WRITE_SUPERSEDED": Refusal(
        means="a later write to the directory has begun, or this host does not see the directory",
        way="wait until the other write ends, and write again, on a disk that all hosts see",
    ),
    "LOG_CHANGED": Refusal(
        means="another process has appended to the log since this write began",
        way="write into a separate directory, or with mode overwrite",
    ),
}


# Of what a command says beside them.
REMARKS: Final[Mapping[str, Refusal]] = {
    # The verdict of `pylog doctor`.
    Advice.IN_USE: Refusal(
        means="a process holds a log directory's lock", way="stop that process, or wait for it"
    ),
    Advice.DO_NOT_START: Refusal(
        means="a broker would stop at its start, or delete a log",
        way="follow the commands and findings of `pylog doctor`, then run it again",
    ),
    Advice.LOOK_BEFORE_START: Refusal(
        means="a broker would start, but lose records or leave errors",
        way="follow the commands and findings of `pylog doctor`, then run it again",
    ),
    Advice.RECOVER: Refusal(
        means="a broker would take long to recover",
        way="recover faster with `pylog recover ROOT --role broker`",
    ),
    Advice.START_BROKER: Refusal(means="the broker can start and loses nothing"),
    Advice.COPY_DAMAGED: Refusal(
        means="the copy is damaged", way="compare it with its source before you need it"
    ),
    Advice.COPY_WHOLE: Refusal(
        means="the copy is complete, except for files that are still being synced"
    ),
    Advice.NO_PARTITION: Refusal(
        means="none of the named directories has a partition",
        way="name the log directories themselves (log.dirs)",
    ),
    # Of a mirror's segments that `pylog ingest` leaves there.
    LeftReason.OPEN: Refusal(
        means="this is the newest segment of a mirror, so a broker may still write to it",
        way="wait until a broker has rolled it and the sync has copied the next one",
    ),
    LeftReason.NOT_SETTLED: Refusal(
        means="two listings of the segment, or of an earlier one, differ: a sync is still running",
        way="ingest again after the sync has ended",
    ),
    LeftReason.ABOVE_HIGH_WATERMARK: Refusal(
        means="part of the segment is above the high watermark: not all in-sync replicas may have "
        "it",
        way="ingest again after the next sync, which copies a higher high watermark",
    ),
    # Of a bucket.
    RemarkCode.ARCHIVED_OBJECTS: Refusal(
        means="objects of the bucket are archived, and cannot be read there",
        way="restore them, or name a bucket that keeps its objects readable",
    ),
    RemarkCode.KMS_WITHOUT_BUCKET_KEY: Refusal(
        means="each read or write of an object sends one more request to KMS",
        way="switch the bucket key on",
    ),
    RemarkCode.LIFECYCLE_EXPIRES: Refusal(
        means="a lifecycle rule deletes objects by age, but manifests or a ledger still need them",
        way="exclude the prefix from the rule; `pylog purge` deletes unneeded objects",
    ),
    RemarkCode.LIFECYCLE_MOVES: Refusal(
        means="a lifecycle rule moves objects to a class with dearer reads",
        way="exclude the prefix from the rule, unless you never read there",
    ),
    RemarkCode.NOT_ASKED: Refusal(
        means="the store did not answer the question about a setting",
        way="allow the request that the message names, or check the setting yourself",
    ),
    RemarkCode.OBJECT_LOCK: Refusal(
        means="object lock keeps every version: retention and purge free no space before a lock "
        "ends",
        way="name a bucket without object lock, or plan for the space",
    ),
    RemarkCode.PARTS_STAY: Refusal(
        means="no lifecycle rule aborts unfinished uploads: you pay for the parts of killed "
        "processes",
        way="add a rule AbortIncompleteMultipartUpload, for instance of a week",
    ),
    RemarkCode.REPLICATED: Refusal(
        means="the bucket is replicated: a manifest may arrive there before its objects",
        way="read the replica only after its replication has caught up",
    ),
    RemarkCode.REQUESTER_PAYS: Refusal(means="the reader pays for requests and transfer"),
    RemarkCode.STORAGE_CLASS: Refusal(
        means="objects are in a class in which you pay for each byte that you read",
        way="if you read them often, name a bucket of the standard class",
    ),
    RemarkCode.VERSIONED: Refusal(
        means="the bucket keeps old versions of replaced and deleted objects, and you pay for them",
        way="add a lifecycle rule for noncurrent versions",
    ),
    # Of partitions that `pylog audit` looks at; one about ids is a finding's name, too.
    "UNDER_REPLICATED": Refusal(
        means="some replicas of the partition are not in sync",
        way="start the brokers of the other replicas, and let them fetch",
    ),
    "UNDER_MIN_ISR": Refusal(
        means="fewer replicas are in sync than min.insync.replicas: writes with acks=all fail",
        way="start the brokers of the other replicas, and let them fetch",
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
        means="a broker's directory has no marker of a clean shutdown, so the broker leaves the "
        "ISR",
        way="run `pylog recover ROOT --role broker` before it starts",
    ),
    "LEADER_EPOCH_UNKNOWN": Refusal(
        means="a log has a later leader epoch than the cluster's metadata",
        way="name the directory with the newest `__cluster_metadata-0`",
    ),
    "LEADER_EPOCH_FENCED": Refusal(
        means="the cluster's metadata has a later leader epoch than the log",
    ),
    "TOPIC_ID_UNKNOWN": Refusal(
        means="no copy of the metadata has the topic id of a directory",
        way="if the topic should have the directory again: `pylog metadata adopt`",
    ),
    "ROOT_UNREADABLE": Refusal(
        means="a log directory cannot be read, so its replicas were not compared",
        way="repair its disk or its permissions, and run again",
    ),
    "ROOT_IN_USE": Refusal(
        means="a process holds the directory's lock: the answer may lack its latest records",
        way="stop the process, and run again",
    ),
    # Of commits and transactions.
    CommitFinding.BEYOND_LOG_END: Refusal(
        means="a group has committed an offset behind the log's end: the log was cut, or belongs "
        "to another topic of that name",
        way="repair the log, then run `kafka-consumer-groups.sh --reset-offsets`",
    ),
    CommitFinding.BELOW_LOG_START: Refusal(
        means="the records that a group would read next were deleted",
        way="let its consumers follow auto.offset.reset, or run `kafka-consumer-groups.sh "
        "--reset-offsets`",
    ),
    CommitFinding.EXPIRED: Refusal(
        means="the coordinator will remove the commit at its next check",
        way="to keep it, raise offsets.retention.minutes before the broker starts",
    ),
    CommitFinding.METADATA_TOO_LARGE: Refusal(
        means="a commit's metadata is longer than offset.metadata.max.bytes",
        way="raise it; otherwise the coordinator refuses the group's next commit",
    ),
    CommitFinding.WRONG_PARTITION: Refusal(
        means="a commit is in a partition of `__consumer_offsets` that its coordinator does not "
        "read",
        way="commit again: `__consumer_offsets` was created again with another number of "
        "partitions",
    ),
    CommitFinding.NOT_LOADED: Refusal(
        means="a record of the same partition stops the coordinator's load, so the group has no "
        "coordinator",
        way="`pylog doctor ROOT` names the record (COORDINATOR_NOT_LOADED)",
    ),
    TransactionEnding.ONGOING: Refusal(
        means="a transaction is open; its producer or, after the timeout, its coordinator ends it"
    ),
    TransactionEnding.ENDING: Refusal(
        means="a transaction's outcome is decided; its coordinator still has to write the markers"
    ),
    TransactionEnding.OVERDUE: Refusal(
        means="a transaction is open beyond its timeout; its coordinator aborts it when it runs"
    ),
    TransactionEnding.HANGING: Refusal(
        means="no transactional id has this open transaction, so nothing ends it",
        way="run the command that `pylog transactions` prints, on the cluster",
    ),
    TransactionEnding.UNKNOWN: Refusal(
        means="the directories lack the coordinator's partition of an open transaction",
        way="name the directories that have `__transaction_state`",
    ),
    Problem.UNKNOWN_TYPE: Refusal(
        means="Kafka 4.4 does not know this type of record; a broker ignores the record"
    ),
    Problem.UNKNOWN_VERSION: Refusal(
        means="Kafka 4.4 does not know the version of a record; a coordinator of groups stops "
        "loading there",
        way="start the brokers with the release that wrote it",
    ),
    Problem.MALFORMED: Refusal(
        means="the bytes of a record do not fit its type and version",
        way="`pylog dump DIRECTORY` shows the record; another replica may have it intact",
    ),
}

# What mends the cause of an error; of the others the text says it.
_ERROR_WAYS: Final[Mapping[type[PylogError], str]] = {
    StorageError: (
        "check the disk, the file's permissions or the object store in the message, and run again"
    ),
    ConfigError: "correct the option or the line of the file in the message",
    GuardRefusedError: "`pylog explain CODE` explains the code in the message",
    BadBytesError: "run `pylog doctor ROOT`, which names the damage and its repair",
    CheckpointError: "run `pylog doctor ROOT`, which names the damage and its repair",
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
                means=means,
                way=way
                or "read the message: it has the expected value, the actual value and the place",
            )
    return errors


# Of what ``pylog explain`` asks of a log beside these reasons; retention's without the word for the
# predicate in front, which its codes have.
PREDICATES: Final[Mapping[str, Refusal]] = {
    "UNCLEANABLE": Refusal(
        means="the log cannot be loaded", way="run `pylog doctor ROOT`, which names the repair"
    ),
    "DIRTY_RATIO": REASONS[Reason.RATIO_BELOW_MINIMUM],
    "MAX_COMPACTION_LAG": Refusal(
        means="the dirty records are younger than max.compaction.lag.ms, so the dirty ratio "
        "decides",
        way="wait, or lower the lag: `--set max.compaction.lag.ms=MS`",
    ),
    "MIN_COMPACTION_LAG": Refusal(
        means="records are younger than min.compaction.lag.ms",
        way="wait, or `--set min.compaction.lag.ms=0`",
    ),
    "OPEN_TRANSACTION": Refusal(
        means="a transaction is open, and the cleaner stops at its first record",
        way="`pylog transactions ROOT` says whether it hangs, and how to end it",
    ),
    "HIGH_WATERMARK": Refusal(
        means="records above the checkpoint's high watermark may be on no other replica",
        way=REASONS[Reason.NO_HIGH_WATERMARK].way,
    ),
    "ACTIVE_SEGMENT": Refusal(
        means="Kafka never cleans the active segment",
        way="wait until a broker rolls it (segment.ms, segment.bytes)",
    ),
    "NOT_DELETED": Refusal(means="the topic's policy does not include delete"),
    "NOT_ASKED": Refusal(
        means="the topic has no such limit",
        way="use `--set retention.ms=MS` or `--set retention.bytes=BYTES`, if the policy includes "
        "delete",
    ),
    "LAST_SEGMENT": Refusal(
        means="only the active segment is left, and Kafka keeps it",
        way="wait until a broker rolls it (segment.ms, segment.bytes)",
    ),
    "ABOVE_LOG_START": Refusal(means="the segment has records above the log start offset"),
    "WITHIN_SIZE": Refusal(
        means="without this segment, the log would be smaller than retention.bytes",
        way="lower the limit: `--set retention.bytes=BYTES`",
    ),
    "WITHIN_TIME": Refusal(
        means="a record of the segment is younger than retention.ms",
        way="wait, or lower the limit: `--set retention.ms=MS`",
    ),
    "FUTURE_TIMESTAMP": Refusal(
        means="a record of the segment has a timestamp in the future",
        way="use a limit by size: `--set retention.bytes=BYTES`",
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
