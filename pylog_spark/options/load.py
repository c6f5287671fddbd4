"""From files and flags to the options of a run, each with its origin.

The weakest layer first: ``conf/defaults.yaml``, each ``--config`` file in the order given, a
broker's ``server.properties`` (for broker-wide keys), flags and ``--set``. Lists and mappings are
replaced as a whole by a stronger layer, but for ``settings``, ``topics`` and ``spark``, whose
entries are replaced one by one.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pylog_spark.options.assignments import parse_assignments
from pylog_spark.options.config_file import ConfigFile, read_config_file
from pylog_spark.options.entries import list_entries
from pylog_spark.options.layers import Layers
from pylog_spark.options.quantities import parse_bytes, parse_duration_ms, parse_ratio
from pylog_spark.options.values import (
    DEFAULT_MAX_TRUNCATE_BYTES,
    DEFAULT_PURGE_AFTER_MS,
    DEFAULT_TOPIC_DUMP_MAX_AGE_MS,
    OVERRIDABLE_GUARDS,
    TUNING_KEYS,
    HighWatermarkSource,
    JobConfig,
    JobOptions,
    Order,
    RunLimits,
    Tuning,
)
from storage_core.catalog.roles import Role, local_path
from storage_core.catalog.topic_dump import MAX_DUMP_BYTES, TopicDump, parse_topic_dump
from storage_core.config import (
    CleanerConfig,
    LogConfig,
    ServerProperties,
    classify_settings,
    known_keys,
    merge_broker_layers,
    parse_server_properties,
)
from storage_core.config.cleaner_config import CLEANER_KEYS
from storage_core.config.keys import parse_settings, unknown_key
from storage_core.config.log_config import TOPIC_KEY_OF_BROKER_KEY
from storage_core.errors import CheckpointError, ConfigError
from storage_core.store.local import plain_path

_log: Final = logging.getLogger(__name__)

DEFAULTS_FILE: Final = "defaults.yaml"
_MAX_PROPERTIES_BYTES: Final = 16 * 1024 * 1024
# A broker's file sizes the offset map for the broker's heap. Here a bound is asked for explicitly.
_NOT_FROM_BROKER: Final = frozenset(
    {
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.threads",
        "log.cleaner.io.buffer.size",
    }
)


_PLAIN_OPTIONS: Final = (
    "role",
    "include",
    "exclude",
    "assume_defaults",
    "high_watermark",
    "ledger",
    "mark_clean",
    "master",
    "max_bytes",
    "max_duration",
    "min_free",
    "max_delete_ratio",
    "order",
    "trash",
    "per_disk",
    "purge_after",
    "topic_dump_max_age",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What the command line says; None or empty where it says nothing.

    Attributes:
        config_files: ``--config``, in order.
        server_properties: ``--server-properties``.
        settings: ``--set``, each ``KEY=VALUE``.
        include: ``--topics``.
        exclude: ``--exclude``.
        assume_defaults: ``--assume-defaults``.
        role: ``--role``.
        high_watermark: ``--high-watermark``.
        ledger: ``--ledger``.
        master: ``--master``.
        mark_clean: False for ``--no-mark-clean``.
        dry_run: ``--dry-run``.
        until_clean: ``--until-clean``.
        strategy: ``--strategy``.
        keep_deleted: ``--keep-deleted``.
        now_ms: ``--now-ms``.
        allow_truncate: ``--allow-truncate``.
        from_start: ``--from-start``.
        max_truncate_bytes: ``--max-truncate-bytes``.
        salvage: ``--salvage``.
        trash: ``--trash``.
        purge_after: ``--older-than``.
        plan_out: ``--plan-out``.
        file_list: ``--file-list``.
        exact: ``--dry-run=exact``.
        max_bytes: ``--max-bytes``.
        max_duration: ``--max-duration``.
        min_free: ``--min-free``.
        max_delete_ratio: ``--max-delete-ratio``.
        order: ``--order``.
        per_disk: ``--per-disk``.
        topic_dump: ``--topic-dump``.
        overrides: ``--override``, codes of guards.
    """

    config_files: Sequence[Path] = ()
    server_properties: Path | None = None
    settings: Sequence[str] = ()
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    assume_defaults: Sequence[str] = ()
    role: str | None = None
    high_watermark: str | None = None
    ledger: str | None = None
    master: str | None = None
    mark_clean: bool | None = None
    dry_run: bool = False
    until_clean: bool = False
    strategy: str = "auto"
    keep_deleted: bool = False
    now_ms: int | None = None
    allow_truncate: bool = False
    from_start: bool = False
    max_truncate_bytes: int | None = None
    salvage: Path | None = None
    trash: str | None = None
    purge_after: str | None = None
    plan_out: Path | None = None
    file_list: str | None = None
    exact: bool = False
    max_bytes: str | None = None
    max_duration: str | None = None
    min_free: str | None = None
    max_delete_ratio: str | None = None
    order: str | None = None
    per_disk: int | None = None
    topic_dump: Path | None = None
    overrides: Sequence[str] = ()


