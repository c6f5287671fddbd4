"""Kafka's log files as a Spark data source."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pylog_spark.source.registration import create_views, register

__all__ = ["create_views", "register"]


def __getattr__(name: str) -> Any:
    """Import these on demand: Spark's workers do not need them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pylog_spark.source import registration  # noqa: PLC0415

    return getattr(registration, name)
