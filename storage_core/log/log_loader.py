"""Loading a partition's log as Kafka's LogLoader does, pass by pass.

The loader reads and decides; what it would change stands in ``LoadedLog.operations``. A dry run is
a load whose operations nobody applies.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping

from storage_core.checkpoint.checkpoints import (
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
    UnsupportedFormatError,
    located,
)
from storage_core.filenames import (
    ANCIENT_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    directory_state,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.log.loaded_log import LoadChanges, LoadedLog, read_aborted, segments_from
from storage_core.log.loading_log import LoadingLog
from storage_core.log.segment_recovery import (
    OffsetOrderError,
    SegmentOverflowError,
    SegmentRecovery,
)
from storage_core.log.segment_scan import SegmentScan
from storage_core.log.settled_store import settle_leftovers
from storage_core.store.base import LogStore

# A .log file's positions are 31-bit numbers; Kafka does not open a larger one.
MAX_LOG_BYTES = 2**31 - 1


@located
def load_log(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    log_start_checkpoint: int = 0,
    high_watermark: int | None = None,
    needs_max_timestamps: bool = True,
) -> LoadedLog:
    """Load a log that was closed cleanly and needs no recovery.

    Args:
        cleaner: For the expiry of producers.
        log_start_checkpoint: The partition's entry in the log-start checkpoint, 0 without one.
        high_watermark: Clamped into the log; None for the log end offset.
        needs_max_timestamps: Whether the time indexes of all segments are read.
    """
    log = _load_clean(store, config, cleaner, now_ms, log_start_checkpoint)
    return log.close(high_watermark=high_watermark, needs_max_timestamps=needs_max_timestamps)


@located
def load_changes(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    log_start_checkpoint: int = 0,
) -> LoadChanges:
    """Return what a load that ``load_log`` made before changes in the directory.

    It opens only what tells that: the active segment's tail and small files. The arguments are
    those of ``load_log``.
    """
    return _load_clean(store, config, cleaner, now_ms, log_start_checkpoint).close_files()


def _load_clean(
    store: LogStore,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    log_start_checkpoint: int,
) -> LoadingLog:
    loader = LogLoader(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        log_start_checkpoint=log_start_checkpoint,
        clean_shutdown=True,
        may_repair=False,
    )
    return loader.load()


@located
def find_clean_end(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    log_start_checkpoint: int = 0,
) -> int:
    """Return the log end offset that a broker's clean load finds.

    This is the one rule that says whether such a load fails. It reads what the load reads: the tail
    of the active segment, indexes of transactions, small files. Closed segments are not read.

    The arguments are those of ``load_log``.
    """
    loader = LogLoader(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        log_start_checkpoint=log_start_checkpoint,
        clean_shutdown=True,
        may_repair=False,
    )
    loader.validate_topic_id()
    log = loader.load()
    loader.validate_active_indexes()
    log.find_unstable_end()
    return log.log_end_offset


def find_former_end(names: Iterable[str], *checkpointed: int | None) -> int | None:
    """Return where a log without any segment ended, None if nothing tells.

    A loader begins such a log anew at its log start. A log that was purged has one segment of 0
    bytes, which keeps its offsets; some tools for copies leave empty files out.

    Args:
        checkpointed: Its entries in checkpoints: it reached at least these offsets.
    """
    offsets = [offset for offset in checkpointed if offset is not None]
    for name in names:
        if LOG_SUFFIX in name and not name.endswith(DELETED_SUFFIX):
            return None
        offset = offset_of(name)
        if name.endswith(SNAPSHOT_SUFFIX) and offset is not None:
            offsets.append(offset)
    return max(offsets, default=None)


class LogLoader:
    """One load of one log.

    Args:
        cleaner: For the expiry of producers, and limits of decompression.
        log_start_checkpoint: The partition's entry in the log-start checkpoint, 0 without one.
        recovery_point: Its entry in the recovery-point checkpoint, 0 without one.
        clean_shutdown: Whether its log directory has the clean-shutdown marker.
        may_repair: Whether segments may be recovered; if not, a log that needs it is refused.
        scans: Segments that were scanned before, by base offset.
        on_bytes: Told how many bytes of segments were scanned, window by window.
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
        threads: int = 1,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self._log = LoadingLog(store, config=config, cleaner=cleaner, now_ms=now_ms)
        self._start_checkpoint = log_start_checkpoint
        self._point_checkpoint = recovery_point
        self._clean_shutdown = clean_shutdown
        self._may_repair = may_repair
        self._recovery = SegmentRecovery(
            self._log,
            log_start_checkpoint=log_start_checkpoint,
            scans=scans or {},
            threads=threads,
            on_bytes=on_bytes,
        )

    def load(self) -> LoadingLog:
        """Run the loader's passes and return the log, open."""
        log = self._log
        if self._may_repair:
            self.validate_topic_id()
        settle_leftovers(log.view)
        self._retry_after_splits(self._open_segments)
        if directory_state(log.directory_name) == "delete":
            if not log.base_offsets:
                self._begin_anew(0)
        else:
            self._retry_after_splits(self._recover_log)
            if self._may_repair:
                self.validate_active_indexes()
        log.truncate_epochs(end=log.log_end_offset, start=self._start_checkpoint)
        log.log_start_offset = max(self._start_checkpoint, log.base_offsets[0])
        log.recovery_point = max(log.recovery_point, log.log_start_offset)
        log.producers.remove_strays(log.base_offsets)
        log.producers.rebuild(
            log.base_offsets,
            log_start_offset=log.log_start_offset,
            end_offset=log.log_end_offset,
            after_clean_shutdown=self._clean_shutdown,
        )
        return log

    def _retry_after_splits(self, work: Callable[[], None]) -> None:
        while True:
            try:
                work()
            except SegmentOverflowError as overflow:
                self._recovery.split(overflow)
            else:
                return

    def _open_segments(self) -> None:
        """Pass 4: drop orphan indexes, open segments, recover damaged ones."""
        self._log.base_offsets = []
        view = self._log.view
        for name in view.names:
            offset, kind = offset_of(name), kind_of(name)
            if offset is None:
                continue
            if kind == LOG_SUFFIX:
                self._open_segment(name, offset)
            elif kind in INDEX_SUFFIXES and log_file(offset) not in view:
                view.delete(name, "index without a log")

    def _open_segment(self, name: str, base_offset: int) -> None:
        view = self._log.view
        if name != log_file(base_offset):
            raise RecoveryRequiredError(
                self._log.location, f"{name}: expected the name {log_file(base_offset)}"
            )
        size_bytes = view.source(name).size_bytes
        if size_bytes > MAX_LOG_BYTES:
            raise CorruptRecordError(
                name,
                MAX_LOG_BYTES,
                f"the segment has {size_bytes} bytes; Kafka opens none beyond {MAX_LOG_BYTES}",
            )
        index_name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
        time_name = segment_file(base_offset, TIME_INDEX_SUFFIX)
        reason = None
        if index_name not in view:
            reason = f"{index_name} is missing"
        else:
            if time_name not in view:
                view.write(time_name, b"", "the time index is missing")
            try:
                read_aborted(view, base_offset)
            except IndexVersionError:
                raise
            except CorruptIndexError as error:
                reason = str(error)
        if reason is not None:
            try:
                self._recover(base_offset, reason)
            except OffsetOrderError as error:
                raise CorruptIndexError(
                    name,
                    error.scan.valid_bytes,
                    f"{error.scan.reason}; {reason}: Kafka does not load such a log",
                ) from error
        insort(self._log.base_offsets, base_offset)

    def _recover_log(self) -> None:
        """Pass 5: recover beyond the recovery point; find the log's end."""
        if not self._clean_shutdown:
            self._recover_unflushed()
        end = self._end_unless_below_start()
        if not self._log.base_offsets:
            self._begin_anew(self._start_checkpoint)
        if self._clean_shutdown and end is not None:
            self._log.recovery_point = self._log.log_end_offset = end
            return
        self._log.log_end_offset = self._log.read_next_offset() if end is None else end
        self._log.recovery_point = min(self._point_checkpoint, self._log.log_end_offset)

    def _recover_unflushed(self) -> None:
        # The loop removes segments.
        unflushed = tuple(segments_from(self._log.base_offsets, self._point_checkpoint))
        for base_offset in unflushed:
            try:
                cut_bytes = self._recover(
                    base_offset, "it may not have been written to the disk whole"
                )
            except OffsetOrderError as error:
                cut_bytes = self._recovery.empty(base_offset, error.scan)
            if cut_bytes > 0:
                reason = f"segment {base_offset} before it lost its end"
                for later in [base for base in self._log.base_offsets if base > base_offset]:
                    self._log.remove_segment(later, reason)
                return

    def _end_unless_below_start(self) -> int | None:
        """Return the log's end; None if the log starts above it. All segments of such a log are
        removed."""
        if not self._log.base_offsets:
            return None
        end = self._log.read_next_offset()
        if end >= self._start_checkpoint:
            return end
        reason = (
            f"the log ends at offset {end}, below its log start offset {self._start_checkpoint}"
        )
        if not self._may_repair:
            raise RecoveryRequiredError(
                self._log.location, f"{reason}: Kafka would delete every segment of it"
            )
        for base_offset in list(self._log.base_offsets):
            self._log.remove_segment(base_offset, reason)
        self._log.clear_epochs()
        self._log.producers.truncate_fully_and_start_at(self._start_checkpoint)
        return None

    def validate_topic_id(self) -> None:
        """Refuse a topic id that Kafka refuses, before any decision."""
        if PARTITION_METADATA_FILE in self._log.view:
            data = self._log.view.read(
                PARTITION_METADATA_FILE, limit_bytes=MAX_PARTITION_METADATA_BYTES
            )
            parse_partition_metadata(data, file=PARTITION_METADATA_FILE)

    def validate_active_indexes(self) -> None:
        """Refuse indexes of the active segment that Kafka cannot resize for appends."""
        for suffix, entry in (
            (OFFSET_INDEX_SUFFIX, OFFSET_INDEX_ENTRY),
            (TIME_INDEX_SUFFIX, TIME_INDEX_ENTRY),
        ):
            name = segment_file(self._log.base_offsets[-1], suffix)
            size_bytes = self._log.view.source(name).size_bytes
            most = self._log.config.segment_index_bytes // entry.itemsize * entry.itemsize
            if size_bytes // entry.itemsize * entry.itemsize > most:
                raise IndexFullError(
                    name,
                    most,
                    f"the active segment's index has {size_bytes} bytes, segment.index.bytes "
                    f"allows {most}: Kafka does not load such a log",
                )

    def _recover(self, base_offset: int, reason: str) -> int:
        if not self._may_repair:
            raise RecoveryRequiredError(
                self._log.location, f"segment {base_offset} has to be recovered: {reason}"
            )
        return self._recovery.recover(base_offset, reason)

    def _begin_anew(self, base_offset: int) -> None:
        for name in self._log.view.names:
            if name.endswith(ANCIENT_SUFFIX) and offset_of(name) is not None:
                raise UnsupportedFormatError(
                    name,
                    0,
                    "expected segments in files named *.log, found one of Kafka 0.7 or older, "
                    "whose format no later version reads",
                )
        if not self._may_repair:
            raise RecoveryRequiredError(self._log.location, "the directory has no segment")
        self._log.create_segment(base_offset)
