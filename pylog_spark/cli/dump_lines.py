"""Dumped batches and records as JSON lines.

A line is put together by formatting, not by a JSON library: the fields are numbers, base64 and
names that are known beforehand, and a dump has millions of lines. Those of records whose keys and
values are base64 are written by a kernel.
"""

import json
import math
from base64 import b64encode
from binascii import b2a_base64
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pylog_spark.cli.dump_segment import DecodedBatches, FileContent, TornTail
from pylog_spark.options.choices import BytesFormat
from pylog_spark.record_text import (
    NotInFormatError,
    ValueFormat,
    format_of_headers,
    format_value,
    is_json,
    not_in_format,
)
from pylog_spark.text import escaped, readable_bytes, to_json
from storage_core.catalog.roles import local_path
from storage_core.coordinators.transactions import state_name
from storage_core.errors import BadBytesError, InvalidNameError, MalformedMessageError
from storage_core.filenames import (
    BOOTSTRAP_SNAPSHOT_FILE,
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    parse_cluster_snapshot,
    parse_partition_directory,
    parse_renamed_directory,
    settled_name,
)
from storage_core.formats.batch_v2 import MAGIC_V2, NO_PRODUCER_ID, NO_SEQUENCE
from storage_core.kernels import record_scan
from storage_core.kernels.batch_scan import UNKNOWN_COUNT
from storage_core.kernels.gather import list_headers
from storage_core.kernels.json_lines import write_record_lines
from storage_core.messages.group_records import GROUP_METADATA
from storage_core.messages.internal_records import (
    CONTROL_RECORDS,
    INTERNAL_RECORDS,
    DecodedRecord,
    decode_assignment,
    decode_internal_record,
    decode_subscription,
)
from storage_core.messages.schema import Fields, secret_fields
from storage_core.records.batch_table import TIMESTAMP_TYPES, BatchTable, codec_name, control_name
from storage_core.records.payload import RecordColumns, decode_header_key
from storage_core.redaction import is_secret_name
from storage_core.store.generations import unpinned
from storage_core.store.open_store import split_location
from storage_core.wording import LAST_MS, time_text

# The meaning of internal topics' records, beside their bytes in a dump.

_REDACTED: Final = "(redacted)"
_CONFIG_RECORD: Final = 4
_OF_QUORUM: Final = frozenset(record_type.name for record_type in CONTROL_RECORDS.values())


def internal_topic_of(location: str, name: str) -> str | None:
    """Return the internal topic of a file's records, None for others."""
    plain = settled_name(name)
    if plain == BOOTSTRAP_SNAPSHOT_FILE or parse_cluster_snapshot(plain) is not None:
        return CLUSTER_METADATA_TOPIC
    local = local_path(location)
    directory = split_location(unpinned(location))[1] if local is None else local.resolve().name
    try:
        renamed = parse_renamed_directory(directory)
        partition = parse_partition_directory(directory) if renamed is None else renamed[0]
    except InvalidNameError:
        return None
    return partition.topic if partition.topic in INTERNAL_RECORDS else None


def meaning_of(topic: str, key: memoryview | None, value: memoryview | None) -> dict[str, Any]:
    """Return what a record means, as an object of JSON. Passwords and keys of users are left out;
    their bytes are in the record.

    Args:
        key: The record's key, None for none.
        value: The record's value, None for none.
    """
    decoded = _decode(topic, key, value)
    return {
        "type": decoded.type,
        "type_id": decoded.type_id,
        "version": decoded.version,
        "key": _plain(decoded.key),
        "value": _plain(_shown_value(topic, decoded)),
        "is_tombstone": decoded.is_tombstone,
        "problem": decoded.problem,
        "reason": decoded.reason or None,
    }


