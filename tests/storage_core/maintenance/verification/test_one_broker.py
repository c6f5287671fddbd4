"""What the cluster's metadata says of a broker's log directories; a real broker did each of it."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.catalog.metadata_image import ResourceType
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.maintenance.verification import findings, one_broker
from storage_core.maintenance.verification.log_directories import verify_log_directories
from storage_core.maintenance.verification.observed_root import ObservedRoot, Start
from storage_core.store.local import LocalStore
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.one_partition import verify_partition
from tests.kit.start_accidents import (
    ACCIDENTS,
    DELETE,
    FUTURE,
    METADATA,
    OTHER_ID,
    Disks,
    append_metadata,
    config_record,
)

ARCHIVE = GOLDEN / "two-disks" / "before.tar.gz"
META_CODES = {
    findings.Code.META_PROPERTIES_MISSING,
    findings.Code.META_PROPERTIES_BROKEN,
    findings.Code.META_PROPERTIES_INCOMPLETE,
}
LEAST = findings.Severity.WARN.rank


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(unpack_archive(ARCHIVE, tmp_path))


def look(*paths: Path) -> tuple[list[ObservedRoot], list[str]]:
    """Return the directories, and "CODE partition severity" of what is a warning or worse."""
    roots, placed = verify_log_directories([(str(path), Role.BROKER) for path in paths])
    return roots, [
        f"{entry.finding.code.value} {entry.partition or '-'} {entry.finding.severity.value}"
        for entry in placed
        if entry.finding.severity.rank >= LEAST
    ]


def fates(roots: list[ObservedRoot]) -> dict[str, Start]:
    return {Path(path).name: fate for root in roots for path, fate in root.fates.items()}


# The broker registered the ids of both.
ABSENT = "LOG_DIRECTORY_ABSENT __cluster_metadata-0 warn"


def test_nothing_is_found_in_both_directories_nor_in_the_one_without_metadata(disks):
    for paths in (disks.roots, [disks.last]):
        roots, found = look(*paths)
        assert found == []
        assert fates(roots) == {}


def test_the_partitions_of_a_directory_that_was_not_named_may_be_made_anew(disks):
    moved = {path.name for path in disks.last.iterdir() if path.is_dir()}
    roots, found = look(disks.first)
    assert found == [ABSENT]
    assert [root.absent_directories for root in roots] == [1]
    assert fates(roots) == dict.fromkeys(moved, Start.CREATED)


@pytest.mark.parametrize(
    ("accident", "found"),
    [
        ("config-refused", "topic orders: segment.bytes=1024: must be at least 1048576"),
        ("config-refused-no-folder", "topic quiet: segment.bytes=1024: must be at least 1048576"),
    ],
)
def test_a_topic_config_that_a_broker_refuses_stops_it(disks, accident, found):
    ACCIDENTS[accident](disks)
    _, placed = verify_log_directories([(str(root), Role.BROKER) for root in disks.roots])
    [finding] = [e.finding for e in placed if e.finding.code is findings.Code.TOPIC_CONFIG_REFUSED]
    assert (finding.severity, finding.message) == (findings.Severity.FATAL, found)


@pytest.mark.parametrize(
    ("accident", "expected"),
    [
        ("config-unknown", []),
        ("cordoned", []),
        (
            "config-default-refused",
            [
                (
                    "warn",
                    "log.segment.bytes=1024: must be at least 1048576: Kafka ignores this value",
                )
            ],
        ),
        (
            "config-default-contradicts",
            [
                (
                    "error",
                    (
                        "log.roll.ms=0: must be at least 1: Kafka drops every dynamic config "
                        "of this broker with it"
                    ),
                )
            ],
        ),
        (
            "cordoned-dropped",
            [
                (
                    "warn",
                    (
                        "cordoned.log.dirs={last}: not in log.dirs: {last}: Kafka drops every "
                        "dynamic config of this broker with it, if log.dirs has only what was named"
                    ),
                )
            ],
        ),
    ],
)
def test_dynamic_configs_that_a_broker_ignores_are_found(disks, accident, expected):
    last = disks.last
    ACCIDENTS[accident](disks)
    _, placed = verify_log_directories([(str(root), Role.BROKER) for root in disks.roots])
    found = [e.finding for e in placed if e.finding.code is findings.Code.BROKER_CONFIG_IGNORED]
    texts = [(severity, text.format(last=last)) for severity, text in expected]
    assert [(each.severity, each.message) for each in found] == texts


def of_release(disks: Disks, release: str, *codes: findings.Code) -> list[str]:
    """Return what is found for a release of Kafka that is to start."""
    roots = [(str(root), Role.BROKER) for root in disks.roots]
    _, placed = verify_log_directories(roots, release=release)
    return [e.finding.message for e in placed if e.finding.code in codes]


@pytest.mark.parametrize(("release", "least"), [("3.9", 14), ("4.0", 14), ("4.1", 1048576)])
@pytest.mark.parametrize("size", [13, 1024])
def test_a_release_refuses_what_it_does_not_take_itself(disks, release, least, size):
    append_metadata(
        disks[METADATA].parent,
        config_record(ResourceType.TOPIC, "orders", "segment.bytes", str(size)),
    )
    refused = f"topic orders: segment.bytes={size}: must be at least {least}"
    found = of_release(disks, release, findings.Code.TOPIC_CONFIG_REFUSED)
    assert found == ([refused] if size < least else [])


def test_a_release_ignores_a_brokers_key_that_came_later(disks):
    ACCIDENTS["cordoned"](disks)
    for release, keys in (("4.2", ["cordoned.log.dirs"]), ("4.3", [])):
        found = of_release(disks, release, findings.Code.BROKER_CONFIG_IGNORED)
        assert [each.partition("=")[0] for each in found] == keys
        assert all(f"Kafka {release} does not know this key" in each for each in found)


def test_a_release_before_that_of_the_metadata_does_not_start(disks):
    found = of_release(disks, "4.1", findings.Code.FEATURE_LEVEL_UNKNOWN)
    assert "metadata.version is at level 33, Kafka 4.1 knows 7 to 27" in found
    assert "streams.version is at level 1, Kafka 4.1 knows 0 to 0" in found
    assert of_release(disks, "4.4", findings.Code.FEATURE_LEVEL_UNKNOWN) == []


def test_a_controller_alone_applies_no_config(disks):
    ACCIDENTS["config-refused"](disks)
    for root in disks.roots:
        path = root / "meta.properties"
        lines = path.read_text().replace("node.id=1", "node.id=9").splitlines()
        # No broker has registered its directories.
        path.write_text("\n".join(each for each in lines if "directory.id" not in each))
    assert not [said for said in look(*disks.roots)[1] if "TOPIC_CONFIG_REFUSED" in said]


@pytest.mark.parametrize(
    ("free", "inodes", "is_clean", "expected"),
    [
        (0, 9, True, ["DISK_FULL - fatal"]),
        (9, 0, True, ["DISK_FULL - fatal"]),
        (1, 9, True, ["DISK_FULL - warn"]),
        (1, 9, False, ["DISK_FULL - error"]),
        (1 << 20, 9, False, []),
    ],
)
def test_a_disk_needs_room_for_a_start(disks, monkeypatch, free, inodes, is_clean, expected):
    facts = os.statvfs(disks.first)
    values = [*facts]
    values[4], values[5], values[7] = free, 1000, inodes  # f_bavail, f_files, f_favail
    values[1] = 1  # f_frsize
    monkeypatch.setattr(one_broker.os, "statvfs", lambda _: os.statvfs_result(values))
    if not is_clean:
        ACCIDENTS["marker-missing"](disks)
    assert look(*disks.roots)[1] == expected * 2


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("accident", "expected", "expected_fates"),
    [
        ("topic-id-other", ["TOPIC_ID_INCONSISTENT orders-0 error"], {"orders-0": Start.STRAYED}),
        ("topic-id-missing", ["PARTITION_STRAYED orders-0 error"], {"orders-0": Start.STRAYED}),
        (
            "topic-id-missing-quiet",
            ["PARTITION_STRAYED __consumer_offsets-1 warn"],
            {"__consumer_offsets-1": Start.STRAYED},
        ),
        ("partition-unknown", ["PARTITION_STRAYED orders-7 error"], {"orders-7": Start.STRAYED}),
        ("topic-unknown", ["PARTITION_STRAYED gone-0 error"], {"gone-0": Start.STRAYED}),
        ("future-alone", ["FUTURE_ALONE orders-0 error"], {f"orders-0{FUTURE}": Start.EMPTIED}),
        ("future-alone-here", [], {}),
        ("future-beside", [], {}),
        ("future-assigned", ["FUTURE_PROMOTED orders-0 warn"], {"orders-0": Start.DELETED}),
        ("absent", ["PARTITION_ABSENT orders-1 error"], {"orders-1": Start.CREATED}),
        ("linked", ["PARTITION_LINKED orders-0 warn"], {"orders-0": Start.UNKNOWN}),
        ("moved-to-other-disk", [], {}),
        ("duplicate", ["PARTITION_DUPLICATE orders-0 fatal"], {}),
        ("metadata-twice", ["PARTITION_DUPLICATE __cluster_metadata-0 fatal"], {}),
        ("quorum-empty", ["QUORUM_STATE_BROKEN __cluster_metadata-0 fatal"], {}),
        ("metadata-snapshot-garbage", ["CLUSTER_METADATA_BROKEN __cluster_metadata-0 fatal"], {}),
        ("metadata-snapshot-torn", [], {}),
        ("metadata-snapshot-empty", [], {}),
        ("future-same-directory", ["FUTURE_BESIDE_LOG orders-0 fatal"], {}),
        ("future-same-elsewhere", ["FUTURE_BESIDE_LOG orders-0 warn"], {}),
        ("disks-merged", ["FUTURE_BESIDE_LOG events-0 warn"], {}),
    ],
)
def test_the_clusters_metadata_decides(disks, accident, expected, expected_fates):
    ACCIDENTS[accident](disks)
    roots, found = look(*disks.roots)
    assert found == expected
    assert fates(roots) == expected_fates


def test_with_one_directory_the_partition_of_another_topic_is_named_as_well(disks):
    ACCIDENTS["topic-id-other"](disks)
    roots, found = look(disks.first)
    assert found == ["TOPIC_ID_INCONSISTENT orders-0 error", ABSENT]
    assert fates(roots)["orders-0"] is Start.STRAYED


def test_without_metadata_nobody_is_set_aside(disks):
    """Nobody knows whose the logs are; two ids of one topic contradict each other all the same."""
    ACCIDENTS["topic-id-other"](disks)
    shutil.rmtree(disks.first / "__cluster_metadata-0")
    roots, found = look(*disks.roots)
    [said] = found
    assert said.startswith("TOPIC_ID_INCONSISTENT ")
    assert said.endswith(" error")
    assert fates(roots) == {}


def test_metadata_that_are_in_no_directory_are_missed_where_logs_are(disks):
    def lacks(*paths: Path) -> list[bool]:
        return [root.lacks_metadata for root in look(*paths)[0]]

    assert lacks(*disks.roots) == [False, False]
    assert lacks(disks.last) == [True]
    (disks.first / "__cluster_metadata-0" / "quorum-state").write_bytes(b"")
    assert lacks(*disks.roots) == [False, False]
    shutil.rmtree(disks.first / "__cluster_metadata-0")
    assert lacks(*disks.roots) == [True, True]
    for path in disks.base.glob("d[0-9]/*/*.log"):
        path.write_bytes(b"")
    assert lacks(*disks.roots) == [False, False]


def test_a_link_that_the_metadata_give_to_nobody_is_set_aside(disks):
    """A broker renames the link itself; what lies behind it only says whether the id is right."""
    ACCIDENTS["linked"](disks)
    (disks.first / "orders-0").rename(disks.first / "orders-7")
    roots, found = look(*disks.roots)
    assert "PARTITION_STRAYED orders-7 error" in found
    assert fates(roots) == {"orders-7": Start.STRAYED, "orders-0": Start.CREATED}


def test_metadata_behind_a_link_are_not_missed(disks):
    ACCIDENTS["linked-metadata"](disks)
    assert not any(root.lacks_metadata for root in look(*disks.roots)[0])


@pytest.mark.parametrize(
    ("accident", "severities"),
    [
        ("topic-id-folder", ["fatal"]),
        ("epochs-folder", ["fatal"]),
        ("quorum-folder", ["fatal"]),
        ("txnindex-folder-closed", ["fatal"]),
        ("timeindex-folder-last", ["fatal"]),
        ("index-folder", ["error"]),
        ("producers-folder", ["fatal"]),
        ("folder-as-log", []),
        ("folder-in-partition", []),
    ],
)
def test_a_folder_in_the_place_of_a_file_stops_who_opens_it(disks, accident, severities):
    ACCIDENTS[accident](disks)
    options = findings.VerifyOptions(now_ms=0)
    context = findings.DirectoryContext(role=Role.BROKER, is_clean=True)
    found = [
        finding.severity.value
        for path in sorted(disks.base.glob("d[0-9]/*-[0-9]"))
        for finding in verify_partition(LocalStore(path), context, options, PartitionCheckpoints())[
            1
        ]
        if finding.code is findings.Code.FILE_IS_FOLDER
    ]
    assert found == severities


def test_the_marker_of_a_clean_shutdown_may_be_an_empty_folder(disks):
    """A broker asks only whether it is there, and removes it."""
    ACCIDENTS["marker-folder"](disks)
    roots, found = look(*disks.roots)
    assert found == []
    assert [root.context.is_clean for root in roots] == [True, True]
    (disks.last / ".kafka_cleanshutdown" / "notes.txt").write_bytes(b"mine")
    assert look(*disks.roots)[1] == ["FILE_IS_FOLDER - fatal"]


def test_a_partition_whose_id_is_a_folder_is_not_judged_by_the_metadata(disks):
    ACCIDENTS["topic-id-folder"](disks)
    assert fates(look(*disks.roots)[0]) == {}


@pytest.mark.parametrize("accident", ["meta-v0-all", "meta-new-directory-id"])
def test_a_broken_link_is_no_partition_whatever_ids_the_directories_have(disks, accident):
    ACCIDENTS["linked-broken-last"](disks)
    ACCIDENTS[accident](disks)
    roots, found = look(*disks.roots)
    assert "PARTITION_ABSENT events-0 fatal" in found
    # The broker takes the directory offline, and makes an empty log in the other one.
    assert "PARTITION_ABSENT events-0 error" in found
    assert roots[0].fates == {str(disks.first / "events-0"): Start.CREATED}


def test_an_absent_partition_is_made_anew_where_the_ids_of_directories_are_lost(disks):
    """With fewest logs: a broker that finds no assigned directory looks no further."""
    ACCIDENTS["absent"](disks)
    ACCIDENTS["meta-v0-all"](disks)
    roots, found = look(*disks.roots)
    assert "PARTITION_ABSENT orders-1 error" in found
    assert fates(roots) == {"orders-1": Start.CREATED}
    assert look(disks.first)[1] == [ABSENT]


def test_partitions_in_a_directory_that_was_not_named_are_not_missed(disks):
    shutil.rmtree(disks["orders-1"])
    assert look(disks.first)[1] == [ABSENT]
    assert look(*disks.roots)[1] == ["PARTITION_ABSENT orders-1 error"]


def test_a_directory_marked_for_deletion_is_no_partition(disks):
    shutil.copytree(disks["orders-0"], disks.first / f"orders-0{DELETE}")
    assert look(*disks.roots)[1] == []


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({}, "it is a preview's"),
        ({"metadata.version": 6}, "Kafka 4.4 knows 7 to 33"),
        ({"metadata.version": 34}, "Kafka 4.4 knows 7 to 33"),
        ({"metadata.version": 33, "other.version": 1}, "knows no such feature"),
    ],
)
def test_metadata_of_a_version_that_no_broker_starts_with_is_fatal(
    disks, monkeypatch, levels, message
):
    """Kafka 4.4 on the first of these: Unknown metadata version."""
    read = one_broker.read_cluster_metadata

    def read_other(path: Path, **options: bool) -> ClusterMetadata:
        return replace(read(path, **options), feature_levels=levels)

    monkeypatch.setattr(one_broker, "read_cluster_metadata", read_other)
    _, placed = verify_log_directories([(str(root), Role.BROKER) for root in disks.roots])
    [found] = [
        entry.finding for entry in placed if entry.finding.severity is findings.Severity.FATAL
    ]
    assert found.code is findings.Code.FEATURE_LEVEL_UNKNOWN
    assert message in found.message


def properties_fix(path: Path, *paths: Path) -> str:
    """Return what is said about the lost meta.properties of a directory."""
    _, placed = verify_log_directories([(str(each), Role.BROKER) for each in paths])
    [fix] = [
        entry.finding.fix
        for entry in placed
        if entry.root == str(path) and entry.finding.code in META_CODES
    ]
    return fix


def fields_of(path: Path) -> list[str]:
    lines = (path / "meta.properties").read_text().splitlines()
    return sorted(line for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("accident", ["meta-empty", "meta-garbage", "meta-missing"])
def test_the_line_that_writes_lost_properties_again_writes_what_they_were(disks, accident, which):
    path = getattr(disks, which)
    before = fields_of(path)
    ACCIDENTS[f"{accident}-{which}"](disks)
    fix = properties_fix(path, *disks.roots)
    _, _, line = fix.partition("write it again, as the broker's user: ")
    subprocess.run(["/bin/sh", "-c", line], check=True)  # it is to be pasted
    assert fields_of(path) == before
    assert (path / "meta.properties.broken").exists() == (accident == "meta-garbage")
    assert look(*disks.roots)[1] == []


def test_lost_properties_have_no_line_where_nobody_says_them(disks):
    ACCIDENTS["meta-missing-last"](disks)
    assert properties_fix(disks.last, disks.last) == ""
    shutil.rmtree(disks.first / "__cluster_metadata-0")
    fix = properties_fix(disks.last, *disks.roots)
    assert "directory.id=" not in fix
    assert "give the log directory with the cluster's metadata" in fix
    (disks.first / "meta.properties").unlink()
    assert properties_fix(disks.last, *disks.roots) == ""


def test_what_is_no_file_is_not_written_over(disks):
    ACCIDENTS["meta-folder-last"](disks)
    assert properties_fix(disks.last, *disks.roots) == ""


def test_of_several_free_ids_that_of_the_partitions_is_taken_else_all_are_named(disks, monkeypatch):
    read = one_broker.read_cluster_metadata

    def read_other(path: Path, **options: bool) -> ClusterMetadata:
        metadata = read(path, **options)
        node = metadata.brokers[1]
        ids = (*node.log_directories, OTHER_ID)
        return replace(metadata, brokers={1: replace(node, log_directories=ids)})

    monkeypatch.setattr(one_broker, "read_cluster_metadata", read_other)
    [own] = [line for line in fields_of(disks.last) if line.startswith("directory.id=")]
    ACCIDENTS["meta-missing-last"](disks)
    assert f" {own} > " in properties_fix(disks.last, *disks.roots)
    for path in disks.last.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    fix = properties_fix(disks.last, *disks.roots)
    assert " directory.id=ID > " in fix
    both = ", ".join(sorted([own.removeprefix("directory.id="), OTHER_ID]))
    assert f"; ID is the one of {both} that no other log directory of the broker has" in fix


def test_a_quorum_that_has_not_begun_needs_all_of_its_snapshot(disks):
    assert not [said for said in look(*disks.roots)[1] if "BOOTSTRAP_SNAPSHOT_CUT" in said]
    ACCIDENTS["metadata-unstarted"](disks)
    assert not [said for said in look(*disks.roots)[1] if "BOOTSTRAP_SNAPSHOT_CUT" in said]
    snapshot = disks[METADATA] / f"{0:020d}-{0:010d}.checkpoint"
    for size in (snapshot.stat().st_size - 7, 20):
        snapshot.write_bytes(snapshot.read_bytes()[:size])
        found = look(*disks.roots)[1]
        assert f"BOOTSTRAP_SNAPSHOT_CUT {METADATA} error" in found
    # A broker ends where not even the magic of its first batch is left.
    snapshot.write_bytes(snapshot.read_bytes()[:5])
    assert f"CLUSTER_METADATA_BROKEN {METADATA} fatal" in look(*disks.roots)[1]


def test_without_the_metadata_a_copy_beside_its_log_may_end_the_start(disks):
    ACCIDENTS["future-same-directory"](disks)
    shutil.rmtree(disks[METADATA])
    assert "FUTURE_BESIDE_LOG orders-0 error" in look(*disks.roots)[1]


def test_an_edited_node_id_is_one_finding_a_directory_and_sets_no_log_aside(disks):
    for root in disks.roots:
        path = root / "meta.properties"
        path.write_text(path.read_text().replace("node.id=1", "node.id=7"))
    roots, found = look(*disks.roots)
    assert found == ["NODE_ID_WRONG - fatal"] * 2
    assert fates(roots) == {}


def test_of_two_copies_that_differ_none_decides(disks):
    ACCIDENTS["metadata-twice"](disks)
    (log,) = (disks.last / "__cluster_metadata-0").glob("*.log")
    log.write_bytes(log.read_bytes()[:-1])
    roots, found = look(*disks.roots)
    assert "PARTITION_DUPLICATE __cluster_metadata-0 fatal" in found
    assert not any(root.has_metadata for root in roots)
