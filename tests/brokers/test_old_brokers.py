"""Directories of brokers of other versions: whole ones are found whole, damaged ones are mended.

``PYLOG_BROKERS_SEED`` says which random traffic and damage.
"""

import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pylog_spark.cli.program import app
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    read_cluster_metadata,
)
from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.release_features import find_release
from storage_core.clock import SystemClock
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_METADATA_TOPIC,
    META_PROPERTIES_FILE,
)
from storage_core.maintenance.verification.findings import Severity
from tests.brokers.old_broker import OldBroker
from tests.brokers.random_traffic import SETTINGS, write_traffic
from tests.kit.file_damage import Accident, Damage, damage
from tests.oracle.broker import NODE_ID, UNTOUCHED, Broker
from tests.oracle.broker_clients import feature_levels, read_topics
from tests.oracle.jars import KAFKA, OLD_VERSIONS
from tests.pylog_spark.cli.prescriptions import Shell, is_for_people

# What older brokers take, and the logs here have to be of many segments, is refused by Kafka 4.
TODAYS_SMALLEST = " --set segment.bytes=1048576"
SEED = int(os.environ.get("PYLOG_BROKERS_SEED", "1"))

pytestmark = [
    pytest.mark.brokers,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(1800, method="thread"),
]


@pytest.fixture(scope="module", params=[*OLD_VERSIONS, KAFKA.version])
def left(request, tmp_path_factory, kafka_jvm) -> Iterator[Path]:
    """The log directory of a broker of this version that was shut down in order."""
    scratch = tmp_path_factory.mktemp(f"kafka-{request.param}")
    directory = scratch / "log"
    with OldBroker(request.param, directory, scratch=scratch, settings=SETTINGS) as broker:
        broker.format()
        broker.start()
        write_traffic(broker.bootstrap_servers, request.param, SEED)
        broker.stop()
    assert (directory / CLEAN_SHUTDOWN_FILE).exists()
    return directory


@pytest.fixture
def shell(left) -> Shell:
    """The doctor is told of a broker with ZooKeeper what it asks: it is no controller."""
    runner = CliRunner()
    has_zookeeper = "version=0" in (left / META_PROPERTIES_FILE).read_text()

    def pylog(*arguments: object) -> Any:
        return runner.invoke(app, [str(argument) for argument in arguments], prog_name="pylog")

    words = ("--set", "process.roles=broker") if has_zookeeper else ()
    return Shell(pylog, SystemClock().now_ms(), words=words)


def above(answer: dict[str, Any], least: Severity) -> list[dict[str, Any]]:
    return [f for f in answer["findings"] if Severity(f["severity"]).rank >= least.rank]


def partitions_of(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in directory.iterdir()
        if path.is_dir() and classify_directory(path.name)[0] is DirectoryKind.PARTITION
    )


def test_a_directory_that_was_closed_has_no_finding_above_info(left, shell):
    assert len(partitions_of(left)) > 10
    for options in ([], ["--deep"]):
        _, answer = shell.ask(left, "--show", 1000, *options)
        found = [
            (f["code"], f["file"], f["message"])
            for f in above(answer, Severity.HARMLESS)
            # Kafka 4.4 ends without closing the controllers' own log.
            if (f["topic"], f["code"]) != (CLUSTER_METADATA_TOPIC, "INDEX_PREALLOCATED")
        ]
        assert found == []
        assert answer["advice"] == "start-broker"


def logs_of(directory: Path) -> dict[str, bytes]:
    """Return the records of each partition that clients wrote to."""
    return {
        path.name: b"".join(log.read_bytes() for log in sorted(path.glob("*.log")))
        for path in partitions_of(directory)
        if not path.name.startswith("__")
    }


def test_logs_of_a_broker_without_metadata_come_up_with_kafka_4_4(left, tmp_path):
    """Its node is broker and controller; metadata at the level of its version are made anew."""
    root = tmp_path / "log"
    shutil.copytree(left, root)
    metadata = root / CLUSTER_METADATA_DIRECTORY
    runner = CliRunner()
    words = [*("metadata", "rebuild", str(root), f"--into={NODE_ID}={root}", "--output=json")]
    words += [*("--assume-defaults=*", "--release-version")]
    if not metadata.is_dir():
        refused = runner.invoke(app, [*words, "4.4"])
        assert "is of a broker with ZooKeeper; expected version=1" in " ".join(
            refused.stderr.split()
        )
        return
    before = read_cluster_metadata(metadata, is_recovered=True)
    shutil.rmtree(metadata)
    level = before.feature_levels["metadata.version"]
    releases = (each.rpartition(".")[0] for each in (*OLD_VERSIONS[1:], KAFKA.version))
    made = runner.invoke(
        app, [*words, next(each for each in releases if find_release(each).metadata_level == level)]
    )
    assert made.exit_code == 0, made.stderr
    rows = [json.loads(line) for line in made.stdout.splitlines()]
    topics = {row["topic"]: row["topic_id"] for row in rows if row["type"] == "metadata_partition"}
    assert topics == {topic.name: topic.topic_id for topic in before.topics.values()}
    logs = logs_of(root)
    with Broker(root, scratch=tmp_path, settings={**SETTINGS, **UNTOUCHED}) as broker:
        broker.start()
        assert feature_levels(broker.bootstrap_servers)["metadata.version"] == level
        assert read_topics(broker.bootstrap_servers).keys() == topics.keys()
        broker.stop()
    assert logs_of(root) == logs
    assert not list(root.glob("*-stray"))


@pytest.mark.spark
def test_damage_is_mended_by_what_the_doctor_prints(spark, left, shell, tmp_path):
    """Each partition has its accident, round after round until all have happened.

    Those that only people can mend are moved away, as they are told: their absence is then all
    that the doctor of a broker with metadata has to say.
    """
    accidents = list(Accident)
    commands = Counter[str]()
    for number in range(0, len(accidents), len(partitions_of(left))):
        root = tmp_path / f"round-{number}" / "log"
        shutil.copytree(left, root)
        for place, path in enumerate(partitions_of(root)):
            accident = accidents[(number + place) % len(accidents)]
            damage(path, Damage(accident=accident, seed=SEED * 1000 + number + place))
        _, answer = shell.ask(root, "--show", 5000)
        moved = set()
        for found in above(answer, Severity.WARN):
            if is_for_people(found):
                moved.add((found["topic"], found["partition"]))
                shutil.rmtree(root / f"{found['topic']}-{found['partition']}", ignore_errors=True)
        for _ in range(5):
            _, answer = shell.ask(root, "--show", 5000)
            if not answer["commands"]:
                break
            for command in answer["commands"]:
                if command.startswith("pylog salvage replay "):
                    # Records that are not wanted back are moved away.
                    shutil.rmtree(shlex.split(command)[3])
                    continue
                is_run = "pylog recover " in command
                line = f"{command}{TODAYS_SMALLEST}" if is_run else command
                shell.run(line, may_be_short=is_run)
                commands[" ".join(command.split()[:2])] += 1
        rest = above(answer, Severity.ERROR)
        absent = {(f["topic"], f["partition"]) for f in rest if f["code"] == "PARTITION_ABSENT"}
        assert absent <= moved
        assert [f for f in rest if f["code"] != "PARTITION_ABSENT"] == []
        expected = "look-before-start" if absent else "start-broker"
        assert answer["advice"] == expected, [answer["headline"], *answer["reasons"]]
    assert {"pylog recover", "pylog partition"} <= set(commands)
