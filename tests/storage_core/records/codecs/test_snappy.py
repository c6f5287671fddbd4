"""snappy's two ways to stand in a batch, and its lies."""

import struct
import tracemalloc

import cramjam
import pytest

from storage_core.errors import DecompressionError, DecompressionLimitError
from storage_core.records.codecs import snappy

HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
TEXT = b"a fox and another fox and one fox more"


def block_of(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def chunk_of(data: bytes) -> bytes:
    block = block_of(data)
    return struct.pack(">i", len(block)) + block


@pytest.mark.item("FMT-25")
def test_a_stream_is_written_in_chunks_of_32_kib():
    stream = snappy.compress(TEXT * 2000)
    assert stream[:16] == bytes.fromhex("82534e41505059000000000100000001")
    sizes, position = [], 16
    while position < len(stream):
        (length,) = struct.unpack_from(">i", stream, position)
        block = stream[position + 4 : position + 4 + length]
        sizes.append(cramjam.snappy.decompress_raw_len(block))
        position += 4 + length
    assert sizes == [32768, 32768, len(TEXT) * 2000 - 65536]


@pytest.mark.item("FMT-25")
def test_a_stream_and_a_bare_block_are_both_read():
    assert snappy.decompress(HEADER + chunk_of(TEXT), limit_bytes=100) == TEXT
    assert snappy.decompress(block_of(TEXT), limit_bytes=100) == TEXT


def test_a_bare_block_larger_than_a_chunk_is_read():
    assert snappy.decompress(block_of(TEXT * 5000), limit_bytes=2**20) == TEXT * 5000


def test_chunks_of_any_size_are_joined():
    stream = HEADER + chunk_of(TEXT) + chunk_of(b"") + chunk_of(TEXT * 2000) + chunk_of(b"!")
    assert snappy.decompress(stream, limit_bytes=2**20) == TEXT * 2001 + b"!"


def test_concatenated_streams_are_joined():
    stream = HEADER + chunk_of(TEXT) + HEADER + HEADER + chunk_of(b"!")
    assert snappy.decompress(stream, limit_bytes=100) == TEXT + b"!"


@pytest.mark.parametrize(
    "tail", [b"\0\0\0", b"\x82SNAP!" + bytes(20)], ids=["three bytes", "nearly a header"]
)
def test_a_tail_is_ignored_as_snappy_java_does(tail: bytes):
    assert snappy.decompress(HEADER + chunk_of(TEXT) + tail, limit_bytes=100) == TEXT


def test_the_limit_counts_all_chunks():
    stream = HEADER + chunk_of(TEXT) * 3
    assert snappy.decompress(stream, limit_bytes=3 * len(TEXT)) == TEXT * 3
    with pytest.raises(DecompressionLimitError):
        snappy.decompress(stream, limit_bytes=3 * len(TEXT) - 1)


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"", "truncated: the stream is empty"),
        (HEADER + struct.pack(">i", -5), "length -5"),
        (HEADER + struct.pack(">i", 2**29 + 1), "length 536870913"),
        (HEADER + struct.pack(">i", 9) + b"abc", "has 9 bytes, 3 are left"),
        (HEADER + struct.pack(">i", 0), "no byte, not even its size"),
        (HEADER + HEADER[:10], "a header at 16 is cut"),
        (HEADER + b"\x82SNAPPY\0" + struct.pack(">ii", 0, 0), "version 0, expected 1"),
        (b"\xff" * 12, "corrupt"),
        (struct.pack("B", 100) + b"abc", "a block of 4 bytes claims to expand to 100"),
        (block_of(TEXT)[:-1], "corrupt"),
        (block_of(TEXT) + b"\0", "corrupt"),
    ],
    ids=[
        "nothing",
        "negative chunk",
        "huge chunk",
        "cut chunk",
        "empty chunk",
        "cut second header",
        "unknown version",
        "endless size",
        "lying size",
        "cut block",
        "byte after a block",
    ],
)
def test_a_bad_stream_is_refused_with_its_reason(stream: bytes, reason: str):
    with pytest.raises(DecompressionError, match=reason):
        snappy.decompress(stream, limit_bytes=1000)


def test_a_block_that_claims_more_than_the_limit_is_refused_before_it_is_read():
    with pytest.raises(DecompressionLimitError):
        snappy.decompress(b"\xff\xff\xff\xff\x0f" + b"no block at all", limit_bytes=2**30)


def test_the_densest_block_there_is_still_expands():
    zeros = bytes(2**20)
    assert snappy.decompress(block_of(zeros), limit_bytes=2**20) == zeros


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("chunk", "expanded"),
    [(b"\x00\x00\x00\x01\x00", 0), (b"\x00\x00\x00\x03\x01\x00x", 1)],
    ids=["of nothing", "of one byte"],
)
def test_chunks_beyond_counting_take_no_memory_of_their_own(chunk: bytes, expanded: int):
    count = 40_000
    stream = HEADER + chunk * count
    tracemalloc.start()
    assert snappy.decompress(stream, limit_bytes=count) == b"x" * expanded * count
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * count  # the outcome, the expected one, and little else
