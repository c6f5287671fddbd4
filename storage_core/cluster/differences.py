"""Find differences between a partition's replicas, and contradictions within one. Replicas are
compared as they are, including bytes that a start of their brokers would cut."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Final

from storage_core.cluster.difference import (
    Difference,
    DifferenceKind,
    Side,
    place_of,
)
from storage_core.cluster.log_batches import LogReader, ReadDepth, pieces
from storage_core.cluster.partition_registration import PartitionRegistration
from storage_core.cluster.replica_pair import PairPiece, ReplicaPair
from storage_core.cluster.resting_log import RestingLog, check_log
from storage_core.filenames import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.findings import Code, Finding

COMPACTED_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFinding:
    """What contradicts itself within one replica."""

    log: RestingLog
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The answer about one partition."""

    differences: tuple[Difference, ...]  # between two replicas each
    untold: int  # ranges that differ beyond those
    findings: tuple[LogFinding, ...]  # within one replica each
    undecided: int  # batches that a cleaner may have left apart: their headers do not tell
    read_bytes: int


def find_differences(
    logs: Sequence[RestingLog],
    topic: str,
    state: PartitionRegistration | None,
    look: ReadDepth | None,
    *,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> Differences:
    """Compare each replica with each other one.

    A replica that cannot be read is left out. What two replicas do not share with the first one
    is told of these two as well; what follows from that is not repeated.

    Args:
        state: The partition's registration, None if unknown.
        look: How much of each batch to look at; None for the offsets and epochs of the logs alone.
        ranges: Only batches that begin in one of these, first and end offset; None for all. Then
            nothing is said of single replicas.
    """
    readable = [log for log in logs if not log.error]
    leader = None if state is None else state.leader
    # The replica that most others follow: the leader, else the longest.
    readable.sort(key=lambda log: (log.place.broker != leader, -log.log_end_offset))
    if look is None:
        pairs = [_compare_offsets(*pair) for pair in combinations(readable, 2)]
        findings = [
            LogFinding(log=log, finding=finding)
            for log in readable
            for finding in check_log(log, (), state)
        ]
        return _put_together(readable, pairs, findings)
    is_compacted = topic in COMPACTED_TOPICS or (state is not None and state.is_compacted)
    sparse_ends = [0] * len(readable)
    read_bytes = 0
    while True:
        # Traces of a cleaner are complete only after reading all batches.
        cleaned = [
            cleaned_end(log, sparse, is_compacted=is_compacted)
            for log, sparse in zip(readable, sparse_ends, strict=True)
        ]
        comparison = _Comparison(readable, look, cleaned, ranges)
        comparison.run()
        read_bytes += comparison.read_bytes
        traces = [reader.sparse_end for reader in comparison.readers]
        if traces == sparse_ends or not comparison.has_differences:
            break
        sparse_ends = traces
    lost = [pair.find_lost() for pair in comparison.pairs]
    findings = []
    if ranges is None:
        findings = [
            LogFinding(log=log, finding=finding)
            for log, reader in zip(readable, comparison.readers, strict=True)
            for finding in findings_of(log, reader, state)
        ]
    answer = _put_together(readable, comparison.pairs, findings)
    return replace(answer, read_bytes=read_bytes + sum(lost))


def findings_of(
    log: RestingLog, reader: LogReader, state: PartitionRegistration | None
) -> list[Finding]:
    """Return contradictions within a replica that was read. Verification reports wrong checksums
    that all replicas have.

    Args:
        state: The partition's registration, None if unknown.
    """
    findings = FindingCollector()
    for damage in reader.damage:
        code = Code.BATCH_LENGTH_IMPOSSIBLE
        if damage.is_tail:
            code = Code.TORN_TAIL if damage.file == log.last_file else Code.TORN_SEGMENT
        findings.add(code, damage.reason, file=damage.file, position=damage.position)
    for fall in reader.falls:
        findings.add(
            Code.EPOCH_GOES_BACK,
            f"leader epoch {fall.run.epoch} follows {fall.before}",
            file=fall.file,
            position=fall.position,
            offset=fall.run.first_offset,
        )
    return [*findings.findings(), *check_log(log, reader.epochs, state)]


def cleaned_end(log: RestingLog, sparse_end: int, *, is_compacted: bool) -> int:
    """Return the end of possibly compacted offsets; 0 for none. A cleaner may have removed
    records below it."""
    if log.checkpoints.cleaner_offset:
        return log.checkpoints.cleaner_offset
    if not log.base_offsets or not (is_compacted or sparse_end):
        return 0
    return max(log.base_offsets[-1], sparse_end)


class _Comparison:
    """All replicas of a partition, read once, side by side.

    Args:
        cleaned: Below which offset a cleaner was in each.
        ranges: Where to look, None for everywhere.
    """

    def __init__(
        self,
        logs: Sequence[RestingLog],
        look: ReadDepth,
        cleaned: Sequence[int],
        ranges: Sequence[tuple[int, int]] | None,
    ) -> None:
        self.readers = [LogReader(log.view, log.base_offsets, look, ranges=ranges) for log in logs]
        self._numbers = list(combinations(range(len(logs)), 2))
        self.pairs = [
            ReplicaPair((logs[one], logs[two]), look, (cleaned[one], cleaned[two]))
            for one, two in self._numbers
        ]

    @property
    def has_differences(self) -> bool:
        """Whether any two replicas differ, or one lacks what the other has."""
        return any(
            pair.differences or any(map(len, pair.lacked[0] + pair.lacked[1]))
            for pair in self.pairs
        )

    @property
    def read_bytes(self) -> int:
        """Bytes of batches that were looked at."""
        return sum(reader.read_bytes for reader in self.readers)

    def run(self) -> None:
        """Read all, and compare."""
        for start, end, parts in pieces(self.readers):
            for pair, (one, two) in zip(self.pairs, self._numbers, strict=True):
                behind = self.readers[one].rows, self.readers[two].rows
                pair.compare(PairPiece((parts[one], parts[two]), behind, start, end))


def _compare_offsets(one: RestingLog, two: RestingLog) -> ReplicaPair:
    """Compare two replicas' ends, and epochs at the offsets of both."""
    pair = ReplicaPair((one, two))
    start = max(one.log_start_offset, two.log_start_offset)
    end = min(one.log_end_offset, two.log_end_offset)
    starts = {entry.start_offset for log in (one, two) for entry in log.epochs}
    bounds = sorted({start, end, *(at for at in starts if start < at < end)})
    for low, high in pairwise(bounds):
        epochs = one.cache.epoch_for_offset(low), two.cache.epoch_for_offset(low)
        if epochs[0] != epochs[1] and low < end:
            pair.add(
                Difference(
                    kind=DifferenceKind.EPOCH,
                    first_offset=low,
                    last_offset=high - 1,
                    side=place_of(two, low, epochs[1]),
                    other=place_of(one, low, epochs[0]),
                )
            )
    for short, long in ((one, two), (two, one)):
        low = max(start, short.log_end_offset)
        if low < long.log_end_offset:
            last = long.log_end_offset - 1
            pair.add(
                Difference(
                    kind=DifferenceKind.MISSING,
                    first_offset=low,
                    last_offset=last,
                    side=Side(log=short, file=short.last_file, position=short.end_position)
                    if short.view is not None
                    else Side(log=short),
                    other=place_of(long, low, long.cache.epoch_for_offset(low)),
                    message="nothing is there" if short.view is None else "",
                )
            )
    return pair


def _put_together(
    logs: Sequence[RestingLog], pairs: Sequence[ReplicaPair], findings: Sequence[LogFinding]
) -> Differences:
    """Collect the differences of all pairs, each difference once. A pair without the first log
    adds only differences that neither log has from the first."""
    first = logs[0] if logs else None
    of_first = {id(pair.logs[1]): pair.differences for pair in pairs if pair.logs[0] is first}
    differences: list[Difference] = []
    for pair in pairs:
        if pair.logs[0] is first:
            differences += pair.differences
            continue
        first_differences = of_first[id(pair.logs[0])], of_first[id(pair.logs[1])]
        differences += [
            each
            for each in pair.differences
            if all(_overlaps(each, others) for others in first_differences)
        ]
    return Differences(
        differences=tuple(differences),
        untold=sum(pair.untold for pair in pairs),
        findings=tuple(findings),
        undecided=sum(pair.undecided for pair in pairs if pair.logs[0] is first),
        read_bytes=0,
    )


def _overlaps(difference: Difference, others: Sequence[Difference]) -> bool:
    return any(
        other.first_offset <= difference.last_offset
        and difference.first_offset <= other.last_offset
        for other in others
    )
