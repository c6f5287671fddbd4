"""Every command about several brokers, by the command of upkeep that it follows in the help."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pylog_spark.cli.command import (
    ANSWER_OF_JOBS,
    CONFIG_OF_JOBS,
    GUESSED_ROLE,
    LOOK,
    MAINTAIN,
    METRICS,
    Command,
    CommandGroup,
)
from pylog_spark.options import declared
from pylog_spark.options.declared import consent
from pylog_spark.options.option import FILE, FILES, SWITCH, TEXT, TOPIC_NAMES, Option, count

# Options of ``pylog transplant``: the target, and what it is to know.

TARGETS: Final = Option[tuple[Path, ...]](
    name="targets",
    flag="--to",
    kind=FILES,
    default=(),
    metavar="DST",
    help="Log directory of the target. Name one of each broker that has a replica, and the one "
    "with __cluster_metadata.",
    is_required=True,
)
NEW_NAMES: Final = Option[dict[str, str]](
    name="new_names",
    flag="--map",
    kind=TOPIC_NAMES,
    default={},
    metavar="OLD=NEW",
    help="New name of a topic in the target; may be repeated.",
)
KEEP_PRODUCERS: Final = Option[bool](
    name="keep_producers",
    flag="--keep-producers",
    kind=SWITCH,
    default=False,
    help="Copy the producers' state, so that they continue in the target. Default: do not.",
)
ALLOW_ABORT: Final = consent(
    "allow_abort", text="Also abort open transactions that were committed or may have been."
)
OFFSETS_OUT: Final = Option[Path | None](
    name="offsets_out",
    flag="--offsets-out",
    kind=FILE,
    default=None,
    metavar="FILE",
    help="Write the groups' commits to this file: CSV for kafka-consumer-groups.sh --from-file.",
)


# Options of ``pylog attach``: the tier, the new brokers, and what they are to know.

ARCHIVE: Final = Option[str](
    name="archive",
    kind=TEXT,
    metavar="ARCHIVE",
    help="The tier: a folder, or the URL of a bucket with a prefix.",
    is_required=True,
)
NEW_ROOTS: Final = replace(
    TARGETS,
    name="into",
    flag="--into",
    metavar="ROOT",
    help="Formatted log directory of a new broker; may be repeated: partitions take turns.",
)
NEWEST: Final = Option[bool](
    name="newest",
    flag="--newest",
    kind=SWITCH,
    default=False,
    help="Take the newest complete history, also if the newest segment is incomplete or the tier "
    "has other histories.",
)
METADATA_PARTITIONS: Final = Option[int](
    name="metadata_partitions",
    flag="--metadata-partitions",
    kind=count(1),
    default=50,
    metavar="N",
    help="Partitions of __remote_log_metadata, as the brokers' settings say.",
)
TOPICS_OUT: Final = Option[Path | None](
    name="topics_out",
    flag="--topics-out",
    kind=FILE,
    default=None,
    metavar="FILE",
    help="Write the topics' configs to this file: tiered, and nothing is deleted.",
)


# Of an audit that plans cuts.
_ALLOW_COMMITTED_LOSS: Final = replace(
    declared.ALLOW_TRUNCATE,
    flag="--allow-committed-loss",
    panel=None,
    help="With --salvage: also cut committed records that the leader does not have.",
)
_FAIL_ON_LOSS: Final = replace(
    declared.FAIL_ON,
    shown=None,  # so that it is known whether somebody says it
    help="Exit with 1 for losses: error (the default) if every leader loses records, warn if one "
    "does.",
)
# How an audit was asked for differences, copies or the timeline before they were commands.
_FORMER: Final = (
    replace(declared.LEVEL, shown=None, is_hidden=True),
    declared.FORMER_TIMELINE,
    replace(declared.COPY, is_required=False, is_hidden=True),
    replace(declared.COPY_PREFIX, is_hidden=True),
    replace(declared.OFFSET_MAP, is_hidden=True),
)
_ROOTS_OF_BROKERS: Final = replace(
    declared.ROOTS,
    help="Log directories of several brokers. Directories of one broker count as one.",
)
_PLACE: Final = (replace(declared.ENGINE, panel=None), replace(declared.MASTER, panel=None))
_ANSWER: Final = (replace(declared.OUTPUT, panel=None), replace(declared.WIDE, panel=None))
_ANSWER_OR_SILENCE: Final = (*_ANSWER, replace(declared.QUIET, panel=None))
# Of a look at several brokers.
_OF_A_LOOK: Final = (
    *(GUESSED_ROLE, declared.CONFIG_FILES, declared.SETTINGS_OF_RUN, *_PLACE, *_ANSWER),
)
_AUDIT: Final = Command(
    name="audit",
    panel=LOOK,
    work="pylog_spark.cluster.cli.audit:run_audit",
    options=(
        _ROOTS_OF_BROKERS,
        declared.TOPICS,
        declared.EXCLUDE,
        declared.STATE,
        declared.UP,
        declared.LEADER,
        replace(
            declared.PLAN_OUT, panel=None, help="With --leader: save the cuts, for `pylog apply`."
        ),
        replace(
            declared.SALVAGE,
            panel=None,
            help="Copy cut records to this folder first, as segments that open.",
        ),
        _ALLOW_COMMITTED_LOSS,
        declared.LEADER_EPOCH,
        declared.ELECTION_OUT,
        declared.LOST_KEYS,
        _FAIL_ON_LOSS,
        declared.ATTEST,
        declared.NOW_MS,
        *_OF_A_LOOK,
        *_FORMER,
    ),
    help="""
    Compare the replicas of several brokers: who may lead, and what would be lost.

    The command compares the replicas as they are after their brokers have opened them. It writes
    nothing and takes no lock. The exit status is 1 if every leader would lose committed
    records (--fail-on), and 4 if a replica cannot be read.

    With --leader the command shows the cuts that `pylog apply` would make on the other replicas, so
    that they follow that broker. With --attest it writes each broker's last epoch into the marker
    of its recovered directories, while it holds the locks of all.
    """,
    example="Example: `pylog audit /mnt/b1 /mnt/b2 /mnt/b3`",
)
_DIFFERENCES: Final = Command(
    name="differences",
    panel=LOOK,
    work="pylog_spark.cluster.cli.differences:DIFFERENCES",
    options=(
        *(_ROOTS_OF_BROKERS, declared.TOPICS, declared.EXCLUDE),
        *(declared.LEVEL, declared.STATE, *_OF_A_LOOK),
    ),
    help="""
    List the differences between the replicas of several brokers, as they are on disk.

    By default the command compares offsets and epochs. --level headers also compares the header of
    each batch, --level bytes compares everything. It writes nothing and takes no lock. The exit
    status is 1 if there are differences, and 4 if a replica cannot be read.
    """,
    example="Example: `pylog differences /mnt/b1 /mnt/b2 /mnt/b3 --level bytes`",
)
_COPIES: Final = Command(
    name="copies",
    panel=LOOK,
    work="pylog_spark.cluster.cli.differences:COPIES",
    options=(
        replace(
            declared.ROOTS, help="Log directories of the originals, of the brokers of one cluster."
        ),
        *(declared.COPY, declared.COPY_PREFIX, declared.OFFSET_MAP),
        *(declared.TOPICS, declared.EXCLUDE, declared.STATE, *_OF_A_LOOK),
    ),
    help="""
    Compare topics with their copies in another cluster, record by record.

    The command looks for every record of the originals in the copy, with its key, value, headers
    and timestamp. Records that are not copied yet are no difference. It writes nothing and takes no
    lock. The exit status is 1 if there are differences, and 4 if a replica cannot be read.
    """,
    example="Example: `pylog copies /mnt/b1 /mnt/b2 --copy /mnt/dr1 --copy-prefix source.`",
)
_TIMELINE: Final = Command(
    name="timeline",
    panel=LOOK,
    work="pylog_spark.cluster.cli.audit:TIMELINE",
    options=(
        replace(declared.ROOTS, help="Log directories of brokers and controllers of one cluster."),
        declared.TOPICS,
        declared.EXCLUDE,
        GUESSED_ROLE,
        *_ANSWER,
    ),
    help="""
    Show each change of leader, epoch, ISR and ELR, with its time and offset.

    The command reads the newest `__cluster_metadata` in the directories. It writes nothing and
    takes no lock. The exit status is 4 if a log directory cannot be read.
    """,
    example="Example: `pylog timeline /mnt/b1 /mnt/b2 --topics orders`",
)
_HEAL: Final = Command(
    name="heal",
    panel=MAINTAIN,
    work="pylog_spark.cluster.cli.heal:HEAL",
    options=(
        declared.ROOTS,
        declared.DONORS,
        declared.QUORUM,
        declared.TOPICS,
        declared.EXCLUDE,
        declared.ROLE,
        replace(declared.PLAN_OUT, help="Save the plan that heals the logs, for `pylog apply`."),
        declared.SALVAGE,
        declared.MAX_TRUNCATE_BYTES,
        declared.ALLOW_TRUNCATE,
        *CONFIG_OF_JOBS,
        declared.NOW_MS,
        *ANSWER_OF_JOBS,
    ),
    help="""
    Heal damaged logs: replace bad checksums, zeros, torn or missing segments by a replica's bytes.

    This command reads everything and writes only the plan: --plan-out saves it, `pylog apply`
    executes it, and --trash makes that undoable. A replica can help if it has the batches before
    and behind the damage, byte for byte. Replicas that differ from each other heal nothing. If no
    replica has the bytes, the command lists the damage and leaves it, and the exit status is 1. It
    also recovers a log that was not closed, under the guards of `pylog recover`.
    """,
    example="Example: `pylog heal /mnt/b1 --donor /mnt/b2 --role broker --plan-out heal.json`",
)
_TRANSPLANT: Final = Command(
    name="transplant",
    panel=MAINTAIN,
    work="pylog_spark.cluster.cli.transplant:TRANSPLANT",
    options=(
        replace(
            declared.ROOTS,
            metavar="SRC",
            help="Log directories of the source, with the partitions to move.",
        ),
        TARGETS,
        replace(declared.TOPICS, is_required=True, help="Only these topics; may be repeated."),
        declared.EXCLUDE,
        NEW_NAMES,
        KEEP_PRODUCERS,
        ALLOW_ABORT,
        OFFSETS_OUT,
        declared.DRY_RUN,
        replace(declared.TRASH, help="Record the changes in this folder, for `pylog undo`."),
        GUESSED_ROLE,
        declared.NOW_MS,
        declared.LEDGER,
        *METRICS,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
        declared.WIDE,
        declared.QUIET,
    ),
    help="""
    Give partitions to another, stopped cluster, disk to disk, without a network.

    Four steps: create the topics in the running target, with the same number of partitions; stop
    the target; transplant; start it and run the printed command for groups. Every assigned replica
    gets the log: the same records and offsets, under the target's topic id and leader epoch. An
    open transaction ends as the source's `__transaction_state` has decided.

    The command checks everything before it writes. If a partition cannot be moved, the command
    names the reason and what to do, moves the others, and the exit status is 3. It only reads the
    source. With --trash, `pylog undo` takes everything back, until the target starts.
    """,
    example="Example: `pylog transplant /mnt/old --to /data/b1 --to /data/b2 --topics 'orders*' "
    "--offsets-out offsets.csv --dry-run`",
)
_ATTACH: Final = Command(
    name="attach",
    panel=MAINTAIN,
    work="pylog_spark.cluster.cli.attach:ATTACH",
    options=(
        ARCHIVE,
        NEW_ROOTS,
        declared.TOPICS,
        declared.EXCLUDE,
        declared.TOPIC_ID,
        declared.DECRYPTION_KEY,
        NEWEST,
        replace(
            declared.ALLOW_DATA_LOSS,
            help="Also take partitions in which segments between others are missing.",
        ),
        METADATA_PARTITIONS,
        TOPICS_OUT,
        declared.DRY_RUN,
        replace(declared.TRASH, help="Record the changes in this folder, for `pylog undo`."),
        declared.NOW_MS,
        declared.LEDGER,
        *METRICS,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
        declared.WIDE,
        declared.QUIET,
    ),
    help="""
    Give the tier of a lost cluster to a new, stopped one: brokers read it and go on behind it.

    Four steps: format the log directories of the new brokers; attach; run the printed `pylog
    metadata rebuild`; start the controllers, then the brokers. Topics keep their ids. Each
    partition gets one replica: an empty log at the end of its tier. `__remote_log_metadata` gets
    the records of all segments.

    The command checks everything before it writes. If a partition cannot be attached, it names
    the reason, writes nothing, and the exit status is 3. It only reads the tier. With --trash,
    `pylog undo` takes everything back, until a broker starts.
    """,
    example="Example: `pylog attach s3://bucket/tier --into /data/b1 --topics-out topics.json "
    "--dry-run`",
)
_SHOW_METADATA: Final = Command(
    name="show",
    work="pylog_spark.cluster.cli.metadata:SHOW",
    options=(
        replace(
            declared.ROOTS,
            help="Log directories of brokers and controllers, of one node or several.",
        ),
        *_ANSWER_OR_SILENCE,
    ),
    help="""
    Show every copy of `__cluster_metadata`: its end, whether copies agree, who can lead.

    Each controller and each broker has a copy (metadata.log.dir). The command names the voters, and
    those whose copy is not here. Records that a majority of voters has are committed; later records
    may not be. Each copy is shown as it is after its node's start. The exit status is 1 if copies
    differ, and 4 if one cannot be read. The command writes nothing and takes no lock.
    """,
    example="Example: `pylog metadata show /copies/controller1 /copies/broker1`",
)
_PROMOTE_METADATA: Final = Command(
    name="promote",
    work="pylog_spark.cluster.cli.metadata:PROMOTE",
    options=(
        replace(
            declared.ROOTS, help="Log directories of brokers and controllers that have copies."
        ),
        declared.INTO,
        declared.DRY_RUN,
        *_ANSWER_OR_SILENCE,
    ),
    help="""
    Give the longest copy of `__cluster_metadata` that is left to voters whose disks are lost.

    A broker's copy is good enough. The voter gets the copy under its own node id and directory id,
    so that the quorum keeps its voters. The command refuses a voter that has a copy, and replaces
    no file. Stop all nodes first. The command names the records that the quorum had not committed:
    from now on they count. --dry-run shows the plan. To undo it, remove the new folder, and
    meta.properties if it was not there before.
    """,
    example="Example: `pylog metadata promote /copies/broker1 --into 3=/var/lib/kafka --dry-run`",
)
_ADOPT_STRAYS: Final = Command(
    name="adopt",
    work="pylog_spark.cluster.cli.metadata:ADOPT",
    options=(
        replace(declared.ROOTS, help="All log directories of one or more stopped brokers."),
        replace(declared.ROLE, panel=None),
        declared.DRY_RUN,
        *_ANSWER_OR_SILENCE,
    ),
    help="""
    Rename `-stray` directories back if the cluster's metadata assigns them to this broker.

    A broker that starts with older or foreign metadata renames its logs to -stray, and no broker
    renames them back. This command does, if the topic id is in the longest copy of the metadata
    here, the partition is assigned to this broker, and the name is free. It leaves the others and
    gives the reason. --dry-run shows both. The exit status is 4 if a copy cannot be read; another
    copy decides then.
    """,
    example="Example: `pylog metadata adopt /var/lib/kafka --role broker --dry-run`",
)
_REBUILD_METADATA: Final = Command(
    name="rebuild",
    work="pylog_spark.cluster.cli.metadata_rebuild:REBUILD",
    options=(
        replace(
            declared.ROOTS, help="All log directories of all brokers. The brokers are stopped."
        ),
        replace(
            declared.INTO,
            panel=None,
            help="A controller, and its empty or formatted log directory; may be repeated.",
        ),
        declared.RELEASE_VERSION,
        declared.INITIAL_CONTROLLERS,
        declared.CONTROLLER_LISTENER,
        declared.OLDER_COPY,
        declared.DRY_RUN,
        declared.CONFIG_FILES,
        declared.SERVER_PROPERTIES,
        declared.TOPIC_DUMP,
        declared.SETTINGS_OF_RUN,
        declared.ASSUME_DEFAULTS,
        declared.NOW_MS,
        GUESSED_ROLE,
        *_PLACE,
        *_ANSWER_OR_SILENCE,
    ),
    help="""
    Build new cluster metadata from the brokers' logs, if no copy of `__cluster_metadata` is left.

    New controllers begin with the topics, ids, replicas and directories that are on the disks.
    Leader epochs and producer ids are higher than any on the disks. The ISR has the replicas that
    lose no record. Configs come from `topics:` of --config, --topic-dump or --older-copy. The
    command lists facts that no file has, such as ACLs. It refuses to work if a directory has a copy
    of the metadata, because the copy is better.
    """,
    example="Example: `pylog metadata rebuild /mnt/b1 /mnt/b2 /mnt/b3 --into 4=/var/lib/kafka "
    "--release-version 4.4 --topic-dump configs.txt --dry-run`",
)
_METADATA: Final = CommandGroup(
    name="metadata",
    panel=LOOK,
    help="Show, restore or rebuild the cluster's metadata after controllers are lost.",
    commands=(_SHOW_METADATA, _PROMOTE_METADATA, _ADOPT_STRAYS, _REBUILD_METADATA),
)

COMMANDS: Final[Mapping[str, tuple[Command | CommandGroup, ...]]] = {
    "doctor": (_AUDIT, _DIFFERENCES, _COPIES, _TIMELINE, _METADATA),
    "recover": (_HEAL,),
    "salvage": (_TRANSPLANT, _ATTACH),
}
