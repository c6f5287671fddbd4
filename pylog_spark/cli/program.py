"""The program ``pylog``: its commands, and the way to run one.

``commands`` declares them; typer gets a parameter for each option. What a command does is imported
when it is called.
"""

import copy
import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from pylog_spark.cli.command import Command, CommandGroup
from pylog_spark.cli.commands import COMMANDS
from pylog_spark.cli.error_text import (
    escape_log_lines,
    leave_out_interruptions,
    line_of_end,
    report_error,
    write_line,
)
from pylog_spark.exit_code import ExitCode, exit_code_of
from pylog_spark.house import load
from pylog_spark.options.declared import DRY_RUN, EXACT, ROOTS
from pylog_spark.options.option import CommandLine, Option
from pylog_spark.options.place import read_place
from pylog_spark.structured_logs import LogFormat, use_log_format
from storage_core import __version__, interruption
from storage_core.threads import start_no_blas_threads

# The short help of ``-h``: a command's purpose and option names. It fits one screen.


def program_text(commands: Iterable[Command | CommandGroup]) -> str:
    """Return the program's short help: command names under their headings."""
    panels: dict[str | None, list[str]] = {}
    for command in commands:
        panels.setdefault(command.panel, []).append(command.name)
    rows = [(panel or "", " ".join(names)) for panel, names in panels.items()]
    return _page("Usage: pylog COMMAND ...", "", rows, "pylog")


def group_text(group: CommandGroup) -> str:
    """Return a group's short help: its commands and their purposes."""
    rows = [(command.name, _summary(command)) for command in group.commands]
    path = f"pylog {group.name}"
    return _page(f"Usage: {path} COMMAND ...", group.help, rows, path)


def command_text(command: Command, path: str) -> str:
    """Return the short help of a command.

    Args:
        path: As it is typed, with the program's name.
    """
    arguments = [option for option in command.options if option.flag is None]
    options = [option for option in command.options if option.flag and not option.is_hidden]
    usage = " ".join(["Usage:", path, *map(_argument_text, arguments), "[OPTIONS]"])
    # Options without a heading say what is done; of the others the names are enough here.
    rows = [(_names(option), option.help) for option in options if option.panel is None]
    others = " ".join(str(option.flag) for option in options if option.panel is not None)
    if others:
        rows.append(("and", others))
    return _page(usage, _summary(command), rows, path)


def _summary(command: Command) -> str:
    return command.help.strip().partition("\n\n")[0]


def _argument_text(option: Option[Any]) -> str:
    name = f"{option.metavar}..." if option.kind.written == list[str] else str(option.metavar)
    return name if option.is_required else f"[{name}]"


def _names(option: Option[Any]) -> str:
    names = ", ".join(name for name in (option.short, option.flag) if name is not None)
    return f"{names} {option.metavar}" if option.metavar else names


