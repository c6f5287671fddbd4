"""A salvage folder's content beside its log, and the way back.

A batch of a salvage is doubled where the log has the same batch, free where the log ends before it,
and passed where the log has gone on: other records have its offsets, or it was cut for good. Free
batches go back with the offsets that they had, as a follower appends what it fetched.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import InvalidNameError, LogDirectoryNotFoundError
from storage_core.filenames import (
    LOG_SUFFIX,
    TopicPartition,
    kind_of,
    log_file,
    offset_of,
    parse_partition_directory,
)
from storage_core.local_files import scan_folder
from storage_core.log.log_segment import segments_from
from storage_core.log.unified_log import UnifiedLog
from storage_core.maintenance.recovery.salvage import (
    CUTS_FILE,
    RAW_SUFFIX,
    SavedCuts,
    count_records,
    read_cuts,
    readable_batches,
)
from storage_core.records.batch_table import BatchTable
from storage_core.records.reader import CrcCheck, Large, Tail, scan_windows
from storage_core.store.base import FileReader, LogStore
from storage_core.store.local import LocalStore

# Bytes that are appended at a time; Kafka takes at most a segment.
_APPEND_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagedLog:
    """One partition directory's cuts, with a folder for each run.

    Attributes:
        partition: The partition.
        directory: The folder with its segments and raw copies.
        saved: The cuts with their reasons; None if the run did not write them down.
    """

    partition: TopicPartition
    directory: Path
    saved: SavedCuts | None


@dataclass(slots=True, kw_only=True)
class Contents:
    """Counts of what a salvaged log holds.

    Attributes:
        first_offset: The first one; None without records.
        last_offset: The last one.
        segments: Segments that open.
        raw_bytes: Bytes of the raw copies.
        records: Records in the segments.
        doubled: Records that the log has, too.
        free: Records behind the end of the log.
        passed: Other records below the end of the log.
        kept_offsets: First and last offset of each run of records that the log does not have.
        log_end_offset: Where the log ends; None where there is none.
    """

    first_offset: int | None = None
    last_offset: int | None = None
    segments: int = 0
    raw_bytes: int = 0
    records: int = 0
    doubled: int = 0
    free: int = 0
    passed: int = 0
    kept_offsets: list[tuple[int, int]] = field(default_factory=list)
    log_end_offset: int | None = None


def find_salvaged(folder: Path) -> list[SalvagedLog]:
    """Return the partitions in a salvage folder, of one run or all.

    Raises:
        LogDirectoryNotFoundError: There is no such folder, or nothing in it was salvaged.
        PylogError: A list of cuts is malformed.
    """
    logs: list[SalvagedLog] = []
    due = [folder] if folder.is_dir() else []
    while due:
        directory = due.pop()
        entries = scan_folder(directory, may_be_link=directory == folder)
        due += [directory / entry.name for entry in entries if entry.is_folder]
        names = [entry.name for entry in entries if entry.is_file]
        if not any(name == CUTS_FILE or name.endswith(RAW_SUFFIX) for name in names):
            continue
        try:
            partition = parse_partition_directory(directory.name)
        except InvalidNameError:
            continue
        logs.append(
            SalvagedLog(partition=partition, directory=directory, saved=read_cuts(directory))
        )
    if not logs:
        reason = "expected a folder that --salvage of a recovery named, or one in it"
        raise LogDirectoryNotFoundError(str(folder), reason)
    return sorted(
        logs, key=lambda log: (log.partition.topic, log.partition.partition, log.directory)
    )


class LogBatches:
    """A log's batches by their first offset.

    Args:
        store: The partition directory; None where there is no log.
        first_offset: Where the look-ups begin.
    """

    def __init__(self, store: LogStore | None, first_offset: int) -> None:
        bases, tables, self.end_offset = [], [], 0
        if store is not None:
            bases = sorted(
                offset
                for file in store.list_files()
                if kind_of(file.name) == LOG_SUFFIX and (offset := offset_of(file.name)) is not None
            )
            self.end_offset = bases[-1] if bases else 0
            for base in segments_from(bases, first_offset):
                with closing(store.open_file(log_file(base))) as reader:
                    tables += [table for _, table in _batches(reader)]
        columns = [np.concatenate(part) for part in zip(*map(_identity, tables), strict=True)]
        self._base, self._size, self._crc = columns or [np.empty(0, np.int64)] * 3
        order = np.argsort(self._base, kind="stable")
        self._base, self._size, self._crc = (
            column[order] for column in (self._base, self._size, self._crc)
        )
        lasts = [int(table.last_offset.max()) for table in tables]
        self.end_offset = max([self.end_offset, *(last + 1 for last in lasts)])

    def has(self, batches: BatchTable) -> NDArray[np.bool_]:
        """Return a mask of batches equal, behind their offset, to the log's."""
        if not self._base.size:
            return np.zeros(len(batches), np.bool_)
        base, size, crc = _identity(batches)
        at = np.minimum(np.searchsorted(self._base, base), self._base.size - 1)
        same: NDArray[np.bool_] = self._base[at] == base
        same &= (self._size[at] == size) & (self._crc[at] == crc)
        return same


