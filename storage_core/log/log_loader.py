"""Loading a partition's log as Kafka's LogLoader does, pass by pass.

The loader reads and decides; what it would change stands in ``LoadedLog.operations``. A dry run is
a load whose operations nobody applies.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

import numpy as np

from storage_core.checkpoint.leader_epoch_file import encode_leader_epochs, parse_leader_epochs
from storage_core.checkpoint.partition_metadata import (
    MAX_PARTITION_METADATA_BYTES,
    parse_partition_metadata,
)
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import (
    CorruptIndexError,
    CorruptRecordError,
    IndexFullError,
    IndexVersionError,
    RecoveryRequiredError,
)
from storage_core.filenames import (
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    directory_state,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.formats.index_entries import (
    MAX_RELATIVE_OFFSET,
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
)
from storage_core.index.offset_index import OffsetIndex
from storage_core.index.time_index import TimeIndex
from storage_core.index.transaction_index import encode_transaction_index
from storage_core.index.truncation import (
    truncate_aborted,
    truncate_offset_index,
    truncate_time_index,
)
from storage_core.log.directory_view import DirectoryView
from storage_core.log.end_offset import (
    MAX_INDEX_BYTES,
    find_batch,
    find_newest_batch,
    find_next_offset,
    find_position,
    next_offset_by_index,
    read_offset_index,
)
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.leftovers import settle_leftovers
from storage_core.log.loaded_log import Cut, LoadedLog, LogRepairs
from storage_core.log.open_segments import describe_segment, read_aborted
from storage_core.log.producer_state_manager import ProducerStateManager
from storage_core.log.segment_scan import ScanStop, SegmentScan, scan_segment
from storage_core.log.segment_split import split_segment
from storage_core.plan.operations import Operation, SyncDirectory, SyncFile
from storage_core.records.payload import Limits
from storage_core.store.base import LogStore

# A .log file's positions are 31-bit numbers; Kafka does not open a larger one.
MAX_LOG_BYTES = 2**31 - 1
_MAX_EPOCH_FILE_BYTES = 1 << 26


def load_log(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    log_start_checkpoint: int = 0,
    high_watermark: int | None = None,
) -> LoadedLog:
    """Load a log that was closed cleanly and needs no recovery.

    Args:
        store: The partition directory.
        config: The topic's configuration.
        cleaner: For the expiry of producers.
        now_ms: The run's clock, epoch milliseconds.
        log_start_checkpoint: The partition's entry in the log-start checkpoint, 0 without one.
        high_watermark: Clamped into the log; None for the log end offset.

    Raises:
        RecoveryRequiredError: Kafka would recover or split a segment, or begin an empty log.
        PylogError: As `LogLoader.load`.
    """
    log = LogLoader(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        log_start_checkpoint=log_start_checkpoint,
        clean_shutdown=True,
        may_repair=False,
    )
    log.load()
    return log.finish(high_watermark=high_watermark)


class LogLoader:
    """One load of one log, and the state that it builds up.

    Args:
        store: The partition directory.
        config: The topic's configuration.
        cleaner: For the expiry of producers, and limits of decompression.
        now_ms: The run's clock, epoch milliseconds.
        log_start_checkpoint: The partition's entry in the log-start checkpoint, 0 without one.
        recovery_point: Its entry in the recovery-point checkpoint, 0 without one.
        clean_shutdown: Whether its log directory has the clean-shutdown marker.
        may_repair: Whether segments may be recovered; if not, a log that needs it is refused.
        scans: Segments that were scanned before, by base offset.
        on_bytes: Told how many bytes of segments were scanned, window by window.

    Attributes:
        view: The directory with all that is planned so far.
        base_offsets: Of the segments, ascending.
        epochs: The leader epochs.
        producers: The producers.
        log_start_offset: Set by `load`.
        log_end_offset: Set by `load`.
        recovery_point: Set by `load`.
    """

    def __init__(  # noqa: PLR0913  # Kafka's loader has as many inputs
        self,
        store: LogStore,
        *,
        config: LogConfig,
        cleaner: CleanerConfig,
        now_ms: int,
        log_start_checkpoint: int = 0,
        recovery_point: int = 0,
        clean_shutdown: bool = False,
        may_repair: bool = True,
        scans: Mapping[int, SegmentScan] | None = None,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self.view = DirectoryView(store)
        self.base_offsets: list[int] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self._config = config
        self._cleaner = cleaner
        self._now_ms = now_ms
        self._start_checkpoint = log_start_checkpoint
        self._point_checkpoint = recovery_point
        self._clean_shutdown = clean_shutdown
        self._may_repair = may_repair
        self._scans = dict(scans or {})
        self._on_bytes = on_bytes
        self._cuts: dict[int, Cut] = {}
        self._rebuilt: set[int] = set()
        self._split: list[int] = []
        self._scanned_bytes = 0
        self.epochs, self._epochs_changed = self._read_epochs()
        self.producers = self._new_producers()

    def load(self) -> None:
        """Run the loader's passes.

        Raises:
            RecoveryRequiredError: Segments need a recovery that was not allowed.
            CorruptIndexError: A transaction index has an unknown version.
            IndexFullError: An index has no room for an entry that its segment needs.
            CorruptRecordError: Bytes that no recovery looks at are no batches, or a segment
                cannot be split.
            InvalidTxnStateError: Batches contradict each other's transactions.
            InvalidRecordError: A marker cannot be read.
            UnsupportedFormatError: A file is larger than Kafka opens.
            CheckpointError: The leader epoch file, or ``partition.metadata``, is malformed.
            InvalidNameError: An unfinished file belongs to no segment.
            StorageError: The store failed.
        """
        if self._may_repair:
            self._validate_topic_id()
        settle_leftovers(self.view)
        self._retry_after_splits(self._open_segments)
        if directory_state(self._directory_name) == "delete":
            if not self.base_offsets:
                self._create_segment(0)
        else:
            self._retry_after_splits(self._recover_log)
            if self._may_repair:
                self._validate_active_indexes()
        self._epochs_changed |= self.epochs.truncate_from_end(self.log_end_offset)
        self._epochs_changed |= self.epochs.truncate_from_start(self._start_checkpoint)
        self.log_start_offset = max(self._start_checkpoint, self.base_offsets[0])
        self.recovery_point = max(self.recovery_point, self.log_start_offset)
        self.producers.remove_strays(self.base_offsets)
        self.producers.rebuild(
            self.base_offsets,
            log_start_offset=self.log_start_offset,
            end_offset=self.log_end_offset,
            after_clean_shutdown=self._clean_shutdown,
        )

    def finish(self, *, high_watermark: int | None = None) -> LoadedLog:
        """Close the log cleanly, as far as its files go, and return it.

        Args:
            high_watermark: Clamped into the log; None for the log end offset.
        """
        self.producers.take_snapshot()
        self._write_epochs()
        self._trim_active_indexes()
        segments = tuple(
            describe_segment(self.view, base, needs_first_timestamp=self._config.is_compacted)
            for base in self.base_offsets
        )
        end, start = self.log_end_offset, self.log_start_offset
        watermark = end if high_watermark is None else min(max(high_watermark, start), end)
        state = self.producers.state
        state.advance_high_watermark(watermark)
        unstable = state.first_unstable_offset
        stable = watermark
        if unstable is not None:
            stable = min(watermark, self._batch_base_offset(max(unstable, start)))
        return LoadedLog(
            location=self.view.store.location,
            segments=segments,
            log_start_offset=start,
            log_end_offset=end,
            recovery_point=self.recovery_point,
            high_watermark=watermark,
            last_stable_offset=stable,
            producers=tuple(state.producers.values()),
            epochs=self.epochs.entries,
            snapshot_offsets=frozenset(self.producers.snapshots),
            operations=(*self.view.operations, *self._syncs()),
            repairs=LogRepairs(
                cuts=tuple(self._cuts[base] for base in sorted(self._cuts)),
                rebuilt=tuple(sorted(self._rebuilt & set(self.base_offsets))),
                split=tuple(self._split),
                scanned_bytes=self._scanned_bytes,
            ),
        )

    def _write_epochs(self) -> None:
        if self._epochs_changed:
            content = encode_leader_epochs(self.epochs.entries)
            self.view.write(LEADER_EPOCH_FILE, content, "epochs of the log")

    def _syncs(self) -> list[Operation]:
        """Return the operations that make what was verified durable: a crash may have undone it.

        A loader that finds the log clean the next time will not look at these bytes again.
        """
        reason = "verified, and from here on taken to be on the disk"
        rebuilt = sorted(self._rebuilt & set(self.base_offsets))
        syncs: list[Operation] = [
            SyncFile(name=log_file(base_offset), reason=reason) for base_offset in rebuilt
        ]
        return [*syncs, SyncDirectory(reason=reason)] if syncs else []

    def remove_segment(self, base_offset: int, reason: str) -> None:
        """Plan that a segment and its producer snapshot are gone; note what is lost."""
        size_bytes = self.view.source(log_file(base_offset)).size_bytes
        self._note_cut(base_offset, 0, size_bytes, base_offset, reason)
        for suffix in SEGMENT_SUFFIXES:
            if segment_file(base_offset, suffix) in self.view:
                self.view.delete(segment_file(base_offset, suffix), reason)
        self.base_offsets.remove(base_offset)
        self._rebuilt.discard(base_offset)
        self.producers.forget_segment(base_offset)

    def truncate_to(self, offset: int) -> bool:
        """Cut the log, as a replica does that follows a new leader; after `load`.

        Args:
            offset: The log's new end. A batch that reaches it goes as a whole.

        Returns:
            Whether the log ended above the offset.

        Raises:
            ValueError: The offset is negative.
            PylogError: As `load`, for what has to be replayed.
        """
        if offset < 0:
            raise ValueError(f"expected an offset of at least 0, found {offset}")
        if offset >= self.log_end_offset:
            self._epochs_changed |= self.epochs.truncate_from_end(self.log_end_offset)
            return False
        reason = f"the log is truncated to offset {offset}"
        if self.base_offsets[0] > offset:
            self._start_over(offset, reason)
        else:
            for base_offset in [base for base in self.base_offsets if base > offset]:
                self.remove_segment(base_offset, reason)
            self._truncate_active(offset, reason)
            self._epochs_changed |= self.epochs.truncate_from_end(offset)
            self.log_start_offset = min(offset, self.log_start_offset)
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.producers.rebuild(
            self.base_offsets,
            log_start_offset=self.log_start_offset,
            end_offset=offset,
            after_clean_shutdown=False,
        )
        return True

    def _start_over(self, offset: int, reason: str) -> None:
        for base_offset in list(self.base_offsets):
            self.remove_segment(base_offset, reason)
        self._create_segment(offset)
        self.epochs = LeaderEpochCache()
        self._epochs_changed = True
        self.producers.truncate_fully_and_start_at(offset)
        self.log_start_offset = offset

    def _truncate_active(self, offset: int, reason: str) -> None:
        base_offset = self.base_offsets[-1]
        index_name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
        time_name = segment_file(base_offset, TIME_INDEX_SUFFIX)
        txn_name = segment_file(base_offset, TXN_INDEX_SUFFIX)
        index = read_offset_index(self.view, base_offset, index_name)
        position = find_position(self.view, log_file(base_offset), offset, index.look_up(offset))
        offsets = self.view.read(index_name, limit_bytes=MAX_INDEX_BYTES)
        self.view.write(index_name, truncate_offset_index(base_offset, offsets, offset), reason)
        times = self.view.read(time_name, limit_bytes=MAX_INDEX_BYTES)
        times = truncate_time_index(base_offset, times, offset)
        if txn_name in self.view:
            aborted = truncate_aborted(read_aborted(self.view, base_offset), offset)
            self.view.write(txn_name, encode_transaction_index(aborted), reason)
        if position is not None:
            self._cut(base_offset, position, offset, reason)
        times += self._last_time_entry(base_offset, times)
        self.view.write(time_name, times, reason)

    def _last_time_entry(self, base_offset: int, times: bytes) -> bytes:
        """Return the entry that closing adds for batches newer than what the time index says.

        With no entry left Kafka does not look for any: the segment's age is not known then.
        """
        time_index = TimeIndex.parse(base_offset, times)
        if time_index.last_timestamp < 0:
            return b""
        index_name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
        index = read_offset_index(self.view, base_offset, index_name)
        newest = find_newest_batch(
            self.view, log_file(base_offset), index.look_up(time_index.last_entry.offset)
        )
        if newest is None or newest.max_timestamp <= time_index.last_timestamp:
            return b""
        entry = np.zeros(1, TIME_INDEX_ENTRY)
        entry["timestamp"] = newest.max_timestamp
        entry["relative_offset"] = newest.last_offset - base_offset
        return entry.tobytes()

    @property
    def _directory_name(self) -> str:
        return self.view.store.location.rstrip("/").rpartition("/")[2]

    def _read_epochs(self) -> tuple[LeaderEpochCache, bool]:
        if LEADER_EPOCH_FILE not in self.view:
            self.view.write(LEADER_EPOCH_FILE, b"", "the leader epoch file is missing")
            return LeaderEpochCache(), False
        data = self.view.read(LEADER_EPOCH_FILE, limit_bytes=_MAX_EPOCH_FILE_BYTES)
        return LeaderEpochCache(parse_leader_epochs(data, file=LEADER_EPOCH_FILE)), False

    def _validate_topic_id(self) -> None:
        """Refuse a topic id that Kafka would not read either, before anything is decided."""
        if PARTITION_METADATA_FILE in self.view:
            data = self.view.read(PARTITION_METADATA_FILE, limit_bytes=MAX_PARTITION_METADATA_BYTES)
            parse_partition_metadata(data, file=PARTITION_METADATA_FILE)

    def _validate_active_indexes(self) -> None:
        """Refuse indexes of the active segment that Kafka cannot resize for appends."""
        for suffix, entry in (
            (OFFSET_INDEX_SUFFIX, OFFSET_INDEX_ENTRY),
            (TIME_INDEX_SUFFIX, TIME_INDEX_ENTRY),
        ):
            name = segment_file(self.base_offsets[-1], suffix)
            size_bytes = self.view.source(name).size_bytes
            most = self._config.segment_index_bytes // entry.itemsize * entry.itemsize
            if size_bytes // entry.itemsize * entry.itemsize > most:
                raise IndexFullError(
                    name,
                    most,
                    f"the active segment's index has {size_bytes} bytes, segment.index.bytes "
                    f"allows {most}: Kafka does not load such a log",
                )

    def _new_producers(self) -> ProducerStateManager:
        return ProducerStateManager(
            self.view,
            now_ms=self._now_ms,
            expiration_ms=self._cleaner.producer_id_expiration_ms,
        )

    def _retry_after_splits(self, work: Callable[[], None]) -> None:
        while True:
            try:
                work()
            except _SegmentOverflowError as overflow:
                self._split_segment(overflow.base_offset, overflow.scan)
            else:
                return

    def _open_segments(self) -> None:
        """Pass 4: drop indexes without a log, open the segments, recover those that show it."""
        self.base_offsets = []
        for name in self.view.names:
            offset = offset_of(name)
            kind = kind_of(name)
            if kind in INDEX_SUFFIXES and offset is not None and log_file(offset) not in self.view:
                self.view.delete(name, "index without a log")
            elif kind == LOG_SUFFIX and offset is not None:
                self._open_segment(name, offset)

    def _open_segment(self, name: str, base_offset: int) -> None:
        if name != log_file(base_offset):
            raise RecoveryRequiredError(
                self.view.store.location, f"{name}: expected the name {log_file(base_offset)}"
            )
        size_bytes = self.view.source(name).size_bytes
        if size_bytes > MAX_LOG_BYTES:
            raise CorruptRecordError(
                name,
                MAX_LOG_BYTES,
                f"the segment has {size_bytes} bytes; Kafka opens none beyond {MAX_LOG_BYTES}",
            )
        index_name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
        time_name = segment_file(base_offset, TIME_INDEX_SUFFIX)
        reason = None
        if index_name not in self.view:
            reason = f"{index_name} is missing"
        else:
            if time_name not in self.view:
                self.view.write(time_name, b"", "the time index is missing")
            try:
                read_aborted(self.view, base_offset)
            except IndexVersionError:
                raise
            except CorruptIndexError as error:
                reason = str(error)
        if reason is not None:
            try:
                self._recover_segment(base_offset, reason)
            except _OffsetOrderError as error:
                raise CorruptIndexError(
                    name,
                    error.scan.valid_bytes,
                    f"{error.scan.reason}; {reason}: Kafka does not load such a log",
                ) from error
        self.base_offsets = sorted([*self.base_offsets, base_offset])

    def _recover_log(self) -> None:
        """Pass 5: recover what was not known to be on the disk, and find the log's end."""
        if not self._clean_shutdown:
            self._recover_unflushed()
        end = self._end_unless_below_start()
        if not self.base_offsets:
            self._create_segment(self._start_checkpoint)
        if self._clean_shutdown and end is not None:
            self.recovery_point = self.log_end_offset = end
            return
        self.log_end_offset = self._read_next_offset() if end is None else end
        self.recovery_point = min(self._point_checkpoint, self.log_end_offset)

    def _recover_unflushed(self) -> None:
        point = self._point_checkpoint
        first = max((i for i, base in enumerate(self.base_offsets) if base <= point), default=0)
        for base_offset in list(self.base_offsets[first:]):
            try:
                cut_bytes = self._recover_segment(
                    base_offset, "it may not have been written to the disk whole"
                )
            except _OffsetOrderError as error:
                cut_bytes = self._empty_segment(base_offset, error.scan)
            if cut_bytes > 0:
                reason = f"segment {base_offset} before it lost its end"
                for later in [base for base in self.base_offsets if base > base_offset]:
                    self.remove_segment(later, reason)
                return

    def _recover_segment(self, base_offset: int, reason: str) -> int:
        """Rebuild a segment from its batches; return how many bytes it lost."""
        if not self._may_repair:
            raise RecoveryRequiredError(
                self.view.store.location,
                f"segment {base_offset} has to be recovered: {reason}",
            )
        producers = self._new_producers()
        producers.rebuild(
            self.base_offsets,
            log_start_offset=self._start_checkpoint,
            end_offset=base_offset,
            after_clean_shutdown=False,
        )
        scan = self._scan(base_offset)
        for epoch, first_offset in scan.epochs.tolist():
            latest = self.epochs.entries[-1].epoch if self.epochs.entries else -1
            if epoch > latest:
                self._epochs_changed |= self.epochs.assign(epoch, first_offset)
        # Now, not at the end: a split that a crash interrupts is finished without another look.
        self._write_epochs()
        aborted = producers.state.recover(scan.file, scan.events)
        if scan.stop is ScanStop.OVERFLOW:
            raise _SegmentOverflowError(base_offset, scan)
        if scan.stop is ScanStop.INDEX_ORDER:
            raise _OffsetOrderError(scan)
        if scan.stop is ScanStop.INDEX_FULL:
            raise IndexFullError(scan.file, scan.valid_bytes, scan.reason)
        self._write_indexes(base_offset, scan.offset_index, scan.time_index, reason)
        txn_name = segment_file(base_offset, TXN_INDEX_SUFFIX)
        if aborted or txn_name in self.view:
            self.view.write(txn_name, encode_transaction_index(aborted), reason)
        cut_bytes = self._cut(base_offset, scan.valid_bytes, scan.next_offset, scan.reason)
        if scan.last_v2_end >= 0:
            producers.map_end = scan.last_v2_end
        producers.take_snapshot()
        self._rebuilt.add(base_offset)
        return cut_bytes

    def _empty_segment(self, base_offset: int, scan: SegmentScan) -> int:
        """Cut a segment whose offsets do not rise down to its base; return the bytes lost."""
        index = OffsetIndex.parse(base_offset, scan.offset_index)
        name = log_file(base_offset)
        position = find_position(self.view, name, base_offset, index.look_up(base_offset))
        self._write_indexes(base_offset, b"", b"", scan.reason)
        txn_name = segment_file(base_offset, TXN_INDEX_SUFFIX)
        if txn_name in self.view:
            self.view.write(txn_name, b"", scan.reason)
        self._rebuilt.add(base_offset)
        if position is None:
            return 0
        return self._cut(base_offset, position, base_offset, scan.reason)

    def _write_indexes(
        self, base_offset: int, offset_index: bytes, time_index: bytes, reason: str
    ) -> None:
        why = f"rebuilt: {reason}"
        self.view.write(segment_file(base_offset, OFFSET_INDEX_SUFFIX), offset_index, why)
        self.view.write(segment_file(base_offset, TIME_INDEX_SUFFIX), time_index, why)

    def _cut(self, base_offset: int, size_bytes: int, end_offset: int, reason: str) -> int:
        name = log_file(base_offset)
        lost = self.view.source(name).size_bytes - size_bytes
        if lost > 0:
            self._note_cut(base_offset, size_bytes, lost, end_offset, reason)
            self.view.truncate(name, size_bytes, reason)
        return lost

    def _note_cut(
        self,
        base_offset: int,
        position: int,
        size_bytes: int,
        first_offset: int,
        reason: str,
    ) -> None:
        file, start = self.view.place(log_file(base_offset))
        before = self._cuts.get(base_offset)
        if size_bytes == 0 and position == 0:
            # An empty segment that goes is no loss.
            return
        self._cuts[base_offset] = Cut(
            base_offset=base_offset,
            file=file,
            position=start + position,
            size_bytes=size_bytes + (before.size_bytes if before else 0),
            first_offset=first_offset,
            is_whole_segment=position == 0,
            reason=before.reason if before else reason,
        )

    def _scan(self, base_offset: int) -> SegmentScan:
        name = log_file(base_offset)
        log = self.view.source(name)
        known = self._scans.get(base_offset)
        if known is not None and known.file == log.name:
            if known.size_bytes == log.size_bytes:
                return known
            if known.valid_bytes == log.size_bytes and known.stop is ScanStop.INVALID:
                return replace(known, size_bytes=log.size_bytes, stop=ScanStop.END, reason="")
        with closing(self.view.open(name)) as reader:
            scan = scan_segment(
                reader,
                base_offset,
                index_interval_bytes=self._config.index_interval_bytes,
                max_index_bytes=self._config.segment_index_bytes,
                window_bytes=self._cleaner.window_bytes,
                on_bytes=self._on_bytes,
            )
        self._scanned_bytes += log.size_bytes
        self._scans[base_offset] = scan
        return scan

    def _split_segment(self, base_offset: int, scan: SegmentScan) -> None:
        name = log_file(base_offset)
        index = OffsetIndex.parse(base_offset, scan.offset_index)
        last = next_offset_by_index(self.view, name, index) - 1
        if last - base_offset <= MAX_RELATIVE_OFFSET:
            raise CorruptRecordError(
                name,
                scan.valid_bytes,
                f"{scan.reason}, though the segment's last offset, {last}, does: "
                "Kafka does not load such a log",
            )
        parts = split_segment(
            self.view,
            base_offset,
            index_interval_bytes=self._config.index_interval_bytes,
            max_index_bytes=self._config.segment_index_bytes,
            limits=Limits(
                max_record_bytes=self._config.max_decompressed_message_bytes,
                max_batch_bytes=self._cleaner.max_decompressed_batch_bytes,
            ),
        )
        self._split.append(base_offset)
        if base_offset in self.base_offsets:
            self.base_offsets.remove(base_offset)
        if base_offset not in parts:
            self.producers.forget_segment(base_offset)
        self.base_offsets = sorted({*self.base_offsets, *parts})

    def _end_unless_below_start(self) -> int | None:
        """Return the log's end; remove every segment and return None if the log starts above."""
        if not self.base_offsets:
            return None
        end = self._read_next_offset()
        if end >= self._start_checkpoint:
            return end
        reason = (
            f"the log ends at offset {end}, below its log start offset {self._start_checkpoint}"
        )
        if not self._may_repair:
            raise RecoveryRequiredError(
                self.view.store.location, f"{reason}: Kafka would delete every segment of it"
            )
        for base_offset in list(self.base_offsets):
            self.remove_segment(base_offset, reason)
        self.epochs = LeaderEpochCache()
        self._epochs_changed = True
        self.producers.truncate_fully_and_start_at(self._start_checkpoint)
        return None

    def _create_segment(self, base_offset: int) -> None:
        if not self._may_repair:
            raise RecoveryRequiredError(self.view.store.location, "the directory has no segment")
        for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self.view.write(segment_file(base_offset, suffix), b"", "the log has no segment")
        self.base_offsets = [base_offset]

    def _read_next_offset(self) -> int:
        base_offset = self.base_offsets[-1]
        index_name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
        return find_next_offset(self.view, base_offset, log_file(base_offset), index_name)

    def _trim_active_indexes(self) -> None:
        """Do what a clean close does to the active segment's indexes: a ragged tail goes."""
        for suffix, entry_bytes in (
            (OFFSET_INDEX_SUFFIX, OFFSET_INDEX_ENTRY.itemsize),
            (TIME_INDEX_SUFFIX, TIME_INDEX_ENTRY.itemsize),
        ):
            name = segment_file(self.base_offsets[-1], suffix)
            size = self.view.source(name).size_bytes
            if size % entry_bytes:
                self.view.truncate(name, size - size % entry_bytes, "tail that is no whole entry")

    def _batch_base_offset(self, offset: int) -> int:
        """Return the base offset of the first batch that reaches offset, the log's end without one.

        This is what Kafka makes of the first unstable offset of a log that it has just loaded: the
        batch may begin below it, or above it where compaction left a gap.
        """
        floor = max((base for base in self.base_offsets if base <= offset), default=0)
        for base in self.base_offsets:
            if base < floor:
                continue
            index_name = segment_file(base, OFFSET_INDEX_SUFFIX)
            index = read_offset_index(self.view, base, index_name)
            batch = find_batch(self.view, log_file(base), offset, index.look_up(offset))
            if batch is not None:
                return batch.base_offset
        return self.log_end_offset


class _SegmentOverflowError(Exception):
    """A segment has a batch whose offset does not fit it."""

    def __init__(self, base_offset: int, scan: SegmentScan) -> None:
        super().__init__(base_offset)
        self.base_offset, self.scan = base_offset, scan


class _OffsetOrderError(Exception):
    """A segment has index entries whose offsets do not rise."""

    def __init__(self, scan: SegmentScan) -> None:
        super().__init__(scan.base_offset)
        self.scan = scan
