"""The message for a user after an error or a signal.

No traceback reaches the user: an error that was raised on purpose says what is wrong in one line,
any other one says how to see where.
"""

import logging
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from pylog_spark.engines.errors import TaskFailedError
from pylog_spark.exit_code import EXTRAS
from pylog_spark.structured_logs import is_json_logged, json_line, log_fields
from pylog_spark.text import MAX_MESSAGE, describe_unexpected, printable
from storage_core import interruption
from storage_core.errors import PylogError
from storage_core.interruption import TerminatedError
from storage_core.redaction import plain_places, without_secrets

# Packages whose errors mean that Spark failed, named because importing them would take seconds.
_SPARK_PACKAGES: Final = frozenset({"pyspark", "py4j", "delta"})


_log: Final = logging.getLogger("pylog")


def report_error(error: BaseException, *, debug: bool) -> None:
    """Write a command's fatal error to stderr; with debug, the traceback."""
    text = _describe(error)
    if is_json_logged():
        if text:
            with log_fields(error_class=type(error).__name__):
                _log.error("%s", text, exc_info=error if debug else None)
        return
    if debug:
        _write(without_secrets("".join(traceback.format_exception(error))))
    if text:
        write_line(text)


def write_line(text: str) -> None:
    """Write one line to stderr, as a log line in JSON mode."""
    if is_json_logged():
        _log.error("%s", text)
    else:
        _write(f"pylog: {printable(text)}\n")


def _write(text: str) -> None:
    """Write to standard error, if possible. Where it is closed or full, only the exit status
    tells."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


def line_of_end(text: str) -> bytes:
    """Return the line about a process's sudden end, without locks."""
    if is_json_logged():
        record = logging.LogRecord("pylog", logging.ERROR, "", 0, text, None, None)
        return f"{json_line(record)}\n".encode()
    return f"pylog: {text}\n".encode()


def leave_out_interruptions() -> None:
    """Keep libraries from logging an interruption with a traceback. The program says it itself."""
    logging.getLogger().addFilter(_is_no_interruption)


def leave_out_lost_connections() -> None:
    """Keep pyspark's server for its JVM from printing a traceback when that JVM ends. The next call
    to the JVM fails, and that is reported."""
    from socketserver import BaseServer  # noqa: PLC0415  # pyspark has imported it

    for kind in vars(sys.modules.get("pyspark.accumulators", object)).values():
        if isinstance(kind, type) and issubclass(kind, BaseServer):
            kind.handle_error = _note_lost_connection  # type: ignore[assignment]


def _note_lost_connection(_server: object, _request: object, _client: object) -> None:
    _log.debug("pyspark lost a connection to its JVM", exc_info=True)


class _LineFormatter(logging.Formatter):
    """Formats a log message as one line, safe for a terminal. Names and errors in it steer no
    terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return printable(super().formatMessage(record))


def escape_log_lines() -> None:
    """Make log lines without a handler safe for the terminal."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_LineFormatter())


def _is_no_interruption(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and interruption.is_requested():
        return False
    while error is not None:
        if isinstance(error, KeyboardInterrupt | TerminatedError):
            return False
        error = error.__context__  # what an interruption leads to: a connection that is gone
    return True


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
                text = plain_places(f"{error.directory}: {text}")
        case ModuleNotFoundError() if error.name in EXTRAS:
            extra = EXTRAS[error.name]
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
        lines = [line for line in str(error).splitlines() if not line.lstrip().startswith("at ")]
        return f"Spark failed: {name}: {_one_line(lines)[:MAX_MESSAGE]}"
    return describe_unexpected(error)


def _one_line(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())
