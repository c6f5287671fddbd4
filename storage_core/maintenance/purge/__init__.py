"""Removing for good what was put aside: by Kafka with a suffix, by a run in its trash."""
