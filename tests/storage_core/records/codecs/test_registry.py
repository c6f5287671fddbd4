"""What holds for every codec alike."""

import pickle
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.errors import DecompressionError, DecompressionLimitError
from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs import compress, decompress
from tests.kit.decode import DecodedBatch, decode_segment
from tests.kit.golden_data import Golden, Side, goldens
from tests.storage_core.records.codecs.kafka_wrote import KAFKA_WROTE, KAFKA_WROTE_NOTHING, TEXT

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
KIB = 1024
OUTCOME_LIMIT = 64 * KIB
SIZES = [0, 1, 100, 32 * KIB - 1, 32 * KIB, 32 * KIB + 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1]

every_codec = pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name.lower())


def sample(size: int) -> bytes:
    """Return bytes that compress, but not to nothing."""
    source = random.Random(size)
    return b"".join(source.randbytes(4) * 2 for _ in range(size // 8 + 1))[:size]


@every_codec
@pytest.mark.parametrize("size", [*SIZES, KIB * KIB], ids=lambda size: f"{size} bytes")
def test_what_is_compressed_comes_back(codec: Codec, size: int):
    data = sample(size)
    assert decompress(codec, compress(codec, data), limit_bytes=size) == data


@every_codec
def test_what_kafka_wrote_is_read(codec: Codec):
    assert decompress(codec, KAFKA_WROTE[codec], limit_bytes=len(TEXT)) == TEXT
    assert decompress(codec, KAFKA_WROTE_NOTHING[codec], limit_bytes=0) == b""


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_the_bytes_of_a_short_text_are_kafkas(codec: Codec):
    # gzip's depend on the zlib that Python was built with; see its own tests.
    assert compress(codec, TEXT) == KAFKA_WROTE[codec]
    assert compress(codec, b"") == KAFKA_WROTE_NOTHING[codec]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_any_buffer_will_do(codec: Codec, kind: type):
    packed = compress(codec, kind(TEXT))
    assert decompress(codec, kind(packed), limit_bytes=KIB) == TEXT


def test_no_codec_is_a_copy_within_the_limit():
    assert compress(Codec.NONE, TEXT) == TEXT
    assert decompress(Codec.NONE, TEXT, limit_bytes=len(TEXT)) == TEXT
    with pytest.raises(DecompressionLimitError):
        decompress(Codec.NONE, TEXT, limit_bytes=len(TEXT) - 1)


@every_codec
@pytest.mark.parametrize("size", [1, 100, 64 * KIB, 64 * KIB + 1])
def test_one_byte_beyond_the_limit_is_refused(codec: Codec, size: int):
    packed = compress(codec, sample(size))
    assert len(decompress(codec, packed, limit_bytes=size)) == size
    with pytest.raises(DecompressionLimitError, match=f"limit of {size - 1} bytes") as caught:
        decompress(codec, packed, limit_bytes=size - 1)
    assert caught.value.codec == codec.name.lower()


@every_codec
def test_every_cut_is_an_error_but_the_one_that_snappy_cannot_see(codec: Codec):
    packed = compress(codec, sample(40 * KIB))
    # snappy's framing has no end: a stream cut between two chunks is whole to every reader.
    second_chunk = 16 + 4 + int.from_bytes(packed[16:20], "big")
    ends = (16, second_chunk) if codec is Codec.SNAPPY else ()
    unseen = {end + tail for end in ends for tail in range(4)}
    # zstd's frames may be none at all.
    unseen |= {0} if codec is Codec.ZSTD else set()
    near_the_ends = [*range(40), *range(second_chunk - 8, second_chunk + 8)]
    for size in [*near_the_ends, len(packed) // 2, *range(len(packed) - 20, len(packed))]:
        if size in unseen or not 0 <= size < len(packed):
            continue
        with pytest.raises(DecompressionError):
            decompress(codec, packed[:size], limit_bytes=64 * KIB)


def outcome(codec: Codec, data: bytes) -> bytes | bytearray | DecompressionError:
    try:
        return decompress(codec, data, limit_bytes=OUTCOME_LIMIT)
    except DecompressionError as error:
        return error


@pytest.mark.sampled(2)
@every_codec
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_bytes_give_bytes_or_an_error_of_ours(codec: Codec, data: st.DataObject):
    original = data.draw(st.binary(max_size=300).map(lambda part: part * 3))
    packed = bytearray(compress(codec, original))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(packed)))
        gone = data.draw(st.integers(0, 3))
        packed[at : at + gone] = data.draw(st.binary(max_size=8))
    result = outcome(codec, bytes(packed))
    if isinstance(result, DecompressionError):
        assert result.codec == codec.name.lower()
        assert str(pickle.loads(pickle.dumps(result))) == str(result)
    else:
        assert len(result) <= OUTCOME_LIMIT


@every_codec
@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_give_bytes_or_an_error_of_ours(codec: Codec, data: bytes):
    result = outcome(codec, data)
    assert isinstance(result, DecompressionError) or len(result) <= OUTCOME_LIMIT


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
def test_bombs_are_refused_with_little_memory():
    # A process of its own, which may take 48 MiB more than it has once all is loaded.
    script = textwrap.dedent(
        """
        import pathlib, resource, zlib
        import lz4.frame, zstandard
        from storage_core.errors import DecompressionError, DecompressionLimitError
        from storage_core.formats.batch_v2 import Codec
        from storage_core.records.codecs import compress, decompress

        MIB = 1024 * 1024

        def in_pieces(stream, finish):
            return b"".join([stream.compress(bytes(MIB)) for _ in range(128)] + [finish()])

        gzip = zlib.compressobj(9, zlib.DEFLATED, 31)
        zstd = zstandard.ZstdCompressor().compressobj()
        lz4_frame = lz4.frame.LZ4FrameCompressor(block_linked=False)
        begin = lz4_frame.begin()
        bombs = {
            "gzip": (Codec.GZIP, in_pieces(gzip, gzip.flush)),
            "zstd": (Codec.ZSTD, in_pieces(zstd, zstd.flush)),
            "lz4": (Codec.LZ4, begin + in_pieces(lz4_frame, lz4_frame.flush)),
            "snappy, 4 GB claimed": (Codec.SNAPPY, b"\\xff\\xff\\xff\\xff\\x0f" + bytes(100)),
            "snappy, chunks": (Codec.SNAPPY, compress(Codec.SNAPPY, bytes(128 * MIB))),
            "zstd, 4 GB claimed": (
                Codec.ZSTD,
                bytes.fromhex("28b52ffd c038 00000000 01000000 150000".replace(" ", "")) + bytes(2),
            ),
        }
        for codec in list(Codec)[1:]:
            decompress(codec, compress(codec, b"warm"), limit_bytes=100)

        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + 48 * MIB
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        for name, (codec, bomb) in bombs.items():
            try:
                decompress(codec, bomb, limit_bytes=MIB)
            except DecompressionLimitError as error:
                print(name, "refused")
            except DecompressionError as error:
                print(name, "failed", error)
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "gzip refused",
        "zstd refused",
        "lz4 refused",
        "snappy, 4 GB claimed refused",
        "snappy, chunks refused",
        "zstd, 4 GB claimed refused",
    ]


DUMPED = [golden for golden in goldens() if golden.has_dump() and "topic_partition" in golden.case]


def kafkas_view(golden: Golden, side: Side) -> dict[str, list[dict[str, Any]]]:
    """Return the batches of each .log file, each with its records under "records"."""
    files: dict[str, list[dict[str, Any]]] = {}
    batches: list[dict[str, Any]] = []
    for line in golden.dump():
        if line["t"] == "batch":
            batches = files.setdefault(line["file"], []) if line["side"] == side.value else []
            batches.append(line | {"records": []})
        elif line["t"] == "rec":
            batches[-1]["records"].append(
                (line["o"], line["ts"], line["k"], line["v"], line.get("h", []))
            )
    return files


def our_view(batch: DecodedBatch) -> dict[str, Any]:
    """Return a batch under the names of Kafka's dump."""
    header = batch.header
    return {
        "pos": batch.position,
        "size": batch.size,
        "base": batch.base_offset,
        "last": batch.last_offset,
        # Kafka does not count the messages of an old entry before it opens it.
        "count": header["record_count"] if header["magic"] == 2 else None,
        "codec": Codec(header["attributes"] & 0x07).name.lower(),
        "max_ts": header["max_timestamp"],
        "pid": header["producer_id"],
        "pe": header["producer_epoch"],
        "seq": header["base_sequence"],
        "txn": bool(header["attributes"] & 0x10),
        "ctl": bool(header["attributes"] & 0x20),
        "epoch": header["partition_leader_epoch"],
        "crc": header["crc"],
        "valid": batch.crc_ok,
        "records": [
            (
                record.offset,
                record.timestamp,
                None if record.key is None else record.key.hex(),
                None if record.value is None else record.value.hex(),
                [[n.decode(), None if v is None else v.hex()] for n, v in record.headers],
            )
            for record in batch.records
        ],
    }


@pytest.mark.parametrize("golden", DUMPED, ids=lambda golden: golden.name)
@pytest.mark.parametrize("side", Side, ids=lambda side: side.value)
def test_a_segment_is_decoded_as_kafka_decodes_it(golden: Golden, side: Side, tmp_path: Path):
    directory = golden.unpack(tmp_path, side)
    for file, batches in kafkas_view(golden, side).items():
        decoded, _ = decode_segment((directory / file).read_bytes())
        ours = [our_view(batch) for batch in decoded]
        assert ours == [{name: batch[name] for name in ours[0]} for batch in batches]


def test_every_codec_is_among_them():
    assert {codec for golden in DUMPED for codec in golden.case["codecs"]} == {
        codec.name.lower() for codec in Codec
    }
