"""The hash twins against published values."""

import pytest

from tests.reference.hashes import md5_128, siphash_1_3_128, siphash_128
from tests.reference.siphash_vectors import KEY, SIPHASH_1_3_128, SIPHASH_2_4_128


@pytest.mark.parametrize("length", SIPHASH_2_4_128)
def test_siphash_2_4_gives_the_published_values(length: int):
    digest = siphash_128(KEY, bytes(range(length)), rounds=2, final_rounds=4)
    assert digest.hex() == SIPHASH_2_4_128[length]


@pytest.mark.parametrize("length", SIPHASH_1_3_128)
def test_siphash_1_3_gives_the_values_of_openssl(length: int):
    digest = siphash_128(KEY, bytes(range(length)), rounds=1, final_rounds=3)
    assert digest.hex() == SIPHASH_1_3_128[length]


def test_the_halves_are_little_endian():
    assert siphash_1_3_128(KEY, b"") == (0xBEA58827B2BC7EE7, 0x013030DD6ADB62FD)
    assert md5_128(b"") == (0x04B2008FD98C1DD4, 0x7E42F8EC980980E9)
