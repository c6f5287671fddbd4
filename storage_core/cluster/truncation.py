"""Find the offset of a follower's truncation under another leader.

A follower of Kafka 4.4 fetches with the epoch of its last batch. The leader looks that epoch up in
its own history; if the follower's log goes on where the leader's epoch had ended, the answer says
where, and the follower cuts and fetches again, until nothing diverges. Source:
``Partition.readRecords``, ``AbstractFetcherThread.truncateOnFetchResponse`` and
``AbstractFetcherThread.fetchOffsetAndTruncate`` of Kafka 4.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from storage_core.checkpoint.checkpoint_files import EpochEntry
from storage_core.log.leader_epoch_cache import NO_EPOCH, LeaderEpochCache


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """A log's offsets and epochs: everything truncation depends on."""

    log_start_offset: int  # first offset that may be read
    log_end_offset: int
    high_watermark: int  # first offset not known to be replicated; 0 where no checkpoint says it
    epochs: Sequence[EpochEntry]  # leader epochs, oldest first
    first_segment_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """The change of a follower's log before it fetches from a leader."""

    offset: int  # new log end offset; the old one if nothing is cut
    is_restart: bool  # whether the log is emptied and begins at the offset
    # Offsets of each cut in order, the last one is ``offset``; empty if nothing is cut.
    rounds: tuple[int, ...]


class Leader:
    """A replica as newly elected leader. Its next epoch begins at its log end.

    Args:
        next_epoch: The epoch in which it leads, above every epoch of any replica.
    """

    def __init__(self, log: LogSpan, next_epoch: int) -> None:
        self.log_start_offset = log.log_start_offset
        self.log_end_offset = log.log_end_offset
        self._epochs = LeaderEpochCache(log.epochs)
        self._epochs.assign(next_epoch, log.log_end_offset)

    def diverging_end(self, epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Return the diverging epoch and end offset, None without divergence. A leader refuses a
        fetch with these.

        Args:
            epoch: Epoch of the follower's last batch.
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
        if epoch != NO_EPOCH and log.fetch_offset >= leader.log_start_offset:
            diverging = leader.diverging_end(epoch, log.fetch_offset)
        if diverging is not None:
            log.cut(_agreed_end(log.epochs, log.end, *diverging))
        elif leader.log_end_offset < log.fetch_offset:
            log.cut(leader.log_end_offset)
        elif log.end < leader.log_start_offset:
            start = leader.log_start_offset
            return Truncation(offset=start, is_restart=True, rounds=(*log.rounds, start))
        else:
            return Truncation(offset=log.end, is_restart=log.is_restart, rounds=tuple(log.rounds))


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
