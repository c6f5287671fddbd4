"""The jobs: commands that work on whole log directories, on Spark.

They share their options, so that what was learnt for one holds for all.
"""

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pylog_spark.cli.arguments import parse_offset
from pylog_spark.cli.output import OutputFormat
from pylog_spark.config import HighWatermarkSource
from storage_core.catalog.roles import Role

app = typer.Typer(rich_markup_mode="markdown")


class Job(enum.StrEnum):
    """The jobs by the names of their commands."""

    RUN = "run"
    COMPACT = "compact"


_HELP = {
    Job.RUN: """The nightly job: do everything that is due in each partition of the log directories.

    In this version that is compaction. A partition whose topic's config is not known, or that
    needs recovery first, is left alone and said so. Each partition is a row of the result; one
    that fails does not stop the others.
    """,
    Job.COMPACT: """Compact every partition that is due, exactly as Kafka's log cleaner would.

    Policy, dirty ratio and lags of each topic decide what is due. Try it with --dry-run first:
    that writes nothing and shows what would be done.
    """,
}
_EXAMPLES = {
    Job.RUN: "Example: `pylog run /var/lib/kafka --role broker --ledger /var/lib/pylog/ledger`",
    Job.COMPACT: (
        "Example: `pylog compact /var/lib/kafka --role broker --topics 'orders-*' --dry-run`"
    ),
}


def _add_command(job: Job) -> Callable[..., None]:
    @app.command(job.value, help=_HELP[job], epilog=_EXAMPLES[job])
    def command(  # noqa: PLR0913  # one argument an option
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
            bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")
        ] = False,
        until_clean: Annotated[
            bool,
            typer.Option("--until-clean", help="Repeat where a bounded offset map was full."),
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
        high_watermark: Annotated[
            HighWatermarkSource | None,
            typer.Option(help="Its checkpoint (default), or all that is in the log is replicated."),
        ] = None,
        now_ms: Annotated[
            int | None,
            typer.Option(parser=parse_offset, metavar="MS", help="The clock. Default: now."),
        ] = None,
        no_mark_clean: Annotated[
            bool, typer.Option("--no-mark-clean", help="Write no clean-shutdown marker at the end.")
        ] = False,
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
        from pylog_spark.cli.job_runner import run_job  # noqa: PLC0415  # Spark, not for --help
        from pylog_spark.config.load import Flags  # noqa: PLC0415  # pydantic, YAML

        flags = Flags(
            config_files=config_files or (),
            server_properties=server_properties,
            settings=settings or (),
            include=topics or (),
            exclude=exclude or (),
            assume_defaults=assume_defaults or (),
            role=role,
            high_watermark=high_watermark,
            ledger=ledger,
            master=master,
            mark_clean=False if no_mark_clean else None,
            dry_run=dry_run,
            until_clean=until_clean,
            now_ms=now_ms,
        )
        status = run_job(job.value, roots, flags, as_json=output is OutputFormat.JSON)
        if status:
            raise typer.Exit(status)

    return command


for _job in Job:
    _add_command(_job)
