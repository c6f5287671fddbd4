"""Nights of real clusters: what an audit says of the directories, and what brokers then do.

``make clusters`` plays nights of anything. From each of them brokers come back in several ways: in
other orders, only some of them, with wiped disks, with true and false markers of a clean shutdown.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from pylog_spark.cluster.audit.driver import (
    ELECTION_FILE,
    REASSIGNMENT_FILE,
    RESTORE_FILE,
    Audit,
    audit,
)
from pylog_spark.engines.choice import Local
from pylog_spark.java import find_java
from pylog_spark.options import JobOptions
from storage_core.checkpoint.broker_files import encode_clean_shutdown
from storage_core.cluster.elections import ELR_FEATURE
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, LEADER_EPOCH_FILE
from tests.kit.flipped_epochs import FLIPPED, flip_epoch
from tests.oracle.broker import logging_jars
from tests.oracle.broker_clients import (
    Message,
    Partition,
    Producer,
    Topic,
    create_topics,
)
from tests.oracle.cluster import CONTROLLER_ID, METADATA_DIRECTORY, NODE_IDS, Cluster
from tests.oracle.jars import tools_jars
from tests.oracle.nights import JAVA_OPTIONS, SETTINGS, Night, Promise, run_night
from tests.oracle.returns import (
    PLACES,
    Outcome,
    Record,
    come_back,
    copy_state,
    cuts_of,
    fenced_brokers,
    records_of,
    restore_state,
    wait_for,
)

ROUNDS: Final = int(os.environ.get("PYLOG_CLUSTER_ROUNDS", "0"))
SEED: Final = int(os.environ.get("PYLOG_CLUSTER_SEED", "32"))
STEPS: Final = 6
RETURNS: Final = 5
# What happens to a broker's log directory before it comes back; to most of them nothing.
ACCIDENTS: Final = ("", "", "", "wiped", "emptied", "killed", "attested")
CHECKPOINTS: Final = "replica.high.watermark.checkpoint.interval.ms"
NOW_MS: Final = 1_900_000_000_000
TOOLS: Final = "org.apache.kafka.tools."

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(3_600 if ROUNDS else 900, method="thread"),
]

Answer = Mapping[str, Any]


def new_cluster(folder: Path, settings: Mapping[str, str] | None = None) -> Cluster:
    return Cluster(
        folder / "cluster",
        settings={**SETTINGS, **(settings or {})},
        has_own_controller=True,
        java_options=JAVA_OPTIONS,
    )


def audit_state(
    folder: Path, up: Sequence[int], topics: Sequence[str] = (), out: Path | None = None
) -> Audit:
    """Audit copied log directories, the controller's among them."""
    roots = [folder / str(node) for node in (*NODE_IDS, CONTROLLER_ID)]
    options = JobOptions(now_ms=NOW_MS, include=tuple(topics))
    return audit(Local.of_master(None), roots, options, up=up, election_out=out)


def by_place(report: Audit) -> dict[Partition, Answer]:
    return {(row["topic"], row["partition"]): row for row in report.answers()}


def complain_of_election(answer: Answer, outcome: Outcome) -> list[str]:
    """Return what an audit said of an election that the controller held otherwise."""
    elections = answer["elections"]
    said = (elections["leader"], elections["by"])
    truth = (outcome.leader, outcome.way)
    found = [] if said == truth else [f"elected {said}, Kafka elected {truth}"]
    return found + ([f"before it led {outcome.others}"] if outcome.others else [])


