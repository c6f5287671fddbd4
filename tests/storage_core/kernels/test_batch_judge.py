"""What becomes of batches: the rules spelled out for one batch, beside the kernels over arrays."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from storage_core.formats import batch_v2
from storage_core.kernels import batch_judge, batch_scan
from storage_core.kernels.batch_filter import (
    BY_BITS,
    DISCARD_RECORDS,
    DROP,
    FILTER,
    KEEP_RECORDS,
    SETTLED,
    TO_FILTER,
)
from storage_core.kernels.batch_judge import MORE_LEGACY, MORE_RECORDS, NO_ROW
from storage_core.kernels.batch_notes import (
    ACTION,
    DELETE_HORIZON,
    FATE,
    FIRST_BIT,
    FIRST_RECORD,
    FLAGS,
    IS_LOOKED_UP,
    IS_REBUILT,
    KEEPS_ALL_TOMBSTONES,
    KEEPS_TOMBSTONES,
    LOSES_TRANSACTION,
    MARKS,
    NEEDS_RECORDS,
    NOT_DIRTY,
    NOTED_BIT,
    NOTED_BIT_END,
    NOTED_COUNT,
    NOTED_FLAG,
    NOTED_FLAG_END,
    NOTED_LEGACY,
    NOTED_LEGACY_END,
    NOTED_RANK,
    NOTED_START,
    OWN_RANK,
    PASS_ONE_COUNT,
    RETAINS_EMPTY,
    STEP,
    SURVIVORS,
)
from storage_core.kernels.batch_write import GONE, HEADER_ONLY, REBUILT, VERBATIM
from storage_core.kernels.record_scan import DONE, HAS_KEYLESS, HAS_TOMBSTONE, INDEXED, OPENED
from tests.storage_core.kernels.arguments import noted
from tests.storage_core.kernels.twins import in_both_ways

NOW_MS = 1_000
LATEST = 20
HIGH_WATERMARK = 25
BATCH_BYTES = 100
LEGACY = 1


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch, and what is known of it; it has a record for each bit."""

    base_offset: int = 10
    magic: int = batch_v2.MAGIC_V2
    codec: int = 0
    is_control: bool = False
    horizon: int | None = None
    discard: bool = False
    is_last: bool = False
    flags: int = OPENED | INDEXED
    keeps_all: bool = False
    bits: tuple[bool, ...] = (True, False)

    @property
    def last_offset(self) -> int:
        return self.base_offset + max(len(self.bits) - 1, 0)

    @property
    def is_legacy(self) -> bool:
        return self.magic < batch_v2.MAGIC_V2

    @property
    def loses_records(self) -> bool:
        has_passed = self.horizon is not None and self.horizon <= NOW_MS
        return self.discard and (has_passed or not self.is_control)


@dataclasses.dataclass(frozen=True)
class Judged:
    """What is said of a batch."""

    action: int
    retains_empty: bool
    loses_transaction: bool
    is_rebuilt: bool
    keeps_tombstones: bool
    needs_records: bool
    is_looked_up: bool
    step: int
    kept: int
    keeps_all: bool

    @classmethod
    def of(cls, notes: np.ndarray) -> "Judged":
        """Return what the notes of a batch say."""
        marks = int(notes[MARKS])
        return cls(
            action=int(notes[ACTION]),
            retains_empty=bool(marks & RETAINS_EMPTY),
            loses_transaction=bool(marks & LOSES_TRANSACTION),
            is_rebuilt=bool(marks & IS_REBUILT),
            keeps_tombstones=bool(marks & KEEPS_TOMBSTONES),
            needs_records=bool(marks & NEEDS_RECORDS),
            is_looked_up=bool(marks & IS_LOOKED_UP),
            step=int(notes[STEP]),
            kept=int(notes[SURVIVORS]),
            keeps_all=bool(marks & KEEPS_ALL_TOMBSTONES),
        )


@dataclasses.dataclass(frozen=True)
class Round:
    """What is so of all batches."""

    keeps_legacy_tombstones: bool = False
    recompresses_all: bool = False


