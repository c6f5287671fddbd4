"""The effective settings of the broker: its file and the run's."""

from dataclasses import replace

from pylog_spark.options.values import JobOptions
from storage_core.config import (
    BrokerConfig,
    LogConfig,
    merge_broker_layers,
    without_unknown_keys,
)
from storage_core.config.broker_config import BROKER_KEYS


def broker_config(options: JobOptions) -> BrokerConfig:
    """Return the broker's settings."""
    settings = merge_broker_layers(options.broker_settings, options.broker_overrides)
    return BrokerConfig.from_settings(
        {name: text for name, text in settings.items() if name in BROKER_KEYS},
        release=options.release,
    )


def options_of_release(options: JobOptions, release: str) -> JobOptions:
    """Return the options with a release's limits and keys.

    Raises:
        ConfigError: The release refuses a broker-wide setting, or a setting of all topics.
    """
    options = replace(
        options,
        release=release,
        broker_settings=without_unknown_keys(options.broker_settings, release),
    )
    broker = merge_broker_layers(options.broker_settings, options.broker_overrides)
    LogConfig.from_topic_overrides(options.topic_settings, broker=broker, release=release)
    return options
