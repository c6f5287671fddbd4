"""`make bench`: how much memory many keys take, and how well a skewed directory uses its slots."""

import pytest

from tests.bench import bench_many_keys, bench_skew
from tests.bench.bench_skew import Rates, simulate
from tests.bench.generated_columns import Topic, generated_root
from tests.bench.shared import show
from tests.kit.compare import read_tree

MIB = 1024 * 1024
EXECUTOR_BYTES = 1_500_000_000
MOST_EXCESS = 0.15


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_fifty_million_keys_are_shuffled_within_a_gigabyte_and_a_half_an_executor() -> None:
    report = show(bench_many_keys.measure())
    assert 0 < report.peaks.worst_bytes <= EXECUTOR_BYTES


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_any_strategy_leaves_the_bytes_that_a_shuffle_leaves() -> None:
    trees = {}
    for strategy in ("shuffle", "broadcast", "whole"):
        bench_many_keys.measure(keys=300_000, strategy=strategy)
        trees[strategy] = read_tree(bench_many_keys.SCRATCH / "keys300000-0")
    assert trees["shuffle"] == trees["broadcast"] == trees["whole"]


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_a_skewed_directory_takes_hardly_longer_than_its_work_over_two_slots() -> None:
    report = show(bench_skew.measure())
    assert report.split.excess <= MOST_EXCESS
    assert report.simulated.excess <= MOST_EXCESS


def test_many_slots_are_simulated_without_idling_where_work_is_even() -> None:
    rates = Rates(pass_one=1e9, pass_two=1e9, whole=1e9, merge_s=0.0, commit_s=0.0)
    played = simulate([64 * MIB] * 32, [], rates, slots=32)
    assert played.excess < 0.01
    assert played.work_s == pytest.approx(2 * 32 * 64 * MIB / 1e9)


def test_small_partitions_fill_the_slots_that_a_merge_leaves() -> None:
    rates = Rates(pass_one=1e9, pass_two=1e9, whole=1e8, merge_s=1.0, commit_s=0.0)
    played = simulate([64 * MIB] * 4, [MIB] * 100, rates, slots=2)
    assert played.excess < 0.1


def test_generated_partitions_have_as_many_keys_as_asked_for(tmp_path) -> None:
    topic = Topic(
        name="t", partitions=2, records=5000, keys=1 << 62, value_bytes=8, segment_bytes=65536
    )
    root = generated_root(tmp_path, [topic])
    assert sorted(path.name for path in root.glob("t-*")) == ["t-0", "t-1"]
    assert read_tree(root / "t-0") == read_tree(root / "t-1")
    assert len(list((root / "t-0").glob("*.log"))) > 1
