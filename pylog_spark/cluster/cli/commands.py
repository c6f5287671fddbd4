"""Every command about several brokers, by the command of upkeep that it follows in the help."""

from collections.abc import Mapping
from dataclasses import replace
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
from pylog_spark.cluster import options
from pylog_spark.options import declared

# Of an audit that plans cuts.
_ALLOW_COMMITTED_LOSS: Final = replace(
    declared.ALLOW_TRUNCATE,
    flag="--allow-committed-loss",
    panel=None,
    help="With --salvage: cut even committed records that the leader does not have.",
)
_FAIL_ON_LOSS: Final = replace(
    declared.FAIL_ON,
    shown=None,  # so that it is known whether somebody says it
    help="Exit with 1 for losses: error (the default) under any leader, warn under one.",
)
_AUDIT: Final = Command(
    name="audit",
    panel=LOOK,
    work="pylog_spark.cluster.cli.audit:AUDIT",
    options=(
        replace(
            declared.ROOTS, help="Log directories of several brokers; several of one count as one."
        ),
        declared.TOPICS,
        declared.EXCLUDE,
        declared.STATE,
        declared.LEVEL,
        declared.UP,
        declared.LEADER,
        replace(
            declared.PLAN_OUT, panel=None, help="With --leader: save the cuts, for `pylog apply`."
        ),
        replace(
            declared.SALVAGE,
            panel=None,
            help="Copy what is cut there first, as segments that open.",
        ),
        _ALLOW_COMMITTED_LOSS,
        declared.LEADER_EPOCH,
        declared.ELECTION_OUT,
        declared.LOST_KEYS,
        _FAIL_ON_LOSS,
        declared.TIMELINE,
        declared.ATTEST,
        declared.COPY,
        declared.COPY_PREFIX,
        declared.OFFSET_MAP,
        GUESSED_ROLE,
        declared.CONFIG_FILES,
        declared.SETTINGS_OF_RUN,
        declared.NOW_MS,
        replace(declared.ENGINE, panel=None),
        replace(declared.MASTER, panel=None),
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
    ),
    help="""
    Compare the replicas of several brokers: what differs, who may lead, what would be lost.

    Each replica is taken as its broker has it once it has opened the directory. Nothing is
    written, no lock is taken. With --leader the answer is what `pylog apply` would cut from the
    others, so that they follow that broker. The exit status is 1 if committed records are lost
    whichever replica leads (--fail-on), 4 if one cannot be read. With --level the replicas are
    compared as they lie, and their differences listed: the exit status is 1 if there are any. With
    --copy these are the differences to a copy in another cluster, record by record. With --attest
    markers of recovered directories get their broker's last epoch, under the locks of all.
    """,
    example="Example: `pylog audit /mnt/b1 /mnt/b2 /mnt/b3`",
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
        replace(declared.PLAN_OUT, help="Save what heals the logs, for `pylog apply`."),
        declared.SALVAGE,
        declared.MAX_TRUNCATE_BYTES,
        declared.ALLOW_TRUNCATE,
        *CONFIG_OF_JOBS,
        declared.NOW_MS,
        *ANSWER_OF_JOBS,
    ),
    help="""
    Heal damaged logs: replace bad checksums, zeros, torn or missing segments by a replica's bytes.

    Everything is read, nothing is written: --plan-out saves what would be done, and `pylog apply`
    does it, with a way back by --trash. A replica counts if it has the batches before and behind
    the damage, byte for byte. Replicas that differ heal nothing. What nobody has stays as it is and
    is listed, and the exit status is then 1. A log that was not closed is recovered too, under the
    guards of `pylog recover`.
    """,
    example="Example: `pylog heal /mnt/b1 --donor /mnt/b2 --role broker --plan-out heal.json`",
)
_TRANSPLANT: Final = Command(
    name="transplant",
    panel=MAINTAIN,
    work="pylog_spark.cluster.cli.transplant:TRANSPLANT",
    options=(
        replace(
            declared.ROOTS, metavar="SRC", help="Log directories that the partitions come from."
        ),
        options.TARGETS,
        replace(declared.TOPICS, is_required=True, help="Only these topics; may be repeated."),
        declared.EXCLUDE,
        options.NEW_NAMES,
        options.KEEP_PRODUCERS,
        options.ALLOW_ABORT,
        options.OFFSETS_OUT,
        declared.DRY_RUN,
        replace(declared.TRASH, help="Remember in this folder what was there, for `pylog undo`."),
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

    Create the topics in the running target, with as many partitions; stop it; transplant; start it;
    then run the command for groups that is printed. Every assigned replica gets the log: the same
    records and offsets, under the target's topic id and leader epoch. An open transaction ends as
    the source's `__transaction_state` has decided. All of it is looked at before anything is
    written; a partition that cannot go stays and is named with its way out, the others go, and the
    exit status is then 3. The source is only read. With --trash, `pylog undo` takes it all back,
    before the target starts.
    """,
    example=(
        "Example: `pylog transplant /mnt/old --to /data/b1 --to /data/b2 --topics 'orders*' "
        "--offsets-out offsets.csv --dry-run`"
    ),
)
_SHOW_METADATA: Final = Command(
    name="show",
    work="pylog_spark.cluster.cli.metadata:SHOW",
    options=(
        replace(
            declared.ROOTS, help="Log directories of brokers and controllers, several nodes' too."
        ),
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
        replace(declared.QUIET, panel=None),
    ),
    help="""
    Show every copy of `__cluster_metadata`: how far it goes, whether copies agree, who can lead.

    Each controller and each broker has a copy (metadata.log.dir). The voters are named, and whose
    copy is not here; what a majority of them has is committed, what lies above it may be not. Each
    copy is shown as its node's start leaves it. The exit status is 1 where copies differ, and 4
    where one cannot be read. Nothing is written, and no lock is taken.
    """,
    example="Example: `pylog metadata show /copies/controller1 /copies/broker1`",
)
_PROMOTE_METADATA: Final = Command(
    name="promote",
    work="pylog_spark.cluster.cli.metadata:PROMOTE",
    options=(
        replace(declared.ROOTS, help="Log directories with copies, of brokers and controllers."),
        replace(declared.INTO, panel=None),
        replace(declared.DRY_RUN, panel=None),
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
        replace(declared.QUIET, panel=None),
    ),
    help="""
    Give voters whose disks are lost the longest copy of `__cluster_metadata` that is left.

    A broker's copy serves. The voter gets it under its own node id and directory id, so that the
    voters stay who they are; a voter with a copy of its own is refused, and nothing is replaced.
    Stop all nodes first. What the quorum had not committed is named: it counts from then on.
    --dry-run shows what would be written. To take it back, remove the new folder, and
    meta.properties where it was not there before.
    """,
    example="Example: `pylog metadata promote /copies/broker1 --into 3=/var/lib/kafka --dry-run`",
)
_ADOPT_STRAYS: Final = Command(
    name="adopt",
    work="pylog_spark.cluster.cli.metadata:ADOPT",
    options=(
        replace(declared.ROOTS, help="All log directories of one or more stopped brokers."),
        replace(declared.ROLE, panel=None),
        replace(declared.DRY_RUN, panel=None),
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
        replace(declared.QUIET, panel=None),
    ),
    help="""
    Give `-stray` directories their names back where the cluster's metadata assigns them here.

    A broker that starts with older or foreign metadata sets its logs aside as stray, and nothing
    brings them back. A directory gets its name if its topic id is in the longest copy of the
    metadata here, its partition is assigned to this broker, and the name is free. The others stay,
    with the reason. --dry-run shows both. The exit status is 4 where a copy cannot be read: another
    one decides then.
    """,
    example="Example: `pylog metadata adopt /var/lib/kafka --role broker --dry-run`",
)
_REBUILD_METADATA: Final = Command(
    name="rebuild",
    work="pylog_spark.cluster.cli.metadata_rebuild:REBUILD",
    options=(
        replace(declared.ROOTS, help="All log directories of all brokers, which are stopped."),
        replace(
            declared.INTO,
            panel=None,
            help="A controller, and its empty or formatted log directory; may be repeated.",
        ),
        declared.RELEASE_VERSION,
        declared.INITIAL_CONTROLLERS,
        declared.CONTROLLER_LISTENER,
        declared.OLDER_COPY,
        replace(declared.DRY_RUN, panel=None),
        declared.CONFIG_FILES,
        declared.SERVER_PROPERTIES,
        declared.TOPIC_DUMP,
        declared.SETTINGS_OF_RUN,
        declared.ASSUME_DEFAULTS,
        declared.NOW_MS,
        GUESSED_ROLE,
        replace(declared.ENGINE, panel=None),
        replace(declared.MASTER, panel=None),
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
        replace(declared.QUIET, panel=None),
    ),
    help="""
    Make the metadata anew from the brokers' logs, where no copy of `__cluster_metadata` is left.

    New controllers, of Kafka 4.4, begin with topics, ids, replicas and directories as they lie,
    with leader epochs and producer ids above all on disk, and with the replicas in sync that lose
    no record. Configs come from `topics:` of --config, --topic-dump or --older-copy. What nobody
    can know, such as ACLs, is listed. It is refused while a directory has a copy: that one is
    better.
    """,
    example="Example: `pylog metadata rebuild /mnt/b1 /mnt/b2 /mnt/b3 --into 4=/var/lib/kafka "
    "--release-version 4.4 --topic-dump configs.txt --dry-run`",
)
_METADATA: Final = CommandGroup(
    name="metadata",
    panel=LOOK,
    help="The cluster's metadata on disks: its copies, and the way back from lost controllers.",
    commands=(_SHOW_METADATA, _PROMOTE_METADATA, _ADOPT_STRAYS, _REBUILD_METADATA),
)

COMMANDS: Final[Mapping[str, tuple[Command | CommandGroup, ...]]] = {
    "doctor": (_AUDIT, _METADATA),
    "recover": (_HEAL,),
    "salvage": (_TRANSPLANT,),
}
