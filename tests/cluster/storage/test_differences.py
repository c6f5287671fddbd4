"""Differences of replicas are those that a plain comparison of all records tells."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.catalog.log_directories import DirectoryKind
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.cluster import differences as survivors
from storage_core.cluster import log_batches
from storage_core.cluster.differences import DifferenceKind, Differences, find_differences
from storage_core.cluster.log_batches import (
    OffsetRanges,
    ReadDepth,
    digest_log,
    find_unequal,
)
from storage_core.cluster.places import PartitionRegistration, ReplicaPlace
from storage_core.cluster.resting_log import RestingLog, observe_log
from storage_core.maintenance.verification.findings import Code
from tests.cluster.storage.test_comparison import (
    END,
    Records,
    open_records,
    records,
)
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.directories import SegmentSpec, encode_leader_epochs, write_partition
from tests.kit.golden_data import Side, goldens

COMPACTED = PartitionRegistration(
    topic="t", partition=0, topic_id="", replicas=(1, 2), isr=(1, 2), is_compacted=True
)
LOG = "00000000000000000000.log"


def rest(directory: Path, broker: int, checkpoints: PartitionCheckpoints | None = None):
    """Return a replica as it lies in a directory."""
    place = ReplicaPlace(
        broker=broker,
        root=str(directory.parent),
        directory=str(directory),
        kind=DirectoryKind.PARTITION,
        is_clean=True,
        checkpoints=checkpoints or PartitionCheckpoints(),
    )
    log = observe_log(place)
    assert log.error == ""
    return log


def write_replica(folder: Path, broker: int, batches: Sequence[BatchSpec], *, rolls=()) -> Path:
    """Write a replica of some batches, with an epoch file."""
    bases = [0, *rolls]
    ends = [*rolls, 2**62]
    directory = write_partition(
        folder / str(broker) / "t-0",
        [
            SegmentSpec(
                base_offset=base, batches=[b for b in batches if base <= b.base_offset < end]
            )
            for base, end in zip(bases, ends, strict=True)
        ],
    )
    starts: dict[int, int] = {}
    for batch in batches:
        starts.setdefault(batch.leader_epoch, batch.base_offset)
    epochs = encode_leader_epochs(list(starts.items()))
    (directory / "leader-epoch-checkpoint").write_text(epochs)
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    return directory


def batches_of(count: int, *, size: int = 3, epoch: int = 0) -> list[BatchSpec]:
    return [
        BatchSpec(
            records=tuple(
                RecordSpec(key=b"k%04d" % (number * size + at), value=b"v", offset_delta=at)
                for at in range(size)
            ),
            base_offset=number * size,
            leader_epoch=epoch,
        )
        for number in range(count)
    ]


def kinds(answer: Differences) -> list[tuple[str, int, int, int | None]]:
    return [
        (each.kind.value, each.first_offset, each.last_offset, each.side.log.place.broker)
        for each in answer.differences
    ]


def codes(answer: Differences) -> set[tuple[Code, int | None]]:
    return {(each.finding.code, each.log.place.broker) for each in answer.findings}


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def dense_cuts(kept: Records, cuts: set[int]) -> set[int]:
    """Return borders of batches by which no batch has a gap, as a producer's have none."""
    return cuts | {at for at in kept if at - 1 not in kept}


