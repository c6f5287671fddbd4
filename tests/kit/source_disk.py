"""A stopped broker's disk with one log that has an open transaction, and coordinators' logs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    TopicPartition,
)
from storage_core.formats.batch_v2 import Codec
from storage_core.messages.fields import FieldWriter
from storage_core.messages.internal_records import TRANSACTION_RECORDS
from tests.kit.builders import BatchSpec, RecordSpec, end_txn_marker, in_a_row, some_batches
from tests.kit.directories import ProducerSpec, SegmentSpec, write_partition
from tests.storage_core.catalog import metadata_bytes as md

CLUSTER: Final = "V3CHegy_ZdcmiWckVUA0FQ"
NOW_MS: Final = 1_700_000_900_000
ORDERS: Final = TopicPartition("orders", 0)
LOG_START: Final = 3
OPEN_PRODUCER: Final = 8
CLOSED_PRODUCER: Final = 7
# One batch of each codec, a whole transaction, and one that is open, which compaction thinned out.
BATCHES: Final = in_a_row(
    [
        *(some_batches(count=1, records=4, codec=codec, leader_epoch=17)[0] for codec in Codec),
        BatchSpec(
            records=(RecordSpec(key=b"k", value=b"in a transaction"),),
            leader_epoch=18,
            producer_id=CLOSED_PRODUCER,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        ),
        end_txn_marker(base_offset=0, producer_id=CLOSED_PRODUCER, producer_epoch=0),
        BatchSpec(
            records=(RecordSpec(key=b"k", value=b"open"),),
            leader_epoch=23,
            producer_id=OPEN_PRODUCER,
            producer_epoch=2,
            base_sequence=5,
            is_transactional=True,
            last_offset_delta=3,
        ),
    ]
)
END: Final = BATCHES[-1].next_offset
SEGMENTS: Final = (
    SegmentSpec(base_offset=0, batches=BATCHES[:3], modified_ms=NOW_MS - 5000),
    SegmentSpec(base_offset=BATCHES[3].base_offset, batches=BATCHES[3:], modified_ms=NOW_MS - 4000),
)
CLOSED: Final = ProducerSpec(
    producer_id=CLOSED_PRODUCER, producer_epoch=0, last_timestamp=NOW_MS, coordinator_epoch=0
)
OPEN: Final = ProducerSpec(
    producer_id=OPEN_PRODUCER,
    producer_epoch=2,
    last_sequence=5,
    last_offset=END - 1,
    offset_delta=3,
    last_timestamp=NOW_MS,
    coordinator_epoch=4,
    current_txn_first_offset=BATCHES[-1].base_offset,
)
# The open transaction, as its coordinator has it once its producer commits it.
STATE: Final[Mapping[str, object]] = {
    "producer_id": OPEN_PRODUCER,
    "producer_epoch": 3,
    "transaction_timeout_ms": 60_000,
    "transaction_status": 2,
    "transaction_partitions": [{"topic": "orders", "partition_ids": [0]}],
    "transaction_last_update_timestamp_ms": NOW_MS,
    "transaction_start_timestamp_ms": NOW_MS,
    "previous_producer_id": -1,
    "next_producer_id": -1,
    "client_transaction_version": 2,
    "next_producer_epoch": -1,
}


def write_source(
    root: Path,
    segments: Sequence[SegmentSpec] = SEGMENTS,
    *,
    name: str = "orders-0",
    is_clean: bool = True,
) -> Path:
    """Write a log directory of the source with one log, closed, and return the log's directory."""
    directory = write_partition(
        root / name,
        [*segments, SegmentSpec(base_offset=END, producers=[CLOSED, OPEN])]
        if segments is SEGMENTS
        else segments,
    )
    checkpoint = root / LOG_START_FILE
    if name == str(ORDERS) or not checkpoint.exists():
        starts = {ORDERS: LOG_START} if segments is SEGMENTS else {}
        checkpoint.write_bytes(encode_offset_checkpoint(starts))
    if is_clean:
        (root / CLEAN_SHUTDOWN_FILE).write_text('{"version":0,"brokerEpoch":-1}')
    return directory


def write_states(
    root: Path, *records: Mapping[str, object], number: int = 0, name: str = "tx"
) -> Path:
    """Write a partition of the coordinators of transactions; return its directory.

    Args:
        records: Fields of the value of each record; of the open producer where they say nothing.
    """
    message = TRANSACTION_RECORDS[0]
    assert message.key is not None
    key = FieldWriter()
    key.int16(0)
    message.key.write(key, 0, {"transactional_id": name})
    specs = []
    for each in records:
        value = FieldWriter()
        value.int16(1)
        message.value.write(value, 1, {**STATE, **each})
        specs.append(BatchSpec(records=(RecordSpec(key=key.data, value=value.data),)))
    segment = SegmentSpec(base_offset=0, batches=in_a_row(specs))
    return write_source(root, [segment], name=f"__transaction_state-{number}", is_clean=False)


def write_properties(disk: Path, node: int, cluster: str = CLUSTER) -> None:
    """Write the properties of a log directory."""
    lines = (
        "version=1",
        f"cluster.id={cluster}",
        f"node.id={node}",
        f"directory.id={md.DIRECTORY}",
    )
    (disk / META_PROPERTIES_FILE).write_text("\n".join(lines) + "\n")