def complain_of_loss(
    answer: Answer,
    outcome: Outcome,
    before: Mapping[int, set[Record]],
    book: Mapping[bytes, Promise],
    up: Collection[int],
) -> list[str]:
    """Return what an audit said of cuts and losses that brokers or the book say otherwise."""
    found = []
    (candidate,) = [each for each in answer["candidates"] if each["broker"] == outcome.leader]
    cuts = {
        each["broker"]: each["rounds"]
        for each in candidate["truncations"]
        if each["rounds"] and each["broker"] in up
    }
    if cuts != outcome.cuts:
        found.append(f"cuts {cuts}, the brokers logged {outcome.cuts}")
    said = candidate["lost"]
    ranges = {(at, epoch) for first, last, epoch in said["ranges"] for at in range(first, last + 1)}
    lost = set().union(*before.values()) - set(outcome.records)
    if ranges != {(offset, epoch) for offset, epoch, _ in lost} or said["records"] != len(lost):
        found.append(f"loses {said['records']} {said['ranges']}, {len(lost)} are not readable")
    # The book: what was promised, was on a disk, and cannot be read any more.
    broken = [(record, book[record[2]]) for record in lost if record[2] in book]
    for (offset, _, _), promise in broken:
        if offset != promise.offset:
            found.append(f"{promise} is at {offset}")
    by_all = sum(promise.acks == "all" for _, promise in broken)
    if said["committed"] + said["unknown"] < by_all:
        found.append(f"{said}: all in sync acknowledged {by_all} of them")
    if said["committed"] + said["uncommitted"] + said["unknown"] != said["records"]:
        found.append(f"{said} does not add up")
    return found


