"""Commands for a broker with several log directories name all of them, and lead to the end."""

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, REPLICATION_FILE
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.program import lines_of
from tests.kit.start_accidents import Disks

TWO_DISKS = GOLDEN / "two-disks" / "before.tar.gz"


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """The two log directories of a broker that died."""
    roots = Disks(unpack_archive(TWO_DISKS, tmp_path)).roots
    for root in roots:
        (root / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
    return roots


def clock(roots: list[Path]) -> int:
    """Return a time at which every file is old enough to go."""
    newest = max(path.lstat().st_mtime for root in roots for path in root.rglob("*"))
    return int(newest + 60) * 1000 + 1000 * 24 * 3_600_000


def free(pylog: Any, roots: list[Path], now_ms: int) -> list[dict[str, Any]]:
    words = ("--now-ms", now_ms, "--set", "retention.ms=3600000", "--output", "json")
    result = pylog.done("free", *roots, *words)
    rows = lines_of(result)
    return [row for row in rows if row["type"] == "free_step"]


@pytest.mark.thorough
@pytest.mark.spark
def test_what_free_prints_for_two_disks_marks_both_and_goes_on(spark, pylog: Any, disks):
    names = " ".join(map(str, disks))
    first, *rest = free(pylog, disks, clock(disks))
    assert first["source"] == "recovery"
    assert first["command"].startswith(
        f"pylog recover {names} --role broker --salvage {disks[0]}-salvage "
    )
    assert rest
    assert all(names in step["command"] for step in rest)
    assert all(step["source"] != "recovery" for step in rest)
    assert pylog(*shlex.split(first["command"])[1:]).exit_code == ExitCode.DONE
    assert all((root / CLEAN_SHUTDOWN_FILE).exists() for root in disks)
    again = free(pylog, disks, clock(disks))
    assert "recovery" not in {step["source"] for step in again}
    for step in again:
        look = pylog(*shlex.split(step["command"])[1:], "--dry-run", "--engine", "local")
        is_refused = step["refused_by"] is not None
        status = ExitCode.REFUSED if is_refused else ExitCode.DONE
        assert look.exit_code == status, (step["command"], look.output)
        assert "CONFIG_UNKNOWN" not in look.output


def test_the_recovery_of_a_finding_names_both_disks(pylog: Any, disks):
    log = disks[1] / "orders-1" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 0x55
    log.write_bytes(data)
    words = ("--engine", "local", "--now-ms", clock(disks), "--output", "json")
    for command in ("doctor", "verify"):
        result = pylog(command, *disks, *words)
        answer = json.loads(result.stdout.splitlines()[0]) if command == "doctor" else {}
        rows = answer.get("findings") or lines_of(result)
        fixes = [row["fix"] for row in rows if row.get("code") == "BATCH_CRC_WRONG"]
        assert fixes
        assert all(f"pylog recover {disks[0]} {disks[1]} --role broker" in fix for fix in fixes)


@pytest.mark.thorough
@pytest.mark.spark
def test_a_disk_that_was_not_given_is_named_where_it_lies_beside_the_other(
    spark, pylog: Any, disks
):
    one, other = disks
    result = pylog("recover", one, "--role", "broker", "--now-ms", clock(disks), "--wide")
    said = " ".join(result.stdout.split())
    assert f"(directory.id), which is {other};" in said
    assert f"give all of them: pylog recover {one} {other} --role broker" in said
    # Where it lies elsewhere nobody here knows its path.
    away = other.parent / "elsewhere" / "d2"
    away.parent.mkdir()
    other.rename(away)
    result = pylog("recover", one, "--role", "broker", "--now-ms", clock([one]), "--wide")
    said = " ".join(result.stdout.split())
    assert "log.dirs of the broker says: pylog recover" in said


def planned(pylog: Any, roots: list[Path]) -> list[tuple[str, int, str, str | None]]:
    rows = pylog.rows("run", *roots, "--role", "broker", "--dry-run")
    return [
        (row["topic"], row["partition"], row["status"], row["reason"])
        for row in rows
        if row["type"] == "result"
    ]


@pytest.mark.thorough
def test_with_one_replica_the_log_end_counts_where_no_high_watermark_is_known(pylog, tmp_path):
    """As for the leader that the broker becomes: nobody else has a replica."""
    roots = Disks(unpack_archive(TWO_DISKS, tmp_path)).roots
    before = planned(pylog, roots)
    assert {(topic, status) for topic, _, status, _ in before} >= {("orders", "planned")}
    for root in roots:
        (root / REPLICATION_FILE).unlink()
    assert planned(pylog, roots) == before
    result = pylog("explain", roots[0], "--topics", "orders", "--output", "json")
    assert "NO_HIGH_WATERMARK" not in result.stdout


@pytest.mark.thorough
def test_no_topic_that_is_named_is_dropped(pylog: Any, tmp_path: Path):
    roots = Disks(unpack_archive(TWO_DISKS, tmp_path)).roots
    both = ("--topic", "quiet", "--topic", "orders")
    lines = pylog("cat", *roots, *both, "--partition", 0, "-f", "%t\\n").stdout.split()
    assert Counter(lines) == {"quiet": 1, "orders": 404}
    out = ("--to", "jsonl", "--engine", "local", "--out", tmp_path / "out", "--output", "json")
    row = json.loads(pylog("export", roots[0], *both, *out).stdout)
    assert (row["topic"], row["records"]) == ("quiet,orders", 405)
    assert (row["missing"], row["missing_partitions"]) == (["orders-1"], [1])
    found = pylog("find", roots[0], *both, "--key", "none", "--output", "json").stdout
    assert {json.loads(line)["topic"] for line in found.splitlines()} == {"quiet", "orders"}
    for command in ("cat", "find"):
        key = ("--key", "none") if command == "find" else ()
        wrong = pylog(command, roots[0], "--topic", "quiet", "--topic", "orderz", *key)
        assert wrong.exit_code == ExitCode.USAGE
        assert "orderz" in wrong.stderr
    one = pylog("dump", roots[0], *both)
    assert one.exit_code == ExitCode.USAGE
    assert "quiet, orders: expected one topic" in one.stderr
