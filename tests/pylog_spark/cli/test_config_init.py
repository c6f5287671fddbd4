"""``pylog config init``: what files tell of configs that nobody says, and nothing in force."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pylog_spark.exit_code import ExitCode
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import GOLDEN, unpack_archive


@pytest.fixture
def copy(broker_dir: Path, tmp_path: Path) -> Path:
    """A copy of a broker's directory without its cluster's metadata."""
    root = shutil.copytree(broker_dir, tmp_path / "a copy")
    shutil.rmtree(root / "__cluster_metadata-0")
    (root / "meta.properties").unlink()
    return root


def uncommented(text: str) -> dict[str, Any]:
    """Return what the file says once a person has taken the # of its entries away."""
    return yaml.safe_load(re.sub(r"^#  ", "  ", text, flags=re.MULTILINE))["topics"]


def test_as_it_is_printed_the_file_says_nothing(pylog, copy: Path, tmp_path: Path):
    before = {path.name: read_tree(path) for path in copy.iterdir() if path.is_dir()}
    result = pylog("config", "init", copy)
    assert (result.exit_code, result.stderr) == (0, "")
    assert yaml.safe_load(result.stdout) == {"topics": None}
    assert {path.name: read_tree(path) for path in copy.iterdir() if path.is_dir()} == before
    file = tmp_path / "topics.yaml"
    file.write_text(result.stdout)
    rows = pylog("survey", copy, "--config", file, "--output", "json").stdout.splitlines()
    reasons = {row["reason"] for row in map(json.loads, rows) if row["type"] == "survey"}
    assert reasons == {"CONFIG_UNKNOWN"}


@pytest.mark.thorough
def test_without_its_comment_signs_it_is_taken_and_no_topic_is_unknown(
    pylog, copy: Path, tmp_path: Path
):
    text = pylog("config", "init", copy).stdout
    file = tmp_path / "topics.yaml"
    file.write_text(re.sub(r"^#  ", "  ", text, flags=re.MULTILINE))
    result = pylog.done("survey", copy, "--config", file, "--output", "json")
    assert "CONFIG_UNKNOWN" not in result.stdout


@pytest.mark.thorough
def test_what_was_compacted_and_what_was_deleted_from_is_told(pylog, copy: Path):
    text = pylog("config", "init", copy).stdout
    guesses = {topic: entry["cleanup.policy"] for topic, entry in uncommented(text).items()}
    assert guesses["compacted"] == "compact"
    assert guesses["events"] == "delete"
    assert guesses["__consumer_offsets"] == "compact"
    assert "2 are in the cleaner checkpoint" in text
    assert "by its name: Kafka creates it so" in text
    (copy / "cleaner-offset-checkpoint").unlink()
    text = pylog("config", "init", copy).stdout
    # Compaction has left gaps, whatever the checkpoint says.
    assert uncommented(text)["compacted"]["cleanup.policy"] == "compact"
    (copy / "cleaner-offset-checkpoint").write_text("0\n1\nevents 0 200\n")
    text = pylog("config", "init", copy).stdout
    assert uncommented(text)["events"]["cleanup.policy"] == ["compact", "delete"]


@pytest.mark.thorough
def test_who_names_one_disk_is_told_where_the_policies_lie(pylog, tmp_path: Path):
    disks = unpack_archive(GOLDEN / "two-disks" / "before.tar.gz", tmp_path)
    alone = pylog("config", "init", disks / "d2").stdout
    assert f"# {disks}/d2 has no __cluster_metadata: policies are not known." in alone
    assert uncommented(alone)["orders"]["cleanup.policy"] == "delete"
    both = pylog("config", "init", disks / "d1", disks / "d2").stdout
    assert "policies are not known" not in both
    assert yaml.safe_load(both) == {"topics": None}


