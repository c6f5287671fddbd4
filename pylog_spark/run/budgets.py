"""The budgets of a run for new work: bytes, time, disk space.

A budget is asked between waves, never within one: what was begun is finished, and what finished
waves committed stays.
"""

import time
from collections.abc import Callable
from typing import Final

from pylog_spark.options import RunLimits
from pylog_spark.schemas import Reason
from storage_core.wording import span_text

# Of what is free on a disk, another writer may want some too.
_USABLE_SHARE: Final = 0.9


class RunBudget:
    """The budget of one run.

    Args:
        limits: What it may use.
        clock: Seconds that only grow; for tests.
    """

    def __init__(self, limits: RunLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._began = clock()
        self._used_bytes = 0

    def use(self, size_bytes: int) -> None:
        """Take note of bytes that a wave is going to read."""
        self._used_bytes += size_bytes

    def refusal(self) -> tuple[Reason, str] | None:
        """Return why nothing more may be begun, None while it may."""
        most_bytes, most_ms = self._limits.max_bytes, self._limits.max_duration_ms
        if most_bytes is not None and self._used_bytes >= most_bytes:
            why = f"--max-bytes {most_bytes}: {self._used_bytes} bytes were read before it"
            return Reason.BUDGET_SPENT, why
        spent_ms = round((self._clock() - self._began) * 1000)
        if most_ms is not None and spent_ms >= most_ms:
            why = f"--max-duration {span_text(most_ms)}: {span_text(spent_ms)} had passed before it"
            return Reason.BUDGET_SPENT, why
        return None

    def usable_of(self, free_bytes: int) -> int:
        """Return the usable part of a disk's free space, never negative."""
        spared = min(int(free_bytes * _USABLE_SHARE), free_bytes - self._limits.min_free_bytes)
        return max(0, spared)
