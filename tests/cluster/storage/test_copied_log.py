"""A copy is compared with its original record by record, whatever its batches and offsets are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.cluster import alignment, copied_log, copy_report
from storage_core.cluster import alignment as record_digests
from storage_core.cluster.copied_log import CopyDifferences, compare_copy
from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.formats.control import ControlType
from tests.cluster.storage.test_differences import flip, rest, write_replica
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch, end_txn_marker
from tests.kit.cluster_truth import Cluster

ANY_OFFSETS = np.empty((0, 2), np.int64)
LOG = "00000000000000000000.log"
NOW_MS = 1_700_000_000_000
Edit = tuple[str, int, int]


def record(number: int) -> RecordSpec:
    return RecordSpec(
        key=b"k%d" % (number % 7),
        value=b"v%d" % number,
        timestamp=NOW_MS + number,
        headers=(("n", b"%d" % (number % 3)),),
    )


def in_batches(
    records: Sequence[RecordSpec], size: int, *, start: int = 0, **batch: object
) -> list[BatchSpec]:
    """Return batches of so many records each."""
    return [
        BatchSpec(
            records=tuple(records[at : at + size]),
            base_offset=start + at,
            **batch,  # type: ignore[arg-type]
        )
        for at in range(0, len(records), size)
    ]


def compare(
    folder: Path,
    original: Sequence[BatchSpec],
    copy: Sequence[BatchSpec],
    *,
    syncs: np.ndarray | None = ANY_OFFSETS,
    checkpoints: tuple[PartitionCheckpoints | None, PartitionCheckpoints | None] = (None, None),
    is_compacted: tuple[bool, bool] = (False, False),
) -> CopyDifferences:
    logs = [
        rest(write_replica(folder, number, batches), number, checkpoints[number - 1])
        for number, batches in ((1, original), (2, copy))
    ]
    return compare_copy(*logs, syncs, is_compacted=is_compacted)


def told(answer: CopyDifferences) -> list[tuple]:
    """Return kind, records and offsets on both sides."""
    return [
        (
            each.kind.value,
            each.records,
            (each.first_offset, each.last_offset),
            (each.copy_first_offset, each.copy_last_offset),
        )
        for each in answer.differences
    ]


NOTHING = (None, None)
RECORDS = [record(number) for number in range(1000)]


def changed(at: int, **fields: object) -> list[RecordSpec]:
    return [*RECORDS[:at], replace(RECORDS[at], **fields), *RECORDS[at + 1 :]]


PLANTED = {
    "nothing": (RECORDS, []),
    "missing": (RECORDS[:300] + RECORDS[310:], [("missing", 10, (300, 309), NOTHING)]),
    "the first is missing": (RECORDS[1:], [("missing", 1, (0, 0), NOTHING)]),
    "doubled": (RECORDS[:300] + RECORDS[280:], [("doubled", 20, (280, 299), (300, 319))]),
    "doubled at the end": (RECORDS + RECORDS[990:], [("doubled", 10, (990, 999), (1000, 1009))]),
    "all doubled": (RECORDS * 2, [("doubled", 1000, (0, 999), (1000, 1999))]),
    "value": (changed(500, value=b"x"), [("different", 1, (500, 500), (500, 500))]),
    "key": (changed(0, key=None), [("different", 1, (0, 0), (0, 0))]),
    "headers": (changed(500, headers=()), [("different", 1, (500, 500), (500, 500))]),
    "timestamp": (changed(999, timestamp=5), [("different", 1, (999, 999), (999, 999))]),
    "moved": (
        RECORDS[:100] + RECORDS[101:200] + RECORDS[100:101] + RECORDS[200:],
        [("order", 1, (100, 100), (199, 199))],
    ),
    "extra": (
        [*RECORDS[:100], RecordSpec(key=b"q"), *RECORDS[100:]],
        [("extra", 1, NOTHING, (100, 100))],
    ),
    "not copied yet": (RECORDS[:900], [("behind", 100, (900, 999), NOTHING)]),
    "an empty copy": ([], [("behind", 1000, (0, 999), NOTHING)]),
    "missing and doubled at one place": (
        RECORDS[:500] + RECORDS[480:500] + RECORDS[510:],
        [("doubled", 20, (480, 499), (500, 519)), ("missing", 10, (500, 509), NOTHING)],
    ),
    "the last is different, and more is to come": (
        changed(899, value=b"x")[:900],
        [("different", 1, (899, 899), (899, 899)), ("behind", 100, (900, 999), NOTHING)],
    ),
    "the key of the last is different, and more is to come": (
        changed(899, key=b"x")[:900],
        [("different", 1, (899, 899), (899, 899)), ("behind", 100, (900, 999), NOTHING)],
    ),
    "another end": (
        [*RECORDS[:900], RecordSpec(key=b"q"), RecordSpec(key=b"r")],
        [("missing", 100, (900, 999), NOTHING), ("extra", 2, NOTHING, (900, 901))],
    ),
    "all values are different": (
        [replace(each, value=b"x" + (each.value or b"")) for each in RECORDS],
        [("different", 1000, (0, 999), (0, 999))],
    ),
}


@pytest.mark.sampled(17)
@pytest.mark.parametrize("window", [16, alignment.WINDOW_RECORDS])
@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_named_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, window: int
):
    records, expected = PLANTED[name]
    if name == "all values are different" and window == 16:
        # Beyond the window what has no record in common is not paired.
        expected = [
            ("different", 16, (0, 15), (0, 15)),
            ("missing", 984, (16, 999), NOTHING),
            ("extra", 984, NOTHING, (16, 999)),
        ]
    for module in (alignment, copied_log):
        monkeypatch.setattr(module, "WINDOW_RECORDS", window)
    monkeypatch.setattr(alignment, "_FIRST_WINDOWS", (4, 8) if window == 16 else (64, 4096))
    answer = compare(
        tmp_path, in_batches(RECORDS, 10), in_batches(records, 7, codec=Codec.GZIP, producer_id=9)
    )
    assert sorted(told(answer), key=str) == sorted(expected, key=str)
    assert answer.untold == 0


def test_what_is_to_come_would_be_at_the_end_of_the_copy(tmp_path: Path):
    answer = compare(tmp_path, in_batches(RECORDS, 10), in_batches(RECORDS[:900], 7))
    (difference,) = answer.differences
    assert difference.side.position == (tmp_path / "2" / "t-0" / LOG).stat().st_size
    first = b"".join(map(encode_batch, in_batches(RECORDS[:900], 10)))
    assert difference.other.position == len(first)


@pytest.mark.parametrize("name", ["key", "value", "headers", "timestamp"])
def test_a_row_says_which_field_differs(tmp_path: Path, name: str):
    answer = compare(tmp_path, in_batches(RECORDS, 10), in_batches(PLANTED[name][0], 7))
    (difference,) = answer.differences
    assert difference.message == f"not the same: {name}"
    offset = difference.first_offset
    assert difference.timestamp_ms == NOW_MS + (offset or 0)
    assert (difference.side.file, difference.other.file) == (LOG,) * 2


@st.composite
def edits(draw: st.DrawFn) -> list[Edit]:
    """Errors in a copy of 200 records, at least two good ones between them."""
    found, at = [], draw(st.integers(0, 9))
    while True:
        kind = draw(st.sampled_from(["missing", "doubled", "different", "extra"]))
        count = draw(st.integers(1, 6 if kind == "different" else 40))
        if at + count > 190:
            return found
        found.append((kind, at, count))
        at += count + draw(st.integers(2, 30))


def apply(records: Sequence[RecordSpec], changes: Sequence[Edit]) -> tuple[list, set]:
    """Return a copy with errors, and each error as kind and offset, of the original's record."""
    copy, expected, at = [], set(), 0
    for kind, first, count in changes:
        copy += records[at:first]
        part = records[first : first + count]
        for number in range(first, first + count):
            expected.add((kind, number))
        if kind == "doubled":
            copy += [*part, *part]
        elif kind == "different":
            copy += [replace(each, value=b"other %d" % n) for n, each in enumerate(part, first)]
        elif kind == "extra":
            copy += [RecordSpec(key=b"q", value=b"%d" % n) for n in range(first, first + count)]
            copy += part
        at = first + count
    return [*copy, *records[at:]], expected


