"""``pylog recover``: after a crash, what a broker's start would do, in parallel and said first."""

from pathlib import Path
from typing import Annotated

import typer

from pylog_spark.cli.arguments import parse_offset
from pylog_spark.cli.output import OutputFormat
from pylog_spark.cli.verify import FailOn
from storage_core.catalog.roles import Role

app = typer.Typer(rich_markup_mode="markdown")

_EXAMPLE = (
    "Example: `pylog recover /var/lib/kafka --role broker --salvage /var/tmp/salvage --dry-run`"
)


@app.command(epilog=_EXAMPLE)
def recover(  # noqa: PLR0913  # one argument an option
    roots: Annotated[
        list[Path], typer.Argument(metavar="ROOT...", help="Log directories (log.dirs).")
    ],
    *,
    topics: Annotated[
        list[str] | None, typer.Option("--topics", metavar="GLOB", help="Only these topics.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="GLOB", help="Not these topics.")
    ] = None,
    role: Annotated[
        Role | None,
        typer.Option(help="What the directories are. Whatever writes needs it said."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Read everything, show what would be cut and done; write nothing."
        ),
    ] = False,
    salvage: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Copy what is cut there first, as segments that open."),
    ] = None,
    max_truncate_bytes: Annotated[
        int | None,
        typer.Option(
            parser=parse_offset,
            metavar="N",
            help="Leave a partition alone that would lose more. Default: 64 MiB.",
        ),
    ] = None,
    allow_truncate: Annotated[
        bool,
        typer.Option(
            "--allow-truncate",
            help="Cut even below a checkpointed high watermark, or a log that is all lost.",
        ),
    ] = False,
    fail_on: Annotated[
        FailOn,
        typer.Option(
            help="Exit with 1 if something is cut: warn for any cut, error for readable records."
        ),
    ] = FailOn.NEVER,
    no_mark_clean: Annotated[
        bool, typer.Option("--no-mark-clean", help="Write no clean-shutdown marker at the end.")
    ] = False,
    config_files: Annotated[
        list[Path] | None,
        typer.Option("--config", metavar="FILE", help="YAML options; a later file wins."),
    ] = None,
    server_properties: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The broker's own file: defaults of its topics."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key; `pylog config show`."),
    ] = None,
    assume_defaults: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Topics of unknown config that have the default."),
    ] = None,
    now_ms: Annotated[
        int | None,
        typer.Option(parser=parse_offset, metavar="MS", help="The clock. Default: now."),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Keep a record of the run in Delta tables there."),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark master. Default: the session's, or local[*]."),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option(help="For a person, or one JSON object a line.")
    ] = OutputFormat.TABLE,
) -> None:
    """Recover every partition after a crash, so that the broker starts at once.

    What a broker does when it starts, in parallel: segments from the recovery point on are read and
    checked, their indexes and the producer state rebuilt; from the first batch that is torn or
    corrupt on, a log is cut. Then checkpoints and Kafka's clean-shutdown marker are written. Look
    at --dry-run first: it says what would be cut, how many bytes and records, and why.

    A partition that would lose more than --max-truncate-bytes, or what its checkpointed high
    watermark covers, is left alone and listed.
    """
    from pylog_spark.cli.job_runner import run_job  # noqa: PLC0415  # Spark, not for --help
    from pylog_spark.config.load import Flags  # noqa: PLC0415  # pydantic, YAML
    from storage_core.maintenance.verification.findings import Severity  # noqa: PLC0415  # numba

    flags = Flags(
        config_files=config_files or (),
        server_properties=server_properties,
        settings=settings or (),
        include=topics or (),
        exclude=exclude or (),
        assume_defaults=assume_defaults or (),
        role=role,
        ledger=ledger,
        master=master,
        mark_clean=False if no_mark_clean else None,
        dry_run=dry_run,
        now_ms=now_ms,
        allow_truncate=allow_truncate,
        max_truncate_bytes=max_truncate_bytes,
        salvage=salvage,
    )
    status = run_job(
        "recover",
        roots,
        flags,
        as_json=output is OutputFormat.JSON,
        fail_on=None if fail_on is FailOn.NEVER else Severity(fail_on.value),
    )
    if status:
        raise typer.Exit(status)
