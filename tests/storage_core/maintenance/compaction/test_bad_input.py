"""Bytes that lie: a clear error with file and position, and a partition that nobody touched."""

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from storage_core.config import CleanerConfig
from storage_core.errors import (
    BadBytesError,
    ChangedWhileReadError,
    CorruptIndexError,
    CorruptRecordError,
    InvalidRecordError,
    NegativeTimestampError,
    OffsetOverflowError,
    PylogError,
    UnsupportedCompressionError,
    UnsupportedFormatError,
)
from storage_core.filenames import log_file
from storage_core.formats.batch_v2 import BATCH_LENGTH_AT, HEADER_BYTES, Codec
from storage_core.log.committed_view import scan_committed_view
from storage_core.maintenance.compaction.partition import load_for_round, refuse_negative_timestamps
from storage_core.records import reader
from storage_core.store.local import LocalStore
from tests.kit.builders import (
    RecordSpec,
    encode_batch,
    encode_record,
    end_txn_marker,
)
from tests.kit.compare import read_tree
from tests.kit.damage import (
    BadRecord,
    bad_record,
    decompression_bomb,
    truncated,
    with_codec,
    with_lying_count,
    with_lying_length,
    with_payload,
    with_trailing_bytes,
    with_wrong_crc,
)
from tests.kit.golden_cleaning import clean_spread
from tests.kit.legacy import LegacyMessage, encode_entry
from tests.kit.partition_views import batches_in
from tests.storage_core.maintenance.compaction.hand_made import (
    P,
    batch,
    cleaning,
    record,
    write_log,
)

BEFORE = batch(10, record(b"k", b"before"))
# Where the damaged batch goes: its key is written again later, so that it would be rebuilt.
SPEC = batch(11, record(b"k", b"x" * 50), record(b"stays"), record(b"k"))
BEHIND = batch(20, record(b"k", b"after"))
POSITION = len(encode_batch(BEFORE))
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
DEFAULT_CONFIG = {"internal.segment.bytes": 400}
SECTIONS = [
    pytest.param(0, id="dirty section"),
    pytest.param(20, id="clean section"),
]


def damaged_log(directory: Path, bad: bytes, *, behind: bytes | None = None) -> Path:
    """Three closed segments; the second one's second batch is the damaged one."""
    write_log(
        directory,
        [batch(0, record(b"a"), record(b"k")), batch(2, record(b"a", b"y" * 200))],
        [BEFORE, SPEC],
        [BEHIND],
    )
    tail = encode_batch(batch(15, record(b"k", b"behind"))) if behind is None else behind
    (directory / log_file(10)).write_bytes(encode_batch(BEFORE) + bad + tail)
    return directory


def refused(
    directory: Path, error: type[PylogError], *, checkpoint: int = 0, **settings: Any
) -> BadBytesError:
    """Clean, expect an error about the damaged batch, and nothing changed."""
    round_ = cleaning(
        overrides=DEFAULT_CONFIG | settings.pop("overrides", {}),
        cleaner_offset=checkpoint,
        **settings,
    )
    before = read_tree(directory)
    with pytest.raises(error) as caught:
        round_.clean(directory)
    assert read_tree(directory) == before
    assert isinstance(caught.value, BadBytesError)
    assert caught.value.file == log_file(10)
    assert log_file(10) in str(caught.value)
    assert str(caught.value.position) in str(caught.value)
    return caught.value


Damage = Callable[[], bytes]

CORRUPT: dict[str, Damage] = {
    "a length past the end of the file": lambda: with_lying_length(encode_batch(SPEC), 10_000),
    "a length of two gigabytes": lambda: with_lying_length(encode_batch(SPEC), 2**31 - 1),
    "a length of zero": lambda: with_lying_length(encode_batch(SPEC), 0),
    "a negative length": lambda: with_lying_length(encode_batch(SPEC), -1),
    "the most negative length": lambda: with_lying_length(encode_batch(SPEC), -(2**31)),
    "a length shorter than a header": lambda: with_lying_length(encode_batch(SPEC), 48),
    "a length of a header": lambda: with_lying_length(encode_batch(SPEC), 49),
    "a length one short": lambda: with_lying_length(
        encode_batch(SPEC), len(encode_batch(SPEC)) - BATCH_LENGTH_AT - 5
    ),
    "a length one long": lambda: with_lying_length(
        encode_batch(SPEC), len(encode_batch(SPEC)) - BATCH_LENGTH_AT - 3
    ),
    "a wrong checksum": lambda: with_wrong_crc(encode_batch(SPEC)),
    "an unknown magic": lambda: encode_batch(dataclasses.replace(SPEC, magic=3)),
    "a negative magic": lambda: encode_batch(dataclasses.replace(SPEC, magic=-1)),
    "nothing but zeros": lambda: bytes(100),
}


