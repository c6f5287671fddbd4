"""What clients write to a broker of any version: random, the same for the same seed."""

import random
import time
from collections.abc import Iterator, Mapping
from typing import Final

from storage_core.clock import SystemClock
from tests.oracle.broker_clients import (
    GroupMember,
    Message,
    Producer,
    Topic,
    create_topics,
)

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TYPES: Final = ("CreateTime", "LogAppendTime")
SEGMENT_BYTES: Final = 14_000
ROUNDS: Final = 12
_PER_ROUND: Final = 120
_KEYS: Final = 60
_FLUSHED_EVERY: Final = 9
_SPAN_MS: Final = 3_600_000
# Small buffers: the cleaner then writes a segment by many appends of several batches each.
SETTINGS: Final[Mapping[str, str]] = {
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.io.buffer.size": "40000",
    "log.cleaner.dedupe.buffer.size": "2000000",
    "log.cleaner.threads": "1",
    "log.retention.check.interval.ms": "2000",
    "log.initial.task.delay.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "transaction.state.log.segment.bytes": "1048576",
    "zookeeper.session.timeout.ms": "18000",
}


def topics_of(version: str, seed: int) -> dict[str, Topic]:
    """Return topics of every policy and timestamp type, with random settings."""
    rng = random.Random(seed)
    size = "internal.segment.bytes" if version.startswith("4.") else "segment.bytes"
    topics = {}
    for policy in ("delete", "compact", "compact,delete"):
        for kind in TYPES:
            name = f"{policy.replace(',', '-and-')}.{kind}"
            config = {
                "cleanup.policy": policy,
                "message.timestamp.type": kind,
                "index.interval.bytes": str(rng.choice((100, 700, 4096))),
                size: str(SEGMENT_BYTES),
                "min.cleanable.dirty.ratio": "0.01",
                "delete.retention.ms": str(rng.choice((0, 1000, 86_400_000))),
                "retention.ms": "-1",
                # What was cleaned or has expired is gone before the broker is.
                "file.delete.delay.ms": "100",
            }
            if policy == "delete":
                config["retention.bytes"] = str(rng.choice((-1, 5 * SEGMENT_BYTES)))
            topics[name] = Topic(partitions=2, config=config)
    if version.startswith("2."):
        for old in ("0.9.0", "0.10.2"):
            config = {"message.format.version": old, size: str(SEGMENT_BYTES)}
            topics[f"old-{old}"] = Topic(partitions=1, config=config)
    return topics


def write_traffic(bootstrap_servers: str, version: str, seed: int) -> None:
    """Create topics, and have producers of all kinds write to them; a group reads one."""
    rng = random.Random(seed)
    topics = topics_of(version, seed)
    create_topics(bootstrap_servers, topics)
    modern = [name for name in topics if not name.startswith("old-")]
    for number in range(ROUNDS):
        codec = rng.choice(CODECS)
        settings = {"compression.type": codec, "enable.idempotence": str(number % 2 == 0).lower()}
        with Producer(bootstrap_servers, settings) as producer:
            _send(producer, _messages(rng, modern), flushed_every=_FLUSHED_EVERY)
        old = {"compression.type": rng.choice(CODECS[:4]), "enable.idempotence": "false"}
        with Producer(bootstrap_servers, old) as producer:
            _send(producer, _messages(rng, sorted(set(topics) - set(modern))), flushed_every=5)
        _write_transactions(bootstrap_servers, rng, modern)
    with GroupMember(bootstrap_servers, "readers", modern[:2]) as group:
        while group.poll():
            group.commit()
    # The cleaner and the deletion of old segments come by.
    time.sleep(4)


def _write_transactions(bootstrap_servers: str, rng: random.Random, topics: list[str]) -> None:
    settings = {
        "transactional.id": f"tx-{rng.randrange(3)}",
        "compression.type": rng.choice(CODECS),
    }
    with Producer(bootstrap_servers, settings) as producer:
        for _ in range(rng.randrange(1, 4)):
            producer.begin()
            _send(producer, _messages(rng, rng.sample(topics, 2)), flushed_every=20)
            if rng.random() < 0.4:
                producer.abort()
            else:
                producer.commit()


def _messages(rng: random.Random, topics: list[str]) -> Iterator[Message]:
    now_ms = SystemClock().now_ms()
    for _ in range(_PER_ROUND if topics else 0):
        yield Message(
            topic=rng.choice(topics),
            key=f"key-{rng.randrange(_KEYS)}".encode(),
            value=None if rng.random() < 0.1 else rng.randbytes(rng.randrange(20, 400)),
            timestamp_ms=now_ms - rng.randrange(_SPAN_MS),
        )


def _send(producer: Producer, messages: Iterator[Message], *, flushed_every: int) -> None:
    for number, message in enumerate(messages, 1):
        producer.send(message)
        if number % flushed_every == 0:
            producer.flush()
    producer.flush()
