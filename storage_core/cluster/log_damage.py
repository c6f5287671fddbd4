"""Find where a log has no whole, valid batch.

A segment is read from batch to batch. Where that ends, or a batch is not what its checksum says,
the next valid one is looked for byte by byte: its offsets have to lie between its neighbours'. So
has its leader epoch, which lies outside of the checksum, too.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import BadBytesError, CorruptRecordError
from storage_core.filenames import MAX_OFFSET, log_file
from storage_core.formats.batch_v2 import MAGIC_V2
from storage_core.kernels import batch_scan
from storage_core.log.believed_epochs import are_epochs_outside
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leader_epoch_cache import NO_EPOCH
from storage_core.records.batch_finder import BatchFinder
from storage_core.records.batch_table import BatchTable
from storage_core.records.checked_headers import scan_checked_headers
from storage_core.records.reader import find_zeros
from storage_core.store.base import FileReader, data_end_of

# More than a disk damages; hostile bytes may have one for each batch.
_MOST_PLACES: Final = 10_000


class BatchName(NamedTuple):
    """What tells a batch from every other one of its partition."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    size_bytes: int
    magic: int


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a segment's log."""

    segment: int
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDamage:
    """A place between two valid batches, or behind the last one. Bytes there are no valid
    batches, or batches are missing."""

    # Bytes there that are no valid batches, in order; none where a file is missing.
    ranges: tuple[FileRange, ...]
    before: BatchName | None  # the valid batch before it, None at the beginning of the log
    before_segment: int
    after: BatchName | None  # the valid batch behind it, None at the end of the log
    after_segment: int | None  # base offset of the segment with that, None at the end of the log
    # Whether it is the end, and no byte there is other than zero, as in a file with room to grow.
    is_blank: bool = False

    @property
    def first_offset(self) -> int:
        """First offset that may be missing."""
        return self.before_segment if self.before is None else self.before.last_offset + 1

    @property
    def end_offset(self) -> int | None:
        """First offset behind it; None at the end of the log."""
        return None if self.after is None else self.after.base_offset

    @property
    def segments(self) -> frozenset[int]:
        """Base offsets of the segments with bytes that are no valid batches."""
        return frozenset(each.segment for each in self.ranges)

    @property
    def size_bytes(self) -> int:
        """Bytes there that are no valid batches."""
        return sum(each.size_bytes for each in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScan:
    """Where a log is damaged."""

    # In order. The last one is the end of the log, where nothing need be missing.
    all_damage: tuple[LogDamage, ...]
    has_transactions: bool  # whether a valid batch is of a transaction


class _SoundRun(NamedTuple):
    """Valid batches of a segment that follow each other."""

    position: int
    end: int
    first: BatchName
    last: BatchName
    has_transactions: bool


def find_damage(
    view: DirectoryView, base_offsets: Sequence[int], *, cleaner_offset: int | None
) -> LogScan:
    """Read a whole log, and return where it is damaged.

    Args:
        base_offsets: Base offsets of its segments, rising; at least one.
        cleaner_offset: Its entry in the cleaner checkpoint: below it a cleaner removes offsets
            between segments. None without an entry.
    """
    all_damage: list[LogDamage] = []
    ranges: list[FileRange] = []
    before: BatchName | None = None
    before_segment = base_offsets[0]
    has_transactions, is_blank = False, True

    def end_damage(after: BatchName | None, segment: int | None) -> None:
        if len(all_damage) >= _MOST_PLACES:
            raise CorruptRecordError(
                log_file(before_segment), 0, f"more than {_MOST_PLACES} places are damaged"
            )
        all_damage.append(
            LogDamage(
                ranges=tuple(ranges),
                before=before,
                before_segment=before_segment,
                after=after,
                after_segment=segment,
                is_blank=after is None and is_blank,
            )
        )
        ranges.clear()

    for segment, end_offset in pairwise([*base_offsets, MAX_OFFSET]):
        with closing(view.open(log_file(segment))) as reader:
            position, is_first = 0, True
            for run in _find_runs(reader, segment, end_offset):
                if run.position > position:
                    ranges.append(FileRange(segment, position, run.position - position))
                first = base_offsets[0] if before is None else before.last_offset + 1
                is_hole = (
                    is_first
                    and run.first.base_offset > first >= (cleaner_offset or 0)
                    and run.first.magic >= MAGIC_V2
                )
                if ranges or is_hole:
                    end_damage(run.first, segment)
                is_blank = True
                before, before_segment = run.last, segment
                position, is_first = run.end, False
                has_transactions |= run.has_transactions
            if position < reader.size_bytes:
                ranges.append(FileRange(segment, position, reader.size_bytes - position))
                is_blank = is_blank and find_zeros(reader, position, reader.size_bytes) == position
    end_damage(None, None)
    return LogScan(all_damage=tuple(all_damage), has_transactions=has_transactions)


def _find_runs(reader: FileReader, segment: int, end_offset: int) -> Iterator[_SoundRun]:
    """Yield the runs of valid batches in a segment."""
    stop = data_end_of(reader)
    finder = BatchFinder(reader, stop)
    position: int | None = 0
    last, epoch = segment - 1, NO_EPOCH
    while position is not None and position < stop:
        reached = position
        held = np.empty((batch_scan.COLUMN_COUNT, 0), np.int64)
        try:
            for window in scan_checked_headers(reader, start=position, end=stop):
                columns = window.batches.columns.copy()
                columns[batch_scan.POSITION] += window.file_position
                columns = np.concatenate([held, columns], axis=1)
                # What the last one is its successor tells.
                held = columns[:, -1:]
                for run in _runs_of(BatchTable(columns), last, epoch, end_offset, is_end=False):
                    last, epoch, reached = run.last.last_offset, run.last.leader_epoch, run.end
                    yield run
        except BadBytesError:
            pass
        for run in _runs_of(BatchTable(held), last, epoch, end_offset, is_end=True):
            last, epoch, reached = run.last.last_offset, run.last.leader_epoch, run.end
            yield run
        # The length of what follows the last valid batch is not to be believed.
        position = finder.find(max(reached, position + 1), last + 1, end_offset)


def _runs_of(
    batches: BatchTable, last: int, epoch: int, end_offset: int, *, is_end: bool
) -> Iterator[_SoundRun]:
    """Yield the runs among batches that lie one behind the other.

    Args:
        last: Last offset of the valid batch before them.
        epoch: Leader epoch of that batch; NO_EPOCH without one.
        is_end: Whether nothing is known to follow; else the last one is not judged.
    """
    is_valid = _are_valid(batches, last, epoch, end_offset)
    if not is_end:
        is_valid[-1:] = False
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_valid.view(np.int8), [0]])))
    for first, end in edges.reshape(-1, 2).tolist():
        run = batches.rows(first, end)
        yield _SoundRun(
            int(run.position[0]),
            int(run.position[-1] + run.size[-1]),
            name_of(run, 0),
            name_of(run, -1),
            bool(run.is_transactional.any()),
        )


