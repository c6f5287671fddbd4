"""Many blocks at one call: they give what one at a time gives, and nothing doubtful is taken."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.kernels._intrinsics import addresses_of
from storage_core.records.codecs import (
    Arena,
    Blocks,
    compress,
    compress_blocks,
    decompress,
    decompress_blocks,
    gzip,
    lz4,
    zstd,
)
from storage_core.records.codecs import base as libraries
from tests.storage_core.kernels.arguments import as_array
from tests.storage_core.records.codecs.kafka_wrote import KAFKA_WROTE, TEXT

KIB = 1024
COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
BY_ADDRESS = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]
NO_LIMIT = 1 << 40
EDGES = (32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB)
SIZES = [100, 1000, 16_300, *(edge + step for edge in EDGES for step in (-1, 0, 1)), 700 * KIB]


def named(codec: Codec) -> str:
    return codec.name.lower()


every_codec = pytest.mark.parametrize("codec", COMPRESSED, ids=named)


def texts(size: int) -> list[bytes]:
    """Return bytes of a size: zeros, noise, and something between."""
    source = random.Random(size)
    between = b"".join(source.randbytes(4) * 2 for _ in range(size // 8 + 1))[:size]
    return [bytes(size), source.randbytes(size), between]


def blocks_of(pieces: list[bytes]) -> Blocks:
    """Return blocks with a byte before, between and behind them."""
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    start = np.cumsum(sizes + 1) - sizes
    return Blocks(as_array(b"-" + b"-".join(pieces) + b"-"), start, start + sizes)


def packed(codec: Codec, pieces: list[bytes], level: int | None = None) -> list[bytes]:
    arena = Arena()
    arena.add(b"before")
    ends = compress_blocks(codec, blocks_of(pieces), arena, level=level).tolist()
    starts = [len(b"before"), *ends[:-1]]
    assert ends[-1] == arena.used
    assert arena.content[: starts[0]].tobytes() == b"before"
    return [arena.content[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]


def expanded(
    codec: Codec, pieces: list[bytes], *, limit_bytes: int = NO_LIMIT, budget_bytes: int = NO_LIMIT
) -> list[bytes]:
    """Return what is expanded at one call: the first blocks, or all."""
    arena = Arena()
    arena.add(b"before")
    ends = np.empty(len(pieces), np.int64)
    count = decompress_blocks(
        codec,
        blocks_of(pieces),
        0,
        arena,
        ends,
        limit_bytes=limit_bytes,
        budget_bytes=budget_bytes,
    )
    stops = [len(b"before"), *ends[:count].tolist()]
    assert (arena.used, arena.content[: stops[0]].tobytes()) == (stops[-1], b"before")
    return [arena.content[start:end].tobytes() for start, end in pairwise(stops)]


@pytest.mark.sampled(1)
@every_codec
def test_blocks_are_packed_to_the_same_bytes_as_one_at_a_time(codec: Codec):
    pieces = [b"", b"a", TEXT, *(text for size in SIZES for text in texts(size)), b"", TEXT]
    assert packed(codec, pieces) == [compress(codec, piece) for piece in pieces]


@pytest.mark.sampled(2)
@pytest.mark.item("FMT-27")
@pytest.mark.parametrize(
    ("codec", "level"),
    [
        *((Codec.LZ4, level) for level in (1, 9, 12, 17)),
        *((Codec.ZSTD, level) for level in (-7, 1, 3, 22)),
    ],
)
def test_blocks_are_packed_at_the_level_that_is_asked_for(codec: Codec, level: int):
    pieces = [text for size in (0, 100, 130 * KIB) for text in texts(size)]
    assert packed(codec, pieces, level) == [compress(codec, piece, level=level) for piece in pieces]
    assert packed(codec, pieces) == [compress(codec, piece) for piece in pieces]


@every_codec
def test_what_is_usual_is_expanded_at_one_call(codec: Codec):
    pieces = [TEXT, *(text for size in SIZES for text in texts(size)), TEXT]
    assert expanded(codec, [compress(codec, piece) for piece in pieces]) == pieces
    assert expanded(codec, [KAFKA_WROTE[codec]] * 3) == [TEXT] * 3
    assert expanded(codec, []) == []


@pytest.mark.parametrize("size", [30, 64 * KIB, 200 * KIB])
def test_a_bare_block_of_snappy_is_expanded_too(size: int):
    framed = compress(Codec.SNAPPY, bytes(min(size, 32 * KIB)))
    bare = framed[20:]
    assert expanded(Codec.SNAPPY, [bare, framed]) == [bytes(min(size, 32 * KIB))] * 2


@every_codec
@pytest.mark.parametrize("size", [100, 64 * KIB, 300 * KIB])
def test_a_block_beyond_the_limit_is_left(codec: Codec, size: int):
    for text in texts(size):
        pieces = [compress(codec, text[:-1]), compress(codec, text), compress(codec, TEXT)]
        assert expanded(codec, pieces, limit_bytes=size)[:2] == [text[:-1], text]
        assert expanded(codec, pieces, limit_bytes=size - 1) == [text[:-1]]


@every_codec
def test_the_last_block_is_the_one_that_exceeds_the_budget(codec: Codec):
    pieces = [compress(codec, TEXT)] * 5
    before = len(b"before")
    for budget, count in (
        (0, 0),
        (before, 1),
        (before + len(TEXT), 2),
        (before + 2 * len(TEXT), 3),
    ):
        assert len(expanded(codec, pieces, budget_bytes=budget)) == count


@every_codec
def test_what_is_doubtful_is_left_and_what_stands_before_it_is_not(codec: Codec):
    good = compress(codec, TEXT)
    for doubtful in (b"", b"\0" * 40, good[: len(good) // 2], b"x" + good):
        assert expanded(codec, [good, good, doubtful, good]) == [TEXT, TEXT]


@pytest.mark.sampled(2)
@every_codec
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_nothing_is_taken_that_one_at_a_time_refuses(codec: Codec, data: st.DataObject):
    original = data.draw(st.binary(min_size=1, max_size=300).map(lambda part: part * 3))
    damaged = bytearray(compress(codec, original))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        gone = data.draw(st.integers(0, 3))
        damaged[at : at + gone] = data.draw(st.binary(max_size=8))
    found = expanded(codec, [bytes(damaged)], limit_bytes=KIB)
    try:
        expected = bytes(decompress(codec, bytes(damaged), limit_bytes=KIB))
    except DecompressionError:
        assert found == []
    else:
        assert found in ([], [expected])


@pytest.mark.parametrize("codec", BY_ADDRESS, ids=named)
def test_without_the_functions_blocks_are_left_to_go_one_by_one(codec: Codec, monkeypatch):
    for module in (gzip, lz4, zstd):
        monkeypatch.setattr(module, "_expander", lambda: None)
    for module in (lz4, zstd):
        monkeypatch.setattr(module, "_packer", lambda _level: None)
    pieces = [TEXT, b"", bytes(100_000)]
    frames = packed(codec, pieces)
    assert frames == [compress(codec, piece) for piece in pieces]
    assert expanded(codec, frames) == []


def test_a_library_whose_state_is_laid_out_in_another_way_is_not_called(monkeypatch):
    expand = gzip.expand_gzip

    def with_other_fields(*arguments):
        row, at, room = expand(*arguments)
        arguments[-3][:at] += 1
        return row, at, room

    monkeypatch.setattr(gzip, "expand_gzip", with_other_fields)
    assert not gzip._has_expected_layout.__wrapped__()
    monkeypatch.setattr(gzip, "expand_gzip", expand)
    assert gzip._has_expected_layout.__wrapped__()


def test_a_function_that_a_library_lacks_is_found_out():
    library = libraries.find_library("lz4.frame._frame")
    (address,) = addresses_of(library, ["LZ4_versionNumber"])
    assert address
    assert addresses_of(library, ["LZ4_versionNumber", "LZ4_no_such_thing"]) is None
    assert addresses_of(None, ["LZ4_versionNumber"]) is None
    assert libraries.find_library("lz4.no_such_module") is None
    assert libraries.find_library("lz4.frame.__init__") is None


def test_on_a_machine_with_other_rules_for_calls_nothing_is_called(monkeypatch):
    monkeypatch.setattr(libraries, "CAN_CALL", False)
    assert libraries.find_library("lz4.frame._frame") is None


def test_an_arena_grows_and_keeps_what_it_has():
    arena = Arena()
    arena.add(b"abc")
    arena.reserve(1000)
    assert arena.buffer.size >= 1000
    arena.add(bytearray(b"de"))
    assert arena.content.tobytes() == b"abcde"
    buffer = arena.buffer
    arena.clear()
    assert len(arena.content) == 0
    arena.add(b"f")
    assert arena.buffer is buffer
    assert arena.content.tobytes() == b"f"