@pytest.mark.parametrize(
    ("topic", "policy"),
    [
        ("app-store-changelog", "compact"),
        ("app-x-repartition", "delete"),
        ("connect-offsets", "compact"),
        ("_schemas", "compact"),
        ("__share_group_state", "delete"),
        ("orders", "delete"),
    ],
)
def test_names_of_programs_are_known_and_others_have_the_default(
    pylog, tmp_path: Path, topic: str, policy: str
):
    write_partition(tmp_path / f"{topic}-0", [SegmentSpec(base_offset=0, batches=[])])
    text = pylog("config", "init", tmp_path).stdout
    entry = uncommented(text)[topic]
    assert entry["cleanup.policy"] == policy
    assert ("by its name" in text) == (topic != "orders")
    if topic == "__share_group_state":
        assert entry["retention.ms"] == -1


def test_what_the_cluster_knows_is_left_out(pylog, broker_dir: Path):
    text = pylog("config", "init", broker_dir).stdout
    assert yaml.safe_load(text) == {"topics": None}
    assert "topics are left out: the cluster's metadata has theirs" in text
    assert "compacted" not in text.partition("topics:")[2]


@pytest.mark.thorough
def test_topics_are_chosen_and_roots_added_up(pylog, copy: Path, tmp_path: Path):
    write_partition(tmp_path / "b" / "events-7", [SegmentSpec(base_offset=0, batches=[])])
    text = pylog("config", "init", copy, tmp_path / "b", "--topics", "events").stdout
    assert list(uncommented(text)) == ["events"]
    assert "3 partitions, 10 segments" in text


@pytest.mark.thorough
def test_replicas_of_one_partition_are_one_partition(pylog, copy: Path, tmp_path: Path):
    write_partition(tmp_path / "b" / "events-1", [SegmentSpec(base_offset=0, batches=[])])
    text = pylog("config", "init", copy, tmp_path / "b", "--topics", "events").stdout
    assert "2 partitions, 3 replicas, 10 segments" in text


@pytest.mark.thorough
def test_what_cannot_be_read_is_named_and_the_rest_is_there(pylog, copy: Path):
    for index in (copy / "events-0").glob("*.index"):
        index.unlink()
    assert pylog("config", "init", copy).exit_code == ExitCode.DONE
    (copy / "events-0" / "leader-epoch-checkpoint").write_text("nonsense")
    result = pylog("config", "init", copy)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "# Could not be read: events-0: " in result.stdout
    assert "compacted" in uncommented(result.stdout)


@pytest.mark.thorough
def test_every_refusal_for_want_of_a_config_ends_in_the_command(pylog, copy: Path):
    command = f"`pylog config init '{copy}' > topics.yaml`"
    for words in (
        ["survey", copy],
        ["run", copy, "--role", "broker", "--dry-run"],
        ["explain", copy],
    ):
        result = pylog(*words)
        (note,) = [line for line in result.stdout.splitlines() if "CONFIG_UNKNOWN" in line]
        assert command in note
        assert note.startswith(f"{copy}: 13 partitions of 7 topics")
        assert "events-0" not in result.stdout
        assert "events-0" in pylog(*words, "--wide").stdout
    for words in (["survey", copy], ["run", copy, "--role", "broker", "--dry-run"]):
        last = json.loads(pylog(*words, "--output", "json").stdout.splitlines()[-1])
        assert any(command in note for note in last["notes"])
    row = json.loads(pylog("explain", copy, "--output", "json").stdout.splitlines()[0])
    assert row["fix"] == f"pylog config init '{copy}'"


@pytest.mark.thorough
def test_a_file_that_is_being_filled_in_is_not_written_over_by_what_is_copied(
    pylog, copy: Path, tmp_path: Path
):
    file = tmp_path / "topics.yaml"
    file.write_text("topics:\n  compacted: {cleanup.policy: compact}\n")
    for words in (
        ["survey", copy],
        ["run", copy, "--role", "broker", "--dry-run"],
        ["explain", copy],
    ):
        text = pylog(*words, "--config", file).stdout
        (note,) = [line for line in text.splitlines() if "CONFIG_UNKNOWN" in line]
        assert f"not {file} either; `pylog config init '{copy}'` prints" in note
        assert ">" not in note


@pytest.mark.thorough
def test_a_dry_run_says_that_it_would_be_refused_without_a_role(pylog, copy: Path):
    said = "without --dry-run this is refused: ROLE_NOT_SAID"
    assert said in pylog("compact", copy, "--dry-run").stdout
    assert said not in pylog("compact", copy, "--dry-run", "--role", "broker").stdout
