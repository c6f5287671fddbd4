"""Read a range of a partition's segments into Arrow batches. Memory is bounded by a window of
the file and one run of its batches, expanded."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage_core.config import LogConfig
from storage_core.errors import (
    BadBytesError,
    ChangedWhileReadError,
    CorruptRecordError,
    MissingSegmentError,
    PylogError,
)
from storage_core.filenames import MAX_OFFSET, TopicPartition, log_file, offset_of, sorted_logs
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.log.batch_search import Gap, GapWatch, ListedSegment, find_start_position
from storage_core.log.committed_view import find_aborted, scan_batch_tables
from storage_core.log.open_transactions import TransactionTracker
from storage_core.log.settled_store import SettledStore, settle
from storage_core.records.batch_table import TIMESTAMP_TYPES, BatchTable, codec_name, control_name
from storage_core.records.payload import Limits, RecordColumns, decode_records
from storage_core.records.reader import (
    CrcCheck,
    Scanned,
    Tail,
    Window,
    check_crc,
    note_scanned,
    scan_windows,
)
from storage_core.records.sifted_scan import scan_sifted
from storage_core.roots.open_root import open_root
from storage_core.roots.own_catalog import read_own_catalog
from storage_core.store import FileInfo, LogStore, open_store
from storage_core.store.open_store import split_location
from storage_core.store.tier_archive import names_archive

# Batch header fields as Arrow columns, by batch or by record.

_TIME: Final = pa.timestamp("us", tz="UTC")
_MICROSECONDS: Final = 1000
_LARGEST_MS: Final = (2**63 - 1) // _MICROSECONDS

# Named as in ``pylog dump --json``.
BATCH_TYPES: Final[dict[str, pa.DataType]] = {
    "file": pa.string(),
    "position": pa.int64(),
    "base_offset": pa.int64(),
    "last_offset": pa.int64(),
    "magic": pa.int32(),
    "size": pa.int64(),
    "codec": pa.string(),
    "timestamp_type": pa.string(),
    "max_timestamp": _TIME,
    "producer_id": pa.int64(),
    "producer_epoch": pa.int32(),
    "base_sequence": pa.int32(),
    "last_sequence": pa.int32(),
    "is_transactional": pa.bool_(),
    "is_control": pa.bool_(),
    "control_type": pa.string(),
    "leader_epoch": pa.int32(),
    "delete_horizon": _TIME,
    "record_count": pa.int32(),
}


def batch_column(
    name: str, file: str, file_position: int, batches: BatchTable, rows: NDArray[np.int64]
) -> pa.Array:
    """Return a column of BATCH_TYPES.

    Args:
        rows: Their indexes, one for each element of the column.
    """
    match name:
        case "file":
            column = pa.repeat(pa.scalar(file), len(rows))
        case "position":
            column = pa.array(batches.position[rows] + file_position)
        case "codec":
            column = _names(batches.codec[rows], codec_name)
        case "timestamp_type":
            column = _names(batches.timestamp_type_id[rows], TIMESTAMP_TYPES.__getitem__)
        case "control_type":
            column = _names(batches.control_type[rows], control_name)
        case "max_timestamp":
            times = batches.max_timestamp[rows]
            column = to_time(times, is_null=times == NO_TIMESTAMP)
        case "delete_horizon":
            has_none = ~batches.has_delete_horizon[rows]
            column = to_time(batches.base_timestamp[rows], is_null=has_none)
        case "record_count":
            # An entry's header before v2 has no count.
            counts = batches.record_count[rows].astype(np.int32)
            column = pa.array(counts, mask=batches.is_legacy[rows])
        case _:
            column = pa.array(getattr(batches, name)[rows]).cast(BATCH_TYPES[name])
    return column


def to_time(epoch_ms: NDArray[np.int64], *, is_null: NDArray[np.bool_]) -> pa.Array:
    """Return Spark's microseconds; a point in time beyond their range is null.

    Args:
        is_null: Mask of further nulls.
    """
    smallest, largest = epoch_ms.min(initial=0), epoch_ms.max(initial=0)
    if not is_null.any() and smallest >= -_LARGEST_MS and largest <= _LARGEST_MS:
        return pa.array(epoch_ms * _MICROSECONDS).view(_TIME)
    beyond = (epoch_ms > _LARGEST_MS) | (epoch_ms < -_LARGEST_MS) | is_null
    return pa.array(np.where(beyond, 0, epoch_ms) * _MICROSECONDS, mask=beyond).view(_TIME)


def _names(numbers: NDArray[np.int64], name: Callable[[int], str | None]) -> pa.Array:
    """Return each number's name; few numbers are different."""
    different, places = np.unique(numbers, return_inverse=True)
    names: Iterable[str | None] = map(name, different.tolist())
    dictionary = pa.array(list(names), pa.string())
    return dictionary.take(pa.array(places.astype(np.int64)))