@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("damage", CORRUPT)
def test_a_batch_that_is_none_is_refused_with_its_place(tmp_path, damage, checkpoint):
    directory = damaged_log(tmp_path / "t-0", CORRUPT[damage]())
    error = refused(directory, PylogError, checkpoint=checkpoint)
    assert isinstance(error, CorruptRecordError | UnsupportedFormatError)
    assert error.position == POSITION


@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("size", [1, 11, 12, 16, 17, 18, 60, HEADER_BYTES, HEADER_BYTES + 7])
def test_a_truncated_batch_at_the_end_of_a_closed_segment_is_refused(tmp_path, size, checkpoint):
    bad = truncated(encode_batch(SPEC), size)
    error = refused(
        damaged_log(tmp_path / "t-0", bad, behind=b""), CorruptRecordError, checkpoint=checkpoint
    )
    assert error.position == POSITION


@pytest.mark.item("CMP-32")
@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_entry_that_would_have_to_stay_empty_is_refused_as_kafka_refuses_it(tmp_path, magic):
    old = LegacyMessage(offset=4, magic=magic)
    directory = write_log(tmp_path / "t-0", [batch(0, record(b"a")), old], [batch(5, record(b"b"))])
    before = read_tree(directory)
    with pytest.raises(UnsupportedFormatError, match=f"v{magic}") as caught:
        cleaning(high_watermark=5).clean(directory)
    assert caught.value.position == len(encode_batch(batch(0, record(b"a"))))
    assert read_tree(directory) == before
    cleaning(high_watermark=4).clean(directory)


@pytest.mark.item("FMT-28")
@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("magic", [3, 127, -1])
def test_an_unknown_magic_is_refused_even_of_a_batch_without_records(tmp_path, magic, checkpoint):
    bad = encode_batch(batch(11, magic=magic))
    if magic < 0:
        bad = encode_entry(LegacyMessage(offset=11, magic=magic))
    error = refused(damaged_log(tmp_path / "t-0", bad), CorruptRecordError, checkpoint=checkpoint)
    assert error.position == POSITION
    assert f"found {magic}" in str(error)


@pytest.mark.item("FMT-11")
@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_a_batch_that_counts_no_records_is_dropped_with_all_behind_its_header(
    tmp_path, codec, checkpoint
):
    lying = with_lying_count(encode_batch(dataclasses.replace(SPEC, codec=codec)), 0)
    directory = damaged_log(tmp_path / "t-0", lying)
    cleaning(overrides=DEFAULT_CONFIG, cleaner_offset=checkpoint).clean(directory)
    left = {found.base_offset for found in batches_in(directory)}
    assert 11 not in left
    assert 20 in left


@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
@pytest.mark.parametrize("count", [-(2**31), -1, 2, 4, 100, 2**31 - 1])
def test_a_lying_record_count_is_refused(tmp_path, codec, count, checkpoint):
    bad = with_lying_count(encode_batch(dataclasses.replace(SPEC, codec=codec)), count)
    directory = damaged_log(tmp_path / "t-0", bad)
    error = refused(directory, InvalidRecordError, checkpoint=checkpoint)
    assert error.position == POSITION
    assert "offset 11" in str(error)


@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=lambda codec: codec.name)
@pytest.mark.parametrize("how", BadRecord, ids=lambda how: how.value)
def test_a_malformed_record_is_refused(tmp_path, how, codec, checkpoint):
    bad = bad_record(how, dataclasses.replace(SPEC, codec=codec))
    directory = damaged_log(tmp_path / "t-0", bad)
    error = refused(directory, InvalidRecordError, checkpoint=checkpoint)
    assert error.position == POSITION
    assert "offset 11" in str(error)


@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_bytes_after_the_last_record_are_refused(tmp_path, codec, checkpoint):
    bad = with_trailing_bytes(dataclasses.replace(SPEC, codec=codec), b"\0\0")
    error = refused(damaged_log(tmp_path / "t-0", bad), InvalidRecordError, checkpoint=checkpoint)
    assert "after the last record" in str(error)


