"""Ports of loopback for the servers that tests start."""

import random
import socket
from contextlib import ExitStack
from typing import Final

# Below those that systems give to clients: among these, a client of another test that runs at the
# same time might come before the server does.
_PORTS: Final = range(12_000, 30_000)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at; somebody may, in the moment after."""
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = random.SystemRandom().choice(_PORTS)
            one = stack.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
        return ports
