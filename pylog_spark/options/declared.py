"""Every option and argument of the commands, once.

Those that files may have stand in the order in which ``pylog config show`` lists them. A command
names the options that it has, in ``cli.commands``; where its help says something else, there too.
The commands of ``pylog partition`` have options of their own, in ``of_partitions``.

A new option is declared here and named by its commands; an operation gets its value by a field of
``values.JobOptions`` or ``RunLimits``, a command by ``CommandLine``. ``docs/cli.md`` and
``conf/defaults.yaml`` are made of them.
"""

from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pylog_spark.options.choices import (
    OVERRIDABLE_GUARDS,
    BytesFormat,
    EngineChoice,
    ExportFormat,
    FailOn,
    HighWatermarkSource,
    InspectOrder,
    Isolation,
    Level,
    OnError,
    Order,
    OutputFormat,
    Strategy,
)
from pylog_spark.options.option import (
    BYTES,
    DURATION,
    DURATION_OR_NONE,
    ENTRIES,
    ENTRIES_BY_NAME,
    FILE,
    FILES,
    FOLDERS_OF_NODES,
    HTTP_URL,
    NEW_FILE,
    NUMBER_LIST,
    NUMBERS,
    OFFSET,
    POSITION,
    RATIO,
    RELEASE,
    SETTINGS,
    SWITCH,
    TEXT,
    TEXTS,
    TOPIC_DUMP_FILE,
    TRASH_FOLDER,
    Option,
    choice,
    codes,
    count,
)
from storage_core.catalog.release_features import Release, find_release
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_dump import TopicDump
from storage_core.config import NEWEST_RELEASE

# Headings of the help; options without a heading say what a command does.
CHOICE: Final = "Input and limits"
CONFIG: Final = "Config and clock"
GUARDS: Final = "Guards, trash and salvage"
OUTPUT_AND_PLACE: Final = "Engine and output"

# --- What files may have, too --------------------------------------------------------------------

