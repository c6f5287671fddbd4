"""Clocks as values to pass down: system clock and manual clock. No other module reads the wall
clock."""

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def epoch_ms(at: datetime) -> int:
    """Return a time as epoch milliseconds, rounded up. Records of the millisecond before are
    older than the time."""
    return -((_EPOCH - at) // _MILLISECOND)


class Clock(Protocol):
    """Something that tells the time."""

    def now_ms(self) -> int:
        """Return the wall clock in epoch milliseconds."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        """Return the wall clock in epoch milliseconds."""
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the time that was set, in epoch milliseconds."""
        return self._now_ms

    def advance(self, milliseconds: int) -> None:
        """Move the clock; a negative number moves it back."""
        self._now_ms += milliseconds
