"""Handle SIGTERM and Ctrl-C in one place, without exceptions from handlers. Code is never
interrupted by an exception that it does not expect.

A handler that raises does so between any two instructions: an import keeps its lock for ever, a
callback swallows the error. So the handlers of ``watch`` do nothing. The kernel's signal is written
into a pipe, and a thread that reads it decides. Where nothing has to be given back it ends the
process at once. In a block of ``ending_in_order`` the main thread ends its work itself, at the next
``check``; a second signal does not wait for that, nor does the thread wait for ever.

A process that ends at once gives back its locks all the same: who holds them ends with it.
"""

import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# Base of an exit status after a signal, as in shells.
_SIGNAL_STATUS: Final = 128
# Service managers kill what has not ended after 90 seconds (systemd).
_PATIENCE_SECONDS: Final = 60.0
# Ctrl-C reaches a whole group, and the parent passes it on: both count as one signal.
_ONE_SIGNAL_SECONDS: Final = 1.0
_STANDARD_ERROR: Final = 2
SIGNAL_THREAD: Final = "pylog-signals"
# Arguments: this package's folder, the exit status, and the path to remove.
_REMOVAL: Final = """
import os, sys
sys.path.insert(0, sys.argv[1])
from storage_core.interruption import remove_scratch
for path in sys.argv[3:]:
    remove_scratch(path)
os._exit(int(sys.argv[2]))
"""


class TerminatedError(BaseException):
    """SIGTERM asked the process to end. As a BaseException it is not swallowed by ``except
    Exception``."""


class _Watch:
    """What is known of interruptions of this process."""

    def __init__(self) -> None:
        self.is_on = False
        self.heard: tuple[int, ...] = ()
        self.number: int | None = None
        self.is_raised = False
        self.requested = 0.0
        self.blocks = 0
        self.scratch: set[str] = set()
        self.line: Callable[[str], bytes] = _plain_line
        self.cancel: Callable[[], object] | None = None
        self.lock = threading.Lock()


def _plain_line(text: str) -> bytes:
    return f"pylog: {text}\n".encode()


_watch = _Watch()


def _forget() -> None:
    """Forget after a fork what is the parent's: its thread is not here, nor are signals watched."""
    global _watch  # noqa: PLW0603  # of this process, as signals are
    if _watch.is_on:
        signal.set_wakeup_fd(-1)
        _watch = _Watch()


os.register_at_fork(after_in_child=_forget)


def watch() -> None:
    """Handle SIGTERM and Ctrl-C as this module says. Only the main thread can call it."""
    if _watch.is_on:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    _watch.is_on = True
    # An ignored signal (nohup, a script's background job) stays ignored.
    _watch.heard = tuple(
        number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
    )
    take_signals()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_read, args=(reader,), name=SIGNAL_THREAD, daemon=True).start()


def is_watched() -> bool:
    """Whether ``watch`` was called."""
    return _watch.is_on


def take_signals() -> None:
    """Set the handlers again after a library has replaced them. It does nothing without
    ``watch``."""
    if _watch.is_on:
        for number in _SIGNALS:
            signal.signal(number, _wake if number in _watch.heard else signal.SIG_IGN)


def tell_by(line: Callable[[str], bytes]) -> None:
    """Set the format of the last line: why the process ended.

    Args:
        line: Returns it for "interrupted" or "terminated"; takes no locks.
    """
    _watch.line = line


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Delay a signal in the block until a ``check`` or its end."""
    with _watch.lock:
        _watch.blocks += 1
    try:
        yield
    finally:
        with _watch.lock:
            _watch.blocks -= 1
            is_last = not _watch.blocks
        if is_last and _watch.number is not None and not _watch.is_raised:
            _end(_watch.number)


@contextmanager
def cancelled_by(cancel: Callable[[], object]) -> Iterator[None]:
    """Call a function at each Ctrl-C in the block, in place of the process's end.

    Args:
        cancel: It is called by another thread.
    """
    before, _watch.cancel = _watch.cancel, cancel
    try:
        yield
    finally:
        _watch.cancel = before


@contextmanager
def removed_at_end(path: str) -> Iterator[None]:
    """Remove a path if a signal ends the process in the block. The path is a folder or a file. A
    signal then ends the process at once."""
    _watch.scratch.add(path)
    try:
        yield
    finally:
        _watch.scratch.discard(path)


def remove_scratch(path: str) -> None:
    """Remove this process's folder or file despite workers about to end.

    Workers put files into a folder by its name, and it would not get empty: so it loses that first.
    """
    gone = f"{path}.gone"
    with suppress(OSError):
        os.rename(path, gone)  # noqa: PTH104  # no pathlib in the process of a lock
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        os.unlink(gone)  # noqa: PTH108  # a file


def check() -> None:
    """Raise the requested interruption once, in the main thread."""
    if _watch.number is None or _watch.is_raised:
        return
    if threading.current_thread() is threading.main_thread():
        _watch.is_raised = True
        raise _error(_watch.number)


def is_requested() -> bool:
    """Whether somebody has asked this process to end."""
    return _watch.number is not None


def cause_of(error: BaseException) -> BaseException:
    """Return the cause of an end: a requested interruption, else the error.

    A service manager tells all processes to end. What the others' end looks like is no failure.
    """
    return error if _watch.number is None else _error(_watch.number)


def _error(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else TerminatedError()


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: the thread that reads the pipe has heard of it."""
    del number, frame


def _read(reader: int) -> None:
    """Wait for signals; end the process here or in the main thread."""
    while True:
        patience = None if _watch.number is None else _PATIENCE_SECONDS
        readable = select.select([reader], [], [], patience)[0]
        received = (
            [number for number in os.read(reader, 1) if number in _watch.heard] if readable else []
        )
        if readable and not received:
            continue  # a signal from another process
        if readable and received[0] == signal.SIGINT and _watch.cancel is not None:
            _watch.cancel()
            continue
        if _watch.number is not None:
            if not readable or time.monotonic() - _watch.requested > _ONE_SIGNAL_SECONDS:
                _end(_watch.number)
            continue
        with _watch.lock:
            number = received[0]
            if _watch.blocks:
                _watch.requested = time.monotonic()
                _watch.number = number
                continue
            # The lock keeps new blocks from beginning: their files would be left.
            _end(number)


def _end(number: int) -> None:
    """End the process, whatever it is at."""
    line = _watch.line("interrupted" if number == signal.SIGINT else "terminated")
    # Where nobody reads standard error any more, writing to it would never end.
    with suppress(OSError, ValueError):
        if select.select([], [_STANDARD_ERROR], [], 0)[1]:
            os.write(_STANDARD_ERROR, line)
    status = _SIGNAL_STATUS + number
    if scratch := list(_watch.scratch):
        _become_removal(scratch, status)
    os._exit(status)


def _become_removal(scratch: list[str], status: int) -> None:
    """Replace this process by one to remove files and exit. The new process ends with the given
    status.

    Other threads of this one would go on in a folder that is removed: they would make it anew, or
    end the process with an error of theirs. No thread lives on in another program.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  # as above
    with suppress(OSError):
        os.execv(  # noqa: S606
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _REMOVAL, package, str(status), *scratch],
        )
    for path in scratch:  # that program no longer exists
        remove_scratch(path)
