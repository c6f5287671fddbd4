"""SIGTERM and Ctrl-C at any moment of any command: its exit status says so, and nothing is left.

``make interruptions`` does it 500 times to each command, ``make test`` a few times to two.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.interrupted_commands import (
    Ended,
    Interruption,
    Subject,
    interruptions,
    run_interrupted,
)
from tests.jobs.spark_programs import REPOSITORY, environment, plain_environment

# With N of them for each command this takes its time: hours.
ROUNDS = int(os.environ.get("PYLOG_INTERRUPTIONS", "0"))
SEED = os.environ.get("PYLOG_INTERRUPTION_SEED", "1")
pytestmark = pytest.mark.timeout(900 + 60 * ROUNDS)
_FEW = 3
_FEW_COMMANDS = ("inspect", "compact")
# Spark takes ten times as long as the rest.
_SPARK_SHARE = 5
_UNDISTURBED = Interruption(number=0, after_seconds=0.0, is_for_all=False, program=0)
_SLOTS = "--engine local --master local[2]"

# Arguments; {} is the folder with log directories.
LOOKS = {
    "inspect": "inspect {}/broker",
    "dump": "dump {}/broker/orders-by-id-0",
    "cat": "cat orders-by-id --root {}/broker",
    "verify": f"verify {{}}/broker {_SLOTS}",
    "doctor": "doctor {}/broker",
    "explain": "explain {}/broker",
    "groups": "groups {}/broker",
    "find": "find {}/broker --topic orders-by-id --key key-1",
    "free": "free {}/broker",
    "warmup": "warmup",
    "dry run": f"run {{}}/broker --role broker --dry-run {_SLOTS}",
}
CHANGES = {
    "compact": f"compact {{}}/broker --role broker {_SLOTS} --trash {{}}/new-trash",
    "retain": f"retain {{}}/broker --role broker {_SLOTS}",
    "recover": f"recover {{}}/unclean --role broker {_SLOTS}",
    "run": f"run {{}}/broker --role broker {_SLOTS} --ledger {{}}/ledger",
    "clean": "partition clean {}/broker/user-profiles-0 --now-ms 1800000000000",
    "undo": "undo RUN --trash {}/cleaned/trash",
    "purge": "purge --trash {}/cleaned/trash --older-than 0s",
}
_ON_SPARK = "--engine spark --master local[2]"
ON_SPARK = {
    "verify on Spark": f"verify {{}}/broker {_ON_SPARK}",
    "compact on Spark": f"compact {{}}/broker --role broker {_ON_SPARK}",
    "run on Spark": f"run {{}}/broker --role broker {_ON_SPARK} --ledger {{}}/ledger",
}
COMMANDS = LOOKS | CHANGES | ON_SPARK


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with directories of stopped brokers, and a trash that a run has filled.

    Beside it is ``originals``, a copy: a record of the trash says where the directory lies that an
    undo changes, so what is made anew has to come to the same place.
    """
    folder = tmp_path_factory.mktemp("interrupted") / "work"
    _unpack("broker-uncleaned", folder / "broker")
    _unpack("broker-dir-unclean", folder / "unclean")
    _unpack("broker-uncleaned", folder / "cleaned" / "log")
    place = folder / "cleaned"
    cleaned = f"compact {place}/log --role broker {_SLOTS} --trash {place}/trash"
    done = subprocess.run(
        [sys.executable, "-m", "pylog_spark", *cleaned.split()],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"run (\S+):", done.stdout)
    assert found is not None
    (folder.parent / "run-id").write_text(found[1])
    shutil.copytree(folder, folder.parent / "originals", symlinks=True)
    return folder


def _unpack(case: str, directory: Path) -> None:
    directory.mkdir(parents=True)
    with tarfile.open(REPOSITORY / "tests" / "golden" / case / "before.tar.gz") as archive:
        archive.extractall(directory, filter="data")


def subject_of(name: str, folder: Path) -> Subject:
    run_id = (folder.parent / "run-id").read_text()
    originals = folder.parent / "originals"
    here = {path.name for path in originals.iterdir()}
    named = set(re.findall(r"\{\}/([\w-]+)", COMMANDS[name]))

    def arguments(place: Path) -> list[str]:
        words = COMMANDS[name].replace("RUN", run_id).replace("{}", str(place))
        return words.split()

    return Subject(
        name=name,
        arguments=arguments,
        folder=folder,
        changes=frozenset() if name in LOOKS else frozenset(named & here),
        originals=originals,
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [*LOOKS, *CHANGES, *(pytest.param(name, marks=pytest.mark.spark) for name in ON_SPARK)],
)
def test_an_interrupted_command_says_so_and_leaves_nothing(name: str, folder: Path, tmp_path: Path):
    if not ROUNDS and name not in _FEW_COMMANDS:
        pytest.skip("make interruptions")
    subject = subject_of(name, folder)
    if name == "warmup":
        # The first one on a machine has the classes of Java made, which takes minutes.
        warm = [sys.executable, "-m", "pylog_spark", "warmup"]
        subprocess.run(warm, cwd=REPOSITORY, env=plain_environment(), check=True)
    usual = _run(subject, _UNDISTURBED, tmp_path)
    assert (usual.status, usual.faults) == (0, [])
    count = (ROUNDS // _SPARK_SHARE if name in ON_SPARK else ROUNDS) or _FEW
    statuses: Counter[int] = Counter()
    faults = []
    waited = 0.0
    for number, interruption in enumerate(interruptions(count, usual.seconds, f"{SEED} {name}")):
        ended = _run(subject, interruption, tmp_path, usual.status)
        statuses[ended.status] += 1
        waited = max(waited, ended.waited_seconds)
        if ended.faults:
            faults.append(f"{number}: {interruption}: {ended.faults}: {ended.errors}")
    ends = f"{name}: {count} interruptions, statuses {dict(statuses)}, {waited:.1f} s at most"
    sys.stdout.write(f"{ends}\n")
    assert not faults, f"{len(faults)} of {count}\n" + "\n".join(faults)


def _run(
    subject: Subject, interruption: Interruption, folder: Path, status: int | None = None
) -> Ended:
    scratch = folder / "scratch"
    scratch.mkdir()
    try:
        return run_interrupted(subject, interruption, scratch, status)
    finally:
        shutil.rmtree(scratch)
