"""Directories that lie, cannot be read or change: each is named, and the others are compared."""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pylog_spark.cluster.audit import driver as audits
from pylog_spark.cluster.audit.driver import Audit, audit
from pylog_spark.cluster.differences import list_differences
from pylog_spark.cluster.truncate import plan_followers
from pylog_spark.engines.choice import Local
from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.errors import ConfigError, StorageError
from storage_core.filenames import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE
from tests.kit.bound_rights import bound_rights
from tests.kit.cluster_truth import Cluster

NOW_MS = 1_800_000_000_000
OPTIONS = JobOptions(now_ms=NOW_MS)
HERE = Local.of_master(None)


def answers_of(report: Audit) -> dict[tuple, dict]:
    return {(row["topic"], row["partition"], row["topic_id"]): row for row in report.answers()}


def codes_of(row: dict) -> set[str]:
    return {each["code"] for each in row["remarks"]}


def without_remarks(rows: dict[tuple, dict]) -> list[dict]:
    return [{**row, "remarks": None} for row in rows.values()]


def linked(root: Path) -> Path:
    link = root.parent / "link"
    link.symlink_to(root)
    return link


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "again",
    [
        pytest.param(lambda root: root, id="the same path"),
        pytest.param(linked, id="a link to it"),
        pytest.param(lambda root: Path(os.path.relpath(root)), id="a relative path"),
        pytest.param(lambda root: root / ".." / root.name, id="a path that goes up and back"),
    ],
)
def test_the_same_root_twice_is_refused(tmp_path: Path, again: Callable[[Path], Path]):
    root = Cluster("clean", tmp_path).roots[0]
    with pytest.raises(ConfigError, match=f"is the same directory as {root}"):
        audit(HERE, [root, again(root)], OPTIONS)


@pytest.mark.thorough
def test_a_root_without_read_permission_counts_as_one_that_was_not_given(
    pylog: Callable, tmp_path: Path
):
    one, two, three = Cluster("diverged", tmp_path).roots
    expected = answers_of(audit(HERE, [one, three], OPTIONS))
    two.chmod(0)
    with bound_rights():
        report = audit(HERE, [one, two, three], OPTIONS)
        shown = pylog("audit", one, two, three, "--now-ms", NOW_MS, "--output", "json")
    assert dict(report.unread) == {str(two): f"{two}: Permission denied"}
    found = answers_of(report)
    assert without_remarks(found) == without_remarks(expected)
    for row in found.values():
        assert 2 in row["unseen"]
        (remark,) = [each for each in row["remarks"] if each["code"] == "ROOT_UNREADABLE"]
        assert str(two) in remark["message"]
        assert remark["kafka_error"] == "KAFKA_STORAGE_ERROR"
    assert shown.exit_code == 4
    assert len(shown.stdout.splitlines()) == len(found)
    assert f"{two}: Permission denied: nothing of it was compared" in shown.stderr


@pytest.mark.thorough
def test_differences_go_on_without_a_root_that_cannot_be_read(pylog: Callable, tmp_path: Path):
    one, two, three = Cluster("diverged", tmp_path).roots
    expected = list_differences(HERE, [one, three], OPTIONS)
    two.chmod(0)
    with bound_rights():
        report = list_differences(HERE, [one, two, three], OPTIONS)
        shown = pylog("audit", one, two, three, "--now-ms", NOW_MS, "--level", "offsets")
    assert report.rows == expected.rows
    assert str(two) in report.unread
    assert shown.exit_code == 4
    assert "Permission denied: nothing of it was compared" in " ".join(shown.stdout.split())


@pytest.mark.thorough
def test_no_replica_is_cut_while_a_root_cannot_be_read(tmp_path: Path):
    one, two, three = Cluster("diverged", tmp_path).roots
    two.chmod(0)
    with bound_rights(), pytest.raises(StorageError, match="no replica is cut"):
        plan_followers(HERE, [one, two, three], replace(OPTIONS, role=Role.BROKER), leader=3)


