"""A voter without a copy of the metadata gets one: what it gets, what is refused, kills."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.checkpoint.broker_files import MetaProperties
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.cluster import metadata_copies as metadata_directory
from storage_core.cluster import metadata_promotion
from storage_core.cluster.metadata_copies import (
    MetadataCopy,
    compare_copies,
    read_copy,
)
from storage_core.cluster.metadata_promotion import (
    Promotion,
    plan_promotions,
    promote,
)
from storage_core.commit import executor
from storage_core.errors import ConfigError, GuardRefusedError, StorageError
from storage_core.formats.batch_v2 import LEADER_EPOCH_AT
from storage_core.log.leader_epoch_cache import DoubtfulEpoch
from tests.cluster.storage.test_metadata_copies import (
    NOW,
    copy_of,
    elected,
    led,
    read,
)
from tests.storage_core.catalog import metadata_bytes as md


@pytest.fixture
def copies(tmp_path: Path) -> list[MetadataCopy]:
    """What is left of voters 1 to 3: a broker's copy with a snapshot, and voter 2's, behind."""
    begin = [elected(3, leader=1), led(4, 3)]
    behind = copy_of(tmp_path, 2, begin)
    state = {"leaderEpoch": 9, "leaderId": -1, "votedId": 2, "data_version": 1}
    folder = tmp_path / "one-2" / CLUSTER_METADATA_DIRECTORY
    (folder / "quorum-state").write_text(json.dumps(state))
    copy_of(tmp_path, 7, [*begin, led(3, 3)])
    broker = tmp_path / "one-7" / CLUSTER_METADATA_DIRECTORY
    md.write_snapshot(broker, [md.topic("a")], end_offset=5, epoch=3)
    (broker / "00000000000000000003.snapshot").write_bytes(b"of producers")
    return [read(Path(behind.root), 2), read(tmp_path / "one-7", 7)]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    return folder


def plan(copies: list[MetadataCopy], *targets: tuple[int, Path]) -> list[Promotion]:
    return plan_promotions(compare_copies(copies), dict(targets))


def test_a_voter_gets_the_longest_copy_under_its_own_id(copies, target: Path):
    (promotion,) = plan(copies, (3, target))
    assert list(target.iterdir()) == []
    promote(promotion)
    own = target / CLUSTER_METADATA_DIRECTORY
    source = Path(copies[1].root) / CLUSTER_METADATA_DIRECTORY
    names = {"00000000000000000000.log", "00000000000000000005-0000000003.checkpoint"}
    assert {path.name for path in own.iterdir()} == names | {"quorum-state"}
    assert all((own / name).read_bytes() == (source / name).read_bytes() for name in names)
    assert (target / "meta.properties").read_text() == "version=1\ncluster.id=one\nnode.id=3\n"
    state = json.loads((own / "quorum-state").read_text())
    assert (state["leaderId"], state["leaderEpoch"], state["votedId"]) == (-1, 109, -1)
    assert [each["voterId"] for each in state["currentVoters"]] == [1, 2, 3]
    again = read(target, 3)
    assert (again.position, again.error) == (copies[1].position, "")


@pytest.mark.parametrize("number", [0, 1], ids=["before its neighbour", "the last batch"])
def test_a_flipped_epoch_makes_no_copy_the_longest(copies, target: Path, number: int):
    """It lies outside of the checksum; Raft elects by the last epoch before it asks for the end."""
    behind = Path(copies[0].root)
    log = behind / CLUSTER_METADATA_DIRECTORY / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    first_size = 12 + int.from_bytes(content[8:12])
    at = number * first_size + LEADER_EPOCH_AT
    content[at : at + 4] = (1_000_000).to_bytes(4)
    log.write_bytes(content)
    flipped = read(behind, 2)
    assert flipped.doubtful == DoubtfulEpoch(epoch=1_000_000, offset=number)
    (promotion,) = plan([flipped, copies[1]], (3, target))
    assert promotion.source.root == copies[1].root
    # A node that starts on the other copy believes its epoch: the voter begins above it.
    assert promotion.epoch == 1_000_100
    (cluster,) = compare_copies([flipped, copies[1]])
    assert cluster.copies[0].root == copies[1].root


def test_the_copy_is_the_owners_of_the_voters_directory(copies, target: Path):
    """Kafka makes snapshots 0400: another owner's would be closed to the voter."""
    source = Path(copies[1].root) / CLUSTER_METADATA_DIRECTORY
    for path in source.iterdir():
        path.chmod(0o400)
    target.chmod(0o750)
    owner = (12345, 12346) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(target, *owner)
    (promotion,) = plan(copies, (3, target))
    promote(promotion)
    facts = [path.stat() for path in (target / CLUSTER_METADATA_DIRECTORY).iterdir()]
    assert {(each.st_uid, each.st_gid, each.st_mode & 0o777) for each in facts} == {(*owner, 0o640)}


