"""Select a verification's findings: all, counts by kind, the worst.

Tasks have ``VerifiedRow`` as rows; each function here makes of them what the driver, or
the ledger, gets.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.operations.verify.task import FINDING_ROW, PARTITION_ROW, VerifiedRow
from pylog_spark.rows import schema_of
from pylog_spark.schemas import FINDING, RECORDED_FINDING
from pylog_spark.tasks.cells import PART
from storage_core.maintenance.verification.findings import Severity

_VERIFIED: Final = schema_of(VerifiedRow)
# A row a partition: its numbers, or the error because of which there are none.
VERIFIED_PARTITION: Final = pa.schema(
    [
        _VERIFIED.field(name)
        for name in (
            *("row", "ordinal", "root", "topic", "partition", "segments", "bytes", "records"),
            *("log_start_offset", "log_end_offset", "read_bytes", "read_ms"),
            *("error_class", "error"),
        )
    ]
)
FINDING_COUNT: Final = pa.schema(
    [
        *(_VERIFIED.field(name) for name in ("root", "severity", "code")),
        pa.field("count", pa.int64()),
    ]
)
_SEVERITIES: Final = pa.array(
    [severity.value for severity in sorted(Severity, key=lambda each: -each.rank)]
)
# A finding as the driver gets it: with the number of its partition in the run, and its rank.
RANKED_FINDING: Final = pa.schema(
    [
        *(_VERIFIED.field(name) for name in ("row", "ordinal", "root", *FINDING.names)),
        pa.field("badness", pa.int32()),
    ]
)
# What comes first of findings: the worst, then by their places.
WORST_FIRST: Final = ("badness", "root", "topic", "partition", "file", "position", "code")


def verified_partitions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of partitions, of ``VERIFIED_PARTITION``."""
    for rows in _of_kind(batches, PARTITION_ROW):
        yield rows.select(VERIFIED_PARTITION.names)


def recorded_findings(batches: Iterable[pa.RecordBatch], run_id: str) -> Iterator[pa.RecordBatch]:
    """Yield the findings, of ``schemas.RECORDED_FINDING``."""
    names = RECORDED_FINDING.names[1:]
    for rows in _of_kind(batches, FINDING_ROW):
        run = pa.repeat(run_id, rows.num_rows)
        yield pa.RecordBatch.from_arrays(
            [run, *rows.select(names).columns], schema=RECORDED_FINDING
        )


def count_findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield how many findings there are of each root, severity and code."""
    keys = FINDING_COUNT.names[:-1]
    for rows in _of_kind(batches, FINDING_ROW):
        counts = pa.table(rows.select(keys)).group_by(keys).aggregate([([], "count_all")])
        yield from counts.rename_columns(FINDING_COUNT.names).cast(FINDING_COUNT).to_batches()


def rank_findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the findings with their rank, 0 for the worst; of ``RANKED_FINDING``."""
    names = RANKED_FINDING.names[:-1]
    for rows in _of_kind(batches, FINDING_ROW):
        badness = pc.index_in(rows["severity"], value_set=_SEVERITIES)
        yield pa.RecordBatch.from_arrays(
            [*rows.select(names).columns, badness], schema=RANKED_FINDING
        )


def findings_of(batches: Iterable[pa.RecordBatch], severity: str) -> Iterator[pa.RecordBatch]:
    """Yield the findings of one severity, of ``RANKED_FINDING``."""
    for rows in rank_findings(batches):
        yield rows.filter(pc.equal(rows["severity"], severity))


def first_rows(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Yield up to a number of a task's first rows. The others are passed over."""
    remaining_rows = most
    for rows in batches:
        yield rows.slice(0, remaining_rows)
        remaining_rows -= min(remaining_rows, rows.num_rows)


def _of_kind(batches: Iterable[pa.RecordBatch], kind: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a kind; of several pieces, the first."""
    for batch in batches:
        yield batch.filter(pc.and_(pc.equal(batch["row"], kind), pc.equal(batch[PART], 0)))
