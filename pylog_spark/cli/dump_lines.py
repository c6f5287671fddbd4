"""Dumped batches and records as JSON lines.

A line is put together by formatting, not by a JSON library: the fields are numbers, base64 and
names that are known beforehand, and a dump has millions of lines. Those of batches, and of records
whose keys and values are base64, are written by a kernel.
"""

import json
import math
from base64 import b64encode
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pylog_spark.cli.dump_segment import DecodedBatches, FileContent, TornTail
from pylog_spark.options.choices import BytesFormat
from pylog_spark.record_text import (
    Headers,
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
from storage_core.kernels.json_lines import NO_WORD, HeadLines, write_batch_lines
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

_RECORDS_AT_A_TIME: Final = 1024
# Owner, start and length of the name, start and length of the value.
_SPAN_COLUMNS: Final = 5


def record_rows(records: RecordColumns, start: int, stop: int) -> Iterator[RecordRow]:
    """Yield the records [start, stop)."""
    for part in _parts(records, start, stop):
        yield from _rows_of(part)


def _parts(records: RecordColumns, start: int, stop: int) -> Iterator[RecordColumns]:
    """Yield the records [start, stop) as parts: Python's objects take many times their room."""
    for first in range(start, stop, _RECORDS_AT_A_TIME):
        yield records.part(first, min(first + _RECORDS_AT_A_TIME, stop))


def _rows_of(part: RecordColumns) -> Iterator[RecordRow]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Batches one after the other that are all markers, or none of them, and their records."""

    is_control: bool
    batch: int  # the first one
    end_batch: int
    row: int  # the first record
    end_row: int
    record_counts: list[int]  # by batch


def _stretches(decoded: DecodedBatches) -> Iterator[_Stretch]:
    """Yield the stretches of dumped batches in order."""
    is_control = decoded.batches.rows(decoded.first_row, decoded.end_row).is_control
    ends = np.concatenate([[0], decoded.record_ends])
    changes = np.flatnonzero(np.diff(is_control)) + 1
    for batch, end_batch in pairwise([0, *changes.tolist(), len(is_control)]):
        yield _Stretch(
            is_control=bool(is_control[batch]),
            batch=batch,
            end_batch=end_batch,
            row=int(ends[batch]),
            end_row=int(ends[end_batch]),
            record_counts=np.diff(ends[batch : end_batch + 1]).tolist(),
        )


def _interleaved(heads: Iterable[str], stretch: _Stretch, records: Iterator[str]) -> Iterator[str]:
    """Yield the line of each batch, then those of its records."""
    for head, count in zip(heads, stretch.record_counts, strict=True):
        yield head
        yield from islice(records, count)


# Dumped batches and records as a person reads them.

# How much of a key, a value or a header is shown.
_SHOWN_BYTES: Final = 120


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
        heads = _batch_lines(rows, decoded.window.file_position)
        control_lines = (
            _TEXT_OF_QUORUM if self._topic == CLUSTER_METADATA_TOPIC else _TEXT_OF_CONTROL
        )
        for stretch in _stretches(decoded):
            lines = control_lines if stretch.is_control else self
            texts = lines._record_lines(decoded.records, stretch.row, stretch.end_row)  # noqa: SLF001  # of this class
            count = stretch.end_batch - stretch.batch
            yield from _interleaved(islice(heads, count), stretch, texts)

    def _record_lines(self, records: RecordColumns, start: int, stop: int) -> Iterator[str]:
        for part in _parts(records, start, stop):
            yield from self._lines_of(part)

    def _lines_of(self, part: RecordColumns) -> Iterator[str]:
        for row, time in zip(_rows_of(part), _times_text(part.timestamp), strict=True):
            try:
                key = self._text(row[KEY], self._keys, row[HEADERS])
                value = self._text(row[VALUE], self._values, row[HEADERS])
            except NotInFormatError as error:
                raise not_in_format(str(row[OFFSET]), error) from error
            of_headers = format_of_headers(self._values)
            named = [f"{escaped(name)}={self._text(v, of_headers)}" for name, v in row[HEADERS]]
            headers = f"  [{', '.join(named)}]" if named else ""
            meaning = ""
            if self._topic is not None:
                meaning = f"      {meaning_text(self._topic, row[KEY], row[VALUE])}\n"
            yield f"    {row[OFFSET]}  {time}  {key} = {value}{headers}\n{meaning}"

    def _text(self, data: memoryview | None, how: ValueFormat, headers: Headers = ()) -> str:
        if data is None:
            return "null"
        limit = len(data) if self._limit is None else self._limit
        if how is BytesFormat.TEXT:
            text = f'"{readable_bytes(bytes(data[: limit + 1]), limit=limit)}"'
        else:
            whole = format_value(bytes(data), how, headers)
            text = whole if is_json(how) else whole.strip('"')
            text = escaped(text if self._limit is None else text[:limit])
            text += "..." if self._limit is not None and len(whole) > limit else ""
        return text + (f" ({len(data)} bytes)" if len(data) > limit else "")


# What the line of a batch tells.
_TOLD: Final = (
    "base_offset",
    "last_offset",
    "magic",
    "is_legacy",
    "record_count",
    "size",
    "position",
    "codec",
    "timestamp_type_id",
    "has_timestamps",
    "leader_epoch",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "last_sequence",
    "is_transactional",
    "is_control",
    "control_type",
    "has_delete_horizon",
    "base_timestamp",
    "crc_ok",
)


def _batch_lines(batches: BatchTable, file_position: int) -> Iterator[str]:
    """Yield the line of each batch."""
    # Lists: a property of the table makes the whole column at each access.
    rows = SimpleNamespace(**{name: getattr(batches, name).tolist() for name in _TOLD})
    for row, latest in enumerate(_times_text(batches.max_timestamp)):
        yield _batch_line(rows, row, file_position, latest)


def _batch_line(rows: SimpleNamespace, row: int, file_position: int, latest: str) -> str:
    facts = [
        f"  batch {rows.base_offset[row]}..{rows.last_offset[row]}",
        *_format_facts(rows, row),
        f"{rows.size[row]} bytes at {rows.position[row] + file_position}",
        codec_name(rows.codec[row]),
        _times_of_batch(rows, row, latest),
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
        facts.append(f"control {control_name(rows.control_type[row]) or 'without a record'}")
    if rows.has_delete_horizon[row]:
        facts.append(f"delete horizon {time_text(rows.base_timestamp[row])}")
    if rows.crc_ok[row] != 1:
        facts.append("CRC WRONG")
    return ", ".join(facts) + "\n"


def _format_facts(rows: SimpleNamespace, row: int) -> list[str]:
    """Return a batch's number of records, if known, and unusual magic."""
    facts = [] if rows.magic[row] == MAGIC_V2 else [f"magic {rows.magic[row]}"]
    # A legacy entry counts no records, and is not counted where it is not opened.
    if not rows.is_legacy[row] or rows.record_count[row] != UNKNOWN_COUNT:
        facts.append(f"{rows.record_count[row]} records")
    return facts


def _times_of_batch(rows: SimpleNamespace, row: int, latest: str) -> str:
    kind = TIMESTAMP_TYPES[rows.timestamp_type_id[row]]
    if not rows.has_timestamps[row]:
        return kind
    return f"{kind} up to {latest}"


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


_RECORD: Final = (
    '{"type":"record","offset":%d,"timestamp":%d,"sequence":%d,"key":%s,"value":%s,'
    '"headers":[%s]%s}\n'
)
_NULL: Final = "null"
_BOOLEANS: Final = ("false", "true")
# How many bytes of lines a kernel writes at a time.
_PLAIN_BYTES: Final = 1 << 18


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
        kernel_lines = _KernelLines(decoded, self._json_file)
        control_lines = (
            _JSON_OF_QUORUM if self._topic == CLUSTER_METADATA_TOPIC else _JSON_OF_CONTROL
        )
        for stretch in _stretches(decoded):
            lines = control_lines if stretch.is_control else self
            if lines._is_plain:  # noqa: SLF001  # of this class
                yield from kernel_lines.all_of(stretch)
            else:
                rows = record_rows(decoded.records, stretch.row, stretch.end_row)
                texts = map(lines._record_line, rows)  # noqa: SLF001  # of this class
                heads = "".join(kernel_lines.heads_of(stretch)).splitlines(keepends=True)
                yield from _interleaved(heads, stretch, texts)

    def _record_line(self, row: RecordRow) -> str:
        try:
            key = self._keys(row[KEY], row[HEADERS])
            value = self._values(row[VALUE], row[HEADERS])
        except NotInFormatError as error:
            raise not_in_format(str(row[OFFSET]), error) from error
        headers = ""
        if row[HEADERS]:
            headers = ",".join(
                f"[{json.dumps(name)},{self._headers(header, ())}]" for name, header in row[HEADERS]
            )
        more = ""
        if self._topic is not None:
            decoded = meaning_of(self._topic, row[KEY], row[VALUE])
            more = f',"decoded":{to_json(decoded, separators=(",", ":"))}'
        return _RECORD % (*row[:KEY], key, value, headers, more)


def _text_of(how: ValueFormat) -> Callable[[memoryview | None, Headers], str]:
    """Return a writer of bytes as JSON text, beside the record's headers. It has
    to be fast: there are millions of texts."""
    if how is BytesFormat.BASE64:
        return _base64
    return lambda data, headers: format_value(None if data is None else bytes(data), how, headers)


def _base64(data: memoryview | None, _headers: Headers) -> str:
    return "null" if data is None else f'"{b2a_base64(data, newline=False).decode()}"'


def _line(fields: dict[str, Any]) -> str:
    return to_json(fields, separators=(",", ":")) + "\n"


class _Values:
    """What the lines of batches say, each a number or a word: columns for HeadLines."""

    def __init__(self, batches: int) -> None:
        self._count = batches
        self._labels: list[str] = []
        self._words: dict[str, int] = {}
        self._word: list[NDArray[np.int64]] = []
        self._number: list[NDArray[np.int64]] = []

    def add_numbers(
        self, label: str, numbers: NDArray[np.int64], is_null: NDArray[np.bool_] | None = None
    ) -> None:
        """Add numbers, null where they say nothing."""
        word = np.full(self._count, NO_WORD, np.int64)
        if is_null is not None:
            word[is_null] = self._number_of(_NULL)
        self._add(label, word, numbers)

    def add_words(
        self, label: str, codes: NDArray[Any], text_of: Callable[[int], str | None]
    ) -> None:
        """Add what codes are called, null where that is None."""
        different, places = np.unique(codes, return_inverse=True)
        texts = map(text_of, different.tolist())
        words = [self._number_of(_NULL if text is None else f'"{text}"') for text in texts]
        self._add(label, np.array(words, np.int64)[places], places)

    def add_booleans(self, label: str, values: NDArray[np.bool_]) -> None:
        """Add true or false."""
        word = np.where(values, *map(self._number_of, reversed(_BOOLEANS)))
        self._add(label, word, word)

    def lines(self, end: str) -> HeadLines:
        """Return the lines, each with this end."""
        labels, words = [*self._labels, end], [*self._words]
        return HeadLines(
            np.frombuffer("".join(labels).encode("ascii"), np.uint8).copy(),
            np.cumsum([*map(len, labels)]),
            np.frombuffer("".join(words).encode("ascii"), np.uint8).copy(),
            np.cumsum([*map(len, words)]),
            np.stack(self._word),
            np.stack(self._number),
        )

    def _add(self, label: str, word: NDArray[np.int64], number: NDArray[np.int64]) -> None:
        self._labels.append(label)
        self._word.append(word)
        self._number.append(number)

    def _number_of(self, word: str) -> int:
        return self._words.setdefault(word, len(self._words))


def _head_lines(rows: BatchTable, json_file: str, file_position: int) -> HeadLines:
    values = _Values(len(rows))
    values.add_numbers(
        f'{{"type":"batch","file":{json_file},"position":', rows.position + file_position
    )
    values.add_numbers(',"base_offset":', rows.base_offset)
    values.add_numbers(',"last_offset":', rows.last_offset)
    values.add_numbers(',"magic":', rows.magic)
    values.add_numbers(',"size":', rows.size)
    values.add_words(',"codec":', rows.codec, codec_name)
    values.add_words(',"timestamp_type":', rows.timestamp_type_id, TIMESTAMP_TYPES.__getitem__)
    values.add_numbers(',"max_timestamp":', rows.max_timestamp)
    values.add_numbers(',"producer_id":', rows.producer_id)
    values.add_numbers(',"producer_epoch":', rows.producer_epoch)
    values.add_numbers(',"base_sequence":', rows.base_sequence)
    values.add_booleans(',"is_transactional":', rows.is_transactional)
    values.add_booleans(',"is_control":', rows.is_control)
    values.add_numbers(',"leader_epoch":', rows.leader_epoch)
    values.add_numbers(',"delete_horizon_ms":', rows.base_timestamp, ~rows.has_delete_horizon)
    values.add_booleans(',"crc_ok":', rows.crc_ok == 1)
    # The header of a legacy entry counts nothing.
    values.add_numbers(',"record_count":', rows.record_count, rows.is_legacy)
    values.add_numbers(',"last_sequence":', rows.last_sequence)
    values.add_words(',"control_type":', rows.control_type, control_name)
    return values.lines("}\n")


class _KernelLines:
    """Lines that a kernel writes: those of batches, and of records whose keys and values are
    base64."""

    def __init__(self, decoded: DecodedBatches, json_file: str) -> None:
        records = decoded.records
        rows = decoded.batches.rows(decoded.first_row, decoded.end_row)
        self._records = records
        self._heads = _head_lines(rows, json_file, decoded.window.file_position)
        self._record_ends = decoded.record_ends
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
        # The name of a file may be long.
        self._out = np.empty(_PLAIN_BYTES + self._heads.labels.size, np.uint8)

    def all_of(self, stretch: _Stretch) -> Iterator[str]:
        """Yield the lines of batches and their records."""
        return self._write(stretch, stretch.end_row)

    def heads_of(self, stretch: _Stretch) -> Iterator[str]:
        """Yield the lines of batches."""
        return self._write(stretch, stretch.row)

    def _write(self, stretch: _Stretch, end_row: int) -> Iterator[str]:
        payload = self._records.payload
        batch, row = stretch.batch, stretch.row
        while batch < stretch.end_batch or row < end_row:
            batch, row, size_bytes = write_batch_lines(
                payload.window.data,
                payload.arena,
                self._heads,
                self._record_ends,
                batch,
                stretch.end_batch,
                row,
                end_row,
                self._out,
                *self._columns,
            )
            if size_bytes:
                yield self._out[:size_bytes].tobytes().decode("ascii")
            else:  # the record is large, or a header's name needs an escape
                record_line = _JSON_OF_CONTROL._record_line  # noqa: SLF001  # of this module
                yield from map(record_line, record_rows(self._records, row, row + 1))
                row += 1


# The records of markers, whose keys and values are Kafka's own.
_JSON_OF_CONTROL: Final = JsonLines("")
_JSON_OF_QUORUM: Final = JsonLines("", CLUSTER_METADATA_TOPIC)
