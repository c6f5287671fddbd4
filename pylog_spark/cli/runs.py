"""``pylog runs``: earlier runs here, and their possible undo."""

import shlex
from dataclasses import asdict, fields
from typing import Final

import humanize

from pylog_spark.cli.runner import load_options, show
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.past_runs import PastRun, Undo, list_past_runs
from pylog_spark.options.declared import LAST, ONLY_RUN, QUIET
from pylog_spark.options.option import CommandLine
from pylog_spark.report import number_column, size_column, size_text, text_column, time_column
from pylog_spark.view import NOTHING, Column, Row, Table, TableKind, Verbatim, View, lines_of
from storage_core.wording import count_text


def show_runs(line: CommandLine) -> int:
    """Print the last runs; return the exit status. They are those of a ledger, a trash or both."""
    options = load_options(line)
    runs = list_past_runs(options.ledger, options.trash, last=line[LAST], only=line[ONLY_RUN])
    if line[QUIET]:
        return ExitCode.DONE
    rows = [asdict(run) for run in runs]
    view = View(
        lines=lines_of("past_run", rows),
        csv=("past_run", [field.name for field in fields(PastRun)]),
        blocks=[
            Table(kind=RUN_TABLE, rows=rows),
            *map(Verbatim, _footer(runs, options.trash)),
        ],
        status=ExitCode.DONE,
    )
    return show(view, line)


def _footer(runs: list[PastRun], trash: str | None) -> list[str]:
    if not runs:
        return ["no run is written down there"]
    if trash is None:
        return ["--trash FOLDER says which of them can be undone"]
    names = [run.run_id for run in runs if run.undo in {Undo.POSSIBLE, Undo.BEGUN}]
    if not names:
        return ["none of them can be undone from this trash"]
    command = shlex.join(["pylog", "undo", names[0], "--trash", trash, "--dry-run"])
    return [f"`{command}` shows what undoing the newest would bring back; newer ones first"]


def _exit(row: Row) -> str:
    if row["has_ended"] is False:
        return "no end"
    return NOTHING if row["exit_code"] is None else str(row["exit_code"])


def _duration(row: Row) -> str:
    ms = row["duration_ms"]
    return NOTHING if ms is None else humanize.naturaldelta(ms / 1000)


def _undo(row: Row) -> str:
    if row["undo"] is None:
        return NOTHING
    partitions = row["kept_partitions"]
    return (
        f"{row['undo']}: {count_text(partitions, 'partition')}, {size_text(row['kept_bytes'])}"
        if partitions
        else row["undo"]
    )


def _note(row: Row) -> str:
    died = "it died, or is still running" if row["has_ended"] is False else ""
    return "; ".join(part for part in (row["error"] or "", died) if part)


RUN_TABLE: Final = TableKind(
    columns=(
        text_column("run", "run_id"),
        text_column("action", "action"),
        Column(heading="exit", cell=_exit, rank=2),
        number_column("done", "partitions_done", rank=3),
        number_column("failed", "partitions_failed", rank=4),
        number_column("skipped", "partitions_skipped", rank=6),
        size_column("bytes", "bytes_before", rank=5),
        size_column("after", "bytes_after", rank=5),
        Column(heading="undo", cell=_undo, rank=1),
        time_column("started", "started_ms", rank=8),
        Column(heading="took", cell=_duration, value=lambda row: row["duration_ms"], rank=7),
        Column(heading="roots", cell=lambda row: ", ".join(row["roots"]), rank=9),
    ),
    note=_note,
    note_heading="remarks",
)
