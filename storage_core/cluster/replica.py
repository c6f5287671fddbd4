"""Open one replica of a partition as its broker would."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storage_core.catalog.log_directories import DirectoryKind
from storage_core.checkpoint.checkpoints import EpochEntry, PartitionCheckpoints
from storage_core.cluster.places import ReplicaPlace
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import PylogError, located
from storage_core.log.batch_search import find_batch_base_offset
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leader_epoch_cache import NO_EPOCH, EpochRun, LeaderEpochCache
from storage_core.log.loaded_log import Cut, LogBounds
from storage_core.log.log_loader import LogLoader
from storage_core.log.open_transactions import OpenTransaction, list_open_transactions
from storage_core.store import open_store
from storage_core.store.base import LogStore, held

# Find the offset of a follower's truncation under another leader.
#
# A follower of Kafka 4.4 fetches with the epoch of its last batch. The leader looks that epoch up
# in its own history; if the follower's log goes on where the leader's epoch had ended, the answer
# says where, and the follower cuts and fetches again, until nothing diverges. Source:
# ``Partition.readRecords``, ``AbstractFetcherThread.truncateOnFetchResponse``,
# ``AbstractFetcherThread.fetchOffsetAndTruncate`` and ``UnifiedLog.append`` of Kafka 4.4.


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan(LogBounds):
    """A log's offsets and epochs: everything truncation depends on."""

    high_watermark: int  # first offset not known to be replicated; 0 where no checkpoint says it
    epochs: Sequence[EpochEntry]  # leader epochs, oldest first
    first_segment_offset: int


class HindranceKind(enum.StrEnum):
    """Why a follower never is in sync with a leader.

    EPOCH_UNKNOWN: its newest epoch is above the leader's, which answers each fetch that its offset
    is out of range. BATCH_SKIPPED: it takes no batch of an epoch above that in which the leader
    leads. CUT_AGAIN: it takes the leader's last batch, and is cut for its epoch, which the leader
    does not know to end there: again and again until the leader has a batch behind that one.
    """

    EPOCH_UNKNOWN = "epoch_unknown"
    BATCH_SKIPPED = "batch_skipped"
    CUT_AGAIN = "cut_again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindrance:
    """What keeps a follower out of sync."""

    kind: HindranceKind  # what happens at each fetch
    epoch: int  # the epoch that is in the way
    # Where the batch with it lies: in the follower's log if that is unknown to the leader, else in
    # the leader's.
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """The change of a follower's log before it fetches from a leader."""

    offset: int  # new log end offset; the old one if nothing is cut
    is_restart: bool  # whether the log is emptied and begins at the offset
    # Offsets of each cut in order, the last one is ``offset``; empty if nothing is cut.
    rounds: tuple[int, ...]
    hindrance: Hindrance | None = None  # what then keeps the follower out of sync


