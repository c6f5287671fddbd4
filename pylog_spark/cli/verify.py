"""``pylog verify``: is what lies in log directories whole?"""

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from pylog_spark.cli.flags import said_flags
from pylog_spark.cli.options import (
    ConfigFiles,
    Exclude,
    GuessedRole,
    LedgerUri,
    Master,
    NowMs,
    Output,
    PerDisk,
    ReportPage,
    Roots,
    Settings,
    Topics,
)
from pylog_spark.cli.output import OutputFormat

if TYPE_CHECKING:
    from storage_core.maintenance.verification.findings import Severity

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)


class FailOn(enum.StrEnum):
    """From which severity on findings change the exit status."""

    INFO = "info"
    HARMLESS = "harmless"
    WARN = "warn"
    ERROR = "error"
    FATAL = "fatal"
    NEVER = "never"

    @property
    def severity(self) -> "Severity | None":
        """The severity, None for never."""
        from storage_core.maintenance.verification.findings import Severity  # noqa: PLC0415  # numba

        return None if self is FailOn.NEVER else Severity(self.value)


# Of the jobs that recover.
FailOnCut = Annotated[
    FailOn,
    typer.Option(
        "--fail-on",
        help="Exit with 1 if something is cut: warn for any cut, error for readable records.",
    ),
]


@app.command(epilog="Example: `pylog verify /var/lib/kafka --deep --fail-on warn`")
def verify(  # noqa: PLR0913  # one argument an option
    roots: Roots,
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also open every batch, and replay producers."),
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Somebody is writing: files may vanish or grow.")
    ] = False,
    fail_on: Annotated[
        FailOn, typer.Option(help="Findings as bad as this make the exit status 1.")
    ] = FailOn.ERROR,
    show: Annotated[
        int, typer.Option(min=0, metavar="N", help="Print at most so many findings, worst first.")
    ] = 100,
    role: GuessedRole = None,
    per_disk: PerDisk = None,
    config_files: ConfigFiles = None,
    settings: Settings = None,
    now_ms: NowMs = None,
    ledger: LedgerUri = None,
    report: ReportPage = None,
    master: Master = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Check every batch, index, snapshot and checkpoint; nothing is written, no lock is taken.

    What is found has a stable code, a severity and what to do about it; docs/findings.md lists
    them. The exit status is 1 for findings as bad as --fail-on says, 4 if a partition could not
    be looked at.
    """
    flags = said_flags(locals())
    from pylog_spark.cli.verify_roots import run_verify  # noqa: PLC0415  # Spark, not for --help
    from pylog_spark.operations.verify_report import VerifyRequest  # noqa: PLC0415  # Spark

    request = VerifyRequest(
        is_deep=deep,
        is_live=live,
        fail_on=fail_on.severity,
        shown=show,
    )
    status = run_verify(roots, flags, request, as_json=output is OutputFormat.JSON, page=report)
    if status:
        raise typer.Exit(status)
