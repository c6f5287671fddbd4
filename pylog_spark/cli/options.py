"""Options that several commands have, each declared once: its names, its type, its line of help.

    def retain(roots: Roots, *, topics: Topics = None, dry_run: DryRun = False) -> None: ...

Defaults stand in the commands: typer wants to see them there.
"""

from pathlib import Path
from typing import Annotated

import typer

from pylog_spark.cli.arguments import parse_offset
from pylog_spark.cli.output import OutputFormat
from pylog_spark.config import HighWatermarkSource, Order
from pylog_spark.planning import Strategy
from storage_core.catalog.roles import Role

Roots = Annotated[
    list[str],
    typer.Argument(metavar="ROOT...", help="Log directories (log.dirs), or URLs of copies."),
]
Topics = Annotated[
    list[str] | None, typer.Option("--topics", metavar="GLOB", help="Only these topics.")
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="GLOB", help="Not these topics.")
]
SaidRole = Annotated[
    Role | None, typer.Option("--role", help="What the roots are. Whatever writes needs it said.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")]
# Where there are bounds to begin with: ``program`` makes these two options of ``--dry-run=exact``.
DryRunOrExact = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Show what would be done; write nothing. `--dry-run=exact` also reads what would be "
        "cleaned, so that the figures are exact.",
    ),
]
Exact = Annotated[bool, typer.Option("--exact", hidden=True)]
UntilClean = Annotated[
    bool, typer.Option("--until-clean", help="Repeat where a bounded offset map was full.")
]
SaidStrategy = Annotated[
    Strategy,
    typer.Option(
        "--strategy",
        help="How tasks share an offset map; the result is the same. Default: by its size.",
    ),
]
ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option("--config", metavar="FILE", help="YAML options; a later file wins."),
]
ServerProperties = Annotated[
    Path | None,
    typer.Option(
        "--server-properties",
        metavar="FILE",
        help="The broker's own file: defaults of its topics.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key; `pylog config show`."),
]
AssumeDefaults = Annotated[
    list[str] | None,
    typer.Option(
        "--assume-defaults",
        metavar="GLOB",
        help="Topics of unknown config that have the default.",
    ),
]
HighWatermark = Annotated[
    HighWatermarkSource | None,
    typer.Option(
        "--high-watermark",
        help="Its checkpoint (default), or all that is in the log is replicated.",
    ),
]
NowMs = Annotated[
    int | None,
    typer.Option("--now-ms", parser=parse_offset, metavar="MS", help="The clock. Default: now."),
]
NoMarkClean = Annotated[
    bool, typer.Option("--no-mark-clean", help="Write no clean-shutdown marker at the end.")
]
FileList = Annotated[
    str | None,
    typer.Option(
        "--file-list",
        metavar="PATH",
        help="An inventory of mirrors in place of listing: CSV, Parquet, JSON lines, S3 Inventory.",
    ),
]
LedgerUri = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URI", help="Keep a record of the run in Delta tables there."),
]
ReportPage = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Write a page to be read or sent."),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Spark master. Default: the session's, or local[*]."
    ),
]
Output = Annotated[
    OutputFormat, typer.Option("--output", help="For a person, or one JSON object a line.")
]
Salvage = Annotated[
    Path | None,
    typer.Option(
        "--salvage",
        metavar="DIR",
        help="Copy what is cut there first, as segments that open.",
    ),
]
MaxTruncateBytes = Annotated[
    int | None,
    typer.Option(
        "--max-truncate-bytes",
        parser=parse_offset,
        metavar="N",
        help="Leave a partition alone that would lose more. Default: 64 MiB.",
    ),
]
AllowTruncate = Annotated[
    bool,
    typer.Option(
        "--allow-truncate",
        help="Cut even below a checkpointed high watermark, or a log that is all lost.",
    ),
]
MaxBytes = Annotated[
    str | None,
    typer.Option(
        "--max-bytes",
        metavar="AMOUNT",
        help="Begin with nothing more once so much was read: 64GiB.",
    ),
]
MaxDuration = Annotated[
    str | None,
    typer.Option(
        "--max-duration", metavar="TIME", help="Begin with nothing more after so long: 90m."
    ),
]
MinFree = Annotated[
    str | None,
    typer.Option("--min-free", metavar="AMOUNT", help="Leave so much of each disk free: 20GiB."),
]
MaxDeleteRatio = Annotated[
    str | None,
    typer.Option(
        "--max-delete-ratio",
        metavar="F",
        help="Refuse retention of more than this share of a run, topic or partition. Default: 0.5.",
    ),
]
WorkOrder = Annotated[
    Order | None,
    typer.Option("--order", help="Which partitions come first. Default: urgency."),
]
Override = Annotated[
    list[str] | None,
    typer.Option("--override", metavar="CODE", help="Switch off the guard that refuses with CODE."),
]
Trash = Annotated[
    str | None,
    typer.Option(
        "--trash",
        metavar="DIR",
        help="Keep there what is replaced or removed, so that `pylog undo` can put it back.",
    ),
]
PlanOut = Annotated[
    Path | None,
    typer.Option(
        "--plan-out",
        metavar="FILE",
        help="Save the plan, for `pylog apply`: .json, or .parquet.",
    ),
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="TIME", help="How long what was put aside is kept. Default: 72h."
    ),
]
