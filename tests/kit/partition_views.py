"""What a consumer gets to see of a partition directory, read in the plainest way."""

from pathlib import Path

import numpy as np

from storage_core.formats.batch_v2 import CONTROL_BIT, TRANSACTIONAL_BIT
from storage_core.formats.index_entries import TXN_INDEX_ENTRY
from tests.kit.decode import DecodedBatch, DecodedRecord, decode_segment


def batches_in(directory: Path) -> list[DecodedBatch]:
    """Return all batches, in order."""
    logs = sorted(directory.glob("*.log"))
    return [batch for log in logs for batch in decode_segment(log.read_bytes())[0]]


def data_records(directory: Path) -> list[DecodedRecord]:
    """Return the records but for control records, aborted ones included, in order."""
    return [
        record
        for batch in batches_in(directory)
        if not batch.header["attributes"] & CONTROL_BIT
        for record in batch.records
    ]


def committed_values(directory: Path, end_offset: int) -> dict[bytes, DecodedRecord]:
    """Return the newest committed record of every key below an offset, but for tombstones."""
    aborted = [
        tuple(int(number) for number in entry)
        for path in sorted(directory.glob("*.txnindex"))
        for entry in np.frombuffer(path.read_bytes(), TXN_INDEX_ENTRY)
    ]
    latest: dict[bytes, DecodedRecord] = {}
    for batch in batches_in(directory):
        is_aborted = batch.header["attributes"] & TRANSACTIONAL_BIT and any(
            producer_id == batch.header["producer_id"] and first <= batch.base_offset <= last
            for _, producer_id, first, last, _ in aborted
        )
        if is_aborted or batch.header["attributes"] & CONTROL_BIT:
            continue
        for record in batch.records:
            if record.key is not None and record.offset < end_offset:
                latest[record.key] = record
    return {key: record for key, record in latest.items() if record.value is not None}
