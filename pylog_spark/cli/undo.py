"""``pylog undo``: put back what a run replaced, cut or removed."""

from typing import Annotated

import typer

from pylog_spark.cli.flags import said_flags
from pylog_spark.cli.options import (
    ConfigFiles,
    DryRun,
    Exclude,
    LedgerUri,
    Master,
    NoMarkClean,
    Output,
    Topics,
    TrashOfRuns,
)
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)


@app.command(epilog="Example: `pylog undo 20260102T030405Z-0a1b2c3d --trash /data/trash --dry-run`")
def undo(  # noqa: PLR0913  # one argument an option
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run, as its report or the ledger names it.")
    ],
    roots: Annotated[
        list[str] | None,
        typer.Argument(metavar="ROOT", help="Managed roots; local ones are in the trash."),
    ] = None,
    *,
    trash: TrashOfRuns = None,
    topics: Topics = None,
    exclude: Exclude = None,
    dry_run: DryRun = False,
    no_mark_clean: NoMarkClean = False,
    config_files: ConfigFiles = None,
    ledger: LedgerUri = None,
    master: Master = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Undo a run: bring each partition back to what it was before.

    A local run is undone from the trash that it was given (--trash), a run over a managed root by
    its generations. A partition of which a single file is not what the run left is refused, and
    the file is named; the others are undone. Spark is started only to write the ledger.
    """
    flags = said_flags(locals())
    from pylog_spark.cli.upkeep import run_undo  # noqa: PLC0415  # Arrow, not for --help

    status = run_undo(run, roots or [], flags, as_json=output is OutputFormat.JSON)
    if status:
        raise typer.Exit(status)
