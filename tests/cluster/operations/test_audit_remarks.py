"""What an audit says of partitions beside their losses."""

import json
from pathlib import Path

import pytest

from pylog_spark.cluster.audit.driver import audit
from pylog_spark.engines.choice import Local
from pylog_spark.options import JobOptions
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, LEADER_EPOCH_FILE, RECOVERY_POINT_FILE
from tests.kit.cluster_truth import Cluster
from tests.kit.flipped_epochs import FLIPPED, flip_epoch

NOW_MS = 1_800_000_000_000


def remarks_of(cluster: Cluster, **said: object) -> dict[tuple, list[dict]]:
    """Return the remarks of each partition, by topic, partition and topic id."""
    report = audit(Local.of_master(None), cluster.roots, JobOptions(now_ms=NOW_MS), **said)
    return {
        (row["topic"], row["partition"], row["topic_id"]): row["remarks"]
        for row in report.answers()
    }


def state_file(cluster: Cluster, folder: Path, **changed: object) -> Path:
    file = folder / "state.json"
    rows = [{**row, **changed} for row in cluster.states]
    file.write_text(json.dumps({"partitions": rows}))
    return file


def codes(remarks: list[dict]) -> set[tuple[str, int | None]]:
    return {(each["code"], each["broker"]) for each in remarks}


@pytest.mark.item("REP-15")
def test_replication_is_reported(tmp_path: Path):
    cluster = Cluster("killed", tmp_path)
    for (topic, _, _), remarks in remarks_of(cluster).items():
        found = codes(remarks)
        # All were killed: who is in sync will not be.
        assert {("BROKER_UNCLEAN", 2), ("BROKER_UNCLEAN", 3)} <= found
        assert ("BROKER_UNCLEAN", 1) not in found
        assert not {"OFFLINE", "UNDER_MIN_ISR"} & {code for code, _ in found}, topic
    (tmp_path / "clean").mkdir()
    cluster = Cluster("clean", tmp_path / "clean")
    for remarks in remarks_of(cluster).values():
        assert codes(remarks) == {("OFFLINE", None), ("UNDER_MIN_ISR", None)}
        assert [each["kafka_error"] for each in remarks] == ["LEADER_NOT_AVAILABLE", None]


@pytest.mark.thorough
@pytest.mark.item("REP-15")
def test_replicas_that_are_behind_or_gone_are_reported(tmp_path: Path):
    cluster = Cluster("wiped-disk", tmp_path)
    for (topic, partition, _), remarks in remarks_of(cluster).items():
        behind = {
            each["broker"]: each["message"]
            for each in remarks
            if each["code"] == "UNDER_REPLICATED"
        }
        assert 3 in behind, (topic, partition)
    (tmp_path / "broken").mkdir()
    cluster = Cluster("epoch-file-corrupt", tmp_path / "broken")
    (ledger,) = [r for key, r in remarks_of(cluster).items() if key[:2] == ("ledger", 0)]
    assert ("REPLICA_OFFLINE", 1) in codes(ledger)


@pytest.mark.thorough
@pytest.mark.item("REP-15", "ERR-12")
def test_a_high_watermark_below_the_last_epoch_is_stale(tmp_path: Path):
    cluster = Cluster("no-high-watermark", tmp_path)
    report = audit(Local.of_master(None), cluster.roots, JobOptions(now_ms=NOW_MS))
    expected, found = set(), set()
    for row in report.answers():
        key = row["topic"], row["partition"]
        for replica in row["replicas"]:
            if replica["epochs"][-1][1] > (replica["high_watermark"] or 0):
                expected.add((*key, replica["broker"]))
        for each in row["remarks"]:
            if each["code"] == "HIGH_WATERMARK_STALE":
                assert each["kafka_code"] == 78
                found.add((*key, each["broker"]))
    assert found == expected
    # Of broker 2 the checkpoint is there.
    assert {broker for _, _, broker in found} == {1, 3}


@pytest.mark.thorough
@pytest.mark.item("ERR-12")
def test_an_epoch_that_other_replicas_contradict_is_named_as_a_flipped_bit(tmp_path: Path):
    """A start has believed the epoch of one batch, and written it down."""
    cluster = Cluster("clean", tmp_path)
    path = cluster.roots[1] / "ledger-0" / LEADER_EPOCH_FILE
    first, start = path.read_text().splitlines()[2], 5
    path.write_text(f"0\n2\n{first}\n1000000 {start}\n")
    every = remarks_of(cluster, state=state_file(cluster, tmp_path))
    (remarks,) = [each for key, each in every.items() if key[:2] == ("ledger", 0)]
    (found,) = [each for each in remarks if each["code"] == "LEADER_EPOCH_UNKNOWN"]
    assert (found["broker"], found["kafka_code"]) == (2, 75)
    assert f"epoch 1000000 from offset {start} on" in found["message"]
    assert "or a bit of the epoch flipped" in found["message"]


