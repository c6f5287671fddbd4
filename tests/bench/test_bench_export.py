"""`make bench`: how fast a segment of five million records becomes Parquet."""

import pytest

from tests.bench.bench_export import RECORDS, measure


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_five_million_records_become_parquet_at_two_million_a_second() -> None:
    rounds = list(measure(rounds=3, has_spark=True))
    print("", *(each.line() for each in rounds), sep="\n")  # noqa: T201 - what bench is for
    best = min(each.seconds for each in rounds if each.name == "pylog export, uncompressed")
    assert RECORDS / best > 2_000_000
