"""Make ``tests/golden/registry-broker``: a broker's directory with a schema registry's topic.

``python -m tests.oracle.make_golden_registry``, by hand and only when the golden directory has to
be another one; three minutes. A one-node broker of Apache Kafka is written to by Confluent's Python
client and its serializers for Avro, Protobuf and JSON Schema (``write_registered``), which are
installed for it in an environment that is removed afterwards. SIGTERM ends the broker. Values and
keys follow from a seed.
"""

import argparse
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.kit.registered_broker import ARCHIVE, DECODED, REGISTERED
from tests.oracle.broker import new_broker
from tests.oracle.broker_clients import Topic, create_topics
from tests.oracle.jvm import start_jvm, stop_jvm
from tests.oracle.make_golden_broker import archive_of, zip_bytes

PACKAGES: Final = (
    "confluent-kafka[avro,json,protobuf,schemaregistry]==2.16.1",
    "grpcio-tools==1.85.1",
)
_PLAIN: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}
_COMPACTED: Final = {"cleanup.policy": "compact"}
TOPICS: Final = {
    "_schemas": Topic(partitions=1, config=_COMPACTED),
    "customers": Topic(partitions=1, config=_COMPACTED),
    "orders": Topic(partitions=2, config={**_PLAIN, "internal.segment.bytes": "131072"}),
    "payments": Topic(partitions=1, config=_PLAIN),
    "page-views": Topic(partitions=1, config=_PLAIN),
    "refunds": Topic(partitions=1, config=_PLAIN),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the golden directory."""
    parser = argparse.ArgumentParser(description="Make tests/golden/registry-broker anew.")
    parser.add_argument("--into", type=Path, default=REGISTERED, help="default: %(default)s")
    into = parser.parse_args(arguments).into
    start_jvm()
    try:
        with tempfile.TemporaryDirectory(prefix="golden-registry-") as name:
            _make(into, Path(name))
    finally:
        stop_jvm()
    for path in sorted(into.iterdir()):
        sys.stdout.write(f"{path.stat().st_size:>9} {path}\n")


def _make(into: Path, scratch: Path) -> None:
    venv.create(scratch / "python", with_pip=True)
    python, decoded = scratch / "python/bin/python", scratch / "decoded.jsonl"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    with new_broker(scratch) as broker:
        create_topics(broker.bootstrap_servers, TOPICS)
        script = Path(__file__).with_name("write_registered.py")
        subprocess.run([python, script, broker.bootstrap_servers, decoded], check=True)
        broker.stop()
    into.mkdir(parents=True, exist_ok=True)
    (into / ARCHIVE.name).write_bytes(archive_of(broker.log_directory))
    (into / DECODED.name).write_bytes(zip_bytes(decoded.read_bytes()))


if __name__ == "__main__":
    main()
