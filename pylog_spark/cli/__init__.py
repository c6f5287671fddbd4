"""The command line."""

from pylog_spark.cli.program import main

__all__ = ["main"]
