"""The Zstandard frame, RFC 8878; ``records.codecs.zstd`` says what is read and written.

::

    frame     = magic descriptor [window] [dictionary] [content_size] block* [checksum]
    block     = 3 bytes, little-endian: 1 bit last, 2 bits kind, 21 bits size; then the contents
    skippable = magic (0x184D2A50 to 5F) uint32 length, that many bytes

All numbers are little-endian.
"""

from typing import Final

MAGIC: Final = 0xFD2FB528
MAGIC_BYTES: Final = 4
SKIPPABLE_MAGIC: Final = 0x184D2A50
SKIPPABLE_MASK: Final = 0xFFFFFFF0
SKIPPABLE_LENGTH_BYTES: Final = 4
MAX_HEADER_BYTES: Final = 18
CHECKSUM_BYTES: Final = 4

# In the descriptor: the kind of the content size in the upper two bits.
CONTENT_SIZE_SHIFT: Final = 6
SINGLE_SEGMENT_BIT: Final = 0x20  # there is no window: it is as large as the contents
RESERVED_BIT: Final = 0x08
CHECKSUM_BIT: Final = 0x04
DICTIONARY_MASK: Final = 0x03
# A content size of two bytes counts from here.
TWO_BYTE_SIZE_START: Final = 256
MIN_WINDOW_LOG: Final = 10
WINDOW_LOG_SHIFT: Final = 3
WINDOW_MANTISSA_MASK: Final = 7

BLOCK_HEADER_BYTES: Final = 3
LAST_BLOCK: Final = 1
KIND_SHIFT: Final = 1
KIND_MASK: Final = 3
SIZE_SHIFT: Final = 3
RAW: Final = 0
REPEATED: Final = 1
COMPRESSED: Final = 2

MAX_BLOCK_BYTES: Final = 128 * 1024
# libzstd's limit for streams, and so zstd-jni's.
MAX_WINDOW_BYTES: Final = 128 * 1024 * 1024
