"""Every golden round of Kafka's cleaner, made again."""

import dataclasses
import json
from pathlib import Path

import pytest

from storage_core.config import CleanerConfig
from storage_core.json_values import to_json
from storage_core.maintenance.compaction import key_exchange, partial
from storage_core.maintenance.compaction.partition import CleanResult
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.records import reader
from storage_core.records.reader import LEAST_MAPPED_BYTES
from storage_core.store.local import LocalStore
from tests.kit.compare import compare_partitions, read_tree
from tests.kit.golden_cleaning import (
    Way,
    clean_spread,
    cleaning_of,
    exactness_of,
    expected_numbers,
)
from tests.kit.golden_data import Golden, Side, goldens

ROUNDS = [*goldens("clean-*"), Golden("md5-collision")]
CLEANED = [golden for golden in ROUNDS if not golden.case["expected"].get("nothing_to_clean")]
# A round that ends where the map is full is not spread over segments.
UNLIMITED = [golden for golden in ROUNDS if "map.bytes" not in golden.case["params"]]
DEFAULT_WINDOW_BYTES = CleanerConfig().window_bytes


def differences(golden: Golden, directory: Path, tmp_path: Path) -> list[str]:
    expected = golden.unpack(tmp_path / "after", Side.AFTER)
    found = compare_partitions(read_tree(expected), read_tree(directory), exactness_of(golden))
    return [str(difference) for difference in found]


def check_answer(golden: Golden, result: CleanResult) -> None:
    case = golden.case
    if "expected_checkpoint" in case:
        assert result.cleaner_checkpoint == case["expected_checkpoint"]
    assert result.segments == len(case["expected"]["segments"])
    if case["expected"].get("nothing_to_clean"):
        assert result.nothing_to_clean
        assert result.next_offset is None
        return
    numbers = json.loads(to_json(result))
    expected = expected_numbers(golden)
    assert {name: numbers[name] for name in expected} == expected
    assert not result.nothing_to_clean


@pytest.mark.sampled(13)
@pytest.mark.item("CMP-14", "CMP-26", "CMP-33")
@pytest.mark.parametrize(
    ("window_bytes", "least_mapped_bytes"),
    [
        pytest.param(300, 1, id="windows of 300 bytes, mapped"),
        pytest.param(DEFAULT_WINDOW_BYTES, LEAST_MAPPED_BYTES, id="windows of the default size"),
    ],
)
@pytest.mark.parametrize("golden", ROUNDS, ids=lambda golden: golden.name)
def test_a_round_leaves_what_kafka_left_and_answers_what_kafka_answered(
    golden: Golden, window_bytes: int, least_mapped_bytes: int, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(reader, "LEAST_MAPPED_BYTES", least_mapped_bytes)
    directory = golden.unpack(tmp_path / "before")
    result = cleaning_of(golden).with_cleaner(window_bytes=window_bytes).clean(directory)
    assert differences(golden, directory, tmp_path) == []
    check_answer(golden, result)


@pytest.mark.sampled(8)
@pytest.mark.item("CMP-36")
@pytest.mark.parametrize(
    ("window_bytes", "backwards", "way"),
    [
        pytest.param(1, True, Way.MEMORY, id="newest first, windows of one batch"),
        pytest.param(300, False, Way.MEMORY, id="oldest first, windows of 300 bytes"),
        pytest.param(300, True, Way.EXCHANGE, id="newest first, exchanged by hash"),
    ],
)
@pytest.mark.parametrize("golden", UNLIMITED, ids=lambda golden: golden.name)
def test_a_round_spread_over_its_segments_leaves_and_answers_the_same(
    golden: Golden, window_bytes: int, backwards: bool, way: Way, tmp_path: Path
):
    directory = golden.unpack(tmp_path / "before")
    cleaning = cleaning_of(golden).with_cleaner(window_bytes=window_bytes)
    spread = clean_spread(directory, cleaning, backwards=backwards, way=way)
    assert differences(golden, directory, tmp_path) == []
    if spread is None:
        assert golden.case["expected"].get("nothing_to_clean")
        return
    expected = expected_numbers(golden)
    assert {name: spread.numbers[name] for name in expected} == expected
    assert spread.keys == golden.case["expected"]["map_entries"]


@pytest.mark.sampled(14)
@pytest.mark.item("CMP-36")
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("golden", UNLIMITED[::4], ids=lambda golden: golden.name)
def test_keys_that_are_handed_on_in_small_chunks_leave_the_same(golden, way, tmp_path, monkeypatch):
    for module in (partial, key_exchange):
        monkeypatch.setattr(module, "CHUNK_KEYS", 3)
    directory = golden.unpack(tmp_path / "before")
    clean_spread(directory, cleaning_of(golden), way=way)
    assert differences(golden, directory, tmp_path) == []


@pytest.mark.item("CMP-05")
@pytest.mark.parametrize("golden", CLEANED, ids=lambda golden: golden.name)
def test_range_and_ratio_are_those_of_kafka(golden: Golden, tmp_path: Path):
    expected = golden.case["expected"]
    cleaning = cleaning_of(golden)
    cleanable = cleaning.choose(cleaning.load(LocalStore(golden.unpack(tmp_path))))
    assert cleanable.first_dirty_offset == expected["first_dirty"]
    assert cleanable.first_uncleanable_offset == expected["first_uncleanable"]
    assert cleanable.cleanable_ratio == expected["cleanable_ratio"]


@pytest.mark.item("CMP-13", "CMP-15")
@pytest.mark.parametrize("golden", CLEANED, ids=lambda golden: golden.name)
def test_the_offset_map_is_as_full_and_reaches_as_far_as_kafkas(golden: Golden, tmp_path: Path):
    expected = golden.case["expected"]
    cleaning = cleaning_of(golden)
    store = LocalStore(golden.unpack(tmp_path))
    index = index_round(store, cleaning.plan(cleaning.load(store)))
    assert len(index.offset_map) == index.stats.keys == expected["map_entries"]
    assert index.latest_offset == expected["map_latest_offset"]


def test_all_files_of_a_case_are_compared(tmp_path: Path):
    """The comparison itself: an untouched directory is not what Kafka left."""
    golden = Golden("clean-everything-none-s101-3")
    directory = golden.unpack(tmp_path / "before")
    assert differences(golden, directory, tmp_path) != []


def test_numbers_are_compared_by_every_field_that_kafka_answers():
    names = {field.name for field in dataclasses.fields(CleanResult)}
    assert set(expected_numbers(Golden("clean-everything-none-s101-3"))) < names
