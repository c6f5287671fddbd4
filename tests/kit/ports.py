"""Ports of loopback for the servers that tests start."""

import fcntl
import os
import random
import socket
from functools import cache
from pathlib import Path
from typing import Final

# Below those that systems give to clients: among these, a client of another test that runs at the
# same time might come before the server does.
_PORTS: Final = range(12_000, 30_000)
# The lock of a process does not keep itself out.
_given: Final[set[int]] = set()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at, and that no test is given before this process ends.

    A server that was stopped comes back to its port, and a Java takes seconds until it listens.
    Whoever is no test may still come before it.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().choice(_PORTS)
        if port not in _given and _is_ours(port) and _is_free(port):
            _given.add(port)
            ports.append(port)
    return ports


@cache
def _port_locks() -> int:
    """Return the file, a byte for each port, that the processes of all test runs share."""
    # One for all runs, whatever TMPDIR each of them has.
    file = Path("/tmp") / f"pylog-test-ports-{os.getuid()}"  # noqa: S108
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _is_ours(port: int) -> bool:
    try:
        fcntl.lockf(_port_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
