"""Old message formats in a round, and codecs that a round changes."""

import os
from pathlib import Path
from typing import Any

import pytest

from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import CleanerConfig
from storage_core.errors import ChangedWhileReadError, InvalidRecordError
from storage_core.filenames import log_file
from storage_core.formats.batch_v2 import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    Codec,
    TimestampType,
)
from storage_core.maintenance.compaction import partition as passes
from storage_core.maintenance.verification.findings import DirectoryContext, VerifyOptions
from storage_core.records.codecs import CODEC_OF
from storage_core.store.local import LocalStore
from tests.kit.decode import DecodedBatch
from tests.kit.golden_cleaning import clean_spread, cleaning_of
from tests.kit.golden_data import Golden, goldens
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry
from tests.kit.one_partition import verify_partition
from tests.kit.partition_views import batches_in
from tests.storage_core.maintenance.compaction.hand_made import (
    NOW,
    RETENTION_MS,
    batch,
    clean,
    cleaning,
    record,
    records_in,
    write_log,
)

every_magic = pytest.mark.parametrize("magic", [0, 1])
OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
END = batch(90, record(b"end"))


def message(offset: int, key: bytes | None, value: bytes | None = b"v", *, magic: int = 1):
    return LegacyMessage(offset=offset, key=key, value=value, timestamp=NOW - offset, magic=magic)


@pytest.mark.item("CMP-31")
@every_magic
def test_every_message_becomes_a_v2_batch_of_its_own_even_if_all_stay(tmp_path, magic):
    old = [message(offset, b"k%d" % offset, magic=magic) for offset in (0, 1, 5)]
    directory = write_log(tmp_path / "t-0", old, [END])
    result = clean(directory)
    assert result.messages_written == 4
    found = batches_in(directory)[:3]
    assert [(one.base_offset, one.last_offset) for one in found] == [(0, 0), (1, 1), (5, 5)]
    for one in found:
        created = NOW - one.base_offset if magic else -1
        assert one.header | {"batch_length": 0, "crc": 0} == {
            "base_offset": one.base_offset,
            "batch_length": 0,
            "partition_leader_epoch": -1,
            "magic": 2,
            "crc": 0,
            "attributes": 0,
            "last_offset_delta": 0,
            "base_timestamp": created,
            "max_timestamp": created,
            "producer_id": -1,
            "producer_epoch": -1,
            "base_sequence": -1,
            "record_count": 1,
        }
        assert [record.timestamp for record in one.records] == [created]


@pytest.mark.item("CMP-31")
@every_magic
@pytest.mark.parametrize("codec", OLD_CODECS, ids=lambda codec: codec.name)
def test_a_set_begins_with_the_first_kept_message_and_ends_with_the_last(tmp_path, codec, magic):
    keys = [b"a", b"b", b"c", b"d", b"e"]
    inside = tuple(message(10 * i, key, magic=magic) for i, key in enumerate(keys))
    later = [batch(60, record(b"a"), record(b"e"))]
    directory = write_log(
        tmp_path / "t-0", [LegacySet(messages=inside, codec=codec, magic=magic)], later
    )
    clean(directory)
    found = batches_in(directory)[0]
    assert (found.base_offset, found.last_offset) == (10, 30)
    assert found.header["attributes"] == codec
    assert [(one.offset, one.key) for one in found.records] == [(10, b"b"), (20, b"c"), (30, b"d")]


@pytest.mark.item("CMP-31", "FMT-21")
def test_the_brokers_time_stays_the_time_of_the_batch(tmp_path):
    inside = (message(0, b"a"), message(1, b"b"), message(2, b"a"))
    append_time = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "timestamp": NOW + 7}
    directory = write_log(tmp_path / "t-0", [LegacySet(messages=inside, **append_time)], [END])
    clean(directory)
    found = batches_in(directory)[0]
    assert found.header["attributes"] == Codec.GZIP | 8
    assert found.header["max_timestamp"] == found.header["base_timestamp"] == NOW + 7
    assert [one.timestamp for one in found.records] == [NOW + 7] * 2


@pytest.mark.item("CMP-22", "CMP-31")
@every_magic
def test_a_tombstone_gets_a_horizon_on_its_first_visit_and_goes_by_it(tmp_path, magic):
    old = [message(0, b"a", None, magic=magic), message(1, b"b", magic=magic)]
    directory = write_log(tmp_path / "t-0", old, [END])
    clean(directory)
    first = batches_in(directory)[0]
    assert first.header["attributes"] == 0x40
    assert first.header["base_timestamp"] == NOW + RETENTION_MS
    assert first.records[0].timestamp == (NOW if magic else -1)
    clean(directory, now_ms=NOW + RETENTION_MS, cleaner_offset=0)
    assert [offset for offset, _, _ in records_in(directory)] == [1, 90]


