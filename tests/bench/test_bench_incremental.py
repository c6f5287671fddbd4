"""`make bench`: the round after a round, kept, and what must hold on any machine."""

import pytest

from tests.bench.bench_incremental import measure
from tests.bench.figures import Figure, keep
from tests.bench.incremental_partition import IncrementalSize


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(1800)
def test_the_next_round_is_faster_with_key_sidecars_than_without() -> None:
    figures: list[Figure] = []
    for codec in ("none", "zstd"):
        for hot in (True, False):
            report = measure(IncrementalSize(hot=hot, codec=codec), rounds=6)
            print("", *report.lines(), sep="\n")  # noqa: T201 - the report is what bench is for
            figures += report.figures()
            without, with_sidecars = figures[-2:]
            assert without.ratio("Kafka") > 1
            assert not hot or with_sidecars.rate > without.rate
    keep("incremental", figures)