@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(tmp_path, codec, checkpoint):
    directory = damaged_log(tmp_path / "t-0", with_codec(encode_batch(SPEC), codec))
    error = refused(directory, UnsupportedCompressionError, checkpoint=checkpoint)
    assert error.position == POSITION
    assert f"found {codec}" in str(error)


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name)
def test_a_payload_that_its_codec_cannot_read_is_refused(tmp_path, codec):
    directory = damaged_log(tmp_path / "t-0", with_codec(encode_batch(SPEC), codec))
    error = refused(directory, InvalidRecordError)
    assert codec.name.lower() in str(error)
    assert error.position == POSITION


@pytest.mark.item("FMT-29")
@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name)
def test_a_record_of_a_mebibyte_is_refused_where_64_kibibytes_are_the_limit(
    tmp_path, codec, checkpoint
):
    bad = decompression_bomb(codec, value_bytes=2**20, batch=SPEC)
    directory = damaged_log(tmp_path / "t-0", bad)
    overrides = {"max.decompressed.message.bytes": 65_536}
    error = refused(directory, InvalidRecordError, overrides=overrides, checkpoint=checkpoint)
    assert error.position == POSITION
    assert "max.decompressed.message.bytes" in str(error)


@pytest.mark.item("FMT-29")
@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name)
def test_a_bomb_is_refused_before_it_is_expanded(tmp_path, codec, checkpoint):
    bad = decompression_bomb(codec, value_bytes=2**24, batch=SPEC)
    assert len(bad) < 2**21
    directory = damaged_log(tmp_path / "t-0", bad)
    cleaner = CleanerConfig(max_decompressed_batch_bytes=2**20)
    error = refused(directory, InvalidRecordError, cleaner=cleaner, checkpoint=checkpoint)
    assert error.position == POSITION
    assert "limit of 1048576 bytes" in str(error)


@pytest.mark.item("FMT-29")
def test_a_record_at_the_limit_is_taken_and_one_that_is_not_compressed_at_any_size(tmp_path):
    large = record(b"s", bytes(5000))
    # The length that stands before a record does not count, it takes two bytes here.
    body = len(encode_record(large, timestamp_delta=0, offset_delta=0)) - 2
    for codec, limit, is_refused in (
        (Codec.GZIP, body, False),
        (Codec.GZIP, body - 1, True),
        (Codec.NONE, 1, False),
    ):
        bad = encode_batch(dataclasses.replace(SPEC, records=(large,), codec=codec))
        directory = damaged_log(tmp_path / f"{codec}-{limit}" / "t-0", bad)
        overrides = {"max.decompressed.message.bytes": limit}
        if is_refused:
            refused(directory, InvalidRecordError, overrides=overrides)
        else:
            cleaning(overrides=DEFAULT_CONFIG | overrides).clean(directory)


# --- what can only be seen when a batch is rebuilt, as in Kafka


def rebuilt(*records: RecordSpec, **fields: Any) -> bytes:
    """A batch that loses its first record, so that the others are written anew."""
    return encode_batch(dataclasses.replace(SPEC, records=(record(b"k"), *records), **fields))


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
@pytest.mark.parametrize(
    "deltas", [(2, 2), (2, 1), (3, -5)], ids=["equal", "falling", "falling below the batch's own"]
)
def test_offsets_that_do_not_rise_are_refused(tmp_path, deltas, codec):
    records = [record(b"key-%d" % i, offset_delta=delta) for i, delta in enumerate(deltas)]
    bad = rebuilt(*records, codec=codec, last_offset_delta=4)
    error = refused(damaged_log(tmp_path / "t-0", bad), InvalidRecordError)
    assert error.position == POSITION
    assert "does not rise" in str(error)


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_a_negative_timestamp_is_refused(tmp_path, codec):
    bad = rebuilt(record(b"p", timestamp=-2), record(b"q"), codec=codec, base_timestamp=0)
    error = refused(damaged_log(tmp_path / "t-0", bad), NegativeTimestampError)
    assert error.position == POSITION
    assert "negative timestamp" in str(error)


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
@pytest.mark.parametrize("base", [0, -7], ids=["inside of a batch", "at its beginning"])
def test_a_negative_timestamp_is_kept_where_somebody_asks_for_it(tmp_path, codec, base):
    records = (record(b"p", timestamp=-2), record(b"q", timestamp=-(2**50)))
    bad = rebuilt(*records, codec=codec, base_timestamp=base)
    directory = damaged_log(tmp_path / "t-0", bad)
    settings = {"overrides": DEFAULT_CONFIG, "cleaner_offset": 0}
    cleaner = CleanerConfig(keeps_negative_timestamps=True)
    cleaning(**settings, cleaner=cleaner).clean(directory)
    kept = {
        entry.key: entry.timestamp
        for batch_ in batches_in(directory)
        for entry in batch_.records
        if entry.key in {b"p", b"q"}
    }
    assert kept == {b"p": -2, b"q": -(2**50)}


