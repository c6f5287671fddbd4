"""Records as text, one by one: keys and values as text, hexadecimal digits, Base64 or JSON.

``record_columns`` does whole columns.
"""

import json
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pylog_spark.options.choices import BytesFormat
from storage_core.errors import ConfigError
from storage_core.json_text import MAX_JSON_BYTES, parse_json
from storage_core.records.batch_table import TIMESTAMP_TYPES

if TYPE_CHECKING:
    import pyarrow as pa

# What an error names a record by.
NAMES: Final = ("topic", "partition", "offset")
_MICROSECONDS: Final = 1000
_JSON_COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset"),
    *("timestamp", "timestampType", "headers"),
)


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


def not_json(batch: "pa.RecordBatch", error: NotInFormatError) -> ConfigError:
    """Return what is to be said of a record that was to be JSON and is not.

    Args:
        batch: Where it was met; with the columns ``NAMES``.
        error: What was wrong.
    """
    topic, partition, offset = (batch.column(name)[error.row].as_py() for name in NAMES)
    reason = (
        f"the record at offset {offset} of {topic}-{partition} is not: {error.reason}; "
        "text shows it as it is"
    )
    return ConfigError("--key-format, --value-format", BytesFormat.JSON, reason)


def without_json(how: BytesFormat) -> BytesFormat:
    """Return how the values of headers are written: few of them are JSON where records are."""
    return BytesFormat.TEXT if how is BytesFormat.JSON else how


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
            return f'"{base64_bytes(value).decode()}"'
        case BytesFormat.JSON:
            return json_bytes(value).decode()
        case _:
            return json.dumps(value.decode("utf-8", "backslashreplace"))


def json_lines(batch: "pa.RecordBatch", keys: BytesFormat, values: BytesFormat) -> Iterator[str]:
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
    columns["timestamp"] = columns["timestamp"].cast("int64")
    rows = zip(*(columns[name].to_pylist() for name in _JSON_COLUMNS), strict=True)
    of_headers = without_json(values)
    for number, row in enumerate(rows):
        key, value, topic, partition, offset, timestamp, timestamp_type, headers = row
        try:
            key_text, value_text = format_value(key, keys), format_value(value, values)
        except ValueError as error:
            raise NotInFormatError(number, str(error)) from error
        at = "null" if timestamp is None else timestamp // _MICROSECONDS
        pairs = header_pairs(headers or (), of_headers)
        yield (
            f'{{"type":"record","topic":{json.dumps(topic)},"partition":{partition},'
            f'"offset":{offset},"timestamp":{at},'
            f'"timestamp_type":"{TIMESTAMP_TYPES[timestamp_type]}",'
            f'"key":{key_text},"value":{value_text},"headers":{pairs}}}\n'
        )


def header_pairs(headers: Iterable[Mapping[str, Any]], how: BytesFormat) -> str:
    """Return headers as a JSON text: pairs of name and value.

    Args:
        headers: Each with ``key`` and ``value``.
        how: How values are written: anything but raw.
    """
    pairs = (f"[{json.dumps(one['key'])},{format_value(one['value'], how)}]" for one in headers)
    return f"[{','.join(pairs)}]"


def json_bytes(value: bytes) -> bytes:
    """Return a JSON text on one line, otherwise as it is: its numbers keep all their digits.

    Raises:
        ValueError: It is no JSON, or too deep to be looked at.
    """
    # Python's parser takes these two beyond JSON.
    has_constant = b"NaN" in value or b"Infinity" in value
    parse_json(value, limit_bytes=MAX_JSON_BYTES, is_strict=has_constant)
    # Line ends are but space between tokens: strings have none.
    return value.translate(_ON_ONE_LINE).strip()


def base64_bytes(value: bytes) -> bytes:
    """Return the Base64 of some bytes, on one line."""
    return b2a_base64(value, newline=False)


_ON_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