ROLE: Final = Option[Role | None](
    name="role",
    flag="--role",
    kind=choice(Role),
    default=None,
    panel=CHOICE,
    help="Role of the log directories: broker, mirror or managed. Commands that write require it.",
    is_in_files=True,
)
TOPICS: Final = Option[tuple[str, ...]](
    name="include",
    flag="--topics",
    kind=TEXTS,
    default=(),
    panel=CHOICE,
    metavar="GLOB",
    help="Only these topics. Default: all.",
    is_in_files=True,
)
EXCLUDE: Final = Option[tuple[str, ...]](
    name="exclude",
    flag="--exclude",
    kind=TEXTS,
    default=(),
    panel=CHOICE,
    metavar="GLOB",
    help="Not these topics.",
    is_in_files=True,
)
ASSUME_DEFAULTS: Final = Option[tuple[str, ...]](
    name="assume_defaults",
    flag="--assume-defaults",
    kind=TEXTS,
    default=(),
    panel=CONFIG,
    metavar="GLOB",
    help="Assume Kafka's default config for these topics if theirs is unknown.",
    is_in_files=True,
)
HIGH_WATERMARK: Final = Option[HighWatermarkSource](
    name="high_watermark",
    flag="--high-watermark",
    kind=choice(HighWatermarkSource),
    default=HighWatermarkSource.CHECKPOINT,
    panel=CONFIG,
    help="Source of high watermarks: checkpoint (default), or log-end, the end of each log.",
    is_in_files=True,
)
LEDGER: Final = Option[str | None](
    name="ledger",
    flag="--ledger",
    kind=TEXT,
    default=None,
    panel=OUTPUT_AND_PLACE,
    metavar="URI",
    help="Record the run in Delta tables at this path or URL.",
    is_in_files=True,
)
MARK_CLEAN: Final = Option[bool](
    name="mark_clean",
    flag="--no-mark-clean",
    kind=SWITCH,
    says=False,
    default=True,
    help="Clean-shutdown marker at the end: write it again (default), or not (--no-mark-clean).",
    is_in_files=True,
)
ENGINE: Final = Option[EngineChoice](
    name="engine",
    flag="--engine",
    kind=choice(EngineChoice),
    default=EngineChoice.AUTO,
    panel=OUTPUT_AND_PLACE,
    help="Where tasks run. Default: Spark for a session or master, URLs, over 10,000 partitions or "
    "100 GiB.",
    is_in_files=True,
)
MASTER: Final = Option[str | None](
    name="master",
    flag="--master",
    kind=TEXT,
    default=None,
    panel=OUTPUT_AND_PLACE,
    metavar="URL",
    help="Spark master. Default: the session's, or local[*]. With --engine local, local[N] is N "
    "processes.",
    is_in_files=True,
)
MAX_BYTES: Final = Option[int | None](
    name="max_bytes",
    flag="--max-bytes",
    kind=BYTES,
    default=None,
    panel=CHOICE,
    metavar="AMOUNT",
    help="Start no more partitions after reading this much, such as 64GiB.",
    is_in_files=True,
)
MAX_DURATION: Final = Option[int | None](
    name="max_duration",
    flag="--max-duration",
    kind=DURATION_OR_NONE,
    default=None,
    panel=CHOICE,
    metavar="TIME",
    help="Start no more partitions after this time, such as 90m.",
    is_in_files=True,
)
MIN_FREE: Final = Option[int](
    name="min_free",
    flag="--min-free",
    kind=BYTES,
    default=0,
    panel=GUARDS,
    metavar="AMOUNT",
    help="Free space to leave on each disk, such as 20GiB.",
    is_in_files=True,
)
MAX_DELETE_RATIO: Final = Option[float](
    name="max_delete_ratio",
    flag="--max-delete-ratio",
    kind=RATIO,
    default=0.5,
    panel=GUARDS,
    metavar="F",
    help="Refuse retention that deletes more than this share of a run, topic or partition. "
    "Default: 0.5.",
    is_in_files=True,
)
TRASH: Final = Option[str | None](
    name="trash",
    flag="--trash",
    kind=TRASH_FOLDER,
    default=None,
    panel=GUARDS,
    metavar="DIR",
    help="Keep replaced and removed files in this folder, for `pylog undo`.",
    is_in_files=True,
)
# Three days: an accident of the weekend can still be undone on Monday.
PURGE_AFTER: Final = Option[int](
    name="purge_after",
    flag="--older-than",
    kind=DURATION,
    default=72 * 3_600_000,
    metavar="TIME",
    help="How long trash and superseded generations are kept. Default: 72h.",
    is_in_files=True,
    written_default="72h",
)
ORDER: Final = Option[Order](
    name="order",
    flag="--order",
    kind=choice(Order),
    default=Order.URGENCY,
    panel=CHOICE,
    help="Order of partitions: urgency (default), largest, smallest or name.",
    is_in_files=True,
)
PER_DISK: Final = Option[int | None](
    name="per_disk",
    flag="--per-disk",
    kind=count(at_least=1),
    default=None,
    panel=OUTPUT_AND_PLACE,
    metavar="N",
    help="Maximum number of tasks that use one local disk.",
    is_in_files=True,
)
STATE: Final = Option[Path | None](
    name="state",
    flag="--state",
    kind=FILE,
    default=None,
    metavar="FILE",
    help="JSON file with ISR, epochs and assignment. Default: the cluster's metadata in the "
    "directories.",
)
UP: Final = Option[tuple[int, ...]](
    name="up",
    flag="--up",
    kind=NUMBER_LIST,
    default=(),
    metavar="2,3",
    help="Node ids of brokers in the order of their start; shows the leaders that are then "
    "elected.",
)
INTO: Final = Option[dict[int, Path]](
    name="into",
    flag="--into",
    kind=FOLDERS_OF_NODES,
    metavar="NODE=DIR",
    help="A voter without a copy, and its empty or formatted log directory; may be repeated.",
    is_required=True,
)
DONORS: Final = Option[tuple[str, ...]](
    name="donors",
    flag="--donor",
    kind=TEXTS,
    default=(),
    metavar="DIR",
    help="Log directory with other replicas: a broker's, a mirror or a managed root; may be "
    "repeated.",
    is_required=True,
)
QUORUM: Final = Option[int](
    name="quorum",
    flag="--quorum",
    kind=OFFSET,
    default=0,
    metavar="N",
    help="Accept bytes that N donors agree on, if N is a majority. Default: all donors must agree.",
)
RELEASE_VERSION: Final = Option[Release](
    name="release_version",
    flag="--release-version",
    kind=RELEASE,
    metavar="VERSION",
    help="Kafka release whose features the new cluster has, like 4.4 or 4.1-IV0.",
    is_required=True,
)
STARTED_RELEASE: Final = Option[Release](
    name="release_version",
    flag="--release-version",
    kind=RELEASE,
    default=find_release(NEWEST_RELEASE),
    metavar="VERSION",
    help="Kafka release that you will start, 3.9 to 4.4. It may refuse settings that others "
    "accept.",
    shown=NEWEST_RELEASE,
)
INITIAL_CONTROLLERS: Final = Option[str](
    name="initial_controllers",
    flag="--initial-controllers",
    kind=TEXT,
    default="",
    metavar="NODES",
    help="Voters of a dynamic quorum, as for kafka-storage.sh: 1@HOST:PORT:DIRECTORY_ID,2@...",
)
CONTROLLER_LISTENER: Final = Option[str](
    name="controller_listener",
    flag="--controller-listener",
    kind=TEXT,
    default="CONTROLLER",
    metavar="NAME",
    help="With --initial-controllers: the first name in controller.listener.names.",
)
OLDER_COPY: Final = Option[Path | None](
    name="older_copy",
    flag="--older-copy",
    kind=FILE,
    default=None,
    metavar="DIR",
    help="Log directory with an older copy of the metadata, for configs and the order of replicas.",
)
ELECTION_OUT: Final = Option[Path | None](
    name="election_out",
    flag="--election-out",
    kind=FILE,
    default=None,
    metavar="DIR",
    help="New folder for files with which Kafka's commands elect the best candidates.",
)
FORMER_TIMELINE: Final = Option[bool](
    name="timeline",
    flag="--timeline",
    kind=SWITCH,
    default=False,
    is_hidden=True,  # how ``pylog audit`` was asked before there was ``pylog timeline``
)
LOST_KEYS: Final = Option[int](
    name="lost_keys",
    flag="--keys",
    kind=OFFSET,
    default=0,
    metavar="N",
    help="Show this many keys of records that each leader would lose, for each partition.",
)
ATTEST: Final = Option[bool](
    name="attest",
    flag="--attest",
    kind=SWITCH,
    default=False,
    help="Write the brokers' last epochs into the markers of recoveries, if all replicas are "
    "equal.",
)
LEADER_EPOCH: Final = Option[int | None](
    name="leader_epoch",
    flag="--leader-epoch",
    kind=OFFSET,
    default=None,
    metavar="EPOCH",
    help="Epoch of the next leader; the answer marks partitions that already have this epoch.",
)
LEVEL: Final = Option[Level](
    name="level",
    flag="--level",
    kind=choice(Level),
    default=Level.OFFSETS,
    shown=Level.OFFSETS,
    help="How much of the replicas to read.",
)
COPY: Final = Option[tuple[str, ...]](
    name="copy",
    flag="--copy",
    kind=TEXTS,
    default=(),
    metavar="DIR",
    help="Log directory of the cluster with the copies; may be repeated.",
    is_required=True,
)
COPY_PREFIX: Final = Option[str](
    name="copy_prefix",
    flag="--copy-prefix",
    kind=TEXT,
    default="",
    metavar="TEXT",
    help="Prefix of the copy's topic names, like `source.`.",
)
OFFSET_MAP: Final = Option[Path | None](
    name="offset_map",
    flag="--offset-map",
    kind=FILE,
    default=None,
    metavar="PATH",
    help="CSV, or a partition directory mm2-offset-syncs.*.internal-0. Default: equal offsets.",
)
TOPIC_DUMP: Final = Option[TopicDump | None](
    name="topic_dump",
    flag="--topic-dump",
    kind=TOPIC_DUMP_FILE,
    default=None,
    panel=CONFIG,
    metavar="FILE",
    help="Exported configs of topics: output of kafka-configs.sh --describe --all, or JSON.",
    is_in_files=True,
)
TOPIC_DUMP_MAX_AGE: Final = Option[int](
    name="topic_dump_max_age",
    kind=DURATION,
    default=7 * 24 * 3_600_000,
    is_in_files=True,
    written_default="7d",
    help="A job warns if the exported configs are older than this.",
)
SERVER_PROPERTIES: Final = Option[Path | None](
    name="server_properties",
    flag="--server-properties",
    kind=FILE,
    default=None,
    panel=CONFIG,
    metavar="FILE",
    help="The broker's own server.properties, for the defaults of its topics.",
    is_in_files=True,
)
SETTINGS_OF_RUN: Final = Option[tuple[str, ...]](
    name="settings",
    flag="--set",
    kind=SETTINGS,
    default=(),
    panel=CONFIG,
    metavar="KEY=VALUE",
    help="Override a key; `pylog config show` lists all keys.",
    is_in_files=True,
)
TOPIC_CONFIGS: Final = Option[dict[str, Any]](
    name="topics",
    kind=ENTRIES_BY_NAME,
    default={},
    is_in_files=True,
    help="Settings of topics, by name or glob.",
)
SPARK: Final = Option[dict[str, str]](
    name="spark",
    kind=ENTRIES,
    default={},
    is_in_files=True,
    help="Settings of the Spark session, if pylog starts one.",
)

