"""Engines for the stages of an operation: Spark, or local processes."""
