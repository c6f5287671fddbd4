"""A whole log directory has no finding; each accident has its own, and no worse one."""

from pathlib import Path

import pytest

from storage_core.catalog.roles import Role
from storage_core.filenames import RECOVERY_POINT_FILE, REPLICATION_FILE
from storage_core.maintenance.verification.finding_kinds import KINDS
from storage_core.maintenance.verification.findings import Code, Severity
from storage_core.maintenance.verification.log_directories import verify_log_directories
from storage_core.records import checked_headers
from tests.storage_core.maintenance.verification.accidents import ACCIDENTS, DEEP, FOLLOWING
from tests.storage_core.maintenance.verification.log_root import LogRoot, log_root

# Contradictions between several directories or with the cluster's metadata, links, full disks, and
# files that vanish meanwhile, have their own tests.
ELSEWHERE = {
    Code.PARTITION_DUPLICATE,
    Code.PARTITION_LINKED,
    Code.PARTITION_STRAYED,
    Code.PARTITION_ABSENT,
    Code.FUTURE_ALONE,
    Code.FUTURE_PROMOTED,
    Code.FUTURE_BESIDE_LOG,
    Code.DIRECTORIES_INCONSISTENT,
    Code.NODE_ID_WRONG,
    Code.CLUSTER_METADATA_BROKEN,
    Code.BOOTSTRAP_SNAPSHOT_CUT,
    Code.COORDINATOR_NOT_LOADED,
    Code.COORDINATOR_RECORD_IGNORED,
    Code.CLUSTER_METADATA_CUT,
    Code.TIERED_EPOCHS_MISSING,
    Code.FEATURE_LEVEL_UNKNOWN,
    Code.QUORUM_STATE_BROKEN,
    Code.TOPIC_CONFIG_REFUSED,
    Code.BROKER_CONFIG_IGNORED,
    Code.LOG_DIRECTORY_ABSENT,
    Code.DISK_FULL,
    Code.CHANGED_WHILE_READ,
    Code.FILE_FORBIDDEN,
    Code.LOG_DIRECTORY_FORBIDDEN,
    # Of a tier; see test_tier.py.
    *(code for code in Code if code.name.startswith("TIER_")),
}


@pytest.fixture
def root(tmp_path: Path) -> LogRoot:
    return log_root(tmp_path / "log")


@pytest.mark.parametrize("is_deep", [False, True], ids=["headers", "deep"])
def test_nothing_is_found_in_a_log_directory_that_is_whole(root, is_deep):
    assert root.findings(is_deep=is_deep) == []


@pytest.mark.sampled(38)
@pytest.mark.item("IDX-17", "IDX-21", "SEG-03", "SEG-04", "CKP-14", "FMT-28")
@pytest.mark.parametrize("code", sorted(set(ACCIDENTS) - ELSEWHERE))
def test_an_accident_is_found_with_its_code_and_severity(root, code):
    ACCIDENTS[code](root)
    everything = root.findings(is_deep=code in DEEP)
    found = [f for f in everything if f.code is code]
    assert found
    bad = {f.code for f in everything if f.severity.rank >= Severity.WARN.rank}
    assert bad - {code} <= FOLLOWING.get(code, set())
    expected = Severity.ERROR if code is Code.ZERO_TAIL else KINDS[code].severity
    # The directory says that it was cleanly shut down, and where the log ended.
    if code in {Code.TORN_TAIL, Code.NO_SEGMENT}:
        expected = Severity.ERROR
    assert {f.severity for f in found} == {expected}
    assert all(f.message for f in found)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("code", sorted(set(ACCIDENTS) - ELSEWHERE - DEEP))
def test_threads_find_the_same(root, code, monkeypatch):
    monkeypatch.setattr(checked_headers, "_STRETCH_BYTES", 300)
    ACCIDENTS[code](root)
    assert root.findings(threads=3) == root.findings()


def test_every_code_has_an_accident():
    assert set(ACCIDENTS) | ELSEWHERE == set(Code)


def test_every_code_says_what_it_means_and_what_to_do():
    assert set(KINDS) == set(Code)
    for code, kind in KINDS.items():
        assert code.value == code.name
        assert kind.meaning.endswith(".")
        assert kind.fix


def test_a_young_broker_has_no_high_watermarks_yet(root):
    """It makes the file without a byte, and no log has a recovery point then."""
    (root.path / REPLICATION_FILE).write_bytes(b"")
    (root.path / RECOVERY_POINT_FILE).write_bytes(b"")
    _, placed = verify_log_directories([(str(root.path), Role.BROKER)])
    assert Code.HIGH_WATERMARKS_UNKNOWN not in {each.finding.code for each in placed}