# --- What each run sets for itself ---------------------------------------------------------------

CONFIG_FILES: Final = Option[tuple[Path, ...]](
    name="config_files",
    flag="--config",
    kind=FILES,
    default=(),
    panel=CONFIG,
    metavar="FILE",
    help="YAML file with options. A later file overrides an earlier one.",
)
NOW_MS: Final = Option[int](
    name="now_ms",
    flag="--now-ms",
    kind=OFFSET,
    panel=CONFIG,
    metavar="MS",
    help="Use this time as the present, epoch milliseconds. Default: now.",
)
DRY_RUN: Final = Option[bool](
    name="dry_run",
    flag="--dry-run",
    kind=SWITCH,
    default=False,
    help="Show the plan; write nothing.",
)
# The program turns --dry-run=exact into these two: --dry-run --exact.
EXACT: Final = Option[bool](
    name="exact",
    flag="--exact",
    kind=SWITCH,
    default=False,
    is_hidden=True,
)
UNTIL_CLEAN: Final = Option[bool](
    name="until_clean",
    flag="--until-clean",
    kind=SWITCH,
    default=False,
    help="Repeat the round if a bounded offset map was full.",
)
STRATEGY: Final = Option[str](
    name="strategy",
    flag="--strategy",
    kind=choice(Strategy),
    default=Strategy.AUTO,
    shown=Strategy.AUTO,
    help="How tasks share an offset map. The result is the same. Default: depends on the map's "
    "size; files means the same.",
)
RECOMPRESS: Final = Option[str | None](
    name="recompress",
    flag="--recompress",
    kind=TEXT,
    default=None,
    metavar="CODEC[:LEVEL]",
    help="Codec of rebuilt batches: fast (lz4), dense (zstd:19), kafka, or gzip:9. Default: each "
    "batch keeps its own, as in Kafka.",
)
RECOMPRESS_ALL: Final = Option[bool](
    name="recompress_all",
    flag="--recompress-all",
    kind=SWITCH,
    default=False,
    help="Rebuild all batches of compacted segments, even if they lose no record.",
)
KEY_SIDECARS: Final = Option[str | None](
    name="key_sidecars",
    flag="--key-sidecars",
    kind=TRASH_FOLDER,
    default=None,
    metavar="DIR",
    help="Keep hashes of cleaned keys in this folder, so that the next round reads only changes.",
)
KEEP_DELETED: Final = Option[bool](
    name="keep_deleted",
    flag="--keep-deleted",
    kind=SWITCH,
    default=False,
    help="Rename removed files to .deleted; the broker's next start or `pylog purge` deletes them.",
)


