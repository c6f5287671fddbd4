"""``pylog undo``, ``purge`` and ``apply`` from the command line: statuses and what is printed."""

from pathlib import Path

import pytest

from pylog_spark.cli import jobs
from storage_core.errors import ConfigError
from storage_core.store.generations import create_root
from storage_core.store.local_objects import LocalObjectStore
from tests.kit.golden_data import Golden
from tests.kit.program import lines_of
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.cli.test_jobs import options_of

SMALL = "clean-headers-none-s101"


def test_a_run_that_the_trash_does_not_know_is_wrong_usage(pylog, tmp_path):
    result = pylog("undo", "20260102T030405Z-0a1b2c3d", "--trash", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no run of that name, nor any other" in " ".join(result.stderr.split())
    absent = pylog("undo", "20260102T030405Z-0a1b2c3d", "--trash", tmp_path / "absent")
    assert "there is no trash" in absent.stderr
    assert pylog("undo", "x").exit_code == 2
    assert pylog("undo", "x", "--trash", "s3://bucket/trash").exit_code == 2


@pytest.mark.thorough
def test_purge_lists_and_then_removes(pylog, tmp_path):
    root = Golden("broker-dir").unpack(tmp_path)
    waiting = root / "events-0" / "00000000000000000007.log.deleted"
    waiting.write_bytes(b"12345")
    said = (root, "--role", "broker", "--now-ms", 2 * 10**12, "--output", "json")
    result = pylog.done("purge", *said, "--dry-run")
    row, run = lines_of(result)
    assert (row["status"], row["bytes_before"]) == ("planned", 5)
    assert (run["action"], run["dry_run"]) == ("purge", True)
    assert waiting.exists()
    assert pylog("purge", *said).exit_code == 0
    assert not waiting.exists()
    assert pylog("purge").exit_code == 2
    assert pylog("purge", root).exit_code == 3
    assert pylog("purge", "--trash", tmp_path, "--older-than", "soon").exit_code == 2


@pytest.mark.thorough
def test_a_glob_that_matches_no_topic_is_noted_by_purge(pylog, tmp_path):
    root = Golden("broker-dir").unpack(tmp_path)
    said = ("purge", root, "--role", "broker", "--now-ms", 2 * 10**12, "--output", "json")
    missed = "no partition there is of a topic that --topics and --exclude ask for"
    for dry in ((), ("--dry-run",)):
        [run] = lines_of(pylog(*said, *dry, "--topics", "nope*"))
        pattern = f"--topics 'nope*' matches no topic in {root}"
        assert (run["notes"], run["exit_code"]) == ([pattern, f"{root}: {missed}"], 0)
        # There is such a topic, and nothing of it to purge.
        [run] = lines_of(pylog(*said, *dry, "--topics", "events"))
        assert run["notes"] == []


@pytest.mark.thorough
def test_a_trash_that_cannot_be_written_at_last_hides_no_undo(pylog, tmp_path, monkeypatch):
    root = broker_directory(tmp_path / "log", [SMALL])
    trash, here = tmp_path / "trash", ("--engine", "local", "--output", "json")
    said = (*options_of(root, tmp_path), "--trash", trash, *here)
    run = lines_of(pylog("compact", *said))[-1]
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if trash in path.parents and "marker" in path.name:
            raise OSError(30, "Read-only file system", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    row, end = pylog.rows("undo", run["run_id"], "--trash", trash)
    assert (row["topic"], row["status"], end["done"]) == (SMALL, "done", 1)
    assert any("Read-only file system" in note for note in end["notes"])


@pytest.mark.parametrize(
    ("trash", "said"),
    [("file:///x/t", "/x/t"), ("x/../t", "{cwd}/t"), ("/x/t", "/x/t"), (None, None)],
)
def test_apply_takes_a_trash_as_every_other_command_does(pylog, tmp_path, monkeypatch, trash, said):
    asked: list = []

    def read_nothing(_plan, _path, anew):
        asked.append(anew)
        raise ConfigError("PLAN", "plan.json", "is none")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "read_plan_file", lambda _: None)
    monkeypatch.setattr("pylog_spark.operations.apply.options_of", read_nothing)
    result = pylog("apply", "plan.json", *(("--trash", trash) if trash else ()))
    assert "plan.json: is none" in result.stderr
    (anew,) = asked
    assert anew.trash == (said and said.format(cwd=tmp_path))
    # The plan says whether the marker is written, unless the command line says that it is not.
    assert anew.mark_clean is None


def test_apply_refuses_a_trash_that_is_on_no_disk_of_this_machine(pylog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").touch()
    result = pylog("apply", "plan.json", "--trash", "s3://bucket/trash")
    assert result.exit_code == 2
    assert "--trash" in result.stderr
    assert "expected a folder of this machine" in result.stderr


def test_a_managed_root_without_such_partitions_is_noted_by_purge(pylog, tmp_path):
    create_root(LocalObjectStore(tmp_path), now_ms=1)
    (tmp_path / "orders-0").mkdir()
    said = ("purge", f"managed+{tmp_path}", "--dry-run", "--output", "json")
    (tmp_path / "orders-0" / "x").write_bytes(b"")
    for glob, is_there in (("orders", True), ("nope*", False)):
        [run] = lines_of(pylog(*said, "--topics", glob))
        assert (run["notes"] == []) == is_there, run


@pytest.mark.thorough
@pytest.mark.spark
def test_plan_apply_and_undo_make_a_circle(pylog, spark, tmp_path, monkeypatch):
    monkeypatch.setattr("pylog_spark.session.build_session", lambda *_, **__: spark)
    root = broker_directory(tmp_path / "log", [SMALL])
    directory = root.path / f"{SMALL}-0"
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    config = tmp_path / "topics.yaml"
    settings = "".join(f"    {key}: '{text}'\n" for key, text in root.configs[SMALL].items())
    config.write_text(f"topics:\n  {SMALL}:\n{settings}")
    plan, trash = tmp_path / "plan.json", tmp_path / "trash"
    said = ("--config", config, "--now-ms", FIRST_ROUNDS_MS, "--output", "json")
    result = pylog.done("compact", root.path, *said, "--dry-run=exact", "--plan-out", plan)
    planned, run = lines_of(result)
    assert run["dry_run"] is True
    assert planned["records_after"] < planned["records_before"]
    # The role was not said for the dry run; whatever writes needs it.
    assert pylog("apply", plan, "--trash", trash).exit_code == 3
    result = pylog.done(
        "compact", root.path, *said, "--role", "broker", "--dry-run", "--plan-out", plan
    )
    result = pylog.done("apply", plan, "--trash", trash, "--output", "json")
    *rows, run = lines_of(result)
    done = [row for row in rows if row["type"] == "result"]
    assert [(row["status"], row["bytes_after"]) for row in done] == [
        ("done", planned["bytes_after"])
    ]
    assert {path.name: path.read_bytes() for path in directory.iterdir()} != before
    result = pylog("apply", plan, "--output", "json")
    assert result.exit_code == 3
    assert "changed since the plan was made" in lines_of(result)[0]["error"]
    said = ("undo", run["run_id"], "--trash", trash, "--output", "json")
    [nothing] = lines_of(pylog(*said, "--topics", "nope*", "--dry-run"))
    left = "the run left nothing to undo there of a topic that --topics and --exclude ask for"
    assert f"{root.path}: {left}" in nothing["notes"]
    result = pylog.done(*said)
    assert not any("left nothing" in note for note in lines_of(result)[-1]["notes"])
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert list(Path(trash).iterdir()) == [Path(trash, run["run_id"])]
