"""What a job is told to do, as values: the options of a run and where each of them comes from.

Plain frozen dataclasses, so that they may travel to executors. Files, YAML and pydantic are the
business of ``config.load``, which only the command line and the job scripts import.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from storage_core.catalog.roles import Role
from storage_core.catalog.topic_dump import TopicDump
from storage_core.config.cleaner_config import CleanerConfig
from storage_core.config.keys import ConfigKey, Scope, keys_of, setting
from storage_core.config.values import int64

# More than this is not what a power cut takes from one partition.
DEFAULT_MAX_TRUNCATE_BYTES: Final = 64 * 1024 * 1024
# Three days: what a weekend hides, a Monday can still undo.
DEFAULT_PURGE_AFTER_MS: Final = 72 * 3_600_000
DEFAULT_TOPIC_DUMP_MAX_AGE_MS: Final = 7 * 24 * 3_600_000


# Guards that have no option of their own to say that they do not hold; by what they refuse with.
OVERRIDABLE_GUARDS: Final = (
    "CLOCK_PAST_RETENTION",
    "FILESYSTEM_UNKNOWN",
    "FOREIGN_FORMAT",
    "NOT_THE_OWNER",
    "REMOTE_STORAGE",
)


class HighWatermarkSource(enum.StrEnum):
    """Where a partition's high watermark is taken from; nothing at or above it is cleaned."""

    CHECKPOINT = "checkpoint"  # replication-offset-checkpoint; a partition without one is skipped
    LOG_END = "log-end"  # the log end offset: what is there counts as replicated


