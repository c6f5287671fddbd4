"""The table of finding codes: severity, meaning, fix and command of each.

The severity is that in a broker's directory; where its context decides (a torn tail of a copy
harms nobody), the table says so. ``docs/findings.md`` shows this table to people.
"""

import enum
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from storage_core.catalog.roles import Role, local_path
from storage_core.filenames import CLUSTER_METADATA_TOPIC
from storage_core.maintenance.verification.findings import Code, Finding, Severity, Stops


class Cure(enum.Enum):
    """What the command of a finding does."""

    NONE = enum.auto()  # only a person, or another replica, can repair it
    LOOK = enum.auto()
    REBUILD = enum.auto()  # files derived from the log; nothing is cut
    RECOVER = enum.auto()  # the log, as a broker does
    CUT = enum.auto()  # the same, with an option that permits it
    SET_ASIDE = enum.auto()  # a file of the directory, before any recovery
    MAKE_ROOM = enum.auto()  # on the disk, before anything else is written


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingKind:
    """Severity, meaning and fix of a finding code."""

    severity: Severity  # in a broker's directory
    meaning: str
    # The repair. ``{root}``, ``{directory}`` (the partition's), ``{topic}``, ``{role}`` and
    # ``{file}`` stand for those of the finding. A kind with a command has none of them in its fix.
    fix: str
    # The repairing shell command, to be run as printed with the broker stopped; empty if only a
    # person can repair it. ``{start}`` is the option for the log start, if a checkpoint has one,
    # ``{salvage}`` a folder beside the log directory.
    command: str = ""
    elsewhere: str = ""  # when it is of another severity; empty where it never is
    stops: Stops = Stops.NOTHING  # the part that a fatal one stops

    @property
    def advice(self) -> str:
        """What to do about it, the command included."""
        return f"{self.fix}: {self.command}" if self.command else self.fix

    @property
    def cure(self) -> Cure:
        """What the command does."""
        return _CURES[self.command] if self.command else Cure.NONE


# A clean shutdown marker, or a recovery point above the damage, would make a recovery skip it.
_RECOVER_ALL: Final = "pylog recover {root} --role {role} --salvage {salvage}"
_RECOVER: Final = _RECOVER_ALL + " --topics {topic} --from-start"
_CUT: Final = _RECOVER + " --allow-truncate"
_SET_ASIDE: Final = "mv {file} {file}.broken && " + _RECOVER_ALL
_DUMP: Final = "pylog dump {directory}"
_FREE: Final = "pylog free {root} --role {role}"
_FROM_ANOTHER: Final = (
    "take this replica from a healthy one; if there is none, cut the log here and keep the cut "
    "records"
)
_FETCH: Final = (
    "stop the broker, move {directory} out of the log directory, and keep it; at its next start the"
    " broker fetches the partition from a healthy replica, if there is one"
)
# From the first segment on: every index, epochs, producers; but nothing is cut for that.
_REBUILD_ALL: Final = (
    "pylog partition recover {directory}{start} --no-truncate --now-ms $(date +%s000)"
)
_REBUILD: Final = "rm -f {file} && " + _REBUILD_ALL
_CURES: Final = {
    _RECOVER_ALL: Cure.RECOVER,
    _RECOVER: Cure.RECOVER,
    _CUT: Cure.CUT,
    _SET_ASIDE: Cure.SET_ASIDE,
    _DUMP: Cure.LOOK,
    _FREE: Cure.MAKE_ROOM,
    _REBUILD_ALL: Cure.REBUILD,
    _REBUILD: Cure.REBUILD,
}
# A node reads its whole metadata log at every start, with or without a marker, and no other program
# writes to it.
_METADATA_FIX: Final = (
    "this program cannot repair it: at each start a node reads its whole metadata log and rebuilds"
    " the files derived from it. If records are damaged, stop the node and move {directory} away: "
    "the node fetches the log from the other controllers. If there is only one controller, restore"
    " the log from a backup"
)
# Files rebuilt from the local log alone lack the records in remote storage, and a
# broker deletes there by it.
_TIERED_FIX: Final = (
    "this program cannot repair it: the topic is tiered, and the local log alone lacks the records"
    " in remote storage. A broker rebuilds missing indexes and producer snapshots itself; epochs "
    "come from another replica or from remote storage"
)
# Repairing commands work on local directories.
_COPY_FIX: Final = (
    "repair a copy: make one (`pylog materialize`, or your sync's own tool), run `pylog doctor` on "
    "it, and ingest it into a new root"
)

# No broker repairs an object of a tier.
_RESTORE: Final = (
    "bring the object back from another copy or an older version in the bucket; or save the rest: "
    "`pylog export` with --allow-data-loss"
)

