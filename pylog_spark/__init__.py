"""Upkeep of Kafka log directories, distributed by Apache Spark."""