@pytest.mark.item("CMP-21", "SEG-10")
@every_magic
@pytest.mark.parametrize(
    ("age_ms", "stays"),
    [
        pytest.param(RETENTION_MS + 1, False, id="older than the horizon"),
        pytest.param(RETENTION_MS, False, id="on the horizon"),
        pytest.param(RETENTION_MS - 1, True, id="younger"),
    ],
)
def test_an_old_tombstone_goes_by_the_age_of_its_file(tmp_path, magic, age_ms, stays):
    directory = write_log(
        tmp_path / "t-0",
        [message(0, b"a", None, magic=magic), message(1, b"b", magic=magic)],
        [message(2, b"c", magic=magic)],
        [END],
    )
    # The last segment of the clean part sets the measure.
    for base, modified_ms in ((2, NOW - 5000), (0, NOW - 5000 - age_ms)):
        path = directory / log_file(base)
        os.utime(path, ns=(modified_ms * 10**6, modified_ms * 10**6))
    clean(directory, cleaner_offset=90, overrides={"internal.segment.bytes": 50})
    offsets = [offset for offset, _, _ in records_in(directory)]
    assert offsets == ([0, 1, 2, 90] if stays else [1, 2, 90])
    # Young or old, what is left takes over the time of its source.
    assert (directory / log_file(0)).stat().st_mtime_ns // 10**6 == NOW - 5000 - age_ms


@pytest.mark.item("CMP-21")
def test_without_a_clean_part_every_old_tombstone_stays(tmp_path):
    directory = write_log(tmp_path / "t-0", [message(0, b"a", None)], [END])
    os.utime(directory / log_file(0), ns=(10**6, 10**6))
    clean(directory, overrides={"delete.retention.ms": 0})
    assert [offset for offset, _, _ in records_in(directory)] == [0, 90]


@pytest.mark.item("CMP-19")
def test_old_messages_without_a_key_go_and_are_counted(tmp_path):
    inside = (message(0, None), message(1, b"a"), message(2, None))
    directory = write_log(tmp_path / "t-0", [LegacySet(messages=inside), message(3, None)], [END])
    assert clean(directory).invalid_messages_read == 3
    assert [offset for offset, _, _ in records_in(directory)] == [1, 90]


@pytest.mark.item("CMP-15", "CMP-31")
@pytest.mark.parametrize(("keys", "next_offset", "left"), [(2, 2, 6), (3, 3, 6), (5, 91, 5)])
def test_a_full_map_ends_the_round_inside_of_a_set(tmp_path, keys, next_offset, left):
    inside = tuple(message(i, key) for i, key in enumerate([b"a", b"b", b"c", b"a", b"d"]))
    directory = write_log(tmp_path / "t-0", [LegacySet(messages=inside)], [END])
    full = cleaning().with_cleaner(dedupe_buffer_bytes=keys * 24, load_factor=1.0)
    assert full.clean(directory).next_offset == next_offset
    assert len(records_in(directory)) == left
    assert {one.header["magic"] for one in batches_in(directory)} == {2}


@pytest.mark.parametrize("window_bytes", [1, 1 << 20])
def test_a_set_that_changes_between_the_passes_is_told(tmp_path, monkeypatch, window_bytes):
    inside = tuple(message(i, b"k%d" % i) for i in range(3))
    directory = write_log(tmp_path / "t-0", [LegacySet(messages=inside)], [END])
    noted = passes.index_round

    def noted_otherwise(*args, **options):
        index = noted(*args, **options)
        index.segments.legacy_counts[:] -= 1
        return index

    monkeypatch.setattr(passes, "index_round", noted_otherwise)
    with pytest.raises(ChangedWhileReadError):
        cleaning().with_cleaner(window_bytes=window_bytes).clean(directory)


def test_a_set_that_cannot_be_opened_stops_the_round(tmp_path: Path):
    bad = LegacySet(messages=(message(0, b"a"),), payload=b"no gzip")
    directory = write_log(tmp_path / "t-0", [bad], [END])
    with pytest.raises(InvalidRecordError, match="gzip") as caught:
        clean(directory)
    assert (caught.value.file, caught.value.position) == (log_file(0), 0)
    assert (directory / log_file(0)).read_bytes() == encode_entry(bad)


ROUNDS = [
    golden for golden in goldens("clean-*") if not golden.case["expected"].get("nothing_to_clean")
]
TEXT = b"the same words again and again, " * 40


def cleaner(text: str, **more: str) -> CleanerConfig:
    return CleanerConfig.from_settings({"recompress": text} | more)


def codec_of(each: DecodedBatch) -> Codec:
    return Codec(int(each.header["attributes"]) & CODEC_MASK)


