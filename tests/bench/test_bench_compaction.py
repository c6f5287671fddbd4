"""`make bench`: the reports, and the one thing that must hold on any machine."""

import pytest

from tests.bench.bench_compaction import TARGETS, measure
from tests.bench.figures import keep
from tests.bench.generated_partition import Size


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(1800)
def test_a_warm_round_is_faster_than_kafkas() -> None:
    figures = []
    for codec in TARGETS:
        report = measure(Size(codec=codec), rounds=6)
        print("", codec, *report.lines(), sep="\n")  # noqa: T201 - the report is what bench is for
        figures += report.figures(codec)
        assert report.median(lambda t: t.ours) < report.median(lambda t: t.kafka_clean)
    keep("compaction", figures)
