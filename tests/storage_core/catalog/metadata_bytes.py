"""Metadata records and files, encoded plainly, for tests. Types are Kafka's numbers."""

import base64
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from storage_core.formats.control import ControlType
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch, in_a_row

REGISTER_BROKER: Final = 0
TOPIC: Final = 2
PARTITION: Final = 3
CONFIG: Final = 4
PARTITION_CHANGE: Final = 5
REMOVE_TOPIC: Final = 9
BROKER_CHANGE: Final = 17
NO_OP: Final = 20
BEGIN: Final = 23
END: Final = 24
ABORT: Final = 25

ID_A: Final = "6OhPo7FvRwiN63dAgYqoUA"
ID_B: Final = "Pwfy5rl5Qw6jBT2A6nuzCQ"
DIRECTORY: Final = "ohZNig90xgRlmLmr-NUttg"
NO_TAGS: Final = b"\x00"


def unsigned_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def frame(api_key: int, body: bytes, *, version: int = 0, frame_version: int = 1) -> bytes:
    return b"".join(map(unsigned_varint, (frame_version, api_key, version))) + body


def string(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    encoded = text.encode()
    return unsigned_varint(len(encoded) + 1) + encoded


def uuid(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def int32(number: int) -> bytes:
    return struct.pack(">i", number)


def array(elements: Sequence[bytes] | None) -> bytes:
    if elements is None:
        return b"\x00"
    return unsigned_varint(len(elements) + 1) + b"".join(elements)


def numbers(*elements: int) -> bytes:
    return array([int32(element) for element in elements])


def tags(fields: Mapping[int, bytes]) -> bytes:
    body = b"".join(
        unsigned_varint(tag) + unsigned_varint(len(field)) + field
        for tag, field in sorted(fields.items())
    )
    return unsigned_varint(len(fields)) + body


def topic(name: str, topic_id: str = ID_A) -> bytes:
    return frame(TOPIC, string(name) + uuid(topic_id) + NO_TAGS)


def remove_topic(topic_id: str = ID_A) -> bytes:
    return frame(REMOVE_TOPIC, uuid(topic_id) + NO_TAGS)


def partition(number: int, topic_id: str = ID_A, *, replicas: tuple[int, ...] = (1,)) -> bytes:
    body = int32(number) + uuid(topic_id) + numbers(*replicas) * 2 + numbers() * 2
    body += int32(replicas[0]) + int32(0) + int32(0)
    body += array([uuid(DIRECTORY)] * len(replicas)) + NO_TAGS
    return frame(PARTITION, body, version=1)


def partition_change(number: int, topic_id: str, fields: Mapping[int, bytes]) -> bytes:
    return frame(PARTITION_CHANGE, int32(number) + uuid(topic_id) + tags(fields), version=2)


def config(name: str, key: str, value: str | None, *, resource_type: int = 2) -> bytes:
    body = bytes([resource_type]) + string(name) + string(key) + string(value) + NO_TAGS
    return frame(CONFIG, body)


def register_broker(
    broker_id: int, fields: Mapping[int, bytes] | None = None, *, version: int = 4
) -> bytes:
    """Return the record; from version 1 on it has a shutdown, from 2 on a migration flag."""
    endpoint = string("PLAINTEXT") + string("localhost") + b"\x23\x84\x00\x00" + NO_TAGS
    feature = string("metadata.version") + b"\x00\x01\x00\x21" + NO_TAGS
    migration, shutdown = b"\x00" * (version >= 2), b"\x00" * (version >= 1)
    body = int32(broker_id) + migration + uuid(ID_B) + struct.pack(">q", 11)
    body += array([endpoint]) + array([feature]) + string(None) + b"\x01" + shutdown
    return frame(REGISTER_BROKER, body + tags(fields or {}), version=version)


def mark(api_key: int) -> bytes:
    return frame(api_key, NO_TAGS)


def batch(*values: bytes) -> BatchSpec:
    return BatchSpec(records=tuple(RecordSpec(value=value) for value in values))


def control(control_type: ControlType) -> BatchSpec:
    key = struct.pack(">hh", 0, control_type)
    return BatchSpec(records=(RecordSpec(key=key, value=b"\x00\x00\x00"),), is_control=True)


def write_segment(directory: Path, batches: Iterable[BatchSpec], *, base_offset: int = 0) -> int:
    """Write a segment and return the offset after its last record."""
    directory.mkdir(exist_ok=True)
    placed = in_a_row(batches, base_offset=base_offset)
    path = directory / f"{base_offset:020d}.log"
    path.write_bytes(b"".join(encode_batch(spec) for spec in placed))
    return placed[-1].next_offset if placed else base_offset


def write_snapshot(
    directory: Path,
    values: Sequence[bytes],
    *,
    end_offset: int,
    epoch: int = 1,
    footer: bool = True,
) -> Path:
    """Write a snapshot, with or without the footer that says it is complete."""
    directory.mkdir(exist_ok=True)
    specs = [control(ControlType.SNAPSHOT_HEADER), batch(*values)]
    if footer:
        specs.append(control(ControlType.SNAPSHOT_FOOTER))
    path = directory / f"{end_offset:020d}-{epoch:010d}.checkpoint"
    path.write_bytes(b"".join(encode_batch(spec) for spec in in_a_row(specs)))
    return path
