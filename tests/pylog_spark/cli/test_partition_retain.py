"""``pylog partition retain`` and ``clean --then-retain``: Kafka's passes on the command line."""

import json
from pathlib import Path

import pytest

from pylog_spark.cli import partition_clean
from pylog_spark.exit_code import ExitCode
from storage_core.errors import StorageError
from tests.kit.compare import compare_partitions, read_tree
from tests.kit.golden_cleaning import exactness_of
from tests.kit.golden_data import Golden, Side
from tests.pylog_spark.cli.test_partition import arguments_of

NAMES = ["retain-both-s501", "retain-time-all-s501", "retain-size-hw-s501", "retain-compact-s501"]


def retain_arguments(golden: Golden, directory: Path) -> list[object]:
    """Return the command line for what Kafka was asked to do."""
    case = golden.case
    config = {"retention.ms": -1, "retention.bytes": -1} | case["config"]
    config["internal.segment.bytes"] = config.pop("segment.bytes")
    found: list[object] = ["partition", "retain", directory, "--now-ms", case["clock_ms"]]
    for key, value in config.items():
        found += ["--set", f"{key}={value}"]
    for key, option in {"hw": "--high-watermark", "log.start": "--log-start-offset"}.items():
        if key in case["params"]:
            found += [option, case["params"][key]]
    return found


def differences(golden: Golden, directory: Path, tmp_path: Path) -> list[object]:
    after = golden.unpack(tmp_path / "after", Side.AFTER)
    return list(compare_partitions(read_tree(after), read_tree(directory), exactness_of(golden)))


@pytest.mark.parametrize("name", NAMES)
def test_the_command_leaves_and_answers_what_kafka_did(pylog, tmp_path, name):
    golden = Golden(name)
    directory = golden.unpack(tmp_path / "before")
    result = pylog.done(*retain_arguments(golden, directory))
    answer, expected = json.loads(result.stdout), golden.case["expected"]
    assert answer["deleted_segments"] == expected["deleted"]
    assert answer["log_start_offset"] == expected["log_start"]
    assert answer["log_end_offset"] == expected["leo"]
    assert answer["segments"] == len(expected["segments"])
    assert differences(golden, directory, tmp_path) == []


def test_a_dry_run_says_what_would_go_and_why_and_writes_nothing(pylog, tmp_path):
    golden = Golden("retain-both-s501")
    directory = golden.unpack(tmp_path / "before")
    before = read_tree(directory)
    answer = json.loads(pylog(*retain_arguments(golden, directory), "--dry-run").stdout)
    assert [(r["base_offset"], r["reason"]) for r in answer["removals"]] == [
        (0, "LOG_START"),
        (46, "SIZE"),
    ]
    assert [b["hold"] for b in answer["blocks"]] == [
        "ABOVE_LOG_START",
        "WITHIN_SIZE",
        "WITHIN_TIME",
    ]
    assert {step["operation"] for step in answer["operations"]} == {
        "WriteFile",
        "SyncDirectory",
        "DeleteFile",
    }
    assert read_tree(directory) == before


@pytest.mark.item("RET-12", "ERR-01", "APP-20")
def test_a_log_start_above_the_high_watermark_is_out_of_range(pylog, tmp_path):
    golden = Golden("retain-logstart-s501")
    directory = golden.unpack(tmp_path / "before")
    before = read_tree(directory)
    result = pylog(
        "partition",
        "retain",
        directory,
        *("--now-ms", 1, "--high-watermark", 50, "--log-start-offset", 51),
    )
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "offset 51 is out of range" in result.stderr
    assert read_tree(directory) == before


@pytest.mark.item("RET-15")
def test_a_tiered_topic_is_refused(pylog, tmp_path):
    directory = Golden("retain-size-s501").unpack(tmp_path)
    result = pylog(
        "partition", "retain", directory, "--now-ms", 1, "--set", "remote.storage.enable=true"
    )
    assert result.exit_code == ExitCode.USAGE
    assert "remote.storage.enable" in result.stderr


@pytest.mark.item("RET-13")
@pytest.mark.parametrize("name", ["compact-delete-none-s161-2", "logstart-segment-s201"])
def test_a_round_and_the_pass_after_it_leave_what_a_cleaner_thread_did(pylog, tmp_path, name):
    golden = Golden(f"swept-{name}")
    directory = golden.unpack(tmp_path / "before")
    result = pylog.done(*arguments_of(golden, directory), "--then-retain")
    answer, expected = json.loads(result.stdout), golden.case["expected"]
    assert answer["deleted_segments"] == expected["deleted"]
    assert answer["segments"] == len(expected["segments"])
    assert answer["next_offset"] == expected["next"]
    assert differences(golden, directory, tmp_path) == []


def test_an_error_of_the_pass_after_a_round_names_the_partition(pylog, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise StorageError("the disk", "is full")

    monkeypatch.setattr(partition_clean, "commit", fail)
    golden = Golden("swept-compact-delete-none-s161-2")
    directory = golden.unpack(tmp_path / "before")
    result = pylog(*arguments_of(golden, directory), "--then-retain")
    assert result.stderr == f"pylog: {directory}: the disk: is full\n"
