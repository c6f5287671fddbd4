"""The LZ4 frame, as far as Kafka has it. ``records.codecs.lz4`` says what is read and written.

::

    frame      = magic flags block_descriptor [content_size] header_checksum block* end_mark
                 [content_checksum]
    block      = uint32 length, its highest bit set if stored; the bytes; [block_checksum]

All numbers are little-endian.
"""

from typing import Final

MAGIC: Final = b"\x04\x22\x4d\x18"
FLAGS_AT: Final = len(MAGIC)
BLOCK_DESCRIPTOR_AT: Final = FLAGS_AT + 1
HEADER_CHECKSUM_AT: Final = BLOCK_DESCRIPTOR_AT + 1
HEADER_BYTES: Final = HEADER_CHECKSUM_AT + 1  # without a content size

RESERVED_FLAGS: Final = 0x03  # today the lower one tells of a dictionary
CONTENT_CHECKSUM_FLAG: Final = 0x04
CONTENT_SIZE_FLAG: Final = 0x08
BLOCK_CHECKSUM_FLAG: Final = 0x10
INDEPENDENT_FLAG: Final = 0x20
VERSION_SHIFT: Final = 6
VERSION: Final = 1
# The flags of frames by Kafka and most clients.
PLAIN_FLAGS: Final = VERSION << VERSION_SHIFT | INDEPENDENT_FLAG

BLOCK_SIZE_SHIFT: Final = 4
BLOCK_SIZES: Final = range(4, 8)  # they stand for 64 KiB, 256 KiB, 1 MiB and 4 MiB
BLOCK_LENGTH_BYTES: Final = 4
STORED_SHIFT: Final = 31

# One byte of a match's length stands for at most 255 bytes: the highest expansion of a block.
MAX_RATIO: Final = 255
