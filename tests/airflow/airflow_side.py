"""Runs in Airflow's own environment: ``python airflow_side.py dags|ends|run ARGUMENTS...``.

Prints one JSON object.
"""

import json
import sys
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import BundleDagBag
from airflow.sdk.exceptions import AirflowException, AirflowFailException

DAGS = Path(__file__).parents[2] / "jobs" / "dags"


def bag() -> Any:
    return BundleDagBag(str(DAGS), bundle_path=DAGS, bundle_name="dags-folder")


def dags() -> dict[str, Any]:
    """Return what Airflow makes of the files: errors, schedules, and the commands as rendered."""
    found = bag()
    tasks = [task for dag in found.dags.values() for task in dag.tasks]
    for task in tasks:
        params = {name: param.value for name, param in task.dag.params.items()}
        task.render_template_fields({"params": params})
    return {
        "errors": {Path(file).name: error for file, error in found.import_errors.items()},
        "schedules": {dag.dag_id: dag.timetable.expression for dag in found.dags.values()},
        "commands": {task.dag.dag_id: [task.program, *task.arguments] for task in tasks},
        "retries": sorted({task.retries for task in tasks}),
    }


def ends(*programs: str) -> dict[str, Any]:
    """Return how a task ends that is each of these programs."""
    bag()  # puts the folder on the path, as Airflow does
    from pylog_operator import PylogOperator  # noqa: PLC0415

    outcomes = {}
    for program in programs:
        task = PylogOperator(task_id="one", arguments=["run", "x"], program=program)
        try:
            outcomes[program] = ["success", task.execute({})]
        except AirflowFailException as error:
            outcomes[program] = ["failed for good", str(error)]
        except AirflowException as error:
            outcomes[program] = ["tried again", str(error)]
    return outcomes


def run(dag_id: str, conf: str) -> dict[str, Any]:
    """Run a DAG once, as ``airflow dags test`` does."""
    ended = bag().dags[dag_id].test(run_conf=json.loads(conf))
    return {
        "state": str(ended.state),
        "tasks": {task.task_id: str(task.state) for task in ended.get_task_instances()},
    }


if __name__ == "__main__":
    answer = {"dags": dags, "ends": ends, "run": run}[sys.argv[1]](*sys.argv[2:])
    sys.stdout.write(f"\nANSWER {json.dumps(answer)}\n")
