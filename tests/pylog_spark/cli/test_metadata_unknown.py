"""Nothing is deleted by configs behind damage of the metadata, or of one of two copies."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from tests.kit.file_damage import flip
from tests.kit.golden_data import GOLDEN, unpack_archive

# Hours after the records: by the limit that was taken away most of them go, by age none.
NOW_MS = 1_795_908_600_000
# Where in the log of meta_flip the damaged batch lies.
DAMAGED_AT = 3_402


def unpack(name: str, into: Path) -> list[Path]:
    archive = GOLDEN / "reports-of-metadata" / f"{name}.tar.gz"
    return sorted(unpack_archive(archive, into).glob("d[0-9]"))


def metadata_of(roots: list[Path]) -> Path:
    return roots[0] / CLUSTER_METADATA_DIRECTORY


def whole(roots: list[Path]) -> None:
    """Turn the flipped bit back."""
    log = metadata_of(roots) / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[DAMAGED_AT + 70] ^= 0x20
    log.write_bytes(data)


def flip_snapshot(roots: list[Path]) -> None:
    whole(roots)
    (snapshot,) = metadata_of(roots).glob("*.checkpoint")
    flip(snapshot, 100)


def cut_between_batches(roots: list[Path]) -> None:
    log = metadata_of(roots) / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:DAMAGED_AT])


def cut_inside(roots: list[Path]) -> None:
    log = metadata_of(roots) / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[: DAMAGED_AT + 70])


def zeros_from(roots: list[Path], position: int) -> None:
    log = metadata_of(roots) / f"{0:020d}.log"
    data = log.read_bytes()
    log.write_bytes(data[:position] + bytes(len(data) - position))


def zeros_for_batches(roots: list[Path]) -> None:
    zeros_from(roots, DAMAGED_AT)


def zeros_inside(roots: list[Path]) -> None:
    zeros_from(roots, DAMAGED_AT + 40)


def copy_of_another_state(roots: list[Path]) -> None:
    """Nothing tells that this copy is short, but that there is another one."""
    whole(roots)
    copy = roots[1] / CLUSTER_METADATA_DIRECTORY
    shutil.copytree(metadata_of(roots), copy)
    log = copy / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:DAMAGED_AT])
    for snapshot in copy.glob("*.snapshot"):
        snapshot.unlink()


def nothing(_: list[Path]) -> None:
    """Leave the archive as it is."""


STATES: dict[str, tuple[str, Callable[[list[Path]], None], str]] = {
    "one bit in the log": ("meta_flip", nothing, "position 3402: records 47 to 47 are damaged"),
    "one bit in a snapshot": ("meta_flip", flip_snapshot, ".checkpoint: position"),
    "cut between two batches": ("meta_flip", cut_between_batches, "records 47 to 65 are missing"),
    "cut inside a batch": ("meta_flip", cut_inside, "position 3402: expected a batch"),
    "zeros for the last batches": (
        *("meta_flip", zeros_for_batches, "records 47 to 65 are missing"),
    ),
    "zeros from inside a batch": (*("meta_flip", zeros_inside, "position 3402: expected a batch"),),
    "two copies": ("meta_stale_d2", nothing, "only one of them counts"),
    "two copies, one short": ("meta_flip", copy_of_another_state, "only one of them counts"),
}


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[Path], str]:
    """Return a broker's log directories with such metadata, and what is wrong with them."""
    archive, happen, problem = STATES[request.param]
    roots = unpack(archive, tmp_path)
    happen(roots)
    return roots, problem


def logs_of(roots: list[Path]) -> dict[Path, bytes]:
    return {
        path: path.read_bytes() for root in roots for path in root.glob("[!_]*/*") if path.is_file()
    }


def rows_of(stdout: str, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in stdout.splitlines()]
    return [row for row in rows if row["type"] == kind]


@pytest.mark.sampled(1)
def test_a_night_deletes_nothing_by_metadata_that_do_not_count(
    state: tuple[list[Path], str], pylog: Any
):
    roots, problem = state
    _require_refusal(pylog, ("run",), roots, problem)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        ("retain",),
        ("compact",),
        ("run", "--assume-defaults", "*"),
        ("retain", "--set", "retention.bytes=0"),
        ("recover", "--from-start"),
    ],
    ids=" ".join,
)
def test_no_command_and_no_option_goes_by_such_metadata(
    command: tuple[str, ...], tmp_path: Path, pylog: Any
):
    roots = unpack("meta_flip", tmp_path)
    _require_refusal(pylog, command, roots, STATES["one bit in the log"][2])