def _page(usage: str, summary: str, rows: list[tuple[str, str]], path: str) -> str:
    """Return a page: usage, summary, two-column rows, pointer to long help."""
    columns = min(shutil.get_terminal_size().columns, 100)
    width = max((len(name) for name, _ in rows), default=0) + 4
    lines = textwrap.wrap(usage, columns, subsequent_indent="    ")
    lines += textwrap.wrap(summary, columns)
    for name, text in rows:
        first = f"  {name}".ljust(width)
        lines += textwrap.wrap(
            text,
            columns,
            initial_indent=first,
            subsequent_indent=" " * width,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join([*lines, f"All of it: {path} --help"])


_PROGRAM: Final = "pylog"
_DEBUG_VARIABLE: Final = "PYLOG_DEBUG"
_LOG_FORMAT_VARIABLE: Final = "PYLOG_LOG_FORMAT"
_EXACT_DRY_RUN: Final = f"{DRY_RUN.flag}=exact"
# typer gives this class no public name in all of its versions; it is what a wrong option raises.
_UsageError: Final[type[Exception]] = typer.BadParameter.__bases__[0]

# Where typer lets pydantic check a value, the message begins with a word of pydantic's own.
_PYDANTICS_PREFIX: Final = "Value error, "


def _build(command: Command | CommandGroup) -> Any:
    """Return typer's command for one that is declared."""
    several = command.commands if isinstance(command, CommandGroup) else (command,)
    app = typer.Typer(
        name=command.name,
        help=command.help if isinstance(command, CommandGroup) else None,
        no_args_is_help=isinstance(command, CommandGroup),
        add_completion=False,
        rich_markup_mode="markdown",
    )
    if isinstance(command, CommandGroup):
        text = group_text(command)

        def of_group(*, short_help: _short_help_option(lambda _: text) = False) -> None:  # type: ignore[valid-type]  # a value, made above
            del short_help

        app.callback()(of_group)  # a group of one command is a group, too
    for one in several:
        app.command(one.name, epilog=one.example)(_callback_of(one))
    built = typer.main.get_command(app)
    built.rich_help_panel = command.panel  # type: ignore[attr-defined]  # typer reads it
    return built


def _listed(command: Command | CommandGroup) -> Any:
    """Return a command as far as a list of commands needs it."""
    listed = TyperCommand(name=command.name, help=inspect.cleandoc(command.help))
    listed.rich_help_panel = command.panel
    return listed


def _callback_of(command: Command) -> Callable[..., None]:
    """Return typer's callback of a command. It imports the command's work, and ends with its
    status."""

    def run_command(**parameters: Any) -> None:
        status = load(command.work)(command_line_of(command.options, parameters))
        if status:
            raise typer.Exit(status)

    run_command.__doc__ = command.help
    signature = signature_of(command.options)
    short_help = inspect.Parameter(
        "short_help",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=_short_help_option(lambda path: command_text(command, path)),
    )
    run_command.__signature__ = signature.replace(  # type: ignore[attr-defined]  # typer reads it
        parameters=[*signature.parameters.values(), short_help]
    )
    return run_command


def _short_help_option(text_of: Callable[[str], str]) -> Any:
    """Return the annotation of ``-h``: print a short help and exit.

    Args:
        text_of: Makes the help of the command's path: the words that name it.
    """

    def show(context: typer.Context, asked: bool) -> None:  # noqa: FBT001  # typer's callback
        if asked:
            typer.echo(text_of(context.command_path))
            raise typer.Exit

    description = "Show the options in short and exit."
    return Annotated[bool, typer.Option("-h", callback=show, is_eager=True, help=description)]


def _split_option(argument: str) -> list[str]:
    if argument == _EXACT_DRY_RUN:
        return [DRY_RUN.label, EXACT.label]
    if argument.startswith(f"{DRY_RUN.flag}="):
        raise typer.BadParameter(
            f"expected --dry-run or {_EXACT_DRY_RUN}, found {argument}", param_hint=DRY_RUN.flag
        )
    return [argument]


def _no_exact_dry_run(error: Any) -> Exception:
    """Return an error about ``--exact`` as one about ``--dry-run=exact``. The user wrote the
    latter."""
    return typer.BadParameter(
        "this command has only --dry-run", ctx=error.ctx, param_hint=_EXACT_DRY_RUN
    )


class _Commands(Mapping[str, Any]):
    """The commands by name, each built for typer on demand. Building one takes a while."""

    def __init__(self) -> None:
        self._declared = {command.name: command for command in COMMANDS}
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _build(self._declared[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)


class CommandTable(TyperGroup):
    """The commands; an error becomes a stderr line and a status."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment]  # nobody changes it

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the program's help: its commands, without their options."""
        listed = copy.copy(self)
        listed.commands = {command.name: _listed(command) for command in COMMANDS}
        TyperGroup.format_help(listed, ctx, formatter)

    def main(self, *arguments: Any, **named: Any) -> Any:
        """Run the program and exit; report wrong usage in one line. Any other error has one
        line, too."""
        try:
            status = super().main(*arguments, **{**named, "standalone_mode": False})
        except _UsageError as error:
            _report_usage(error)
            sys.exit(ExitCode.USAGE)
        sys.exit(status if isinstance(status, int) else ExitCode.DONE)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; split the option with an optional value. It becomes two
        options."""
        return list(super().parse_args(ctx, [part for arg in args for part in _split_option(arg)]))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments name; ``help X`` is ``X --help``."""
        match args:
            case ["version"]:
                _show_version(asked=True)
            case ["help"]:
                typer.echo(ctx.get_help())
                raise typer.Exit
            case ["help", *names]:
                args = [*names, "--help"]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except (_UsageError, typer.Exit, typer.Abort) as error:
            if getattr(error, "option_name", None) == EXACT.flag:
                raise _no_exact_dry_run(error) from error
            raise
        except SystemExit as end:  # rich's word for a reader that went away in mid-table
            raise typer.Exit(ExitCode.READER_GONE) from end
        except BaseException as error:  # the one place where errors end
            cause = interruption.cause_of(error)
            report_error(cause, debug=ctx.params["debug"])
            raise typer.Exit(exit_code_of(cause)) from error


app = typer.Typer(
    name=_PROGRAM,
    cls=CommandTable,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
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
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format",
            envvar=_LOG_FORMAT_VARIABLE,
            help="How log lines and errors are written: json is an object a line.",
        ),
    ] = LogFormat.TEXT,
    short_help: _short_help_option(lambda _: program_text(COMMANDS)) = False,  # type: ignore[valid-type]  # a value
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Maintain Kafka log directories without a broker: look, verify, recover, retain, compact.

    Start with a look, which changes nothing: `pylog inspect /var/lib/kafka`

    Then see what the nightly would do: `pylog run /var/lib/kafka --role broker --dry-run`
    """
    del debug, version, short_help
    use_log_format(log_format)


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit status."""
    start_no_blas_threads()
    interruption.tell_by(line_of_end)
    leave_out_interruptions()
    escape_log_lines()
    try:
        app(args=list(arguments), prog_name=_PROGRAM)
    except SystemExit as end:
        unknown = ExitCode.DONE if end.code is None else ExitCode.FAILED
        status = end.code if isinstance(end.code, int) else unknown
    except BaseException as error:  # noqa: BLE001  # while arguments are read, before a command runs
        report_error(error, debug=bool(os.environ.get(_DEBUG_VARIABLE)))
        _discard_unwritten()
        return exit_code_of(error)
    else:
        status = ExitCode.DONE
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = ExitCode.READER_GONE
    except OSError as error:  # a file on a disk that is full
        if status in {ExitCode.DONE, ExitCode.FINDINGS}:
            report_error(error, debug=bool(os.environ.get(_DEBUG_VARIABLE)))
            status = exit_code_of(error)
    _discard_unwritten()
    return int(status)


def _report_usage(error: Any) -> None:
    """Write a command line error to stderr, with a pointer to help."""
    context = getattr(error, "ctx", None)
    path = _PROGRAM if context is None else context.command_path
    message = " ".join(error.format_message().split()).replace(_PYDANTICS_PREFIX, "")
    # Where nothing but the name of a group was given, its help has been printed, and that is all.
    if message:
        text = message[:1].lower() + message[1:].removesuffix(".")
        write_line(f"{text} (see: {path} --help)")


def _discard_unwritten() -> None:
    """Discard output that cannot be written. The interpreter's last flush would set the exit
    status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, stream.fileno())
            os.close(devnull)


def signature_of(options: tuple[Option[Any], ...]) -> inspect.Signature:
    """Return a command's signature for typer, by its options. Arguments are among the options."""
    return inspect.Signature(
        [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=(
                    inspect.Parameter.empty
                    if option.is_required and not _is_said_by_places(option)
                    else _typed_default(option)
                ),
                annotation=Annotated[_type_of(option), _description_of(option)],
            )
            for option in options
        ]
    )


