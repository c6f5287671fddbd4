"""The primitives of Kafka's own messages, read from bytes that may lie.

::

    string            int16 length (negative: null), then UTF-8
    bytes             int32 length (negative: null), then the bytes
    array             int32 count (negative: null), then the elements
    unsigned varint   7 bits a byte, least significant first, at most 5 bytes
    compact string, bytes, array
                      unsigned varint length + 1 (0: null), then the same
    id                16 bytes
    tagged fields     unsigned varint count, then per field: tag, size (unsigned varints), bytes

Integers are big-endian two's complement. Flexible versions of a message have the compact forms and
tagged fields, the others the forms without. Source: ``org.apache.kafka.common.protocol``
(``ByteBufferAccessor`` and the generated ``read`` methods), Kafka's protocol guide, KIP-482.
"""

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from storage_core.checkpoint.checkpoints import UUID_BYTES, decode_uuid, encode_uuid
from storage_core.errors import MalformedMessageError

# The primitives of Kafka's own messages, written as ``field_reader`` reads them.

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


_MAX_VARINT_BYTES: Final = 5
_INT_MAX: Final = 2**31 - 1
# Kafka's limits for a string, an array and a set of tagged fields.
_MAX_STRING_BYTES: Final = 32_767
_MAX_ARRAY_LENGTH: Final = 1_000_000
_MAX_TAGGED_FIELDS: Final = 10_000

_INT32_BYTES: Final = 4

_T = TypeVar("_T")
# A cluster has few directories, and each is named by many partitions.
_uuid_text = functools.lru_cache(maxsize=1 << 16)(encode_uuid)
_FLOAT64: Final = struct.Struct(">d")


class FieldReader:
    """A cursor over one message's bytes; reading past their end raises. Every method raises
    MalformedMessageError for bytes of another form.

    Args:
        end: Just past the last byte; None for the end of the data.
    """

    def __init__(self, data: bytes, *, start: int = 0, end: int | None = None) -> None:
        self._data = data
        self._at = start
        self._end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        """How many bytes are left."""
        return self._end - self._at

    def error(self, reason: str) -> MalformedMessageError:
        """Return the error for something that is wrong where the cursor is."""
        return MalformedMessageError(self._at, reason)

    def require_end(self) -> None:
        """Check that nothing is left."""
        if self.remaining:
            raise self.error(f"expected the end of the record, found {self.remaining} more bytes")

    def take(self, size: int) -> bytes:
        """Read so many bytes."""
        start = self._at
        end = start + size
        if end > self._end:
            raise self.error(f"expected {size} bytes, found {self.remaining}")
        self._at = end
        return self._data[start:end]

    def int8(self) -> int:
        """Read one byte as a signed number."""
        return int.from_bytes(self.take(1), "big", signed=True)

    def int16(self) -> int:
        """Read two bytes as a signed number."""
        return int.from_bytes(self.take(2), "big", signed=True)

    def uint16(self) -> int:
        """Read two bytes as a number from 0 to 65,535."""
        return int.from_bytes(self.take(2), "big")

    def int32(self) -> int:
        """Read four bytes as a signed number."""
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        """Read eight bytes as a signed number."""
        return int.from_bytes(self.take(8), "big", signed=True)

    def float64(self) -> float:
        """Read eight bytes as a floating-point number."""
        number: float = _FLOAT64.unpack(self.take(8))[0]
        return number

    def boolean(self) -> bool:
        """Read one byte; anything but zero is true."""
        return self.int8() != 0

    def uuid(self) -> str:
        """Read an id, as its text."""
        return _uuid_text(self.take(UUID_BYTES))

    def unsigned_varint(self) -> int:
        """Read a number of at most 31 bits."""
        # Nearly every number is small: most lengths, all types and versions.
        at = self._at
        if at < self._end and (small := self._data[at]) < _CONTINUES:
            self._at = at + 1
            return small
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & _PAYLOAD) << (_PAYLOAD_BITS * index)
            if not byte & _CONTINUES:
                break
        else:
            raise self.error(f"a number has more than {_MAX_VARINT_BYTES} bytes")
        if value > _INT_MAX:
            raise self.error(f"expected a number of 31 bits, found {value}")
        return value

    def nullable_string(self) -> str | None:
        """Read a text or null. Invalid UTF-8 becomes replacement characters."""
        return self._text(self.int16())

    def nullable_compact_string(self) -> str | None:
        """Read a compact text or null. Invalid UTF-8 becomes replacement characters."""
        return self._text(self.unsigned_varint() - 1)

    def nullable_bytes(self) -> bytes | None:
        """Read bytes or null."""
        return self._bytes(self.int32())

    def nullable_compact_bytes(self) -> bytes | None:
        """Read compact bytes or null."""
        return self._bytes(self.unsigned_varint() - 1)

    def nullable_array(self, read_element: Callable[[], _T]) -> tuple[_T, ...] | None:
        """Read elements or null; the remaining bytes bound the count."""
        return self._array(self.int32(), read_element)

    def nullable_compact_array(self, read_element: Callable[[], _T]) -> tuple[_T, ...] | None:
        """Read a compact array or null."""
        return self._array(self.unsigned_varint() - 1, read_element)

    def nullable_int32_array(self) -> tuple[int, ...] | None:
        """Read four-byte numbers or null."""
        return self._int32_array(self.int32())

    def nullable_compact_int32_array(self) -> tuple[int, ...] | None:
        """Read a compact array of four-byte numbers or null."""
        return self._int32_array(self.unsigned_varint() - 1)

    def tagged_fields(self) -> Iterator[tuple[int, "FieldReader"]]:
        """Yield each tagged field, in order: its tag and its bytes' reader."""
        count = self.unsigned_varint()
        if count > min(self.remaining, _MAX_TAGGED_FIELDS):
            raise self.error(f"there are {count} tagged fields in {self.remaining} bytes")
        for _ in range(count):
            tag, size = self.unsigned_varint(), self.unsigned_varint()
            start = self._at
            if size > self.remaining:
                raise self.error(f"expected {size} bytes, found {self.remaining}")
            self._at = start + size
            yield tag, FieldReader(self._data, start=start, end=start + size)

    def _text(self, length: int) -> str | None:
        if length < 0:
            return None
        if length > _MAX_STRING_BYTES:
            raise self.error(f"a text has {length} bytes; at most {_MAX_STRING_BYTES} are allowed")
        return self.take(length).decode("utf-8", "replace")

    def _bytes(self, length: int) -> bytes | None:
        return None if length < 0 else self.take(length)

    def _array(self, count: int, read_element: Callable[[], _T]) -> tuple[_T, ...] | None:
        self._check_count(count)
        return None if count < 0 else tuple(read_element() for _ in range(count))

    def _int32_array(self, count: int) -> tuple[int, ...] | None:
        self._check_count(count)
        if count < 0:
            return None
        return struct.unpack(f">{count}i", self.take(_INT32_BYTES * count))

    def _check_count(self, count: int) -> None:
        """Check an array's length; each element takes at least a byte."""
        if count > self.remaining or count > _MAX_ARRAY_LENGTH:
            raise self.error(f"an array has {count} elements, but {self.remaining} bytes are left")
