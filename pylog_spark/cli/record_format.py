r"""kcat's format strings, such as ``%t [%p] at %o: %k = %s\n``.

Records are written by them.

The letters are those of kcat (https://github.com/edenhill/kcat): ``%s`` value, ``%S`` its length or
-1 for null, ``%R`` the same as a big-endian integer of four bytes, ``%k`` key, ``%K`` its length,
``%T`` timestamp in epoch milliseconds, ``%h`` headers as ``name=value,...``, ``%t`` topic, ``%p``
partition, ``%o`` offset, ``%%`` a percent sign; ``\n``, ``\r``, ``\t``, ``\\``, ``\xNN``.
"""

import re
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.options.choices import BytesFormat
from pylog_spark.record_columns import BYTES, format_column
from pylog_spark.record_text import ValueFormat, format_of_headers
from storage_core.errors import ConfigError

# The column of records that a letter is about.
_COLUMNS: Final = {
    "s": "value",
    "S": "value",
    "R": "value",
    "k": "key",
    "K": "key",
    "T": "timestamp",
    "h": "headers",
    "t": "topic",
    "p": "partition",
    "o": "offset",
}
_MICROSECONDS: Final = 1000
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|(.)|$)", re.DOTALL)
_ESCAPED: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


class RecordFormat:
    """Records as bytes, by a format string.

    Args:
        text: kcat's format string.
        null: What stands for a key or value that is null.
    """

    def __init__(
        self, text: str, *, keys: ValueFormat, values: ValueFormat, null: bytes = b""
    ) -> None:
        self._parts = list(_parse(text))
        self._keys, self._values, self._null = keys, values, null

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are to be read; at least one."""
        letters = [part for part in self._parts if isinstance(part, str)]
        return tuple(dict.fromkeys(_COLUMNS[letter] for letter in letters)) or ("offset",)

    def render(self, batch: pa.RecordBatch) -> memoryview:
        """Return the records of a batch, one after the other."""
        empty = pa.repeat(pa.scalar(b"", BYTES), batch.num_rows)  # so that one is no scalar
        parts = [
            self._column(part, batch) if isinstance(part, str) else pa.scalar(part, BYTES)
            for part in self._parts
        ]
        joined = pc.binary_join_element_wise(empty, *parts, pa.scalar(b"", BYTES))
        _, offsets, data = joined.buffers()
        end = int(np.frombuffer(offsets, np.int64)[batch.num_rows])
        return memoryview(b"" if data is None else data)[:end]

    def _column(self, letter: str, batch: pa.RecordBatch) -> pa.Array:
        column = batch.column(_COLUMNS[letter])
        match letter:
            case "s" | "k":
                how = self._keys if letter == "k" else self._values
                shown = pc.fill_null(format_column(column, how), self._null)
            case "S" | "K":
                shown = _numbers(_lengths(column))
            case "R":
                # The bytes of a fixed width follow each other.
                lengths = _lengths(column).to_numpy(zero_copy_only=False).astype(">i4")
                width = pa.binary(lengths.itemsize)
                buffers = [None, pa.py_buffer(lengths.tobytes())]
                shown = pa.Array.from_buffers(width, len(lengths), buffers).cast(BYTES)
            case "T":
                # Beyond the range of a calendar there is none; -1 is Kafka's own "no timestamp".
                ms = pc.divide(column.cast(pa.int64()), _MICROSECONDS)
                shown = _numbers(pc.fill_null(ms, -1))
            case "h":
                shown = _header_text(column, self._values)
            case "t":
                shown = column.cast(BYTES)
            case _:
                shown = _numbers(column)
        return shown


def _parse(text: str) -> list[str | bytes]:
    """Return a format's parts: letters as text, literals as bytes."""
    parts: list[str | bytes] = []
    # Literals and letters take turns; the letter is the first character behind a percent sign.
    literal = b""
    rest = text
    while True:
        before, mark, rest = rest.partition("%")
        literal += _unescape(before, text)
        if not mark:
            break
        letter, rest = rest[:1], rest[1:]
        if letter == "%":
            literal += b"%"
        elif letter in _COLUMNS and letter:
            parts += [literal, letter] if literal else [letter]
            literal = b""
        else:
            letters = ", ".join(f"%{name}" for name in _COLUMNS)
            raise ConfigError("--format", text, f"%{letter} is none of {letters}, %%")
    return [*parts, literal] if literal else parts


def _unescape(literal: str, whole: str) -> bytes:
    def bytes_of(match: re.Match[str]) -> str:
        code, letter = match[1], match[2]
        if code is not None:
            return chr(int(code, 16))
        if letter not in _ESCAPED:
            raise ConfigError(
                "--format", whole, f"{match[0]} is none of \\n, \\r, \\t, \\0, \\\\, \\xNN"
            )
        return _ESCAPED[letter].decode()

    # Bytes as characters of the same number, so that \xff is one byte.
    text = literal.encode("utf-8", "surrogateescape").decode("latin-1")
    return _ESCAPE.sub(bytes_of, text).encode("latin-1")


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), -1)


def _numbers(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_string()).cast(BYTES)


def _header_text(headers: pa.Array, how: ValueFormat) -> pa.Array:
    """Return headers in kcat's form: ``name=value``, with commas, NULL for null."""
    entries = headers.flatten()
    values = pc.fill_null(format_column(entries.field("value"), format_of_headers(how)), b"NULL")
    of_names = BytesFormat.RAW if how is BytesFormat.RAW else BytesFormat.TEXT
    names = format_column(entries.field("key").cast(BYTES), of_names)
    pairs = pc.binary_join_element_wise(names, values, pa.scalar(b"=", BYTES))
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(ends), pairs)
    return pc.binary_join(lists, pa.scalar(b",", BYTES))