KINDS: Final[dict[Code, FindingKind]] = {
    Code.BATCH_CRC_WRONG: FindingKind(
        severity=Severity.ERROR,
        meaning="The checksum of a batch does not match its bytes; consumers cannot read it.",
        fix=_FROM_ANOTHER,
        command=_CUT,
    ),
    Code.BATCH_LENGTH_IMPOSSIBLE: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "The bytes at a batch's start are not a batch; batches behind them are unreachable."
        ),
        fix=_FROM_ANOTHER,
        command=_CUT,
    ),
    Code.TORN_TAIL: FindingKind(
        severity=Severity.WARN,
        meaning="The log ends inside a batch: its writer died, or a copy is still running.",
        fix="nothing, if the broker recovers at its start; otherwise",
        command=_CUT,
        elsewhere=(
            "error if the directory is marked as cleanly shut down, because a broker then appends "
            "behind the torn batch; harmless in copies (role mirror)"
        ),
    ),
    Code.ZERO_TAIL: FindingKind(
        severity=Severity.HARMLESS,
        meaning="The log ends in zeros: a preallocated segment that was not closed.",
        fix="nothing, if the broker recovers at its start; otherwise",
        command=_CUT,
        elsewhere=(
            "error if the directory is marked as cleanly shut down, because a broker then appends "
            "behind the zeros"
        ),
    ),
    Code.TORN_SEGMENT: FindingKind(
        severity=Severity.ERROR,
        meaning="A segment that is not the last one ends inside a batch, or in zeros.",
        fix=_FROM_ANOTHER,
        command=_CUT,
    ),
    Code.MAGIC_UNKNOWN: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "Kafka does not know the magic of a batch. Recovery accepts the batch, but consumers "
            "stop at it. The checksum does not cover the magic, so one flipped byte is enough."
        ),
        fix=_FETCH,
    ),
    Code.LEGACY_FORMAT: FindingKind(
        severity=Severity.INFO,
        meaning="A segment holds messages of format v0 or v1.",
        fix="nothing; brokers still read them",
    ),
    Code.CONTROL_RECORD_MALFORMED: FindingKind(
        severity=Severity.FATAL,
        meaning="A control batch has no control record; a broker that replays it does not start.",
        fix=_FETCH,
        stops=Stops.BROKER,
    ),
    Code.RECORD_COUNT_NEGATIVE: FindingKind(
        severity=Severity.ERROR,
        meaning="The record count of a batch is negative; consumers stop at it.",
        fix=_FETCH,
    ),
    Code.RECORDS_MALFORMED: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "The checksum of a batch is right, but its records cannot be decompressed, or "
            "contradict their own lengths or the batch's record count (--deep)."
        ),
        fix="fetch this replica from a healthy one; recovery does not notice the damage",
    ),
    Code.CODEC_UNKNOWN: FindingKind(
        severity=Severity.ERROR,
        meaning="A batch names a codec that does not exist (--deep).",
        fix="fetch this replica from a healthy one; recovery does not notice the damage",
    ),
    Code.RECORD_OFFSET_OUTSIDE_BATCH: FindingKind(
        severity=Severity.ERROR,
        meaning="Offsets of records do not rise, or lie outside their batch (--deep).",
        fix="fetch this replica from a healthy one; recovery does not notice the damage",
    ),
    Code.RECORD_NEWER_THAN_BATCH: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A record is newer than its batch's largest timestamp, so look-ups by time miss it "
            "(--deep)."
        ),
        fix="nothing; its producer wrote it this way",
    ),
    Code.NEGATIVE_TIMESTAMP: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A record has a timestamp below -1. A broker accepts it, but Kafka's cleaner fails if "
            "it must rewrite the record (--deep checks every batch)."
        ),
        fix=(
            "repair the producer; if compaction skips the topic (NEGATIVE_TIMESTAMP), `--set "
            "keep.negative.timestamps=true` compacts it"
        ),
    ),
    Code.OFFSETS_NOT_RISING: FindingKind(
        severity=Severity.ERROR,
        meaning="A batch begins at or below an earlier offset, or ends before it begins.",
        fix="fetch this replica from a healthy one; recovery may empty the segment, or accept it",
    ),
    Code.OFFSET_BELOW_BASE: FindingKind(
        severity=Severity.ERROR,
        meaning="A batch has offsets below its segment's base offset.",
        fix="fetch this replica from a healthy one",
    ),
    Code.OFFSET_OVERFLOW: FindingKind(
        severity=Severity.WARN,
        meaning="An offset is 2^31 or more above its segment's base; indexes cannot hold it.",
        fix="recovery splits the segment",
        command=_RECOVER,
    ),
    Code.SEGMENTS_OVERLAP: FindingKind(
        severity=Severity.ERROR,
        meaning="A segment overlaps the next one: both contain some of the offsets.",
        fix="find out which copy is right",
        command=_DUMP,
    ),
    Code.OFFSETS_MISSING: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "Offsets are missing between two segments, although this log was not compacted there: a"
            " .log file was deleted by hand. Reads skip the gap. Nothing is wrong if this replica "
            "fetched compacted records from its leader."
        ),
        fix="compare it with the other replicas; fetch it from a replica that has the offsets",
        elsewhere="info in copies (role mirror): the checkpoint may be older than the copy",
    ),
    Code.SEGMENT_TOO_LARGE: FindingKind(
        severity=Severity.FATAL,
        meaning="A .log file is larger than 2147483647 bytes; Kafka does not open it.",
        fix=_FETCH,
        stops=Stops.BROKER,
    ),
    Code.EPOCH_GOES_BACK: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A batch has a lower leader epoch than an earlier batch: two leaders wrote this log."
        ),
        fix="compare it with the other replicas before this replica becomes leader",
    ),
    Code.EPOCH_DOUBTFUL: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A batch has a leader epoch that is neither in the batches around it nor in the epoch "
            "file. Either a bit flipped there, which no checksum covers, or the log ends with the "
            "first batch of an epoch that was not recorded. Recovery (Kafka's and pylog's) writes "
            "such an epoch into leader-epoch-checkpoint; then the replica as a follower never "
            "catches up behind it."
        ),
        fix=(
            "heal the batch from another replica, or move the directory away and let the broker "
            "fetch the partition; do not rebuild the epoch file"
        ),
    ),
    Code.EPOCH_FILE_MISSING: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "There is no leader-epoch-checkpoint, so the replica does not know where it diverged."
        ),
        fix="rebuild it",
        command=_REBUILD_ALL,
    ),
    Code.EPOCH_FILE_BROKEN: FindingKind(
        severity=Severity.FATAL,
        meaning="leader-epoch-checkpoint cannot be parsed; a broker takes the directory offline.",
        fix="rebuild it",
        command=_REBUILD,
        stops=Stops.DIRECTORY,
    ),
    Code.EPOCH_FILE_NOT_RISING: FindingKind(
        severity=Severity.WARN,
        meaning="Entries of leader-epoch-checkpoint contradict each other; a broker drops some.",
        fix="rebuild it",
        command=_REBUILD,
    ),
    Code.EPOCH_FILE_SHORT: FindingKind(
        severity=Severity.HARMLESS,
        meaning=(
            "leader-epoch-checkpoint begins above the log's first record. Records below it were "
            "deleted (kafka-delete-records.sh), and the broker died before it wrote the new log "
            "start. It serves these records again."
        ),
        fix="nothing",
    ),
    Code.EPOCH_FILE_WRONG: FindingKind(
        severity=Severity.ERROR,
        meaning="leader-epoch-checkpoint contradicts the batches.",
        fix="rebuild it",
        command=_REBUILD,
    ),
    Code.TIERED_EPOCHS_MISSING: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "leader-epoch-checkpoint of a tiered topic lacks the epochs of records in remote "
            "storage. If a broker leads the partition, it deletes all remote segments whose epochs "
            "are below the first one in this file."
        ),
        fix=(
            "before any broker starts, take the file from another replica of the partition, or take"
            " the missing epochs from the newest segment's metadata in remote storage. The local "
            "log does not have them: do not rebuild the file from it"
        ),
    ),
    Code.OFFSET_INDEX_MISSING: FindingKind(
        severity=Severity.WARN,
        meaning="A segment has no offset index; a broker reads the whole segment at its start.",
        fix="nothing, the broker rebuilds it; or do it now",
        command=_REBUILD_ALL,
    ),
    Code.TIME_INDEX_MISSING: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A segment has no time index. A broker creates an empty one that stays empty. Retention"
            " then uses the age of the file, and look-ups by time scan the segment."
        ),
        fix="rebuild it",
        command=_REBUILD_ALL,
    ),
    Code.TIME_INDEX_EMPTY: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A segment has records with timestamps, but an empty time index. Retention uses the age"
            " of the file, and look-ups by time scan the segment."
        ),
        fix="rebuild it",
        command=_REBUILD_ALL,
        elsewhere="error if the file is older than its records: retention deletes them too early",
    ),
    Code.TXN_INDEX_MISSING: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "A segment with aborted transactions has no transaction index: consumers that read "
            "committed records get aborted ones."
        ),
        fix="rebuild it",
        command=_REBUILD_ALL,
    ),
    Code.INDEX_PREALLOCATED: FindingKind(
        severity=Severity.HARMLESS,
        meaning="An index ends in zeros: it was preallocated and not closed.",
        fix="nothing",
        elsewhere="for a closed segment's time index see TIME_INDEX_PADDED",
    ),
    Code.INDEX_RAGGED: FindingKind(
        severity=Severity.HARMLESS,
        meaning="An index ends inside an entry; the complete entries before it are valid.",
        fix="nothing",
    ),
    Code.INDEX_BEYOND_LOG: FindingKind(
        severity=Severity.ERROR,
        meaning="An index refers to batches behind the end of its log: the log has lost its end.",
        fix="rebuild it",
        command=_REBUILD_ALL,
        elsewhere=(
            "warn in the last segment of a log that was not closed, because recovery rebuilds the "
            "index; harmless there in copies (role mirror)"
        ),
    ),
    Code.OFFSET_INDEX_WRONG: FindingKind(
        severity=Severity.ERROR,
        meaning="Entries of an offset index do not match its log: look-ups find the wrong place.",
        fix="rebuild it",
        command=_REBUILD_ALL,
    ),
    Code.TIME_INDEX_WRONG: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "Entries of a time index do not match its log: look-ups by time return wrong offsets."
        ),
        fix="rebuild it",
        command=_REBUILD_ALL,
    ),
    Code.TIME_INDEX_UNFINISHED: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "A closed segment's time index lacks its newest record: the segment looks older, and "
            "retention deletes it too early."
        ),
        fix="rebuild it before a broker starts",
        command=_REBUILD_ALL,
        elsewhere="warn in copies (role mirror)",
    ),
    Code.TIME_INDEX_PADDED: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "A closed segment's time index ends in zeros. Kafka reads them as a time in 1970, and "
            "the first retention by time deletes the segment."
        ),
        fix="rebuild it before a broker starts",
        command=_REBUILD_ALL,
        elsewhere="warn in copies (role mirror)",
    ),
    Code.TXN_INDEX_BROKEN: FindingKind(
        severity=Severity.WARN,
        meaning="A transaction index is invalid; a broker recovers the segment.",
        fix="nothing, the broker rebuilds it; or do it now",
        command=_REBUILD_ALL,
    ),
    Code.TXN_INDEX_VERSION_UNKNOWN: FindingKind(
        severity=Severity.FATAL,
        meaning="An entry of a transaction index has an unknown version; a broker does not start.",
        fix="rebuild it",
        command=_REBUILD,
        stops=Stops.BROKER,
    ),
    Code.TXN_INDEX_INCOMPLETE: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "A transaction index lacks transactions that were aborted in its segment: consumers "
            "that read committed records get aborted ones."
        ),
        fix="rebuild it",
        command=_REBUILD,
    ),
    Code.TXN_INDEX_WRONG: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "A transaction index has entries for transactions that the log does not have: consumers"
            " that read committed records may miss some."
        ),
        fix="rebuild it",
        command=_REBUILD,
    ),
    Code.SNAPSHOT_CORRUPT: FindingKind(
        severity=Severity.WARN,
        meaning="A producer snapshot cannot be read; a broker deletes it and tries an older one.",
        fix="nothing; or rebuild it",
        command=_REBUILD_ALL,
    ),
    Code.SNAPSHOT_MISSING: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A cleanly closed log has producers, but no producer snapshot: a broker forgets the "
            "producers, so it misses duplicates and open transactions."
        ),
        fix="rebuild it",
        command=_REBUILD_ALL,
    ),
    Code.SNAPSHOT_STRAY: FindingKind(
        severity=Severity.HARMLESS,
        meaning="A producer snapshot lies outside the log; a broker deletes it.",
        fix="nothing",
    ),
    Code.SNAPSHOT_WRONG: FindingKind(
        severity=Severity.WARN,
        meaning="A producer snapshot differs from a replay of the log (--deep).",
        fix="rebuild it",
        command=_REBUILD,
    ),
    Code.TRANSACTION_OPEN: FindingKind(
        severity=Severity.INFO,
        meaning="A transaction is open; readers of committed records stop before it.",
        fix="nothing; its coordinator ends it",
    ),
    Code.TRANSACTION_HANGING: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A transaction has been open for longer than any coordinator allows. Readers of "
            "committed records stop there, and so does compaction."
        ),
        fix="on the running cluster run kafka-transactions.sh find-hanging, then abort",
    ),
    Code.TRANSACTION_STATE_INVALID: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "A producer with an open transaction wrote a batch outside it; a broker that replays "
            "the log does not start."
        ),
        fix=_FETCH,
        stops=Stops.BROKER,
    ),
    Code.COORDINATOR_NOT_LOADED: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "A record of `__consumer_offsets` or `__share_group_state` is malformed, or has a "
            "version that Kafka 4.4 does not know. Its coordinator does not load, so the "
            "partition's groups have no coordinator. In `__transaction_state` a malformed record "
            "ends the load: the coordinator forgets later transactional ids."
        ),
        fix=(
            "start the brokers with the release that wrote it, or let a replica without the record "
            "lead; `pylog dump {directory}` shows the record"
        ),
    ),
    Code.COORDINATOR_RECORD_IGNORED: FindingKind(
        severity=Severity.INFO,
        meaning=(
            "A coordinator's record has a type that Kafka 4.4 does not know, or in "
            "`__transaction_state` an unknown version. The coordinator ignores it. It may be left "
            "over from an upgrade that was undone."
        ),
        fix="nothing; the release that wrote it reads it",
        elsewhere=(
            "warn in `__transaction_state`: the coordinator does not know the transactional id"
        ),
    ),
    Code.NO_SEGMENT: FindingKind(
        severity=Severity.WARN,
        meaning="A partition's directory has no segment; a broker starts an empty log in it.",
        fix="check whether the copy is complete and whether the partition was empty",
        elsewhere=(
            "error if checkpoints or producer snapshots give a log end above the offset at which a "
            "broker starts the log: an empty .log file with that offset as its name keeps the "
            "offsets; warn in copies"
        ),
    ),
    Code.INDEX_WITHOUT_LOG: FindingKind(
        severity=Severity.HARMLESS,
        meaning="An index has no .log file; a broker deletes it.",
        fix="nothing",
    ),
    Code.LEFTOVER: FindingKind(
        severity=Severity.HARMLESS,
        meaning="A file is waiting for deletion, or a crash left it unfinished.",
        fix="nothing, the next start removes it",
    ),
    Code.SWAP_UNFINISHED: FindingKind(
        severity=Severity.WARN,
        meaning="A crash interrupted a swap of segments; the next start completes or undoes it.",
        fix="nothing, the broker completes or undoes it; or do it now",
        command=_RECOVER,
    ),
    Code.FILE_UNKNOWN: FindingKind(
        severity=Severity.INFO,
        meaning="A file does not belong to Kafka; Kafka ignores it.",
        fix="nothing",
    ),
    Code.SEGMENT_RENAMED: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "A file has the name of a segment plus a suffix, and the segment itself is missing: "
            "another program compressed or renamed it. A broker starts, but serves none of its "
            "records."
        ),
        fix=(
            "stop the broker, decompress the file (gunzip, zstd -d), rename it to 20 digits and "
            ".log, and run `pylog doctor` again; keep that program out of the log directory"
        ),
        elsewhere="info below the log start, where no reader needs it",
    ),
    Code.FILE_ANCIENT: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "A directory has no segment, but records of Kafka 0.7 or older, which later versions "
            "cannot read. pylog creates no empty log beside them."
        ),
        fix="move {file} out of the directory, if the log may start again",
    ),
    Code.FILE_NAME_UNPADDED: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "The number in a segment's file name does not have 20 digits. Kafka takes the number, "
            "then looks for the name with 20 digits."
        ),
        fix="if {file} belongs to this log, rename it to 20 digits",
    ),
    Code.FILE_NAME_INVALID: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "A file has one of Kafka's suffixes but no offset before it; a broker does not start."
        ),
        fix="move {file} out of the directory",
        stops=Stops.BROKER,
    ),
    Code.FILE_UNREADABLE: FindingKind(
        severity=Severity.ERROR,
        meaning="The disk or the operating system refuses to read a file.",
        fix="check the disk (dmesg) and the owner of {file}",
    ),
    Code.FILE_IS_FOLDER: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "A folder has the name of a file that a broker opens at its start; the broker takes the"
            " log directory offline."
        ),
        fix="move {file} away, and run `pylog doctor` again",
        elsewhere="error if only look-ups open the file",
        stops=Stops.DIRECTORY,
    ),
    Code.FILE_FORBIDDEN: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "The user who owns most of the log directory cannot open a file or folder that a broker"
            " opens at its start; the broker takes the log directory offline."
        ),
        fix=(
            "if the broker runs as that user, give {file} to them (chown), with the mode of the "
            "other files (chmod)"
        ),
        stops=Stops.DIRECTORY,
    ),
    Code.CHANGED_WHILE_READ: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A file vanished, shrank or grew during the verification: another process is writing "
            "here."
        ),
        fix="stop the writer and verify again, or use pylog verify --live",
        elsewhere="info with --live",
    ),
    Code.PARTITION_METADATA_MISSING: FindingKind(
        severity=Severity.INFO,
        meaning="There is no partition.metadata, so the topic's id is not known here.",
        fix=(
            "nothing under ZooKeeper, or if the log is empty: a broker writes the file. Under KRaft"
            " a broker renames a log with records to -stray (PARTITION_STRAYED)"
        ),
    ),
    Code.PARTITION_METADATA_BROKEN: FindingKind(
        severity=Severity.FATAL,
        meaning="partition.metadata cannot be parsed; a broker takes the log directory offline.",
        fix=(
            "write the topic's id into {file} (a dump of __cluster_metadata-0 has it); without the "
            "file a KRaft broker renames the log to -stray"
        ),
        stops=Stops.DIRECTORY,
    ),
    Code.PARTITION_METADATA_EMPTY: FindingKind(
        severity=Severity.FATAL,
        meaning="partition.metadata is empty after a power cut; a broker does not start with it.",
        fix=(
            "write the topic's id into {file} (a dump of __cluster_metadata-0 has it); without the "
            "file a broker renames the log to -stray"
        ),
        stops=Stops.BROKER,
    ),
    Code.TOPIC_ID_INCONSISTENT: FindingKind(
        severity=Severity.ERROR,
        meaning="The directory's topic id differs from the id in the topic's other directories.",
        fix=(
            "compare its id with the topic's (kafka-topics.sh --describe); if they differ, the "
            "topic was deleted and created again: move {file} out of the log directory"
        ),
    ),
    Code.CHECKPOINT_BROKEN: FindingKind(
        severity=Severity.FATAL,
        meaning="A checkpoint cannot be parsed; a broker takes the log directory offline.",
        fix="a broker creates a missing one; move this one aside",
        command=_SET_ASIDE,
        stops=Stops.DIRECTORY,
    ),
    Code.CHECKPOINT_PARTITION_UNKNOWN: FindingKind(
        severity=Severity.INFO,
        meaning="A checkpoint has entries of partitions that the directory does not have.",
        fix="nothing; a broker drops them",
    ),
    Code.HIGH_WATERMARKS_UNKNOWN: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "replication-offset-checkpoint has 0 bytes, but logs were flushed. pylog does not know "
            "which records were acknowledged."
        ),
        fix=(
            "start the brokers with other replicas first. This broker writes the file again at its "
            "start; until then cuts cannot be compared with acknowledged records"
        ),
    ),
    Code.RECOVERY_POINT_BEYOND_END: FindingKind(
        severity=Severity.ERROR,
        meaning="Records that were on disk are gone: the log ends below its recovery point.",
        fix="do not let this replica lead before it has caught up; to correct the checkpoint, run",
        command=_RECOVER,
        elsewhere="warn in copies (role mirror): the checkpoint may be newer than the copy",
    ),
    Code.LOG_START_BEYOND_END: FindingKind(
        severity=Severity.FATAL,
        meaning="The log ends below its log start offset; a broker deletes all its segments.",
        fix="correct or delete the partition's line in {file} before any broker starts",
        elsewhere="warn in copies (role mirror): the checkpoint may be newer than the copy",
    ),
    Code.HIGH_WATERMARK_BEYOND_END: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "Acknowledged records are missing: the log ends below its high watermark. The rest is "
            "readable."
        ),
        fix=(
            "start the other replicas first, so that this one does not lead; if there is none, look"
            " for a backup before a broker or a recovery lowers the watermark"
        ),
        elsewhere="warn in copies (role mirror): the checkpoint may be newer than the copy",
    ),
    Code.CLEANER_POINT_OUTSIDE_LOG: FindingKind(
        severity=Severity.WARN,
        meaning="The cleaner's checkpoint lies outside the log; Kafka cleans the whole log again.",
        fix="nothing",
    ),
    Code.UNCLEAN_SHUTDOWN: FindingKind(
        severity=Severity.INFO,
        meaning="There is no clean-shutdown marker: a broker recovers from the recovery points.",
        fix="nothing, a broker recovers when it starts; to recover in parallel now",
        command=_RECOVER_ALL,
    ),
    Code.DIRECTORY_FOREIGN: FindingKind(
        severity=Severity.FATAL,
        meaning="Kafka does not know a sub-directory's name; a broker does not start.",
        fix="move {file} out of the log directory",
        elsewhere="info in copies (role mirror), and if the name is not UTF-8",
        stops=Stops.BROKER,
    ),
    Code.DIRECTORY_DELETED: FindingKind(
        severity=Severity.INFO,
        meaning="A partition is waiting for deletion; pylog does not check it.",
        fix="nothing, a broker deletes it",
    ),
    Code.DIRECTORY_STRAY: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A broker renamed a partition to -stray, because it does not own it; pylog does not "
            "check it."
        ),
        fix=(
            "run `pylog metadata adopt {root} --role broker --dry-run`: it says whether the "
            "metadata assigns the partition to this broker; if it does not, delete {file} when no "
            "user needs it"
        ),
    ),
    Code.DIRECTORY_FUTURE: FindingKind(
        severity=Severity.INFO,
        meaning="A move between log directories has not ended; pylog checks the copy as a log.",
        fix="nothing, a broker continues the move",
    ),
    Code.LOG_DIRECTORY_FORBIDDEN: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "The user who owns most of the log directory cannot write to the directory itself; the "
            "broker does not start."
        ),
        fix="if the broker runs as that user, give the directory back with chown and chmod {file}",
        stops=Stops.BROKER,
    ),
    Code.PARTITION_DUPLICATE: FindingKind(
        severity=Severity.FATAL,
        meaning="A partition is in two log directories of one broker; the broker does not start.",
        fix="find the right one (pylog inspect shows both), and move the other away",
        stops=Stops.BROKER,
    ),
    Code.PARTITION_LINKED: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "The directory of a partition is a link. A broker follows the link and serves the log. "
            "pylog follows no links: it has not checked this log, and its runs do not change it."
        ),
        fix=(
            "for a broker nothing; for pylog mount the folder in place of the link (mount --bind), "
            "or move it into a log directory of its own"
        ),
    ),
    Code.PARTITION_STRAYED: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "The cluster's metadata does not assign this log to this broker: at its start the "
            "broker renames the directory to -stray and serves none of its records."
        ),
        fix=(
            "nothing, if the topic was deleted or moved away. Otherwise keep a copy of {directory},"
            " and before any broker starts write {directory}/partition.metadata again: two lines, "
            "`version: 0` and `topic_id: ID` with the topic's own id"
        ),
        elsewhere="warn if the log has no records",
    ),
    Code.PARTITION_ABSENT: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "The cluster's metadata assigns a partition to this broker, but no log directory has "
            "it: at its start the broker creates an empty one, and may lead with it."
        ),
        fix="find its directory, or the disk with it, before any broker starts",
        elsewhere="warn if other replicas are in sync and this one is not",
        stops=Stops.DIRECTORY,
    ),
    Code.LOG_DIRECTORY_ABSENT: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "The broker registered more log directories than you named, and the named ones lack "
            "some of its partitions. If a directory is no longer in log.dirs, a start creates its "
            "partitions again in the others, empty, and the broker may lead with them."
        ),
        fix="name every directory of log.dirs; put a directory back that is no longer in log.dirs",
    ),
    Code.DISK_FULL: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "The disk of a log directory is full: a broker stops when it writes a checkpoint or an "
            "index."
        ),
        fix=(
            "make room before the start: move other files off the disk, or apply retention, which "
            "needs no free space"
        ),
        command=_FREE,
        elsewhere=(
            "error if some blocks are free and the start recovers logs, because it then writes "
            "their indexes; warn if the logs were closed"
        ),
        stops=Stops.BROKER,
    ),
    Code.FUTURE_ALONE: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "The copy of an unfinished move is here, but the partition itself is missing. At its "
            "start a broker creates an empty partition and cuts the copy to it: no record is left."
        ),
        fix=(
            "find the log directory with the partition itself; if it is lost, rename {file} to the "
            "partition's name before any broker starts"
        ),
        elsewhere="warn if the copy has no records",
    ),
    Code.FUTURE_PROMOTED: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A move between log directories was decided, but has not ended. At its start a broker "
            "replaces this log by the copy and deletes this log."
        ),
        fix="nothing, if the copy has all records; otherwise keep a copy of {directory}",
    ),
    Code.FUTURE_BESIDE_LOG: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "One log directory has both a partition and the copy of its unfinished move, for "
            "instance because two disks were merged. A broker fails to rename the copy to the "
            "partition's name, and does not start."
        ),
        fix=(
            "compare both (pylog inspect shows them), and move the one with fewer records out of "
            "the log directory; if that is the partition itself, rename {file} to its name"
        ),
        elsewhere=(
            "warn if the cluster's metadata assigns the partition to another log directory: the "
            "broker starts, but the move never ends; error if the metadata cannot be read"
        ),
        stops=Stops.BROKER,
    ),
    Code.META_PROPERTIES_MISSING: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "There is no meta.properties, so the owner of this log directory is not known, and a "
            "broker does not start."
        ),
        fix=(
            "write it again with version=1, the cluster.id and node.id of the broker's other log "
            "directories, and its own directory.id: if you name all of them, `pylog doctor` prints "
            "the command; if there are no others, use kafka-storage.sh format"
        ),
        elsewhere="info in copies (role mirror)",
        stops=Stops.BROKER,
    ),
    Code.META_PROPERTIES_BROKEN: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "meta.properties cannot be parsed, or lacks a line that its version needs; a broker "
            "takes the log directory offline."
        ),
        fix=(
            "correct {file}: if you name all log directories of the broker, `pylog doctor` prints "
            "the command"
        ),
        stops=Stops.DIRECTORY,
    ),
    Code.META_PROPERTIES_INCOMPLETE: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "meta.properties has no node or no cluster: it is empty, or not Kafka's; a broker does "
            "not start."
        ),
        fix=(
            "write it again with version=1, the cluster.id and node.id of the broker's other log "
            "directories or of its settings, and its own directory.id: if you name all log "
            "directories, `pylog doctor` prints the command"
        ),
        stops=Stops.BROKER,
    ),
    Code.DIRECTORIES_INCONSISTENT: FindingKind(
        severity=Severity.FATAL,
        meaning="The log directories belong to several brokers or clusters.",
        fix=(
            "give each broker its own directories; `pylog audit` compares the directories of "
            "several brokers"
        ),
        elsewhere="warn in copies (role mirror)",
        stops=Stops.BROKER,
    ),
    Code.NODE_ID_WRONG: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "meta.properties names another node than the one that registered this log directory. "
            "The registered node does not start, and another node would rename all its logs to "
            "-stray."
        ),
        fix="set node.id in {file} to the node in the cluster's metadata",
        stops=Stops.BROKER,
    ),
    Code.CLUSTER_METADATA_BROKEN: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "The cluster's metadata cannot be read, so a broker does not start. pylog does not know"
            " which partitions the broker would rename to -stray."
        ),
        fix=(
            "if there are other controllers, move {file} away: the node fetches it from them; if "
            "there is only one controller, restore it from a backup"
        ),
        stops=Stops.BROKER,
    ),
    Code.BOOTSTRAP_SNAPSHOT_CUT: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "The bootstrap snapshot of the controllers has lost its end, and there is no metadata "
            "log yet. The node begins without the features of its format; if the snapshot has the "
            "voters, it elects no leader."
        ),
        fix="move __cluster_metadata-0 away, and format the log directory again",
        elsewhere="harmless if the metadata log is there: it has the same records",
    ),
    Code.CLUSTER_METADATA_CUT: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "The log of the cluster's metadata is damaged or lacks its end. A start cuts it there "
            "and continues with older metadata: it deletes records by old configs, and renames "
            "newer topics to -stray."
        ),
        fix=(
            "keep a copy of {file}. If there are other controllers, move it away: the node fetches "
            "it from them. If there is only one controller, restore it from a backup, or move it "
            "away and use `pylog metadata rebuild`"
        ),
    ),
    Code.FEATURE_LEVEL_UNKNOWN: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "The cluster's metadata has a version that the Kafka release (--release-version; 4.4) "
            "does not accept: it is from a newer release, or from a preview of KRaft."
        ),
        fix="start the release that wrote it, then upgrade through the releases between",
        stops=Stops.BROKER,
    ),
    Code.TOPIC_CONFIG_REFUSED: FindingKind(
        severity=Severity.FATAL,
        meaning=(
            "The cluster's metadata has a topic config that the Kafka release (--release-version; "
            "4.4) refuses. A broker stops at its start, even if no disk has a directory of the "
            "topic."
        ),
        fix=(
            "start the release that accepted the value, and change it there: kafka-configs.sh "
            "--alter --entity-type topics --entity-name TOPIC --delete-config KEY. A running "
            "controller also accepts this (--bootstrap-controller)"
        ),
        stops=Stops.BROKER,
    ),
    Code.BROKER_CONFIG_IGNORED: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "The cluster's metadata has dynamic configs of brokers that the Kafka release "
            "(--release-version; 4.4) does not apply. It ignores a value that is out of range, or "
            "whose key it does not know. If values contradict each other or the log directories, it"
            " ignores all the others too. Retention then follows the broker's file and Kafka's "
            "defaults."
        ),
        fix=(
            "correct the value before a broker deletes records by the defaults: kafka-configs.sh "
            "--alter --entity-type brokers --delete-config KEY with --entity-name NODE or "
            "--entity-default; or write the wanted values into server.properties before the start"
        ),
        elsewhere="error if several dynamic configs are ignored together",
    ),
    Code.QUORUM_STATE_BROKEN: FindingKind(
        severity=Severity.FATAL,
        meaning="quorum-state cannot be parsed; a node does not start.",
        fix="move {file}/quorum-state away: a node creates it again at an election",
        stops=Stops.BROKER,
    ),
    Code.TIER_OBJECT_UNKNOWN: FindingKind(
        severity=Severity.INFO,
        meaning="A tier has objects whose names are not those of a segment. Brokers ignore them.",
        fix="nothing; delete the objects if nobody needs them",
    ),
    Code.TIER_UPLOAD_UNFINISHED: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A multipart upload to a tier was begun and not ended. No listing of objects shows its "
            "parts, and they cost money."
        ),
        fix=(
            "abort the upload (`aws s3api abort-multipart-upload`), or give the bucket a lifecycle "
            "rule that aborts incomplete multipart uploads"
        ),
    ),
    Code.TIER_TOPIC_TWICE: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A tier has several topics of one name: a topic was deleted and made anew, and its old "
            "objects are still there."
        ),
        fix=(
            "find the topic's id (`kafka-topics.sh --describe`), and delete the folders of the "
            "other ids if nobody needs their records; `pylog cat --topic-id` reads them"
        ),
    ),
    Code.TIER_SEGMENT_INCOMPLETE: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A segment of a tier lacks an object: its upload or its deletion has stopped. Brokers "
            "do not read it, and its objects cost space."
        ),
        fix=(
            "`pylog scrub ARCHIVE --root ROOT` says whether brokers know the segment. If they do "
            "not, delete its objects; if they do and the object was deleted by hand, bring it back"
        ),
    ),
    Code.TIER_OBJECT_SIZE_WRONG: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "An object of a tier has another length than its manifest, or the brokers' record of "
            "it, says. If a log was cut between two batches, consumers skip the rest in silence."
        ),
        fix=_RESTORE,
    ),
    Code.TIER_MANIFEST_BROKEN: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "The manifest of a segment in a tier cannot be read, contradicts itself, or is that of "
            "another segment; brokers cannot read the segment."
        ),
        fix=_RESTORE,
    ),
    Code.TIER_OFFSETS_MISSING: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "No complete segment of a tier has some offsets between two segments: their records "
            "are lost. If an object was cut, consumers skip them in silence."
        ),
        fix=(
            "look for the segment in a copy or an older version in the bucket, and on the brokers' "
            "disks; `pylog export` with --allow-data-loss saves the rest"
        ),
        elsewhere=(
            "harmless if the segment before was compacted: the removed records may have been its "
            "last ones. `pylog scrub ARCHIVE --root ROOT` decides it"
        ),
    ),
    Code.TIER_SEGMENTS_OVERLAP: FindingKind(
        severity=Severity.HARMLESS,
        meaning=(
            "Two segments of a tier have some of the same records: a new leader had rolled its log "
            "at other offsets. Brokers read each record once."
        ),
        fix="nothing",
    ),
    Code.TIER_SEGMENT_TWIN: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "Two segments of a tier have the same offsets of the same history: the segment was "
            "uploaded again. One of them costs space."
        ),
        fix=(
            "`pylog scrub ARCHIVE --root ROOT` says which one brokers have forgotten: delete the "
            "objects of that one"
        ),
    ),
    Code.TIER_HISTORY_UNREAD: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A segment of a tier has records of a leader epoch that the log's history does not have"
            " at their offsets: they were lost in an unclean election. No broker should read them."
        ),
        fix=(
            "nothing; retention does not delete such a segment: if nobody needs its records, delete"
            " its objects"
        ),
    ),
    Code.TIER_CHUNK_BROKEN: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "A chunk of an object in a tier cannot be decrypted or decompressed, or has another "
            "length than its manifest says (--deep). Consumers fail there."
        ),
        fix=_RESTORE,
    ),
    Code.TIER_FILE_BROKEN: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "The leader epochs or the producer snapshot of a segment in a tier cannot be read, or "
            "the object cannot be fetched. A broker that must continue the log there fails."
        ),
        fix=_RESTORE,
    ),
    Code.TIER_END_WRONG: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "The last batch of a segment in a tier is not the one that its manifest, or the "
            "brokers' record of it, names (--deep). If records are missing, consumers skip them in "
            "silence."
        ),
        fix=_RESTORE,
        elsewhere="harmless if the segment was compacted and its last records were removed",
    ),
    Code.TIER_SEGMENT_UNRECORDED: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A complete segment lies in a tier, and __remote_log_metadata does not have it. Brokers"
            " neither read nor delete it."
        ),
        fix="delete its objects if other segments have its records; else read it with `pylog cat`",
    ),
    Code.TIER_SEGMENT_LOST: FindingKind(
        severity=Severity.ERROR,
        meaning=(
            "__remote_log_metadata has a segment as uploaded, and the tier does not have all of it:"
            " its records are lost, and a consumer that asks for them fails."
        ),
        fix=_RESTORE,
    ),
    Code.TIER_UPLOAD_STOPPED: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "__remote_log_metadata has the begin of a segment's upload, and no end. Its objects "
            "stay until retention reaches its offsets."
        ),
        fix="nothing; delete its objects if the space is needed now",
    ),
    Code.TIER_DELETION_STOPPED: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "__remote_log_metadata has the begin of a segment's deletion, and no end; the tier "
            "still has objects of it."
        ),
        fix=(
            "nothing, if a broker leads the partition: it tries again. If the topic is gone, delete"
            " the objects"
        ),
    ),
    Code.TIER_SEGMENT_LEAKED: FindingKind(
        severity=Severity.WARN,
        meaning=(
            "A later upload from the same offset of the same leader epoch hides a segment from each"
            " list that retention reads: brokers neither read nor delete it."
        ),
        fix="delete its objects: the later upload has its records, or the segments behind it do",
    ),
}


