"""The cleaner's budget of bytes a second, on a clock that only sleeping and reading move."""

from typing import ClassVar

import pytest

from storage_core.errors import ConfigError
from storage_core.maintenance.throttler import UNLIMITED, Throttler, share_of
from tests.kit.golden_cleaning import cleaning_of
from tests.kit.golden_data import Golden

MS = 1_000_000


class FakePace:
    """Nanoseconds that pass when somebody says so; sleeps are remembered and pass at once."""

    def __init__(self) -> None:
        self.now_ns = 5 * MS
        self.slept_ms: list[int] = []

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep_ms(self, milliseconds: int) -> None:
        self.slept_ms.append(milliseconds)
        self.now_ns += milliseconds * MS


def throttled(rate: float, uses: list[tuple[int, int]]) -> list[int]:
    """Return the sleeps of a throttler that is used for (milliseconds, bytes) one by one."""
    pace = FakePace()
    throttler = Throttler(rate, pace)
    for milliseconds, size in uses:
        pace.now_ns += milliseconds * MS
        throttler.use(size)
    return pace.slept_ms


@pytest.mark.item("CMP-45")
def test_bytes_above_the_rate_are_slept_for():
    # 1000 bytes in 400 ms at 1000 bytes/s: they would have taken a second.
    assert throttled(1000, [(400, 1000)]) == [600]


@pytest.mark.item("CMP-45")
def test_nothing_is_measured_before_more_than_300_ms_have_passed():
    assert throttled(1000, [(300, 10_000)]) == []
    assert throttled(1000, [(300, 10_000), (1, 0)]) == [9699]


@pytest.mark.item("CMP-45")
def test_each_window_stands_for_itself():
    assert throttled(1000, [(400, 1000), (400, 400), (400, 500)]) == [600, 100]


@pytest.mark.item("CMP-45")
def test_time_without_bytes_lengthens_the_window():
    assert throttled(1000, [(5000, 0), (100, 5200)]) == [100]


@pytest.mark.item("CMP-45")
def test_a_rate_that_is_kept_costs_no_sleep():
    assert throttled(1000, [(400, 400), (350, 200)]) == []


@pytest.mark.item("CMP-45")
@pytest.mark.parametrize("rate", [UNLIMITED, 1.7976931348623157e308, -1.0])
def test_no_limit_never_sleeps(rate):
    assert throttled(rate, [(400, 1 << 40)]) == []


def test_a_rate_of_zero_is_refused():
    with pytest.raises(ConfigError):
        Throttler(0.0, FakePace())


@pytest.mark.item("CMP-45")
def test_tasks_that_run_at_once_keep_the_rate_together():
    tasks = 4
    pace = FakePace()
    throttlers = [Throttler(share_of(1000, tasks=tasks), pace) for _ in range(tasks)]
    # All of them at once: sleeping in one lets time pass for one alone.
    slept = []
    for throttler in throttlers:
        pace.now_ns, pace.slept_ms = 405 * MS, []
        throttler.use(500)
        slept += pace.slept_ms
    # 2000 bytes in 2 s.
    assert slept == [1600] * tasks


class NotedThrottler(Throttler):
    """Takes note of what it is told."""

    noted: ClassVar[list[int]] = []

    def use(self, size_bytes: int) -> None:
        self.noted.append(size_bytes)
        super().use(size_bytes)


@pytest.mark.item("CMP-45")
def test_both_passes_and_what_is_written_use_one_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(NotedThrottler, "noted", [])
    monkeypatch.setattr("storage_core.maintenance.compaction.partition.Throttler", NotedThrottler)
    golden = Golden("clean-hw-none-s161")
    directory = golden.unpack(tmp_path / "before")
    result = cleaning_of(golden).clean(directory)
    sources = sum(size for size in NotedThrottler.noted if size)
    # The dirty section is read twice, once for its keys; what is kept is written.
    assert sources == 2 * result.bytes_read + result.bytes_written
