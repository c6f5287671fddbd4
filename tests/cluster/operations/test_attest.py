"""Markers that name a broker's last epoch again, where all replicas have the same."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pylog_spark.cluster.attest import attest
from pylog_spark.engines.choice import Local
from pylog_spark.operations.recover.driver import recover
from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.errors import ConfigError, GuardRefusedError, StorageError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE
from storage_core.roots.broker import HeldBrokerRoot
from tests.kit.bound_rights import bound_rights
from tests.kit.cluster_truth import Cluster

NOW_MS = 1_800_000_000_000
OPTIONS = JobOptions(now_ms=NOW_MS, now_is_said=True, role=Role.BROKER)
HERE = Local.of_master(None)
# By the metadata of the cluster.
EPOCHS = {1: 21, 2: 16, 3: 14}


def markers(roots: list[Path]) -> list[int | None]:
    """Return the epoch that each root's marker names, None where there is none."""
    files = [root / CLEAN_SHUTDOWN_FILE for root in roots]
    return [
        json.loads(file.read_bytes())["brokerEpoch"] if file.exists() else None for file in files
    ]


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    """Three brokers with equal logs, of which the second was killed, and was recovered."""
    roots = Cluster("clean", tmp_path).roots
    (roots[1] / CLEAN_SHUTDOWN_FILE).unlink()
    recover(HERE, [roots[1]], OPTIONS)
    assert markers(roots) == [EPOCHS[1], -1, EPOCHS[3]]
    return roots


def contents(roots: list[Path]) -> Mapping[Path, bytes]:
    return {
        path: path.read_bytes()
        for root in roots
        for path in root.rglob("*")
        if path.is_file() and path.name != CLEAN_SHUTDOWN_FILE
    }


@pytest.mark.thorough
@pytest.mark.item("REP-15", "CKP-16")
def test_a_recovered_broker_gets_its_last_epoch_back(roots: list[Path], pylog: Callable):
    said = pylog("audit", *roots, "--now-ms", NOW_MS, "--output", "json")
    remarks = [each for line in said.stdout.splitlines() for each in json.loads(line)["remarks"]]
    unclean = [each for each in remarks if each["code"] == "BROKER_UNCLEAN"]
    assert {each["broker"] for each in unclean} == {2}
    assert all("--attest" in each["message"] for each in unclean)
    before = contents(roots)
    report = attest(HERE, roots, OPTIONS)
    assert [(each.broker, each.registered_epoch) for each in report.attested] == [(2, EPOCHS[2])]
    assert {each.broker for each in report.others} == {1, 3}
    exact = f'{{"version":0,"brokerEpoch":{EPOCHS[2]}}}'.encode()
    assert (roots[1] / CLEAN_SHUTDOWN_FILE).read_bytes() == exact
    assert contents(roots) == before
    again = attest(HERE, roots, OPTIONS)
    assert again.attested == []
    said = pylog("audit", *roots, "--now-ms", NOW_MS, "--output", "json")
    assert "BROKER_UNCLEAN" not in said.stdout


@pytest.mark.thorough
def test_what_was_written_is_said(roots: list[Path], pylog: Callable):
    words = ("audit", *roots, "--now-ms", NOW_MS, "--role", "broker", "--attest")
    shown = pylog(*words, "--output", "json")
    assert shown.exit_code == 0, shown.stderr
    (row,) = map(json.loads, shown.stdout.splitlines())
    assert row == {
        "type": "attested",
        "root": str(roots[1]),
        "broker": 2,
        "old_broker_epoch": -1,
        "broker_epoch": EPOCHS[2],
    }
    text = " ".join(pylog(*words).stdout.split())
    assert text.startswith("All replicas have the same")
    assert text.count("its marker named it already") == 3


@pytest.mark.thorough
def test_an_epoch_that_nobody_could_read_is_written(roots: list[Path]):
    (roots[1] / CLEAN_SHUTDOWN_FILE).write_bytes(b"")
    attest(HERE, roots, OPTIONS)
    assert markers(roots) == [*EPOCHS.values()]


def take_root(roots: list[Path]) -> list[Path]:
    return roots[:2]


def take_metadata(roots: list[Path]) -> list[Path]:
    for root in roots:
        shutil.rmtree(root / "__cluster_metadata-0")
    return roots


def take_marker(roots: list[Path]) -> list[Path]:
    (roots[0] / CLEAN_SHUTDOWN_FILE).unlink()
    return roots


def take_replica(roots: list[Path]) -> list[Path]:
    shutil.rmtree(roots[2] / "ledger-0")
    return roots


def take_disk(roots: list[Path]) -> list[Path]:
    """Leave a disk that was only formatted: no recovery brings its replicas back."""
    for entry in roots[2].iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
    (roots[2] / CLEAN_SHUTDOWN_FILE).unlink()
    return roots


def spoil_epochs(roots: list[Path]) -> list[Path]:
    (roots[2] / "ledger-0" / "leader-epoch-checkpoint").write_bytes(b"\0\0")
    return roots