def columns_of(batches: list[Batch]) -> np.ndarray:
    table = np.zeros((batch_scan.COLUMN_COUNT, len(batches)), np.int64)
    for row, batch in enumerate(batches):
        has_horizon = batch.horizon is not None
        bits = batch_v2.CONTROL_BIT * batch.is_control | batch_v2.DELETE_HORIZON_BIT * has_horizon
        table[batch_scan.ATTRIBUTES, row] = batch.codec | bits
        table[batch_scan.BASE_TIMESTAMP, row] = batch.horizon if has_horizon else 5
        table[batch_scan.BASE_OFFSET, row] = batch.base_offset
        table[batch_scan.LAST_OFFSET, row] = batch.last_offset
        table[batch_scan.MAGIC, row] = batch.magic
        table[batch_scan.POSITION, row] = row * BATCH_BYTES
        table[batch_scan.RECORD_COUNT, row] = len(batch.bits)
    return table


def words_of(batches: list[Batch]) -> np.ndarray:
    bits = np.array([bit for batch in batches for bit in batch.bits], bool)
    packed = np.packbits(bits, bitorder="little").tobytes()
    return np.frombuffer(bytearray(packed + bytes(16 - len(packed) % 8)), np.uint64)


def column(values: Any, kind: type = np.uint8) -> np.ndarray:
    return np.array(list(values), kind)


batches_of_a_log = st.builds(
    Batch,
    base_offset=st.integers(LATEST - 3, HIGH_WATERMARK),
    magic=st.sampled_from([0, LEGACY, batch_v2.MAGIC_V2, batch_v2.MAGIC_V2, batch_v2.MAGIC_V2]),
    codec=st.sampled_from([batch_v2.Codec.NONE, batch_v2.Codec.NONE, batch_v2.Codec.GZIP]),
    is_control=st.booleans(),
    horizon=st.sampled_from([None, None, NOW_MS - 1, NOW_MS, NOW_MS + 1]),
    discard=st.booleans(),
    is_last=st.booleans(),
    flags=st.sampled_from(
        [0, OPENED, INDEXED | OPENED, INDEXED | HAS_TOMBSTONE, INDEXED | HAS_KEYLESS]
    ),
    keeps_all=st.booleans(),
    bits=st.lists(st.booleans(), max_size=3).map(tuple),
)
rounds = st.builds(Round, keeps_legacy_tombstones=st.booleans(), recompresses_all=st.booleans())


def expected_of(batch: Batch, this: Round) -> Judged:
    """The rules, one after the other."""
    retains_empty = batch.is_last or batch.last_offset + 1 == HIGH_WATERMARK
    if batch.loses_records:
        action = DISCARD_RECORDS if retains_empty else DROP
    else:
        action = KEEP_RECORDS if batch.is_control else FILTER
    kept, step = 0, SETTLED
    if action == KEEP_RECORDS:
        step = TO_FILTER
        if batch.flags & INDEXED and not batch.discard:
            kept, step = len(batch.bits), SETTLED
    elif action == FILTER:
        step = TO_FILTER
        by_bits = batch.flags & INDEXED and not batch.flags & HAS_KEYLESS
        if by_bits and batch.last_offset <= LATEST:
            if not any(batch.bits):
                step = SETTLED
            elif not batch.flags & HAS_TOMBSTONE:
                kept, step = sum(batch.bits), SETTLED if all(batch.bits) else BY_BITS
    is_rebuilt = batch.is_legacy or (this.recompresses_all and not batch.is_control)
    if is_rebuilt and kept and step == SETTLED:
        step = BY_BITS
    has_passed = batch.horizon is not None and batch.horizon <= NOW_MS
    hides_offset = batch.is_legacy and batch.codec != batch_v2.Codec.NONE
    return Judged(
        action=action,
        retains_empty=retains_empty,
        loses_transaction=batch.is_control and batch.discard,
        is_rebuilt=is_rebuilt,
        keeps_tombstones=this.keeps_legacy_tombstones if batch.is_legacy else not has_passed,
        needs_records=step != SETTLED,
        is_looked_up=action == FILTER
        and not batch.flags & INDEXED
        and (batch.base_offset <= LATEST or hides_offset),
        step=step,
        kept=kept,
        keeps_all=batch.keeps_all,
    )


