"""Random partitions, cleaned round after round, against the naive model.

``PYLOG_MODEL_EXAMPLES`` says how many partitions of each kind; the default takes seconds.
"""

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from storage_core.config import CleanerConfig, OffsetMapHash
from storage_core.errors import UnsupportedFormatError
from storage_core.formats.batch_v2 import Codec
from storage_core.maintenance.compaction.partition import CleanResult
from storage_core.store.local import LocalStore
from tests.kit.compare import read_tree
from tests.kit.decode import DecodedBatch
from tests.kit.golden_cleaning import Cleaning, Way, clean_spread
from tests.kit.partition_views import committed_values
from tests.reference.compaction import (
    EmptyLegacyBatchError,
    Fate,
    LastRecord,
    Outcome,
    Round,
    Segment,
    compact,
    without_bytes,
)
from tests.reference.golden_rounds import aborted_of, batches_of, read_segments
from tests.storage_core.maintenance.compaction.hand_made import NOW, RETENTION_MS, cleaning
from tests.storage_core.maintenance.compaction.random_partitions import RandomLog, random_logs

EXAMPLES = int(os.environ.get("PYLOG_MODEL_EXAMPLES", "40"))
STATISTICS = ("map_messages_read", "messages_read", "messages_written", "invalid_messages_read")
DAY_MS = 86_400_000

against_model = settings(
    max_examples=EXAMPLES,
    derandomize="PYLOG_MODEL_EXAMPLES" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)


@dataclass(frozen=True)
class RoundPlan:
    """What differs from round to round."""

    wait_ms: int
    map_keys: int | None
    window_bytes: int
    kind: OffsetMapHash
    dirty_from: float
    high_watermark: float


round_plans = st.builds(
    RoundPlan,
    wait_ms=st.sampled_from([0, 1, RETENTION_MS - 1, RETENTION_MS, 2 * DAY_MS]),
    map_keys=st.sampled_from([None, None, None, 1, 2, 3, 4]),
    window_bytes=st.sampled_from([1, 100, 300, 1 << 25]),
    kind=st.sampled_from(OffsetMapHash),
    dirty_from=st.sampled_from([0.0, 0.0, 0.3, 0.5, 0.9]),
    high_watermark=st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.8]),
)
rounds = st.lists(round_plans, min_size=1, max_size=4)


def identity_of(kind: OffsetMapHash) -> Callable[[bytes], Hashable]:
    if kind is OffsetMapHash.MD5:
        return lambda key: hashlib.md5(key, usedforsecurity=False).digest()
    return bytes


def as_cleaning(plan: RoundPlan, now_ms: int, end: int) -> Cleaning:
    map_bytes = None if plan.map_keys is None else plan.map_keys * 24
    return cleaning(
        now_ms=now_ms,
        overrides={"internal.segment.bytes": 700, "index.interval.bytes": 150},
        cleaner=CleanerConfig(
            dedupe_buffer_bytes=map_bytes,
            load_factor=1.0,
            window_bytes=plan.window_bytes,
            offset_map_hash=plan.kind,
        ),
        high_watermark=int(end * plan.high_watermark),
    )


def by_the_model(directory: Path, round_: Cleaning, plan: RoundPlan) -> tuple[Round, Outcome]:
    log = round_.load(LocalStore(directory))
    cleanable = round_.choose(log)
    job = Round(
        first_dirty_offset=cleanable.first_dirty_offset,
        first_uncleanable_offset=cleanable.first_uncleanable_offset,
        now_ms=round_.request.now_ms,
        delete_retention_ms=RETENTION_MS,
        high_watermark=log.high_watermark,
        producers={
            known.producer_id: LastRecord(
                last_data_offset=known.last_offset if known.last_offset >= 0 else None,
                producer_epoch=known.producer_epoch,
            )
            for known in log.producers
        },
        map_capacity=plan.map_keys,
        identity=identity_of(plan.kind),
    )
    return job, compact(read_segments(directory), job)


def with_range(round_: Cleaning, plan: RoundPlan, directory: Path) -> Cleaning:
    """Begin inside of what may be cleaned, as a checkpoint of an earlier round does."""
    log = round_.load(LocalStore(directory))
    end = round_.choose(log).first_uncleanable_offset
    return round_.with_request(
        first_dirty_offset=int(end * plan.dirty_from), first_uncleanable_offset=end
    )


def check_round(
    before: tuple[Segment, ...], directory: Path, outcome: Outcome, result: CleanResult
) -> None:
    after = read_segments(directory)
    untouched = [s for s in before if s.base_offset >= outcome.next_offset]
    assert [(without_bytes(b.header), b.records) for b in batches_of(after)] == [
        (survivor.header, survivor.records) for survivor in outcome.survivors
    ] + [(without_bytes(b.header), b.records) for b in batches_of(tuple(untouched))]
    assert all(batch.crc_ok for batch in batches_of(after))
    assert aborted_of(after) == [*outcome.aborted, *aborted_of(tuple(untouched))]
    assert result.next_offset == outcome.next_offset
    numbers = {name: getattr(result, name) for name in STATISTICS}
    assert numbers == {name: getattr(outcome, name) for name in STATISTICS}
    check_copies(batches_of(before), batches_of(after), outcome)