@pytest.mark.thorough
@settings(max_examples=30)
@given(edits(), st.integers(1, 20), st.integers(1, 20), st.integers(8, 300))
def test_random_errors_are_named_as_they_were_made(
    changes: list[Edit], size: int, other_size: int, window: int
):
    records = RECORDS[:200]
    copy, expected = apply(records, changes)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for module in (alignment, copied_log):
            patch.setattr(module, "WINDOW_RECORDS", window)
        patch.setattr(alignment, "_FIRST_WINDOWS", (2,))
        # A piece is a batch or a few.
        patch.setattr(record_digests, "_WINDOW_BYTES", 200)
        answer = compare(Path(folder), in_batches(records, size), in_batches(copy, other_size))
    found = set()
    for each in answer.differences:
        kind = each.kind.value
        if kind == "extra":
            first, last = each.copy_first_offset, each.copy_last_offset
            found |= {(kind, int(copy[n].value or 0)) for n in range(first or 0, (last or 0) + 1)}
        else:
            found |= {(kind, n) for n in range(each.first_offset or 0, (each.last_offset or 0) + 1)}
    assert found == expected


@dataclass
class _Transactions:
    """A log of transactions: markers have offsets, too."""

    batches: list[BatchSpec]
    offset: int = 0

    def write(self, records: Sequence[RecordSpec], *, commits: bool) -> None:
        self.batches += in_batches(
            records,
            5,
            start=self.offset,
            producer_id=7,
            producer_epoch=0,
            base_sequence=self.offset,
            is_transactional=True,
        )
        self.offset += len(records)
        marker = end_txn_marker(
            base_offset=self.offset,
            producer_id=7,
            producer_epoch=0,
            control_type=ControlType.COMMIT if commits else ControlType.ABORT,
        )
        self.batches.append(marker)
        self.offset += 1