# Readers may copy whole batches; a few of them are in memory at a time.
_WINDOW_BYTES: Final = 4 << 20
_ROWS_AT_A_TIME: Final = 1 << 16

# Columns of Spark's Kafka source as Arrow gives them.
COLUMN_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
# A record's place in the files, and its batch's fields; only on request.
LOG_COLUMN: Final = "_log"
_SEQUENCE: Final = "sequence"
_BATCH_FIELDS: Final = (
    "file",
    "position",
    "base_offset",
    "producer_id",
    "producer_epoch",
    "is_transactional",
    "leader_epoch",
    "codec",
)
_LOG_TYPE: Final = pa.struct(
    [*((name, BATCH_TYPES[name]) for name in _BATCH_FIELDS), (_SEQUENCE, pa.int32())]
)
# Batches as rows: their place, then their headers' fields.
BATCH_SCHEMA: Final = pa.schema(
    [
        ("topic", COLUMN_TYPES["topic"]),
        ("partition", COLUMN_TYPES["partition"]),
        *BATCH_TYPES.items(),
    ]
)


_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """What is read in one go."""

    directory: str  # where the partition is; of a managed one, the generation that is read
    partition: TopicPartition
    segments: tuple[ListedSegment, ...]  # consecutive segments, in offset order
    files: Mapping[str, FileInfo]
    growing: str  # the log of the partition that somebody may append to
    # Base offset of the next segment; None at the log's end, with a tail that may be torn.
    next_base_offset: int | None
    start_offset: int
    # Just past the last one, None for no bound but the files' ends. Where records of aborted
    # transactions are left out, a range without an end is of the whole log: it ends where the
    # oldest transaction begins that is open.
    end_offset: int | None
    # Whether another range goes on in the last segment: bytes before the end that are no batch are
    # damage then, not the tail that a writer left when he died.
    is_cut: bool
    size_bytes: int
    is_committed: bool  # whether records of aborted transactions are left out
    # Up to where the log is known to be compacted, so that gaps are normal; None where nothing
    # beside the partition says so.
    cleaned_to: int | None
    fail_on_data_loss: bool  # whether missing offsets are an error; else a warning
    columns: tuple[str, ...]  # names of the columns, in order
    # Only records with one of these keys are read; None for all.
    keys: frozenset[bytes | None] | None
    limits: Limits  # bounds on a batch's decompressed size
    # How much of a file is held at a time, unless one batch is larger; None for what most reads
    # hold.
    window_bytes: int | None = None
    # The first and the last time of the records that are wanted, epoch milliseconds: batches are
    # left out whose headers rule them out. Others bring records of other times, too. None for all.
    times_ms: tuple[int, int] | None = None

    @property
    def span(self) -> tuple[int, int | None]:
        """The offsets that its records may have: the first, and just past the last; None for an end
        that only its files know."""
        start = max(self.start_offset, self.segments[0].base_offset)
        ends = [end for end in (self.end_offset, self.next_base_offset) if end is not None]
        return start, max(start, min(ends)) if ends else None


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """Return the schema of some columns, in their order."""
    types = {**COLUMN_TYPES, LOG_COLUMN: _LOG_TYPE}
    return pa.schema([(name, types[name]) for name in columns])


