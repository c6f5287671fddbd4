"""``pylog scrub``: answers, exit statuses, and what it says besides."""

import shutil
from pathlib import Path

import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.scrub import ScrubRequest, scrub
from pylog_spark.options import JobOptions
from tests.kit.program import lines_of
from tests.kit.tier_archives import TierCase, unpack_tier

NOW_MS = 2_000_000_000_000
NOW = ("--now-ms", NOW_MS, "--recheck", "0s")


@pytest.fixture
def plain(tmp_path: Path) -> TierCase:
    return unpack_tier("plain", tmp_path)


@pytest.fixture
def deleted(tmp_path: Path) -> TierCase:
    return unpack_tier("topic_deleted", tmp_path)


def disk_of(case: TierCase) -> Path:
    return case.folder / "local" / "b1"


def codes_of(result) -> list[str]:
    return sorted(row["code"] for row in lines_of(result, "finding"))


def test_a_whole_tier_has_no_finding(pylog, plain):
    words = ("scrub", plain.archive, "--root", disk_of(plain), "--deep", *NOW)
    result = pylog.done(*words)
    assert "nothing found" in result.stdout
    rows = lines_of(pylog.done(*words, "--output", "json"), "result")
    assert [(row["topic"], row["partition"], row["status"]) for row in rows] == [
        ("stock_levels", 0, "done"),
        ("stock_levels", 1, "done"),
    ]
    assert sum(row["records_before"] for row in rows) == 832 + 1241


@pytest.mark.thorough
def test_what_is_of_no_partition_is_found(pylog, deleted):
    (deleted.archive / "readme.txt").write_text("?")
    (deleted.archive / "backup").mkdir()
    (deleted.archive / "backup" / "x.log").write_bytes(b"12")
    result = pylog.done("scrub", deleted.archive, *NOW, "--output", "json")
    assert codes_of(result) == [
        *("TIER_OBJECT_UNKNOWN", "TIER_OBJECT_UNKNOWN"),
        *("TIER_SEGMENT_INCOMPLETE", "TIER_TOPIC_TWICE"),
    ]
    (twice,) = (row for row in lines_of(result, "finding") if row["code"] == "TIER_TOPIC_TWICE")
    ids = {row["topic_id"] for row in deleted.truth["alone"] if row["topic"] == "page-views"}
    assert all(each in twice["message"] for each in ids)
    assert twice["partition"] is None
    chosen = pylog.done("scrub", deleted.archive, *NOW, "--topics", "ledger", "--output", "json")
    assert codes_of(chosen) == ["TIER_OBJECT_UNKNOWN", "TIER_OBJECT_UNKNOWN"]


@pytest.mark.thorough
def test_lost_records_make_the_exit_status(pylog, plain):
    (log, *_) = plain.archive.glob("stock_levels-1-*/00000000000000000420-*.log")
    log.unlink()
    result = pylog("scrub", plain.archive, *NOW)
    assert result.exit_code == ExitCode.FINDINGS
    assert "offsets 420 to 822 are in no complete segment" in result.stdout
    words = ("scrub", plain.archive, *NOW, "--fail-on", "never")
    assert pylog.done(*words, "--output", "json").exit_code == ExitCode.DONE
    known = pylog("scrub", plain.archive, *NOW, "--root", disk_of(plain), "--output", "json")
    assert codes_of(known) == ["TIER_OFFSETS_MISSING", "TIER_SEGMENT_LOST"]


@pytest.mark.thorough
def test_a_partition_of_which_no_object_is_left_is_found_by_the_records(pylog, plain):
    (folder,) = plain.archive.glob("stock_levels-1-*")
    shutil.rmtree(folder)
    result = pylog("scrub", plain.archive, *NOW, "--root", disk_of(plain), "--output", "json")
    assert result.exit_code == ExitCode.FINDINGS
    assert codes_of(result) == ["TIER_SEGMENT_LOST"] * 3
    (row,) = {(row["topic"], row["partition"]) for row in lines_of(result, "finding")}
    assert row == ("stock_levels", 1)


@pytest.mark.thorough
def test_records_that_are_on_another_broker_are_named(pylog, plain, tmp_path):
    """Of the three partitions of the topic each broker has some."""
    some = tmp_path / "some"
    shutil.copytree(disk_of(plain), some)
    sizes = {
        path.parent: path.stat().st_size for path in some.glob("__remote_log_metadata-*/*.log")
    }
    full = [folder for folder, size in sizes.items() if size]
    for folder in full:
        shutil.rmtree(folder)
    result = pylog.done("scrub", plain.archive, *NOW, "--root", some, "--output", "json")
    (run,) = lines_of(result, "run")
    assert all(folder.name in " ".join(run["notes"]) for folder in full)
    assert codes_of(result) == []


