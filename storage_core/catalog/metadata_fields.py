"""The fields of Kafka's flexible message versions, read from bytes that may lie.

::

    unsigned varint   7 bits a byte, least significant first, at most 5 bytes
    compact string    unsigned varint length + 1 (0: null), then UTF-8
    compact array     unsigned varint count + 1 (0: null), then the elements
    id                16 bytes
    tagged fields     unsigned varint count, then per field: tag, size (unsigned varints), bytes

Integers are big-endian two's complement. Source: Kafka's protocol guide, KIP-482, and the
generated ``read`` methods of ``org.apache.kafka.common.metadata``.
"""

import functools
import struct
from collections.abc import Callable
from typing import Final, TypeVar

from storage_core.checkpoint.kafka_uuid import UUID_BYTES, encode_uuid
from storage_core.errors import CorruptClusterMetadataError

_MAX_VARINT_BYTES: Final = 5
_INT_MAX: Final = 2**31 - 1
# Kafka's own limits of a string, an array and a set of tagged fields.
_MAX_STRING_BYTES: Final = 32_767
_MAX_ARRAY_LENGTH: Final = 1_000_000
_MAX_TAGGED_FIELDS: Final = 10_000
_PAYLOAD: Final = 0x7F
_CONTINUES: Final = 0x80
_PAYLOAD_BITS: Final = 7

_INT32_BYTES: Final = 4

_T = TypeVar("_T")
# A cluster has few directories and many partitions, each of which names some of them.
_uuid_text = functools.lru_cache(maxsize=1 << 16)(encode_uuid)


class FieldReader:
    """A cursor over one record's bytes; every read that goes past their end raises.

    Args:
        data: The bytes.
        file: Name of the file they come from, for errors.
        offset: Offset of the record, for errors.
    """

    def __init__(self, data: bytes, *, file: str, offset: int) -> None:
        self._data = data
        self._at, self._end = 0, len(data)
        self._file, self._offset = file, offset

    @property
    def remaining(self) -> int:
        """How many bytes are left."""
        return self._end - self._at

    def error(self, reason: str) -> CorruptClusterMetadataError:
        """Return the error for something that is wrong with this record."""
        return CorruptClusterMetadataError(self._file, self._offset, reason)

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

    def integer(self, size: int) -> int:
        """Read a signed integer of so many bytes."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def int8(self) -> int:
        """Read one byte as a signed number."""
        return self.integer(1)

    def int16(self) -> int:
        """Read two bytes as a signed number."""
        return self.integer(2)

    def int32(self) -> int:
        """Read four bytes as a signed number."""
        return self.integer(4)

    def int64(self) -> int:
        """Read eight bytes as a signed number."""
        return self.integer(8)

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
        """Read a text or null; bytes that are no UTF-8 become replacement characters."""
        length = self.unsigned_varint() - 1
        if length < 0:
            return None
        if length > _MAX_STRING_BYTES:
            raise self.error(f"a text has {length} bytes; at most {_MAX_STRING_BYTES} are allowed")
        return self.take(length).decode("utf-8", "replace")

    def string(self) -> str:
        """Read a text that is not null."""
        text = self.nullable_string()
        if text is None:
            raise self.error("expected a text, found null")
        return text

    def nullable_array(self, read_element: Callable[[], _T]) -> tuple[_T, ...] | None:
        """Read elements or null; the count is checked against the bytes that are left."""
        count = self._array_length()
        return None if count < 0 else tuple(read_element() for _ in range(count))

    def array(self, read_element: Callable[[], _T]) -> tuple[_T, ...]:
        """Read elements, not null."""
        return self._not_null(self.nullable_array(read_element))

    def nullable_int32_array(self) -> tuple[int, ...] | None:
        """Read four-byte numbers or null."""
        count = self._array_length()
        if count < 0:
            return None
        return struct.unpack(f">{count}i", self.take(_INT32_BYTES * count))

    def int32_array(self) -> tuple[int, ...]:
        """Read four-byte numbers, not null."""
        return self._not_null(self.nullable_int32_array())

    def _array_length(self) -> int:
        """Read the length of an array, negative for null; no element takes less than a byte."""
        count = self.unsigned_varint() - 1
        if count > self.remaining or count > _MAX_ARRAY_LENGTH:
            raise self.error(f"an array has {count} elements, but {self.remaining} bytes are left")
        return count

    def _not_null(self, elements: tuple[_T, ...] | None) -> tuple[_T, ...]:
        if elements is None:
            raise self.error("expected an array, found null")
        return elements

    def tagged_fields(self) -> dict[int, "FieldReader"]:
        """Read the tagged fields: a reader over the bytes of each, by tag."""
        count = self.unsigned_varint()
        if count > min(self.remaining, _MAX_TAGGED_FIELDS):
            raise self.error(f"there are {count} tagged fields in {self.remaining} bytes")
        fields = {}
        for _ in range(count):
            tag = self.unsigned_varint()
            data = self.take(self.unsigned_varint())
            fields[tag] = FieldReader(data, file=self._file, offset=self._offset)
        return fields