def check_copies(before: list[DecodedBatch], after: list[DecodedBatch], outcome: Outcome) -> None:
    """What is to be copied has the bytes that it had, so its CRC too."""
    crc = {batch.base_offset: batch.header["crc"] for batch in before}
    for survivor, batch in zip(outcome.survivors, after, strict=False):
        if survivor.fate is Fate.VERBATIM:
            assert batch.header["crc"] == crc[batch.base_offset]


def play(log: RandomLog, plans: list[RoundPlan], index_interval_bytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="model-") as scratch:
        directory = log.write(Path(scratch) / "t-0", index_interval_bytes=index_interval_bytes)
        now_ms, cleaned_to = NOW, 0
        for plan in plans:
            now_ms += plan.wait_ms
            round_ = as_cleaning(plan, now_ms, log.next_offset)
            round_ = with_range(round_, plan, directory)
            before = read_segments(directory)
            values = committed_values(
                directory, round_.load(LocalStore(directory)).last_stable_offset
            )
            try:
                job, outcome = by_the_model(directory, round_, plan)
            except EmptyLegacyBatchError:
                with pytest.raises(UnsupportedFormatError):
                    round_.clean(directory)
                assert read_segments(directory) == before
                return
            result = round_.clean(directory)
            check_round(before, directory, outcome, result)
            after = round_.load(LocalStore(directory))
            assert after.operations == ()
            assert after.log_end_offset == log.next_offset
            assert outcome.next_offset <= max(job.first_uncleanable_offset, 0)
            # What lies below a range has to be clean, else a tombstone may go before its values.
            if job.first_dirty_offset > cleaned_to:
                return
            cleaned_to = max(cleaned_to, outcome.next_offset)
            assert committed_values(directory, after.last_stable_offset) == values


@pytest.mark.thorough
@pytest.mark.item("CMP-15", "CMP-18", "CMP-19", "CMP-26", "CMP-30", "CMP-47")
@against_model
@given(log=random_logs(st.just(Codec.NONE)), plans=rounds, interval=st.sampled_from([0, 150, 4096]))
def test_an_uncompressed_log_is_what_the_model_leaves(log, plans, interval):
    play(log, plans, interval)


@pytest.mark.thorough
@pytest.mark.item("CMP-29", "CMP-33")
@against_model
@given(log=random_logs(st.sampled_from(Codec)), plans=rounds, interval=st.sampled_from([0, 4096]))
def test_a_compressed_log_is_what_the_model_leaves(log, plans, interval):
    play(log, plans, interval)


@pytest.mark.thorough
@pytest.mark.item("CMP-21", "CMP-22", "CMP-31", "CMP-32")
@against_model
@given(
    log=random_logs(st.sampled_from(Codec), has_old_formats=True),
    plans=rounds,
    interval=st.sampled_from([0, 150, 4096]),
)
def test_a_log_with_old_formats_is_what_the_model_leaves(log, plans, interval):
    play(log, plans, interval)


@pytest.mark.thorough
@pytest.mark.item("CMP-31", "CMP-36")
@against_model
@given(log=random_logs(st.sampled_from(Codec), has_old_formats=True), plan=round_plans)
def test_a_round_over_old_formats_spread_over_segments_leaves_the_same_bytes(log, plan):
    spread_and_whole(log, dataclasses.replace(plan, high_watermark=0.0))


@pytest.mark.thorough
@pytest.mark.item("CMP-36")
@against_model
@given(log=random_logs(st.sampled_from(Codec)), plan=round_plans)
def test_a_round_spread_over_segments_leaves_the_same_bytes(log, plan):
    spread_and_whole(log, plan)


def spread_and_whole(log: RandomLog, plan: RoundPlan) -> None:
    with tempfile.TemporaryDirectory(prefix="model-") as scratch:
        trees = []
        ways = [f"{way}, {order}" for way in Way for order in ("forwards", "backwards")]
        for name in ("whole", *ways):
            directory = log.write(Path(scratch) / name / "t-0", index_interval_bytes=150)
            round_ = as_cleaning(plan, NOW, log.next_offset).with_cleaner(dedupe_buffer_bytes=None)
            round_ = with_range(round_, plan, directory)
            if name == "whole":
                result = round_.clean(directory)
            else:
                way, _, order = name.partition(", ")
                spread = clean_spread(
                    directory, round_, backwards=order == "backwards", way=Way(way)
                )
                assert spread is not None
                assert spread.next_offset == result.next_offset
                assert spread.map_messages_read == result.map_messages_read
                assert spread.stats.messages_read == result.messages_read
            trees.append(read_tree(directory))
            assert trees[-1] == trees[0], name
