"""What a run may still begin with."""

from pylog_spark.options import RunLimits
from pylog_spark.outcomes import Reason
from pylog_spark.run.run import RunBudget


class Seconds:
    """A clock that is moved by hand."""

    now = 100.0

    def __call__(self):
        return self.now


def test_without_limits_a_run_may_begin_with_anything():
    budget = RunBudget(RunLimits())
    budget.use(2**60)
    assert budget.refusal() is None


def test_once_so_much_was_read_nothing_more_is_begun():
    budget = RunBudget(RunLimits(max_bytes=1000))
    budget.use(999)
    assert budget.refusal() is None
    budget.use(1)
    assert budget.refusal() == (
        Reason.BUDGET_SPENT,
        "--max-bytes 1000: 1000 bytes were read before it",
    )


def test_after_so_long_nothing_more_is_begun():
    clock = Seconds()
    budget = RunBudget(RunLimits(max_duration_ms=60_000), clock=clock)
    clock.now += 59.9
    assert budget.refusal() is None
    clock.now += 0.1
    assert budget.refusal() == (
        Reason.BUDGET_SPENT,
        "--max-duration 1 minute: 1 minute had passed before it",
    )


def test_of_a_disk_a_tenth_and_what_was_asked_for_stays_free():
    assert RunBudget(RunLimits()).usable_of(1000) == 900
    assert RunBudget(RunLimits(min_free_bytes=300)).usable_of(1000) == 700
    assert RunBudget(RunLimits(min_free_bytes=3000)).usable_of(1000) == 0
