"""The program ``pylog``: which commands there are, and how one of them is run.

A command's module is imported when it is called, or when its help is asked for: ``pylog partition``
and ``pylog dump`` are run in loops and should not pay for Spark, Arrow or tables on the way.
"""

import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from pylog_spark.cli.exit_codes import (
    ExitCode,
    escape_log_lines,
    exit_code_of,
    leave_out_interruptions,
    raise_on_termination,
    report_error,
)
from pylog_spark.text import printable
from storage_core import __version__

_PROGRAM: Final = "pylog"
_DEBUG_VARIABLE: Final = "PYLOG_DEBUG"
_EXACT_DRY_RUN: Final = "--dry-run=exact"
_EXACT: Final = "--exact"
# typer gives this class no public name in all of its versions; it is what a wrong option raises.
_UsageError: Final[type[Exception]] = typer.BadParameter.__bases__[0]

# Group of commands -> command -> module that holds it, in the order of the help text.
_GROUPS: Final = {
    "Look: nothing is written": {
        "inspect": "pylog_spark.cli.inspect",
        "dump": "pylog_spark.cli.dump",
        "explain": "pylog_spark.cli.explain",
        "survey": "pylog_spark.cli.survey",
        "verify": "pylog_spark.cli.verify",
        "doctor": "pylog_spark.cli.doctor",
    },
    "Maintain": {
        "run": "pylog_spark.cli.jobs",
        "recover": "pylog_spark.cli.recover",
        "retain": "pylog_spark.cli.retain",
        "compact": "pylog_spark.cli.jobs",
    },
    "Plans, and the way back": {
        "apply": "pylog_spark.cli.apply",
        "undo": "pylog_spark.cli.undo",
        "purge": "pylog_spark.cli.purge",
    },
    "Into and out of managed roots": {
        "ingest": "pylog_spark.cli.transfer",
        "materialize": "pylog_spark.cli.transfer",
    },
    "One partition, settings, this machine": {
        "partition": "pylog_spark.cli.partition",
        "config": "pylog_spark.cli.config",
        "warmup": "pylog_spark.cli.warmup",
    },
}
_MODULES: Final = {name: module for group in _GROUPS.values() for name, module in group.items()}
_PANELS: Final = {name: panel for panel, group in _GROUPS.items() for name in group}
# Where typer lets pydantic check a value, the message begins with a word of pydantic's own.
_PYDANTICS_PREFIX: Final = "Value error, "


class _Commands(MutableMapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            app = import_module(_MODULES[name]).app
            command = typer.main.get_command(app)
            # A module of one command is that command, unless it is a group of its own name.
            inner = getattr(command, "commands", {})
            loaded = inner.get(name, command)
            loaded.rich_help_panel = _PANELS[name]
            self._loaded[name] = loaded
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)

    def __contains__(self, name: object) -> bool:
        return name in _MODULES


def _split_option(argument: str) -> list[str]:
    if argument == _EXACT_DRY_RUN:
        return ["--dry-run", _EXACT]
    if argument.startswith("--dry-run="):
        raise typer.BadParameter(
            f"expected --dry-run or {_EXACT_DRY_RUN}, found {argument}", param_hint="--dry-run"
        )
    return [argument]


def _no_exact_dry_run(error: Any) -> Exception:
    """Return an error about the second of the two options as one about what was said."""
    return typer.BadParameter(
        "this command has only --dry-run", ctx=error.ctx, param_hint=_EXACT_DRY_RUN
    )


class CommandTable(TyperGroup):
    """The commands; what one of them raises becomes a line on standard error and a status."""

    def __init__(self, **attributes: Any) -> None:
        attributes["commands"] = _Commands()
        super().__init__(**attributes)

    def main(self, *arguments: Any, **named: Any) -> Any:
        """Run the program and end the process; wrong usage is one line, as any other error."""
        try:
            status = super().main(*arguments, **{**named, "standalone_mode": False})
        except _UsageError as error:
            _report_usage(error)
            sys.exit(ExitCode.USAGE)
        sys.exit(status if isinstance(status, int) else ExitCode.DONE)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; the one option that may have a value or none becomes two."""
        return list(super().parse_args(ctx, [part for arg in args for part in _split_option(arg)]))

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name.

        Raises:
            typer.Exit: With the status that `exit_codes` has for the error.
        """
        try:
            return super().invoke(ctx)
        except (_UsageError, typer.Exit, typer.Abort) as error:
            if getattr(error, "option_name", None) == _EXACT:
                raise _no_exact_dry_run(error) from error
            raise
        except SystemExit as end:  # rich's word for a reader that went away in mid-table
            _discard_output()
            raise typer.Exit(ExitCode.READER_GONE) from end
        except BaseException as error:  # the one place where errors end
            report_error(error, debug=ctx.params["debug"])
            if isinstance(error, BrokenPipeError):
                _discard_output()
            raise typer.Exit(exit_code_of(error)) from error


app = typer.Typer(
    name=_PROGRAM,
    cls=CommandTable,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit status: 0 done, 1 findings, 2 wrong usage or config, 3 refused by a guard, "
        "4 some partitions failed, 5 storage or Spark failed, 130 and 143 interrupted."
    ),
)


def _show_version(asked: bool) -> None:  # noqa: FBT001  # typer's callback
    if asked:
        typer.echo(f"{_PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def pylog(
    *,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar=_DEBUG_VARIABLE, help="Show where an error happened."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Maintain Kafka log directories without a broker: look, verify, recover, retain, compact.

    Start with a look, which changes nothing: `pylog inspect /var/lib/kafka`

    Then see what the nightly would do: `pylog run /var/lib/kafka --role broker --dry-run`
    """
    del debug, version


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and end the process with its status.

    Args:
        arguments: The command line after the program's name; None for the process's own.
    """
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit status."""
    raise_on_termination()
    leave_out_interruptions()
    escape_log_lines()
    try:
        app(args=list(arguments), prog_name=_PROGRAM)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:  # noqa: BLE001  # while arguments are read, before a command runs
        report_error(error, debug=bool(os.environ.get(_DEBUG_VARIABLE)))
        return exit_code_of(error)
    else:
        status = ExitCode.DONE
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return ExitCode.READER_GONE
    return int(status)


def _report_usage(error: Any) -> None:
    """Say on standard error what is wrong with the command line, and where help is."""
    context = getattr(error, "ctx", None)
    path = _PROGRAM if context is None else context.command_path
    said = " ".join(error.format_message().split()).replace(_PYDANTICS_PREFIX, "")
    # Where nothing but the name of a group was given, its help has been printed, and that is all.
    if said:
        text = said[:1].lower() + said[1:].removesuffix(".")
        sys.stderr.write(f"{_PROGRAM}: {printable(text)} (see: {path} --help)\n")


def _discard_output() -> None:
    """Let the interpreter's own flush at its end succeed where nobody reads any more."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
