"""Leader epochs and their start offsets, as in Kafka's LeaderEpochFileCache."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.errors import BadBytesError
from storage_core.filenames import log_file
from storage_core.records.batch_table import BatchTable
from storage_core.records.reader import scan_headers
from storage_core.store.base import FileReader

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


# Tell which leader epochs of a log's batches are believed.
#
# A batch's leader epoch lies outside of its checksum: a bit that flipped there leaves the batch
# valid. So what decides by epochs believes an epoch only between its neighbours, which never fall,
# and within what the epoch files of this log and of other replicas have at that offset. The newest
# batch has no batch behind it: if it is alone in its epoch, an epoch file has to know the epoch.
# Kafka itself believes each epoch that is above the one before it.

_UNLIMITED: Final = 2**31 - 1
# A log has a handful of epochs; hostile bytes may claim one for each batch.
_MOST_RUNS: Final = 10_000
_MOST_DOUBTFUL: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRun:
    """Neighbouring batches of one leader epoch."""

    epoch: int
    first_offset: int
    last_offset: int
    batches: int = 1
    file: str = ""  # name of the segment's file with the first of them; empty where nobody asks
    position: int = 0

    def followed_by(self, run: "EpochRun") -> "EpochRun":
        """Return this run and the next one, of its epoch, as one."""
        return replace(self, last_offset=run.last_offset, batches=self.batches + run.batches)


def find_epoch_runs(batches: BatchTable, rows: NDArray[np.int64]) -> Iterator[tuple[int, EpochRun]]:
    """Yield the runs of one leader epoch, each with its first row.

    Args:
        rows: Those that count; each has an epoch.
    """
    if not rows.size:
        return
    epochs = batches.leader_epoch[rows]
    starts = np.flatnonzero(np.append(True, epochs[1:] != epochs[:-1]))
    ends = np.append(starts[1:], rows.size)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield (
            int(rows[start]),
            EpochRun(
                epoch=int(epochs[start]),
                first_offset=int(batches.base_offset[rows[start]]),
                last_offset=int(batches.last_offset[rows[end - 1]]),
                batches=end - start,
            ),
        )


def are_runs_believed(
    runs: Sequence[EpochRun],
    lineages: Iterable[Sequence[EpochEntry]] = (),
    *,
    largest_epoch: int | None = None,
) -> NDArray[np.bool_]:
    """Return a mask of a log's runs with a believed epoch.

    Args:
        runs: Runs of the log, or of a part of it, in order; a run may go on in the next one.
        largest_epoch: The largest one that the quorum knows of; None where nothing says it. A batch
            alone in its epoch is believed up to it, and not above it.
    """
    return _judge(
        np.array([run.first_offset for run in runs], np.int64),
        np.array([run.epoch for run in runs], np.int64),
        np.array([run.batches for run in runs], np.int64),
        lineages,
        largest_epoch,
    )


def are_batches_believed(
    batches: BatchTable, lineages: Iterable[Sequence[EpochEntry]] = ()
) -> NDArray[np.bool_]:
    """Return a mask of neighbouring batches with a believed epoch. A batch without an epoch
    claims nothing."""
    believed = np.ones(len(batches), np.bool_)
    rows = np.flatnonzero(batches.leader_epoch >= 0)
    counts = np.ones(rows.size, np.int64)
    believed[rows] = _judge(
        batches.base_offset[rows], batches.leader_epoch[rows], counts, lineages, None
    )
    return believed


def are_epochs_outside(epochs: NDArray[np.int64], before: int) -> NDArray[np.bool_]:
    """Return a mask of epochs that fit neither neighbour. The first and the last one are not judged
    for want of a neighbour.

    Args:
        epochs: Leader epochs of neighbouring batches, NO_EPOCH of one without.
    """
    outside = np.zeros(epochs.size, np.bool_)
    rows = np.flatnonzero(epochs >= 0)
    ordered = np.concatenate([[before] if before >= 0 else [], epochs[rows]]).astype(np.int64)
    skipped = ordered.size - rows.size
    low, inner, high = ordered[:-2], ordered[1:-1], ordered[2:]
    is_wrong = (low <= high) & ((inner < low) | (inner > high))
    outside[rows[1 - skipped : inner.size + 1 - skipped]] = is_wrong
    return outside


def find_doubtful_entries(
    entries: Sequence[EpochEntry],
    others: Iterable[tuple[Sequence[EpochEntry], int]],
    *,
    leader_epoch: int,
) -> list[EpochEntry]:
    """Return the entries above the leader epoch that other replicas contradict. Where these have
    the epoch, too, or end before it, only the metadata may be old.

    Args:
        leader_epoch: The partition's, as the metadata have it.
    """
    lineages = [[*each, EpochEntry(NO_EPOCH, end)] for each, end in others]
    epochs = np.array([entry.epoch for entry in entries], np.int64)
    offsets = np.array([entry.start_offset for entry in entries], np.int64)
    _, is_contradicted = _look_up(offsets, epochs, lineages, set())
    is_wrong = is_contradicted & (epochs > leader_epoch)
    return [entry for entry, wrong in zip(entries, is_wrong.tolist(), strict=True) if wrong]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulEpoch:
    """A leader epoch that is not believed."""

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"leader epoch {self.epoch} at offset {self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEpoch:
    """The newest leader epoch of a log."""

    epoch: int  # the newest one that is believed, NO_EPOCH without one
    doubtful: DoubtfulEpoch | None = None  # the first one that is not believed; None without one


def find_last_epoch(
    runs: Sequence[EpochRun],
    lineages: Sequence[Sequence[EpochEntry]] = (),
    *,
    largest_epoch: int | None = None,
) -> LastEpoch:
    """Return the newest believed epoch of a log. An epoch that began behind its last batch counts:
    its leader wrote no record here.

    Args:
        lineages: As of ``are_runs_believed``; the log's own first.
    """
    believed = are_runs_believed(runs, lineages, largest_epoch=largest_epoch).tolist()
    end_offset = max((run.last_offset + 1 for run in runs), default=0)
    own = lineages[0] if lineages else ()
    epochs = [run.epoch for run, is_so in zip(runs, believed, strict=True) if is_so]
    epochs += [entry.epoch for entry in own if entry.start_offset >= end_offset]
    wrong = next((run for run, is_so in zip(runs, believed, strict=True) if not is_so), None)
    return LastEpoch(
        epoch=max(epochs, default=NO_EPOCH),
        doubtful=None
        if wrong is None
        else DoubtfulEpoch(epoch=wrong.epoch, offset=wrong.first_offset),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulRun:
    """A run of a replica with an epoch that is not believed."""

    run: EpochRun  # as the batches have it
    least: int  # the epoch before it, that it cannot be below; 0 where none is believed
    most: int  # the epoch behind it, else the largest one that anything knows
    # The epoch that its leader had: as another replica has it there, else the one before.
    expected: int


def find_doubtful_runs(
    replicas: Sequence[tuple[Sequence[EpochRun], Sequence[EpochEntry]]],
    *,
    largest_epoch: int | None = None,
) -> list[list[DoubtfulRun]]:
    """Return of each replica the runs whose epoch is not believed.

    An epoch that another replica's batches have at the same offset is believed, unless it falls:
    one flipped bit does not lie in two of them. Of a log with many of them the first are returned.
    """
    masks = [
        are_runs_believed(
            runs,
            [entries, *(other for at, (_, other) in enumerate(replicas) if at != number)],
            largest_epoch=largest_epoch,
        )
        for number, (runs, entries) in enumerate(replicas)
    ]
    believed = [
        [run for run, is_so in zip(runs, mask.tolist(), strict=True) if is_so]
        for (runs, _), mask in zip(replicas, masks, strict=True)
    ]
    found: list[list[DoubtfulRun]] = []
    for number, ((runs, _), mask) in enumerate(zip(replicas, masks, strict=True)):
        found.append([])
        for at in np.flatnonzero(~mask)[:_MOST_DOUBTFUL].tolist():
            run = runs[at]
            before = [e.epoch for e in believed[number] if e.first_offset < run.first_offset]
            behind = [e.epoch for e in believed[number] if e.first_offset > run.first_offset]
            least = before[-1] if before else 0
            others = [other for other in range(len(replicas)) if other != number]
            has_witness = any(_has_epoch(replicas[other][0], run) for other in others)
            if has_witness and least <= run.epoch <= min([run.epoch, *behind[:1]]):
                continue
            there = [
                each.epoch
                for other in others
                for each in believed[other]
                if each.first_offset <= run.first_offset <= each.last_offset
                and least <= each.epoch <= min([each.epoch, *behind[:1]])
            ]
            most = behind[0] if behind else max([least, largest_epoch or 0, *there])
            expected = [*there, *before[-1:], *behind[:1], run.epoch][0]
            found[-1].append(DoubtfulRun(run=run, least=least, most=most, expected=expected))
    return found


def find_believed_entries(
    entries: Sequence[EpochEntry], runs: Sequence[EpochRun], doubtful: Sequence[DoubtfulRun]
) -> list[EpochEntry]:
    """Return the entries of a log's epoch file that its batches do not contradict.

    Args:
        entries: The entries; a start may have taken them from doubtful runs.
    """
    wrong = {each.run for each in doubtful}
    believed = [run for run in runs if run not in wrong]
    firsts = np.array([run.first_offset for run in believed], np.int64)
    starts = np.array([entry.start_offset for entry in entries], np.int64)
    taken = {(run.epoch, run.first_offset) for run in wrong}
    kept = []
    for entry, at in zip(entries, np.searchsorted(firsts, starts, side="right"), strict=True):
        run = believed[at - 1] if at else None
        is_other = (
            run is not None and run.epoch != entry.epoch and entry.start_offset <= run.last_offset
        )
        if not is_other and (entry.epoch, entry.start_offset) not in taken:
            kept.append(entry)
    return kept


def _has_epoch(runs: Sequence[EpochRun], run: EpochRun) -> bool:
    return any(
        each.epoch == run.epoch and each.first_offset <= run.first_offset <= each.last_offset
        for each in runs
    )


def read_epoch_runs(
    open_file: Callable[[str], FileReader], base_offsets: Iterable[int]
) -> list[EpochRun]:
    """Return the runs of leader epochs in a log's headers. Behind bytes that are no batch the
    next segment goes on."""
    runs: list[EpochRun] = []
    for base in base_offsets:
        with closing(open_file(log_file(base))) as reader, suppress(BadBytesError):
            for window in scan_headers(reader):
                batches = window.batches
                for _, run in find_epoch_runs(batches, np.flatnonzero(batches.leader_epoch >= 0)):
                    if runs and runs[-1].epoch == run.epoch:
                        runs[-1] = runs[-1].followed_by(run)
                    elif len(runs) < _MOST_RUNS:
                        runs.append(run)
    return runs


def _judge(
    first_offsets: NDArray[np.int64],
    epochs: NDArray[np.int64],
    counts: NDArray[np.int64],
    lineages: Iterable[Sequence[EpochEntry]],
    largest_epoch: int | None,
) -> NDArray[np.bool_]:
    if not epochs.size:
        return np.ones(0, np.bool_)
    is_start = np.append(True, epochs[1:] != epochs[:-1])
    starts = np.flatnonzero(is_start)
    firsts, runs = first_offsets[starts], epochs[starts]
    sizes = np.add.reduceat(counts, starts)
    alone = sizes == 1
    believed = ~alone | (runs <= (_UNLIMITED if largest_epoch is None else largest_epoch))
    # Between two neighbours that do not fall, what is outside of both is wrong, not they.
    low, inner, high = runs[:-2], runs[1:-1], runs[2:]
    is_within = (low > high) | ((low <= inner) & (inner <= high))
    # Several batches do not flip alike: the one beside them is wrong.
    rivals = np.where(inner > high, sizes[2:], sizes[:-2])
    is_within |= (sizes[1:-1] > 1) & (rivals == 1)
    believed[1:-1] &= is_within | (sizes[1:-1] > np.maximum(sizes[:-2], sizes[2:]))
    is_known, is_contradicted = _look_up(firsts, runs, lineages, set(runs[~believed].tolist()))
    believed &= ~(alone & is_contradicted)
    rows = np.flatnonzero(believed)
    if rows.size > 1 and rows[-1] == runs.size - 1 and alone[-1] and not is_known[-1]:
        believed[-1] = runs[rows[-2]] <= runs[-1] <= max(runs[rows[-2]], largest_epoch or NO_EPOCH)
        rows = np.flatnonzero(believed)
    least_behind = np.minimum.accumulate(runs[rows][::-1])[::-1]
    believed[rows[:-1]] = runs[rows[:-1]] <= least_behind[1:]
    return np.asarray(believed[np.cumsum(is_start) - 1], np.bool_)


def _look_up(
    offsets: NDArray[np.int64],
    epochs: NDArray[np.int64],
    lineages: Iterable[Sequence[EpochEntry]],
    wrong: set[int],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which epochs a file has, and which it contradicts."""
    is_known = np.zeros(offsets.size, np.bool_)
    has_other = np.zeros(offsets.size, np.bool_)
    for entries in lineages:
        rising = [entry for entry in entries if entry.epoch not in wrong]
        begins = np.array([entry.start_offset for entry in rising], np.int64)
        epochs_there = np.array([NO_EPOCH, *(entry.epoch for entry in rising)], np.int64)
        at = epochs_there[np.searchsorted(begins, offsets, side="right")]
        is_known |= at == epochs
        has_other |= at != NO_EPOCH
    return is_known, has_other & ~is_known
