"""Templates of the local engine's workers that need no second to import: forks of a ready process.

A template imports what tasks need; in a night that is little, in a test it is most of the work. One
process of the test run imports it once, when the first template is wanted, and forks the others.
A driver that is a process of its own starts its template itself, as it does at its users'.
"""

import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Final

from pylog_spark.engines.local_engine import modules_of_tasks
from pylog_spark.engines.local_worker import serve_forks

# Of a message: the environment, and paths.
_MOST_BYTES: Final = 1 << 17
_REPOSITORY: Final = Path(__file__).parents[2]


class ReadyTemplate:
    """A template as the local engine sees it.

    Args:
        pid: The process, which leads a group of its own.
        stdin: Where it reads the names of modules.
    """

    def __init__(self, pid: int, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin

    def wait(self) -> None:
        """Return when the process has ended; the one that forked it takes note of that."""
        with suppress(ProcessLookupError):
            while True:
                os.kill(self.pid, 0)
                time.sleep(0.001)


class ReadyTemplates:
    """The process that forks templates, started when the first one is wanted."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()

    def start_template(self, control: int) -> ReadyTemplate:
        """Return a template; see ``local_pool.start_template``."""
        state = pickle.dumps((str(Path.cwd()), dict(os.environ), sys.path))
        names, stdin = os.pipe()
        try:
            with self._lock:
                self._process = self._process or self._start()
                socket.send_fds(self._socket, [state], [control, names, 2])
                pid = int(self._socket.recv(_MOST_BYTES))
        finally:
            os.close(names)
        return ReadyTemplate(pid, os.fdopen(stdin, "wb"))

    def close(self) -> None:
        """End the process; templates that run are their drivers'."""
        self._socket.close()
        self._theirs.close()
        if self._process is not None:
            self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._theirs.fileno())],
            cwd=_REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[self._theirs.fileno()],
            process_group=0,
        )
        self._theirs.close()
        assert process.stdin is not None
        with process.stdin as stream:
            pickle.dump(modules_of_tasks(), stream)
        return process


def _serve(descriptor: int) -> None:
    """Fork a template for each message; end when the other side has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for name in pickle.load(sys.stdin.buffer):
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as owner:
        while True:
            message, descriptors, _, _ = socket.recv_fds(owner, _MOST_BYTES, 3)
            if not message:
                return
            child = os.fork()
            if child == 0:
                owner.close()
                os.setpgid(0, 0)
                _be_template(*pickle.loads(message), *descriptors)
            # In both processes: whoever kills the group next finds it.
            with suppress(PermissionError, ProcessLookupError):
                os.setpgid(child, child)
            for passed in descriptors:
                os.close(passed)
            owner.send(str(child).encode())


def _be_template(
    folder: str, environment: dict[str, str], paths: list[str], *descriptors: int
) -> None:
    """Serve a driver as if it had started this process."""
    control, names, errors = descriptors
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = paths
    tempfile.tempdir = None
    for passed, standard in ((names, 0), (errors, 2)):
        os.dup2(passed, standard)
        os.close(passed)
    sys.stdin = os.fdopen(0)
    serve_forks(control)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
