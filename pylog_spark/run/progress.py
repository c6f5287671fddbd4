"""How far a stage has come, while it runs.

An engine tells how many tasks of a stage have ended. Tasks start in the order of their units, the
longest first, so that the bytes of as many units are about what was read.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from pylog_spark.engines.engine import AnyEngine
from pylog_spark.report import size_text
from storage_core.wording import count_text

_INTERVAL_SECONDS: Final = 0.5
_SECONDS_PER_MINUTE: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run has come."""

    done_bytes: int
    total_bytes: int
    done_segments: int = 0
    total_segments: int = 0  # segments that are to be read; 0 where nobody counts them
    seconds: float  # since the run began to read

    @property
    def bytes_per_second(self) -> float:
        """Rate so far."""
        return self.done_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The remaining time at the rate so far; None without a rate."""
        remaining = self.total_bytes - self.done_bytes
        return remaining / self.bytes_per_second if self.done_bytes else None


OnProgress = Callable[[Progress], None]


def progress_text(progress: Progress) -> str:
    """Return progress as text: remaining bytes, rate and remaining time."""
    remaining = progress.total_bytes - progress.done_bytes
    segments = progress.total_segments - progress.done_segments
    where = f" in {count_text(segments, 'segment')}" if progress.total_segments else ""
    text = f"about {size_text(remaining)}{where} left"
    if progress.seconds_left is None:
        return text
    rate = size_text(round(progress.bytes_per_second))
    minutes, seconds = divmod(round(progress.seconds_left), _SECONDS_PER_MINUTE)
    time_left = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    return f"{text}, {rate}/s, {time_left} to go"


class ProgressMeter:
    """Counts what the stages of a run have read.

    Args:
        total_segments: Segments that are to be read; 0 where nobody counts them.
        report: Called from a thread of its own, several times a second while a stage runs; None for
            nobody.
    """

    def __init__(
        self,
        engine: AnyEngine,
        *,
        total_bytes: int,
        total_segments: int = 0,
        report: OnProgress | None,
    ) -> None:
        self._engine = engine
        self._total_bytes = total_bytes
        self._total_segments = total_segments
        self._report = report
        self._started = time.monotonic()
        self._before = (0, 0)

    def stage(self, units: Sequence[tuple[int, int]]) -> "StageWatch":
        """Return a context manager for a stage with one task a unit. Tasks have the order of the
        units.

        Args:
            units: Of each, how many bytes and how many segments it reads (0 where nobody counts).
        """
        return StageWatch(self, units)

    @property
    def between_stages(self) -> Progress:
        """How far the stages have come that have ended."""
        return self._progress(0, 0)

    def tell(self, done_bytes: int, done_segments: int) -> None:
        """Report what the running stage has read beside those before it."""
        if self._report is not None:
            self._report(self._progress(done_bytes, done_segments))

    def end_stage(self, done_bytes: int, done_segments: int) -> None:
        """Take note that a stage has ended."""
        self._before = (self._before[0] + done_bytes, self._before[1] + done_segments)
        self.tell(0, 0)

    def _progress(self, done_bytes: int, done_segments: int) -> Progress:
        return Progress(
            done_bytes=self._before[0] + done_bytes,
            total_bytes=self._total_bytes,
            done_segments=self._before[1] + done_segments,
            total_segments=self._total_segments,
            seconds=time.monotonic() - self._started,
        )

    def completed_tasks(self, tasks: int) -> int:
        """Return how many tasks of the running stage have ended. Their number of tasks
        identifies the stage."""
        return self._engine.completed_tasks(tasks)


class StageWatch:
    """Watches one stage; a context manager."""

    def __init__(self, meter: ProgressMeter, units: Sequence[tuple[int, int]]) -> None:
        self._meter = meter
        self._bytes = [0, *itertools.accumulate(size for size, _ in units)]
        self._segments = [0, *itertools.accumulate(count for _, count in units)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._stop.set()
        self._thread.join()
        if error is None:
            self._meter.end_stage(self._bytes[-1], self._segments[-1])

    def _watch(self) -> None:
        most = 0
        tasks = len(self._bytes) - 1
        while not self._stop.wait(_INTERVAL_SECONDS):
            most = max(most, min(self._meter.completed_tasks(tasks), tasks))
            self._meter.tell(self._bytes[most], self._segments[most])