@pytest.mark.thorough
@pytest.mark.item("ERR-12")
@pytest.mark.parametrize(
    ("number", "is_closed", "said"),
    [
        (2, True, "no start goes by it, and no follower has to take it: `pylog heal` takes"),
        (-1, True, "no start goes by it, and no follower has to take it: move that directory"),
        (-1, False, "broker 2 never is in sync while broker 1 or 3 leads: move that directory"),
    ],
)
def test_a_batch_with_an_epoch_that_no_leader_had_is_named(tmp_path: Path, number, is_closed, said):
    cluster = Cluster("clean", tmp_path)
    if not is_closed:
        (cluster.roots[1] / CLEAN_SHUTDOWN_FILE).unlink()
        (cluster.roots[1] / RECOVERY_POINT_FILE).unlink()
    logs = sorted((cluster.roots[1] / "ledger-0").glob("*.log"))
    log = next(path for path in logs[:: 1 if number > 0 else -1] if path.stat().st_size)
    offset = flip_epoch(log, number)
    every = remarks_of(cluster, state=state_file(cluster, tmp_path))
    found = {
        key: each
        for key, remarks in every.items()
        for each in remarks
        if each["code"] == "EPOCH_DOUBTFUL"
    }
    ((key, remark),) = found.items()
    assert (key[:2], remark["broker"], remark["kafka_code"]) == (("ledger", 0), 2, None)
    assert (
        f"broker 2 has leader epoch {FLIPPED} at offset {offset} ({log.name}" in (remark["message"])
    )
    assert said in remark["message"]


@pytest.mark.thorough
@pytest.mark.item("ERR-12")
def test_an_epoch_above_that_of_the_metadata_is_unknown(tmp_path: Path):
    cluster = Cluster("diverged", tmp_path)
    for remarks in remarks_of(cluster, state=state_file(cluster, tmp_path)).values():
        assert "LEADER_EPOCH_UNKNOWN" not in {code for code, _ in codes(remarks)}
    old = state_file(cluster, tmp_path, leader_epoch=0)
    report = audit(Local.of_master(None), cluster.roots, JobOptions(now_ms=NOW_MS), state=old)
    found: set[int] = set()
    for row in report.answers():
        unknown = [each for each in row["remarks"] if each["code"] == "LEADER_EPOCH_UNKNOWN"]
        newer = {each["broker"] for each in row["replicas"] if each["epochs"][-1][0] > 0}
        assert {each["broker"] for each in unknown} == newer
        assert {each["kafka_code"] for each in unknown} <= {75}
        found |= newer
    assert {2, 3} <= found


@pytest.mark.thorough
@pytest.mark.item("ERR-12")
def test_a_leader_epoch_that_is_known_already_is_fenced(tmp_path: Path):
    cluster = Cluster("clean", tmp_path)
    newest = max(row["leader_epoch"] for row in cluster.states)
    state = state_file(cluster, tmp_path, leader_epoch=newest)
    for epoch, is_fenced in ((newest, True), (newest + 1, False)):
        for remarks in remarks_of(cluster, state=state, leader_epoch=epoch).values():
            fenced = [each for each in remarks if each["code"] == "LEADER_EPOCH_FENCED"]
            assert [each["kafka_code"] for each in fenced] == [74] * is_fenced


@pytest.mark.thorough
@pytest.mark.item("ERR-13")
def test_an_id_that_the_metadata_lack_is_a_stray_and_no_other_topic(tmp_path: Path):
    cluster = Cluster("recreated", tmp_path)
    known = {row["topic_id"] for row in cluster.states}
    remarks = remarks_of(cluster)
    unknown = {key for key, found in remarks.items() if ("TOPIC_ID_UNKNOWN", None) in codes(found)}
    assert unknown == {key for key in remarks if key[2] not in known}
    assert unknown
    twice = {
        key for key, found in remarks.items() if ("TOPIC_ID_INCONSISTENT", None) in codes(found)
    }
    names = [key[:2] for key in remarks]
    assert twice == {key for key in remarks if names.count(key[:2]) > 1}
    assert twice
    for found in remarks.values():
        for each in found:
            code = {"TOPIC_ID_UNKNOWN": 100, "TOPIC_ID_INCONSISTENT": 103}.get(each["code"])
            assert code is None or each["kafka_code"] == code
