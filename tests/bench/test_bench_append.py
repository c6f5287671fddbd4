"""`make bench`: appends beside Kafka's, and the one thing that must hold on any machine."""

import pytest

from tests.bench.bench_append import measure
from tests.bench.figures import keep


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(900)
def test_columns_go_in_at_hundreds_of_megabytes_a_second() -> None:
    report = measure(megabytes=400, record_bytes=200, rounds=7)
    print("", *report.lines(), sep="\n")  # noqa: T201 - the report is what bench is for
    keep("append", report.figures())
    assert report.rate("ours, columns into 1 MB batches") > 200