def read_range(wanted: ReadRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in offset order. Errors are those of ``read_on``."""
    for _, batch in read_on(wanted):
        yield batch


def read_on(wanted: ReadRange) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield a range's record batches by offset, each with its next offset. What lies before
    damage comes first."""
    with _place_named(wanted.directory):
        yield from _read_records(wanted)


@contextmanager
def _place_named(directory: str) -> Iterator[None]:
    """Add the directory to errors with only a file name. A reader of a file knows only its name."""
    try:
        yield
    except PylogError as error:
        if error.directory is None:
            error.directory = directory
        if isinstance(error, BadBytesError | ChangedWhileReadError) and "/" not in error.file:
            error.file = f"{directory}/{error.file}"
        raise


def _read_records(wanted: ReadRange) -> Iterator[tuple[int, pa.RecordBatch]]:
    store = SettledStore(open_store(wanted.directory), wanted.files, growing=wanted.growing)
    isolation = _Committed(store, wanted) if wanted.is_committed else None
    watch = GapWatch(wanted.cleaned_to or 0)
    schema = schema_of(wanted.columns)
    keys = None if wanted.keys is None else pa.array(list(wanted.keys), COLUMN_TYPES["key"])
    for number, segment in enumerate(wanted.segments):
        if wanted.end_offset is not None and segment.base_offset >= wanted.end_offset:
            break
        for window in _windows(store, wanted, number, watch):
            batches = window.batches
            if isolation is None:
                visible = ~batches.is_control
            else:
                visible = isolation.visible(number, window)
                wanted = isolation.wanted
            visible &= batches.last_offset >= wanted.start_offset
            if wanted.end_offset is not None:
                visible &= batches.may_reach_below(wanted.end_offset)
            if wanted.times_ms is not None:
                visible &= batches.may_hold_time(*wanted.times_ms)
                is_doubtful = visible & (batches.max_timestamp > wanted.times_ms[1])
                note_scanned(Scanned(doubtful_bytes=int(batches.size[is_doubtful].sum())))
            for records in _decode(window, visible, wanted.limits):
                selection = records.select(_is_inside(records.offset, wanted))
                if keys is not None:
                    has_key = pc.is_in(selection.keys(), value_set=keys)
                    selection = selection.select(has_key.to_numpy(zero_copy_only=False))
                yield from _to_arrow(selection, wanted, number, schema)
            if wanted.end_offset is not None and batches.last_offset[-1] + 1 >= wanted.end_offset:
                break  # the plan did not know an end found in this segment
    _check_gaps(store, watch, wanted)


def read_batches(wanted: ReadRange) -> Iterator[pa.RecordBatch]:
    """Yield the batch headers of a range in file order as columns. Control batches are included. A
    batch that reaches into the range from below is part of it."""
    with _place_named(wanted.directory):
        yield from _read_headers(wanted)


def _read_headers(wanted: ReadRange) -> Iterator[pa.RecordBatch]:
    store = SettledStore(open_store(wanted.directory), wanted.files, growing=wanted.growing)
    watch = GapWatch(wanted.cleaned_to or 0)
    for number, segment in enumerate(wanted.segments):
        file = log_file(segment.base_offset)
        for window in _windows(store, wanted, number, watch):
            batches = window.batches
            inside = batches.last_offset >= wanted.start_offset
            if wanted.end_offset is not None:
                # A batch across a cut belongs to the next piece.
                first = batches.last_offset if wanted.is_cut else batches.base_offset
                inside &= first < wanted.end_offset
            rows = np.flatnonzero(inside)
            for start in range(0, len(rows), _ROWS_AT_A_TIME):
                part = rows[start : start + _ROWS_AT_A_TIME]
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.repeat(pa.scalar(wanted.partition.topic), len(part)),
                        pa.array(np.full(len(part), wanted.partition.partition, np.int32)),
                        *(
                            batch_column(name, file, window.file_position, batches, part)
                            for name in BATCH_TYPES
                        ),
                    ],
                    schema=BATCH_SCHEMA,
                )
    _check_gaps(store, watch, wanted)


def report_gap(gap: Gap, directory: str, *, is_error: bool) -> None:
    """Refuse to read over offsets that are missing, or warn of them."""
    error = MissingSegmentError(directory, gap.first_offset, gap.end_offset, gap.evidence)
    if is_error:
        raise error
    _log.warning("%s", error)


def _check_gaps(store: SettledStore, watch: GapWatch, wanted: ReadRange) -> None:
    """Report gaps that nothing shows to come of compaction."""
    gaps = [gap for gap in watch.gaps if gap.reaches_into(wanted.start_offset, wanted.end_offset)]
    if not gaps or watch.is_compacted:
        return
    if wanted.cleaned_to is None and is_compacted_topic(wanted.directory, wanted.partition.topic):
        return
    if _are_compacted(store, wanted):
        return
    for gap in gaps:
        report_gap(gap, wanted.directory, is_error=wanted.fail_on_data_loss)


def _are_compacted(store: SettledStore, wanted: ReadRange) -> bool:
    """Tell by headers whether segments, read in part before, were compacted."""
    watch = GapWatch(wanted.cleaned_to or 0)
    for segment in wanted.segments:
        name = log_file(segment.base_offset)
        for batches in scan_batch_tables(store, name, end=segment.size_bytes):
            watch.add(batches)
        watch.end_segment(segment.base_offset, None)
    return watch.is_compacted


