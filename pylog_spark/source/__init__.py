"""Kafka's log files as a Spark data source."""

from pylog_spark.source.registration import register

__all__ = ["register"]
