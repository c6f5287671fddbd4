"""Segments of every codec that Kafka wrote, decoded and compared with Kafka's own dump of them."""

from pathlib import Path
from typing import Any

import pytest

from storage_core.formats.batch_v2 import Codec
from tests.kit.decode import DecodedBatch, decode_segment
from tests.kit.golden_data import Golden, Side, goldens

DUMPED = [golden for golden in goldens() if golden.has_dump() and "topic_partition" in golden.case]


def kafkas_view(golden: Golden, side: Side) -> dict[str, list[dict[str, Any]]]:
    """Return the batches of each .log file, each with its records under "records"."""
    files: dict[str, list[dict[str, Any]]] = {}
    batches: list[dict[str, Any]] = []
    for line in golden.dump():
        if line["t"] == "batch":
            batches = files.setdefault(line["file"], []) if line["side"] == side.value else []
            batches.append(line | {"records": []})
        elif line["t"] == "rec":
            batches[-1]["records"].append(
                (line["o"], line["ts"], line["k"], line["v"], line.get("h", []))
            )
    return files


def our_view(batch: DecodedBatch) -> dict[str, Any]:
    """Return a batch under the names of Kafka's dump."""
    header = batch.header
    return {
        "pos": batch.position,
        "size": batch.size,
        "base": batch.base_offset,
        "last": batch.last_offset,
        # Kafka does not count the messages of an old entry before it opens it.
        "count": header["record_count"] if header["magic"] == 2 else None,
        "codec": Codec(header["attributes"] & 0x07).name.lower(),
        "max_ts": header["max_timestamp"],
        "pid": header["producer_id"],
        "pe": header["producer_epoch"],
        "seq": header["base_sequence"],
        "txn": bool(header["attributes"] & 0x10),
        "ctl": bool(header["attributes"] & 0x20),
        "epoch": header["partition_leader_epoch"],
        "crc": header["crc"],
        "valid": batch.crc_ok,
        "records": [
            (
                record.offset,
                record.timestamp,
                None if record.key is None else record.key.hex(),
                None if record.value is None else record.value.hex(),
                [[n.decode(), None if v is None else v.hex()] for n, v in record.headers],
            )
            for record in batch.records
        ],
    }


@pytest.mark.parametrize("golden", DUMPED, ids=lambda golden: golden.name)
@pytest.mark.parametrize("side", Side, ids=lambda side: side.value)
def test_a_segment_is_decoded_as_kafka_decodes_it(golden: Golden, side: Side, tmp_path: Path):
    directory = golden.unpack(tmp_path, side)
    for file, batches in kafkas_view(golden, side).items():
        decoded, _ = decode_segment((directory / file).read_bytes())
        ours = [our_view(batch) for batch in decoded]
        assert ours == [{name: batch[name] for name in ours[0]} for batch in batches]


def test_every_codec_is_among_them():
    assert {codec for golden in DUMPED for codec in golden.case["codecs"]} == {
        codec.name.lower() for codec in Codec
    }