@pytest.mark.thorough
def test_what_is_no_tier_is_refused(pylog, plain, tmp_path):
    result = pylog("scrub", disk_of(plain))
    assert result.exit_code == ExitCode.USAGE
    assert "holds no segment of a tier" in result.stderr
    result = pylog("scrub", plain.archive, "--root", plain.archive)
    assert result.exit_code == ExitCode.USAGE
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "meta.properties").touch()
    result = pylog("scrub", plain.archive, "--root", tmp_path / "empty")
    assert result.exit_code == ExitCode.USAGE
    assert "no partition of __remote_log_metadata" in result.stderr


@pytest.mark.thorough
def test_an_encrypted_tier_needs_its_key_for_the_deep_look(pylog, tmp_path):
    case = unpack_tier("aiven_aes", tmp_path)
    assert "nothing found" in pylog.done("scrub", case.archive, *NOW).stdout
    result = pylog("scrub", case.archive, *NOW, "--deep")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "is encrypted for the key 'k1'" in result.stdout
    pylog.done("scrub", case.archive, *NOW, "--deep", "--decryption-key", case.key)


def test_what_only_the_first_look_finds_is_no_finding(plain, monkeypatch):
    """A broker deletes a segment object by object: the second look finds it gone."""
    objects = sorted(plain.archive.glob("stock_levels-1-*/00000000000000000000-*"))
    objects.pop().unlink()

    def sleep(_: float) -> None:
        for path in objects:
            path.unlink()

    monkeypatch.setattr("pylog_spark.operations.scrub_task.time.sleep", sleep)
    report = scrub(Local(), str(plain.archive), JobOptions(now_ms=NOW_MS), ScrubRequest())
    assert report.counts == ()
    assert not any(path.exists() for path in objects)


@pytest.mark.thorough
def test_a_bad_partition_hides_no_other(pylog, plain):
    """Of one the folder cannot be listed."""
    (broken,) = plain.archive.glob("stock_levels-0-*/00000000000000000422-*.snapshot")
    broken.write_bytes(b"x")
    (log,) = plain.archive.glob("stock_levels-1-*/00000000000000000823-*.log")
    data = bytearray(log.read_bytes())
    data[4000] ^= 1
    log.write_bytes(data)
    result = pylog("scrub", plain.archive, *NOW, "--deep", "--output", "json")
    found = {(row["partition"], row["code"]) for row in lines_of(result, "finding")}
    assert found == {(0, "TIER_FILE_BROKEN"), (1, "BATCH_CRC_WRONG")}


@pytest.mark.thorough
def test_offsets_that_cannot_be_are_no_reason_to_stop(pylog, plain):
    """Names and batches with offsets at and beyond the largest number that a column has."""
    folder = min(plain.archive.glob("stock_levels-0-*"))
    for base in (10**20 - 1, 2**63, 2**63 - 1):
        (folder / f"{base:020}-AAAAAAAAAAAAAAAAAAAAAQ.log").write_bytes(b"")
    (log,) = plain.archive.glob("stock_levels-1-*/00000000000000000823-*.log")
    data = bytearray(log.read_bytes())
    data[:8] = (2**63 - 1).to_bytes(8)
    log.write_bytes(data)
    for output in ("json", "table"):
        result = pylog("scrub", plain.archive, *NOW, "--deep", "--output", output)
        assert result.exit_code == ExitCode.FINDINGS, result.stderr
    result = pylog("scrub", plain.archive, *NOW, "--output", "json")
    assert {"TIER_OBJECT_UNKNOWN", "TIER_SEGMENT_INCOMPLETE"} <= set(codes_of(result))


@pytest.mark.spark
@pytest.mark.thorough
def test_both_engines_find_the_same(pylog, deleted, spark):
    del spark
    words = ("scrub", deleted.archive, *NOW, "--deep", "--root", disk_of(deleted))
    rows = [
        [
            {**row, "run_id": ""}
            for row in lines_of(
                pylog.done(*words, "--engine", engine, "--output", "json"), "finding"
            )
        ]
        for engine in ("local", "spark")
    ]
    assert rows[0]
    assert rows[0] == rows[1]
