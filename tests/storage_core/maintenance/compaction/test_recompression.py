"""What compaction rebuilds gets another codec or level: the same records, in other bytes."""

from pathlib import Path
from typing import Any

import pytest

from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import CleanerConfig
from storage_core.formats.batch_v2 import CODEC_MASK, CONTROL_BIT, DELETE_HORIZON_BIT, Codec
from storage_core.maintenance.verification.findings import DirectoryContext, VerifyOptions
from storage_core.records.codecs import CODEC_OF
from storage_core.store.local import LocalStore
from tests.kit.decode import DecodedBatch
from tests.kit.golden_cleaning import clean_spread, cleaning_of
from tests.kit.golden_data import Golden, goldens
from tests.kit.one_partition import verify_partition
from tests.kit.partition_views import batches_in
from tests.storage_core.maintenance.compaction.hand_made import (
    batch,
    clean,
    record,
    records_in,
    write_log,
)

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
