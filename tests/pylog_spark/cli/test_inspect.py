"""``pylog inspect``: the truth about directories, broken ones included."""

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.formats.batch_v2 import Codec, TimestampType
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, some_batches
from tests.kit.directories import SegmentSpec, plain_segment, write_partition
from tests.kit.legacy import LegacyMessage, LegacySet
from tests.kit.program import lines_of

UNIQUE = "0123456789abcdef0123456789abcdef"


def write_orders(root: Path, number: int = 0) -> Path:
    batches = some_batches(count=5, records=4)
    return write_partition(
        root / f"orders-{number}",
        [
            SegmentSpec(base_offset=0, batches=batches),
            plain_segment(20, 1),
        ],
    )


@pytest.mark.parametrize("name", ["broker_dir", "unclean_broker_dir"])
def test_the_ends_are_those_that_kafkas_own_loader_found(pylog, request, name: str):
    root = request.getfixturevalue(name)
    case = json.loads((Path(__file__).parents[2] / "golden" / root.name / "case.json").read_text())
    rows = pylog.rows("inspect", root, kind="partition")
    found = {row["directory"]: row["log_end_offset"] for row in rows}
    for partition, what in case["expected"].items():
        if "expected" in what:
            assert found[partition] == what["expected"]["leo"], partition


def test_one_partition_directory_is_a_root_too(pylog, tmp_path: Path):
    write_orders(tmp_path, 0)
    directory = write_orders(tmp_path, 1)
    (row,) = pylog.rows("inspect", directory, kind="partition")
    assert (row["topic"], row["partition"], row["log_end_offset"]) == ("orders", 1, 21)


def test_one_partition_directory_has_the_policy_that_its_brokers_metadata_says(pylog, broker_dir):
    result = pylog("inspect", broker_dir / "compacted-delete-0", "--output", "json")
    (row,) = lines_of(result, "partition")
    assert row["cleanup_policy"] == "compact,delete"


def test_a_glob_that_matches_no_topic_is_said(pylog, broker_dir):
    result = pylog("inspect", broker_dir, "--topics", "nope*")
    assert "no partition of these topics" in result.stdout


def test_the_time_span_is_that_of_the_records(pylog, tmp_path: Path):
    batch = BatchSpec(
        records=(RecordSpec(timestamp=SOME_TIME_MS + 7), RecordSpec(timestamp=SOME_TIME_MS + 5))
    )
    horizon = BatchSpec(
        base_offset=2, records=(RecordSpec(timestamp=SOME_TIME_MS + 9),), delete_horizon_ms=1
    )
    write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=[batch, horizon])])
    write_partition(tmp_path / "u-0", [SegmentSpec(base_offset=2, batches=[horizon])])
    write_partition(tmp_path / "v-0", [SegmentSpec(base_offset=0)])
    rows = pylog.rows("inspect", tmp_path, kind="partition")
    spans = [(row["oldest_timestamp"], row["newest_timestamp"]) for row in rows]
    assert spans == [
        (SOME_TIME_MS + 7, SOME_TIME_MS + 9),
        (SOME_TIME_MS + 9, SOME_TIME_MS + 9),
        (None, None),
    ]


def test_the_oldest_time_is_that_of_the_first_record_not_of_its_batchs_header(pylog, tmp_path):
    records = tuple(RecordSpec(timestamp=SOME_TIME_MS + n) for n in (3, 8))
    broker_time = {"timestamp_type": TimestampType.LOG_APPEND_TIME}
    batches = {
        "gzip-0": BatchSpec(records=records, codec=Codec.GZIP),
        "horizon-0": BatchSpec(records=records, delete_horizon_ms=1),
        "appended-0": BatchSpec(records=records, **broker_time),
        "start-0": BatchSpec(records=records),
    }
    for name, batch in batches.items():
        write_partition(tmp_path / name, [SegmentSpec(base_offset=0, batches=[batch])])
    legacy = [LegacyMessage(offset=n, timestamp=SOME_TIME_MS + 3 + n) for n in range(2)]
    write_partition(
        tmp_path / "old-0",
        [SegmentSpec(base_offset=0, batches=[LegacySet(messages=legacy, codec=Codec.GZIP)])],
    )
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nstart 0 1\n")
    rows = pylog.rows("inspect", tmp_path, kind="partition")
    assert {row["topic"]: row["oldest_timestamp"] - SOME_TIME_MS for row in rows} == {
        "gzip": 3,
        "horizon": 3,
        "appended": 8,
        "start": 8,
        "old": 3,
    }