def consent(name: str, *, text: str) -> Option[bool]:
    """Return an option with which the user allows a loss of records that may be acknowledged.

    Args:
        text: The help.
    """
    return Option[bool](
        name=name,
        flag=f"--{name.replace('_', '-')}",
        kind=SWITCH,
        default=False,
        panel=GUARDS,
        help=text,
    )


ALLOW_TRUNCATE: Final = consent(
    "allow_truncate",
    text="Also cut records that were or may have been acknowledged, and whole logs.",
)
FROM_START: Final = Option[bool](
    name="from_start",
    flag="--from-start",
    kind=SWITCH,
    default=False,
    panel=CHOICE,
    help="Read every log from its start; ignore the marker and the recovery points.",
)
# A power cut takes less than this from one partition.
MAX_TRUNCATE_BYTES: Final = Option[int](
    name="max_truncate_bytes",
    flag="--max-truncate-bytes",
    kind=OFFSET,
    default=64 * 1024 * 1024,
    panel=GUARDS,
    metavar="N",
    help="Skip a partition that would lose more bytes than this. Default: 64 MiB.",
)
LEADER: Final = Option[int | None](
    name="leader",
    flag="--leader",
    kind=OFFSET,
    default=None,
    metavar="N",
    help="Show the cuts that make all other replicas follow broker N; --plan-out saves them.",
)
SALVAGE: Final = Option[str | None](
    name="salvage",
    flag="--salvage",
    kind=NEW_FILE,
    default=None,
    panel=GUARDS,
    metavar="DIR",
    help="Copy cut records to this folder first, as segments that open.",
)
PLAN_OUT: Final = Option[str | None](
    name="plan_out",
    flag="--plan-out",
    kind=NEW_FILE,
    default=None,
    panel=OUTPUT_AND_PLACE,
    metavar="FILE",
    help="Save the plan for `pylog apply`, as .json or .parquet.",
)
METRICS_FILE: Final = Option[str | None](
    name="metrics_file",
    flag="--metrics-file",
    kind=NEW_FILE,
    default=None,
    panel=OUTPUT_AND_PLACE,
    metavar="FILE.prom",
    help="Write the run's numbers for Prometheus to this file at its end.",
)
METRICS_PUSH: Final = Option[str | None](
    name="metrics_push",
    flag="--metrics-push",
    kind=HTTP_URL,
    default=None,
    panel=OUTPUT_AND_PLACE,
    metavar="URL",
    help="Push the run's numbers to a Pushgateway: http://HOST:9091.",
)
FILE_LIST: Final = Option[str | None](
    name="file_list",
    flag="--file-list",
    kind=TEXT,
    default=None,
    panel=CHOICE,
    metavar="PATH",
    help="Read this inventory of the mirrors, in place of a listing: CSV, Parquet, JSON lines, S3 "
    "Inventory.",
)
# Only on the command line: a file that every run reads must not switch a guard off.
OVERRIDE: Final = Option[frozenset[str]](
    name="overrides",
    flag="--override",
    kind=codes(OVERRIDABLE_GUARDS),
    default=frozenset(),
    panel=GUARDS,
    metavar="CODE",
    help="Switch off the guard with this CODE.",
)

