"""``pylog run`` and ``pylog compact``: options in, rows and an exit status out."""

from pathlib import Path

import pytest
import yaml

from pylog_spark.exit_code import ExitCode
from storage_core.errors import StorageError
from tests.kit.compare import read_tree
from tests.kit.program import lines_of
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, BrokerDirectory, broker_directory

NAMES = ["clean-headers-none-s101", "clean-nullkeys-none-s101"]


def options_of(root: BrokerDirectory, folder: Path) -> list[object]:
    """Return the command line that describes a directory without metadata of its own."""
    file = folder / "topics.yaml"
    file.write_text(yaml.safe_dump({"topics": root.configs}))
    return [root.path, "--config", file, "--now-ms", FIRST_ROUNDS_MS, "--role", "broker"]


def tree_of(root: Path) -> dict[str, dict[str, bytes]]:
    folders = [path for path in root.iterdir() if path.is_dir()]
    return {path.name: read_tree(path) for path in [root, *folders]}


@pytest.fixture
def root(tmp_path: Path) -> BrokerDirectory:
    return broker_directory(tmp_path / "log", NAMES)


@pytest.mark.spark
def test_topics_are_chosen_and_settings_overridden_on_the_command_line(
    spark, pylog, root, tmp_path
):
    arguments = [*options_of(root, tmp_path), "--dry-run", "--output", "json"]
    chosen = lines_of(pylog("compact", *arguments, "--topics", "clean-h*"))[:-1]
    assert [row["topic"] for row in chosen] == ["clean-headers-none-s101"]
    others = lines_of(pylog("compact", *arguments, "--exclude", "clean-h*"))[:-1]
    assert [row["topic"] for row in others] == ["clean-nullkeys-none-s101"]
    deleted = lines_of(pylog("compact", *arguments, "--set", "cleanup.policy=delete"))[:-1]
    assert {row["reason"] for row in deleted} == {"NOT_COMPACTED"}


@pytest.mark.parametrize("job", ["run", "compact", "retain", "recover"])
def test_a_role_that_nobody_said_is_refused_before_spark_starts(pylog, root, tmp_path, job):
    result = pylog(job, *options_of(root, tmp_path)[:-2])
    assert result.exit_code == ExitCode.REFUSED
    assert "--role broker" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (["--role", "mirror"], ExitCode.REFUSED, "mirror"),
        (["--role", "boss"], ExitCode.USAGE, "role"),
        (["--set", "retention.mss=1"], ExitCode.USAGE, "did you mean retention.ms?"),
        (["--config", "nowhere.yaml"], ExitCode.USAGE, "nowhere.yaml"),
        (["--server-properties", "nowhere"], ExitCode.USAGE, "nowhere"),
        (["--now-ms", "now"], ExitCode.USAGE, "whole number"),
        (["--high-watermark", "7"], ExitCode.USAGE, "log-end"),
    ],
    ids=str,
)
def test_wrong_usage_and_guards_have_their_status(pylog, root, tmp_path, change, status, said):
    result = pylog("compact", *options_of(root, tmp_path), *change)
    assert result.exit_code == status
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize("command", ["compact --role broker", "verify", "inspect"])
def test_a_root_that_is_not_there_is_wrong_usage(pylog, tmp_path: Path, command: str):
    result = pylog(*command.split(), tmp_path / "nowhere")
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.count("\n") == 1
    assert "no such directory" in result.stderr


@pytest.mark.parametrize("option", ["--report", "--plan-out"])
def test_a_file_that_could_not_be_written_at_the_end_is_refused_at_the_beginning(
    pylog, root, tmp_path, option: str
):
    before = tree_of(root.path)
    absent = pylog("run", *options_of(root, tmp_path), option, tmp_path / "no" / "file.html")
    assert (absent.exit_code, absent.stdout) == (ExitCode.USAGE, "")
    assert f"there is no folder {tmp_path / 'no'}" in absent.stderr
    folder = pylog("run", *options_of(root, tmp_path), option, tmp_path)
    assert "is a directory" in folder.stderr
    assert tree_of(root.path) == before


