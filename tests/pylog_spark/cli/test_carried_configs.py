"""A managed root has the configs of its topics from its ingest on; nights need no ``--config``."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.filenames import TOPIC_CONFIGS_FILE
from tests.kit.golden_broker import broker_origin, unpack_broker
from tests.pylog_spark.cli.test_jobs import lines_of

HERE = ("--engine", "local", "--output", "json")
NIGHT = ("--role", "managed", "--max-delete-ratio", "1", *HERE)


@pytest.fixture
def take(pylog, tmp_path: Path):
    """Ingest a mirror; return the notes of the run."""

    def ingest(mirror: Path, *more: object) -> list[str]:
        words = ("--sync-stopped", "--settle", "0s", *HERE, *more)
        result = pylog.done("ingest", mirror, tmp_path / "managed", *words)
        notes: list[str] = lines_of(result)[-1]["notes"]
        return notes

    return ingest


def carried(managed: Path) -> dict[str, dict[str, str]]:
    topics: dict[str, dict[str, str]] = json.loads((managed / TOPIC_CONFIGS_FILE).read_text())[
        "topics"
    ]
    return topics


def reasons(result: Any) -> dict[str, str | None]:
    *rows, _ = lines_of(result)
    return {
        f"{row['topic']}-{row['partition']}": row["reason"]
        for row in rows
        if row["type"] == "result" and row["topic"]
    }


@pytest.mark.thorough
def test_a_night_needs_no_config_and_does_what_it_does_to_the_broker(pylog, take, tmp_path: Path):
    mirror, managed = unpack_broker(tmp_path / "mirror"), tmp_path / "managed"
    take(mirror)
    said = carried(managed)
    assert "second_hand" not in json.loads((managed / TOPIC_CONFIGS_FILE).read_text())
    # What its owner set of each topic, as the cluster's own metadata has it.
    for topic, origin in broker_origin()["topics"].items():
        assert origin["config"].items() <= said[topic].items(), topic
    shown = pylog.rows("inspect", managed)
    policies = {row["topic"]: row["cleanup_policy"] for row in shown if row["type"] == "partition"}
    assert policies == {topic: own["cleanup.policy"] for topic, own in said.items()}
    result = pylog.done("run", managed, *NIGHT)
    assert "CONFIG_UNKNOWN" not in result.stdout
    run = lines_of(result)[-1]
    assert any(f"{TOPIC_CONFIGS_FILE}: configs of {len(said)} topics" in n for n in run["notes"])
    # The same night over the broker's own directory, by its own metadata.
    own = pylog.done("run", mirror, "--role", "broker", "--max-delete-ratio", "1", *HERE)
    done = {name for name, reason in reasons(own).items() if reason is None}
    assert done
    assert {name for name, reason in reasons(result).items() if reason is None} >= done


@pytest.mark.thorough
def test_a_config_file_wins(pylog, take, tmp_path: Path):
    mirror, managed = unpack_broker(tmp_path / "mirror"), tmp_path / "managed"
    take(mirror)
    topic = "orders-by-id"
    file = tmp_path / "topics.yaml"
    file.write_text(f"topics:\n  {topic}: {{cleanup.policy: delete}}\n")
    words = ("--topics", topic, "--dry-run", *NIGHT)
    assert set(reasons(pylog("compact", managed, *words)).values()) != {"NOT_COMPACTED"}
    found = pylog("compact", managed, *words, "--config", file)
    assert set(reasons(found).values()) == {"NOT_COMPACTED"}


@pytest.mark.thorough
def test_topics_without_configs_are_counted_and_keep_what_was_said_once(
    pylog, take, tmp_path: Path
):
    mirror, managed = unpack_broker(tmp_path / "mirror"), tmp_path / "managed"
    shutil.rmtree(mirror / "__cluster_metadata-0")
    [note] = [note for note in take(mirror) if "CONFIG_UNKNOWN" in note]
    assert "carries configs of 0 topics" in note
    assert not (managed / TOPIC_CONFIGS_FILE).exists()
    assert pylog("run", managed, *NIGHT).exit_code == ExitCode.REFUSED
    file = tmp_path / "topics.yaml"
    file.write_text('topics:\n  "*": {cleanup.policy: delete, retention.ms: "-1"}\n')
    assert [note for note in take(mirror, "--config", file) if "CONFIG_UNKNOWN" in note] == []
    before = json.loads((managed / TOPIC_CONFIGS_FILE).read_text())
    # Retention doubts them, as it doubts a --config of its own.
    assert set(before["second_hand"]) == set(before["topics"])
    own = {name for name in before["topics"] if not name.startswith("__")}
    assert own
    assert all(before["topics"][name]["retention.ms"] == "-1" for name in own)
    # Later ingests say no configs: the root keeps them, and how old they are.
    take(mirror)
    assert json.loads((managed / TOPIC_CONFIGS_FILE).read_text()) == before
    assert pylog("run", managed, *NIGHT).exit_code == ExitCode.DONE


@pytest.mark.thorough
def test_what_others_wrote_decides_nothing(pylog, take, tmp_path: Path):
    mirror, managed = unpack_broker(tmp_path / "mirror"), tmp_path / "managed"
    take(mirror)
    file = managed / TOPIC_CONFIGS_FILE
    file.chmod(0o666)
    result = pylog("run", managed, *NIGHT)
    assert (result.exit_code, result.stdout) == (ExitCode.FAILED, "")
    assert f"{file}: may be written by everybody" in result.stderr
    file.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(file, 12_345, 12_345)
        result = pylog("run", managed, *NIGHT)
        assert (result.exit_code, result.stdout) == (ExitCode.FAILED, "")
        assert f"{file}: belongs to user 12345" in result.stderr
        os.chown(file, 0, 0)
    file.write_text(
        '{"format": "pylog-topics", "version": 1, "taken_ms": 1, "topics": {"../x": {}}}'
    )
    result = pylog("run", managed, *NIGHT)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "remove it, and the next `pylog ingest` writes it anew" in result.stderr
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere.json")
    assert pylog("run", managed, *NIGHT).exit_code == ExitCode.FAILED


@pytest.mark.thorough
@pytest.mark.parametrize("said", ["by the cluster", "by a file"])
def test_a_limit_of_an_ingests_config_file_is_one_at_second_hand(
    pylog, take, tmp_path: Path, said: str
):
    mirror, managed = unpack_broker(tmp_path / "mirror"), tmp_path / "managed"
    config = tmp_path / "topics.yaml"
    config.write_text("topics:\n  clickstream: {retention.bytes: 40000}\n")
    take(mirror, *(("--config", config) if said == "by a file" else ()))
    words = ("--role", "managed", "--topics", "clickstream", *HERE)
    found = reasons(pylog("retain", managed, *words))
    refused = {name for name, reason in found.items() if reason == "DELETES_TOO_MUCH"}
    assert bool(refused) == (said == "by a file")
