"""``conf/databricks``: each key of the bundle by hand, and what its tasks run, in a hosted session.

``databricks bundle schema``, where that program is, says whether Databricks knows all of the keys.
"""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from pylog_spark.ledger.local_ledger import read_runs
from tests.kit.golden_broker import unpack_broker
from tests.pylog_spark.session_doubles import RefusingConf, ServerlessSession

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "conf" / "databricks"
BUNDLE = yaml.safe_load((FOLDER / "databricks.yml").read_text())
JOBS = BUNDLE["resources"]["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WHEEL = {"package_name", "entry_point", "parameters"}
EVERY_JOB = {"name", "max_concurrent_runs", "schedule", "parameters", "tasks"}


def only_task(name: str) -> dict[str, Any]:
    [task] = JOBS[name]["tasks"]
    return task


def names_in(text: str, of: str) -> set[str]:
    return set(re.findall(rf"{of}\.(\w+)\}}", text))


def test_the_bundle_has_these_keys_and_no_others():
    assert BUNDLE.keys() == {"bundle", "variables", "resources"}
    assert BUNDLE["bundle"] == {"name": "pylog"}
    assert all(one.keys() <= {"description", "default"} for one in BUNDLE["variables"].values())
    assert BUNDLE["resources"].keys() == {"jobs"}
    assert JOBS.keys() == {"pylog_nightly", "pylog_verify"}


def test_every_variable_is_declared_and_used():
    assert names_in((FOLDER / "databricks.yml").read_text(), "var") == BUNDLE["variables"].keys()


@pytest.mark.parametrize("name", JOBS)
def test_a_task_is_the_entry_point_of_the_wheel(name):
    task = only_task(name)["python_wheel_task"]
    assert task.keys() == WHEEL
    assert task["package_name"] == PROJECT["name"].replace("-", "_")
    assert task["entry_point"] in PROJECT["scripts"]
    # The session is the platform's, and so is its master.
    assert "--master" not in task["parameters"]
    declared = {parameter["name"] for parameter in JOBS[name]["parameters"]}
    assert names_in(" ".join(task["parameters"]), "job.parameters") == declared


def test_the_nightly_has_a_cluster_of_its_own_and_takes_the_wheel_as_a_library():
    job, task = JOBS["pylog_nightly"], only_task("pylog_nightly")
    assert job.keys() == EVERY_JOB | {"job_clusters"}
    assert task.keys() == {
        *("task_key", "job_cluster_key", "max_retries", "min_retry_interval_millis"),
        *("libraries", "python_wheel_task"),
    }
    [cluster] = job["job_clusters"]
    assert cluster["job_cluster_key"] == task["job_cluster_key"]
    assert cluster["new_cluster"].keys() == {
        *("spark_version", "node_type_id", "num_workers"),
        *("data_security_mode", "aws_attributes"),
    }
    wheel, s3fs = task["libraries"]
    assert wheel == {"whl": "../../dist/*.whl"}
    assert s3fs == {"pypi": {"package": PROJECT["optional-dependencies"]["s3"][0]}}


def test_the_look_is_serverless_which_has_environments_and_neither_clusters_nor_libraries():
    job, task = JOBS["pylog_verify"], only_task("pylog_verify")
    assert job.keys() == EVERY_JOB | {"environments"}
    assert task.keys() == {"task_key", "environment_key", "python_wheel_task"}
    [environment] = job["environments"]
    assert environment["environment_key"] == task["environment_key"]
    assert environment["spec"].keys() == {"environment_version", "dependencies"}
    assert int(environment["spec"]["environment_version"]) >= 3  # Python 3.12; 2 has 3.11
    assert environment["spec"]["dependencies"] == ["../../dist/*.whl"]


@pytest.fixture
def hosted(spark, monkeypatch):
    """Call a task as the platform does: the entry point, in a process that has a session."""
    session = ServerlessSession(spark, RefusingConf({"spark.sql.shuffle.partitions": "auto"}))
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "client.4.0")
    monkeypatch.setattr(SparkSession, "active", lambda: session)

    def call(name: str, **values: Path | str) -> None:
        words = only_task(name)["python_wheel_task"]["parameters"]
        for key, value in values.items():
            words = [w.replace(f"{{{{job.parameters.{key}}}}}", str(value)) for w in words]
        monkeypatch.setattr("sys.argv", ["pylog", *words])
        [entry] = entry_points(group="console_scripts", name="pylog")
        assert entry.load()() is None
        assert spark.range(1).count() == 1

    return call


@pytest.mark.thorough
@pytest.mark.spark
def test_the_look_runs_in_a_serverless_session(hosted, tmp_path, capfd):
    mirror = unpack_broker(tmp_path / "mirror")
    hosted("pylog_verify", mirror=mirror, ledger=tmp_path / "ledger")
    assert "engine spark" in " ".join(capfd.readouterr().out.split())
    assert (tmp_path / "ledger" / "findings").is_dir()


@pytest.mark.thorough
@pytest.mark.spark
def test_the_nightly_runs_as_shipped_over_a_root_of_an_ingest(hosted, pylog, tmp_path):
    mirror, managed = unpack_broker(tmp_path / "mirror"), tmp_path / "managed"
    # Its records are years old: by the limits of its own metadata all of them would go.
    config = tmp_path / "topics.yaml"
    config.write_text('topics:\n  "*": {retention.ms: "-1"}\n')
    words = ("--sync-stopped", "--settle", "0s", "--engine", "local", "--config", config)
    assert pylog("ingest", mirror, managed, *words).exit_code == 0
    hosted("pylog_nightly", root=managed, ledger=tmp_path / "ledger")
    [start, end] = sorted(read_runs(str(tmp_path / "ledger")), key=lambda row: row["at"])
    assert (start["event"], end["event"], end["exit_code"]) == ("START", "END", 0)
    assert end["partitions_done"] > 0


@pytest.mark.spark
def test_what_fails_ends_the_task_with_its_status(hosted, tmp_path):
    with pytest.raises(SystemExit) as ended:
        hosted("pylog_verify", mirror=tmp_path / "nowhere", ledger=tmp_path / "ledger")
    assert ended.value.code == 2
