"""Dumped batches and records as JSON lines.

A line is put together by formatting, not by a JSON library: the fields are numbers, base64 and
names that are known beforehand, and a dump has millions of lines.
"""

import json
from binascii import b2a_base64
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pylog_spark.cli.dump_segment import DecodedBatches, TornTail
from storage_core.errors import BadBytesError
from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.formats.control import NO_CONTROL_RECORD, ControlType
from storage_core.kernels import batch_scan, record_scan
from storage_core.kernels.gather import list_headers
from storage_core.records.batch_table import BatchTable
from storage_core.records.columns import RecordColumns

_BATCH: Final = (
    '{"type":"batch","file":%s,"position":%d,"base_offset":%d,"last_offset":%d,"magic":%d,'
    '"size":%d,"codec":"%s","timestamp_type":"%s","max_timestamp":%d,"producer_id":%d,'
    '"producer_epoch":%d,"base_sequence":%d,"is_transactional":%s,"is_control":%s,'
    '"leader_epoch":%d,"delete_horizon_ms":%s,"crc_ok":%s,"record_count":%d,"last_sequence":%d,'
    '"control_type":%s}\n'
)
_RECORD: Final = (
    '{"type":"record","offset":%d,"timestamp":%d,"sequence":%d,"key":%s,"value":%s,"headers":[%s]}\n'
)
_BOOLEANS: Final = ("false", "true")
# How many records' lines are held at a time.
_LINES_AT_A_TIME: Final = 4096


class JsonLines:
    """The lines of one file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._json_file = json.dumps(file)

    def batches(self, decoded: DecodedBatches) -> Iterator[str]:
        """Yield the lines of some batches, each followed by those of its records."""
        rows = decoded.window.batches.rows(decoded.first_row, decoded.end_row)
        heads = self._heads(rows, decoded.window.file_position)
        records = _RecordLines(decoded.records)
        start = 0
        for head, end in zip(heads, decoded.record_ends, strict=True):
            yield head
            while start < end:
                stop = min(end, start + _LINES_AT_A_TIME)
                yield "".join(records.lines(start, stop))
                start = stop

    def tail(self, tail: TornTail) -> str:
        """Return the line of a file's torn tail."""
        fields = {"type": "tail", "file": tail.file, "position": tail.position}
        return _line(fields | {"size": tail.size_bytes})

    def error(self, error: BadBytesError) -> str:
        """Return the line that says where and why reading of a file stopped."""
        fields = {"type": "error", "file": self._file, "position": error.position}
        return _line(fields | {"message": error.reason})

    def entry(self, kind: str, fields: dict[str, Any]) -> str:
        """Return the line of an entry of an index, a snapshot or a checkpoint."""
        return _line({"type": kind, "file": self._file, **fields})

    def _heads(self, rows: BatchTable, file_position: int) -> Iterator[str]:
        columns = zip(
            (rows.position + file_position).tolist(),
            rows.base_offset.tolist(),
            rows.last_offset.tolist(),
            rows.magic.tolist(),
            rows.size.tolist(),
            rows.codec.tolist(),
            rows.is_log_append_time.tolist(),
            rows.max_timestamp.tolist(),
            rows.producer_id.tolist(),
            rows.producer_epoch.tolist(),
            rows.base_sequence.tolist(),
            rows.is_transactional.tolist(),
            rows.is_control.tolist(),
            rows.leader_epoch.tolist(),
            rows.has_delete_horizon.tolist(),
            rows.base_timestamp.tolist(),
            rows.crc_ok.tolist(),
            rows.record_count.tolist(),
            rows.last_sequence.tolist(),
            rows.control_type.tolist(),
            strict=True,
        )
        for (
            position,
            base_offset,
            last_offset,
            magic,
            size,
            codec,
            is_append,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            is_transactional,
            is_control,
            leader_epoch,
            has_horizon,
            base_timestamp,
            crc_ok,
            record_count,
            last_sequence,
            control_type,
        ) in columns:
            control = control_name(control_type)
            yield _BATCH % (
                self._json_file,
                position,
                base_offset,
                last_offset,
                magic,
                size,
                codec_name(codec),
                timestamp_type_name(is_append),
                max_timestamp,
                producer_id,
                producer_epoch,
                base_sequence,
                _BOOLEANS[is_transactional],
                _BOOLEANS[is_control],
                leader_epoch,
                base_timestamp if has_horizon else "null",
                _BOOLEANS[crc_ok == 1],
                record_count,
                last_sequence,
                "null" if control is None else f'"{control}"',
            )


