"""`make bench`: a dump beside Kafka's own tool."""

import pytest

from tests.bench.bench_dump import KAFKA, measure
from tests.bench.figures import keep
from tests.bench.generated_partition import Size


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(900)
def test_a_dump_is_faster_than_kafkas_tool() -> None:
    figures = measure(records=Size().records, rounds=5)
    print("", *(figure.line() for figure in figures), sep="\n")  # noqa: T201 - what bench is for
    keep("dump", figures)
    assert all(figure.ratio(KAFKA) > 1 for figure in figures)
