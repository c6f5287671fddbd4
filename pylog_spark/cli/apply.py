"""``pylog apply``: do exactly what a saved plan says."""

from pathlib import Path
from typing import Annotated

import typer

from pylog_spark.cli.options import DryRun, LedgerUri, Master, NoMarkClean, Output, Override, Trash
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)


@app.command(epilog="Example: `pylog apply tonight.json --ledger /data/ledger`")
def apply(  # noqa: PLR0913  # one argument an option
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="The file that --plan-out has written.")
    ],
    *,
    dry_run: DryRun = False,
    trash: Trash = None,
    override: Override = None,
    no_mark_clean: NoMarkClean = False,
    ledger: LedgerUri = None,
    master: Master = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Apply a plan that was saved: the same partitions, ranges, configs and clock, nothing else.

    A partition whose files are not what they were is refused, and the file is named with what was
    expected and what was found; the exit status is then 3, and the others are done.
    """
    from pylog_spark.cli.apply_runner import run_apply  # noqa: PLC0415  # Spark, not for --help
    from pylog_spark.operations.apply import ApplyOptions  # noqa: PLC0415  # the same
    from pylog_spark.options.load import trash_folder  # noqa: PLC0415  # the same

    said = ApplyOptions(
        dry_run=dry_run,
        ledger=ledger,
        trash=trash_folder(trash),
        mark_clean=False if no_mark_clean else None,
        overrides=frozenset(override or ()),
        master=master,
    )
    status = run_apply(plan, said, as_json=output is OutputFormat.JSON)
    if status:
        raise typer.Exit(status)
