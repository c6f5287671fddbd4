"""The gzip member (RFC 1952) as Kafka writes it. ``records.codecs.gzip`` says what is read.

::

    member = magic (2 bytes) method flags time (4 bytes) extra_flags operating_system
             contents, deflated
             uint32 crc  uint32 size, both of the contents, modulo 2^32

All numbers are little-endian. Flags announce more fields before the contents.
"""

from typing import Final

MEMBER_START: Final = b"\x1f\x8b\x08"  # magic, method deflate
FLAGS_AT: Final = len(MEMBER_START)
HEADER_BYTES: Final = 10  # without flags
CRC_BYTES: Final = 4
TRAILER_BYTES: Final = CRC_BYTES + 4
# The densest code of deflate is two bits for 258 bytes.
MAX_RATIO: Final = 1032