def _require_refusal(pylog: Any, command: tuple[str, ...], roots: list[Path], problem: str):
    before = logs_of(roots)
    words = (*command, *roots, "--role", "broker", "--now-ms", NOW_MS)
    result = pylog(*words, "--output", "json")
    assert result.exit_code == 3, result.stderr
    assert logs_of(roots) == before
    reasons = {
        (row["topic"], row["reason"])
        for row in rows_of(result.stdout, "result")
        if row["topic"] != "__cluster_metadata"
    }
    assert reasons == {("audit", "METADATA_UNKNOWN"), ("other", "METADATA_UNKNOWN")}
    assert problem in " ".join(f"{result.stdout}{result.stderr}".split())


@pytest.mark.thorough
def test_the_same_commands_delete_where_the_metadata_are_whole(tmp_path: Path, pylog: Any):
    """The limit of a whole log counts: the tests above would see a deletion."""
    roots = unpack("meta_flip", tmp_path)
    whole(roots)
    before = logs_of(roots)
    words = ("retain", *roots, "--role", "broker", "--now-ms", NOW_MS)
    assert pylog(*words, "--set", "retention.bytes=90000").exit_code == 0
    assert len(logs_of(roots)) < len(before)


@pytest.mark.thorough
def test_zeros_behind_the_last_batch_hide_no_config(tmp_path: Path, pylog: Any):
    """As a preallocated segment has them, in a directory that was closed."""
    roots = unpack("meta_flip", tmp_path)
    whole(roots)
    log = metadata_of(roots) / f"{0:020d}.log"
    os.truncate(log, log.stat().st_size + (1 << 16))
    result = pylog("explain", *roots, "--now-ms", NOW_MS)
    assert "METADATA_UNKNOWN" not in result.stdout
    codes = {
        finding["code"]
        for row in rows_of(pylog("doctor", *roots, "--output", "json").stdout, "diagnosis")
        for finding in row["findings"]
    }
    assert "CLUSTER_METADATA_CUT" not in codes


def test_two_equal_copies_count(tmp_path: Path, pylog: Any):
    roots = unpack("meta_flip", tmp_path)
    whole(roots)
    shutil.copytree(metadata_of(roots), roots[1] / CLUSTER_METADATA_DIRECTORY)
    result = pylog("explain", *roots, "--now-ms", NOW_MS)
    assert "METADATA_UNKNOWN" not in result.stdout


@pytest.mark.thorough
def test_looks_say_it_and_name_no_config(state: tuple[list[Path], str], pylog: Any):
    roots, problem = state
    words = (*roots, "--output", "json")
    inspected = pylog("inspect", *words)
    assert inspected.exit_code == 4
    policies = {row["cleanup_policy"] for row in rows_of(inspected.stdout, "partition")}
    assert policies == {None}
    assert problem in inspected.stdout
    explained = pylog("explain", *words, "--now-ms", NOW_MS)
    held = {
        answer["held_by"]
        for row in rows_of(explained.stdout, "explanation")
        if row["topic"] != "__cluster_metadata"
        for answer in row["answers"]
    }
    assert held == {"METADATA_UNKNOWN"}
    begun = pylog("config", "init", *roots)
    assert begun.exit_code == 4
    assert problem in begun.stdout
    assert "cleanup.policy" not in begun.stdout
    freed = pylog("free", *roots, "--role", "broker", "--need", "1KiB", "--now-ms", NOW_MS)
    assert freed.exit_code != 0
    assert "METADATA_UNKNOWN" in freed.stdout


@pytest.mark.thorough
def test_an_unclean_directory_is_not_marked_clean(tmp_path: Path, pylog: Any):
    roots = unpack("meta_flip", tmp_path)
    for root in roots:
        (root / CLEAN_SHUTDOWN_FILE).unlink()
    before = logs_of(roots)
    result = pylog("run", *roots, "--role", "broker", "--now-ms", NOW_MS)
    assert result.exit_code == 3
    assert logs_of(roots) == before
    assert not any((root / CLEAN_SHUTDOWN_FILE).exists() for root in roots)


def test_the_doctor_says_which_records_a_start_cuts(tmp_path: Path, pylog: Any):
    roots = unpack("meta_flip", tmp_path)
    result = pylog("doctor", *roots, "--output", "json")
    assert result.exit_code == 1
    (diagnosis,) = rows_of(result.stdout, "diagnosis")
    assert diagnosis["advice"] == "do-not-start"
    (found,) = [row for row in diagnosis["findings"] if row["severity"] == "fatal"]
    assert (found["code"], found["topic"]) == ("CLUSTER_METADATA_CUT", "__cluster_metadata")
    assert "below offset 47" in found["message"]
    assert "cuts 18 records that can be read" in found["message"]
    assert "topic audit: retention.bytes" in found["message"]
    assert f"{roots[0]}/{CLUSTER_METADATA_DIRECTORY}." in found["fix"]
    assert "pylog metadata rebuild" in found["fix"]


