"""Count a coordinator's undecodable records by kind; keep the first of each."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from storage_core.coordinators.coordinator_log import ReplayedRecord, replay_partition
from storage_core.errors import BadBytesError
from storage_core.filenames import TRANSACTION_STATE_TOPIC
from storage_core.messages.internal_records import Problem
from storage_core.store.base import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecoded:
    """Undecodable records of one type and version; the log keeps them."""

    problem: Problem
    type_id: int | None  # number of their type, None where the key is too short for one
    type: str | None  # Kafka's name of the type, None for an unknown one
    version: int | None  # the version of their values, None if it was not reached
    first_offset: int
    count: int
    reason: str

    def stops_load(self, topic: str) -> bool:
        """Whether a coordinator of Kafka 4.4 stops its load there.

        Types that it does not know it ignores, and of ``__transaction_state`` unknown versions too.
        Sources: ``CoordinatorLoaderImpl``, ``TransactionStateManager``.
        """
        if self.problem is Problem.UNKNOWN_VERSION:
            return topic != TRANSACTION_STATE_TOPIC
        return self.problem is Problem.MALFORMED


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


def find_undecoded(store: LogStore, topic: str, *, start_offset: int = 0) -> tuple[Undecoded, ...]:
    """Return the kinds of a coordinator's records that Kafka 4.4 cannot read. A batch that is
    damaged ends the look.

    Args:
        start_offset: The log start: records below it do not count.
    """
    records = UndecodedRecords()
    try:
        for event in replay_partition(store, topic, start_offset=start_offset):
            if isinstance(event, ReplayedRecord) and event.decoded.problem is not None:
                records.add(event, event.decoded.problem)
    except BadBytesError:
        pass  # the verification of its segments has found it
    return tuple(records.all())
