"""``make scale``: what planning a hundred thousand partitions takes of the driver."""

import pytest

from tests.bench.bench_scale import run


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_planning_grows_with_the_partitions_and_stays_within_two_gibibytes():
    rows = run()
    for row in rows:
        assert row["python_mib"] + row["heap_limit_mib"] <= 2048
