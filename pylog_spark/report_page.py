"""A page to be read or sent: counts of findings, the findings, the partitions; one HTML file."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from pylog_spark.report import number_text, partition_name, size_text
from pylog_spark.text import printable

_STYLE: Final = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; margin: 1em 0 2em; }
th, td { text-align: left; padding: .2em .8em; border-bottom: 1px solid #ddd; vertical-align: top; }
.fatal, .error { color: #b00020; font-weight: bold; } .warn { color: #8a5a00; }
.harmless, .info { color: #666; }
"""


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
    findings = [
        (
            row["severity"],
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
            partition_name(row),
            row["status"],
            number_text(row["segments_before"]),
            size_text(row["bytes_before"]),
            number_text(row["records_before"]),
            row["error"] or "",
        )
        for row in report.results.to_pylist()
    ]
    names = ("severity", "code", "partition", "file", "position", "offset", "found", "what to do")
    parts = [
        f"<h1>{escape(title)}</h1><p>Run {escape(report.run_id)}</p>",
        f"<h2>Findings by kind</h2>{_table(('severity', 'code', 'count'), counts)}",
        f"<h2>The worst {len(findings)} findings</h2>{_table(names, findings)}",
        "<h2>Partitions</h2>"
        + _table(("partition", "status", "segments", "size", "records", "error"), results),
    ]
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
