"""Hypothesis strategies for random logs: what is appended, how the log is set up, what is cleaned.

A plan has a few rounds. Each appends through Kafka, lets the clock go on and then cleans a range.

``PYLOG_ORACLE_EXAMPLES`` says how many logs of each kind; else there are as many as of any
property, few in ``make test``. They are the same in every run; ``PYLOG_ORACLE_RANDOM=1`` has
Hypothesis look for new ones, and ``PYLOG_ORACLE_SHRINK=1`` make a failing one small, which takes
minutes.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.oracle.log_writer import (
    Append,
    BumpLeaderEpoch,
    BumpProducerEpoch,
    Contents,
    EndTransaction,
    Roll,
    Step,
    Wait,
)

START_MS: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000
SLOT_BYTES: Final = 24
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
PRODUCERS: Final = 3
EXAMPLES: Final = int(os.environ.get("PYLOG_ORACLE_EXAMPLES", settings().max_examples))
_SHRINK: Final = os.environ.get("PYLOG_ORACLE_SHRINK", "0") == "1"
# Both sides sync all the time; in memory that costs nothing.
_SCRATCH: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - only a parent

against_kafka = settings(
    max_examples=EXAMPLES,
    derandomize=os.environ.get("PYLOG_ORACLE_RANDOM", "0") != "1",
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink) if _SHRINK else (Phase.generate,),
)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make an empty folder, in memory if there is any."""
    with tempfile.TemporaryDirectory(prefix="oracle-", dir=_SCRATCH) as folder:
        yield Path(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan:
    """One round of cleaning, in proportions, since offsets are known only when it comes.

    by_manager: the range is Kafka's choice, from where the last such round ended. Otherwise it
    lies between dirty_from and clean_to, fractions of the offsets up to the last stable one or the
    active segment. high_watermark, log_start and checkpoint are fractions of all offsets; a
    checkpoint that is not None takes the place of the last round's. changed_settings are those of
    this cleaning only. then_retains: the deletion pass of a cleaner thread follows. file_ages:
    None, or the seed of the times that the segments' files get. window_bytes is how much of a
    segment we hold at a time; it must not show in the result.
    """

    by_manager: bool
    checkpoint: float | None
    changed_settings: Mapping[str, object]
    then_retains: bool
    file_ages: int | None
    dirty_from: float
    clean_to: float
    high_watermark: float
    log_start: float
    map_bytes: int
    load_factor: float
    io_buffer_bytes: int
    max_io_buffer_bytes: int
    window_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What happens from one cleaning to the next."""

    steps: tuple[Step, ...]
    wait_ms: int
    rolls_before: bool
    clean: CleanPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """A whole life of a partition."""

    config: Mapping[str, object]
    codecs: tuple[str, ...]
    rounds: tuple[RoundPlan, ...]


def log_plans(*, compressed: bool) -> st.SearchStrategy[LogPlan]:
    """Return plans whose batches are all uncompressed, or of any codec and mixed."""
    codecs = st.tuples(*[st.sampled_from(CODECS)] * 2) if compressed else st.just(("none",))
    return codecs.flatmap(
        lambda some: st.builds(
            LogPlan,
            config=configs(),
            codecs=st.just(some),
            rounds=st.lists(_rounds((*some, "none")), min_size=2, max_size=4).map(tuple),
        )
    )


def configs() -> st.SearchStrategy[dict[str, object]]:
    """Return topic settings: small segments and dense indexes, so that a little data has many."""
    return st.fixed_dictionaries(
        {
            "cleanup.policy": st.sampled_from(("compact", "compact", "compact,delete")),
            "retention.ms": st.sampled_from((-1, -1, 60_000, DAY_MS)),
            "retention.bytes": st.sampled_from((-1, -1, 6_000)),
            "file.delete.delay.ms": st.just(0),
            "internal.segment.bytes": st.integers(5_000, 15_000),
            "index.interval.bytes": st.sampled_from((0, 200, 700, 4096)),
            "segment.index.bytes": st.sampled_from((10_485_760, 10_485_760, 400)),
            "delete.retention.ms": st.sampled_from((0, 60_000, DAY_MS)),
            "min.cleanable.dirty.ratio": st.sampled_from((0, 0, 0, 0, 0.5)),
            "min.compaction.lag.ms": st.sampled_from((0, 0, 0, 0, 0, 30_000)),
            "max.compaction.lag.ms": st.sampled_from((2**63 - 1, 60_000)),
            "message.timestamp.type": st.sampled_from(
                ("CreateTime", "CreateTime", "LogAppendTime")
            ),
        }
    )


def _rounds(codecs: tuple[str, ...]) -> st.SearchStrategy[RoundPlan]:
    return st.builds(
        RoundPlan,
        steps=st.lists(steps(codecs), min_size=10, max_size=60).map(tuple),
        wait_ms=st.sampled_from((0, 1, 59_999, 60_000, 60_001, DAY_MS, DAY_MS + 1, 3 * DAY_MS)),
        rolls_before=st.sampled_from((True, True, True, False)),
        clean=_cleanings(),
    )


def steps(codecs: tuple[str, ...]) -> st.SearchStrategy[Step]:
    """Return the steps of a v2 log: appends of all kinds, markers, new epochs, rolls."""
    plain = st.builds(
        Append,
        contents=any_contents(),
        codec=st.sampled_from(codecs),
        gap_before=st.sampled_from((0, 0, 0, 0, 7, 100_000)),
        at_append_time=st.sampled_from((False, False, False, False, True)),
    )
    idempotent = st.builds(
        Append,
        contents=any_contents(),
        codec=st.sampled_from(codecs),
        producer=st.integers(0, PRODUCERS - 1),
    )
    transactional = st.builds(
        Append,
        contents=any_contents(),
        codec=st.sampled_from(codecs),
        producer=st.integers(0, PRODUCERS - 1),
        transactional=st.just(True),
    )
    return st.one_of(
        plain,
        idempotent,
        transactional,
        transactional,
        _ends(),
        _ends(),
        st.builds(
            BumpProducerEpoch,
            producer=st.integers(0, PRODUCERS - 1),
            transactional=st.booleans(),
        ),
        st.builds(BumpLeaderEpoch, writes_control_batch=st.booleans()),
        st.just(Roll()),
        st.builds(Wait, milliseconds=st.sampled_from((1, 30_000, 61_000))),
    )


def _ends() -> st.SearchStrategy[EndTransaction]:
    return st.builds(
        EndTransaction,
        producer=st.integers(0, PRODUCERS - 1),
        commit=st.booleans(),
        bumps_epoch=st.sampled_from((False, False, True)),
    )


def any_contents() -> st.SearchStrategy[Contents]:
    """Return what the records of a batch may look like."""
    return st.builds(
        Contents,
        record_count=st.integers(1, 20),
        seed=st.integers(0, 2**16),
        keys=st.sampled_from((2, 6, 30)),
        tombstones=st.sampled_from((0.0, 0.2, 0.9)),
        null_keys=st.sampled_from((0.0, 0.0, 0.0, 0.3)),
        headers=st.sampled_from((0.0, 0.3)),
        gaps=st.sampled_from((0.0, 0.0, 0.0, 0.3)),
        untimed=st.sampled_from((0.0, 0.0, 0.0, 0.0, 0.3, 1.0)),
    )


def _changed_settings() -> st.SearchStrategy[dict[str, object]]:
    """Return settings that somebody changed after the log was written, mostly none."""
    some = st.fixed_dictionaries(
        {},
        optional={
            "internal.segment.bytes": st.sampled_from((700, 3_000, 45_000, 1_048_576)),
            "index.interval.bytes": st.sampled_from((0, 60, 1_000)),
            "segment.index.bytes": st.sampled_from((12, 24, 48, 96)),
            "max.message.bytes": st.sampled_from((100, 256, 700)),
            "message.timestamp.type": st.sampled_from(("CreateTime", "LogAppendTime")),
            "retention.bytes": st.sampled_from((0, 1, 3_000)),
        },
    )
    return st.one_of(st.just({}), st.just({}), some)


def _cleanings() -> st.SearchStrategy[CleanPlan]:
    return st.builds(
        CleanPlan,
        by_manager=st.sampled_from((True, True, False)),
        checkpoint=st.sampled_from((*[None] * 6, 0.0, 0.4, 0.9, 1.0, 1.2)),
        changed_settings=_changed_settings(),
        then_retains=st.sampled_from((False, False, True)),
        file_ages=st.one_of(st.none(), st.none(), st.integers(0, 2**16)),
        dirty_from=st.sampled_from((0.0, 0.0, 0.3, 0.7)),
        clean_to=st.sampled_from((1.0, 1.0, 0.8)),
        high_watermark=st.sampled_from((1.0, 1.0, 1.0, 0.7)),
        log_start=st.sampled_from((0.0, 0.0, 0.0, 0.3)),
        map_bytes=st.one_of(st.just(1_000_000), st.integers(1, 40).map(lambda n: n * SLOT_BYTES)),
        load_factor=st.sampled_from((0.9, 0.9, 0.75, 0.3, 1.0)),
        io_buffer_bytes=st.sampled_from((524_288, 524_288, 900, 100)),
        max_io_buffer_bytes=st.sampled_from((*[67_108_864] * 6, 1_000)),
        window_bytes=st.sampled_from((33_554_432, 500, 3_000)),
    )
