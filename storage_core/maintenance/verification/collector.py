"""Collect findings: the first of each kind and file, and a count."""

from dataclasses import dataclass, field
from typing import Final

from storage_core.maintenance.verification.finding_kinds import severity_of
from storage_core.maintenance.verification.findings import Code, Finding, Severity

# A shifted file breaks the same rule a million times; a person needs to see it only once.
KEPT_OF_A_KIND: Final = 5


@dataclass(slots=True)
class FindingCollector:
    """Findings of one file or partition, in order of discovery."""

    _findings: list[Finding] = field(default_factory=list)
    _counts: dict[tuple[Code, str, Severity], int] = field(default_factory=dict)

    def add(
        self,
        code: Code,
        message: str,
        *,
        file: str = "",
        position: int | None = None,
        offset: int | None = None,
        severity: Severity | None = None,
        fix: str = "",
    ) -> None:
        """Add a finding.

        Args:
            message: The expected and the actual content.
            severity: None for what the code says.
            fix: The repair of this one; empty for the one of its kind.
        """
        level = severity or severity_of(code)
        key = (code, file, level)
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] <= KEPT_OF_A_KIND:
            self._findings.append(
                Finding(
                    code=code,
                    severity=level,
                    message=message,
                    file=file,
                    position=position,
                    offset=offset,
                    fix=fix,
                )
            )

    def count(self, code: Code, more: int, *, file: str) -> None:
        """Count findings beyond those added; nothing if more is below 1."""
        if more > 0:
            key = (code, file, severity_of(code))
            self._counts[key] = self._counts.get(key, 0) + more

    def findings(self) -> list[Finding]:
        """Return the findings, with a count of those left out. The last finding of a kind has
        that count."""
        more = [
            Finding(
                code=code,
                severity=severity,
                message=f"{count - KEPT_OF_A_KIND} more like these in this file",
                file=file,
            )
            for (code, file, severity), count in self._counts.items()
            if count > KEPT_OF_A_KIND
        ]
        return [*self._findings, *more]
