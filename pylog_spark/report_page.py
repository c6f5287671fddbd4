"""Write pages to read, print or send: one HTML file each. A page loads nothing, and escapes all
content.

Tables are those of a terminal (``text_table``), with all columns and rows; a click on a heading
sorts by it. Whatever a row says is escaped. A policy in the page itself lets a browser run and
apply nothing but the script and the style sheet that are kept here, known by their digests, and
load nothing at all. Light or dark is the reader's choice; on paper it is light.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Final

from pylog_spark.text import printable
from pylog_spark.view import (
    NOTHING,
    Block,
    Column,
    Figure,
    Page,
    Row,
    Section,
    Sentence,
    Table,
    TableKind,
    Verbatim,
    has_several_roots,
)

# Names of colours: of texts, of lines, and of what pictures show. Pictures refer to them by name,
# so that one drawing serves light, dark and paper.
_STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1f2328; --dim: #656d76; --line: #d8dee4; --link: #0550ae;
  --red: #b3101b; --yellow: #855a00; --green: #116329; --cyan: #0b5c77;
  --clean: #4f9d69; --dirty: #d98a29; --expired: #c9504f; --active: #4a7fc1; --kept: #9aa4af;
  --before: #9aa4af; --after: #4a7fc1;
  --fatal: #7d1128; --error: #c9504f; --warn: #d98a29; --harmless: #9aa4af; --info: #4a7fc1;
}
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #14171b; --ink: #dde2e8; --dim: #949ea9; --line: #363c44; --link: #79b8ff;
  --red: #ff8a80; --yellow: #e3b341; --green: #6fd08c; --cyan: #6cc7e6; --fatal: #e05a7d;
} }
body { background: var(--paper); color: var(--ink); font: 14px/1.45 system-ui, sans-serif;
  margin: 2rem auto; max-width: 90rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
a { color: var(--link); } p { margin: .4rem 0; overflow-wrap: anywhere; }
.lead { font-size: 1.05rem; } .note, figcaption { color: var(--dim); }
pre { border: 1px solid var(--line); margin: .4rem 0; overflow-wrap: anywhere;
  padding: .4rem .8rem; white-space: pre-wrap; }
nav a { margin-right: 1rem; white-space: nowrap; }
figure { margin: 1rem 0 1.6rem; overflow-x: auto; }
svg { display: block; height: auto; margin-top: .3rem; max-width: 100%; min-width: 40rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
tbody { border-top: 1px solid var(--line); }
td { white-space: nowrap; } .number { text-align: right; }
.long { min-width: 9rem; } .long, .below { overflow-wrap: anywhere; white-space: normal; }
.below { padding: 0 .9rem .4rem 1.5rem; }
th button { all: unset; cursor: pointer; font-weight: 600; white-space: nowrap; }
th button:focus-visible { outline: 2px solid var(--link); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
tbody:target { outline: 2px solid var(--link); }
.bold { font-weight: 600; } .dim { color: var(--dim); } .red { color: var(--red); }
.yellow { color: var(--yellow); } .green { color: var(--green); } .cyan { color: var(--cyan); }
@media screen and (max-width: 45rem) { body { margin: 1rem auto; }
  svg { min-width: 0; width: 100%; } }
@media print {
  body { font-size: 9pt; margin: 0; max-width: none; } nav { display: none; }
  thead { display: table-header-group; } tbody, figure { break-inside: avoid; }
  td { overflow-wrap: anywhere; white-space: normal; } td.number { white-space: nowrap; }
  svg { min-width: 0; } h2 { break-after: avoid; }
  .wide, figure { overflow: visible; } a { color: inherit; }
}
"""
# Of more rows than these a browser makes a table only after a minute (100,000 took it 80 s).
MOST_ROWS: Final = 10_000
_NUMBER: Final = "number"
_LONG: Final = "long"
# Rows are sorted by the numbers of a column where it has any, else by its texts; what has no value
# stands last, whichever way.
_SCRIPT: Final = """
"use strict";
const valueOf = (row, place) => {  // a row, and the sentence below it, are a body of the table
  const cell = row.rows[0].cells[place], number = cell.dataset.value;
  if (number !== undefined) return number === "" ? null : Number(number);
  return cell.textContent === "" || cell.textContent === "-" ? null : cell.textContent;
};
const compare = (a, b) =>
  typeof a === "number" ? a - b : a.localeCompare(b, undefined, {numeric: true});
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th"), place = heading.cellIndex;
    const table = heading.closest("table");
    const isUp = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    const rows = Array.from(table.tBodies, row => [valueOf(row, place), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return isUp ? compare(a, b) : compare(b, a);
    });
    table.append(...rows.map(([, row]) => row));
  });
}
"""


