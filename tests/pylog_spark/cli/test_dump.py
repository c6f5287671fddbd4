"""``pylog dump``: what a file holds, up to the byte where it does not."""

import base64
import dataclasses
import gzip
import json
import os
import shutil
import struct
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cli import dump_files
from pylog_spark.exit_code import ExitCode
from storage_core.formats.batch_v2 import CRC_AT, MAGIC_AT, Codec
from storage_core.formats.control import ControlType
from storage_core.records.payload import Limits
from storage_core.store.local import LocalFileReader
from tests.kit import damage
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    encode_batch,
    end_txn_marker,
    segment_bytes,
    some_batches,
)
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, plain_segment, write_partition
from tests.kit.golden_data import GOLDEN, Golden, Side, goldens, unpack_archive
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry, encode_message
from tests.kit.program import lines_of, run_to_end

LOG = "00000000000000000000.log"
# Kafka's names in dump.jsonl.gz, and ours.
KAFKAS_BATCH = {
    "pos": "position",
    "base": "base_offset",
    "last": "last_offset",
    "magic": "magic",
    "size": "size",
    "codec": "codec",
    "tt": "timestamp_type",
    "max_ts": "max_timestamp",
    "pid": "producer_id",
    "pe": "producer_epoch",
    "seq": "base_sequence",
    "last_seq": "last_sequence",
    "count": "record_count",
    "txn": "is_transactional",
    "ctl": "is_control",
    "epoch": "leader_epoch",
    "dh": "delete_horizon_ms",
    "valid": "crc_ok",
}


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def unhexed(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def side_of(golden: Golden) -> Side:
    """Return which side Kafka dumped first: later stages of a chain are dumped after only."""
    return Side(golden.dump()[0]["side"])


def kafkas_lines(golden: Golden) -> dict[str, list[dict[str, Any]]]:
    """Return what Kafka read in each segment of that side, in our words."""
    files = defaultdict(list)
    file, side = "", side_of(golden).value
    for line in golden.dump():
        if line.get("side", side) != side:
            break
        file = line.get("file", file)
        if line["t"] == "batch":
            files[file].append({ours: line[theirs] for theirs, ours in KAFKAS_BATCH.items()})
        elif line["t"] == "rec":
            headers = [(name, unhexed(value)) for name, value in line.get("h", [])]
            record = (line["o"], line["ts"], line["seq"], unhexed(line["k"]), unhexed(line["v"]))
            files[file].append({"record": (*record, headers)})
    return files


def our_lines(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the batches and records of a dump, as `kafkas_lines` has them."""
    files = defaultdict(list)
    file = ""
    for line in lines:
        file = line.get("file", file)
        if line["type"] == "batch":
            files[file].append({ours: line[ours] for ours in KAFKAS_BATCH.values()})
        elif line["type"] == "record":
            headers = [(name, decoded(value)) for name, value in line["headers"]]
            record = (line["offset"], line["timestamp"], line["sequence"])
            pair = (decoded(line["key"]), decoded(line["value"]))
            files[file].append({"record": (*record, *pair, headers)})
    return files


def test_a_dump_does_without_arrow_and_its_memory(tmp_path: Path) -> None:
    partition = Golden("clean-hw-none-s161").unpack(tmp_path)
    program = """
import sys
from pylog_spark.cli import main
main(["dump", sys.argv[1], "--output", "json"])
sys.exit("pyarrow" in sys.modules)
"""
    run_to_end([sys.executable, "-c", program, partition], check=True)


@pytest.mark.sampled(13)
@pytest.mark.item("FMT-04", "FMT-05", "FMT-06", "FMT-07")
@pytest.mark.parametrize("golden", [g for g in goldens() if g.has_dump()], ids=lambda g: g.name)
def test_a_dump_has_every_batch_and_record_that_kafka_reads(pylog, tmp_path, golden: Golden):
    directory = golden.unpack(tmp_path, side_of(golden))
    before = read_tree(directory)
    assert our_lines(pylog.rows("dump", directory)) == kafkas_lines(golden)
    assert read_tree(directory) == before


@pytest.mark.parametrize("name", ["dump-odd-s560", "dump-mixed-s555"])
def test_a_dump_of_odd_batches_has_as_many_records_as_their_headers_count(pylog, tmp_path, name):
    lines = pylog.rows("dump", Golden(name).unpack(tmp_path))
    counted = sum(line["record_count"] for line in lines if line["type"] == "batch")
    assert counted == sum(line["type"] == "record" for line in lines) > 50


@pytest.mark.item("FMT-22")
def test_old_formats_say_what_their_headers_say(pylog, tmp_path: Path):
    entries = [
        LegacyMessage(offset=4, key=b"old", value=None, magic=0),
        LegacySet(messages=(LegacyMessage(offset=5), LegacyMessage(offset=8)), timestamp=77),
    ]
    (tmp_path / LOG).write_bytes(b"".join(map(encode_entry, entries)))
    lines = pylog.rows("dump", tmp_path / LOG)
    batches = [line for line in lines if line["type"] == "batch"]
    (tmp_path / "00000000000000000009.log").write_bytes(GOOD)
    new, _ = pylog.rows("dump", tmp_path / "00000000000000000009.log")
    assert list(batches[0]) == list(new)
    names = ("magic", "base_offset", "last_offset", "record_count", "timestamp_type", "crc_ok")
    assert [tuple(line[name] for name in names) for line in batches] == [
        (0, 4, 4, None, "NoTimestampType", True),
        (1, 5, 8, None, "CreateTime", True),
    ]
    assert [line["offset"] for line in lines if line["type"] == "record"] == [4, 5, 8]
    text = pylog("dump", tmp_path / LOG).stdout
    assert "batch 4..4, magic 0, 1 records, 29 bytes at 0, none, NoTimestampType\n" in text
    assert "batch 5..8, magic 1, 2 records" in text
    assert "gzip, CreateTime up to 1970-01-01" in text
    assert "leader epoch" not in text


@pytest.mark.item("FMT-28")
def test_a_magic_above_2_is_shown_as_it_lies_and_not_opened(pylog, tmp_path: Path):
    odd = GOOD[:MAGIC_AT] + b"\x03" + GOOD[MAGIC_AT + 1 :]
    (tmp_path / LOG).write_bytes(GOOD + odd)
    result = pylog("dump", tmp_path / LOG, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    *_, batch, error = lines_of(result)
    assert (batch["magic"], batch["crc_ok"], batch["record_count"]) == (3, True, 1)
    assert error["message"] == "expected magic 0, 1 or 2, found 3"
    assert error["position"] == len(GOOD)


def test_what_stands_first_is_told_of_several_bad_batches(pylog, tmp_path: Path):
    """Batches are opened in several steps; the second of these fails in an earlier one."""
    bad_count, bad_codec = damage.with_lying_count(GOOD, 2**31 - 1), damage.with_codec(GOOD, 6)
    (tmp_path / LOG).write_bytes(GOOD + bad_count + GOOD + bad_codec)
    lines = lines_of(pylog("dump", tmp_path / LOG, "--output", "json"))
    assert [line["type"] for line in lines] == ["batch", "record", "batch", "error"]
    assert lines[-1]["position"] == len(GOOD)


def test_headers_keep_order_and_repeats_and_tell_null_from_empty(pylog, tmp_path: Path):
    headers = (("h", b"1"), ("", None), ("h", b""), ('"é\n', b"\xff"))
    record = RecordSpec(key=b"", value=None, headers=headers)
    (tmp_path / LOG).write_bytes(segment_bytes([BatchSpec(records=(record, RecordSpec()))]))
    _, first, second = pylog.rows("dump", tmp_path / LOG)
    assert [(name, decoded(value)) for name, value in first["headers"]] == list(headers)
    assert (first["key"], first["value"], second["headers"]) == ("", None, [])


def control_batch(base_offset: int, key: bytes) -> BatchSpec:
    record = RecordSpec(key=key, value=b"")
    return BatchSpec(base_offset=base_offset, records=(record,), is_control=True)


@pytest.mark.item("FMT-12")
def test_control_batches_say_their_type(pylog, tmp_path: Path):
    known = [control_batch(kind, struct.pack(">hh", 0, kind)) for kind in range(7)]
    odd = [
        control_batch(7, struct.pack(">hh", 0, 99)),
        control_batch(8, struct.pack(">hh", 5, ControlType.COMMIT)),
        control_batch(9, struct.pack(">hh", -1, ControlType.COMMIT)),
        control_batch(10, b"\0\0\0"),
        BatchSpec(base_offset=11, is_control=True, is_transactional=True),
        BatchSpec(base_offset=12, records=(RecordSpec(key=b"k"),)),
    ]
    (tmp_path / LOG).write_bytes(segment_bytes([*known, *odd]))
    lines = pylog.rows("dump", tmp_path / LOG)
    types = [line["control_type"] for line in lines if line["type"] == "batch"]
    assert types[:7] == [
        "ABORT",
        "COMMIT",
        "LEADER_CHANGE",
        "SNAPSHOT_HEADER",
        "SNAPSHOT_FOOTER",
        "KRAFT_VERSION",
        "KRAFT_VOTERS",
    ]
    assert types[7:] == ["UNKNOWN", "COMMIT", "UNKNOWN", "UNKNOWN", None, None]


GOOD = encode_batch(BatchSpec(records=(RecordSpec(key=b"k", value=b"v"),)))
WRONG_CRC = GOOD[:CRC_AT] + bytes([GOOD[CRC_AT] ^ 1]) + GOOD[CRC_AT + 1 :]
TWO = BatchSpec(records=(RecordSpec(key=b"a", value=b"v"), RecordSpec(key=b"b", value=b"v")))
BAD_BATCHES = {
    "message format v1": GOOD[:MAGIC_AT] + b"\x01" + GOOD[MAGIC_AT + 1 :],
    "message format of the future": GOOD[:MAGIC_AT] + b"\x03" + GOOD[MAGIC_AT + 1 :],
    "lying length": damage.with_lying_length(GOOD, 1),
    "negative length": damage.with_lying_length(GOOD, -1),
    "lying record count": damage.with_lying_count(GOOD, 2**31 - 1),
    "negative record count": damage.with_lying_count(GOOD, -1),
    "unknown codec": damage.with_codec(GOOD, 6),
    "no gzip": damage.with_codec(GOOD, Codec.GZIP),
    "bytes after the last record": damage.with_trailing_bytes(TWO),
    **{bad.value: damage.bad_record(bad) for bad in damage.BadRecord},
}


@pytest.mark.item("FMT-10", "FMT-11")
@pytest.mark.parametrize("batch", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_bad_bytes_end_their_file_with_an_error_and_the_next_file_goes_on(
    pylog, tmp_path: Path, batch: bytes
):
    directory = write_partition(tmp_path / "orders-0", [plain_segment(0, 3), plain_segment(9, 1)])
    log = directory / LOG
    where = log.stat().st_size
    log.write_bytes(log.read_bytes() + batch + GOOD)
    result = pylog("dump", directory, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    lines = lines_of(result)
    of_first = [line for line in lines if line.get("file") == LOG]
    error = of_first[-1]
    assert list(error) == ["type", "file", "position", "message"]
    assert (error["type"], error["position"]) == ("error", where)
    assert error["message"]
    assert [line["offset"] for line in lines if line["type"] == "record"][:3] == [0, 1, 2]
    assert lines[-1]["file"] != LOG
    assert "Traceback" not in result.stderr


def test_a_decompression_bomb_is_an_error_and_not_unpacked(pylog, tmp_path: Path, monkeypatch):
    limits = Limits(max_record_bytes=2**31 - 9, max_batch_bytes=1 << 20)
    monkeypatch.setattr("pylog_spark.cli.dump_segment.DEFAULT_LIMITS", limits)
    (tmp_path / LOG).write_bytes(GOOD + damage.decompression_bomb(Codec.ZSTD, value_bytes=1 << 24))
    result = pylog("dump", tmp_path / LOG, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    error = lines_of(result)[-1]
    assert (error["type"], error["position"]) == ("error", len(GOOD))
    assert "zstd" in error["message"]


@pytest.mark.parametrize(
    ("codec", "kinds"),
    [
        pytest.param(Codec.NONE, ["batch", "record", "error"], id="all but the last"),
        pytest.param(Codec.GZIP, ["batch", "error"], id="none of a compressed batch"),
    ],
)
def test_of_a_batch_with_bytes_left_over_the_records_are_shown_that_kafka_hands_out(
    pylog, tmp_path: Path, codec, kinds
):
    batch = damage.with_trailing_bytes(dataclasses.replace(TWO, codec=codec))
    (tmp_path / LOG).write_bytes(GOOD + batch)
    lines = lines_of(pylog("dump", tmp_path / LOG, "--output", "json"))
    assert [line["type"] for line in lines] == ["batch", "record", *kinds]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_a_message_set_that_cannot_be_opened_is_an_error_and_no_batch(pylog, tmp_path: Path, codec):
    """Its first offset lies inside."""
    message = LegacyMessage(offset=5, value=b"not compressed", attributes=int(codec))
    (tmp_path / LOG).write_bytes(GOOD + encode_message(message))
    lines = lines_of(pylog("dump", tmp_path / LOG, "--output", "json"))
    assert [line["type"] for line in lines] == ["batch", "record", "error"]
    assert lines[-1]["position"] == len(GOOD)


def test_lines_that_a_kernel_cannot_write_stand_between_those_that_it_does(pylog, tmp_path: Path):
    records = [
        RecordSpec(key=b"1", value=b"a", headers=[("plain", b"x")]),
        RecordSpec(key=b"2", value=b"b", headers=[('"\u00e4"', b"y"), ("n", None)]),
        RecordSpec(key=b"3", value=bytes(1 << 21)),
        RecordSpec(key=None, value=None),
    ]
    (tmp_path / LOG).write_bytes(encode_batch(BatchSpec(records=records)))
    _, *lines = pylog.rows("dump", tmp_path / LOG)
    assert [line["offset"] for line in lines] == [0, 1, 2, 3]
    for line, record in zip(lines, records, strict=True):
        for name in ("key", "value"):
            data = getattr(record, name)
            assert line[name] == (None if data is None else base64.b64encode(data).decode())
    assert [line["headers"] for line in lines[:2]] == [
        [["plain", "eA=="]],
        [['"\u00e4"', "eQ=="], ["n", None]],
    ]


def test_a_wrong_checksum_is_said_and_the_records_are_shown(pylog, tmp_path: Path):
    (tmp_path / LOG).write_bytes(WRONG_CRC + GOOD)
    result = pylog("dump", tmp_path / LOG, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    bad, _, good, _ = lines_of(result)
    assert (bad["crc_ok"], good["crc_ok"]) == (False, True)


@pytest.mark.parametrize("size", [1, 17, 18, len(GOOD) - 1])
def test_a_torn_tail_is_the_end_of_the_log_as_it_is_for_kafka(pylog, tmp_path: Path, size: int):
    (tmp_path / LOG).write_bytes(GOOD + damage.truncated(GOOD, size))
    assert pylog.rows("dump", tmp_path / LOG)[-1] == {
        "type": "tail",
        "file": LOG,
        "position": len(GOOD),
        "size": size,
        "is_zeros": size == 1,
    }


@pytest.mark.parametrize("size", [1, 12, 4096, 1 << 30])
def test_zeros_behind_the_last_batch_are_the_end_of_the_log(pylog, tmp_path: Path, size: int):
    (tmp_path / LOG).write_bytes(GOOD)
    os.truncate(tmp_path / LOG, len(GOOD) + size)
    result = pylog.done("dump", tmp_path / LOG, "--output", "json")
    tail = {"type": "tail", "file": LOG, "position": len(GOOD), "size": size, "is_zeros": True}
    assert lines_of(result)[-1] == tail
    said = pylog("dump", tmp_path / LOG).stdout
    assert f"{size} bytes from position {len(GOOD)} on are zeros: the end of the log" in said


def test_zeros_with_something_behind_them_are_an_error(pylog, tmp_path: Path):
    (tmp_path / LOG).write_bytes(GOOD + bytes(4096) + GOOD)
    result = pylog("dump", tmp_path / LOG, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert lines_of(result)[-1]["type"] == "error"


def test_an_empty_segment_has_no_lines(pylog, tmp_path: Path):
    (tmp_path / LOG).touch()
    result = pylog("dump", tmp_path / LOG, "--output", "json")
    assert (result.exit_code, result.stdout) == (ExitCode.DONE, "")


def committed(name: str) -> set[tuple[str, int, int]]:
    """Return (topic, partition, offset) of what a committed consumer got from a broker."""
    with gzip.open(GOLDEN / name / "consumed.jsonl.gz", "rt") as lines:
        return {tuple(json.loads(line)[:3]) for line in lines}


@pytest.mark.item("RD-08")
@pytest.mark.parametrize("partition", ["payments.txn-0", "payments.txn-1", "compacted-0"])
def test_read_committed_leaves_out_aborted_and_control_records(
    pylog, broker_dir: Path, partition: str
):
    options = ("--output", "json", "--isolation", "read_committed")
    lines = lines_of(pylog("dump", broker_dir / partition, *options))
    topic, _, number = partition.rpartition("-")
    offsets = {line["offset"] for line in lines if line["type"] == "record"}
    wanted = {offset for t, p, offset in committed("broker-dir") if (t, p) == (topic, int(number))}
    assert offsets == wanted
    everything = pylog.rows("dump", broker_dir / partition)
    # Batches are shown all the same: their headers say why their records are not.
    assert [line for line in lines if line["type"] == "batch"] == [
        line for line in everything if line["type"] == "batch"
    ]


@pytest.mark.thorough
@pytest.mark.item("RD-08")
def test_read_committed_of_a_log_with_an_open_transaction_ends_before_it(
    pylog, unclean_broker_dir: Path
):
    directory = unclean_broker_dir / "payments.txn-0"
    options = ("--output", "json", "--isolation", "read_committed")
    offsets = {
        line["offset"]
        for line in lines_of(pylog("dump", directory, *options))
        if line["type"] == "record"
    }
    assert offsets == {
        offset for t, p, offset in committed("broker-dir-unclean") if (t, p) == ("payments.txn", 0)
    }


def test_read_committed_of_one_segment_knows_the_transactions_of_its_neighbours(
    pylog, broker_dir: Path
):
    directory = broker_dir / "payments.txn-1"
    options = ("--output", "json", "--isolation", "read_committed")
    whole = lines_of(pylog("dump", directory, *options))
    parts = [
        line
        for log in sorted(directory.glob("*.log"))
        for line in lines_of(pylog("dump", log, *options))
    ]
    kinds = {"batch", "record"}
    assert parts == [line for line in whole if line["type"] in kinds]


def test_the_small_files_are_dumped_entry_by_entry(pylog, broker_dir: Path):
    directory = broker_dir / "payments.txn-0"
    lines = pylog.rows("dump", directory)
    by_type = {line["type"]: line for line in reversed(lines)}
    base = "00000000000000000000"
    assert by_type["index"] == {
        "type": "index",
        "file": f"{base}.index",
        "offset": 50,
        "position": 540,
    }
    assert list(by_type["timeindex"]) == ["type", "file", "timestamp", "offset"]
    assert by_type["txnindex"] == {
        "type": "txnindex",
        "file": f"{base}.txnindex",
        "producer_id": 4,
        "first_offset": 21,
        "last_offset": 31,
        "last_stable_offset": 32,
    }
    assert {"producer_id", "producer_epoch", "last_sequence"} <= by_type["snapshot"].keys()
    checkpoints = [line for line in lines if line["type"] == "checkpoint"]
    assert [line["file"] for line in checkpoints] == [
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert checkpoints[0]["start_offset"] == 0


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("cleaner-offset-checkpoint", {"topic", "partition", "offset"}),
        ("meta.properties", {"version", "cluster_id", "node_id", "directory_id"}),
        (".kafka_cleanshutdown", {"broker_epoch"}),
    ],
)
def test_the_files_of_a_log_directory_are_dumped_too(pylog, broker_dir, name, fields):
    first, *_ = pylog.rows("dump", broker_dir / name)
    assert first.keys() == {"type", "file"} | fields


def test_a_snapshot_of_the_clusters_metadata_is_dumped_with_its_records(pylog, broker_dir):
    directory = broker_dir / "__cluster_metadata-0"
    (snapshot,) = directory.glob("*.checkpoint")
    lines = pylog.rows("dump", snapshot)
    batches = [line for line in lines if line["type"] == "batch"]
    kinds = [batch["control_type"] for batch in batches if batch["is_control"]]
    assert kinds == ["SNAPSHOT_HEADER", "SNAPSHOT_FOOTER"]
    assert sum(line["type"] == "record" for line in lines) == sum(
        batch["record_count"] for batch in batches
    )
    committed = pylog("dump", snapshot, "--output", "json", "--isolation", "read_committed")
    data = [b["record_count"] for b in batches if not b["is_control"]]
    assert sum(line["type"] == "record" for line in lines_of(committed)) == sum(data) > 0
    files = {line["file"] for line in pylog.rows("dump", directory) if "file" in line}
    assert {snapshot.name, "quorum-state", LOG} <= files
    shutil.copy(snapshot, directory.parent / "bootstrap.checkpoint")
    again = pylog.rows("dump", directory.parent / "bootstrap.checkpoint")
    assert len(again) == len(lines)


def test_what_a_node_voted_for_is_dumped(pylog, broker_dir, tmp_path):
    state = broker_dir / "__cluster_metadata-0" / "quorum-state"
    (line,) = pylog.rows("dump", state)
    assert {"leader_id", "leader_epoch", "voted_id", "data_version"} <= line.keys()
    assert (line["type"], line["file"]) == ("checkpoint", "quorum-state")
    for number, content in enumerate(("[" * 100_000, "[1]", '{"type":"x"}', "{")):
        broken = tmp_path / str(number) / "quorum-state"
        broken.parent.mkdir()
        broken.write_text(content)
        result = pylog("dump", broken, "--output", "json")
        assert result.exit_code == ExitCode.PARTLY_FAILED
        assert lines_of(result)[0]["type"] == "error"


def test_what_is_bad_is_counted_on_standard_error_with_the_first_place(pylog, tmp_path):
    directory = tmp_path / "t-0"
    for base in (10, 0):
        batches = [encode_batch(spec) for spec in some_batches(count=3, base_offset=base)]
        data = bytearray(b"".join(batches))
        for batch in (1, 2):
            data[sum(map(len, batches[:batch])) + CRC_AT] ^= 1
        directory.mkdir(exist_ok=True)
        (directory / f"{base:020d}.log").write_bytes(data)
    result = pylog("dump", directory)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    (line,) = result.stderr.splitlines()
    assert line == (
        f"pylog: 4 places are bad; the first: {LOG}: position {len(batches[0])}: "
        "the CRC of the batch at offset 1 is wrong"
    )


def test_a_file_that_vanishes_ends_its_own_lines_only(pylog, tmp_path, monkeypatch):
    directory = write_partition(tmp_path / "t-0", [plain_segment(n, 2) for n in (0, 2)])
    last = "00000000000000000002.log"
    original = dump_files.dump_segment

    def after_it_is_gone(store, name, *others):
        if name == LOG:
            (directory / LOG).unlink()
        yield from original(store, name, *others)

    monkeypatch.setattr(dump_files, "dump_segment", after_it_is_gone)
    result = pylog("dump", directory, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    lines = lines_of(result)
    errors = [line for line in lines if line["type"] == "error"]
    assert [line["file"] for line in errors] == [LOG]
    assert "gone, or another file" in errors[0]["message"]
    assert sum(line["type"] == "batch" and line["file"] == last for line in lines) == 2
    assert LOG in result.stderr


def test_a_directory_in_the_middle_of_a_swap_is_dumped_as_a_load_would_leave_it(pylog, tmp_path):
    directory = tmp_path / "t-0"
    specs = [plain_segment(n, 2) for n in (0, 2, 4)]
    write_partition(directory, specs)
    swap = write_partition(
        tmp_path / "new-0",
        [SegmentSpec(base_offset=0, batches=some_batches(count=1, base_offset=3))],
    )
    for path in swap.glob("0*"):
        path.rename(directory / f"{path.name}.swap")
    result = pylog("dump", directory, "--output", "json")
    lines = lines_of(result)
    bases = [line["base_offset"] for line in lines if line["type"] == "batch"]
    assert bases == [3, 4, 5]
    assert {line["file"] for line in lines if line["type"] == "batch"} == {
        LOG,
        "00000000000000000004.log",
    }
    assert f"{LOG}.swap as {LOG}" in result.stderr
    (directory / "strange.log.swap").write_bytes(b"")
    refused = pylog("dump", directory)
    assert refused.exit_code != ExitCode.DONE
    assert "strange.log.swap" in refused.stderr


def test_the_zeros_of_a_preallocated_index_are_not_entries(pylog, unclean_broker_dir: Path):
    directory = unclean_broker_dir / "events-0"
    for suffix in ("index", "timeindex"):
        path = directory / f"00000000000000000631.{suffix}"
        assert path.stat().st_size > 65_000
        assert len(pylog.rows("dump", path)) <= 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("00000000000000000000.snapshot", b"\x00\x07"),
        ("00000000000000000000.txnindex", b"\x00\x09" + bytes(32)),
        ("leader-epoch-checkpoint", b"0\n2\n0 0\n"),
        ("partition.metadata", b"version: 0\n"),
    ],
)
def test_a_small_file_that_is_broken_is_an_error_line(pylog, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    result = pylog("dump", tmp_path / name, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    (line,) = lines_of(result)
    assert (line["type"], line["file"]) == ("error", name)


def test_a_segment_on_its_way_out_can_be_dumped_by_name(pylog, unclean_broker_dir: Path):
    log = unclean_broker_dir / "events-0" / "00000000000000000112.log.deleted"
    lines = pylog.rows("dump", log)
    assert lines[0]["base_offset"] == 112
    listed = pylog.rows("dump", log.parent)
    assert not any("deleted" in line.get("file", "") for line in listed)


def test_a_snapshot_on_its_way_out_is_dumped_as_a_snapshot(pylog, broker_dir, tmp_path: Path):
    snapshot = next((broker_dir / "payments.txn-0").glob("*.snapshot"))
    gone = tmp_path / f"{snapshot.name}.deleted"
    gone.write_bytes(snapshot.read_bytes())
    lines = pylog.rows("dump", gone)
    assert lines
    assert {line["type"] for line in lines} == {"snapshot"}


@pytest.mark.parametrize("name", ["notes.txt", "orders.log", "nothing-there.log"])
def test_what_is_no_file_of_kafkas_is_wrong_usage(pylog, tmp_path: Path, name: str):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "orders.log").touch()
    result = pylog("dump", tmp_path / name)
    assert result.exit_code == ExitCode.USAGE
    assert name in result.stderr


def test_a_link_to_what_is_no_file_of_kafkas_by_its_name_is_wrong_usage(pylog, tmp_path: Path):
    (tmp_path / "blob").write_bytes(segment_bytes(some_batches(count=1)))
    (tmp_path / LOG).symlink_to(tmp_path / "blob")
    result = pylog("dump", tmp_path / LOG)
    assert result.exit_code == ExitCode.USAGE
    assert str(tmp_path / "blob") in result.stderr


def test_a_directory_without_a_log_is_wrong_usage(pylog, tmp_path: Path):
    assert pylog("dump", tmp_path).exit_code == ExitCode.USAGE


def test_the_table_says_the_same_to_a_person(pylog, tmp_path: Path):
    records = (
        RecordSpec(key=b"\x1b[2J\xff", value=b"x" * 200, headers=(("h", None),)),
        RecordSpec(key=None, value=None),
    )
    batches = [
        BatchSpec(records=records, producer_id=7, producer_epoch=1, base_sequence=5),
        end_txn_marker(base_offset=2, producer_id=7, producer_epoch=1),
    ]
    (tmp_path / LOG).write_bytes(segment_bytes(batches) + b"\0\0")
    text = pylog("dump", tmp_path / LOG).stdout
    assert "batch 0..1, 2 records" in text
    assert "producer 7 epoch 1, sequences 5..6" in text
    assert "control COMMIT" in text
    assert r'"\x1b[2J\xff" = "' + "x" * 120 + '..." (200 bytes)  [h=null]' in text
    assert "null = null" in text
    assert "2 bytes from position" in text
    assert "\x1b" not in text


def test_the_table_shows_an_error_and_goes_on(pylog, tmp_path: Path):
    (tmp_path / LOG).write_bytes(WRONG_CRC + damage.with_lying_count(GOOD, 9))
    (tmp_path / "00000000000000000005.log").write_bytes(GOOD)
    result = pylog("dump", tmp_path)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "CRC WRONG" in result.stdout
    assert f"ERROR at position {len(GOOD)}" in result.stdout
    assert result.stdout.index("ERROR") < result.stdout.index("00000000000000000005.log")


@pytest.mark.item("FLT-15")
def test_a_log_that_is_appended_to_is_dumped_as_long_as_it_was_when_it_was_opened(
    pylog, tmp_path: Path, monkeypatch
):
    """A writer that never stops: the dump ends, and shows whole batches only."""
    path = tmp_path / LOG
    path.write_bytes(segment_bytes(some_batches(count=3)) + GOOD[:20])
    read_into = LocalFileReader.read_into

    def read_and_append(reader: LocalFileReader, position: int, target: Any) -> int:
        with path.open("ab") as file:
            file.write(GOOD)
        return read_into(reader, position, target)

    opened = path.stat().st_size
    monkeypatch.setattr("pylog_spark.cli.dump_segment._WINDOW_BYTES", 100)
    monkeypatch.setattr(LocalFileReader, "read_into", read_and_append)
    lines = pylog.rows("dump", path)
    assert [line["offset"] for line in lines if line["type"] == "record"] == [0, 1, 2]
    assert lines[-1]["type"] == "tail"
    assert (lines[-1]["position"] + lines[-1]["size"], path.stat().st_size > opened) == (
        opened,
        True,
    )


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_file(tmp_path: Path):
    batch = segment_bytes(some_batches(count=1, records=500))
    (tmp_path / LOG).write_bytes(batch * 800)  # 9 MB, 400,000 records that take 50 MB as lines
    code = (
        "import resource, sys; from pylog_spark.cli.program import run; "
        "sys.stdout = open('/dev/null', 'w'); run(['dump', sys.argv[1], '--output', 'json']); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    peaks = {}
    small = tmp_path / "00000000000000000001.log"
    small.write_bytes(batch * 40)
    for path in (small, tmp_path / LOG):
        done = run_to_end([sys.executable, "-c", code, os.fspath(path)], check=True)
        peaks[path.name] = int(done.stderr)
    assert peaks[LOG] - peaks[small.name] < 25_000  # KiB


def test_a_partition_is_named_by_its_topic_as_for_other_commands(pylog, tmp_path):
    for number in (0, 1):
        batches = some_batches(count=number + 1)
        write_partition(tmp_path / f"t-{number}", [SegmentSpec(base_offset=0, batches=batches)])
    by_topic = pylog.done("dump", tmp_path, "--topic", "t", "--partition", 1)
    assert by_topic.stdout == pylog("dump", tmp_path / "t-1").stdout
    several = pylog("dump", tmp_path, "--topic", "t")
    assert several.exit_code == ExitCode.USAGE
    assert "has t-0, t-1; say one with --partition" in several.stderr
    assert "no such topic" in pylog("dump", tmp_path, "--topic", "u").stderr


def test_control_records_of_the_quorum_have_their_fields(pylog, tmp_path):
    d1 = unpack_archive(GOLDEN / "two-disks" / "before.tar.gz", tmp_path) / "d1"
    metadata = d1 / "__cluster_metadata-0"

    def control(path: Path) -> list[tuple[str, Any]]:
        lines = pylog.rows("dump", path)
        decoded = [line["decoded"] for line in lines if line["type"] == "record"]
        return [(d["type"], d["value"]) for d in decoded if not d["type"].endswith("_RECORD")]

    voter = {"voter_id": 1}
    leader = {"version": 0, "leader_id": 1, "voters": [voter], "granting_voters": [voter]}
    assert control(metadata / f"{0:020d}.log")[0] == ("LEADER_CHANGE", leader)
    assert control(metadata / f"{0:020d}-{0:010d}.checkpoint") == [
        ("SNAPSHOT_HEADER", {"version": 0, "last_contained_log_timestamp": 1795641973298}),
        ("SNAPSHOT_FOOTER", {"version": 0}),
    ]
    text = pylog("dump", metadata).stdout
    assert "LEADER_CHANGE  version 0  =  version 0  leader_id 1" in text


def test_the_status_of_a_transaction_has_its_name(pylog, tmp_path):
    d1 = unpack_archive(GOLDEN / "two-disks" / "before.tar.gz", tmp_path) / "d1"
    result = pylog("dump", d1 / "__transaction_state-1", "--output", "json")
    lines = lines_of(result)
    values = [line["decoded"]["value"] for line in lines if line["type"] == "record"]
    named = {(v["transaction_status"], v["transaction_status_name"]) for v in values}
    assert named >= {(0, "Empty"), (1, "Ongoing"), (2, "PrepareCommit"), (4, "CompleteCommit")}
