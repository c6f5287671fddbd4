"""Compare the replicas of partitions; nothing is written.

The replicas of a small partition are compared by one task. Of a big one each replica is digested
by a task of its own; what goes from task to task are sums over ranges of offsets.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import numpy as np

from pylog_spark.options.choices import Level
from pylog_spark.rows import Binary, Int32, Number, Text, column
from pylog_spark.schemas import Failure, PartitionName
from pylog_spark.tasks.ahead import map_where_remote
from pylog_spark.tasks.message import TaskMessage, attempt
from storage_core.cluster.copy_report import CopyDifference
from storage_core.cluster.differences import (
    Difference,
    Differences,
    Side,
    find_differences,
    findings_of,
)
from storage_core.cluster.log_batches import (
    OffsetRanges,
    ReadDepth,
    digest_log,
    find_unequal,
)
from storage_core.cluster.places import PartitionPlaces
from storage_core.cluster.resting_log import RestingLog, observe_log
from storage_core.maintenance.verification.findings import Finding

COMPARED = "compared"
FINDING = "finding"
UNREADABLE = "unreadable"
_LOOKS: Final = {
    Level.OFFSETS: None,
    Level.HEADERS: ReadDepth.HEADERS,
    Level.BYTES: ReadDepth.DIGESTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """A difference between two replicas, a finding, or a comparison's cost. A finding is in one
    of the replicas."""

    topic: str = column("topic")
    partition: Int32 = column("number of the partition")
    topic_id: Text = column("id of the topic, null where no file says it")
    kind: str = column(
        "missing, epoch, bytes, record, compaction; of copies missing, doubled, different, order, "
        "extra, offset, behind; finding, unreadable, compared"
    )
    code: Text = column("stable code of a finding")
    severity: Text = column("of a finding: info, harmless, warn, error, fatal")
    first_offset: Number = column("where it begins")
    last_offset: Number = column("the last offset of it")
    broker: Number = column("node id of the replica that lacks or differs")
    directory: Text = column("its directory, or the log directory that has none")
    epoch: Number = column("leader epoch of the first batch there")
    file: Text = column("segment's file, or that of a finding")
    position: Number = column("byte position of that batch, or of where it would be")
    other_broker: Number = column("node id of the replica that it is compared with")
    other_directory: Text = column("directory of that one")
    other_epoch: Number = column("leader epoch of the first batch there")
    other_file: Text = column("segment's file there")
    other_position: Number = column("byte position of that batch there")
    message: Text = column("what more is to be said")
    records: Number = column("how many records, of a copy; of a comparison those that both have")
    copy_first_offset: Number = column("where it begins in a copy with offsets of its own")
    copy_last_offset: Number = column("the last offset of it there")
    timestamp_ms: Number = column("timestamp of its first record, of a copy")
    undecided: Number = column("batches that a cleaner may have left apart, of a comparison")
    untold: Number = column("ranges that differ beyond those that have a row, of a comparison")
    read_bytes: Number = column("bytes of batches that were read, of a comparison")
    crossed_bytes: Number = column("bytes of digests that went from task to task, of a comparison")
    duration_ms: Number = column("time it took, of a comparison")
    failure: Failure = Failure()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesSize:
    """The size of a partition's replicas."""

    ordinal: int = column("number of the partition in the run")
    bytes: int = column("bytes of the segments of all replicas")
    most_bytes: int = column("bytes of the segments of the largest one")
    first_offset: int = column("smallest log start offset")
    end_offset: int = column("largest log end offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDigest(TaskMessage):
    """The digests of one replica, of ranges of offsets."""

    replica: int = column("number of the replica")
    sums: Binary = column("two 64-bit sums a range, little-endian; null where it is unreadable")
    read_bytes: int = column("bytes of batches that were read")
    findings: Text = column("columns of what was found in it, as JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestTarget:
    """One replica of a big partition."""

    ordinal: int
    replica: int
    places: PartitionPlaces
    ranges: OffsetRanges  # what its batches are summed over


def measure_places(items: Sequence[tuple[int, PartitionPlaces]]) -> Iterator[PlacesSize]:
    """Yield the sizes of partitions."""
    return map_where_remote(_measure, items, directory_of=lambda item: directory_of(item[1]))


def directory_of(places: PartitionPlaces) -> str:
    """Return the directory of one of the replicas, empty without any."""
    return next((place.directory for place in places.replicas), "")


def _measure(item: tuple[int, PartitionPlaces]) -> PlacesSize:
    ordinal, places = item
    logs = [log for log in map(observe_log, places.replicas) if log.view is not None]
    return PlacesSize(
        ordinal=ordinal,
        bytes=sum(log.size_bytes for log in logs),
        most_bytes=max((log.size_bytes for log in logs), default=0),
        first_offset=min((log.log_start_offset for log in logs), default=0),
        end_offset=max((log.log_end_offset for log in logs), default=0),
    )


def compare_partitions(
    partitions: Sequence[PartitionPlaces], level: Level
) -> Iterator[DifferenceRow]:
    """Compare partitions, each as a whole."""

    def compare(places: PartitionPlaces) -> list[DifferenceRow]:
        logs = list(map(observe_log, places.replicas))
        return _compare(
            places, logs, lambda: find_differences(logs, places.topic, places.state, _LOOKS[level])
        )

    for rows in map_where_remote(compare, partitions, directory_of=directory_of):
        yield from rows


def digest_replicas(targets: Sequence[DigestTarget]) -> Iterator[ReplicaDigest]:
    """Digest replicas."""
    for target in targets:
        head = ReplicaDigest(ordinal=target.ordinal, replica=target.replica)
        yield attempt(head, partial(_digest, target), log_name(target.places))


def _digest(target: DigestTarget, head: ReplicaDigest) -> ReplicaDigest:
    log = observe_log(target.places.replicas[target.replica])
    if log.error:
        return head
    sums, reader = digest_log(log, target.ranges)
    findings = findings_of(log, reader, target.places.state)
    return replace(
        head,
        sums=sums.astype("<u8").tobytes(),
        read_bytes=reader.read_bytes,
        findings=json.dumps([_finding_columns(log, finding) for finding in findings]),
    )


def compare_digests(
    digests: Iterable[ReplicaDigest],
    partitions: Mapping[int, tuple[PartitionPlaces, OffsetRanges]],
) -> Iterator[DifferenceRow]:
    """Compare big partitions where the sums of their replicas differ.

    Args:
        digests: Ordered by partition and replica; all of a partition are there.
    """
    for ordinal, some in groupby(digests, key=attrgetter("ordinal")):
        yield from _compare_digests(*partitions[ordinal], list(some))


def _compare_digests(
    places: PartitionPlaces, ranges: OffsetRanges, digests: Sequence[ReplicaDigest]
) -> list[DifferenceRow]:
    name = name_of(places)
    for digest in digests:
        if digest.failure:
            return [replace(name, kind=COMPARED, failure=digest.failure)]
    logs = list(map(observe_log, places.replicas))
    sums, read_bytes = [], 0
    findings: list[DifferenceRow] = []
    for digest in digests:
        if digest.sums is not None:
            sums.append(np.frombuffer(digest.sums, "<u8").reshape(-1, 2))
            read_bytes += digest.read_bytes
            findings += [
                replace(name, **columns) for columns in json.loads(digest.findings or "[]")
            ]
    unequal = ranges.bounds(find_unequal(sums)) if sums else []

    def compare() -> Differences:
        return find_differences(logs, places.topic, places.state, ReadDepth.DIGESTS, ranges=unequal)

    *rows, compared = _compare(places, logs, compare)
    compared = replace(
        compared,
        crossed_bytes=sum(each.nbytes for each in sums),
        read_bytes=(compared.read_bytes or 0) + read_bytes,
    )
    return [*rows, compared, *findings]


def _compare(
    places: PartitionPlaces, logs: Sequence[RestingLog], work: Callable[[], Differences]
) -> list[DifferenceRow]:
    """Return the rows of a partition, its costs last."""
    name = name_of(places)
    rows = unreadable_rows(places, logs)

    def compare(head: DifferenceRow) -> DifferenceRow:
        answer = work()
        rows.extend(replace(name, **difference_columns(each)) for each in answer.differences)
        rows.extend(
            replace(name, **_finding_columns(each.log, each.finding)) for each in answer.findings
        )
        return replace(
            head,
            undecided=answer.undecided,
            untold=answer.untold,
            read_bytes=answer.read_bytes,
        )

    head = replace(name, kind=COMPARED, crossed_bytes=0)
    compared = attempt(head, compare, log_name(places))
    return [*rows, compared]


def unreadable_rows(places: PartitionPlaces, logs: Sequence[RestingLog]) -> list[DifferenceRow]:
    """Return a row for each replica that cannot be read."""
    return [
        replace(
            name_of(places),
            kind=UNREADABLE,
            broker=log.place.broker,
            directory=log.place.directory or log.place.root,
            message=log.error,
        )
        for log in logs
        if log.error
    ]


def name_of(places: PartitionPlaces) -> DifferenceRow:
    """Return a row that only names a partition."""
    return DifferenceRow(topic=places.topic, partition=places.partition, topic_id=places.topic_id)


def log_name(places: PartitionPlaces) -> PartitionName:
    """Return the name in log lines; its replicas lie in several roots."""
    return PartitionName(topic=places.topic, partition=places.partition)


def difference_columns(difference: Difference | CopyDifference) -> dict[str, Any]:
    """Return the columns that differences of replicas and of copies have."""
    return {
        "kind": difference.kind.value,
        "first_offset": difference.first_offset,
        "last_offset": difference.last_offset,
        "message": difference.message or None,
        **side_columns(difference.side),
        **side_columns(difference.other, "other_"),
    }


def side_columns(side: Side, prefix: str = "") -> dict[str, Any]:
    """Return the columns of one side of a difference."""
    return {
        f"{prefix}broker": side.log.place.broker,
        f"{prefix}directory": side.log.place.directory or side.log.place.root,
        f"{prefix}epoch": side.epoch,
        f"{prefix}file": side.file or None,
        f"{prefix}position": side.position,
    }


def _finding_columns(log: RestingLog, finding: Finding) -> dict[str, Any]:
    return {
        "kind": FINDING,
        "code": finding.code.value,
        "severity": finding.severity.value,
        "broker": log.place.broker,
        "directory": log.place.directory,
        "file": finding.file or None,
        "position": finding.position,
        "first_offset": finding.offset,
        "message": finding.message,
    }
