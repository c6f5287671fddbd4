"""The referee itself: it answers what Apache Kafka answered when the golden data was made."""

import gzip
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.compare import read_tree
from tests.kit.golden_data import unpack_archive
from tests.kit.hostile_names import FILES_NOT_UTF8, NOT_UTF8
from tests.kit.program import run_to_end
from tests.oracle.cleaner import CleanerSettings, clean_range
from tests.oracle.consumer import consume
from tests.oracle.jvm import KafkaFailure
from tests.oracle.kafka import Kafka
from tests.oracle.log_directory import consumed_records, latest_committed_by_key, load_log_directory
from tests.oracle.records import NewBatch, NewRecord, read_batches
from tests.oracle.rounds import CleanTask, clean_by_kafka

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ROUNDS = sorted(
    path.parent
    for path in GOLDEN.glob("*/case.json")
    if json.loads(path.read_text())["operation"] == "clean"
    # Those after which Kafka swept the log, or gave up, have tests of their own.
    and not path.parent.name.startswith(("swept-", "overflow-"))
)
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
# What the golden cases do not name.
CONFIG = {
    "cleanup.policy": "compact",
    "retention.ms": -1,
    "retention.bytes": -1,
    "max.message.bytes": 67_108_864,
    "file.delete.delay.ms": 0,
}
WINDOW_BYTES = 1  # Kafka knows no windows

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


def unpack(archive: Path, directory: Path) -> Path:
    directory.mkdir(parents=True)
    return unpack_archive(archive, directory)


