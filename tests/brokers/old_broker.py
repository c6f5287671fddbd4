"""A broker of another version on loopback, as ``tests.oracle.broker`` runs that of Kafka 4.4.

The last versions with ZooKeeper alone get one, in a process of its own; later ones are formatted by
their own tool.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pylog_spark.java import find_java
from tests.kit.ports import free_ports
from tests.oracle.broker import (
    CLUSTER_ID,
    SETTINGS,
    Broker,
    BrokerFailure,
    logging_jars,
)
from tests.oracle.broker_clients import is_ready
from tests.oracle.jars import KAFKA, jars_of

_FORMAT_TIMEOUT_S: Final = 120
_STOP_TIMEOUT_S: Final = 30
_SMALL: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# What only a broker without ZooKeeper knows.
_OF_KRAFT: Final = ("process.roles", "node.id", "controller.listener.names")


class OldBroker(Broker):
    """One broker of a version; a context manager that leaves no process behind.

    Args:
        scratch: Where its settings and logs go; not inside the log directory.
        settings: Broker settings that override the harness's own.
    """

    def __init__(
        self, version: str, log_directory: Path, *, scratch: Path, settings: Mapping[str, str]
    ) -> None:
        super().__init__(log_directory, scratch=scratch, settings=settings)
        self.version = version
        self._has_zookeeper = version.startswith("2.")
        self._zookeeper: subprocess.Popen[bytes] | None = None
        self._zookeeper_port = 0
        self._scratch = scratch

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._zookeeper is not None:
            self._zookeeper.terminate()
            self._zookeeper.wait(_STOP_TIMEOUT_S)

    def class_path(self) -> list[Path]:
        """Return what its Java runs with."""
        return [*logging_jars(), *jars_of(self.version)]

    def is_ready(self) -> bool:
        """Whether it answers, and has a controller that does."""
        return is_ready(self.bootstrap_servers, has_quorum=not self._has_zookeeper)

    def format(self, *, cluster_id: str = CLUSTER_ID) -> None:
        """Make an empty log directory by the version's own tool, or start a ZooKeeper for it."""
        self.log_directory.mkdir(parents=True, exist_ok=True)
        if self.version == KAFKA.version:
            super().format(cluster_id=cluster_id)
            return
        if self._has_zookeeper:
            self._start_zookeeper()
            return
        self.port, controller_port = free_ports(2)
        self.write_files(self.own_settings(controller_port))
        arguments = ("format", "-t", cluster_id, "-c", str(self.properties_file))
        done = subprocess.run(
            self._java("kafka.tools.StorageTool", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_FORMAT_TIMEOUT_S,
            check=False,
            text=True,
        )
        if done.returncode:
            raise BrokerFailure(f"Kafka {self.version} cannot format", done.stdout)

    def own_settings(self, controller_port: int) -> dict[str, str]:
        """Return its settings with what depends on the machine."""
        settings = super().own_settings(controller_port)
        if not self._has_zookeeper:
            return settings
        for name in (*_OF_KRAFT, "controller.quorum.voters", "listener.security.protocol.map"):
            settings.pop(name, None)
        return settings | {
            "broker.id": SETTINGS["node.id"],
            "listeners": settings["advertised.listeners"],
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
        }

    def _start_zookeeper(self) -> None:
        [self._zookeeper_port] = free_ports(1)
        config = self._scratch / "zookeeper.properties"
        config.write_text(
            f"dataDir={self._scratch / 'zookeeper'}\nclientPort={self._zookeeper_port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with (self._scratch / "zookeeper.out").open("wb") as output:
            self._zookeeper = subprocess.Popen(
                self._java(main, str(config)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _java(self, main: str, *arguments: str) -> list[str]:
        java = str(find_java().runtime / "bin" / "java")
        return [
            java,
            *_SMALL,
            "-cp",
            os.pathsep.join(map(str, self.class_path())),
            main,
            *arguments,
        ]