@pytest.mark.parametrize(
    ("records", "keeps", "is_refused"),
    [
        pytest.param((record(b"p", timestamp=-2), record(b"k")), False, True, id="it would end"),
        pytest.param((record(b"p", timestamp=-2), record(b"k")), True, False, id="asked for"),
        pytest.param((record(b"p", timestamp=-2), record(b"q")), False, False, id="all stays"),
        pytest.param((record(b"k", timestamp=-2), record(b"q")), False, False, id="it goes itself"),
    ],
)
def test_a_round_that_would_end_at_one_is_refused_before_it_begins(
    tmp_path, records, keeps, is_refused
):
    directory = write_log(tmp_path / "t-0", [batch(0, *records)], [BEHIND], [batch(30)])
    store = LocalStore(directory)
    cleaner = CleanerConfig(keeps_negative_timestamps=keeps)
    round_ = cleaning(overrides=DEFAULT_CONFIG, cleaner_offset=0, cleaner=cleaner)
    plan = round_.plan(load_for_round(store, round_.config, cleaner, round_.request))
    refusal = pytest.raises(NegativeTimestampError, match="position 0")
    with refusal if is_refused else nullcontext():
        refuse_negative_timestamps(store, plan)


def test_no_timestamp_at_all_is_taken(tmp_path):
    bad = rebuilt(record(b"p", timestamp=-1), base_timestamp=0)
    directory = damaged_log(tmp_path / "t-0", bad)
    cleaning(overrides=DEFAULT_CONFIG).clean(directory)


def control_batch(payload: bytes, **fields: Any) -> bytes:
    marker = end_txn_marker(base_offset=11, producer_id=P, producer_epoch=0)
    return with_payload(dataclasses.replace(marker, **fields), payload)


def plain_record(key: bytes | None, value: bytes | None) -> bytes:
    return encode_record(RecordSpec(key=key, value=value), timestamp_delta=0, offset_delta=0)


BAD_CONTROL = {
    "no key": control_batch(plain_record(None, b"\0\0\0\0\0\0")),
    "a key too short": control_batch(plain_record(b"\0\0\0", b"\0\0\0\0\0\0")),
    "a negative version": control_batch(plain_record(b"\xff\xff\0\1", b"\0\0\0\0\0\0")),
    "an endless varint": control_batch(b"\xff" * 20),
    "no record": control_batch(b""),
    "a negative count": with_lying_count(
        control_batch(plain_record(b"\0\0\0\1", b"\0\0\0\0\0\0")), -1
    ),
}


@pytest.mark.parametrize("checkpoint", SECTIONS)
@pytest.mark.parametrize("damage", BAD_CONTROL)
def test_a_control_batch_that_cannot_be_read_is_refused(tmp_path, damage, checkpoint):
    directory = damaged_log(tmp_path / "t-0", BAD_CONTROL[damage])
    error = refused(directory, BadBytesError, checkpoint=checkpoint)
    assert error.position == POSITION


# --- offsets of batches


def falling_offsets(directory: Path) -> Path:
    """The second of three segments has a batch at offset 12 after one at 14."""
    return write_log(
        directory,
        [batch(0, record(b"a", b"x" * 100))],
        [batch(10, record(b"b")), batch(14, record(b"c")), batch(12, record(b"d"))],
        [batch(20, record(b"e", b"x" * 100))],
    )