@in_both_ways(judge_batches=batch_judge.judge_batches)
@given(batches=st.lists(batches_of_a_log, min_size=1, max_size=5), this=rounds)
def test_batches_are_judged_by_the_rules(judge_batches, batches, this):
    count = column((len(batch.bits) for batch in batches), np.int64)
    notes = noted(
        len(batches),
        flags=[batch.flags for batch in batches],
        pass_one_count=count,
        first_bit=np.cumsum(count) - count,
        marks=[KEEPS_ALL_TOMBSTONES * batch.keeps_all for batch in batches],
    )
    judge_batches(
        columns_of(batches),
        notes,
        column(batch.discard for batch in batches),
        column(batch.is_last for batch in batches),
        words_of(batches),
        LATEST,
        HIGH_WATERMARK,
        NOW_MS,
        this.keeps_legacy_tombstones,
        this.recompresses_all,
    )
    answers = [Judged.of(notes[:, row]) for row in range(len(batches))]
    assert answers == [expected_of(batch, this) for batch in batches]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noted:
    """What pass one noted of a segment."""

    batches: list[Batch]
    dirty_rows: int
    most_records: int
    legacy: list[int] = dataclasses.field(default_factory=list)

    @property
    def flags(self) -> list[int]:
        return [batch.flags for batch in self.batches[len(self.batches) - self.dirty_rows :]]


def note(
    note_batches, *segments: Noted
) -> tuple[tuple[int, int], list[tuple[int, ...]], NDArray[np.int64]]:
    """Return what the kernel returns, (flags, count, first_bit, own_rank) of each batch, and what
    is left of the notes. Ranks of segment n begin at 1000 n, its bits at 100 n + 7."""
    batches = [batch for segment in segments for batch in segment.batches]
    bounds = np.cumsum([0, *(len(segment.batches) for segment in segments)])
    number = np.arange(len(segments))
    left = np.zeros((NOTED_COUNT, len(segments)), np.int64)
    left[NOTED_START] = [BATCH_BYTES * (len(s.batches) - s.dirty_rows) for s in segments]
    left[NOTED_FLAG_END] = np.cumsum([len(segment.flags) for segment in segments])
    left[NOTED_FLAG, 1:] = left[NOTED_FLAG_END, :-1]
    left[NOTED_LEGACY_END] = np.cumsum([len(segment.legacy) for segment in segments])
    left[NOTED_LEGACY, 1:] = left[NOTED_LEGACY_END, :-1]
    left[NOTED_BIT] = 100 * number + 7
    left[NOTED_BIT_END] = left[NOTED_BIT] + [segment.most_records for segment in segments]
    left[NOTED_RANK] = 1000 * number
    notes = noted(len(batches))
    answer = note_batches(
        columns_of(batches),
        notes,
        bounds,
        bounds[:-1] * BATCH_BYTES,
        left,
        column(flags for segment in segments for flags in segment.flags),
        column((count for segment in segments for count in segment.legacy), np.int64),
    )
    columns = notes[[FLAGS, PASS_ONE_COUNT, FIRST_BIT, OWN_RANK]].tolist()
    return tuple(answer), list(zip(*columns, strict=True)), left


CLEAN = Batch(bits=(True,) * 5)
THREE, FOUR = Batch(bits=(True,) * 3), Batch(bits=(True,) * 4)
UNSEEN = Batch(flags=0, bits=(True,))
OLD = Batch(magic=LEGACY, bits=(True,))
SEEN = OPENED | INDEXED


@in_both_ways(note_batches=batch_judge.note_batches)
def test_ordinals_count_from_the_dirty_part_on(note_batches):
    segment = Noted(batches=[CLEAN, THREE, UNSEEN, FOUR], dirty_rows=3, most_records=7)
    answer, rows, left = note(note_batches, segment)
    assert answer == (DONE, NO_ROW)
    assert rows == [(0, 5, 7, NOT_DIRTY), (SEEN, 3, 7, 0), (0, 1, 10, 2), (SEEN, 4, 10, 3)]
    assert left[[NOTED_FLAG, NOTED_BIT, NOTED_RANK], 0].tolist() == [3, 14, 7]