def _job(name: str, default: int, doc: str, unit: str = "bytes") -> Any:
    positive = int64(at_least=1)
    return setting(name, positive, default, doc=doc, scope=Scope.PYLOG, unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How work is spread over tasks; the result is the same whatever stands here."""

    broadcast_max_bytes: int = _job(
        "broadcast.max.bytes",
        33_554_432,
        "offset maps that are published to the workers together stay below this, and small beside "
        "the heap",
    )
    files_max_bytes: int = _job(
        "files.max.bytes",
        1_073_741_824,
        "an offset map that one task merges in scratch files stays below this",
    )
    shuffle_bucket_bytes: int = _job(
        "shuffle.bucket.bytes",
        33_554_432,
        "key entries that one task gets of a map that is larger than files.max.bytes",
    )
    unit_min_bytes: int = _job(
        "unit.min.bytes",
        8_388_608,
        "a task gets at least this much to read, so that starting it pays",
    )
    wave_max_bytes: int = _job(
        "wave.max.bytes",
        68_719_476_736,
        "a run brings this much to its end before it begins with more",
    )
    wave_max_tasks: int = _job(
        "wave.max.tasks",
        20_000,
        "compaction begins with more once the tasks of so many segments have ended",
        unit="tasks",
    )
    unit_max_bytes: int = _job(
        "unit.max.bytes",
        1_073_741_824,
        "a task gets at most this much to read, so that its retry does not cost too much",
    )


TUNING_KEYS: Final[Mapping[str, ConfigKey]] = keys_of(Tuning)


class Order(enum.StrEnum):
    """Which partitions come first where a budget may not reach to the last one."""

    URGENCY = "urgency"  # highest ratio of what is dirty first, as Kafka's cleaner
    LARGEST = "largest"  # most bytes to read first
    SMALLEST = "smallest"  # fewest bytes to read first
    NAME = "name"  # by topic and number


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What one run may use and may remove.

    Attributes:
        max_bytes: It begins with no more partitions once it has read so many bytes; None for no
            limit.
        max_duration_ms: It begins with no more partitions after so long; None for no limit.
        min_free_bytes: So much of each disk stays free.
        max_delete_ratio: Share of the bytes of a run, a topic and a partition that retention may
            remove.
        order: Which partitions come first.
        per_disk: How many of its tasks may be at one local disk at once; None for no limit.
        overrides: Codes of guards that the owner switched off for this run.
    """

    max_bytes: int | None = None
    max_duration_ms: int | None = None
    min_free_bytes: int = 0
    max_delete_ratio: float = 0.5
    order: Order = Order.URGENCY
    per_disk: int | None = None
    overrides: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of one run over log directories.

    Attributes:
        now_ms: The one clock of the run, epoch milliseconds, taken on the driver.
        now_is_said: Whether somebody said now_ms; a machine's own clock that is behind the newest
            checkpoint is refused.
        dry_run: Say what would be done; nothing is written.
        until_clean: Go on with a partition whose offset map was full, round by round.
        strategy: How the tasks of one partition share its offset map, ``planning.Strategy``.
        keep_deleted: Leave removed segments under the suffix ``.deleted``, to the broker's start or
            a purge.
        include: Globs of topics; a topic has to match one of them, none lets every topic in.
        exclude: Globs of topics that are left out.
        role: What the log directories are; None where nobody said it, which is enough to read.
        assume_defaults: Globs of topics that count as configured by Kafka's defaults where no
            source knows their config.
        topic_configs: Settings of topics by name or glob, said explicitly.
        topic_dump: Settings of topics as they were exported from their cluster; None without.
        topic_dump_max_age_ms: An export that is older is warned of.
        topic_settings: Topic keys that override what any source says of any topic.
        broker_settings: Broker-wide keys of a broker's own file, behind the topics' settings.
        broker_overrides: Broker-wide keys that were said for this run; they win over that file and
            over the cluster's metadata.
        cleaner: Settings of compaction that do not belong to a topic.
        high_watermark: Where high watermarks are taken from.
        tuning: How work is spread over tasks.
        ledger: Path or URL of the ledger; None keeps none.
        mark_clean: Whether a broker's directory that was cleanly shut down, or was recovered, is
            marked so at the end.
        allow_truncate: Whether recovery may cut below a checkpointed high watermark, or everything.
        from_start: Whether recovery reads every log from its start, whatever marker and recovery
            points say.
        max_truncate_bytes: How much recovery may cut from one partition.
        salvage: Folder that receives what recovery cuts; None keeps nothing.
        trash: Folder that keeps what a run takes out of local directories, so that it can be
            undone; None keeps nothing.
        purge_after_ms: How long what former runs put aside is kept.
        plan_out: File that receives the plan, JSON or Parquet by its name; None for none.
        file_list: Inventory that takes the place of listing mirrors; None to list them.
        plan_in: File with a plan that was saved: exactly it is applied; None for none.
        exact: Whether a dry run also reads what it would clean, so that its figures are exact.
        limits: What the run may use and may remove.
        master: Spark master; None for the session's own or ``local[*]``.
        spark_conf: Settings of the Spark session, where this program builds one.
    """

    now_ms: int
    now_is_said: bool = False
    dry_run: bool = False
    until_clean: bool = False
    strategy: str = "auto"
    keep_deleted: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    role: Role | None = None
    assume_defaults: tuple[str, ...] = ()
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    topic_dump: TopicDump | None = None
    topic_dump_max_age_ms: int = DEFAULT_TOPIC_DUMP_MAX_AGE_MS
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    broker_overrides: Mapping[str, str] = field(default_factory=dict)
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    tuning: Tuning = field(default_factory=Tuning)
    high_watermark: HighWatermarkSource = HighWatermarkSource.CHECKPOINT
    ledger: str | None = None
    mark_clean: bool = True
    allow_truncate: bool = False
    from_start: bool = False
    max_truncate_bytes: int = DEFAULT_MAX_TRUNCATE_BYTES
    salvage: str | None = None
    trash: str | None = None
    purge_after_ms: int = DEFAULT_PURGE_AFTER_MS
    plan_out: str | None = None
    file_list: str | None = None
    plan_in: str | None = None
    exact: bool = False
    limits: RunLimits = field(default_factory=RunLimits)
    master: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting in force, as ``pylog config show`` prints it.

    Attributes:
        key: Its name.
        value: Its value as text; empty where nothing is set.
        origin: Where the value comes from: ``default``, a file, ``--set`` or another flag.
        unit: Unit of the value; empty where it has none.
        doc: One line for a person.
    """

    key: str
    value: str
    origin: str
    unit: str = ""
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """The options of a run with their origins.

    Attributes:
        options: The values.
        entries: Every setting in force, the job's own first, each group sorted by key.
    """

    options: JobOptions
    entries: tuple[ConfigEntry, ...]
