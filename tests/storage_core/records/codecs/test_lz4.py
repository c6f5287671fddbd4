"""LZ4 frames: what Kafka's own reader takes, and what it refuses."""

import lz4.frame
import pytest

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs import compress, decompress
from storage_core.records.codecs import lz4 as codec

TEXT = b"a fox and another fox and one fox more" * 3000  # two blocks of 64 KiB
FLAGS_AT, DESCRIPTOR_AT, CHECKSUM_AT = 4, 5, 6
END_MARK = bytes(4)


def frame_of(data: bytes = TEXT, **options: object) -> bytes:
    return lz4.frame.compress(data, **{"block_linked": False, "store_size": False, **options})


def patched(frame: bytes, at: int, byte: int) -> bytes:
    return frame[:at] + bytes([byte]) + frame[at + 1 :]


def test_a_frame_is_written_as_kafka_writes_it():
    frame = codec.compress(TEXT)
    assert frame[:7] == bytes.fromhex("04224d18604082")
    assert frame[-4:] == END_MARK
    first_block = int.from_bytes(frame[7:11], "little")
    second_block = int.from_bytes(frame[11 + first_block : 15 + first_block], "little")
    assert 15 + first_block + second_block + 4 == len(frame)


@pytest.mark.item("FMT-27")
@pytest.mark.parametrize("level", range(1, 18))
def test_every_level_makes_such_a_frame_and_only_the_default_one_is_fast(level: int):
    for data in (TEXT, b"", b"a", bytes(range(256)) * 300):
        frame = codec.compress(data, level=level)
        assert frame[:7] == bytes.fromhex("04224d18604082")
        assert frame[-4:] == END_MARK
        assert codec.decompress(frame, limit_bytes=len(data)) == data
    mixed = b"".join(b"%d and %d, " % (i * i % 977, i % 13) for i in range(6000))
    is_fast = codec.compress(mixed, level=level) == codec.compress(mixed)
    assert is_fast == (level == 9)


@pytest.mark.item("FMT-26")
def test_message_format_v0_has_a_wrong_checksum_in_the_header():
    plain = compress(Codec.LZ4, TEXT)
    old = compress(Codec.LZ4, TEXT, magic=0)
    assert old == patched(plain, CHECKSUM_AT, 0x1A)
    assert compress(Codec.LZ4, TEXT, magic=1) == plain
    assert decompress(Codec.LZ4, old, limit_bytes=len(TEXT), magic=0) == TEXT
    with pytest.raises(DecompressionError):
        decompress(Codec.LZ4, old, limit_bytes=len(TEXT), magic=1)


@pytest.mark.item("FMT-26")
def test_the_checksum_of_the_header_is_not_looked_at_where_it_is_known_to_be_wrong():
    for options in ({}, {"content_checksum": True, "block_checksum": True, "store_size": True}):
        frame = frame_of(**options)
        at = CHECKSUM_AT + (8 if "store_size" in options else 0)
        wrong = patched(frame, at, frame[at] ^ 0xFF)
        with pytest.raises(DecompressionError):
            codec.decompress(wrong, limit_bytes=len(TEXT))
        assert codec.decompress(wrong, limit_bytes=len(TEXT), checks_header=False) == TEXT
        with pytest.raises(DecompressionError, match="truncated"):
            codec.decompress(wrong[:-5], limit_bytes=len(TEXT), checks_header=False)


def test_what_does_not_compress_is_stored():
    frame = codec.compress(bytes(range(256)))
    assert frame[7:11] == (256 | 1 << 31).to_bytes(4, "little")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"store_size": True},
        {"content_checksum": True},
        {"block_checksum": True},
        {"block_size": lz4.frame.BLOCKSIZE_MAX4MB},
        {"compression_level": 9},
        {"store_size": True, "content_checksum": True, "block_checksum": True, "block_size": 5},
    ],
    ids=["plain", "size", "checksum", "block checksums", "4 MiB blocks", "high level", "all"],
)
def test_any_frame_of_independent_blocks_is_read(options: dict[str, object]):
    assert codec.decompress(frame_of(**options), limit_bytes=len(TEXT)) == TEXT


def test_a_wrong_content_size_or_content_checksum_does_not_matter_as_in_kafka():
    plain, marked = frame_of(), frame_of(content_checksum=True)
    assert codec.decompress(marked[:-4] + b"\1\2\3\4", limit_bytes=len(TEXT)) == TEXT
    sized = frame_of(b"another text", store_size=True)[:15] + plain[7:]
    assert codec.decompress(sized, limit_bytes=len(TEXT)) == TEXT


def test_a_missing_content_checksum_is_an_error():
    with pytest.raises(DecompressionError, match="truncated"):
        codec.decompress(frame_of(content_checksum=True)[:-1], limit_bytes=len(TEXT))


def test_a_wrong_block_checksum_is_an_error():
    frame = frame_of(block_checksum=True)
    with pytest.raises(DecompressionError, match="blockChecksum"):
        codec.decompress(patched(frame, len(frame) - 5, frame[-5] ^ 1), limit_bytes=len(TEXT))


@pytest.mark.parametrize("options", [{}, {"store_size": True}], ids=["plain", "size"])
def test_the_header_checksum_is_verified(options: dict[str, object]):
    frame = frame_of(**options)
    at = CHECKSUM_AT + (8 if options else 0)
    with pytest.raises(DecompressionError, match="headerChecksum"):
        codec.decompress(patched(frame, at, frame[at] ^ 1), limit_bytes=len(TEXT))


@pytest.mark.parametrize(
    ("at", "byte", "reason"),
    [
        (0, 0x05, "begins with 05224d18, expected 04224d18"),
        (FLAGS_AT, 0x40, "depend on each other"),
        (FLAGS_AT, 0x61, "reserved bits"),
        (FLAGS_AT, 0xA0, "version 2, expected 1"),
        (DESCRIPTOR_AT, 0x30, "block descriptor 0x30"),
        (DESCRIPTOR_AT, 0x41, "block descriptor 0x41"),
        (DESCRIPTOR_AT, 0xC0, "block descriptor 0xc0"),
    ],
    ids=["magic", "dependent", "dictionary", "version", "block size", "low bits", "high bit"],
)
def test_what_kafka_refuses_is_refused(at: int, byte: int, reason: str):
    with pytest.raises(DecompressionError, match=reason):
        codec.decompress(patched(frame_of(), at, byte), limit_bytes=len(TEXT))


def test_a_linked_frame_of_the_library_is_refused():
    with pytest.raises(DecompressionError, match="depend on each other"):
        codec.decompress(frame_of(block_linked=True), limit_bytes=len(TEXT))


def test_a_block_longer_than_the_frame_allows_is_refused():
    frame = bytearray(frame_of(b"short"))
    frame[7:11] = (64 * 1024 + 1).to_bytes(4, "little")
    with pytest.raises(DecompressionError, match="maxBlockSize"):
        codec.decompress(frame + bytes(2**17), limit_bytes=2**20)


@pytest.mark.parametrize("tail", [b"x", frame_of()], ids=["a byte", "another frame"])
def test_what_follows_the_first_frame_is_ignored(tail: bytes):
    assert codec.decompress(frame_of() + tail, limit_bytes=len(TEXT)) == TEXT
