"""The exit statuses of ``pylog``, and the status for each error. Schedulers read these stable
numbers. ``run.run`` derives them from the rows of a run."""

import enum
from collections.abc import Mapping
from typing import Final

from storage_core.errors import (
    ConfigError,
    GuardRefusedError,
    InvalidNameError,
    LogDirectoryNotFoundError,
    MissingSoftwareError,
    PartitionNotFoundError,
    PylogError,
    RecoveryRequiredError,
    StorageError,
    UnsupportedPythonError,
)
from storage_core.interruption import TerminatedError

# Extra that brings a package which the wheel itself does not depend on.
EXTRAS: Final = {
    "pyspark": "local",
    "delta": "local",
    "pandas": "local",
    "s3fs": "s3",
    "cryptography": "tier",
}


# A broker recovers the log when it starts: what a look knows of it is no failure of the look.
_NOT_FAILED: Final = frozenset({None, RecoveryRequiredError.__name__})


class ExitCode(enum.IntEnum):
    """What a number means to whoever started the program."""

    DONE = 0  # done, or nothing to do
    FINDINGS = 1  # done, with findings at or above --fail-on
    USAGE = 2  # wrong usage or config
    REFUSED = 3  # a guard refused
    PARTLY_FAILED = 4  # some partitions or files failed, the others are done
    FAILED = 5  # storage or Spark failed, this Python is unsupported, or the program has a bug
    INTERRUPTED = 130
    READER_GONE = 141  # what read our output has closed it: head, less
    TERMINATED = 143


# Of each: what it means, and what to do.
MEANINGS: Final[Mapping[ExitCode, tuple[str, str]]] = {
    ExitCode.DONE: ("done, or nothing to do", ""),
    ExitCode.FINDINGS: (
        "done, with findings as bad as --fail-on says",
        "look at the findings; `pylog explain CODE` says what each means",
    ),
    ExitCode.USAGE: (
        "wrong usage or config; nothing was touched",
        "the line on standard error names the option; `pylog COMMAND --help`",
    ),
    ExitCode.REFUSED: (
        "a guard refused",
        "the line on standard error, or the row, has its code: `pylog explain CODE`",
    ),
    ExitCode.PARTLY_FAILED: (
        "some partitions failed, or some bytes are bad; the rest is done",
        "the rows with an error say which; run again once they are mended",
    ),
    ExitCode.FAILED: (
        "storage or Spark failed, or the program has a bug",
        "run again; `pylog --debug COMMAND ...` shows where it happened",
    ),
    ExitCode.INTERRUPTED: ("interrupted (Ctrl-C)", "run again"),
    ExitCode.READER_GONE: ("whoever read the output closed it", ""),
    ExitCode.TERMINATED: ("terminated (SIGTERM)", "run again"),
}


def is_failed_look(error_class: str | None) -> bool:
    """Whether a row's error class means a failed look at a partition."""
    return error_class not in _NOT_FAILED


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
        case StorageError() | MissingSoftwareError() | UnsupportedPythonError():
            code = ExitCode.FAILED
        case PylogError():
            code = ExitCode.PARTLY_FAILED
        case ModuleNotFoundError() if error.name in EXTRAS:
            code = ExitCode.USAGE
        case _:
            code = ExitCode.FAILED
    return code
