"""`make bench`: what a partition and a file cost where there are very many."""

import pytest

from tests.bench.bench_many import PARTITIONS, SEGMENTS, Many, Night, measure
from tests.bench.figures import keep


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_partition_with_nothing_due_costs_less_than_a_millisecond() -> None:
    rows = []
    for many in measure(PARTITIONS, SEGMENTS):
        print(many.line(), flush=True)  # noqa: T201 - what bench is for
        rows.append(many)
    keep("many", rows, table="many")
    first, last = rows[0].nights[0], rows[0].nights[-1]
    more = last.processor_seconds - first.processor_seconds
    assert more < 0.001 * (last.partitions - first.partitions)


def test_a_row_says_what_a_partition_and_a_file_add() -> None:
    nights = [
        Night(
            partitions=n,
            files=100 * n,
            seconds=10 + n / 100,
            processor_seconds=20 + n / 50,
            memory_bytes=n << 20,
            jvm_bytes=n << 19,
            driver_bytes=n << 18,
            worker_bytes=n << 17,
        )
        for n in (100, 1100)
    ]
    assert Many(what="all", segments=33, nights=nights).line() == (
        "| all, 33 segments each | 100, 1,100 | 11.0, 21.0 | 22.0, 42.0 "
        "| 10.00 ms, 20.00 ms | 100.0 us, 200.0 us | 100, 1100 |"
    )