def _identity(batches: BatchTable) -> tuple[NDArray[np.int64], ...]:
    return batches.base_offset, batches.size, batches.crc


def _batches(reader: FileReader) -> Iterator[tuple[int, BatchTable]]:
    """Yield valid batches of a file, with the origin of positions."""
    for window in scan_windows(reader, crc=CrcCheck.NOTE, tail=Tail.STOP, large=Large.HEADER):
        batches = readable_batches(reader, window)
        if len(batches):
            yield window.file_position, batches


def _segments(log: SalvagedLog) -> list[int]:
    names = (file.name for file in LocalStore(log.directory).list_files())
    bases = (offset_of(name) for name in names if kind_of(name) == LOG_SUFFIX)
    return sorted(base for base in bases if base is not None)


def describe_salvaged(log: SalvagedLog, of_log: LogStore | None) -> Contents:
    """Return a salvaged log's content, and how much the log has.

    Args:
        log: The salvaged log.
        of_log: The partition directory of the log; None where there is none.

    Raises:
        PylogError: A file cannot be read.
    """
    bases = _segments(log)
    contents = Contents(
        segments=len(bases),
        raw_bytes=sum(
            file.size_bytes
            for file in LocalStore(log.directory).list_files()
            if file.name.endswith(RAW_SUFFIX)
        ),
    )
    batches_of_log = LogBatches(of_log, bases[0] if bases else 0)
    if of_log is not None:
        contents.log_end_offset = batches_of_log.end_offset
    store = LocalStore(log.directory)
    for base in bases:
        with closing(store.open_file(log_file(base))) as reader:
            for _, batches in _batches(reader):
                _count(contents, batches, batches_of_log)
    return contents


def _count(contents: Contents, batches: BatchTable, of_log: LogBatches) -> None:
    records, last = count_records(batches), batches.last_offset
    is_doubled = of_log.has(batches)
    is_free = ~is_doubled & (batches.base_offset >= of_log.end_offset)
    contents.records += int(records.sum())
    contents.doubled += int(records[is_doubled].sum())
    contents.free += int(records[is_free].sum())
    contents.passed += int(records[~is_doubled & ~is_free].sum())
    first = int(batches.base_offset.min())
    contents.first_offset = min(first, contents.first_offset or first)
    contents.last_offset = max(int(last.max()), contents.last_offset or 0)
    for base, end in zip(
        batches.base_offset[~is_doubled].tolist(), last[~is_doubled].tolist(), strict=True
    ):
        if contents.kept_offsets and contents.kept_offsets[-1][1] + 1 == base:
            contents.kept_offsets[-1] = (contents.kept_offsets[-1][0], end)
        else:
            contents.kept_offsets.append((base, end))


def replay(logs: Iterable[SalvagedLog], log: UnifiedLog) -> int:
    """Append batches at free offsets to a log; return the record count.

    The batches have their former offsets.

    Args:
        logs: The log's salvaged parts, by any runs.
        log: The log, open for appends.

    Raises:
        PylogError: A file cannot be read, or a batch is not taken.
    """
    files = sorted((base, each.directory) for each in logs for base in _segments(each))
    records = 0
    for base, directory in files:
        with closing(LocalStore(directory).open_file(log_file(base))) as reader:
            for position, batches in _batches(reader):
                free = BatchTable(batches.columns[:, batches.base_offset >= log.log_end_offset])
                for first, end in _pieces(free):
                    piece = BatchTable(free.columns[:, first:end])
                    data = np.empty(int(piece.size.sum()), np.uint8)
                    reader.read_into(position + int(piece.position[0]), data)
                    epoch = int(piece.leader_epoch.max())
                    log.append_as_follower(data, leader_epoch=epoch)
                    records += int(count_records(piece).sum())
    return records


def _pieces(batches: BatchTable) -> Iterator[tuple[int, int]]:
    """Yield first and end of runs of adjacent batches, appended at once."""
    first, size_bytes = 0, 0
    positions: Sequence[int] = batches.position.tolist()
    sizes: Sequence[int] = batches.size.tolist()
    for number, (position, size) in enumerate(zip(positions, sizes, strict=True)):
        is_beside = number == first or position == positions[number - 1] + sizes[number - 1]
        if number > first and (size_bytes + size > _APPEND_BYTES or not is_beside):
            yield first, number
            first, size_bytes = number, 0
        size_bytes += size
    if positions:
        yield first, len(positions)
