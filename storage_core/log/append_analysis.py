"""The first look at bytes that are to be appended: which batches they are, and what they span.

Bytes in memory are read more strictly than a file: an impossible length or an unknown magic is an
error. An incomplete batch at the end is not: it is left out.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import (
    BadBytesError,
    CorruptRecordError,
    InvalidRecordError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from storage_core.formats.batch_v2 import (
    BATCH_LENGTH_AT,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MIN_ENTRY_LENGTH,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    Codec,
)
from storage_core.kernels import batch_scan
from storage_core.log.producer_append import AppendOrigin
from storage_core.records.batch_table import BatchTable

_LAST_CODEC: Final = max(map(int, Codec))
# The smallest entry: what bounds how many batches bytes can be.
_MIN_BATCH_BYTES: Final = LENGTH_OVERHEAD + MIN_ENTRY_LENGTH
_FEW_BATCHES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSettings:
    """What is checked.

    Attributes:
        partition: Its name, for messages.
        origin: Who appends.
        leader_epoch: Of the leader, or of the follower that appends.
        max_message_bytes: Largest batch, None for no limit.
        keeps_offsets: Whether the batches keep the offsets that they have.
    """

    partition: str
    origin: AppendOrigin
    leader_epoch: int
    max_message_bytes: int | None
    keeps_offsets: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedAppend:
    """What bytes hold.

    Attributes:
        batches: The valid batches, one row each.
        valid_bytes: How many bytes they have together.
        source_codec: Of the last compressed batch, NONE without one.
    """

    batches: BatchTable
    valid_bytes: int
    source_codec: Codec

    @property
    def first_offset(self) -> int | None:
        """Base offset of the first batch; None where only opening it would tell."""
        return None if self.batches.is_legacy[0] else int(self.batches.base_offset[0])

    @property
    def first_or_last_offset_of_first_batch(self) -> int:
        """The first offset, or, if that is not known, the last one of the first batch."""
        first = self.first_offset
        return int(self.batches.last_offset[0]) if first is None else first

    @property
    def last_offset(self) -> int:
        """Last offset of the last batch."""
        return int(self.batches.last_offset[-1])

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp, NO_TIMESTAMP for none."""
        return int(self.batches.max_timestamp.max(initial=NO_TIMESTAMP))


def analyze_append(data: NDArray[np.uint8], settings: AppendSettings) -> AnalyzedAppend:
    """Find and check the batches of an append.

    Args:
        data: uint8[], the bytes.
        settings: What is checked.

    Raises:
        CorruptRecordError: A length is impossible, a magic unknown, or a CRC wrong.
        InvalidRecordError: A client's batch does not begin at offset 0, or a Raft leader's batch
            has another epoch.
        RecordTooLargeError: A batch exceeds the limit.
        OffsetsOutOfOrderError: Offsets that are kept do not rise.
        UnsupportedCompressionError: A codec does not exist.
    """
    batches, end, stopped = _scan(data, settings.partition)
    taken = len(batches)
    if settings.origin is AppendOrigin.REPLICATION:
        epoch = batches.leader_epoch
        above = ((epoch != NO_LEADER_EPOCH) & (epoch > settings.leader_epoch)).nonzero()[0]
        if above.size:
            taken = int(above[0])
            end = int(batches.position[taken])
    _raise_first(data, batches, taken, settings)
    if stopped is not None:
        raise stopped
    kept = _first_rows(batches, taken)
    batch_scan.read_control_types(data, kept.columns, taken)
    codecs = kept.codec[kept.codec != Codec.NONE]
    return AnalyzedAppend(
        batches=kept,
        valid_bytes=end,
        source_codec=Codec(int(codecs[-1])) if codecs.size else Codec.NONE,
    )


def _scan(
    data: NDArray[np.uint8], partition: str
) -> tuple[BatchTable, int, CorruptRecordError | None]:
    """Return the whole batches, where they end, and what is wrong behind them."""
    table = np.empty((batch_scan.COLUMN_COUNT, _FEW_BATCHES), np.int64)
    count, end, status = batch_scan.scan_batches(data, 0, data.size, table)
    if status == batch_scan.NO_ROOM:
        capacity = data.size // _MIN_BATCH_BYTES + 1
        table = np.empty((batch_scan.COLUMN_COUNT, capacity), np.int64)
        count, end, status = batch_scan.scan_batches(data, 0, data.size, table)
    stopped = _what_follows(data, end, partition)
    unknown = (
        (table[batch_scan.MAGIC, :count] < 0) | (table[batch_scan.MAGIC, :count] > MAGIC_V2)
    ).nonzero()[0]
    if unknown.size:
        count = int(unknown[0])
        end = int(table[batch_scan.POSITION, count])
        magic = int(table[batch_scan.MAGIC, count])
        stopped = CorruptRecordError(partition, end, f"expected magic 0 to 2, found {magic}")
    return BatchTable(np.ascontiguousarray(table[:, :count])), end, stopped