@in_both_ways(note_batches=batch_judge.note_batches)
def test_segments_of_one_window_have_notes_of_their_own(note_batches):
    answer, rows, _ = note(
        note_batches,
        Noted(batches=[THREE, OLD], dirty_rows=2, most_records=9, legacy=[6]),
        Noted(batches=[], dirty_rows=0, most_records=0),
        Noted(batches=[FOUR, OLD, THREE], dirty_rows=2, most_records=5, legacy=[2]),
    )
    assert answer == (DONE, NO_ROW)
    assert rows == [
        (SEEN, 3, 7, 0),
        (SEEN, 6, 10, 3),
        (0, 4, 207, NOT_DIRTY),
        (SEEN, 2, 207, 2000),
        (SEEN, 3, 209, 2002),
    ]


@in_both_ways(note_batches=batch_judge.note_batches)
def test_of_old_formats_pass_one_knows_the_counts(note_batches):
    segment = Noted(batches=[OLD, THREE, OLD], dirty_rows=3, most_records=30, legacy=[6, 2, 9])
    answer, rows, left = note(note_batches, segment)
    assert answer == (DONE, NO_ROW)
    assert left[[NOTED_LEGACY, NOTED_BIT], 0].tolist() == [2, 18]
    assert [row[1] for row in rows] == [6, 3, 2]


@in_both_ways(note_batches=batch_judge.note_batches)
@pytest.mark.parametrize(
    ("batches", "most_records", "legacy", "expected"),
    [
        pytest.param([OLD, OLD], 30, [6], (MORE_LEGACY, 1), id="more of old formats"),
        pytest.param([THREE, FOUR], 6, [], (MORE_RECORDS, 1), id="more records"),
        pytest.param([OLD], 30, [-1], (MORE_RECORDS, 0), id="a count below 0"),
    ],
)
def test_another_segment_than_pass_one_read_is_seen(
    note_batches, batches, most_records, legacy, expected
):
    segment = Noted(
        batches=batches, dirty_rows=len(batches), most_records=most_records, legacy=legacy
    )
    assert note(note_batches, segment)[0] == expected
    after = Noted(batches=[FOUR], dirty_rows=1, most_records=4, legacy=[3])
    assert note(note_batches, segment, after)[0] == expected


@in_both_ways(note_batches=batch_judge.note_batches)
def test_what_was_not_noted_any_more_has_no_flags(note_batches):
    notes, left = noted(2), np.zeros((NOTED_COUNT, 1), np.int64)
    left[[NOTED_FLAG_END, NOTED_BIT_END]] = [[1], [3]]
    rows = column([0, 2], np.int64)
    answer = note_batches(
        columns_of([THREE, FOUR]),
        notes,
        rows,
        column([-50], np.int64),
        left,
        column([OPENED]),
        column([], np.int64),
    )
    assert tuple(answer) == (DONE, NO_ROW)
    assert left[NOTED_BIT, 0] == 3
    assert notes[FLAGS].tolist() == [OPENED, 0]
    assert notes[MARKS].tolist() == [0, 0]


@in_both_ways(place_records=batch_judge.place_records)
def test_records_that_are_looked_at_get_a_place_each(place_records):
    table = columns_of([Batch()] * 4)
    table[batch_scan.RECORD_COUNT] = [3, 2, 7, 8]
    notes = noted(
        4,
        action=[FILTER, DROP, FILTER, FILTER],
        flags=OPENED,
        marks=np.array([NEEDS_RECORDS, NEEDS_RECORDS, 0, NEEDS_RECORDS]),
        pass_one_count=[3, 2, 4, 8],
    )
    answer = place_records(table, notes)
    assert tuple(answer) == (13, 15, NO_ROW)  # of the third, which is not opened: 4
    assert notes[FIRST_RECORD].tolist() == [0, 3, 5, 5]


