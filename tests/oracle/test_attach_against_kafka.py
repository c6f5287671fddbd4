"""The tier of a lost cluster, given to a new one: real brokers read it, and go on behind it."""

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from tests.kit.ports import free_ports
from tests.kit.tier_archives import TierCase, unpack_tier
from tests.oracle.broker import Broker, EarlierBroker
from tests.oracle.broker_clients import (
    Message,
    Producer,
    consume_topics,
    in_sync_replicas,
    set_replicas,
    set_topic_config,
)
from tests.oracle.cluster import quick_start
from tests.oracle.records import ReadRecord
from tests.oracle.returns import wait_for
from tests.oracle.test_audit_against_brokers import run_tool
from tests.oracle.tiers import (
    METADATA_PARTITIONS,
    PLUGIN_VARIABLE,
    TIER_FOLDER,
    TieredBroker,
    plugin_jars,
    plugin_settings,
    tier_settings,
    tiered_node,
)

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(600, method="thread"),
]
CONTROLLER_ID = 4
# As the topics of the lost cluster had it: what is written next is soon tiered, too.
SMALL = {
    "internal.segment.bytes": "131072",
    "file.delete.delay.ms": "200",
    "index.interval.bytes": "2048",
    "segment.index.bytes": "16384",
}

# Offset, timestamp, key, and the beginnings of the SHA-1 of value and headers.
Shown = tuple[int, int, str | None, str | None, str]


@dataclass
class NewCluster:
    """A controller and two formatted brokers, and what is left of another cluster: its tier."""

    case: TierCase
    folder: Path

    def __post_init__(self) -> None:
        self.tier = self.folder / "tier" / TIER_FOLDER
        shutil.copytree(self.case.archive, self.tier)
        ports = free_ports(6)
        is_aiven = self.case.truth["layout"] == "aiven"
        # The plugin stops a broker of 4.4; the controller runs no plugin.
        of_broker: type[Broker] = EarlierBroker if is_aiven else TieredBroker
        self.controller, *self.brokers = (
            tiered_node(
                self.folder,
                TieredBroker if node == CONTROLLER_ID else of_broker,
                self._aiven_settings() if is_aiven else tier_settings(self.tier.parent),
                node_id=node,
                ports=ports[number * 2 : number * 2 + 2],
                voters=f"{CONTROLLER_ID}@127.0.0.1:{ports[1]}",
                is_controller=node == CONTROLLER_ID,
                java_options=quick_start() if node == CONTROLLER_ID or not is_aiven else (),
            )
            for number, node in enumerate((CONTROLLER_ID, 1, 2))
        )
        self.controller.log_directory.mkdir()
        for broker in self.brokers:
            broker.format()

    def _aiven_settings(self) -> Mapping[str, str]:
        """Return the settings that the lost brokers had; of their keys the private one is left."""
        settings = self.case.truth["plugin_settings"]
        if self.case.key is not None:
            key = load_pem_private_key(self.case.key.read_bytes(), None).public_key()
            public = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            self.case.key.with_name("public.pem").write_bytes(public)
        place = f"{self.case.folder}/"
        settings = {name: value.replace("WORK/", place) for name, value in settings.items()}
        return plugin_settings(self.tier, settings)

    @property
    def servers(self) -> str:
        return self.brokers[0].bootstrap_servers

    def nodes(self) -> list[Broker]:
        return [self.controller, *self.brokers]

    def attach(self, pylog: Any, *words: str, homes: int = 1) -> list[dict[str, Any]]:
        """Attach the tier to the first brokers, and make the metadata of their cluster."""
        roots = [str(broker.log_directory) for broker in self.brokers[:homes]]
        topics = self.folder / "topics.json"
        if self.case.key is not None:
            words += ("--decryption-key", str(self.case.key))
        attached = pylog(
            *("attach", str(self.tier), *(f"--into={root}" for root in roots), *words),
            *("--metadata-partitions", str(METADATA_PARTITIONS), "--topics-out", str(topics)),
            "--output=json",
        )
        assert attached.exit_code == 0, attached.stderr
        rows = [json.loads(line) for line in attached.stdout.splitlines()]
        configs = json.loads(topics.read_text())
        for config in configs["topics"].values():
            config.update(SMALL)
        topics.write_text(json.dumps(configs))
        rebuilt = pylog(
            *(
                "metadata",
                "rebuild",
                *roots,
                f"--into={CONTROLLER_ID}={self.controller.log_directory}",
            ),
            *("--release-version", self.brokers[0].release_version or "4.4"),
            *("--config", str(topics), "--role", "broker"),
        )
        assert rebuilt.exit_code == 0, rebuilt.stderr
        return [row for row in rows if row["type"] == "attach"]

    def start(self) -> None:
        for node in self.nodes():
            node.launch()
        for node in self.nodes():
            node.wait_until_ready()

    def consume(self, *, read_committed: bool = False) -> dict[tuple[str, int], list[ReadRecord]]:
        topics: dict[str, int] = {}
        for each in self.case.truth["alone"]:
            topics[each["topic"]] = max(topics.get(each["topic"], 0), each["partition"] + 1)
        return consume_topics(self.servers, topics, read_committed=read_committed)


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def make(name: str) -> NewCluster:
            case = unpack_tier(name, tmp_path / "lost")
            cluster = NewCluster(case, tmp_path / "new")
            for node in cluster.nodes():
                stack.enter_context(node)
            return cluster

        yield make


