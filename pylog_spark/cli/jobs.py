"""The jobs that keep logs small: ``pylog run`` and ``pylog compact``, on Spark."""

from typing import Final

import typer

from pylog_spark.cli.job_command import run_command
from pylog_spark.cli.options import (
    AllowTruncate,
    AssumeDefaults,
    ConfigFiles,
    DryRunOrExact,
    Exact,
    Exclude,
    FileList,
    HighWatermark,
    LedgerUri,
    Master,
    MaxBytes,
    MaxDeleteRatio,
    MaxDuration,
    MaxTruncateBytes,
    MinFree,
    NoMarkClean,
    NowMs,
    Output,
    Override,
    PerDisk,
    PlanOut,
    ReportPage,
    Roots,
    SaidRole,
    SaidStrategy,
    Salvage,
    ServerProperties,
    Settings,
    TopicDump,
    Topics,
    Trash,
    UntilClean,
    WorkOrder,
)
from pylog_spark.cli.output import OutputFormat
from pylog_spark.cli.verify import FailOn, FailOnCut
from pylog_spark.planning import Strategy

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)

_RUN_EXAMPLE: Final = (
    "Example: `pylog run /var/lib/kafka --role broker --ledger /var/lib/pylog/ledger`"
)
_COMPACT_EXAMPLE: Final = (
    "Example: `pylog compact /var/lib/kafka --role broker --topics 'orders-*' --dry-run`"
)


@app.command(epilog=_RUN_EXAMPLE)
def run(  # noqa: PLR0913  # one argument an option
    roots: Roots,
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    file_list: FileList = None,
    role: SaidRole = None,
    dry_run: DryRunOrExact = False,
    exact: Exact = False,
    until_clean: UntilClean = False,
    strategy: SaidStrategy = Strategy.AUTO,
    max_bytes: MaxBytes = None,
    max_duration: MaxDuration = None,
    min_free: MinFree = None,
    per_disk: PerDisk = None,
    max_delete_ratio: MaxDeleteRatio = None,
    order: WorkOrder = None,
    override: Override = None,
    trash: Trash = None,
    plan_out: PlanOut = None,
    salvage: Salvage = None,
    max_truncate_bytes: MaxTruncateBytes = None,
    allow_truncate: AllowTruncate = False,
    fail_on: FailOnCut = FailOn.NEVER,
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
    """The nightly job: do everything that is due in each partition of the log directories.

    A broker's directory that was not cleanly shut down is recovered first. Then retention removes
    what has expired, compaction leaves the newest record of each key, and what former runs have
    put aside is purged. --max-bytes, --min-free and --order are about compaction, --max-duration is
    about all but the purge. A partition whose topic's config is not known is left alone and said
    so. Each partition is a row of the result; one that fails does not stop the others. A run that
    was killed is simply started again.
    """
    run_command("run", locals())


@app.command(epilog=_COMPACT_EXAMPLE)
def compact(  # noqa: PLR0913  # one argument an option
    roots: Roots,
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    file_list: FileList = None,
    role: SaidRole = None,
    dry_run: DryRunOrExact = False,
    exact: Exact = False,
    until_clean: UntilClean = False,
    strategy: SaidStrategy = Strategy.AUTO,
    max_bytes: MaxBytes = None,
    max_duration: MaxDuration = None,
    min_free: MinFree = None,
    per_disk: PerDisk = None,
    max_delete_ratio: MaxDeleteRatio = None,
    order: WorkOrder = None,
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
    """Compact every partition that is due, exactly as Kafka's log cleaner would.

    Policy, dirty ratio and lags of each topic decide what is due. Try it with --dry-run first:
    that writes nothing and shows what would be done.
    """
    run_command("compact", locals())
