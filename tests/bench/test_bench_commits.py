"""`make bench`: many small partitions are committed together, not one after the other."""

import pytest

from tests.bench.bench_commits import DISK, OBJECTS, SLOW_DISK, measure
from tests.bench.figures import keep

# Less than what is measured on a quiet machine: others may be at work on this one.
LEAST_RATIOS = {DISK: 0.8, SLOW_DISK: 2, OBJECTS: 10}


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_partitions_are_committed_faster_together() -> None:
    timings = list(measure(100))
    print("", *(timing.line() for timing in timings), sep="\n")  # noqa: T201 - what bench is for
    keep("commits", timings, table="commits")
    for timing in timings:
        assert timing.ratio > LEAST_RATIOS[timing.place]


@pytest.mark.thorough
def test_it_measures_two_partitions_in_every_place() -> None:
    timings = list(measure(2))
    assert [(timing.place, timing.work) for timing in timings] == [
        (place, work) for place in (DISK, SLOW_DISK, OBJECTS) for work in ("swept", "cleaned")
    ]
    assert [bool(timing.requests) for timing in timings] == [False] * 4 + [True] * 2
