"""``pylog doctor``: what state log directories are in, and what to do next."""

from pathlib import Path
from typing import Annotated

import typer

from pylog_spark.cli.flags import said_flags
from pylog_spark.cli.options import ConfigFiles, Exclude, GuessedRole, NowMs, Settings, Topics
from pylog_spark.cli.output import OutputFormat
from pylog_spark.cli.verify import FailOn

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)


@app.command(epilog="Example: `pylog doctor /var/lib/kafka`")
def doctor(  # noqa: PLR0913  # one argument an option
    roots: Annotated[
        list[str],
        typer.Argument(metavar="ROOT", help="Log directories, all of one broker's at best."),
    ],
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also open every batch, and replay producers.")
    ] = False,
    fail_on: Annotated[
        FailOn, typer.Option(help="Findings as bad as this make the exit status 1.")
    ] = FailOn.ERROR,
    show: Annotated[
        int, typer.Option(min=0, metavar="N", help="Print at most so many findings, worst first.")
    ] = 20,
    role: GuessedRole = None,
    config_files: ConfigFiles = None,
    server_properties: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The broker's own file: its recovery threads."),
    ] = None,
    settings: Settings = None,
    now_ms: NowMs = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Work on Spark there, however small the logs are."),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option(help="For a person, or one JSON object.")
    ] = OutputFormat.TABLE,
) -> None:
    """Say what is wrong, what a broker's start would do and how long it would take, what to run.

    Nothing is written, no lock is taken. Logs of a few GiB are read in this process, larger ones
    on Spark. The exit status is 1 for findings as bad as --fail-on says, 4 if a partition could
    not be looked at.
    """
    flags = said_flags(locals())
    from pylog_spark.cli.doctor_roots import run_doctor  # noqa: PLC0415  # numba, not for --help

    status = run_doctor(
        roots,
        flags,
        is_deep=deep,
        fail_on=fail_on.value,
        shown=show,
        as_json=output is OutputFormat.JSON,
    )
    if status:
        raise typer.Exit(status)