def command_line_of(options: tuple[Option[Any], ...], parameters: Mapping[str, Any]) -> CommandLine:
    """Return the command line for typer's parameters of a command."""
    written = dict(parameters)
    for option in options:
        if option.kind.written is bool:
            # A switch that is not there says nothing: a file may say it as well.
            written[option.name] = option.says if parameters[option.name] else None
    place = read_place()
    narrows = any(option.name == ROOTS.name and not option.is_required for option in options)
    return CommandLine(written, place.without(ROOTS) if place and narrows else place)


def _is_said_by_places(option: Option[Any]) -> bool:
    """Whether a command that needs an argument takes it from the place, too."""
    return option.name == ROOTS.name and option.is_required


def _require_here_or_of_place(context: typer.Context, value: Any) -> Any:
    """Refuse a command line without roots where the place has none."""
    if not value and not context.resilient_parsing:
        place = read_place()
        if place is None or ROOTS.name not in place.values:
            raise _UsageError(f"Missing argument '{ROOTS.metavar}'.", context)
    return value


def _typed_default(option: Option[Any]) -> Any:
    return False if option.kind.written is bool else option.shown


def _type_of(option: Option[Any]) -> Any:
    written = option.kind.written
    is_needed = option.is_required and not _is_said_by_places(option)
    is_there = is_needed or option.shown is not None or written is bool
    return written if is_there else written | None


def _description_of(option: Option[Any]) -> Any:
    parse = option.kind.parse
    parser = None if parse is None else _complaining(parse)
    if option.flag is None:
        return typer.Argument(
            metavar=option.metavar,
            help=option.help,
            parser=parser,
            callback=_require_here_or_of_place if _is_said_by_places(option) else None,
        )
    return typer.Option(
        *(name for name in (option.flag, option.short) if name is not None),
        rich_help_panel=option.panel,
        metavar=option.metavar,
        help=option.help,
        hidden=option.is_hidden,
        min=option.kind.at_least,
        parser=parser,
    )


def _complaining(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser with errors for typer, as wrong usage. They name the parser's parameter."""

    def parse_or_complain(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parse_or_complain
