"""The command line.

Nothing that has to be looked for on a disk is imported before Ctrl-C ends the process silently.
"""

import _signal  # type: ignore[import-not-found]  # built in; `signal` imports others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["end_silently", "main"]


def end_silently() -> None:
    """Let Ctrl-C end the process without a traceback, until ``interruption.watch`` decides."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main(arguments: "Sequence[str] | None" = None) -> None:
    """Run the program; exit with its status, unless that is 0.

    A host that calls it in a process of its own, as Databricks does, may take any ``SystemExit``
    for a failure.

    Args:
        arguments: The command line after the program's name; None for the process's own.
    """
    end_silently()
    from pylog_spark.cli.start import start  # noqa: PLC0415  # takes its time

    start(arguments)