@pytest.mark.parametrize("reads_committed", [False, True])
def test_markers_and_aborted_transactions_are_no_differences(
    tmp_path: Path, *, reads_committed: bool
):
    original = _Transactions([])
    copied: list[RecordSpec] = []
    syncs = []
    for turn in range(20):
        part = RECORDS[turn * 20 : turn * 20 + 20]
        commits = turn % 3 != 1
        if commits or not reads_committed:
            syncs.append((original.offset, len(copied)))
            copied += part
        original.write(part, commits=commits)
    answer = compare(
        tmp_path,
        original.batches,
        in_batches(copied, 33, codec=Codec.LZ4),
        syncs=np.array(syncs, np.int64),
    )
    assert told(answer) == []
    assert answer.records == 20 * sum(turn % 3 != 1 for turn in range(20))


@pytest.mark.parametrize("reads_committed", [False, True])
def test_a_transaction_that_was_tried_again_is_no_difference(
    tmp_path: Path, *, reads_committed: bool
):
    original = _Transactions([])
    copied: list[RecordSpec] = []
    syncs = []
    for turn in range(6):
        part = RECORDS[turn * 20 : turn * 20 + 20]
        for commits in (False, False, True):
            if commits or not reads_committed:
                syncs.append((original.offset, len(copied)))
                copied += part
            original.write(part, commits=commits)
    mapped = np.array(syncs, np.int64)
    answer = compare(tmp_path / "right", original.batches, in_batches(copied, 33), syncs=mapped)
    assert told(answer) == []
    assert answer.records == 120
    # Only what is there more often than it was written is doubled.
    doubled = [*copied[:20], *copied[:20], *copied[:20], *copied]
    answer = compare(tmp_path / "doubled", original.batches, in_batches(doubled, 33))
    expected = 20 if reads_committed else 60
    assert {each.kind.value for each in answer.differences} == {"doubled"}
    assert sum(each.records for each in answer.differences) == expected


