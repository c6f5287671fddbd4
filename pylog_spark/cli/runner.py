"""How a command runs: arguments, options, what can be refused early, session, operation, answer.

The steps and their order are here, once; a ``Work`` says what a command does in each. What is heavy
is imported when a step needs it.
"""

import enum
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pylog_spark.options.choices import OutputFormat
from pylog_spark.options.declared import OUTPUT, PLAN_OUT, REPORT
from pylog_spark.options.option import CommandLine
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pylog_spark.options import JobOptions

SubjectT = TypeVar("SubjectT")
ReportT = TypeVar("ReportT")


class Spark(enum.Enum):
    """When a command starts a Spark session."""

    NEVER = enum.auto()
    TO_WRITE_LEDGER = enum.auto()
    ALWAYS = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[SubjectT]):
    """One call of a command.

    Attributes:
        line: What the command line has.
        options: Of the run.
        subject: What it is about: locations of its roots, a plan.
    """

    line: CommandLine
    options: "JobOptions"
    subject: SubjectT

    @property
    def as_json(self) -> bool:
        """Whether the answer is JSON lines in place of tables."""
        return self.line[OUTPUT] is OutputFormat.JSON

    @property
    def are_topics_chosen(self) -> bool:
        """Whether it is about some topics only."""
        return bool(self.options.include or self.options.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[SubjectT, ReportT]):
    """What a command does in each step of a run.

    Attributes:
        name: Of the command.
        prepare: Reads the options, and refuses what the operation would refuse: a person is spared
            the start of a Spark session.
        operate: Does it; gets the session, None without one.
        show: Prints what was done and returns the exit status.
        spark: When a session is started.
        asks_ledger: Whether a dry run reads the ledger, too, which it never writes.
    """

    name: str
    prepare: Callable[[CommandLine], Call[SubjectT]]
    operate: Callable[[Call[SubjectT], Any], ReportT]
    show: Callable[[Call[SubjectT], ReportT], int]
    spark: Spark = Spark.NEVER
    asks_ledger: bool = False

    def __call__(self, line: CommandLine) -> int:
        """Run the command and return its exit status.

        Raises:
            PylogError: It could not run, or a guard refused it.
        """
        for option in (REPORT, PLAN_OUT):
            check_file_place(option.label, line.written(option))
        call = self.prepare(line)
        return self.show(call, self.operate(call, self._session(call.options)))

    def _session(self, options: "JobOptions") -> "SparkSession | None":
        has_ledger = options.ledger is not None
        writes_ledger = has_ledger and not options.dry_run
        if self.spark is Spark.NEVER:
            return None
        if self.spark is Spark.TO_WRITE_LEDGER and not writes_ledger:
            return None
        return start_session(
            self.name, options, delta=has_ledger if self.asks_ledger else writes_ledger
        )


def load_options(line: CommandLine) -> "JobOptions":
    """Return the options of a run by this machine's clock.

    Raises:
        ConfigError: As ``load_config``.
    """
    from pylog_spark.options.load import load_config  # noqa: PLC0415  # pydantic, YAML

    return load_config(line, now_ms=SystemClock().now_ms()).options


def start_session(command: str, options: "JobOptions", *, delta: bool) -> "SparkSession":
    """Start a Spark session for a command, or take the one that there is.

    Args:
        command: Its name, for Spark's pages.
        options: With the master and the settings of the session.
        delta: Whether Delta tables are read or written.
    """
    from pylog_spark.session import build_session  # noqa: PLC0415  # Spark

    session = build_session(
        options.master, options.spark_conf, app_name=f"pylog {command}", delta=delta
    )
    # Spark's own handler asks the JVM to cancel its jobs in the middle of another call to it, and
    # what comes out is not always a KeyboardInterrupt. The operation cancels its jobs itself.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return session


def check_file_place(option: str, file: Path | None) -> None:
    """Refuse a file that could not be written at the end of a run, before the run begins.

    Args:
        option: That names it.
        file: The file; None for none.

    Raises:
        ConfigError: It is a directory, or its folder is not there or cannot be written.
    """
    if file is None:
        return
    folder = file.absolute().parent
    if file.is_dir():
        raise ConfigError(option, file, "is a directory; expected the name of a file")
    if not folder.is_dir():
        raise ConfigError(option, file, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise ConfigError(option, file, f"this process may not write into {folder}")