def meaning_text(topic: str, key: memoryview | None, value: memoryview | None) -> str:
    """Return a record's meaning as one line for a person. The arguments are those of
    `meaning_of`."""
    decoded = _decode(topic, key, value)
    parts = [decoded.type or f"type {decoded.type_id}"]
    if decoded.version is not None:
        parts.append(f"version {decoded.version}")
    parts += _pairs(decoded.key)
    if decoded.problem is not None:
        parts.append(f"NOT DECODED ({decoded.problem}): {decoded.reason}")
    elif decoded.is_tombstone:
        parts.append("= deleted")
    else:
        parts += ["=", *_pairs(_shown_value(topic, decoded))]
    return escaped("  ".join(parts))


def _decode(topic: str, key: memoryview | None, value: memoryview | None) -> DecodedRecord:
    return decode_internal_record(
        topic, None if key is None else bytes(key), None if value is None else bytes(value)
    )


def _pairs(fields: Fields | None) -> list[str]:
    return [f"{name} {_text(value)}" for name, value in (fields or {}).items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value else to_json(_plain(value))


def _shown_value(topic: str, decoded: DecodedRecord) -> Fields | None:
    """Return a value's fields without secrets, with consumers' own fields decoded."""
    value, type_id = decoded.value, decoded.type_id
    if value is None or type_id is None:
        return value
    if decoded.type in _OF_QUORUM:
        return value
    if topic == TRANSACTION_STATE_TOPIC:
        name = state_name(value["transaction_status"])
        return value if name is None else value | {"transaction_status_name": name}
    hidden = secret_fields(INTERNAL_RECORDS[topic][type_id].value)
    if topic == CLUSTER_METADATA_TOPIC and type_id == _CONFIG_RECORD:
        hidden |= {"value"} if is_secret_name(value["name"]) else set()
    if topic == CONSUMER_OFFSETS_TOPIC and type_id == GROUP_METADATA:
        members = tuple(map(_shown_member, value["members"]))
        return value | {"members": members} if value["protocol_type"] == "consumer" else value
    return value | dict.fromkeys(hidden, _REDACTED)


def _shown_member(member: Fields) -> Fields:
    return member | {
        "subscription_fields": _of_client(decode_subscription, member["subscription"]),
        "assignment_fields": _of_client(decode_assignment, member["assignment"]),
    }


def _of_client(decode: Callable[[bytes], Fields], data: bytes) -> Fields | None:
    """Return the fields of a client's own bytes, None if malformed."""
    try:
        return decode(data)
    except MalformedMessageError:
        return None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; bytes are base64."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no number for it
    return b64encode(value).decode() if isinstance(value, bytes) else value


# Records as plain tuples, a slice at a time. They are for those who write a line for each record.

# Offset, timestamp, sequence, key, value, headers; a null is None, no headers an empty list. The
# views are valid as long as the window is.
RecordRow = tuple[
    int,
    int,
    int,
    memoryview | None,
    memoryview | None,
    list[tuple[str, memoryview | None]],
]
OFFSET: Final = 0
TIMESTAMP: Final = 1
KEY: Final = 3
VALUE: Final = 4
HEADERS: Final = 5

# Owner, start and length of the name, start and length of the value.
_SPAN_COLUMNS: Final = 5


def record_rows(records: RecordColumns, start: int, stop: int) -> Iterator[RecordRow]:
    """Yield the records [start, stop)."""
    part = records.part(start, stop)
    data, arena = part.payload.window.data.data, part.payload.arena.data
    in_arena = part.payload.in_arena[part.batch]
    headers = _headers(part, in_arena)
    nothing: list[tuple[str, memoryview | None]] = []
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
    for row, (place, offset, timestamp, sequence, key, key_size, value, value_size) in enumerate(
        columns
    ):
        source = arena if place else data
        yield (
            offset,
            timestamp,
            sequence,
            source[key : key + key_size] if key_size >= 0 else None,
            source[value : value + value_size] if value_size >= 0 else None,
            headers.get(row, nothing),
        )


def _headers(
    part: RecordColumns, in_arena: NDArray[np.uint8]
) -> dict[int, list[tuple[str, memoryview | None]]]:
    """Return the headers by record row; records without headers are missing."""
    counts = np.ascontiguousarray(part.table[record_scan.RECORD_HEADER_COUNT])
    spans = np.empty((_SPAN_COLUMNS, int(counts.sum())), np.int64)
    headers: dict[int, list[tuple[str, memoryview | None]]] = {}
    if not spans.size:
        return headers
    data, arena = part.payload.window.data, part.payload.arena
    starts = np.ascontiguousarray(part.table[record_scan.RECORD_HEADER_START])
    list_headers(data, arena, in_arena, starts, counts, *spans)
    for owner, name, name_size, value, value_size in spans.T.tolist():
        source = (arena if in_arena[owner] else data).data
        text = decode_header_key(bytes(source[name : name + name_size]))
        content = source[value : value + value_size] if value_size >= 0 else None
        headers.setdefault(owner, []).append((text, content))
    return headers


# Dumped batches and records as a person reads them.

# How much of a key, a value or a header is shown.
_SHOWN_BYTES: Final = 120
_RECORDS_AT_A_TIME: Final = 1024


class TextLines:
    """The lines of one file, its name first.

    Args:
        topic: The internal topic whose records it holds; None for other ones.
        keys: How keys are written: anything but raw.
        is_full: Whether they are written whole, however long they are.
    """

    def __init__(
        self,
        file: str,
        topic: str | None = None,
        *,
        keys: ValueFormat = BytesFormat.TEXT,
        values: ValueFormat = BytesFormat.TEXT,
        is_full: bool = False,
    ) -> None:
        self._topic = topic
        self._keys, self._values = keys, values
        self._limit = None if is_full else _SHOWN_BYTES
        self._heading = f"{escaped(file)}\n"

    def lines(self, content: FileContent) -> Iterator[str]:
        """Yield output lines for batches, a tail, an entry or an error. The lines of batches
        include their records."""
        yield self._heading
        self._heading = ""
        match content:
            case DecodedBatches():
                yield from self._batches(content)
            case TornTail():
                what = "no whole batch: the end of the log"
                if content.is_zeros:
                    what = (
                        "zeros: the end of the log; a broker put them there ahead, or a crash left "
                        "them"
                    )
                size, position = content.size_bytes, content.position
                yield f"  {size} bytes from position {position} on are {what}\n"
            case BadBytesError():
                yield f"  ERROR at position {content.position}: {escaped(content.reason)}\n"
            case (_, entry):
                facts = (f"{name} {escaped(str(value))}" for name, value in entry.items())
                yield f"  {'  '.join(facts)}\n"

    def _batches(self, decoded: DecodedBatches) -> Iterator[str]:
        rows = decoded.batches.rows(decoded.first_row, decoded.end_row)
        start = 0
        control_lines = (
            _TEXT_OF_QUORUM if self._topic == CLUSTER_METADATA_TOPIC else _TEXT_OF_CONTROL
        )
        for row, end in enumerate(decoded.record_ends):
            yield _batch_line(rows, row, decoded.window.file_position)
            while start < end:
                stop = min(end, start + _RECORDS_AT_A_TIME)
                lines = control_lines if rows.is_control[row] else self
                yield from lines._record_lines(decoded.records, start, stop)  # noqa: SLF001  # of this class
                start = stop

    def _record_lines(self, records: RecordColumns, start: int, stop: int) -> Iterator[str]:
        times = _times_text(records.timestamp[start:stop])
        for row, time in zip(record_rows(records, start, stop), times, strict=True):
            try:
                key, value = self._text(row[KEY], self._keys), self._text(row[VALUE], self._values)
            except NotInFormatError as error:
                raise not_in_format(str(row[OFFSET]), error) from error
            of_headers = format_of_headers(self._values)
            named = [f"{escaped(name)}={self._text(v, of_headers)}" for name, v in row[HEADERS]]
            headers = f"  [{', '.join(named)}]" if named else ""
            yield f"    {row[OFFSET]}  {time}  {key} = {value}{headers}\n"
            if self._topic is not None:
                yield f"      {meaning_text(self._topic, row[KEY], row[VALUE])}\n"

    def _text(self, data: memoryview | None, how: ValueFormat) -> str:
        if data is None:
            return "null"
        limit = len(data) if self._limit is None else self._limit
        if how is BytesFormat.TEXT:
            text = f'"{readable_bytes(bytes(data[: limit + 1]), limit=limit)}"'
        else:
            whole = format_value(bytes(data), how)
            text = whole if is_json(how) else whole.strip('"')
            text = escaped(text if self._limit is None else text[:limit])
            text += "..." if self._limit is not None and len(whole) > limit else ""
        return text + (f" ({len(data)} bytes)" if len(data) > limit else "")


def _batch_line(rows: BatchTable, row: int, file_position: int) -> str:
    facts = [
        f"  batch {rows.base_offset[row]}..{rows.last_offset[row]}",
        *_format_facts(rows, row),
        f"{rows.size[row]} bytes at {rows.position[row] + file_position}",
        codec_name(int(rows.codec[row])),
        _times_of_batch(rows, row),
    ]
    if not rows.is_legacy[row]:
        facts.append(f"leader epoch {rows.leader_epoch[row]}")
    if rows.producer_id[row] != NO_PRODUCER_ID:
        facts.append(f"producer {rows.producer_id[row]} epoch {rows.producer_epoch[row]}")
    if rows.base_sequence[row] != NO_SEQUENCE:
        facts.append(f"sequences {rows.base_sequence[row]}..{rows.last_sequence[row]}")
    if rows.is_transactional[row]:
        facts.append("transactional")
    if rows.is_control[row]:
        facts.append(f"control {control_name(int(rows.control_type[row])) or 'without a record'}")
    if rows.has_delete_horizon[row]:
        facts.append(f"delete horizon {time_text(int(rows.base_timestamp[row]))}")
    if rows.crc_ok[row] != 1:
        facts.append("CRC WRONG")
    return ", ".join(facts) + "\n"


def _format_facts(rows: BatchTable, row: int) -> list[str]:
    """Return a batch's number of records, if known, and unusual magic."""
    facts = [] if rows.magic[row] == MAGIC_V2 else [f"magic {rows.magic[row]}"]
    # A legacy entry counts no records, and is not counted where it is not opened.
    if not rows.is_legacy[row] or rows.record_count[row] != UNKNOWN_COUNT:
        facts.append(f"{rows.record_count[row]} records")
    return facts


def _times_of_batch(rows: BatchTable, row: int) -> str:
    kind = TIMESTAMP_TYPES[int(rows.timestamp_type_id[row])]
    if not rows.has_timestamps[row]:
        return kind
    return f"{kind} up to {time_text(int(rows.max_timestamp[row]))}"


def _times_text(epoch_ms: NDArray[np.int64]) -> list[str]:
    """Return the result of time_text for each time, fast. Times of our days are formatted all at
    once."""
    usual = (epoch_ms >= 0) & (epoch_ms <= LAST_MS)
    shown = np.datetime_as_string(np.where(usual, epoch_ms, 0).astype("M8[ms]"), timezone="UTC")
    texts: list[str] = shown.tolist()
    for row in np.flatnonzero(~usual).tolist():
        texts[row] = time_text(int(epoch_ms[row]))
    return texts


# The records of markers, whose keys and values are Kafka's own.
_TEXT_OF_CONTROL: Final = TextLines("")
_TEXT_OF_QUORUM: Final = TextLines("", CLUSTER_METADATA_TOPIC)


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
        control_lines = (
            _JSON_OF_QUORUM if self._topic == CLUSTER_METADATA_TOPIC else _JSON_OF_CONTROL
        )
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
                record_line = _JSON_OF_CONTROL._record_line  # noqa: SLF001  # of this module
                yield from map(record_line, record_rows(self._records, start, row))
            yield self._out[:size_bytes].tobytes().decode("ascii")
            start = row


# The records of markers, whose keys and values are Kafka's own.
_JSON_OF_CONTROL: Final = JsonLines("")
_JSON_OF_QUORUM: Final = JsonLines("", CLUSTER_METADATA_TOPIC)