def test_what_aborted_in_the_copy_is_not_there(tmp_path: Path):
    copy = _Transactions([])
    copy.write(RECORDS[:20], commits=True)
    copy.write(RECORDS[20:40], commits=False)
    answer = compare(tmp_path / "retried", in_batches(RECORDS[:20], 5), copy.batches)
    assert told(answer) == []
    copy.write(RECORDS[20:40], commits=True)
    answer = compare(tmp_path / "once", in_batches(RECORDS[:40], 5), copy.batches)
    assert told(answer) == []
    broken = _Transactions([])
    broken.write(RECORDS[:20], commits=False)
    broken.write(RECORDS[20:40], commits=True)
    answer = compare(tmp_path / "lost", in_batches(RECORDS[:40], 5), broken.batches)
    assert told(answer) == [("missing", 20, (0, 19), NOTHING)]


def test_other_offsets_are_told_without_a_map_and_by_a_wrong_one(tmp_path: Path):
    original, copy = in_batches(RECORDS, 10), in_batches(RECORDS, 10, start=5)
    expected = [("offset", 1000, (0, 999), (5, 1004))]
    answer = compare(tmp_path / "none", original, copy, syncs=None)
    assert told(answer) == expected
    assert "without a map" in answer.differences[0].message
    right = np.array([[0, 5], [500, 505], [998, 1003]])
    assert told(compare(tmp_path / "right", original, copy, syncs=right)) == []
    wrong = right + np.array([[0, 0], [0, 1], [0, 1]])
    answer = compare(tmp_path / "wrong", original, copy, syncs=wrong)
    assert told(answer) == [("offset", 2, (500, 998), (505, 1003))]
    assert answer.differences[0].message == "the map says 506 for the first one"


def test_a_map_may_name_the_second_of_two(tmp_path: Path):
    copy = RECORDS[:300] + RECORDS[280:]
    syncs = np.array([[285, 305], [400, 420]])
    answer = compare(tmp_path, in_batches(RECORDS, 10), in_batches(copy, 7), syncs=syncs)
    assert [each.kind.value for each in answer.differences] == ["doubled"]


@pytest.mark.parametrize("syncs", [None, ANY_OFFSETS], ids=["equal offsets", "map"])
def test_what_retention_deleted_is_no_difference(tmp_path: Path, syncs: np.ndarray | None):
    whole, rest_of_it = in_batches(RECORDS, 10), in_batches(RECORDS[400:], 10, start=400)
    later = PartitionCheckpoints(log_start_offset=400)
    for name, logs in {"copy": (whole, rest_of_it), "original": (rest_of_it, whole)}.items():
        points = (None, later) if name == "copy" else (later, None)
        answer = compare(tmp_path / name, *logs, syncs=syncs, checkpoints=points)
        assert told(answer) == []
        assert answer.records == 600


def compacted(records: Sequence[tuple[int, RecordSpec]], kept: set[int]) -> list[BatchSpec]:
    """Return what a cleaner leaves of batches of ten records."""
    batches = []
    for base in range(0, len(records), 10):
        part = [each for at, each in records[base : base + 10] if at in kept]
        at = [n for n, _ in records[base : base + 10] if n in kept]
        batches.append(
            BatchSpec(
                records=tuple(
                    replace(each, offset_delta=n - base) for n, each in zip(at, part, strict=True)
                ),
                base_offset=base,
                last_offset_delta=9,
            )
        )
    return batches


def newest(count: int) -> set[int]:
    """Return the offsets of the last record of each key, and of those of the last batch."""
    last = {RECORDS[n].key: n for n in range(count)}
    return {*last.values(), *range(count - 10, count)}


