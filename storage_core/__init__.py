"""Kafka's storage engine and its maintenance, one partition at a time. It is independent of
Spark."""

__version__ = "0.1.0"
