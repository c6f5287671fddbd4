"""What the cluster's metadata says of a broker's log directories; a real broker did each of it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.catalog.roles import Role
from storage_core.maintenance.verification import one_broker
from storage_core.maintenance.verification.findings import Code, Severity
from storage_core.maintenance.verification.log_directories import verify_log_directories
from storage_core.maintenance.verification.observed_root import ObservedRoot, Start
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.start_accidents import ACCIDENTS, DELETE, FUTURE, Disks

ARCHIVE = GOLDEN / "two-disks" / "before.tar.gz"
LEAST = Severity.WARN.rank


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(unpack_archive(ARCHIVE, tmp_path))


def look(*paths: Path) -> tuple[list[ObservedRoot], list[tuple[str, str | None, str]]]:
    """Return the directories, and (code, partition, severity) of what is a warning or worse."""
    roots, placed = verify_log_directories([(str(path), Role.BROKER) for path in paths])
    return roots, [
        (
            entry.finding.code.value,
            None if entry.partition is None else str(entry.partition),
            entry.finding.severity.value,
        )
        for entry in placed
        if entry.finding.severity.rank >= LEAST
    ]


def fates(roots: list[ObservedRoot]) -> dict[str, Start]:
    return {Path(path).name: fate for root in roots for path, fate in root.fates.items()}


def test_nothing_is_found_in_both_directories_nor_in_either(disks):
    for paths in (disks.roots, [disks.first], [disks.last]):
        roots, found = look(*paths)
        assert found == []
        assert fates(roots) == {}


@pytest.mark.parametrize(
    ("accident", "expected", "expected_fates"),
    [
        (
            "topic-id-other",
            [("TOPIC_ID_INCONSISTENT", "orders-0", "error")],
            {"orders-0": Start.STRAYED},
        ),
        (
            "topic-id-missing",
            [("PARTITION_STRAYED", "orders-0", "error")],
            {"orders-0": Start.STRAYED},
        ),
        (
            "topic-id-missing-quiet",
            [("PARTITION_STRAYED", "__consumer_offsets-1", "warn")],
            {"__consumer_offsets-1": Start.STRAYED},
        ),
        (
            "partition-unknown",
            [("PARTITION_STRAYED", "orders-7", "error")],
            {"orders-7": Start.STRAYED},
        ),
        ("topic-unknown", [("PARTITION_STRAYED", "gone-0", "error")], {"gone-0": Start.STRAYED}),
        (
            "future-alone",
            [("FUTURE_ALONE", "orders-0", "error")],
            {f"orders-0{FUTURE}": Start.EMPTIED},
        ),
        ("future-alone-here", [], {}),
        ("future-beside", [], {}),
        (
            "future-assigned",
            [("FUTURE_PROMOTED", "orders-0", "warn")],
            {"orders-0": Start.DELETED},
        ),
        ("absent", [("PARTITION_ABSENT", "orders-1", "error")], {"orders-1": Start.CREATED}),
        ("linked", [("PARTITION_LINKED", "orders-0", "warn")], {"orders-0": Start.UNKNOWN}),
        ("moved-to-other-disk", [], {}),
        ("duplicate", [("PARTITION_DUPLICATE", "orders-0", "fatal")], {}),
        ("metadata-twice", [("PARTITION_DUPLICATE", "__cluster_metadata-0", "fatal")], {}),
        (
            "quorum-empty",
            [("QUORUM_STATE_BROKEN", "__cluster_metadata-0", "fatal")],
            {},
        ),
        (
            "metadata-snapshot-garbage",
            [("CLUSTER_METADATA_BROKEN", "__cluster_metadata-0", "fatal")],
            {},
        ),
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
    assert found == [("TOPIC_ID_INCONSISTENT", "orders-0", "error")]
    assert fates(roots) == {"orders-0": Start.STRAYED}


def test_without_metadata_nobody_is_set_aside(disks):
    """Nobody knows whose the logs are; two ids of one topic contradict each other all the same."""
    ACCIDENTS["topic-id-other"](disks)
    shutil.rmtree(disks.first / "__cluster_metadata-0")
    roots, found = look(*disks.roots)
    assert [(code, severity) for code, _, severity in found] == [("TOPIC_ID_INCONSISTENT", "error")]
    assert fates(roots) == {}


def test_partitions_in_a_directory_that_was_not_named_are_not_missed(disks):
    shutil.rmtree(disks["orders-1"])
    assert look(disks.first)[1] == []
    assert look(*disks.roots)[1] == [("PARTITION_ABSENT", "orders-1", "error")]


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
    [found] = [entry.finding for entry in placed if entry.finding.severity is Severity.FATAL]
    assert found.code is Code.FEATURE_LEVEL_UNKNOWN
    assert message in found.message
