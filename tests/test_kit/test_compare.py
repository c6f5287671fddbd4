"""The referee of all byte-for-byte tests has to see differences, and only those that count."""

import gzip
import struct

import pytest

from storage_core.formats.batch_v2 import CRC_AT, HEADER_BYTES, Codec
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch, encode_records
from tests.kit.compare import Exactness, compare_partitions
from tests.kit.directories import ProducerSpec, encode_producer_snapshot, index_files

LOG = "00000000000000000000.log"
INDEX = "00000000000000000000.index"
TIME_INDEX = "00000000000000000000.timeindex"
ACTIVE_LOG = "00000000000000000100.log"
ACTIVE_INDEX = "00000000000000000100.index"
SNAPSHOT = "00000000000000000100.snapshot"
BOTH = list(Exactness)


def batch(base_offset: int, *values: bytes, codec: Codec = Codec.NONE) -> BatchSpec:
    records = tuple(RecordSpec(key=b"k", value=value) for value in values)
    return BatchSpec(records=records, base_offset=base_offset, codec=codec)


def partition(*batches: bytes) -> dict[str, bytes]:
    return {LOG: b"".join(batches), ACTIVE_LOG: b"", ACTIVE_INDEX: b""}


FIRST, SECOND = encode_batch(batch(0, b"a", b"b")), encode_batch(batch(2, b"c"))


def differences(expected: dict[str, bytes], actual: dict[str, bytes], exactness: Exactness) -> str:
    return "; ".join(map(str, compare_partitions(expected, actual, exactness)))


@pytest.mark.parametrize("exactness", BOTH)
def test_equal_directories_have_no_differences(exactness):
    assert not differences(partition(FIRST, SECOND), partition(FIRST, SECOND), exactness)


@pytest.mark.parametrize("exactness", BOTH)
def test_files_on_one_side_are_named(exactness):
    told = differences(
        {**partition(FIRST), INDEX: b"12345678"}, {**partition(FIRST), SNAPSHOT: b""}, exactness
    )
    assert f"{INDEX}: is missing, expected 8 bytes" in told
    assert f"{SNAPSHOT}: should not be there" in told


@pytest.mark.parametrize("exactness", BOTH)
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        pytest.param(encode_batch(batch(2, b"x")), "c", id="a value"),
        pytest.param(
            encode_batch(BatchSpec(records=batch(2, b"c").records, base_offset=2, leader_epoch=9)),
            "epoch",
            id="a field outside the CRC",
        ),
        pytest.param(SECOND[:CRC_AT] + b"\0\0\0\0" + SECOND[CRC_AT + 4 :], "", id="the CRC"),
        pytest.param(b"", "", id="a batch missing"),
        pytest.param(SECOND + SECOND, "", id="a batch too many"),
        pytest.param(SECOND[:-1], "", id="a torn batch"),
    ],
)
def test_a_changed_log_is_told_of(exactness, changed, named):
    told = differences(partition(FIRST, SECOND), partition(FIRST, changed), exactness)
    assert told.startswith(LOG)
    assert named in told


def test_the_batch_and_the_field_of_the_first_other_byte_are_named():
    other = encode_batch(BatchSpec(records=batch(2, b"c").records, base_offset=2, leader_epoch=9))
    told = differences(partition(FIRST, SECOND), partition(FIRST, other), Exactness.BYTES)
    assert "partition_leader_epoch of batch 1 (base offset 2)" in told


def stored_otherwise(spec: BatchSpec) -> bytes:
    """The same gzip batch by another compressor: stored instead of deflated."""
    return encode_batch(spec, payload=gzip.compress(encode_records(spec), compresslevel=0))


def test_another_build_of_a_compressor_counts_only_where_bytes_do():
    spec = batch(2, b"c" * 50, codec=Codec.GZIP)
    expected, actual = (
        partition(FIRST, encoded) for encoded in (encode_batch(spec), stored_otherwise(spec))
    )
    assert differences(expected, actual, Exactness.BYTES)
    assert not differences(expected, actual, Exactness.RECORDS)


@pytest.mark.parametrize(
    ("shift", "fits"), [pytest.param(0, True, id="fits"), pytest.param(1, False, id="does not")]
)
def test_an_index_has_to_fit_its_own_recompressed_log(shift, fits):
    specs = [batch(0, b"a" * 40, codec=Codec.GZIP), batch(1, b"b", codec=Codec.GZIP)]
    sides = []
    for encode in (encode_batch, stored_otherwise):
        encoded = [encode(spec) for spec in specs]
        sizes = [len(data) for data in encoded]
        if encode is stored_otherwise:
            sizes[0] += shift
        index, times = index_files(
            0,
            [(s.last_offset, s.largest_timestamp, n) for s, n in zip(specs, sizes, strict=True)],
            index_interval_bytes=0,
        )
        assert index
        sides.append({**partition(*encoded), INDEX: index, TIME_INDEX: times})
    told = differences(*sides, Exactness.RECORDS)
    assert told == "" if fits else "does not fit the log" in told


@pytest.mark.parametrize("exactness", BOTH)
def test_padding_counts_except_in_the_active_segments_indexes(exactness):
    entry = struct.pack(">ii", 5, 100)
    base = {**partition(FIRST), INDEX: entry, ACTIVE_INDEX: entry}
    assert not differences(base, {**base, ACTIVE_INDEX: entry + bytes(16)}, exactness)
    assert differences(base, {**base, ACTIVE_INDEX: entry + bytes(3)}, exactness)
    assert differences(base, {**base, ACTIVE_INDEX: entry + entry}, exactness)
    assert differences(base, {**base, INDEX: entry + bytes(16)}, exactness)


@pytest.mark.parametrize("exactness", BOTH)
def test_snapshots_are_sets_of_entries_with_a_right_crc(exactness):
    one, two = ProducerSpec(producer_id=1, last_sequence=4), ProducerSpec(producer_id=2)
    snapshot, turned, less = (
        encode_producer_snapshot(producers) for producers in ([one, two], [two, one], [one])
    )
    damaged = turned[:2] + bytes(4) + turned[6:]
    base = {**partition(FIRST), SNAPSHOT: snapshot}
    assert not differences(base, {**base, SNAPSHOT: turned}, exactness)
    assert "entries expected" in differences(base, {**base, SNAPSHOT: less}, exactness)
    assert "CRC" in differences(base, {**base, SNAPSHOT: damaged}, exactness)
    assert "bytes" in differences(base, {**base, SNAPSHOT: snapshot[:-1]}, exactness)


def test_a_log_that_cannot_be_decoded_is_a_difference_not_an_error():
    broken = encode_batch(batch(2, b"c"), payload=b"\xff" * 20)
    assert len(broken) == HEADER_BYTES + 20
    told = differences(partition(FIRST, SECOND), partition(FIRST, broken), Exactness.RECORDS)
    assert "batch at position" in told
