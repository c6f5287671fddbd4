"""A job's progress as one terminal line; nothing without a terminal."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pylog_spark.run.progress import Progress as JobProgress
from pylog_spark.run.progress import progress_text


class ProgressLine:
    """Shows progress on standard error while a job runs; a context manager.

    Args:
        is_shown: Whether to show it, where standard error is a terminal.
    """

    def __init__(self, *, is_shown: bool) -> None:
        console = Console(stderr=True)
        self._is_shown = is_shown and console.is_terminal
        self._bar = Progress(
            TextColumn("reading"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("reading", total=None, text="looking what is there")

    def __enter__(self) -> Self:
        if self._is_shown:
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._is_shown:
            self._bar.stop()

    def on_progress(self, progress: JobProgress) -> None:
        """Show how far the job has come."""
        if self._is_shown:
            self._bar.update(
                self._task,
                total=progress.total_bytes,
                completed=progress.done_bytes,
                text=progress_text(progress),
            )
