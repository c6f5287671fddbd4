"""Options that several commands have, each declared once: its names, its type, its line of help.

    def retain(roots: Roots, *, topics: Topics = None, dry_run: DryRun = False) -> None: ...

Defaults stand in the commands: typer wants to see them there.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from pylog_spark.cli.arguments import parse_offset
from pylog_spark.cli.output import OutputFormat
from pylog_spark.options import HighWatermarkSource, Order
from pylog_spark.planning import Strategy
from storage_core.catalog.roles import Role

# Headings of the help text; what stands under none of them says what is done.
_CHOICE: Final = "What it works on"
_CONFIG: Final = "Config and clock"
_GUARDS: Final = "Guards, and what is kept aside"
_OUTPUT: Final = "Where it runs, what it tells"

Roots = Annotated[
    list[str],
    typer.Argument(metavar="ROOT", help="Log directories (log.dirs), or URLs of copies."),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topics", rich_help_panel=_CHOICE, metavar="GLOB", help="Only these topics."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", rich_help_panel=_CHOICE, metavar="GLOB", help="Not these topics."),
]
SaidRole = Annotated[
    Role | None,
    typer.Option(
        "--role", rich_help_panel=_CHOICE, help="What the roots are. Whatever writes needs it said."
    ),
]
# Where nothing is written, so that a guess is good enough.
GuessedRole = Annotated[
    Role | None,
    typer.Option(
        "--role",
        rich_help_panel=_CHOICE,
        help="What the directories are. Default: what they look like.",
    ),
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
    typer.Option(
        "--config", rich_help_panel=_CONFIG, metavar="FILE", help="YAML options; a later file wins."
    ),
]
ServerProperties = Annotated[
    Path | None,
    typer.Option(
        "--server-properties",
        rich_help_panel=_CONFIG,
        metavar="FILE",
        help="The broker's own file: defaults of its topics.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        rich_help_panel=_CONFIG,
        metavar="KEY=VALUE",
        help="Override a key; `pylog config show`.",
    ),
]
TopicDump = Annotated[
    Path | None,
    typer.Option(
        "--topic-dump",
        rich_help_panel=_CONFIG,
        metavar="FILE",
        help="Exported configs of topics: what kafka-configs.sh --describe --all prints, or JSON.",
    ),
]
AssumeDefaults = Annotated[
    list[str] | None,
    typer.Option(
        "--assume-defaults",
        rich_help_panel=_CONFIG,
        metavar="GLOB",
        help="Topics of unknown config that have the default.",
    ),
]
HighWatermark = Annotated[
    HighWatermarkSource | None,
    typer.Option(
        "--high-watermark",
        rich_help_panel=_CONFIG,
        help="Its checkpoint (default), or all that is in the log is replicated.",
    ),
]
NowMs = Annotated[
    int | None,
    typer.Option(
        "--now-ms",
        rich_help_panel=_CONFIG,
        parser=parse_offset,
        metavar="MS",
        help="The clock. Default: now.",
    ),
]
NoMarkClean = Annotated[
    bool, typer.Option("--no-mark-clean", help="Write no clean-shutdown marker at the end.")
]
FileList = Annotated[
    str | None,
    typer.Option(
        "--file-list",
        rich_help_panel=_CHOICE,
        metavar="PATH",
        help="An inventory of mirrors in place of listing: CSV, Parquet, JSON lines, S3 Inventory.",
    ),
]
LedgerUri = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        rich_help_panel=_OUTPUT,
        metavar="URI",
        help="Keep a record of the run in Delta tables there.",
    ),
]
ReportPage = Annotated[
    Path | None,
    typer.Option(
        "--report",
        rich_help_panel=_OUTPUT,
        metavar="FILE.html",
        help="Write a page to be read or sent.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        rich_help_panel=_OUTPUT,
        metavar="URL",
        help="Spark master. Default: the session's, or local[*].",
    ),
]
Output = Annotated[
    OutputFormat,
    typer.Option(
        "--output", rich_help_panel=_OUTPUT, help="For a person, or one JSON object a line."
    ),
]
Salvage = Annotated[
    Path | None,
    typer.Option(
        "--salvage",
        rich_help_panel=_GUARDS,
        metavar="DIR",
        help="Copy what is cut there first, as segments that open.",
    ),
]
MaxTruncateBytes = Annotated[
    int | None,
    typer.Option(
        "--max-truncate-bytes",
        rich_help_panel=_GUARDS,
        parser=parse_offset,
        metavar="N",
        help="Leave a partition alone that would lose more. Default: 64 MiB.",
    ),
]
AllowTruncate = Annotated[
    bool,
    typer.Option(
        "--allow-truncate",
        rich_help_panel=_GUARDS,
        help="Cut even below a checkpointed high watermark, or a log that is all lost.",
    ),
]
FromStart = Annotated[
    bool,
    typer.Option(
        "--from-start",
        rich_help_panel=_CHOICE,
        help="Read every log from its start, as if nothing said that it was closed or flushed.",
    ),
]
MaxBytes = Annotated[
    str | None,
    typer.Option(
        "--max-bytes",
        rich_help_panel=_CHOICE,
        metavar="AMOUNT",
        help="Begin with nothing more once so much was read: 64GiB.",
    ),
]
MaxDuration = Annotated[
    str | None,
    typer.Option(
        "--max-duration",
        rich_help_panel=_CHOICE,
        metavar="TIME",
        help="Begin with nothing more after so long: 90m.",
    ),
]
MinFree = Annotated[
    str | None,
    typer.Option(
        "--min-free",
        rich_help_panel=_GUARDS,
        metavar="AMOUNT",
        help="Leave so much of each disk free: 20GiB.",
    ),
]
MaxDeleteRatio = Annotated[
    str | None,
    typer.Option(
        "--max-delete-ratio",
        rich_help_panel=_GUARDS,
        metavar="F",
        help="Refuse retention of more than this share of a run, topic or partition. Default: 0.5.",
    ),
]
WorkOrder = Annotated[
    Order | None,
    typer.Option(
        "--order", rich_help_panel=_CHOICE, help="Which partitions come first. Default: urgency."
    ),
]
Override = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        rich_help_panel=_GUARDS,
        metavar="CODE",
        help="Switch off the guard that refuses with CODE.",
    ),
]
Trash = Annotated[
    str | None,
    typer.Option(
        "--trash",
        rich_help_panel=_GUARDS,
        metavar="DIR",
        help="Keep there what is replaced or removed, so that `pylog undo` can put it back.",
    ),
]
TrashOfRuns = Annotated[
    str | None,
    typer.Option(
        "--trash",
        rich_help_panel=_CHOICE,
        metavar="DIR",
        help="The folder in which runs kept what they took away.",
    ),
]
PlanOut = Annotated[
    Path | None,
    typer.Option(
        "--plan-out",
        rich_help_panel=_OUTPUT,
        metavar="FILE",
        help="Save the plan, for `pylog apply`: .json, or .parquet.",
    ),
]
PerDisk = Annotated[
    int | None,
    typer.Option(
        "--per-disk",
        rich_help_panel=_OUTPUT,
        min=1,
        metavar="N",
        help="At most so many tasks at one local disk at once.",
    ),
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="TIME", help="How long what was put aside is kept. Default: 72h."
    ),
]