def write_page(path: Path, page: Page) -> None:
    """Write a page; one that is there is replaced."""
    # Python's own name for a half of a character is no UTF-8; ``printable`` has spelled them out.
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_html(page))


def _html(page: Page) -> Iterator[str]:
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_digest(_SCRIPT)}",
            f"style-src {_digest(_STYLE)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=False)}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="referrer" content="no-referrer">\n'
    yield f"<title>{_text(page.title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n"
    yield f"<h1>{_text(page.title)}</h1>\n"
    yield f'<p class="lead">{_text(page.lead)}</p>\n'
    for note in page.notes:
        yield f'<p class="note">{_text(note)}</p>\n'
    shown = [(section.heading, _shown(section)) for section in page.sections]
    sections = [(heading, blocks) for heading, blocks in shown if blocks]
    if len(sections) > 1:
        links = (
            f'<a href="#section-{number}">{_text(heading)}</a>'
            for number, (heading, _) in enumerate(sections)
        )
        yield f"<nav>{' '.join(links)}</nav>\n"
    for number, (heading, blocks) in enumerate(sections):
        yield f'<h2 id="section-{number}">{_text(heading)}</h2>\n'
        for block in blocks:
            yield from _block(block)
    yield f"<script>{_SCRIPT}</script>\n</body></html>\n"


def _shown(section: Section) -> list[Block]:
    """Return the content of a section without empty tables."""
    return [block for block in section.blocks if not isinstance(block, Table) or block.rows]


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _text(text: str) -> str:
    return escape(printable(text))


def _block(block: Block) -> Iterator[str]:
    match block:
        case str():
            yield f"<p>{_text(block)}</p>\n"
        case Sentence():
            yield f"<p{_class(block.style)}>{_text(block.text)}</p>\n"
        case Verbatim():
            yield f"<pre{_class(block.style)}>{_text(block.text)}</pre>\n"
        case Figure():
            yield f"<figure><figcaption>{_text(block.caption)}</figcaption>{block.svg}</figure>\n"
        case Table():
            yield from _table(block)


def _table(block: Table) -> Iterator[str]:
    root = [Column(heading="root", cell=lambda row: str(row.get("root")), folds=True)]
    columns = [
        column
        for column in (*(root if has_several_roots(block.rows) else ()), *block.kind.columns)
        # As on a terminal, a column that may go does where it has no value.
        if not column.rank
        or any(cell not in {"", NOTHING} for cell in map(column.cell, block.rows))
    ]
    yield '<div class="wide"><table><thead><tr>'
    for column in columns:
        heading = f"<button>{_text(column.heading)}</button>"
        yield f"<th{_class(_NUMBER * column.is_number)}>{heading}</th>"
    yield "</tr></thead>\n"
    for row in block.rows[:MOST_ROWS]:
        anchor = "" if block.anchor is None else f' id="{_text(block.anchor(row))}"'
        cells = "".join(_cell(column, row, block.links.get(column.heading)) for column in columns)
        yield f"<tbody{anchor}><tr>{cells}</tr>{_note(block.kind, row, len(columns))}</tbody>\n"
    yield "</table></div>\n"
    more = len(block.rows) - MOST_ROWS
    if more > 0:
        yield f'<p class="note">and {more:,} more rows; --output json has all of them</p>\n'


def _note(kind: TableKind, row: Row, width: int) -> str:
    """Return a row's note as a row below it."""
    text = "" if kind.note is None else kind.note(row)
    if not text:
        return ""
    classes = " ".join(name for name in ("below", kind.note_style(row)) if name)
    return f'<tr><td{_class(classes)} colspan="{width}">{_text(text)}</td></tr>'


def _cell(column: Column, row: Row, link: Callable[[Row], str | None] | None) -> str:
    text = _text(column.cell(row))
    target = None if link is None else link(row)
    if target is not None:
        text = f'<a href="#{_text(target)}">{text}</a>'
    value = ""
    if column.value is not None:
        number = column.value(row)
        value = f' data-value="{"" if number is None else number}"'
    # A style is one of this program's own, such as "bold red".
    names = (column.style(row), _NUMBER * column.is_number, _LONG * column.folds)
    classes = " ".join(name for name in names if name)
    return f"<td{_class(classes)}{value}>{text}</td>"


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""
