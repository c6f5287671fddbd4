"""``pylog config``: the settings in force and where they come from."""

from pathlib import Path
from typing import Annotated

import typer

from pylog_spark.cli.flags import said_flags
from pylog_spark.cli.options import TopicDump
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(
    name="config",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Show the settings that a job would run with.",
)


@app.callback()
def config() -> None:
    """Keep the commands of this group a group, even while there is only one."""


@app.command(epilog="Example: `pylog config show --origin --config nightly.yaml`")
def show(
    *,
    config_files: Annotated[
        list[Path] | None,
        typer.Option("--config", metavar="FILE", help="YAML; a later file wins."),
    ] = None,
    server_properties: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A broker's own server.properties.")
    ] = None,
    topic_dump: TopicDump = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any of these keys.")
    ] = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Also show where each value comes from.")
    ] = False,
    output: Annotated[
        OutputFormat, typer.Option(help="For a person, or one JSON object a line.")
    ] = OutputFormat.TABLE,
) -> None:
    """List every key that --set and --config know, with its value in force, unit and meaning.

    Topic keys are shown as for a topic that sets none of them itself.
    """
    flags = said_flags(locals())
    from pylog_spark.cli.config_show import show_config  # noqa: PLC0415  # pydantic, YAML, rich

    show_config(flags, with_origin=origin, as_json=output is OutputFormat.JSON)
