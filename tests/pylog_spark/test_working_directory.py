"""Jobs that are started inside of somebody else's directory run nothing that lies there."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pylog_spark.session import session_conf
from storage_core.import_path import PACKAGE_HOME, safe_import_path
from tests.jobs.spark_programs import environment
from tests.kit.spark_classes import FEW_ROWS
from tests.pylog_spark.broker_roots import broker_directory

PROGRAM = Path(sys.executable).with_name("pylog")
# Modules of the standard library that are imported late, by us or by Spark, and our own packages.
NAMES = ("struct", "json", "socket", "platform", "numpy", "pyspark", "yaml", "storage_core")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder in which every import would be noticed."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\nraise SystemExit(99)\n"
        )
    return folder


def run(arguments: list[str], folder: Path, **named: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, timeout=240, check=False, **named
    )


def executed(folder: Path) -> str:
    path = folder.parent / "executed"
    return path.read_text() if path.exists() else ""


def late_only(folder: Path) -> None:
    """Leave out what Python has found before a line of ours runs: our package's own name."""
    (folder / "storage_core.py").unlink()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "start", [[str(PROGRAM)], [sys.executable, "-P", "-m", "pylog_spark"]], ids=["pylog", "-P -m"]
)
def test_the_program_takes_no_module_from_the_working_directory(hostile, start):
    done = run([*start, "inspect", str(hostile)], hostile)
    assert executed(hostile) == ""
    assert done.returncode != 99


@pytest.mark.thorough
def test_started_as_a_module_it_takes_none_from_there_either(hostile):
    late_only(hostile)
    done = run([sys.executable, "-m", "pylog_spark", "inspect", str(hostile)], hostile)
    assert executed(hostile) == ""
    assert done.returncode != 99


@pytest.mark.thorough
def test_the_processes_of_the_lock_take_none_from_there(hostile, tmp_path):
    late_only(hostile)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / ".lock").touch()
    # Started with -c, Python looks into the working directory; what it had to find there is found.
    program = (
        "import sys; here = sys.path.pop(0)\n"
        "from pathlib import Path\n"
        "from storage_core.checkpoint.lock import LogDirectoryLock\n"
        "from storage_core.checkpoint.lock import query_lock\n"
        "sys.path.insert(0, here)\n"
        f"with LogDirectoryLock(Path({str(tmp_path / 'log')!r})):\n"
        f"    assert query_lock(Path({str(tmp_path / 'log')!r})).is_held\n"
    )
    done = run([sys.executable, "-c", program], hostile)
    assert (done.returncode, executed(hostile)) == (0, ""), done.stderr


def test_the_working_directory_is_left_out_unless_our_packages_lie_there(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/usr/lib/python3", PACKAGE_HOME])
    assert safe_import_path() == ["/usr/lib/python3", PACKAGE_HOME]
    monkeypatch.setattr(sys, "path", ["", "/usr/lib/python3"])
    assert safe_import_path() == ["/usr/lib/python3", PACKAGE_HOME]
    monkeypatch.chdir(PACKAGE_HOME)
    monkeypatch.setattr(sys, "path", ["", PACKAGE_HOME])
    assert safe_import_path() == [PACKAGE_HOME]


def test_a_working_directory_that_was_removed_is_no_place_of_modules(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "path", ["", "/usr/lib/python3"])
    assert safe_import_path() == ["/usr/lib/python3", PACKAGE_HOME]


def test_workers_on_other_hosts_are_told(monkeypatch):
    for master in ("local[2]", "spark://elsewhere:7077"):
        assert session_conf(master, {}, delta=False)["spark.executorEnv.PYTHONSAFEPATH"] == "1"


@pytest.mark.thorough
@pytest.mark.spark
def test_sparks_workers_take_none_from_there(hostile, tmp_path):
    """The JVM starts them with -m, in the directory in which the job was started."""
    root = broker_directory(tmp_path / "log", ["clean-everything-none-s101-1"]).path
    config = tmp_path / "quick.yaml"
    config.write_text(yaml.safe_dump({"spark": FEW_ROWS}))
    started = [str(PROGRAM), "verify", str(root), "--role", "broker", "--master", "local[1]"]
    started += ["--config", str(config)]
    done = run(started, hostile, env=environment())
    assert executed(hostile) == ""
    assert done.returncode in {0, 1}, done.stderr
    assert "PYTHONSAFEPATH" not in os.environ
