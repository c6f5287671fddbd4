"""Records of coordinators' topics that Kafka 4.4 does not read, and what it does with each."""

import struct
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangeRecord:
    """A record, and whether a coordinator of Kafka 4.4 stops its load at it."""

    name: str
    topic: str
    key: bytes
    value: bytes
    stops_load: bool


def _text(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


_COMMIT: Final = struct.pack(">h", 1) + _text(b"g") + _text(b"t") + struct.pack(">i", 0)
_TRANSACTION: Final = struct.pack(">h", 0) + _text(b"id")
_SHARE: Final = struct.pack(">h", 0) + _text(b"g") + bytes(16) + struct.pack(">i", 0)
_OF_TOPICS: Final = {
    "__consumer_offsets": (_COMMIT, True),
    "__share_group_state": (_SHARE, True),
    "__transaction_state": (_TRANSACTION, False),
}

STRANGE_RECORDS: Final = tuple(
    record
    for topic, (key, stops) in _OF_TOPICS.items()
    for record in (
        StrangeRecord(
            name=f"{topic}-version",
            topic=topic,
            key=key,
            value=struct.pack(">h", 63) + bytes(40),
            stops_load=stops,
        ),
        StrangeRecord(
            name=f"{topic}-type",
            topic=topic,
            key=struct.pack(">h", 99) + key[2:],
            value=bytes(40),
            stops_load=False,
        ),
        StrangeRecord(name=f"{topic}-short", topic=topic, key=key, value=bytes(4), stops_load=True),
        StrangeRecord(
            name=f"{topic}-no-key", topic=topic, key=b"\x00", value=bytes(40), stops_load=True
        ),
    )
)
