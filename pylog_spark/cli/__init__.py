"""The command line.

What a signal does is settled before anything is imported that takes its time. Whatever cannot be
imported is an error as any other: 1, Python's own status for it, means findings.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from storage_core import interruption

__all__ = ["main"]

# ``ExitCode.FAILED``, whose module may be what cannot be imported.
_FAILED: Final = 5
_MAX_MESSAGE: Final = 2000
_STREAMS: Final = ("stdin", "stdout", "stderr")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; end the process with its status, unless that is 0.

    A host that calls it in a process of its own, as Databricks does, may take any ``SystemExit``
    for a failure.

    Args:
        arguments: The command line after the program's name; None for the process's own.
    """
    _open_closed_streams()
    interruption.watch()
    try:
        from pylog_spark.cli import program  # noqa: PLC0415  # takes its time

        program.main(arguments)
    except Exception as error:  # noqa: BLE001  # the last place where one can be told
        words = sys.argv if arguments is None else arguments
        if os.environ.get("PYLOG_DEBUG") or "--debug" in words:
            traceback.print_exc()
        with suppress(OSError):
            sys.stderr.write(f"pylog: {describe_failure(error)}\n")
        sys.exit(_FAILED)


def describe_failure(error: BaseException) -> str:
    """Return in one line what nobody has expected, and the way out."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_MESSAGE]
    if isinstance(error, ImportError):
        return f"{text}: a library is missing or broken: pip install --force-reinstall pylog-spark"
    return f"unexpected {text}: this is a bug; `pylog --debug ...` shows where it is"


def _open_closed_streams() -> None:
    """Let a standard stream that is closed lead to nowhere: files would get its number."""
    for number, name in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
