"""Tests of pylog_spark.config."""
