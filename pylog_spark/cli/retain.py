"""``pylog retain``: remove what has expired, as a broker's log manager does."""

from typing import Annotated

import typer

from pylog_spark.cli.job_command import run_command
from pylog_spark.cli.options import (
    AssumeDefaults,
    ConfigFiles,
    DryRun,
    Exact,
    Exclude,
    FileList,
    HighWatermark,
    LedgerUri,
    Master,
    MaxDeleteRatio,
    MaxDuration,
    NoMarkClean,
    NowMs,
    Output,
    Override,
    PerDisk,
    PlanOut,
    ReportPage,
    Roots,
    SaidRole,
    ServerProperties,
    Settings,
    TopicDump,
    Topics,
    Trash,
)
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)

_EXAMPLE = "Example: `pylog retain /var/lib/kafka --role broker --topics 'clicks-*' --dry-run`"


@app.command(epilog=_EXAMPLE)
def retain(  # noqa: PLR0913  # one argument an option
    roots: Roots,
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    file_list: FileList = None,
    role: SaidRole = None,
    dry_run: DryRun = False,
    exact: Exact = False,
    keep_deleted: Annotated[
        bool,
        typer.Option(
            "--keep-deleted",
            help="Leave removed files as .deleted, to the broker's start or pylog purge.",
        ),
    ] = False,
    max_delete_ratio: MaxDeleteRatio = None,
    max_duration: MaxDuration = None,
    per_disk: PerDisk = None,
    override: Override = None,
    trash: Trash = None,
    plan_out: PlanOut = None,
    config_files: ConfigFiles = None,
    server_properties: ServerProperties = None,
    topic_dump: TopicDump = None,
    settings: Settings = None,
    assume_defaults: AssumeDefaults = None,
    high_watermark: HighWatermark = None,
    now_ms: NowMs = None,
    no_mark_clean: NoMarkClean = False,
    ledger: LedgerUri = None,
    report: ReportPage = None,
    master: Master = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Remove the segments that have expired, exactly as Kafka would.

    The oldest segments of a log go while they lie below its log start offset, while the log is
    larger than retention.bytes, or while they are older than retention.ms; at the first that stays
    it ends. Nothing at or above the checkpointed high watermark goes. A topic that is compacted is
    left to `pylog compact`. Try it with --dry-run first.
    """
    run_command("retain", locals())
