"""Recover one segment of a log during its load: scan and consequences."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import CorruptRecordError, IndexFullError
from storage_core.filenames import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    log_file,
    segment_file,
)
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET
from storage_core.index.segment_indexes import (
    AbortedTxn,
    IndexBuilder,
    OffsetIndex,
    encode_transaction_index,
)
from storage_core.log.batch_search import find_position, first_offset_of, next_offset_by_index
from storage_core.log.directory_view import DirectoryView
from storage_core.log.loading_log import LoadingLog
from storage_core.log.segment_scan import ScanStop, SegmentScan, scan_segment
from storage_core.records.payload import Limits
from storage_core.records.reader import CrcCheck, Tail, Window, scan_windows
from storage_core.store.base import FileReader

# Split a segment with unfit offsets, as Kafka's load does.
#
# Old brokers could compact segments into one whose offsets lie more than 2^31 - 1 above its base.
# Batch by batch it is copied into as many segments as that takes, each named by its first batch's
# base offset; then they are swapped in as compaction does it.

_NEW_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPart:
    """One segment that comes of a split."""

    base_offset: int
    start: int
    size_bytes: int
    offset_index: bytes
    time_index: bytes  # its .timeindex, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSplit:
    """A segment that was read for its split."""

    base_offset: int
    # Lowest offset that a batch's header begins or ends with: a damaged batch may end before it
    # begins.
    lowest_offset: int
    highest_offset: int
    parts: tuple[SegmentPart, ...]  # in the order of the file, each of another base offset

    @property
    def base_offsets(self) -> list[int]:
        """Base offsets of the parts, ascending."""
        return sorted(part.base_offset for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenPart:
    """A part that further batches may still belong to."""

    base_offset: int
    start: int
    indexes: IndexBuilder

    def takes(self, last_offset: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which batches fit it."""
        relative = last_offset - self.base_offset
        fits: NDArray[np.bool_] = (relative >= 0) & (relative <= MAX_RELATIVE_OFFSET)
        return fits

    def close(self, end: int) -> SegmentPart:
        """Return the part as it is where the next one begins."""
        offset_index, time_index = self.indexes.finish()
        return SegmentPart(
            base_offset=self.base_offset,
            start=self.start,
            size_bytes=end - self.start,
            offset_index=offset_index,
            time_index=time_index,
        )


def find_parts(
    reader: FileReader,
    base_offset: int,
    *,
    index_interval_bytes: int,
    max_index_bytes: int,
    limits: Limits,
) -> SegmentSplit:
    """Read a segment for the parts whose offsets fit; plan nothing.

    Args:
        limits: How large records and batches may become when they are decompressed.
    """
    parts: list[_OpenPart] = []
    bases: set[int] = set()
    lowest, highest = [], []
    end = 0
    for window in scan_windows(reader, crc=CrcCheck.SKIP, tail=Tail.STOP):
        batches = window.batches
        lowest.append(min(int(batches.base_offset.min()), int(batches.last_offset.min())))
        highest.append(max(int(batches.base_offset.max()), int(batches.last_offset.max())))
        row = 0
        while row < len(batches):
            if not parts or not parts[-1].takes(batches.last_offset[row : row + 1])[0]:
                first = first_offset_of(window, row, limits)
                if first in bases:
                    detail = f"found a second one at {first}"
                    reason = f"expected parts of a split that begin at different offsets, {detail}"
                    raise CorruptRecordError(reader.name, window.position_of(row), reason)
                indexes = IndexBuilder(
                    log_file(first),
                    first,
                    interval_bytes=index_interval_bytes,
                    max_index_bytes=max_index_bytes,
                )
                start = window.position_of(row)
                bases.add(first)
                parts.append(_OpenPart(base_offset=first, start=start, indexes=indexes))
            row = _fill(parts[-1], window, row)
        end = window.file_position + window.data.size
    if end != reader.size_bytes or not parts:
        raise CorruptRecordError(
            reader.name,
            end,
            f"expected whole batches up to {reader.size_bytes}, where the segment ends",
        )
    ends = [*(part.start for part in parts[1:]), end]
    return SegmentSplit(
        base_offset=base_offset,
        lowest_offset=min(lowest),
        highest_offset=max(highest),
        parts=tuple(part.close(end) for part, end in zip(parts, ends, strict=True)),
    )


