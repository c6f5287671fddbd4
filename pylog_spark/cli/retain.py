"""``pylog retain``: remove what has expired, as a broker's log manager does."""

from typing import Annotated

import typer

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
    PlanOut,
    ReportPage,
    Roots,
    SaidRole,
    ServerProperties,
    Settings,
    Topics,
    Trash,
)
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown")

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
    override: Override = None,
    trash: Trash = None,
    plan_out: PlanOut = None,
    config_files: ConfigFiles = None,
    server_properties: ServerProperties = None,
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
    from pylog_spark.cli.job_runner import run_job  # noqa: PLC0415  # Spark, not for --help
    from pylog_spark.config.load import Flags  # noqa: PLC0415  # pydantic, YAML

    flags = Flags(
        config_files=config_files or (),
        server_properties=server_properties,
        settings=settings or (),
        include=topics or (),
        exclude=exclude or (),
        file_list=file_list,
        assume_defaults=assume_defaults or (),
        role=role,
        high_watermark=high_watermark,
        ledger=ledger,
        master=master,
        mark_clean=False if no_mark_clean else None,
        dry_run=dry_run,
        exact=exact,
        keep_deleted=keep_deleted,
        now_ms=now_ms,
        max_delete_ratio=max_delete_ratio,
        max_duration=max_duration,
        overrides=override or (),
        trash=trash,
        plan_out=plan_out,
    )
    status = run_job("retain", roots, flags, as_json=output is OutputFormat.JSON, page=report)
    if status:
        raise typer.Exit(status)
