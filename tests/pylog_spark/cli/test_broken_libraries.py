"""A library that is missing or broken: one line and exit status 5; 1 means findings alone."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.jobs.spark_programs import REPOSITORY, environment
from tests.kit.program import run_to_end

# Found before the library itself.
BROKEN = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            {action}
sys.meta_path.insert(0, Finder())
"""
KINDS = {
    "missing": "raise ModuleNotFoundError(f'No module named {name!r}', name=name)",
    "broken": "raise ImportError('libz.so.1: cannot open shared object file', name=name)",
    "unfit": "raise AttributeError('module has no attribute of that name')",
}
STATUS = 5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("broker")
    archive = REPOSITORY / "tests" / "golden" / "broker-dir" / "before.tar.gz"
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
    return directory


def run(
    library: str, kind: str, folder: Path, *arguments: object, program: str = "-m pylog_spark"
) -> subprocess.CompletedProcess[str]:
    """Run a program where a library is broken, before anything else is imported."""
    text = BROKEN.format(name=library, action=KINDS[kind])
    (folder / "sitecustomize.py").write_text(text)
    path = f"{folder}{os.pathsep}{REPOSITORY}"
    return run_to_end(
        [sys.executable, *program.split(), *map(str, arguments)],
        cwd=REPOSITORY,
        env=environment(PYTHONPATH=path),
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("library", "kind", "command"),
    [
        ("typer", "missing", "inspect {}"),
        ("numpy", "broken", "inspect {}"),
        ("yaml", "unfit", "compact {} --role broker --dry-run --engine local"),
        ("pyarrow", "broken", "cat topic --root {}"),
        ("cloudpickle", "missing", "verify {} --engine local"),
    ],
)
def test_a_library_that_cannot_be_imported_is_one_line_and_status_5(
    library: str, kind: str, command: str, broker: Path, tmp_path: Path
):
    done = run(library, kind, tmp_path, *command.replace("{}", str(broker)).split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (STATUS, "", 1)
    assert done.stderr.startswith("pylog: ")
    assert "Traceback" not in done.stderr
    if kind != "unfit":
        assert "pip install --force-reinstall pylog-spark" in done.stderr


@pytest.mark.thorough
def test_a_job_of_spark_submit_ends_in_the_same_way(broker: Path, tmp_path: Path):
    arguments = [broker, "--role", "broker", "--dry-run"]
    done = run("rich", "missing", tmp_path, *arguments, program="jobs/nightly.py")
    assert (done.returncode, done.stderr.count("\n")) == (STATUS, 1)


@pytest.mark.thorough
def test_a_library_that_only_some_partitions_need_fails_these(broker: Path, tmp_path: Path):
    """Numba compiles what nobody has compiled before."""
    done = run("numba", "missing", tmp_path, "verify", broker, "--engine", "local")
    assert done.returncode in {0, 4, STATUS}
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_debug_shows_where_the_import_failed(broker: Path, tmp_path: Path):
    done = run("typer", "missing", tmp_path, "--debug", "inspect", broker)
    assert done.returncode == STATUS
    assert "Traceback" in done.stderr


@pytest.mark.thorough
@pytest.mark.spark
def test_a_java_that_does_not_start_spark_is_status_5(broker: Path, tmp_path: Path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    real = environment()["JAVA_HOME"]
    java.write_text(
        "#!/bin/sh\n"
        # It says that this is its home, so that Spark is started by it, too.
        f'case "$*" in *-version*) {real}/bin/java "$@" 2>&1 |\n'
        f"  sed 's|java.home = .*|java.home = {tmp_path}|' >&2; exit 0;; esac\n"
        "exit 134\n"
    )
    java.chmod(0o755)
    done = run_to_end(
        [sys.executable, "-m", "pylog_spark", "verify", str(broker), "--engine", "spark"],
        cwd=REPOSITORY,
        env=environment(JAVA_HOME=str(tmp_path)),
    )
    assert done.returncode == STATUS
    assert "pylog: Spark failed:" in done.stderr
    assert "Traceback" not in done.stderr
