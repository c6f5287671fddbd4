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
from pylog_spark.options.choices import AnswerFormat, FailOn, RecordOutput
from pylog_spark.options.option import choice

# Where there are bounds to begin with: the program takes --dry-run=exact there.
_DRY_RUN_OR_EXACT: Final = replace(
    declared.DRY_RUN,
    help="Show the plan and write nothing. `--dry-run=exact` also reads the segments to clean, so "
    "that the figures are exact.",
)
# Of the jobs that recover.
_FAIL_ON_CUT: Final = replace(
    declared.FAIL_ON,
    default=FailOn.NEVER,
    shown=FailOn.NEVER,
    help="Exit with 1 if a log is cut: warn for any cut, error for a cut of readable records.",
)
_TRASH_OF_RUNS: Final = replace(
    declared.TRASH,
    panel=declared.CHOICE,
    help="The folder in which earlier runs kept replaced and removed files.",
)
# Of commands that print no table.
_RECORD_OUTPUT: Final = replace(
    declared.OUTPUT, kind=choice(RecordOutput), help="A text for people, or one JSON object a line."
)
# Of commands that read the records of one topic.
_RECORD_ROOTS: Final = replace(
    declared.ROOTS,
    help="Log directory, copy, managed root, tier or partition directory: path or URL. You can "
    "name several.",
)
# Of commands that read a tier (KIP-405), too.
_TIER: Final = (declared.WITH_LOCAL, declared.DECRYPTION_KEY, declared.TOPIC_ID)
# `--root` names the roots where an argument names the topic.
_TOPIC_TO_READ: Final = replace(
    declared.TOPIC,
    is_required=False,
    help="Topic, by name or glob; may be repeated. Required, except with --root.",
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
        replace(
            declared.ROOTS, help="Log directories, partition directories or tiers: paths or URLs."
        ),
        declared.TOPICS,
        declared.EXCLUDE,
        declared.BY,
        declared.PER_TOPIC,
        declared.SEGMENTS,
        *_TIER,
        declared.REPORT,
        declared.OUTPUT,
        declared.WIDE,
    ),
    help="""
    Show partitions: segments, sizes, time span, offsets, and how dirty each log is.

    This command writes nothing, takes no lock and starts no Spark. If a partition cannot be read,
    its row shows the error and the exit status is 4. A log that only needs a recovery is not an
    error.
    """,
    example="Example: `pylog inspect /var/lib/kafka --by size`",
)
_DUMP: Final = Command(
    name="dump",
    panel=LOOK,
    work="pylog_spark.cli.dump_files:dump",
    options=(
        declared.PATH,
        replace(_TOPIC_TO_READ, help="A topic, if PATH is a log directory."),
        replace(declared.PARTITIONS, help="A partition of the topic, if the topic has several."),
        _RECORD_OUTPUT,
        declared.FROM,
        declared.UNTIL,
        replace(
            declared.MAX_RECORDS, help="Maximum number of records, or of entries of another file."
        ),
        declared.FULL,
        *(declared.KEY_FORMAT, declared.KEY_SCHEMA),
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA, declared.SCHEMAS),
        declared.LOGICAL_TYPES,
        replace(
            declared.ISOLATION,
            help="read_committed leaves out aborted records and control records.",
        ),
        *_TIER,
    ),
    help="""
    Print batches and records of a segment, or the entries of an index, snapshot or checkpoint.

    This command writes nothing and takes no lock. At bad bytes it prints an error line with their
    position and goes on with the next file; the exit status is then 4. With --topic, PATH is a log
    directory, and the command prints the files of one of its partitions.
    """,
    example="Example: `pylog dump /var/lib/kafka/orders-0/00000000000000000000.log --output json`",
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
        declared.SAMPLE,
        declared.KEYS,
        declared.ISOLATION,
        *(declared.KEY_FORMAT, declared.KEY_SCHEMA),
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA, declared.SCHEMAS),
        declared.LOGICAL_TYPES,
        declared.NULL,
        declared.ALLOW_DATA_LOSS,
        *_TIER,
        declared.ROOT_OF_TOPIC,
        replace(
            _RECORD_OUTPUT, panel=None, help="Text in the --format, or one JSON object a line."
        ),
    ),
    help="""
    Write the records of a topic, as kcat writes those of a broker: `-f '%o %k %s\\n'`.

    This command only reads the directory; it takes no lock and starts no Spark. It prints one
    partition after the other, each in the order of its offsets. At bad bytes the command stops with
    an error that names their position, and the exit status is 4.
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
        replace(
            declared.DRY_RUN,
            help="Say how many records, bytes and files there are at most; write nothing.",
        ),
        declared.PARTITIONS,
        declared.FROM,
        declared.UNTIL,
        declared.KEYS,
        declared.COLUMNS,
        declared.ISOLATION,
        *(declared.KEY_FORMAT, declared.KEY_SCHEMA),
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA, declared.SCHEMAS),
        declared.LOGICAL_TYPES,
        *(declared.READER_SCHEMA, declared.READER_MESSAGE, declared.ON_ERROR),
        declared.ALLOW_DATA_LOSS,
        *_TIER,
        declared.ROOT_OF_TOPIC,
        declared.ENGINE,
        declared.MASTER,
        _RECORD_OUTPUT,
        replace(declared.QUIET, panel=None),
    ),
    help="""
    Export the records of topics to a new folder: Parquet, a Delta table, CSV or JSON lines.

    Tasks write parts in parallel. One rename then makes all of them visible, or none. Several
    topics have a folder each. In a bucket the object `_SUCCESS` is written last. The command only
    reads the log directory and takes no lock. It starts Spark only if --engine or --master asks for
    it; Spark's executors must see the folder.
    """,
    example="Example: `pylog export /var/lib/kafka --topic orders --out /data/orders --to parquet`",
)
_FIND: Final = Command(
    name="find",
    panel=LOOK,
    work="pylog_spark.cli.find:find",
    options=(
        replace(
            declared.ROOTS,
            help="Log directories, managed roots, tiers or partitions: paths or URLs.",
        ),
        declared.TOPIC,
        replace(declared.KEYS, is_required=True, help="The key, in the form of `--key-format`."),
        declared.PARTITIONS,
        replace(
            declared.MAX_RECORDS,
            help="Maximum number of versions of each key; the newest come first. Default: 100000.",
        ),
        replace(_TRASH_OF_RUNS, panel=None),
        declared.KEY_FORMAT,
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA, declared.SCHEMAS),
        declared.LOGICAL_TYPES,
        *_TIER,
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
    ),
    help="""
    Find every version of a key that is left, its successor, and gaps in its history.

    This command reads every batch of the topic: in the log, in files and directories that Kafka has
    renamed for deletion, in earlier generations of a managed root, and in the trash of earlier
    runs. It writes nothing, takes no lock and starts no Spark. If it cannot read a file, it names
    the file and the exit status is 4.
    """,
    example="Example: `pylog find /var/lib/kafka --topic orders --key 4711 --trash /data/trash`",
)
_SQL: Final = Command(
    name="sql",
    panel=LOOK,
    work="pylog_spark.cli.sql:sql",
    options=(
        replace(
            declared.ROOTS,
            help="Log directories, managed roots or tiers, paths or URLs; the last argument is the "
            "query. Without a query, on a terminal: a prompt.",
        ),
        replace(
            declared.MAX_RECORDS, help="Maximum number of rows. Default: 100 in a table, else all."
        ),
        replace(
            declared.OUT,
            metavar="FILE",
            help="Write the rows to a new file: Parquet, CSV or JSON lines.",
        ),
        replace(
            declared.EXPORT_FORMAT,
            kind=choice(AnswerFormat),
            is_required=False,
            help="Format of the file. Default: by the end of its name.",
        ),
        declared.LATENESS,
        declared.ISOLATION,
        declared.ALLOW_DATA_LOSS,
        *(declared.KEY_FORMAT, declared.KEY_SCHEMA),
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA, declared.SCHEMAS),
        declared.LOGICAL_TYPES,
        *(declared.READER_SCHEMA, declared.READER_MESSAGE, declared.ON_ERROR),
        replace(declared.LEDGER, panel=None, help="Delta tables with the rows of pylog_runs."),
        replace(_TRASH_OF_RUNS, panel=None),
        replace(
            declared.CONFIG_FILES, panel=None, help="YAML that may name the ledger and the trash."
        ),
        *_TIER,
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
    ),
    help="""
    Query topics as tables, in the SQL of DuckDB.

    A topic is a table with the columns key, value, topic, partition, offset, timestamp,
    timestampType and headers. Tables pylog_partitions, pylog_segments, pylog_groups,
    pylog_consumer_offsets, pylog_transactions and pylog_open_transactions show what lies there,
    pylog_runs the runs of a ledger or a trash. Segments and columns that the query does not need
    are not read. This command runs one SELECT, takes no lock and starts no Spark; it writes only
    the file of --out.
    """,
    example="Example: `pylog sql /var/lib/kafka 'SELECT key, count(*) FROM orders GROUP BY 1'`",
)
_FREE: Final = Command(
    name="free",
    panel=LOOK,
    work="pylog_spark.cli.free:FREE",
    options=(
        replace(
            declared.ROOTS,
            help="Log directories (all of one broker, if possible) or managed roots.",
        ),
        declared.NEED,
        declared.TOPICS,
        declared.EXCLUDE,
        replace(
            declared.EXACT,
            is_hidden=False,
            help="Also read the segments to compact, for exact figures.",
        ),
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
    List files that you can remove from a full disk, how much each frees, and who needs it.

    Four kinds: files that a broker would remove itself, the trash, records that have expired by the
    topics' own limits, and records that compaction would remove. Each has its command. If a
    consumer group would lose its position, the list names the group. This command writes nothing.
    The exit status is 1 if all of it together may free less than --need.
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
    Show consumer groups and their commits, from `__consumer_offsets` in the directories.

    This command compares each commit with its log. It shows the lag, and whether the commit lies
    outside of the log, has expired, or lies in a partition that its coordinator does not read. It
    writes nothing, takes no lock and starts no Spark. If a partition cannot be read, its row shows
    the error and the exit status is 4.
    """,
    example="Example: `pylog groups /var/lib/kafka --topics 'orders-*'`",
)
_TRANSACTIONS: Final = Command(
    name="transactions",
    panel=LOOK,
    work="pylog_spark.cli.coordinators:TRANSACTIONS",
    options=_OF_COORDINATORS,
    help="""
    Show open transactions of logs, who ends each, and their state in `__transaction_state`.

    If nothing will end a transaction, this command prints the command that aborts it on the
    cluster. It writes nothing, takes no lock and starts no Spark. If a partition cannot be read,
    its row shows the error and the exit status is 4.
    """,
    example="Example: `pylog transactions /var/lib/kafka --output json`",
)
_EXPLAIN: Final = Command(
    name="explain",
    panel=LOOK,
    work="pylog_spark.cli.explain:EXPLAIN",
    options=(
        replace(
            declared.ROOTS, help="Log directories: paths or URLs. Or codes, to see their meaning."
        ),
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
    Say why a partition is not cleaned, not deleted or so large, and when this will change.

    The command checks each condition in Kafka's order and shows its numbers: policy, dirty ratio,
    lags, last stable offset and the transaction that holds it, active segment, high watermark,
    retention by size and age, timestamps in the future. It only reads and starts no Spark.

    In place of directories you can name the code of a finding, a reason, a refusal, or an exit
    status (`pylog explain NO_HIGH_WATERMARK`). The command prints its meaning and what to do.
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
    Estimate what retention and compaction would do, from listings alone.

    This command opens no segment. It lists a mirror page by page, or reads an inventory in place of
    the listing; from a managed root it reads one manifest a partition. Sizes are exact. Ages are
    those of the files, or those of the records if a manifest has them. Use it for many partitions;
    `pylog explain` tells more about one.
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
        *_TIER,
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
    Check every batch, index, snapshot and checkpoint; write nothing and take no lock.

    Each finding has a stable code, a severity and a fix; `pylog explain CODE` tells more. The exit
    status is 1 if a finding is at least as severe as --fail-on, and 4 if a partition could not be
    read.
    """,
    example="Example: `pylog verify /var/lib/kafka --deep --fail-on warn`",
)
_SCRUB: Final = Command(
    name="scrub",
    panel=LOOK,
    work="pylog_spark.cli.scrub:SCRUB",
    options=(
        declared.ARCHIVE,
        replace(
            declared.ROOT_OF_TOPIC,
            help="A broker's log directory, for its `__remote_log_metadata`; may be repeated.",
        ),
        declared.TOPICS,
        declared.EXCLUDE,
        replace(declared.DEEP, help="Also read every object: chunks, batches, indexes, epochs."),
        declared.DECRYPTION_KEY,
        declared.GRACE,
        declared.RECHECK,
        declared.FAIL_ON,
        declared.SHOW,
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
    Check a tier: missing, doubled, unread or damaged segments, and what brokers know of them.

    This command writes nothing; brokers may upload and delete meanwhile. From listing and manifests
    it finds gaps, incomplete segments and leftovers. --deep reads every object. --root compares the
    tier with the brokers' own records. The exit status is 1 if a finding is at least as severe as
    --fail-on, and 4 if a partition could not be read.
    """,
    example="Example: `pylog scrub s3://bucket/tier --root /var/lib/kafka --deep`",
)
_DOCTOR: Final = Command(
    name="doctor",
    panel=LOOK,
    work="pylog_spark.cli.doctor:DOCTOR",
    options=(
        replace(declared.ROOTS, help="Log directories; all of one broker, if possible."),
        declared.TOPICS,
        declared.EXCLUDE,
        declared.DEEP,
        declared.FAIL_ON,
        replace(declared.SHOW, help="Maximum number of findings. Default: 20 in tables, else all."),
        declared.ALL_COMMANDS,
        GUESSED_ROLE,
        declared.CONFIG_FILES,
        replace(
            declared.SERVER_PROPERTIES,
            panel=None,
            help="The broker's own server.properties, for its recovery threads.",
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
            help="A text for people, one JSON object, or CSV of the findings.",
        ),
        replace(declared.WIDE, panel=None),
    ),
    help="""
    Say what is wrong, what a broker's start would do, how long it would take, and what to run.

    This command writes nothing and takes no lock. The exit status is 1 if a finding is at least as
    severe as --fail-on, and 4 if a partition could not be read.
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
    The nightly job: recover, apply retention, compact and purge wherever it is due.

    First, this command recovers a broker's directory that was not cleanly shut down. Then retention
    removes expired segments, compaction keeps the newest record of each key, and old trash is
    purged. --max-bytes, --min-free and --order apply to compaction; --max-duration applies to all
    but the purge. The command skips a partition whose topic has no known config, and its row says
    so. Each partition is a row of the result; if one fails, the others go on. If the run is killed,
    start it again.
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
            help="Read everything, show the cuts and repairs; write nothing.",
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

    This command does in parallel what a broker does when it starts. It reads and checks segments
    from the recovery point on, and rebuilds their indexes and the producer state. It cuts a log at
    its first torn or corrupt batch. Then it writes checkpoints and Kafka's clean-shutdown marker.
    Look at --dry-run first: it shows each cut with bytes, records and reason.

    The command skips a partition if it would lose more than --max-truncate-bytes, or records below
    its checkpointed high watermark, and its row says so.
    """,
    example="Example: `pylog recover /var/lib/kafka --role broker --salvage /var/tmp/salvage "
    "--dry-run`",
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
    Remove expired segments, exactly as Kafka would.

    Retention removes the oldest segments of a log while they lie below its log start offset, while
    the log is larger than retention.bytes, or while they are older than retention.ms. It stops at
    the first segment that stays, and at the checkpointed high watermark. It skips compacted topics:
    use `pylog compact` for these. Try it with --dry-run first.
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

    A partition is due by its topic's policy, dirty ratio and lags. Try the command with --dry-run
    first: it then shows the plan and writes nothing.
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
    Apply a saved plan: the same partitions, ranges, configs and clock, and nothing else.

    If a file has changed since the plan was made, this command skips its partition and names the
    file with the expected and the actual value. It applies the plan to the other partitions, and
    the exit status is 3.
    """,
    example="Example: `pylog apply tonight.json --ledger /data/ledger`",
)
_UNDO: Final = Command(
    name="undo",
    panel=PLANS,
    work="pylog_spark.cli.jobs:UNDO",
    options=(
        declared.RUN_ID,
        replace(
            declared.ROOTS,
            is_required=False,
            help="Managed roots. The trash itself names local directories.",
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
    Undo a run: put each partition back as it was before the run.

    For a local run the old files come from its trash (--trash); for a managed root they come from
    its generations. If a file has changed since the run, this command skips its partition and names
    the file; it undoes the others. It starts Spark only to write a ledger there.
    """,
    example="Example: `pylog undo latest --trash /data/trash --dry-run`",
)
_RUNS: Final = Command(
    name="runs",
    panel=PLANS,
    work="pylog_spark.cli.runs:show_runs",
    options=(
        declared.ONLY_RUN,
        replace(declared.LEDGER, panel=None, help="Delta tables in which runs are recorded."),
        replace(_TRASH_OF_RUNS, panel=None),
        declared.LAST,
        replace(
            declared.CONFIG_FILES, panel=None, help="YAML that may name the ledger and the trash."
        ),
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
        replace(
            declared.QUIET,
            panel=None,
            help="Print nothing; the exit status says whether ledger and trash can be read.",
        ),
    ),
    help="""
    List the last runs, newest first: what each did, how it ended, whether you can undo it.

    A ledger has all runs with their numbers. A trash has the runs that kept files in it. If the
    ledger has no end of a run, the run died or is still running. This command writes nothing and
    starts no Spark.
    """,
    example="Example: `pylog runs --ledger /data/ledger --trash /data/trash`",
)
_PURGE: Final = Command(
    name="purge",
    panel=PLANS,
    work="pylog_spark.cli.jobs:PURGE",
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
    Empty the trash, and remove the files that a broker would remove at its next start.

    In the trash this command deletes the files that runs put there more than --older-than ago: you
    cannot undo these runs any more. In a broker's directory it deletes .deleted files and
    directories of deleted partitions, once file.delete.delay.ms has passed. In a managed root it
    deletes superseded generations and their objects. --dry-run lists them. The command starts Spark
    only to write the ledger.
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
        declared.ALLOW_DATA_LOSS,
        declared.HIGH_WATERMARK,
        declared.FILE_LIST,
        *_TIER,
        declared.CONFIG_FILES,
        declared.LEDGER,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
        declared.WIDE,
        declared.QUIET,
    ),
    help="""
    Copy closed and settled segments of a mirror into a managed root, unless it has them.

    A segment is closed when the mirror has its successor. High watermarks come from the mirror's
    own checkpoint file; segments above them stay in the mirror. The command refuses segments that
    overlap or that come from several replicas, and logs that begin in a tier. It creates the
    managed root if there is none.
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

    The command writes one generation of each partition, with its checkpoints, even if a run commits
    a newer generation meanwhile. If it is killed, start it again.
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
        replace(declared.DRY_RUN, help="Print the changes of files; change nothing."),
    ),
    help="""
    Run one round of Kafka's cleaner on a partition and print its answer as one JSON object.

    Without --first-dirty-offset the command chooses the range as Kafka does: from the cleaner
    checkpoint, the dirty ratio and the compaction lags. The log must have been closed cleanly. As
    `pylog compact` does, it refuses a round before the lag has passed, and a round in which most
    records have no key.
    """,
    example="Example: pylog partition clean /backup/orders-0 --now-ms 1795251360000 --set "
    "cleanup.policy=compact --first-dirty-offset 0",
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
            help="Read everything, print the cuts and repairs; change nothing.",
        ),
    ),
    help="""
    Load a partition as a broker does after a crash, and close it cleanly.

    The command reads and checks segments from the recovery point on, and rebuilds their indexes and
    the producer state. It cuts the log at the first invalid batch. **Cutting is a broker's rule**:
    a broker fetches the missing records from other replicas. On a copy, look at --dry-run first.
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
        replace(
            of_partitions.LOG_START,
            help="Raise the log start to this offset, as DeleteRecords does.",
        ),
        replace(
            declared.DRY_RUN, help="Print the segments to delete, with the reason; change nothing."
        ),
    ),
    help="""
    Delete segments of a log as Kafka's retention does: below the log start, too large, too old.

    The log must have been closed cleanly. The command deletes segments from the oldest on and stops
    at the first that stays. If it deletes all of them, it creates an empty one.
    """,
    example="Example: pylog partition retain /backup/orders-0 --now-ms 1795251360000 --set "
    "retention.ms=86400000 --dry-run",
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
            help="Its cleaner checkpoint; the answer has the new value.",
        ),
        replace(declared.DRY_RUN, help="Print the cuts and repairs; change nothing."),
    ),
    help="""
    Truncate a log to an offset, as a replica does when it follows a new leader.

    The log must have been closed cleanly. The command deletes the whole batch that contains the
    offset, and all batches after it. It also deletes index entries, producer snapshots and leader
    epochs at or above the offset.
    """,
    example="Example: pylog partition truncate /backup/orders-0 --now-ms 1795251360000 --to 4711 "
    "--dry-run",
)
_PARTITION: Final = CommandGroup(
    name="partition",
    panel=OTHERS,
    help="Work on one partition directory, in this process: for repairs by hand and for tests.",
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
            help="Log directories of the logs. Default: the directories from which the records "
            "were cut.",
        ),
        replace(declared.TOPICS, panel=None),
        replace(declared.EXCLUDE, panel=None),
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
    ),
    help="""
    Show the contents of a salvage: partitions, offsets, records, causes of cuts, duplicates.

    The command compares the records with the log. It counts the records that the log has, those
    behind its end, and those whose offsets the log has given to other records. It writes nothing
    and takes no lock.
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
        replace(declared.DRY_RUN, help="Show the records to append; write nothing."),
        declared.AS_RECORDS,
        declared.RECORD_FORMAT,
        declared.MAX_RECORDS,
        *(declared.KEY_FORMAT, declared.KEY_SCHEMA),
        *(declared.VALUE_FORMAT, declared.VALUE_SCHEMA, declared.SCHEMAS),
        declared.LOGICAL_TYPES,
        declared.NULL,
        *(declared.CONFIG_FILES, declared.SERVER_PROPERTIES, declared.TOPIC_DUMP),
        *(declared.SETTINGS_OF_RUN, declared.NOW_MS, declared.OVERRIDE),
        _RECORD_OUTPUT,
    ),
    help="""
    Append salvaged records to closed logs that end before them, at their old offsets.

    The command leaves out records that the log has. It also leaves out records whose offsets the
    log has given to others, and the exit status is then 1; `--as-records` writes those as `pylog
    cat` does, for a producer. Stop the broker first. The directory must have been closed or
    recovered.

    You cannot undo a replay, and no ledger records it: copy the partition directories first. The
    command appends at the old end of the log and does not change the salvage. If it was killed,
    recover the directory, then run it again.
    """,
    example="Example: `pylog salvage replay /var/lib/kafka-salvage /var/lib/kafka --role broker "
    "--dry-run`",
)
_SALVAGE: Final = CommandGroup(
    name="salvage",
    panel=PLANS,
    help="Records that recoveries cut and kept, and how to put them back.",
    commands=(_SHOW_SALVAGE, _REPLAY_SALVAGE),
)
_SHOW_CONFIG: Final = Command(
    name="show",
    work="pylog_spark.cli.config:show_config",
    options=(
        replace(declared.CONFIG_FILES, panel=None, help="YAML; a later file wins."),
        replace(declared.SERVER_PROPERTIES, panel=None, help="A broker's own server.properties."),
        declared.TOPIC_DUMP,
        replace(declared.SETTINGS_OF_RUN, panel=None, help="A key and its value."),
        declared.ORIGIN,
        replace(declared.OUTPUT, panel=None),
        replace(declared.WIDE, panel=None),
    ),
    help="""
    List every key that --set and --config accept, with its current value, unit and meaning.

    A topic key has the value that applies to a topic without settings of its own.
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
    Print a YAML file of the topics without a known config; fill it in for --config.

    Use it for directories without their cluster's metadata: copies, backups, brokers of ZooKeeper's
    time. Beside each topic the file has facts from its partitions: sizes, times, whether the topic
    was compacted, whether records were deleted. All lines are comments, so the file sets nothing
    until you fill it in.
    """,
    example="Example: `pylog config init /backup/kafka > topics.yaml`",
)
_CONFIG: Final = CommandGroup(
    name="config",
    panel=OTHERS,
    help="Show the settings of a job, or print a form for the configs of topics.",
    commands=(_SHOW_CONFIG, _INIT_CONFIG),
)
_WARMUP: Final = Command(
    name="warmup",
    panel=OTHERS,
    work="pylog_spark.cli.warmup:warmup",
    help="""
    Compile every kernel and keep the machine code on disk, so that no job waits for it.

    A wheel has the code for most CPUs. Other machine code is kept in the folder that
    PYLOG_KERNEL_CACHE names, else in the user's cache folder. The code is for one version of this
    program and one kind of CPU.
    """,
    example="Example: `pylog warmup`, in an image's build or on a fresh host",
)

# In the order of the program's help.
_OWN: Final[tuple[Command | CommandGroup, ...]] = (
    *(_INSPECT, _DUMP, _CAT, _EXPORT, _FIND, _SQL, _FREE),
    *(_GROUPS, _TRANSACTIONS, _EXPLAIN, _SURVEY, _VERIFY, _SCRUB, _DOCTOR),
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
