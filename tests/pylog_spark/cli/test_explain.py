"""``pylog explain``: what holds each partition back, one directory for each cause."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.compare import read_tree
from tests.kit.golden_data import Golden
from tests.kit.program import lines_of

CLOCK = ("--now-ms", Golden("broker-dir").case["clock_ms"])


def explained(result: Any) -> dict[str, dict[str, Any]]:
    rows = lines_of(result)
    return {f"{row['topic']}-{row['partition']}": row for row in rows}


def held_by(row: dict[str, Any]) -> tuple[str | None, str | None]:
    cleaning, deletion = row["answers"]
    return cleaning["held_by"], deletion["held_by"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Golden("broker-dir").unpack(tmp_path)


def test_a_brokers_directory_is_explained_by_its_own_configs_and_nothing_is_written(pylog, root):
    before = {path.name: read_tree(path) for path in root.iterdir() if path.is_dir()}
    result = pylog.done("explain", root, *CLOCK, "--output", "json")
    rows = explained(result)
    assert held_by(rows["__cluster_metadata-0"])[0] == "INTERNAL_METADATA"
    assert held_by(rows["events-0"])[0] == "NOT_COMPACTED"
    assert held_by(rows["compacted-0"])[1] == "NOT_DELETED"
    for row in rows.values():
        for answer in row["answers"]:
            assert answer["is_due"] == (answer["held_by"] is None)
            # What is not due says from when on, or what has to happen, unless nothing can.
            has_way_out = answer["from_ms"] is not None or answer["condition"]
            assert answer["is_due"] or has_way_out or row["topic"] == "__cluster_metadata"
    sizes = [s for s in rows["events-0"]["statements"] if s["about"] == "size"]
    records = next(s["facts"]["records_bytes"] for s in sizes if s["code"] == "RECORDS")
    assert records == sum(log.stat().st_size for log in (root / "events-0").glob("*.log"))
    assert {path.name: read_tree(path) for path in root.iterdir() if path.is_dir()} == before


@pytest.mark.sampled(3)
@pytest.mark.item("FLT-16")
@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        pytest.param("ratio", "DIRTY_RATIO", id="ratio never exceeded"),
        pytest.param("broken", "UNCLEANABLE", id="a log that cannot be loaded"),
        pytest.param("unclean", "UNCLEAN_SHUTDOWN", id="not cleanly shut down"),
        pytest.param("tiered", "TIERED", id="tiered"),
        pytest.param("no high watermark", "NO_HIGH_WATERMARK", id="no high watermark"),
        pytest.param("disabled", "CLEANER_DISABLED", id="the cleaner is off"),
        pytest.param("off switch", "SWITCHED_OFF", id="the owner said no"),
        pytest.param("index gone", "RECOVERY_REQUIRED", id="needs recovery"),
    ],
)
def test_each_cause_is_named(pylog, root, cause, expected):
    partition = root / "compacted-0"
    said: list[str] = []
    match cause:
        case "ratio":
            (root / "cleaner-offset-checkpoint").unlink()
            said = ["--set", "min.cleanable.dirty.ratio=1"]
        case "broken":
            (partition / "leader-epoch-checkpoint").write_text("x")
        case "unclean":
            (root / ".kafka_cleanshutdown").unlink()
        case "tiered":
            said = ["--set", "remote.storage.enable=true", "--set", "cleanup.policy=delete"]
        case "no high watermark":
            (root / "replication-offset-checkpoint").unlink()
            said = ["--role", "mirror"]  # of its broker, with one replica, the log end counts
        case "disabled":
            said = ["--set", "log.cleaner.enable=false"]
        case "off switch":
            (partition / "pylog-off").write_text("")
        case "index gone":
            min(partition.glob("*.index")).unlink()
    result = pylog("explain", root, *CLOCK, "--topics", "compacted", "--output", "json", *said)
    row = explained(result)["compacted-0"]
    assert row["answers"][0]["held_by"] == expected
    assert row["answers"][0]["text"]


@pytest.mark.thorough
def test_of_an_unclean_directory_it_is_said_what_would_hold_after_a_recovery(pylog, root):
    said = [root, *CLOCK, "--topics", "compacted", "--output", "json"]
    closed = explained(pylog("explain", *said))["compacted-0"]
    (root / ".kafka_cleanshutdown").unlink()
    log = max((root / "compacted-0").glob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(whole + whole[:50])
    before = read_tree(root / "compacted-0")
    row = explained(pylog("explain", *said))["compacted-0"]
    assert held_by(row) == ("UNCLEAN_SHUTDOWN", "UNCLEAN_SHUTDOWN")
    for unclean, clean in zip(row["answers"], closed["answers"], strict=True):
        assert "after a recovery it would be" in unclean["text"]
        assert clean["text"] in unclean["text"]
        assert unclean["condition"] == "it is recovered: `pylog recover`"
    codes = [statement["code"] for statement in row["statements"]]
    assert codes[:2] == ["UNCLEAN_SHUTDOWN"] * 2
    assert set(codes) == {s["code"] for s in closed["statements"]} | {
        "UNCLEAN_SHUTDOWN",
        "RECOVERY",
    }
    (recovery,) = [s for s in row["statements"] if s["code"] == "RECOVERY"]
    assert recovery["facts"]["lost_bytes"] == 50
    # The recovery point is in the last segment.
    assert recovery["facts"]["scanned_bytes"] == len(whole) + 50
    assert read_tree(root / "compacted-0") == before


@pytest.mark.thorough
def test_an_interrupted_swap_is_explained_as_a_load_would_leave_it(pylog, root):
    said = [root, *CLOCK, "--topics", "events", "--output", "json"]
    expected = explained(pylog("explain", *said))["events-0"]
    first = min((root / "events-0").glob("*.log"))
    for path in [first, first.with_suffix(".index"), first.with_suffix(".timeindex")]:
        path.rename(f"{path}.swap")
    assert explained(pylog("explain", *said))["events-0"]["answers"] == expected["answers"]


@pytest.mark.thorough
@pytest.mark.item("CFG-36")
def test_a_checkpointed_high_watermark_says_how_old_it_may_be(pylog, root):
    interval = "replica.high.watermark.checkpoint.interval.ms"
    said = [root, *CLOCK, "--topics", "compacted", "--output", "json", "--set", f"{interval}=777"]

    def marks(*more: object) -> set[bool]:
        rows = explained(pylog("explain", *said, *more)).values()
        texts = [
            s["text"] for row in rows for s in row["statements"] if s["code"] == "HIGH_WATERMARK"
        ]
        return {"lets grow 777 milliseconds old" in text for text in texts}

    assert marks() == {True}
    assert marks("--high-watermark", "log-end") == {False}
    (root / "replication-offset-checkpoint").unlink()
    row = explained(pylog("explain", *said, "--role", "mirror"))["compacted-0"]
    assert "every 777 milliseconds" in row["answers"][0]["condition"]


@pytest.mark.item("FLT-16")
def test_an_open_transaction_in_a_real_log_is_found(pylog, tmp_path):
    golden = Golden("clean-txn-open-mixed-s151")
    (tmp_path / "log").mkdir()
    directory = golden.unpack(tmp_path / "log")
    shutil.move(directory, tmp_path / "log" / "orders-0")
    config = tmp_path / "topics.yaml"
    config.write_text("topics:\n  orders:\n    cleanup.policy: compact\n")
    result = pylog.done(
        "explain",
        tmp_path / "log",
        "--config",
        config,
        "--high-watermark",
        "log-end",
        "--now-ms",
        golden.case["clock_ms"],
        "--role",
        "mirror",
        "--output",
        "json",
    )
    row = explained(result)["orders-0"]
    (said,) = [s for s in row["statements"] if s["code"] == "OPEN_TRANSACTION"]
    assert "has been open since offset" in said["text"]
    assert said["facts"]["ends_range"] is True


def test_a_topic_that_nobody_knows_is_said_so(pylog, tmp_path):
    (tmp_path / "orders-0").mkdir()
    result = pylog("explain", tmp_path, "--output", "json")
    assert held_by(explained(result)["orders-0"]) == ("CONFIG_UNKNOWN", "CONFIG_UNKNOWN")


def test_exported_configs_are_heard_and_an_old_export_is_warned_of(pylog, tmp_path):
    golden = Golden("clean-headers-none-s101")
    golden.unpack(tmp_path / "log").rename(tmp_path / "log" / "orders-0")
    dump = tmp_path / "topics.json"
    dump.write_text(
        '{"format": "pylog-topics", "version": 1, "taken_ms": 1699900000000, '
        '"topics": {"orders": {"cleanup.policy": "delete"}}}'
    )
    said = (tmp_path / "log", "--high-watermark", "log-end", "--output", "json")
    unknown = explained(pylog("explain", *said))["orders-0"]
    assert held_by(unknown)[0] == "CONFIG_UNKNOWN"
    for now_ms, is_old in ((1_700_000_000_000, False), (1_701_000_000_000, True)):
        result = pylog("explain", *said, "--topic-dump", dump, "--now-ms", now_ms)
        assert held_by(explained(result)["orders-0"])[0] == "NOT_COMPACTED"
        assert "exported 2023-11-13T18:26:40.000Z" in result.stderr
        assert result.stderr.startswith("WARNING") == is_old


@pytest.mark.thorough
def test_what_holds_after_a_recovery_has_answers_of_its_own(pylog, root):
    said = [root, *CLOCK, "--topics", "compacted"]
    closed = explained(pylog("explain", *said, "--output", "json"))["compacted-0"]
    assert closed["after_recovery"] == []
    (root / ".kafka_cleanshutdown").unlink()
    row = explained(pylog("explain", *said, "--output", "json"))["compacted-0"]
    assert row["after_recovery"] == closed["answers"]
    text = pylog("explain", *said).stdout
    assert text.count("after a recovery: not now") == 4
    assert "down; after a recovery" not in text


def test_a_log_without_an_index_is_explained_past_its_recovery(pylog, root):
    said = [root, *CLOCK, "--topics", "compacted", "--output", "json"]
    whole = explained(pylog("explain", *said))["compacted-0"]
    min((root / "compacted-0").glob("*.index")).unlink()
    row = explained(pylog("explain", *said))["compacted-0"]
    assert held_by(row) == ("RECOVERY_REQUIRED", "RECOVERY_REQUIRED")
    assert [answer["held_by"] for answer in row["after_recovery"]] == list(held_by(whole))
    codes = [statement["code"] for statement in row["statements"]]
    assert codes[:2] == ["RECOVERY_REQUIRED"] * 2
    assert "RECOVERY" in codes


@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_a_code_that_there_is_not_keeps_no_other_from_its_answer(pylog, output):
    result = pylog("explain", "TORN_TAIL", "TORN_TALE", "NO_SUCH_WORD", "--output", output)
    assert result.exit_code == 2
    assert "TORN_TAIL" in result.stdout
    assert "TORN_TALE, NO_SUCH_WORD: are no directories, and no codes" in result.stderr
    nothing = pylog("explain", "TORN_TALE", "--output", output)
    assert (nothing.exit_code, nothing.stdout) == (2, "")
