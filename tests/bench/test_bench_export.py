"""`make bench`: how fast a segment of five million records becomes Parquet."""

import pytest

from tests.bench.bench_export import RECORDS, measure


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_two_processors_can_make_parquet_of_two_million_records_a_second() -> None:
    rounds = list(measure(rounds=3, has_spark=True))
    print("", *(each.line() for each in rounds), sep="\n")  # noqa: T201 - what bench is for
    # Whoever else uses the machine takes wall time, and hardly any of this.
    cpu_seconds = min(
        each.cpu_seconds for each in rounds if each.name.endswith("export, uncompressed")
    )
    assert 2 * RECORDS / cpu_seconds > 2_000_000
