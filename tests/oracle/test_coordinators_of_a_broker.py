"""A real broker's groups, offsets and transactions: its admin client, and our look at its files."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.broker import UNTOUCHED, Broker
from tests.oracle.broker_clients import (
    Answers,
    GroupMember,
    Message,
    Producer,
    Topic,
    ask_coordinators,
    create_topics,
    delete_group,
    set_topic_config,
)

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(600, method="thread"),
]

RECORDS = 60
ROUNDS = 12
SMALL = {"internal.segment.bytes": "2048"}
INTERNAL = ("__consumer_offsets", "__transaction_state")


def produce(producer: Producer, topic: str, count: int = RECORDS) -> None:
    for number in range(count):
        producer.send(Message(topic=topic, key=f"{number}".encode(), value=b"v"))
    producer.flush()


def use_coordinators(bootstrap_servers: str, clients: ExitStack) -> tuple[Any, ...]:
    """Leave groups of either protocol, and transactions; return the clients that stay."""

    def member(group: str, *, protocol: str = "classic") -> GroupMember:
        return GroupMember(bootstrap_servers, group, ["orders"], {"group.protocol": protocol})

    plain = clients.enter_context(Producer(bootstrap_servers))
    produce(plain, "orders")
    staying, modern = member("staying"), member("modern", protocol="consumer")
    for reader in (staying, modern):
        while reader.poll():
            reader.commit()
    set_topic_config(bootstrap_servers, "__consumer_offsets", SMALL)
    for group in ("left", "gone", "left-modern"):
        protocol = "consumer" if group == "left-modern" else "classic"
        with member(group, protocol=protocol) as reader:
            while reader.poll():
                reader.commit()
    delete_group(bootstrap_servers, "gone")
    shop = clients.enter_context(Producer(bootstrap_servers, {"transactional.id": "shop"}))
    set_topic_config(bootstrap_servers, "__transaction_state", SMALL)
    with member("billing") as reader:
        sell(shop, reader, staying)
    hanging = Producer(bootstrap_servers, {"transactional.id": "open"})
    hanging.begin()
    produce(hanging, "payments", 5)
    return hanging, staying, modern


def sell(shop: Producer, reader: GroupMember, other: GroupMember) -> None:
    """Commit offsets in transactions, every third of them aborted, beside a group without."""
    while reader.poll():
        pass
    for number in range(ROUNDS):
        shop.begin()
        produce(shop, "payments", 5)
        shop.commit_offsets(reader)
        if number % 3 == 1:
            shop.abort()
        else:
            shop.commit()
        other.commit()


def look(pylog: Any, command: str, root: Path) -> list[dict[str, Any]]:
    result = pylog(command, root, "--output", "json")
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert not [line for line in lines if line["type"] in {"undecoded", "partition"}]
    return lines


def answers_of(pylog: Any, root: Path) -> Answers:
    """What our look says, as the admin client says it."""
    lines = [*look(pylog, "groups", root), *look(pylog, "transactions", root)]
    return Answers(
        groups={
            line["group"]: (line["group_type"], line["state"])
            for line in lines
            if line["type"] == "group"
        },
        offsets={
            (line["group"], line["topic"], line["partition"]): (line["offset"], line["metadata"])
            for line in lines
            if line["type"] == "commit" and line["commit_ms"] is not None
        },
        transactions={
            line["transactional_id"]: (
                line["state"],
                line["producer_id"],
                line["producer_epoch"],
                line["partitions"],
            )
            for line in lines
            if line["type"] == "transaction"
        },
    )


@pytest.mark.item("REP-16", "REP-17", "REP-18")
def test_groups_and_transactions_are_those_of_the_admin_client_before_and_after_compaction(
    pylog, tmp_path
):
    with Broker(tmp_path / "data", scratch=tmp_path, settings=UNTOUCHED) as broker:
        broker.format()
        broker.start()
        create_topics(
            broker.bootstrap_servers,
            {name: Topic(partitions=2, config={}) for name in ("orders", "payments")},
        )
        with ExitStack() as clients:
            staying = use_coordinators(broker.bootstrap_servers, clients)
            told = ask_coordinators(broker.bootstrap_servers)
        assert told.groups.keys() == {"staying", "modern", "left", "left-modern", "billing"}
        assert told.groups["modern"] == ("Consumer", "Stable")
        assert told.groups["staying"] == ("Classic", "Stable")
        assert told.transactions["open"][0] == "Ongoing"
        broker.stop()
        for client in staying:
            client.vanish()
        root = broker.log_directory
        assert answers_of(pylog, root) == told
        opened = [
            row for row in look(pylog, "transactions", root) if row["type"] == "open_transaction"
        ]
        assert {row["transactional_id"] for row in opened} == {"open"}
        assert {f"{row['topic']}-{row['partition']}" for row in opened} == set(
            told.transactions["open"][3]
        )
        removed = 0
        for topic in INTERNAL:
            for directory in sorted(root.glob(f"{topic}-*")):
                before = sum(path.stat().st_size for path in directory.glob("*.log"))
                arguments = ("--now-ms", 10**13, "--set", "cleanup.policy=compact")
                cleaned = pylog("partition", "clean", directory, *arguments)
                assert cleaned.exit_code == 0, cleaned.stderr
                removed += before - sum(path.stat().st_size for path in directory.glob("*.log"))
        assert removed > 0
        assert answers_of(pylog, root) == told
        # What we compacted a broker loads, and its coordinators know the same.
        broker.start()
        again = ask_coordinators(broker.bootstrap_servers)
        assert again.offsets == told.offsets
        assert again.transactions.keys() == told.transactions.keys()
        broker.stop()
