"""``--set KEY=VALUE``, and the options that are short for one."""

from collections.abc import Iterable

from pylog_spark.options.declared import KEY_SIDECARS, RECOMPRESS, RECOMPRESS_ALL
from pylog_spark.options.of_partitions import WHOLE_CONFIG
from pylog_spark.options.option import CommandLine, Option
from storage_core.config import CleanerConfig, LogConfig, split_settings
from storage_core.config.values import render
from storage_core.errors import ConfigError


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` texts; the last value of a key wins."""
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError("--set", text, "expected KEY=VALUE")
        settings[key.strip()] = value
    return settings


def settings_of(line: CommandLine, option: Option[tuple[str, ...]]) -> dict[str, str]:
    """Return the settings of ``--set`` and its short options; these win."""
    settings = parse_assignments(line[option])
    codec = line[RECOMPRESS]
    if codec is not None:
        settings["recompress"] = codec
    if RECOMPRESS_ALL in line:
        settings["recompress.all"] = render(line[RECOMPRESS_ALL])
    folder = line[KEY_SIDECARS]
    if folder is not None:
        settings["key.sidecars"] = folder
    return settings


def whole_config(line: CommandLine) -> tuple[LogConfig, CleanerConfig]:
    """Return a partition directory's config, all from the command line."""
    topic, cleaner = split_settings(settings_of(line, WHOLE_CONFIG))
    return LogConfig.from_topic_overrides(topic), CleanerConfig.from_settings(cleaner)
