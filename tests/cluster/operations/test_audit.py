"""Replicas of real clusters, judged as Kafka then treated them."""

import base64
import hashlib
import json
from pathlib import Path

import pytest

from pylog_spark.cluster.audit.driver import audit
from pylog_spark.cluster.audit.task import audit_partitions
from pylog_spark.engines.choice import Local
from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.cluster.places import find_places, parse_states
from storage_core.errors import ConfigError, InconsistentClusterIdError
from storage_core.maintenance.verification.log_directories import verify_log_directories
from tests.kit.cluster_truth import CLUSTERS, Cluster
from tests.kit.decode import decode_segment

NOW_MS = 1_800_000_000_000


def answers_of(cluster: Cluster) -> list[dict]:
    """Return what the tasks of an audit answer, without an engine."""
    observed, _ = verify_log_directories([(str(root), Role.BROKER) for root in cluster.roots])
    states = parse_states(json.dumps({"partitions": cluster.states}).encode(), "states")
    rows = list(audit_partitions(find_places(observed, states), NOW_MS))
    assert [row.failure for row in rows if row.failure] == []
    return [json.loads(row.answer) for row in rows]


def prints(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.md5(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.sampled(1)
@pytest.mark.item("REP-01", "REP-02", "REP-03", "REP-12", "REP-13", "REP-14")
@pytest.mark.parametrize("name", CLUSTERS)
def test_an_audit_says_what_kafka_then_does(name: str, tmp_path: Path):
    cluster = Cluster(name, tmp_path)
    before = prints(tmp_path)
    assert cluster.complaints(answers_of(cluster)) == []
    assert prints(tmp_path) == before


@pytest.mark.thorough
def test_the_referee_notices_another_answer(tmp_path: Path):
    cluster = Cluster("diverged", tmp_path)
    for change in (
        lambda row: row["replicas"][0].update(log_end=7),
        lambda row: row.update(divergence=None),
        lambda row: row.update(high_watermark=10_000),
        lambda row: row["candidates"][0]["lost"].update(records=3),
        lambda row: row["candidates"][0].update(safe=not row["candidates"][0]["safe"]),
        lambda row: [each.update(truncations=[]) for each in row["candidates"]],
        lambda row: row["candidates"].pop(),
    ):
        answers = answers_of(cluster)
        row = next(row for row in answers if (row["topic"], row["partition"]) == ("ledger", 0))
        change(row)
        assert cluster.complaints(answers) != []


@pytest.mark.thorough
def test_the_newest_metadata_of_the_roots_is_believed(tmp_path: Path):
    cluster = Cluster("wiped-disk", tmp_path)
    report = audit(Local.of_master(None), cluster.roots, JobOptions(now_ms=NOW_MS))
    assert "__cluster_metadata-0, offset " in report.belief
    rows = {(row["topic"], row["partition"]): row for row in report.answers()}
    by_file = {(row["topic"], row["partition"]): row for row in answers_of(cluster)}
    for key, row in by_file.items():
        assert rows[key]["candidates"] == row["candidates"]


@pytest.mark.thorough
@pytest.mark.item("REP-06")
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_candidate_tells_where_committed_reads_stop(name: str, tmp_path: Path):
    cluster = Cluster(name, tmp_path)
    answers = {
        (row["topic"], row["partition"], row["topic_id"]): row for row in answers_of(cluster)
    }
    for want in cluster.truth["before"]:
        row = answers[want["topic"], want["partition"], want["topic_id"]]
        by_kafka = {each["broker"]: each for each in want["on_disk"]}
        own = {each["broker"]: each for each in row["replicas"] if not each.get("future")}
        for candidate in row["candidates"]:
            kafka = by_kafka.get(candidate["broker"], {"log_end": 0})
            open_from = [each["first_offset"] for each in kafka.get("open_transactions", ())]
            held = min(open_from, default=kafka["log_end"])
            assert candidate["last_stable_offset"] == held
            # The replica's own stops at its checkpointed high watermark, too.
            assert own[candidate["broker"]].get("last_stable_offset", 0) <= held


@pytest.mark.thorough
def test_a_terminal_shows_committed_reads_where_an_open_transaction_holds_them(
    tmp_path: Path, pylog
):
    roots = Cluster("open-transaction", tmp_path / "open").roots
    shown = pylog("audit", *roots, "--now-ms", NOW_MS, "--wide").stdout
    assert (
        "committed reads stop at 71 under broker 1 or 2 or 3, until the open transaction of "
        "producer 1002 ends" in shown
    )
    # Broker 3 lacks the transaction that is open in the others.
    assert "committed reads stop at 81 under broker 1 or 2, until" in shown
    for name in ("clean", "diverged"):
        roots = Cluster(name, tmp_path / name).roots
        assert "committed reads" not in pylog("audit", *roots, "--now-ms", NOW_MS, "--wide").stdout


@pytest.mark.thorough
@pytest.mark.item("REP-13")
@pytest.mark.parametrize("name", ["diverged", "compacted", "wiped-disk"])
def test_keys_of_a_loss_are_those_of_its_first_records(name: str, tmp_path: Path, pylog):
    cluster = Cluster(name, tmp_path)
    losses = 0
    for most in (0, 1, 3, 10_000):
        report = audit(
            Local.of_master(None), cluster.roots, JobOptions(now_ms=NOW_MS), most_keys=most
        )
        for row in report.answers():
            for candidate in row["candidates"]:
                lost = candidate["lost"]
                expected = keys_of(cluster, row, lost["ranges"])
                assert len(lost["keys"]) == min(most, len(expected))
                assert {base64.b64decode(key) for key in lost["keys"]} <= expected
                losses += bool(lost["keys"])
    assert losses
    shown = pylog("audit", *cluster.roots, "--now-ms", NOW_MS, "--keys", 2, "--wide")
    assert "first keys: " in shown.stdout


def keys_of(cluster: Cluster, row: dict, ranges: list[list[int]]) -> set[bytes]:
    """Return the keys of the records in ranges of offsets and epochs, whoever has them."""
    found: set[bytes] = set()
    for root in cluster.roots:
        directory = root / f"{row['topic']}-{row['partition']}"
        for log in directory.glob("*.log"):
            for batch in decode_segment(log.read_bytes())[0]:
                for record in batch.records:
                    at, epoch = record.offset, batch.header["partition_leader_epoch"]
                    if record.key is not None and any(
                        first <= at <= last and epoch == of for first, last, of in ranges
                    ):
                        found.add(record.key)
    return found


@pytest.mark.thorough
@pytest.mark.item("ERR-13")
def test_roots_of_two_clusters_are_refused(tmp_path: Path):
    one, two = (Cluster("clean", tmp_path / name) for name in ("one", "two"))
    file = two.roots[0] / "meta.properties"
    lines = [
        "cluster.id=QUFBQUFBQUFBQUFBQUFBQQ" if line.startswith("cluster.id=") else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(InconsistentClusterIdError):
        audit(Local.of_master(None), [one.roots[0], two.roots[0]], JobOptions(now_ms=NOW_MS))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"partitions": [{"topic": 3}]}', b"[" * 100_000]
)
def test_a_file_that_says_no_states_is_refused_by_its_name(tmp_path: Path, content: bytes):
    cluster = Cluster("clean", tmp_path)
    file = tmp_path / "states.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"states\.json"):
        audit(Local.of_master(None), cluster.roots, JobOptions(now_ms=NOW_MS), state=file)


@pytest.mark.thorough
@pytest.mark.spark
def test_spark_answers_as_this_machine_does(spark, tmp_path: Path):
    cluster = Cluster("diverged", tmp_path)
    options = JobOptions(now_ms=NOW_MS)
    here, there = (audit(place, cluster.roots, options) for place in (Local(2), spark))
    assert list(there.answers()) == list(here.answers())
    assert (here.engine, there.engine) == ("local", "spark")
