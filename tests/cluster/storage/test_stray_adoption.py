"""Stray directories get their names back where the metadata assigns them, and stay otherwise."""

import os
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    read_cluster_metadata,
)
from storage_core.checkpoint.checkpoints import PartitionMetadata, encode_partition_metadata
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.cluster import stray_adoption
from storage_core.cluster.stray_adoption import (
    OwnedDirectory,
    StrayDirectory,
    StrayReason,
    adopt,
    plan_adoptions,
)
from storage_core.errors import GuardRefusedError, InconsistentTopicIdError, StorageError
from storage_core.filenames import PARTITION_METADATA_FILE
from tests.storage_core.catalog import metadata_bytes as md

HEX = "0123456789abcdef0123456789abcde"
LONG = "long" * 60


@pytest.fixture
def metadata(tmp_path: Path) -> ClusterMetadata:
    """Topics a (partitions 0 to 2, the last one elsewhere) and a long name."""
    directory = tmp_path / CLUSTER_METADATA_DIRECTORY
    values = [
        *(md.topic("a", md.ID_A), md.partition(0, md.ID_A), md.partition(1, md.ID_A)),
        md.partition(2, md.ID_A, replicas=(2, 3)),
        *(md.topic(LONG, md.ID_B), md.partition(0, md.ID_B)),
    ]
    md.write_segment(directory, [md.batch(*values)])
    return read_cluster_metadata(directory)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def stray(root: Path, name: str, topic_id: str | None = md.ID_A, *, end: str = "0") -> Path:
    directory = root / f"{name}.{HEX}{end}-stray"
    directory.mkdir()
    (directory / "00000000000000000000.log").touch()
    if topic_id is not None:
        content = encode_partition_metadata(PartitionMetadata(topic_id=topic_id))
        (directory / PARTITION_METADATA_FILE).write_bytes(content)
    return directory


def plan(metadata: ClusterMetadata, *roots: Path, node: int = 1) -> list[StrayDirectory]:
    owned = [OwnedDirectory(location=str(root), node_id=node) for root in roots]
    return plan_adoptions(owned, metadata)


def reasons(strays: list[StrayDirectory]) -> dict[str, StrayReason | None]:
    return {str(each.partition): each.reason for each in strays}


def test_a_log_that_is_assigned_here_gets_its_name_back(metadata, root: Path):
    stray(root, "a-0")
    cut = LONG[:200]
    stray(root, f"{cut}-0", md.ID_B)
    strays = plan(metadata, root)
    assert reasons(strays) == {"a-0": None, f"{LONG}-0": None}
    adopt(strays)
    assert {path.name for path in root.iterdir()} - {".lock"} == {"a-0", f"{LONG}-0"}
    assert plan(metadata, root) == []


def test_the_others_stay_with_a_reason(metadata, root: Path, tmp_path: Path):
    stray(root, "a-1", None)
    stray(root, "b-0", "bbbbbbbbbbbbbbbbbbbbbA")
    stray(root, "a-2")
    assert reasons(plan(metadata, root)) == {
        "a-1": StrayReason.NO_TOPIC_ID,
        "b-0": StrayReason.TOPIC_UNKNOWN,
        "a-2": StrayReason.NOT_ASSIGNED,
    }
    (_, _, last) = sorted(plan(metadata, root), key=lambda each: each.name[:3] == "a-2")
    assert last.detail == "its replicas are on 2, 3, this is node 1"
    assert reasons(plan(metadata, root, node=3))["a-2"] is None


def test_a_name_that_is_taken_on_any_disk_stays_taken(metadata, root: Path, tmp_path: Path):
    other = tmp_path / "other"
    (other / "a-0").mkdir(parents=True)
    stray(root, "a-0")
    assert reasons(plan(metadata, root, other)) == {"a-0": StrayReason.NAME_TAKEN}
    assert reasons(plan(metadata, root)) == {"a-0": None}


def test_of_several_logs_of_a_partition_none_is_chosen(metadata, root: Path, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    stray(root, "a-0", end="0")
    stray(other, "a-0", end="1")
    assert [each.reason for each in plan(metadata, root, other)] == [
        StrayReason.SEVERAL_STRAYS,
        StrayReason.SEVERAL_STRAYS,
    ]


def test_a_link_stays(metadata, root: Path, tmp_path: Path):
    stray(tmp_path, "a-0").rename(tmp_path / "elsewhere")
    (root / f"a-0.{HEX}0-stray").symlink_to(tmp_path / "elsewhere")
    assert [each.reason for each in plan(metadata, root)] == [StrayReason.STRAY_IS_LINK]


def test_metadata_of_a_file_that_is_none_is_a_reason(metadata, root: Path):
    (stray(root, "a-0", None) / PARTITION_METADATA_FILE).write_bytes(b"?")
    (only,) = plan(metadata, root)
    assert only.reason is StrayReason.NO_TOPIC_ID
    assert PARTITION_METADATA_FILE in only.detail


@pytest.mark.thorough
def test_a_broker_that_runs_and_a_name_taken_meanwhile_are_refused(metadata, root: Path):
    stray(root, "a-0")
    strays = plan(metadata, root)
    with LogDirectoryLock(root), pytest.raises(GuardRefusedError, match="is locked by"):
        adopt(strays)
    (root / "a-0").mkdir()
    with pytest.raises(StorageError, match="has a directory by now"):
        adopt(strays)
    assert (root / strays[0].name).is_dir()


def test_after_a_kill_the_rest_is_left_to_adopt(metadata, root: Path, monkeypatch):
    stray(root, "a-0")
    stray(root, "a-1")
    true_rename = os.rename

    def killed(*words: object, **keywords: object) -> None:
        true_rename(*words, **keywords)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(stray_adoption.os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        adopt(plan(metadata, root))
    monkeypatch.setattr(stray_adoption.os, "rename", true_rename)
    assert (root / "a-0").is_dir()
    adopt(plan(metadata, root))
    assert (root / "a-1").is_dir()


def test_a_directory_that_got_another_topic_id_meanwhile_keeps_its_name(metadata, root: Path):
    directory = stray(root, "a-0")
    strays = plan(metadata, root)
    content = encode_partition_metadata(PartitionMetadata(topic_id=md.ID_B))
    (directory / PARTITION_METADATA_FILE).write_bytes(content)
    with pytest.raises(InconsistentTopicIdError) as refused:
        adopt(strays)
    assert f"expected topic id {md.ID_A}, found {md.ID_B}" in str(refused.value)
    assert directory.is_dir()
