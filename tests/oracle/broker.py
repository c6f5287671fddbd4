"""A real Apache Kafka broker on loopback: one node, broker and controller, in a process of its own.

    with Broker(tmp_path / "data", scratch=tmp_path) as broker:
        broker.format()
        broker.start()
        ...  # clients of broker.bootstrap_servers
        broker.stop()

Clients are in ``broker_clients``; whether the broker is ready is asked through them, so they need
the JVM of this process (``jvm.start_jvm``). Whatever happens in the block, the broker's process has
ended when it is left.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final, Self

import jpype

from pylog_spark.java import find_java
from tests.kit.ports import free_ports
from tests.oracle.broker_clients import has_active_controller, is_ready
from tests.oracle.jars import jars_of, kafka_jars
from tests.oracle.jvm import java, kafka_failures

NODE_ID: Final = 1
CONTROLLER_LISTENER: Final = "CONTROLLER"
# Sixteen bytes in Kafka's base 64, always the same: a golden directory made again differs less.
CLUSTER_ID: Final = "cHlsb2ctc3BhcmstMDEwMQ"
START_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 60
_POLL_S: Final = 0.2
# A broker of some minutes: starting counts for more than speed afterwards.
_HEAP: Final = ("-Xms64m", "-Xmx320m")
_JVM_OPTIONS: Final = (*_HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# Exit statuses of a Java that ended in order after SIGTERM.
_ORDERLY: Final = frozenset({0, 128 + signal.SIGTERM, -signal.SIGTERM})
_SHOWN_LINES: Final = 30
METADATA: Final = "__cluster_metadata"
# What a broker says of logs that it repairs instead of only loading them.
REPAIRS: Final = (
    "Recovering unflushed segment",
    "Found invalid messages",
    "Rebuilding producer state",
)

# Small and quiet, with every internal topic that one node can hold.
SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": str(NODE_ID),
    "controller.listener.names": CONTROLLER_LISTENER,
    "auto.create.topics.enable": "false",
    "background.threads": "2",
    "group.initial.rebalance.delay.ms": "0",
    "num.io.threads": "2",
    "num.network.threads": "1",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
}
BROKER: Final = "broker"
CONTROLLER: Final = "controller"
# Cleaner and retention never come to anything: what was appended stays as it was appended.
UNTOUCHED: Final[Mapping[str, str]] = {
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": str(10 * 365 * 86_400_000),
    "log.initial.task.delay.ms": str(86_400_000),
}

_LOG4J: Final = """\
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
"""


class BrokerFailure(AssertionError):  # noqa: N818 - a failure of the referee, not an error of ours
    """The broker did not start or not end as it should; the end of its log is in the text."""

    def __init__(self, what: str, log: str) -> None:
        super().__init__(what, log)
        self.what, self.log = what, log

    def __str__(self) -> str:
        return f"{self.what}\n{self.log}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node's place in a cluster of more than one, the same from start to start."""

    node_id: int
    port: int  # where clients find it
    controller_port: int  # where the other nodes' controllers find it
    voters: str  # of the quorum, as Kafka's setting spells them
    roles: str = SETTINGS["process.roles"]  # what the node is, as Kafka's setting spells it
    # Voters that the log of the quorum has, as ``kafka-storage format`` takes them; empty where the
    # settings of each node name them
    initial_controllers: str = ""


