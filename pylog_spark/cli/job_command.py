"""What the commands that run a job on Spark have in common: parameters in, an exit status out."""

from collections.abc import Mapping
from typing import Any

import typer

from pylog_spark.cli.flags import said_flags
from pylog_spark.cli.output import OutputFormat


def run_command(job: str, parameters: Mapping[str, Any]) -> None:
    """Run a job as the parameters of its command say.

    Args:
        job: Name of the command.
        parameters: All of its parameters by name: ``locals()``. Of one that recovers, ``fail_on``
            is among them.

    Raises:
        typer.Exit: With the exit status, where that is not 0.
        PylogError: The job could not run, or a guard refused it.
    """
    flags = said_flags(parameters)
    from pylog_spark.cli.job_runner import run_job  # noqa: PLC0415  # Spark, not for --help

    fail_on = parameters.get("fail_on")
    status = run_job(
        job,
        parameters["roots"],
        flags,
        as_json=parameters["output"] is OutputFormat.JSON,
        page=parameters["report"],
        fail_on=None if fail_on is None else fail_on.severity,
    )
    if status:
        raise typer.Exit(status)
