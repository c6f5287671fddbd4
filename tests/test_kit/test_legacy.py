"""The builders of old formats against entries that Kafka wrote, and against their own decoder."""

from pathlib import Path

import pytest
from hypothesis import given

from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.records.codecs import decompress
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.decode import UndecodableError, decode_segment
from tests.kit.decode_legacy import messages_of, parse_entry
from tests.kit.golden_data import Golden, goldens
from tests.kit.legacy import (
    LegacyEntry,
    LegacyMessage,
    LegacySet,
    compress_set,
    encode_entry,
    encode_inner_set,
)
from tests.kit.strategies import legacy_entries

OLD = goldens("*legacy*")


def spec_of(entry_bytes: bytes) -> LegacyEntry:
    """Return what builds an entry again."""
    entry = parse_entry(entry_bytes)
    messages = tuple(
        LegacyMessage(
            offset=one.offset,
            key=one.key,
            value=one.value,
            timestamp=one.timestamp,
            magic=entry.magic,
            attributes=entry.attributes & 8,
        )
        for one in messages_of(entry)
    )
    if entry.codec == 0:
        return messages[0]
    kind = TimestampType.LOG_APPEND_TIME if entry.is_append_time else TimestampType.CREATE_TIME
    return LegacySet(
        messages=messages, codec=Codec(entry.codec), magic=entry.magic, timestamp_type=kind
    )


@pytest.mark.item("FMT-14", "FMT-16", "FMT-18")
@pytest.mark.parametrize("golden", OLD, ids=lambda golden: golden.name)
def test_kafkas_old_entries_are_built_again(golden: Golden, tmp_path: Path):
    seen = 0
    for log in sorted(golden.unpack(tmp_path).glob("*.log")):
        data = log.read_bytes()
        for batch in decode_segment(data)[0]:
            if batch.header["magic"] == 2:
                continue
            seen += 1
            kafkas = data[batch.position : batch.position + batch.size]
            spec = spec_of(kafkas)
            if isinstance(spec, LegacyMessage):
                assert encode_entry(spec) == kafkas
                continue
            # Which bytes a compressor makes depends on its build.
            value = parse_entry(kafkas).message[14 if spec.magic == 0 else 22 :]
            inner = decompress(spec.codec, value, limit_bytes=2**20, magic=spec.magic)
            assert encode_inner_set(spec) == bytes(inner)
            assert (spec.last_offset, spec.magic) == (batch.last_offset, batch.header["magic"])
    assert seen


@pytest.mark.item("FMT-26")
def test_the_lz4_frames_of_v0_have_kafkas_broken_checksum(tmp_path: Path):
    golden = Golden("clean-legacy0-lz4-s303-horizon")
    heads = set()
    for log in sorted(golden.unpack(tmp_path).glob("*.log")):
        data = log.read_bytes()
        for batch in decode_segment(data)[0]:
            entry = data[batch.position : batch.position + batch.size]
            if batch.header["magic"] == 0 and batch.header["attributes"] & 7 == Codec.LZ4:
                heads.add(entry[26:33])
    assert heads == {compress_set(Codec.LZ4, b"anything", magic=0)[:7]}
    assert heads == {bytes.fromhex("04224d1860401a")}


@given(entry=legacy_entries())
def test_what_is_built_is_decoded(entry: LegacyEntry):
    (batch,), end = decode_segment(encode_entry(entry))
    assert end == batch.size
    assert batch.crc_ok
    messages = (entry,) if isinstance(entry, LegacyMessage) else entry.messages
    assert [(one.offset, one.key, one.value) for one in batch.records] == [
        (one.offset, one.key, one.value) for one in messages
    ]
    assert (batch.base_offset, batch.last_offset) == (messages[0].offset, messages[-1].offset)


def test_formats_may_be_mixed_in_a_segment():
    old = LegacyMessage(offset=3, value=b"old", magic=0)
    new = BatchSpec(base_offset=4, records=(RecordSpec(value=b"new"),))
    batches, _ = decode_segment(encode_entry(old) + encode_batch(new) + encode_entry(old))
    assert [batch.header["magic"] for batch in batches] == [0, 2, 0]


def test_a_set_that_no_reader_takes_is_refused():
    entry = encode_entry(LegacySet(messages=(LegacyMessage(),), payload=None))
    with pytest.raises(UndecodableError, match="compressed, and no value"):
        decode_segment(entry)
