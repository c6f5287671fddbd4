"""Every command of upkeep: its help, options, and entry function; then those of houses above.

What an option is, ``options.declared`` says; here stands only what one command says differently.
The module of a command's work is imported when it runs: ``pylog partition`` and ``pylog dump`` are
run in loops, and should not pay for Spark, Arrow or tables on the way; nor should ``--help``.
"""

from dataclasses import replace
from typing import Final

from pylog_spark.cli.command import (
    ANSWER_OF_JOBS,
    CONFIG_OF_JOBS,
    GUESSED_ROLE,
    LOOK,
    MAINTAIN,
    MANAGED_ROOTS,
    METRICS,
    OTHERS,
    PLANS,
    Command,
    CommandGroup,
)
from pylog_spark.house import additions
from pylog_spark.options import declared, of_partitions
from pylog_spark.options.choices import FailOn, RecordOutput
from pylog_spark.options.kinds import choice

# Where there are bounds to begin with: the program takes --dry-run=exact there.
_DRY_RUN_OR_EXACT: Final = replace(
    declared.DRY_RUN,
    help="Show what would be done; write nothing. `--dry-run=exact` also reads what would be "
    "cleaned, so that the figures are exact.",
)
# Of the jobs that recover.
_FAIL_ON_CUT: Final = replace(
    declared.FAIL_ON,
    default=FailOn.NEVER,
    shown=FailOn.NEVER,
    help="Exit with 1 if something is cut: warn for any cut, error for readable records.",
)
_TRASH_OF_RUNS: Final = replace(
    declared.TRASH, panel=declared.CHOICE, help="The folder in which runs kept what they took away."
)
# Of commands that print no table.
_RECORD_OUTPUT: Final = replace(
    declared.OUTPUT, kind=choice(RecordOutput), help="For a person, or one JSON object a line."
)
# Of commands that read the records of one topic.
_RECORD_ROOTS: Final = replace(
    declared.ROOTS,
    help="Log directory, copy, managed root or partition directory: path or URL. Several are one.",
)
# `--root` names the roots where an argument names the topic.
_TOPIC_TO_READ: Final = replace(
    declared.TOPIC,
    is_required=False,
    help="Name of a topic; may be repeated. Needed, except with --root.",
)
# Of the four jobs.
_WHERE_JOBS_WORK: Final = (
    declared.ROOTS,
    declared.TOPICS,
    declared.EXCLUDE,
    declared.FILE_LIST,
    declared.ROLE,
)
# Of the two that compact.
_HOW_LOGS_ARE_CLEANED: Final = (
    *(
        _DRY_RUN_OR_EXACT,
        declared.EXACT,
        declared.UNTIL_CLEAN,
        declared.STRATEGY,
        declared.RECOMPRESS,
        declared.RECOMPRESS_ALL,
        declared.KEY_SIDECARS,
    ),
    *(
        declared.MAX_BYTES,
        declared.MAX_DURATION,
        declared.MIN_FREE,
        declared.PER_DISK,
        declared.MAX_DELETE_RATIO,
        declared.ORDER,
    ),
    *(declared.OVERRIDE, declared.TRASH, declared.PLAN_OUT),
)
_INSPECT: Final = Command(
    name="inspect",
    panel=LOOK,
    work="pylog_spark.cli.inspect:inspect_roots",
    options=(
        replace(declared.ROOTS, help="Log directories or partition directories: paths or URLs."),
        declared.TOPICS,
        declared.EXCLUDE,
        declared.BY,
        declared.PER_TOPIC,
        declared.SEGMENTS,
        declared.REPORT,
        declared.OUTPUT,
        declared.WIDE,
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
    panel=LOOK,
    work="pylog_spark.cli.dump_files:dump",
    options=(
        declared.PATH,
        replace(_TOPIC_TO_READ, help="Where PATH is a log directory: a topic in it."),
        replace(declared.PARTITIONS, help="Which partition of the topic, where it has several."),
        _RECORD_OUTPUT,
        declared.FROM,
        declared.UNTIL,
        replace(declared.MAX_RECORDS, help="At most so many records, or entries of another file."),
        declared.FULL,
        *(declared.KEY_FORMAT, declared.KEY_SCHEMA),
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA),
        replace(declared.ISOLATION, help="read_committed leaves out aborted and control records."),
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
    panel=LOOK,
    work="pylog_spark.cli.cat:cat",
    options=(
        _RECORD_ROOTS,
        _TOPIC_TO_READ,
        declared.RECORD_FORMAT,
        declared.PARTITIONS,
        declared.FROM,
        declared.UNTIL,
        declared.MAX_RECORDS,
        declared.KEYS,
        declared.ISOLATION,
        *(declared.KEY_FORMAT, declared.KEY_SCHEMA),
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA),
        declared.NULL,
        declared.ALLOW_DATA_LOSS,
        declared.ROOT_OF_TOPIC,
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
    panel=LOOK,
    work="pylog_spark.cli.export:EXPORT",
    options=(
        _RECORD_ROOTS,
        _TOPIC_TO_READ,
        declared.OUT,
        declared.EXPORT_FORMAT,
        declared.PARTITIONS,
        declared.FROM,
        declared.UNTIL,
        declared.KEYS,
        declared.COLUMNS,
        declared.ISOLATION,
        *(declared.KEY_FORMAT, declared.KEY_SCHEMA),
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA),
        declared.ALLOW_DATA_LOSS,
        declared.ROOT_OF_TOPIC,
        declared.ENGINE,
        declared.MASTER,
        _RECORD_OUTPUT,
        replace(declared.QUIET, panel=None),
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
    panel=LOOK,
    work="pylog_spark.cli.find:find",
    options=(
        replace(
            declared.ROOTS, help="Log directories, managed roots or partitions: paths or URLs."
        ),
        declared.TOPIC,
        replace(declared.KEYS, is_required=True, help="The key, written as `--key-format` says."),
        declared.PARTITIONS,
        replace(
            declared.MAX_RECORDS,
            help="At most so many versions of each key, the newest ones. Default: 100000.",
        ),
        replace(_TRASH_OF_RUNS, panel=None),
        declared.KEY_FORMAT,
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA),
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
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
    panel=LOOK,
    work="pylog_spark.cli.free:FREE",
    options=(
        replace(
            declared.ROOTS, help="Log directories, all of one broker's at best, or managed roots."
        ),
        declared.NEED,
        declared.TOPICS,
        declared.EXCLUDE,
        replace(declared.EXACT, is_hidden=False, help="Also read what compaction would clean."),
        replace(_TRASH_OF_RUNS, panel=None),
        GUESSED_ROLE,
        *CONFIG_OF_JOBS,
        declared.HIGH_WATERMARK,
        declared.NOW_MS,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
        declared.WIDE,
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
    replace(declared.ROOTS, help="Log directories: paths or URLs."),
    *(declared.TOPICS, declared.EXCLUDE),
    *(declared.CONFIG_FILES, declared.SERVER_PROPERTIES, declared.SETTINGS_OF_RUN),
    *(declared.NOW_MS, declared.OUTPUT, declared.WIDE),
)
_GROUPS: Final = Command(
    name="groups",
    panel=LOOK,
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
    panel=LOOK,
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
    panel=LOOK,
    work="pylog_spark.cli.explain:EXPLAIN",
    options=(
        replace(declared.ROOTS, help="Log directories: paths or URLs. Or codes: what each means."),
        declared.TOPICS,
        declared.EXCLUDE,
        GUESSED_ROLE,
        *CONFIG_OF_JOBS,
        declared.HIGH_WATERMARK,
        declared.NOW_MS,
        declared.OUTPUT,
        declared.WIDE,
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
    panel=LOOK,
    work="pylog_spark.cli.transfer:SURVEY",
    options=(
        declared.ROOTS,
        declared.TOPICS,
        declared.EXCLUDE,
        GUESSED_ROLE,
        declared.FILE_LIST,
        declared.CONFIG_FILES,
        declared.SETTINGS_OF_RUN,
        declared.TOPIC_DUMP,
        declared.ASSUME_DEFAULTS,
        declared.NOW_MS,
        declared.REPORT,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
        declared.WIDE,
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
    panel=LOOK,
    work="pylog_spark.cli.verify:VERIFY",
    options=(
        declared.ROOTS,
        declared.TOPICS,
        declared.EXCLUDE,
        declared.DEEP,
        declared.LIVE,
        declared.FAIL_ON,
        declared.SHOW,
        GUESSED_ROLE,
        declared.PER_DISK,
        declared.CONFIG_FILES,
        declared.SETTINGS_OF_RUN,
        declared.NOW_MS,
        declared.LEDGER,
        declared.REPORT,
        *METRICS,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
        declared.WIDE,
        declared.QUIET,
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
    panel=LOOK,
    work="pylog_spark.cli.doctor:DOCTOR",
    options=(
        replace(declared.ROOTS, help="Log directories, all of one broker's at best."),
        declared.TOPICS,
        declared.EXCLUDE,
        declared.DEEP,
        declared.FAIL_ON,
        replace(declared.SHOW, help="At most so many findings. Default: 20 in tables, else all."),
        declared.ALL_COMMANDS,
        GUESSED_ROLE,
        declared.CONFIG_FILES,
        replace(
            declared.SERVER_PROPERTIES,
            panel=None,
            help="The broker's own file: its recovery threads.",
        ),
        declared.STARTED_RELEASE,
        declared.SETTINGS_OF_RUN,
        declared.NOW_MS,
        replace(declared.REPORT, panel=None),
        replace(declared.ENGINE, panel=None),
        replace(declared.MASTER, panel=None),
        replace(
            declared.OUTPUT,
            panel=None,
            help="For a person, one JSON object, or CSV of the findings.",
        ),
        replace(declared.WIDE, panel=None),
    ),
    help="""
    Say what is wrong, what a broker's start would do and how long it would take, what to run.

    Nothing is written, no lock is taken. The exit status is 1 for findings as bad as --fail-on
    says, 4 if a partition could not be looked at.
    """,
    example="Example: `pylog doctor /var/lib/kafka`",
)
_RUN: Final = Command(
    name="run",
    panel=MAINTAIN,
    work="pylog_spark.cli.jobs:RUN",
    options=(
        *_WHERE_JOBS_WORK,
        *_HOW_LOGS_ARE_CLEANED,
        declared.SALVAGE,
        declared.MAX_TRUNCATE_BYTES,
        declared.ALLOW_TRUNCATE,
        _FAIL_ON_CUT,
        *CONFIG_OF_JOBS,
        declared.HIGH_WATERMARK,
        declared.NOW_MS,
        declared.MARK_CLEAN,
        *ANSWER_OF_JOBS,
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
    panel=MAINTAIN,
    work="pylog_spark.cli.jobs:RECOVER",
    options=(
        *_WHERE_JOBS_WORK,
        replace(
            declared.DRY_RUN,
            help="Read everything, show what would be cut and done; write nothing.",
        ),
        declared.EXACT,
        declared.FROM_START,
        declared.SALVAGE,
        declared.MAX_TRUNCATE_BYTES,
        declared.ALLOW_TRUNCATE,
        _FAIL_ON_CUT,
        declared.MARK_CLEAN,
        declared.PER_DISK,
        declared.OVERRIDE,
        declared.TRASH,
        declared.PLAN_OUT,
        *CONFIG_OF_JOBS,
        declared.NOW_MS,
        *ANSWER_OF_JOBS,
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
_RETAIN: Final = Command(
    name="retain",
    panel=MAINTAIN,
    work="pylog_spark.cli.jobs:RETAIN",
    options=(
        *_WHERE_JOBS_WORK,
        declared.DRY_RUN,
        declared.EXACT,
        declared.KEEP_DELETED,
        declared.MAX_DELETE_RATIO,
        declared.MAX_DURATION,
        declared.PER_DISK,
        declared.OVERRIDE,
        declared.TRASH,
        declared.PLAN_OUT,
        *CONFIG_OF_JOBS,
        declared.HIGH_WATERMARK,
        declared.NOW_MS,
        declared.MARK_CLEAN,
        *ANSWER_OF_JOBS,
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
    panel=MAINTAIN,
    work="pylog_spark.cli.jobs:COMPACT",
    options=(
        *_WHERE_JOBS_WORK,
        *_HOW_LOGS_ARE_CLEANED,
        *CONFIG_OF_JOBS,
        declared.HIGH_WATERMARK,
        declared.NOW_MS,
        declared.MARK_CLEAN,
        *ANSWER_OF_JOBS,
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
    panel=PLANS,
    work="pylog_spark.cli.jobs:APPLY",
    options=(
        *(declared.PLAN, declared.DRY_RUN, declared.TRASH, declared.OVERRIDE, declared.MARK_CLEAN),
        *ANSWER_OF_JOBS,
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
    panel=PLANS,
    work="pylog_spark.cli.upkeep:UNDO",
    options=(
        declared.RUN_ID,
        replace(
            declared.ROOTS, is_required=False, help="Managed roots; local ones are in the trash."
        ),
        _TRASH_OF_RUNS,
        declared.TOPICS,
        declared.EXCLUDE,
        declared.DRY_RUN,
        declared.MARK_CLEAN,
        declared.CONFIG_FILES,
        declared.LEDGER,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
        declared.WIDE,
        declared.QUIET,
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
    panel=PLANS,
    work="pylog_spark.cli.runs:show_runs",
    options=(
        replace(declared.LEDGER, panel=None, help="Delta tables in which runs are written down."),
        replace(_TRASH_OF_RUNS, panel=None),
        declared.LAST,
        replace(declared.CONFIG_FILES, panel=None, help="YAML that may say ledger and trash."),
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
        replace(
            declared.QUIET, panel=None, help="No answer: only whether ledger and trash can be read."
        ),
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
    panel=PLANS,
    work="pylog_spark.cli.upkeep:PURGE",
    options=(
        replace(declared.ROOTS, is_required=False, help="Log directories, or managed roots."),
        _TRASH_OF_RUNS,
        declared.PURGE_AFTER,
        declared.TOPICS,
        declared.EXCLUDE,
        declared.ROLE,
        declared.DRY_RUN,
        declared.CONFIG_FILES,
        declared.SERVER_PROPERTIES,
        declared.SETTINGS_OF_RUN,
        declared.NOW_MS,
        declared.LEDGER,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
        declared.WIDE,
        declared.QUIET,
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
    panel=MANAGED_ROOTS,
    work="pylog_spark.cli.transfer:INGEST",
    options=(
        declared.MIRROR,
        declared.MANAGED,
        declared.TOPICS,
        declared.EXCLUDE,
        declared.DRY_RUN,
        declared.SETTLE,
        declared.SYNC_STOPPED,
        declared.IN_PLACE,
        declared.HIGH_WATERMARK,
        declared.FILE_LIST,
        declared.CONFIG_FILES,
        declared.LEDGER,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
        declared.WIDE,
        declared.QUIET,
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
    panel=MANAGED_ROOTS,
    work="pylog_spark.cli.transfer:MATERIALIZE",
    options=(
        declared.MANAGED,
        declared.TARGET,
        declared.TOPICS,
        declared.EXCLUDE,
        declared.DRY_RUN,
        declared.CONFIG_FILES,
        declared.LEDGER,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
        declared.WIDE,
        declared.QUIET,
    ),
    help="""
    Write partitions of a managed root as a plain log directory that Kafka opens.

    Of each partition one generation is written, whatever is committed meanwhile, with its
    checkpoints. A run that was killed is finished by starting it again.
    """,
    example="Example: `pylog materialize s3://logs/managed /var/lib/kafka-new`",
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
        *(declared.RECOMPRESS, declared.RECOMPRESS_ALL, declared.KEY_SIDECARS),
        of_partitions.OFFSET_MAP_BYTES,
        of_partitions.LOAD_FACTOR,
        of_partitions.IO_BUFFER_BYTES,
        of_partitions.MAX_IO_BUFFER_BYTES,
        of_partitions.THEN_RETAIN,
        replace(declared.DRY_RUN, help="Print what would be done to files; change nothing."),
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
            declared.DRY_RUN,
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
        replace(declared.DRY_RUN, help="Print what would go, and why; change nothing."),
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
        replace(declared.DRY_RUN, help="Print what would be cut and done; change nothing."),
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
    panel=OTHERS,
    help="Work on one partition directory, in this process: for surgery and tests.",
    commands=(_CLEAN_PARTITION, _RECOVER_PARTITION, _RETAIN_PARTITION, _TRUNCATE_PARTITION),
)
_SHOW_SALVAGE: Final = Command(
    name="show",
    work="pylog_spark.cli.salvage:show_salvage",
    options=(
        declared.SALVAGED,
        replace(
            declared.ROOTS,
            is_required=False,
            help="Log directories of the logs. Default: those that it was cut from.",
        ),
        replace(declared.TOPICS, panel=None),
        replace(declared.EXCLUDE, panel=None),
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
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
        declared.SALVAGED,
        declared.ROOTS,
        declared.TOPICS,
        declared.EXCLUDE,
        declared.ROLE,
        replace(declared.DRY_RUN, help="Show what would be appended; write nothing."),
        declared.AS_RECORDS,
        declared.RECORD_FORMAT,
        declared.MAX_RECORDS,
        *(declared.KEY_FORMAT, declared.KEY_SCHEMA),
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA),
        declared.NULL,
        *(declared.CONFIG_FILES, declared.SERVER_PROPERTIES, declared.TOPIC_DUMP),
        *(declared.SETTINGS_OF_RUN, declared.NOW_MS, declared.OVERRIDE),
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
    panel=PLANS,
    help="What recoveries cut and kept, and the way back.",
    commands=(_SHOW_SALVAGE, _REPLAY_SALVAGE),
)
_SHOW_CONFIG: Final = Command(
    name="show",
    work="pylog_spark.cli.config:show_config",
    options=(
        replace(declared.CONFIG_FILES, panel=None, help="YAML; a later file wins."),
        replace(declared.SERVER_PROPERTIES, panel=None, help="A broker's own server.properties."),
        declared.TOPIC_DUMP,
        replace(declared.SETTINGS_OF_RUN, panel=None, help="Any of these keys."),
        declared.ORIGIN,
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
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
        replace(declared.ROOTS, help="Log directories, copies, managed roots: paths or URLs."),
        replace(declared.TOPICS, panel=None),
        replace(declared.EXCLUDE, panel=None),
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
    panel=OTHERS,
    help="The settings that a job would run with, and those of topics to be filled in.",
    commands=(_SHOW_CONFIG, _INIT_CONFIG),
)
_WARMUP: Final = Command(
    name="warmup",
    panel=OTHERS,
    work="pylog_spark.cli.warmup:warmup",
    help="""
    Compile every kernel and keep the machine code on disk, so that no job waits for it.

    A wheel brings the code for most CPUs. Other code lies in the folder that PYLOG_KERNEL_CACHE
    names, else in the user's cache folder. It belongs to one version of this program and to one
    kind of CPU.
    """,
    example="Example: `pylog warmup`, in an image's build or on a fresh host",
)

# In the order of the program's help.
_OWN: Final[tuple[Command | CommandGroup, ...]] = (
    *(_INSPECT, _DUMP, _CAT, _EXPORT, _FIND, _FREE),
    *(_GROUPS, _TRANSACTIONS, _EXPLAIN, _SURVEY, _VERIFY, _DOCTOR),
    *(_RUN, _RECOVER, _RETAIN, _COMPACT),
    *(_APPLY, _RUNS, _UNDO, _PURGE, _SALVAGE),
    *(_INGEST, _MATERIALIZE),
    *(_PARTITION, _CONFIG, _WARMUP),
)
# Each house says which of these its own commands follow.
COMMANDS: Final[tuple[Command | CommandGroup, ...]] = tuple(
    each
    for own in _OWN
    for each in (
        own,
        *(more for of_house in additions("commands") for more in of_house.get(own.name, ())),
    )
)
