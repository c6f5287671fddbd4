"""Which records survive: the rules spelled out over records, beside the kernels over arrays."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.batch_v2 import Codec
from storage_core.kernels import batch_filter
from storage_core.kernels.batch_filter import (
    BAD_ORDER,
    BY_BITS,
    DISCARD_RECORDS,
    DROP,
    FILTER,
    KEEP_RECORDS,
    SETTLED,
    TO_FILTER,
)
from storage_core.kernels.batch_notes import (
    ACTION,
    FIRST_BIT,
    FIRST_RECORD,
    IS_LOOKED_UP,
    KEEPS_TOMBSTONES,
    LOOK_UP_BIT,
    MARKS,
    STEP,
    SURVIVORS,
    TOMBSTONES,
)
from storage_core.kernels.batch_scan import COLUMN_COUNT, LAST_OFFSET, RECORD_COUNT
from storage_core.kernels.record_scan import (
    BAD_RECORD,
    DONE,
    HAS_KEYLESS,
    HAS_STRAY,
    HAS_TOMBSTONE,
    INDEXED,
    LEFTOVER,
    OPENED,
    TOO_LARGE,
)
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch, segment_bytes
from tests.kit.damage import BadRecord, bad_record, with_trailing_bytes
from tests.kit.strategies import segments
from tests.storage_core.kernels.arguments import Opened, noted, opened
from tests.storage_core.kernels.twins import in_both_ways

NO_LIMIT = 2**31 - 1
UNTOUCHED = 99


def words_of(bits: Sequence[bool]) -> np.ndarray:
    packed = np.packbits(np.array(bits, bool), bitorder="little").tobytes()
    return np.frombuffer(packed + bytes(16 - len(packed) % 8), np.uint64)


@dataclasses.dataclass(frozen=True)
class Row:
    """What preview_batches is told of a batch."""

    action: int = FILTER
    flags: int = OPENED | INDEXED
    last_offset: int = 10
    bits: tuple[bool, ...] = (True, False, True)


def previewed(preview_batches, rows: list[Row], *, latest_offset: int) -> list[tuple[int, int]]:
    """Return (kept, step) of each row."""
    count = np.array([len(row.bits) for row in rows])
    table = np.zeros((COLUMN_COUNT, len(rows)), np.int64)
    table[LAST_OFFSET] = [row.last_offset for row in rows]
    notes = noted(
        len(rows),
        action=[row.action for row in rows],
        flags=[row.flags for row in rows],
        pass_one_count=count,
        first_bit=np.cumsum(count) - count,
    )
    words = words_of([bit for row in rows for bit in row.bits])
    preview_batches(table, notes, latest_offset, words)
    return list(zip(notes[SURVIVORS].tolist(), notes[STEP].tolist(), strict=True))


NONE, SOME, ALL = (False,) * 3, (True, False, True), (True,) * 3


@in_both_ways(preview_batches=batch_filter.preview_batches)
@pytest.mark.parametrize(
    ("row", "kept", "step"),
    [
        pytest.param(Row(bits=NONE), 0, SETTLED, id="no record survives"),
        pytest.param(Row(bits=SOME), 2, BY_BITS, id="some records survive"),
        pytest.param(Row(bits=ALL), 3, SETTLED, id="all records survive"),
        pytest.param(Row(bits=()), 0, SETTLED, id="there are no records"),
        pytest.param(
            Row(flags=OPENED | INDEXED | HAS_TOMBSTONE, bits=NONE), 0, SETTLED, id="dead tombstones"
        ),
        pytest.param(
            Row(flags=OPENED | INDEXED | HAS_TOMBSTONE), 0, TO_FILTER, id="living tombstones"
        ),
        pytest.param(
            Row(flags=OPENED | INDEXED | HAS_KEYLESS, bits=NONE), 0, TO_FILTER, id="without keys"
        ),
        pytest.param(Row(flags=OPENED), 0, TO_FILTER, id="begins below the dirty part"),
        pytest.param(Row(flags=0), 0, TO_FILTER, id="not seen by pass one"),
        pytest.param(Row(last_offset=11), 0, SETTLED, id="ends at the latest offset"),
        pytest.param(Row(last_offset=12), 0, TO_FILTER, id="ends behind the latest offset"),
        pytest.param(Row(action=DROP), 0, SETTLED, id="dropped"),
        pytest.param(Row(action=DISCARD_RECORDS), 0, SETTLED, id="emptied"),
        pytest.param(Row(action=KEEP_RECORDS), 0, TO_FILTER, id="kept whatever the bits say"),
    ],
)
def test_headers_flags_and_bits_settle_what_they_can(preview_batches, row, kept, step):
    row = dataclasses.replace(row, bits=NONE) if row.last_offset == 11 else row
    before = Row(bits=(True,) * 60)  # so that the bits of the row lie across two words
    assert previewed(preview_batches, [before, row], latest_offset=11)[1] == (kept, step)


@in_both_ways(settle_look_ups=batch_filter.settle_look_ups)
@pytest.mark.parametrize(
    ("row", "survivors", "step"),
    [
        pytest.param(Row(bits=NONE), 0, BY_BITS, id="no record survives"),
        pytest.param(Row(bits=SOME), 2, BY_BITS, id="some records survive"),
        pytest.param(Row(bits=ALL), 3, BY_BITS, id="all records survive"),
        pytest.param(Row(flags=INDEXED | HAS_TOMBSTONE), 7, TO_FILTER, id="living tombstones"),
        pytest.param(Row(flags=INDEXED | HAS_KEYLESS), 7, TO_FILTER, id="without keys"),
        pytest.param(Row(flags=INDEXED | HAS_STRAY), 7, TO_FILTER, id="a stray record"),
        pytest.param(Row(last_offset=12), 7, TO_FILTER, id="ends behind the latest offset"),
        pytest.param(Row(action=KEEP_RECORDS), 7, TO_FILTER, id="not looked up"),
    ],
)
def test_what_was_looked_up_is_settled_by_its_own_bits(settle_look_ups, row, survivors, step):
    table = np.zeros((COLUMN_COUNT, 2), np.int64)
    table[LAST_OFFSET] = [99, row.last_offset]
    table[RECORD_COUNT] = [2, len(row.bits)]
    marks = [0, IS_LOOKED_UP if row.action == FILTER else 0]
    notes = noted(2, marks=marks, look_up_bit=[0, 2], survivors=7, step=TO_FILTER)
    flags = np.array([INDEXED, row.flags], np.uint8)
    settle_look_ups(table, notes, flags, 11, words_of([True, True, *row.bits]))
    assert (notes[SURVIVORS, 0], notes[STEP, 0]) == (7, TO_FILTER)
    assert (notes[SURVIVORS, 1], notes[STEP, 1]) == (survivors, step)


@dataclasses.dataclass(frozen=True)
class Filtered:
    """What filter_records did."""

    keep: list[int]
    kept: list[int]
    kept_tombstones: list[int]
    invalid: int
    status: int
    row: int
    position: int


def run(
    filter_records,
    window: Opened,
    *,
    action: list[int],
    step: list[int],
    keeps_tombstones: list[bool],
    bits: list[bool],
    is_looked_up: list[bool] | None = None,
    latest_offset: int = 2**62,
    rows: tuple[int, int] | None = None,
    limit: int = NO_LIMIT,
) -> Filtered:
    first_row, end_row = rows or (0, len(window))
    count = np.maximum(window.record_count, 0)
    looked_up = np.array(is_looked_up or [False] * len(window), bool)
    # Where the bits of a row are not asked they say the opposite.
    told = np.array(bits, bool)
    told[: int(count.sum())] ^= np.repeat(looked_up, count)
    first_bit = np.cumsum(count) - count
    keep = np.full(int(count.sum()), UNTOUCHED, np.uint8)
    notes = window.notes
    notes[[FIRST_BIT, LOOK_UP_BIT, FIRST_RECORD]] = first_bit, first_bit + 1, first_bit
    notes[[ACTION, STEP]] = action, step
    notes[MARKS] = IS_LOOKED_UP * looked_up | KEEPS_TOMBSTONES * np.array(keeps_tombstones, bool)
    invalid, status, row, position = filter_records(
        window.data,
        window.arena,
        window.table[:, first_row:end_row],
        notes[:, first_row:end_row],
        words_of(told),
        words_of([True, *~told]),
        latest_offset,
        limit,
        keep,
    )
    return Filtered(
        keep.tolist(),
        notes[SURVIVORS].tolist(),
        notes[TOMBSTONES].tolist(),
        invalid,
        status,
        row,
        position,
    )


def survives(
    spec: BatchSpec, number: int, action: int, keeps_tombstones: bool, latest: int, bit: bool
) -> bool:
    """The rules, one after the other."""
    record = spec.records[number]
    if action == KEEP_RECORDS:
        return True
    if spec.base_offset + spec.offset_deltas[number] > latest:
        return True
    if record.key is None:
        return False
    if not bit:
        return False
    return record.value is not None or keeps_tombstones


def expected_of(
    specs: list[BatchSpec],
    action: list[int],
    step: list[int],
    keeps_tombstones: list[bool],
    bits: list[bool],
    latest: int,
    rows: tuple[int, int],
) -> Filtered:
    keep, kept, tombstones, invalid = [], [], [], 0
    for row, spec in enumerate(specs):
        own_bits = bits[len(keep) : len(keep) + len(spec.records)]
        is_looked_at = rows[0] <= row < rows[1]
        stays = [
            survives(spec, i, action[row], keeps_tombstones[row], latest, own_bits[i])
            for i in range(len(spec.records))
        ]
        if is_looked_at and step[row] == TO_FILTER:
            keep += [int(stay) for stay in stays]
            kept.append(sum(stays))
            values = [record.value for record in spec.records]
            tombstones.append(
                sum(stay and value is None for stay, value in zip(stays, values, strict=True))
            )
            invalid += sum(
                record.key is None and not stay
                for record, stay in zip(spec.records, stays, strict=True)
            )
            continue
        if is_looked_at and step[row] == BY_BITS:
            keep += [int(bit) for bit in own_bits]
        else:
            keep += [UNTOUCHED] * len(spec.records)
        kept.append(UNTOUCHED)
        tombstones.append(0 if is_looked_at else UNTOUCHED)
    return Filtered(keep, kept, tombstones, invalid, DONE, 0, 0)


@pytest.mark.thorough
@in_both_ways(filter_records=batch_filter.filter_records)
@given(specs=segments(max_batches=4), data=st.data())
def test_records_survive_by_the_rules(filter_records, specs, data):
    def one_a_batch(values: st.SearchStrategy) -> list:
        return data.draw(st.lists(values, min_size=len(specs), max_size=len(specs)))

    action = one_a_batch(st.sampled_from([FILTER, FILTER, KEEP_RECORDS]))
    step = one_a_batch(st.sampled_from([TO_FILTER, TO_FILTER, BY_BITS, SETTLED]))
    keeps_tombstones = one_a_batch(st.booleans())
    total = sum(len(spec.records) for spec in specs)
    bits = data.draw(st.lists(st.booleans(), min_size=total, max_size=total))
    is_looked_up = one_a_batch(st.booleans())
    latest = data.draw(st.sampled_from([-1, 2**62, *(spec.last_offset for spec in specs)]))
    rows = tuple(sorted(data.draw(st.integers(0, len(specs))) for _ in range(2)))
    found = run(
        filter_records,
        opened(segment_bytes(specs)),
        action=action,
        step=step,
        keeps_tombstones=keeps_tombstones,
        bits=bits,
        is_looked_up=is_looked_up,
        latest_offset=latest,
        rows=rows,
    )
    assert found == expected_of(specs, action, step, keeps_tombstones, bits, latest, rows)


def filtered(filter_records, batch: bytes, *, limit: int = NO_LIMIT) -> Filtered:
    """Filter a good batch and this one, all records surviving."""
    good = encode_batch(BatchSpec(records=(RecordSpec(key=b"k"),) * 2))
    return run(
        filter_records,
        opened(good + batch),
        action=[FILTER] * 2,
        step=[TO_FILTER] * 2,
        keeps_tombstones=[True] * 2,
        bits=[True] * 10,
        limit=limit,
    )


@pytest.mark.item("FMT-11")
@in_both_ways(filter_records=batch_filter.filter_records)
@pytest.mark.parametrize("bad", BadRecord, ids=lambda bad: bad.value)
def test_a_malformed_record_stops_the_filter(filter_records, bad):
    found = filtered(filter_records, bad_record(bad))
    assert (found.status, found.row) == (BAD_RECORD, 1)
    assert found.keep[:2] == [1, 1]


@in_both_ways(filter_records=batch_filter.filter_records)
def test_bytes_after_the_last_record_stop_the_filter(filter_records):
    spec = BatchSpec(records=(RecordSpec(key=b"k"),), base_offset=2)
    assert filtered(filter_records, with_trailing_bytes(spec)).status == LEFTOVER


@in_both_ways(filter_records=batch_filter.filter_records)
def test_an_offset_below_the_batchs_own_stops_the_filter(filter_records):
    spec = BatchSpec(records=(RecordSpec(key=b"k", offset_delta=-1),), base_offset=9)
    assert filtered(filter_records, encode_batch(spec)).status == BAD_ORDER


@pytest.mark.item("FMT-29")
@in_both_ways(filter_records=batch_filter.filter_records)
@pytest.mark.parametrize(
    ("codec", "status"), [(Codec.NONE, DONE), (Codec.ZSTD, TOO_LARGE)], ids=["none", "zstd"]
)
def test_only_decompressed_records_have_a_limit(filter_records, codec, status):
    record = RecordSpec(key=b"k", value=bytes(2**20))
    batch = encode_batch(BatchSpec(records=(record,), codec=codec, base_offset=2))
    assert filtered(filter_records, batch, limit=64 * 1024).status == status