@in_both_ways(place_records=batch_judge.place_records)
@pytest.mark.parametrize(("flags", "row"), [(OPENED, 0), (INDEXED, NO_ROW)])
def test_records_other_than_those_that_were_counted_are_seen(place_records, flags, row):
    table = columns_of([Batch(bits=(True,) * 4)])
    notes = noted(1, action=FILTER, flags=flags, marks=NEEDS_RECORDS, pass_one_count=3)
    assert place_records(table, notes)[2] == row


@dataclasses.dataclass(frozen=True)
class Survivors:
    """What is left of a batch."""

    batch: Batch = Batch()
    action: int = FILTER
    retains_empty: bool = False
    loses_transaction: bool = False
    is_rebuilt: bool = False
    kept: int = 2
    tombstones: int = 0


def fate_of(left: Survivors, new_horizon: int) -> tuple[int, int]:
    """The rules, one after the other."""
    old = left.batch.horizon
    gets_one = (left.tombstones > 0 or left.loses_transaction) and old is None
    if left.action == DROP:
        return GONE, batch_v2.NO_TIMESTAMP
    if not left.kept:
        return HEADER_ONLY if left.retains_empty else GONE, batch_v2.NO_TIMESTAMP
    if left.kept == len(left.batch.bits) and not gets_one and not left.is_rebuilt:
        return VERBATIM, batch_v2.NO_TIMESTAMP
    horizon = new_horizon if gets_one else old
    return REBUILT, batch_v2.NO_TIMESTAMP if horizon is None or horizon < 0 else horizon


@in_both_ways(decide_fates=batch_judge.decide_fates)
@given(
    rows=st.lists(
        st.builds(
            Survivors,
            batch=batches_of_a_log,
            action=st.sampled_from([DROP, FILTER, KEEP_RECORDS, DISCARD_RECORDS]),
            retains_empty=st.booleans(),
            loses_transaction=st.booleans(),
            is_rebuilt=st.booleans(),
            kept=st.integers(0, 3),
            tombstones=st.integers(0, 1),
        ),
        min_size=1,
        max_size=5,
    ),
    new_horizon=st.sampled_from([batch_v2.NO_TIMESTAMP, NOW_MS + 50]),
)
def test_fates_are_decided_by_the_rules(decide_fates, rows, new_horizon):
    notes = noted(
        len(rows),
        action=[row.action for row in rows],
        marks=[
            RETAINS_EMPTY * row.retains_empty
            | LOSES_TRANSACTION * row.loses_transaction
            | IS_REBUILT * row.is_rebuilt
            for row in rows
        ],
        survivors=[row.kept for row in rows],
        tombstones=[row.tombstones for row in rows],
    )
    decide_fates(columns_of([row.batch for row in rows]), notes, new_horizon)
    answers = list(zip(notes[FATE].tolist(), notes[DELETE_HORIZON].tolist(), strict=True))
    assert answers == [fate_of(row, new_horizon) for row in rows]


def header_only(batch: Batch) -> bytes:
    """Return the header of a batch; its records take no bytes."""
    header = np.zeros(1, batch_v2.BATCH_HEADER)
    header["base_offset"] = batch.base_offset
    header["batch_length"] = batch_v2.HEADER_BYTES - batch_v2.LENGTH_OVERHEAD
    header["magic"] = batch.magic
    header["attributes"] = batch_v2.CONTROL_BIT * batch.is_control | batch.codec
    header["attributes"] |= batch_v2.TRANSACTIONAL_BIT * batch.discard
    header["last_offset_delta"] = batch.last_offset - batch.base_offset
    header["record_count"] = len(batch.bits)
    return header.tobytes()


