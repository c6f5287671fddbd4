"""The naive model of compaction against what Kafka did."""

import dataclasses
import hashlib
from pathlib import Path

import pytest

from tests.kit.golden_data import Golden, Side, goldens
from tests.reference.compaction import Outcome, compact, without_bytes
from tests.reference.golden_rounds import (
    GoldenRound,
    aborted_of,
    batches_of,
    read_round,
    read_segments,
)

ROUNDS = [
    golden
    for golden in [*goldens("clean-*"), Golden("md5-collision")]
    if not golden.case["expected"].get("nothing_to_clean")
]
STATISTICS = ("map_messages_read", "messages_read", "messages_written", "invalid_messages_read")


def run(golden: Golden, tmp_path: Path, **changes: object) -> tuple[GoldenRound, Outcome]:
    golden_round = read_round(golden.unpack(tmp_path / "before"), golden.case)
    return golden_round, compact(
        golden_round.segments, dataclasses.replace(golden_round.job, **changes)
    )


def md5(key: bytes) -> bytes:
    return hashlib.md5(key, usedforsecurity=False).digest()


@pytest.mark.sampled(21)
@pytest.mark.parametrize("golden", ROUNDS, ids=lambda golden: golden.name)
def test_the_model_leaves_what_kafka_left(golden: Golden, tmp_path: Path):
    golden_round, outcome = run(golden, tmp_path, identity=md5)
    after = golden.unpack(tmp_path / "after", Side.AFTER)
    found = [
        (without_bytes(batch.header), batch.records) for batch in batches_of(read_segments(after))
    ]
    untouched = [
        (without_bytes(batch.header), batch.records)
        for segment in golden_round.segments
        if segment.base_offset >= outcome.next_offset
        for batch in segment.batches
    ]
    kept = [(survivor.header, survivor.records) for survivor in outcome.survivors]
    assert kept + untouched == found
    assert outcome.next_offset == golden_round.expected["next"]
    for statistic in STATISTICS:
        assert getattr(outcome, statistic) == golden_round.expected[statistic]


@pytest.mark.parametrize("golden", ROUNDS, ids=lambda golden: golden.name)
def test_the_model_keeps_the_transaction_index_entries_that_kafka_kept(
    golden: Golden, tmp_path: Path
):
    golden_round, outcome = run(golden, tmp_path)
    after = golden.unpack(tmp_path / "after", Side.AFTER)
    untouched = [
        entry
        for segment in golden_round.segments
        if segment.base_offset >= outcome.next_offset
        for entry in segment.aborted
    ]
    assert [*outcome.aborted, *untouched] == aborted_of(read_segments(after))
