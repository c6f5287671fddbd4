"""The options of a job. ``declared`` has each once, ``load`` reads files and command lines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pylog_spark.options.choices import HighWatermarkSource, Order, Strategy

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """Import the values of options on demand; help needs none."""
    if name in __all__:
        return getattr(import_module("pylog_spark.options.values"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