@pytest.mark.thorough
def test_roots_of_which_none_can_be_read_are_an_error_that_names_them(tmp_path: Path):
    roots = Cluster("clean", tmp_path).roots
    for root in roots:
        root.chmod(0)
    with bound_rights(), pytest.raises(StorageError, match="b2: Permission denied"):
        audit(HERE, roots, OPTIONS)


@pytest.mark.thorough
def test_one_of_two_directories_of_a_broker_makes_no_replica_missing(tmp_path: Path):
    cluster = Cluster("reassigned", tmp_path)
    by_root = {root: {path.name for path in root.iterdir()} for root in cluster.roots}
    _, second = (root for root in cluster.roots if root.parent.name == "b2")
    second.chmod(0)
    with bound_rights():
        found = answers_of(audit(HERE, cluster.roots, OPTIONS))
    names = {f"{topic}-{partition}" for topic, partition, _ in found}
    away = names & by_root[second]
    assert away
    for (topic, partition, _), row in found.items():
        if f"{topic}-{partition}" in away:
            assert 2 in row["unseen"]
            assert not any(each["broker"] == 2 and each.get("missing") for each in row["replicas"])


@pytest.mark.thorough
def test_a_partition_directory_without_read_permission_is_a_replica_that_cannot_be_opened(
    tmp_path: Path,
):
    cluster = Cluster("clean", tmp_path)
    (cluster.roots[1] / "ledger-0").chmod(0)
    with bound_rights():
        found = answers_of(audit(HERE, cluster.roots, OPTIONS))
    for (topic, partition, _), row in found.items():
        is_it = (topic, partition) == ("ledger", 0)
        broken = [each["broker"] for each in row["replicas"] if "Permission" in str(each)]
        assert broken == ([2] if is_it else [])
        assert ("REPLICA_OFFLINE" in codes_of(row)) == is_it
        assert {each["broker"] for each in row["candidates"]} == ({1, 3} if is_it else {1, 2, 3})


@pytest.mark.thorough
def test_a_root_that_vanishes_meanwhile_is_replicas_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cluster = Cluster("clean", tmp_path)
    measure = audits.measure

    def measure_and_lose(*args: object) -> object:
        rows = measure(*args)
        shutil.rmtree(cluster.roots[1])
        return rows

    monkeypatch.setattr(audits, "measure", measure_and_lose)
    for row in answers_of(audit(HERE, cluster.roots, OPTIONS)).values():
        assert [each["broker"] for each in row["replicas"] if each.get("error")] == [2]
        assert {each["broker"] for each in row["candidates"]} == {1, 3}


@pytest.mark.thorough
def test_a_root_that_a_broker_has_locked_is_named(tmp_path: Path):
    cluster = Cluster("clean", tmp_path)
    before = answers_of(audit(HERE, cluster.roots, OPTIONS))
    with LogDirectoryLock(cluster.roots[2]):
        report = audit(HERE, cluster.roots, OPTIONS)
    assert any(f"{cluster.roots[2]} is in use" in note for note in report.notes)
    found = answers_of(report)
    assert without_remarks(found) == without_remarks(before)
    for row in found.values():
        in_use = [each["broker"] for each in row["remarks"] if each["code"] == "ROOT_IN_USE"]
        assert in_use == [3]


