"""Codec numbers to the modules that implement them."""

from collections.abc import Mapping
from typing import Final

from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs import gzip, lz4, snappy, zstd
from storage_core.records.codecs.base import RecordCodec, limit_error

_CODECS: Final[Mapping[Codec, RecordCodec]] = {
    Codec.GZIP: gzip,
    Codec.SNAPPY: snappy,
    Codec.LZ4: lz4,
    Codec.ZSTD: zstd,
}


def decompress(
    codec: Codec, data: bytes | bytearray | memoryview, *, limit_bytes: int
) -> bytes | bytearray:
    """Expand the records of a batch.

    Args:
        codec: The batch's codec; NONE gives a copy.
        data: Everything after the batch's header, contiguous, one byte an item.
        limit_bytes: The largest size to expand to, at least 0. Beyond it no memory is taken.

    Raises:
        DecompressionLimitError: It would expand to more than the limit.
        DecompressionError: It is truncated, corrupt or of a kind that Kafka refuses.
    """
    if codec is Codec.NONE:
        if len(data) > limit_bytes:
            raise limit_error(codec, limit_bytes)
        return bytes(data)
    return _CODECS[codec].decompress(data, limit_bytes=limit_bytes)


def compress(codec: Codec, data: bytes | bytearray | memoryview) -> bytes:
    """Compress records at Kafka's default level, framed as Kafka frames them; NONE gives a copy."""
    return bytes(data) if codec is Codec.NONE else _CODECS[codec].compress(data)