@pytest.mark.thorough
def test_the_doctor_tells_two_copies_apart(tmp_path: Path, pylog: Any):
    roots = unpack("meta_stale_d2", tmp_path)
    (diagnosis,) = rows_of(pylog("doctor", *roots, "--output", "json").stdout, "diagnosis")
    assert diagnosis["advice"] == "do-not-start"
    (found,) = [row for row in diagnosis["findings"] if row["code"] == "PARTITION_DUPLICATE"]
    assert "ends at offset 66" in found["message"]
    assert "at 54" in found["message"]


def loud(roots: list[Path], pylog: Any) -> tuple[str, list[tuple[str, str, str]]]:
    """Return the doctor's advice, and what it finds that is a warning or worse."""
    result = pylog("doctor", *roots, "--output", "json")
    (diagnosis,) = rows_of(result.stdout, "diagnosis")
    return diagnosis["advice"], [
        (row["code"], f"{row['topic']}-{row['partition']}", row["fix"])
        for row in diagnosis["findings"]
        if row["severity"] in {"fatal", "error", "warn"}
    ]


@pytest.mark.thorough
def test_a_metadata_log_begins_at_its_oldest_snapshot(tmp_path: Path, pylog: Any):
    roots = unpack("metadata_trimmed", tmp_path)
    assert loud(roots, pylog) == ("start-broker", [])
    # What lies behind the snapshot is held against the epochs as before.
    (metadata_of(roots) / "leader-epoch-checkpoint").write_text("0\n1\n0 334\n")
    advice, found = loud(roots, pylog)
    assert advice == "look-before-start"
    assert {code for code, _, _ in found} == {"EPOCH_FILE_WRONG"}


@pytest.mark.thorough
def test_epochs_of_a_tier_are_not_built_from_the_local_end(tmp_path: Path, pylog: Any):
    roots = unpack("tier_missing", tmp_path)
    advice, found = loud(roots, pylog)
    assert advice == "do-not-start"
    assert [(code, name) for code, name, _ in found] == [
        ("TIERED_EPOCHS_MISSING", "longer-0"),
        ("TIERED_EPOCHS_MISSING", "tiered-0"),
    ]
    assert all("another replica" in fix and "pylog" not in fix for _, _, fix in found)
    text = pylog("doctor", *roots, "--all-commands").stdout
    assert "pylog partition recover" not in text
    words = ("partition", "recover", roots[0] / "longer-0", "--now-ms", NOW_MS)
    refused = pylog(*words)
    assert refused.exit_code == 3
    assert "TIERED" in refused.stderr
    assert not (roots[0] / "longer-0" / "leader-epoch-checkpoint").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("epochs", "codes"),
    [
        ("0\n3\n0 0\n1 1500\n2 2300\n", []),
        # As `partition recover` would have built it.
        ("0\n1\n2 2251\n", ["TIERED_EPOCHS_MISSING"]),
        ("0\n0\n", ["TIERED_EPOCHS_MISSING"]),
        ("garbage", ["EPOCH_FILE_BROKEN"]),
    ],
)
def test_the_epochs_of_a_tier_begin_with_the_log(
    epochs: str, codes: list[str], tmp_path: Path, pylog: Any
):
    roots = unpack("tier_missing", tmp_path)
    (roots[0] / "longer-0" / "leader-epoch-checkpoint").write_text(epochs)
    shutil.rmtree(roots[0] / "tiered-0")
    _, found = loud(roots, pylog)
    of_longer = [(code, fix) for code, name, fix in found if name == "longer-0"]
    known = {"TIERED_EPOCHS_MISSING", "EPOCH_FILE_BROKEN"}
    assert [code for code, _ in of_longer if code in known] == codes
    assert not any("pylog" in fix for _, fix in of_longer)


@pytest.mark.thorough
def test_an_empty_disk_is_told_as_empty_partitions(tmp_path: Path, pylog: Any):
    roots = unpack("meta_flip", tmp_path)
    whole(roots)
    shutil.rmtree(roots[1] / "audit-1")
    advice, found = loud(roots, pylog)
    assert advice == "look-before-start"
    assert [code for code, _, _ in found] == ["PARTITION_ABSENT"]
    headline = pylog("doctor", *roots).stdout.replace("\n", " ")
    assert "start with 1 empty partition in place of audit-1" in " ".join(headline.split())


@pytest.mark.thorough
def test_a_stray_log_has_its_name_and_the_two_lines_of_its_file(tmp_path: Path, pylog: Any):
    roots = unpack("meta_flip", tmp_path)
    whole(roots)
    (roots[0] / "audit-0" / "partition.metadata").unlink()
    _, found = loud(roots, pylog)
    ((name, fix),) = [(name, fix) for code, name, fix in found if code == "PARTITION_STRAYED"]
    assert name == "audit-0"
    assert f"keep a copy of {roots[0]}/audit-0," in fix
    assert f"{roots[0]}/audit-0/partition.metadata again: two lines, `version: 0` and" in fix
