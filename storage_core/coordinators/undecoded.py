"""Count a coordinator's undecodable records by kind; keep the first of each."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from storage_core.coordinators.coordinator_log import ReplayedRecord
from storage_core.messages.internal_records import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecoded:
    """Undecodable records of one type and version; the log keeps them.

    Attributes:
        problem: Why.
        type_id: Number of their type, None where the key is too short for one.
        type: Kafka's name of the type, None for an unknown one.
        version: The version of their values, None if it was not reached.
        first_offset: Offset of the first of them.
        count: How many there are.
        reason: The fault of the first.
    """

    problem: Problem
    type_id: int | None
    type: str | None
    version: int | None
    first_offset: int
    count: int
    reason: str


class UndecodedRecords:
    """Count undecodable records in memory independent of their number."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[Problem, int | None, int | None], Undecoded] = {}

    def add(self, record: ReplayedRecord, problem: Problem) -> None:
        """Take note of one."""
        decoded = record.decoded
        kind = (problem, decoded.type_id, decoded.version)
        before = self._by_kind.get(kind)
        if before is not None:
            self._by_kind[kind] = replace(before, count=before.count + 1)
            return
        self._by_kind[kind] = Undecoded(
            problem=problem,
            type_id=decoded.type_id,
            type=decoded.type,
            version=decoded.version,
            first_offset=record.offset,
            count=1,
            reason=decoded.reason,
        )

    def all(self) -> Iterable[Undecoded]:
        """Return them, in the order in which the log met them."""
        return tuple(self._by_kind.values())
