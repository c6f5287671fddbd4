"""The primitives of Kafka's own messages, written as ``field_reader`` reads them."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from storage_core.checkpoint.kafka_uuid import decode_uuid

# Kafka's limit for a string.
MAX_STRING_BYTES: Final = 32_767
_PAYLOAD: Final = 0x7F
_CONTINUES: Final = 0x80
_PAYLOAD_BITS: Final = 7


class FieldWriter:
    """The bytes of one message, so far. Every method raises ``struct.error`` or ValueError for a
    value that its field cannot have."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def data(self) -> bytes:
        """The bytes."""
        return bytes(self._data)

    def int8(self, number: int) -> None:
        """Write one byte as a signed number."""
        self._data += struct.pack(">b", number)

    def int16(self, number: int) -> None:
        """Write two bytes as a signed number."""
        self._data += struct.pack(">h", number)

    def uint16(self, number: int) -> None:
        """Write two bytes as a number from 0 to 65,535."""
        self._data += struct.pack(">H", number)

    def int32(self, number: int) -> None:
        """Write four bytes as a signed number."""
        self._data += struct.pack(">i", number)

    def int64(self, number: int) -> None:
        """Write eight bytes as a signed number."""
        self._data += struct.pack(">q", number)

    def float64(self, number: float) -> None:
        """Write eight bytes as a floating-point number."""
        self._data += struct.pack(">d", number)

    def boolean(self, value: bool) -> None:  # noqa: FBT001 - the field's value
        """Write one byte, 1 for true."""
        self._data.append(value)

    def uuid(self, text: str) -> None:
        """Write an id."""
        self._data += decode_uuid(text)

    def unsigned_varint(self, number: int) -> None:
        """Write a number of at least 0."""
        if number < 0:
            raise ValueError(f"expected a number of at least 0, found {number}")
        while number > _PAYLOAD:
            self._data.append(number & _PAYLOAD | _CONTINUES)
            number >>= _PAYLOAD_BITS
        self._data.append(number)

    def nullable_string(self, text: str | None) -> None:
        """Write a text or null."""
        encoded = _encode(text)
        self.int16(-1 if encoded is None else len(encoded))
        self._data += encoded or b""

    def nullable_compact_string(self, text: str | None) -> None:
        """Write a compact text or null."""
        self.nullable_compact_bytes(_encode(text))

    def nullable_bytes(self, content: bytes | None) -> None:
        """Write bytes or null."""
        self.int32(-1 if content is None else len(content))
        self._data += content or b""

    def nullable_compact_bytes(self, content: bytes | None) -> None:
        """Write compact bytes or null."""
        self.unsigned_varint(0 if content is None else len(content) + 1)
        self._data += content or b""

    def nullable_array(
        self, elements: Sequence[Any] | None, write_element: Callable[[Any], None]
    ) -> None:
        """Write elements or null."""
        self.int32(-1 if elements is None else len(elements))
        for element in elements or ():
            write_element(element)

    def nullable_compact_array(
        self, elements: Sequence[Any] | None, write_element: Callable[[Any], None]
    ) -> None:
        """Write a compact array or null."""
        self.unsigned_varint(0 if elements is None else len(elements) + 1)
        for element in elements or ():
            write_element(element)

    def tagged_fields(self, fields: Sequence[tuple[int, bytes]]) -> None:
        """Write tagged fields: the tag and bytes of each, tags rising."""
        self.unsigned_varint(len(fields))
        for tag, content in fields:
            self.unsigned_varint(tag)
            self.unsigned_varint(len(content))
            self._data += content


def _encode(text: str | None) -> bytes | None:
    encoded = None if text is None else text.encode()
    if encoded is not None and len(encoded) > MAX_STRING_BYTES:
        raise ValueError(f"expected a text of at most {MAX_STRING_BYTES} bytes: {len(encoded)}")
    return encoded
