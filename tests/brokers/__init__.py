"""Directories that brokers of other versions of Apache Kafka leave; ``make brokers``."""
