"""The exit statuses of ``pylog``, and the one place that turns an exception into one.

A scheduler reads these numbers; they are stable. No traceback reaches the user: an error that was
raised on purpose says what is wrong in one line, any other one says how to see where.
"""

import enum
import logging
import signal
import sys
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Final

from pylog_spark.engines.errors import TaskFailedError
from pylog_spark.java import MissingSoftwareError
from pylog_spark.text import printable
from storage_core.errors import (
    ConfigError,
    GuardRefusedError,
    InvalidNameError,
    LogDirectoryNotFoundError,
    PartitionNotFoundError,
    PylogError,
    StorageError,
)
from storage_core.redaction import without_secrets


class ExitCode(enum.IntEnum):
    """What a number means to whoever started the program."""

    DONE = 0  # done, or nothing to do
    FINDINGS = 1  # done, with findings at or above --fail-on
    USAGE = 2  # wrong usage or config
    REFUSED = 3  # a guard refused
    PARTLY_FAILED = 4  # some partitions or files failed, the others are done
    FAILED = 5  # storage or Spark failed, or the program has a bug
    INTERRUPTED = 130
    READER_GONE = 141  # what read our output has closed it: head, less
    TERMINATED = 143


class TerminatedError(BaseException):
    """The process was asked to end by SIGTERM; not an Exception, so that nothing swallows it."""


# Extra that brings a package which the wheel itself does not depend on.
_EXTRAS: Final = {"pyspark": "local", "delta": "local", "pandas": "local", "s3fs": "s3"}
_MAX_MESSAGE: Final = 2000
# Packages whose errors mean that Spark failed, named because importing them would take seconds.
_SPARK_PACKAGES: Final = frozenset({"pyspark", "py4j", "delta"})


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit status for what ended a command."""
    match error:
        case KeyboardInterrupt():
            code = ExitCode.INTERRUPTED
        case TerminatedError():
            code = ExitCode.TERMINATED
        case BrokenPipeError():
            code = ExitCode.READER_GONE
        case ConfigError() | PartitionNotFoundError() | LogDirectoryNotFoundError():
            code = ExitCode.USAGE
        # The name of a file in a partition is not what somebody typed.
        case InvalidNameError() if error.directory is None:
            code = ExitCode.USAGE
        case GuardRefusedError():
            code = ExitCode.REFUSED
        case StorageError() | MissingSoftwareError():
            code = ExitCode.FAILED
        case PylogError():
            code = ExitCode.PARTLY_FAILED
        case ModuleNotFoundError() if error.name in _EXTRAS:
            code = ExitCode.USAGE
        case _:
            code = ExitCode.FAILED
    return code


def report_error(error: BaseException, *, debug: bool) -> None:
    """Say on standard error what ended a command, in one line; with debug also where."""
    if debug:
        sys.stderr.write(without_secrets("".join(traceback.format_exception(error))))
    text = _describe(error)
    if text:
        sys.stderr.write(f"pylog: {printable(text)}\n")


def raise_on_termination() -> None:
    """Let SIGTERM unwind the program, so that locks and scratch files are given back."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise TerminatedError

    signal.signal(signal.SIGTERM, stop)


def leave_out_interruptions() -> None:
    """Keep libraries from logging an interruption with a traceback: the program says it itself."""
    logging.getLogger().addFilter(_is_no_interruption)


class _LineFormatter(logging.Formatter):
    """A message of a log as one line for a person: names and errors in it steer no terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return printable(super().formatMessage(record))


def escape_log_lines() -> None:
    """Let what is logged, and reaches the terminal for nobody else takes it, be safe to show."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_LineFormatter())


def _is_no_interruption(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, KeyboardInterrupt | TerminatedError)


def _describe(error: BaseException) -> str:
    match error:
        case KeyboardInterrupt():
            text = "interrupted"
        case TerminatedError():
            text = "terminated"
        case BrokenPipeError():
            text = ""
        case PylogError():
            text = str(error)
            # An error about a file knows its name, and not where that lies.
            if error.directory is not None and error.directory not in text:
                text = f"{error.directory}: {text}"
        case ModuleNotFoundError() if error.name in _EXTRAS:
            extra = _EXTRAS[error.name]
            text = f"{error.name} is not installed: pip install 'pylog-spark[{extra}]'"
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            text = f"{where}{error.strerror or error}"
        case MemoryError():
            text = "out of memory"
        case TaskFailedError():
            text = str(error)
        case _:
            text = _describe_unexpected(error)
    return text


def _describe_unexpected(error: BaseException) -> str:
    name = type(error).__name__
    if type(error).__module__.partition(".")[0] in _SPARK_PACKAGES:
        said = [line for line in str(error).splitlines() if not line.lstrip().startswith("at ")]
        return f"Spark failed: {name}: {_one_line(said)[:_MAX_MESSAGE]}"
    message = _one_line(str(error).splitlines())[:_MAX_MESSAGE]
    return f"unexpected {name}: {message}: this is a bug; `pylog --debug ...` shows where it is"


def _one_line(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())
