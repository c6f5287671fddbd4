"""From the declaration of an option to typer's parameter of a command."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from pylog_spark.options.option import CommandLine, Option


def signature_of(options: tuple[Option[Any], ...]) -> inspect.Signature:
    """Return the signature that typer wants of a command with these options and arguments."""
    return inspect.Signature(
        [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if option.is_required else _typed_default(option),
                annotation=Annotated[_type_of(option), _description_of(option)],
            )
            for option in options
        ]
    )


def command_line_of(options: tuple[Option[Any], ...], parameters: Mapping[str, Any]) -> CommandLine:
    """Return what a command line has, from the parameters that typer calls a command with."""
    written = dict(parameters)
    for option in options:
        if option.kind.written is bool:
            # A switch that is not there says nothing: a file may say it as well.
            written[option.name] = option.says if parameters[option.name] else None
    return CommandLine(written)


def _typed_default(option: Option[Any]) -> Any:
    return False if option.kind.written is bool else option.shown


def _type_of(option: Option[Any]) -> Any:
    written = option.kind.written
    is_there = option.is_required or option.shown is not None or written is bool
    return written if is_there else written | None


def _description_of(option: Option[Any]) -> Any:
    parse = option.kind.parse
    parser = None if parse is None else _complaining(parse)
    if option.flag is None:
        return typer.Argument(metavar=option.metavar, help=option.help, parser=parser)
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
    """Return a parser whose errors typer reports as wrong usage of its parameter."""

    def parse_or_complain(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parse_or_complain
