"""Apache Kafka's jars: fetched once for a checkout, or those of a folder that somebody names.

``python -m tests.oracle.jars`` fetches them ahead of the first test that asks Kafka; with versions
as arguments, those of brokers of these versions.
"""

import os
import sys
from pathlib import Path
from typing import Final

from pylog_spark.java import Exclusion, Library, fetch_jars

JARS_VARIABLE: Final = "PYLOG_KAFKA_JARS"
_GROUP: Final = "org.apache.kafka"
_ARTIFACT: Final = "kafka_2.13"
KAFKA: Final = Library(group=_GROUP, artifact=_ARTIFACT, version="4.4.0")
# Brokers whose directories people bring along: the last with ZooKeeper alone, and later ones.
OLD_VERSIONS: Final = ("2.8.2", "3.3.2", "3.9.1", "4.1.1")
# Only Kafka's command-line tools need it, and not every version of it was published.
_TOOLS_API: Final = Exclusion(group=_GROUP, artifact="kafka-tools-api")
# The newest that is published; its records are as they were in the first MirrorMaker 2.
MIRROR: Final = Library(group=_GROUP, artifact="connect-mirror", version="4.2.0")
_NEEDED_BY_MIRROR: Final = (
    *(("org.apache.kafka", f"connect-{each}") for each in ("api", "json", "runtime")),
    *(("org.apache.kafka", each) for each in ("connect-mirror-client", "kafka-clients")),
    *((f"org.glassfish.jersey.{each}", "*") for each in ("containers", "inject")),
    *((f"org.eclipse.jetty{each}", "*") for each in ("", ".ee10")),
    *((f"com.fasterxml.jackson.{each}", "*") for each in ("core", "jakarta.rs")),
    *((f"jakarta.{each}", "*") for each in ("activation", "ws.rs", "xml.bind")),
    *((f"javax.{each}", "*") for each in ("activation", "xml.bind")),
    ("io.swagger.core.v3", "*"),
)
# Tiered storage in a folder, of Kafka's own tests; that of 4.4 is not published.
TIERED_STORAGE: Final = Library(
    group=_GROUP, artifact="kafka-storage", version="4.3.1", classifier="test"
)
TOOLS: Final = Library(group=_GROUP, artifact="kafka-tools", version=KAFKA.version)
# Of the tools only those for plugins of Kafka Connect need it, and it brings a web server along.
_CONNECT: Final = Exclusion(group=_GROUP, artifact="connect-runtime")
_CACHE: Final = Path(__file__).resolve().parents[2] / ".cache"


def kafka_jars() -> list[Path]:
    """Return the jars of Apache Kafka 4.4.0 and of what it needs, by name.

    Those of the folder that ``PYLOG_KAFKA_JARS`` names, else those of the checkout's cache, which
    is filled first where that has not been done.
    """
    said = os.environ.get(JARS_VARIABLE)
    if said:
        return sorted(Path(said).glob("*.jar"))
    return jars_of(KAFKA.version)


def jars_of(version: str) -> list[Path]:
    """Return the jars of a broker of another version and of what it needs, by name."""
    library = Library(group=_GROUP, artifact=_ARTIFACT, version=version)
    return fetch_jars([library], _CACHE / f"kafka-{version}", exclusions=[_TOOLS_API])


def tools_jars() -> list[Path]:
    """Return the jars of Kafka's own commands and of what they need, by name.

    Where they are from, and errors, as of ``kafka_jars``.
    """
    said = os.environ.get(JARS_VARIABLE)
    if said:
        return sorted(Path(said).glob("*.jar"))
    return fetch_jars([TOOLS], _CACHE / f"{TOOLS.artifact}-{TOOLS.version}", exclusions=[_CONNECT])


def mirror_jar() -> Path:
    """Return the jar of MirrorMaker; what it needs for its records is among Kafka's jars."""
    folder = _CACHE / f"{MIRROR.artifact}-{MIRROR.version}"
    needed = [Exclusion(group=group, artifact=name) for group, name in _NEEDED_BY_MIRROR]
    jars = fetch_jars([MIRROR], folder, exclusions=needed)
    return next(jar for jar in jars if jar.name.startswith(MIRROR.artifact))


def tiered_storage_jar() -> Path:
    """Return the jar with ``LocalTieredStorage`` for a broker of its version."""
    library = TIERED_STORAGE
    folder = _CACHE / f"{library.artifact}-{library.version}-{library.classifier}"
    (jar,) = fetch_jars([library], folder)
    return jar


if __name__ == "__main__":
    for wanted in sys.argv[1:] or [KAFKA.version]:
        sys.stdout.write(f"{len(jars_of(wanted))} jars of Apache Kafka {wanted}\n")
    if not sys.argv[1:]:
        sys.stdout.write(f"{len(tools_jars())} jars of its commands\n")
        sys.stdout.write(f"{mirror_jar().name}\n{tiered_storage_jar().name}\n")
