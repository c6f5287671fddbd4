"""The options of a run as values, each with its origin.

Plain frozen dataclasses, so that they may travel to executors. What each option is called, and what
it means, ``declared`` says. Files, YAML and pydantic are the business of ``load``, which only the
command line and the job scripts import.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pylog_spark.options.choices import EngineChoice, HighWatermarkSource, Order
from pylog_spark.options.declared import (
    ALLOW_TRUNCATE,
    ASSUME_DEFAULTS,
    DRY_RUN,
    ENGINE,
    EXACT,
    EXCLUDE,
    FILE_LIST,
    FROM_START,
    HIGH_WATERMARK,
    KEEP_DELETED,
    LEDGER,
    MARK_CLEAN,
    MASTER,
    MAX_BYTES,
    MAX_DELETE_RATIO,
    MAX_DURATION,
    MAX_TRUNCATE_BYTES,
    METRICS_FILE,
    METRICS_PUSH,
    MIN_FREE,
    NOW_MS,
    ORDER,
    OVERRIDE,
    PER_DISK,
    PLAN_OUT,
    PURGE_AFTER,
    ROLE,
    SALVAGE,
    SPARK,
    STRATEGY,
    TOPIC_CONFIGS,
    TOPIC_DUMP,
    TOPIC_DUMP_MAX_AGE,
    TOPICS,
    TRASH,
    UNTIL_CLEAN,
)
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_dump import TopicDump
from storage_core.config import NEWEST_RELEASE
from storage_core.config.settings import CleanerConfig
from storage_core.config.values import ConfigKey, Scope, int64, keys_of, setting


def _job(name: str, default: int, doc: str, unit: str = "bytes") -> Any:
    positive = int64(at_least=1)
    return setting(name, positive, default, doc=doc, scope=Scope.PYLOG, unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The spread of work over tasks; it never changes the result."""

    broadcast_max_bytes: int = _job(
        "broadcast.max.bytes",
        33_554_432,
        "offset maps that are published to the workers together stay below this, and small beside "
        "the heap",
    )
    files_max_bytes: int = _job(
        "files.max.bytes",
        1_073_741_824,
        "an offset map that one task builds stays below this",
    )
    shuffle_bucket_bytes: int = _job(
        "shuffle.bucket.bytes",
        33_554_432,
        "key entries that one task gets where keys are shuffled",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What one run may use and may remove."""

    max_bytes: int | None = MAX_BYTES.field()
    max_duration_ms: int | None = MAX_DURATION.field()
    min_free_bytes: int = MIN_FREE.field()
    max_delete_ratio: float = MAX_DELETE_RATIO.field()
    order: Order = ORDER.field()  # noqa: RUF009 - makes a dataclass field
    per_disk: int | None = PER_DISK.field()
    overrides: frozenset[str] = OVERRIDE.field()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of one run over log directories. Some fields are declared options; others are
    derived from options."""

    now_ms: int = NOW_MS.field()
    # Whether somebody said now_ms; a machine's own clock that is behind the newest checkpoint is
    # refused.
    now_is_said: bool = False
    dry_run: bool = DRY_RUN.field()
    until_clean: bool = UNTIL_CLEAN.field()
    strategy: str = STRATEGY.field()
    keep_deleted: bool = KEEP_DELETED.field()
    include: tuple[str, ...] = TOPICS.field()
    exclude: tuple[str, ...] = EXCLUDE.field()
    role: Role | None = ROLE.field()  # noqa: RUF009 - makes a dataclass field
    assume_defaults: tuple[str, ...] = ASSUME_DEFAULTS.field()
    topic_configs: Mapping[str, Mapping[str, str]] = TOPIC_CONFIGS.field()
    topic_dump: TopicDump | None = TOPIC_DUMP.field()  # noqa: RUF009 - makes a dataclass field
    topic_dump_max_age_ms: int = TOPIC_DUMP_MAX_AGE.field()
    # Topic keys that override what any source says of any topic.
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    # Broker-wide keys of a broker's own file, behind the topics' settings.
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    # Broker-wide keys that were said for this run; they win over that file and over the cluster's
    # metadata.
    broker_overrides: Mapping[str, str] = field(default_factory=dict)
    # The release of Kafka whose limits configs have, one of ``OTHER_TYPES``.
    release: str = NEWEST_RELEASE
    # Settings of compaction that do not belong to a topic.
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    tuning: Tuning = field(default_factory=Tuning)  # how work is spread over tasks
    high_watermark: HighWatermarkSource = HIGH_WATERMARK.field()  # noqa: RUF009 - makes a dataclass field
    ledger: str | None = LEDGER.field()
    mark_clean: bool = MARK_CLEAN.field()
    allow_truncate: bool = ALLOW_TRUNCATE.field()
    from_start: bool = FROM_START.field()
    max_truncate_bytes: int = MAX_TRUNCATE_BYTES.field()
    salvage: str | None = SALVAGE.field()
    trash: str | None = TRASH.field()
    purge_after_ms: int = PURGE_AFTER.field()
    plan_out: str | None = PLAN_OUT.field()
    metrics_file: str | None = METRICS_FILE.field()
    metrics_push: str | None = METRICS_PUSH.field()
    file_list: str | None = FILE_LIST.field()
    # File with a plan that was saved: exactly it is applied; None for none.
    plan_in: str | None = None
    exact: bool = EXACT.field()
    # Bounds of the run's resources and removals.
    limits: RunLimits = field(default_factory=RunLimits)
    engine: EngineChoice = ENGINE.field()  # noqa: RUF009 - makes a dataclass field
    master: str | None = MASTER.field()
    spark_conf: Mapping[str, str] = SPARK.field()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting in force, as ``pylog config show`` prints it."""

    key: str
    value: str  # its value as text; empty where nothing is set
    origin: str  # where the value comes from: ``default``, a file, ``--set`` or another flag
    unit: str = ""  # unit of the value; empty where it has none
    doc: str = ""  # one line for a person


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """The options of a run with their origins."""

    options: JobOptions
    # Every setting in force, the job's own first, each group sorted by key.
    entries: tuple[ConfigEntry, ...]
