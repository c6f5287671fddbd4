"""Make ``tests/golden/broker-uncleaned``: the directory of a broker whose cleaner never ran.

``python -m tests.oracle.make_golden_broker``, by hand and only when the golden directory has to be
another one; a minute. A one-node broker of Apache Kafka is written to by six producers, idempotent
and transactional ones among them, and read by three consumer groups; a read_committed consumer
says what is in it; SIGTERM ends it. Messages follow from the seed. The broker's clock is the
machine's, so producer ids and some times (LogAppendTime, markers, offsets' commits) differ.
"""

import argparse
import gzip
import io
import itertools
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

from tests.kit.golden_broker import ARCHIVE, CONSUMED, ORIGIN, UNCLEANED
from tests.oracle import shop_messages as shop
from tests.oracle.broker import new_broker
from tests.oracle.broker_clients import (
    GroupMember,
    Message,
    Partition,
    Producer,
    Topic,
    consume_topics,
    create_topics,
    read_topics,
    set_topic_config,
)
from tests.oracle.jars import KAFKA
from tests.oracle.jvm import start_jvm, stop_jvm
from tests.oracle.log_directory import consumed_records
from tests.oracle.records import ReadRecord

SEED: Final = 4402
ROUNDS: Final = 40
# Messages of a round, by topic.
PROFILES: Final = 150
ORDERS: Final = 80
DEVICES: Final = 100
CLICKS: Final = 75
PER_BATCH: Final = 45
PER_TRANSACTION: Final = 20
ABORTED_EVERY: Final = 7
POLLED: Final = 30

_COMPACTED: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
# Nothing here expires by age, which would leave little of it to whoever takes it in some years;
# page views do by size, at any time.
TOPICS: Final = {
    shop.PROFILES: Topic(partitions=3, config={**_COMPACTED, "internal.segment.bytes": "49152"}),
    shop.ORDERS: Topic(
        partitions=2,
        config={**_COMPACTED, "internal.segment.bytes": "65536", "index.interval.bytes": "2048"},
    ),
    shop.DEVICES: Topic(
        partitions=2,
        config={
            **_COMPACTED,
            "cleanup.policy": "compact,delete",
            "internal.segment.bytes": "16384",
            "delete.retention.ms": "3600000",
            "message.timestamp.type": "LogAppendTime",
            "retention.ms": "-1",
        },
    ),
    shop.CLICKS: Topic(
        partitions=2,
        config={
            "cleanup.policy": "delete",
            "internal.segment.bytes": "65536",
            "retention.bytes": "65536",
            "retention.ms": "-1",
        },
    ),
}
INTERNAL: Final = {
    "__consumer_offsets": {"internal.segment.bytes": "16384"},
    "__transaction_state": {"internal.segment.bytes": "16384"},
}
_T = TypeVar("_T")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the golden directory."""
    parser = argparse.ArgumentParser(description="Make tests/golden/broker-uncleaned anew.")
    parser.add_argument("--into", type=Path, default=UNCLEANED, help="default: %(default)s")
    into = parser.parse_args(arguments).into
    start_jvm()
    try:
        make_golden_broker(into)
    finally:
        stop_jvm()
    for path in sorted(into.iterdir()):
        sys.stdout.write(f"{path.stat().st_size:>9} {path}\n")


def make_golden_broker(into: Path) -> None:
    """Run the broker and write what it leaves into a folder."""
    with tempfile.TemporaryDirectory(prefix="golden-broker-") as name:
        scratch = Path(name)
        with new_broker(scratch) as broker:
            create_topics(broker.bootstrap_servers, TOPICS)
            write_messages(broker.bootstrap_servers)
            topics = read_topics(broker.bootstrap_servers)
            consumed = consume_topics(
                broker.bootstrap_servers, {name: topic.partitions for name, topic in topics.items()}
            )
            broker.stop()
        clock_ms = max(int(p.stat().st_mtime) for p in broker.log_directory.rglob("*")) * 1000
        _check(broker.log_directory, consumed, clock_ms)
        into.mkdir(parents=True, exist_ok=True)
        (into / ARCHIVE.name).write_bytes(archive_of(broker.log_directory))
        (into / CONSUMED.name).write_bytes(zip_bytes("".join(_consumed_lines(consumed)).encode()))
        origin = _origin(broker.settings, topics, consumed, clock_ms)
        (into / ORIGIN.name).write_text(origin)


def write_messages(bootstrap_servers: str) -> None:
    """Write all messages and commit all offsets, in rounds, so that producers take turns."""
    with ExitStack() as clients:

        def producer(name: str, **config: str) -> Producer:
            settings = {"client.id": name, **{k.replace("_", "."): v for k, v in config.items()}}
            return clients.enter_context(Producer(bootstrap_servers, settings))

        def member(group: str, topic: str, **config: str) -> GroupMember:
            settings = {k.replace("_", "."): v for k, v in config.items()}
            settings["max.poll.records"] = str(POLLED)
            return clients.enter_context(GroupMember(bootstrap_servers, group, [topic], settings))

        crm = producer("crm", enable_idempotence="false")
        importer = producer("profile-import", compression_type="zstd")
        shops = [producer(f"shop-{n}", transactional_id=f"shop-{n}") for n in (1, 2)]
        gateways = [
            producer(f"gateway-{codec}", compression_type=codec)
            for codec in ("lz4", "snappy", "gzip")
        ]
        web = producer("web", compression_type="lz4")
        billing_writer = producer("billing", transactional_id="billing")
        indexer = member("profile-search-indexer", shop.PROFILES)
        alerts = member("device-alerts", shop.DEVICES, group_protocol="consumer")
        billing = member("billing", shop.ORDERS, isolation_level="read_committed")

        profiles = _in_turns(shop.profiles(ROUNDS * PROFILES, SEED), PROFILES)
        orders = _in_turns(shop.orders(ROUNDS * ORDERS, SEED + 1), ORDERS)
        devices = _in_turns(shop.device_states(ROUNDS * DEVICES, SEED + 2), DEVICES)
        clicks = _in_turns(shop.clicks(ROUNDS * CLICKS, SEED + 3), CLICKS)
        transactions = itertools.count(1)
        for number in range(ROUNDS):
            _send([crm, importer], next(profiles))
            _transact(shops, next(orders), transactions)
            _send(gateways, next(devices))
            _send([web], next(clicks))
            _read(indexer)
            _read(alerts)
            while billing.poll():
                billing_writer.begin()
                billing_writer.commit_offsets(billing)
                billing_writer.commit()
            if number == 0:  # only now are they there
                for topic, config in INTERNAL.items():
                    set_topic_config(bootstrap_servers, topic, config)


def _send(producers: Sequence[Producer], messages: Sequence[Message]) -> None:
    for producer, some in zip(
        itertools.cycle(producers), _in_turns(messages, PER_BATCH), strict=False
    ):
        for message in some:
            producer.send(message)
        producer.flush()


def _transact(
    producers: Sequence[Producer], messages: Sequence[Message], numbers: Iterator[int]
) -> None:
    """Write messages in transactions; what is in an aborted one is written again in the next."""
    waiting: list[Message] = []
    for producer, some in zip(
        itertools.cycle(producers), _in_turns(messages, PER_TRANSACTION), strict=False
    ):
        messages_of_it = [*waiting, *some]
        producer.begin()
        for message in messages_of_it:
            producer.send(message)
        if next(numbers) % ABORTED_EVERY == 0:
            producer.abort()
            waiting = messages_of_it
        else:
            producer.commit()
            waiting = []
    if waiting:
        producers[0].begin()
        for message in waiting:
            producers[0].send(message)
        producers[0].commit()


def _read(member: GroupMember) -> None:
    while member.poll():
        member.commit()


def _in_turns(messages: Iterable[_T], count: int) -> Iterator[list[_T]]:
    rest = iter(messages)
    while some := list(itertools.islice(rest, count)):
        yield some


def _check(
    directory: Path, consumed: Mapping[Partition, Sequence[ReadRecord]], clock_ms: int
) -> None:
    """Compare what lies in the directory, read by Kafka's storage classes, with what was got."""
    at_rest = {
        name: [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]
        for name, records in consumed_records(directory, now_ms=clock_ms).items()
    }
    got = {
        f"{topic}-{number}": [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]
        for (topic, number), records in consumed.items()
    }
    for name in sorted(at_rest.keys() | got.keys()):
        if at_rest.get(name) != got.get(name):
            raise AssertionError(f"{name}: the directory does not hold what a consumer got")


