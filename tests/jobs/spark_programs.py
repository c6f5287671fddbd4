"""Spark's own programs as the pip package brings them: spark-submit, and a master with a worker."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import yaml

from pylog_spark.java import find_java
from tests.kit.ports import free_ports
from tests.kit.program import run_to_end
from tests.kit.spark_classes import spark_options
from tests.pylog_spark.broker_roots import BrokerDirectory

REPOSITORY = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__path__[0])
START_SECONDS = 60
_SUBMIT_CONF = ("spark.ui.enabled=false", "spark.sql.shuffle.partitions=2")


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended."""

    status: int
    output: str
    errors: str


def environment(*, ledger: bool = False, **changes: str) -> dict[str, str]:
    """Return an environment for a short program: nothing of this process's own Spark is left.

    Args:
        ledger: Whether it has a ledger, for which its driver takes Delta along.
        changes: Variables of the caller's.
    """
    plain = dict.fromkeys(("SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"), spark_options())
    driver = {"SPARK_SUBMIT_OPTS": spark_options(delta=ledger)}
    return plain_environment() | plain | driver | changes


def executor_settings() -> dict[str, str]:
    """Return the settings of a session whose executors are as short as the programs."""
    return {"spark.executor.extraJavaOptions": spark_options()}


def plain_environment() -> dict[str, str]:
    """Return an environment whose Java is as a person's, for what is measured."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTHONPATH"))
    }
    java = {"JAVA_HOME": str(find_java().home)}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return kept | java | python | {"SPARK_LOCAL_IP": "127.0.0.1"}


def submit(
    arguments: Sequence[str | Path],
    *,
    folder: Path = REPOSITORY,
    python: str = sys.executable,
    **variables: str,
) -> Finished:
    """Run spark-submit in a folder and wait for its end."""
    variables = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python} | variables
    conf = [word for setting in _SUBMIT_CONF for word in ("--conf", setting)]
    ended = run_to_end(
        [SPARK_HOME / "bin" / "spark-submit", *conf, *arguments],
        cwd=folder,
        env=environment(**variables),
        timeout=240,
    )
    return Finished(ended.returncode, ended.stdout, ended.stderr)


@contextmanager
def standalone_cluster(
    folder: Path, *, hosts: Sequence[str] = ("127.0.0.1",), **variables: str
) -> Iterator[str]:
    """Start a standalone master and a worker of two cores on each host; give the master's URL.

    Args:
        folder: For logs and work.
        hosts: Addresses of this machine; Spark takes each for a host of its own.
        variables: Of their environment.
    """
    folder.mkdir(exist_ok=True)
    port, *pages = free_ports(2 + len(hosts))
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    master = [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    worker = [f"{deploy}.worker.Worker", "--cores", "2", "--memory", "1g"]
    with ExitStack() as stack:
        command = [*master, "--webui-port", str(pages[0])]
        started = stack.enter_context(_running(folder / "master.log", command, variables))
        _wait_for(started, "New state: ALIVE")
        logs = []
        for number, host in enumerate(hosts):
            place = ["--host", host, "--webui-port", str(pages[1 + number])]
            work = ["--work-dir", str(folder / f"work-{number}"), url]
            log = folder / f"worker-{number}.log"
            logs.append(stack.enter_context(_running(log, [*worker, *place, *work], variables)))
        for log in logs:
            _wait_for(log, "Successfully registered with master")
        yield url


def write_config(root: BrokerDirectory, path: Path) -> Path:
    """Write what a run has to know of a directory's topics as a file for --config."""
    path.write_text(yaml.safe_dump({"topics": root.configs}))
    return path


@contextmanager
def _running(log: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> Iterator[Path]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", *arguments],
            env=environment(SPARK_NO_DAEMONIZE="1") | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not re.search(text, log.read_text()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{log.name}: no {text!r} in\n{log.read_text()}")
        time.sleep(0.1)