# --- How a command answers -----------------------------------------------------------------------

REPORT: Final = Option[Path | None](
    name="report",
    flag="--report",
    kind=FILE,
    default=None,
    panel=OUTPUT_AND_PLACE,
    metavar="FILE.html",
    help="Write the report as one HTML file with pictures and tables.",
)
OUTPUT: Final = Option[OutputFormat](
    name="output",
    flag="--output",
    kind=choice(OutputFormat),
    default=OutputFormat.TABLE,
    shown=OutputFormat.TABLE,
    panel=OUTPUT_AND_PLACE,
    help="A text for people, one JSON object a line, or CSV.",
)
WIDE: Final = Option[bool](
    name="wide",
    flag="--wide",
    kind=SWITCH,
    default=False,
    panel=OUTPUT_AND_PLACE,
    help="Show all columns and rows of tables.",
)
QUIET: Final = Option[bool](
    name="quiet",
    flag="--quiet",
    short="-q",
    kind=SWITCH,
    default=False,
    panel=OUTPUT_AND_PLACE,
    help="Show no progress, and print nothing if the exit status is 0.",
)
BY: Final = Option[InspectOrder | None](
    name="by",
    flag="--by",
    kind=choice(InspectOrder),
    default=None,
    help="Sort by size, dirtiest first, or oldest record first. Default: by name.",
)
PER_TOPIC: Final = Option[bool](
    name="per_topic",
    flag="--per-topic",
    kind=SWITCH,
    default=False,
    help="Sum the partitions of each topic.",
)
LAST: Final = Option[int](
    name="last",
    flag="--last",
    kind=count(at_least=1),
    metavar="N",
    default=20,
    shown=20,
    help="Number of runs to list.",
)
FAIL_ON: Final = Option[FailOn](
    name="fail_on",
    flag="--fail-on",
    kind=choice(FailOn),
    default=FailOn.ERROR,
    shown=FailOn.ERROR,
    help="Exit with 1 if a finding is at least this severe.",
)
ALL_COMMANDS: Final = Option[bool](
    name="all_commands",
    flag="--all-commands",
    kind=SWITCH,
    default=False,
    help="Print every command. Default: the first ten, and the first for each kind of finding.",
)
SHOW: Final = Option[int | None](
    name="show",
    flag="--show",
    kind=count(at_least=0),
    default=None,
    metavar="N",
    help="Maximum number of findings, worst first. Default: 100 in tables, else all.",
)
DEEP: Final = Option[bool](
    name="deep",
    flag="--deep",
    kind=SWITCH,
    default=False,
    help="Also open every batch and replay the producers.",
)
LIVE: Final = Option[bool](
    name="live",
    flag="--live",
    kind=SWITCH,
    default=False,
    help="Expect files to vanish or grow: a process is writing them.",
)
SEGMENTS: Final = Option[bool](
    name="segments",
    flag="--segments",
    kind=SWITCH,
    default=False,
    help="Also show every segment of each partition.",
)
ISOLATION: Final = Option[Isolation](
    name="isolation",
    flag="--isolation",
    kind=choice(Isolation),
    default=Isolation.READ_UNCOMMITTED,
    shown=Isolation.READ_UNCOMMITTED,
    help=("read_uncommitted also reads records of aborted transactions; read_committed does not."),
)
ORIGIN: Final = Option[bool](
    name="origin",
    flag="--origin",
    kind=SWITCH,
    default=False,
    help="Also show where each value comes from.",
)

