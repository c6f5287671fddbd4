"""From files and flags to the options of a run, each with its origin.

The weakest layer first: ``conf/defaults.yaml``, each ``--config`` file in the order given, a
broker's ``server.properties`` (for broker-wide keys), flags and ``--set``. Lists and mappings are
replaced as a whole by a stronger layer, but for ``settings``, ``topics`` and ``spark``, whose
entries are replaced one by one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pylog_spark.config.assignments import parse_assignments
from pylog_spark.config.config_file import ConfigFile, read_config_file
from pylog_spark.config.options import (
    TUNING_KEYS,
    ConfigEntry,
    HighWatermarkSource,
    JobConfig,
    JobOptions,
    Tuning,
)
from storage_core.catalog.roles import Role
from storage_core.config import (
    CleanerConfig,
    ConfigKey,
    LogConfig,
    Origin,
    ServerProperties,
    classify_settings,
    effective_settings,
    known_keys,
    merge_broker_layers,
    parse_server_properties,
)
from storage_core.config.cleaner_config import CLEANER_KEYS
from storage_core.config.keys import parse_settings, unknown_key
from storage_core.config.log_config import TOPIC_KEY_OF_BROKER_KEY
from storage_core.config.values import render
from storage_core.errors import CheckpointError, ConfigError

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


@dataclass(slots=True)
class _Merged:
    """Values by option name and origin; the last one that is put in wins."""

    values: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def put(self, name: str, value: object, origin: str) -> None:
        if value is not None:
            self.values[name] = (value, origin)

    def put_entries(self, name: str, entries: Mapping[str, object] | None, origin: str) -> None:
        for key, value in (entries or {}).items():
            self.put(f"{name}.{key}", value, origin)

    def get(self, name: str) -> Any:
        value, _ = self.values.get(name, (None, ""))
        return value

    def origin(self, name: str) -> str:
        return self.values[name][1] if name in self.values else "default"

    def entries(self, name: str) -> dict[str, Any]:
        prefix = f"{name}."
        return {
            key.removeprefix(prefix): value
            for key, (value, _) in self.values.items()
            if key.startswith(prefix)
        }


def load_config(flags: Flags, *, now_ms: int) -> JobConfig:
    """Build the options of a run.

    Args:
        flags: What the command line says.
        now_ms: The run's clock, epoch milliseconds.

    Raises:
        ConfigError: A file cannot be read, a key is unknown, or a value is malformed, out of
            range or in contradiction to another.
    """
    merged = _Merged()
    for path in (defaults_file(), *flags.config_files):
        _put_file(merged, read_config_file(path), path)
    _put_flags(merged, flags)
    broker_file = merged.get("server_properties")
    properties = _read_server_properties(Path(broker_file)) if broker_file else None
    settings = merged.entries("settings")
    tuning = {name: text for name, text in settings.items() if name in TUNING_KEYS}
    kafka = {name: text for name, text in settings.items() if name not in TUNING_KEYS}
    _validate_names(kafka)
    groups = classify_settings(kafka)
    broker_known = {} if properties is None else dict(properties.settings)
    tuning_values: dict[str, Any] = parse_settings(tuning, TUNING_KEYS)
    options = JobOptions(
        now_ms=now_ms,
        dry_run=flags.dry_run,
        include=tuple(merged.get("include") or ()),
        exclude=tuple(merged.get("exclude") or ()),
        role=None if merged.get("role") is None else Role(merged.get("role")),
        assume_defaults=tuple(merged.get("assume_defaults") or ()),
        topic_configs=merged.entries("topics"),
        topic_settings=groups.topic,
        broker_settings=merge_broker_layers(
            {name: text for name, text in broker_known.items() if name not in CLEANER_KEYS},
            {**groups.topic_defaults, **groups.broker},
        ),
        cleaner=CleanerConfig.from_settings(_from_broker(broker_known) | groups.cleaner),
        high_watermark=HighWatermarkSource(merged.get("high_watermark")),
        tuning=Tuning(**tuning_values),
        ledger=merged.get("ledger"),
        mark_clean=merged.get("mark_clean"),
        master=merged.get("master"),
        spark_conf=merged.entries("spark"),
    )
    _validate_topics(options)
    return JobConfig(
        options=options, entries=tuple(_entries(merged, options, broker_file, broker_known))
    )


def defaults_file() -> Path:
    """Return where ``conf/defaults.yaml`` lies: in the installed package, or in the checkout."""
    package = Path(__file__).parent.parent
    installed = package / "conf" / DEFAULTS_FILE
    return installed if installed.exists() else package.parent / "conf" / DEFAULTS_FILE


def _put_file(merged: _Merged, file: ConfigFile, path: Path) -> None:
    origin = path.name if path == defaults_file() else str(path)
    for name in _PLAIN_OPTIONS:
        merged.put(name, getattr(file, name), origin)
    if file.server_properties is not None:
        merged.put("server_properties", path.parent / file.server_properties, origin)
    merged.put_entries("settings", file.settings, origin)
    merged.put_entries("topics", file.topics, origin)
    merged.put_entries("spark", file.spark, origin)


def _put_flags(merged: _Merged, flags: Flags) -> None:
    merged.put("include", flags.include or None, "--topics")
    merged.put("exclude", flags.exclude or None, "--exclude")
    merged.put("assume_defaults", flags.assume_defaults or None, "--assume-defaults")
    merged.put("role", flags.role, "--role")
    merged.put("high_watermark", flags.high_watermark, "--high-watermark")
    merged.put("ledger", flags.ledger, "--ledger")
    merged.put("master", flags.master, "--master")
    merged.put("mark_clean", flags.mark_clean, "--no-mark-clean")
    merged.put("server_properties", flags.server_properties, "--server-properties")
    merged.put_entries("settings", parse_assignments(flags.settings), "--set")


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


def _from_broker(broker_known: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in broker_known.items()
        if name in CLEANER_KEYS and name not in _NOT_FROM_BROKER
    }


def _validate_names(settings: Mapping[str, str]) -> None:
    """Refuse unknown keys here, where the keys of this layer are known too."""
    known = [*known_keys(), *TOPIC_KEY_OF_BROKER_KEY, *TUNING_KEYS]
    for name, text in settings.items():
        if name not in known:
            raise unknown_key(name, text, known)


def _validate_topics(options: JobOptions) -> None:
    """Refuse a bad setting of any topic before the first directory is looked at."""
    for topic, settings in options.topic_configs.items():
        try:
            LogConfig.from_topic_overrides(
                {**settings, **options.topic_settings}, broker=options.broker_settings
            )
        except ConfigError as error:
            raise ConfigError(f"topics.{topic}.{error.key}", error.value, error.reason) from error
    LogConfig.from_topic_overrides(options.topic_settings, broker=options.broker_settings)


def _entries(
    merged: _Merged,
    options: JobOptions,
    broker_file: object,
    broker_known: Mapping[str, str],
) -> Iterable[ConfigEntry]:
    yield from _job_entries(merged)
    for keys, values in ((TUNING_KEYS, options.tuning), (CLEANER_KEYS, options.cleaner)):
        for name in sorted(keys):
            yield _entry(merged, keys[name], values, broker_file, _from_broker(broker_known))
    for found in effective_settings(options.topic_settings, broker=options.broker_settings):
        key = known_keys()[found.key]
        origin = {
            Origin.TOPIC: merged.origin(f"settings.{found.source_key}"),
            Origin.BROKER: _broker_origin(merged, found.source_key, broker_file),
            Origin.DEFAULT: "default",
        }[found.origin]
        yield ConfigEntry(
            key=found.key, value=found.value, origin=origin, unit=key.unit, doc=key.doc
        )
    for name in ("topics", "spark"):
        for key_name, value in sorted(merged.entries(name).items()):
            text = ", ".join(f"{k}={v}" for k, v in value.items()) if name == "topics" else value
            yield ConfigEntry(
                key=f"{name}.{key_name}", value=text, origin=merged.origin(f"{name}.{key_name}")
            )


def _job_entries(merged: _Merged) -> Iterable[ConfigEntry]:
    for name, doc in _JOB_DOCS.items():
        value = merged.get(name)
        text = ", ".join(value) if isinstance(value, list | tuple) else render(value)
        yield ConfigEntry(key=name, value=text, origin=merged.origin(name), doc=doc)


def _entry(
    merged: _Merged,
    key: ConfigKey,
    values: object,
    broker_file: object,
    from_broker: Mapping[str, str],
) -> ConfigEntry:
    origin = merged.origin(f"settings.{key.name}")
    if origin == "default" and key.name in from_broker:
        origin = str(broker_file)
    value = render(getattr(values, key.attribute))
    return ConfigEntry(key=key.name, value=value, origin=origin, unit=key.unit, doc=key.doc)


def _broker_origin(merged: _Merged, broker_key: str, broker_file: object) -> str:
    name = f"settings.{broker_key}"
    where = merged.origin(name) if name in merged.values else str(broker_file)
    return f"{where} ({broker_key})"


_JOB_DOCS: Final = {
    "role": "what the log directories are: broker, mirror or managed; jobs that write need it said",
    "include": "globs of topics to work on; empty: all",
    "exclude": "globs of topics to leave out",
    "assume_defaults": "globs of topics that count as having Kafka's default config if none is known",
    "high_watermark": "where high watermarks come from: checkpoint (the directory's own) or log-end",
    "ledger": "path or URL of the ledger; empty: none is kept",
    "mark_clean": "mark a broker's directory as cleanly shut down again, if it was before",
    "master": "Spark master; empty: the session's own, or local[*]",
    "server_properties": "a broker's own file, for broker-wide defaults of topics",
}
