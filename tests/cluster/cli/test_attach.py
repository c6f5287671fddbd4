"""``pylog attach``: what it plans, writes and refuses, and its way back."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.checkpoint.checkpoints import (
    PartitionMetadata,
    encode_partition_metadata,
    read_checkpoints,
)
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, PARTITION_METADATA_FILE, TopicPartition
from storage_core.roots.broker import BrokerRoot
from tests.kit.compare import read_tree
from tests.kit.source_disk import write_properties
from tests.kit.tier_archives import TierCase, unpack_tier

TOPIC_ID = "oQ-_Byz0SxiFgq7qKrX0Rw"
DIRECTORY_IDS = ("8o8XGvAcRw6rcRUFnvcUaA", "9o8XGvAcRw6rcRUFnvcUaA")


def new_disk(folder: Path, node: int = 1) -> Path:
    """Return the formatted log directory of a new broker."""
    folder.mkdir()
    write_properties(folder, node)
    properties = folder / "meta.properties"
    directory = f"directory.id={DIRECTORY_IDS[node - 1]}"
    properties.write_text(re.sub(r"directory\.id=.*", directory, properties.read_text()))
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return new_disk(tmp_path / "b1")


@pytest.fixture
def plain(tmp_path: Path) -> TierCase:
    return unpack_tier("plain", tmp_path / "lost")


class Attach:
    """The command, on a tier and log directories."""

    def __init__(self, pylog: Any, case: TierCase, *disks: Path) -> None:
        self.pylog = pylog
        self.words = ["attach", str(case.archive), "--metadata-partitions", "3"]
        self.words += [word for disk in disks for word in ("--into", str(disk))]

    def __call__(self, *words: str) -> Any:
        return self.pylog(*self.words, *words)

    def rows(self, *words: str) -> list[dict[str, Any]]:
        result = self(*words, "--output=json")
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        return [row for row in rows if row["type"] == "attach"]


def files_of(disk: Path) -> dict[str, bytes]:
    """Return the files of a disk, but for its lock, and checkpoints without entries."""
    return {
        name: content
        for name, content in read_tree(disk).items()
        if name not in {".lock", CLEAN_SHUTDOWN_FILE} and content != b"0\n0\n"
    }


def test_a_dry_run_says_all_and_writes_nothing(pylog: Any, plain: TierCase, disk: Path):
    before = read_tree(disk)
    rows = Attach(pylog, plain, disk).rows("--dry-run")
    assert read_tree(disk).keys() - before.keys() <= {".lock"}
    assert {row["status"] for row in rows} == {"planned"}
    of_tier = [row for row in rows if row["topic"] == "stock_levels"]
    assert [
        (row["partition"], row["log_start_offset"], row["log_end_offset"], row["segments"])
        for row in of_tier
    ] == [(0, 0, 832, 2), (1, 0, 1241, 3)]
    assert {row["topic_id"] for row in of_tier} == {TOPIC_ID}
    # Two records a segment.
    assert sum(row["log_end_offset"] for row in rows if row not in of_tier) == 10


@pytest.mark.thorough
def test_partitions_take_turns_and_a_repeat_changes_nothing(
    pylog: Any, plain: TierCase, disk: Path, tmp_path: Path
):
    disks = [disk, new_disk(tmp_path / "b2", 2)]
    topics = tmp_path / "topics.json"
    attach = Attach(pylog, plain, *disks)
    result = attach("--topics-out", str(topics))
    assert result.exit_code == ExitCode.DONE, result.stderr
    assert "records from the end of the tier on were on the disks only" in result.stdout
    assert "a tier has no positions of consumer groups" in result.stdout
    assert json.loads(topics.read_text()) == {
        "topics": {
            "stock_levels": {
                "remote.storage.enable": "true",
                "retention.bytes": "-1",
                "retention.ms": "-1",
            }
        }
    }
    names = [{path.name for path in each.iterdir() if path.is_dir()} for each in disks]
    metadata = "__remote_log_metadata"
    assert names == [
        {"stock_levels-0", f"{metadata}-0", f"{metadata}-2"},
        {"stock_levels-1", f"{metadata}-1"},
    ]
    entries = read_checkpoints(BrokerRoot(disks[1])).of(TopicPartition("stock_levels", 1))
    assert (entries.log_start_offset, entries.recovery_point, entries.high_watermark) == (
        *(0, 1241, 1241),
    )
    written = [read_tree(each) for each in disks]
    assert {row["status"] for row in attach.rows()} == {"skipped"}
    assert [read_tree(each) for each in disks] == written

    # The metadata of a new cluster is made of what it wrote, if the topics are tiered there.
    line = next(each for each in result.stdout.splitlines() if "metadata rebuild" in each)
    controller = tmp_path / "controller"
    controller.mkdir()
    words = shlex.split(line.replace("NODE=DIR", f"4={controller}"))[1:]
    refused = pylog(*words[: words.index("--config")], "--assume-defaults", "*")
    assert refused.exit_code == ExitCode.USAGE
    assert "expected remote.storage.enable=true" in refused.stderr
    assert "would begin it at offset 832" in refused.stderr
    rebuilt = pylog(*words, "--output=json")
    assert rebuilt.exit_code == ExitCode.DONE, rebuilt.stderr
    rows = [json.loads(line) for line in rebuilt.stdout.splitlines()]
    partitions = [row for row in rows if row["type"] == "metadata_partition"]
    assert {
        row["partition"]: (row["topic_id"], row["isr"], row["leader_epoch"])
        for row in partitions
        if row["topic"] == "stock_levels"
    } == {0: (TOPIC_ID, [1], 100), 1: (TOPIC_ID, [2], 100)}
    (config,) = {
        json.dumps(row["config"]) for row in partitions if row["topic"] == "__remote_log_metadata"
    }
    assert json.loads(config)["retention.ms"] == "-1"


@pytest.mark.thorough
def test_an_undo_takes_all_of_it_back(pylog: Any, plain: TierCase, disk: Path, tmp_path: Path):
    before, trash = files_of(disk), tmp_path / "trash"
    result = Attach(pylog, plain, disk)("--trash", str(trash))
    assert result.exit_code == ExitCode.DONE, result.stderr
    assert files_of(disk) != before
    line = next(each for each in result.stdout.splitlines() if "pylog undo" in each)
    undone = pylog(*shlex.split(line[line.index("pylog undo") :])[1:])
    assert undone.exit_code == ExitCode.DONE, undone.stdout + undone.stderr
    assert files_of(disk) == before


def require_refused(attach: Attach, disk: Path, code: str, *words: str) -> list[dict[str, Any]]:
    """Check that a partition is refused, and that nothing is written for it."""
    before = files_of(disk)
    result = attach(*words)
    assert result.exit_code == ExitCode.REFUSED, result.stdout
    assert f"{code}: " in result.stdout
    assert "nothing was written" in result.stdout
    assert files_of(disk) == before
    rows = attach.rows(*words)
    assert code in {row["reason"] for row in rows}
    return rows


def write_directory(disk: Path, name: str, topic_id: str) -> None:
    (disk / name).mkdir()
    metadata = encode_partition_metadata(PartitionMetadata(version=0, topic_id=topic_id))
    (disk / name / PARTITION_METADATA_FILE).write_bytes(metadata)
    (disk / name / f"{0:020d}.log").touch()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "topic_id", "code"),
    [
        ("stock_levels-7", "AAAAAAAAAAAAAAAAAAAABQ", "TARGET_HAS_TOPIC"),
        ("__remote_log_metadata-0", "AAAAAAAAAAAAAAAAAAAABQ", "TARGET_HAS_TOPIC"),
        ("other-0", TOPIC_ID, "TOPIC_ID_TAKEN"),
    ],
)
def test_what_a_target_has_is_not_mixed_with_a_tier(
    pylog: Any, plain: TierCase, disk: Path, name: str, topic_id: str, code: str
):
    write_directory(disk, name, topic_id)
    (row, *_) = require_refused(Attach(pylog, plain, disk), disk, code)
    assert str(disk / name) in row["detail"]


@pytest.mark.thorough
def test_a_log_that_has_gone_on_is_not_written_again(pylog: Any, plain: TierCase, disk: Path):
    attach = Attach(pylog, plain, disk)
    assert attach().exit_code == ExitCode.DONE
    (disk / "stock_levels-0" / f"{832:020d}.log").write_bytes(b"a batch")
    require_refused(attach, disk, "TARGET_HAS_TOPIC")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "code"),
    [("upload_killed", "TIER_SEGMENT_INCOMPLETE"), ("elections", "TIER_HISTORIES_DIFFER")],
)
def test_consent_takes_the_newest_complete_history(
    pylog: Any, tmp_path: Path, disk: Path, name: str, code: str
):
    attach = Attach(pylog, unpack_tier(name, tmp_path / "lost"), disk)
    require_refused(attach, disk, code)
    assert {row["status"] for row in attach.rows("--newest")} == {"done"}


@pytest.mark.thorough
def test_two_topics_of_one_name_need_an_id(pylog: Any, tmp_path: Path, disk: Path):
    case = unpack_tier("topic_deleted", tmp_path / "lost")
    attach = Attach(pylog, case, disk)
    refused = attach()
    assert refused.exit_code == ExitCode.USAGE
    assert "has 2 topics of the name page-views" in refused.stderr
    topic_id = case.truth["partitions"][0]["topic_id"]
    ids = {each["topic"]: each["topic_id"] for each in case.truth["partitions"]}
    rows = attach.rows("--topic-id", ids["page-views"])
    assert topic_id in ids.values()
    assert {row["topic"]: row["topic_id"] for row in rows if row["topic"] in ids} == ids


@pytest.mark.thorough
def test_two_topics_with_one_id_are_refused(pylog: Any, plain: TierCase, disk: Path):
    (folder,) = plain.archive.glob("stock_levels-0-*")
    shutil.copytree(folder, plain.archive / folder.name.replace("stock_levels", "other"))
    refused = Attach(pylog, plain, disk)()
    assert refused.exit_code == ExitCode.USAGE
    assert f"other and stock_levels have one id, {TOPIC_ID}" in refused.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["__cluster_metadata", "__consumer_offsets"])
def test_a_tier_names_no_internal_topic(pylog: Any, plain: TierCase, disk: Path, name: str):
    (folder,) = plain.archive.glob("stock_levels-0-*")
    folder.rename(plain.archive / f"{name}-0-AAAAAAAAAAAAAAAAAAAABQ")
    refused = Attach(pylog, plain, disk)()
    assert refused.exit_code == ExitCode.USAGE
    assert f"no broker tiers {name}" in refused.stderr


@pytest.mark.thorough
def test_a_partition_that_the_tier_lacks_starts_empty(pylog: Any, plain: TierCase, disk: Path):
    (folder,) = plain.archive.glob("stock_levels-0-*")
    shutil.rmtree(folder)
    rows = Attach(pylog, plain, disk).rows()
    row = next(row for row in rows if (row["topic"], row["partition"]) == ("stock_levels", 0))
    assert (row["status"], row["log_end_offset"], row["segments"]) == ("done", 0, 0)
    assert row["detail"] == "the tier has no segment of it: it starts empty"


@pytest.mark.thorough
def test_open_transactions_are_said_with_their_end(pylog: Any, tmp_path: Path, disk: Path):
    result = Attach(pylog, unpack_tier("txn", tmp_path / "lost"), disk)("--wide")
    assert "1 open transaction without an end in the tier" in result.stdout
    assert "abort --topic ledger --partition 0 --start-offset 2094" in result.stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda disk: (disk / "meta.properties").unlink(), "expected a formatted log directory"),
        (shutil.rmtree, "expected a formatted log directory"),
    ],
)
def test_a_target_is_a_formatted_log_directory(
    pylog: Any, plain: TierCase, disk: Path, spoil: Any, text: str
):
    spoil(disk)
    refused = Attach(pylog, plain, disk)()
    assert refused.exit_code == ExitCode.USAGE
    assert text in refused.stderr


def test_what_is_no_tier_is_refused(pylog: Any, tmp_path: Path, disk: Path):
    (tmp_path / "empty").mkdir()
    refused = pylog("attach", tmp_path / "empty", "--into", disk)
    assert refused.exit_code == ExitCode.USAGE
    assert "has no segment of a tier" in refused.stderr


@pytest.mark.thorough
def test_a_damaged_partition_hides_no_other(pylog: Any, plain: TierCase, disk: Path):
    before = files_of(disk)
    (damaged,) = plain.archive.glob(f"stock_levels-0-*/{422:020d}-*.snapshot")
    damaged.write_bytes(b"\0\7")
    attach = Attach(pylog, plain, disk)
    result = attach()
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "expected at least" in result.stdout
    assert "nothing was written" in result.stdout
    assert [(row["status"], row["log_end_offset"]) for row in attach.rows()] == [
        ("failed", 0),
        ("skipped", 1241),
    ]
    assert files_of(disk) == before


@pytest.mark.thorough
def test_a_partition_that_nobody_can_have_made_is_refused(pylog: Any, plain: TierCase, disk: Path):
    (folder,) = plain.archive.glob("stock_levels-1-*")
    folder.rename(folder.with_name(folder.name.replace("-1-", "-2147483646-", 1)))
    refused = Attach(pylog, plain, disk)()
    assert refused.exit_code == ExitCode.USAGE
    assert "lacks 2,147,483,645 partitions below others" in refused.stderr