NEED: Final = Option[int | None](
    name="need",
    flag="--need",
    kind=BYTES,
    default=None,
    metavar="AMOUNT",
    help="Space to free: 200GiB. Default: list everything that you could remove.",
)

# --- Which records, and how they are written ------------------------------------------------------

PARTITIONS: Final = Option[tuple[int, ...]](
    name="partitions",
    flag="--partition",
    short="-p",
    kind=NUMBERS,
    default=(),
    metavar="N",
    help="Only these partitions of the topic.",
)
KEYS: Final = Option[tuple[str, ...]](
    name="keys",
    flag="--key",
    kind=TEXTS,
    default=(),
    metavar="KEY",
    help="Only records with one of these keys, in the form of `--key-format`.",
)
FROM: Final = Option[int | datetime | None](
    name="start",
    flag="--from",
    short="-o",
    kind=POSITION,
    default=None,
    metavar="PLACE",
    help="Start at an offset, at -N for N offsets before the end, or at a time: "
    "2026-11-21T07:56, yesterday, 'today 08:00 Europe/Berlin', -90m, '2 days ago'; UTC without a "
    "zone.",
)
UNTIL: Final = Option[int | datetime | None](
    name="end",
    flag="--until",
    kind=POSITION,
    default=None,
    metavar="PLACE",
    help="Stop before this place, in the form of --from.",
)
MAX_RECORDS: Final = Option[int | None](
    name="max_records",
    flag="--max",
    short="-c",
    kind=count(at_least=1),
    default=None,
    metavar="N",
    help="Maximum number of records.",
)
SAMPLE: Final = Option[int | None](
    name="sample",
    flag="--sample",
    kind=count(at_least=1),
    default=None,
    metavar="N",
    help="Only N records, at even distances over all of them; the same ones each time.",
)
FULL: Final = Option[bool](
    name="full",
    flag="--full",
    kind=SWITCH,
    default=False,
    help="Print whole keys and values, even long ones.",
)
ALLOW_DATA_LOSS: Final = Option[bool](
    name="allow_data_loss",
    flag="--allow-data-loss",
    kind=SWITCH,
    default=False,
    help="Go on after missing offsets or segments, with a warning.",
)
RECORD_FORMAT: Final = Option[str](
    name="format",
    flag="--format",
    short="-f",
    kind=TEXT,
    default="%s\\n",
    shown="%s\\n",
    metavar="FORMAT",
    help="Format of a record, in kcat's letters: %k key, %s value, %o offset, %p partition, %t "
    "topic, %T timestamp, %h headers, %K and %S length of key and value, %R length of the value in"
    " 4 bytes.",
)
NULL: Final = Option[str](
    name="null",
    flag="--null",
    kind=TEXT,
    default="",
    metavar="TEXT",
    help="Text for a null key or value. Default: empty.",
)
KEY_FORMAT: Final = Option[BytesFormat | None](
    name="key_format",
    flag="--key-format",
    kind=choice(BytesFormat),
    default=None,
    help="Form of keys.",
)
VALUE_FORMAT: Final = Option[BytesFormat | None](
    name="value_format",
    flag="--value-format",
    kind=choice(BytesFormat),
    default=None,
    help="Form of values and headers.",
)
KEY_SCHEMA: Final = Option[Path | None](
    name="key_schema",
    flag="--key-schema",
    kind=FILE,
    default=None,
    metavar="FILE",
    help="Avro schema of keys (.avsc).",
)
VALUE_SCHEMA: Final = Option[Path | None](
    name="value_schema",
    flag="--value-schema",
    kind=FILE,
    default=None,
    metavar="FILE",
    help="Avro schema of values (.avsc).",
)