def split_segment(
    view: DirectoryView,
    base_offset: int,
    *,
    index_interval_bytes: int,
    max_index_bytes: int,
    limits: Limits,
    keeps_txn_index: bool = False,
) -> list[int]:
    """Plan to split a segment into fitting parts; return their base offsets. The arguments, and
    the errors, are those of ``find_parts`` and ``plan_parts``."""
    with closing(view.open(log_file(base_offset))) as reader:
        split = find_parts(
            reader,
            base_offset,
            index_interval_bytes=index_interval_bytes,
            max_index_bytes=max_index_bytes,
            limits=limits,
        )
    plan_parts(view, split, keeps_txn_index=keeps_txn_index)
    return split.base_offsets


def _fill(part: _OpenPart, window: Window, row: int) -> int:
    """Give a part fitting batches from row on; return the next row."""
    rest = window.batches.rows(row, len(window.batches))
    misfits = np.flatnonzero(~part.takes(rest.last_offset))
    count = int(misfits[0]) if misfits.size else len(rest)
    if count == 0:
        raise CorruptRecordError(
            window.file,
            window.position_of(row),
            f"expected a batch that begins at offset {part.base_offset} to end at most "
            f"{MAX_RELATIVE_OFFSET} above it, found {rest.last_offset[0]}",
        )
    batches = rest.rows(0, count)
    part.indexes.add(batches.size, batches.last_offset, batches.max_timestamp)
    return row + count


def plan_parts(view: DirectoryView, split: SegmentSplit, *, keeps_txn_index: bool = False) -> None:
    """Plan to replace a segment by its parts.

    Args:
        view: The partition directory; the segment's .log file is as it was read.
        keeps_txn_index: Whether the part that has the segment's name keeps its transaction index.
    """
    base_offset, parts = split.base_offset, split.parts
    old = log_file(base_offset)
    new = f"split of the segment {base_offset}, whose offsets do not fit it"
    modified_ms = view.source(old).modified_ms
    for part in parts:
        target = log_file(part.base_offset) + CLEANED_SUFFIX
        view.copy(old, part.start, part.size_bytes, target, new)
        contents = (part.offset_index, part.time_index)
        for suffix, content in zip(_NEW_SUFFIXES[1:], contents, strict=True):
            index_name = segment_file(part.base_offset, suffix) + CLEANED_SUFFIX
            view.write_now(index_name, content, modified_ms, new)
    view.sync("the parts are complete")
    for part in reversed(parts):
        if part is parts[0]:
            view.sync("they do not count before the lowest one does")
        for suffix in _NEW_SUFFIXES:
            name = segment_file(part.base_offset, suffix)
            view.rename(name + CLEANED_SUFFIX, name + SWAP_SUFFIX, "from here on it counts")
    view.sync("from here on they count")
    keeps_txn_index &= base_offset in split.base_offsets
    suffixes = _NEW_SUFFIXES if keeps_txn_index else SEGMENT_SUFFIXES
    replaced = [name for suffix in suffixes if (name := segment_file(base_offset, suffix)) in view]
    for name in replaced:
        view.rename(name, name + DELETED_SUFFIX, "split into parts that fit")
    view.sync("what was split is gone")
    for part in parts:
        for suffix in _NEW_SUFFIXES:
            name = segment_file(part.base_offset, suffix)
            view.rename(name + SWAP_SUFFIX, name, new)
        # Found between two logs with the suffix, it would be what these replace.
        view.sync("a part is complete")
    for name in replaced:
        view.delete_now(name + DELETED_SUFFIX, "split into parts that fit")


class SegmentOverflowError(Exception):
    """A segment has a batch whose offset does not fit it."""

    def __init__(self, base_offset: int, scan: SegmentScan, aborted: Sequence[AbortedTxn]) -> None:
        super().__init__(base_offset)
        self.base_offset, self.scan, self.aborted = base_offset, scan, tuple(aborted)


class OffsetOrderError(Exception):
    """A segment has index entries whose offsets do not rise."""

    def __init__(self, scan: SegmentScan) -> None:
        super().__init__(scan.base_offset)
        self.scan = scan


