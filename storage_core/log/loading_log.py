"""A log during its load: directory, segments, epochs and producers. Every change of the log goes
through this module, so each loss is noted once."""

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing

from storage_core.checkpoint.checkpoints import (
    MAX_LEADER_EPOCH_BYTES,
    encode_leader_epochs,
    parse_leader_epochs,
)
from storage_core.commit import Operation, SyncDirectory, SyncFile
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import CheckpointError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    log_file,
    segment_file,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.log.batch_search import find_batch_base_offset, find_next_offset
from storage_core.log.directory_view import DirectoryView, has_unsynced_names
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.loaded_log import Cut, LoadChanges, LoadedLog, LogRepairs, describe_segment
from storage_core.log.producer_state import ProducerStateManager
from storage_core.records.reader import find_zeros
from storage_core.store.base import LogStore

_FIRST_EPOCH_LINE = 3
# Zeros of no batch come in whole disk blocks; a batch may end in zeros of its own.
_LEAST_ZEROS = 512


class LoadingLog:
    """One log, from the listing of its directory to its clean close.

    Args:
        cleaner: For the expiry of producers, and limits of decompression.

    Attributes:
        view: The directory with all that is planned so far.
        log_start_offset: First offset that may be read.
    """

    def __init__(
        self, store: LogStore, *, config: LogConfig, cleaner: CleanerConfig, now_ms: int
    ) -> None:
        self.view = DirectoryView(store)
        self.config = config
        self.cleaner = cleaner
        self.base_offsets: list[int] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self._now_ms = now_ms
        self._cuts: dict[int, Cut] = {}
        self._rebuilt: set[int] = set()
        self._split: list[int] = []
        self._scanned_bytes = 0
        self._epochs_changed = False
        self.epochs = self._read_epochs()
        self.producers = self.new_producers()

    @property
    def location(self) -> str:
        """Path or URL of the directory."""
        return self.view.store.location

    @property
    def directory_name(self) -> str:
        """Name of the directory."""
        return self.location.rstrip("/").rpartition("/")[2]

    def new_producers(self) -> ProducerStateManager:
        """Return a manager without producers, for the snapshots there are now."""
        return ProducerStateManager(
            self.view,
            now_ms=self._now_ms,
            expiration_ms=self.cleaner.producer_id_expiration_ms,
        )

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Add a batch's epoch if it is newer than all others."""
        if epoch > self.epochs.latest_epoch:
            self._epochs_changed |= self.epochs.assign(epoch, start_offset)

    def truncate_epochs(self, *, start: int | None = None, end: int | None = None) -> None:
        """Drop epochs at or above an end; begin at a start."""
        if end is not None:
            self._epochs_changed |= self.epochs.truncate_from_end(end)
        if start is not None:
            self._epochs_changed |= self.epochs.truncate_from_start(start)

    def clear_epochs(self) -> None:
        """Forget all epochs."""
        self.epochs = LeaderEpochCache()
        self._epochs_changed = True

    def write_epochs(self) -> None:
        """Plan the epoch file as the epochs are now."""
        if self._epochs_changed:
            content = encode_leader_epochs(self.epochs.entries)
            self.view.write(LEADER_EPOCH_FILE, content, "epochs of the log")

    def create_segment(self, base_offset: int) -> None:
        """Plan an empty segment as the only one."""
        for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self.view.write(segment_file(base_offset, suffix), b"", "the log has no segment")
        self.base_offsets = [base_offset]

    def remove_segment(self, base_offset: int, reason: str) -> None:
        """Plan to remove a segment and its producer snapshot; note the loss."""
        size_bytes = self.view.source(log_file(base_offset)).size_bytes
        self._note_cut(base_offset, None, size_bytes, base_offset, reason)
        for suffix in SEGMENT_SUFFIXES:
            if segment_file(base_offset, suffix) in self.view:
                self.view.delete(segment_file(base_offset, suffix), reason)
        del self.base_offsets[bisect_left(self.base_offsets, base_offset)]
        self._rebuilt.discard(base_offset)
        self.producers.forget_segment(base_offset)

    def cut_segment(self, base_offset: int, size_bytes: int, end_offset: int, reason: str) -> int:
        """Plan to cut a segment to a length; return the bytes cut."""
        name = log_file(base_offset)
        lost = self.view.source(name).size_bytes - size_bytes
        if lost > 0:
            self._note_cut(base_offset, size_bytes, lost, end_offset, reason)
            self.view.truncate(name, size_bytes, reason)
        return lost

    def write_indexes(
        self, base_offset: int, offset_index: bytes, time_index: bytes, reason: str
    ) -> None:
        """Plan a segment's offset and time index."""
        why = f"rebuilt: {reason}"
        self.view.write(segment_file(base_offset, OFFSET_INDEX_SUFFIX), offset_index, why)
        self.view.write(segment_file(base_offset, TIME_INDEX_SUFFIX), time_index, why)

    def note_rebuilt(self, base_offset: int) -> None:
        """Take note that a segment's indexes were built anew."""
        self._rebuilt.add(base_offset)

    def is_rebuilt(self, base_offset: int) -> bool:
        """Whether a segment's indexes were built anew."""
        return base_offset in self._rebuilt

    def note_scanned(self, size_bytes: int) -> None:
        """Take note that a segment was read from end to end."""
        self._scanned_bytes += size_bytes

    def replace_segment(self, base_offset: int, parts: list[int]) -> None:
        """Replace a segment by the parts it was split into."""
        self._split.append(base_offset)
        if base_offset not in parts:
            self.producers.forget_segment(base_offset)
        self.base_offsets = sorted({*self.base_offsets, *parts} - {base_offset} | set(parts))

    def read_next_offset(self) -> int:
        """Return the offset after the last batch of the last segment."""
        base_offset = self.base_offsets[-1]
        index_name = segment_file(base_offset, OFFSET_INDEX_SUFFIX)
        return find_next_offset(self.view, base_offset, log_file(base_offset), index_name)

    def find_unstable_end(self) -> int:
        """Return where the first unstable batch begins, the log's end without one.

        Kafka looks it up while its high watermark is still the log's start, and does not load a log
        in which that batch cannot be found.
        """
        first = self.producers.state.transactions.first_unstable_offset
        if first is None:
            return self.log_end_offset
        return self._batch_base_offset(max(first, self.log_start_offset))

    def close_files(self) -> LoadChanges:
        """Close the log's files cleanly and return what that and the load change. No segment is
        described, so none of their files is opened."""
        self.producers.take_snapshot()
        self.write_epochs()
        self._trim_active_indexes()
        operations = self.view.operations
        return LoadChanges(
            operations=(*operations, *self._syncs(operations)),
            snapshot_offsets=frozenset(self.producers.snapshots),
        )

    def close(
        self, *, high_watermark: int | None = None, needs_max_timestamps: bool = True
    ) -> LoadedLog:
        """Close the log's files cleanly and return the log.

        Args:
            high_watermark: Clamped into the log; None for the log end offset.
            needs_max_timestamps: Whether the time indexes of all segments are read.
        """
        changes = self.close_files()
        segments = tuple(
            describe_segment(
                self.view,
                base,
                needs_max_timestamp=needs_max_timestamps,
                # The active segment reports it when it is closed.
                needs_first_timestamp=self.config.is_compacted
                and (self.config.limits_compaction_lag or base == self.base_offsets[-1]),
            )
            for base in self.base_offsets
        )
        end, start = self.log_end_offset, self.log_start_offset
        watermark = end if high_watermark is None else min(max(high_watermark, start), end)
        transactions = self.producers.state.transactions
        first = transactions.first_unstable_offset
        place = self.find_unstable_end()
        transactions.advance_high_watermark(watermark)
        unstable = transactions.first_unstable_offset
        if unstable not in {None, first}:
            place = self._batch_base_offset(max(unstable, start))
        stable = watermark if unstable is None else min(watermark, place)
        return LoadedLog(
            location=self.view.store.location,
            segments=segments,
            log_start_offset=start,
            log_end_offset=end,
            recovery_point=self.recovery_point,
            high_watermark=watermark,
            last_stable_offset=stable,
            producers=tuple(self.producers.state.producers.values()),
            epochs=self.epochs.entries,
            snapshot_offsets=changes.snapshot_offsets,
            operations=changes.operations,
            repairs=LogRepairs(
                cuts=tuple(self._cuts[base] for base in sorted(self._cuts)),
                rebuilt=tuple(sorted(self._rebuilt & set(self.base_offsets))),
                split=tuple(self._split),
                scanned_bytes=self._scanned_bytes,
            ),
        )

    def _read_epochs(self) -> LeaderEpochCache:
        if LEADER_EPOCH_FILE not in self.view:
            self.view.write(LEADER_EPOCH_FILE, b"", "the leader epoch file is missing")
            return LeaderEpochCache()
        data = self.view.read(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
        return parse_epochs(data)

    def _note_cut(
        self,
        base_offset: int,
        position: int | None,
        size_bytes: int,
        first_offset: int,
        reason: str,
    ) -> None:
        """Note a loss of a segment, on top of former losses. A position of None means the whole
        segment."""
        file, start = self.view.place(log_file(base_offset))
        before = self._cuts.get(base_offset)
        with closing(self.view.open(log_file(base_offset))) as reader:
            end = (position or 0) + size_bytes
            zeros = end - find_zeros(reader, position or 0, end)
        if zeros < _LEAST_ZEROS:
            zeros = 0
        self._cuts[base_offset] = Cut(
            base_offset=base_offset,
            file=file,
            position=start + (position or 0),
            size_bytes=size_bytes + (before.size_bytes if before else 0),
            zero_bytes=zeros + (before.zero_bytes if before else 0),
            first_offset=first_offset,
            is_whole_segment=position is None,
            reason=before.reason if before else reason,
        )

    def _syncs(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return what makes durable what was verified, and what operations change.

        A crash may have undone what was verified. A loader that finds the log clean the next time
        will not look at these bytes again, and believes checkpoints that are written after this.
        """
        reason = "verified, and from here on taken to be on the disk"
        rebuilt = sorted(self._rebuilt & set(self.base_offsets))
        syncs: list[Operation] = [
            SyncFile(name=log_file(base_offset), reason=reason) for base_offset in rebuilt
        ]
        if syncs or has_unsynced_names(operations):
            syncs.append(SyncDirectory(reason=reason))
        return syncs

    def _trim_active_indexes(self) -> None:
        """Trim the active segment's indexes, ragged tails too, as a clean close."""
        for suffix, entry_bytes in (
            (OFFSET_INDEX_SUFFIX, OFFSET_INDEX_ENTRY.itemsize),
            (TIME_INDEX_SUFFIX, TIME_INDEX_ENTRY.itemsize),
        ):
            name = segment_file(self.base_offsets[-1], suffix)
            size = self.view.source(name).size_bytes
            if size % entry_bytes:
                self.view.truncate(name, size - size % entry_bytes, "tail that is no whole entry")

    def _batch_base_offset(self, offset: int) -> int:
        """Return the base offset of the batch at or after an offset. Without such a batch it is
        the log's end."""
        base_offset = find_batch_base_offset(self.view, self.base_offsets, offset)
        return self.log_end_offset if base_offset is None else base_offset


def read_epochs(store: LogStore) -> LeaderEpochCache:
    """Return the leader epochs in a log's epoch file."""
    if not any(file.name == LEADER_EPOCH_FILE for file in store.list_files()):
        return LeaderEpochCache()
    return parse_epochs(store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES))


def parse_epochs(content: bytes) -> LeaderEpochCache:
    """Return the leader epochs that the file of a log has."""
    entries = parse_leader_epochs(content, file=LEADER_EPOCH_FILE)
    for number, entry in enumerate(entries):
        if entry.epoch < 0 or entry.start_offset < 0:
            raise CheckpointError(
                LEADER_EPOCH_FILE,
                number + _FIRST_EPOCH_LINE,
                f"expected numbers of at least 0, found {entry.epoch} {entry.start_offset}",
            )
    return LeaderEpochCache(entries)