SCHEMAS: Final = Option[Path | None](
    name="schemas",
    flag="--schemas",
    kind=FILE,
    default=None,
    metavar="DIR",
    help="Schemas for registry: 7.avsc, 8.json, 9.proto. Default: the topic _schemas of the roots.",
)
LOGICAL_TYPES: Final = Option[bool](
    name="logical_types",
    flag="--logical-types",
    kind=SWITCH,
    default=False,
    help="Decimals and times of Avro as text in JSON.",
)
READER_SCHEMA: Final = Option[str | None](
    name="reader_schema",
    flag="--reader-schema",
    kind=TEXT,
    default=None,
    metavar="FILE|NUMBER",
    help="Schema that reads all values of the form registry as columns: a file or a number. "
    "Default: the newest of the subject <topic>-value.",
)
READER_MESSAGE: Final = Option[str | None](
    name="reader_message",
    flag="--reader-message",
    kind=TEXT,
    default=None,
    metavar="NAME",
    help="Protobuf message to read as columns, by its full name. Default: the schema's first.",
)
ON_ERROR: Final = Option[OnError](
    name="on_error",
    flag="--on-error",
    kind=choice(OnError),
    default=OnError.FAIL,
    help="What becomes of a value that does not fit its schema, as a column. Default: fail.",
)
EXPORT_FORMAT: Final = Option[ExportFormat](
    name="to",
    flag="--to",
    kind=choice(ExportFormat),
    help="Format of the export.",
    is_required=True,
)
LATENESS: Final = Option[int | None](
    name="lateness",
    flag="--lateness",
    kind=DURATION,
    default=None,
    metavar="TIME",
    help="No record is older by more than this than one before it: a latest timestamp ends the "
    "reading. Default: records may be late without bound, and what may hold one is read.",
)
COLUMNS: Final = Option[tuple[str, ...]](
    name="columns",
    flag="--column",
    kind=TEXTS,
    default=(),
    metavar="NAME",
    help="Only these columns of Parquet, Delta and CSV. Default: all.",
)

# --- What a scrub may take -----------------------------------------------------------------------

# Longer than the upload of a segment of 1 GiB over a slow line.
GRACE: Final = Option[int](
    name="grace",
    flag="--grace",
    kind=DURATION,
    default=3_600_000,
    shown="1h",
    metavar="TIME",
    help="Take an unfinished upload or deletion younger than this for one under way.",
)
RECHECK: Final = Option[int](
    name="recheck",
    flag="--recheck",
    kind=DURATION,
    default=2_000,
    shown="2s",
    metavar="TIME",
    help="Look again after this time where something was found. Both looks must find it.",
)

# --- What an ingest may take ---------------------------------------------------------------------

SETTLE: Final = Option[int](
    name="settle",
    flag="--settle",
    kind=DURATION,
    default=60_000,
    shown="60s",
    metavar="TIME",
    help="Time between two listings. A segment is settled if both agree.",
)
SYNC_STOPPED: Final = Option[bool](
    name="sync_stopped",
    flag="--sync-stopped",
    kind=SWITCH,
    default=False,
    help="Also take the newest segments: the mirror's sync has stopped.",
)
IN_PLACE: Final = Option[bool](
    name="in_place",
    flag="--in-place",
    kind=SWITCH,
    default=False,
    help="Copy nothing; the managed root uses the mirror's objects. Requires --sync-stopped.",
)