@pytest.mark.parametrize("is_copy", [False, True])
def test_what_a_cleaner_removed_is_no_difference_but_a_last_record_is(
    tmp_path: Path, *, is_copy: bool
):
    numbered = list(enumerate(RECORDS[:100]))
    whole = in_batches(RECORDS[:100], 10)
    kept = newest(90) | newest(100)
    point = PartitionCheckpoints(cleaner_offset=90)
    points = (None, point) if is_copy else (point, None)
    clean = compacted(numbered, kept)
    logs = (whole, clean) if is_copy else (clean, whole)
    answer = compare(tmp_path / "clean", *logs, syncs=None, checkpoints=points)
    assert told(answer) == []
    # One key has no record at all any more.
    key = RECORDS[50].key
    gone = compacted(numbered, {n for n in kept if RECORDS[n].key != key})
    logs = (whole, gone) if is_copy else (gone, whole)
    answer = compare(tmp_path / "gone", *logs, syncs=None, checkpoints=points)
    offsets = {
        each.first_offset if is_copy else each.copy_first_offset for each in answer.differences
    }
    assert offsets == {n for n in range(100) if RECORDS[n].key == key}
    kinds = {(each.kind.value, each.message) for each in answer.differences if each.message}
    expected = (
        ("compaction", "its key has no newer record either")
        if is_copy
        else ("extra", "the original's cleaner cannot have removed it")
    )
    assert kinds == {expected}


@pytest.mark.thorough
@pytest.mark.parametrize("syncs", [None, ANY_OFFSETS], ids=["equal offsets", "map"])
def test_what_kafkas_cleaner_left_apart_is_no_difference(tmp_path: Path, syncs: np.ndarray | None):
    # Broker 3 was away for the end; the cleaner of each has taken other records.
    roots = Cluster("compacted", tmp_path).roots
    count = 0
    for one, two in permutations(roots, 2):
        for name in ("page-views-0", "page-views-1", "page-views-2"):
            logs = rest(one / name, 1), rest(two / name, 2)
            answer = compare_copy(*logs, syncs)
            is_short = logs[1].log_end_offset < logs[0].log_end_offset
            is_long = logs[1].log_end_offset > logs[0].log_end_offset
            expected = [
                (kind, 315) for kind, is_so in (("behind", is_short), ("extra", is_long)) if is_so
            ]
            found = [
                (each.kind.value, each.first_offset if is_short else each.copy_first_offset)
                for each in answer.differences
            ]
            assert found == expected
            count += answer.records
    assert count > 0


def test_times_of_the_copys_broker_are_not_compared(tmp_path: Path):
    copy = in_batches(
        RECORDS, 10, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW_MS + 10**7
    )
    answer = compare(tmp_path, in_batches(RECORDS, 10), copy)
    assert told(answer) == []
    assert not answer.has_times


@pytest.mark.parametrize("number", [1, 2])
def test_a_damaged_batch_is_named_with_its_place(tmp_path: Path, number: int):
    directories = [write_replica(tmp_path, n, in_batches(RECORDS, 10)) for n in (1, 2)]
    logs = [rest(directory, n) for n, directory in enumerate(directories, 1)]
    size = logs[0].end_position // 100
    flip(directories[number - 1] / LOG, 30 * size + 100)
    answer = compare_copy(*logs, None)
    damage, lacked = sorted(answer.differences, key=lambda each: each.kind.value != "bytes")
    side = damage.side if number == 2 else damage.other
    assert (damage.kind.value, side.file) == ("bytes", LOG)
    assert side.position is not None
    assert "checksum is wrong" in damage.message
    assert lacked.records == 10
    assert lacked.kind.value == ("missing" if number == 2 else "extra")


def test_beyond_so_many_rows_the_rest_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copy_report, "MOST_LISTED", 3)
    copy = [each for number, each in enumerate(RECORDS) if number % 100 != 50]
    answer = compare(tmp_path, in_batches(RECORDS, 10), in_batches(copy, 10))
    assert len(answer.differences) == 3
    assert answer.untold == 7