# The paths of a root, and of a partition, are in each of their findings.
_quote: Final = lru_cache(maxsize=64)(shlex.quote)


def severity_of(code: Code) -> Severity:
    """Return the severity of a code in a broker's directory."""
    return KINDS[code].severity


def describe_fix(  # noqa: PLR0913  # all parts of a command
    finding: Finding,
    *,
    root: str,
    directory: str,
    topic: str | None,
    role: Role,
    log_start_offset: int | None = None,
    roots: Sequence[str] = (),
    is_tiered: bool = False,
    file: str = "",
) -> str:
    """Return the fix for a finding, with names quoted for a shell.

    Args:
        directory: Path of the partition's directory; empty where none is meant.
        topic: The topic; None where none is meant.
        log_start_offset: Its log start in the checkpoint, None without an entry.
        roots: All log directories that a recovery is given; without any, only ``root``.
        is_tiered: Whether the topic has segments in remote storage.
        file: Path of its file; empty for the one that the finding names.
    """
    if finding.fix:
        return finding.fix
    kind = KINDS[finding.code]
    advice = kind.advice
    if finding.code is Code.INDEX_BEYOND_LOG and finding.severity is not Severity.ERROR:
        # The log's own tail is torn: recovery repairs both.
        advice = KINDS[Code.TORN_TAIL].advice
    if kind.command and topic == CLUSTER_METADATA_TOPIC:
        advice = _METADATA_FIX
    elif kind.command and is_tiered:
        advice = _TIERED_FIX
    elif kind.command and (role.facts.has_manifests or local_path(root) is None):
        advice = _COPY_FIX
    start = "" if log_start_offset is None else f" --log-start-offset {log_start_offset}"
    return advice.format(
        root=" ".join(map(_quote, roots or [root])),
        directory=_quote(directory or root),
        topic=topic or "'*'",
        file=_quote(file or finding.file or directory or root),
        start=start,
        role=role.value,
        salvage=_quote(salvage_folder(roots[0] if roots else root)),
    )


def command_of(code: Code, fix: str) -> str | None:
    """Return the command in a fix of ``describe_fix``; None without one."""
    kind = KINDS[code]
    prose = f"{kind.fix}: "
    return fix.removeprefix(prose) if kind.command and fix.startswith(prose) else None


def salvage_folder(root: str) -> str:
    """Return a log directory's salvage folder: beside it, never inside. The folder may have the
    bytes cut from the log directory."""
    return f"{root.rstrip('/')}-salvage"