def load_config(flags: Flags, *, now_ms: int) -> JobConfig:
    """Build the options of a run.

    Args:
        flags: What the command line says.
        now_ms: The machine's clock, epoch milliseconds; a clock that the flags say wins.

    Raises:
        ConfigError: A file cannot be read, a key is unknown, a value is malformed, out of range or
            in contradiction to another, or a run was called exact that is no dry run.
    """
    layers = Layers()
    # A zip of the packages for --py-files has no conf/; the same defaults stand in the code.
    defaults = [path for path in (defaults_file(),) if path.exists()]
    for path in (*defaults, *flags.config_files):
        _put_file(layers, read_config_file(path), path)
    _put_flags(layers, flags)
    if flags.exact and not flags.dry_run:
        # Half of an option, which would be a run in earnest.
        raise ConfigError("--exact", None, "expected --dry-run=exact")
    try:
        _put_server_properties(layers)
        options = _options(layers, flags, now_ms)
        _validate_topics(options)
    except ConfigError as error:
        raise layers.with_file(error) from error
    return JobConfig(options=options, entries=tuple(list_entries(layers, options)))


def _options(layers: Layers, flags: Flags, now_ms: int) -> JobOptions:
    broker = layers.entries("broker")
    settings = layers.entries("settings")
    tuning = {name: text for name, text in settings.items() if name in TUNING_KEYS}
    kafka = {name: text for name, text in settings.items() if name not in TUNING_KEYS}
    _validate_names(kafka)
    groups = classify_settings(kafka)
    tuning_values: dict[str, Any] = parse_settings(tuning, TUNING_KEYS)
    return JobOptions(
        now_ms=now_ms if flags.now_ms is None else flags.now_ms,
        now_is_said=flags.now_ms is not None,
        dry_run=flags.dry_run,
        until_clean=flags.until_clean,
        strategy=flags.strategy,
        keep_deleted=flags.keep_deleted,
        include=tuple(layers.get("include") or ()),
        exclude=tuple(layers.get("exclude") or ()),
        role=None if layers.get("role") is None else Role(layers.get("role")),
        assume_defaults=tuple(layers.get("assume_defaults") or ()),
        topic_configs=layers.entries("topics"),
        topic_dump=_read_topic_dump(layers.get("topic_dump")),
        topic_dump_max_age_ms=_max_age(layers.get("topic_dump_max_age")),
        topic_settings=groups.topic,
        broker_settings={n: text for n, text in broker.items() if n not in CLEANER_KEYS},
        broker_overrides={**groups.topic_defaults, **groups.broker},
        cleaner=CleanerConfig.from_settings(
            {n: text for n, text in broker.items() if n in CLEANER_KEYS} | groups.cleaner
        ),
        high_watermark=HighWatermarkSource(
            layers.get("high_watermark") or HighWatermarkSource.CHECKPOINT
        ),
        tuning=Tuning(**tuning_values),
        ledger=layers.get("ledger"),
        mark_clean=layers.get("mark_clean") is not False,
        allow_truncate=flags.allow_truncate,
        from_start=flags.from_start,
        max_truncate_bytes=(
            DEFAULT_MAX_TRUNCATE_BYTES
            if flags.max_truncate_bytes is None
            else flags.max_truncate_bytes
        ),
        salvage=None if flags.salvage is None else str(flags.salvage.absolute()),
        trash=trash_folder(layers.get("trash")),
        purge_after_ms=_purge_after(layers.get("purge_after")),
        plan_out=None if flags.plan_out is None else str(flags.plan_out.absolute()),
        file_list=flags.file_list,
        exact=flags.exact,
        limits=_limits(layers, flags),
        master=layers.get("master"),
        spark_conf=layers.entries("spark"),
    )


