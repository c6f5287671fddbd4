"""A real broker's groups, offsets and transactions: its admin client, and our look at its files."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.broker import Broker, new_broker
from tests.oracle.broker_clients import (
    Answers,
    GroupMember,
    Message,
    Producer,
    ShareMember,
    Topic,
    ask_coordinators,
    create_topics,
    delete_group,
    set_group_config,
    set_topic_config,
)

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(300, method="thread"),
]

RECORDS = 60
ROUNDS = 12
LOAD_TIMEOUT_S = 30
POLL_S = 0.2
# Whoever is a member, or in a transaction, when the broker stops still is when it is back.
LONG_MS = "600000"
INTERNAL = ("__consumer_offsets", "__transaction_state")
SMALL = {"internal.segment.bytes": "2048", "min.cleanable.dirty.ratio": "0.01"}
# A batch of one record without key and value has 68 bytes, a marker 78.
WITHOUT_MARKERS = {"max.message.bytes": "70"}
TOPICS = {
    "orders": Topic(partitions=2, config={}),
    "payments": Topic(partitions=2, config={}),
    "held": Topic(partitions=1, config=WITHOUT_MARKERS),
}


def produce(producer: Producer, topic: str, count: int) -> None:
    for number in range(count):
        producer.send(Message(topic=topic, key=f"{number}".encode(), value=b"v"))
    producer.flush()


class Clients:
    """Clients of a broker: groups of each protocol, and transactions in each state that lasts.

    Args:
        stack: Ends them all, however the test ends; no server has to answer.
    """

    def __init__(self, bootstrap_servers: str, stack: ExitStack) -> None:
        self._servers = bootstrap_servers
        self._stack = stack

    def use(self) -> None:
        """Join, leave and delete groups; commit, abort, prepare and begin transactions."""
        produce(self._producer(), "orders", RECORDS)
        staying = self._member("staying")
        self._read(staying)
        self._read(self._member("modern", protocol="consumer"))
        set_group_config(self._servers, "sharing", {"share.auto.offset.reset": "earliest"})
        sharing = ShareMember(self._servers, "sharing", ["orders"])
        self._stack.callback(sharing.vanish)
        sharing.poll()
        for group, protocol in (("left", "classic"), ("gone", "classic"), ("former", "consumer")):
            with self._new_member(group, protocol) as reader:
                self._read(reader)
        delete_group(self._servers, "gone")
        shop, hanging, held = map(self._producer, ("shop", "hanging", "held"))
        for topic in INTERNAL:
            set_topic_config(self._servers, topic, SMALL)
        with self._new_member("billing", "classic", {"max.poll.records": "5"}) as reader:
            self._sell(shop, reader, staying)
            self._prepare(held)
            hanging.begin()
            produce(hanging, "payments", 5)
            hanging.commit_offsets(reader)

    def _producer(self, transactional_id: str | None = None) -> Producer:
        config = {"transactional.id": transactional_id, "transaction.timeout.ms": LONG_MS}
        producer = Producer(self._servers, config if transactional_id else None)
        self._stack.callback(producer.vanish)
        return producer

    def _member(self, group: str, protocol: str = "classic") -> GroupMember:
        member = self._new_member(group, protocol)
        self._stack.callback(member.vanish)
        return member

    def _new_member(
        self, group: str, protocol: str, more: Mapping[str, str] | None = None
    ) -> GroupMember:
        config = {"group.protocol": protocol, **(more or {})}
        if protocol == "classic":
            config["session.timeout.ms"] = LONG_MS
        return GroupMember(self._servers, group, ["orders"], config)

    def _read(self, reader: GroupMember) -> None:
        while reader.poll():
            reader.commit()

    def _sell(self, shop: Producer, reader: GroupMember, other: GroupMember) -> None:
        """Read on and commit that in transactions, beside a group without; the last one aborts."""
        for number in range(ROUNDS):
            shop.begin()
            reader.poll()
            produce(shop, "payments", 5)
            shop.commit_offsets(reader)
            if number % 3 == 2:
                shop.abort()
            else:
                shop.commit()
            other.commit()

    def _prepare(self, held: Producer) -> None:
        """Commit a transaction whose marker its partition does not take."""
        held.begin()
        held.send(Message(topic="held", key=None, value=None))
        held.commit()


def look(pylog: Any, root: Path) -> Iterator[dict[str, Any]]:
    for command in ("groups", "transactions"):
        result = pylog(command, root, "--output", "json")
        assert result.exit_code == 0, result.stderr
        yield from map(json.loads, result.stdout.splitlines())


def answers_of(pylog: Any, root: Path) -> Answers:
    """What our look says, as the admin client says it."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in look(pylog, root):
        rows.setdefault(row["type"], []).append(row)
    assert not rows.keys() & {"undecoded", "partition"}
    assert {row["group"] for row in rows["pending_commit"]} == {"billing"}
    commits = [row for row in rows["commit"] if row["commit_ms"] is not None]
    open_transactions: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for row in rows["open_transaction"]:
        open_transactions.setdefault((row["topic"], row["partition"]), []).append(
            (row["producer_id"], row["producer_epoch"], row["first_offset"])
        )
    return Answers(
        groups={
            row["group"]: (
                row["group_type"],
                row["state"],
                [(m["member_id"], m["client_id"], m["client_host"]) for m in row["members"]],
            )
            for row in rows["group"]
        },
        assigned={
            (row["group"], member["member_id"]): member["assigned"]
            for row in rows["group"]
            if row["group_type"] == "Classic"
            for member in row["members"]
        },
        offsets={
            (row["group"], row["topic"], row["partition"]): (
                row["offset"],
                row["metadata"],
                None if row["leader_epoch"] == -1 else row["leader_epoch"],
            )
            for row in commits
        },
        ends={
            (row["topic"], row["partition"]): (row["log_start_offset"], row["log_end_offset"])
            for row in commits
        },
        transactions={
            row["transactional_id"]: (
                row["state"],
                row["producer_id"],
                row["producer_epoch"],
                row["timeout_ms"],
                row["start_ms"],
                row["partitions"],
            )
            for row in rows["transaction"]
        },
        open_transactions=open_transactions,
    )


