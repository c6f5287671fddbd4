"""``pylog recover``: after a crash, what a broker's start would do, in parallel and said first."""

from typing import Annotated

import typer

from pylog_spark.cli.job_command import run_command
from pylog_spark.cli.options import (
    AllowTruncate,
    AssumeDefaults,
    ConfigFiles,
    Exact,
    Exclude,
    FileList,
    FromStart,
    LedgerUri,
    Master,
    MaxTruncateBytes,
    NoMarkClean,
    NowMs,
    Output,
    Override,
    PerDisk,
    PlanOut,
    ReportPage,
    Roots,
    SaidRole,
    Salvage,
    ServerProperties,
    Settings,
    TopicDump,
    Topics,
    Trash,
)
from pylog_spark.cli.output import OutputFormat
from pylog_spark.cli.verify import FailOn, FailOnCut

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)

_EXAMPLE = (
    "Example: `pylog recover /var/lib/kafka --role broker --salvage /var/tmp/salvage --dry-run`"
)


@app.command(epilog=_EXAMPLE)
def recover(  # noqa: PLR0913  # one argument an option
    roots: Roots,
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    file_list: FileList = None,
    role: SaidRole = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Read everything, show what would be cut and done; write nothing."
        ),
    ] = False,
    exact: Exact = False,
    from_start: FromStart = False,
    salvage: Salvage = None,
    max_truncate_bytes: MaxTruncateBytes = None,
    allow_truncate: AllowTruncate = False,
    fail_on: FailOnCut = FailOn.NEVER,
    no_mark_clean: NoMarkClean = False,
    per_disk: PerDisk = None,
    override: Override = None,
    trash: Trash = None,
    plan_out: PlanOut = None,
    config_files: ConfigFiles = None,
    server_properties: ServerProperties = None,
    topic_dump: TopicDump = None,
    settings: Settings = None,
    assume_defaults: AssumeDefaults = None,
    now_ms: NowMs = None,
    ledger: LedgerUri = None,
    report: ReportPage = None,
    master: Master = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Recover every partition after a crash, so that the broker starts at once.

    What a broker does when it starts, in parallel: segments from the recovery point on are read and
    checked, their indexes and the producer state rebuilt; from the first batch that is torn or
    corrupt on, a log is cut. Then checkpoints and Kafka's clean-shutdown marker are written. Look
    at --dry-run first: it says what would be cut, how many bytes and records, and why.

    A partition that would lose more than --max-truncate-bytes, or what its checkpointed high
    watermark covers, is left alone and listed.
    """
    run_command("recover", locals())
