"""``pylog survey``: what is due in any number of partitions, as far as listings tell."""

import typer

from pylog_spark.cli.flags import said_flags
from pylog_spark.cli.options import (
    AssumeDefaults,
    ConfigFiles,
    Exclude,
    FileList,
    GuessedRole,
    Master,
    NowMs,
    Output,
    Roots,
    Settings,
    TopicDump,
    Topics,
)
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)


@app.command(epilog="Example: `pylog survey s3://backup/kafka --file-list inventory.parquet`")
def survey(  # noqa: PLR0913  # one argument an option
    roots: Roots,
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    role: GuessedRole = None,
    file_list: FileList = None,
    config_files: ConfigFiles = None,
    settings: Settings = None,
    topic_dump: TopicDump = None,
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
    flags = said_flags(locals() | {"dry_run": True})
    from pylog_spark.cli.transfer_runner import run_survey  # noqa: PLC0415  # Spark, not for --help

    status = run_survey(roots, flags, as_json=output is OutputFormat.JSON)
    if status:
        raise typer.Exit(status)
