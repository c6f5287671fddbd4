"""`make bench`: the report, and the one thing that must hold on any machine."""

import pytest

from tests.bench.bench_compaction import measure
from tests.bench.generated_partition import Size


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(900)
def test_a_warm_round_is_faster_than_kafkas() -> None:
    report = measure(Size(), rounds=6)
    print("", *report.lines(), sep="\n")  # noqa: T201 - the report is what bench is for
    assert report.median(lambda t: t.ours) < report.median(lambda t: t.kafka_clean)