@pytest.mark.thorough
def test_what_is_done_is_left_alone_until_a_node_starts_on_it(copies, target: Path):
    (promotion,) = plan(copies, (3, target))
    assert not promotion.is_done
    promote(promotion)
    (repeated,) = plan(copies, (3, target))
    assert repeated.is_done
    promote(repeated)
    index = target / CLUSTER_METADATA_DIRECTORY / "00000000000000000000.index"
    index.touch()  # as a start makes it
    with pytest.raises(GuardRefusedError, match="nothing is replaced"):
        promote(repeated)
    with pytest.raises(GuardRefusedError, match="nothing is replaced"):
        plan(copies, (3, target))


def test_nothing_is_replaced_and_no_voter_is_made_up(copies, tmp_path: Path, target: Path):
    with pytest.raises(ConfigError, match="is no voter of this quorum; its voters: 1, 2, 3"):
        plan(copies, (7, target))
    with pytest.raises(GuardRefusedError, match="voter 2 has a copy of its own"):
        plan(copies, (2, target))
    with pytest.raises(ConfigError, match="no such directory"):
        plan(copies, (3, tmp_path / "missing"))
    (target / CLUSTER_METADATA_DIRECTORY).mkdir()
    with pytest.raises(GuardRefusedError, match="nothing is replaced"):
        plan(copies, (3, target))


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("node.id=1", "expected node_id 3 in meta.properties: 1"),
        ("cluster.id=two", "expected cluster_id one in meta.properties: two"),
    ],
)
def test_a_directory_of_another_node_is_refused(copies, target: Path, line: str, match: str):
    lines = {"version": "1", "cluster.id": "one", "node.id": "3"}
    lines |= dict([line.split("=")])
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    (target / "meta.properties").write_text(text)
    with pytest.raises(ConfigError, match=match):
        plan(copies, (3, target))


def test_the_copies_of_two_clusters_are_refused(copies, tmp_path: Path, target: Path):
    other = copy_of(tmp_path, 1, [elected(1, leader=1)], cluster="two")
    with pytest.raises(ConfigError, match="expected readable copies of one cluster's metadata"):
        plan([*copies, other], (3, target))
    with pytest.raises(ConfigError, match=r"none.*`pylog metadata rebuild` makes them"):
        plan([], (3, target))


def test_a_copy_that_may_be_the_longest_is_not_passed_over(copies, tmp_path: Path, target: Path):
    longer = copy_of(tmp_path, 1, [elected(4, leader=1), led(50, 4)])
    state = Path(longer.root) / CLUSTER_METADATA_DIRECTORY / "quorum-state"
    state.write_text("")
    broken = read(Path(longer.root), 1)
    with pytest.raises(ConfigError, match=r"ROOT=.*one-1: cannot be read: .*; leave it out"):
        plan([*copies, broken], (3, target))
    nameless = read_copy(copies[0].root, None, now_ms=NOW)
    with pytest.raises(ConfigError, match=r"expected the id of its cluster in meta\.properties"):
        plan([*copies, nameless], (3, target))


