"""The producers' side of an append: what its batches do to producers and transactions."""

from dataclasses import dataclass, field

from storage_core.errors import InvalidProducerEpochError, InvalidRecordError
from storage_core.formats.control import NO_CONTROL_RECORD, ControlType
from storage_core.log.producer_append import (
    ActiveProducers,
    AppendOrigin,
    BatchMetadata,
    CompletedAppendTxn,
    DataBatch,
    EndTxnMarker,
    ProducerAppendInfo,
)
from storage_core.records.batch_table import BatchTable


@dataclass(slots=True, kw_only=True)
class ProducerChanges:
    """What an append does to producers; nothing has been done yet.

    Attributes:
        infos: The producers as they will be.
        completed: The transactions that end.
        duplicate: The batch that was written before; then nothing else counts.
    """

    infos: dict[int, ProducerAppendInfo] = field(default_factory=dict)
    completed: list[CompletedAppendTxn] = field(default_factory=list)
    duplicate: BatchMetadata | None = None


def analyze_producers(
    partition: str,
    producers: ActiveProducers,
    batches: BatchTable,
    origin: AppendOrigin,
    transaction_version: int,
) -> ProducerChanges:
    """Play the batches of an append against the producers.

    Raises:
        PylogError: A batch contradicts its producer's state; see ProducerAppendInfo.
        InvalidRecordError: A control batch of a producer is no end-transaction marker.
    """
    changes = ProducerChanges()
    for row in batches.has_producer_id.nonzero()[0].tolist():
        producer_id = int(batches.producer_id[row])
        batch = data_batch(batches, row)
        if origin is AppendOrigin.CLIENT:
            changes.duplicate = producers.find_duplicate(producer_id, batch)
            if changes.duplicate is not None:
                return changes
        if origin in {AppendOrigin.CLIENT, AppendOrigin.COORDINATOR} and batch.is_transactional:
            _check_new_transaction(partition, producers, producer_id, batch)
        info = changes.infos.get(producer_id)
        if info is None:
            info = producers.prepare(partition, producer_id, origin)
            changes.infos[producer_id] = info
        if not batches.is_control[row]:
            info.append_data(batch)
            continue
        marker = _marker(partition, batches, row, transaction_version)
        completed = None if marker is None else info.append_marker(marker)
        if completed is not None:
            changes.completed.append(completed)
    return changes


def follow_producer(
    partition: str, producers: ActiveProducers, batches: BatchTable
) -> ProducerChanges:
    """Return what batches of one producer do that follow each other; none is a marker."""
    producer_id = int(batches.producer_id[0])
    info = producers.prepare(partition, producer_id, AppendOrigin.CLIENT)
    for row in range(len(batches)):
        info.append_data(data_batch(batches, row))
    return ProducerChanges(infos={producer_id: info})


def data_batch(batches: BatchTable, row: int) -> DataBatch:
    """Return what counts of a batch for its producer."""
    one = batches.rows(row, row + 1)
    return DataBatch(
        producer_epoch=int(one.producer_epoch[0]),
        first_sequence=int(one.base_sequence[0]),
        last_sequence=int(one.last_sequence[0]),
        first_offset=int(one.base_offset[0]),
        last_offset=int(one.last_offset[0]),
        max_timestamp=int(one.max_timestamp[0]),
        is_transactional=bool(one.is_transactional[0]),
    )


def _check_new_transaction(
    partition: str, producers: ActiveProducers, producer_id: int, batch: DataBatch
) -> None:
    if producers.has_ongoing_transaction(producer_id, batch.producer_epoch):
        return
    known = producers.producers.get(producer_id)
    if known is not None and batch.producer_epoch < known.producer_epoch:
        raise InvalidProducerEpochError(
            partition,
            producer_id,
            batch.first_offset,
            f"expected an epoch of at least {known.producer_epoch}, found {batch.producer_epoch}",
        )


def _marker(
    partition: str, batches: BatchTable, row: int, transaction_version: int
) -> EndTxnMarker | None:
    kind = int(batches.control_type[row])
    if kind == NO_CONTROL_RECORD:
        return None
    if kind not in {ControlType.ABORT, ControlType.COMMIT}:
        raise InvalidRecordError(
            partition,
            int(batches.position[row]),
            f"expected an end-transaction marker, found a control record of type {kind}",
        )
    return EndTxnMarker(
        producer_epoch=int(batches.producer_epoch[row]),
        coordinator_epoch=int(batches.coordinator_epoch[row]),
        is_abort=kind == ControlType.ABORT,
        offset=int(batches.base_offset[row]),
        timestamp=int(batches.marker_timestamp[row]),
        transaction_version=transaction_version,
    )
