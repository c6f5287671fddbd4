"""Log lines as JSON objects, with run, step and partition.

A line is written to standard error by the process that has something to say: the driver, a process
of the local engine, an executor. Fields follow the work: what the driver has said of a run travels
with the tasks, and a task adds the partition that it is at.
"""

import enum
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from pylog_spark.text import to_json
from storage_core.wording import time_text


class LogFormat(enum.StrEnum):
    """How log lines are written."""

    TEXT = "text"  # the message of what is at least a warning
    JSON = "json"  # an object a line, from INFO on where it is ours


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_fields: Final[ContextVar[Mapping[str, Any]]] = ContextVar("pylog_log_fields", default=_NOTHING)
# Of others only warnings are told.
_OUR_LOGGERS: Final = ("pylog_spark", "storage_core")
_traces: Final = logging.Formatter()


class _JsonHandler(logging.Handler):
    """Writes each record at once as one line of JSON. Several processes share the stream."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{json_line(record)}\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001  # as logging's own handlers: no work ends for a log line
            self.handleError(record)


_handler: Final = _JsonHandler()


def json_line(record: logging.LogRecord) -> str:
    """Return a record as JSON; takes no locks."""
    line: dict[str, Any] = {
        "time": time_text(int(record.created * 1000)),
        "level": record.levelname,
        "logger": record.name,
        "message": record.getMessage(),
        **_fields.get(),
    }
    if record.exc_info and record.exc_info[1] is not None:
        line["exception"] = _traces.formatException(record.exc_info)
    return to_json(line, default=str)


def use_log_format(log_format: LogFormat) -> None:
    """Set the format of this process's log lines and warnings."""
    is_json = log_format is LogFormat.JSON
    if is_json == is_json_logged():
        return
    root = logging.getLogger()
    (root.addHandler if is_json else root.removeHandler)(_handler)
    for name in _OUR_LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO if is_json else logging.NOTSET)
    logging.captureWarnings(is_json)


def is_json_logged() -> bool:
    """Whether log lines of this process are JSON."""
    return _handler in logging.getLogger().handlers


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Add fields to log lines within a block; also a decorator. Not for the inside of a generator,
    which shares its context with its consumer.

    Args:
        **fields: What they say, by key; None is left out.
    """
    values = {name: value for name, value in fields.items() if value is not None}
    token = _fields.set({**_fields.get(), **values})
    try:
        yield
    finally:
        _fields.reset(token)


@dataclass(frozen=True, slots=True)
class TaskLogs:
    """A task's log format, as a value sent with its work."""

    log_format: LogFormat
    fields: Mapping[str, Any] = field(default_factory=dict)  # what they say beside their message

    @classmethod
    def of_driver(cls) -> "TaskLogs":
        """Return what tasks are told that are made here and now."""
        return cls(LogFormat.JSON if is_json_logged() else LogFormat.TEXT, dict(_fields.get()))

    def begin(self) -> None:
        """Use this log format in this thread until its next task."""
        use_log_format(self.log_format)
        _fields.set(self.fields)
