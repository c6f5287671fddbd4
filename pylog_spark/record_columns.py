"""Columns of keys and values: raw, text, hexadecimal, Base64 or JSON; records as lines of JSON.

Python is used only for values that need a look each: unprintable text, Base64, JSON, Avro.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.options.choices import BytesFormat
from pylog_spark.record_text import (
    NotInFormatError,
    RegistryFormat,
    ValueFormat,
    base64_bytes,
    format_of_headers,
    format_value,
    is_json,
    json_of,
    not_in_format,
)
from pylog_spark.text import readable_bytes
from storage_core.errors import ConfigError
from storage_core.records.batch_table import TIMESTAMP_TYPES

# What an error names a record by.
_NAMES: Final = ("topic", "partition", "offset")
_MICROSECONDS: Final = 1000
_YEAR_10000_MS: Final = 253_402_300_800_000
_JSON_COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset"),
    *("timestamp", "time", "timestampType", "headers"),
)
BYTES: Final = pa.large_binary()
# What a terminal shows as it is: printable ASCII. Regular expressions see bytes as Latin-1.
_NOT_PLAIN: Final = "[^ -~]"


def batch_not_in_format(batch: pa.RecordBatch, error: NotInFormatError) -> ConfigError:
    """Return that error for a record of a batch.

    Args:
        batch: Where it was met; with the columns ``columns_beside``.
    """
    topic, partition, offset = (batch.column(name)[error.row].as_py() for name in _NAMES)
    return not_in_format(f"{offset} of {topic}-{partition}", error)


def columns_beside(*formats: ValueFormat) -> tuple[str, ...]:
    """Return the columns of records that formats of keys and values need beside these: what an
    error names a record by, and headers that may name a schema."""
    names = _NAMES if any(map(is_json, formats)) else ()
    return (*names, "headers") if any(isinstance(it, RegistryFormat) for it in formats) else names


def headers_beside(batch: pa.RecordBatch, how: ValueFormat) -> pa.Array | None:
    """Return the column of headers, if a format needs it."""
    return batch.column("headers") if isinstance(how, RegistryFormat) else None


def json_lines(batch: pa.RecordBatch, keys: ValueFormat, values: ValueFormat) -> Iterator[str]:
    """Yield records as JSON, a line each.

    Args:
        batch: With these columns of ``kafka_log``: key, value, topic, partition, offset, timestamp,
            timestampType, headers.
        keys: How keys are written: anything but raw.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["time"] = _json_times(columns["timestamp"])
    columns["timestamp"] = columns["timestamp"].cast("int64")
    rows = zip(*(columns[name].to_pylist() for name in _JSON_COLUMNS), strict=True)
    of_headers = format_of_headers(values)
    for number, row in enumerate(rows):
        key, value, topic, partition, offset, timestamp, time, timestamp_type, headers = row
        named = _named(headers)
        try:
            key_text = format_value(key, keys, named)
            value_text = format_value(value, values, named)
        except NotInFormatError as error:
            raise NotInFormatError(error.how, error.reason, number) from error
        at = "null" if timestamp is None else timestamp // _MICROSECONDS
        pairs = header_pairs(headers or (), of_headers)
        yield (
            f'{{"type":"record","topic":{json.dumps(topic)},"partition":{partition},'
            f'"offset":{offset},"timestamp":{at},"time":{time},'
            f'"timestamp_type":"{TIMESTAMP_TYPES[timestamp_type]}",'
            f'"key":{key_text},"value":{value_text},"headers":{pairs}}}\n'
        )


def _json_times(timestamps: pa.Array) -> pa.Array:
    """Return times in UTC as JSON texts of ISO 8601, to the millisecond; null for Kafka's -1 and
    for years that have no four digits."""
    ms = pc.divide(timestamps.cast(pa.int64()), _MICROSECONDS)
    of_calendar = pc.and_(pc.greater_equal(ms, 0), pc.less(ms, _YEAR_10000_MS))
    known = pc.if_else(of_calendar, ms, None).cast(pa.timestamp("ms"))
    return pc.fill_null(pc.strftime(known, '"%Y-%m-%dT%H:%M:%SZ"'), "null")


def header_pairs(headers: Iterable[Mapping[str, Any]], how: BytesFormat) -> str:
    """Return headers as a JSON text: pairs of name and value.

    Args:
        how: How values are written: anything but raw.
    """
    pairs = (f"[{json.dumps(one['key'])},{format_value(one['value'], how)}]" for one in headers)
    return f"[{','.join(pairs)}]"


def format_column(values: pa.Array, how: ValueFormat, headers: pa.Array | None = None) -> pa.Array:
    """Return a column of bytes in a format; null stays null.

    Args:
        headers: Those of the same records (``headers_beside``).

    Returns:
        large_binary.
    """
    values = values.cast(BYTES)
    if how is BytesFormat.RAW:
        return values
    if how is BytesFormat.HEX:
        return _as_hex(values)
    if how is BytesFormat.TEXT:
        return _as_text(values)
    if is_json(how):
        named = repeat((), len(values)) if headers is None else map(_named, headers.to_pylist())
        texts = _each(values, lambda value, own: json_of(value, how, own).encode(), named)
        return pa.array(texts, BYTES)
    if how is BytesFormat.BASE64:
        return pa.array(_each(values, base64_bytes), BYTES)
    raise TypeError(f"{how} has no schema")


def text_column(values: pa.Array, how: ValueFormat, headers: pa.Array | None = None) -> pa.Array:
    """Return a column of bytes as text without loss; null stays null.

    Args:
        how: The format; TEXT is UTF-8, with bytes that are none escaped.
        headers: As for ``format_column``.
    """
    if how is not BytesFormat.TEXT:
        return format_column(values, how, headers).cast(pa.large_string())
    try:
        return values.cast(BYTES).cast(pa.large_string())
    except pa.ArrowInvalid:
        texts = [
            None if v is None else v.decode("utf-8", "backslashreplace") for v in values.to_pylist()
        ]
        return pa.array(texts, pa.large_string())


def _named(headers: Iterable[Mapping[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    """Return a record's headers as names and values."""
    return [(each["key"], each["value"]) for each in headers or ()]


def _each(values: pa.Array, of_value: Any, *beside: Iterable[Any]) -> list[bytes | None]:
    """Return what becomes of each value, with what stands beside it; a Python object a value."""
    shown: list[bytes | None] = []
    for row, (value, *more) in enumerate(zip(values.to_pylist(), *beside, strict=True)):
        try:
            shown.append(None if value is None else of_value(value, *more))
        except NotInFormatError as error:
            raise NotInFormatError(error.how, error.reason, row) from error
    return shown


def _as_text(values: pa.Array) -> pa.Array:
    """Return values as text; check only the non-ASCII ones singly."""
    mask = pc.fill_null(pc.match_substring_regex(values, pattern=_NOT_PLAIN), False)  # noqa: FBT003
    if not pc.any(mask).as_py():
        return values
    shown = [
        readable_bytes(value, limit=len(value)).encode()
        for value in values.filter(mask).to_pylist()
    ]
    return pc.replace_with_mask(values, mask, pa.array(shown, BYTES))


def _as_hex(values: pa.Array) -> pa.Array:
    count = len(values)
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int64, count + 1, values.offset * 8)
    digits = b"" if data is None else memoryview(data)[places[0] : places[-1]].hex().encode()
    doubled = pa.py_buffer((places - places[0]) * 2)
    shown = pa.Array.from_buffers(BYTES, count, [None, doubled, pa.py_buffer(digits)])
    return pc.if_else(values.is_valid(), shown, pa.scalar(None, BYTES))
