"""Write blocks to a terminal: sentences, commands, and tables that fit.

A table is as wide as the terminal, 80 columns where there is none (``COLUMNS`` says otherwise).
Columns without a single value are left out; where room is short, so are those of the highest
ranks, and a line below names them. What a row has to say in a sentence stands behind it where all
such sentences fit, and on lines below it where they do not. Asked for a wide table, all rows,
columns and sentences are on lines of their own, however long these become.

Text that came from file names or error messages cannot steer the terminal: control characters are
escaped. Whatever the number of rows, the work is a constant amount for each.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.highlighter import ReprHighlighter
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from pylog_spark.text import printable
from pylog_spark.view import (
    NOTHING,
    Block,
    Column,
    Figure,
    Row,
    Sentence,
    Table,
    TableKind,
    Verbatim,
    has_several_roots,
)

# What a person is shown of more rows than anybody reads; as JSON, or wide, every row is there.
SHOWN_ROWS: Final = 1000
_BETWEEN: Final = "  "
_NOTE_INDENT: Final = "    "
# What a name is folded to where not even the columns that always stay have room.
_LEAST_WIDTH: Final = 8
# In backquotes, or to the end of a line.
_COMMAND: Final = re.compile(r"`[^`]*`|(?<!`)\bpylog .*| --[a-z].*")
_SHORT_COMMAND: Final = 20
_MARKS: Final = ReprHighlighter()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filled:
    """A column with its cells, safe to show."""

    column: Column
    cells: list[str]
    width: int
    is_empty: bool

    @classmethod
    def of(cls, column: Column, rows: Sequence[Row]) -> "_Filled":
        cells = [column.cell(row) for row in rows]
        # Of nearly all columns one look at all cells together tells that they are plain.
        joined = _BETWEEN.join(cells)
        if printable(joined) != joined:
            cells = list(map(printable, cells))
        length = len if joined.isascii() and column.heading.isascii() else _length
        return cls(
            column=column,
            cells=cells,
            width=max(map(length, (column.heading, *cells))),
            is_empty={*cells} <= {"", NOTHING},
        )


def write_blocks(console: Console, blocks: Iterable[Block], *, is_wide: bool = False) -> None:
    """Write blocks one after the other.

    A sentence is broken between words, its further lines two columns deeper than the first. One
    that has a long command in it is not broken, nor is a long word; a short command comes through
    unbroken.

    Args:
        console: Where to; its width is that of tables.
        blocks: What is written; a figure is of pages only.
        is_wide: Leave out no column and no row, and break no line.
    """
    for block in blocks:
        match block:
            case Table():
                if block.rows:
                    _write_table(console, block, is_wide=is_wide)
            case Verbatim():
                console.print(Text(printable(block.text), style=block.style), soft_wrap=True)
            case str():
                _write_sentence(console, Sentence(block), is_wide=is_wide)
            case Sentence():
                _write_sentence(console, block, is_wide=is_wide)
            case Figure():
                pass


def _write_sentence(console: Console, sentence: Sentence, *, is_wide: bool) -> None:
    text = printable(sentence.text)
    parts = [text]
    has_command = any(len(command) > _SHORT_COMMAND for command in _COMMAND.findall(text))
    if not is_wide and cell_len(text) > console.width and not has_command:
        indent = " " * (len(text) - len(text.lstrip()))
        parts = textwrap.wrap(
            text.lstrip(),
            console.width,
            initial_indent=indent,
            subsequent_indent=indent + _BETWEEN,
            break_long_words=False,
            break_on_hyphens=False,
        )
    for part in parts:
        drawn = Text(part, style=sentence.style)
        console.print(_MARKS(drawn) if sentence.has_marks else drawn, soft_wrap=True)


def _write_table(console: Console, table: Table, *, is_wide: bool) -> None:
    rows, kind = table.rows, table.kind
    shown = rows if is_wide else rows[:SHOWN_ROWS]
    more = (table.total or len(rows)) - len(shown)
    root, parent = _root_column(rows, is_wide=is_wide)
    columns = [_Filled.of(column, shown) for column in (*root, *kind.columns)]
    if not is_wide:
        columns = [one for one in columns if not (one.is_empty and one.column.rank)]
    note = _note_column(kind, shown, parent=parent)
    room = None if is_wide else console.width
    if note is not None and (room is None or _width([*columns, note]) <= room):
        columns, note = [*columns, note], None
    dropped: list[str] = []
    if room is not None:
        columns, dropped = _fit(columns, room)
    if kind.title is not None:
        console.print(Text(kind.title, style="italic"))
    console.print(Segments(_segments(columns, note, shown, room)), end="", crop=False)
    left_out = []
    if more:
        left_out.append(f"and {more:,} more; --wide or --output json shows all of them")
    if dropped:
        left_out.append(f"not in {room} columns: {', '.join(dropped)}; --wide shows all")
    if parent:
        left_out.append(f"roots are below {parent}")
    for line in left_out:
        for part in _wrapped(printable(line), room or len(line)):
            console.print(Text(part, style="dim"), soft_wrap=True)


def _root_column(rows: Sequence[Row], *, is_wide: bool) -> tuple[tuple[Column, ...], str]:
    """Return the column of several roots, and their shared folder."""
    if not has_several_roots(rows):
        return (), ""
    parent = "" if is_wide else _shared_folder({str(row.get("root")) for row in rows})
    column = Column(
        heading="root", cell=lambda row: str(row.get("root")).removeprefix(parent), folds=True
    )
    return (column,), parent


def _shared_folder(roots: Iterable[str]) -> str:
    """Return the common folder of all roots, with a slash; else nothing."""
    folders = zip(*(root.split("/")[:-1] for root in roots), strict=False)
    shared = takewhile(lambda names: len(set(names)) == 1, folders)
    folder = "".join(f"{names[0]}/" for names in shared)
    return "" if folder == "/" or folder.endswith("//") else folder


def _note_column(kind: TableKind, rows: Sequence[Row], *, parent: str) -> _Filled | None:
    """Return the notes of rows as a column; None without notes. The root's name, shown by the
    table or above it, is not repeated."""
    if kind.note is None:
        return None
    note_of = kind.note

    def text(row: Row) -> str:
        root = row.get("root")
        note = note_of(row)
        if root:
            note = _without_folder(note, f"{root}/")
        return _without_folder(note, parent) if parent else note

    filled = _Filled.of(Column(heading=kind.note_heading, cell=text, style=kind.note_style), rows)
    return None if filled.is_empty else filled


def _without_folder(text: str, folder: str) -> str:
    """Return a sentence with paths in a folder shortened to their rest. In a salvage or a trash
    the path of a root inside stays whole."""
    return re.sub(rf"(?<![\w.~-]){re.escape(folder)}", "", text)


def _width(columns: Sequence[_Filled]) -> int:
    return sum(one.width for one in columns) + len(_BETWEEN) * (len(columns) - 1)


def _fit(columns: Sequence[_Filled], room: int) -> tuple[list[_Filled], list[str]]:
    """Return the fitting columns, as wide as possible, and other headings. A single long name
    folds before it costs all rows a column."""
    most = max(room // (sum(one.column.folds for one in columns) + 1), _LEAST_WIDTH)
    fitted = [
        replace(one, width=min(one.width, most)) if one.column.folds else one for one in columns
    ]
    spare = room - _width(fitted)
    gone: set[int] = set()
    for number in sorted(
        range(len(fitted)), key=lambda n: (fitted[n].column.rank, n), reverse=True
    ):
        if spare >= 0 or not fitted[number].column.rank:
            break
        gone.add(number)
        spare += fitted[number].width + len(_BETWEEN)
    # What is left over goes to the names, from left to right; what is missing, they give first.
    for number in sorted(range(len(fitted)), key=lambda n: not fitted[n].column.folds):
        one, whole = fitted[number], columns[number].width
        if number not in gone and (one.column.folds or spare < 0):
            width = max(min(whole, one.width + spare), min(_LEAST_WIDTH, one.width))
            spare -= width - one.width
            fitted[number] = replace(one, width=width)
    return (
        [one for number, one in enumerate(fitted) if number not in gone],
        [one.column.heading for number, one in enumerate(fitted) if number in gone],
    )


def _segments(
    columns: Sequence[_Filled], note: _Filled | None, rows: Sequence[Row], room: int | None
) -> Iterator[Segment]:
    bold = Style(bold=True)
    heading = [_Drawn(one.column.heading, one) for one in columns]
    yield from _line(heading, lambda _: bold)
    for number, row in enumerate(rows):
        drawn = [_Drawn(one.cells[number], one) for one in columns]
        while drawn:
            yield from _line(drawn, lambda column, row=row: _style(column.style(row)))  # type: ignore[misc]
            drawn = _rest(drawn)
        if note is not None and note.cells[number]:
            style = _style(note.column.style(row))
            for part in _wrapped(note.cells[number], (room or 0) - len(_NOTE_INDENT)):
                yield Segment(_NOTE_INDENT + part, style)
                yield Segment.line()


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A cell of a line that is drawn."""

    text: str
    of: _Filled