def _limits(layers: Layers, flags: Flags) -> RunLimits:
    """Return what a run may use and remove.

    Guards are overridden by the flag alone: a file that every run reads must not switch one off.
    """
    said = {name: layers.get(name) for name in ("max_bytes", "max_duration", "min_free")}
    unknown = sorted(set(flags.overrides) - set(OVERRIDABLE_GUARDS))
    if unknown:
        raise ConfigError("--override", unknown[0], f"expected {', '.join(OVERRIDABLE_GUARDS)}")
    ratio = layers.get("max_delete_ratio")
    per_disk = layers.get("per_disk")
    if per_disk is not None and per_disk < 1:
        raise ConfigError("--per-disk", per_disk, "expected at least 1")
    return RunLimits(
        max_bytes=None if not said["max_bytes"] else parse_bytes("--max-bytes", said["max_bytes"]),
        max_duration_ms=(
            None
            if not said["max_duration"]
            else parse_duration_ms("--max-duration", said["max_duration"])
        ),
        min_free_bytes=parse_bytes("--min-free", said["min_free"] or "0"),
        max_delete_ratio=(
            RunLimits().max_delete_ratio
            if ratio is None
            else parse_ratio("--max-delete-ratio", ratio)
        ),
        order=Order(layers.get("order") or Order.URGENCY),
        per_disk=per_disk,
        overrides=frozenset(flags.overrides),
    )


def trash_folder(said: str | None) -> str | None:
    """Return the folder of the trash as an absolute path without ``..``, None without one.

    Raises:
        ConfigError: It is on no disk of this machine.
    """
    if not said:
        return None
    folder = local_path(said)
    if folder is None:
        raise ConfigError(
            "--trash", said, "expected a folder of this machine; managed roots need no trash"
        )
    return str(plain_path(folder))


def _purge_after(said: str | None) -> int:
    return DEFAULT_PURGE_AFTER_MS if said is None else parse_duration_ms("--older-than", said)


def _max_age(said: str | None) -> int:
    if said is None:
        return DEFAULT_TOPIC_DUMP_MAX_AGE_MS
    return parse_duration_ms("topic_dump_max_age", said)


def defaults_file() -> Path:
    """Return where ``conf/defaults.yaml`` lies: in the installed package, or in the checkout."""
    package = Path(__file__).parent.parent
    installed = package / "conf" / DEFAULTS_FILE
    return installed if installed.exists() else package.parent / "conf" / DEFAULTS_FILE


def _put_file(layers: Layers, file: ConfigFile, path: Path) -> None:
    origin = path.name if path == defaults_file() else str(path)
    for name in _PLAIN_OPTIONS:
        layers.put(name, getattr(file, name), origin)
    if file.server_properties is not None:
        layers.put("server_properties", path.parent / file.server_properties, origin)
    if file.topic_dump is not None:
        layers.put("topic_dump", path.parent / file.topic_dump, origin)
    layers.put_entries("settings", file.settings, origin)
    layers.put_entries("topics", file.topics, origin)
    layers.put_entries("spark", file.spark, origin)


