"""Engine and upkeep where the cluster's packages are not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.golden_data import Golden
from tests.kit.program import lines_of, run_to_end
from tests.kit.without_cluster import copy_without_cluster


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without") / "checkout"
    copy_without_cluster(folder)
    return folder


def run(checkout: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, "-m", "pylog_spark", *map(str, words)], cwd=checkout)


def test_the_program_has_the_commands_of_upkeep_alone(checkout: Path):
    done = run(checkout, "--help")
    assert done.returncode == 0, done.stderr
    commands = {
        word
        for word in ("run", "doctor", "audit", "heal", "metadata")
        if f" {word} " in done.stdout
    }
    assert commands == {"run", "doctor"}
    assert run(checkout, "audit", "x").returncode == 2


@pytest.mark.thorough
def test_a_night_and_a_diagnosis_work_by_themselves(checkout: Path, tmp_path: Path):
    root = Golden("broker-dir").unpack(tmp_path)
    words = (root, "--role", "broker", "--engine", "local", "--output", "json")
    night = run(checkout, "run", *words)
    assert night.returncode == 0, night.stderr
    diagnosis = run(checkout, "doctor", *words)
    assert diagnosis.returncode in {0, 1}, diagnosis.stderr
    (row,) = (row for row in lines_of(diagnosis) if row["type"] == "diagnosis")
    assert row["advice"]


@pytest.mark.thorough
def test_a_code_of_the_cluster_is_not_explained(checkout: Path):
    assert run(checkout, "explain", "NO_HIGH_WATERMARK").returncode == 0
    assert run(checkout, "explain", "NO_DONOR").returncode == 2
