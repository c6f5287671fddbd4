"""The four compressions of record batches, framed as Kafka frames them, with bounded expansion."""

from storage_core.records.codecs.arena import Arena, Blocks
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
