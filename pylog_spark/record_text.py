"""Records as text: keys and values raw, as text, hexadecimal digits, Base64 or JSON; JSON lines.

Whole columns at a time; where Python has to look at each value (text that is not printable, Base64,
JSON), that is said.
"""

import json
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.options.choices import BytesFormat
from pylog_spark.text import readable_bytes
from storage_core.errors import ConfigError
from storage_core.records.batch_table import TIMESTAMP_TYPES

BYTES: Final = pa.large_binary()
_MICROSECONDS: Final = 1000
_JSON_COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset"),
    *("timestamp", "timestampType", "headers"),
)
# What a terminal shows as it is: printable ASCII. Regular expressions see bytes as Latin-1.
_NOT_PLAIN: Final = "[^ -~]"


class NotInFormatError(ValueError):
    """A value is not what its format says.

    Attributes:
        row: Which one of a column.
        reason: Why, for a person.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason


def parse_bytes_text(option: str, text: str, written: BytesFormat) -> bytes:
    """Return the bytes that a person has written.

    Raises:
        ConfigError: They are not written so.
    """
    try:
        if written is BytesFormat.HEX:
            return bytes.fromhex(text)
        if written is BytesFormat.BASE64:
            return a2b_base64(text, strict_mode=True)
    except (ValueError, Base64Error) as error:
        raise ConfigError(option, text, f"expected {written}: {error}") from error
    # A byte of the command line that is no UTF-8 comes as half a character.
    return text.encode("utf-8", "surrogateescape")


def without_json(how: BytesFormat) -> BytesFormat:
    """Return how the values of headers are written: few of them are JSON where records are."""
    return BytesFormat.TEXT if how is BytesFormat.JSON else how


def format_column(values: pa.Array, how: BytesFormat) -> pa.Array:
    """Return a column of bytes as a person wants it; null stays null.

    Args:
        values: binary.
        how: The format.

    Returns:
        large_binary.

    Raises:
        NotInFormatError: A value is no JSON.
    """
    values = values.cast(BYTES)
    if how is BytesFormat.RAW:
        return values
    if how is BytesFormat.HEX:
        return _as_hex(values)
    if how is BytesFormat.TEXT:
        return _as_text(values)
    of_value = _BASE64 if how is BytesFormat.BASE64 else json_bytes
    return pa.array(_each(values, of_value), BYTES)


def text_column(values: pa.Array, how: BytesFormat) -> pa.Array:
    """Return a column of bytes as text that keeps all its characters; null stays null.

    Args:
        values: binary.
        how: The format; TEXT is UTF-8, with bytes that are none escaped.

    Raises:
        NotInFormatError: A value is no JSON.
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


def format_value(value: bytes | None, how: BytesFormat) -> str:
    """Return a value as a JSON text: a string, what it is where it is JSON itself, or ``null``.

    Args:
        value: The bytes, None for null.
        how: Any format but RAW, which JSON has no place for.

    Raises:
        ValueError: It is no JSON.
    """
    if value is None:
        return "null"
    match how:
        case BytesFormat.HEX:
            return f'"{value.hex()}"'
        case BytesFormat.BASE64:
            return f'"{_BASE64(value).decode()}"'
        case BytesFormat.JSON:
            return json_bytes(value).decode()
        case _:
            return json.dumps(value.decode("utf-8", "backslashreplace"))


def json_lines(batch: pa.RecordBatch, keys: BytesFormat, values: BytesFormat) -> Iterator[str]:
    """Yield records as JSON, a line each.

    Args:
        batch: With these columns of ``kafka_log``: key, value, topic, partition, offset, timestamp,
            timestampType, headers.
        keys: How keys are written: anything but raw.
        values: How values are written, and those of headers.

    Raises:
        NotInFormatError: A key or a value is no JSON.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    rows = zip(*(columns[name].to_pylist() for name in _JSON_COLUMNS), strict=True)
    of_headers = without_json(values)
    for number, row in enumerate(rows):
        key, value, topic, partition, offset, timestamp, timestamp_type, headers = row
        try:
            key_text, value_text = format_value(key, keys), format_value(value, values)
        except ValueError as error:
            raise NotInFormatError(number, str(error)) from error
        at = "null" if timestamp is None else timestamp // _MICROSECONDS
        pairs = ",".join(
            f"[{json.dumps(one['key'])},{format_value(one['value'], of_headers)}]"
            for one in headers or ()
        )
        yield (
            f'{{"type":"record","topic":{json.dumps(topic)},"partition":{partition},'
            f'"offset":{offset},"timestamp":{at},'
            f'"timestamp_type":"{TIMESTAMP_TYPES[timestamp_type]}",'
            f'"key":{key_text},"value":{value_text},"headers":[{pairs}]}}\n'
        )


def json_bytes(value: bytes) -> bytes:
    """Return a JSON text on one line, otherwise as it is: its numbers keep all their digits.

    Raises:
        ValueError: It is no JSON, or too deep to be looked at.
    """
    try:
        json.loads(value.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # Line ends are but space between tokens: strings have none.
    return value.translate(_ON_ONE_LINE).strip()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _BASE64(value: bytes) -> bytes:  # noqa: N802  # beside ``json_bytes``
    return b2a_base64(value, newline=False)


def _each(values: pa.Array, of_value: Any) -> list[bytes | None]:
    """Return what becomes of each value; a Python object a value."""
    shown: list[bytes | None] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            shown.append(None if value is None else of_value(value))
        except ValueError as error:
            raise NotInFormatError(row, str(error)) from error
    return shown


def _as_text(values: pa.Array) -> pa.Array:
    """Return values as text; only those that are not plain ASCII are looked at one by one."""
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


_ON_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
