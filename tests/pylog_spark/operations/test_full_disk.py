"""From a disk without a free byte to a broker that starts, by the printed commands alone."""

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pylog_spark.cli.program import app
from storage_core.catalog.metadata_image import ResourceType
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.mounted_disk import MountedDisk, SmallDisk, fill_disk
from tests.kit.start_accidents import Disks, append_metadata, config_record
from tests.oracle.started_broker import Starter

DISK_BYTES = 8 << 20
# Of each log of the topic, one segment of four is more than it may keep.
KEPT_BYTES = "40000"


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """Log directories whose topic events has more than it may keep."""
    folder = unpack_archive(GOLDEN / "two-disks" / "before.tar.gz", tmp_path / "unpacked")
    record = config_record(ResourceType.TOPIC, "events", "retention.bytes", KEPT_BYTES)
    append_metadata(folder / "d1", record)
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    try:
        with SmallDisk(tmp_path / "disk", DISK_BYTES) as disk:
            yield disk
    except PermissionError as error:
        pytest.skip(f"this process may not mount a small disk: {error}")


def put_on(disk: Path, unpacked: Path) -> Disks:
    words = ["cp", "--archive", "--sparse=always", f"{unpacked}/.", str(disk)]
    subprocess.run(words, check=True)
    return Disks(disk)


def pylog(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words), prog_name="pylog")
    return result.exit_code, result.stdout, result.stderr


def run_printed(command: str) -> str:
    program, *words = shlex.split(command)
    assert program == "pylog"
    status, stdout, stderr = pylog(*words)
    assert status == 0, stdout + stderr
    return stdout


def rows_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def doctor(disks: Disks) -> dict[str, Any]:
    words = ("doctor", *map(str, disks.roots), "--engine", "local", "--output", "json")
    [answer, *_] = rows_of(pylog(*words)[1])
    return answer


def make_room(disks: Disks) -> None:
    """Do what doctor and free print, up to the first step that frees something for sure."""
    said = doctor(disks)
    assert said["advice"] == "do-not-start"
    assert not said["start"]["is_up"]
    [free] = [each for each in said["commands"] if each.startswith("pylog free ")]
    steps = rows_of(pylog(*shlex.split(free)[1:], "--output", "json")[1])
    planned = [row for row in steps if row["type"] == "free_step"]
    commands = [row["command"] for row in planned if row["source"] in {"recovery", "expired"}]
    assert any(" retain " in command for command in commands)
    for command in dict.fromkeys(commands):
        run_printed(command)
        if command.endswith(" --dry-run"):
            run_printed(command.removesuffix(" --dry-run"))


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@pytest.mark.thorough
@pytest.mark.oracle
@pytest.mark.parametrize(
    "is_clean", [pytest.param(False), pytest.param(True, marks=pytest.mark.long)]
)
def test_the_printed_commands_free_a_disk_in_memory_and_a_broker_starts(
    unpacked, small_disk, is_clean
):
    start_again(put_on(small_disk, unpacked), is_clean=is_clean)


@pytest.mark.oracle
@pytest.mark.long
@pytest.mark.parametrize("is_clean", [False, True])
def test_the_printed_commands_free_a_disk_in_a_file_and_a_broker_starts(
    unpacked, tmp_path, is_clean
):
    disk = MountedDisk("ext4", tmp_path)
    try:
        start_again(put_on(disk.path, unpacked), is_clean=is_clean)
    finally:
        disk.unmount()


def start_again(disks: Disks, *, is_clean: bool) -> None:
    if not is_clean:
        for root in disks.roots:
            (root / CLEAN_SHUTDOWN_FILE).unlink()
    before = {root: names(root) for root in disks.roots}
    fill_disk(disks.base)
    assert free_bytes(disks.base) == 0
    make_room(disks)
    assert free_bytes(disks.base) > 0
    # Nothing of ours is left on this disk, nor on the one that took our notes.
    assert {root: names(root) for root in disks.roots} == before
    assert sorted(path.name for path in disks.base.glob("pylog-*")) == []
    assert doctor(disks)["advice"] == "start-broker"
    with Starter() as starter:
        broker = starter.start(disks.roots)
    assert broker.is_up, broker.error
    assert not broker.offline
    assert broker.logs is not None
    starts = {name: log.log_start_offset for name, log in broker.logs.items()}
    assert (starts["events-0"], starts["events-1"], starts["orders-0"]) == (130, 130, 0)


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()} - {CLEAN_SHUTDOWN_FILE, ".lock"}


@pytest.mark.thorough
def test_nothing_that_is_run_on_a_full_disk_ends_for_its_own_files(unpacked, small_disk):
    disks = put_on(small_disk, unpacked)
    fill_disk(disks.base)
    roots = [*map(str, disks.roots), "--role", "broker", "--engine", "local", "--output", "json"]
    status, output, stderr = pylog("compact", *roots)
    rows = [row for row in rows_of(output) if row["type"] == "result"]
    assert {row["status"] for row in rows} == {"skipped"}, stderr
    reasons = {row["reason"] for row in rows if row["topic"] == "orders"}
    assert (status, reasons) == (0, {"NO_SPACE"})
    status, output, stderr = pylog("run", *roots)
    assert status == 0, output + stderr
    rows = [row for row in rows_of(output) if row["type"] == "result"]
    done = {(row["action"], row["topic"]) for row in rows if row["status"] == "done"}
    assert ("retain", "events") in done
    assert not list(disks.base.glob("pylog-*"))
