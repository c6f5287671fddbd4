"""Codec numbers to the modules that implement them."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.config import BrokerCompressionType
from storage_core.formats.batch_v2 import MAGIC_V2, Codec
from storage_core.formats.legacy import MAGIC_V0
from storage_core.records.codecs import gzip, lz4, snappy, zstd
from storage_core.records.codecs.base import (
    Arena,
    BlockExpander,
    BlockPacker,
    Blocks,
    RecordCodec,
    limit_error,
)

_CODECS: Final[Mapping[Codec, RecordCodec]] = {
    Codec.GZIP: gzip,
    Codec.SNAPPY: snappy,
    Codec.LZ4: lz4,
    Codec.ZSTD: zstd,
}
# By the name that settings have for it; PRODUCER names none.
CODEC_OF: Final[Mapping[BrokerCompressionType, Codec]] = {
    BrokerCompressionType.UNCOMPRESSED: Codec.NONE,
    BrokerCompressionType.GZIP: Codec.GZIP,
    BrokerCompressionType.SNAPPY: Codec.SNAPPY,
    BrokerCompressionType.LZ4: Codec.LZ4,
    BrokerCompressionType.ZSTD: Codec.ZSTD,
}
_EXPANDERS: Final[Mapping[Codec, BlockExpander]] = {
    Codec.GZIP: gzip.decompress_blocks,
    Codec.SNAPPY: snappy.decompress_blocks,
    Codec.LZ4: lz4.decompress_blocks,
    Codec.ZSTD: zstd.decompress_blocks,
}
_PACKERS: Final[Mapping[Codec, BlockPacker]] = {
    Codec.SNAPPY: snappy.compress_blocks,
    Codec.LZ4: lz4.compress_blocks,
    Codec.ZSTD: zstd.compress_blocks,
}


def decompress(
    codec: Codec,
    data: bytes | bytearray | memoryview,
    *,
    limit_bytes: int,
    magic: int = MAGIC_V2,
) -> bytes | bytearray:
    """Expand the records of a batch.

    Args:
        codec: The batch's codec; NONE gives a copy.
        data: Everything after the batch's header, contiguous, one byte an item.
        limit_bytes: The largest size to expand to, at least 0. Beyond it no memory is taken.
        magic: Format of the batch: the writers of v0 made LZ4 frames with a wrong checksum in the
            header, and nobody may check that one.
    """
    if codec is Codec.NONE:
        if len(data) > limit_bytes:
            raise limit_error(codec, limit_bytes)
        return bytes(data)
    if codec is Codec.LZ4 and magic == MAGIC_V0:
        return lz4.decompress(data, limit_bytes=limit_bytes, checks_header=False)
    return _CODECS[codec].decompress(data, limit_bytes=limit_bytes)


def compress(
    codec: Codec,
    data: bytes | bytearray | memoryview,
    *,
    level: int | None = None,
    magic: int = MAGIC_V2,
) -> bytes:
    """Compress records, framed as Kafka frames them; NONE gives a copy.

    Args:
        level: As Kafka's ``compression.*.level`` has it; None for its default.
        magic: Format of the batch, as in decompress: readers of v0 may expect its wrong checksum.
    """
    if codec is Codec.LZ4 and magic == MAGIC_V0:
        return lz4.with_checksum_of_v0(lz4.compress(data, level=level))
    return bytes(data) if codec is Codec.NONE else _CODECS[codec].compress(data, level=level)


def decompress_blocks(  # what is expanded, to where, and how far
    codec: Codec,
    blocks: Blocks,
    first: int,
    arena: Arena,
    ends: NDArray[np.int64],
    *,
    limit_bytes: int,
    budget_bytes: int,
) -> int:
    """Expand records of v2 batches into an arena until a doubtful batch. That one may be good:
    ask ``decompress``, whose errors say what is wrong. See ``BlockExpander``."""
    if codec not in _EXPANDERS:
        return first
    return _EXPANDERS[codec](
        blocks, first, arena, ends, limit_bytes=limit_bytes, budget_bytes=budget_bytes
    )


def compress_blocks(
    codec: Codec, blocks: Blocks, arena: Arena, *, level: int | None = None
) -> NDArray[np.int64]:
    """Compress the records of v2 batches into an arena. See ``compress``.

    Returns:
        int64[blocks]: where what becomes of each ends in the arena, whose content they follow.
    """
    ends = np.empty(blocks.start.size, np.int64)
    done = _PACKERS[codec](blocks, arena, ends, level=level) if codec in _PACKERS else 0
    for number in range(done, ends.size):
        arena.add(compress(codec, blocks.view(number), level=level))
        ends[number] = arena.used
    return ends
