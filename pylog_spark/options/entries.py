"""Every setting in force with its origin: what ``pylog config show`` lists."""

from collections.abc import Iterator
from typing import Final

from pylog_spark.options.declared import OPTIONS
from pylog_spark.options.layers import DEFAULT_ORIGIN, Layers
from pylog_spark.options.values import TUNING_KEYS, ConfigEntry, JobOptions
from storage_core.config import (
    ConfigKey,
    Origin,
    effective_settings,
    known_keys,
    merge_broker_layers,
)
from storage_core.config.cleaner_config import CLEANER_KEYS
from storage_core.config.values import render
from storage_core.redaction import is_secret_name
from storage_core.wording import time_text

_HIDDEN: Final = "(hidden)"


def list_entries(layers: Layers, options: JobOptions) -> Iterator[ConfigEntry]:
    """Yield the job's own options, its keys, the cleaner's, a topic's, then topics and Spark.

    Args:
        layers: Where values come from: options by name, ``settings.<key>``, ``broker.<key>``,
            ``topics.<name>`` and ``spark.<key>``.
        options: What they became.
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
    for setting in effective_settings(options.topic_settings, broker=broker):
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
