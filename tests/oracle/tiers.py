"""Brokers with tiered storage in a folder: by Kafka's own ``LocalTieredStorage``, or by Aiven's
plugin.

The first is a class of the tests of Kafka 4.3.1. It runs in a broker of 4.4 once it names
``LogContext`` in the package to which 4.4 has moved that class. Aiven's plugin is on no package
index: ``PYLOG_AIVEN_PLUGIN`` names a folder with the jars of its release, and of its backend for
file systems, at any depth.
"""

import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from storage_core.temporary_folder import temporary_folder
from tests.oracle.broker import BROKER, CONTROLLER, Broker, Place
from tests.oracle.jars import KAFKA, tiered_storage_jar

_PACKAGE: Final = "org/apache/kafka/server/log/remote/storage/"
_NEEDED: Final = re.compile(
    rf"{_PACKAGE}(?:LocalTieredStorage|RemoteLogSegmentFileset|RemoteTopicPartitionDirectory"
    r"|Transferer)(?!\w*Test)[\w$]*\.class"
)
_MOVED: Final = b"org/apache/kafka/common/utils/LogContext"
_MOVED_TO: Final = b"org/apache/kafka/common/utils/internals/LogContext"
# Where the class has a segment's files, below the folder that it is given.
TIER_FOLDER: Final = "kafka-tiered-storage"
METADATA_PARTITIONS: Final = 3
PLUGIN_VARIABLE: Final = "PYLOG_AIVEN_PLUGIN"
_PLUGIN: Final = "io.aiven.kafka.tieredstorage"
# Small: a segment of the tests has several.
_CHUNK_BYTES: Final = 16 << 10


@cache
def tier_jar() -> Path:
    """Return a jar with ``LocalTieredStorage`` for a broker of the version of the tests."""
    source = tiered_storage_jar()
    jar = source.with_name(f"local-tiered-storage-for-{KAFKA.version}.zip")
    if not jar.exists():
        with temporary_folder("pylog-tier-", jar.parent) as scratch:
            made = scratch / jar.name
            with zipfile.ZipFile(source) as classes, zipfile.ZipFile(made, "w") as ours:
                for name in filter(_NEEDED.match, classes.namelist()):
                    ours.writestr(name, _renamed(classes.read(name)))
            made.rename(jar)
    return jar


def _renamed(content: bytes) -> bytes:
    """Return a class that names ``LogContext`` where it is: a text of its constants, which has its
    length in front."""
    old = len(_MOVED).to_bytes(2) + _MOVED
    return content.replace(old, len(_MOVED_TO).to_bytes(2) + _MOVED_TO)


class TieredBroker(Broker):
    """A broker whose topics may be tiered by ``LocalTieredStorage``."""

    def class_path(self) -> list[Path]:
        """Return what its Java runs with."""
        return [*super().class_path(), tier_jar()]


def tiered_node(
    folder: Path,
    made_by: type[Broker],
    settings: Mapping[str, str],
    *,
    node_id: int,
    ports: Sequence[int],
    voters: str,
    is_controller: bool = False,
    java_options: Sequence[str] = (),
) -> Broker:
    """Return a node of a cluster with a tier.

    Args:
        settings: What the tier is reached by.
        ports: For clients, and for controllers.
    """
    (folder / f"node-{node_id}").mkdir(parents=True)
    place = Place(
        node_id=node_id,
        port=ports[0],
        controller_port=ports[1],
        voters=voters,
        roles=CONTROLLER if is_controller else BROKER,
    )
    return made_by(
        folder / f"node-{node_id}" / "data",
        scratch=folder / f"node-{node_id}",
        settings=settings,
        place=place,
        java_options=java_options,
    )


def tier_settings(tier: Path) -> Mapping[str, str]:
    """Return the settings of a broker with ``LocalTieredStorage``.

    Args:
        tier: The folder above that of the class.
    """
    return {
        **_at_once(),
        "remote.log.storage.manager.class.name": (
            "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
        ),
        "rsm.config.dir": str(tier),
    }


def plugin_jars() -> list[Path]:
    """Return the jars of Aiven's plugin that the caller names; none where nobody has."""
    said = os.environ.get(PLUGIN_VARIABLE)
    return sorted(Path(said).absolute().rglob("*.jar")) if said else []


def plugin_settings(tier: Path, settings: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings of a broker with Aiven's plugin.

    Args:
        settings: How segments are compressed, encrypted and named.
    """
    return {
        **_at_once(),
        "remote.log.storage.manager.class.name": f"{_PLUGIN}.RemoteStorageManager",
        "remote.log.storage.manager.class.path": os.pathsep.join(map(str, plugin_jars())),
        "rsm.config.chunk.size": str(_CHUNK_BYTES),
        "rsm.config.custom.metadata.fields.include": "REMOTE_SIZE,OBJECT_PREFIX,OBJECT_KEY",
        "rsm.config.storage.backend.class": f"{_PLUGIN}.storage.filesystem.FileSystemStorage",
        "rsm.config.storage.root": str(tier),
        **settings,
    }


def _at_once() -> Mapping[str, str]:
    """Return the settings of a broker that does the work of its tier at once."""
    topic = "rlmm.config.remote.log.metadata"
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "remote.log.manager.task.interval.ms": "500",
        f"{topic}.topic.replication.factor": "1",
        f"{topic}.topic.num.partitions": str(METADATA_PARTITIONS),
        f"{topic}.initialization.retry.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "500",
    }
