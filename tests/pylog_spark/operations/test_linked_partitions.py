"""A partition whose directory is a link: no run goes through it, and no night fails of it."""

import json
from pathlib import Path

import pytest

from pylog_spark.exit_code import ExitCode
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.start_accidents import ACCIDENTS, Disks


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    disks = Disks(unpack_archive(GOLDEN / "two-disks" / "before.tar.gz", tmp_path))
    ACCIDENTS["linked"](disks)
    return disks


def rows(result) -> list[dict]:
    lines = map(json.loads, result.stdout.splitlines())
    return [row for row in lines if row["type"] == "result" and row["topic"] == "orders"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", ["run", "compact", "retain", "recover"])
def test_it_is_skipped_with_the_way_out_and_the_rest_is_done(pylog, disks, command):
    behind = disks.base / "elsewhere" / "orders-0"
    before = {path.name: path.read_bytes() for path in behind.iterdir()}
    options = ("--role", "broker", "--engine", "local", "--output", "json")
    result = pylog(command, *disks.roots, *options)
    assert result.exit_code == ExitCode.DONE, result.stderr
    linked = [row for row in rows(result) if row["partition"] == 0]
    assert linked
    assert {(row["status"], row["reason"]) for row in linked} == {("skipped", "LINKED_DIRECTORY")}
    assert all("mount --bind" in row["error"] for row in linked)
    assert {path.name: path.read_bytes() for path in behind.iterdir()} == before


@pytest.mark.thorough
def test_a_recovery_that_leaves_it_out_does_not_mark_its_directory_clean(pylog, disks):
    for root in disks.roots:
        (root / ".kafka_cleanshutdown").unlink()
    result = pylog("recover", *disks.roots, "--role", "broker", "--engine", "local")
    assert result.exit_code == ExitCode.DONE, result.stderr
    assert not (disks.first / ".kafka_cleanshutdown").exists()
