"""The effective settings of the broker: its file and the run's."""

from pylog_spark.options.values import JobOptions
from storage_core.config import BrokerConfig, merge_broker_layers
from storage_core.config.broker_config import BROKER_KEYS


def broker_config(options: JobOptions) -> BrokerConfig:
    """Return the broker's settings."""
    settings = merge_broker_layers(options.broker_settings, options.broker_overrides)
    return BrokerConfig.from_settings(
        {name: text for name, text in settings.items() if name in BROKER_KEYS}
    )
