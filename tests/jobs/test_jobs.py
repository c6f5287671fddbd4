"""The job scripts under real spark-submit: one machine, a standalone cluster, code from a zip."""

import json
import os
import runpy
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import pylog_spark.cli
from tests.jobs.spark_programs import (
    REPOSITORY,
    executor_settings,
    standalone_cluster,
    submit,
    write_config,
)
from tests.kit.spark_classes import INTERPRETED
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    LATER_ROUNDS,
    LATER_ROUNDS_MS,
    BrokerDirectory,
    broker_directory,
    differences_from_kafka,
    expected_points,
    read_points,
)

pytestmark = pytest.mark.spark

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161", "clean-group-all-s211"]
JOBS = REPOSITORY / "jobs"
COMPACT, NIGHTLY = JOBS / "compact.py", JOBS / "nightly.py"
COMMANDS = {path: path.stem for path in sorted(JOBS.glob("*.py"))} | {NIGHTLY: "run"}


def options(root: BrokerDirectory, tmp_path: Path, now_ms: int = FIRST_ROUNDS_MS) -> list[str]:
    config = write_config(root, tmp_path / "conf.yaml")
    return [str(root.path), "--role", "broker", "--config", str(config), "--now-ms", str(now_ms)]


@pytest.mark.parametrize("script", COMMANDS, ids=lambda path: path.stem)
def test_a_job_is_its_command(script, monkeypatch):
    called = []
    monkeypatch.setattr(pylog_spark.cli, "main", called.append)
    monkeypatch.setattr(sys, "argv", [str(script), "root", "--dry-run"])
    runpy.run_path(str(script), run_name="__main__")
    assert called == [[COMMANDS[script], "root", "--dry-run"]]
    assert len(script.read_text().splitlines()) < 40


@pytest.mark.thorough
def test_the_help_of_a_job_needs_no_cluster():
    ended = submit([NIGHTLY, "--help"])
    assert ended.status == 0
    assert "--dry-run" in ended.output


@pytest.mark.thorough
def test_the_nightly_on_this_machine_ends_with_four_when_a_partition_failed(tmp_path):
    root = broker_directory(tmp_path / "log", NAMES)
    os.truncate(min((root.path / f"{NAMES[0]}-0").glob("*.log")), 100)
    ended = submit(["--master", "local[2]", NIGHTLY, *options(root, tmp_path), "--output", "json"])
    assert ended.status == 4, ended.output + ended.errors
    rows = [json.loads(line) for line in ended.output.splitlines()]
    statuses = [row["status"] for row in rows if row["type"] == "result"]
    assert sorted(statuses) == ["done", "done", "failed"]
    assert differences_from_kafka(root.path, NAMES[1:], tmp_path) == []


@pytest.mark.thorough
def test_a_job_on_a_cluster_takes_the_code_from_a_zip_and_leaves_what_kafka_left(tmp_path):
    """Driver and executors run a Python that has this project from the archive alone."""
    root = broker_directory(tmp_path / "log", LATER_ROUNDS)
    archive = zip_packages(tmp_path / "pylog.zip")
    (tmp_path / "where.py").write_text(
        "import runpy, storage_core, pylog_spark, sys\n"
        "sys.stderr.write(f'FROM {storage_core.__file__} {pylog_spark.__file__}\\n')\n"
        f"runpy.run_path({str(COMPACT)!r}, run_name='__main__')\n"
    )
    conf = executor_settings() | INTERPRETED
    settings = [word for setting in conf.items() for word in ("--conf", "=".join(setting))]
    # One byte a task: every segment and every group is a task of its own.
    tuning = ["--set", "unit.min.bytes=1", "--set", "unit.max.bytes=1"]
    with standalone_cluster(tmp_path / "cluster") as url:
        ended = submit(
            [
                *("--master", url, "--executor-memory", "512m", *settings),
                *("--py-files", archive, tmp_path / "where.py"),
                *(*options(root, tmp_path, LATER_ROUNDS_MS), *tuning),
            ],
            folder=tmp_path,
            python=environment_without_project(tmp_path / "env"),
        )
    assert ended.status == 0, ended.output + ended.errors
    # spark-submit lets a script's standard error follow its standard output.
    assert f"FROM {archive}/storage_core" in ended.output
    assert differences_from_kafka(root.path, LATER_ROUNDS, tmp_path) == []
    assert read_points(root.path) == expected_points(LATER_ROUNDS)


def zip_packages(archive: Path) -> Path:
    """Pack the packages as a person would for --py-files."""
    with zipfile.ZipFile(archive, "w") as content:
        for package in ("storage_core", "pylog_spark"):
            for path in sorted((REPOSITORY / package).rglob("*.py")):
                content.write(path, path.relative_to(REPOSITORY))
    return archive


def environment_without_project(folder: Path) -> str:
    """Return a Python that has all packages that this one has, but not this project."""
    venv.create(folder, symlinks=True)
    ours = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    site = next((folder / "lib").glob("python*/site-packages"))
    for path in ours.iterdir():
        is_project = path.name.startswith(("__editable__", "_editable", "pylog_spark"))
        if not is_project and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    return str(folder / "bin" / "python")
