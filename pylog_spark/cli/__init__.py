"""The command line."""

from pylog_spark.cli.main import main

__all__ = ["main"]
