"""The protocol of a codec, and the error for a block that would expand too far.

A codec module is the implementation: ``gzip``, ``snappy``, ``lz4`` and ``zstd`` each have the two
functions of ``RecordCodec``. Input and output are the bytes after a batch's header.

Bytes are hostile. Whatever a header claims, no codec takes more memory than twice the limit it was
given (some libraries hand over a copy) and a constant; and whatever the bytes are, the outcome is
the expanded bytes or one of the two errors, never an exception of the library beneath.
"""

from typing import Protocol

from storage_core.errors import DecompressionLimitError
from storage_core.formats.batch_v2 import Codec


class RecordCodec(Protocol):
    """Both directions of one compression."""

    def decompress(
        self, data: bytes | bytearray | memoryview, *, limit_bytes: int
    ) -> bytes | bytearray:
        """Expand a whole compressed block.

        Args:
            data: The block, contiguous, one byte an item.
            limit_bytes: The largest size to expand to, at least 0.

        Raises:
            DecompressionLimitError: It would expand to more than the limit.
            DecompressionError: It is truncated, corrupt or of a kind that Kafka refuses.
        """
        ...

    def compress(self, data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes:
        """Compress a block, framed as Kafka frames it; level None is Kafka's default."""
        ...


def limit_error(codec: Codec, limit_bytes: int) -> DecompressionLimitError:
    """Return the error for a block that expands beyond its limit."""
    return DecompressionLimitError(
        codec.name.lower(), f"expands to more than the limit of {limit_bytes} bytes"
    )
