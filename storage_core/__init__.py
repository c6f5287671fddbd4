"""Kafka's storage engine and its upkeep for one partition; knows nothing of Spark."""

__version__ = "0.1.0"