def is_compacted_topic(directory: str, topic: str) -> bool:
    """Tell by a log directory's own metadata whether a topic is compacted."""
    config = _own_config(directory, topic)
    return config is not None and config.is_compacted


def is_tiered_topic(directory: str, topic: str) -> bool | None:
    """Tell whether records of a topic may lie in a tier that is not read; None if unknown.

    A directory's own metadata says whether it is tiered.
    """
    if names_archive(directory):
        return False
    config = _own_config(directory, topic)
    return None if config is None else config.remote_storage_enable


def _own_config(directory: str, topic: str) -> LogConfig | None:
    try:
        root, _ = split_location(directory)
        return read_own_catalog(open_root(root)).config_for(topic)
    except PylogError:
        return None  # other readers report its damage


def _windows(store: LogStore, wanted: ReadRange, number: int, watch: GapWatch) -> Iterator[Window]:
    segment = wanted.segments[number]
    position = find_start_position(store, segment, wanted.start_offset)
    is_last = number + 1 == len(wanted.segments)
    following = wanted.next_base_offset if is_last else wanted.segments[number + 1].base_offset
    with closing(store.open_file(log_file(segment.base_offset))) as reader:
        reached = wanted.start_offset
        lowest = 0
        scan = (
            partial(scan_windows, crc=CrcCheck.LATER)
            if wanted.times_ms is None
            else partial(scan_sifted, times_ms=wanted.times_ms)
        )
        for scanned in scan(
            reader,
            start=position,
            end=segment.size_bytes,
            window_bytes=wanted.window_bytes or _WINDOW_BYTES,
            # A batch cut off in the middle of a log is damage; at the end, its writer died. Zeros
            # at the end come from a broker that reserved room.
            tail=Tail.ZEROS if following is None and not wanted.is_cut else Tail.RAISE,
        ):
            damage = _find_damage(scanned, lowest)
            window = scanned if damage is None else _before(scanned, damage.position)
            batches = window.batches
            if not len(batches) and damage is not None:
                raise damage
            if wanted.end_offset is not None:
                is_behind = not batches.rows(0, 1).may_reach_below(wanted.end_offset).any()
                if is_behind or reached >= wanted.end_offset:
                    return
            watch.add(batches)
            yield window
            reached = int(batches.last_offset[-1]) + 1
            lowest = min(reached, MAX_OFFSET)
            is_done = wanted.end_offset is not None and reached >= wanted.end_offset
            if is_done and (wanted.is_cut or damage is not None):
                return  # not a byte further: a torn tail is for the last piece
            if damage is not None:
                raise damage
    watch.end_segment(segment.base_offset, following)


def _find_damage(window: Window, lowest: int) -> CorruptRecordError | None:
    """Return the error of a window's first bad batch, else None.

    Args:
        lowest: No batch has a smaller offset: what comes before has those. No checksum covers the
            offset of a batch.
    """
    damage = None
    try:
        if window.is_whole:
            check_crc(window)
    except CorruptRecordError as error:
        damage = error
        window = _before(window, error.position)
    batches = window.batches
    # A wrapper of an old format names only its last offset.
    first = np.where(batches.is_legacy, batches.last_offset, batches.base_offset)
    behind = np.minimum(batches.last_offset, MAX_OFFSET - 1) + 1
    least = np.concatenate([[lowest], behind])[:-1]
    (falling,) = np.nonzero(first < least)
    if not falling.size:
        return damage
    row = int(falling[0])
    return CorruptRecordError(
        window.file,
        window.position_of(row),
        f"the offsets of batches do not rise: expected {least[row]} or more, found {first[row]}",
        offset=int(first[row]),
    )


def _before(window: Window, position: int) -> Window:
    """Return a window's batches before a file position."""
    inside = position - window.file_position
    count = int(np.searchsorted(window.batches.position, inside))
    return replace(window, data=window.data[:inside], batches=window.batches.rows(0, count))


def _decode(window: Window, wanted: NDArray[np.bool_], limits: Limits) -> Iterator[RecordColumns]:
    """Decode the wanted batches; raise at a bad one after earlier ones."""
    if not wanted.any():
        return
    row = 0
    try:
        for records in decode_records(window, wanted, limits):
            yield records
            row = records.payload.end_row
    except BadBytesError as error:
        inside = error.position - window.file_position
        bad = int(np.searchsorted(window.batches.position, inside))
        before = np.zeros_like(wanted)
        before[row:bad] = wanted[row:bad]
        if before.any():
            yield from decode_records(window, before, limits)
        raise


