"""``build/pylog.pex``: all that is needed in one file, where Python has nothing of it.

On the host of a broker, without a network; and on a cluster whose workers take it from Spark.
"""

import os
import subprocess
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from storage_core.kernels._code_files import layer_folder
from tests.jobs.spark_programs import (
    REPOSITORY,
    executor_settings,
    standalone_cluster,
    submit,
    write_config,
)
from tests.kit.spark_classes import INTERPRETED
from tests.pylog_spark.broker_roots import (
    LATER_ROUNDS,
    LATER_ROUNDS_MS,
    BrokerDirectory,
    broker_directory,
    differences_from_kafka,
    expected_points,
    read_points,
)

pytestmark = pytest.mark.deploy

NIGHTLY = REPOSITORY / "jobs" / "nightly.py"
# A network namespace of its own, in which nothing is up.
OFFLINE = ("unshare", "--map-root-user", "--net")
SHORT = {"spark.executor.memory": "512m"} | INTERPRETED
# One byte a task: every segment and every group is a task of its own.
ONE_A_TASK = ("--set", "unit.min.bytes=1", "--set", "unit.max.bytes=1")


@pytest.fixture(scope="module")
def pex() -> Path:
    return Path(os.environ["PYLOG_PEX"]).absolute()


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python of this version without any package."""
    folder = tmp_path / "bare"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    for missing in ("numpy", "pyspark", "storage_core"):
        program = [python, "-P", "-c", f"import {missing}"]
        ended = subprocess.run(program, capture_output=True, check=False)
        assert b"ModuleNotFoundError" in ended.stderr
    return python


def arguments(root: BrokerDirectory, tmp_path: Path) -> list[str]:
    config = write_config(root, tmp_path / "conf.yaml")
    words = [str(root.path), "--role", "broker", "--config", str(config)]
    return [*words, "--now-ms", str(LATER_ROUNDS_MS)]


def kernels_in(folder: Path) -> dict[str, int]:
    """Return the files of compiled kernels below a folder, with their times."""
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.bin")}


def test_a_broker_host_without_network_and_packages_does_a_night(pex, bare_python, tmp_path):
    if subprocess.run([*OFFLINE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace may be made here")
    home = tmp_path / "home"
    home.mkdir()
    host = {"PATH": f"{bare_python.parent}:/usr/bin:/bin", "HOME": str(home)}
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for module in ("numpy", "runpy", "struct", "zipfile"):
        (hostile / f"{module}.py").write_text("raise SystemExit(99)\n")
    compiled = []
    for name in ("first", "second"):
        root = broker_directory(tmp_path / name, LATER_ROUNDS)
        ledger = tmp_path / f"ledger-{name}"
        words = [*arguments(root, tmp_path), "--engine", "local", "--ledger", str(ledger)]
        ended = subprocess.run(
            [*OFFLINE, pex, "run", *words],
            cwd=hostile,
            env=host,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert differences_from_kafka(root.path, LATER_ROUNDS, tmp_path / name) == []
        assert (ledger / "runs" / "_delta_log").is_dir()
        compiled.append(kernels_in(home))
    # The second night takes what the first one compiled, or the file has brought.
    assert compiled[0]
    assert compiled[1] == compiled[0]


def test_a_cluster_without_the_project_takes_it_from_spark(pex, bare_python, tmp_path):
    host = {"PATH": f"{bare_python.parent}:/usr/bin:/bin", "PYTHONPATH": ""}
    kernels = tmp_path / "kernels"
    workers = {"PEX_INTERPRETER": "1", "PEX_ROOT": str(tmp_path / "unpacked")}
    workers["PYLOG_KERNEL_CACHE"] = str(kernels)
    settings = executor_settings() | SHORT
    settings |= {f"spark.executorEnv.{name}": text for name, text in workers.items()}
    with standalone_cluster(tmp_path / "cluster", **host) as url:

        def run(name: str, python: str, *files: str | Path) -> "tuple[int, str, Path]":
            root = broker_directory(tmp_path / name, LATER_ROUNDS)
            ended = submit(
                [
                    *("--master", url, *conf(settings), *files, NIGHTLY),
                    *(*arguments(root, tmp_path), *ONE_A_TASK),
                ],
                folder=tmp_path,
                python=str(pex),
                PYSPARK_PYTHON=python,
                PEX_INTERPRETER="1",
                PEX_ROOT=workers["PEX_ROOT"],
                **host,
            )
            return ended.status, ended.output + ended.errors, root.path

        # Without the file the workers have nothing.
        status, said, _ = run("without", str(bare_python))
        assert status != 0
        assert "ModuleNotFoundError" in said
        assert not kernels_in(kernels)

        status, said, directory = run("with", "./pylog.pex", "--files", pex)
        assert status == 0, said
    assert differences_from_kafka(directory, LATER_ROUNDS, tmp_path) == []
    assert read_points(directory) == expected_points(LATER_ROUNDS)
    assert list((tmp_path / "cluster").glob("work-0/app-*/*/pylog.pex"))
    # The file brings them, unless for this kind of CPU.
    assert bool(kernels_in(kernels)) is (layer_folder() is None)


def conf(settings: Mapping[str, str]) -> list[str]:
    return [word for item in settings.items() for word in ("--conf", "=".join(item))]
