"""What Apache Kafka 4.4.0 (Java 17) made of one text, codec by codec, through its own streams."""

from typing import Final

from storage_core.formats.batch_v2 import Codec

TEXT: Final = b"the quick brown fox, the quick brown fox, the quick brown fox"

KAFKA_WROTE: Final = {
    Codec.GZIP: bytes.fromhex(
        "1f8b08000000000000ff2bc94855282ccd4cce56482aca2fcf5348cbafd0512821521000b1454a193d000000"
    ),
    Codec.SNAPPY: bytes.fromhex(
        "82534e415050590000000001000000010000001a"
        "3d5074686520717569636b2062726f776e20666f782c209e1500"
    ),
    Codec.LZ4: bytes.fromhex(
        "04224d1860408220000000ff0674686520717569636b2062726f776e20666f782c201500"
        "10506e20666f7800000000"
    ),
    Codec.ZSTD: bytes.fromhex(
        "28b52ffd0058dc0000a874686520717569636b2062726f776e20666f782c200100633999010000"
    ),
}

# The same of no bytes at all.
KAFKA_WROTE_NOTHING: Final = {
    Codec.GZIP: bytes.fromhex("1f8b08000000000000ff03000000000000000000"),
    Codec.SNAPPY: bytes.fromhex("82534e41505059000000000100000001"),
    Codec.LZ4: bytes.fromhex("04224d1860408200000000"),
    Codec.ZSTD: bytes.fromhex("28b52ffd2000010000"),
}
