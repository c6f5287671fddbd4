"""What a second processor is worth to one segment, in ``make bench``."""

import pytest

from tests.bench.bench_cores import ONE_SEGMENT, lines, measure


@pytest.mark.bench
@pytest.mark.oracle
def test_one_segment_takes_less_time_with_two_processors():
    turns = measure(ONE_SEGMENT, rounds=5)
    print("", *lines(turns), sep="\n")  # noqa: T201 - the report is what bench is for
    one, several = ([turn.wall_secs for turn in some] for some in turns.values())
    assert min(several) < min(one)
