"""``pylog config show``: the settings in force, and where they come from."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pylog_spark.exit_code import ExitCode
from pylog_spark.options.choices import OutputFormat
from pylog_spark.options.declared import ORIGIN, OUTPUT
from pylog_spark.options.load import load_config
from pylog_spark.options.option import CommandLine
from pylog_spark.options.values import ConfigEntry
from pylog_spark.report import json_line, write_table
from pylog_spark.text import printable

# Nothing here depends on the clock of a run.
_NO_CLOCK = 0


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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _row(entries[0], with_origin=with_origin):
        table.add_column(name, overflow="fold")
    for entry in entries:
        row = _row(entry, with_origin=with_origin)
        table.add_row(*(Text(printable(text)) for text in row.values()))
    write_table(Console(), table)
    return ExitCode.DONE


def _row(entry: ConfigEntry, *, with_origin: bool) -> dict[str, str]:
    origin = {"origin": entry.origin} if with_origin else {}
    return {"key": entry.key, "value": entry.value, **origin, "unit": entry.unit, "doc": entry.doc}
