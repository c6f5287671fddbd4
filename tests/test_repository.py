"""What must hold of the repository as a whole, beyond what the linters check."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


def test_jobs_are_thin():
    for job in (ROOT / "jobs").glob("*.py"):
        assert len(job.read_text().splitlines()) < 40, job.name


def test_golden_data_stays_small():
    files = [path for path in (ROOT / "tests" / "golden").rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) <= 20 * 1024 * 1024


def test_every_make_target_is_listed_by_make_help():
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"^  make (\w+)", shown.stdout, re.MULTILINE) == phony.split()
