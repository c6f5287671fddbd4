"""`make bench`: what Spark adds to reading a thousand partitions."""

import pytest

from tests.bench.bench_count import measure


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_a_count_over_a_thousand_partitions_takes_about_three_times_the_reading() -> None:
    counted = measure(partitions=1_000, records=4_000, rounds=10)
    print("", *counted.lines(), sep="\n")  # noqa: T201 - what bench is for
    # The JVM goes on compiling, and on a busy machine it comes to less of that: 2.6 to 3.3.
    assert counted.ratio() < 3.5
    # Beside what Spark takes of rows that nobody reads, it is little more than the reading.
    assert counted.ratio() - counted.ratio("spark-premade") < 1.6
    assert counted.ratio("spark-offsets") < 3