class SegmentRecovery:
    """Recovers segments of one log.

    Args:
        scans: Segments that were scanned before, by base offset.
        on_bytes: Told how many bytes of segments were scanned, window by window.
    """

    def __init__(
        self,
        log: LoadingLog,
        *,
        log_start_checkpoint: int,
        scans: Mapping[int, SegmentScan],
        threads: int,
        on_bytes: Callable[[int], None] | None,
    ) -> None:
        self._log = log
        self._start_checkpoint = log_start_checkpoint
        self._scans = dict(scans)
        self._threads = threads
        self._on_bytes = on_bytes

    def recover(self, base_offset: int, reason: str) -> int:
        """Rebuild a segment from its batches; return how many bytes it lost."""
        log = self._log
        producers = log.new_producers()
        producers.rebuild(
            log.base_offsets,
            log_start_offset=self._start_checkpoint,
            end_offset=base_offset,
            after_clean_shutdown=False,
        )
        scan = self._scan(base_offset)
        for epoch, first_offset in scan.epochs.tolist():
            try:
                log.assign_epoch(epoch, first_offset)
            except ValueError as error:
                reason = f"expected leader epochs that begin at offsets from 0 on, found {error}"
                raise CorruptRecordError(scan.file, 0, reason) from error
        aborted = producers.state.recover(scan.file, scan.events)
        if scan.stop is ScanStop.OVERFLOW:
            # Now, not at the end: an interrupted split is finished without another scan.
            log.write_epochs()
            raise SegmentOverflowError(base_offset, scan, aborted)
        if scan.stop is ScanStop.INDEX_ORDER:
            raise OffsetOrderError(scan)
        if scan.stop is ScanStop.INDEX_FULL:
            raise IndexFullError(scan.file, scan.valid_bytes, scan.reason)
        log.write_indexes(base_offset, scan.offset_index, scan.time_index, reason)
        txn_name = segment_file(base_offset, TXN_INDEX_SUFFIX)
        if aborted or txn_name in log.view:
            log.view.write(txn_name, encode_transaction_index(aborted), reason)
        cut_bytes = log.cut_segment(base_offset, scan.valid_bytes, scan.next_offset, scan.reason)
        if scan.last_v2_end >= 0:
            producers.map_end = scan.last_v2_end
        producers.take_snapshot()
        log.note_rebuilt(base_offset)
        return cut_bytes

    def empty(self, base_offset: int, scan: SegmentScan) -> int:
        """Cut a segment of falling offsets to its base; return lost bytes."""
        log = self._log
        index = OffsetIndex.parse(base_offset, scan.offset_index)
        name = log_file(base_offset)
        position = find_position(log.view, name, base_offset, index.look_up(base_offset))
        log.write_indexes(base_offset, b"", b"", scan.reason)
        txn_name = segment_file(base_offset, TXN_INDEX_SUFFIX)
        if txn_name in log.view:
            log.view.write(txn_name, b"", scan.reason)
        log.note_rebuilt(base_offset)
        if position is None:
            return 0
        return log.cut_segment(base_offset, position, base_offset, scan.reason)

    def split(self, overflow: SegmentOverflowError) -> None:
        """Plan to replace a segment by parts whose offsets fit.

        Kafka replaces what it had opened. Of a segment that overflowed while it was opened the
        transaction index stays, as recovery left it, with the first part if that has its name.
        """
        log = self._log
        base_offset, scan = overflow.base_offset, overflow.scan
        name = log_file(base_offset)
        index = OffsetIndex.parse(base_offset, scan.offset_index)
        last = next_offset_by_index(log.view, name, index) - 1
        if last - base_offset <= MAX_RELATIVE_OFFSET:
            raise CorruptRecordError(
                name,
                scan.valid_bytes,
                f"{scan.reason}, though the segment's last offset, {last}, does: "
                "Kafka does not load such a log",
            )
        is_open = base_offset in log.base_offsets
        txn_name = segment_file(base_offset, TXN_INDEX_SUFFIX)
        if not is_open and (overflow.aborted or txn_name in log.view):
            log.view.write(txn_name, encode_transaction_index(overflow.aborted), scan.reason)
        parts = split_segment(
            log.view,
            base_offset,
            keeps_txn_index=not is_open,
            index_interval_bytes=log.config.index_interval_bytes,
            max_index_bytes=log.config.segment_index_bytes,
            limits=Limits(
                max_record_bytes=log.config.max_decompressed_message_bytes,
                max_batch_bytes=log.cleaner.max_decompressed_batch_bytes,
            ),
        )
        log.replace_segment(base_offset, parts)

    def _scan(self, base_offset: int) -> SegmentScan:
        log = self._log
        name = log_file(base_offset)
        file = log.view.source(name)
        cached = self._scans.get(base_offset)
        if cached is not None and cached.file == file.name:
            if cached.size_bytes == file.size_bytes:
                return cached
            if cached.valid_bytes == file.size_bytes and cached.stop is ScanStop.INVALID:
                return replace(cached, size_bytes=file.size_bytes, stop=ScanStop.END, reason="")
        with closing(log.view.open(name)) as reader:
            scan = scan_segment(
                reader,
                base_offset,
                index_interval_bytes=log.config.index_interval_bytes,
                max_index_bytes=log.config.segment_index_bytes,
                window_bytes=log.cleaner.window_bytes,
                threads=self._threads,
                on_bytes=self._on_bytes,
            )
        log.note_scanned(file.size_bytes)
        self._scans[base_offset] = scan
        return scan
