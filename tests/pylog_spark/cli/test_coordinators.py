"""``pylog groups`` and ``pylog transactions`` over directories that brokers left."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.file_damage import flip
from tests.kit.golden_data import GOLDEN, Golden, unpack_archive
from tests.kit.program import lines_of
from tests.kit.source_disk import (
    BATCHES,
    END,
    OPEN_PRODUCER,
    write_properties,
    write_source,
    write_states,
)

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS
LOG = "00000000000000000000.log"
KEY = b"\x00\x01\x00\x01g\x00\x06orders\x00\x00\x00\x00"


def clock_of(name: str) -> int:
    return int(Golden(name).case["clock_ms"])


def places_of(result: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (row["group"], f"{row['topic']}-{row['partition']}"): row
        for row in lines_of(result, "commit")
    }


@pytest.mark.item("REP-16", "REP-17")
def test_groups_have_the_offsets_that_their_broker_answered(pylog, broker_dir: Path):
    before = read_tree(broker_dir / "__consumer_offsets-0")
    now = clock_of("broker-dir")
    result = pylog.done("groups", broker_dir, "--output", "json", "--now-ms", now)
    places = places_of(result)
    groups = {row["group"]: row for row in lines_of(result, "group")}
    case = Golden("broker-dir").case
    for group, offsets in case["committed_offsets"].items():
        for place, offset in offsets.items():
            row, log = places[group, place], case["expected"][place]["expected"]
            assert row["offset"] == offset
            assert (row["log_start_offset"], row["log_end_offset"]) == (
                log["log_start"],
                log["leo"],
            )
            assert row["lag"] == log["leo"] - offset
            is_below = offset < log["log_start"]
            assert row["findings"] == (["commit-below-log-start"] if is_below else [])
            # They became empty after their last commit.
            assert groups[group]["state_ms"] > row["commit_ms"]
            assert row["expires_ms"] == groups[group]["state_ms"] + WEEK_MS
    # A coordinator answers -1 and no metadata for a partition without a commit.
    missing = places["tx-group", "events-1"]
    assert (missing["offset"], missing["metadata"], missing["lag"]) == (-1, "", None)
    assert groups.keys() == {"reports", "billing", "tx-group"}
    assert {row["state"] for row in groups.values()} == {"Empty"}
    assert read_tree(broker_dir / "__consumer_offsets-0") == before


@pytest.mark.item("REP-17")
def test_offsets_expire_by_the_retention_that_is_said(pylog, broker_dir: Path):
    now = clock_of("broker-dir") + HOUR_MS * 2
    arguments = ("groups", broker_dir, "--output", "json", "--now-ms", now)
    minutes = "offsets.retention.minutes=60"
    for row in places_of(pylog(*arguments, "--set", minutes)).values():
        assert ("commit-expired" in row["findings"]) == (row["commit_ms"] is not None)
    for row in places_of(pylog(*arguments)).values():
        assert "commit-expired" not in row["findings"]


@pytest.mark.item("REP-17")
def test_topics_are_chosen(pylog, broker_dir: Path):
    result = pylog("groups", broker_dir, "--output", "json", "--topics", "events")
    assert {row["topic"] for row in lines_of(result, "commit")} == {"events"}
    assert {row["group"] for row in lines_of(result, "group")} == {"reports", "billing", "tx-group"}


@pytest.mark.thorough
@pytest.mark.item("REP-17")
def test_a_record_that_was_moved_to_another_partition_is_flagged(pylog, tmp_path: Path):
    root = Golden("broker-dir").unpack(tmp_path)
    own, other = root / "__consumer_offsets-0", root / "__consumer_offsets-2"
    shutil.rmtree(other)
    own.rename(other)
    rows = places_of(pylog("groups", root, "--output", "json"))
    for row in rows.values():
        is_moved = row["offsets_partition"] == 2 and row["commit_ms"] is not None
        assert ("commit-in-wrong-partition" in row["findings"]) == is_moved
    assert any(row["findings"] for row in rows.values())


@pytest.mark.item("REP-16", "REP-17")
def test_compaction_changes_nothing_of_what_groups_have(pylog, tmp_path: Path):
    root = tmp_path / "kafka"
    first = [(KEY, _commit(offset)) for offset in range(40)]
    write_partition(
        root / "__consumer_offsets-0",
        [
            SegmentSpec(base_offset=0, batches=[_batch(0, first)]),
            SegmentSpec(base_offset=40, batches=[_batch(40, [(KEY, _commit(77))])]),
            SegmentSpec(base_offset=41, batches=[]),
        ],
    )
    arguments = ("groups", root, "--output", "json")
    before = pylog(*arguments)
    assert [row["offset"] for row in lines_of(before, "commit")] == [77]
    log = root / "__consumer_offsets-0"
    size = (log / LOG).stat().st_size
    pylog.done("partition", "clean", log, "--now-ms", 10**12, "--set", "cleanup.policy=compact")
    assert (log / LOG).stat().st_size < size
    assert pylog(*arguments).stdout == before.stdout


def _commit(offset: int) -> bytes:
    return (
        b"\x00\x03" + offset.to_bytes(8, "big") + b"\xff" * 4 + b"\x00\x00" + (5).to_bytes(8, "big")
    )


def _batch(base_offset: int, records: list[tuple[bytes, bytes | None]]) -> BatchSpec:
    return BatchSpec(
        base_offset=base_offset,
        records=tuple(
            RecordSpec(offset_delta=number, key=key, value=value)
            for number, (key, value) in enumerate(records)
        ),
    )


@pytest.mark.item("REP-16")
def test_a_version_of_later_is_told_and_hides_no_other_record(pylog, tmp_path: Path):
    root = tmp_path / "kafka"
    records = [(KEY[:-1] + b"\x01", b"\x00\x09new"), (b"\x00\x63", b"\x00\x00"), (KEY, _commit(5))]
    write_partition(
        root / "__consumer_offsets-0", [SegmentSpec(base_offset=0, batches=[_batch(0, records)])]
    )
    result = pylog.done("groups", root, "--output", "json")
    assert [row["offset"] for row in lines_of(result, "commit")] == [5]
    assert [
        (row["problem"], row["type_id"], row["version"], row["first_offset"])
        for row in lines_of(result, "undecoded")
    ] == [("unknown-version", 1, 9, 0), ("unknown-type", 99, None, 1)]
    text = pylog("groups", root, "--wide").stdout
    assert "1 records of OFFSET_COMMIT version 9 are not understood (unknown-version)" in text
    unknown, strange, known = (
        row for row in pylog.rows("dump", root / "__consumer_offsets-0" / LOG, kind="record")
    )
    assert unknown["value"] == "AAluZXc="
    assert unknown["decoded"]["problem"] == "unknown-version"
    assert unknown["decoded"]["key"] == {"group": "g", "topic": "orders", "partition": 1}
    assert strange["decoded"]["type"] is None
    assert known["decoded"]["value"]["offset"] == 5


@pytest.mark.thorough
@pytest.mark.item("REP-18")
def test_what_holds_the_stable_offset_is_told_with_its_owner(pylog, unclean_broker_dir: Path):
    now = clock_of("broker-dir-unclean")
    arguments = ("transactions", unclean_broker_dir, "--output", "json", "--now-ms")
    result = pylog.done(*arguments, now)
    rows = lines_of(result, "open_transaction")
    assert [(row["topic"], row["partition"]) for row in rows] == [
        ("payments.txn", 0),
        ("payments.txn", 1),
    ]
    for row in rows:
        assert (row["transactional_id"], row["state"]) == ("tx-open", "Ongoing")
        assert row["holds_stable_offset"] is True
        assert row["command"] is None
        limit = row["start_ms"] + row["timeout_ms"]
    assert {row["verdict"] for row in lines_of(pylog(*arguments, limit), "open_transaction")} == {
        "ongoing"
    }
    late = lines_of(pylog(*arguments, limit + 1), "open_transaction")
    assert {row["verdict"] for row in late} == {"overdue"}


@pytest.mark.thorough
@pytest.mark.item("REP-18")
def test_a_transaction_that_nobody_ends_comes_with_the_command_that_does(pylog, tmp_path: Path):
    root = Golden("broker-dir-unclean").unpack(tmp_path)
    for directory in root.glob("__transaction_state-*"):
        for path in directory.glob("*.*"):
            if path.suffix in {".log", ".index", ".timeindex", ".snapshot"}:
                path.unlink()
        (directory / LOG).touch()
    result = pylog("transactions", root, "--output", "json")
    first = lines_of(result, "open_transaction")[0]
    assert (first["verdict"], first["transactional_id"]) == ("hanging", None)
    command = (
        "kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic payments.txn "
        f"--partition 0 --start-offset {first['first_offset']}"
    )
    assert first["command"] == command
    assert command in pylog("transactions", root).stdout
    # Without a partition of the coordinator nobody can say so.
    shutil.rmtree(root / "__transaction_state-1")
    unknown = pylog.rows("transactions", root, kind="open_transaction")
    assert {row["verdict"] for row in unknown} == {"unknown"}
    assert "find-hanging --topic payments.txn --partition 0" in unknown[0]["command"]


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["groups", "transactions"])
def test_a_partition_that_cannot_be_read_is_a_row_beside_the_others(
    pylog, tmp_path: Path, command: str
):
    root = Golden("broker-dir").unpack(tmp_path)
    topic = "__consumer_offsets" if command == "groups" else "__transaction_state"
    log = root / f"{topic}-1" / LOG
    flip(log, 100)
    result = pylog(command, root, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    (row,) = [row for row in lines_of(result, "partition") if row["topic"] == topic]
    assert (row["partition"], row["error_class"]) == (1, "CorruptRecordError")
    assert lines_of(result, "group" if command == "groups" else "transaction")
    text = pylog(command, root)
    assert text.exit_code == ExitCode.PARTLY_FAILED
    assert f"{topic}-1" in text.stdout


def test_a_root_without_coordinators_has_nothing_to_tell(pylog, tmp_path: Path):
    write_partition(tmp_path / "kafka" / "orders-0", [SegmentSpec(base_offset=0, batches=[])])
    groups = pylog.done("groups", tmp_path / "kafka")
    assert groups.stdout.startswith("no groups\n")
    assert "it may lie in the broker's other log directories" in " ".join(groups.stdout.split())
    lines = pylog("groups", tmp_path / "kafka", "--output", "json")
    assert (lines.exit_code, lines.stdout) == (0, "")
    assert "no partition of __consumer_offsets is here" in lines.stderr
    transactions = pylog.done("transactions", tmp_path / "kafka")
    assert transactions.stdout.startswith("no transaction is open in a log\n")
    text = " ".join(transactions.stdout.split())
    assert "no partition of __transaction_state is here, which has the transactional ids" in text


@pytest.fixture
def brokers(tmp_path: Path) -> list[Path]:
    """Two brokers: an open transaction with offsets of a group, and their coordinator."""
    log, coordinator = tmp_path / "log", tmp_path / "coordinator"
    write_source(log)
    batch = replace(
        _batch(0, [(b"\0\1" + b"\0\5group" + b"\0\6orders" + bytes(4), _commit(9))]),
        producer_id=OPEN_PRODUCER,
        producer_epoch=2,
        base_sequence=0,
        is_transactional=True,
    )
    write_source(log, [SegmentSpec(base_offset=0, batches=[batch])], name="__consumer_offsets-0")
    (log / "log-start-offset-checkpoint").unlink()
    places = [{"topic": name, "partition_ids": [0]} for name in ("orders", "__consumer_offsets")]
    write_states(coordinator, {"transaction_partitions": places}, number=1)
    for node, root in enumerate((log, coordinator), start=1):
        write_properties(root, node)
    return [log, coordinator]


@pytest.mark.thorough
def test_a_coordinator_of_another_broker_decides_too(pylog, brokers: list[Path]):
    log, _ = brokers
    for roots, verdict, outcome in (
        (brokers, "ending", "commit"),
        (brokers[::-1], "ending", "commit"),
        ([log], "unknown", "undecided"),
    ):
        rows = pylog.rows("transactions", *roots, kind="open_transaction")
        told = {(row["topic"], row["verdict"], row["outcome"]) for row in rows}
        assert told == {(name, verdict, outcome) for name in ("orders", "__consumer_offsets")}
        text = " ".join(pylog("transactions", *roots).stdout.split())
        assert ("were committed perhaps: before you abort" in text) == (outcome == "undecided")
        result = pylog("groups", *roots, "--output", "json")
        (pending,) = lines_of(result, "pending_commit")
        assert (pending["producer_epoch"], pending["outcome"]) == (2, outcome)
    text = " ".join(pylog("groups", *brokers).stdout.split())
    assert "has not ended: its coordinator has decided to commit it, and does when it runs" in text


@pytest.mark.thorough
def test_a_committed_read_says_where_an_open_transaction_ends_it(
    pylog, brokers: list[Path], tmp_path: Path, caplog
):
    log, _ = brokers
    words = ["--topic", "orders", "--isolation", "read_committed"]
    ends = {
        "its coordinator has decided to commit it": brokers,
        "does not say whether it was committed": [log],
    }
    for number, (text, roots) in enumerate(ends.items()):
        first = BATCHES[-1].base_offset
        said = f"{log}: committed records of orders-0 end at offset {first} of {END}: "
        pylog.done("cat", *roots, *words)
        to = ["--to", "jsonl", "--out"]
        exported = pylog.done("export", *roots, *words, *to, tmp_path / f"out-{number}")
        for told in (caplog.text, exported.stdout):
            assert said in told
            assert text in told
        as_json = pylog(
            *("export", *roots, *words, *to, tmp_path / f"json-{number}", "--output", "json")
        )
        (sentence,) = json.loads(as_json.stdout)["open_ends"]
        assert sentence.startswith(said)
        caplog.clear()
    for more in (["--until", "5"], ["--max", "1"], ["--isolation", "read_uncommitted"]):
        assert pylog("cat", *brokers, *words, *more).exit_code == 0
    assert caplog.text == ""


@pytest.fixture
def disk_of(tmp_path: Path) -> Any:
    """Unpacks the log directory of a broker."""
    return lambda name: unpack_archive(GOLDEN / name / "before.tar.gz", tmp_path) / "d1"


@pytest.mark.thorough
def test_a_share_group_is_where_kafka_says(pylog, disk_of):
    disk = disk_of("group-share")
    result = pylog.done("groups", disk, "--output", "json")
    place = places_of(result)["share1", "jobs-0"]
    assert (place["offset"], place["lag"], place["findings"]) == (130, 170, [])
    assert place["delivery_complete_count"] == 0
    (group,) = (row for row in lines_of(result, "group") if row["group"] == "share1")
    assert (group["group_type"], group["state"]) == ("Share", "Empty")
    assert (group["commits"], group["lag"]) == (1, 170)
    table = pylog("groups", disk, "--topics", "jobs").stdout
    assert re.search(r"share1 +jobs-0 +130 +0 +300 +170 ", table)
    only_work = pylog("groups", disk, "--topics", "work", "--output", "json")
    assert ("share1", "jobs-0") not in places_of(only_work)


def test_a_share_group_is_shown_without_its_group_coordinator(pylog, disk_of):
    disk = disk_of("group-share")
    for path in disk.glob("__consumer_offsets-*"):
        shutil.rmtree(path)
    result = pylog("groups", disk, "--output", "json")
    assert {key: row["lag"] for key, row in places_of(result).items()} == {
        ("share1", "jobs-0"): 170
    }
    # Without the topic's log and the metadata only its id is known, and no lag.
    shutil.rmtree(disk / "__cluster_metadata-0")
    shutil.rmtree(disk / "jobs-0")
    ((_, place),) = places_of(pylog("groups", disk, "--output", "json"))
    assert re.fullmatch(r"[\w-]{22}-0", place)


def test_a_share_partition_that_cannot_be_read_is_a_row(pylog, disk_of):
    disk = disk_of("group-share")
    log = disk / "__share_group_state-0" / LOG
    flip(log)
    result = pylog("groups", disk, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    (error,) = lines_of(result, "partition")
    assert (error["topic"], error["partition"]) == ("__share_group_state", 0)
    assert ("classic", "work-1") in places_of(result)


@pytest.mark.thorough
def test_a_group_below_the_local_log_of_a_tiered_topic_is_in_its_log(pylog, disk_of):
    disk = disk_of("group-tiered")
    result = pylog("groups", disk, "--output", "json", "--now-ms", 1_795_902_000_000)
    place = places_of(result)["g1", "longer-0"]
    assert (place["offset"], place["lag"], place["findings"]) == (451, 1_049, [])
    assert (place["log_start_offset"], place["local_log_start_offset"]) == (0, 1_251)
    table = pylog("groups", disk, "--topics", "longer", "--now-ms", 1_795_902_000_000).stdout
    assert "local from 1,251" in table
    assert "below-log-start" not in table
    # What brokers said of the tier stands in for a checkpoint that is gone.
    (disk / "log-start-offset-checkpoint").unlink()
    again = pylog("groups", disk, "--output", "json", "--now-ms", 1_795_902_000_000)
    assert places_of(again)["g1", "longer-0"] == place
