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
    """What a verification is asked for, beside the options of all jobs.

    Attributes:
        is_deep: Also open every batch: its records, and snapshots against a replay.
        is_live: Somebody may be writing meanwhile: files may vanish or grow.
        fail_on: Findings of this severity or worse make the exit status 1; None for none.
        shown: How many findings the report holds, worst first.
        release: The release of Kafka that is to start, one of ``FEATURE_LEVELS``.
    """

    is_deep: bool = False
    is_live: bool = False
    fail_on: Severity | None = Severity.ERROR
    shown: int = DEFAULT_SHOWN
    release: str = NEWEST_RELEASE


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCount:
    """How many findings there are of a code and severity."""

    severity: str
    code: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(Report):
    """What a verification found.

    Attributes:
        verified: Rows of ``VerifiedRow`` of the partitions of the results, with their offsets.
        counts: Findings by severity and code, worst first.
        findings: The worst findings, of ``schemas.RECORDED_FINDING``; as many as were asked for.
        roots: The log directories.
        read_bytes: Bytes of batches that were read and checked.
        read_ms: Time that tasks spent on that, summed over the tasks.
    """

    verified: tuple[dict[str, Any], ...]
    counts: tuple[FindingCount, ...]
    findings: tuple[dict[str, Any], ...]
    roots: VerifiedRoots
    read_bytes: int
    read_ms: int
    _findings: "HandedOver[SparkRows] | None" = field(repr=False)

    def findings_frame(self) -> "DataFrame":
        """Return all findings as a DataFrame of ``schemas.FINDING``.

        Raises:
            ConfigError: No session has them: the run was this machine's.
        """
        if self._findings is None:
            reason = "keeps no findings beyond the run: ask for more in the request (shown)"
            raise ConfigError("PLACE", "Local", reason)
        return self._findings.rows.frame.select(*FINDING.names)

    def release(self) -> None:
        """Let Spark forget the findings; their DataFrame cannot be read any more."""
        if self._findings is not None:
            self._findings.free()
