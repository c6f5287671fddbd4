"""``pylog recover``: options in, rows, cuts and an exit status out."""

import json
from pathlib import Path

import pytest
import yaml

from pylog_spark.exit_code import ExitCode
from pylog_spark.schemas import CUT, RESULT
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, LEADER_EPOCH_FILE
from storage_core.formats.batch_v2 import LEADER_EPOCH_AT
from tests.kit.compare import read_tree
from tests.kit.file_damage import flip
from tests.kit.program import lines_of
from tests.pylog_spark.crashed_roots import (
    MARKER_OF_OURS,
    NOW_MS,
    CrashedRoot,
    crashed_directory,
    forget_high_watermarks,
    logs_of,
    tear,
)
from tests.storage_core.maintenance.verification.log_root import log_root

TORN, WHOLE = "clean-group-all-s211", "clean-epochs-mixed-s151"


@pytest.fixture
def root(tmp_path: Path) -> CrashedRoot:
    made = crashed_directory(tmp_path / "log", [TORN, WHOLE])
    forget_high_watermarks(made.path)
    tear(made.path / f"{TORN}-0")
    return made


def options_of(root: CrashedRoot, folder: Path) -> list[object]:
    file = folder / "topics.yaml"
    file.write_text(yaml.safe_dump({"topics": dict(root.options.topic_configs)}))
    return [root.path, "--config", file, "--now-ms", NOW_MS, "--role", "broker"]


def tree_of(root: Path) -> dict[str, dict[str, bytes]]:
    return {path.name: read_tree(path) for path in [root, *root.iterdir()] if path.is_dir()}


@pytest.mark.thorough
@pytest.mark.spark
def test_json_has_a_line_a_partition_one_a_cut_and_one_of_the_run(spark, pylog, root, tmp_path):
    arguments = [*options_of(root, tmp_path), "--output", "json"]
    before = tree_of(root.path)
    said = pylog.done("recover", *arguments, "--dry-run")
    assert tree_of(root.path) == before
    done = pylog.done("recover", *arguments, "--salvage", tmp_path / "salvage")
    *rows, cut, run = lines_of(done)
    assert [list(row) for row in rows] == [["type", *RESULT.names]] * 2
    assert {(row["type"], row["status"], row["action"]) for row in rows} == {
        ("result", "done", "recover")
    }
    assert list(cut) == ["type", *CUT.names]
    assert (cut["type"], cut["topic"], cut["is_whole_segment"]) == ("cut", TORN, False)
    assert Path(cut["salvaged_to"]).is_relative_to(tmp_path / "salvage" / run["run_id"])
    assert (run["type"], run["done"], run["exit_code"], run["dry_run"]) == ("run", 2, 0, False)
    *planned, would_cut, dry = lines_of(said)
    assert (dry["planned"], dry["dry_run"]) == (2, True)
    assert {row["status"] for row in planned} == {"planned"}
    plan = next(row["plan"] for row in planned if row["topic"] == TORN)
    assert (plan["log_end_offset"], plan["high_watermark"]) == (cut["first_offset"], None)
    assert plan["rebuilt_segments"] > 1
    assert {"TruncateFile", "WriteFile"} <= {step["operation"] for step in plan["operations"]}
    assert would_cut == cut | {"salvaged_to": None, "status": "planned"}
    assert (root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS


@pytest.mark.sampled(2)
@pytest.mark.spark
@pytest.mark.parametrize(
    ("level", "status"),
    [("never", ExitCode.DONE), ("warn", ExitCode.FINDINGS), ("error", ExitCode.DONE)],
)
def test_cuts_are_findings_where_somebody_asks(spark, pylog, root, tmp_path, level, status):
    arguments = [*options_of(root, tmp_path), "--dry-run", "--output", "json"]
    result = pylog("recover", *arguments, "--fail-on", level)
    assert result.exit_code == status
    assert lines_of(result)[-1]["exit_code"] == status


@pytest.mark.thorough
@pytest.mark.spark
def test_a_cut_of_batches_that_can_be_read_is_an_error(spark, pylog, root, tmp_path):
    log = logs_of(root.path / f"{TORN}-0")[1]
    flip(log, 40)
    arguments = [*options_of(root, tmp_path), "--dry-run", "--fail-on", "error"]
    assert pylog("recover", *arguments).exit_code == ExitCode.REFUSED
    assert pylog("recover", *arguments, "--allow-truncate").exit_code == ExitCode.FINDINGS


@pytest.mark.spark
def test_a_refused_cut_ends_with_three_and_says_how_to_allow_it(spark, pylog, root, tmp_path):
    arguments = [*options_of(root, tmp_path), "--output", "json", "--max-truncate-bytes", 0]
    result = pylog("recover", *arguments)
    assert result.exit_code == ExitCode.REFUSED
    row = next(line for line in lines_of(result) if line.get("topic") == TORN)
    assert (row["status"], row["reason"]) == ("skipped", "CUTS_TOO_MUCH")
    assert "override: --max-truncate-bytes" in row["error"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--salvage", "LOG/salvage"], "lies inside the log directory"),
        (["--max-truncate-bytes", "many"], "whole number"),
        (["--fail-on", "sometimes"], "fail-on"),
    ],
    ids=str,
)
def test_wrong_usage_has_its_status(pylog, root, tmp_path, change, said):
    words = [word.replace("LOG", str(root.path)) for word in change]
    result = pylog("recover", *options_of(root, tmp_path), *words)
    assert result.exit_code == ExitCode.USAGE
    assert said in " ".join(result.stderr.split())


