"""`make bench`: audits of three brokers with very many partitions, beside inspections."""

import pytest

from tests.bench.bench_audit_many import OFFSETS, PARTITIONS, Cost, Costs, measure
from tests.bench.figures import keep


@pytest.mark.bench
@pytest.mark.timeout(7200)
def test_offsets_are_compared_in_less_than_two_inspections_and_memory_stays_flat() -> None:
    rows = list(measure(PARTITIONS))
    for row in rows:
        print(row.line(), flush=True)  # noqa: T201 - what bench is for
    keep("audit_many", rows, table="audits")
    (offsets,) = (row for row in rows if row.way == OFFSETS)
    assert offsets.ratio < 2
    few, some, many = (cost.processor_seconds for cost in offsets.costs)
    first, second, third = offsets.partitions
    assert (many - some) / (third - second) < 1.5 * (some - few) / (second - first)
    assert offsets.costs[-1].memory_bytes < 2 * offsets.costs[0].memory_bytes


def test_a_row_says_what_a_partition_adds_and_what_inspections_take() -> None:
    costs = [
        Cost(seconds=10 + n, processor_seconds=5 + n / 100, memory_bytes=(300 + n) << 20)
        for n in (0, 1000)
    ]
    inspected = [Cost(seconds=1, processor_seconds=10, memory_bytes=1 << 20)] * 2
    row = Costs(way=OFFSETS, partitions=(1000, 2000), costs=costs, inspected=inspected)
    assert row.line() == (
        "| differences | 1,000, 2,000 | 10.0, 1010.0 | 5.0, 15.0 | 10.00 ms "
        "| 1.5 times inspect, three times | 300, 1300 |"
    )