@pytest.mark.thorough
@pytest.mark.item("REP-12")
@given(data=st.data())
def test_differences_are_those_of_all_records(data: st.DataObject):
    first = data.draw(records())
    logs = [first, data.draw(records(first))]
    borders = st.sets(st.integers(1, END), max_size=6)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_batches, "MOST_BYTES", data.draw(st.sampled_from([1, 200, 1 << 20])))
        patch.setattr(log_batches, "_PIECE_BYTES", data.draw(st.sampled_from([100, 1 << 20])))
        replicas = []
        for broker, kept in enumerate(logs, start=1):
            directory = Path(folder, str(broker), "t-0")
            open_records(directory, kept, dense_cuts(kept, data.draw(borders)), set())
            replicas.append(rest(directory, broker))
        answer = find_differences(replicas, "t", None, ReadDepth.DIGESTS)
    told: dict[str, set[tuple[int, int | None]]] = {}
    for each in answer.differences:
        offsets = range(each.first_offset, each.last_offset + 1)
        side = each.side.log.place.broker if each.kind is DifferenceKind.MISSING else None
        told.setdefault(each.kind, set()).update((at, side) for at in offsets)
    one, two = logs
    both = one.keys() & two.keys()
    expected = {
        DifferenceKind.MISSING: {(at, 2) for at in one.keys() - both}
        | {(at, 1) for at in two.keys() - both},
        DifferenceKind.RECORD: {(at, None) for at in both if one[at][1] != two[at][1]},
        DifferenceKind.EPOCH: {
            (at, None) for at in both if one[at][1] == two[at][1] and one[at] != two[at]
        },
    }
    # The same records in other batches are other bytes.
    told.pop(DifferenceKind.BYTES, None)
    assert told == {kind: offsets for kind, offsets in expected.items() if offsets}


@pytest.mark.thorough
@pytest.mark.item("REP-12")
@given(data=st.data())
def test_a_cleaner_may_remove_what_has_a_survivor(data: st.DataObject):
    """One log has all records; the other lacks those that a cleaner may remove, and some more."""
    keys = data.draw(st.lists(st.sampled_from([b"a", b"b", b"c", None]), min_size=1, max_size=20))
    values = data.draw(st.lists(st.sampled_from([b"v", None]), min_size=20, max_size=20))
    whole = {
        at: (0, RecordSpec(key=key, value=values[at] if key is not None else b""))
        for at, key in enumerate(keys)
    }
    gone = {at for at in whole if data.draw(st.booleans())}
    kept = {at: record for at, record in whole.items() if at not in gone}
    lost = {
        at
        for at in gone
        if whole[at][1].key is not None
        and not any(keys[later] == keys[at] and later in kept for later in range(at + 1, len(keys)))
        # A deletion that has had its time is gone, and all before it.
        and whole[max(at_2 for at_2 in gone if keys[at_2] == keys[at])][1].value is not None
    }
    borders = st.sets(st.integers(1, END), max_size=6)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(survivors, "_MOST_KEYS", data.draw(st.sampled_from([1, 3, 1 << 20])))
        cleaned = PartitionCheckpoints(cleaner_offset=END)
        replicas = []
        for broker, some in ((1, whole), (2, kept)):
            directory = Path(folder, str(broker), "t-0")
            open_records(directory, some, data.draw(borders), set())
            replicas.append(rest(directory, broker, cleaned))
        end = max(log.log_end_offset for log in replicas)
        replicas = [replace(log, log_end_offset=end) for log in replicas]
        answer = find_differences(replicas, "t", COMPACTED, ReadDepth.DIGESTS)
    told = {
        at for each in answer.differences for at in range(each.first_offset, each.last_offset + 1)
    }
    assert {each.kind for each in answer.differences} <= {DifferenceKind.COMPACTION}
    assert told == lost


@pytest.mark.sampled(5)
@pytest.mark.item("REP-12")
@pytest.mark.parametrize("golden", goldens("clean-*"), ids=lambda golden: golden.name)
def test_nothing_is_told_of_logs_that_kafka_cleaned_apart(golden, tmp_path: Path):
    before = golden.unpack(tmp_path / "1")
    after = golden.unpack(tmp_path / "2", Side.AFTER)
    replicas = [rest(before, 1), rest(after, 2)]
    for look in (ReadDepth.HEADERS, ReadDepth.DIGESTS):
        answer = find_differences(replicas, "t", COMPACTED, look)
        assert kinds(answer) == []


