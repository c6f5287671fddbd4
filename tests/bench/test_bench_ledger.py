"""`make bench`: a ledger makes a small run hardly longer."""

import pytest

from tests.bench.bench_ledger import NEW, NONE, TARGET_SECONDS, Cost, measure
from tests.bench.figures import keep


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_a_ledger_makes_a_small_run_hardly_longer() -> None:
    costs = measure(rounds=5)
    for cost in costs:
        print(cost.line(), flush=True)  # noqa: T201 - what bench is for
    keep("ledger", costs, table="costs")
    assert all(cost.more <= TARGET_SECONDS for cost in costs)


def test_a_row_says_what_a_ledger_adds_in_the_same_rounds() -> None:
    without = (10.0, 12.0, 11.0)
    cost = Cost(what=NEW, seconds=(11.0, 12.5, 13.0), processor_seconds=(1, 2, 3), without=without)
    assert (
        cost.line() == "| run of a small directory, a new ledger | 12.5 | 2.0 | +1.0 | 2 s more |"
    )
    assert (
        "+"
        not in Cost(what=NONE, seconds=without, processor_seconds=without, without=without).line()
    )
