"""Tests of the job scripts, by real spark-submit."""
