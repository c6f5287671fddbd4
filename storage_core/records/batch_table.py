"""The headers of a run of batches, as columns."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    MAGIC_V2,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Codec,
    TimestampType,
)
from storage_core.formats.control import NO_CONTROL_RECORD, ControlType
from storage_core.formats.legacy import MAGIC_V0
from storage_core.kernels import batch_notes, batch_scan

NO_TIMESTAMP_TYPE_ID = -1
# By Kafka's number of the type.
TIMESTAMP_TYPES: Final = {
    NO_TIMESTAMP_TYPE_ID: str(TimestampType.NONE),
    0: str(TimestampType.CREATE_TIME),
    1: str(TimestampType.LOG_APPEND_TIME),
}
_CODECS: Final = frozenset(map(int, Codec))
_NOT_PLAIN: Final = batch_scan.HAS_LEGACY | batch_scan.HAS_CODEC | batch_scan.HAS_UNREADABLE
_CONTROL_TYPES: Final = frozenset(map(int, ControlType))


def codec_name(codec: int) -> str:
    """Return the codec as Kafka prints it; an unknown number stays."""
    return Codec(codec).name.lower() if codec in _CODECS else str(codec)


def control_name(control_type: int) -> str | None:
    """Return the type of a control record, None without one. A batch may have none."""
    if control_type in {batch_scan.NOT_CONTROL, NO_CONTROL_RECORD}:
        return None
    is_named = control_type in _CONTROL_TYPES
    return ControlType(control_type).name if is_named else ControlType.UNKNOWN.name


class _TableColumn:
    """One row of ``BatchTable.columns`` or ``BatchNotes.columns`` by name."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __get__(self, table: "BatchTable | BatchNotes", owner: type) -> NDArray[np.int64]:
        column: NDArray[np.int64] = table.columns[self._number]
        return column


def _has_bit(attributes: NDArray[np.int64], bit: int) -> NDArray[np.bool_]:
    is_set: NDArray[np.bool_] = (attributes & bit) != 0
    return is_set