def test_a_directory_in_the_middle_of_a_swap_is_described_as_a_load_would_leave_it(pylog, tmp_path):
    directory = write_orders(tmp_path)
    new = write_partition(
        tmp_path / "new",
        [SegmentSpec(base_offset=0, batches=some_batches(count=1, base_offset=19))],
    )
    for path in new.glob("0*"):
        path.rename(directory / f"{path.name}.swap")
    shutil.rmtree(new)
    result = pylog("inspect", tmp_path, "--segments", "--output", "json")
    (row,) = lines_of(result, "partition")
    first, last = lines_of(result, "segment")
    swapped = (directory / "00000000000000000000.log.swap").stat().st_size
    assert (first["base_offset"], first["size_bytes"]) == (0, swapped)
    assert (last["base_offset"], row["log_end_offset"]) == (20, 21)
    assert row["size_bytes"] == first["size_bytes"] + last["size_bytes"]
    assert "00000000000000000000.log.swap" in row["leftover_files"]
    assert row["error"] is None


@pytest.mark.item("DIR-05", "DIR-08")
def test_directories_that_are_no_partition_are_rows_with_a_remark(pylog, tmp_path: Path):
    orders = write_orders(tmp_path)
    for state in ("delete", "future", "stray"):
        shutil.copytree(orders, tmp_path / f"orders-0.{UNIQUE}-{state}")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "remote-log-index-cache").mkdir()
    result = pylog("inspect", tmp_path, "--output", "json")
    rows = {row["directory"]: row for row in lines_of(result, "partition")}
    assert {name: row["kind"] for name, row in rows.items()} == {
        "lost+found": "foreign",
        "orders-0": "partition",
        f"orders-0.{UNIQUE}-delete": "delete",
        f"orders-0.{UNIQUE}-future": "future",
        f"orders-0.{UNIQUE}-stray": "stray",
    }
    assert rows[f"orders-0.{UNIQUE}-delete"]["size_bytes"] == rows["orders-0"]["size_bytes"]
    assert rows[f"orders-0.{UNIQUE}-future"]["log_end_offset"] == 21
    text = pylog("inspect", tmp_path).stdout
    assert "stray directory" in text
    assert "lost+found" in text


def test_leftovers_and_files_that_are_not_kafkas_are_named(pylog, tmp_path: Path):
    directory = write_orders(tmp_path)
    (directory / "00000000000000000005.log.deleted").touch()
    (directory / "notes.txt").touch()
    (row,) = pylog.rows("inspect", tmp_path, kind="partition")
    assert row["leftover_files"] == ["00000000000000000005.log.deleted"]
    assert row["unknown_files"] == ["notes.txt"]


BREAKAGES = {
    "missing index": lambda d: (d / "00000000000000000000.index").unlink(),
    "zeros at the end": lambda d: _append(d / "00000000000000000020.log", bytes(4096)),
    "broken epochs": lambda d: (d / "leader-epoch-checkpoint").write_text("nonsense"),
    "broken transaction index": lambda d: (d / "00000000000000000000.txnindex").write_bytes(
        b"\x00\x07" + bytes(32)
    ),
    "broken topic id": lambda d: (d / "partition.metadata").write_text("nonsense"),
    "no segments": lambda d: [log.unlink() for log in d.glob("*.log")],
}


def _append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