def run_tool(name: str, *arguments: str) -> None:
    """Run one of Kafka's commands as its script does."""
    java = find_java().runtime / "bin" / "java"
    jars = os.pathsep.join(map(str, [*logging_jars(), *tools_jars()]))
    command = [str(java), *JAVA_OPTIONS, "-cp", jars, TOOLS + name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def has_left(cluster: Cluster, broker: int, partitions: Collection[tuple[str, int, Any]]) -> bool:
    """Whether the controller has a broker as replica of none of these partitions."""
    names = {(topic, number) for topic, number, _ in partitions}
    return not any(
        broker in partition.replicas
        for topic in cluster.metadata().topics.values()
        for number, partition in topic.partitions.items()
        if (topic.name, number) in names
    )


@pytest.mark.long
@pytest.mark.item("REP-02", "REP-08", "REP-13")
def test_brokers_of_a_bad_night_do_what_an_audit_says(tmp_path: Path) -> None:
    state, files = tmp_path / "state", tmp_path / "files"
    with new_cluster(tmp_path) as cluster:
        cluster.format()
        cluster.start()
        with Night(cluster) as night:
            for broker in (1, 2):
                night.silence(broker)
                night.wait_until_gone(broker)
            # Broker 3 alone has the newest records. Where one may, broker 1 then goes on without.
            night.swap(1)
            night.bring_back(2)
            book = night.end()
        copy_state(cluster, state)
        answers, before = by_place(audit_state(state, [1, 2, 3])), records_of(state)
        report = audit_state(state, [1, 2], ["strict-1"], files)
        assert report.starts is not None
        assert report.starts.manual is not None
        assert report.starts.manual.start.brokers == (1, 2)
        server = ("--bootstrap-server", cluster.node(1).bootstrap_servers)

        def reassign(file: str) -> None:
            command = "reassign.ReassignPartitionsCommand"
            run_tool(command, *server, "--execute", "--reassignment-json-file", str(files / file))

        def choose() -> None:
            reassign(REASSIGNMENT_FILE)
            file = ("--path-to-json-file", str(files / ELECTION_FILE))
            run_tool("LeaderElectionCommand", *server, "--election-type", "UNCLEAN", *file)
            # Of a broker that comes back before, Kafka deletes the directory.
            wait_for("broker 3 is no replica", lambda: has_left(cluster, 3, report.leaders))

        outcomes = come_back(
            cluster, [1, 2], then=choose, last=[3], at_last=lambda: reassign(RESTORE_FILE)
        )
    chosen = {(topic, number): leader for (topic, number, _), leader in report.leaders.items()}
    # Both would else come to be led by broker 1, the first live one, which has less.
    assert chosen == {("strict-1", 0): 2, ("strict-1", 1): 2}
    strays = [path.name for path in cluster.node(3).log_directory.glob("*-stray")]
    assert len(strays) == len(chosen)
    found = {}
    for place in PLACES:
        answer, outcome = answers[place], outcomes[place]
        up = NODE_IDS
        if place in chosen:
            assert outcome.leader == chosen[place]
            found[place] = []
            # What the file leaves out begins anew.
            up = (1, 2)
        else:
            found[place] = complain_of_election(answer, outcome)
        if outcome.leader is not None:
            found[place] += complain_of_loss(answer, outcome, before[place], book, up)
    assert {place: each for place, each in found.items() if each} == {}
    assert any(outcome.cuts for outcome in outcomes.values())


# Of each case: the broker with the flipped batch, the batch's segment and number, its wrong epoch,
# whether the epoch file is there. Batches 4 to 43 are of epoch 1, the last ones of epoch 2.
FLIPS: Final = {
    f"{place}-{size}-{file}-{victim}": (victim, where, epoch, file)
    for victim in (1, 2)
    for place, where in (("middle", (0, 13)), ("last", (-1, -1)))
    for size, epoch in (("large", FLIPPED), ("small", 0))
    for file in ("kept", "gone")
}
HOW: Final = ("large-kept", "large-gone", "small-kept", "small-gone")
MIDDLE_1: Final = ("middle-large-kept-1", "middle-large-gone-1")
# Who never was in sync, by whether all closed in order and who led; all others were. After a kill
# nothing says of broker 1's closed segments that they were flushed: its start reads them.
LEFT_OUT: Final[Mapping[tuple[bool, int], Mapping[int, frozenset[str]]]] = {
    (True, 1): {3: frozenset({"last-large-kept-1", "last-large-gone-1", "last-small-kept-1"})},
    (False, 1): {
        2: frozenset({*MIDDLE_1, "last-large-kept-2", "last-large-gone-2"}),
        3: frozenset({*MIDDLE_1, *(f"last-{how}-1" for how in HOW)}),
    },
    (False, 2): {
        1: frozenset({*MIDDLE_1, "last-large-kept-1", "last-large-gone-1"}),
        3: frozenset(f"last-{how}-2" for how in HOW),
    },
}


def left_out(topic: str, leader: int, *, is_clean: bool) -> set[int]:
    of_brokers = LEFT_OUT[is_clean, leader]
    return {broker for broker, topics in of_brokers.items() if topic in topics}


def flip(directory: Path, where: tuple[int, int], epoch: int, file: str) -> int:
    """Give a batch another epoch, and return its offset."""
    logs = [path for path in sorted(directory.glob("*.log")) if path.stat().st_size]
    assert len(logs) > 1
    if file == "gone":
        (directory / LEADER_EPOCH_FILE).unlink()
    return flip_epoch(logs[where[0]], where[1], epoch)


def send_to_all(servers: str, count: int) -> None:
    with Producer(servers, {"batch.size": "10000"}) as producer:
        for _ in range(count):
            for topic in FLIPS:
                producer.send(Message(topic=topic, key=b"k", value=b"x" * 40_000))


def write_epochs(cluster: Cluster) -> None:
    """Let three leaders write, and then two brokers go on without the third."""
    servers, topics = cluster.bootstrap_servers, list(FLIPS)
    config = {"segment.bytes": "1048576", "min.insync.replicas": "2"}
    assignment = ((1, 2, 3),)
    create_topics(
        servers,
        {each: Topic(partitions=1, config=config, assignment=assignment) for each in topics},
    )
    send_to_all(servers, 4)
    for broker, count in ((1, 40), (2, 5)):
        cluster.wait_until_in_sync(topics)
        cluster.node(broker).stop()
        send_to_all(servers, count)
        cluster.node(broker).start()
    cluster.wait_until_in_sync(topics)
    cluster.node(3).stop()
    send_to_all(servers, 5)
    time.sleep(2)  # followers learn the last high watermark by their next fetch
    cluster.controller.kill()
    for broker in (1, 2):
        cluster.node(broker).kill()


def start_and_wait(cluster: Cluster, *, is_clean: bool) -> dict[str, tuple[int, set[int]]]:
    """Start all nodes; return leader and ISR of each topic, once nobody joins any more."""
    cluster.controller.start()
    wait_for("the brokers' sessions end", lambda: fenced_brokers(cluster) == set(NODE_IDS))
    for broker in NODE_IDS:
        cluster.node(broker).start()
        wait_for("it may lead", partial(lambda each: each not in fenced_brokers(cluster), broker))

    def states() -> dict[str, tuple[int, set[int]]]:
        topics = cluster.metadata().topics_by_name()
        partitions = {topic: topics[topic].partitions[0] for topic in FLIPS}
        return {topic: (each.leader, {*each.isr}) for topic, each in partitions.items()}

    def are_all_told() -> bool:
        return all(
            in_sync | left_out(topic, leader, is_clean=is_clean) == {*NODE_IDS}
            for topic, (leader, in_sync) in states().items()
        )

    wait_for("all others are in sync", are_all_told)
    time.sleep(10)
    return states()


@pytest.mark.long
@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
@pytest.mark.item("REP-08", "REP-13")
def test_flipped_epochs_mislead_brokers_as_an_audit_says(tmp_path: Path, is_clean: bool) -> None:
    state, offsets = tmp_path / "state", {}
    # What a start reads is told by the recovery points: they stay those of the last orderly end.
    with new_cluster(tmp_path, {"log.flush.offset.checkpoint.interval.ms": "3600000"}) as cluster:
        cluster.format()
        cluster.start()
        write_epochs(cluster)
        for topic, (victim, *how) in FLIPS.items():
            directory = cluster.node(victim).log_directory / f"{topic}-0"
            offsets[topic] = flip(directory, *how)
        registered = cluster.metadata().brokers
        for node in NODE_IDS:
            marker = cluster.node(node).log_directory / CLEAN_SHUTDOWN_FILE
            marker.unlink(missing_ok=True)
            if is_clean:
                marker.write_bytes(encode_clean_shutdown(registered[node].broker_epoch))
        copy_state(cluster, state)
        answers = by_place(audit_state(state, NODE_IDS))
        logged = {node: len(cluster.node(node).log_lines()) for node in NODE_IDS}
        states = start_and_wait(cluster, is_clean=is_clean)
        for node in (*NODE_IDS, CONTROLLER_ID):
            cluster.node(node).kill()
        cuts = {node: cuts_of(cluster.node(node).log_lines()[logged[node] :]) for node in NODE_IDS}
    for topic, (victim, _, epoch, _) in FLIPS.items():
        leader, in_sync = states[topic]
        missing, answer = {*NODE_IDS} - in_sync, answers[topic, 0]
        story = (topic, leader, in_sync)
        assert missing == left_out(topic, leader, is_clean=is_clean), story
        by_broker = {each["broker"]: each for each in answer["candidates"]}
        lost = {broker: each["lost"]["records"] for broker, each in by_broker.items()}
        assert lost == {1: 0, 2: 0, 3: 5}, story
        followers = {each["broker"]: each for each in by_broker[leader]["truncations"]}
        stuck = {broker: each["never_in_sync"] for broker, each in followers.items()}
        assert {broker for broker, why in stuck.items() if why} == missing, story
        for broker in {*NODE_IDS} - {leader}:
            logged_cuts = cuts[broker].get((topic, 0), [])
            if (stuck.get(broker) or {}).get("why") == "cut_again":
                assert len(logged_cuts) > 20, story
                assert len(set(logged_cuts)) == 1, story
            else:
                rounds = followers[broker]["rounds"] if broker in followers else []
                assert logged_cuts == rounds, (*story, broker)
        (remark,) = [each for each in answer["remarks"] if each["code"] == "EPOCH_DOUBTFUL"]
        assert remark["broker"] == victim
        assert f"leader epoch {epoch} at offset {offsets[topic]} " in remark["message"]


def test_another_answer_is_noticed() -> None:
    records = {node: {(at, 1, b"all/%d" % at) for at in range(node)} for node in NODE_IDS}
    book = {b"all/2": Promise(partition=("strict-1", 0), offset=2, acks="all")}
    outcome = Outcome(leader=2, way="isr", others=[], cuts={3: [2]}, records=records[2])
    lost = {"records": 1, "committed": 1, "uncommitted": 0, "unknown": 0, "ranges": [[2, 2, 1]]}
    cut = {"broker": 3, "rounds": [2]}

    def complaints(
        *,
        leader: int | None = 2,
        truncations: Sequence[Answer] = (cut,),
        **changed: object,
    ) -> list[str]:
        candidate = {"broker": 2, "truncations": truncations, "lost": {**lost, **changed}}
        answer = {"elections": {"leader": leader, "by": "isr"}, "candidates": [candidate]}
        return [
            *complain_of_election(answer, outcome),
            *complain_of_loss(answer, outcome, records, book, NODE_IDS),
        ]

    assert complaints() == []
    assert complaints(leader=3)
    assert complaints(truncations=[])
    assert complaints(truncations=[{**cut, "rounds": [3, 2]}])
    assert complaints(ranges=[[2, 2, 2]])
    assert complaints(ranges=[])
    assert complaints(records=2, unknown=1)
    assert complaints(committed=0, uncommitted=1)


def befall(chance: random.Random, cluster: Cluster, levels: Mapping[str, int]) -> str:
    """Let something happen to log directories; return what."""
    metadata = cluster.metadata()
    story = []
    for node in NODE_IDS:
        accident = chance.choice(ACCIDENTS)
        directory = cluster.node(node).log_directory
        if accident == "wiped":
            shutil.rmtree(directory)
            cluster.node(node).format(levels=levels)
        if accident == "emptied":
            for path in directory.iterdir():
                if path.is_dir() and path.name != METADATA_DIRECTORY:
                    shutil.rmtree(path)
        marker = directory / CLEAN_SHUTDOWN_FILE
        if accident == "killed":
            marker.unlink(missing_ok=True)
        if accident in {"attested", "emptied"}:
            marker.write_bytes(encode_clean_shutdown(metadata.brokers[node].broker_epoch))
        story += [f"broker {node} {accident}"] if accident else []
    return ", ".join(story)


@pytest.mark.skipif(not ROUNDS, reason="a round takes minutes: make clusters")
@pytest.mark.parametrize("number", range(ROUNDS))
def test_brokers_come_back_from_any_night_as_an_audit_says(number: int, tmp_path: Path) -> None:
    chance = random.Random(SEED + number)
    levels = {} if chance.random() < 2 / 3 else {ELR_FEATURE: 0}
    settings = {CHECKPOINTS: chance.choice(("300", "5000"))}
    night, found = tmp_path / "night", []
    with new_cluster(tmp_path, settings) as cluster:
        cluster.format(levels=levels)
        cluster.start()
        book = run_night(cluster, chance, steps=STEPS)
        copy_state(cluster, night)
        for way in range(RETURNS):
            restore_state(cluster, night)
            accidents = befall(chance, cluster, levels) if way else ""
            state = tmp_path / f"state-{way}"
            copy_state(cluster, state)
            count = chance.randint(1, len(NODE_IDS)) if way else len(NODE_IDS)
            order = chance.sample(NODE_IDS, count)
            answers, before = by_place(audit_state(state, order)), records_of(state)
            outcomes = come_back(cluster, order)
            story = f"seed {SEED + number} {levels} return {way}, up {order}, {accidents}"
            ways = [f"{each.leader} {each.way} {each.cuts}" for each in outcomes.values()]
            sys.stdout.write(f"\n{story}: {'; '.join(ways)}\n")
            for place in PLACES:
                complaints = complain_of_election(answers[place], outcomes[place])
                if not complaints and outcomes[place].leader is not None:
                    complaints = complain_of_loss(
                        answers[place], outcomes[place], before[place], book, order
                    )
                found += [f"{story}: {place}: {each}" for each in complaints]
    assert found == []
