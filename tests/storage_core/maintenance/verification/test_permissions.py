"""What the broker's user may not open is found, whoever looks; a real broker did each of it."""

import os
from pathlib import Path

import pytest

from storage_core.catalog.roles import Role
from storage_core.local_files import scan_folder
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.files import check_rights
from storage_core.maintenance.verification.findings import BrokerUser, Code
from storage_core.maintenance.verification.log_directories import verify_log_directories
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.start_accidents import ACCIDENTS_OF_OWNERS, FIRST, LAST, SECOND, Disks

ARCHIVE = GOLDEN / "two-disks" / "before.tar.gz"
NOBODY = 65534
CODES = {Code.FILE_FORBIDDEN, Code.LOG_DIRECTORY_FORBIDDEN}


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(unpack_archive(ARCHIVE, tmp_path / "disks"))


def forbidden(directory: Path, user: int) -> list[str]:
    findings = FindingCollector()
    entries = scan_folder(directory)
    check_rights(entries, BrokerUser(user), last_base=int(LAST), findings=findings)
    assert {finding.code for finding in findings.findings()} <= {Code.FILE_FORBIDDEN}
    return [finding.file for finding in findings.findings()]


@pytest.mark.parametrize(
    ("name", "mode", "is_open"),
    [
        (f"{SECOND}.log", 0o644, False),
        (f"{SECOND}.log", 0o664, True),  # of a group that the user may be in
        (f"{SECOND}.log", 0o666, True),
        (f"{SECOND}.index", 0o644, True),
        (f"{SECOND}.index", 0o600, False),
        (f"{LAST}.timeindex", 0o644, False),
        (f"{130:020d}.snapshot", 0o600, False),
        ("leader-epoch-checkpoint", 0o644, True),
        ("partition.metadata", 0o600, False),
        ("notes.txt", 0o600, True),
    ],
)
def test_a_file_of_another_user_is_open_as_far_as_a_start_opens_it(disks, name, mode, is_open):
    directory = disks["events-0"]
    (directory / "notes.txt").touch()
    for path in directory.iterdir():
        path.chmod(0o666)
    (directory / name).chmod(mode)
    assert forbidden(directory, os.getuid() + 1) == ([] if is_open else [name])


def test_the_owner_needs_rights_and_root_none(disks):
    directory = disks["events-0"]
    (directory / f"{FIRST}.log").chmod(0o466)
    assert forbidden(directory, 0) == []
    if os.getuid() != 0:
        assert forbidden(directory, os.getuid()) == [f"{FIRST}.log"]


def test_nothing_is_forbidden_where_all_is_one_users(disks):
    roots, placed = verify_log_directories([(str(root), Role.BROKER) for root in disks.roots])
    assert not CODES & {entry.finding.code for entry in placed}
    assert all((root.context.user is None) == (os.getuid() == 0) for root in roots)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(
    ("accident", "code", "file"),
    [
        ("owner-root", Code.LOG_DIRECTORY_FORBIDDEN, ""),
        ("owner-root-unreadable", Code.FILE_FORBIDDEN, ""),
        ("owner-partition", Code.FILE_FORBIDDEN, "events-0"),
        ("owner-lock", Code.FILE_FORBIDDEN, ".lock"),
        ("owner-meta", None, ""),
        ("owner-meta-unreadable", Code.FILE_FORBIDDEN, "meta.properties"),
        ("owner-recovery-unreadable", Code.FILE_FORBIDDEN, "recovery-point-offset-checkpoint"),
        ("owner-marker", None, ""),
    ],
)
def test_what_root_took_of_a_log_directory_is_found(disks, accident, code, file):
    disks.give_to(NOBODY)
    ACCIDENTS_OF_OWNERS[accident](disks)
    roots, placed = verify_log_directories([(str(root), Role.BROKER) for root in disks.roots])
    found = [(e.root, e.finding.code, e.finding.file) for e in placed if e.finding.code in CODES]
    assert found == ([] if code is None else [(str(disks.last), code, file)])
    assert [root.context.user for root in roots] == [BrokerUser(NOBODY)] * 2
