"""Compare the replicas of partitions: rows of ``schemas.DIFFERENCE``; nothing is written.

The replicas of a small partition are compared by one task. Of a big one each replica is digested
by a task of its own; what goes from task to task are sums over ranges of offsets.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pylog_spark.options.choices import Level
from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import DIFFERENCE, REPLICA_DIGEST, SIZED_PLACES
from pylog_spark.tasks.ahead import map_where_remote
from pylog_spark.tasks.cells import join_rows
from storage_core.errors import describe_failure
from storage_core.maintenance.replication.difference import Difference, Side
from storage_core.maintenance.replication.differences import (
    Differences,
    find_differences,
    findings_of,
)
from storage_core.maintenance.replication.log_batches import ReadDepth
from storage_core.maintenance.replication.places import PartitionPlaces
from storage_core.maintenance.replication.range_digests import (
    OffsetRanges,
    digest_log,
    find_unequal,
)
from storage_core.maintenance.replication.resting_log import RestingLog, observe_log
from storage_core.maintenance.verification.findings import Finding

COMPARED = "compared"
FINDING = "finding"
UNREADABLE = "unreadable"
_LOOKS: Final = {
    Level.OFFSETS: None,
    Level.HEADERS: ReadDepth.HEADERS,
    Level.BYTES: ReadDepth.DIGESTS,
}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestTarget:
    """One replica of a big partition.

    Attributes:
        ordinal: The partition's number in the run.
        replica: Its number among the replicas.
        places: Of the partition.
        ranges: What its batches are summed over.
    """

    ordinal: int
    replica: int
    places: PartitionPlaces
    ranges: OffsetRanges


def measure_places(
    items: Sequence[tuple[int, PartitionPlaces]],
) -> Iterator[pa.RecordBatch]:
    """Yield the sizes of partitions: rows of ``schemas.SIZED_PLACES``.

    Args:
        items: Number and places of each.
    """
    yield from rows_to_batches(SIZED_PLACES, map_where_remote(_measure, items, directory_of=_any))


def _any(item: tuple[int, PartitionPlaces]) -> str:
    return next((place.directory for place in item[1].replicas), "")


def _measure(item: tuple[int, PartitionPlaces]) -> Row:
    ordinal, places = item
    logs = [log for log in map(observe_log, places.replicas) if log.view is not None]
    return {
        "ordinal": ordinal,
        "bytes": sum(log.size_bytes for log in logs),
        "most_bytes": max((log.size_bytes for log in logs), default=0),
        "first_offset": min((log.log_start_offset for log in logs), default=0),
        "end_offset": max((log.log_end_offset for log in logs), default=0),
    }


def compare_partitions(
    partitions: Sequence[PartitionPlaces], level: Level
) -> Iterator[pa.RecordBatch]:
    """Compare partitions, each as a whole.

    Args:
        partitions: Where the replicas of each lie.
        level: How much to read.
    """

    def compare(places: PartitionPlaces) -> list[Row]:
        logs = list(map(observe_log, places.replicas))
        return _attempt(
            places, logs, lambda: find_differences(logs, places.topic, places.state, _LOOKS[level])
        )

    compared = map_where_remote(compare, partitions, directory_of=lambda places: _any((0, places)))
    yield from rows_to_batches(DIFFERENCE, (row for rows in compared for row in rows))


def digest_replicas(targets: Sequence[DigestTarget]) -> Iterator[pa.RecordBatch]:
    """Digest replicas: rows of ``schemas.REPLICA_DIGEST``."""
    yield from rows_to_batches(REPLICA_DIGEST, map(_digest, targets))


def _digest(target: DigestTarget) -> Row:
    row: Row = {"ordinal": target.ordinal, "replica": target.replica}
    log = observe_log(target.places.replicas[target.replica])
    if log.error:
        return row
    try:
        sums, reader = digest_log(log, target.ranges)
    except Exception as error:  # noqa: BLE001  # the row carries it; other partitions go on
        return row | describe_failure(error)
    findings = findings_of(log, reader, target.places.state)
    found = [_finding_row(target.places, log, finding) for finding in findings]
    return row | {
        "sums": sums.astype("<u8").tobytes(),
        "read_bytes": reader.read_bytes,
        "findings": json.dumps(found),
    }


def compare_digests(
    batches: Iterable[pa.RecordBatch],
    partitions: Mapping[int, tuple[PartitionPlaces, OffsetRanges]],
) -> Iterator[pa.RecordBatch]:
    """Compare big partitions where the sums of their replicas differ.

    Args:
        batches: Pieces of rows of ``schemas.REPLICA_DIGEST``, ordered by partition and replica;
            all of a partition are there.
        partitions: Their places and ranges, by ordinal.
    """
    for ordinal, rows in groupby(join_rows(batches), key=lambda row: int(row["ordinal"])):
        compared = _compare_digests(*partitions[ordinal], list(rows))
        yield from rows_to_batches(DIFFERENCE, compared)


def _compare_digests(
    places: PartitionPlaces, ranges: OffsetRanges, digests: Sequence[Row]
) -> list[Row]:
    failed = next((row for row in digests if row["error_class"] is not None), None)
    if failed is not None:
        failure = {name: failed[name] for name in ("error_class", "error")}
        return [name_of(places) | {"kind": COMPARED} | failure]
    logs = list(map(observe_log, places.replicas))
    read = [row for row in digests if row["sums"] is not None]
    sums = [np.frombuffer(row["sums"], "<u8").reshape(-1, 2) for row in read]
    unequal = ranges.bounds(find_unequal(sums)) if sums else []

    def compare() -> Differences:
        return find_differences(logs, places.topic, places.state, ReadDepth.DIGESTS, ranges=unequal)

    rows = _attempt(places, logs, compare)
    for row in rows:
        if row["kind"] == COMPARED:
            row["crossed_bytes"] = sum(each.nbytes for each in sums)
            row["read_bytes"] = (row.get("read_bytes") or 0) + sum(
                digest["read_bytes"] for digest in read
            )
    return [*rows, *(found for row in read for found in json.loads(row["findings"]))]


def _attempt(
    places: PartitionPlaces, logs: Sequence[RestingLog], work: Callable[[], Differences]
) -> list[Row]:
    """Return the rows of a partition, whatever is wrong with it."""
    started = time.perf_counter()
    name = name_of(places)
    rows = unreadable_rows(places, logs)
    compared: Row = {**name, "kind": COMPARED, "crossed_bytes": 0}
    try:
        answer = work()
    except Exception as error:  # noqa: BLE001  # the row carries it; other partitions go on
        compared |= describe_failure(error)
    else:
        rows += [name | _difference_row(each) for each in answer.differences]
        rows += [_finding_row(places, each.log, each.finding) for each in answer.findings]
        compared |= {
            "undecided": answer.undecided,
            "untold": answer.untold,
            "read_bytes": answer.read_bytes,
        }
    compared["duration_ms"] = round((time.perf_counter() - started) * 1000)
    return [*rows, compared]


def unreadable_rows(places: PartitionPlaces, logs: Sequence[RestingLog]) -> list[Row]:
    """Return a row for each replica that cannot be read."""
    return [
        {
            **name_of(places),
            "kind": UNREADABLE,
            "broker": log.place.broker,
            "directory": log.place.directory or log.place.root,
            "message": log.error,
        }
        for log in logs
        if log.error
    ]


def name_of(places: PartitionPlaces) -> Row:
    """Return the columns that name a partition."""
    return {
        "topic": places.topic,
        "partition": places.partition,
        "topic_id": places.topic_id,
    }


def _difference_row(difference: Difference) -> Row:
    return {
        "kind": difference.kind.value,
        "first_offset": difference.first_offset,
        "last_offset": difference.last_offset,
        "message": difference.message or None,
        **side_columns(difference.side),
        **{f"other_{name}": value for name, value in side_columns(difference.other).items()},
    }


def side_columns(side: Side) -> Row:
    """Return the columns of one side of a difference."""
    return {
        "broker": side.log.place.broker,
        "directory": side.log.place.directory or side.log.place.root,
        "epoch": side.epoch,
        "file": side.file or None,
        "position": side.position,
    }


def _finding_row(places: PartitionPlaces, log: RestingLog, finding: Finding) -> Row:
    return {
        **name_of(places),
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