@in_both_ways(sift_batches=batch_judge.sift_batches)
@given(
    batches=st.lists(
        st.builds(
            Batch,
            base_offset=st.integers(LATEST - 3, LATEST + 1),
            magic=st.sampled_from([batch_v2.MAGIC_V2, batch_v2.MAGIC_V2, batch_v2.MAGIC_V2 + 1]),
            is_control=st.integers(0, 9).map(lambda number: number == 0),
            discard=st.integers(0, 9).map(lambda number: number == 0),
            flags=st.sampled_from([SEEN, SEEN, SEEN, OPENED, 0, SEEN | HAS_KEYLESS]),
            bits=st.lists(st.integers(0, 5).map(lambda number: number == 0), max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=12,
    ),
    retained=st.sets(st.integers(LATEST - 3, LATEST + 1), max_size=2),
    room=st.integers(1, 14),
    dirty_rows=st.integers(0, 14),
)
def test_what_is_sifted_is_what_is_scanned_and_noted_but_for_dead_batches(
    sift_batches, batches, retained, room, dirty_rows
):
    data = np.frombuffer(b"".join(map(header_only, batches)), np.uint8).copy()
    first_dirty = max(0, len(batches) - dirty_rows)
    flags = column(batch.flags for batch in batches[first_dirty:])
    words = words_of([batch for batch in batches[first_dirty:] if batch.flags & OPENED])
    state = np.zeros((NOTED_COUNT, 1), np.int64)
    dirty_position = first_dirty * batch_v2.HEADER_BYTES
    state[NOTED_START] = dirty_position
    state[NOTED_FLAG_END], state[NOTED_BIT_END] = len(flags), 64 * len(words)
    scanned = np.zeros((batch_scan.COLUMN_COUNT, len(batches)), np.int64)
    assert batch_scan.scan_batches(data, 0, data.size, scanned) == (len(batches), data.size, 0)
    notes, moved = noted(len(batches)), state.copy()
    bounds, begins = np.array([0, len(batches)]), np.zeros(1, np.int64)
    none = np.empty(0, np.int64)
    done = batch_judge.note_batches(scanned, notes, bounds, begins, moved, flags, none)
    assert done == (DONE, NO_ROW)

    def is_dead(row: int) -> bool:
        batch = batches[row]
        return (
            first_dirty <= row > 0
            and batch.flags == SEEN
            and batch.magic == batch_v2.MAGIC_V2
            and not (batch.is_control or batch.discard or any(batch.bits))
            and batch.last_offset <= LATEST
            and batch.last_offset not in retained
        )

    stay = [row for row in range(len(batches)) if not is_dead(row)]
    table = np.zeros((batch_scan.COLUMN_COUNT, room), np.int64)
    own_notes = noted(room)
    count, end, status, left_out = sift_batches(
        data,
        table,
        own_notes,
        dirty_position,
        state,
        flags,
        none,
        words,
        LATEST,
        np.array(sorted(retained), np.int64),
    )
    if room < len(stay):
        assert (count, status) == (room, batch_scan.NO_ROOM)
        stay = stay[:room]
    elif status == batch_scan.NO_ROOM:  # a dead batch needs a row as well
        assert count == room == len(stay)
    else:
        assert (count, end, status) == (len(stay), data.size, batch_scan.DONE)
        assert left_out == sum(len(batch.bits) for row, batch in enumerate(batches) if is_dead(row))
        assert state.tolist() == moved.tolist()
    assert table[:, :count].tolist() == scanned[:, stay].tolist()
    filled = [FLAGS, FIRST_BIT, OWN_RANK, PASS_ONE_COUNT, MARKS]
    assert own_notes[filled, :count].tolist() == notes[filled][:, stay].tolist()


@in_both_ways(sift_batches=batch_judge.sift_batches)
@pytest.mark.parametrize(
    ("bits", "most_records", "expected"),
    [(3, 2, MORE_RECORDS), (3, 3, batch_scan.TRUNCATED)],
)
def test_a_sift_sees_another_segment_and_a_torn_batch(sift_batches, bits, most_records, expected):
    batch = Batch(bits=(True,) * bits)
    data = np.frombuffer(header_only(batch) + header_only(batch)[:-1], np.uint8).copy()
    state = np.zeros((NOTED_COUNT, 1), np.int64)
    state[NOTED_FLAG_END], state[NOTED_BIT_END] = 2, most_records
    answer = sift_batches(
        data,
        np.zeros((batch_scan.COLUMN_COUNT, 2), np.int64),
        noted(2),
        0,
        state,
        column([SEEN, SEEN]),
        np.empty(0, np.int64),
        words_of([batch]),
        LATEST,
        np.empty(0, np.int64),
    )
    ended = 0 if expected == MORE_RECORDS else batch_v2.HEADER_BYTES
    assert answer == (min(ended, 1), ended, expected, 0)