@pytest.mark.parametrize("breakage", BREAKAGES.values(), ids=BREAKAGES.keys())
def test_a_broken_partition_is_a_row_with_its_error_and_never_the_end(
    pylog, tmp_path: Path, breakage
):
    breakage(write_orders(tmp_path, 0))
    write_orders(tmp_path, 1)
    result = pylog("inspect", tmp_path, "--segments", "--output", "json")
    broken, whole = lines_of(result, "partition")
    # A broker recovers such a log when it starts: the look is whole.
    is_recovered = broken["error_class"] == "RecoveryRequiredError"
    assert result.exit_code == (ExitCode.DONE if is_recovered else ExitCode.PARTLY_FAILED)
    assert broken["error"]
    assert broken["error_class"]
    assert broken["segments"] is not None
    assert (whole["error"], whole["log_end_offset"]) == (None, 21)
    assert "Traceback" not in result.stderr


def test_a_missing_index_still_leaves_the_end_of_the_log_known(pylog, tmp_path: Path):
    directory = write_orders(tmp_path)
    (directory / "00000000000000000020.index").unlink()
    (row,) = pylog.rows("inspect", tmp_path, kind="partition")
    assert (row["log_end_offset"], row["error_class"]) == (21, "RecoveryRequiredError")


def test_a_broken_checkpoint_is_said_and_the_partitions_are_shown(pylog, tmp_path: Path):
    write_orders(tmp_path)
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\norders 0\n")
    result = pylog("inspect", tmp_path, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    (root,) = lines_of(result, "log_directory")
    assert "cleaner-offset-checkpoint: line 3" in root["errors"][0]
    (row,) = lines_of(result, "partition")
    assert (row["error"], row["log_end_offset"]) == (None, 21)


def test_names_cannot_steer_the_terminal(pylog, tmp_path: Path):
    (tmp_path / "\x1b[31mred").mkdir()
    result = pylog("inspect", tmp_path)
    assert "\x1b" not in result.stdout
    assert "\\x1b[31mred" in result.stdout


@pytest.mark.sampled(3)
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("meta.properties", "fifo"),
        ("cleaner-offset-checkpoint", "fifo"),
        ("replication-offset-checkpoint", "link"),
        ("events-0/leader-epoch-checkpoint", "fifo"),
        ("events-0/partition.metadata", "fifo"),
        ("events-0/00000000000000000000.log", "link"),
        ("events-0", "link"),
    ],
)
def test_what_is_no_regular_file_neither_hangs_nor_is_quoted(
    pylog, broker_dir: Path, tmp_path: Path, name: str, kind: str
):
    root = shutil.copytree(broker_dir, tmp_path / "log")
    secret = tmp_path / "secret"
    secret.write_text("0\n1\nroot:x:19000\n")
    if (root / name).is_dir():
        shutil.move(root / name, tmp_path / "elsewhere")
        secret = tmp_path / "elsewhere"
    (root / name).unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(root / name)
    else:
        (root / name).symlink_to(secret)
    result = pylog("inspect", root, "--output", "json")
    said = result.stdout + result.stderr
    assert "19000" not in said
    is_ignored = name == "events-0/leader-epoch-checkpoint"  # as by Kafka: it is no file
    assert is_ignored or f"is a {'FIFO' if kind == 'fifo' else 'link'}, expected" in said
    assert result.exit_code == 0 if is_ignored else result.exit_code in {0, 4, 5}
    if not name.startswith("meta"):
        rows = lines_of(result, "partition")
        assert [row["topic"] for row in rows if row["error"] is None].count("compacted") == 2


def rows_by(pylog, root: Path, *said: str) -> list[dict[str, Any]]:
    return lines_of(pylog("inspect", root, "--output", "json", *said), "partition")


def test_segments_stay_with_their_partition_whatever_the_order(pylog, unclean_broker_dir: Path):
    result = pylog(
        *("inspect", unclean_broker_dir, "--by", "size", "--segments", "--output", "json")
    )
    owner = ""
    for line in lines_of(result):
        if line["type"] == "partition":
            owner = line["directory"]
        elif line["type"] == "segment":
            assert line["directory"] == owner