class Leader:
    """A replica as newly elected leader. Its next epoch begins at its log end.

    Args:
        runs: The epochs of its batches, which followers take; none to look at cuts alone.
    """

    def __init__(self, log: LogSpan, next_epoch: int, runs: Iterable[EpochRun] = ()) -> None:
        self.epoch = next_epoch
        self.runs = tuple(runs)
        self.log_start_offset = log.log_start_offset
        self.log_end_offset = log.log_end_offset
        self._epochs = LeaderEpochCache(log.epochs)
        self._epochs.assign(next_epoch, log.log_end_offset)

    def knows(self, epoch: int) -> bool:
        """Whether it can tell the end of an epoch: of none above its own."""
        return epoch <= self.epoch

    def diverging_end(self, epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Return the diverging epoch and end offset, None without divergence. A leader refuses a
        fetch with these.

        Args:
            epoch: Epoch of the follower's last batch; one that it knows.
            fetch_offset: Where the follower goes on.
        """
        end = self._epochs.end_offset_for(epoch, self.log_end_offset)
        if end.epoch < epoch or end.end_offset < fetch_offset:
            return end
        return None


def find_truncation(follower: LogSpan, leader: Leader) -> Truncation:
    """Return a follower's truncation after all rounds of fetches.

    Args:
        follower: The follower's log, once its broker has opened it.
    """
    log = _Follower(follower)
    while True:
        epoch = log.epochs.latest_epoch
        diverging = None
        if not leader.knows(epoch) and log.end <= leader.log_end_offset:
            if log.end < leader.log_start_offset:
                return log.restart(leader)
            start = log.epochs.entries[-1].start_offset
            return log.result(
                Hindrance(kind=HindranceKind.EPOCH_UNKNOWN, epoch=epoch, offset=start)
            )
        if (
            epoch != NO_EPOCH
            and leader.knows(epoch)
            and log.fetch_offset >= leader.log_start_offset
        ):
            diverging = leader.diverging_end(epoch, log.fetch_offset)
        if diverging is not None:
            log.cut(_agreed_end(log.epochs, log.end, *diverging))
        elif leader.log_end_offset < log.fetch_offset:
            log.cut(leader.log_end_offset)
        elif log.end < leader.log_start_offset:
            return log.restart(leader)
        else:
            return log.result(_find_hindrance(log.epochs, log.end, leader))


def _find_hindrance(epochs: LeaderEpochCache, end: int, leader: Leader) -> Hindrance | None:
    """Return what of the leader's batches keeps a follower out of sync.

    Args:
        epochs: The follower's; they become those that it has with these batches.
    """
    runs = [run for run in leader.runs if run.last_offset >= end]
    for run in runs:
        first = max(run.first_offset, end)
        if not leader.knows(run.epoch):
            return Hindrance(kind=HindranceKind.BATCH_SKIPPED, epoch=run.epoch, offset=first)
        epochs.assign(run.epoch, first)
    if runs and leader.diverging_end(epochs.latest_epoch, leader.log_end_offset) is not None:
        last = runs[-1]
        offset = max(last.first_offset, end)
        return Hindrance(kind=HindranceKind.CUT_AGAIN, epoch=last.epoch, offset=offset)
    return None


class _Follower:
    """A follower's log, while it is cut."""

    def __init__(self, log: LogSpan) -> None:
        self._first_segment_offset = log.first_segment_offset
        self.epochs = LeaderEpochCache(log.epochs)
        self.end = self.fetch_offset = log.log_end_offset
        self.rounds: list[int] = []
        self.is_restart = False
        if self.epochs.latest_epoch == NO_EPOCH:
            # It has no epoch to ask for: it goes back to its high watermark.
            self.cut(max(min(log.high_watermark, self.end), log.log_start_offset))

    def restart(self, leader: Leader) -> Truncation:
        """Begin anew where the leader's log begins."""
        start = leader.log_start_offset
        return Truncation(
            offset=start,
            is_restart=True,
            rounds=(*self.rounds, start),
            hindrance=_find_hindrance(LeaderEpochCache(), start, leader),
        )

    def result(self, hindrance: Hindrance | None) -> Truncation:
        """Leave the log as it is now."""
        return Truncation(
            offset=self.end,
            is_restart=self.is_restart,
            rounds=tuple(self.rounds),
            hindrance=hindrance,
        )

    def cut(self, offset: int) -> None:
        """Cut the log, and fetch from there."""
        self.fetch_offset = offset
        if offset < self.end:
            self.rounds.append(offset)
            self.end = offset
            if offset < self._first_segment_offset:
                # No segment is left: the log is empty, without epochs.
                self.is_restart = True
                self.epochs.truncate_from_end(0)
        self.epochs.truncate_from_end(offset)


def _agreed_end(epochs: LeaderEpochCache, end: int, epoch: int, leader_end: int) -> int:
    """Return the end of possible agreement, by the leader's answer.

    The answer names an epoch: a leader always knows one, its own, above that of the question.
    """
    own = epochs.end_offset_for(epoch, end)
    if own.epoch != epoch:
        return min(own.end_offset, end)
    return min(own.end_offset, leader_end, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes of a log without a whole, valid batch. They are no batch, or a batch with a wrong
    checksum."""

    file: str  # the segment's file, as it is named now
    position: int
    reason: str
    is_tail: bool = False  # whether the file ends inside of a batch there


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog(LogSpan):
    """A replica's log as opened by its broker; nothing is written."""

    view: DirectoryView
    last_stable_offset: int  # first offset that a committed read does not reach
    # The same once all of the log is replicated: only an open transaction then holds committed
    # reads back.
    last_stable_offset_as_leader: int
    base_offsets: tuple[int, ...]
    size_bytes: int
    open_transactions: tuple[OpenTransaction, ...]
    largest_producer_id: int  # largest id of a producer that is remembered, -1 without one
    largest_coordinator_epoch: int  # largest epoch of a marker's coordinator, -1 without one
    cut: tuple[Damage, ...]
    cuts: tuple[Cut, ...]  # the same with their sizes, in the files as they are

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
        with held(store):
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
    high_watermark = checkpoints.high_watermark or 0
    loaded = loading.close(high_watermark=high_watermark)
    loading.producers.state.transactions.advance_high_watermark(loaded.log_end_offset)
    return OpenedLog(
        view=loading.view,
        log_start_offset=loaded.log_start_offset,
        log_end_offset=loaded.log_end_offset,
        high_watermark=high_watermark,
        first_segment_offset=loading.base_offsets[0],
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
