"""The records of a v2 batch: where each part lies, or that the batch is malformed."""

from dataclasses import dataclass

from tests.reference.varints import MalformedVarintError, decode_varint

WRAP = 2**64


class MalformedRecordError(ValueError):
    """A record's lengths contradict each other or the end of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRecord:
    """Where the parts of a record lie in the records of its batch.

    A length of -1 is a null; its start is where the bytes would be. Headers are (name start, name
    length, value start, value length).
    """

    next_position: int
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_length: int
    value_start: int
    value_length: int
    headers: tuple[tuple[int, int, int, int], ...]
    header_start: int
    body_bytes: int


def parse_record(data: bytes, position: int, end: int) -> ParsedRecord:
    """Parse the record at a position that may not reach past end.

    Raises:
        MalformedRecordError: It breaks the format.
    """
    try:
        return _parse_record(data, position, end)
    except MalformedVarintError as error:
        raise MalformedRecordError(f"the number at {error} has no end") from error


def _parse_record(data: bytes, position: int, end: int) -> ParsedRecord:
    body_bytes, at = decode_varint(data, position, end)
    if body_bytes < 1 or at + body_bytes > end:
        raise MalformedRecordError(f"a body of {body_bytes} bytes at {at}, the end is {end}")
    end = at + body_bytes
    at += 1  # attributes
    timestamp_delta, at = decode_varint(data, at, end, bits=64)
    offset_delta, at = decode_varint(data, at, end)
    key_start, key_length, at = _nullable(data, at, end)
    value_start, value_length, at = _nullable(data, at, end)
    count, at = decode_varint(data, at, end)
    if count < 0 or count > end - at:
        raise MalformedRecordError(f"{count} headers in {end - at} bytes")
    header_start = at
    headers = []
    for _ in range(count):
        name_start, name_length, at = _nullable(data, at, end)
        if name_length < 0:
            raise MalformedRecordError(f"a header without a name at {at}")
        start, length, at = _nullable(data, at, end)
        headers.append((name_start, name_length, start, length))
    if at != end:
        raise MalformedRecordError(f"the fields end at {at}, the body at {end}")
    return ParsedRecord(
        next_position=end,
        timestamp_delta=timestamp_delta,
        offset_delta=offset_delta,
        key_start=key_start,
        key_length=key_length,
        value_start=value_start,
        value_length=value_length,
        headers=tuple(headers),
        header_start=header_start,
        body_bytes=body_bytes,
    )


def _nullable(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return (start, length or -1, position after it)."""
    length, start = decode_varint(data, at, end)
    if length < 0:
        return start, -1, start
    if start + length > end:
        raise MalformedRecordError(f"{length} bytes at {start}, the end is {end}")
    return start, length, start + length


def parse_records(data: bytes, count: int) -> list[ParsedRecord]:
    """Parse all records of a batch, decompressed.

    Raises:
        MalformedRecordError: One breaks the format, there are fewer, or bytes are left over.
    """
    if count < 0:
        raise MalformedRecordError(f"{count} records")
    records: list[ParsedRecord] = []
    position = 0
    for _ in range(count):
        records.append(parse_record(data, position, len(data)))
        position = records[-1].next_position
    if count and position != len(data):
        raise MalformedRecordError(f"{len(data) - position} bytes after the last record")
    return records


def timestamp_of(base_timestamp: int, delta: int) -> int:
    """Return their sum as 64-bit arithmetic has it."""
    total = (base_timestamp + delta) % WRAP
    return total - WRAP if total >= WRAP // 2 else total
