"""``pylog survey``: what is due in any number of partitions, as far as listings tell."""

import typer

from pylog_spark.cli.options import (
    AssumeDefaults,
    ConfigFiles,
    Exclude,
    FileList,
    Master,
    NowMs,
    Output,
    Roots,
    SaidRole,
    Settings,
    Topics,
)
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown")


@app.command(epilog="Example: `pylog survey s3://backup/kafka --file-list inventory.parquet`")
def survey(  # noqa: PLR0913  # one argument an option
    roots: Roots,
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    role: SaidRole = None,
    file_list: FileList = None,
    config_files: ConfigFiles = None,
    settings: Settings = None,
    assume_defaults: AssumeDefaults = None,
    now_ms: NowMs = None,
    master: Master = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say what retention and compaction would do, without opening a single file.

    A mirror is listed page by page, or an inventory takes that place; of a managed root one
    manifest a partition is read. Sizes are exact; ages are those of the files where a manifest
    does not tell the records' own. Meant for many partitions: `pylog explain` knows more of one.
    """
    from pylog_spark.cli.transfer_runner import run_survey  # noqa: PLC0415  # Spark, not for --help
    from pylog_spark.config.load import Flags  # noqa: PLC0415  # pydantic, YAML

    flags = Flags(
        config_files=config_files or (),
        settings=settings or (),
        include=topics or (),
        exclude=exclude or (),
        assume_defaults=assume_defaults or (),
        role=role,
        file_list=file_list,
        master=master,
        now_ms=now_ms,
        dry_run=True,
    )
    status = run_survey(roots, flags, as_json=output is OutputFormat.JSON)
    if status:
        raise typer.Exit(status)
