"""``make scale``: what planning very many partitions takes, of the driver and of all processes."""

import pytest

from tests.bench.bench_many import PARTITIONS, plan_night
from tests.bench.bench_scale import run


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_planning_grows_with_the_partitions_and_stays_within_two_gibibytes():
    rows = run()
    for row in rows:
        assert row["python_mib"] + row["heap_limit_mib"] <= 2048


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_night_of_a_broker_is_planned_within_two_gibibytes():
    night = plan_night(PARTITIONS[-1])
    print(f"a dry run: {night}")  # noqa: T201  # what bench is for
    assert night.memory_bytes <= 2048 << 20
