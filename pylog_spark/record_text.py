"""Records as text one by one: text, hexadecimal, Base64, JSON or Avro.

``record_columns`` converts whole columns.
"""

import json
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pylog_spark.avro_format import AvroFormat
from pylog_spark.options.choices import AVRO_FORMATS, BytesFormat
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


# How keys or values are written.
ValueFormat = BytesFormat | AvroFormat


class NotInFormatError(ValueError):
    """A value is not what its format says.

    Attributes:
        reason: Why, for a person.
        row: Which one of a column; 0 for a value alone.
    """

    def __init__(self, how: str, reason: str, row: int = 0) -> None:
        super().__init__(how, reason, row)
        self.how, self.reason, self.row = how, reason, row


def parse_bytes_text(option: str, text: str, written: BytesFormat) -> bytes:
    """Return the bytes that a person has written."""
    if written in AVRO_FORMATS:
        raise ConfigError(option, text, f"no bytes are found by {written}: text, hex or base64")
    try:
        if written is BytesFormat.HEX:
            return bytes.fromhex(text)
        if written is BytesFormat.BASE64:
            return a2b_base64(text, strict_mode=True)
    except (ValueError, Base64Error) as error:
        raise ConfigError(option, text, f"expected {written}: {error}") from error
    # A byte of the command line that is no UTF-8 comes as half a character.
    return text.encode("utf-8", "surrogateescape")


def not_in_format(record: str, error: NotInFormatError) -> ConfigError:
    """Return the error about a record not in the wanted format."""
    reason = f"the record at offset {record} is not: {error.reason}; text shows it as it is"
    return ConfigError("--key-format, --value-format", error.how, reason)


def batch_not_in_format(batch: "pa.RecordBatch", error: NotInFormatError) -> ConfigError:
    """Return that error for a record of a batch.

    Args:
        batch: Where it was met; with the columns ``NAMES``.
    """
    topic, partition, offset = (batch.column(name)[error.row].as_py() for name in NAMES)
    return not_in_format(f"{offset} of {topic}-{partition}", error)


def is_json(how: ValueFormat) -> bool:
    """Whether a format writes values as JSON. A value may then be malformed, which is an error
    (``not_in_format``)."""
    return how is BytesFormat.JSON or isinstance(how, AvroFormat)


def format_of_headers(how: ValueFormat) -> BytesFormat:
    """Return the format of header values for records in a format. Few headers are JSON, or Avro,
    even where records are."""
    return BytesFormat.TEXT if how is BytesFormat.JSON or isinstance(how, AvroFormat) else how


def format_value(value: bytes | None, how: ValueFormat) -> str:
    """Return a value as JSON text: a string, JSON itself, ``null``.

    Args:
        value: The bytes, None for null.
        how: Any format but RAW, which JSON has no place for.
    """
    if value is None:
        return "null"
    if isinstance(how, AvroFormat) or how is BytesFormat.JSON:
        return json_of(value, how)
    match how:
        case BytesFormat.HEX:
            return f'"{value.hex()}"'
        case BytesFormat.BASE64:
            return f'"{base64_bytes(value).decode()}"'
        case _:
            return json.dumps(value.decode("utf-8", "backslashreplace"))


def json_lines(batch: "pa.RecordBatch", keys: ValueFormat, values: ValueFormat) -> Iterator[str]:
    """Yield records as JSON, a line each.

    Args:
        batch: With these columns of ``kafka_log``: key, value, topic, partition, offset, timestamp,
            timestampType, headers.
        keys: How keys are written: anything but raw.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["timestamp"] = columns["timestamp"].cast("int64")
    rows = zip(*(columns[name].to_pylist() for name in _JSON_COLUMNS), strict=True)
    of_headers = format_of_headers(values)
    for number, row in enumerate(rows):
        key, value, topic, partition, offset, timestamp, timestamp_type, headers = row
        try:
            key_text, value_text = format_value(key, keys), format_value(value, values)
        except NotInFormatError as error:
            raise NotInFormatError(error.how, error.reason, number) from error
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
        how: How values are written: anything but raw.
    """
    pairs = (f"[{json.dumps(one['key'])},{format_value(one['value'], how)}]" for one in headers)
    return f"[{','.join(pairs)}]"


def json_of(value: bytes, how: ValueFormat) -> str:
    """Return JSON, or what is Avro as JSON, on one line. JSON is otherwise unchanged: its
    numbers keep all their digits."""
    try:
        if isinstance(how, AvroFormat):
            return how.to_json(value)
        # Python's parser takes these two beyond JSON.
        has_constant = b"NaN" in value or b"Infinity" in value
        parse_json(value, limit_bytes=MAX_JSON_BYTES, is_strict=has_constant)
    except ValueError as error:
        raise NotInFormatError(str(how), str(error)) from error
    # Line ends are but space between tokens: strings have none.
    return value.translate(_ON_ONE_LINE).strip().decode()


def base64_bytes(value: bytes) -> bytes:
    """Return the Base64 of some bytes, on one line."""
    return b2a_base64(value, newline=False)


_ON_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
