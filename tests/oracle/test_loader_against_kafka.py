"""Random logs after random accidents, loaded by Apache Kafka and by us from the same bytes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from storage_core.config import LogConfig
from storage_core.errors import PylogError
from storage_core.filenames import TEMPORARY_SUFFIX
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.file_damage import Accident, Damage, damage
from tests.oracle.jvm import KafkaFailure
from tests.oracle.known_differences import (
    has_bad_legacy_set,
    has_long_index,
    is_loaded_otherwise,
)
from tests.oracle.loading import (
    LoadAnswer,
    PlayedLoad,
    TruncateAnswer,
    load_by_kafka,
    load_by_us,
    play_loads,
    play_truncations,
    truncate_by_us,
)
from tests.oracle.log_writer import Append, Contents, EndTransaction, Roll, Step
from tests.oracle.random_loads import LoadCase, LoadPlan, load_plans
from tests.oracle.random_logs import EXAMPLES, against_kafka, scratch_folder
from tests.oracle.rounds import DIRECTORY

ONE_ABORTED = 34
UNIQUE = "0123456789abcdef0123456789abcdef"

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


@pytest.mark.thorough
@settings(against_kafka, max_examples=min(EXAMPLES, 15))
@given(plan=load_plans())
def test_kafka_itself_loads_equal_copies_alike(plan: LoadPlan) -> None:
    """What else is compared here would mean nothing."""
    for played in loads_of(plan):
        if played.failure:
            with pytest.raises(KafkaFailure):
                load_by_kafka(played.before, played.task)
        else:
            assert load_by_kafka(played.before, played.task) == played.answer
            assert not differences(played)


@pytest.mark.parametrize(
    "accident",
    [
        Accident.TORN_LAST_LOG,
        Accident.BYTE_IN_LOG,
        Accident.SIDE_FILE_GONE,
        Accident.SIDE_FILE_PADDED,
        Accident.SNAPSHOT_STRAY,
        Accident.LEFTOVER_COPY,
    ],
    ids=lambda accident: accident.value,
)
def test_the_referee_sees_that_something_was_changed(accident, tmp_path):
    steps: list[Step] = []
    for number in range(20):
        contents = Contents(record_count=5, seed=number, keys=6)
        steps.append(Append(contents=contents, producer=number % 3))
        steps.extend([Roll()] if number % 6 == 0 else [])
    case = LoadCase(
        damages=(),
        interrupted_clean=None,
        recovery_point=0.5,
        log_start=0.0,
        offset_shift=0,
        clean_shutdown=True,
        wait_ms=0,
    )
    plan = LoadPlan(
        config={"index.interval.bytes": 200},
        rounds=(tuple(steps),),
        ends_cleanly=True,
        cases=(case,),
    )
    [played] = play_loads(plan, tmp_path)
    assert load_by_kafka(played.before, played.task) == played.answer
    assert not differences(played)
    for seed in range(10):
        damage(played.before, Damage(accident=accident, seed=seed))
    assert differences(played)


@pytest.mark.item("REC-01", "REC-02", "REC-03", "REC-04", "REC-05", "REC-06", "REC-07", "REC-08")
@pytest.mark.item("REC-09", "REC-10", "REC-11", "REC-12", "REC-13", "REC-14", "REC-15", "REC-16")
@pytest.mark.item("REC-17", "REC-18", "REC-19", "REC-20", "REC-21", "REC-23", "REC-24", "REC-25")
@pytest.mark.item("REC-26", "REC-27", "REC-28", "IDX-17", "IDX-19", "IDX-20", "PRD-14", "PRD-15")
@against_kafka
@given(plan=load_plans())
def test_any_log_after_any_accident_is_loaded_byte_for_byte_as_kafka_does(plan: LoadPlan) -> None:
    for played in loads_of(plan):
        compare_load(played)


def test_the_first_part_of_a_split_keeps_what_was_aborted_in_it(tmp_path):
    """Found while the segment is opened: Kafka replaces none but the files that it has anew."""
    contents = Contents(record_count=3, seed=1, keys=3)
    aborted = (
        Append(contents=contents, producer=1, transactional=True),
        EndTransaction(producer=1, commit=False),
    )
    far = (Roll(), Append(contents=contents, gap_before=2**31))
    case = LoadCase(
        damages=(Damage(accident=Accident.SEGMENTS_MERGED, seed=0),),
        interrupted_clean=None,
        recovery_point=1.0,
        log_start=0.0,
        offset_shift=0,
        clean_shutdown=True,
        wait_ms=0,
    )
    gone = Damage(accident=Accident.INDEXES_GONE, seed=0)
    cases = (replace(case, damages=(*case.damages, gone)), case)
    plan = LoadPlan(config={}, rounds=((*aborted, *far),), ends_cleanly=True, cases=cases)
    without, _ = played = list(play_loads(plan, tmp_path))
    assert (without.after / "00000000000000000000.txnindex").stat().st_size == ONE_ABORTED
    for one in played:
        assert one.answer is not None
        compare_load(one)


@pytest.mark.thorough
@pytest.mark.item("REC-22")
@pytest.mark.parametrize("state", ["delete", "future", "stray"])
@settings(against_kafka, max_examples=max(5, EXAMPLES // 6))
@given(plan=load_plans())
def test_so_are_those_in_other_states(state: str, plan: LoadPlan) -> None:
    """One that waits for its deletion is not repaired."""
    for played in loads_of(plan, f"{DIRECTORY}.{UNIQUE}-{state}"):
        compare_load(played)


@pytest.mark.thorough
@pytest.mark.item("IDX-15", "PRD-16", "CKP-12", "CKP-13")
@against_kafka
@given(plan=load_plans())
def test_logs_are_truncated_byte_for_byte_as_kafka_does(plan: LoadPlan) -> None:
    with scratch_folder() as scratch:
        for played in play_truncations(plan, scratch):
            compare_load(played)


def loads_of(plan: LoadPlan, name: str = DIRECTORY) -> Iterator[PlayedLoad]:
    with scratch_folder() as scratch:
        yield from play_loads(plan, scratch, name=name)


def differences(played: PlayedLoad) -> list[str]:
    found = compare_partitions(lasting(played.after), lasting(played.before), Exactness.BYTES)
    return [str(difference) for difference in found]


def lasting(directory: Path) -> dict[str, bytes]:
    """Return all files but the leftovers of writes, whose names the next write uses again."""
    files = read_tree(directory)
    return {name: data for name, data in files.items() if not name.endswith(TEMPORARY_SUFFIX)}


def compare_load(played: PlayedLoad) -> None:
    """Do the same to the other copy; where Kafka throws, refuse and leave it alone.

    Nothing is said of the few directories that are loaded otherwise on purpose.
    """
    if is_loaded_otherwise(played.before):
        return
    if played.answer is None and has_bad_legacy_set(played.before):
        return
    most_bytes = int(played.task.config.get("segment.index.bytes", LogConfig().segment_index_bytes))
    if played.answer is None and has_long_index(played.before, most_bytes):
        return
    what = f"{played.case}\n{played.task}\nto {played.truncate_to}"
    before = read_tree(played.before)
    if played.answer is None:
        with pytest.raises(PylogError):
            do_by_us(played)
        assert read_tree(played.before) == before, f"a refusal left changes: {what}"
        return
    answer = do_by_us(played)
    assert not differences(played), "\n".join([what, *differences(played)])
    assert answer == played.answer, what


def do_by_us(played: PlayedLoad) -> LoadAnswer | TruncateAnswer:
    if played.truncate_to is None:
        return load_by_us(played.before, played.task)
    return truncate_by_us(played.before, played.task, played.truncate_to)