@dataclass(frozen=True)  # no slots: its kinds are asked for many times
class BatchTable:
    """One row a batch, in file order."""

    # int64[batch_scan.COLUMN_COUNT, n]; the properties name its rows. ``position`` is relative to
    # the window that the batches were read from.
    columns: NDArray[np.int64]

    position = _TableColumn(batch_scan.POSITION)
    size = _TableColumn(batch_scan.SIZE)
    base_offset = _TableColumn(batch_scan.BASE_OFFSET)
    last_offset = _TableColumn(batch_scan.LAST_OFFSET)
    leader_epoch = _TableColumn(batch_scan.LEADER_EPOCH)
    magic = _TableColumn(batch_scan.MAGIC)
    attributes = _TableColumn(batch_scan.ATTRIBUTES)
    base_timestamp = _TableColumn(batch_scan.BASE_TIMESTAMP)
    max_timestamp = _TableColumn(batch_scan.MAX_TIMESTAMP)
    producer_id = _TableColumn(batch_scan.PRODUCER_ID)
    producer_epoch = _TableColumn(batch_scan.PRODUCER_EPOCH)
    base_sequence = _TableColumn(batch_scan.BASE_SEQUENCE)
    record_count = _TableColumn(batch_scan.RECORD_COUNT)
    crc = _TableColumn(batch_scan.CRC)
    crc_ok = _TableColumn(batch_scan.CRC_OK)
    control_type = _TableColumn(batch_scan.CONTROL_TYPE)
    coordinator_epoch = _TableColumn(batch_scan.COORDINATOR_EPOCH)

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def rows(self, first: int, end: int) -> "BatchTable":
        """Return the rows [first, end), without copying."""
        return BatchTable(self.columns[:, first:end])

    @cached_property
    def kinds(self) -> int:
        """What is among the batches, when it is first asked for: bits of batch_scan.HAS_LEGACY and
        so on."""
        return batch_scan.find_kinds(self.columns)

    @property
    def are_plain(self) -> bool:
        """Whether all batches are uncompressed and of format v2. They can be read as they lie."""
        return not self.kinds & _NOT_PLAIN

    @property
    def is_legacy(self) -> NDArray[np.bool_]:
        """Which batches are entries of a format before v2."""
        legacy: NDArray[np.bool_] = self.magic < MAGIC_V2
        return legacy

    @property
    def is_message_set(self) -> NDArray[np.bool_]:
        """Which entries of a format before v2 are compressed. Their headers tell neither the
        first offset inside nor how many messages there are."""
        compressed: NDArray[np.bool_] = self.is_legacy & (self.codec != 0)
        return compressed

    @property
    def counted_records(self) -> NDArray[np.int64]:
        """Number of records by the headers; legacy entries count as one. Legacy are the formats
        before v2."""
        counted: NDArray[np.int64] = np.where(self.is_legacy, 1, np.maximum(self.record_count, 0))
        return counted

    def may_reach_below(self, offset: int) -> NDArray[np.bool_]:
        """Return which batches may hold a record below an offset. A compressed legacy message
        tells the first offset inside only when it is opened."""
        below: NDArray[np.bool_] = (self.base_offset < offset) | self.is_message_set
        return below

    @property
    def codec(self) -> NDArray[np.int64]:
        """Codec number, 0 to 7."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> NDArray[np.bool_]:
        """Whether the records' timestamps are the broker's."""
        return _has_bit(self.attributes, TIMESTAMP_TYPE_BIT)

    @property
    def has_timestamps(self) -> NDArray[np.bool_]:
        """Whether the format of the batch has timestamps at all."""
        has: NDArray[np.bool_] = self.magic != MAGIC_V0
        return has

    @property
    def timestamp_type_id(self) -> NDArray[np.int64]:
        """Kafka's number: NO_TIMESTAMP_TYPE_ID, 0 for create time, 1 for log append time."""
        number = self.is_log_append_time.astype(np.int64)
        return np.where(self.has_timestamps, number, NO_TIMESTAMP_TYPE_ID)

    @property
    def has_one_time(self) -> NDArray[np.bool_]:
        """Whether the header has the time of every record, as ``max_timestamp``: the broker's, or
        that of the only record. A batch of several records has not the time of its oldest one."""
        is_alone = np.where(self.is_legacy, self.codec == 0, self.record_count == 1)
        has_one: NDArray[np.bool_] = (self.is_log_append_time | is_alone) & (self.magic <= MAGIC_V2)
        return has_one

    def may_hold_time(self, first_ms: int, last_ms: int) -> NDArray[np.bool_]:
        """Return which batches may hold a record from one time to another, both included."""
        is_before = (self.max_timestamp < first_ms) & (self.magic <= MAGIC_V2)
        is_behind = (self.max_timestamp > last_ms) & self.has_one_time
        return ~(is_before | is_behind)

    @property
    def is_transactional(self) -> NDArray[np.bool_]:
        """Whether the batch is part of a transaction."""
        return _has_bit(self.attributes, TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> NDArray[np.bool_]:
        """Whether the batch holds a control record."""
        return _has_bit(self.attributes, CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> NDArray[np.bool_]:
        """Whether the base timestamp field holds a delete horizon."""
        return _has_bit(self.attributes, DELETE_HORIZON_BIT)

    @property
    def delete_horizon_ms(self) -> NDArray[np.int64]:
        """Delete horizon in epoch milliseconds, NO_TIMESTAMP where there is none."""
        return np.where(self.has_delete_horizon, self.base_timestamp, NO_TIMESTAMP)

    @property
    def has_negative_timestamp(self) -> NDArray[np.bool_]:
        """Whether the first record's or largest timestamp is below -1. The header tells it."""
        is_append_time = _has_bit(self.attributes, TIMESTAMP_TYPE_BIT)
        tells_first = ~is_append_time & ~self.has_delete_horizon & ~self.is_control
        is_negative = (self.base_timestamp < NO_TIMESTAMP) & tells_first
        return is_negative | (self.max_timestamp < NO_TIMESTAMP)

    @property
    def has_producer_id(self) -> NDArray[np.bool_]:
        """Whether an idempotent producer wrote the batch. Any id but -1 counts, as in Kafka."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> NDArray[np.int64]:
        """Sequence of the last record, wrapped past MAX_SEQUENCE to 0."""
        delta = self.last_offset - self.base_offset
        wrapped = (self.base_sequence + delta) & MAX_SEQUENCE
        return np.where(self.base_sequence == NO_SEQUENCE, NO_SEQUENCE, wrapped)


@dataclass(frozen=True, slots=True)
class BatchNotes:
    """Columns added to a window's batch headers by a pass. There is one row a batch, as in
    BatchTable."""

    # int64[batch_notes.NOTE_COUNT, n]; the properties name its rows. Each means nothing before the
    # step that fills it.
    columns: NDArray[np.int64]

    place = _TableColumn(batch_notes.PLACE)
    records_start = _TableColumn(batch_notes.RECORDS_START)
    records_end = _TableColumn(batch_notes.RECORDS_END)
    flags = _TableColumn(batch_notes.FLAGS)
    first_bit = _TableColumn(batch_notes.FIRST_BIT)
    own_rank = _TableColumn(batch_notes.OWN_RANK)
    pass_one_count = _TableColumn(batch_notes.PASS_ONE_COUNT)
    action = _TableColumn(batch_notes.ACTION)
    marks = _TableColumn(batch_notes.MARKS)
    survivors = _TableColumn(batch_notes.SURVIVORS)
    look_up_bit = _TableColumn(batch_notes.LOOK_UP_BIT)
    tombstones = _TableColumn(batch_notes.TOMBSTONES)
    fate = _TableColumn(batch_notes.FATE)
    delete_horizon_ms = _TableColumn(batch_notes.DELETE_HORIZON)
    packed_start = _TableColumn(batch_notes.PACKED_START)
    packed_end = _TableColumn(batch_notes.PACKED_END)
    new_max_timestamp = _TableColumn(batch_notes.NEW_MAX_TIMESTAMP)
    new_size = _TableColumn(batch_notes.NEW_SIZE)
    sidecar_flags = _TableColumn(batch_notes.SIDECAR_FLAGS)
    hashes = _TableColumn(batch_notes.HASHES)

    @classmethod
    def empty(cls, count: int) -> "BatchNotes":
        """Return room for the notes of so many batches."""
        # One column more: so they are never without gaps, and kernels have one kind of array.
        return cls(np.empty((batch_notes.NOTE_COUNT, count + 1), np.int64)[:, :count])

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def rows(self, first: int, end: int) -> "BatchNotes":
        """Return the rows [first, end), without copying."""
        return BatchNotes(self.columns[:, first:end])

    def have(self, mark: int) -> NDArray[np.bool_]:
        """Return which batches have a mark of ``batch_notes``."""
        return _has_bit(self.marks, mark)