@pytest.mark.item("REP-12")
@pytest.mark.parametrize("look", [ReadDepth.HEADERS, ReadDepth.DIGESTS])
def test_a_flip_a_gap_and_an_epoch_are_named_by_their_places(tmp_path: Path, look: ReadDepth):
    whole = batches_of(9)
    size = len(encode_batch(whole[0]))
    changed = [batch for batch in whole if batch.base_offset != 12]
    changed[6] = replace(changed[6], leader_epoch=1)
    logs = [
        rest(write_replica(tmp_path, 1, whole), 1),
        rest(write_replica(tmp_path, 2, changed, rolls=(6,)), 2),
    ]
    file = Path(logs[1].place.directory, LOG)
    flip(file, size + 70)
    answer = find_differences(logs, "t", None, look)
    expected = [("missing", 12, 14, 2), ("epoch", 21, 23, 2)]
    if look is ReadDepth.DIGESTS:
        expected.append(("bytes", 3, 5, 2))
    assert sorted(kinds(answer)) == sorted(expected)
    places = {
        each.kind.value: (each.side.file, each.side.position, each.other.file, each.other.position)
        for each in answer.differences
    }
    second = "00000000000000000006.log"
    assert places["missing"] == (second, 2 * size, LOG, 4 * size)
    assert places["epoch"] == (second, 4 * size, LOG, 7 * size)
    if look is ReadDepth.DIGESTS:
        assert places["bytes"] == (LOG, size, LOG, size)
        (told,) = (each for each in answer.differences if each.kind is DifferenceKind.BYTES)
        assert told.message == "the checksum is wrong at broker 2"
    epochs = [each for each in answer.differences if each.kind is DifferenceKind.EPOCH]
    assert [(each.side.epoch, each.other.epoch) for each in epochs] == [(1, 0)]


