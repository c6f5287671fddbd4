"""The local engine's processes: one with all imports, and its working forks.

The first one has no threads, so that it may fork; the driver has some. It ends when the driver
does, however that ends, and takes its forks with it. Should it be killed itself, the kernel kills
its forks.
"""

import ctypes
import gc
import os
import pickle
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Final

import cloudpickle

from pylog_spark.engines.local_tasks import load
from storage_core.checkpoint.lock import kept_shares

# From Linux's prctl.h: which signal a process gets when its parent ends.
_SET_PARENT_DEATH_SIGNAL: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


def serve_forks(descriptor: int) -> None:
    """Fork a worker per connection from the driver; end with the driver.

    Args:
        descriptor: Socket to the driver, which sends a descriptor a fork. Standard input has the
            names of modules to import.
    """
    # Ctrl-C reaches the driver, and so does what ends a service: it decides what becomes of tasks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    modules: list[str] = pickle.load(sys.stdin.buffer)  # noqa: S301  # the driver's own
    with socket.socket(fileno=descriptor) as driver:
        for name in modules:
            with suppress(ImportError):
                import_module(name)
        gc.collect()
        gc.freeze()
        template = os.getpid()
        while True:
            _, descriptors, _, _ = socket.recv_fds(driver, 1, 1)
            if not descriptors:
                # Everybody of this group: the forks, and this process.
                os.killpg(0, signal.SIGKILL)
            if os.fork() == 0:
                _end_with(template)
                driver.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _work(descriptors[0])
            os.close(descriptors[0])


def _end_with(parent: int) -> None:
    """Have the kernel kill this process at, or after, its parent's end."""
    if _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def _work(descriptor: int) -> None:
    """Do task after task, until the driver closes the connection."""
    try:
        with Connection(descriptor) as driver:
            while True:
                driver.send_bytes(_answer(driver.recv_bytes()))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


def _answer(message: bytes) -> bytes:
    """Do a task; return what it made, or how it failed."""
    try:
        file, source, task = pickle.loads(message)  # noqa: S301  # the driver's own
        with kept_shares():
            result: Any = load(file).run(cloudpickle.loads(source), task)
        return pickle.dumps((result, None))
    except Exception as error:  # noqa: BLE001  # the driver raises it
        text = f"{type(error).__name__}: {error}"
        return pickle.dumps((None, (text, traceback.format_exc())))
