"""Damaged batches lie in one place and are right everywhere else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.formats.batch_v2 import HEADER_BYTES, Codec
from storage_core.records.codecs import decompress
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.damage import (
    BadRecord,
    bad_record,
    decompression_bomb,
    header_only,
    truncated,
    with_codec,
    with_lying_count,
    with_lying_length,
    with_wrong_crc,
)
from tests.kit.decode import decode_segment
from tests.kit.strategies import hostile_batches
from tests.reference.batches import crc_of, parse_header
from tests.reference.records import MalformedRecordError, parse_records

SPEC = BatchSpec(records=(RecordSpec(key=b"k", value=b"v"), RecordSpec(key=b"l", value=None)))
BATCH = encode_batch(SPEC)


def has_valid_crc(batch: bytes) -> bool:
    return parse_header(batch).crc == crc_of(batch)


def test_the_crc_is_right_but_where_it_is_the_lie():
    assert has_valid_crc(BATCH)
    assert not has_valid_crc(with_wrong_crc(BATCH))
    assert has_valid_crc(with_lying_length(BATCH, 10_000))
    assert has_valid_crc(with_lying_count(BATCH, -1))
    assert has_valid_crc(with_codec(BATCH, 7))


def test_each_lie_is_where_its_name_says():
    assert parse_header(with_lying_length(BATCH, -7)).batch_length == -7
    assert parse_header(with_lying_count(BATCH, 2**31 - 1)).record_count == 2**31 - 1
    assert parse_header(with_codec(BATCH, 6)).attributes == 6
    assert truncated(BATCH, 30) == BATCH[:30]
    assert len(header_only(BATCH)) == 61


@pytest.mark.parametrize("bad", BadRecord, ids=lambda bad: bad.value)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=["plain", "compressed"])
def test_a_bad_record_is_bad_whatever_the_codec(bad: BadRecord, codec: Codec):
    batch = bad_record(bad, BatchSpec(codec=codec))
    assert has_valid_crc(batch)
    with pytest.raises(MalformedRecordError):
        parse_records(decompress(codec, batch[HEADER_BYTES:], limit_bytes=1000), 1)


@pytest.mark.parametrize("codec", list(Codec)[1:], ids=lambda codec: codec.name.lower())
def test_a_bomb_is_small_and_right(codec: Codec):
    bomb = decompression_bomb(codec, value_bytes=2**22)
    assert has_valid_crc(bomb)
    assert len(bomb) < 2**22 // 10
    (batch,), _ = decode_segment(bomb)
    assert len(batch.records[0].value or b"") == 2**22


@pytest.mark.thorough
@settings(max_examples=50, deadline=None)
@given(st.lists(hostile_batches(), max_size=3))
def test_hostile_batches_are_bytes(found: list[bytes]):
    assert all(isinstance(batch, bytes) for batch in found)
