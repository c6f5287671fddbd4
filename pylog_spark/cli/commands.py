"""Every command: its help, options, and entry function.

What an option is, ``options.declared`` says; here stands only what one command says differently.
The module of a command's work is imported when it runs: ``pylog partition`` and ``pylog dump`` are
run in loops, and should not pay for Spark, Arrow or tables on the way; nor should ``--help``.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from pylog_spark.options import of_partitions, of_transplants
from pylog_spark.options.choices import FailOn, RecordOutput
from pylog_spark.options.declared import (
    ALL_COMMANDS,
    ALLOW_DATA_LOSS,
    ALLOW_TRUNCATE,
    AS_RECORDS,
    ASSUME_DEFAULTS,
    ATTEST,
    BY,
    CHOICE,
    COLUMNS,
    CONFIG_FILES,
    CONTROLLER_LISTENER,
    COPY,
    COPY_PREFIX,
    DEEP,
    DONORS,
    DRY_RUN,
    ELECTION_OUT,
    ENGINE,
    EXACT,
    EXCLUDE,
    EXPORT_FORMAT,
    FAIL_ON,
    FILE_LIST,
    FROM,
    FROM_START,
    FULL,
    HIGH_WATERMARK,
    IN_PLACE,
    INITIAL_CONTROLLERS,
    INTO,
    ISOLATION,
    KEEP_DELETED,
    KEY_FORMAT,
    KEY_SCHEMA,
    KEY_SIDECARS,
    KEYS,
    LAST,
    LEADER,
    LEADER_EPOCH,
    LEDGER,
    LEVEL,
    LIVE,
    LOST_KEYS,
    MANAGED,
    MARK_CLEAN,
    MASTER,
    MAX_BYTES,
    MAX_DELETE_RATIO,
    MAX_DURATION,
    MAX_RECORDS,
    MAX_TRUNCATE_BYTES,
    METRICS_FILE,
    METRICS_PUSH,
    MIN_FREE,
    MIRROR,
    NEED,
    NOW_MS,
    NULL,
    OFFSET_MAP,
    OLDER_COPY,
    ORDER,
    ORIGIN,
    OUT,
    OUTPUT,
    OVERRIDE,
    PARTITIONS,
    PATH,
    PER_DISK,
    PER_TOPIC,
    PLAN,
    PLAN_OUT,
    PURGE_AFTER,
    QUIET,
    QUORUM,
    RECOMPRESS,
    RECOMPRESS_ALL,
    RECORD_FORMAT,
    RELEASE_VERSION,
    REPORT,
    ROLE,
    ROOT_OF_TOPIC,
    ROOTS,
    RUN_ID,
    SALVAGE,
    SALVAGED,
    SEGMENTS,
    SERVER_PROPERTIES,
    SETTINGS_OF_RUN,
    SETTLE,
    SHOW,
    STARTED_RELEASE,
    STATE,
    STRATEGY,
    SYNC_STOPPED,
    TARGET,
    TIMELINE,
    TOPIC,
    TOPIC_DUMP,
    TOPICS,
    TRASH,
    UNTIL,
    UNTIL_CLEAN,
    UP,
    VALUE_FORMAT,
    VALUE_SCHEMA,
    WIDE,
)
from pylog_spark.options.kinds import choice
from pylog_spark.options.option import Option

_LOOK: Final = "Look: nothing is written"
_MAINTAIN: Final = "Maintain"
_PLANS: Final = "Plans, and the way back"
_MANAGED_ROOTS: Final = "Into and out of managed roots"
_OTHERS: Final = "One partition, settings, this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of the program, or of a group."""

    name: str
    # Module and name of what it does with a command line, for an exit status: a function, or a
    # ``runner.Work`` where a run has options or a session.
    work: str
    help: str  # what it does, in Markdown; the first line stands in lists
    example: str  # the last line of its help
    options: tuple[Option[Any], ...] = ()  # its options and arguments, in the order of the help
    panel: str | None = None  # heading in the program's help; None in a group


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandGroup:
    """A command that has commands."""

    name: str
    panel: str  # heading in the program's help
    help: str
    commands: tuple[Command, ...]  # its commands, in the order of the help


# Where nothing is written, so that a guess is good enough.
_GUESSED_ROLE: Final = replace(ROLE, help="What the directories are. Default: what they look like.")
# Where there are bounds to begin with: the program takes --dry-run=exact there.
_DRY_RUN_OR_EXACT: Final = replace(
    DRY_RUN,
    help="Show what would be done; write nothing. `--dry-run=exact` also reads what would be "
    "cleaned, so that the figures are exact.",
)
# Of an audit that plans cuts.
_ALLOW_COMMITTED_LOSS: Final = replace(
    ALLOW_TRUNCATE,
    flag="--allow-committed-loss",
    panel=None,
    help="With --salvage: cut even committed records that the leader does not have.",
)
# Of the jobs that recover.
_FAIL_ON_CUT: Final = replace(
    FAIL_ON,
    default=FailOn.NEVER,
    shown=FailOn.NEVER,
    help="Exit with 1 if something is cut: warn for any cut, error for readable records.",
)
_FAIL_ON_LOSS: Final = replace(
    FAIL_ON,
    shown=None,  # so that it is known whether somebody says it
    help="Exit with 1 for losses: error (the default) under any leader, warn under one.",
)
_TRASH_OF_RUNS: Final = replace(
    TRASH, panel=CHOICE, help="The folder in which runs kept what they took away."
)

