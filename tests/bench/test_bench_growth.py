"""`make bench`: time grows with bytes, segments and partitions, not faster; memory does not."""

import pytest

from tests.bench.bench_growth import keep_growth, measure

# A straight line has 1; what a machine does otherwise meanwhile moves it a little.
MOST_TIME_SLOPE = 1.2


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_twice_the_work_takes_twice_as_long_and_hardly_more_memory() -> None:
    growths = []
    for growth in measure():
        print(growth.line(), flush=True)  # noqa: T201 - what bench is for
        growths.append(growth)
    keep_growth(growths)
    assert all(growth.time_slope < MOST_TIME_SLOPE for growth in growths)
