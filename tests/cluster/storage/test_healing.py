"""A healed log has a donor's bytes where it was damaged, and its own everywhere else."""

import json
import random
import resource
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.cluster.healing import DamageState, Healing, plan_healing
from storage_core.cluster.healing_commit import HealedPartition
from storage_core.cluster.resting_log import RestingLog
from storage_core.commit import CommitPlan, commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import ChangedWhileReadError, StorageError
from storage_core.filenames import LEADER_EPOCH_FILE
from storage_core.json_values import from_json, to_json
from storage_core.log.loaded_log import LoadedLog
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.store import LocalStore
from tests.cluster.storage.test_differences import rest, write_replica
from tests.kit.builders import BatchSpec, RecordSpec, in_a_row
from tests.kit.legacy import LegacyMessage, encode_message

NOW_MS = 1_700_000_900_000
ROLLS = (20, 40, 60)
END = 80


def batches(*, epoch: int = 3, fill: int = 0) -> list[BatchSpec]:
    """Return 16 batches of 5 records, with values that differ in length."""
    return in_a_row(
        BatchSpec(
            records=tuple(
                RecordSpec(key=b"key-%d" % number, value=bytes([number + fill]) * (40 + 7 * number))
                for _ in range(5)
            ),
            leader_epoch=epoch,
        )
        for number in range(16)
    )


@pytest.fixture
def pair(tmp_path) -> tuple[Path, Path]:
    """Return a target and a donor with the same log."""
    return tuple(write_replica(tmp_path, broker, batches(), rolls=ROLLS) for broker in (1, 2))


def log_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.log"))}


def rest_of(directory: Path, broker: int = 1, **checkpoints: int) -> RestingLog:
    return rest(directory, broker, PartitionCheckpoints(**checkpoints))


def load(store, *, is_clean: bool) -> LoadedLog:
    return plan_recovery(
        store,
        config=LogConfig(),
        cleaner=CleanerConfig(),
        now_ms=NOW_MS,
        clean_shutdown=is_clean,
    )


def apply(directory: Path, healing: Healing, *, is_clean: bool = True) -> LoadedLog:
    """Apply a healing as a task does, and return the log."""
    store = LocalStore(directory)
    healed = HealedPartition(store, healing.segments, healing.wrong_epochs)
    log = load(healed.store, is_clean=is_clean)
    operations = healed.write(healed.plan(log.operations), directory.parent / "scratch")
    commit(CommitPlan(location=store.location, operations=operations), store)
    return log


def change(file: Path, position: int, data: bytes, *, removed: int | None = None) -> None:
    content = file.read_bytes()
    end = position + (len(data) if removed is None else removed)
    file.write_bytes(content[:position] + data + content[end:])