@pytest.mark.item("REP-12")
def test_only_what_two_share_against_the_first_is_told_of_them_again(tmp_path: Path):
    whole = batches_of(4)
    other = [replace(batch, leader_epoch=batch.base_offset // 9) for batch in whole]
    logs = [
        rest(write_replica(tmp_path, 1, whole), 1),
        rest(write_replica(tmp_path, 2, other), 2),
        rest(write_replica(tmp_path, 3, whole[:3]), 3),
        rest(write_replica(tmp_path, 4, other), 4),
    ]
    answer = find_differences(logs, "t", None, ReadDepth.DIGESTS)
    # Brokers 2 and 4 agree; broker 3 lacks what broker 1 has, and what they have.
    assert sorted(kinds(answer)) == [
        ("epoch", 9, 11, 2),
        ("epoch", 9, 11, 4),
        *[("missing", 9, 11, 3)] * 3,
    ]


def test_an_offset_that_was_flipped_is_named_and_nothing_else(tmp_path: Path):
    whole = batches_of(40)
    size = len(encode_batch(whole[0]))
    logs = [rest(write_replica(tmp_path, broker, whole), broker) for broker in (1, 2)]
    for position in (3, 7):  # far above, and into the neighbours
        file = Path(logs[1].place.directory, LOG)
        shutil.copy(Path(logs[0].place.directory, LOG), file)
        content = bytearray(file.read_bytes())
        content[5 * size + position] ^= 0x40
        file.write_bytes(content)
        answer = find_differences(logs, "t", None, ReadDepth.DIGESTS)
        assert kinds(answer) == [("bytes", 15, 17, 2)]
        (told,) = answer.differences
        assert (told.side.position, told.other.position) == (5 * size, 5 * size)


def test_equal_damage_is_no_difference(tmp_path: Path):
    logs = [rest(write_replica(tmp_path, broker, batches_of(5)), broker) for broker in (1, 2)]
    for log in logs:
        flip(Path(log.place.directory, LOG), 70)
    answer = find_differences(logs, "t", None, ReadDepth.DIGESTS)
    assert kinds(answer) == []


def test_a_torn_tail_is_a_finding_and_what_is_before_it_is_compared(tmp_path: Path):
    whole = batches_of(5)
    logs = [rest(write_replica(tmp_path, 1, whole), 1)]
    directory = write_replica(tmp_path, 2, whole)
    content = (directory / LOG).read_bytes()
    (directory / LOG).write_bytes(content[:-1])
    logs.append(rest(directory, 2))
    for look in (None, ReadDepth.HEADERS, ReadDepth.DIGESTS):
        answer = find_differences(logs, "t", None, look)
        assert kinds(answer) == [("missing", 12, 14, 2)]
        assert ((Code.TORN_TAIL, 2) in codes(answer)) == (look is not None)
    for zeros in (b"", bytes(4096)):
        (directory / LOG).write_bytes(content + zeros)
        answer = find_differences([logs[0], rest(directory, 2)], "t", None, ReadDepth.DIGESTS)
        assert (kinds(answer), answer.findings) == ([], ())


@pytest.mark.item("REP-12")
def test_sums_know_nothing_of_segments_and_differ_where_batches_do(tmp_path: Path):
    whole = batches_of(60)
    logs = [
        rest(write_replica(tmp_path, 1, whole), 1),
        rest(write_replica(tmp_path, 2, whole, rolls=(30, 90, 120)), 2),
    ]
    ranges = OffsetRanges(0, 12, 4)
    sums = [digest_log(log, ranges)[0] for log in logs]
    assert not find_unequal(sums).any()
    assert sums[0].any(axis=1).all()
    size = len(encode_batch(whole[0]))
    flip(Path(logs[1].place.directory, "00000000000000000090.log"), 2 * size + 80)
    sums = [digest_log(log, ranges)[0] for log in logs]
    unequal = find_unequal(sums)
    assert np.flatnonzero(unequal).tolist() == [96 >> 4]
    bounds = ranges.bounds(unequal)
    assert bounds == [(96, 112)]
    answer = find_differences(logs, "t", None, ReadDepth.DIGESTS, ranges=bounds)
    assert kinds(answer) == [("bytes", 96, 98, 2)]
    assert answer.read_bytes < 2 * 60 * size
    assert answer.findings == ()


def test_ranges_have_a_digest_for_much_data():
    ranges = OffsetRanges.of(1_000_000, 11_000_000, 1 << 30)
    assert ranges.first << ranges.shift <= 1_000_000
    assert (ranges.first + ranges.count) << ranges.shift >= 11_000_000
    assert 16 * ranges.count * 1000 <= 1 << 30
    assert OffsetRanges.of(0, 0, 0).count == 1


@pytest.mark.item("REP-06")
@pytest.mark.parametrize(
    ("checkpoints", "code"),
    [
        ({"high_watermark": 16}, Code.HIGH_WATERMARK_BEYOND_END),
        ({"recovery_point": 16}, Code.RECOVERY_POINT_BEYOND_END),
        ({"log_start_offset": 16}, Code.LOG_START_BEYOND_END),
        ({"cleaner_offset": 16}, Code.CLEANER_POINT_OUTSIDE_LOG),
        ({"log_start_offset": 6, "cleaner_offset": 3}, Code.CLEANER_POINT_OUTSIDE_LOG),
    ],
)
def test_a_checkpoint_outside_of_its_log_is_a_finding(tmp_path: Path, checkpoints, code):
    directory = write_replica(tmp_path, 1, batches_of(5))
    inside = PartitionCheckpoints(
        log_start_offset=0, high_watermark=15, recovery_point=15, cleaner_offset=15
    )
    for look in (None, ReadDepth.HEADERS, ReadDepth.DIGESTS):
        good = find_differences([rest(directory, 1, inside)], "t", None, look)
        assert good.findings == ()
        bad = find_differences(
            [rest(directory, 1, replace(inside, **checkpoints))], "t", None, look
        )
        assert (code, 1) in codes(bad)


def epochs_of(tmp_path: Path, text: str | None, *, leader: int = 1) -> dict[str, set]:
    """Return what is found at each level in two replicas, the second with this epoch file."""
    batches = [*batches_of(3), *(replace(b, leader_epoch=2) for b in batches_of(5)[3:])]
    state = replace(COMPACTED, is_compacted=False, leader=leader, leader_epoch=3)
    found = {}
    for look in (None, ReadDepth.HEADERS):
        shutil.rmtree(tmp_path / "1", ignore_errors=True)
        shutil.rmtree(tmp_path / "2", ignore_errors=True)
        logs = []
        for broker in (1, 2):
            directory = write_replica(tmp_path, broker, batches)
            if broker == 2:
                file = directory / "leader-epoch-checkpoint"
                if text is None:
                    file.unlink()
                else:
                    file.write_text(text)
            logs.append(rest(directory, broker))
        answer = find_differences(logs, "t", state, look)
        found["offsets" if look is None else "headers"] = codes(answer)
    return found


@pytest.mark.thorough
@pytest.mark.item("REP-07")
def test_an_epoch_file_that_lies_is_a_finding(tmp_path: Path):
    assert epochs_of(tmp_path, "0\n2\n0 0\n2 9\n") == {"offsets": set(), "headers": set()}
    wrong = epochs_of(tmp_path, "0\n2\n0 0\n2 6\n")
    assert wrong == {"offsets": set(), "headers": {(Code.EPOCH_FILE_WRONG, 2)}}
    fallen = epochs_of(tmp_path, "0\n3\n0 0\n2 9\n1 12\n")
    assert (Code.EPOCH_FILE_NOT_RISING, 2) in fallen["offsets"]
    for text in (None, "0\n2\n0 0\n", "lies"):
        found = epochs_of(tmp_path, text)
        code = Code.EPOCH_FILE_MISSING if text is None else Code.EPOCH_FILE_BROKEN
        assert found == {"offsets": {(code, 2)}, "headers": {(code, 2)}}


@pytest.mark.item("REP-07")
def test_an_epoch_without_records_stands_only_in_its_leaders_file(tmp_path: Path):
    empty = "0\n3\n0 0\n2 9\n3 15\n"
    assert epochs_of(tmp_path, empty, leader=2)["offsets"] == set()
    assert epochs_of(tmp_path, empty, leader=1)["offsets"] == {(Code.EPOCH_FILE_WRONG, 2)}


@pytest.mark.item("REP-07")
def test_epochs_of_batches_never_fall(tmp_path: Path):
    batches = batches_of(5)
    batches[1] = replace(batches[1], leader_epoch=1)
    log = rest(write_replica(tmp_path, 1, batches), 1)
    for look in (ReadDepth.HEADERS, ReadDepth.DIGESTS):
        assert (Code.EPOCH_GOES_BACK, 1) in codes(find_differences([log], "t", None, look))


@pytest.mark.item("REP-07", "REP-12")
def test_offsets_tell_tails_and_epochs_without_reading_batches(tmp_path: Path):
    mine = [*batches_of(3), *(replace(b, leader_epoch=1) for b in batches_of(5)[3:])]
    theirs = [*batches_of(3), *(replace(b, leader_epoch=2) for b in batches_of(8)[3:])]
    size = len(encode_batch(mine[0]))
    logs = [
        rest(write_replica(tmp_path, 1, mine), 1),
        rest(write_replica(tmp_path, 2, theirs, rolls=(15,)), 2),
    ]
    answer = find_differences(logs, "t", None, None)
    assert kinds(answer) == [("epoch", 9, 14, 1), ("missing", 15, 23, 1)]
    epoch, missing = answer.differences
    assert (epoch.side.position, epoch.other.position) == (3 * size, 3 * size)
    assert (epoch.side.epoch, epoch.other.epoch) == (1, 2)
    assert (missing.side.file, missing.side.position) == (LOG, 5 * size)
    assert (missing.other.file, missing.other.position) == ("00000000000000000015.log", 0)
    assert answer.read_bytes == 0


def test_a_replica_that_is_missing_lacks_everything(tmp_path: Path):
    place = ReplicaPlace(
        broker=2, root="/b2", directory="", kind=DirectoryKind.PARTITION, is_clean=True
    )
    logs: list[RestingLog] = [
        rest(write_replica(tmp_path, 1, batches_of(5)), 1),
        observe_log(place),
    ]
    for look in (None, ReadDepth.HEADERS, ReadDepth.DIGESTS):
        assert kinds(find_differences(logs, "t", None, look)) == [("missing", 0, 14, 2)]


@pytest.mark.thorough
def test_many_ranges_are_counted_beyond_those_that_are_told(tmp_path: Path):
    whole = batches_of(2400, size=1)
    logs = [
        rest(write_replica(tmp_path, 1, whole), 1),
        rest(write_replica(tmp_path, 2, whole[::2]), 2),
    ]
    answer = find_differences(logs, "t", None, ReadDepth.HEADERS)
    assert (len(answer.differences), answer.untold) == (1000, 200)