def _what_follows(
    data: NDArray[np.uint8], position: int, partition: str
) -> CorruptRecordError | None:
    """Return what is wrong with the bytes behind the last whole batch, None for a cut batch."""
    left = data.size - position
    if left < LENGTH_OVERHEAD:
        return None
    field = data[position + BATCH_LENGTH_AT : position + LENGTH_OVERHEAD].tobytes()
    length = int.from_bytes(field, "big", signed=True)
    if length < MIN_ENTRY_LENGTH:
        return CorruptRecordError(
            partition, position, f"expected a length of at least {MIN_ENTRY_LENGTH}, found {length}"
        )
    if left <= MAGIC_AT:
        return None
    magic = int(data[position + MAGIC_AT].view(np.int8))
    if not 0 <= magic <= MAGIC_V2:
        return CorruptRecordError(partition, position, f"expected magic 0 to 2, found {magic}")
    return None


def _raise_first(
    data: NDArray[np.uint8], batches: BatchTable, taken: int, settings: AppendSettings
) -> None:
    """Raise the error of the first batch that has one, in the order in which Kafka checks."""
    found = [
        (row, order, error)
        for order, (bad, error) in enumerate(_checks(data, batches, taken, settings))
        if (row := _first(bad)) is not None
    ]
    if found:
        row, _, error = min(found, key=lambda item: item[:2])
        kind, reason = error
        raise kind(
            settings.partition, int(batches.position[row]), reason.format(**_facts(batches, row))
        )


def _checks(
    data: NDArray[np.uint8], batches: BatchTable, taken: int, settings: AppendSettings
) -> list[tuple[NDArray[np.bool_], tuple[type[BadBytesError], str]]]:
    checks: list[tuple[NDArray[np.bool_], tuple[type[BadBytesError], str]]] = []
    if settings.origin is AppendOrigin.RAFT_LEADER:
        reason = f"expected leader epoch {settings.leader_epoch}, found {{leader_epoch}}"
        checks.append((batches.leader_epoch != settings.leader_epoch, (InvalidRecordError, reason)))
    if settings.origin is AppendOrigin.CLIENT:
        is_moved = ~batches.is_legacy & (batches.base_offset != 0)
        reason = "expected base offset 0, found {base_offset}"
        checks.append((is_moved, (InvalidRecordError, reason)))
    batches = _first_rows(batches, taken)
    if settings.max_message_bytes is not None:
        reason = f"{{size}} bytes exceed max.message.bytes, {settings.max_message_bytes}"
        checks.append((batches.size > settings.max_message_bytes, (RecordTooLargeError, reason)))
    columns = batches.columns
    batch_scan.check_crcs(data, columns, taken)
    checks.append((batches.crc_ok != 1, (CorruptRecordError, "the stored CRC is wrong")))
    is_unknown = batches.codec > _LAST_CODEC
    checks.append((is_unknown, (UnsupportedCompressionError, "there is no codec {codec}")))
    if settings.keeps_offsets:
        before = np.concatenate([[-1], batches.last_offset[:-1]])
        falls = batches.last_offset <= before
        reason = "the last offset, {last_offset}, does not rise above that of the batch before"
        checks.append((falls, (OffsetsOutOfOrderError, reason)))
    return checks


def _first_rows(batches: BatchTable, count: int) -> BatchTable:
    if count == len(batches):
        return batches
    return BatchTable(np.ascontiguousarray(batches.columns[:, :count]))


def _facts(batches: BatchTable, row: int) -> dict[str, int]:
    return {
        "leader_epoch": int(batches.leader_epoch[row]),
        "base_offset": int(batches.base_offset[row]),
        "last_offset": int(batches.last_offset[row]),
        "size": int(batches.size[row]),
        "codec": int(batches.codec[row]),
    }


def _first(bad: NDArray[np.bool_]) -> int | None:
    rows = bad.nonzero()[0]
    return int(rows[0]) if rows.size else None
