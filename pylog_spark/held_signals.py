"""Hold Ctrl-C and SIGTERM during a step that must not be interrupted.

While a session starts, pyspark waits for a file that its JVM writes into a folder. An exception in
that wait removes the folder, the JVM fails to write, and a process without an owner stays for ever
and keeps the terminal's or the pipe's other end open.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from storage_core import interruption

_HELD: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_signals() -> Iterator[None]:
    """Deliver signals when the block ends; a second does not wait.

    Nothing is held outside of the main thread, where no handlers run, nor in the program, whose
    handlers raise nothing.
    """
    if interruption.is_watched() or threading.current_thread() is not threading.main_thread():
        with interruption.ending_in_order():
            yield
        return
    former: dict[int, Any] = {}
    waiting: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        handler: Callable[[int, FrameType | None], Any] | int = former[number]
        if waiting and callable(handler):
            handler(number, frame)
        waiting.append(number)

    for held in _HELD:
        own_handler = signal.getsignal(held)
        if own_handler not in {None, signal.SIG_IGN}:
            former[held] = own_handler
            signal.signal(held, hold)
    try:
        yield
    finally:
        for number, handler in former.items():
            # Spark may have put a handler of its own there, which is the session's to keep.
            if signal.getsignal(number) is hold:
                signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])
