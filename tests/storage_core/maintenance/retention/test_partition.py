"""Deletion passes as Kafka made them, refusals, and what a roll needs."""

from dataclasses import asdict
from pathlib import Path

import pytest

from storage_core import errors
from storage_core.commit import WriteFile, commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import log_file, snapshot_file
from storage_core.log.log_loader import load_log
from storage_core.maintenance.retention.partition import plan_retain, plan_steps
from storage_core.maintenance.retention.plan import plan_retention
from storage_core.store.local import LocalStore
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.golden_data import Golden, Side, goldens
from tests.kit.golden_loading import settings_of
from tests.kit.golden_retention import (
    clean_and_retain,
    retain_golden,
    retain_golden_and_keep,
    sweep_golden,
)
from tests.kit.log_reader import LogReader
from tests.kit.one_partition import retain_partition, sweep_at_rest
from tests.storage_core.maintenance.retention.states import NOW, log_of, rules, segment

MID = Golden("retain-logstart-mid-s501")


@pytest.mark.item("RET-12", "RET-11", "ERR-01")
def test_below_a_raised_log_start_nothing_can_be_read_though_it_is_on_the_disk(tmp_path):
    directory = MID.unpack(tmp_path)
    start = MID.case["params"]["log.start"]
    result = retain_partition(directory, **settings_of(MID), log_start_offset=start)
    store = LocalStore(directory)
    first = min(int(path.stem) for path in directory.glob("*.log"))
    assert first < start == result.log_start_offset
    # After a restart too, by the checkpoint that says so.
    log = load_log(store, **settings_of(MID), log_start_checkpoint=start)
    reader = LogReader(store, log)
    with pytest.raises(errors.OffsetOutOfRangeError) as caught:
        reader.read(start - 1, max_bytes=1 << 20)
    assert caught.value.kafka_code == 1
    assert reader.read(start, max_bytes=1 << 20).size_bytes > 0


@pytest.mark.item("RET-12", "APP-20", "ERR-01")
def test_a_log_start_rises_to_the_high_watermark_and_no_further(tmp_path):
    store = LocalStore(MID.unpack(tmp_path))
    before = read_tree(store.directory)
    with pytest.raises(errors.OffsetOutOfRangeError):
        plan_retain(store, **settings_of(MID), high_watermark=100, log_start_offset=101)
    _, log = plan_retain(store, **settings_of(MID), high_watermark=100, log_start_offset=100)
    assert (log.log_start_offset, log.high_watermark) == (100, 100)
    _, lower = plan_retain(store, **settings_of(MID), log_start_offset=0)
    assert lower.log_start_offset == 0
    assert read_tree(store.directory) == before


@pytest.mark.item("RET-15")
def test_a_tiered_topic_is_refused_before_anything_is_read(tmp_path):
    config = LogConfig.from_topic_overrides({"remote.storage.enable": "true"})
    for refuse in (sweep_at_rest, plan_retain):
        with pytest.raises(errors.ConfigError, match=r"remote\.storage\.enable"):
            refuse(LocalStore(tmp_path / "t-0"), config=config, cleaner=CleanerConfig(), now_ms=NOW)


@pytest.mark.item("ERR-03")
def test_a_directory_that_is_not_there_is_an_unknown_partition(tmp_path):
    with pytest.raises(errors.PartitionNotFoundError) as caught:
        retain_partition(tmp_path / "t-0", config=LogConfig(), cleaner=CleanerConfig(), now_ms=NOW)
    assert caught.value.kafka_code == 3


@pytest.mark.item("RET-09", "RET-10")
def test_a_roll_writes_producers_down_where_nobody_has(tmp_path):
    golden = Golden("retain-size-zero-s501")
    directory = golden.unpack(tmp_path)
    end = golden.case["expected"]["leo"]
    expected = (directory / snapshot_file(end)).read_bytes()
    (directory / snapshot_file(end)).unlink()
    store = LocalStore(directory)
    sweep = sweep_golden(golden, store)
    written = [s.name for s in sweep.steps.operations if isinstance(s, WriteFile)]
    assert snapshot_file(end) in written
    commit(sweep.steps, store)
    # Those of the segments that are gone went with them.
    assert [path.name for path in directory.glob("*.snapshot")] == [snapshot_file(end)]
    assert (directory / snapshot_file(end)).read_bytes() == expected