@pytest.mark.thorough
@pytest.mark.spark
def test_a_glob_that_matches_no_topic_is_noted(spark, pylog, root, tmp_path):
    arguments = [*options_of(root, tmp_path), "--dry-run", "--output", "json"]
    [run] = lines_of(pylog("compact", *arguments, "--topics", "orders-[eu]*"))
    assert run["notes"] == [
        f"{root.path}: no partition there is of a topic that --topics and --exclude ask for",
        f"--topics 'orders-[eu]*' matches no topic in {root.path}",
    ]
    assert lines_of(pylog("compact", *arguments))[-1]["notes"] == []


def test_a_root_is_asked_for(pylog):
    assert pylog("run", "--role", "broker").exit_code == ExitCode.USAGE


@pytest.mark.thorough
@pytest.mark.spark
def test_exported_configs_do_as_well_as_said_ones_and_their_age_is_in_the_report(
    spark, pylog, root, tmp_path
):
    dump = tmp_path / "topics.txt"
    dump.write_text(
        "".join(
            f"Dynamic configs for topic {topic} are:\n"
            + "".join(
                f"  {key}={text} sensitive=false synonyms={{}}\n" for key, text in config.items()
            )
            for topic, config in root.configs.items()
        )
    )
    plans = []
    said = options_of(root, tmp_path)[1:3]
    for source in (said, ["--topic-dump", dump]):
        clock = ["--now-ms", FIRST_ROUNDS_MS, "--dry-run", "--output", "json"]
        result = pylog.done("compact", root.path, *source, *clock)
        *rows, run = lines_of(result)
        plans.append({row["topic"]: (row["status"], row["plan"]) for row in rows})
        noted = [note for note in run["notes"] if "configs of 2 topics" in note]
        assert len(noted) == ("--topic-dump" in source)
    assert plans[0] == plans[1]
    assert {status for status, _ in plans[1].values()} == {"planned"}


def test_a_plan_that_cannot_be_saved_hides_no_answer(pylog, root, tmp_path, monkeypatch):
    def fail(path: Path, _plan: object) -> None:
        raise StorageError(str(path), "No space left on device")

    monkeypatch.setattr("pylog_spark.run.saved_plans.write_plan_file", fail)
    words = [*options_of(root, tmp_path), "--engine", "local", "--output", "json"]
    result = pylog("compact", *words, "--dry-run", "--plan-out", tmp_path / "plan.json")
    assert result.exit_code == ExitCode.FAILED
    *rows, run = lines_of(result)
    assert {row["status"] for row in rows} == {"planned"}
    assert (run["planned"], run["exit_code"]) == (2, ExitCode.FAILED)
    assert "the plan was not saved" in run["notes"][-1]


@pytest.mark.thorough
def test_a_page_that_cannot_be_written_hides_no_answer_though_it_is_quiet(
    pylog, root, tmp_path, monkeypatch
):
    def fail(path: Path, _page: object) -> None:
        raise StorageError(str(path), "No space left on device")

    monkeypatch.setattr("pylog_spark.cli.runner.write_page", fail)
    words = [*options_of(root, tmp_path), "--engine", "local", "--output", "json", "--quiet"]
    result = pylog("compact", *words, "--report", tmp_path / "page.html")
    assert result.exit_code == ExitCode.FAILED
    assert "No space left on device" in result.stderr
    *rows, run = lines_of(result)
    assert ({row["status"] for row in rows}, run["done"]) == ({"done"}, 2)


@pytest.mark.thorough
@pytest.mark.spark
def test_what_a_guard_refused_to_delete_is_counted_in_the_last_line(spark, pylog, tmp_path):
    root = broker_directory(tmp_path / "log", ["retain-size-s501", "retain-logstart-mid-s501"])
    words = ("retain", *options_of(root, tmp_path), "--dry-run", "--max-delete-ratio", "0.1")
    last = "1 refused to delete: DELETES_TOO_MUCH, --max-delete-ratio 1 allows it"
    assert pylog.done(*words).stdout.splitlines()[-1].endswith(last)
    *_, run = pylog.rows(*words)
    assert run["refused_deletions"] == [
        {"reason": "DELETES_TOO_MUCH", "partitions": 1, "allowed_by": "--max-delete-ratio 1"}
    ]
