"""Read a run's options from files and command lines, with origins.

The weakest layer first: ``conf/defaults.yaml``, each ``--config`` file in the order given, a
broker's ``server.properties`` (for broker-wide keys), flags and ``--set``. Lists and mappings are
replaced as a whole by a stronger layer, but for ``settings``, ``topics`` and ``spark``, whose
entries are replaced one by one.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pylog_spark.options.assignments import settings_of
from pylog_spark.options.broker import options_of_release
from pylog_spark.options.config_file import read_config_file
from pylog_spark.options.declared import (
    CONFIG_FILES,
    DRY_RUN,
    EXACT,
    NOW_MS,
    OPTIONS,
    SERVER_PROPERTIES,
    SETTINGS_OF_RUN,
    STARTED_RELEASE,
)
from pylog_spark.options.layers import DEFAULT_ORIGIN, Layers
from pylog_spark.options.option import CommandLine, options_of
from pylog_spark.options.values import (
    TUNING_KEYS,
    ConfigEntry,
    JobConfig,
    JobOptions,
    RunLimits,
    Tuning,
)
from storage_core.config import (
    NEWEST_RELEASE,
    CleanerConfig,
    ConfigKey,
    LogConfig,
    Origin,
    ServerProperties,
    classify_settings,
    effective_settings,
    known_keys,
    merge_broker_layers,
    newest_release_of,
    parse_server_properties,
    refused_file_settings,
)
from storage_core.config.cleaner_config import CLEANER_KEYS
from storage_core.config.keys import parse_settings, unknown_key
from storage_core.config.log_config import TOPIC_KEY_OF_BROKER_KEY
from storage_core.config.values import render
from storage_core.errors import CheckpointError, ConfigError
from storage_core.redaction import is_secret_name
from storage_core.wording import time_text

_log: Final = logging.getLogger(__name__)

DEFAULTS_FILE: Final = "defaults.yaml"
_MAX_PROPERTIES_BYTES: Final = 16 * 1024 * 1024
_HIDDEN: Final = "(hidden)"
# A broker's file sizes the offset map for the broker's heap; here the user sets a bound explicitly.
_NOT_FROM_BROKER: Final = frozenset(
    {
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.threads",
        "log.cleaner.io.buffer.size",
    }
)


def load_config(line: CommandLine, *, now_ms: int, release: str | None = None) -> JobConfig:
    """Build the options of a run.

    Args:
        now_ms: The machine's clock, epoch milliseconds; a clock that the command line says wins.
        release: The release of Kafka that is to start, one of ``OTHER_TYPES``; None for the newest
            one that takes the broker's file.
    """
    layers = Layers()
    layers.put(NOW_MS.name, now_ms, DEFAULT_ORIGIN)
    # A zip of the packages for --py-files has no conf/; the code has the same defaults.
    defaults = [path for path in (defaults_file(),) if path.exists()]
    for path in (*defaults, *line[CONFIG_FILES]):
        _put_file(layers, read_config_file(path), path)
    _put_command_line(layers, line)
    if line[EXACT] and not line[DRY_RUN]:
        # Half of an option must not become a real run.
        raise ConfigError(EXACT.label, None, "expected --dry-run=exact")
    try:
        broker_release = _put_server_properties(layers, release)
        options = _options(layers, now_is_said=NOW_MS in line)
        options = options_of_release(options, broker_release)
        _validate_topics(options)
    except ConfigError as error:
        raise layers.with_file(error) from error
    return JobConfig(options=options, entries=tuple(list_entries(layers, options)))


def _options(layers: Layers, *, now_is_said: bool) -> JobOptions:
    broker = layers.entries("broker")
    settings = layers.entries(SETTINGS_OF_RUN.name)
    tuning = {name: text for name, text in settings.items() if name in TUNING_KEYS}
    kafka = {name: text for name, text in settings.items() if name not in TUNING_KEYS}
    # Unknown keys are refused early; this layer knows its own keys, too.
    names = [*known_keys(), *TOPIC_KEY_OF_BROKER_KEY, *TUNING_KEYS]
    for name, text in kafka.items():
        if name not in names:
            raise unknown_key(name, text, names)
    groups = classify_settings(kafka)
    tuning_values: dict[str, Any] = parse_settings(tuning, TUNING_KEYS)
    return JobOptions(
        **_values_of(JobOptions, layers),
        now_is_said=now_is_said,
        topic_settings=groups.topic,
        broker_settings={n: text for n, text in broker.items() if n not in CLEANER_KEYS},
        broker_overrides={**groups.topic_defaults, **groups.broker},
        cleaner=CleanerConfig.from_settings(
            {n: text for n, text in broker.items() if n in CLEANER_KEYS} | groups.cleaner
        ),
        tuning=Tuning(**tuning_values),
        limits=RunLimits(**_values_of(RunLimits, layers)),
    )


def _values_of(values: type, layers: Layers) -> dict[str, Any]:
    """Return the values of the options that a dataclass holds, by field."""
    return {field: layers.value(option) for field, option in options_of(values).items()}


def defaults_file() -> Path:
    """Return where ``conf/defaults.yaml`` lies: in the installed package, or in the checkout."""
    package = Path(__file__).parent.parent
    installed = package / "conf" / DEFAULTS_FILE
    return installed if installed.exists() else package.parent / "conf" / DEFAULTS_FILE


def _put_file(layers: Layers, file: Mapping[str, Any], path: Path) -> None:
    origin = path.name if path == defaults_file() else str(path)
    for option in OPTIONS:
        value = file.get(option.name)
        if option.kind.is_mapping:
            layers.put_entries(option.name, value, origin)
        elif option.kind.written is Path and value is not None:
            layers.put(option.name, path.parent / value, origin)
        else:
            layers.put(option.name, value, origin)


def _put_command_line(layers: Layers, line: CommandLine) -> None:
    for option in OPTIONS:
        if option.flag is not None and not option.kind.is_mapping:
            layers.put(option.name, line.written(option), option.flag)
    settings = settings_of(line, SETTINGS_OF_RUN)
    layers.put_entries(SETTINGS_OF_RUN.name, settings, SETTINGS_OF_RUN.label)


def _put_server_properties(layers: Layers, named: str | None) -> str:
    """Take over a broker's file; return the release whose limits count.

    Args:
        layers: They get its settings.
        named: The release that is to start, None where nobody said it.

    Raises:
        ConfigError: The file cannot be read, or the named release refuses a value.
    """
    broker_file = layers.value(SERVER_PROPERTIES)
    if broker_file is None:
        return named or NEWEST_RELEASE
    properties = _read_server_properties(broker_file)
    if properties.unknown_keys:
        # Only names: other settings in a broker's file may be secrets.
        unknown = ", ".join(properties.unknown_keys)
        _log.warning("%s: keys that mean nothing here: %s", broker_file, unknown)
    counting = {
        name: text for name, text in properties.settings.items() if name not in _NOT_FROM_BROKER
    }
    layers.put_entries("broker", counting, str(broker_file))
    release = named or newest_release_of(counting)
    refused = next(refused_file_settings(counting, named or NEWEST_RELEASE), None)
    if refused is not None and named is not None:
        reason = f"{refused.reason} in Kafka {named}; {STARTED_RELEASE.label} names another release"
        raise ConfigError(refused.key, refused.value, reason)
    if release != NEWEST_RELEASE:
        text = "%s: Kafka %s refuses %s; going by the limits of Kafka %s"
        _log.warning(text, broker_file, NEWEST_RELEASE, refused, release)
    return release


def _read_server_properties(path: Path) -> ServerProperties:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_PROPERTIES_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(SERVER_PROPERTIES.label, path, reason) from error
    if len(data) > _MAX_PROPERTIES_BYTES:
        reason = f"is larger than {_MAX_PROPERTIES_BYTES} bytes"
        raise ConfigError(SERVER_PROPERTIES.label, path, reason)
    try:
        return parse_server_properties(data, file=str(path))
    except CheckpointError as error:
        raise ConfigError(SERVER_PROPERTIES.label, path, str(error)) from error


def _validate_topics(options: JobOptions) -> None:
    """Refuse a topic's bad setting before looking at any directory."""
    broker = merge_broker_layers(options.broker_settings, options.broker_overrides)
    for topic, settings in options.topic_configs.items():
        try:
            LogConfig.from_topic_overrides(
                {**settings, **options.topic_settings}, broker=broker, release=options.release
            )
        except ConfigError as error:
            raise ConfigError(f"topics.{topic}.{error.key}", error.value, error.reason) from error


