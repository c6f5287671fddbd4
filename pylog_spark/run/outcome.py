"""What became of one partition, whatever was done to it."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pylog_spark.schemas import Failure, Reason, Status
from pylog_spark.tasks.message import PartitionCommit
from storage_core.errors import KeylessRecordsError, NegativeTimestampError

# Errors that leave a log as it is: no failure of a night.
_REFUSALS: Final = {
    KeylessRecordsError.__name__: Reason.RECORDS_WITHOUT_KEY,
    NegativeTimestampError.__name__: Reason.NEGATIVE_TIMESTAMP,
}


@dataclass(slots=True)
class Outcome:
    """What became of one partition."""

    # Of its result row, where that differs from what the plan says.
    columns: dict[str, Any] = field(default_factory=dict)
    duration_ms: int = 0  # time that tasks spent on it since it was planned
    next_offset: int | None = None  # its cleaner point, None if it was not cleaned
    was_touched: bool = False  # whether it failed after its files had begun to change
    rounds: tuple[str, ...] = ()  # numbers of each round of compaction, ``CleanerStats`` as JSON

    @classmethod
    def of(cls, row: PartitionCommit) -> "Outcome":
        """Return the outcome that a task tells."""
        outcome = cls(duration_ms=row.duration_ms)
        if row.failure:
            outcome.fail(row.failure)
            outcome.was_touched = row.touched
            return outcome
        outcome.columns = {
            "status": Status.DONE.value,
            "bytes_after": row.bytes_after,
            "segments_after": row.segments_after,
            "operations": row.operations,
        }
        return outcome

    @classmethod
    def failed(cls, error: Exception) -> "Outcome":
        """Return the outcome of a partition out of reach by an error."""
        outcome = cls()
        outcome.fail(Failure.of(error))
        return outcome

    @classmethod
    def refused(cls, reason: Reason, why: str) -> "Outcome":
        """Return the outcome of a partition left alone for a reason."""
        outcome = cls()
        outcome.refuse(reason, why)
        return outcome

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to be done for the partition."""
        return bool(self.columns)

    def after(self, former: "Outcome | None") -> "Outcome":
        """Return the outcome of this round and the ones before it together."""
        if former is None:
            return self
        columns = dict(self.columns)
        if "records_before" in former.columns:
            columns["records_before"] = former.columns["records_before"]
        name = "records_without_key"
        keyless = (former.columns.get(name) or 0) + (columns.get(name) or 0)
        if keyless:
            columns[name] = keyless
        return Outcome(
            columns=columns,
            duration_ms=former.duration_ms + self.duration_ms,
            next_offset=self.next_offset,
            was_touched=self.was_touched,
            rounds=former.rounds + self.rounds,
        )

    def fail(self, failure: Failure) -> None:
        """Take over the error of a row.

        Kafka's cleaner gives up a log for a negative timestamp each time: that is no failure of a
        night, it is a partition that stays as it is.
        """
        self.columns = {"status": Status.FAILED.value, **asdict(failure)}
        reason = _REFUSALS.get(failure.error_class or "")
        if reason is not None:
            self.columns |= {"status": Status.SKIPPED.value, "reason": reason.value}

    def refuse(self, reason: Reason, why: str) -> None:
        """Leave the partition alone for a reason."""
        self.columns = {"status": Status.SKIPPED.value, "reason": reason.value, "error": why}