def of_tier(case: TierCase) -> dict[tuple[str, int], list[Shown]]:
    """Return the records that the tier has, by partition."""
    ranges = {(each["topic"], each["partition"]): each["ranges"] for each in case.truth["alone"]}
    wanted: dict[tuple[str, int], list[Shown]] = {place: [] for place in ranges}
    for record in case.records:
        place, offset = (record["topic"], record["partition"]), record["offset"]
        # Of another history it has records with the same offsets.
        if any(
            first <= offset <= last and record["epoch"] == epoch
            for first, last, epoch in ranges.get(place, ())
        ):
            names = ("timestamp", "key", "value_sha1", "headers_sha1")
            wanted[place].append((offset, *(record[name] for name in names)))
    return wanted


def shown(records: list[ReadRecord]) -> list[Shown]:
    return [
        (
            each.offset,
            each.timestamp,
            None if each.key is None else base64.b64encode(each.key).decode(),
            None if each.value is None else hashlib.sha1(each.value).hexdigest()[:16],
            digest_of_headers(each),
        )
        for each in records
    ]


def digest_of_headers(record: ReadRecord) -> str:
    """Return what the truth of a tier says of a record's headers."""
    digest = hashlib.sha1()
    for name, value in record.headers:
        for each in (name.encode(), value):
            digest.update((-1 if each is None else len(each)).to_bytes(4, signed=True))
            digest.update(each or b"")
    return digest.hexdigest()[:16] if record.headers else ""


def segments_in(tier: Path) -> set[str]:
    return {path.name for path in tier.rglob("*.log")}


AIVEN = pytest.mark.skipif(
    not plugin_jars(),
    reason=f"needs the release of Aiven's plugin, unpacked: {PLUGIN_VARIABLE}=FOLDER",
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "plain",
        *(
            pytest.param(name, marks=[pytest.mark.long, AIVEN])
            for name in ("aiven_plain", "aiven_aes", "aiven_zstd")
        ),
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in (
                *("elections", "formats", "once_compacted", "retention", "deleting"),
                "copied_killed",
            )
        ),
    ],
)
def test_brokers_serve_the_tier_and_go_on_behind_it(name: str, new_cluster: Any, pylog: Any):
    cluster = new_cluster(name)
    # The second case has two histories, and is for two brokers.
    more = ["--newest"] if name == "elections" else []
    rows = cluster.attach(pylog, *more, homes=2 if name == "elections" else 1)
    ends = {(row["topic"], row["partition"]): row["log_end_offset"] for row in rows}
    of_lost = segments_in(cluster.tier)
    wanted = of_tier(cluster.case)
    cluster.start()
    consumed = cluster.consume()
    assert {place: shown(records) for place, records in consumed.items()} == wanted

    # New records are tiered as well; a second replica fetches what is behind the tier.
    topic, _ = next(place for place in ends if place in wanted)
    with Producer(cluster.servers, {"batch.size": "16384"}) as producer:
        sent = [
            producer.send(Message(topic=topic, key=b"%d" % number, value=b"v" * 4000))
            for number in range(300)
        ]
        producer.flush()
    places = [delivery.acknowledged() for delivery in sent]
    first = {place: min(offset for each, offset in places if each == place) for place, _ in places}
    assert first == {place: ends[place] for place in first}
    wait_for("new segments in the tier", lambda: len(segments_in(cluster.tier) - of_lost) > 3)
    set_replicas(cluster.servers, topic, [1, 2])
    wait_for(
        "the second replica",
        lambda: all(
            nodes == {1, 2} for nodes in in_sync_replicas(cluster.servers, [topic]).values()
        ),
    )
    after = cluster.consume()
    for place, records in after.items():
        assert shown(records)[: len(wanted[place])] == wanted[place]
        assert len(records) == len(wanted[place]) + sum(each == place for each, _ in places)

    # It deletes the segments of the lost cluster as its own.
    set_topic_config(cluster.servers, topic, {"retention.bytes": "200000"})
    lost = {
        each["segment_id"]
        for each in cluster.case.truth["archive_segments"]
        if each["topic"] == topic
    }

    def left() -> list[str]:
        # A twin that was left out is in no record: nobody deletes it.
        taken = sum(row["left_out_segments"] or 0 for row in rows)
        own = [name for name in segments_in(cluster.tier) if name[21:-4] in lost]
        return own if len(own) > taken else []

    wait_for("the deletion of old segments", lambda: left() == [])
    rest = {place: each for place, each in cluster.consume().items() if place[0] == topic}
    assert all(record.offset >= ends[place] for place, each in rest.items() for record in each)
    assert sum(map(len, rest.values())) > 0


@pytest.mark.long
def test_an_open_transaction_is_ended_as_the_answer_says(new_cluster: Any, pylog: Any):
    cluster = new_cluster("txn")
    (row, *_) = cluster.attach(pylog)
    end, opened = row["log_end_offset"], row["open_offset"]
    cluster.start()
    with Producer(cluster.servers) as producer:
        producer.send(Message(topic=row["topic"], key=b"k", value=b"behind"))
        producer.flush()

    def last_committed() -> int:
        (records,) = cluster.consume(read_committed=True).values()
        return records[-1].offset

    assert opened < end
    assert last_committed() == end - 1
    run_tool(
        "TransactionsCommand",
        *("--bootstrap-server", cluster.servers, "abort", "--topic", row["topic"]),
        *("--partition", str(row["partition"]), "--start-offset", str(opened)),
    )
    wait_for("records behind it", lambda: last_committed() == end)
    (records,) = cluster.consume(read_committed=True).values()
    assert [each.offset for each in records if each.offset >= opened] == [end]