# Of commands that print no table.
_RECORD_OUTPUT: Final = replace(
    OUTPUT, kind=choice(RecordOutput), help="For a person, or one JSON object a line."
)
# Of commands that read the records of one topic.
_RECORD_ROOTS: Final = replace(
    ROOTS,
    help="Log directory, copy, managed root or partition directory: path or URL. Several are one.",
)
# `--root` names the roots where an argument names the topic.
_TOPIC_TO_READ: Final = replace(
    TOPIC, is_required=False, help="Name of a topic; may be repeated. Needed, except with --root."
)
# Of the four jobs.
_WHERE_JOBS_WORK: Final = (ROOTS, TOPICS, EXCLUDE, FILE_LIST, ROLE)
_CONFIG_OF_JOBS: Final = (
    *(CONFIG_FILES, SERVER_PROPERTIES, TOPIC_DUMP),
    *(SETTINGS_OF_RUN, ASSUME_DEFAULTS),
)
_METRICS: Final = (METRICS_FILE, METRICS_PUSH)
_ANSWER_OF_JOBS: Final = (LEDGER, REPORT, *_METRICS, ENGINE, MASTER, OUTPUT, WIDE, QUIET)
# Of the two that compact.
_HOW_LOGS_ARE_CLEANED: Final = (
    *(_DRY_RUN_OR_EXACT, EXACT, UNTIL_CLEAN, STRATEGY, RECOMPRESS, RECOMPRESS_ALL, KEY_SIDECARS),
    *(MAX_BYTES, MAX_DURATION, MIN_FREE, PER_DISK, MAX_DELETE_RATIO, ORDER),
    *(OVERRIDE, TRASH, PLAN_OUT),
)

