"""Keys hashed as their records are parsed: which ones, in which order, and what is noted."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.batch_v2 import HEADER_BYTES, Codec
from storage_core.kernels import batch_scan, key_scan, record_scan
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch, segment_bytes
from tests.kit.damage import (
    BadRecord,
    bad_record,
    with_lying_count,
    with_lying_length,
    with_trailing_bytes,
    with_wrong_crc,
)
from tests.kit.strategies import segments
from tests.reference.hashes import md5_128, siphash_1_3_128
from tests.storage_core.kernels.arguments import Opened, as_array, opened
from tests.storage_core.kernels.twins import in_both_ways

KEY = b"sixteen bytes it"
NO_LIMIT = 2**31 - 1
LOWEST = -(2**63)


@dataclasses.dataclass(frozen=True)
class Found:
    """What hash_keys did; keys are (row, hash, rank)."""

    keys: list[tuple[int, tuple[int, int], int]]
    flags: list[int]
    status: int
    row: int
    position: int


def run(
    hash_keys,
    window: Opened,
    wanted: list[bool],
    *,
    first_offset: int = LOWEST,
    limit: int = NO_LIMIT,
    kind: int = key_scan.SIPHASH,
    crc: Sequence[int] | None = None,
) -> Found:
    chosen = np.array(wanted, bool)
    room = int(np.maximum(window.record_count[chosen], 0).sum())
    flags = chosen.astype(np.uint8)
    keys = np.empty((key_scan.KEY_COLUMNS, room), np.uint64)
    hasher = np.zeros(key_scan.HASHER_WORDS, np.uint32)
    hasher[key_scan.HASH_KIND], hasher[key_scan.HASH_KEY : key_scan.SCRATCH] = (
        kind,
        np.frombuffer(KEY, "<u4"),
    )
    table = window.table.copy()
    if crc is not None:
        table[batch_scan.CRC] = crc
    count, status, row, position = hash_keys(
        window.data,
        window.arena,
        table,
        window.notes,
        flags,
        crc is not None,
        first_offset,
        limit,
        hasher,
        keys,
    )
    answers = [(batch, (low, high), rank) for low, high, rank, batch in keys.T[:count].tolist()]
    return Found(answers, flags.tolist(), status, row, position)


def expected_of(specs: list[BatchSpec], wanted: list[bool], first_offset: int, kind: int) -> Found:
    keys, flags, rank = [], [0] * len(specs), 0
    for row, spec in enumerate(specs):
        if not wanted[row]:
            continue
        flags[row] = record_scan.OPENED | (
            record_scan.INDEXED if spec.base_offset >= first_offset else 0
        )
        for record, delta in zip(spec.records, spec.offset_deltas, strict=True):
            if record.value is None:
                flags[row] |= record_scan.HAS_TOMBSTONE
            if not 0 <= delta <= spec.last_offset - spec.base_offset:
                flags[row] |= record_scan.HAS_STRAY
            if record.key is None:
                flags[row] |= record_scan.HAS_KEYLESS
            elif spec.base_offset + delta >= first_offset:
                is_md5 = kind == key_scan.MD5
                digest = md5_128(record.key) if is_md5 else siphash_1_3_128(KEY, record.key)
                keys.append((row, digest, rank))
            rank += 1
    return Found(keys, flags, record_scan.DONE, 0, 0)


@pytest.mark.thorough
@in_both_ways(hash_keys=key_scan.hash_keys)
@pytest.mark.parametrize("kind", [key_scan.SIPHASH, key_scan.MD5], ids=["siphash", "md5"])
@given(specs=segments(max_batches=4), data=st.data())
def test_keys_of_the_wanted_batches_are_hashed_in_order(hash_keys, kind, specs, data):
    wanted = data.draw(st.lists(st.booleans(), min_size=len(specs), max_size=len(specs)))
    ends = [spec.base_offset for spec in specs] + [spec.last_offset for spec in specs]
    first_offset = data.draw(st.sampled_from([LOWEST, *ends, *(end + 1 for end in ends)]))
    found = run(
        hash_keys,
        opened(segment_bytes(specs)),
        wanted,
        first_offset=first_offset,
        kind=kind,
    )
    assert found == expected_of(specs, wanted, first_offset, kind)


@in_both_ways(hash_keys=key_scan.hash_keys)
@pytest.mark.parametrize("wanted", [[True, True], [True, False], [False, False]])
def test_checksums_are_looked_at_before_keys_whether_a_batch_is_wanted_or_not(hash_keys, wanted):
    spec = BatchSpec(records=(RecordSpec(key=b"a"), RecordSpec(key=b"b")), base_offset=10)
    after = dataclasses.replace(spec, base_offset=12)
    window = opened(encode_batch(spec) + encode_batch(after))
    crc = window.table[batch_scan.CRC].tolist()
    unchecked = run(hash_keys, window, wanted)
    assert run(hash_keys, window, wanted, crc=crc) == unchecked
    wrong = run(hash_keys, window, wanted, crc=[crc[0], crc[1] ^ 1])
    assert (wrong.status, wrong.row, wrong.position) == (
        record_scan.WRONG_CRC,
        1,
        int(window.start[1]),
    )
    assert [row for row, _, _ in wrong.keys] == [0, 0] * wanted[0]


@in_both_ways(hash_keys=key_scan.hash_keys)
def test_a_batch_that_begins_below_the_first_offset_is_not_indexed(hash_keys):
    spec = BatchSpec(records=(RecordSpec(key=b"a"), RecordSpec(key=b"b")), base_offset=10)
    window = opened(encode_batch(spec))
    at_start = run(hash_keys, window, [True], first_offset=10)
    inside = run(hash_keys, window, [True], first_offset=11)
    behind = run(hash_keys, window, [True], first_offset=12)
    assert [found.flags for found in (at_start, inside, behind)] == [
        [record_scan.OPENED | record_scan.INDEXED],
        [record_scan.OPENED],
        [record_scan.OPENED],
    ]
    assert [[rank for _, _, rank in found.keys] for found in (at_start, inside, behind)] == [
        [0, 1],
        [1],
        [],
    ]


@pytest.mark.item("FMT-11")
@in_both_ways(hash_keys=key_scan.hash_keys)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4], ids=lambda codec: codec.name)
@pytest.mark.parametrize("bad", BadRecord, ids=lambda bad: bad.value)
def test_a_malformed_record_stops_the_scan(hash_keys, bad, codec):
    good = encode_batch(BatchSpec(records=(RecordSpec(key=b"k"),) * 2, codec=codec))
    window = opened(good + bad_record(bad, BatchSpec(codec=codec)))
    found = run(hash_keys, window, [True, True])
    assert (found.status, found.row, found.position) == (record_scan.BAD_RECORD, 1, window.start[1])
    assert [rank for _, _, rank in found.keys] == [0, 1]
    assert run(hash_keys, window, [True, False]).status == record_scan.DONE


@in_both_ways(hash_keys=key_scan.hash_keys)
def test_bytes_after_the_last_record_stop_the_scan(hash_keys):
    window = opened(with_trailing_bytes(BatchSpec(records=(RecordSpec(key=b"k"),))))
    found = run(hash_keys, window, [True])
    assert (found.status, found.row, found.position) == (record_scan.LEFTOVER, 0, window.end[0] - 1)


@pytest.mark.item("FMT-29")
@in_both_ways(hash_keys=key_scan.hash_keys)
@pytest.mark.parametrize(
    ("codec", "status"),
    [(Codec.NONE, record_scan.DONE), (Codec.ZSTD, record_scan.TOO_LARGE)],
    ids=["none", "zstd"],
)
def test_only_decompressed_records_have_a_limit(hash_keys, codec, status):
    record = RecordSpec(key=b"k", value=bytes(2**20))
    window = opened(encode_batch(BatchSpec(records=(record,), codec=codec)))
    assert run(hash_keys, window, [True], limit=64 * 1024).status == status


def run_plain(
    hash_plain_batches, content: bytes, *, room: int = 64, first_offset: int = LOWEST
) -> tuple[list[tuple[int, tuple[int, int], int]], list[int], tuple[int, int, int]]:
    """Return the keys as `run` does, the flags, and (records, end, status)."""
    keys = np.empty((key_scan.KEY_COLUMNS, room), np.uint64)
    hasher = np.zeros(key_scan.HASHER_WORDS, np.uint32)
    hasher[key_scan.HASH_KEY : key_scan.SCRATCH] = np.frombuffer(KEY, "<u4")
    flags = np.empty(len(content) // HEADER_BYTES + 1, np.uint8)
    batches, count, *rest = hash_plain_batches(
        as_array(content), True, first_offset, hasher, flags, keys
    )
    answers = [(batch, (low, high), rank) for low, high, rank, batch in keys.T[:count].tolist()]
    return answers, flags[:batches].tolist(), tuple(rest)


@pytest.mark.thorough
@in_both_ways(hash_plain_batches=key_scan.hash_plain_batches)
@given(specs=segments(max_batches=4), data=st.data())
def test_batches_without_a_table_are_hashed_as_with_one(hash_plain_batches, specs, data):
    first_offset = data.draw(st.sampled_from([LOWEST, *(spec.last_offset for spec in specs)]))
    plain = 0
    while plain < len(specs) and not (
        specs[plain].codec or specs[plain].is_transactional or specs[plain].is_control
    ):
        plain += 1
    here = specs[:plain]
    keys, flags, rest = run_plain(
        hash_plain_batches, segment_bytes(specs), first_offset=first_offset
    )
    expected = expected_of(here, [True] * plain, first_offset, key_scan.SIPHASH)
    assert (keys, flags) == (expected.keys, expected.flags)
    is_whole = plain == len(specs)
    assert rest == (
        sum(len(spec.records) for spec in here),
        len(segment_bytes(here)),
        record_scan.DONE if is_whole else key_scan.NOT_PLAIN,
    )


ODD_BATCHES = {
    "wrong crc": with_wrong_crc(encode_batch(BatchSpec(records=(RecordSpec(),)))),
    "count": with_lying_count(encode_batch(BatchSpec(records=(RecordSpec(),))), 9),
    "negative count": with_lying_count(encode_batch(BatchSpec()), -1),
    "length": with_lying_length(encode_batch(BatchSpec()), 1),
    "too short": with_lying_length(encode_batch(BatchSpec()), 40),
    "trailing": with_trailing_bytes(BatchSpec(records=(RecordSpec(),))),
    "record": bad_record(BadRecord.LENGTH_TOO_LARGE, BatchSpec()),
    "codec": encode_batch(BatchSpec(records=(RecordSpec(),), codec=Codec.LZ4)),
    "transaction": encode_batch(BatchSpec(is_transactional=True)),
    "control": encode_batch(BatchSpec(is_control=True)),
    "magic": encode_batch(BatchSpec(magic=3)),
    "legacy": encode_batch(BatchSpec(magic=1)),
}


@in_both_ways(hash_plain_batches=key_scan.hash_plain_batches)
@pytest.mark.parametrize("odd", ODD_BATCHES.values(), ids=ODD_BATCHES)
def test_a_batch_that_takes_more_than_its_keys_ends_a_scan_without_a_table(hash_plain_batches, odd):
    good = encode_batch(BatchSpec(records=(RecordSpec(key=b"k"),)))
    _, flags, rest = run_plain(hash_plain_batches, good + odd)
    assert (len(flags), rest) == (1, (1, len(good), key_scan.NOT_PLAIN))


@in_both_ways(hash_plain_batches=key_scan.hash_plain_batches)
def test_a_scan_without_a_table_ends_before_what_is_cut_and_where_keys_have_no_room(
    hash_plain_batches,
):
    good = encode_batch(BatchSpec(records=(RecordSpec(key=b"k"),) * 2))
    for cut in (0, 1, 16, 17, len(good) - 1):
        _, _, rest = run_plain(hash_plain_batches, good + good[:cut])
        assert rest == (2, len(good), record_scan.DONE)
    _, _, rest = run_plain(hash_plain_batches, good + good, room=3)
    assert rest == (2, len(good), batch_scan.NO_ROOM)
