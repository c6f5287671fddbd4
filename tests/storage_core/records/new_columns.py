"""Records of tests as columns."""

from collections.abc import Sequence

import pyarrow as pa

from storage_core.records.new_records import NewRecords
from tests.kit.builders import RecordSpec

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def table_of(records: Sequence[RecordSpec]) -> pa.Table:
    """Return the Arrow table of records."""
    return pa.table(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "timestamp": pa.array([record.timestamp for record in records], pa.int64()),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in record.headers] for record in records],
                HEADERS,
            ),
        }
    )


def columns_of(records: Sequence[RecordSpec]) -> NewRecords:
    """Return records as columns."""
    return NewRecords.from_arrow(table_of(records))
