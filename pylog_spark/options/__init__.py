"""The configuration of a job; reading it from files and flags is in ``config.load``."""

from pylog_spark.options.values import (
    TUNING_KEYS,
    ConfigEntry,
    HighWatermarkSource,
    JobConfig,
    JobOptions,
    Order,
    RunLimits,
    Tuning,
)

__all__ = [
    "TUNING_KEYS",
    "ConfigEntry",
    "HighWatermarkSource",
    "JobConfig",
    "JobOptions",
    "Order",
    "RunLimits",
    "Tuning",
]
