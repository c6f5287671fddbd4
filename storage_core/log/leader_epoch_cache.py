"""Leader epochs and their start offsets, as in Kafka's LeaderEpochFileCache."""

from collections.abc import Iterable
from typing import NamedTuple

from storage_core.checkpoint.checkpoint_files import EpochEntry

NO_EPOCH = -1
NO_END_OFFSET = -1


class EpochEnd(NamedTuple):
    """Where an epoch ended, as a leader tells its followers."""

    epoch: int  # the largest known epoch up to the one that was asked for, NO_EPOCH if unknown
    end_offset: int  # where the next larger one began, NO_END_OFFSET if unknown


class LeaderEpochCache:
    """Entries with strictly rising epochs and start offsets.

    Args:
        entries: Entries in a file's order; each passes ``assign``, so an entry out of order removes
            those that it contradicts.
    """

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """The entries, oldest epoch first."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """The newest epoch, NO_EPOCH without any."""
        return self._entries[-1].epoch if self._entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Add the start offset of an epoch; return whether anything changed."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}")
        if self._entries:
            latest = self._entries[-1]
            if latest.epoch == epoch and start_offset >= latest.start_offset:
                return False
        while self._entries and (
            self._entries[-1].epoch >= epoch or self._entries[-1].start_offset >= start_offset
        ):
            self._entries.pop()
        self._entries.append(EpochEntry(epoch, start_offset))
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Return where an epoch ended; a follower cuts its log there.

        Args:
            epoch: One that the follower knows; NO_EPOCH and one above the latest are unknown.
        """
        higher = [entry for entry in self._entries if entry.epoch > epoch]
        floor = [entry for entry in self._entries if entry.epoch <= epoch]
        if epoch == NO_EPOCH or not self._entries:
            return EpochEnd(NO_EPOCH, NO_END_OFFSET)
        if epoch == self._entries[-1].epoch:
            return EpochEnd(epoch, log_end_offset)
        if not higher:
            return EpochEnd(NO_EPOCH, NO_END_OFFSET)
        return EpochEnd(floor[-1].epoch if floor else epoch, higher[0].start_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch of an offset; None below all epochs."""
        below = [entry.epoch for entry in self._entries if entry.start_offset <= offset]
        return below[-1] if below else None

    def first_difference(self, other: "LeaderEpochCache", end_offset: int) -> int | None:
        """Return the first offset at which both have epochs, and other ones.

        Args:
            end_offset: Below it they are compared.
        """
        for start in sorted(entry.start_offset for entry in (*self._entries, *other.entries)):
            own, others = self.epoch_for_offset(start), other.epoch_for_offset(start)
            if start < end_offset and None not in {own, others} and own != others:
                return start
        return None

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop epochs at or above end_offset; return whether there were any."""
        if end_offset < 0:
            return False
        before = len(self._entries)
        while self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
        return len(self._entries) != before

    def truncate_from_start(self, start_offset: int) -> bool:
        """Let the log begin at start_offset, within the epoch there.

        Returns:
            Whether an epoch began at or below start_offset; Kafka writes its file then, even if
            that epoch began right there.
        """
        later = [entry for entry in self._entries if entry.start_offset > start_offset]
        gone = self._entries[: len(self._entries) - len(later)]
        if gone:
            self._entries = [EpochEntry(gone[-1].epoch, start_offset), *later]
        return bool(gone)
