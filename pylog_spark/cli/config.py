"""``pylog config``: the settings in force; a file of topic configs to begin with."""

from typing import Final

from rich.console import Console

from pylog_spark.exit_code import ExitCode
from pylog_spark.options.choices import OutputFormat
from pylog_spark.options.declared import ORIGIN, OUTPUT, WIDE
from pylog_spark.options.load import load_config
from pylog_spark.options.option import CommandLine
from pylog_spark.options.values import ConfigEntry
from pylog_spark.report import json_line
from pylog_spark.text_table import Column, TextTable, write_table

# Nothing here depends on the clock of a run.
_NO_CLOCK = 0
_WEEK_MS: Final = 7 * 24 * 3_600_000
_SETTING_TABLE: Final = TextTable(
    columns=(
        Column(heading="key", cell=lambda row: row["key"]),
        Column(heading="value", cell=lambda row: row["value"], folds=True),
        Column(heading="origin", cell=lambda row: row.get("origin", ""), folds=True),
        Column(heading="unit", cell=lambda row: row["unit"], rank=2),
    ),
    note=lambda row: row["doc"],
    note_heading="doc",
)


def show_config(line: CommandLine) -> int:
    """Print every setting in force, and return the exit status.

    Raises:
        ConfigError: As ``load_config``.
    """
    with_origin = line[ORIGIN]
    entries = load_config(line, now_ms=_NO_CLOCK).entries
    if line[OUTPUT] is OutputFormat.JSON:
        for entry in entries:
            print(json_line("setting", _row(entry, with_origin=with_origin)))  # noqa: T201  # the answer
        return ExitCode.DONE
    rows = [_row(entry, with_origin=with_origin) for entry in entries]
    write_table(Console(), _SETTING_TABLE, rows, is_wide=line[WIDE])
    return ExitCode.DONE


def _row(entry: ConfigEntry, *, with_origin: bool) -> dict[str, str]:
    origin = {"origin": entry.origin} if with_origin else {}
    return {"key": entry.key, "value": entry.value, **origin, "unit": entry.unit, "doc": entry.doc}
