"""Start the program: signals, standard streams, unexpected errors.

What a signal does is settled before anything is imported that takes its time. Whatever cannot be
imported is an error as any other: 1, Python's own status for it, means findings.
"""

import gc
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pylog_spark.late_methods import make_methods_late
from pylog_spark.without_pandas import hide_pandas
from storage_core import interruption

# ``ExitCode.FAILED``, whose module may be what cannot be imported.
_FAILED: Final = 5
_STREAMS: Final = ("stdin", "stdout", "stderr")
# How many objects come before garbage is looked for; Python's own 700 are but for little memory.
_OBJECTS_BETWEEN_LOOKS: Final = 250_000


def start(arguments: Sequence[str] | None = None) -> None:
    """Do what ``pylog_spark.cli.main`` does, once Ctrl-C says nothing any more."""
    _open_closed_streams()
    _write_utf_8()
    interruption.watch()
    # Modules are no garbage. To look through them while they are imported, and again at the end of
    # the process, takes a quarter of the time of a short command.
    gc.set_threshold(_OBJECTS_BETWEEN_LOOKS)
    hide_pandas()
    make_methods_late()
    try:
        from pylog_spark.cli.program import run  # noqa: PLC0415  # takes its time

        status = run(sys.argv[1:] if arguments is None else arguments)
    except Exception as error:  # noqa: BLE001  # the last place where one can be told
        from pylog_spark.text import describe_unexpected  # noqa: PLC0415  # for an error alone

        words = sys.argv if arguments is None else arguments
        if os.environ.get("PYLOG_DEBUG") or "--debug" in words:
            traceback.print_exc()
        with suppress(OSError):
            sys.stderr.write(f"pylog: {describe_unexpected(error)}\n")
        sys.exit(_FAILED)
    finally:
        # DuckDB's bindings take what is not looked through for leaked, and say so.
        if "duckdb" not in sys.modules:
            gc.freeze()
    if interruption.is_requested():
        # Threads of libraries may be at work, and would be waited for.
        os._exit(status)
    if status:
        sys.exit(status)


def _write_utf_8() -> None:
    """Write UTF-8 whatever the locale says: its encoding may lack what values and names have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8", errors=stream.errors)


def _open_closed_streams() -> None:
    """Open closed standard streams to nowhere. Otherwise files would get their numbers."""
    for number, name in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