def list_entries(layers: Layers, options: JobOptions) -> Iterator[ConfigEntry]:
    """Yield the entries of a job's config, in their order.

    The order is: the job's own options, its keys, the cleaner's and a topic's keys, topics, Spark.

    Args:
        layers: Where values come from: options by name, ``settings.<key>``, ``broker.<key>``,
            ``topics.<name>`` and ``spark.<key>``.
    """
    for option in OPTIONS:
        if option.is_in_files and not option.kind.is_mapping:
            name, value = option.name, layers.get(option.name)
            text = ", ".join(value) if isinstance(value, list | tuple) else render(value)
            yield ConfigEntry(key=name, value=text, origin=layers.origin(name), doc=option.doc)
    for keys, values in ((TUNING_KEYS, options.tuning), (CLEANER_KEYS, options.cleaner)):
        for name in sorted(keys):
            yield _entry(keys[name], getattr(values, keys[name].attribute), _origin(layers, name))
    yield from _topic_entries(layers, options)
    dump = options.topic_dump
    if dump is not None:
        origin = f"{dump.file}, exported {time_text(dump.taken_ms)}"
        for topic, settings in sorted(dump.topics.items()):
            text = ", ".join(f"{key}={value}" for key, value in settings.items())
            yield ConfigEntry(key=f"topic_dump.{topic}", value=text, origin=origin)
    for topic, settings in sorted(layers.entries("topics").items()):
        text = ", ".join(f"{key}={value}" for key, value in settings.items())
        yield ConfigEntry(
            key=f"topics.{topic}", value=text, origin=layers.origin(f"topics.{topic}")
        )
    for key, text in sorted(layers.entries("spark").items()):
        shown = _HIDDEN if is_secret_name(key) else text
        yield ConfigEntry(key=f"spark: {key}", value=shown, origin=layers.origin(f"spark.{key}"))


def _topic_entries(layers: Layers, options: JobOptions) -> Iterator[ConfigEntry]:
    broker = merge_broker_layers(options.broker_settings, options.broker_overrides)
    for setting in effective_settings(
        options.topic_settings, broker=broker, release=options.release
    ):
        origin = _origin(layers, setting.source_key)
        if setting.origin is Origin.BROKER:
            origin = f"{origin} ({setting.source_key})"
        elif setting.origin is Origin.DEFAULT:
            origin = DEFAULT_ORIGIN
        yield _entry(known_keys()[setting.key], setting.value, origin)


def _entry(key: ConfigKey, value: object, origin: str) -> ConfigEntry:
    text = value if isinstance(value, str) else render(value)
    return ConfigEntry(key=key.name, value=text, origin=origin, unit=key.unit, doc=key.doc)


def _origin(layers: Layers, key: str) -> str:
    name = f"settings.{key}"
    return layers.origin(name if name in layers.values else f"broker.{key}")
