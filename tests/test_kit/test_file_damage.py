"""Accidents to the files of a partition: drawn from a seed, and real."""

import shutil
from pathlib import Path

import pytest

from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.compare import read_tree
from tests.kit.directories import (
    AbortedTxnSpec,
    ProducerSpec,
    SegmentSpec,
    write_partition,
)
from tests.kit.file_damage import Accident, Damage, batch_positions, damage
from tests.kit.legacy import LegacyMessage, encode_message

SEEDS = range(12)


def segment(base_offset: int) -> SegmentSpec:
    batches = [
        BatchSpec(
            base_offset=base_offset + number,
            records=(RecordSpec(key=b"k", timestamp=base_offset + number),),
            leader_epoch=base_offset,
        )
        for number in range(3)
    ]
    aborted = AbortedTxnSpec(
        producer_id=1, first_offset=0, last_offset=base_offset, last_stable_offset=base_offset + 1
    )
    return SegmentSpec(
        base_offset=base_offset,
        batches=batches,
        aborted=[aborted],
        producers=[ProducerSpec(producer_id=base_offset)],
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    segments = [segment(0), segment(3), segment(6)]
    partition = write_partition(tmp_path / "t-0", segments, index_interval_bytes=0)
    for path in partition.glob("*.log"):
        path.write_bytes(path.read_bytes() + encode_message(LegacyMessage(offset=9)))
    return partition


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accident", Accident, ids=lambda accident: accident.value)
def test_an_accident_changes_something_and_the_same_in_every_copy(
    accident: Accident, directory: Path, tmp_path: Path
):
    whole = read_tree(directory)
    changed = 0
    for seed in SEEDS:
        trees = []
        for copy in (tmp_path / "one" / "t-0", tmp_path / "other" / "t-0"):
            shutil.copytree(directory, copy)
            damage(copy, Damage(accident=accident, seed=seed))
            trees.append(read_tree(copy))
            shutil.rmtree(copy)
        assert trees[0] == trees[1]
        changed += trees[0] != whole
    assert changed > len(SEEDS) // 3


@pytest.mark.parametrize("accident", Accident, ids=lambda accident: accident.value)
def test_where_there_is_nothing_nothing_breaks(accident: Accident, tmp_path: Path):
    for seed in SEEDS:
        damage(tmp_path, Damage(accident=accident, seed=seed))


def test_batches_are_found_by_their_lengths_up_to_what_is_torn():
    batch = encode_batch(BatchSpec())
    log = batch + batch + batch[:-1]
    assert batch_positions(log) == [(0, len(batch)), (len(batch), len(batch))]
    assert batch_positions(b"") == []
    assert batch_positions(b"\xff" * 40) == []