def is_data(each: DecodedBatch) -> bool:
    return bool(each.records) and not each.header["attributes"] & CONTROL_BIT


def identity(each: DecodedBatch) -> list[Any]:
    """All that a batch says but for how it is packed, and the base of its records' times."""
    packed = {"batch_length", "crc", "base_timestamp", "attributes"}
    header = {name: value for name, value in each.header.items() if name not in packed}
    others = int(each.header["attributes"]) & ~CODEC_MASK
    horizon = each.header["base_timestamp"] if others & DELETE_HORIZON_BIT else None
    return [header, others, horizon, each.records]


def findings_of(directory: Path, golden: Golden) -> list[str]:
    """Codes of what a deep verification finds, positions aside."""
    options = VerifyOptions(
        now_ms=golden.case["clock_ms"],
        is_deep=True,
        is_live=False,
        window_bytes=1 << 20,
        max_record_bytes=1 << 20,
        max_batch_bytes=1 << 20,
    )
    context = DirectoryContext(role=Role.BROKER, is_clean=True)
    said = PartitionCheckpoints()
    _, findings = verify_partition(LocalStore(directory), context, options, said)
    return sorted(finding.code for finding in findings)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("golden", ROUNDS, ids=lambda golden: golden.name)
def test_a_golden_round_leaves_the_records_that_it_leaves_as_kafka(golden: Golden, tmp_path: Path):
    plain, dense = golden.unpack(tmp_path / "plain"), golden.unpack(tmp_path / "dense")
    cleaning_of(golden).clean(plain)
    wanted = cleaner("zstd:1", **{"recompress.all": "true"})
    changes = {"recompression": wanted.recompression, "recompresses_all": True}
    result = cleaning_of(golden).with_cleaner(**changes).clean(dense)
    assert [identity(each) for each in batches_in(dense)] == [
        identity(each) for each in batches_in(plain)
    ]
    until = result.next_offset or 0
    for each in batches_in(dense):
        if is_data(each) and each.base_offset < until:
            assert codec_of(each) is Codec.ZSTD
    assert findings_of(dense, golden) == findings_of(plain, golden)


@pytest.mark.parametrize("source", Codec)
@pytest.mark.parametrize("target", CODEC_OF)
def test_every_codec_becomes_every_other(source: Codec, target: str, tmp_path: Path):
    directory = write_log(
        tmp_path / "p-0",
        [batch(0, record(b"a", TEXT), record(b"b", TEXT), codec=source)],
        [batch(2, record(b"b", TEXT), record(b"c", TEXT), codec=source)],
    )
    clean(directory, cleaner=cleaner(target))
    rebuilt, whole = batches_in(directory)
    assert codec_of(rebuilt) is CODEC_OF[target]  # type: ignore[index]  # a member is its text
    assert codec_of(whole) is source
    assert records_in(directory) == [(0, b"a", TEXT), (2, b"b", TEXT), (3, b"c", TEXT)]


def test_a_batch_that_loses_nothing_is_rebuilt_where_all_are(tmp_path: Path):
    directory = write_log(
        tmp_path / "p-0",
        [batch(0, record(b"a", TEXT), codec=Codec.GZIP)],
        [batch(1, record(b"b", TEXT))],
    )
    clean(directory, cleaner=cleaner("lz4", **{"recompress.all": "true"}))
    assert [codec_of(each) for each in batches_in(directory)] == [Codec.LZ4, Codec.LZ4]


def test_a_level_makes_it_smaller(tmp_path: Path):
    sizes = []
    for level in ("gzip:1", "gzip:9"):
        directory = write_log(
            tmp_path / level / "p-0",
            [batch(0, *(record(b"%d" % n, TEXT[n:] + b"%d" % n) for n in range(200)))],
            [batch(200, record(b"0", b""))],
        )
        clean(directory, cleaner=cleaner(level))
        assert codec_of(batches_in(directory)[0]) is Codec.GZIP
        sizes.append(batches_in(directory)[0].header["batch_length"])
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("golden", ROUNDS[::6], ids=lambda golden: golden.name)
def test_a_round_spread_over_its_segments_writes_the_same_bytes(golden: Golden, tmp_path: Path):
    if "map.bytes" in golden.case["params"]:
        pytest.skip("a round that ends where the map is full is not spread")
    round_ = cleaning_of(golden).with_cleaner(
        recompression=cleaner("fast").recompression, recompresses_all=True
    )
    alone, spread = golden.unpack(tmp_path / "alone"), golden.unpack(tmp_path / "spread")
    round_.clean(alone)
    clean_spread(spread, round_)
    assert {path.name: path.read_bytes() for path in alone.glob("*.log")} == {
        path.name: path.read_bytes() for path in spread.glob("*.log")
    }
