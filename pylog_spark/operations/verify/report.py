"""What a verification is asked for, and what it answers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pylog_spark.engines.engine import HandedOver
from pylog_spark.operations.verify.verified_roots import VerifiedRoots
from pylog_spark.run.run_report import Report
from pylog_spark.schemas import FINDING
from storage_core.config import NEWEST_RELEASE
from storage_core.errors import ConfigError
from storage_core.maintenance.verification.findings import Severity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pylog_spark.engines.spark_engine import SparkRows

# So many findings are handed to whoever looks at a report; the ledger and the DataFrame have all.
DEFAULT_SHOWN: Final = 1000
# So many are put in one order, the worst first; more than that in the order of each severity.
ORDERED_FINDINGS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """What a verification is asked for, beside the options of all jobs."""

    is_deep: bool = False  # also open every batch: its records, and snapshots against a replay
    is_live: bool = False  # somebody may be writing meanwhile: files may vanish or grow
    # Findings of this severity or worse make the exit status 1; None for none.
    fail_on: Severity | None = Severity.ERROR
    shown: int = DEFAULT_SHOWN  # how many findings the report holds, worst first
    # The release of Kafka that is to start, one of ``FEATURE_LEVELS``.
    release: str = NEWEST_RELEASE


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCount:
    """How many findings there are of a code and severity."""

    severity: str
    code: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(Report):
    """What a verification found."""

    # Rows of ``VerifiedRow`` of the partitions of the results, with their offsets.
    verified: tuple[dict[str, Any], ...]
    counts: tuple[FindingCount, ...]  # findings by severity and code, worst first
    # The worst findings, of ``schemas.RECORDED_FINDING``; as many as were asked for.
    findings: tuple[dict[str, Any], ...]
    roots: VerifiedRoots
    read_bytes: int
    read_ms: int  # time that tasks spent on that, summed over the tasks
    _findings: "HandedOver[SparkRows] | None" = field(repr=False)

    def findings_frame(self) -> "DataFrame":
        """Return all findings as a DataFrame of ``schemas.FINDING``."""
        if self._findings is None:
            reason = "keeps no findings beyond the run: ask for more in the request (shown)"
            raise ConfigError("PLACE", "Local", reason)
        return self._findings.rows.frame.select(*FINDING.names)

    def release(self) -> None:
        """Let Spark forget the findings; their DataFrame cannot be read any more."""
        if self._findings is not None:
            self._findings.free()
