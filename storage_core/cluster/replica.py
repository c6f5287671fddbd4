"""Open one replica of a partition as its broker would."""

from dataclasses import dataclass

from storage_core.catalog.log_directories import DirectoryKind
from storage_core.checkpoint.checkpoint_files import EpochEntry
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.cluster.places import ReplicaPlace
from storage_core.cluster.truncation import LogSpan
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import PylogError, located
from storage_core.log.batch_search import find_batch_base_offset
from storage_core.log.directory_view import DirectoryView
from storage_core.log.loaded_log import Cut
from storage_core.log.log_loader import LogLoader
from storage_core.log.open_transactions import OpenTransaction, list_open_transactions
from storage_core.store import open_store
from storage_core.store.base import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes of a log without a whole, valid batch. They are no batch, or a batch with a wrong
    checksum."""

    file: str  # the segment's file, as it is named now
    position: int
    reason: str
    is_tail: bool = False  # whether the file ends inside of a batch there


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """A replica's log as opened by its broker; nothing is written."""

    view: DirectoryView
    log_start_offset: int  # first offset that may be read
    log_end_offset: int
    recovery_point: int
    last_stable_offset: int  # first offset that a committed read does not reach
    # The same once all of the log is replicated: only an open transaction then holds committed
    # reads back.
    last_stable_offset_as_leader: int
    epochs: tuple[EpochEntry, ...]
    base_offsets: tuple[int, ...]
    size_bytes: int
    open_transactions: tuple[OpenTransaction, ...]
    largest_producer_id: int  # largest id of a producer that is remembered, -1 without one
    largest_coordinator_epoch: int  # largest epoch of a marker's coordinator, -1 without one
    cut: tuple[Damage, ...]
    cuts: tuple[Cut, ...]  # the same with their sizes, in the files as they are

    def span(self, high_watermark: int) -> LogSpan:
        """Return all that truncation goes by."""
        return LogSpan(
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=high_watermark,
            epochs=self.epochs,
            first_segment_offset=self.base_offsets[0],
        )

    def whole_end(self, offset: int) -> int:
        """Return the end of the whole batches below an offset. A cut at the offset would remove
        a batch across it, too."""
        base = find_batch_base_offset(self.view, self.base_offsets, offset)
        return offset if base is None else min(base, offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica of a partition, opened."""

    place: ReplicaPlace
    log: OpenedLog | None = None  # its log; None for a replica that is missing or cannot be opened
    error: str = ""  # why it cannot be opened, else empty

    @property
    def broker(self) -> int | None:
        """Node id, None where no file says it."""
        return self.place.broker


def open_replica(place: ReplicaPlace, now_ms: int, most_index_bytes: int) -> Replica:
    """Open a replica as its broker does. An error tells why the broker cannot open it."""
    if place.problem or place.is_missing:
        return Replica(place=place, error=place.problem)
    # A copy on its way has no checkpoint entry: one of that name is another log's.
    is_own = place.kind is DirectoryKind.PARTITION
    checkpoints = place.checkpoints if is_own else PartitionCheckpoints()
    try:
        store = open_store(place.directory)
        log = open_log(
            store,
            checkpoints=checkpoints,
            is_clean=place.is_clean,
            now_ms=now_ms,
            most_index_bytes=most_index_bytes,
        )
    except PylogError as error:
        return Replica(place=place, error=str(error))
    return Replica(place=place, log=log)


@located
def open_log(
    store: LogStore,
    *,
    checkpoints: PartitionCheckpoints,
    is_clean: bool,
    now_ms: int,
    most_index_bytes: int,
) -> OpenedLog:
    """Open a replica's log as its broker's start does, without writing.

    Args:
        checkpoints: Its entries in its log directory's checkpoints.
        is_clean: Whether that has the clean-shutdown marker.
    """
    loader = LogLoader(
        store,
        config=LogConfig(segment_index_bytes=most_index_bytes),
        cleaner=CleanerConfig(),
        now_ms=now_ms,
        log_start_checkpoint=checkpoints.log_start_offset or 0,
        recovery_point=checkpoints.recovery_point or 0,
        clean_shutdown=is_clean,
    )
    loading = loader.load()
    loaded = loading.close(high_watermark=checkpoints.high_watermark or 0)
    loading.producers.state.transactions.advance_high_watermark(loaded.log_end_offset)
    return OpenedLog(
        view=loading.view,
        log_start_offset=loaded.log_start_offset,
        log_end_offset=loaded.log_end_offset,
        recovery_point=loaded.recovery_point,
        last_stable_offset=loaded.last_stable_offset,
        last_stable_offset_as_leader=loading.find_unstable_end(),
        epochs=loaded.epochs,
        base_offsets=tuple(loading.base_offsets),
        size_bytes=loaded.size_bytes,
        open_transactions=list_open_transactions(loaded.producers, now_ms=now_ms),
        largest_producer_id=max((each.producer_id for each in loaded.producers), default=-1),
        largest_coordinator_epoch=max(
            (each.coordinator_epoch for each in loaded.producers), default=-1
        ),
        cut=tuple(
            Damage(file=cut.file, position=cut.position, reason=cut.reason)
            for cut in loaded.repairs.cuts
        ),
        cuts=loaded.repairs.cuts,
    )