# --- Arguments -----------------------------------------------------------------------------------

ROOTS: Final = Option[tuple[str, ...]](
    name="roots",
    kind=TEXTS,
    default=(),
    metavar="ROOT",
    help="Log directories (log.dirs), or URLs of copies.",
    is_required=True,
)
WITH_LOCAL: Final = Option[tuple[str, ...]](
    name="with_local",
    flag="--with-local",
    kind=TEXTS,
    default=(),
    metavar="ROOT",
    help="ROOT is a tier: read it and this broker's log directory as one log; may be repeated.",
)
DECRYPTION_KEY: Final = Option[Path | None](
    name="decryption_key",
    flag="--decryption-key",
    kind=FILE,
    default=None,
    metavar="FILE",
    help="The private key of an encrypted tier: RSA, in PEM.",
)
TOPIC_ID: Final = Option[tuple[str, ...]](
    name="topic_id",
    flag="--topic-id",
    kind=TEXTS,
    default=(),
    metavar="ID",
    help="The topic id, if a tier has several topics of one name; may be repeated.",
)
ARCHIVE: Final = Option[str](
    name="archive",
    kind=TEXT,
    metavar="ARCHIVE",
    help="A tier (remote storage): path or URL.",
    is_required=True,
)
# For an argument that is the topic, as `cat` and `export` had it first.
ROOT_OF_TOPIC: Final = Option[tuple[str, ...]](
    name="root_of_topic",
    flag="--root",
    kind=TEXTS,
    default=(),
    metavar="ROOT",
    help="A root, if the first argument is the topic; may be repeated.",
)
MIRROR: Final = Option[str](
    name="mirror",
    kind=TEXT,
    metavar="MIRROR",
    help="The mirror that a sync writes, or a tier: a path, or a URL.",
    is_required=True,
)
MANAGED: Final = Option[str](
    name="managed",
    kind=TEXT,
    metavar="MANAGED",
    help="A managed root: a path, or a URL.",
    is_required=True,
)
TARGET: Final = Option[str](
    name="directory",
    kind=TEXT,
    metavar="DIR",
    help="A new or empty folder, or one that a killed run has begun.",
    is_required=True,
)
PLAN: Final = Option[Path](
    name="plan",
    kind=FILE,
    metavar="PLAN",
    help="A plan that --plan-out saved.",
    is_required=True,
)
RUN_ID: Final = Option[str](
    name="run",
    kind=TEXT,
    metavar="RUN",
    help="The run's name from its report or the ledger, the beginning of the name, or `latest`.",
    is_required=True,
)
# Of a command that lists runs.
ONLY_RUN: Final = Option[str | None](
    name="only_run",
    kind=TEXT,
    default=None,
    metavar="RUN",
    help="Only this run: its name, the beginning of the name, or `latest`.",
)
TOPIC: Final = Option[tuple[str, ...]](
    name="topic",
    flag="--topic",
    kind=TEXTS,
    default=(),
    metavar="TOPIC",
    help="Name of a topic; may be repeated.",
    is_required=True,
)
OUT: Final = Option[str](
    name="out",
    flag="--out",
    kind=TEXT,
    metavar="DIR",
    help="A new folder, or s3://BUCKET/PREFIX without objects. Required, except with --root.",
)
SALVAGED: Final = Option[Path](
    name="folder",
    kind=FILE,
    metavar="FOLDER",
    help="The folder of --salvage, or a folder in it.",
    is_required=True,
)
AS_RECORDS: Final = Option[bool](
    name="as_records",
    flag="--as-records",
    kind=SWITCH,
    default=False,
    help="Write the records to standard output, for a producer; append nothing.",
)
PATH: Final = Option[str](
    name="path",
    kind=TEXT,
    metavar="PATH",
    help="A file of a partition or its directory; with --topic a root. A path or a URL.",
    is_required=True,
)

# The values of a run from files and command lines, in the order of ``pylog config show``.
OPTIONS: Final[tuple[Option[Any], ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Option)
)