def test_the_partitions_of_a_topic_are_added_up_over_all_roots(pylog, tmp_path, broker_dir: Path):
    write_orders(tmp_path / "a", 0)
    write_orders(tmp_path / "b", 1)
    roots = (tmp_path / "a", tmp_path / "b")
    result = pylog("inspect", *roots, "--per-topic", "--output", "json")
    (total,) = lines_of(result, "topic")
    rows = lines_of(result, "partition")
    assert (total["topic"], total["partitions"], total["failed"]) == ("orders", 2, 0)
    for name in ("segments", "size_bytes", "index_bytes", "recovery_bytes"):
        assert total[name] == sum(row[name] for row in rows) > -1
    assert total["size_bytes"] > 0
    assert total["newest_timestamp"] == max(row["newest_timestamp"] for row in rows)
    result = pylog("inspect", broker_dir, "--per-topic", "--by", "size", "--output", "json")
    for total in lines_of(result, "topic"):
        own = [row for row in lines_of(result, "partition") if row["topic"] == total["topic"]]
        for name, choose in (("oldest_timestamp", min), ("newest_timestamp", max)):
            times = [row[name] for row in own if row[name] is not None]
            assert total[name] == choose(times, default=None)
    sizes = [row["size_bytes"] for row in lines_of(result, "topic")]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) > 5


@pytest.mark.thorough
def test_more_partitions_than_a_terminal_has_lines_are_summed_by_topic(
    pylog, tmp_path: Path, monkeypatch
):
    for number in range(30):
        write_orders(tmp_path, number)
    (tmp_path / "nonsense").mkdir()
    every = pylog("inspect", tmp_path).stdout
    assert "orders-29" in every
    assert "summed" not in every
    # As on a terminal of 24 lines.
    monkeypatch.setattr("pylog_spark.cli.inspect._is_terminal", lambda: True)
    summed = pylog("inspect", tmp_path).stdout
    (orders,) = (line.split() for line in summed.splitlines() if line.startswith("orders"))
    assert orders[:3] == ["orders", "30", "60"]
    assert "nonsense" in summed
    assert "31 rows are summed by topic; --wide shows each" in summed
    for option in ("--wide", "--segments"):
        assert "orders-29" in pylog("inspect", tmp_path, option).stdout
    json_lines = pylog("inspect", tmp_path, "--output", "json")
    assert len(lines_of(json_lines, "partition")) == 31
    assert not lines_of(json_lines, "topic")
    monkeypatch.setenv("LINES", "31")
    assert pylog("inspect", tmp_path).stdout == every


@pytest.mark.thorough
def test_of_an_unclean_directory_it_is_said_what_a_recovery_would_read(
    pylog, broker_dir: Path, unclean_broker_dir: Path
):
    for row in rows_by(pylog, broker_dir):
        assert row["recovery_bytes"] is None
    rows = {row["directory"]: row for row in rows_by(pylog, unclean_broker_dir)}
    lines = (unclean_broker_dir / "recovery-point-offset-checkpoint").read_text().splitlines()[2:]
    points = {f"{topic}-{n}": int(at) for topic, n, at in (line.split() for line in lines)}
    for name, row in rows.items():
        if row["kind"] != "partition":
            continue
        point = points.get(name, 0)
        logs = sorted((unclean_broker_dir / name).glob("*.log"))
        read = [log for log, after in pairwise(logs) if int(after.stem) > point]
        read.append(logs[-1])
        assert row["recovery_point"] == point
        assert row["recovery_segments"] == len(read)
        assert row["recovery_bytes"] == sum(log.stat().st_size for log in read)
    assert any(row["recovery_segments"] < row["segments"] for row in rows.values())
    text = pylog("inspect", unclean_broker_dir).stdout
    assert "not cleanly shut down: the numbers are" in text
    assert "not cleanly shut down: the numbers are" not in pylog("inspect", broker_dir).stdout


def test_a_broken_recovery_point_hides_no_other_checkpoint(pylog, tmp_path: Path):
    write_orders(tmp_path)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("x")
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 20\n")
    result = pylog("inspect", tmp_path, "--output", "json")
    (root,) = lines_of(result, "log_directory")
    assert "recovery-point-offset-checkpoint" in root["errors"][0]
    (row,) = lines_of(result, "partition")
    assert (row["cleaner_checkpoint"], row["recovery_point"]) == (20, 0)
