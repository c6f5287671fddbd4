"""The options of a job: ``declared`` has each once, ``load`` reads files and command lines."""

from pylog_spark.options.choices import HighWatermarkSource, Order, Strategy
from pylog_spark.options.values import (
    TUNING_KEYS,
    ConfigEntry,
    JobConfig,
    JobOptions,
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
    "Strategy",
    "Tuning",
]
