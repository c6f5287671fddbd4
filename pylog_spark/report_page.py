"""Pages to be read or sent, one HTML file each: what a look found, what a run did."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from pylog_spark.report import (
    error_text,
    number_text,
    partition_name,
    refusal_text,
    size_text,
    summary_line,
)
from pylog_spark.text import printable
from pylog_spark.text_table import has_several_roots

_STYLE: Final = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; margin: 1em 0 2em; }
th, td { text-align: left; padding: .2em .8em; border-bottom: 1px solid #ddd; vertical-align: top; }
.fatal, .error { color: #b00020; font-weight: bold; } .warn { color: #8a5a00; }
.harmless, .info, .skipped { color: #666; } .failed { color: #b00020; }
"""


class RunPage(Protocol):
    """What the page of a run is made of."""

    @property
    def run_id(self) -> str:
        """The run."""
        ...

    @property
    def action(self) -> str:
        """What was asked for."""
        ...

    @property
    def dry_run(self) -> bool:
        """Whether nothing was to be written."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a reader should know of the run as a whole."""
        ...

    @property
    def results(self) -> pa.Table:
        """Rows of ``schemas.RESULT``."""
        ...

    @property
    def cuts(self) -> pa.Table:
        """Rows of ``schemas.CUT``."""
        ...


class FindingCounts(Protocol):
    """How many findings there are of a code and severity."""

    @property
    def severity(self) -> str:
        """How bad they are."""
        ...

    @property
    def code(self) -> str:
        """Their code."""
        ...

    @property
    def count(self) -> int:
        """How many there are."""
        ...


class FindingReport(Protocol):
    """What a page is made of."""

    @property
    def run_id(self) -> str:
        """The run."""
        ...

    @property
    def counts(self) -> Sequence[FindingCounts]:
        """Findings by severity and code, worst first."""
        ...

    @property
    def findings(self) -> Sequence[Mapping[str, Any]]:
        """The worst findings."""
        ...

    @property
    def results(self) -> pa.Table:
        """A row a partition."""
        ...


def write_page(path: Path, *, title: str, report: FindingReport) -> None:
    """Write a page; one that is there is replaced.

    Raises:
        OSError: The file cannot be written.
    """
    counts = [(count.severity, count.code, number_text(count.count)) for count in report.counts]
    names, roots = _root_cells([*report.findings, *report.results.to_pylist()])
    findings = [
        (
            row["severity"],
            *roots(row),
            row["code"],
            "" if row["topic"] is None else partition_name(row),
            row["file"],
            number_text(row["position"]),
            number_text(row["offset"]),
            row["message"],
            row["fix"],
        )
        for row in report.findings
    ]
    results = [
        (
            row["status"],
            *roots(row),
            partition_name(row),
            number_text(row["segments_before"]),
            size_text(row["bytes_before"]),
            number_text(row["records_before"]),
            error_text(row),
        )
        for row in report.results.to_pylist()
    ]
    told = ("code", "partition", "file", "position", "offset", "found", "what to do")
    parts = [
        f"<h1>{escape(title)}</h1><p>Run {escape(report.run_id)}</p>",
        f"<h2>Findings by kind</h2>{_table(('severity', 'code', 'count'), counts)}",
        f"<h2>The worst {len(findings)} findings</h2>"
        + _table(("severity", *names, *told), findings),
        "<h2>Partitions</h2>"
        + _table(("status", *names, "partition", "segments", "size", "records", "error"), results),
    ]
    _write(path, title, parts)


def write_run_page(path: Path, report: RunPage) -> None:
    """Write the page of a run; one that is there is replaced.

    Raises:
        OSError: The file cannot be written.
    """
    rows = report.results.to_pylist()
    what = "dry run, nothing was written" if report.dry_run else f"run {report.run_id}"
    title, told = f"pylog {report.action}", summary_line(rows) + refusal_text(rows)
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(what)}: {escape(told)}</p>",
        "".join(f"<p>{escape(printable(note))}</p>" for note in report.notes),
    ]
    root, roots = _root_cells(rows)
    if report.cuts.num_rows:
        cuts = [
            (
                cut["status"],
                *roots(cut),
                partition_name(cut),
                cut["file"],
                number_text(cut["position"]),
                size_text(cut["size_bytes"]),
                number_text(cut["records"]),
                cut["reason"],
                cut["salvaged_to"] or "",
            )
            for cut in report.cuts.to_pylist()
        ]
        names = ("status", *root, "partition", "file", "from", "size", "records", "why", "saved to")
        parts.append(f"<h2>What recovery cuts</h2>{_table(names, cuts)}")
    results = [
        (
            row["status"],
            *roots(row),
            partition_name(row),
            row["action"],
            size_text(row["bytes_before"]),
            size_text(row["bytes_after"]),
            number_text(row["records_before"]),
            number_text(row["records_after"]),
            error_text(row) or row["reason"] or "",
        )
        for row in rows
    ]
    names = ("status", *root, "partition", "action", "bytes", "after", "records", "after", "why")
    parts.append(f"<h2>Partitions</h2>{_table(names, results)}")
    _write(path, title, parts)


def _root_cells(
    rows: Iterable[Mapping[str, Any]],
) -> tuple[tuple[str, ...], Callable[[Mapping[str, Any]], tuple[str, ...]]]:
    """Return the heading of a column of roots, and what fills it; nothing for one root alone."""
    if not has_several_roots(rows):
        return (), lambda _: ()
    return ("root",), lambda row: (str(row["root"]),)


def _write(path: Path, title: str, parts: Iterable[str]) -> None:
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}</style>"
    page = f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>"
    path.write_text(page, encoding="utf-8")


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr class='{escape(row[0])}'>"
        + "".join(f"<td>{escape(printable(str(cell)))}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