def _line(cells: Sequence[_Drawn], style_of: Callable[[Column], Style | None]) -> Iterator[Segment]:
    """Yield one line; nothing but spaces is left out at its end."""
    last = max((n for n, cell in enumerate(cells) if cell.text), default=-1)
    plain = ""  # neighbours without a style are one segment: each takes rich its time
    for number, cell in enumerate(cells[: last + 1]):
        text = cell.text
        length = _length(text)
        if length > cell.of.width:
            text = chop_cells(text, cell.of.width)[0]
            length = _length(text)
        space = " " * (cell.of.width - length)
        if cell.of.column.is_number:
            plain += space
        style = style_of(cell.of.column)
        if style is None:
            plain += text
        else:
            if plain:
                yield Segment(plain)
            yield Segment(text, style)
            plain = ""
        if number != last:
            plain += _BETWEEN if cell.of.column.is_number else space + _BETWEEN
    yield Segment(f"{plain}\n")


def _length(text: str) -> int:
    """Return how many columns printable text takes."""
    return len(text) if text.isascii() else cell_len(text)


def _rest(cells: Sequence[_Drawn]) -> list[_Drawn]:
    """Return the overflow of a row's cells for a further line. It is empty without any."""
    if all(
        len(cell.text) <= cell.of.width and _length(cell.text) <= cell.of.width for cell in cells
    ):
        return []
    rest = []
    for cell in cells:
        pieces = chop_cells(cell.text, cell.of.width) if cell.text else [""]
        rest.append(_Drawn("".join(pieces[1:]), cell.of))
    return rest


@cache
def _style(name: str) -> Style | None:
    return Style.parse(name) if name else None


def _wrapped(text: str, width: int) -> list[str]:
    """Return a sentence as lines, broken between words where that is possible."""
    if cell_len(text) <= width:
        return [text]
    lines = textwrap.wrap(text, max(width, _LEAST_WIDTH), break_on_hyphens=False)
    return [part for line in lines for part in chop_cells(line, max(width, _LEAST_WIDTH))]
