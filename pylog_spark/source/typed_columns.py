"""Columns by the schemas of a registry, as Spark has them.

Spark's types are fewer than Arrow's: an enum is text, a whole number without sign the next larger
type, a time of day text, and a decimal of more than 38 digits text.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from storage_core.reading.ranges import schema_of
from storage_core.values.registry_columns import Misfits, RegistryColumns

_log: Final = logging.getLogger(__name__)
_PLAIN: Final[Mapping[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.null(): pa.string(),
}
_OF_ANY: Final = (
    (pa.types.is_dictionary, pa.string()),
    (pa.types.is_time, pa.string()),
    (pa.types.is_decimal256, pa.string()),
    (pa.types.is_duration, pa.duration("us")),
    (pa.types.is_fixed_size_binary, pa.binary()),
)


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """Return columns with types that Spark has."""
    return pa.schema([each.with_type(_spark_type(each.type)) for each in schema])


def typed_batches(
    batches: Iterable[pa.RecordBatch],
    typed: RegistryColumns,
    columns: Iterable[str],
) -> Iterator[pa.RecordBatch]:
    """Yield records with columns of keys and values; warn at the end of values that do not fit.

    Args:
        batches: Records with the columns that these need.
        columns: The columns of records that are wanted, in order.
    """
    schema = typed.schema(schema_of(columns))
    of_spark, misfits = spark_schema(schema), Misfits()
    for batch in batches:
        yield typed.decode(batch, schema, misfits).cast(of_spark)
    if misfits.count:
        _log.warning("kafka-log: %s", misfits)


def _spark_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_spark_type(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    for is_one, of_spark in _OF_ANY:
        if is_one(kind):
            return of_spark
    return _PLAIN.get(kind, kind)
