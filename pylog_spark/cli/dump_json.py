"""Dumped batches and records as JSON lines.

A line is put together by formatting, not by a JSON library: the fields are numbers, base64 and
names that are known beforehand, and a dump has millions of lines. Those of records whose keys and
values are base64 are written by a kernel.
"""

import json
from binascii import b2a_base64
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pylog_spark.cli.dump_internal import meaning_of
from pylog_spark.cli.dump_records import HEADERS, KEY, OFFSET, VALUE, RecordRow, record_rows
from pylog_spark.cli.dump_segment import DecodedBatches, FileContent, TornTail
from pylog_spark.options.choices import BytesFormat
from pylog_spark.record_text import (
    NotInFormatError,
    ValueFormat,
    format_of_headers,
    format_value,
    not_in_format,
)
from pylog_spark.text import to_json
from storage_core.errors import BadBytesError
from storage_core.filenames import CLUSTER_METADATA_TOPIC
from storage_core.kernels.json_lines import write_record_lines
from storage_core.records.batch_table import (
    TIMESTAMP_TYPES,
    BatchTable,
    codec_name,
    control_name,
)
from storage_core.records.columns import RecordColumns

_BATCH: Final = (
    '{"type":"batch","file":%s,"position":%d,"base_offset":%d,"last_offset":%d,"magic":%d,'
    '"size":%d,"codec":"%s","timestamp_type":"%s","max_timestamp":%d,"producer_id":%d,'
    '"producer_epoch":%d,"base_sequence":%d,"is_transactional":%s,"is_control":%s,'
    '"leader_epoch":%d,"delete_horizon_ms":%s,"crc_ok":%s,"record_count":%s,"last_sequence":%d,'
    '"control_type":%s}\n'
)
_RECORD: Final = (
    '{"type":"record","offset":%d,"timestamp":%d,"sequence":%d,"key":%s,"value":%s,'
    '"headers":[%s]%s}\n'
)
_BOOLEANS: Final = ("false", "true")
# How many records' lines are held at a time, and how many bytes of those that a kernel writes.
_LINES_AT_A_TIME: Final = 4096
_PLAIN_BYTES: Final = 1 << 20