class _Committed:
    """Filter out records of aborted transactions, by their markers. Markers in the range and behind
    it count. Nothing is read ahead before the first batch of a transaction comes.

    Attributes:
        wanted: The range; with its end, once a batch came that could be behind it.
    """

    def __init__(self, store: SettledStore, wanted: ReadRange) -> None:
        self.wanted = wanted
        self._store = store
        self._filter: TransactionTracker | None = None

    def visible(self, number: int, window: Window) -> NDArray[np.bool_]:
        """Return which of a segment's next batches a consumer sees."""
        batches = window.batches
        if self._filter is None:
            if not (batches.is_transactional & ~batches.is_control).any():
                return ~batches.is_control
            bounds = (self.wanted.next_base_offset, self.wanted.end_offset)
            end_offset = min((bound for bound in bounds if bound is not None), default=MAX_OFFSET)
            tables = self._tables_from(number, window.file_position)
            aborted, stable_offset = find_aborted(tables, end_offset=end_offset)
            self._filter = TransactionTracker(aborted)
            if self.wanted.end_offset is None:
                self.wanted = replace(self.wanted, end_offset=stable_offset)
        return self._filter.visible(batches)

    def _tables_from(self, number: int, position: int) -> Iterator[BatchTable]:
        """Yield the batch headers from a batch's position to the log's end. The batch is one of
        the range."""
        for segment in self.wanted.segments[number:]:
            yield from scan_batch_tables(
                self._store,
                log_file(segment.base_offset),
                start=position,
                end=segment.size_bytes,
            )
            position = 0
        following = self.wanted.next_base_offset
        if following is None or self.wanted.end_offset is None:
            return  # an empty segment that follows a range of the whole log may have grown since
        # Of what lies behind, the present will do: compaction lets a marker go when the data of its
        # transaction is gone, delete.retention.ms later, and that of this range is still there.
        later = settle(open_store(self.wanted.directory))
        for name in sorted_logs(file.name for file in later.list_files()):
            if (offset_of(name) or 0) >= following:
                yield from scan_batch_tables(later, name)


def _is_inside(offset: NDArray[np.int64], wanted: ReadRange) -> NDArray[np.bool_]:
    inside = offset >= wanted.start_offset
    if wanted.end_offset is not None:
        inside &= offset < wanted.end_offset
    return inside


def _to_arrow(
    records: RecordColumns, wanted: ReadRange, number: int, schema: pa.Schema
) -> Iterator[tuple[int, pa.RecordBatch]]:
    for first in range(0, len(records), _ROWS_AT_A_TIME):
        part = records.part(first, first + _ROWS_AT_A_TIME)
        arrays = [_column(part, name, wanted, number) for name in wanted.columns]
        yield int(part.offset.max()) + 1, pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(records: RecordColumns, name: str, wanted: ReadRange, number: int) -> pa.Array:
    """Return a column of records of the range's segment of that number."""
    match name:
        case "key":
            column = records.keys()
        case "value":
            column = records.values()
        case "topic":
            column = pa.repeat(pa.scalar(wanted.partition.topic), len(records))
        case "partition":
            column = pa.array(np.full(len(records), wanted.partition.partition, np.int32))
        case "offset":
            column = pa.array(records.offset)
        case "timestamp":
            column = to_time(records.timestamp, is_null=np.zeros(len(records), np.bool_))
        case "timestampType":
            types = records.payload.batches.timestamp_type_id[records.batch]
            column = pa.array(types.astype(np.int32))
        case "headers":
            column = _headers(records)
        case "_log":
            column = _log_column(records, log_file(wanted.segments[number].base_offset))
        case _:
            raise KeyError(name)
    return column


def _log_column(records: RecordColumns, file: str) -> pa.Array:
    """Return where records stand in a file, and what their batches say."""
    payload = records.payload
    position = payload.window.file_position
    arrays = [
        batch_column(name, file, position, payload.batches, records.batch) for name in _BATCH_FIELDS
    ]
    arrays.append(pa.array(records.sequence.astype(np.int32)))
    return pa.StructArray.from_arrays(arrays, fields=list(_LOG_TYPE))


def _headers(records: RecordColumns) -> pa.Array:
    """Return the headers; as in Spark's own source, null without any."""
    counts = records.header_count
    if not counts.any():
        return pa.nulls(len(records), COLUMN_TYPES["headers"])
    headers = records.headers()
    mask = pa.array(counts == 0)
    return pa.ListArray.from_arrays(headers.offsets, headers.values, mask=mask).cast(
        COLUMN_TYPES["headers"]
    )