@pytest.mark.thorough
def test_a_log_that_grows_between_two_looks_is_read_up_to_its_last_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cluster = Cluster("clean", tmp_path)
    before = answers_of(audit(HERE, cluster.roots, OPTIONS))
    (cluster.roots[0] / ".kafka_cleanshutdown").unlink()  # a broker that runs has none
    measure = audits.measure

    def measure_and_write(*args: object) -> object:
        rows = measure(*args)
        log = max((cluster.roots[0] / "ledger-0").glob("*.log"))
        with log.open("ab") as file:
            file.write(log.read_bytes()[:40])
        return rows

    monkeypatch.setattr(audits, "measure", measure_and_write)
    found = answers_of(audit(HERE, cluster.roots, OPTIONS))
    for key, row in found.items():
        ends = [each["log_end"] for each in row["replicas"]]
        assert ends == [each["log_end"] for each in before[key]["replicas"]]
        torn = [each["broker"] for each in row["replicas"] if each["damage"]]
        assert torn == ([1] if key[:2] == ("ledger", 0) else [])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "brokers", [pytest.param([1], id="one"), pytest.param([1, 2, 3], id="all")]
)
def test_a_directory_without_partition_metadata_is_that_of_its_name(
    tmp_path: Path, brokers: list[int]
):
    cluster = Cluster("clean", tmp_path)
    before = answers_of(audit(HERE, cluster.roots, OPTIONS))
    for broker in brokers:
        for file in cluster.roots[broker - 1].glob(f"ledger-*/{PARTITION_METADATA_FILE}"):
            file.unlink()
    assert answers_of(audit(HERE, cluster.roots, OPTIONS)) == before
    rows = list_differences(HERE, cluster.roots, OPTIONS).rows.to_pylist()
    told = {row["broker"] for row in rows if row["code"] == "PARTITION_METADATA_MISSING"}
    assert told == set(brokers)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "content",
    [
        pytest.param("0\n1\n7 5\n", id="another epoch than the batches have"),
        pytest.param("0\n2\n3 9\n2 1\n", id="epochs that fall"),
        pytest.param("0\n1\n0 999999\n", id="a start behind the log"),
        pytest.param("0\n9999999999\n0 0\n", id="more entries than it has"),
        pytest.param("\0" * 64, id="zeros"),
        pytest.param(None, id="no file"),
    ],
)
def test_epoch_files_that_lie_are_named_and_the_others_compared(
    tmp_path: Path, content: str | None
):
    cluster = Cluster("clean", tmp_path)
    before = answers_of(audit(HERE, cluster.roots, OPTIONS))
    file = cluster.roots[0] / "ledger-0" / LEADER_EPOCH_FILE
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    found = answers_of(audit(HERE, cluster.roots, OPTIONS))
    assert found.keys() == before.keys()
    for key, row in found.items():
        if key[:2] != ("ledger", 0):
            assert row == before[key]
    rows = list_differences(HERE, cluster.roots, OPTIONS, level="headers").rows.to_pylist()
    assert [row for row in rows if row["topic"] == "ledger" and row["broker"] == 1], rows


def garble(directory: Path) -> None:
    """Write noise over the metadata log."""
    for log in directory.glob("*.log"):
        log.write_bytes(random.Random(7).randbytes(4000))


def forge_snapshot(directory: Path) -> None:
    """Put a snapshot there that claims to be newer than all."""
    (directory / f"{2**40:020}-{3:010}.checkpoint").write_bytes(random.Random(7).randbytes(4000))


def empty_snapshot(directory: Path) -> None:
    """Put a snapshot there that has no end."""
    log = next(directory.glob("*.log")).read_bytes()
    (directory / f"{2**40:020}-{3:010}.checkpoint").write_bytes(log)


@pytest.mark.thorough
@pytest.mark.parametrize("harm", [garble, forge_snapshot, empty_snapshot])
def test_a_hostile_copy_of_the_metadata_is_named_and_another_one_believed(
    tmp_path: Path, harm: Callable[[Path], None]
):
    cluster = Cluster("clean", tmp_path)
    trusted = audit(HERE, cluster.roots, OPTIONS)
    directory = next(
        root / "__cluster_metadata-0"
        for root in cluster.roots
        if str(root) not in trusted.belief.replace("__cluster", "")
    )
    harm(directory)
    report = audit(HERE, cluster.roots, OPTIONS)
    assert report.belief == trusted.belief
    assert any(str(directory) in note for note in report.notes)
    assert answers_of(report) == answers_of(trusted)


@pytest.mark.thorough
@pytest.mark.parametrize("harm", [garble, forge_snapshot, empty_snapshot])
def test_without_metadata_that_can_be_read_every_replica_is_a_candidate(
    tmp_path: Path, harm: Callable[[Path], None]
):
    cluster = Cluster("clean", tmp_path)
    for root in cluster.roots:
        harm(root / "__cluster_metadata-0")
    report = audit(HERE, cluster.roots, OPTIONS)
    assert report.belief.startswith("nothing says ISR")
    for root in cluster.roots:
        assert any(str(root) in note for note in report.notes)
    for row in answers_of(report).values():
        assert {each["broker"] for each in row["candidates"]} == {1, 2, 3}
