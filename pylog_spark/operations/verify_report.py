"""What a verification is asked for, and what it answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from pylog_spark.run.run_report import EXIT_DONE, EXIT_PARTLY_FAILED, RunSummary
from pylog_spark.schemas import FINDING, RECORDED_FINDING
from pylog_spark.tasks.verification import FINDING_ROW
from pylog_spark.tasks.verified_roots import VerifiedRoots
from storage_core.maintenance.verification.findings import Severity

EXIT_FINDINGS: Final = 1
# So many findings are handed to whoever looks at a report; the ledger and the DataFrame have all.
DEFAULT_SHOWN: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """What a verification is asked for, beside the options of all jobs.

    Attributes:
        is_deep: Also open every batch: its records, and snapshots against a replay.
        is_live: Somebody may be writing meanwhile: files may vanish or grow.
        fail_on: Findings of this severity or worse make the exit status 1; None for none.
        shown: How many findings the report holds, worst first.
    """

    is_deep: bool = False
    is_live: bool = False
    fail_on: Severity | None = Severity.ERROR
    shown: int = DEFAULT_SHOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCount:
    """How many findings there are of a code and severity."""

    severity: str
    code: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        run_id: Its name.
        results: Rows of ``schemas.RESULT``, by partition.
        verified: Rows of ``schemas.VERIFIED`` of the same partitions, with their offsets.
        counts: Findings by severity and code, worst first.
        findings: The worst findings, of ``schemas.RECORDED_FINDING``; as many as were asked for.
        roots: The log directories.
        summary: Numbers of the run.
        read_bytes: Bytes of batches that were read and checked.
        read_ms: Time that tasks spent on that, summed over the tasks.
        exit_code: Exit status for the process that asked for the run.
    """

    run_id: str
    results: pa.Table
    verified: tuple[dict[str, Any], ...]
    counts: tuple[FindingCount, ...]
    findings: tuple[dict[str, Any], ...]
    roots: VerifiedRoots
    summary: RunSummary
    read_bytes: int
    read_ms: int
    exit_code: int
    _frame: DataFrame = field(repr=False)
    _free: Callable[[], None] = field(repr=False)

    def findings_frame(self) -> DataFrame:
        """Return all findings as a DataFrame of ``schemas.FINDING``."""
        return self._frame.where(F.col("row") == FINDING_ROW).select(*FINDING.names)

    def recorded_frame(self) -> DataFrame:
        """Return all findings as a DataFrame of ``schemas.RECORDED_FINDING``."""
        found = self._frame.where(F.col("row") == FINDING_ROW)
        return found.select(F.lit(self.run_id).alias("run_id"), *RECORDED_FINDING.names[1:])

    def release(self) -> None:
        """Let Spark forget the findings; their DataFrame cannot be read any more."""
        self._free()


def exit_code_of(failed: int, counts: Sequence[FindingCount], fail_on: Severity | None) -> int:
    """Return 4 if a partition could not be verified, else 1 for findings as bad as asked for."""
    if failed:
        return EXIT_PARTLY_FAILED
    worst = max((Severity(count.severity).rank for count in counts), default=-1)
    return EXIT_FINDINGS if fail_on is not None and worst >= fail_on.rank else EXIT_DONE