class _RecordLines:
    """The lines of the records of some batches, a slice at a time."""

    def __init__(self, records: RecordColumns) -> None:
        self._records = records
        self._data = memoryview(records.payload.window.data)
        self._arena = memoryview(records.payload.arena)

    def lines(self, start: int, stop: int) -> Iterator[str]:
        """Yield the lines of the records [start, stop)."""
        part = RecordColumns(
            payload=self._records.payload, table=self._records.table[:, start:stop]
        )
        in_arena = part.payload.in_arena[part.batch]
        headers = self._headers(part, in_arena)
        columns = zip(
            in_arena.tolist(),
            part.offset.tolist(),
            part.timestamp.tolist(),
            part.sequence.tolist(),
            part.table[record_scan.RECORD_KEY_START].tolist(),
            part.key_length.tolist(),
            part.table[record_scan.RECORD_VALUE_START].tolist(),
            part.value_length.tolist(),
            strict=True,
        )
        for row, (place, offset, timestamp, sequence, key, key_size, value, value_size) in (
            enumerate(columns)
        ):
            source = self._arena if place else self._data
            yield _RECORD % (
                offset,
                timestamp,
                sequence,
                _base64(source, key, key_size),
                _base64(source, value, value_size),
                ",".join(headers[row]) if row in headers else "",
            )

    def _headers(self, part: RecordColumns, in_arena: NDArray[np.uint8]) -> dict[int, list[str]]:
        """Return the headers of the records that have any, each as JSON."""
        counts = np.ascontiguousarray(part.table[record_scan.RECORD_HEADER_COUNT])
        spans = np.empty((_SPAN_COLUMNS, int(counts.sum())), np.int64)
        if not spans.size:
            return {}
        list_headers(
            part.payload.window.data,
            part.payload.arena,
            in_arena,
            np.ascontiguousarray(part.table[record_scan.RECORD_HEADER_START]),
            counts,
            *spans,
        )
        headers: dict[int, list[str]] = {}
        for owner, name, name_size, value, value_size in spans.T.tolist():
            source = self._arena if in_arena[owner] else self._data
            text = bytes(source[name : name + name_size]).decode("utf-8", "replace")
            pair = f"[{json.dumps(text)},{_base64(source, value, value_size)}]"
            headers.setdefault(owner, []).append(pair)
        return headers


def codec_name(codec: int) -> str:
    """Return the codec as Kafka prints it; a number that is none stays a number."""
    return Codec(codec).name.lower() if codec in _CODECS else str(codec)


def timestamp_type_name(is_append: bool) -> str:  # noqa: FBT001  # a column's value
    """Return the timestamp type as Kafka prints it."""
    return str(TimestampType.LOG_APPEND_TIME if is_append else TimestampType.CREATE_TIME)


def control_name(control_type: int) -> str | None:
    """Return the type of a control record, None for a batch without one."""
    if control_type in {batch_scan.NOT_CONTROL, NO_CONTROL_RECORD}:
        return None
    known = control_type in _CONTROL_TYPES
    return ControlType(control_type).name if known else ControlType.UNKNOWN.name


_CODECS: Final = frozenset(map(int, Codec))
_CONTROL_TYPES: Final = frozenset(map(int, ControlType))
# Owner, start and length of the name, start and length of the value.
_SPAN_COLUMNS: Final = 5


def _base64(source: memoryview, start: int, size: int) -> str:
    if size < 0:
        return "null"
    return f'"{b2a_base64(source[start : start + size], newline=False).decode()}"'


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":")) + "\n"
