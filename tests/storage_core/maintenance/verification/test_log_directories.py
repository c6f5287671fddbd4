"""Several log directories of one broker, files that vanish, files of another user."""

import os
import shutil
from pathlib import Path

import pytest

from storage_core.catalog.roles import Role
from storage_core.errors import StorageError
from storage_core.filenames import META_PROPERTIES_FILE, PARTITION_METADATA_FILE
from storage_core.local_files import scan_folder
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.files import check_folders, check_rights, sort_files
from storage_core.maintenance.verification.findings import (
    BrokerUser,
    Code,
    DirectoryContext,
    Severity,
    VerifyOptions,
)
from storage_core.maintenance.verification.log_directories import verify_log_directories
from storage_core.maintenance.verification.partition import verify_segment
from storage_core.store import LocalStore
from storage_core.store.local import LocalFileReader
from tests.kit.builders import encode_batch
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.start_accidents import ACCIDENTS_OF_OWNERS, FIRST, LAST, SECOND, Disks
from tests.storage_core.maintenance.verification.log_root import NOW_MS, PARTITION, batch, log_root


def found_in(*paths: Path, role: Role = Role.BROKER) -> list:
    _, placed = verify_log_directories([(str(path), role) for path in paths])
    return placed


def codes(placed) -> set[Code]:
    return {entry.finding.code for entry in placed}


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two log directories of one broker, with one partition each."""
    one, other = log_root(tmp_path / "one"), log_root(tmp_path / "other")
    other.partition.rename(other.path / "t-1")
    for path in other.path.glob("*checkpoint"):
        path.unlink()
    return one.path, other.path


def test_two_directories_of_one_broker_agree(two):
    assert found_in(*two) == []


@pytest.mark.item("DIR-09")
def test_a_partition_in_two_directories_is_fatal_and_both_are_named(two):
    (two[1] / "t-1").rename(two[1] / "t-0")
    [placed] = found_in(*two)
    assert (placed.finding.code, placed.finding.severity) == (
        Code.PARTITION_DUPLICATE,
        Severity.FATAL,
    )
    assert placed.partition == PARTITION
    assert all(str(path / "t-0") in placed.finding.message for path in two)


def test_a_partition_and_the_copy_that_a_move_makes_are_no_duplicates(two):
    name = "t-0.0123456789abcdef0123456789abcdef-future"
    (two[1] / "t-1").rename(two[1] / name)
    assert codes(found_in(*two)) == {Code.DIRECTORY_FUTURE}


def test_the_same_partition_of_two_brokers_is_no_duplicate(two):
    (two[1] / "t-1").rename(two[1] / "t-0")
    (two[1] / META_PROPERTIES_FILE).write_text(
        "version=1\nnode.id=2\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n"
    )
    assert codes(found_in(*two)) == {Code.DIRECTORIES_INCONSISTENT}


@pytest.mark.item("DIR-11")
@pytest.mark.parametrize(
    "text",
    [
        "version=1\nnode.id=2\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n",
        "version=1\nnode.id=1\ncluster.id=3BBfqQbWRHy_3kC4SIuLMw\n",
    ],
    ids=["another node", "another cluster"],
)
def test_directories_of_several_owners_are_fatal_and_in_copies_a_warning(two, text):
    (two[1] / META_PROPERTIES_FILE).write_text(text)
    for role, severity in ((Role.BROKER, Severity.FATAL), (Role.MIRROR, Severity.WARN)):
        [placed] = found_in(*two, role=role)
        assert placed.finding.code is Code.DIRECTORIES_INCONSISTENT
        assert placed.finding.severity is severity


@pytest.mark.item("DIR-10")
def test_partitions_of_one_topic_with_two_ids_are_an_error(two):
    other = "version: 0\ntopic_id: 4CCfqQbWRHy_3kC4SIuLMw"
    (two[1] / "t-1" / PARTITION_METADATA_FILE).write_text(other)
    [placed] = found_in(*two)
    assert placed.finding.code is Code.TOPIC_ID_INCONSISTENT
    (two[1] / "t-1" / PARTITION_METADATA_FILE).unlink()
    assert found_in(*two) == []


@pytest.mark.item("DIR-05", "DIR-06", "DIR-08")
def test_what_is_no_log_is_named_and_not_looked_into(tmp_path):
    root = log_root(tmp_path / "log")
    unique = "0123456789abcdef0123456789abcdef"
    for name in ("remote-log-index-cache", "lost+found", f"t-3.{unique}-delete"):
        (root.path / name).mkdir()
    shutil.copytree(root.partition, root.path / f"t-4.{unique}-stray")
    observed, placed = verify_log_directories([(str(root.path), Role.BROKER)])
    assert {entry.finding.file: entry.finding.code for entry in placed} == {
        "lost+found": Code.DIRECTORY_FOREIGN,
        f"t-3.{unique}-delete": Code.DIRECTORY_DELETED,
        f"t-4.{unique}-stray": Code.DIRECTORY_STRAY,
    }
    assert root.codes(Severity.FATAL) == {Code.DIRECTORY_FOREIGN}
    assert len(observed[0].entries) == 5


def test_a_directory_that_cannot_be_listed_is_an_error(tmp_path):
    with pytest.raises(StorageError, match="no-such"):
        verify_log_directories([(str(tmp_path / "no-such"), Role.BROKER)])


@pytest.mark.item("CKP-05")
def test_a_broken_checkpoint_is_told_and_the_others_still_count(tmp_path):
    root = log_root(tmp_path / "log")
    for text in ("0\n1\nt 0\n", "0\n2\nt 0 7\n", "9\n0\n", "0\n1\nt 0 x\n"):
        (root.path / "recovery-point-offset-checkpoint").write_text(text)
        observed, placed = verify_log_directories([(str(root.path), Role.BROKER)])
        [found] = placed
        assert found.finding.code is Code.CHECKPOINT_BROKEN
        assert found.finding.file == "recovery-point-offset-checkpoint"
        said = observed[0].checkpoints_of(PARTITION)
        assert (said.recovery_point, said.high_watermark) == (None, 40)
        assert (root.path / "recovery-point-offset-checkpoint").read_text() == text


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize(("is_live", "severity"), [(False, Severity.WARN), (True, Severity.INFO)])
def test_a_file_that_vanishes_between_listing_and_reading_is_told(
    tmp_path, suffix, is_live, severity
):
    root = log_root(tmp_path / "log")
    store = LocalStore(root.partition)
    segment = sort_files(store.list_files()).segments[2]
    root.file(20, suffix).unlink()
    options = VerifyOptions(now_ms=NOW_MS, is_live=is_live)
    _, found = verify_segment(
        store, segment, DirectoryContext(role=Role.BROKER, is_clean=True), options
    )
    gone = [f for f in found if f.code is Code.CHANGED_WHILE_READ]
    assert [(f.file, f.severity) for f in gone] == [(root.file(20, suffix).name, severity)]


@pytest.mark.item("FLT-15")
@pytest.mark.parametrize(("is_live", "severity"), [(False, Severity.WARN), (True, Severity.INFO)])
def test_a_file_that_grew_since_it_was_listed_is_told_and_read_to_where_it_was_opened(
    tmp_path, is_live, severity
):
    root = log_root(tmp_path / "log")
    store = LocalStore(root.partition)
    segment = sort_files(store.list_files()).segments[3]
    listed = segment.log.size_bytes
    with root.file(30).open("ab") as file:
        file.write(encode_batch(batch(40, leader_epoch=3)))
    options = VerifyOptions(now_ms=NOW_MS, is_live=is_live)
    facts, found = verify_segment(
        store, segment, DirectoryContext(role=Role.BROKER, is_clean=False), options
    )
    grown = [f for f in found if f.code is Code.CHANGED_WHILE_READ]
    assert [(f.file, f.severity) for f in grown] == [(root.file(30).name, severity)]
    assert f"grew from {listed} to {root.file(30).stat().st_size} bytes" in grown[0].message
    assert (facts.size_bytes, facts.last_offset) == (root.file(30).stat().st_size, 44)


class _ShrinkingStore(LocalStore):
    """A store whose files had more bytes when they were opened than they have now."""

    def open_file(self, name: str) -> LocalFileReader:
        reader = super().open_file(name)
        reader.size_bytes += 100
        return reader


@pytest.mark.parametrize(("is_live", "severity"), [(False, Severity.WARN), (True, Severity.INFO)])
def test_a_file_that_is_cut_while_it_is_read_is_told(tmp_path, is_live, severity):
    root = log_root(tmp_path / "log")
    store = _ShrinkingStore(root.partition)
    options = VerifyOptions(now_ms=NOW_MS, is_live=is_live)
    context = DirectoryContext(role=Role.BROKER, is_clean=True)
    segment = sort_files(store.list_files()).segments[3]
    facts, found = verify_segment(store, segment, context, options)
    assert [(f.code, f.severity) for f in found] == [(Code.CHANGED_WHILE_READ, severity)]
    assert facts.last_offset == 39


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_an_error(tmp_path):
    root = log_root(tmp_path / "log")
    root.file(20).chmod(0)
    assert Code.FILE_UNREADABLE in root.codes(Severity.ERROR)


def test_verification_changes_nothing(tmp_path):
    root = log_root(tmp_path / "log")
    root.change(root.file(20), -1, b"\x55")

    def state() -> list:
        return sorted((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*"))

    before = state()
    root.findings(is_deep=True)
    assert state() == before


def test_a_log_that_ends_behind_the_last_offset_there_is_has_its_folders_checked():
    findings = FindingCollector()
    check_folders(
        ["leader-epoch-checkpoint"], sort_files([]), log_end_offset=2**63, findings=findings
    )
    assert [each.code for each in findings.findings()] == [Code.FILE_IS_FOLDER]


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
