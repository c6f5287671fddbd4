"""What a real broker makes of log directories at its start, in the JVM of this process.

Kafka's own ``KafkaRaftServer``, broker and controller of a one-node cluster on loopback: a process
of its own would take five times as long. What would end the process of a broker ends its start.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jpype

from tests.kit.ports import free_ports
from tests.oracle.broker import CONTROLLER_LISTENER, NODE_ID, SETTINGS, UNTOUCHED
from tests.oracle.jvm import java

START_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 30
# After a start, a failed log directory is looked at by a thread of its own, and a move goes on.
_SETTLE_S: Final = 0.5
_MOVE_TIMEOUT_S: Final = 5
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """A log that the broker serves: where it lies, its first offset, and the next one."""

    directory: Path
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedBroker:
    """What became of a start.

    Attributes:
        is_up: Whether the broker serves clients.
        error: Why it does not.
        offline: Log directories that it goes on without.
        logs: What it serves, by partition.
    """

    is_up: bool
    error: str
    offline: frozenset[Path] = frozenset()
    logs: Mapping[str, LoadedLog] | None = None


def start_broker(roots: Sequence[Path]) -> StartedBroker:
    """Start a broker on log directories, look, and shut it down.

    Raises:
        TimeoutError: It neither started nor ended.
    """
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
    _wait(lambda: not starting.is_alive() or ended.is_set(), START_TIMEOUT_S, "start")
    result = None
    if box.get("is_up"):
        time.sleep(_SETTLE_S)
        deadline = time.monotonic() + _MOVE_TIMEOUT_S
        while not _is_settled(box["server"], roots) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not ended.is_set():
            result = _look(box["server"], roots)
    if "server" in box:
        stopping = threading.Thread(target=_stop, args=(box["server"],), daemon=True)
        stopping.start()
        stopping.join(STOP_TIMEOUT_S if result is not None else 1)
    return result or StartedBroker(is_up=False, error="; ".join(said))


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
        directory = Path(str(log.dir().getAbsolutePath()))
        if directory.name == str(log.topicPartition()):
            logs[directory.name] = LoadedLog(
                directory=directory,
                log_start_offset=int(log.logStartOffset()),
                log_end_offset=int(log.logEndOffset()),
            )
    live = {str(root.getAbsolutePath()) for root in manager.liveLogDirs()}
    offline = frozenset(root for root in roots if str(root.absolute()) not in live)
    return StartedBroker(is_up=True, error="", offline=offline, logs=logs)


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
        # Its cleaner reads a checkpoint; nothing here is old enough to be cleaned.
        "log.cleaner.enable": "true",
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


def _wait(is_over: Any, timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_over():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the broker's {what} has not ended in {timeout_s} s")
        time.sleep(_POLL_S)
