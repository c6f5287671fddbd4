"""Kafka's text of a 128-bit id: URL-safe base64 without padding."""

import base64
import re
from typing import Final

UUID_BYTES: Final = 16
# Topic ids below this one, directory ids below the hundredth: reserved for special meanings.
ZERO_UUID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_RESERVED_DIRECTORY_IDS: Final = 100
# A replica's directory in the cluster's metadata: never assigned, as an older version had no
# directory ids; not assigned yet; in a lost directory.
MIGRATING_DIRECTORY: Final = ZERO_UUID
UNASSIGNED_DIRECTORY: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
LOST_DIRECTORY: Final = "AAAAAAAAAAAAAAAAAAAAAg"
# 16 bytes make 22 characters; Java's decoder takes the two characters of padding as well.
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{22}(?:==)?")


def encode_uuid(value: bytes) -> str:
    """Return the text of 16 bytes."""
    if len(value) != UUID_BYTES:
        raise ValueError(f"an id has {UUID_BYTES} bytes, found {len(value)}")
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def parse_uuid(text: str) -> str:
    """Return the one text by which Kafka knows an id."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"expected an id of 22 characters of base64, found {text[:40]!r}")
    # The last character has four bits to spare; Kafka's own text leaves them zero.
    return encode_uuid(base64.urlsafe_b64decode(text[:22] + "=="))


def decode_uuid(text: str) -> bytes:
    """Return the 16 bytes of an id."""
    return base64.urlsafe_b64decode(parse_uuid(text) + "==")


def is_reserved_directory_id(text: str) -> bool:
    """Whether Kafka gives a directory id a special meaning, such as LOST."""
    value = decode_uuid(text)
    high = int.from_bytes(value[:8])
    low = int.from_bytes(value[8:], signed=True)
    return high == 0 and low < _RESERVED_DIRECTORY_IDS