def segment(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.log"


def third_batch(directory: Path, base: int = 20) -> tuple[int, int]:
    """Return position and size of a segment's third batch."""
    content = segment(directory, base).read_bytes()
    position = 0
    for _ in range(2):
        position += 12 + struct.unpack_from(">i", content, position + 8)[0]
    return position, 12 + struct.unpack_from(">i", content, position + 8)[0]


def bad_checksum(directory: Path) -> None:
    position, size = third_batch(directory)
    change(segment(directory, 20), position + size - 3, b"\xff")


def zeros(directory: Path) -> None:
    position, size = third_batch(directory)
    change(segment(directory, 20), position - 30, bytes(size))


def noise(directory: Path) -> None:
    position, size = third_batch(directory)
    data = np.random.default_rng(31).bytes(size)
    change(segment(directory, 20), position - 100, data)


def torn_middle(directory: Path) -> None:
    position, size = third_batch(directory)
    change(segment(directory, 20), position + 20, b"", removed=size)


def first_offset_jumps(directory: Path) -> None:
    change(segment(directory, 20), third_batch(directory)[0], struct.pack(">q", 37))


def first_offset_falls(directory: Path) -> None:
    change(segment(directory, 20), third_batch(directory)[0], struct.pack(">q", 3))


def epoch_jumps(directory: Path) -> None:
    position, _ = third_batch(directory)
    change(segment(directory, 20), position + 12, struct.pack(">i", 1_000_000))


def epoch_falls(directory: Path) -> None:
    position, _ = third_batch(directory)
    change(segment(directory, 20), position + 12, struct.pack(">i", 2))


def last_epoch_jumps(directory: Path) -> None:
    position = segment(directory, 60).read_bytes().rindex(b"\0\0\0\3\2", 0, -600)
    change(segment(directory, 60), position, struct.pack(">i", 1_000_000))


def length_grows(directory: Path) -> None:
    position, size = third_batch(directory)
    change(segment(directory, 20), position + 8, struct.pack(">i", 2 * size))


def end_of_segment(directory: Path) -> None:
    content = segment(directory, 20).read_bytes()
    segment(directory, 20).write_bytes(content[:-200])


def garbage_behind(directory: Path) -> None:
    with segment(directory, 20).open("ab") as file:
        file.write(b"\0" * 300 + b"garbage")


def beginning_of_log(directory: Path) -> None:
    change(segment(directory, 0), 0, bytes(150))


def segment_of_zeros(directory: Path) -> None:
    file = segment(directory, 20)
    file.write_bytes(bytes(file.stat().st_size))


def empty_segment(directory: Path) -> None:
    segment(directory, 40).write_bytes(b"")


def swapped_segments(directory: Path) -> None:
    one, two = segment(directory, 20), segment(directory, 40)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def missing_segment(directory: Path) -> None:
    segment(directory, 40).unlink()


def two_segments_missing(directory: Path) -> None:
    segment(directory, 20).unlink()
    segment(directory, 40).unlink()


def end_of_log(directory: Path) -> None:
    content = segment(directory, 60).read_bytes()
    segment(directory, 60).write_bytes(content[:-1])


def zeros_at_the_end(directory: Path) -> None:
    file = segment(directory, 60)
    change(file, file.stat().st_size - 500, bytes(4000))


def several(directory: Path) -> None:
    bad_checksum(directory)
    empty_segment(directory)
    beginning_of_log(directory)
    end_of_log(directory)


ACCIDENTS: list[Callable[[Path], None]] = [
    *(bad_checksum, zeros, noise, torn_middle, first_offset_jumps, first_offset_falls),
    *(epoch_jumps, epoch_falls),
    *(length_grows, end_of_segment, garbage_behind, beginning_of_log, segment_of_zeros),
    *(empty_segment, swapped_segments, missing_segment, two_segments_missing, end_of_log),
    *(zeros_at_the_end, several),
]


@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("accident", ACCIDENTS, ids=lambda accident: accident.__name__)
def test_the_log_is_the_donors_again(pair, accident, is_clean):
    target, donor = pair
    whole = log_of(donor)
    accident(target)
    assert log_of(target) != whole
    healing = plan_healing(rest_of(target), [rest_of(donor, 2, high_watermark=END)])
    assert {each.state for each in healing.all_damage} == {DamageState.FILLED}
    log = apply(target, healing, is_clean=is_clean)
    assert log_of(target) == whole
    assert (log.log_end_offset, log.repairs.cuts) == (END, ())
    again = load(LocalStore(target), is_clean=False)
    assert (again.repairs.cuts, again.log_end_offset) == ((), END)
    for index in sorted(donor.glob("*.timeindex")) + sorted(donor.glob("*.index")):
        assert (target / index.name).read_bytes() == index.read_bytes(), index.name
    assert {path.name for path in target.iterdir()} >= {path.name for path in donor.iterdir()}
    assert not [path for path in target.iterdir() if path.name.endswith((".swap", ".cleaned"))]


def test_a_log_without_damage_is_left(pair):
    healing = plan_healing(rest_of(pair[0]), [rest_of(pair[1], 2, high_watermark=END)])
    assert healing == Healing()


def state_of(healing: Healing) -> DamageState:
    (answer,) = healing.all_damage
    assert bool(healing.segments) == (answer.state is DamageState.FILLED) == (not answer.reason)
    return answer.state


def without_records(directory: Path, base: int, *gone: int) -> None:
    """Take batches out of a segment, as a cleaner does, by their numbers in it."""
    content, position, kept = segment(directory, base).read_bytes(), 0, []
    while position < len(content):
        size = 12 + struct.unpack_from(">i", content, position + 8)[0]
        kept.append(content[position : position + size])
        position += size
    data = b"".join(batch for number, batch in enumerate(kept) if number not in gone)
    segment(directory, base).write_bytes(data)


def another_epoch(directory: Path) -> None:
    """The epoch of the batch before the damage: it lies outside of the checksum."""
    position, _ = third_batch(directory)
    first = 12 + struct.unpack_from(">i", segment(directory, 20).read_bytes(), 8)[0]
    assert first < position
    change(segment(directory, 20), first + 12, struct.pack(">i", 2))


def ends_before(directory: Path) -> None:
    for base in (20, 40, 60):
        segment(directory, base).unlink()


@pytest.mark.parametrize(
    ("accident", "state"),
    [
        (bad_checksum, DamageState.DONOR_DAMAGED),
        (another_epoch, DamageState.DONOR_DIVERGED),
        (ends_before, DamageState.DONOR_LACKS),
    ],
)
def test_a_donor_that_has_not_the_same_around_the_damage_heals_nothing(pair, accident, state):
    target, donor = pair
    accident(donor)
    bad_checksum(target)
    assert state_of(plan_healing(rest_of(target), [rest_of(donor, 2)])) is state


@pytest.mark.parametrize(
    ("flip", "accident"),
    [(epoch_jumps, bad_checksum), (epoch_falls, zeros), (last_epoch_jumps, end_of_log)],
    ids=["above", "below", "the last batch"],
)
def test_an_epoch_that_flipped_at_a_donor_is_not_healed_in(tmp_path, pair, flip, accident):
    """The checksum does not cover it; the replica would never be in sync again."""
    target, donor = pair
    other = write_replica(tmp_path, 3, batches(), rolls=ROLLS)
    whole = log_of(other)
    accident(target)
    flip(donor)
    assert log_of(donor) != whole
    only = plan_healing(rest_of(target), [rest_of(donor, 2, high_watermark=END)])
    assert state_of(only) is DamageState.DONOR_DAMAGED
    assert "which neither the batches around it nor the epoch files have" in (
        only.all_damage[0].reason
    )
    donors = [rest_of(donor, 2, high_watermark=END), rest_of(other, 3, high_watermark=END)]
    healing = plan_healing(rest_of(target), donors)
    assert state_of(healing) is DamageState.FILLED
    apply(target, healing)
    assert log_of(target) == whole


@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
def test_an_epoch_that_a_start_has_believed_goes_out_of_the_epoch_file(tmp_path, is_clean):
    """It has removed the true ones behind it."""
    specs = [
        replace(spec, leader_epoch=3 if number < 10 else 4) for number, spec in enumerate(batches())
    ]
    target, donor = (write_replica(tmp_path, broker, specs, rolls=ROLLS) for broker in (1, 2))
    whole, epochs = log_of(donor), (donor / LEADER_EPOCH_FILE).read_text()
    assert epochs == "0\n2\n3 0\n4 50\n"
    epoch_jumps(target)
    (target / LEADER_EPOCH_FILE).write_text("0\n2\n3 0\n1000000 30\n")
    healing = plan_healing(rest_of(target), [rest_of(donor, 2, high_watermark=END)])
    assert (state_of(healing), healing.wrong_epochs) == (DamageState.FILLED, (1_000_000,))
    apply(target, healing, is_clean=is_clean)
    assert log_of(target) == whole
    assert (target / LEADER_EPOCH_FILE).read_text() == epochs


def test_without_a_donor_damage_is_named(pair):
    bad_checksum(pair[0])
    healing = plan_healing(rest_of(pair[0]), [])
    assert state_of(healing) is DamageState.NO_DONOR
    (answer,) = healing.all_damage
    assert (answer.first_offset, answer.end_offset) == (30, 35)
    assert (answer.file, answer.position) == (segment(pair[0], 20).name, third_batch(pair[1])[0])


def test_damage_of_which_one_place_has_no_donor_is_healed_at_the_other(pair):
    target, donor = pair
    whole = log_of(target)
    bad_checksum(donor)
    bad_checksum(target)
    missing_segment(target)
    left = log_of(target)
    healing = plan_healing(rest_of(target), [rest_of(donor, 2)])
    assert [each.state for each in healing.all_damage] == [
        DamageState.DONOR_DAMAGED,
        DamageState.FILLED,
    ]
    log = apply(target, healing)
    name = segment(target, 40).name
    assert log_of(target) == {**left, name: whole[name]}
    assert log.repairs.cuts == ()


@pytest.mark.parametrize(
    ("quorum", "same", "state"),
    [
        (0, 1, DamageState.DONORS_DIFFER),
        (1, 1, DamageState.DONORS_DIFFER),
        (0, 2, DamageState.DONORS_DIFFER),
        (1, 2, DamageState.FILLED),
        (2, 2, DamageState.FILLED),
        (3, 2, DamageState.DONORS_DIFFER),
    ],
)
def test_donors_that_differ_heal_nothing_unless_most_agree(tmp_path, pair, quorum, same, state):
    """One more donor has another batch in the place of the damage, and the same around it."""
    target, donor = pair
    specs, others = batches(), batches(fill=50)
    other = write_replica(tmp_path, 9, [*specs[:6], others[6], *specs[7:]], rolls=ROLLS)
    bad_checksum(target)
    donors = [rest_of(donor, broker) for broker in range(2, 2 + same)] + [rest_of(other, 9)]
    assert state_of(plan_healing(rest_of(target), donors, quorum=quorum)) is state


def test_the_end_is_taken_as_far_as_it_is_committed(pair):
    target, donor = pair
    end_of_log(target)
    first = segment(target, 60).read_bytes()
    segment(target, 60).write_bytes(first[: third_batch(target, 60)[0]])
    assert plan_healing(rest_of(target), [rest_of(donor, 2)]) == Healing()
    assert plan_healing(rest_of(target), [rest_of(donor, 2, high_watermark=70)]) == Healing()
    # It is only behind: its broker fetches the rest.
    assert plan_healing(rest_of(target), [rest_of(donor, 2, high_watermark=END)]) == Healing()
    healing = plan_healing(rest_of(target, high_watermark=75), [rest_of(donor, 2)])
    assert apply(target, healing).log_end_offset == 75


def test_donors_of_another_length_agree_at_the_end(tmp_path, pair):
    target, donor = pair
    shorter = write_replica(tmp_path, 3, batches()[:15], rolls=ROLLS)
    segment(target, 60).write_bytes(b"")
    lost = rest_of(target, high_watermark=END)
    donors = [rest_of(shorter, 3), rest_of(donor, 2)]
    assert state_of(plan_healing(lost, donors)) is DamageState.FILLED
    apply(target, plan_healing(lost, donors))
    assert log_of(target) == log_of(donor)


@pytest.mark.parametrize(
    ("own", "other", "state"),
    [
        (60, 60, DamageState.FILLED),
        (40, 60, DamageState.FILLED),
        (39, 60, DamageState.COMPACTED_APART),
        (60, 40, DamageState.COMPACTED_APART),
        (None, 60, DamageState.DONOR_DIVERGED),
    ],
)
def test_logs_compacted_apart_exchange_whole_segments_that_both_have_clean(pair, own, other, state):
    target, donor = pair
    without_records(target, 20, 0)
    without_records(donor, 20, 1, 3)
    bad_checksum(target)
    before = log_of(target)
    cleaner = {} if own is None else {"cleaner_offset": own}
    healing = plan_healing(rest_of(target, **cleaner), [rest_of(donor, 2, cleaner_offset=other)])
    others = {DamageState.COMPACTED_APART} if own is None else set()
    assert {each.state for each in healing.all_damage} == {state} | others
    if state is DamageState.FILLED:
        apply(target, healing)
        name = segment(target, 20).name
        assert log_of(target) == before | {name: log_of(donor)[name]}


@pytest.mark.parametrize(
    ("own", "other", "state"),
    [
        (60, None, DamageState.COMPACTED_APART),
        (60, 30, DamageState.COMPACTED_APART),
        (25, None, DamageState.FILLED),
        (60, 60, DamageState.FILLED),
    ],
)
def test_a_donor_less_clean_brings_back_no_value_whose_tombstone_is_gone(pair, own, other, state):
    """The donor has every batch there, also one that the target's cleaner took."""
    target, donor = pair
    size = third_batch(target)[0] // 2
    change(segment(target, 20), size, b"", removed=size + 30)
    cleaner = {} if other is None else {"cleaner_offset": other}
    healing = plan_healing(rest_of(target, cleaner_offset=own), [rest_of(donor, 2, **cleaner)])
    assert state_of(healing) is state


@pytest.mark.parametrize(
    ("own", "other", "state"),
    [
        (None, 60, DamageState.COMPACTED_APART),
        (20, 60, DamageState.COMPACTED_APART),
        (60, 60, DamageState.FILLED),
    ],
)
def test_a_batch_out_of_which_a_cleaner_took_a_tombstone_heals_no_log_that_has_the_value(
    tmp_path, pair, own, other, state
):
    """The batch has its offsets still: a cleaner keeps the first and the last one."""
    target, _ = pair
    specs = batches()
    deltas = tuple(replace(each, offset_delta=n) for n, each in enumerate(specs[6].records))
    specs[6] = replace(specs[6], records=(deltas[0], deltas[4]))
    donor = write_replica(tmp_path, 9, specs, rolls=ROLLS)
    bad_checksum(target)
    cleaner = {} if own is None else {"cleaner_offset": own}
    donors = [rest_of(donor, 9, cleaner_offset=other)]
    assert state_of(plan_healing(rest_of(target, **cleaner), donors)) is state


@pytest.mark.thorough
def test_there_may_be_more_damage_than_open_files(tmp_path):
    specs = in_a_row(
        BatchSpec(records=(RecordSpec(key=b"k", value=b"v" * 100),), leader_epoch=3)
        for _ in range(300)
    )
    target, donor = (write_replica(tmp_path, broker, specs) for broker in (1, 2))
    whole = segment(donor, 0).read_bytes()
    size = len(whole) // len(specs)
    content = bytearray(whole)
    for number in range(1, len(specs) - 1, 2):
        content[number * size + 90] ^= 1
    segment(target, 0).write_bytes(content)
    healing = plan_healing(rest_of(target), [rest_of(donor, 2)])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = len(list(Path("/proc/self/fd").iterdir())) + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        apply(target, healing)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert segment(target, 0).read_bytes() == whole


def test_a_piece_of_another_directory_needs_a_checksum(pair):
    bad_checksum(pair[0])
    text = to_json(plan_healing(rest_of(pair[0]), [rest_of(pair[1], 2)]))
    plan = json.loads(text)
    (piece,) = (each for each in plan["segments"][0]["pieces"] if each["directory"])
    piece["crc"] = None
    with pytest.raises(ValueError, match="has no checksum"):
        from_json(Healing, json.dumps(plan))


def test_a_donor_whose_segment_is_gone_since_the_plan_is_refused(pair):
    target, donor = pair
    bad_checksum(target)
    healing = plan_healing(rest_of(target), [rest_of(donor, 2)])
    segment(donor, 20).unlink()
    with pytest.raises(StorageError, match=segment(donor, 20).name):
        apply(target, healing)


def test_the_time_of_a_planned_segment_fits_into_a_file(pair):
    bad_checksum(pair[0])
    plan = json.loads(to_json(plan_healing(rest_of(pair[0]), [rest_of(pair[1], 2)])))
    plan["segments"][0]["modified_ms"] = 2**62
    with pytest.raises(ValueError, match="modified_ms"):
        from_json(Healing, json.dumps(plan))


def test_logs_that_were_compacted_alike_are_healed_by_the_bytes_alone(pair):
    target, donor = pair
    for directory in pair:
        without_records(directory, 20, 0)
        without_records(directory, 40, 1)
    bad_checksum(target)
    healing = plan_healing(rest_of(target, cleaner_offset=60), [rest_of(donor, 2)])
    assert state_of(healing) is DamageState.FILLED
    apply(target, healing)
    assert log_of(target) == log_of(donor)


def test_a_donor_that_changed_since_the_plan_is_refused(pair):
    target, donor = pair
    bad_checksum(target)
    healing = plan_healing(rest_of(target), [rest_of(donor, 2)])
    before = log_of(target)
    bad_checksum(donor)
    with pytest.raises(ChangedWhileReadError, match=segment(donor, 20).name):
        apply(target, healing)
    assert log_of(target) == before


def test_a_segment_with_damage_that_nothing_fills_stays_as_it_is(pair):
    target, donor = pair
    bad_checksum(donor)
    bad_checksum(target)
    change(segment(target, 20), 0, bytes(30))
    healing = plan_healing(rest_of(target), [rest_of(donor, 2)])
    assert [each.state for each in healing.all_damage] == [
        DamageState.SEGMENT_LEFT,
        DamageState.DONOR_DAMAGED,
    ]
    assert healing.segments == ()


def test_damage_beside_segments_that_are_taken_whole_is_named_and_healed_too(pair):
    """At the head of the next one: the batch before it is in the segment that is taken."""
    target, donor = pair
    without_records(target, 20, 1)
    without_records(donor, 20, 3)
    change(segment(target, 20), third_batch(target)[0] - 100, bytes(10))
    change(segment(target, 40), 0, bytes(30))
    before = log_of(target)
    healing = plan_healing(
        rest_of(target, cleaner_offset=60), [rest_of(donor, 2, cleaner_offset=60)]
    )
    assert {each.state for each in healing.all_damage} == {DamageState.FILLED}
    files = [segment(target, base).name for base in (20, 40)]
    assert [each.file for each in healing.all_damage] == files
    apply(target, healing)
    assert log_of(target) == before | {name: log_of(donor)[name] for name in files}


def injure(directory: Path, chance: random.Random) -> None:
    """Do something bad to a segment, at random."""
    files = sorted(directory.glob("*.log"))
    file = chance.choice(files)
    size = file.stat().st_size
    position = chance.randrange(max(size, 1))
    match chance.randrange(5):
        case 0:
            change(file, position, chance.randbytes(chance.choice([1, 30, 900])))
        case 1:
            change(file, position, bytes(chance.choice([1, 30, 900])))
        case 2:
            change(file, position, b"", removed=chance.choice([1, 30, 900]))
        case 3:
            file.write_bytes(b"")
        case 4 if file != files[0]:
            file.unlink()


@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(40))
def test_whatever_happened_to_a_log_with_other_segments_than_its_donors(tmp_path, seed):
    """What is healed is the donor's log again; what is not lost no batch by it."""
    chance = random.Random(seed)
    specs = batches()
    starts = [spec.base_offset for spec in specs[1:]]
    target, donor = (
        write_replica(tmp_path, broker, specs, rolls=sorted(chance.sample(starts, 4)))
        for broker in (1, 2)
    )
    whole = b"".join(log_of(target).values())
    for _ in range(chance.randint(1, 4)):
        injure(target, chance)
    left = log_of(target)
    healing = plan_healing(rest_of(target, high_watermark=END), [rest_of(donor, 2)])
    if not healing.segments:
        assert b"".join(left.values()) == whole or healing.all_damage
        return
    log = apply(target, healing)
    assert {each.state for each in healing.all_damage} == {DamageState.FILLED}
    assert b"".join(log_of(target).values()) == whole
    assert (log.log_end_offset, log.repairs.cuts) == (END, ())
    assert load(LocalStore(target), is_clean=False).repairs.cuts == ()


