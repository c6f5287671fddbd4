"""The kernels that look through frames and call the libraries, with nothing around the bytes."""

import ctypes

import numpy as np
import pytest

from storage_core.formats.batch_v2 import Codec
from storage_core.formats.snappy_stream import HEADER_BYTES
from storage_core.kernels._intrinsics import call_function
from storage_core.kernels.gzip_blocks import expand_gzip
from storage_core.kernels.lz4_blocks import expand_lz4, pack_lz4
from storage_core.kernels.snappy_chunks import (
    CHUNK_COLUMN_COUNT,
    CHUNK_OUT,
    CHUNK_OUT_END,
    CHUNK_STREAM,
    list_chunks,
)
from storage_core.kernels.zstd_blocks import expand_zstd, pack_zstd
from storage_core.records.codecs import compress, gzip, lz4, zstd
from tests.storage_core.kernels.arguments import as_array
from tests.storage_core.kernels.twins import in_both_ways

TEXT = b"a fox and another fox and one fox more" * 20
NO_LIMIT = 1 << 40
UNTOUCHED = 0xEE
MODULES = {Codec.GZIP: gzip, Codec.LZ4: lz4, Codec.ZSTD: zstd}


def spans(pieces: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ends = np.cumsum([len(piece) for piece in pieces])
    return as_array(b"".join(pieces)), ends - [len(piece) for piece in pieces], ends


def expansion(kernel, codec: Codec, pieces: list[bytes], *, room: int, limit: int = NO_LIMIT):
    """Return (row, room, contents of the rows before it) of one call."""
    out = np.full(room, UNTOUCHED, np.uint8)
    ends = np.full(len(pieces), -1)
    row, at, needed = kernel(
        MODULES[codec]._expander(), *spans(pieces), 0, limit, NO_LIMIT, out, 0, ends
    )
    assert at == (ends[row - 1] if row else 0)
    return row, needed, out[:at].tobytes()


all_kernels = in_both_ways(expand_gzip=expand_gzip, expand_lz4=expand_lz4, expand_zstd=expand_zstd)
every_codec = pytest.mark.parametrize(
    "codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name
)


@all_kernels
@every_codec
def test_frames_are_expanded_as_far_as_there_is_room(expand_gzip, expand_lz4, expand_zstd, codec):
    kernel = {Codec.GZIP: expand_gzip, Codec.LZ4: expand_lz4, Codec.ZSTD: expand_zstd}[codec]
    frames = [compress(codec, TEXT), compress(codec, TEXT[:300]), compress(codec, bytes(400))]
    row, room, found = expansion(kernel, codec, frames, room=1 << 18)
    assert (row, room, found) == (3, 0, TEXT + TEXT[:300] + bytes(400))
    row, room, found = expansion(kernel, codec, frames, room=0)
    assert (row, found) == (0, b"")
    assert room >= len(TEXT)
    row, room, found = expansion(kernel, codec, frames, room=1 << 18, limit=400)
    assert (row, room, found) == (0, 0, b"")


@all_kernels
@every_codec
def test_nothing_is_read_behind_a_frame_that_is_cut(expand_gzip, expand_lz4, expand_zstd, codec):
    kernel = {Codec.GZIP: expand_gzip, Codec.LZ4: expand_lz4, Codec.ZSTD: expand_zstd}[codec]
    frame = compress(codec, TEXT)
    for size in range(len(frame)):
        row, room, found = expansion(kernel, codec, [frame[:size]], room=1 << 18)
        assert (row, room, found) == (0, 0, b"")


@in_both_ways(expand_zstd=expand_zstd)
@pytest.mark.parametrize("descriptor", range(0, 256, 5))
def test_whatever_a_header_says_nothing_is_read_behind_it(expand_zstd, descriptor):
    frame = bytes.fromhex("28b52ffd") + bytes([descriptor]) + b"\x10" * 13
    row, _, found = expansion(expand_zstd, Codec.ZSTD, [frame], room=1 << 18)
    assert (row, found) == (0, b"")


@in_both_ways(list_chunks=list_chunks)
def test_chunks_are_listed_up_to_the_first_doubtful_stream(list_chunks):
    stream, bare = compress(Codec.SNAPPY, TEXT), compress(Codec.SNAPPY, TEXT)[20:]
    long = compress(Codec.SNAPPY, bytes(80_000))
    chunks = np.full((CHUNK_COLUMN_COUNT, 8), -1)

    def listed(*pieces: bytes, limit: int = NO_LIMIT, room: int = 8) -> tuple[int, int]:
        ends = np.full(len(pieces), -1)
        table = np.ascontiguousarray(chunks[:, :room])
        found = list_chunks(*spans(list(pieces)), 0, limit, NO_LIMIT, 5, table, ends)
        chunks[:, :room] = table
        return found

    assert listed(stream, bare, long) == (3, 5)
    assert chunks[CHUNK_STREAM, :5].tolist() == [0, 1, 2, 2, 2]
    sizes = [len(TEXT), len(TEXT), 32_768, 32_768, 80_000 - 65_536]
    assert (chunks[CHUNK_OUT_END, :5] - chunks[CHUNK_OUT, :5]).tolist() == sizes
    assert chunks[CHUNK_OUT, 0] == 5
    assert listed(stream, long, room=3) == (1, 1)
    assert listed(stream, long, limit=70_000) == (1, 1)
    for size in range(len(stream)):
        row, _ = listed(stream[:size])
        # The first byte of fewer bytes than a header has is the size of a bare block.
        assert row == 0 or size < HEADER_BYTES
    assert listed(stream, b"") == (1, 1)
    assert listed(stream, stream + b"\0") == (1, 1)
    assert listed(b"\xff\xff\xff\xff\x0f" + bytes(20)) == (0, 0)
    assert listed(b"\xff" * 30) == (0, 0)


@in_both_ways(pack_lz4=pack_lz4, pack_zstd=pack_zstd)
@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
def test_a_block_without_room_is_left(pack_lz4, pack_zstd, codec):
    pieces = [TEXT, b"", TEXT[:300]]
    frames = [compress(codec, piece) for piece in pieces]

    def run(room: list[int], total: int) -> tuple[int, bytes]:
        out = np.full(total, UNTOUCHED, np.uint8)
        ends = np.full(len(pieces), -1)
        rest = (*spans(pieces), np.array(room), out, 0, ends)
        kernel = pack_lz4 if codec is Codec.LZ4 else pack_zstd
        row, at = kernel(MODULES[codec]._packer(None), *rest)
        return row, out[:at].tobytes()

    assert run([2000, 300, 2000], 5000) == (3, b"".join(frames))
    assert run([2000, 300, 2000], 2050) == (2, b"".join(frames[:2]))
    assert run([2000, 300, 20], 5000) == (2, b"".join(frames[:2]))


@pytest.mark.parametrize("value", [-1, 7])
def test_a_function_is_called_with_its_numbers(value):
    absolute = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value
    assert call_function(absolute, value, 0, 0, 0, 0) == abs(value)