def task_of(case: dict[str, Any]) -> CleanTask:
    params, settings = case["params"], CONFIG | case["config"]
    if "segment.bytes" in settings:
        settings["internal.segment.bytes"] = settings.pop("segment.bytes")
    by_manager = bool(params.get("manager"))
    return CleanTask(
        config=settings,
        now_ms=case["clock_ms"],
        high_watermark=params.get("hw", case["expected"].get("leo", 2**62)),
        log_start_offset=params.get("log.start", 0),
        first_dirty_offset=None if by_manager else params.get("first.dirty", 0),
        first_uncleanable_offset=params.get("first.uncleanable"),
        cleaner_checkpoint=params.get("checkpoint", case.get("previous_checkpoint")),
        cleaner=CleanerSettings(
            map_bytes=params.get("map.bytes", 134_217_728),
            load_factor=params.get("load", 0.9),
            io_buffer_bytes=params.get("io.buffer", 524_288),
            max_io_buffer_bytes=params.get("max.io.buffer", 67_108_864),
        ),
        window_bytes=WINDOW_BYTES,
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("golden", ROUNDS, ids=lambda path: path.name)
def test_kafka_cleans_golden_partitions_to_the_same_bytes_again(golden, tmp_path):
    case = json.loads((golden / "case.json").read_text())
    directory = unpack(golden / "before.tar.gz", tmp_path / "log" / case["topic_partition"])
    expected = unpack(golden / "after.tar.gz", tmp_path / "after")
    answer = clean_by_kafka(Kafka(now_ms=case["clock_ms"]), directory, task_of(case))
    assert read_tree(directory) == read_tree(expected)
    assert answer.nothing_to_clean == case["expected"].get("nothing_to_clean", False)
    for name, number in answer.numbers.items():
        assert number == case["expected"]["next" if name == "next_offset" else name], name
    if "expected_checkpoint" in case:
        assert answer.cleaner_checkpoint == case["expected_checkpoint"]


@pytest.mark.thorough
def test_kafka_gives_up_a_golden_round_that_meets_an_overflowed_segment(tmp_path):
    golden = GOLDEN / "overflow-clean-s491"
    case = json.loads((golden / "case.json").read_text())
    directory = unpack(golden / "before.tar.gz", tmp_path / "log" / case["topic_partition"])
    expected = unpack(golden / "after.tar.gz", tmp_path / "after")
    task = task_of(case)
    kafka = Kafka(now_ms=task.now_ms)
    with kafka.open_partition(directory, config=task.config) as partition:
        partition.set_high_watermark(task.high_watermark)
        with pytest.raises(KafkaFailure) as thrown:
            clean_range(kafka, partition, settings=task.cleaner)
    assert thrown.value.java_class == case["expected"]["error"]
    assert read_tree(directory) == read_tree(expected)


@pytest.mark.thorough
def test_a_consumer_gets_what_a_real_one_got_from_the_broker(tmp_path):
    golden = GOLDEN / "broker-dir"
    case = json.loads((golden / "case.json").read_text())
    directory = unpack(golden / "before.tar.gz", tmp_path / "log")
    loaded = load_log_directory(directory, now_ms=case["clock_ms"])
    assert loaded.had_clean_shutdown
    assert not loaded.errors
    consumed = consumed_records(directory, now_ms=case["clock_ms"])
    expected: dict[str, list[tuple[Any, ...]]] = {}
    with gzip.open(golden / "consumed.jsonl.gz", "rt") as lines:
        for topic, partition, *record in map(json.loads, lines):
            expected.setdefault(f"{topic}-{partition}", []).append(tuple(record))
    for name, records in expected.items():
        got = [(r.offset, r.timestamp, text(r.key), text(r.value)) for r in consumed[name]]
        assert got == [record[:4] for record in records], name
    latest = latest_committed_by_key(
        directory, now_ms=case["clock_ms"], is_wanted=lambda name: name.startswith("compacted")
    )
    assert set(latest) == {name for name in expected if name.startswith("compacted")}


def text(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def record(key: bytes | None, value: bytes | None, **fields: Any) -> NewRecord:
    return NewRecord(key=key, value=value, timestamp=NOW_MS, **fields)


def test_what_was_appended_is_read_back_with_gaps_headers_and_nulls(tmp_path):
    records = (
        record(b"a", b"1", headers=(("name", b"value"), ("null", None))),
        record(None, b"", offset_gap=3),
        record(b"", None),
    )
    with Kafka(now_ms=NOW_MS).open_partition(tmp_path / "t-0", config=CONFIG) as partition:
        batch = NewBatch(records=records, codec="zstd")
        assert partition.append_as_follower(batch, base_offset=10, leader_epoch=4) == (10, 15)
        partition.set_high_watermark()
        got = consume(partition, read_committed=True)
        assert partition.answer().epochs == ((4, 10),)
    assert [(r.offset, r.key, r.value, r.headers) for r in got] == [
        (10, b"a", b"1", (("name", b"value"), ("null", None))),
        (14, None, b"", ()),
        (15, b"", None, ()),
    ]
    [segment] = (tmp_path / "t-0").glob("*.log")
    assert [batch.codec for batch in read_batches(segment.read_bytes())] == ["zstd"]


@pytest.mark.parametrize(
    ("read_committed", "keys"),
    [
        pytest.param(True, [b"committed", b"plain"], id="read committed"),
        pytest.param(False, [b"committed", b"aborted", b"plain", b"open"], id="read uncommitted"),
    ],
)
def test_a_consumer_gets_transactions_by_its_isolation_level(tmp_path, read_committed, keys):
    def transactional(key: bytes, producer_id: int, epoch: int, sequence: int) -> NewBatch:
        return NewBatch(
            records=(record(key, b"v"),),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )

    with Kafka(now_ms=NOW_MS).open_partition(tmp_path / "t-0", config=CONFIG) as partition:
        partition.append_as_leader(transactional(b"committed", 1, 0, 0))
        partition.end_transaction(producer_id=1, epoch=0, commit=True, timestamp=NOW_MS)
        partition.append_as_leader(transactional(b"aborted", 1, 0, 1))
        partition.append_as_leader(NewBatch(records=(record(b"plain", b"v"),)))
        # Transaction version 2: the marker bumps the producer's epoch.
        partition.end_transaction(
            producer_id=1, epoch=1, commit=False, timestamp=NOW_MS, transaction_version=2
        )
        partition.append_as_leader(transactional(b"open", 2, 0, 0))
        partition.set_high_watermark()
        got = consume(partition, read_committed=read_committed)
    assert [r.key for r in got] == keys


def test_kafkas_refusal_names_its_exception(tmp_path):
    batch = NewBatch(records=(record(None, b"no key"),))
    with (
        Kafka(now_ms=NOW_MS).open_partition(tmp_path / "t-0", config=CONFIG) as partition,
        pytest.raises(KafkaFailure, match="InvalidRecordException"),
    ):
        partition.append_as_leader(batch)


def test_the_loader_names_what_keeps_a_broker_from_starting(tmp_path):
    directory = tmp_path / "log"
    directory.mkdir()
    for name in ("t-0", "u-0"):
        with Kafka(now_ms=NOW_MS).open_partition(directory / name, config=CONFIG) as partition:
            partition.append_as_leader(NewBatch(records=(record(b"k", b"v"),)))
    good = load_log_directory(directory, now_ms=NOW_MS)
    assert not good.had_clean_shutdown
    assert {name: p.log_end_offset for name, p in good.partitions.items()} == {"t-0": 1, "u-0": 1}
    (directory / "not-a-partition").mkdir()
    refused = load_log_directory(directory, now_ms=NOW_MS)
    assert not refused.partitions
    assert "not-a-partition" in refused.errors
    assert "t-0" not in refused.errors
    (directory / "not-a-partition").rmdir()
    (directory / "t-0" / "leader-epoch-checkpoint").write_text("0\nnonsense\n")
    assert set(load_log_directory(directory, now_ms=NOW_MS).errors) == {"", "t-0"}


@pytest.mark.skipif(
    sys.getfilesystemencoding() != "utf-8", reason="the JVM takes names for text of another kind"
)
def test_kafka_neither_sees_nor_refuses_names_that_are_not_utf8(tmp_path):
    directory = tmp_path / "log"
    directory.mkdir()
    with Kafka(now_ms=NOW_MS).open_partition(directory / "t-0", config=CONFIG) as partition:
        partition.append_as_leader(NewBatch(records=(record(b"k", b"v"),)))
    for name in NOT_UTF8:
        (directory / os.fsdecode(name)).mkdir()
    for name in FILES_NOT_UTF8:
        (directory / "t-0" / os.fsdecode(name)).touch()
    loaded = load_log_directory(directory, now_ms=NOW_MS)
    assert not loaded.errors
    assert {name: p.log_end_offset for name, p in loaded.partitions.items()} == {"t-0": 1}
    assert not [name for name in loaded.changed_files if os.fsencode(name).count(b"\xff")]


def test_loading_leaves_the_directory_alone(tmp_path):
    directory = tmp_path / "log"
    directory.mkdir()
    with Kafka(now_ms=NOW_MS).open_partition(directory / "t-0", config=CONFIG) as partition:
        partition.append_as_leader(NewBatch(records=(record(b"k", b"v"),)))
    (directory / ".kafka_cleanshutdown").touch()
    before = read_tree(directory)
    loaded = load_log_directory(directory, now_ms=NOW_MS + DAY_MS)
    assert loaded.had_clean_shutdown
    assert not loaded.changed_files
    assert read_tree(directory) == before


def test_its_jvm_takes_no_signal_from_python():
    """A signal that a test means for itself would end the process, unnamed, a moment later."""
    code = """
from pathlib import Path
from tests.oracle.jvm import start_jvm
def caught():
    status = Path("/proc/self/status").read_text()
    [numbers] = [line.split()[1] for line in status.splitlines() if "SigCgt" in line]
    return int(numbers, 16)
before = caught()
start_jvm()
print(caught() & ~before)
"""
    new = int(run_to_end([sys.executable, "-c", code], check=True).stdout)
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
    assert [number for number in numbers if new >> (number - 1) & 1] == []