def compact_internal_topics(pylog: Any, root: Path) -> None:
    """Run our cleaner over what the broker left; each internal topic loses bytes."""
    before = {topic: _log_bytes(root, topic) for topic in INTERNAL}
    result = pylog(
        *("compact", root, "--role", "broker", "--engine", "local", "--output", "json"),
        *(word for topic in INTERNAL for word in ("--topics", topic)),
    )
    assert result.exit_code == 0, result.stdout + result.stderr
    assert all(_log_bytes(root, topic) < size for topic, size in before.items())


def _log_bytes(root: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in root.glob(f"{topic}-*/*.log"))


def ask_when_loaded(broker: Broker, told: Answers) -> Answers:
    """Ask a broker that has just started, once its coordinators have read their partitions.

    Until then it lists fewer of them, or none.
    """
    deadline = time.monotonic() + LOAD_TIMEOUT_S
    while True:
        answers = ask_coordinators(broker.bootstrap_servers)
        is_loaded = (
            answers.groups.keys() >= told.groups.keys()
            and answers.transactions.keys() >= told.transactions.keys()
        )
        if is_loaded or time.monotonic() > deadline:
            return answers
        time.sleep(POLL_S)


@pytest.mark.thorough
@pytest.mark.item("REP-16", "REP-17", "REP-18")
def test_groups_and_transactions_are_those_of_the_admin_client_before_and_after_compaction(
    pylog, tmp_path
):
    with new_broker(tmp_path) as broker, ExitStack() as clients:
        create_topics(broker.bootstrap_servers, TOPICS)
        Clients(broker.bootstrap_servers, clients).use()
        told = ask_coordinators(broker.bootstrap_servers)
        broker.stop()
        clients.close()
        # What it is about is there.
        assert {name: group[:2] for name, group in told.groups.items()} == {
            "staying": ("Classic", "Stable"),
            "modern": ("Consumer", "Stable"),
            "sharing": ("Share", "Stable"),
            "left": ("Classic", "Empty"),
            "former": ("Consumer", "Empty"),
            "billing": ("Classic", "Empty"),
        }
        assert {name: each[0] for name, each in told.transactions.items()} == {
            "shop": "CompleteAbort",
            "hanging": "Ongoing",
            "held": "PrepareCommit",
        }
        root = broker.log_directory
        assert answers_of(pylog, root) == told
        compact_internal_topics(pylog, root)
        assert answers_of(pylog, root) == told
        # What we compacted a broker loads, and its coordinators know the same.
        broker.start()
        assert ask_when_loaded(broker, told) == told
        broker.stop()
