"""The tasks of the local engine, done by the thread that waits for them.

A crash, or a signal, that is made up in a thread of the engine's would end that thread, and nobody
would hear of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from pylog_spark.engines.local_engine import LocalEngine
from pylog_spark.engines.local_worker import Piece, Stage


def _do(
    _engine: LocalEngine, stage: Stage, given: Sequence[Any], *, is_look: bool
) -> list[list[Piece]]:
    del is_look
    return [stage.run_here(each, number) for number, each in enumerate(given)]


@contextmanager
def tasks_done_here() -> Iterator[None]:
    """Let the local engine do its tasks one after the other, for the time of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "_do", _do)
        yield
