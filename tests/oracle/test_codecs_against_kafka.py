"""Our codecs and Kafka's streams read each other, and mostly write the same bytes."""

import random
import zlib
from collections.abc import Callable
from typing import Any

import jpype
import lz4.frame
import pytest

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs import compress, decompress
from tests.oracle.jvm import KafkaFailure, java, java_bytes, kafka_failures, python_bytes
from tests.oracle.records import INTERNAL

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

MAGIC = 2
KIB = 1024
SIZES = [0, 1, 100, 32 * KIB, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, KIB * KIB]
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
# Java's snappy is Google's C++, ours is written in Rust: only the framing is the same.
SAME_COMPRESSOR = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]

every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
every_size = pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size} bytes")


def zeros(size: int) -> bytes:
    return bytes(size)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def text(size: int) -> bytes:
    source = random.Random(size)
    words = [bytes(source.choices(range(97, 123), k=source.randint(2, 8))) for _ in range(300)]
    return b" ".join(source.choices(words, k=size // 3 + 1))[:size]


every_content = pytest.mark.parametrize("content", [zeros, noise, text])


def kafka_compress(codec: Codec, data: bytes, *, at_once: int, level: int | None = None) -> bytes:
    """Write data through Kafka's stream, so many bytes at a time, as its record builder does."""
    out = java("org.apache.kafka.common.utils.internals.ByteBufferOutputStream")(64)
    source = java_bytes(data)
    with kafka_failures():
        stream = java("java.io.DataOutputStream")(
            _kafka_codec(codec, level).wrapForOutput(out, jpype.JByte(MAGIC))
        )
        for start in range(0, len(data), at_once):
            stream.write(source, start, min(at_once, len(data) - start))
        stream.close()
    buffer = out.buffer()
    buffer.flip()
    return python_bytes(buffer) or b""


def kafka_decompress(codec: Codec, data: bytes) -> bytes:
    """Read all that Kafka's stream gives."""
    buffers = java("org.apache.kafka.common.utils.internals.BufferSupplier").NO_CACHING
    buffer = java("java.nio.ByteBuffer").wrap(java_bytes(data))
    with kafka_failures():
        stream = _kafka_codec(codec).wrapForInput(buffer, jpype.JByte(MAGIC), buffers)
        return bytes(stream.readAllBytes())


def _kafka_codec(codec: Codec, level: int | None = None) -> Any:
    compression = java("org.apache.kafka.common.compress.Compression")
    if level is not None:
        return getattr(compression, codec.name.lower())().level(level).build()
    kinds = java(INTERNAL + "CompressionType")
    return compression.of(kinds.forId(int(codec))).build()


@pytest.mark.sampled(40)
@pytest.mark.item("FMT-24", "FMT-25")
@every_codec
@every_size
@every_content
def test_kafka_reads_what_we_wrote(codec: Codec, size: int, content: Callable[[int], bytes]):
    data = content(size)
    assert kafka_decompress(codec, compress(codec, data)) == data


@pytest.mark.item("FMT-24", "FMT-25")
@every_codec
@every_size
@every_content
def test_we_read_what_kafka_wrote(codec: Codec, size: int, content: Callable[[int], bytes]):
    data = content(size)
    written = kafka_compress(codec, data, at_once=max(1, size // 50))
    assert decompress(codec, written, limit_bytes=size) == data


@pytest.mark.sampled(44)
@pytest.mark.parametrize("codec", SAME_COMPRESSOR, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("writes", [1, 1500])
@every_size
@every_content
def test_the_compressed_bytes_are_kafkas(
    codec: Codec, size: int, writes: int, content: Callable[[int], bytes]
):
    """With the versions that are locked here; other builds of the compressors may differ."""
    if codec is Codec.GZIP and "ng" in zlib.ZLIB_RUNTIME_VERSION:
        pytest.skip("Java's zlib is the original one, this Python's is zlib-ng")
    data = content(size)
    assert compress(codec, data) == kafka_compress(codec, data, at_once=size // writes + 1)


LEVELS = {
    Codec.GZIP: [-1, *range(1, 10)],
    Codec.LZ4: list(range(1, 18)),
    Codec.ZSTD: [-131072, -1, 0, 1, 2, 3, 10, 19, 22],
}


@pytest.mark.sampled(3)
@pytest.mark.item("FMT-24", "FMT-27")
@pytest.mark.parametrize(
    ("codec", "level"),
    [(codec, level) for codec, levels in LEVELS.items() for level in levels],
    ids=lambda value: value.name.lower() if isinstance(value, Codec) else str(value),
)
def test_every_level_makes_kafkas_bytes(codec: Codec, level: int):
    """As above, with the versions that are locked here."""
    if codec is Codec.GZIP and "ng" in zlib.ZLIB_RUNTIME_VERSION:
        pytest.skip("Java's zlib is the original one, this Python's is zlib-ng")
    for data in (text(200), text(200_000), noise(70_000), zeros(70_000), b""):
        ours = compress(codec, data, level=level)
        assert decompress(codec, ours, limit_bytes=len(data)) == data
        kafkas = kafka_compress(codec, data, at_once=max(1, len(data)), level=level)
        assert decompress(codec, kafkas, limit_bytes=len(data)) == data
        # Kafka's liblz4 has a compressor of its own for these levels, older ones have not.
        if (codec, level) not in {(Codec.LZ4, 1), (Codec.LZ4, 2)}:
            assert ours == kafkas


@pytest.mark.item("FMT-27")
@pytest.mark.parametrize(
    ("codec", "level"), [(Codec.GZIP, 0), (Codec.GZIP, 10), (Codec.LZ4, 0), (Codec.LZ4, 18)]
)
def test_kafka_has_no_other_levels(codec: Codec, level: int):
    with pytest.raises(KafkaFailure):
        kafka_compress(codec, b"data", at_once=4, level=level)


@every_size
@every_content
def test_snappys_framing_is_kafkas(size: int, content: Callable[[int], bytes]):
    data = content(size)
    ours = compress(Codec.SNAPPY, data)
    kafkas = kafka_compress(Codec.SNAPPY, data, at_once=size or 1)
    assert ours[:16] == kafkas[:16]
    assert _chunk_sizes(ours) == _chunk_sizes(kafkas)


def _chunk_sizes(stream: bytes) -> list[int]:
    snappy = java("org.xerial.snappy.Snappy")
    sizes, position = [], 16
    while position < len(stream):
        length = int.from_bytes(stream[position : position + 4], "big")
        block = stream[position + 4 : position + 4 + length]
        sizes.append(int(snappy.uncompressedLength(java_bytes(block))))
        position += 4 + length
    return sizes


@pytest.mark.thorough
@every_codec
def test_damaged_streams_mean_the_same_to_both(codec: Codec):
    """Cut, flipped and extended at random: the same bytes come out, or neither takes it."""
    source = random.Random(int(codec))
    disagreements = []
    for _ in range(300):
        data = text(source.choice([1, 40, 3000, 40_000]))
        stream = bytearray(compress(codec, data))
        at = source.randrange(len(stream))
        kind = source.randrange(4)
        if kind == 0:
            stream[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            del stream[at:]
        elif kind == 2:
            stream += source.randbytes(source.randrange(1, 40))
        else:
            stream += compress(codec, text(40))
        ours, kafkas = _ours(codec, bytes(stream)), _kafkas(codec, bytes(stream))
        if ours != kafkas and not _is_known(codec, bytes(stream), ours):
            disagreements.append((bytes(stream[:40]).hex(), ours, kafkas))
    assert disagreements == []


def _ours(codec: Codec, stream: bytes) -> bytes | None:
    try:
        return bytes(decompress(codec, stream, limit_bytes=2**27))
    except DecompressionError:
        return None


def _kafkas(codec: Codec, stream: bytes) -> bytes | None:
    try:
        return kafka_decompress(codec, stream)
    except AssertionError:
        return None


def _is_known(codec: Codec, stream: bytes, ours: bytes | None) -> bool:
    """Whether it is a difference that docs/differences.md names."""
    takes_stored_nothing_for_the_end = codec is Codec.LZ4 and bytes.fromhex("00000080") in stream
    return ours is None and takes_stored_nothing_for_the_end


def test_neither_takes_dependent_lz4_blocks():
    linked = lz4.frame.compress(text(200_000), block_linked=True)
    assert _ours(Codec.LZ4, linked) is None
    assert _kafkas(Codec.LZ4, linked) is None
