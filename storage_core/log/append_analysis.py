"""The first look at bytes that are to be appended: which batches they are, and what they span.

Bytes in memory are read more strictly than a file: an impossible length or an unknown magic is an
error. An incomplete batch at the end is not: it is left out.
"""

from collections.abc import Mapping
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
    MAX_BATCH_BYTES,
    MIN_ENTRY_LENGTH,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    Codec,
)
from storage_core.kernels import append_check, batch_scan
from storage_core.log.producer_append import AppendOrigin
from storage_core.records.batch_table import BatchTable

_ERRORS: Final[Mapping[int, tuple[type[BadBytesError], str]]] = {
    append_check.OTHER_EPOCH: (
        InvalidRecordError,
        "expected leader epoch {epoch}, found {leader_epoch}",
    ),
    append_check.MOVED: (InvalidRecordError, "expected base offset 0, found {base_offset}"),
    append_check.TOO_LARGE: (RecordTooLargeError, "{size} bytes exceed max.message.bytes, {limit}"),
    append_check.WRONG_CRC: (CorruptRecordError, "the stored CRC is wrong"),
    append_check.UNKNOWN_CODEC: (UnsupportedCompressionError, "there is no codec {codec}"),
    append_check.OUT_OF_ORDER: (
        OffsetsOutOfOrderError,
        "the last offset, {last_offset}, does not rise above that of the batch before",
    ),
}
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
    _check(data, batches, taken, settings)
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


def _check(
    data: NDArray[np.uint8], batches: BatchTable, taken: int, settings: AppendSettings
) -> None:
    is_raft = settings.origin is AppendOrigin.RAFT_LEADER
    row, status = append_check.check_batches(
        data,
        batches.columns,
        taken,
        settings.leader_epoch if is_raft else append_check.ANY_EPOCH,
        settings.origin is AppendOrigin.CLIENT,
        MAX_BATCH_BYTES if settings.max_message_bytes is None else settings.max_message_bytes,
        settings.keeps_offsets,
    )
    if status == append_check.DONE:
        return
    kind, reason = _ERRORS[status]
    facts = {
        "leader_epoch": batches.leader_epoch[row],
        "base_offset": batches.base_offset[row],
        "last_offset": batches.last_offset[row],
        "size": batches.size[row],
        "codec": batches.codec[row],
        "epoch": settings.leader_epoch,
        "limit": settings.max_message_bytes,
    }
    raise kind(settings.partition, int(batches.position[row]), reason.format(**facts))


def _first_rows(batches: BatchTable, count: int) -> BatchTable:
    if count == len(batches):
        return batches
    return BatchTable(np.ascontiguousarray(batches.columns[:, :count]))