class Broker:
    """One broker over one log directory; a context manager that leaves no process behind.

    Args:
        log_directory: Its only ``log.dirs``; missing or empty before ``format``.
        scratch: Where its settings and logs go; not inside the log directory.
        place: Its place in a cluster, None for a cluster of its own on free ports.
    """

    # What ``format`` gives a cluster, as ``kafka-storage`` takes it; empty for the newest.
    release_version: ClassVar[str] = ""

    def __init__(
        self,
        log_directory: Path,
        *,
        scratch: Path,
        settings: Mapping[str, str] | None = None,
        place: Place | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self._place = place
        self._java_options = java_options
        self.node_id = NODE_ID if place is None else place.node_id
        self.log_directory = log_directory.absolute()
        self.log_file = scratch.absolute() / "broker.log"
        self._output_file = scratch.absolute() / "broker.out"
        self.properties_file = scratch.absolute() / "server.properties"
        self._log4j_file = scratch.absolute() / "broker-log4j2.properties"
        self.roles = SETTINGS["process.roles"] if place is None else place.roles
        own = {"node.id": str(self.node_id), "process.roles": self.roles}
        self.said = {**SETTINGS, **own, **(settings or {})}
        self.port: int | None = None
        self.controller_port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def settings(self) -> Mapping[str, str]:
        """Its settings but for what depends on the machine: ports and paths."""
        return self.said

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find it, once it was started."""
        if self.port is None:
            raise BrokerFailure("the broker was never started", "")
        return f"127.0.0.1:{self.port}"

    def format(
        self, *, cluster_id: str = CLUSTER_ID, levels: Mapping[str, int] | None = None
    ) -> None:
        """Make an empty log directory, as ``kafka-storage format`` does.

        Args:
            levels: Levels of features that are not to be the newest.
        """
        self.log_directory.mkdir(parents=True, exist_ok=True)
        features = java("org.apache.kafka.server.common.Feature").PRODUCTION_FEATURES
        versions = java("org.apache.kafka.server.common.MetadataVersion")
        version = versions.latestProduction()
        if self.release_version:
            version = versions.fromVersionString(self.release_version, jpype.JBoolean(False))
        silent = java("java.io.PrintStream")(java("java.io.OutputStream").nullOutputStream())
        with kafka_failures():
            formatter = java("org.apache.kafka.metadata.storage.Formatter")()
            formatter.setPrintStream(silent)
            formatter.setNodeId(self.node_id)
            formatter.setClusterId(cluster_id)
            formatter.addDirectory(str(self.log_directory))
            formatter.setMetadataLogDirectory(str(self.log_directory))
            formatter.setControllerListenerName(CONTROLLER_LISTENER)
            formatter.setReleaseVersion(version)
            formatter.setSupportedFeatures(features)
            if self._place is not None and self._place.initial_controllers:
                formatter.setHasDynamicQuorum(jpype.JBoolean(True))
                if CONTROLLER in self.roles:
                    voters = java("org.apache.kafka.raft.DynamicVoters")
                    formatter.setInitialControllers(voters.parse(self._place.initial_controllers))
            for feature, level in (levels or {}).items():
                formatter.setFeatureLevel(feature, jpype.JShort(level))
            formatter.run()

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start its process, on free ports unless it has a place in a cluster; do not wait."""
        if self._process is not None:
            raise BrokerFailure("the broker runs already", "")
        if self._place is None:
            self.port, controller_port = free_ports(2)
        else:
            self.port, controller_port = self._place.port, self._place.controller_port
        self.controller_port = controller_port
        self.write_files(self.own_settings(controller_port))
        self._launch()

    def class_path(self) -> list[Path]:
        """Return what its Java runs with."""
        return [*logging_jars(), *kafka_jars()]

    def is_ready(self) -> bool:
        """Whether it answers, and has a controller that does."""
        if self.roles == CONTROLLER:
            return has_active_controller(f"127.0.0.1:{self.controller_port}")
        return is_ready(self.bootstrap_servers)

    @property
    def pid(self) -> int:
        """Process id of the broker that runs."""
        return self._running().pid

    def _launch(self) -> None:
        with self._output_file.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    str(find_java().runtime / "bin" / "java"),
                    *(*_JVM_OPTIONS, *self._java_options),
                    f"-Dlog4j2.configurationFile={self._log4j_file.as_uri()}",
                    *("-cp", os.pathsep.join(map(str, self.class_path()))),
                    *("kafka.Kafka", str(self.properties_file)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        """Have it shut down cleanly (SIGTERM), and wait until it has."""
        process = self._running()
        process.terminate()
        try:
            status = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailure(
                f"the broker did not end in {STOP_TIMEOUT_S} s", self.last_lines()
            ) from None
        self._process = None
        if status not in _ORDERLY:
            raise BrokerFailure(f"the broker ended with status {status}", self.last_lines())

    def kill(self) -> None:
        """End it at once (SIGKILL), as a power cut would end its process; nothing if it ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def silence(self) -> None:
        """Stop its process without ending it (SIGSTOP): others think that it is gone."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after it was silenced."""
        self._running().send_signal(signal.SIGCONT)

    def log_lines(self) -> list[str]:
        """Return what all its runs have logged so far."""
        if not self.log_file.exists():
            return []
        return self.log_file.read_text(errors="replace").splitlines()

    def last_lines(self) -> str:
        """Return the end of its log and of what Java itself said."""
        said = self._output_file.read_text(errors="replace").splitlines()
        return "\n".join([*said[-_SHOWN_LINES:], *self.log_lines()[-_SHOWN_LINES:]])

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise BrokerFailure("the broker does not run", "")
        return self._process

    def own_settings(self, controller_port: int) -> dict[str, str]:
        controller = f"127.0.0.1:{controller_port}"
        client_listener = f"PLAINTEXT://{self.bootstrap_servers}"
        listener = f"{CONTROLLER_LISTENER}://{controller}"
        listeners = {
            BROKER: {"listeners": client_listener, "advertised.listeners": client_listener},
            CONTROLLER: {"listeners": listener},
        }
        both = {
            "listeners": f"{client_listener},{listener}",
            "advertised.listeners": client_listener,
        }
        return {
            **self.said,
            "log.dirs": str(self.log_directory),
            **listeners.get(self.roles, both),
            "listener.security.protocol.map": (
                f"PLAINTEXT:PLAINTEXT,{CONTROLLER_LISTENER}:PLAINTEXT"
            ),
            **self._quorum(controller),
        }

    def _quorum(self, controller: str) -> dict[str, str]:
        """Return the settings that say where the quorum is."""
        if self._place is None:
            return {"controller.quorum.voters": f"{self.node_id}@{controller}"}
        if not self._place.initial_controllers:
            return {"controller.quorum.voters": self._place.voters}
        servers = ",".join(each.partition("@")[2] for each in self._place.voters.split(","))
        return {"controller.quorum.bootstrap.servers": servers}

    def write_files(self, settings: Mapping[str, str]) -> None:
        lines = (f"{name}={value}\n" for name, value in sorted(settings.items()))
        self.properties_file.write_text("".join(lines))
        self._log4j_file.write_text(_LOG4J.format(file=self.log_file))

    def wait_until_ready(self) -> None:
        """Wait until it answers."""
        process = self._running()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_ready():
            status = process.poll()
            if status is not None:
                self._process = None
                raise BrokerFailure(f"the broker ended with status {status}", self.last_lines())
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerFailure(
                    f"the broker was not ready in {START_TIMEOUT_S} s", self.last_lines()
                )
            time.sleep(_POLL_S)


class EarlierBroker(Broker):
    """A node of the release before that of the tests."""

    version: ClassVar[str] = "4.3.1"
    release_version: ClassVar[str] = "4.3"

    def class_path(self) -> list[Path]:
        """Return what its Java runs with."""
        return [*logging_jars(), *jars_of(self.version)]


class OldBroker(EarlierBroker):
    """A node of a release that does not start if the snapshot in the log's folder has records."""

    version = "4.1.1"
    release_version = "4.1"

    def format(
        self, *, cluster_id: str = CLUSTER_ID, levels: Mapping[str, int] | None = None
    ) -> None:
        """Make an empty log directory; the quorum has fixed voters."""
        super().format(cluster_id=cluster_id, levels=levels)
        shutil.rmtree(self.log_directory / f"{METADATA}-0")


@contextmanager
def new_broker(folder: Path, settings: Mapping[str, str] = UNTOUCHED) -> Iterator[Broker]:
    """Format a log directory in a folder, and have a broker run on it."""
    with Broker(folder / "data", scratch=folder, settings=settings) as broker:
        broker.format()
        broker.start()
        yield broker


def repairs_in(lines: Iterable[str]) -> list[str]:
    """Return which lines of a broker's log say that it repairs a log of a topic."""
    return [line for line in lines if METADATA not in line and any(r in line for r in REPAIRS)]


def complaints_in(lines: Sequence[str]) -> list[str]:
    """Return which lines of a broker's log say so, or are errors."""
    return [*(line for line in lines if " ERROR " in line), *repairs_in(lines)]


def logging_jars() -> list[Path]:
    """Return a backend for Kafka's log, which its jars do not bring: pyspark's.

    SLF4J and Log4j have to be of one make, so these come before Kafka's own.
    """
    pyspark = find_spec("pyspark")
    folders = (pyspark.submodule_search_locations if pyspark else None) or []
    patterns = ("slf4j-api-*.jar", "log4j-*.jar")
    return [jar for folder in folders for p in patterns for jar in Path(folder, "jars").glob(p)]
