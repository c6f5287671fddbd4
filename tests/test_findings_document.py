"""``docs/findings.md`` says of every code what the program says of it."""

import re
from pathlib import Path

from storage_core.maintenance.verification.finding_kinds import KINDS
from storage_core.maintenance.verification.findings import Code, Severity

DOCUMENT = Path(__file__).parents[1] / "docs" / "findings.md"
ROW = re.compile(r"^\| `([A-Z_]+)` \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)


def row_of(code: Code) -> tuple[str, str, str, str]:
    kind = KINDS[code]
    severity = kind.severity.value
    if kind.elsewhere:
        severity += f"; {kind.elsewhere}"
    fix = re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), kind.advice.replace("{start}", ""))
    return code.value, severity, kind.meaning, fix


def test_the_document_has_every_code_in_order_and_says_the_same_of_it():
    expected = [row_of(code) for code in Code]
    assert ROW.findall(DOCUMENT.read_text()) == expected


def test_every_severity_is_explained():
    text = DOCUMENT.with_name("verify.md").read_text()
    assert all(f"**{severity.value}**" in text for severity in Severity)
