"""Columns of keys and values: raw, text, hexadecimal, Base64 or JSON. Python is used only for
values that need a look each: unprintable text, Base64, JSON, Avro."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.options.choices import BytesFormat
from pylog_spark.record_text import (
    NotInFormatError,
    ValueFormat,
    base64_bytes,
    is_json,
    json_of,
)
from pylog_spark.text import readable_bytes

BYTES: Final = pa.large_binary()
# What a terminal shows as it is: printable ASCII. Regular expressions see bytes as Latin-1.
_NOT_PLAIN: Final = "[^ -~]"


def format_column(values: pa.Array, how: ValueFormat) -> pa.Array:
    """Return a column of bytes in a format; null stays null.

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
        return pa.array(_each(values, lambda value: json_of(value, how).encode()), BYTES)
    if how is BytesFormat.BASE64:
        return pa.array(_each(values, base64_bytes), BYTES)
    raise TypeError(f"{how} has no schema")


def text_column(values: pa.Array, how: ValueFormat) -> pa.Array:
    """Return a column of bytes as text without loss; null stays null.

    Args:
        how: The format; TEXT is UTF-8, with bytes that are none escaped.
    """
    if how is not BytesFormat.TEXT:
        return format_column(values, how).cast(pa.large_string())
    try:
        return values.cast(BYTES).cast(pa.large_string())
    except pa.ArrowInvalid:
        texts = [
            None if v is None else v.decode("utf-8", "backslashreplace") for v in values.to_pylist()
        ]
        return pa.array(texts, pa.large_string())


def _each(values: pa.Array, of_value: Any) -> list[bytes | None]:
    """Return what becomes of each value; a Python object a value."""
    shown: list[bytes | None] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            shown.append(None if value is None else of_value(value))
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
