"""Recover one segment of a log during its load: scan and consequences."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from storage_core.errors import CorruptRecordError, IndexFullError
from storage_core.filenames import TXN_INDEX_SUFFIX, log_file, segment_file
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET
from storage_core.index.segment_indexes import OffsetIndex
from storage_core.index.transaction_index import AbortedTxn, encode_transaction_index
from storage_core.log.batch_search import find_position, next_offset_by_index
from storage_core.log.loading_log import LoadingLog
from storage_core.log.segment_scan import ScanStop, SegmentScan, scan_segment
from storage_core.log.segment_split import split_segment
from storage_core.records.payload import Limits


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
