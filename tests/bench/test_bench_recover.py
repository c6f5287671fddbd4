"""`make bench`: the report of recovery, and the one thing that must hold on any machine."""

import pytest

from tests.bench.bench_recover import measure
from tests.bench.figures import keep


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(1800)
def test_loading_after_a_crash_is_not_slower_than_kafkas() -> None:
    report = measure(megabytes=1000, partitions=4, rounds=6)
    print("", *report.lines(), sep="\n")  # noqa: T201 - the report is what bench is for
    keep("recover", [report.figure()])
    for cores in (1, 2):
        assert report.ratio((cores, False), "load") > 1