def _are_valid(batches: BatchTable, last: int, epoch: int, end_offset: int) -> NDArray[np.bool_]:
    """Return which batches have a right checksum, offsets and epoch.

    First offset and leader epoch lie outside of the checksum: one that jumps is told by those
    around it.
    """
    base, ends = batches.base_offset, batches.last_offset
    is_valid: NDArray[np.bool_] = (
        (batches.crc_ok == 1) & (base > last) & (ends >= base) & (ends < end_offset)
    )
    rows = np.flatnonzero(is_valid)
    if rows.size:
        before = np.concatenate([[last], ends[rows][:-1]])
        after = np.concatenate([base[rows][1:], [end_offset]])
        is_odd = ((before >= base[rows]) | (ends[rows] >= after)) & (before < after)
        is_valid[rows[is_odd]] = False
        rows = rows[~is_odd]
        highest = np.maximum.accumulate(np.concatenate([[last], ends[rows]]))[:-1]
        is_valid[rows[base[rows] <= highest]] = False
    rows = np.flatnonzero(is_valid)
    is_valid[rows[are_epochs_outside(batches.leader_epoch[rows], epoch)]] = False
    return is_valid


def name_of(batches: BatchTable, row: int) -> BatchName:
    """Return the name of one of some batches."""
    return BatchName(
        int(batches.base_offset[row]),
        int(batches.last_offset[row]),
        int(batches.leader_epoch[row]),
        int(batches.crc[row]),
        int(batches.size[row]),
        int(batches.magic[row]),
    )
