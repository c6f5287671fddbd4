"""What must hold of the repository as a whole, beyond what the linters check."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from storage_core.errors import UnsupportedPythonError
from tests.kit.program import run_to_end

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def holds_here(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


def locked_here() -> dict[str, Requirement]:
    lines = (ROOT / "conf" / "requirements.lock").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.lstrip().startswith("#")]
    return {pin.name: pin for pin in pins if holds_here(pin)}


def test_the_wheel_itself_depends_on_neither_spark_nor_delta():
    always = [
        requirement
        for requirement in map(Requirement, requires("pylog-spark") or ())
        if requirement.marker is None
    ]
    assert always
    assert {"pyspark", "delta-spark", "pandas"}.isdisjoint(item.name for item in always)


@pytest.mark.parametrize("extra", [None, *EXTRAS], ids=lambda extra: extra or "core")
def test_every_dependency_has_a_locked_version_that_fits(extra):
    locked = locked_here()
    texts = EXTRAS[extra] if extra else PROJECT["dependencies"]
    for wanted in filter(holds_here, map(Requirement, texts)):
        (version,) = locked[wanted.name.lower()].specifier
        assert version.operator == "=="
        assert wanted.specifier.contains(version.version), (str(wanted), str(version))


def test_the_lock_says_versions_and_nothing_about_where_they_come_from():
    lock = (ROOT / "conf" / "requirements.lock").read_text()
    assert not re.search(r"://|^ *-", lock, re.MULTILINE)


def test_the_command_line_starts_without_spark():
    program = "import sys, pylog_spark.cli; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def supported_pythons() -> list[str]:
    """Return the versions of which the package says that they were tested."""
    prefix = "Programming Language :: Python :: "
    return [text.removeprefix(prefix) for text in PROJECT["classifiers"] if text.startswith(prefix)]


def test_all_places_say_the_same_versions_of_python():
    *others, last = supported_pythons()
    (minor, after) = (int(version.split(".")[1]) for version in (others[0], last))
    assert PROJECT["requires-python"] == f">=3.{minor},<3.{after + 1}"
    assert f"(3, {minor}) <= sys.version_info < (3, {after + 1})" in (ROOT / "Makefile").read_text()
    sentence = f"Python {', '.join(others)} or {last}"
    for name in ("README.md", "docs/install.md"):
        assert sentence in (ROOT / name).read_text(), name
    assert sentence.replace("Python", "CPython") in str(UnsupportedPythonError("3.15", "why"))


def test_make_takes_the_python_that_was_tested():
    place = f"PYTHON={sys.executable}"
    shown = run_to_end(["make", "--dry-run", place, "fmt"], cwd=ROOT, check=True)
    assert "no Python 3.11 to 3.14" in shown.stdout  # the rule asks it
    program = re.findall(rf"{re.escape(sys.executable)} -c '(.+?)'", shown.stdout, re.DOTALL)[0]
    for change, is_refused in {
        "": False,
        "sys.version_info = (3, 10, 9)": True,
        "sys.version_info = (3, 15, 0)": True,
        "sysconfig.get_config_var = lambda name: 1": True,
    }.items():
        done = subprocess.run(
            [sys.executable, "-c", program.replace("sys.exit", f"{change}; sys.exit".lstrip("; "))],
            check=False,
        )
        assert bool(done.returncode) == is_refused, change


def test_make_refuses_another_python(tmp_path):
    python = tmp_path / "python3.15"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    done = run_to_end(["make", f"PYTHON={python}", "fmt"], cwd=ROOT)
    assert done.returncode == 2
    assert f"{python} is no Python 3.11 to 3.14, or it is free-threaded" in done.stderr
    assert not (ROOT / "build" / "venv-python3.15").exists()


def test_jobs_are_thin():
    for job in (ROOT / "jobs").glob("*.py"):
        assert len(job.read_text().splitlines()) < 40, job.name


def test_golden_data_stays_small():
    files = [path for path in (ROOT / "tests" / "golden").rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) <= 20 * 1024 * 1024


def test_every_make_target_is_listed_by_make_help():
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    shown = run_to_end(["make", "help"], cwd=ROOT, check=True)
    assert re.findall(r"^  make ([\w-]+)", shown.stdout, re.MULTILINE) == phony.split()
