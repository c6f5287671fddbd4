"""`make bench`: what Spark adds to reading a thousand partitions."""

import pytest

from tests.bench.bench_count import measure


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_a_count_adds_little_more_than_the_reading_to_what_spark_takes_itself() -> None:
    counted = measure(partitions=1_000, records=4_000, rounds=10)
    print("", *counted.lines(), sep="\n")  # noqa: T201 - what bench is for
    # Rows that nobody reads take Spark 2.3 to 3.4 times the reading: the JVM goes on compiling.
    assert counted.ratio() - counted.ratio("spark-premade") < 1.6
    assert counted.ratio("spark-offsets") < 3
