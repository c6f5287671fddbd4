"""Tests of pylog_spark.options."""
