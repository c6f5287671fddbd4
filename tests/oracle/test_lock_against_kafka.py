"""A broker's lock and ours keep each other out: the class is Kafka's, the process is this one."""

import os
from pathlib import Path
from typing import Any

import pytest

from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.checkpoint import LogDirectoryLock
from storage_core.errors import GuardRefusedError
from storage_core.filenames import TopicPartition
from tests.oracle.jvm import java, java_file

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


def brokers_lock(directory: Path) -> Any:
    return java("org.apache.kafka.server.util.FileLock")(java_file(directory / ".lock"))


@pytest.mark.item("DIR-02")
def test_a_directory_that_a_broker_holds_is_refused_and_the_broker_is_named(tmp_path: Path):
    broker = brokers_lock(tmp_path)
    assert broker.tryLock()
    try:
        with pytest.raises(GuardRefusedError, match=f"process {os.getpid()}"):
            LogDirectoryLock(tmp_path).acquire()
    finally:
        broker.destroy()
    assert not (tmp_path / ".lock").exists()
    with LogDirectoryLock(tmp_path):
        pass


@pytest.mark.item("DIR-02")
def test_a_broker_does_not_start_on_a_directory_that_we_hold(tmp_path: Path):
    with LogDirectoryLock(tmp_path):
        broker = brokers_lock(tmp_path)
        assert not broker.tryLock()
        broker.unlockAndClose()
    assert not (tmp_path / ".lock").exists()
    broker = brokers_lock(tmp_path)
    assert broker.tryLock()
    broker.destroy()


@pytest.mark.item("DIR-05", "DIR-06", "DIR-08")
@pytest.mark.parametrize("topic", ["a", "a-b.c", "t" * 249])
@pytest.mark.parametrize("kind", ["delete", "stray", "future"])
def test_the_names_that_kafka_gives_to_renamed_directories_are_known(topic: str, kind: str):
    local_log = java("org.apache.kafka.storage.internals.log.LocalLog")
    partition = java("org.apache.kafka.common.TopicPartition")(topic, 7)
    rename = getattr(local_log, f"log{kind.capitalize()}DirName")
    name = str(rename(partition))
    found_kind, found = classify_directory(name)
    kafkas = local_log.parseTopicPartitionName(java("java.io.File")(name))
    assert found_kind is DirectoryKind(kind)
    assert found == TopicPartition(str(kafkas.topic()), int(kafkas.partition()))
    assert len(name) <= 255 or kind == "future"
