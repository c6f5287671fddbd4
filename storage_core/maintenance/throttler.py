"""Limit compaction's bytes a second, as Kafka's cleaner does.

What was read or written is counted over a window. Once more than 300 ms of it have passed, the
caller sleeps for as long as makes the window's bytes keep the rate, and a new window begins.
"""

import math
import time
from typing import Final, Protocol

from storage_core.errors import ConfigError
from storage_core.threads import waiting

WINDOW_NS: Final = 300 * 1_000_000
UNLIMITED: Final = math.inf
_NS_IN_MS: Final = 1_000_000
_KEY: Final = "log.cleaner.io.max.bytes.per.second"


class ForwardClock(Protocol):
    """A monotonic clock, and its sleep."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since some moment."""
        ...

    def sleep_ms(self, milliseconds: int) -> None:
        """Return when so many milliseconds have passed."""
        ...


class MachineClock:
    """The clock of this machine."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since some moment."""
        return time.monotonic_ns()

    def sleep_ms(self, milliseconds: int) -> None:
        """Sleep for so many milliseconds."""
        with waiting():
            time.sleep(milliseconds / 1000)


class Throttler:
    """Slows its caller down to a rate.

    Args:
        bytes_per_second: The rate; a negative one is no limit, as in Kafka.
    """

    def __init__(self, bytes_per_second: float, pace: ForwardClock | None = None) -> None:
        if bytes_per_second == 0:
            raise ConfigError(_KEY, bytes_per_second, "nothing would ever be read")
        self._rate = bytes_per_second
        self._pace = pace or MachineClock()
        self._begin_ns = self._pace.monotonic_ns()
        self._observed = 0

    def use(self, size_bytes: int) -> None:
        """Count bytes read or written, and sleep to keep the rate."""
        if self._rate == UNLIMITED:
            return
        self._observed += size_bytes
        elapsed_ns = self._pace.monotonic_ns() - self._begin_ns
        if elapsed_ns <= WINDOW_NS or not self._observed:
            return
        if self._observed * 1e9 / elapsed_ns > self._rate:
            wait_ms = self._observed / (self._rate / 1000) - elapsed_ns // _NS_IN_MS
            whole_ms = math.floor(wait_ms + 0.5)
            if whole_ms > 0:
                self._pace.sleep_ms(whole_ms)
        self._begin_ns = self._pace.monotonic_ns()
        self._observed = 0


def share_of(bytes_per_second: float, *, tasks: int) -> float:
    """Return each task's share of a common rate."""
    return bytes_per_second / max(1, tasks)