def test_partition_recover_says_first_what_it_would_do(pylog, root):
    directory = root.path / f"{TORN}-0"
    before = read_tree(directory)
    settings = [
        word
        for key, value in root.configs[directory.name].items()
        for word in ("--set", f"{key}={value}")
    ]
    arguments = ["recover", directory, "--now-ms", NOW_MS, *settings]
    said = json.loads(pylog("partition", *arguments, "--dry-run").stdout)
    assert read_tree(directory) == before
    done = json.loads(pylog("partition", *arguments).stdout)
    assert {name: said[name] for name in done} == done
    assert said["dry_run"] is True
    [cut] = said["cuts"]
    assert cut["size_bytes"] == done["truncated_bytes"] > 0
    assert "TruncateFile" in {step["operation"] for step in said["operations"]}
    again = json.loads(pylog("partition", *arguments).stdout)
    assert again["truncated_bytes"] == 0


def test_partition_truncate_says_first_what_it_would_do(pylog, root):
    directory = root.path / f"{WHOLE}-0"
    before = read_tree(directory)
    settings = [
        word
        for key, value in root.configs[directory.name].items()
        for word in ("--set", f"{key}={value}")
    ]
    arguments = ["truncate", directory, "--now-ms", NOW_MS, "--to", 20, *settings]
    said = json.loads(pylog("partition", *arguments, "--dry-run").stdout)
    assert read_tree(directory) == before
    done = json.loads(pylog("partition", *arguments).stdout)
    assert (said["truncated"], said["log_end_offset"]) == (True, done["log_end_offset"])
    assert done["log_end_offset"] <= 20


@pytest.mark.thorough
def test_a_flipped_epoch_is_written_as_a_broker_writes_it_and_named(pylog, tmp_path):
    """``recover-flip-leader-epoch`` of the golden data is Kafka's answer: it believes the epoch."""
    root = log_root(tmp_path / "log")
    size = 12 + int.from_bytes(root.file(20).read_bytes()[8:12])
    root.change(root.file(20), size + LEADER_EPOCH_AT, (1_000_000).to_bytes(4))
    words = ("--role", "broker", "--from-start", "--engine", "local", "--wide")
    named = "t-0: leader epoch 1000000 at offset 25 is not believed"
    for more in (("--dry-run",), ()):
        done = pylog.done("recover", root.path, *words, *more)
        assert named in " ".join(done.stdout.split())
    epochs = (root.partition / LEADER_EPOCH_FILE).read_text()
    assert epochs == "0\n3\n0 5\n3 15\n1000000 25\n"
    # The neighbours say it still, when the file does not any more.
    verified = pylog("verify", root.path, "--role", "broker", "--engine", "local", "--wide")
    assert "EPOCH_DOUBTFUL" in verified.stdout