def _put_flags(layers: Layers, flags: Flags) -> None:
    layers.put("include", flags.include or None, "--topics")
    layers.put("exclude", flags.exclude or None, "--exclude")
    layers.put("assume_defaults", flags.assume_defaults or None, "--assume-defaults")
    layers.put("role", flags.role, "--role")
    layers.put("high_watermark", flags.high_watermark, "--high-watermark")
    layers.put("ledger", flags.ledger, "--ledger")
    layers.put("master", flags.master, "--master")
    layers.put("trash", flags.trash, "--trash")
    layers.put("purge_after", flags.purge_after, "--older-than")
    layers.put("mark_clean", flags.mark_clean, "--no-mark-clean")
    layers.put("max_bytes", flags.max_bytes, "--max-bytes")
    layers.put("max_duration", flags.max_duration, "--max-duration")
    layers.put("min_free", flags.min_free, "--min-free")
    layers.put("max_delete_ratio", flags.max_delete_ratio, "--max-delete-ratio")
    layers.put("order", flags.order, "--order")
    layers.put("per_disk", flags.per_disk, "--per-disk")
    layers.put("server_properties", flags.server_properties, "--server-properties")
    layers.put("topic_dump", flags.topic_dump, "--topic-dump")
    layers.put_entries("settings", parse_assignments(flags.settings), "--set")


def _put_server_properties(layers: Layers) -> None:
    broker_file = layers.get("server_properties")
    if broker_file is None:
        return
    properties = _read_server_properties(Path(broker_file))
    if properties.unknown_keys:
        # By name only: what a broker's file says beside its logs may be a secret.
        unknown = ", ".join(properties.unknown_keys)
        _log.warning("%s: keys that mean nothing here: %s", broker_file, unknown)
    counting = {
        name: text for name, text in properties.settings.items() if name not in _NOT_FROM_BROKER
    }
    layers.put_entries("broker", counting, str(broker_file))


def _read_server_properties(path: Path) -> ServerProperties:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_PROPERTIES_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError("--server-properties", path, reason) from error
    if len(data) > _MAX_PROPERTIES_BYTES:
        reason = f"is larger than {_MAX_PROPERTIES_BYTES} bytes"
        raise ConfigError("--server-properties", path, reason)
    try:
        return parse_server_properties(data, file=str(path))
    except CheckpointError as error:
        raise ConfigError("--server-properties", path, str(error)) from error


def _read_topic_dump(said: str | Path | None) -> TopicDump | None:
    """Return what was exported of topics' configs, None where nothing was."""
    if said is None:
        return None
    path = Path(said)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DUMP_BYTES + 1)
            modified_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
        return parse_topic_dump(data, file=str(path), modified_ms=modified_ms)
    except OSError as error:
        raise ConfigError("--topic-dump", path, error.strerror or str(error)) from error
    except CheckpointError as error:
        raise ConfigError("--topic-dump", path, str(error)) from error


def _validate_names(settings: Mapping[str, str]) -> None:
    """Refuse unknown keys here, where the keys of this layer are known too."""
    known = [*known_keys(), *TOPIC_KEY_OF_BROKER_KEY, *TUNING_KEYS]
    for name, text in settings.items():
        if name not in known:
            raise unknown_key(name, text, known)


def _validate_topics(options: JobOptions) -> None:
    """Refuse a bad setting of any topic before the first directory is looked at."""
    broker = merge_broker_layers(options.broker_settings, options.broker_overrides)
    for topic, settings in options.topic_configs.items():
        try:
            LogConfig.from_topic_overrides({**settings, **options.topic_settings}, broker=broker)
        except ConfigError as error:
            raise ConfigError(f"topics.{topic}.{error.key}", error.value, error.reason) from error
    LogConfig.from_topic_overrides(options.topic_settings, broker=broker)
