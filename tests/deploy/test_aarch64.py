"""The wheel on aarch64: its machine code is loaded there, and cleans a directory as Kafka does.

The machine is the Python of `tests.kit.aarch64_python`. A numba that cannot be imported lies before
the real one: what the wheel has no code for would fail.
"""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from storage_core import __version__
from storage_core.kernels._code_files import CACHE_VARIABLE
from tests.jobs.spark_programs import REPOSITORY, write_config
from tests.pylog_spark.broker_roots import (
    LATER_ROUNDS,
    LATER_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
)

pytestmark = pytest.mark.deploy

NOWHERE = "/dev/null/nowhere"  # no folder can be made there
MACHINE = "PYLOG_AARCH64"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the wheel, and no compiler."""
    folder = tmp_path_factory.mktemp("installed")
    [wheel] = (REPOSITORY / "dist").glob(f"pylog_spark-{__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "wheel")
    numba = folder / "none" / "numba"
    numba.mkdir(parents=True)
    (numba / "__init__.py").write_text("raise ImportError('there is no compiler here')\n")
    (numba / "_version.py").touch()
    places = f"{numba.parent}:{folder / 'wheel'}"
    return os.environ | {"PYTHONPATH": places, CACHE_VARIABLE: NOWHERE}


def run(environment: dict[str, str], folder: Path, *words: str | Path) -> str:
    command = [Path(os.environ[MACHINE]).absolute(), *words]
    ended = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_wheel_has_code_for_both_kinds_of_machine(installed):
    wheel = Path(installed["PYTHONPATH"].partition(":")[2])
    layers = {
        layer.name.partition("-")[2]: sorted(path.name for path in layer.iterdir())
        for layer in (wheel / "storage_core" / "prebuilt").iterdir()
    }
    assert set(layers) == {"aarch64-generic", "x86_64-x86-64-v3"}
    assert layers["aarch64-generic"] == layers["x86_64-x86-64-v3"]


def test_every_kernel_is_loaded_and_none_compiled(installed, tmp_path):
    program = "import platform, storage_core as s; print(platform.machine(), s.__file__)"
    machine, where = run(installed, tmp_path, "-c", program).split()
    assert machine == "aarch64"
    assert where.startswith(installed["PYTHONPATH"].partition(":")[2])
    assert " kernels are ready after " in run(installed, tmp_path, "-m", "pylog_spark", "warmup")


def test_a_night_leaves_what_kafka_leaves(installed, tmp_path):
    root = broker_directory(tmp_path / "log", LATER_ROUNDS)
    config = write_config(root, tmp_path / "conf.yaml")
    words = ["run", root.path, "--role", "broker", "--engine", "local", "--config", config]
    run(installed, tmp_path, "-m", "pylog_spark", *words, "--now-ms", str(LATER_ROUNDS_MS))
    assert differences_from_kafka(root.path, LATER_ROUNDS, tmp_path) == []
