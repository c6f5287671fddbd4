"""The plain decoder against what Kafka read, and against bytes that lie."""

import gzip
import json
import tarfile
from pathlib import Path

import pytest

from storage_core.formats.batch_v2 import TimestampType
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    encode_batch,
    encode_records,
    log_with,
    segment_bytes,
)
from tests.kit.decode import UndecodableError, decode_segment

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
DUMPS = sorted(GOLDEN.glob("*/dump.jsonl.gz"))


def as_kafka_read(dump: Path) -> dict[tuple[str, str], list[list[object]]]:
    """Batches and records of every file of a dump, in the order of the file."""
    files: dict[tuple[str, str], list[list[object]]] = {}
    with gzip.open(dump, "rt") as lines:
        for line in map(json.loads, lines):
            if line["t"] == "batch":
                current = files.setdefault((line["side"], line["file"]), [])
                header = ("pos", "base", "last", "size", "valid", "max_ts", "pid", "pe", "count")
                current.append([line[name] for name in header])
            elif line["t"] == "rec":
                current.append([line[name] for name in ("o", "ts", "k", "v")] + line.get("h", []))
    return files


def as_decoded(data: bytes) -> list[list[object]]:
    rows: list[list[object]] = []
    for batch in decode_segment(data)[0]:
        h = batch.header
        rows.append([batch.position, batch.base_offset, batch.last_offset, batch.size])
        rows[-1] += [batch.crc_ok, h["max_timestamp"], h["producer_id"], h["producer_epoch"]]
        # Kafka does not count the messages of an old entry before it opens it.
        rows[-1].append(h["record_count"] if h["magic"] == 2 else None)
        for record in batch.records:
            rows.append([record.offset, record.timestamp, text(record.key), text(record.value)])
            rows[-1] += [[name.decode(), text(value)] for name, value in record.headers]
    return rows


def text(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.parent.name)
def test_every_segment_is_decoded_as_kafka_read_it(dump):
    archives: dict[str, dict[str, bytes]] = {}
    for (side, file), expected in as_kafka_read(dump).items():
        if side not in archives:
            with tarfile.open(dump.with_name(f"{side}.tar.gz")) as archive:
                members = [m for m in archive.getmembers() if m.name.endswith(".log")]
                archives[side] = {m.name: archive.extractfile(m).read() for m in members}
        assert as_decoded(archives[side][file]) == expected, (side, file)


def test_a_torn_tail_is_left_over():
    whole = log_with(batches=2)
    batches, end = decode_segment(log_with(batches=2, torn_tail=70))
    assert (len(batches), end) == (2, len(whole))


def test_log_append_time_is_the_time_of_every_record():
    spec = BatchSpec(
        records=(RecordSpec(key=b"a"), RecordSpec(key=b"b", timestamp=SOME_TIME_MS + 5)),
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        max_timestamp=SOME_TIME_MS + 99,
    )
    [batch], _ = decode_segment(segment_bytes([spec]))
    assert {record.timestamp for record in batch.records} == {SOME_TIME_MS + 99}


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        pytest.param(lambda b: b + b"\0", "after the last record", id="bytes left over"),
        pytest.param(lambda b: b[:-2], "", id="a record cut short"),
        pytest.param(lambda b: bytes([b[0] + 2]) + b[1:], "its fields take", id="a lying length"),
        pytest.param(lambda b: b"\xff" * len(b), "", id="an endless varint"),
    ],
)
def test_records_that_contradict_their_header_are_refused(payload, why):
    spec = BatchSpec(records=(RecordSpec(key=b"key", value=b"value"),))
    with pytest.raises(UndecodableError, match=f"position 0.*{why}"):
        decode_segment(encode_batch(spec, payload=payload(encode_records(spec))))


def test_another_magic_is_refused():
    with pytest.raises(UndecodableError, match="magic 3"):
        decode_segment(encode_batch(BatchSpec(records=(RecordSpec(),), magic=3)))
