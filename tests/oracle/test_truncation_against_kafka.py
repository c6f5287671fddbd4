"""Cuts of followers beside Kafka's own fetcher thread, over random histories of epochs."""

import os
import random
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jpype
import pytest

from storage_core.checkpoint.checkpoints import EpochEntry, encode_leader_epochs
from storage_core.cluster.replica import Leader, LogSpan, find_truncation
from tests.oracle.jvm import java, kafka_failures

pytestmark = pytest.mark.oracle

ROUNDS = int(os.environ.get("PYLOG_TRUNCATION_ROUNDS", "2000"))
SEED = 7
SOURCE = Path(__file__).with_name("Follower.java")
_MOST_ROUNDS = 50


@pytest.fixture(scope="module")
def follower_class(kafka_jvm: Any) -> Any:
    """Compile the follower with the compiler that Spark brings: a JRE has none."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = [*Path(spec.origin).parent.glob("jars/janino-*.jar")]
    jars += Path(spec.origin).parent.glob("jars/commons-compiler-*.jar")
    parent = java("kafka.server.AbstractFetcherThread").class_.getClassLoader()
    urls = jpype.JArray(java("java.net.URL"))([_url(jar) for jar in jars])
    loader = java("java.net.URLClassLoader")(urls, parent)
    with kafka_failures():
        compiler = jpype.JClass(loader.loadClass("org.codehaus.janino.SimpleCompiler"))()
        compiler.setParentClassLoader(parent)
        compiler.cook(SOURCE.read_text())
        made = compiler.getClassLoader()
    return jpype.JClass(made.loadClass("Follower")), jpype.JClass(made.loadClass("Follower$Leader"))


def _url(jar: Path) -> Any:
    return java("java.io.File")(str(jar)).toURI().toURL()


def histories(count: int) -> Iterator[tuple[LogSpan, LogSpan]]:
    """Yield logs of a follower and a leader, mostly with a common beginning."""
    chance = random.Random(SEED)
    for _ in range(count):
        shared = _epochs(chance, 0, 0, chance.randrange(4))
        yield _log(chance, shared), _log(chance, shared)


def _epochs(chance: random.Random, epoch: int, offset: int, count: int) -> list[EpochEntry]:
    entries = []
    for _ in range(count):
        entries.append(EpochEntry(epoch, offset))
        epoch += chance.randint(1, 3)
        offset += chance.randint(1, 12)
    return entries


def _log(chance: random.Random, shared: list[EpochEntry]) -> LogSpan:
    entries = shared[: chance.randint(0, len(shared))] if chance.random() < 1 / 4 else list(shared)
    if chance.random() < 2 / 3:
        last = entries[-1] if entries else EpochEntry(-1, 0)
        epoch, offset = last.epoch + chance.randint(1, 3), last.start_offset + chance.randint(1, 12)
        entries += _epochs(chance, epoch, offset, chance.randrange(4))
    end = (entries[-1].start_offset if entries else 0) + chance.randint(1, 15)
    start = chance.randint(0, end) if chance.random() < 1 / 4 else 0
    first = chance.randint(0, start)
    if chance.random() < 1 / 8:
        entries = []
    below = [entry for entry in entries if entry.start_offset <= start]
    if below:
        # As Kafka cuts the epochs of a log whose start has moved.
        above = entries[len(below) :]
        entries = [EpochEntry(below[-1].epoch, start), *above]
    return LogSpan(
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=chance.randint(start, end),
        epochs=[entry for entry in entries if entry.start_offset < end],
        first_segment_offset=first,
    )


@pytest.mark.thorough
@pytest.mark.item("REP-08", "REP-09", "REP-10")
def test_rounds_and_ends_are_those_of_kafkas_fetcher(follower_class: Any):
    follower_type, leader_type = follower_class
    # What is flushed later is read by nobody.
    scheduler = jpype.JProxy(
        "org.apache.kafka.server.util.Scheduler",
        dict={"schedule": lambda *_: None, "scheduleOnce": lambda *_: None},
    )
    partition = java("org.apache.kafka.common.TopicPartition")("t", 0)
    channel = java("org.apache.kafka.storage.internals.log.LogDirFailureChannel")(10)
    chance, stuck = random.Random(SEED), 0
    with tempfile.TemporaryDirectory() as top:

        def cache(name: str, log: LogSpan) -> Any:
            file = Path(top, name)
            file.write_bytes(encode_leader_epochs(log.epochs))
            checkpoint = java(
                "org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile"
            )(java("java.io.File")(str(file)), channel)
            return java("org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache")(
                partition, checkpoint, scheduler
            )

        for number, (follower, leader) in enumerate(histories(ROUNDS)):
            epoch = 1 + max([0, *(e.epoch for log in (follower, leader) for e in log.epochs)])
            if number % 4 == 0:  # the metadata are older than a log, or a bit of its epoch flipped
                epoch = chance.randint(1, epoch)
            cuts = java("java.util.ArrayList")()
            with kafka_failures():
                end_point = leader_type(
                    cache("leader", leader), leader.log_start_offset, leader.log_end_offset, epoch
                )
                thread = follower_type(
                    end_point,
                    cache("follower", follower),
                    follower.first_segment_offset,
                    follower.log_start_offset,
                    follower.log_end_offset,
                    cuts,
                )
                end = int(thread.follow(follower.high_watermark, epoch, _MOST_ROUNDS))
            ours = find_truncation(follower, Leader(leader, epoch))
            kafkas = [int(cut) if cut >= 0 else -1 - int(cut) for cut in cuts]
            story = (number, follower, leader, ours, kafkas)
            assert list(ours.rounds) == kafkas, story
            is_stuck = ours.hindrance is not None
            assert end == (-1 - ours.offset if is_stuck else ours.offset), story
            stuck += is_stuck
        assert stuck > ROUNDS // 100
