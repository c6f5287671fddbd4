"""The four codecs of record batches, in Kafka's framing, with size limits. What a block expands
to is bounded."""

from storage_core.records.codecs.base import Arena, Blocks
from storage_core.records.codecs.registry import (
    CODEC_OF,
    compress,
    compress_blocks,
    decompress,
    decompress_blocks,
)

__all__ = [
    "CODEC_OF",
    "Arena",
    "Blocks",
    "compress",
    "compress_blocks",
    "decompress",
    "decompress_blocks",
]
