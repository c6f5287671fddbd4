"""A night on other filesystems than that of the tests: what is left is what Kafka leaves."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.crash.disk_images import can_mount
from tests.jobs.spark_programs import write_config
from tests.kit.mounted_disk import MountedDisk
from tests.kit.program import run_to_end
from tests.pylog_spark.broker_roots import (
    LATER_ROUNDS,
    LATER_ROUNDS_MS,
    BrokerDirectory,
    broker_directory,
    differences_from_kafka,
)

pytestmark = pytest.mark.skipif(not can_mount(), reason="mounting images of a disk needs root")

NAMES = LATER_ROUNDS[:2]


@pytest.fixture
def place(tmp_path, request) -> Callable[[str], BrokerDirectory]:
    """Returns a log directory on a filesystem: of a disk, or in an image of a container."""

    def make(kind: str) -> BrokerDirectory:
        root = broker_directory(tmp_path / "below", NAMES)
        if kind != "overlay":
            disk = MountedDisk(kind, tmp_path)
            request.addfinalizer(disk.unmount)
            return root.copy(disk.path / "log")
        # All files are of a lower layer, as those that an image brings are.
        for name in ("upper", "work", "log"):
            (tmp_path / name).mkdir()
        layers = ",".join(
            f"{option}={tmp_path / name}"
            for option, name in {
                "lowerdir": "below",
                "upperdir": "upper",
                "workdir": "work",
            }.items()
        )
        command = ["mount", "-t", "overlay", "overlay", "-o", layers, tmp_path / "log"]
        done = run_to_end(command)
        if done.returncode:
            pytest.skip(f"no overlay can be mounted here: {done.stderr.strip()}")
        request.addfinalizer(lambda: subprocess.run(["umount", tmp_path / "log"], check=True))
        root.path = tmp_path / "log"
        return root

    return make


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["overlay", "btrfs"])
def test_a_night_leaves_what_kafka_leaves(kind, place, tmp_path):
    root = place(kind)
    config = write_config(root, tmp_path / "conf.yaml")
    program = [sys.executable, "-m", "pylog_spark", "run", root.path, "--role", "broker"]
    words = ["--config", config, "--now-ms", str(LATER_ROUNDS_MS), "--engine", "local"]
    done = run_to_end([*program, *words])
    assert done.returncode == 0, done.stdout + done.stderr
    assert differences_from_kafka(root.path, NAMES, tmp_path) == []
