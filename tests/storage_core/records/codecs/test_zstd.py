"""Zstandard frames, how they are put together, and what they may claim."""

import threading

import pytest
import zstandard

from storage_core.errors import DecompressionError, DecompressionLimitError
from storage_core.records.codecs import zstd

TEXT = b"a fox and another fox and one fox more" * 10_000  # three blocks of 128 KiB
MAGIC = bytes.fromhex("28b52ffd")
# A window of 2 MiB, no content size, no checksum.
STREAMING = MAGIC + bytes([0x00, 0x58])
LAST, RAW, REPEATED, COMPRESSED, RESERVED = 1, 0, 1, 2, 3


def block(kind: int, size: int, contents: bytes, *, last: bool = False) -> bytes:
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + contents


def frame_of(data: bytes = TEXT, **options: object) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def skippable(contents: bytes) -> bytes:
    return bytes.fromhex("5f2a4d18") + len(contents).to_bytes(4, "little") + contents


def test_a_frame_is_written_as_kafka_writes_it():
    parameters = zstandard.get_frame_parameters(zstd.compress(TEXT))
    assert parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert parameters.window_size == 2**21  # level 3 without a known size
    assert not parameters.has_checksum
    assert parameters.dict_id == 0


def test_the_last_block_is_empty_for_java_flushes_before_it_closes():
    assert zstd.compress(TEXT).endswith(block(RAW, 0, b"", last=True))


@pytest.mark.parametrize(
    "options",
    [
        {"write_content_size": True},
        {"write_content_size": False},
        {"write_checksum": True},
        {"level": 19, "write_checksum": True},
        {"level": -5},
    ],
    ids=["size", "no size", "checksum", "high level", "negative level"],
)
def test_any_frame_is_read(options: dict[str, object]):
    assert zstd.decompress(frame_of(**options), limit_bytes=len(TEXT)) == TEXT


def test_frames_in_a_row_are_joined_and_skippable_ones_skipped():
    data = skippable(b"hello") + frame_of(b"one, ") + skippable(b"") + zstd.compress(b"two")
    assert zstd.decompress(data, limit_bytes=8) == b"one, two"


def test_nothing_is_nothing():
    assert zstd.decompress(b"", limit_bytes=0) == b""
    assert zstd.decompress(skippable(b"only this"), limit_bytes=0) == b""


def test_hand_made_blocks_expand():
    frame = (
        STREAMING + block(RAW, 3, b"abc") + block(REPEATED, 5, b"x") + block(RAW, 0, b"", last=True)
    )
    assert zstd.decompress(frame, limit_bytes=8) == b"abcxxxxx"


def test_the_limit_counts_all_frames():
    data = zstd.compress(b"one, ") + frame_of(b"two")
    assert zstd.decompress(data, limit_bytes=8) == b"one, two"
    with pytest.raises(DecompressionLimitError):
        zstd.decompress(data, limit_bytes=7)


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(TEXT, write_content_size=True),
        frame_of(TEXT, write_content_size=False),
        STREAMING + block(REPEATED, 2**17, b"x") * 1000 + block(RAW, 0, b"", last=True),
    ],
    ids=["claimed", "found out", "added up"],
)
def test_a_frame_beyond_the_limit_is_refused(frame: bytes):
    with pytest.raises(DecompressionLimitError, match="limit of 1000 bytes"):
        zstd.decompress(frame, limit_bytes=1000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"nothing of the kind", "no frame at 0"),
        (frame_of(b"x") + b"nothing of the kind", "no frame at 10"),
        (frame_of(b"x") + MAGIC, "no frame at 10"),
        (STREAMING, "truncated: what begins at 6"),
        (STREAMING + block(RAW, 3, b"ab"), "truncated"),
        (STREAMING + block(RAW, 3, b"abc"), "truncated"),
        (STREAMING + block(RESERVED, 0, b"", last=True), "the block at 6 has kind 3"),
        (STREAMING + block(COMPRESSED, 4, b"\xff" * 4, last=True), "corrupt"),
        (skippable(b"abc")[:-1], "truncated"),
        (frame_of(b"x", write_checksum=True)[:-1], "truncated"),
        (
            MAGIC + b"\xa0" + (5).to_bytes(4, "little") + block(RAW, 3, b"abc", last=True),
            "claims 5",
        ),
        (MAGIC + b"\xa0" + (2).to_bytes(4, "little") + block(RAW, 3, b"abc", last=True), "corrupt"),
        (MAGIC + b"\x00\xa8" + block(RAW, 0, b"", last=True), "window of 2147483648 bytes"),
        (MAGIC + b"\x00\xff" + block(RAW, 0, b"", last=True), "too much memory"),
        (MAGIC + b"\x21\x07\x01" + block(RAW, 1, b"x", last=True), "corrupt"),
    ],
    ids=[
        "no frame",
        "text after a frame",
        "a magic after a frame",
        "no block",
        "cut block",
        "no last block",
        "unknown kind of block",
        "garbage block",
        "cut skippable frame",
        "cut checksum",
        "claims more than its blocks",
        "claims less than its blocks",
        "window of 2 GiB",
        "window of 2 TiB and more",
        "dictionary",
    ],
)
def test_bad_frames_are_refused_with_their_reason(data: bytes, reason: str):
    with pytest.raises(DecompressionError, match=reason) as caught:
        zstd.decompress(data, limit_bytes=1000)
    assert not isinstance(caught.value, DecompressionLimitError)


def test_a_wrong_checksum_is_an_error():
    frame = bytearray(frame_of(write_checksum=True))
    frame[-1] ^= 1
    with pytest.raises(DecompressionError, match="checksum"):
        zstd.decompress(frame, limit_bytes=len(TEXT))


def test_threads_do_not_share_a_context():
    results: list[bool] = []

    def work(seed: int) -> None:
        data = TEXT[seed:]
        results.extend(
            zstd.decompress(zstd.compress(data), limit_bytes=len(data)) == data for _ in range(20)
        )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80
