"""What became of a run: one value for all who are told, beside the ledger.

The log, metrics and lineage say what is in here. None of them may change how a run ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.exit_code import ExitCode
from pylog_spark.run.run_report import Report, RunSummary, summarise
from pylog_spark.schemas import RunEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run that has begun, or one that has ended.

    Attributes:
        row: Its row in the ledger's table ``runs``: columns of ``schemas.RUN``.
        started: When it began, by the clock of the ledger's times.
        outputs: Locations that it writes.
        exit_code: Exit status of its process; None at the start.
        error: What ended it; None where it came to its end, and at the start.
        report: What it found and did; None after an error, and at the start.
        summarise: Counts rows of the report, as its summary was counted.
    """

    row: Mapping[str, Any]
    started: datetime
    outputs: tuple[str, ...] = ()
    exit_code: int | None = None
    error: BaseException | None = None
    report: Report | None = None
    summarise: Callable[..., RunSummary] = summarise

    @property
    def is_start(self) -> bool:
        """Whether it has just begun."""
        return bool(self.row["event"] == RunEvent.START.value)

    @property
    def is_good(self) -> bool:
        """Whether a scheduler goes on after its exit status."""
        return self.exit_code in {ExitCode.DONE, ExitCode.FINDINGS}

    @property
    def roots(self) -> list[str]:
        """The log directories that it was given, and others that rows of its report are of."""
        roots: list[str] = list(self.row["roots"])
        if self.report is not None:
            found = pc.unique(self.report.results["root"]).to_pylist()
            roots += [root for root in found if root not in roots]
        return roots

    def results_of(self, root: str) -> pa.Table:
        """Return the result rows of one root.

        Raises:
            ValueError: There is no report.
        """
        if self.report is None:
            raise ValueError("a run without a report has no rows")
        return self.report.results.filter(pc.equal(self.report.results["root"], root))


class RunListener(Protocol):
    """Somebody who is told when a run begins and when it has ended."""

    @property
    def failure(self) -> str:
        """What to warn of when ``tell`` raises."""
        ...

    def tell(self, state: RunState) -> None:
        """Pass on what became of a run. What this raises is a warning, and no more."""
        ...