@pytest.mark.item("RET-09")
def test_a_roll_writes_no_snapshot_of_nobody(tmp_path):
    """A log without snapshots opens without producers; Kafka's own sweep leaves none of them."""
    golden = Golden("retain-size-zero-s501")
    directory = golden.unpack(tmp_path)
    for snapshot in directory.glob("*.snapshot"):
        snapshot.unlink()
    store = LocalStore(directory)
    sweep = sweep_golden(golden, store)
    end = golden.case["expected"]["leo"]
    assert sweep.decision.roll_offset == end
    commit(sweep.steps, store)
    assert [path.name for path in directory.glob("*.log")] == [log_file(end)]
    assert list(directory.glob("*.snapshot")) == []


def test_a_segment_whose_bytes_are_no_records_is_not_rolled_over():
    """Kafka throws there too: the new segment would have the name of the old one."""
    state = log_of(segment(0), log_end=0)
    plan = plan_retention(state, rules(retention_bytes=0), now_ms=NOW)
    with pytest.raises(errors.RollError):
        plan_steps(state, plan)


def test_leftovers_go_first_and_even_where_nothing_else_does():
    leftovers = ["00000000000000000007.log.deleted", "7.index"]
    state = log_of(segment(0), file_names=frozenset([*leftovers, log_file(0)]))
    plan = plan_retention(state, rules(), now_ms=NOW)
    assert [step.name for step in plan_steps(state, plan)] == leftovers
    kept = plan_steps(state, plan, unlink=False)
    assert [step.name for step in kept] == ["7.index"]


PASSES = [golden for golden in goldens("retain-*") if not golden.case["params"].get("keep")]
KEPT = [golden for golden in goldens("retain-*") if golden.case["params"].get("keep")]
AT_REST = [golden for golden in PASSES if golden.case["expected"]["deleted"]]
_ANSWERS = {
    "deleted_segments": "deleted",
    "log_start_offset": "log_start",
    "log_end_offset": "leo",
}


def differences(golden: Golden, directory: Path, tmp_path: Path) -> list[str]:
    after = golden.unpack(tmp_path / "kafka", Side.AFTER)
    exactness = Exactness(golden.case["compare"])
    found = compare_partitions(read_tree(after), read_tree(directory), exactness)
    return [str(difference) for difference in found]


@pytest.mark.item(
    "RET-01", "RET-02", "RET-03", "RET-04", "RET-05", "RET-06", "RET-07", "RET-08", "RET-09"
)
@pytest.mark.parametrize("golden", PASSES, ids=lambda golden: golden.name)
def test_a_pass_leaves_what_kafka_left_and_answers_what_kafka_answered(golden, tmp_path):
    directory = golden.unpack(tmp_path / "ours")
    answer = asdict(retain_golden(golden, directory))
    expected = golden.case["expected"]
    assert {ours: answer[ours] for ours in _ANSWERS} == {
        ours: expected[theirs] for ours, theirs in _ANSWERS.items()
    }
    assert answer["segments"] == len(expected["segments"])
    assert differences(golden, directory, tmp_path) == []


@pytest.mark.item("SEG-09", "PRD-16")
@pytest.mark.parametrize("golden", KEPT, ids=lambda golden: golden.name)
def test_until_the_delay_has_passed_the_files_are_there_under_another_name(golden, tmp_path):
    directory = golden.unpack(tmp_path / "ours")
    assert retain_golden_and_keep(golden, directory) == golden.case["expected"]["deleted"]
    after = golden.unpack(tmp_path / "kafka", Side.AFTER)
    assert read_tree(directory) == read_tree(after)
    assert [name for name in read_tree(directory) if name.endswith(".log.deleted")]


@pytest.mark.item("RET-10", "CKP-13", "PRD-16")
@pytest.mark.parametrize("golden", AT_REST, ids=lambda golden: golden.name)
def test_a_log_that_nobody_opens_is_left_the_same(golden, tmp_path):
    directory = golden.unpack(tmp_path / "ours")
    store = LocalStore(directory)
    sweep = sweep_golden(golden, store)
    commit(sweep.steps, store)
    expected = golden.case["expected"]
    assert differences(golden, directory, tmp_path) == []
    assert sweep.decision.log_start_offset == expected["log_start"]
    assert len(sweep.decision.removals) == expected["deleted"]
    assert sweep.first_base_offset == expected["segments"][0][0]
    assert sweep.segments_after == len(expected["segments"])
    again = sweep_golden(golden, store, log_start_checkpoint=expected["log_start"])
    assert again.steps.is_empty


@pytest.mark.item("RET-13", "RET-01")
@pytest.mark.parametrize("golden", goldens("swept-*"), ids=lambda golden: golden.name)
def test_after_a_round_of_compaction_old_segments_go(golden, tmp_path):
    directory = golden.unpack(tmp_path / "ours")
    result = clean_and_retain(golden, directory)
    assert result.deleted_segments == golden.case["expected"]["deleted"]
    assert differences(golden, directory, tmp_path) == []