def archive_of(directory: Path) -> bytes:
    """Return a tar of a directory, the same for the same files and times."""

    def ours(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)
        return member

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(directory.rglob("*")):
            archive.add(path, str(path.relative_to(directory)), recursive=False, filter=ours)
    return zip_bytes(packed.getvalue())


def zip_bytes(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=9, mtime=0)


def _consumed_lines(consumed: Mapping[Partition, Sequence[ReadRecord]]) -> Iterator[str]:
    for (topic, number), records in sorted(consumed.items()):
        for r in records:
            headers = [[name, _hex(value)] for name, value in r.headers]
            line = [topic, number, r.offset, r.timestamp, _hex(r.key), _hex(r.value), headers]
            yield json.dumps(line, separators=(",", ":")) + "\n"


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _origin(
    settings: Mapping[str, str],
    topics: Mapping[str, Topic],
    consumed: Mapping[Partition, Sequence[ReadRecord]],
    clock_ms: int,
) -> str:
    """Return ORIGIN.toml; JSON's strings are TOML's."""
    text = json.dumps
    lines = [
        "# Where this directory comes from. It is never edited.",
        "",
        f"kafka = {text(KAFKA.version)}",
        'what = "the log directory of a one-node KRaft broker whose log cleaner never ran"',
        'command = "python -m tests.oracle.make_golden_broker"',
        'how = """',
        "A broker and controller in one process (a node of its own cluster, on loopback, on the",
        "wall clock) with the settings and topics below, ended by SIGTERM. Producers, idempotent",
        "and transactional ones among them, wrote to the topics; three consumer groups committed",
        "offsets, one of them in transactions.",
        '"""',
        f"seed = {SEED}",
        "# The second of the clean shutdown, epoch milliseconds.",
        f"clock_ms = {clock_ms}",
        f"consumed = {sum(map(len, consumed.values()))}",
        "",
        "[files]",
        '"before.tar.gz" = "the whole log directory as the broker left it"',
        (
            '"consumed.jsonl.gz" = "what a read_committed consumer got while it ran, internal '
            "topics included, a line a record: topic, partition, offset, timestamp, key, value, "
            'headers; bytes in hex"'
        ),
        "",
        "# Without ports and paths.",
        "[broker]",
        *(f"{text(name)} = {text(value)}" for name, value in sorted(settings.items())),
    ]
    for name, topic in topics.items():
        lines += ["", f"[topics.{text(name)}]", f"partitions = {topic.partitions}"]
        lines += [f"config.{text(key)} = {text(value)}" for key, value in topic.config.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
