"""Read one segment from end to end for recovery. The scan tells which bytes are valid, and all else
recovery needs.

A scan depends on the segment's bytes and the index settings alone, not on what stands before it:
so the segments of a log can be scanned at the same time, on as many machines as there are, and the
loader takes the results one after the other.
"""

import enum
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import (
    BadBytesError,
    CorruptIndexError,
    CorruptRecordError,
    IndexFullError,
    OffsetOverflowError,
)
from storage_core.formats.batch_v2 import MAGIC_V2
from storage_core.index.segment_indexes import IndexBuilder
from storage_core.kernels.batch_scan import BAD_CONTROL_RECORD
from storage_core.log.producer_state import events_of, join_events
from storage_core.records.batch_table import BatchTable
from storage_core.records.checked_headers import scan_checked_headers
from storage_core.records.packing import pack_arrays, unpack_arrays
from storage_core.records.reader import DEFAULT_WINDOW_BYTES, Window
from storage_core.store.base import FileReader


class ScanStop(enum.StrEnum):
    """Why a scan ended where it did."""

    END = "end"  # every byte is part of a valid batch
    INVALID = "invalid"  # the next batch is torn or corrupt: recovery cuts here
    OVERFLOW = "overflow"  # the next batch does not fit the segment's offsets: it has to be split
    INDEX_ORDER = "index_order"  # its offset does not rise: recovery empties the segment
    INDEX_FULL = "index_full"  # an index has no room: Kafka does not load the log


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentScan:
    """What one segment holds, as segment recovery sees it."""

    file: str
    base_offset: int
    size_bytes: int
    valid_bytes: int  # length of the valid batches at its beginning
    next_offset: int  # the offset after the last of them, the base offset if there is none
    last_v2_end: int  # the offset after the last valid batch of format v2, -1 if there is none
    batches: int
    records: int  # how many records they have; a legacy wrapper counts as one
    stop: ScanStop  # why the valid part ends
    reason: str  # the same in words, empty at the end of the file
    offset_index: bytes  # bytes of the offset index of the valid part
    time_index: bytes
    # int64[n, 2], leader epochs that are new in the segment with the base offsets of their first
    # batches.
    epochs: NDArray[np.int64]
    events: NDArray[np.int64]  # int64[COLUMN_COUNT, n], producer events of the valid part

    def to_bytes(self) -> bytes:
        """Return the scan as bytes, for `from_bytes` of the same version."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        arrays: dict[str, NDArray[Any]] = {
            "offset_index": np.frombuffer(self.offset_index, np.uint8),
            "time_index": np.frombuffer(self.time_index, np.uint8),
            "epochs": self.epochs,
            "events": self.events,
        }
        return pack_arrays(numbers, arrays)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> "SegmentScan":
        """Read what `to_bytes` wrote."""
        numbers, arrays = unpack_arrays(data)
        return cls(
            **numbers | {"stop": ScanStop(numbers["stop"])},
            offset_index=arrays["offset_index"].tobytes(),
            time_index=arrays["time_index"].tobytes(),
            epochs=arrays["epochs"],
            events=arrays["events"],
        )


_NUMBERS = (
    "file",
    "base_offset",
    "size_bytes",
    "valid_bytes",
    "next_offset",
    "last_v2_end",
    "batches",
    "records",
    "stop",
    "reason",
)


def scan_segment(  # the file, and how it is read
    reader: FileReader,
    base_offset: int,
    *,
    index_interval_bytes: int,
    max_index_bytes: int,
    window_bytes: int = DEFAULT_WINDOW_BYTES,
    threads: int = 1,
    on_bytes: Callable[[int], None] | None = None,
) -> SegmentScan:
    """Check every batch of a segment and build its indexes, as Kafka.

    Args:
        window_bytes: How much to hold at a time, by each thread.
        threads: How many threads to use; the result is the same.
        on_bytes: Told after each window how many bytes were read.
    """
    scan = _ValidPart(reader.name, base_offset, index_interval_bytes, max_index_bytes)
    try:
        with closing(
            scan_checked_headers(reader, window_bytes=window_bytes, threads=threads)
        ) as windows:
            for window in windows:
                if not scan.add(window):
                    break
                if on_bytes is not None:
                    on_bytes(window.size_bytes)
    except CorruptRecordError as error:
        scan.end(ScanStop.INVALID, str(error))
    return scan.finish(reader.size_bytes)


class _ValidPart:
    """The valid part so far."""

    def __init__(self, file: str, base_offset: int, interval_bytes: int, index_bytes: int) -> None:
        self._file = file
        self._base_offset = base_offset
        self._indexes = IndexBuilder(
            file, base_offset, interval_bytes=interval_bytes, max_index_bytes=index_bytes
        )
        self._valid_bytes = 0
        self._next_offset = base_offset
        self._last_v2_end = -1
        self._batches = 0
        self._records = 0
        self._latest_epoch = -1
        self._epochs: list[NDArray[np.int64]] = []
        self._events: list[NDArray[np.int64]] = []
        self._stop = ScanStop.END
        self._reason = ""

    def end(self, stop: ScanStop, reason: str) -> None:
        """Let the valid part end here."""
        self._stop, self._reason = stop, reason

    def add(self, window: Window) -> bool:
        """Take a window's valid batches; return whether those were all."""
        batches = window.batches
        bad = np.flatnonzero(batches.crc_ok == 0)
        count = int(bad[0]) if bad.size else len(batches)
        if bad.size:
            self.end(
                ScanStop.INVALID,
                f"{self._file}: position {window.position_of(count)}: the CRC of the batch at "
                f"offset {batches.base_offset[count]} is wrong",
            )
        unreadable = np.flatnonzero(
            batches.has_producer_id[:count]
            & batches.is_control[:count]
            & (batches.control_type[:count] == BAD_CONTROL_RECORD)
        )
        if unreadable.size:
            # Kafka reads a marker after counting its batch: so the batch counts.
            count = int(unreadable[0]) + 1
            self.end(
                ScanStop.INVALID,
                f"{self._file}: position {window.position_of(count - 1)}: the control record at "
                f"offset {batches.base_offset[count - 1]} cannot be read; what follows is cut",
            )
        valid = batches.rows(0, count)
        counted, error = self._indexes.add_until(valid.size, valid.last_offset, valid.max_timestamp)
        if error is not None:
            self.end(_stop_of(error), str(error))
            valid = batches.rows(0, counted)
        if len(valid):
            self._take(valid, window.file_position)
        return self._stop is ScanStop.END

    def _take(self, batches: BatchTable, file_position: int) -> None:
        self._valid_bytes += int(batches.size.sum())
        self._next_offset = int(batches.last_offset[-1]) + 1
        self._batches += len(batches)
        self._records += int(batches.counted_records.sum())
        modern = np.flatnonzero(batches.magic >= MAGIC_V2)
        if not modern.size:
            return
        self._last_v2_end = int(batches.last_offset[modern[-1]]) + 1
        self._events.append(events_of(batches, file_position))
        epochs = batches.leader_epoch[modern]
        before = np.maximum.accumulate(np.concatenate([[self._latest_epoch], epochs[:-1]]))
        new = modern[epochs > before]
        if new.size:
            self._epochs.append(np.stack([batches.leader_epoch[new], batches.base_offset[new]], 1))
            self._latest_epoch = int(batches.leader_epoch[new[-1]])

    def finish(self, size_bytes: int) -> SegmentScan:
        """Return the result."""
        if self._stop is ScanStop.END and self._valid_bytes < size_bytes:
            self.end(
                ScanStop.INVALID,
                f"{self._file}: position {self._valid_bytes}: no whole batch in the last "
                f"{size_bytes - self._valid_bytes} bytes",
            )
        if self._stop in {ScanStop.END, ScanStop.INVALID}:
            try:
                offset_index, time_index = self._indexes.finish()
            except CorruptIndexError as error:
                self.end(ScanStop.INDEX_ORDER, str(error))
        if self._stop not in {ScanStop.END, ScanStop.INVALID}:
            offset_index, time_index = self._indexes.encode()
        return SegmentScan(
            file=self._file,
            base_offset=self._base_offset,
            size_bytes=size_bytes,
            valid_bytes=self._valid_bytes,
            next_offset=self._next_offset,
            last_v2_end=self._last_v2_end,
            batches=self._batches,
            records=self._records,
            stop=self._stop,
            reason=self._reason,
            offset_index=offset_index,
            time_index=time_index,
            epochs=np.concatenate([np.empty((0, 2), np.int64), *self._epochs]),
            events=join_events(self._events),
        )


def _stop_of(error: BadBytesError) -> ScanStop:
    if isinstance(error, OffsetOverflowError):
        return ScanStop.OVERFLOW
    if isinstance(error, IndexFullError):
        return ScanStop.INDEX_FULL
    return ScanStop.INDEX_ORDER
