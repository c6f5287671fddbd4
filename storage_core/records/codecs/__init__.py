"""The four compressions of record batches, framed as Kafka frames them, with bounded expansion."""

from storage_core.records.codecs.arena import Arena, Blocks
from storage_core.records.codecs.registry import (
    compress,
    compress_blocks,
    decompress,
    decompress_blocks,
)

__all__ = ["Arena", "Blocks", "compress", "compress_blocks", "decompress", "decompress_blocks"]
