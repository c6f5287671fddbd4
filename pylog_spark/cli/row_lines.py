"""Rows of an answer for a program: JSON lines or CSV. JSON lines have all kinds of rows, CSV has
one kind.

CSV is that of RFC 4180, with one line of names. They are the keys of the JSON lines of that kind,
and so are the values: counts of bytes and epoch milliseconds, nothing for null, ``true`` and
``false``, JSON for what is a list or an object. Whoever opens CSV opens it in a spreadsheet, which
takes a text for a formula that begins with ``=``, ``+``, ``-`` or ``@``; names and messages are
those of files that somebody else wrote. Such a text gets an apostrophe in front. JSON has every
text as it is.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

import typer

from pylog_spark.cli.error_text import write_line
from pylog_spark.options.choices import OutputFormat
from pylog_spark.report import error_text, json_line
from pylog_spark.text import escaped, printable, to_json
from pylog_spark.view import OutputLine, Row

# And as Chinese and Japanese keyboards write them, which spreadsheets take as well.
_FORMULA_STARTS: Final = (*"=+-@", *"\uff1d\uff0b\uff0d\uff20")


def _write(text: str) -> None:
    typer.echo(text, nl=False)


class RowLines:
    """Writes the rows of an answer, one after the other.

    Args:
        output: JSON or CSV.
        columns: Their names, in order: all of these rows have them.
    """

    def __init__(
        self,
        output: OutputFormat,
        kind: str,
        columns: Iterable[str],
        *,
        write: Callable[[str], object] = _write,
    ) -> None:
        self.is_csv = output is OutputFormat.CSV
        self._kind = kind
        self._columns = tuple(columns)
        self._write = write
        self._csv = csv.writer(SimpleNamespace(write=write))  # its line ends are those of the RFC
        if self.is_csv:
            self._csv.writerow(self._columns)

    def write(self, lines: Iterable[OutputLine | str]) -> None:
        """Write lines, and remarks between them to standard error. CSV leaves out lines of
        another kind; their errors are remarks."""
        for line in lines:
            if isinstance(line, str):
                write_line(line)
            elif not self.is_csv:
                self._write_json(line)
            elif line.kind == self._kind:
                cells = {name: _cell(value) for name, value in line.row.items()}
                cells |= {name: _data_cell(text) for name, text in line.data.items()}
                self._csv.writerow([cells[name] for name in self._columns])
            else:
                for text in _remarks(line.row):
                    write_line(text)

    def _write_json(self, line: OutputLine) -> None:
        text = json_line(line.kind, line.row)
        if line.items is None:
            more = "".join(f',"{name}":{value}' for name, value in line.data.items())
            self._write(f"{text[:-1]}{more}}}\n")
            return
        name, items = line.items
        # In a text every quote is escaped: this is the key, and nothing else.
        before, _, after = text.partition(f'"{name}":[]')
        self._write(f'{before}"{name}":[')
        for number, item in enumerate(items):
            self._write(f",{item}" if number else item)
        self._write(f"]{after}\n")


def _remarks(row: Row) -> Iterator[str]:
    """Yield a hidden row's errors and notes for a person."""
    place = row.get("directory") or row.get("root")
    before = f"{place}: " if place else ""
    if row.get("error") is not None:
        yield f"{before}{error_text(row)}"
    yield from (f"{before}{error}" for error in row.get("errors", ()))
    yield from row.get("notes", ())


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case Mapping() | list() | tuple():
            text = to_json(value, separators=(",", ":"), default=str)
        case _:
            text = printable(str(value))
    return _no_formula(text)


def _data_cell(text: str) -> str:
    """Return a JSON text's cell; for a string, its characters."""
    if text == "null":
        return ""
    return _no_formula(escaped(json.loads(text))) if text.startswith('"') else text


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
