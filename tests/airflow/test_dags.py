"""``jobs/dags`` in a real Airflow: parsed, rendered, run over a directory that a broker left."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.golden_broker import unpack_broker

SIDE = Path(__file__).parent / "airflow_side.py"
DAGS = Path(__file__).parents[2] / "jobs" / "dags"
PYLOG = Path(sys.executable).parent / "pylog"
WHERE = ["s3://archive/kafka", "--role", "managed"]
RECORDED = ["--ledger", "s3://archive/ledger", "--engine", "auto"]

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory):
    """Ask Airflow's own Python, with a database of this module's own."""
    home = tmp_path_factory.mktemp("airflow")
    place = Path(os.environ["PYLOG_AIRFLOW"], "bin")
    environment = {name: text for name, text in os.environ.items() if "PYTHON" not in name} | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "PATH": f"{place}:/usr/bin:/bin",
    }

    def ask(*words: str) -> Any:
        ended = subprocess.run(
            [place / "python", SIDE, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout
        return json.loads(ended.stdout.rpartition("\nANSWER ")[2])

    migration = [place / "airflow", "db", "migrate"]
    subprocess.run(migration, env=environment, check=True, capture_output=True)
    return ask


def test_airflow_reads_the_files_and_renders_the_commands(airflow):
    seen = airflow("dags")
    assert seen["errors"] == {}
    assert seen["schedules"] == {
        "pylog_nightly": "0 2 * * *",
        "pylog_retention": "30 8,14,20 * * *",
        "pylog_verify": "0 12 * * 0",
    }
    assert seen["commands"] == {
        "pylog_nightly": ["pylog", "run", *WHERE, *RECORDED, "", "", "--max-duration", "4h"],
        "pylog_retention": ["pylog", "retain", *WHERE, *RECORDED, "", ""],
        "pylog_verify": ["pylog", "verify", *WHERE, *RECORDED, "--deep", "--fail-on", "error"],
    }
    assert seen["retries"] == [2]


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [((0, 1), "success"), ((2, 3), "failed for good"), ((4, 5, 130, 143, 9), "tried again")],
)
def test_a_task_ends_as_the_exit_status_means(airflow, tmp_path: Path, statuses, outcome: str):
    programs = {}
    for status in statuses:
        program = tmp_path / f"ends-{status}"
        program.write_text(f"#!/bin/sh\nexit {status}\n")
        program.chmod(0o755)
        programs[str(program)] = status
    for program, (ended, said) in airflow("ends", *programs).items():
        status = programs[program]
        assert ended == outcome
        if outcome == "success":
            assert said == {"exit_code": status, "findings": status == 1}
        else:
            assert said.startswith(f"exit status {status}: ")


@pytest.mark.parametrize("said", ["by the root", "by a file"])
def test_the_dags_run_as_shipped_over_a_root_of_an_ingest(airflow, tmp_path: Path, said: str):
    mirror, managed = unpack_broker(tmp_path / "mirror"), tmp_path / "managed"
    # Its records are years old: by the limits of its own metadata all of them would go.
    config = tmp_path / "topics.yaml"
    config.write_text('topics:\n  "*": {cleanup.policy: delete, retention.ms: "-1"}\n')
    words = ["--sync-stopped", "--settle", "0s", "--engine", "local"]
    if said == "by the root":
        words += ["--config", str(config)]
    else:
        shutil.rmtree(mirror / "__cluster_metadata-0")
    subprocess.run([PYLOG, "ingest", mirror, managed, *words], check=True, capture_output=True)
    # What is not the owner's own is as shipped.
    conf = {"program": str(PYLOG), "root": str(managed), "ledger": str(tmp_path / "ledger")}
    if said == "by a file":
        conf["config"] = str(config)
    for dag, task in (("nightly", "run"), ("retention", "retain"), ("verify", "verify")):
        ended = airflow("run", f"pylog_{dag}", json.dumps(conf))
        assert ended == {"state": "success", "tasks": {task: "success"}}, dag


def test_a_night_runs_under_airflow_and_the_ledger_has_it(airflow, tmp_path: Path):
    broker, ledger = unpack_broker(tmp_path / "broker"), tmp_path / "ledger"
    conf = {
        "program": str(PYLOG),
        "root": str(broker),
        "role": "broker",
        "ledger": str(ledger),
        "engine": "local",
    }
    ended = airflow("run", "pylog_nightly", json.dumps(conf))
    assert ended == {"state": "success", "tasks": {"run": "success"}}
    listed = subprocess.run(
        [PYLOG, "runs", "--ledger", ledger, "--output", "json"],
        check=True,
        capture_output=True,
        text=True,
    )
    (run,) = map(json.loads, listed.stdout.splitlines())
    assert (run["action"], run["exit_code"], run["partitions_done"]) == ("run", 0, 13)
    # The weekly look at what it left finds nothing bad.
    assert airflow("run", "pylog_verify", json.dumps(conf))["state"] == "success"
