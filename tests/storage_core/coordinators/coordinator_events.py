"""Records of coordinators by hand, as they are replayed."""

from typing import Any

from storage_core.coordinators.coordinator_log import ReplayedRecord, TransactionEnd
from storage_core.formats.batch_v2 import NO_PRODUCER_ID
from storage_core.messages.group_records import GROUP_RECORDS
from storage_core.messages.internal_records import TRANSACTION_RECORDS, DecodedRecord

COMMITTED_MS = 1_000_000


def record(
    offset: int,
    type_id: int,
    key: dict[str, Any],
    value: dict[str, Any] | None,
    *,
    producer_id: int = NO_PRODUCER_ID,
) -> ReplayedRecord:
    return ReplayedRecord(
        offset=offset,
        timestamp_ms=COMMITTED_MS,
        producer_id=producer_id,
        decoded=DecodedRecord(
            type_id=type_id,
            type=GROUP_RECORDS[type_id].name,
            version=None if value is None else 0,
            key=key,
            value=value,
            is_tombstone=value is None,
        ),
    )


def commit(
    offset: int,
    committed: int | None,
    *,
    group: str = "g",
    topic: str = "t",
    partition: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    **more: Any,
) -> ReplayedRecord:
    """A commit; committed None removes it."""
    value = {"offset": committed, "metadata": "", "commit_timestamp": COMMITTED_MS, **more}
    key = {"group": group, "topic": topic, "partition": partition}
    return record(offset, 1, key, None if committed is None else value, producer_id=producer_id)


def end(offset: int, producer_id: int, *, is_commit: bool) -> TransactionEnd:
    return TransactionEnd(offset=offset, producer_id=producer_id, is_commit=is_commit)


def transaction(offset: int, name: str, **fields: Any) -> ReplayedRecord:
    value = {
        "producer_id": 7,
        "producer_epoch": 0,
        "transaction_timeout_ms": 60_000,
        "transaction_status": 1,
        "transaction_partitions": ({"topic": "t", "partition_ids": (0,)},),
        "transaction_last_update_timestamp_ms": COMMITTED_MS,
        "transaction_start_timestamp_ms": COMMITTED_MS,
        **fields,
    }
    return ReplayedRecord(
        offset=offset,
        timestamp_ms=COMMITTED_MS,
        producer_id=NO_PRODUCER_ID,
        decoded=DecodedRecord(
            type_id=0,
            type=TRANSACTION_RECORDS[0].name,
            version=1,
            key={"transactional_id": name},
            value=value,
        ),
    )
