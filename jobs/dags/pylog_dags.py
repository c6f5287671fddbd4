"""DAGs for one archive: a nightly, a retention between, a weekly verification.

Copy this file into Airflow's folder of DAGs, beside ``pylog_operator.py``. Set your paths in
``PARAMS``; each trigger can override them.

A run needs the configs of topics. A managed root carries them from its ingest on, a broker's
directory has its cluster's metadata; else ``config`` names a file that every worker can read.

A nightly and a retention lock the root. Here they run at different times; if they can meet, give
both a pool of one slot, because the second one is refused (exit status 3). A running broker locks
its root: only the verification can look at it, with ``--live``.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param
from pylog_operator import PylogOperator

PARAMS = {
    "program": Param("pylog", type="string", description="The program, by name or path"),
    "root": Param(
        "s3://archive/kafka", type="string", description="Managed root, or log directory"
    ),
    "role": Param("managed", enum=["managed", "broker"], description="What it is"),
    "ledger": Param("s3://archive/ledger", type="string", description="Where runs are recorded"),
    "engine": Param("auto", enum=["auto", "local", "spark"], description="Who does the tasks"),
    "config": Param(
        "",
        type="string",
        description="Configs of topics (--config); empty: those that the root has from its ingest",
    ),
}
COMMON = {
    "start_date": datetime(2026, 1, 1, tzinfo=UTC),
    "catchup": False,
    "max_active_runs": 1,
    "params": PARAMS,
    "tags": ["kafka", "pylog"],
    # A run that is tried again goes on where the first one stopped.
    "default_args": {"retries": 2, "retry_delay": timedelta(minutes=10)},
}
WHERE = ["{{ params.root }}", "--role", "{{ params.role }}"]
RECORDED = ["--ledger", "{{ params.ledger }}", "--engine", "{{ params.engine }}"]
# Without a file both words are empty, and are left out.
CONFIGS = ["{{ params.config and '--config' }}", "{{ params.config }}"]
PROGRAM = "{{ params.program }}"

with DAG("pylog_nightly", schedule="0 2 * * *", **COMMON):
    PylogOperator(
        task_id="run",
        program=PROGRAM,
        arguments=["run", *WHERE, *RECORDED, *CONFIGS, "--max-duration", "4h"],
    )

with DAG("pylog_retention", schedule="30 8,14,20 * * *", **COMMON):
    PylogOperator(
        task_id="retain", program=PROGRAM, arguments=["retain", *WHERE, *RECORDED, *CONFIGS]
    )

with DAG("pylog_verify", schedule="0 12 * * 0", **COMMON):
    PylogOperator(
        task_id="verify",
        program=PROGRAM,
        arguments=["verify", *WHERE, *RECORDED, "--deep", "--fail-on", "error"],
    )
