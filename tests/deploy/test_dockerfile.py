"""``conf/docker/Dockerfile``, read by Docker's own parser; its steps, done in a folder.

There is no Docker here: where a step names a place of the image, it gets one below the folder, and
instead of the image's user it is the user of this test.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import pytest

from tests.jobs.spark_programs import REPOSITORY, write_config
from tests.pylog_spark.broker_roots import (
    LATER_ROUNDS,
    LATER_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
)

pytestmark = pytest.mark.deploy

PLACES = ("/opt/pylog", "/build/", "/home/pylog")
OWNER = "65532:65532"


@pytest.fixture(scope="module")
def steps() -> list[Any]:
    """The steps of the file: ``cmd``, ``flags``, ``value``."""
    import dockerfile  # noqa: PLC0415  # of the extra "deploy"

    return list(dockerfile.parse_file(str(REPOSITORY / "conf" / "docker" / "Dockerfile")))


def values(steps: list[Any], command: str) -> list[tuple[str, ...]]:
    return [step.value for step in steps if step.cmd.upper() == command]


def test_the_base_is_pinned_and_its_user_is_not_root(steps):
    bases = {value[0] for value in values(steps, "FROM")}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases.pop())
    assert values(steps, "USER") == [(OWNER,)]
    names = [step.cmd.upper() for step in steps]
    assert len(names) - names[::-1].index("FROM") < names.index("USER") < names.index("ENTRYPOINT")


def test_its_steps_lead_to_a_program_that_does_a_night(steps, tmp_path):
    image = tmp_path / "image"
    for name in ("build", "home", "opt"):
        (image / name).mkdir(parents=True)
    variables = {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
    variables["PATH"] = os.environ["PATH"]
    for step in steps:
        words = [below(image, word) for word in step.value]
        if step.cmd.upper() == "ENV":
            for name, text in zip(words[::2], words[1::2], strict=True):
                variables[name] = Template(text).substitute(variables)
        elif step.cmd.upper() == "COPY" and not step.flags:
            lock, wheel, folder = words
            shutil.copy(REPOSITORY / lock, folder)
            for path in Path(os.environ["PYLOG_PEX"]).parent.glob(wheel.replace("dist", "wheel")):
                shutil.copy(path, folder)
        elif step.cmd.upper() == "RUN":
            shell(words, variables, image)
    compiled = kernels_below(image)
    assert compiled

    root = broker_directory(tmp_path / "log", LATER_ROUNDS)
    config = write_config(root, tmp_path / "conf.yaml")
    [(program,)] = values(steps, "ENTRYPOINT")
    assert (shutil.which(program, path=variables["PATH"]) or "").startswith(str(image))
    night = f"{program} run {root.path} --role broker --config {config} --engine local"
    shell([f"{night} --now-ms {LATER_ROUNDS_MS} --ledger {tmp_path / 'ledger'}"], variables, image)
    assert differences_from_kafka(root.path, LATER_ROUNDS, tmp_path) == []
    # The image has them compiled.
    assert kernels_below(image) == compiled


def below(image: Path, word: str) -> str:
    """Return a word of a step with the places of the image below a folder."""
    for place in PLACES:
        word = word.replace(place, f"{image}{place}")
    return word.replace(OWNER, f"{os.getuid()}:{os.getgid()}")


def shell(words: list[str], variables: Mapping[str, str], folder: Path) -> None:
    """Do a step as Docker does: by sh, with what ENV has said and nothing else."""
    ended = subprocess.run(
        ["sh", "-c", *words],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, (words, ended.stdout, ended.stderr)


def kernels_below(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.bin")}