def test_a_donor_of_an_epoch_before_that_of_the_lost_end_heals_nothing(tmp_path, pair):
    """The file of the log's epochs knows that a later leader wrote there."""
    target, _ = pair
    older = write_replica(tmp_path, 7, batches(), rolls=ROLLS)
    (target / "leader-epoch-checkpoint").write_text("0\n2\n3 0\n5 65\n")
    content = segment(target, 60).read_bytes()
    segment(target, 60).write_bytes(content[: third_batch(target, 60)[0] - 50])
    healing = plan_healing(rest_of(target, high_watermark=END), [rest_of(older, 7)])
    assert state_of(healing) is DamageState.DONOR_DIVERGED


def test_the_end_of_a_log_of_an_old_format_is_left_to_recovery(tmp_path):
    """Behind damage nobody finds its messages, which may be more than the donor has."""
    messages = b"".join(
        encode_message(LegacyMessage(offset=number, magic=1, value=b"v" * 90))
        for number in range(20)
    )
    for broker in (1, 2):
        directory = write_replica(tmp_path, broker, [])
        segment(directory, 0).write_bytes(messages)
    change(segment(tmp_path / "1" / "t-0", 0), 1000, b"\xff" * 40)
    log, donor = (rest_of(tmp_path / str(broker) / "t-0", broker) for broker in (1, 2))
    log = replace(
        log, place=replace(log.place, checkpoints=PartitionCheckpoints(high_watermark=15))
    )
    assert state_of(plan_healing(log, [donor])) is DamageState.NO_DONOR


def test_a_torn_end_before_an_empty_segment_is_no_room_to_grow(pair):
    """The bytes that are no batch lie in the segment before the last one."""
    target, donor = pair
    content = segment(target, 40).read_bytes()
    segment(target, 40).write_bytes(content[:-200] + b"\x5a" * 200)
    segment(target, 60).write_bytes(b"")
    healing = plan_healing(rest_of(target), [rest_of(donor, 2, high_watermark=END)])
    assert state_of(healing) is DamageState.FILLED
    apply(target, healing)
    assert b"".join(log_of(target).values()) == b"".join(log_of(donor).values())
