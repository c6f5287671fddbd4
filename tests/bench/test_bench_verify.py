"""`make bench`: how fast a partition is verified."""

import pytest

from tests.bench.bench_compaction import CACHE
from tests.bench.bench_verify import PACKAGE, beside_package, measure
from tests.bench.figures import keep
from tests.bench.generated_partition import Size, generated_partition


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(900)
def test_checksums_are_checked_faster_than_a_disk_reads() -> None:
    directory = generated_partition(CACHE, Size())
    rates = list(measure(directory, rounds=4, processes=(1, 2)))
    print("", *(rate.line() for rate in rates), sep="\n")  # noqa: T201 - what bench is for
    assert rates[0].bytes_per_second > 1e9
    figure = beside_package(directory, rounds=8)
    print(figure.line())  # noqa: T201 - likewise
    keep("verify", [figure])
    assert figure.ratio(PACKAGE) > 0.25