def shorten(roots: list[Path]) -> list[Path]:
    log = max((roots[2] / "ledger-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1])
    (roots[2] / CLEAN_SHUTDOWN_FILE).unlink()
    recover(HERE, [roots[2]], replace(OPTIONS, allow_truncate=True))
    return roots


def flip(roots: list[Path]) -> list[Path]:
    log = min((roots[2] / "ledger-0").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    return roots


def name_another_epoch(roots: list[Path]) -> list[Path]:
    marker = roots[0] / CLEAN_SHUTDOWN_FILE
    marker.write_bytes(b'{"version":0,"brokerEpoch":20}')
    return roots


def age_metadata(roots: list[Path]) -> list[Path]:
    """Leave metadata of the time before the topics were made."""
    for root in roots:
        for log in (root / "__cluster_metadata-0").glob("*.log"):
            content = log.read_bytes()
            log.write_bytes(content[: content.index(b"stock_levels")])
    return roots


@pytest.mark.thorough
@pytest.mark.item("REP-15")
@pytest.mark.parametrize(
    ("harm", "code", "way"),
    [
        (take_root, "ATTEST_INCOMPLETE", "Give the directories of all its brokers"),
        (take_metadata, "ATTEST_EPOCH_UNKNOWN", "__cluster_metadata-0"),
        (take_marker, "ATTEST_UNRECOVERED", "pylog recover "),
        (take_replica, "ATTEST_INCOMPLETE", "--up 1,2"),
        (take_disk, "ATTEST_INCOMPLETE", "--up 1,2"),
        (spoil_epochs, "ATTEST_DIFFERENT", "pylog audit"),
        (shorten, "ATTEST_DIFFERENT", "pylog audit"),
        (flip, "ATTEST_DIFFERENT", "pylog audit"),
        (name_another_epoch, "ATTEST_EPOCH_UNKNOWN", "newer metadata"),
        (age_metadata, "ATTEST_EPOCH_UNKNOWN", "newer metadata"),
    ],
)
def test_what_is_not_proved_is_refused_with_its_way_out(
    roots: list[Path], harm: Callable, code: str, way: str, pylog: Callable
):
    given = harm(roots)
    before = markers(roots)
    with pytest.raises(GuardRefusedError) as refused:
        attest(HERE, given, OPTIONS)
    assert refused.value.code == code
    assert way in refused.value.reason
    assert markers(roots) == before
    shown = pylog("audit", *given, "--role", "broker", "--now-ms", NOW_MS, "--attest")
    assert shown.exit_code == 3
    assert code in shown.stderr


@pytest.mark.thorough
def test_a_role_that_was_not_said_and_a_lock_that_is_held_are_refused(roots: list[Path]):
    with pytest.raises(GuardRefusedError, match="ROLE_NOT_SAID"):
        attest(HERE, roots, replace(OPTIONS, role=None))
    with (
        LogDirectoryLock(roots[2]),
        pytest.raises(GuardRefusedError, match="LOG_DIRECTORY_IN_USE"),
    ):
        attest(HERE, roots, OPTIONS)
    assert markers(roots) == [EPOCHS[1], -1, EPOCHS[3]]


def test_some_topics_of_all_prove_nothing(roots: list[Path]):
    with pytest.raises(ConfigError, match="would leave replicas out"):
        attest(HERE, roots, replace(OPTIONS, include=("ledger",)))


@pytest.mark.thorough
def test_a_root_that_cannot_be_read_ends_it(roots: list[Path]):
    roots[2].chmod(0)
    with bound_rights(), pytest.raises(StorageError, match="Permission denied"):
        attest(HERE, roots, OPTIONS)
    roots[2].chmod(0o755)
    assert markers(roots) == [EPOCHS[1], -1, EPOCHS[3]]


@pytest.mark.thorough
def test_a_run_that_dies_between_two_markers_is_finished_by_the_next(
    roots: list[Path], monkeypatch: pytest.MonkeyPatch
):
    (roots[0] / CLEAN_SHUTDOWN_FILE).write_bytes(b'{"version":0,"brokerEpoch":-1}')
    write = HeldBrokerRoot.attest_marker
    calls = []

    def die(self: HeldBrokerRoot, epoch: int) -> None:
        calls.append(epoch)
        if len(calls) > 1:
            raise KeyboardInterrupt
        write(self, epoch)

    monkeypatch.setattr(HeldBrokerRoot, "attest_marker", die)
    with pytest.raises(KeyboardInterrupt):
        attest(HERE, roots, OPTIONS)
    assert markers(roots) == [EPOCHS[1], -1, EPOCHS[3]]
    monkeypatch.undo()
    attest(HERE, roots, OPTIONS)
    assert markers(roots) == [*EPOCHS.values()]


@pytest.mark.thorough
def test_a_directory_of_a_controller_alone_needs_no_marker(roots: list[Path], tmp_path: Path):
    """Its metadata may be the newest."""
    controller = tmp_path / "controller"
    controller.mkdir()
    shutil.move(roots[2] / "__cluster_metadata-0", controller)
    for root in roots[:2]:
        shutil.rmtree(root / "__cluster_metadata-0")
    properties = (roots[0] / META_PROPERTIES_FILE).read_text().splitlines()
    lines = [
        "node.id=3000" if line.startswith("node.id") else line
        for line in properties
        if not line.startswith("directory.id")
    ]
    (controller / META_PROPERTIES_FILE).write_text("\n".join(lines) + "\n")
    report = attest(HERE, [*roots, controller], OPTIONS)
    assert [each.broker for each in report.attested] == [2]
    assert markers([*roots, controller]) == [*EPOCHS.values(), None]
