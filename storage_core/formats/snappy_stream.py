"""The framing that snappy-java (called xerial) puts around raw snappy blocks.

::

    stream = header chunk*
    header = magic (8 bytes) int32 version int32 minimum_version
    chunk  = int32 length, that many bytes of one raw snappy block
    block  = varint size of the contents, elements

Numbers are big-endian, but for the varint, whose low bits come first.
"""

from typing import Final

MAGIC: Final = b"\x82SNAPPY\x00"
VERSION: Final = 1
HEADER_BYTES: Final = len(MAGIC) + 8
LENGTH_BYTES: Final = 4
MAX_CHUNK_BYTES: Final = 512 * 1024 * 1024  # snappy-java's
MAX_SIZE_BYTES: Final = 5  # of the varint

# The densest element, a copy, makes 64 bytes out of 3: a block with a higher expansion lies about
# its size.
MAX_RATIO: Final = 22
