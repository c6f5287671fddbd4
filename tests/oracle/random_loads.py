"""Hypothesis strategies for logs that are loaded after all kinds of accidents.

A plan is one log and a few cases: each begins with a copy of the log, does some damage to it and
says with which checkpoints and under which clock it is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import strategies as st

from tests.kit.file_damage import Accident, Damage
from tests.oracle.log_writer import Append, EndTransaction, Roll, Step
from tests.oracle.random_logs import CODECS, DAY_MS, any_contents, steps

LEGACY_CODECS: Final = ("none", "gzip", "snappy", "lz4")
MANY_PRODUCERS: Final = 40
# Just below, at and beyond what a segment's relative offsets can say.
LARGE_GAPS: Final = (2**31 - 60, 2**31 - 1, 2**31, 3 * 2**30)
# What happens often when a machine dies, and what nobody but a hostile hand does, in proportion.
COMMON: Final = (
    Accident.TORN_LOG,
    Accident.TORN_LAST_LOG,
    Accident.BYTE_IN_LOG,
    Accident.ZEROS_AFTER_LOG,
    Accident.SIDE_FILE_GONE,
    Accident.SEGMENTS_LEFTOVER,
    Accident.SEGMENTS_MERGED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCase:
    """One load of a copy of the log."""

    damages: tuple[Damage, ...]  # what happens to the copy before, in order
    # None, or how far a round of cleaning got before it was killed, as a fraction of its changes;
    # it comes before the damages
    interrupted_clean: float | None
    # Checkpointed offsets, as fractions of the log's offsets; above 1 they lie beyond its end
    recovery_point: float
    log_start: float
    offset_shift: int  # added to both, to hit the offsets beside a segment's base
    clean_shutdown: bool  # whether the log directory has the marker of a clean shutdown
    wait_ms: int  # how long the log lay there


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A log and how it is loaded."""

    config: Mapping[str, object]
    # What is written; between two rounds the log is closed cleanly and opened again
    rounds: tuple[tuple[Step, ...], ...]
    ends_cleanly: bool  # false leaves the directory as a killed broker does, indexes preallocated
    cases: tuple[LoadCase, ...]  # loads, each of its own copy


def load_plans() -> st.SearchStrategy[LoadPlan]:
    """Return logs of all kinds with a few loads each."""
    return st.builds(
        LoadPlan,
        config=_configs(),
        rounds=st.one_of(_rounds(steps(("none",))), _rounds(_mixed()), _rounds(_legacy())),
        ends_cleanly=st.booleans(),
        cases=st.lists(load_cases(), min_size=3, max_size=8).map(tuple),
    )


def load_cases() -> st.SearchStrategy[LoadCase]:
    """Return one load each, most of them with damage."""
    fractions = st.sampled_from((0.0, 0.0, 0.0, 0.2, 0.5, 0.8, 0.95, 1.0, 1.3))
    return st.builds(
        LoadCase,
        damages=st.one_of(
            st.lists(damages(), min_size=0, max_size=4).map(tuple),
            st.integers(0, 2**20).map(_merged_without_indexes),
        ),
        interrupted_clean=st.one_of(st.none(), st.none(), st.none(), st.floats(0, 1)),
        recovery_point=fractions,
        log_start=st.one_of(st.just(0.0), st.just(0.0), fractions),
        offset_shift=st.sampled_from((0, 0, 0, -1, 1)),
        clean_shutdown=st.sampled_from((False, False, True)),
        wait_ms=st.sampled_from((0, 1, DAY_MS - 1, DAY_MS, 2 * DAY_MS)),
    )


def _merged_without_indexes(seed: int) -> tuple[Damage, ...]:
    """Return what an old compaction of far offsets and a careless copy leave together."""
    return (
        Damage(accident=Accident.SEGMENTS_MERGED, seed=seed),
        Damage(accident=Accident.INDEXES_GONE, seed=seed),
    )


def damages() -> st.SearchStrategy[Damage]:
    """Return accidents, the common ones more often."""
    return st.builds(
        Damage,
        accident=st.one_of(st.sampled_from(Accident), st.sampled_from(COMMON)),
        seed=st.integers(0, 2**20),
    )


def _configs() -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries(
        {
            "cleanup.policy": st.sampled_from(("compact", "delete")),
            "internal.segment.bytes": st.sampled_from((1_000, 1_500, 2_500, 5_000, 12_000)),
            "index.interval.bytes": st.sampled_from((0, 200, 700, 4096)),
            "segment.index.bytes": st.sampled_from((24, 36, 60, 400, 400, 8_000)),
            "delete.retention.ms": st.sampled_from((0, DAY_MS)),
            "message.timestamp.type": st.sampled_from(
                ("CreateTime", "CreateTime", "LogAppendTime")
            ),
        }
    )


def _rounds(some: st.SearchStrategy[Step]) -> st.SearchStrategy[tuple[tuple[Step, ...], ...]]:
    # Hypothesis likes its lists short; most logs should have some segments.
    sizes = st.sampled_from(((0, 30), (10, 30), (15, 40), (25, 50)))
    one = sizes.flatmap(lambda size: st.lists(some, min_size=size[0], max_size=size[1])).map(tuple)
    return st.lists(one, min_size=1, max_size=3).map(tuple)


def _mixed() -> st.SearchStrategy[Step]:
    """Return the steps of cleaning's logs, with any codec, far gaps and many producers."""
    far = st.builds(
        Append, contents=any_contents(), gap_before=st.sampled_from((*LARGE_GAPS, 0, 0, 100))
    )
    many = st.one_of(
        st.builds(
            Append,
            contents=any_contents(),
            producer=st.integers(0, MANY_PRODUCERS - 1),
            transactional=st.booleans(),
        ),
        st.builds(
            EndTransaction, producer=st.integers(0, MANY_PRODUCERS - 1), commit=st.booleans()
        ),
    )
    return st.one_of(steps((*CODECS, "none")), steps((*CODECS, "none")), far, many, many)


def _legacy() -> st.SearchStrategy[Step]:
    """Return steps of a log that began before Kafka 0.11, or that went back and forth."""
    old = st.builds(
        Append,
        contents=any_contents(),
        codec=st.sampled_from(LEGACY_CODECS),
        magic=st.sampled_from((0, 1)),
        gap_before=st.sampled_from((0, 0, 0, 0, 50, *LARGE_GAPS)),
    ).map(_without_gaps)
    return st.one_of(old, old, old, steps(("none",)), st.just(Roll()))


def _without_gaps(step: Append) -> Append:
    """Return a legacy append that its builder takes: gaps are for v2 only."""
    return replace(step, contents=replace(step.contents, gaps=0.0))