def test_a_copy_with_records_behind_damage_is_not_passed_over(copies, tmp_path: Path, target: Path):
    longer = copy_of(tmp_path, 1, [elected(3, leader=1), led(4, 3), led(30, 3), led(30, 3)])
    log = Path(longer.root) / CLUSTER_METADATA_DIRECTORY / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[-len(content) // 2] ^= 1  # in the third batch; the fourth one is readable
    log.write_bytes(content)
    damaged = read(Path(longer.root), 1)
    assert damaged.position < copies[1].position
    with pytest.raises(
        ConfigError, match=r"one-1: .*cut 30 readable.*up to offset 64; give a whole"
    ):
        plan([*copies, damaged], (3, target))
    assert len(plan(copies, (3, target))) == 1
    (alone,) = plan([damaged], (3, target))
    assert alone.source is damaged


def test_an_epoch_without_a_later_one_is_refused(copies, target: Path):
    """A node at the largest epoch could never be elected."""
    state = Path(copies[0].root) / CLUSTER_METADATA_DIRECTORY / "quorum-state"
    state.write_text(json.dumps({"leaderEpoch": 2**31 - 101, "data_version": 1}))
    with pytest.raises(ConfigError, match="expected epochs below 2147483547, found 2147483547"):
        plan([read(Path(copies[0].root), 2), copies[1]], (3, target))


@pytest.mark.thorough
def test_one_directory_serves_one_voter(copies, tmp_path: Path, target: Path):
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(ConfigError, match="expected another directory for each voter"):
        plan(copies, (1, target), (3, link))
    (first,), (third,) = plan(copies, (1, target)), plan(copies, (3, target))
    promote(first)
    with pytest.raises(ConfigError, match=r"expected node_id 3 in meta\.properties: 1"):
        promote(third)


def test_the_folder_of_a_partition_is_no_log_directory(copies, target: Path):
    (target / "00000000000000000000.log").touch()
    with pytest.raises(ConfigError, match="expected a log directory, found a log's files"):
        plan(copies, (3, target))


def test_a_directory_that_is_only_formatted_gets_the_copy(copies, target: Path):
    """Kafka 4.4 writes the first snapshot where it formats."""
    (target / "meta.properties").write_text("version=1\ncluster.id=one\nnode.id=3\n")
    log = target / CLUSTER_METADATA_DIRECTORY
    md.write_snapshot(log, [md.topic("a")], end_offset=0, epoch=0)
    (promotion,) = plan(copies, (3, target))
    assert (promotion.properties, promotion.is_done) == (None, False)
    promote(promotion)
    assert read(target, 3).position == copies[1].position
    assert {path.name for path in target.iterdir()} - {".lock"} == {"meta.properties", log.name}


def test_a_link_in_the_place_of_what_a_kill_left_is_named(copies, tmp_path: Path, target: Path):
    link = target / f"{CLUSTER_METADATA_DIRECTORY}.1-delete"
    link.symlink_to(tmp_path)
    (promotion,) = plan(copies, (3, target))
    with pytest.raises(StorageError, match=link.name):
        promote(promotion)
    assert tmp_path.is_dir()


@pytest.mark.thorough
def test_a_node_that_runs_is_refused(copies, target: Path):
    (promotion,) = plan(copies, (3, target))
    with LogDirectoryLock(target), pytest.raises(GuardRefusedError, match="is locked by"):
        promote(promotion)
    assert not (target / CLUSTER_METADATA_DIRECTORY).exists()
    for copy in copies:
        with (
            LogDirectoryLock(Path(copy.root)),
            pytest.raises(GuardRefusedError, match="its node runs"),
        ):
            plan(copies, (3, target))


@pytest.mark.thorough
def test_a_kill_at_any_step_leaves_no_log_and_the_next_call_finishes(
    copies, target: Path, monkeypatch
):
    (promotion,) = plan(copies, (3, target))
    true_apply, true_rename = executor.apply_steps, os.rename

    def killed_after(count: int) -> None:
        def steps(operations, store) -> Iterator[object]:
            for number, step in enumerate(true_apply(operations, store)):
                yield step
                if number == count:
                    raise KeyboardInterrupt

        monkeypatch.setattr(executor, "apply_steps", steps)

    steps = len(promotion.files) + 2
    for count in range(steps):
        killed_after(count)
        with pytest.raises(KeyboardInterrupt):
            promote(promotion)
        assert not (target / CLUSTER_METADATA_DIRECTORY).exists()
        (name,) = {path.name for path in target.iterdir()} - {".lock"}
        assert name.endswith("-delete")
    monkeypatch.setattr(executor, "apply_steps", true_apply)

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(metadata_promotion.os, "rename", fail)
    with pytest.raises(StorageError):
        promote(promotion)
    monkeypatch.setattr(metadata_promotion.os, "rename", true_rename)

    def die(_: MetaProperties) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(metadata_directory, "encode_meta_properties", die)
        with pytest.raises(KeyboardInterrupt):
            promote(promotion)
    # A controller does not start without the file; without the log it would begin an empty cluster.
    assert {path.name for path in target.iterdir()} - {".lock"} == {CLUSTER_METADATA_DIRECTORY}
    (repeated,) = plan(copies, (3, target))
    assert not repeated.is_done
    promote(repeated)
    names = {path.name for path in target.iterdir()} - {".lock"}
    assert names == {"meta.properties", CLUSTER_METADATA_DIRECTORY}
    assert read(target, 3).position == copies[1].position


def test_a_repeat_removes_what_a_kill_behind_the_last_rename_has_left(copies, target: Path):
    (promotion,) = plan(copies, (3, target))
    promote(promotion)
    left = target / f"{CLUSTER_METADATA_DIRECTORY}.{'0' * 32}-delete"
    left.mkdir()
    (again,) = plan(copies, (3, target))
    assert again.is_done
    promote(again)
    assert not left.exists()