class JsonLines:
    """The lines of one file.

    Args:
        topic: The internal topic whose records it holds; None for other ones.
        keys: How keys are written: anything but raw.
    """

    def __init__(
        self,
        file: str,
        topic: str | None = None,
        *,
        keys: ValueFormat = BytesFormat.BASE64,
        values: ValueFormat = BytesFormat.BASE64,
    ) -> None:
        self._file = file
        self._topic = topic
        self._keys = _text_of(keys)
        self._values = _text_of(values)
        self._headers = _text_of(format_of_headers(values))
        self._json_file = to_json(file)
        self._is_plain = topic is None and keys is values is BytesFormat.BASE64

    def lines(self, content: FileContent) -> Iterator[str]:
        """Yield output lines for batches, a tail, an entry or an error. The lines of batches
        include their records."""
        match content:
            case DecodedBatches():
                yield from self._batches(content)
            case TornTail():
                fields = {"type": "tail", "file": content.file, "position": content.position}
                yield _line(fields | {"size": content.size_bytes, "is_zeros": content.is_zeros})
            case BadBytesError():
                fields = {"type": "error", "file": self._file, "position": content.position}
                yield _line(fields | {"message": content.reason})
            case (kind, entry):
                yield _line({"type": kind, "file": self._file, **entry})

    def _batches(self, decoded: DecodedBatches) -> Iterator[str]:
        rows = decoded.batches.rows(decoded.first_row, decoded.end_row)
        heads = self._heads(rows, decoded.window.file_position)
        start = 0
        is_control = rows.is_control.tolist()
        plain = _PlainLines(decoded.records)
        control_lines = _OF_QUORUM if self._topic == CLUSTER_METADATA_TOPIC else _OF_CONTROL
        for row, (head, end) in enumerate(zip(heads, decoded.record_ends, strict=True)):
            yield head
            lines = control_lines if is_control[row] else self
            if lines._is_plain:  # noqa: SLF001  # of this class
                yield from plain.between(start, end)
                start = end
            line = lines._record_line  # noqa: SLF001  # of this class
            while start < end:
                stop = min(end, start + _LINES_AT_A_TIME)
                yield "".join(map(line, record_rows(decoded.records, start, stop)))
                start = stop

    def _record_line(self, row: RecordRow) -> str:
        try:
            key, value = self._keys(row[KEY]), self._values(row[VALUE])
        except NotInFormatError as error:
            raise not_in_format(str(row[OFFSET]), error) from error
        headers = ""
        if row[HEADERS]:
            headers = ",".join(
                f"[{json.dumps(name)},{self._headers(header)}]" for name, header in row[HEADERS]
            )
        more = ""
        if self._topic is not None:
            decoded = meaning_of(self._topic, row[KEY], row[VALUE])
            more = f',"decoded":{to_json(decoded, separators=(",", ":"))}'
        return _RECORD % (*row[:KEY], key, value, headers, more)

    def _heads(self, rows: BatchTable, file_position: int) -> Iterator[str]:
        horizons = zip(rows.has_delete_horizon.tolist(), rows.base_timestamp.tolist(), strict=True)
        counts = zip(rows.is_legacy.tolist(), rows.record_count.tolist(), strict=True)
        controls = map(control_name, rows.control_type.tolist())
        columns = (
            [self._json_file] * len(rows),
            (rows.position + file_position).tolist(),
            rows.base_offset.tolist(),
            rows.last_offset.tolist(),
            rows.magic.tolist(),
            rows.size.tolist(),
            map(codec_name, rows.codec.tolist()),
            map(TIMESTAMP_TYPES.__getitem__, rows.timestamp_type_id.tolist()),
            rows.max_timestamp.tolist(),
            rows.producer_id.tolist(),
            rows.producer_epoch.tolist(),
            rows.base_sequence.tolist(),
            map(_BOOLEANS.__getitem__, rows.is_transactional.tolist()),
            map(_BOOLEANS.__getitem__, rows.is_control.tolist()),
            rows.leader_epoch.tolist(),
            [base_timestamp if is_set else "null" for is_set, base_timestamp in horizons],
            map(_BOOLEANS.__getitem__, (rows.crc_ok == 1).tolist()),
            # The header of a legacy entry counts nothing.
            ["null" if is_legacy else count for is_legacy, count in counts],
            rows.last_sequence.tolist(),
            ["null" if control is None else f'"{control}"' for control in controls],
        )
        return map(_BATCH.__mod__, zip(*columns, strict=True))


def _text_of(how: ValueFormat) -> Callable[[memoryview | None], str]:
    """Return a writer of bytes as JSON text. It has to be fast: there are millions of texts."""
    if how is BytesFormat.BASE64:
        return _base64
    return lambda data: format_value(None if data is None else bytes(data), how)


def _base64(data: memoryview | None) -> str:
    return "null" if data is None else f'"{b2a_base64(data, newline=False).decode()}"'


def _line(fields: dict[str, Any]) -> str:
    return to_json(fields, separators=(",", ":")) + "\n"


class _PlainLines:
    """Lines of records whose keys and values are base64."""

    def __init__(self, records: RecordColumns) -> None:
        self._records = records
        self._columns: list[NDArray[Any]] = [
            np.ascontiguousarray(column)
            for column in (
                records.payload.in_arena,
                records.table,
                records.offset,
                records.timestamp,
                records.sequence,
            )
        ]
        self._out = np.empty(_PLAIN_BYTES, np.uint8)

    def between(self, start: int, end: int) -> Iterator[str]:
        """Yield the lines of the records [start, end)."""
        payload = self._records.payload
        while start < end:
            row, size_bytes = write_record_lines(
                payload.window.data, payload.arena, start, end, self._out, *self._columns
            )
            if row == start:  # it is large, or a header's name needs an escape
                row += 1
                yield from map(_OF_CONTROL._record_line, record_rows(self._records, start, row))  # noqa: SLF001  # of this module
            yield self._out[:size_bytes].tobytes().decode("ascii")
            start = row


# The records of markers, whose keys and values are Kafka's own.
_OF_CONTROL: Final = JsonLines("")
_OF_QUORUM: Final = JsonLines("", CLUSTER_METADATA_TOPIC)