_INSPECT: Final = Command(
    name="inspect",
    panel=_LOOK,
    work="pylog_spark.cli.inspect:inspect_roots",
    options=(
        replace(ROOTS, help="Log directories or partition directories: paths or URLs."),
        TOPICS,
        EXCLUDE,
        BY,
        PER_TOPIC,
        SEGMENTS,
        REPORT,
        OUTPUT,
        WIDE,
    ),
    help="""
    Show partitions: segments, sizes, time span, offsets, and how dirty each log is.

    Nothing is written, no lock is taken, and no Spark is started. A partition that cannot be read
    is a row with its error; the exit status is then 4. A log that a broker recovers when it starts
    is no such one.
    """,
    example="Example: `pylog inspect /var/lib/kafka --by size`",
)
_DUMP: Final = Command(
    name="dump",
    panel=_LOOK,
    work="pylog_spark.cli.dump_files:dump",
    options=(
        PATH,
        replace(_TOPIC_TO_READ, help="Where PATH is a log directory: a topic in it."),
        replace(PARTITIONS, help="Which partition of the topic, where it has several."),
        _RECORD_OUTPUT,
        FROM,
        UNTIL,
        replace(MAX_RECORDS, help="At most so many records, or entries of another file."),
        FULL,
        *(KEY_FORMAT, KEY_SCHEMA),
        *(VALUE_FORMAT, VALUE_SCHEMA),
        replace(ISOLATION, help="read_committed leaves out aborted and control records."),
    ),
    help="""
    Print batches and records of a segment, or the entries of an index, snapshot or checkpoint.

    Nothing is written, and no lock is taken. Where bytes are bad the file ends with an error line
    that says where, the next file goes on, and the exit status is 4. With --topic, PATH is a log
    directory, and the files are those of one partition in it.
    """,
    example=(
        "Example: `pylog dump /var/lib/kafka/orders-0/00000000000000000000.log --output json`"
    ),
)
_CAT: Final = Command(
    name="cat",
    panel=_LOOK,
    work="pylog_spark.cli.cat:cat",
    options=(
        _RECORD_ROOTS,
        _TOPIC_TO_READ,
        RECORD_FORMAT,
        PARTITIONS,
        FROM,
        UNTIL,
        MAX_RECORDS,
        KEYS,
        ISOLATION,
        *(KEY_FORMAT, KEY_SCHEMA),
        *(VALUE_FORMAT, VALUE_SCHEMA),
        NULL,
        ALLOW_DATA_LOSS,
        ROOT_OF_TOPIC,
        replace(_RECORD_OUTPUT, panel=None, help="kcat's letters, or one JSON object a line."),
    ),
    help="""
    Write the records of a topic, as kcat writes those of a broker: `-f '%o %k %s\\n'`.

    Nothing is written to the directory, no lock is taken, and no Spark is started. Partitions come
    one after the other, each in the order of its offsets. Where bytes are bad the output ends, with
    an error that says where, and exit status 4.
    """,
    example="Example: `pylog cat /var/lib/kafka --topic orders -f '%p %o %k = %s\\n' --max 10`",
)
_EXPORT: Final = Command(
    name="export",
    panel=_LOOK,
    work="pylog_spark.cli.export:EXPORT",
    options=(
        _RECORD_ROOTS,
        _TOPIC_TO_READ,
        OUT,
        EXPORT_FORMAT,
        PARTITIONS,
        FROM,
        UNTIL,
        KEYS,
        COLUMNS,
        ISOLATION,
        *(KEY_FORMAT, KEY_SCHEMA),
        *(VALUE_FORMAT, VALUE_SCHEMA),
        ALLOW_DATA_LOSS,
        ROOT_OF_TOPIC,
        ENGINE,
        MASTER,
        _RECORD_OUTPUT,
        replace(QUIET, panel=None),
    ),
    help="""
    Export the records of a topic to a new folder: Parquet, a Delta table, CSV or JSON lines.

    Tasks write parts at the same time; one rename makes all of them visible, or none. A log
    directory is only read, no lock is taken. No Spark is started unless --engine or --master says
    so; its executors have to see the folder.
    """,
    example="Example: `pylog export /var/lib/kafka --topic orders --out /data/orders --to parquet`",
)
_FIND: Final = Command(
    name="find",
    panel=_LOOK,
    work="pylog_spark.cli.find:find",
    options=(
        replace(ROOTS, help="Log directories, managed roots or partitions: paths or URLs."),
        TOPIC,
        replace(KEYS, is_required=True, help="The key, written as `--key-format` says."),
        PARTITIONS,
        replace(
            MAX_RECORDS,
            help="At most so many versions of each key, the newest ones. Default: 100000.",
        ),
        replace(_TRASH_OF_RUNS, panel=None),
        KEY_FORMAT,
        *(VALUE_FORMAT, VALUE_SCHEMA),
        replace(OUTPUT, panel=None),
        replace(WIDE, panel=None),
    ),
    help="""
    Find every version of a key that is left, what superseded it, and where history is missing.

    Looked for in the log, in files and directories that Kafka has renamed to delete them, in former
    generations of a managed root, and in the trash of runs. Every batch of the topic is read.
    Nothing is written, no lock is taken, and no Spark is started. What cannot be read is said, and
    makes the exit status 4.
    """,
    example="Example: `pylog find /var/lib/kafka --topic orders --key 4711 --trash /data/trash`",
)
_FREE: Final = Command(
    name="free",
    panel=_LOOK,
    work="pylog_spark.cli.free:FREE",
    options=(
        replace(ROOTS, help="Log directories, all of one broker's at best, or managed roots."),
        NEED,
        TOPICS,
        EXCLUDE,
        replace(EXACT, is_hidden=False, help="Also read what compaction would clean."),
        replace(_TRASH_OF_RUNS, panel=None),
        _GUESSED_ROLE,
        *_CONFIG_OF_JOBS,
        HIGH_WATERMARK,
        NOW_MS,
        ENGINE,
        MASTER,
        OUTPUT,
        WIDE,
    ),
    help="""
    Say what could go from a full disk, in which order, what it frees, and who would miss it.

    What a broker would remove itself, the trash, what has expired by the topics' own rules, with
    the consumer groups that would lose their place, and what compaction would give: each with its
    command. Nothing is done. The exit status is 1 if all of it does not surely free --need.
    """,
    example="Example: `pylog free /var/lib/kafka --need 200GiB --trash /data/trash`",
)
# What a look at coordinators' partitions is given.
_OF_COORDINATORS: Final = (
    replace(ROOTS, help="Log directories: paths or URLs."),
    *(TOPICS, EXCLUDE),
    *(CONFIG_FILES, SERVER_PROPERTIES, SETTINGS_OF_RUN),
    *(NOW_MS, OUTPUT, WIDE),
)
_GROUPS: Final = Command(
    name="groups",
    panel=_LOOK,
    work="pylog_spark.cli.coordinators:GROUPS",
    options=_OF_COORDINATORS,
    help="""
    Show groups and their committed offsets, by what `__consumer_offsets` holds in directories.

    Each commit is shown beside the log that it is of: the lag, and whether the commit lies outside
    of the log, has expired, or is where its coordinator never looks. Nothing is written, no lock is
    taken, and no Spark is started. What cannot be read is a row with its error, and exit status 4.
    """,
    example="Example: `pylog groups /var/lib/kafka --topics 'orders-*'`",
)
_TRANSACTIONS: Final = Command(
    name="transactions",
    panel=_LOOK,
    work="pylog_spark.cli.coordinators:TRANSACTIONS",
    options=_OF_COORDINATORS,
    help="""
    Show transactions that are open in logs, who ends them, and what `__transaction_state` knows.

    For a transaction that nobody ends any more the command is shown that aborts it on the cluster.
    Nothing is written, no lock is taken, and no Spark is started. What cannot be read is a row with
    its error, and exit status 4.
    """,
    example="Example: `pylog transactions /var/lib/kafka --output json`",
)
_EXPLAIN: Final = Command(
    name="explain",
    panel=_LOOK,
    work="pylog_spark.cli.explain:EXPLAIN",
    options=(
        replace(ROOTS, help="Log directories: paths or URLs. Or codes: what each means."),
        TOPICS,
        EXCLUDE,
        _GUESSED_ROLE,
        *_CONFIG_OF_JOBS,
        HIGH_WATERMARK,
        NOW_MS,
        OUTPUT,
        WIDE,
    ),
    help="""
    Say why partitions are not cleaned, not deleted, or so big, and from when on they will be.

    Predicate by predicate, in the order in which Kafka asks, with the numbers: policy, dirty ratio,
    lags, last stable offset and the transaction that holds it, active segment, high watermark,
    retention by size and age, timestamps in the future. Read only; no Spark is started.

    In place of directories: the code of a finding, a reason, a refusal, or an exit status
    (`pylog explain NO_HIGH_WATERMARK`). It says what that means, and the way out.
    """,
    example="Example: `pylog explain /var/lib/kafka --topics 'orders-*'`",
)
_SURVEY: Final = Command(
    name="survey",
    panel=_LOOK,
    work="pylog_spark.cli.transfer:SURVEY",
    options=(
        ROOTS,
        TOPICS,
        EXCLUDE,
        _GUESSED_ROLE,
        FILE_LIST,
        CONFIG_FILES,
        SETTINGS_OF_RUN,
        TOPIC_DUMP,
        ASSUME_DEFAULTS,
        NOW_MS,
        REPORT,
        ENGINE,
        MASTER,
        OUTPUT,
        WIDE,
    ),
    help="""
    Say what retention and compaction would do, without opening a single file.

    A mirror is listed page by page, or an inventory takes that place; of a managed root one
    manifest a partition is read. Sizes are exact; ages are those of the files where a manifest
    does not tell the records' own. Meant for many partitions: `pylog explain` knows more of one.
    """,
    example="Example: `pylog survey s3://backup/kafka --file-list inventory.parquet`",
)
_VERIFY: Final = Command(
    name="verify",
    panel=_LOOK,
    work="pylog_spark.cli.verify:VERIFY",
    options=(
        ROOTS,
        TOPICS,
        EXCLUDE,
        DEEP,
        LIVE,
        FAIL_ON,
        SHOW,
        _GUESSED_ROLE,
        PER_DISK,
        CONFIG_FILES,
        SETTINGS_OF_RUN,
        NOW_MS,
        LEDGER,
        REPORT,
        *_METRICS,
        ENGINE,
        MASTER,
        OUTPUT,
        WIDE,
        QUIET,
    ),
    help="""
    Check every batch, index, snapshot and checkpoint; nothing is written, no lock is taken.

    What is found has a stable code, a severity and what to do about it; `pylog explain CODE`
    says more. The exit status is 1 for findings as bad as --fail-on says, 4 if a partition could
    not be looked at.
    """,
    example="Example: `pylog verify /var/lib/kafka --deep --fail-on warn`",
)
_DOCTOR: Final = Command(
    name="doctor",
    panel=_LOOK,
    work="pylog_spark.cli.doctor:DOCTOR",
    options=(
        replace(ROOTS, help="Log directories, all of one broker's at best."),
        TOPICS,
        EXCLUDE,
        DEEP,
        FAIL_ON,
        replace(SHOW, help="At most so many findings. Default: 20 in tables, else all."),
        ALL_COMMANDS,
        _GUESSED_ROLE,
        CONFIG_FILES,
        replace(SERVER_PROPERTIES, panel=None, help="The broker's own file: its recovery threads."),
        STARTED_RELEASE,
        SETTINGS_OF_RUN,
        NOW_MS,
        replace(REPORT, panel=None),
        replace(ENGINE, panel=None),
        replace(MASTER, panel=None),
        replace(OUTPUT, panel=None, help="For a person, one JSON object, or CSV of the findings."),
        replace(WIDE, panel=None),
    ),
    help="""
    Say what is wrong, what a broker's start would do and how long it would take, what to run.

    Nothing is written, no lock is taken. The exit status is 1 for findings as bad as --fail-on
    says, 4 if a partition could not be looked at.
    """,
    example="Example: `pylog doctor /var/lib/kafka`",
)
_AUDIT: Final = Command(
    name="audit",
    panel=_LOOK,
    work="pylog_spark.cli.audit:AUDIT",
    options=(
        replace(ROOTS, help="Log directories of several brokers; several of one count as one."),
        TOPICS,
        EXCLUDE,
        STATE,
        LEVEL,
        UP,
        LEADER,
        replace(PLAN_OUT, panel=None, help="With --leader: save the cuts, for `pylog apply`."),
        replace(SALVAGE, panel=None, help="Copy what is cut there first, as segments that open."),
        _ALLOW_COMMITTED_LOSS,
        LEADER_EPOCH,
        ELECTION_OUT,
        LOST_KEYS,
        _FAIL_ON_LOSS,
        TIMELINE,
        ATTEST,
        COPY,
        COPY_PREFIX,
        OFFSET_MAP,
        _GUESSED_ROLE,
        CONFIG_FILES,
        SETTINGS_OF_RUN,
        NOW_MS,
        replace(ENGINE, panel=None),
        replace(MASTER, panel=None),
        replace(OUTPUT, panel=None),
        replace(WIDE, panel=None),
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
_RUN: Final = Command(
    name="run",
    panel=_MAINTAIN,
    work="pylog_spark.cli.jobs:RUN",
    options=(
        *_WHERE_JOBS_WORK,
        *_HOW_LOGS_ARE_CLEANED,
        SALVAGE,
        MAX_TRUNCATE_BYTES,
        ALLOW_TRUNCATE,
        _FAIL_ON_CUT,
        *_CONFIG_OF_JOBS,
        HIGH_WATERMARK,
        NOW_MS,
        MARK_CLEAN,
        *_ANSWER_OF_JOBS,
    ),
    help="""
    The nightly job: do everything that is due in each partition of the log directories.

    A broker's directory that was not cleanly shut down is recovered first. Then retention removes
    what has expired, compaction leaves the newest record of each key, and what former runs have
    put aside is purged. --max-bytes, --min-free and --order are about compaction, --max-duration is
    about all but the purge. A partition whose topic's config is not known is left alone and said
    so. Each partition is a row of the result; one that fails does not stop the others. A run that
    was killed is simply started again.
    """,
    example="Example: `pylog run /var/lib/kafka --role broker --ledger /var/lib/pylog/ledger`",
)
_RECOVER: Final = Command(
    name="recover",
    panel=_MAINTAIN,
    work="pylog_spark.cli.jobs:RECOVER",
    options=(
        *_WHERE_JOBS_WORK,
        replace(DRY_RUN, help="Read everything, show what would be cut and done; write nothing."),
        EXACT,
        FROM_START,
        SALVAGE,
        MAX_TRUNCATE_BYTES,
        ALLOW_TRUNCATE,
        _FAIL_ON_CUT,
        MARK_CLEAN,
        PER_DISK,
        OVERRIDE,
        TRASH,
        PLAN_OUT,
        *_CONFIG_OF_JOBS,
        NOW_MS,
        *_ANSWER_OF_JOBS,
    ),
    help="""
    Recover every partition after a crash, so that the broker starts at once.

    What a broker does when it starts, in parallel: segments from the recovery point on are read and
    checked, their indexes and the producer state rebuilt; from the first batch that is torn or
    corrupt on, a log is cut. Then checkpoints and Kafka's clean-shutdown marker are written. Look
    at --dry-run first: it says what would be cut, how many bytes and records, and why.

    A partition that would lose more than --max-truncate-bytes, or what its checkpointed high
    watermark covers, is left alone and listed.
    """,
    example=(
        "Example: `pylog recover /var/lib/kafka --role broker --salvage /var/tmp/salvage --dry-run`"
    ),
)
_HEAL: Final = Command(
    name="heal",
    panel=_MAINTAIN,
    work="pylog_spark.cli.heal:HEAL",
    options=(
        ROOTS,
        DONORS,
        QUORUM,
        TOPICS,
        EXCLUDE,
        ROLE,
        replace(PLAN_OUT, help="Save what heals the logs, for `pylog apply`."),
        SALVAGE,
        MAX_TRUNCATE_BYTES,
        ALLOW_TRUNCATE,
        *_CONFIG_OF_JOBS,
        NOW_MS,
        *_ANSWER_OF_JOBS,
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
_RETAIN: Final = Command(
    name="retain",
    panel=_MAINTAIN,
    work="pylog_spark.cli.jobs:RETAIN",
    options=(
        *_WHERE_JOBS_WORK,
        DRY_RUN,
        EXACT,
        KEEP_DELETED,
        MAX_DELETE_RATIO,
        MAX_DURATION,
        PER_DISK,
        OVERRIDE,
        TRASH,
        PLAN_OUT,
        *_CONFIG_OF_JOBS,
        HIGH_WATERMARK,
        NOW_MS,
        MARK_CLEAN,
        *_ANSWER_OF_JOBS,
    ),
    help="""
    Remove the segments that have expired, exactly as Kafka would.

    The oldest segments of a log go while they lie below its log start offset, while the log is
    larger than retention.bytes, or while they are older than retention.ms; at the first that stays
    it ends. Nothing at or above the checkpointed high watermark goes. A topic that is compacted is
    left to `pylog compact`. Try it with --dry-run first.
    """,
    example="Example: `pylog retain /var/lib/kafka --role broker --topics 'clicks-*' --dry-run`",
)
_COMPACT: Final = Command(
    name="compact",
    panel=_MAINTAIN,
    work="pylog_spark.cli.jobs:COMPACT",
    options=(
        *_WHERE_JOBS_WORK,
        *_HOW_LOGS_ARE_CLEANED,
        *_CONFIG_OF_JOBS,
        HIGH_WATERMARK,
        NOW_MS,
        MARK_CLEAN,
        *_ANSWER_OF_JOBS,
    ),
    help="""
    Compact every partition that is due, exactly as Kafka's log cleaner would.

    Policy, dirty ratio and lags of each topic decide what is due. Try it with --dry-run first:
    that writes nothing and shows what would be done.
    """,
    example="Example: `pylog compact /var/lib/kafka --role broker --topics 'orders-*' --dry-run`",
)
_APPLY: Final = Command(
    name="apply",
    panel=_PLANS,
    work="pylog_spark.cli.jobs:APPLY",
    options=(
        *(PLAN, DRY_RUN, TRASH, OVERRIDE, MARK_CLEAN),
        *_ANSWER_OF_JOBS,
    ),
    help="""
    Apply a plan that was saved: the same partitions, ranges, configs and clock, nothing else.

    A partition whose files are not what they were is refused, and the file is named with what was
    expected and what was found; the exit status is then 3, and the others are done.
    """,
    example="Example: `pylog apply tonight.json --ledger /data/ledger`",
)
_UNDO: Final = Command(
    name="undo",
    panel=_PLANS,
    work="pylog_spark.cli.upkeep:UNDO",
    options=(
        RUN_ID,
        replace(ROOTS, is_required=False, help="Managed roots; local ones are in the trash."),
        _TRASH_OF_RUNS,
        TOPICS,
        EXCLUDE,
        DRY_RUN,
        MARK_CLEAN,
        CONFIG_FILES,
        LEDGER,
        ENGINE,
        MASTER,
        OUTPUT,
        WIDE,
        QUIET,
    ),
    help="""
    Undo a run: bring each partition back to what it was before.

    A local run is undone from the trash that it was given (--trash), a run over a managed root by
    its generations. A partition of which a single file is not what the run left is refused, and
    the file is named; the others are undone. Spark is started only to write a ledger there.
    """,
    example="Example: `pylog undo 20260102T030405Z-0a1b2c3d --trash /data/trash --dry-run`",
)
_RUNS: Final = Command(
    name="runs",
    panel=_PLANS,
    work="pylog_spark.cli.runs:show_runs",
    options=(
        replace(LEDGER, panel=None, help="Delta tables in which runs are written down."),
        replace(_TRASH_OF_RUNS, panel=None),
        LAST,
        replace(CONFIG_FILES, panel=None, help="YAML that may say ledger and trash."),
        replace(OUTPUT, panel=None),
        replace(WIDE, panel=None),
        replace(QUIET, panel=None, help="No answer: only whether ledger and trash can be read."),
    ),
    help="""
    List the last runs, the newest first: what each did, how it ended, whether it can be undone.

    A ledger knows all runs and their numbers, a trash those that kept something and what they kept.
    A run without an end in the ledger died, or is still running. Nothing is written; no Spark is
    started.
    """,
    example="Example: `pylog runs --ledger /data/ledger --trash /data/trash`",
)
_PURGE: Final = Command(
    name="purge",
    panel=_PLANS,
    work="pylog_spark.cli.upkeep:PURGE",
    options=(
        replace(ROOTS, is_required=False, help="Log directories, or managed roots."),
        _TRASH_OF_RUNS,
        PURGE_AFTER,
        TOPICS,
        EXCLUDE,
        ROLE,
        DRY_RUN,
        CONFIG_FILES,
        SERVER_PROPERTIES,
        SETTINGS_OF_RUN,
        NOW_MS,
        LEDGER,
        ENGINE,
        MASTER,
        OUTPUT,
        WIDE,
        QUIET,
    ),
    help="""
    Empty the trash, and remove what a broker would remove at its next start.

    From the trash goes what runs put there more than --older-than ago: they cannot be undone any
    more. From a broker's directory go .deleted files, and directories of deleted partitions, once
    file.delete.delay.ms has passed; from a managed root, superseded generations and their objects.
    --dry-run lists. Spark is started only to write the ledger.
    """,
    example="Example: `pylog purge /var/lib/kafka --role broker --trash /data/trash`",
)
_INGEST: Final = Command(
    name="ingest",
    panel=_MANAGED_ROOTS,
    work="pylog_spark.cli.transfer:INGEST",
    options=(
        MIRROR,
        MANAGED,
        TOPICS,
        EXCLUDE,
        DRY_RUN,
        SETTLE,
        SYNC_STOPPED,
        IN_PLACE,
        HIGH_WATERMARK,
        FILE_LIST,
        CONFIG_FILES,
        LEDGER,
        ENGINE,
        MASTER,
        OUTPUT,
        WIDE,
        QUIET,
    ),
    help="""
    Take what a mirror has and a managed root has not yet: segments that are closed and settled.

    A segment is closed when the mirror has its successor. High watermarks are those of the mirror's
    own checkpoint file: what lies above them stays. Segments that overlap, or that come from
    several replicas, are refused. The managed root is made if it is not there; what it has is not
    copied again.
    """,
    example="Example: `pylog ingest s3://backup/kafka s3://logs/managed --dry-run`",
)
_MATERIALIZE: Final = Command(
    name="materialize",
    panel=_MANAGED_ROOTS,
    work="pylog_spark.cli.transfer:MATERIALIZE",
    options=(
        MANAGED,
        TARGET,
        TOPICS,
        EXCLUDE,
        DRY_RUN,
        CONFIG_FILES,
        LEDGER,
        ENGINE,
        MASTER,
        OUTPUT,
        WIDE,
        QUIET,
    ),
    help="""
    Write partitions of a managed root as a plain log directory that Kafka opens.

    Of each partition one generation is written, whatever is committed meanwhile, with its
    checkpoints. A run that was killed is finished by starting it again.
    """,
    example="Example: `pylog materialize s3://logs/managed /var/lib/kafka-new`",
)
_TRANSPLANT: Final = Command(
    name="transplant",
    panel=_MAINTAIN,
    work="pylog_spark.cli.transplant:TRANSPLANT",
    options=(
        replace(ROOTS, metavar="SRC", help="Log directories that the partitions come from."),
        of_transplants.TARGETS,
        replace(TOPICS, is_required=True, help="Only these topics; may be repeated."),
        EXCLUDE,
        of_transplants.NEW_NAMES,
        of_transplants.KEEP_PRODUCERS,
        of_transplants.ALLOW_ABORT,
        of_transplants.OFFSETS_OUT,
        DRY_RUN,
        replace(TRASH, help="Remember in this folder what was there, for `pylog undo`."),
        _GUESSED_ROLE,
        NOW_MS,
        LEDGER,
        *_METRICS,
        ENGINE,
        MASTER,
        OUTPUT,
        WIDE,
        QUIET,
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
_CLEAN_PARTITION: Final = Command(
    name="clean",
    work="pylog_spark.cli.partition_clean:clean",
    options=(
        of_partitions.DIRECTORY,
        of_partitions.CLOCK,
        of_partitions.WHOLE_CONFIG,
        of_partitions.FIRST_DIRTY,
        of_partitions.FIRST_UNCLEANABLE,
        of_partitions.CONSENT,
        of_partitions.CLEANER_CHECKPOINT,
        of_partitions.HIGH_WATERMARK,
        of_partitions.LOG_START,
        *(RECOMPRESS, RECOMPRESS_ALL, KEY_SIDECARS),
        of_partitions.OFFSET_MAP_BYTES,
        of_partitions.LOAD_FACTOR,
        of_partitions.IO_BUFFER_BYTES,
        of_partitions.MAX_IO_BUFFER_BYTES,
        of_partitions.THEN_RETAIN,
        replace(DRY_RUN, help="Print what would be done to files; change nothing."),
    ),
    help="""
    Run one round of Kafka's cleaner on a partition and print its answer as one JSON object.

    Without --first-dirty-offset the range is chosen as Kafka chooses it: from the cleaner
    checkpoint, the dirty ratio and the compaction lags. The log must have been closed cleanly. As
    in `pylog compact`, a round is refused before its lag, and where most records have no key.
    """,
    example=(
        "Example: pylog partition clean /backup/orders-0 --now-ms 1795251360000 "
        "--set cleanup.policy=compact --first-dirty-offset 0"
    ),
)
_RECOVER_PARTITION: Final = Command(
    name="recover",
    work="pylog_spark.cli.partition_recover:recover",
    options=(
        of_partitions.DIRECTORY,
        of_partitions.CLOCK,
        of_partitions.WHOLE_CONFIG,
        of_partitions.RECOVERY_POINT,
        of_partitions.LOG_START_OR_ZERO,
        of_partitions.CLEAN_SHUTDOWN,
        of_partitions.NO_TRUNCATE,
        replace(
            DRY_RUN,
            help="Read everything, print what would be cut and done; change nothing.",
        ),
    ),
    help="""
    Load a partition as a broker does after a crash, and close it cleanly.

    Segments from the recovery point on are read and checked, their indexes and the producer state
    rebuilt; what is not a valid batch is cut, with everything after it. **Cutting is a broker's
    rule**: it fetches the rest from other replicas. On a copy, look at --dry-run first.
    """,
    example=("Example: pylog partition recover /backup/orders-0 --now-ms 1795251360000 --dry-run"),
)
_RETAIN_PARTITION: Final = Command(
    name="retain",
    work="pylog_spark.cli.partition_retain:retain",
    options=(
        of_partitions.DIRECTORY,
        of_partitions.CLOCK,
        of_partitions.WHOLE_CONFIG,
        of_partitions.HIGH_WATERMARK,
        replace(of_partitions.LOG_START, help="Raise the log start there, as DeleteRecords."),
        replace(DRY_RUN, help="Print what would go, and why; change nothing."),
    ),
    help="""
    Make Kafka's deletion pass over a log: what is below its start, too large, too old.

    The log must have been closed cleanly. Segments go from the oldest on, up to the first that
    stays; if all of them go, an empty one takes their place.
    """,
    example=(
        "Example: pylog partition retain /backup/orders-0 --now-ms 1795251360000 "
        "--set retention.ms=86400000 --dry-run"
    ),
)
_TRUNCATE_PARTITION: Final = Command(
    name="truncate",
    work="pylog_spark.cli.partition_recover:truncate",
    options=(
        of_partitions.DIRECTORY,
        of_partitions.CLOCK,
        of_partitions.TRUNCATE_TO,
        of_partitions.WHOLE_CONFIG,
        of_partitions.LOG_START_OR_ZERO,
        replace(
            of_partitions.CLEANER_CHECKPOINT,
            help="Its cleaner checkpoint; the answer has the new.",
        ),
        replace(DRY_RUN, help="Print what would be cut and done; change nothing."),
    ),
    help="""
    Cut a log down to an offset, as a replica does that follows a new leader.

    The log must have been closed cleanly. The batch that reaches the offset goes as a whole; so do
    index entries, producer snapshots and leader epochs at or above it.
    """,
    example=(
        "Example: pylog partition truncate /backup/orders-0 --now-ms 1795251360000 --to 4711 "
        "--dry-run"
    ),
)
_PARTITION: Final = CommandGroup(
    name="partition",
    panel=_OTHERS,
    help="Work on one partition directory, in this process: for surgery and tests.",
    commands=(_CLEAN_PARTITION, _RECOVER_PARTITION, _RETAIN_PARTITION, _TRUNCATE_PARTITION),
)
_SHOW_SALVAGE: Final = Command(
    name="show",
    work="pylog_spark.cli.salvage:show_salvage",
    options=(
        SALVAGED,
        replace(
            ROOTS,
            is_required=False,
            help="Log directories of the logs. Default: those that it was cut from.",
        ),
        replace(TOPICS, panel=None),
        replace(EXCLUDE, panel=None),
        replace(OUTPUT, panel=None),
        replace(WIDE, panel=None),
    ),
    help="""
    Show what a salvage holds: partitions, offsets, records, why they were cut, what is doubled.

    Records are told apart by the log: those that it has, those behind its end, and those whose
    offsets it has gone past. Nothing is written, and no lock is taken.
    """,
    example="Example: `pylog salvage show /var/lib/kafka-salvage`",
)
_REPLAY_SALVAGE: Final = Command(
    name="replay",
    work="pylog_spark.cli.salvage:replay",
    options=(
        SALVAGED,
        ROOTS,
        TOPICS,
        EXCLUDE,
        ROLE,
        replace(DRY_RUN, help="Show what would be appended; write nothing."),
        AS_RECORDS,
        RECORD_FORMAT,
        MAX_RECORDS,
        *(KEY_FORMAT, KEY_SCHEMA),
        *(VALUE_FORMAT, VALUE_SCHEMA),
        NULL,
        *(CONFIG_FILES, SERVER_PROPERTIES, TOPIC_DUMP),
        *(SETTINGS_OF_RUN, NOW_MS, OVERRIDE),
        _RECORD_OUTPUT,
    ),
    help="""
    Append what was salvaged to closed logs that end before it, with the offsets that it had.

    What a log has is left out; so are records whose offsets it has gone past, and the exit status
    is 1 then: `--as-records` writes them as `pylog cat` does, for a producer. The broker is
    stopped, and the directory was closed or recovered.

    There is no undo, and no ledger: for a way back copy the partition directories first. What is
    appended lies from the log's old end on, and the salvage stays as it is. A replay that was
    stopped is repeated: recover the directory first, as it says.
    """,
    example=(
        "Example: `pylog salvage replay /var/lib/kafka-salvage /var/lib/kafka --role broker "
        "--dry-run`"
    ),
)
_SALVAGE: Final = CommandGroup(
    name="salvage",
    panel=_PLANS,
    help="What recoveries cut and kept, and the way back.",
    commands=(_SHOW_SALVAGE, _REPLAY_SALVAGE),
)
_SHOW_CONFIG: Final = Command(
    name="show",
    work="pylog_spark.cli.config:show_config",
    options=(
        replace(CONFIG_FILES, panel=None, help="YAML; a later file wins."),
        replace(SERVER_PROPERTIES, panel=None, help="A broker's own server.properties."),
        TOPIC_DUMP,
        replace(SETTINGS_OF_RUN, panel=None, help="Any of these keys."),
        ORIGIN,
        replace(OUTPUT, panel=None),
        replace(WIDE, panel=None),
    ),
    help="""
    List every key that --set and --config know, with its value in force, unit and meaning.

    Topic keys are shown as for a topic that sets none of them itself.
    """,
    example="Example: `pylog config show --origin --config nightly.yaml`",
)
_INIT_CONFIG: Final = Command(
    name="init",
    work="pylog_spark.cli.config:init_config",
    options=(
        replace(ROOTS, help="Log directories, copies, managed roots: paths or URLs."),
        replace(TOPICS, panel=None),
        replace(EXCLUDE, panel=None),
    ),
    help="""
    Print a YAML file of the topics whose configs nobody says, to be filled in for --config.

    For directories without their cluster's metadata: copies, backups, all brokers of ZooKeeper's
    time. Beside each topic stands what files tell: sizes, times, whether it was compacted, whether
    it was deleted from. All of it are comments: the file says nothing until a person does.
    """,
    example="Example: `pylog config init /backup/kafka > topics.yaml`",
)
_CONFIG: Final = CommandGroup(
    name="config",
    panel=_OTHERS,
    help="The settings that a job would run with, and those of topics to be filled in.",
    commands=(_SHOW_CONFIG, _INIT_CONFIG),
)
_WARMUP: Final = Command(
    name="warmup",
    panel=_OTHERS,
    work="pylog_spark.cli.warmup:warmup",
    help="""
    Compile every kernel and keep the machine code on disk, so that no job waits for it.

    A wheel brings the code for most CPUs. Other code lies in the folder that PYLOG_KERNEL_CACHE
    names, else in the user's cache folder. It belongs to one version of this program and to one
    kind of CPU.
    """,
    example="Example: `pylog warmup`, in an image's build or on a fresh host",
)

_SHOW_METADATA: Final = Command(
    name="show",
    work="pylog_spark.cli.metadata:SHOW",
    options=(
        replace(ROOTS, help="Log directories of brokers and controllers, several nodes' too."),
        replace(OUTPUT, panel=None),
        replace(WIDE, panel=None),
        replace(QUIET, panel=None),
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
    work="pylog_spark.cli.metadata:PROMOTE",
    options=(
        replace(ROOTS, help="Log directories with copies, of brokers and controllers."),
        replace(INTO, panel=None),
        replace(DRY_RUN, panel=None),
        replace(OUTPUT, panel=None),
        replace(WIDE, panel=None),
        replace(QUIET, panel=None),
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
    work="pylog_spark.cli.metadata:ADOPT",
    options=(
        replace(ROOTS, help="All log directories of one or more stopped brokers."),
        replace(ROLE, panel=None),
        replace(DRY_RUN, panel=None),
        replace(OUTPUT, panel=None),
        replace(WIDE, panel=None),
        replace(QUIET, panel=None),
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
    work="pylog_spark.cli.metadata_rebuild:REBUILD",
    options=(
        replace(ROOTS, help="All log directories of all brokers, which are stopped."),
        replace(
            INTO,
            panel=None,
            help="A controller, and its empty or formatted log directory; may be repeated.",
        ),
        RELEASE_VERSION,
        INITIAL_CONTROLLERS,
        CONTROLLER_LISTENER,
        OLDER_COPY,
        replace(DRY_RUN, panel=None),
        CONFIG_FILES,
        SERVER_PROPERTIES,
        TOPIC_DUMP,
        SETTINGS_OF_RUN,
        ASSUME_DEFAULTS,
        NOW_MS,
        _GUESSED_ROLE,
        replace(ENGINE, panel=None),
        replace(MASTER, panel=None),
        replace(OUTPUT, panel=None),
        replace(WIDE, panel=None),
        replace(QUIET, panel=None),
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
    panel=_LOOK,
    help="The cluster's metadata on disks: its copies, and the way back from lost controllers.",
    commands=(_SHOW_METADATA, _PROMOTE_METADATA, _ADOPT_STRAYS, _REBUILD_METADATA),
)

# In the order of the program's help.
COMMANDS: Final[tuple[Command | CommandGroup, ...]] = (
    *(_INSPECT, _DUMP, _CAT, _EXPORT, _FIND, _FREE),
    *(_GROUPS, _TRANSACTIONS, _EXPLAIN, _SURVEY, _VERIFY, _DOCTOR, _AUDIT, _METADATA),
    *(_RUN, _RECOVER, _HEAL, _RETAIN, _COMPACT),
    *(_APPLY, _RUNS, _UNDO, _PURGE, _SALVAGE),
    *(_TRANSPLANT, _INGEST, _MATERIALIZE),
    *(_PARTITION, _CONFIG, _WARMUP),
)