@pytest.mark.item("CMP-41")
def test_batches_whose_offsets_fall_are_refused_by_the_index_in_the_second_of_three_groups(
    tmp_path,
):
    """Pass one and the first group were fine; their scratch files go too."""
    directory = falling_offsets(tmp_path / "t-0")
    before = read_tree(directory)
    with pytest.raises(CorruptIndexError, match="offset 12 does not rise") as caught:
        cleaning(overrides={"internal.segment.bytes": 200, "index.interval.bytes": 0}).clean(
            directory
        )
    assert caught.value.file == log_file(10)
    assert read_tree(directory) == before


@pytest.mark.parametrize(
    ("base_offset", "last_offset_delta", "said"),
    [
        pytest.param(3, None, "offset 3 does not fit", id="below its segment"),
        pytest.param(2**40, None, str(2**40), id="out of reach of its segment"),
        # Its parts would lie between the segments, what they say would not: damaged, not long.
        pytest.param(11, 2**31 - 1, str(11 + 2**31 - 1), id="beyond the next segment"),
        # Its last offset is below its first, and so below the next segment's.
        pytest.param(2**63 - 1, 8, f"offset -{2**63 - 7} does not fit", id="it wraps around"),
    ],
)
def test_a_batch_whose_offsets_do_not_fit_is_refused(
    tmp_path, base_offset, last_offset_delta, said
):
    spec = batch(base_offset, record(b"unique"), last_offset_delta=last_offset_delta)
    directory = damaged_log(tmp_path / "t-0", encode_batch(spec))
    before = read_tree(directory)
    with pytest.raises(OffsetOverflowError, match=said):
        cleaning(overrides=DEFAULT_CONFIG).clean(directory)
    assert read_tree(directory) == before


def test_a_segment_that_two_parts_would_take_their_name_from_is_refused(tmp_path):
    """It comes back to where it began: Kafka gives up its split, half of which is made by then."""
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a")), batch(2**31, record(b"b")), batch(0, record(b"c"))],
        [batch(2**31 + 10, record(b"d"))],
    )
    before = read_tree(directory)
    with pytest.raises(OffsetOverflowError, match=str(2**31)):
        cleaning().clean(directory)
    assert read_tree(directory) == before


# --- the same elsewhere


@pytest.mark.item("FLT-03")
def test_a_wrong_checksum_passes_where_the_check_is_switched_off(tmp_path):
    flipped = encode_batch(SPEC).replace(b"x" * 50, b"x" * 49 + b"y")
    directory = damaged_log(tmp_path / "t-0", flipped)
    refused(directory, CorruptRecordError)
    cleaning(overrides=DEFAULT_CONFIG, cleaner=CleanerConfig(verify_crc=False)).clean(directory)


@pytest.mark.parametrize("how", [BadRecord.ENDLESS_LENGTH, BadRecord.LENGTH_PAST_THE_END])
def test_a_spread_round_refuses_the_same(tmp_path, how):
    directory = damaged_log(tmp_path / "t-0", bad_record(how, SPEC))
    before = read_tree(directory)
    with pytest.raises(InvalidRecordError) as caught:
        clean_spread(directory, cleaning(overrides=DEFAULT_CONFIG))
    assert (caught.value.file, caught.value.position) == (log_file(10), POSITION)
    assert read_tree(directory) == before


def test_the_headers_of_a_damaged_segment_are_read_without_its_records(tmp_path):
    """Records are nobody's business who asks for transactions only."""
    directory = damaged_log(tmp_path / "t-0", bad_record(BadRecord.ENDLESS_LENGTH, SPEC))
    assert scan_committed_view(LocalStore(directory)).last_stable_offset == 21


def test_a_file_that_shrinks_while_it_is_read_is_an_error_and_no_crash(tmp_path, monkeypatch):
    directory = damaged_log(tmp_path / "t-0", encode_batch(SPEC))
    path = directory / log_file(10)
    original = LocalStore.open_file

    def shrinking(self: LocalStore, name: str) -> Any:
        opened = original(self, name)
        if name == log_file(10):
            path.write_bytes(path.read_bytes()[:50])
        return opened

    round_ = cleaning(overrides=DEFAULT_CONFIG)
    # Small segments are read together, at one call.
    monkeypatch.setattr(reader, "read_starts", lambda *_: None)
    monkeypatch.setattr(LocalStore, "open_file", shrinking)
    with pytest.raises((CorruptRecordError, ChangedWhileReadError)):
        round_.clean(directory)
    assert not list(directory.glob("pylog-scratch-*"))
