"""List the differences between replicas of several brokers; nothing is written.

Small partitions are compared as a whole, a unit of them a task. Big ones are digested a replica a
task, and one task compares the digests and reads again where they differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.cluster.audit.driver import measure, open_places
from pylog_spark.cluster.differences_task import (
    COMPARED,
    DifferenceRow,
    DigestTarget,
    ReplicaDigest,
    compare_digests,
    compare_partitions,
    digest_replicas,
)
from pylog_spark.engines.choice import Place
from pylog_spark.options import JobOptions
from pylog_spark.options.choices import Level
from pylog_spark.rows import schema_of, spark_frame
from pylog_spark.run.planning import (
    LOOK_TASKS_PER_SLOT,
    WorkItem,
    are_looked_at_here,
    are_read_here,
)
from pylog_spark.run.run import Run
from pylog_spark.tasks.message import PART
from storage_core.cluster.differences import DifferenceKind
from storage_core.cluster.log_batches import OffsetRanges
from storage_core.cluster.places import PartitionPlaces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TITLE: Final = "pylog differences"
# Of a row for programs.
DIFFERENCE_KEYS: Final = (
    *("topic", "partition", "topic_id", "kind", "code", "severity", "first_offset", "last_offset"),
    *("broker", "directory", "epoch", "file", "position", "other_broker", "other_directory"),
    *("other_epoch", "other_file", "other_position", "message", "error_class", "error"),
    *("records", "copy_first_offset", "copy_last_offset", "timestamp_ms"),
)
# Headers are about so small a part of the bytes.
_HEADER_SHARE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """The differences between the logs of partitions."""

    rows: pa.Table  # of ``DifferenceRow``: differences, findings, replicas that cannot be read
    compared: pa.Table  # of ``DifferenceRow``: a row a partition, of what the comparison cost
    engine: str  # what did the tasks: ``spark`` or ``local``, which is this machine
    notes: Sequence[str] = ()  # what else a person should know of the log directories
    unread: Mapping[str, str] = field(default_factory=dict)

    def total(self, column: str) -> int:
        """Return the sum of a column over all partitions."""
        return int(pc.sum(self.compared[column]).as_py() or 0)

    def count_differences(self) -> int:
        """Return how many rows are of a difference. A finding in one replica is none, nor is
        what is still to be copied."""
        kinds = pa.array(
            [kind.value for kind in DifferenceKind if kind is not DifferenceKind.BEHIND]
        )
        return int(pc.sum(pc.is_in(self.rows["kind"], kinds)).as_py() or 0)

    @property
    def failed(self) -> int:
        """How many partitions could not be compared."""
        return int(len(self.compared) - self.compared["error"].null_count)

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """Return the rows as a DataFrame."""
        return spark_frame(spark, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceReport(ComparisonReport):
    """The differences between the replicas of partitions."""

    level: Level
    belief: str  # whose word on the leaders was taken, and how old it is


def list_differences(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    level: Level = Level.OFFSETS,
    state: Path | None = None,
) -> DifferenceReport:
    """List the differences between replicas; arguments and errors as of ``audit``.

    Args:
        state: A file that says leaders and cleanup policies.
    """
    job, places, _, cluster = open_places(roots, options, state)
    with Run(place, job) as run:
        table = _compare(run, places, level) if places else schema_of(DifferenceRow).empty_table()
        engine = run.engine.name
    table = table.sort_by(
        [(name, "ascending") for name in ("topic", "partition", "topic_id", "first_offset")]
    )
    rows, compared = split_compared(table)
    return DifferenceReport(
        rows=rows,
        compared=compared,
        level=level,
        belief=cluster.belief,
        notes=cluster.notes,
        unread=cluster.unread,
        engine=engine,
    )


def split_compared(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of differences, and those of what the comparisons cost."""
    is_compared = pc.equal(table["kind"], COMPARED)
    return table.filter(pc.invert(is_compared)), table.filter(is_compared)


def _compare(run: Run, places: Sequence[PartitionPlaces], level: Level) -> pa.Table:
    engine = run.engine
    if level is Level.OFFSETS:
        items = [WorkItem(value=each, size_bytes=0) for each in places]
        return engine.collect(
            _compare_whole(run, items, level),
            schema_of(DifferenceRow),
            f"{_TITLE}: {len(places):,} partitions",
            is_look=are_looked_at_here(sum(len(each.replicas) for each in places)),
        )
    sizes = measure(run, places)
    unit_bytes = run.unit_bytes(sum(size.bytes for size in sizes))
    whole = [
        WorkItem(
            value=each,
            size_bytes=size.bytes // (_HEADER_SHARE if level is Level.HEADERS else 1),
        )
        for each, size in zip(places, sizes, strict=True)
        if level is Level.HEADERS or size.bytes <= unit_bytes
    ]
    big = {
        ordinal: (each, OffsetRanges.of(size.first_offset, size.end_offset, size.most_bytes))
        for ordinal, (each, size) in enumerate(zip(places, sizes, strict=True))
        if level is Level.BYTES and size.bytes > unit_bytes
    }
    rows = [_compare_whole(run, whole, level)] if whole else []
    if big:
        rows.append(_compare_by_digests(run, big, {o: sizes[o].most_bytes for o in big}))
    both = rows[0] if len(rows) == 1 else rows[0].union(rows[1])
    return engine.collect(
        both,
        schema_of(DifferenceRow),
        f"{_TITLE}: {len(places):,} partitions",
        is_look=not big and are_read_here(whole),
    )


def _compare_whole(run: Run, items: Sequence[WorkItem[PartitionPlaces]], level: Level) -> Any:
    units = [unit.values for unit in run.pack(items)]
    return run.engine.spread(units, partial(compare_partitions, level=level), DifferenceRow)


def _compare_by_digests(
    run: Run,
    big: Mapping[int, tuple[PartitionPlaces, OffsetRanges]],
    sizes: Mapping[int, int],
) -> Any:
    engine = run.engine
    items = [
        WorkItem(
            value=DigestTarget(ordinal=ordinal, replica=number, places=places, ranges=ranges),
            size_bytes=sizes[ordinal],
        )
        for ordinal, (places, ranges) in big.items()
        for number in range(len(places.replicas))
    ]
    units = [unit.values for unit in run.pack(items)]
    digests = engine.spread(units, digest_replicas, ReplicaDigest)
    broadcast = engine.publish(big)

    def compare(digests: Iterator[ReplicaDigest]) -> Iterator[DifferenceRow]:
        return compare_digests(digests, broadcast.value)

    tasks = min(len(big), LOOK_TASKS_PER_SLOT * engine.slots)
    dealt = digests.deal_by(["ordinal"], tasks).sort_within("ordinal", "replica", PART)
    return engine.map_messages(dealt, ReplicaDigest, compare, DifferenceRow)
