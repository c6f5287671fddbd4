"""What a real broker makes of log directories at its start.

Kafka's own ``KafkaRaftServer``, broker and controller of a one-node cluster on loopback, in the JVM
of a process that starts one after the other: a process each would take five times as long. What
would end the process of a broker ends its start, and the process is replaced.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import jpype

from tests.kit.ports import free_ports
from tests.oracle.broker import CONTROLLER_LISTENER, NODE_ID, SETTINGS, UNTOUCHED
from tests.oracle.jvm import QUICK, java, start_jvm

START_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 30
# After a start, a failed log directory is looked at by a thread of its own, and a move goes on.
_SETTLE_S: Final = 0.5
DEFAULTS: Final = ("retention.ms", "retention.bytes", "segment.bytes", "segment.ms")
_MOVE_TIMEOUT_S: Final = 5
_POLL_S: Final = 0.05
_HEAP: Final = "256m"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """A log that the broker serves: where it lies, its first offset, and the next one."""

    directory: str
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedBroker:
    """What became of a start."""

    is_up: bool  # whether the broker serves clients
    error: str  # why it does not
    offline: Sequence[str] = ()  # log directories that it goes on without
    logs: Mapping[str, LoadedLog] | None = None  # what it serves, by partition
    # Configs in force of topics without one, by topic key
    defaults: Mapping[str, str] | None = None
    is_left: bool = False  # whether threads of it may be left, as no process of a broker leaves any


class Starter:
    """Starts brokers, one after the other, in a process of its own; a context manager.

    Args:
        user: Number of the user, and of the group, that the broker runs as; None for our own.
    """

    def __init__(self, user: int | None = None) -> None:
        self._user = () if user is None else (str(user),)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start(self, roots: Sequence[Path]) -> StartedBroker:
        """Start a broker on log directories, look, and shut it down."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.oracle.started_broker", *self._user],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([str(root.absolute()) for root in roots]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self._end()
            raise AssertionError(f"the process of the brokers ended: {roots}")
        values = json.loads(line)
        logs = {name: LoadedLog(**log) for name, log in (values["logs"] or {}).items()}
        broker = StartedBroker(**{**values, "logs": logs})
        if broker.is_left:
            self._end()
        return broker

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    """Start a broker for each line of standard input, and write a line about each."""
    start_jvm(heap=_HEAP, options=QUICK)
    for user in map(int, sys.argv[1:]):
        # Only now: where Python and Java lie, another user may not be let in.
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for line in sys.stdin:
        broker = start_broker([Path(root) for root in json.loads(line)])
        sys.stdout.write(json.dumps(asdict(broker)) + "\n")
        sys.stdout.flush()
    # Threads of a broker that would have ended do not.
    os._exit(0)


def start_broker(roots: Sequence[Path]) -> StartedBroker:
    """Start a broker in the JVM of this process, look, and shut it down."""
    ended = threading.Event()
    said: list[str] = []
    box: dict[str, Any] = {}

    def end(status: int, message: object) -> None:
        said.append(f"exit {status}: {message}")
        ended.set()
        raise java("java.lang.IllegalStateException")("the broker would have ended")

    procedure = jpype.JProxy(
        "org.apache.kafka.common.utils.internals.Exit$Procedure", dict={"execute": end}
    )
    exits = java("org.apache.kafka.common.utils.internals.Exit")
    exits.setExitProcedure(procedure)
    exits.setHaltProcedure(procedure)

    def start() -> None:
        try:
            config = java("kafka.server.KafkaConfig").fromProps(_properties(roots))
            clock = java("org.apache.kafka.common.utils.Time").SYSTEM
            box["server"] = java("kafka.server.KafkaRaftServer")(config, clock)
            box["server"].startup()
            box["is_up"] = True
        except jpype.JException as thrown:
            said.append(_causes(thrown))

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while starting.is_alive() and not ended.is_set() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if starting.is_alive() and not ended.is_set():
        said.append(f"neither started nor ended in {START_TIMEOUT_S} s")
    result = None
    if box.get("is_up"):
        time.sleep(_SETTLE_S)
        deadline = time.monotonic() + _MOVE_TIMEOUT_S
        while not _is_settled(box["server"], roots) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not ended.is_set():
            result = _look(box["server"], roots)
    if "server" in box and result is not None:
        stopping = threading.Thread(target=_stop, args=(box["server"],), daemon=True)
        stopping.start()
        stopping.join(STOP_TIMEOUT_S)
        result = replace(result, is_left=stopping.is_alive() or ended.is_set())
    return result or StartedBroker(is_up=False, error="; ".join(said), is_left="server" in box)


def _broker(server: Any) -> Any:
    field = server.getClass().getDeclaredField("broker")
    field.setAccessible(True)
    return field.get(server).get()


def _is_settled(server: Any, roots: Sequence[Path]) -> bool:
    """Whether no move goes on, and what is known to have failed is offline."""
    broker = _broker(server)
    live = {str(root.getAbsolutePath()) for root in broker.logManager().liveLogDirs()}
    channel = broker.logDirFailureChannel()
    failed = {str(root.absolute()) for root in roots if channel.hasOfflineLogDir(str(root))}
    is_moving = any(any(root.glob("*-future")) for root in roots)
    return not is_moving and not failed & live


def _look(server: Any, roots: Sequence[Path]) -> StartedBroker:
    manager = _broker(server).logManager()
    logs = {}
    for log in manager.allLogs():
        directory = str(log.dir().getAbsolutePath())
        name = str(log.topicPartition())
        if directory.endswith(f"/{name}"):
            logs[name] = LoadedLog(
                directory=directory,
                log_start_offset=int(log.logStartOffset()),
                log_end_offset=int(log.logEndOffset()),
            )
    live = {str(root.getAbsolutePath()) for root in manager.liveLogDirs()}
    offline = tuple(str(root) for root in roots if str(root.absolute()) not in live)
    values = manager.currentDefaultConfig().values()
    defaults = {key: str(values.get(key)) for key in DEFAULTS}
    return StartedBroker(is_up=True, error="", offline=offline, logs=logs, defaults=defaults)


def _stop(server: Any) -> None:
    try:
        server.shutdown()
    except jpype.JException:
        return  # of one that never started


def _properties(roots: Sequence[Path]) -> Any:
    port, controller_port = free_ports(2)
    listener, controller = f"PLAINTEXT://127.0.0.1:{port}", f"127.0.0.1:{controller_port}"
    settings = {
        **SETTINGS,
        **UNTOUCHED,
        # Its cleaner reads a checkpoint; nothing is old enough to be cleaned.
        "log.cleaner.enable": "true",
        "log.cleaner.min.compaction.lag.ms": str(10**15),
        "log.cleaner.dedupe.buffer.size": str(8 << 20),
        "log.dirs": ",".join(str(root.absolute()) for root in roots),
        "listeners": f"{listener},{CONTROLLER_LISTENER}://{controller}",
        "advertised.listeners": listener,
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{CONTROLLER_LISTENER}:PLAINTEXT",
        "controller.quorum.voters": f"{NODE_ID}@{controller}",
        "server.max.startup.time.ms": str(1000 * START_TIMEOUT_S // 2),
        "initial.broker.registration.timeout.ms": str(1000 * START_TIMEOUT_S // 4),
    }
    properties = java("java.util.Properties")()
    for name, value in settings.items():
        properties.setProperty(name, value)
    return properties


def _causes(thrown: Any) -> str:
    parts = []
    while thrown is not None:
        parts.append(f"{thrown.getClass().getSimpleName()}: {thrown.getMessage()}")
        thrown = thrown.getCause()
    return " <- ".join(parts)


if __name__ == "__main__":
    main()
