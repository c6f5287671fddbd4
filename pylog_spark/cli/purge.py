"""``pylog purge``: remove for good what was put aside, once its time is over."""

from typing import Annotated

import typer

from pylog_spark.cli.flags import said_flags
from pylog_spark.cli.options import (
    ConfigFiles,
    DryRun,
    Exclude,
    LedgerUri,
    Master,
    NowMs,
    OlderThan,
    Output,
    SaidRole,
    ServerProperties,
    Settings,
    Topics,
    TrashOfRuns,
)
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)


@app.command(epilog="Example: `pylog purge /var/lib/kafka --role broker --trash /data/trash`")
def purge(  # noqa: PLR0913  # one argument an option
    roots: Annotated[
        list[str] | None,
        typer.Argument(metavar="ROOT", help="Log directories, or managed roots."),
    ] = None,
    *,
    trash: TrashOfRuns = None,
    older_than: OlderThan = None,
    topics: Topics = None,
    exclude: Exclude = None,
    role: SaidRole = None,
    dry_run: DryRun = False,
    config_files: ConfigFiles = None,
    server_properties: ServerProperties = None,
    settings: Settings = None,
    now_ms: NowMs = None,
    ledger: LedgerUri = None,
    master: Master = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Empty the trash, and remove what a broker would remove at its next start.

    From the trash goes what runs put there more than --older-than ago: they cannot be undone any
    more. From a broker's directory go .deleted files, and directories of deleted partitions, once
    file.delete.delay.ms has passed; from a managed root, superseded generations and their objects.
    --dry-run lists. Spark is started only to write the ledger.
    """
    flags = said_flags(locals())
    from pylog_spark.cli.upkeep import run_purge  # noqa: PLC0415  # Arrow, not for --help

    status = run_purge(roots or [], flags, as_json=output is OutputFormat.JSON)
    if status:
        raise typer.Exit(status)
