"""gzip members, their ends, and what follows them."""

import zlib

import pytest

from storage_core.errors import DecompressionError, DecompressionLimitError
from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs import gzip
from tests.storage_core.records.codecs.kafka_wrote import KAFKA_WROTE, TEXT

MEMBER = KAFKA_WROTE[Codec.GZIP]
OPERATING_SYSTEM_AT = 9
CRC_BYTES, SIZE_BYTES = slice(-8, -4), slice(-4, None)


def member_of(data: bytes, *, level: int = 6) -> bytes:
    """Return a member as the standard library writes it."""
    stream = zlib.compressobj(level, zlib.DEFLATED, 31)
    return stream.compress(data) + stream.flush()


@pytest.mark.item("FMT-24")
def test_header_and_trailer_are_those_of_jdk_16_and_later():
    member = gzip.compress(TEXT)
    assert member[:10] == bytes.fromhex("1f8b08000000000000ff")
    assert (member[:10], member[-8:]) == (MEMBER[:10], MEMBER[-8:])


@pytest.mark.item("FMT-24")
@pytest.mark.parametrize("operating_system", [0x00, 0x03, 0xFF], ids=["old JDK", "Unix", "new JDK"])
def test_any_operating_system_in_the_header_is_read(operating_system: int):
    member = bytearray(MEMBER)
    member[OPERATING_SYSTEM_AT] = operating_system
    assert gzip.decompress(member, limit_bytes=100) == TEXT


@pytest.mark.item("FMT-24")
def test_the_level_is_the_default_one():
    data = TEXT * 1000
    assert gzip.compress(data)[10:] == member_of(data, level=-1)[10:]


@pytest.mark.parametrize(
    "header",
    [
        bytes.fromhex("1f8b0808 00000000 00ff") + b"a name\0",
        bytes.fromhex("1f8b0804 00000000 00ff 0300") + b"abc",
        bytes.fromhex("1f8b0810 00000000 00ff") + b"a comment\0",
    ],
    ids=["name", "extra field", "comment"],
)
def test_optional_parts_of_a_header_are_skipped(header: bytes):
    assert gzip.decompress(header + MEMBER[10:], limit_bytes=100) == TEXT


def test_members_in_a_row_are_joined():
    data = MEMBER + member_of(b"") + member_of(b", jumps") + member_of(TEXT)
    assert gzip.decompress(data, limit_bytes=200) == TEXT + b", jumps" + TEXT


def test_a_large_second_member_is_read_whole():
    second = bytes(range(256)) * 4096
    assert gzip.decompress(MEMBER + member_of(second), limit_bytes=2**21) == TEXT + second


def test_the_limit_counts_all_members():
    assert gzip.decompress(MEMBER * 3, limit_bytes=3 * len(TEXT)) == TEXT * 3
    with pytest.raises(DecompressionLimitError):
        gzip.decompress(MEMBER * 3, limit_bytes=3 * len(TEXT) - 1)


@pytest.mark.thorough
def test_a_hundred_thousand_members_take_no_quadratic_time():
    assert gzip.decompress(member_of(b"x") * 100_000, limit_bytes=100_000) == b"x" * 100_000


@pytest.mark.parametrize(
    "tail",
    [b"\0", bytes(40), b"no member, but long enough to be one", MEMBER[:19]],
    ids=["a zero", "zeros", "text", "too short for a member"],
)
def test_what_follows_and_is_no_member_is_ignored(tail: bytes):
    assert gzip.decompress(MEMBER + tail, limit_bytes=100) == TEXT


def test_a_second_member_that_is_cut_is_an_error():
    with pytest.raises(DecompressionError, match="truncated"):
        gzip.decompress(MEMBER + MEMBER[:-1], limit_bytes=200)


@pytest.mark.parametrize("part", [CRC_BYTES, SIZE_BYTES], ids=["checksum", "size"])
def test_the_trailer_is_verified(part: slice):
    member = bytearray(MEMBER)
    member[part] = b"\x01\x02\x03\x04"
    with pytest.raises(DecompressionError, match="corrupt"):
        gzip.decompress(member, limit_bytes=100)


@pytest.mark.parametrize("first_bytes", [b"\x1f\x8c", b"\x1f\x8b\x07"], ids=["magic", "method"])
def test_something_else_than_gzip_is_refused(first_bytes: bytes):
    with pytest.raises(DecompressionError, match="gzip: corrupt"):
        gzip.decompress(first_bytes + MEMBER[len(first_bytes) :], limit_bytes=100)
