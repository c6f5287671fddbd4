"""The four compressions of record batches, framed as Kafka frames them, with bounded expansion."""

from storage_core.records.codecs.registry import CODEC_OF, compress, decompress

__all__ = ["CODEC_OF", "compress", "decompress"]
