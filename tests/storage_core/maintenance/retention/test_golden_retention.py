"""Deletion passes that Kafka made, made again."""

from dataclasses import asdict
from pathlib import Path

import pytest

from storage_core.commit import commit
from storage_core.store.local import LocalStore
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.golden_data import Golden, Side, goldens
from tests.kit.golden_retention import (
    clean_and_retain,
    retain_golden,
    retain_golden_and_keep,
    sweep_golden,
)

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
