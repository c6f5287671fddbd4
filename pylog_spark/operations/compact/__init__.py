"""Compact partitions as Kafka's log cleaner does."""
