"""The answer of a command, before a renderer writes it.

Four renderers write it: ``text_table`` on a terminal, ``cli.row_lines`` as JSON lines and as CSV,
``report_page`` as a page. Rows and blocks may be generators: a command that streams its answer
looks at a partition when its renderer asks for it. Everything else, and each page, is made of
values, without a look at any disk.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Row = Mapping[str, Any]

# Of a cell without a value.
NOTHING: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    heading: str
    cell: Callable[[Row], str]  # text of a row; ``-`` or nothing where the row has no value
    # What a row is sorted by, a number or None; None where that is the cell's text.
    value: Callable[[Row], float | None] | None = None
    # Columns of the highest rank go first where room is short; those of 0 always stay.
    rank: int = 0
    is_number: bool = False  # whether it is flush right
    # Whether it holds names that may be long: these fold before other columns go.
    folds: bool = False
    style: Callable[[Row], str] = lambda _: ""  # how rich is to draw a row's cell


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """A kind of table: its columns, and the sentence about a row."""

    columns: tuple[Column, ...]  # from left to right; the first names the row
    # The sentence about a row, empty for none; None where no row has one.
    note: Callable[[Row], str] | None = None
    note_heading: str = "why"
    note_style: Callable[[Row], str] = lambda _: ""  # how rich is to draw them
    title: str | None = None  # A line above the table on a terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one kind; without rows nothing is shown."""

    kind: TableKind
    rows: Sequence[Row]
    total: int | None = None  # how many rows there are, where ``rows`` are only the first of them
    # By the heading of a column, where a row's cell leads on a page: the name of a row's anchor,
    # None for nowhere.
    links: Mapping[str, Callable[[Row], str | None]] = field(default_factory=dict)
    anchor: Callable[[Row], str] | None = None  # name of a row's anchor on a page; None for none


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with a style; plain text is a sentence without one. A terminal breaks it
    between words, except a long command."""

    text: str
    style: str = ""  # how rich is to draw it
    has_marks: bool = False  # whether rich marks brackets and numbers in it


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A command or an error to be copied: it is never broken."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture, which only a page shows."""

    svg: str  # the drawing, from whoever draws it safely (``pictures``): it is taken as it is
    caption: str


Block = str | Sentence | Verbatim | Table | Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with its content; without content nothing is shown."""

    heading: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page of ``--report``."""

    title: str
    lead: str  # the first sentence: all that a reader in a hurry has to know
    notes: Sequence[str] = ()  # sentences below it
    sections: Sequence[Section] = ()  # the tables and pictures, below headings


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A row for a program: a line of JSON, or of CSV."""

    kind: str  # the ``type`` of a line of JSON
    row: Row
    # Keys and values of a record by name, as JSON texts. They are written as they are: secrets are
    # hidden in texts of this program alone.
    data: Mapping[str, str] = field(default_factory=dict)
    # The name of its one long list, and the JSON texts of it; in ``row`` it is empty.
    items: tuple[str, Iterable[str]] | None = None


def lines_of(kind: str, rows: Iterable[Row]) -> Iterable[OutputLine]:
    """Yield rows of one kind as lines."""
    return (OutputLine(kind, row) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The answer of a command."""

    # Rows for a program, in order; a text among them goes to standard error.
    lines: Iterable[OutputLine | str]
    # The kind of rows that CSV has, and the names of their columns; none where the command has no
    # CSV.
    csv: tuple[str, Iterable[str]] = ("", ())
    blocks: Iterable[Block]  # the answer for a terminal
    # Sentences that are written after the rows: below the blocks of a terminal, for a program to
    # standard error.
    notes: Iterable[str] = ()
    # Sentences that are always written to standard error, after the notes.
    errors: Iterable[str] = ()
    # Makes the page of ``--report``, after the rows; None where the command has none.
    page: Callable[[], Page] | None = None
    # The exit status; a function where only the written rows tell it.
    status: int | Callable[[], int]


def has_several_roots(rows: Iterable[Row]) -> bool:
    """Whether rows are of several roots; each then names its own."""
    return len({row.get("root") for row in rows}) > 1
