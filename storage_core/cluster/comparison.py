"""Compare replicas record by record: differences, and records of one alone.

All logs are read once, side by side, in pieces of offsets. Batches that are the same in two of them
are told by their headers: offsets, epoch, checksum, size. Records are decoded only where a batch
has no such twin, and both logs have batches at its offsets, as where a cleaner went over one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoint_files import EpochEntry
from storage_core.cluster.log_batches import BatchRows, LogReader, ReadDepth, pieces
from storage_core.cluster.offset_ranges import Ranges, clip, of_offsets, union
from storage_core.cluster.replica import Damage, OpenedLog
from storage_core.errors import CheckpointError, StorageError
from storage_core.formats.batch_v2 import NO_PRODUCER_ID
from storage_core.log.believed_epochs import DoubtfulRun, EpochRun, find_doubtful_runs
from storage_core.log.loading_log import read_epochs
from storage_core.records.batch_table import BatchTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLogs:
    """Logs of a partition, compared with each other."""

    damage: tuple[tuple[Damage, ...], ...]
    # First offset at which two differ, by their numbers, the smaller one first; None where they do
    # not.
    differences: dict[tuple[int, int], int | None]
    # Records of another log that a log lacks, by its number and the other's.
    missing: dict[tuple[int, int], Ranges]
    epochs: tuple[tuple[EpochRun, ...], ...]  # each log's leader epochs as its batches have them
    # Those that are not believed. In ``missing`` such a batch counts with the epoch that its leader
    # had.
    doubtful: tuple[tuple[DoubtfulRun, ...], ...]
    largest_producer_id: int  # largest producer id of a batch, -1 without one
    largest_coordinator_epoch: int  # largest epoch of a marker's coordinator, -1 without one

    def believed_epochs(self) -> set[int]:
        """Return the epochs of all batches, without those that are not believed."""
        wrong = {each.run for own in self.doubtful for each in own}
        return {run.epoch for runs in self.epochs for run in runs if run not in wrong}


def compare_logs(
    logs: Sequence[OpenedLog | None], *, largest_epoch: int | None = None
) -> ComparedLogs:
    """Compare each log with each other one, by batches. Batches with a wrong checksum are ignored.

    Args:
        logs: None for a log without a record.
        largest_epoch: The largest one that the quorum knows of; None where nothing says it.
    """
    compared = _compare_all(logs, [()] * len(logs))
    doubtful = find_doubtful_runs(
        [
            (runs, () if log is None else _file_entries(log))
            for log, runs in zip(logs, compared.epochs, strict=True)
        ],
        largest_epoch=largest_epoch,
    )
    if not any(doubtful):
        return compared
    # Brokers leave a wrong epoch as it is: it stays a difference, and no record is missing for it.
    return replace(_compare_all(logs, doubtful), differences=compared.differences)


def _file_entries(log: OpenedLog) -> Sequence[EpochEntry]:
    """Return the entries of a log's epoch file, as it lies there; none of a bad file."""
    try:
        return read_epochs(log.view.store).entries
    except (CheckpointError, StorageError):
        return ()


def _compare_all(
    logs: Sequence[OpenedLog | None], doubtful: Sequence[Sequence[DoubtfulRun]]
) -> ComparedLogs:
    readers = [
        LogReader(None, (), ReadDepth.CHECKSUMS)
        if log is None
        else LogReader(log.view, log.base_offsets, ReadDepth.CHECKSUMS, doubtful=own)
        for log, own in zip(logs, doubtful, strict=True)
    ]
    differences: dict[tuple[int, int], int | None] = {}
    missing: dict[tuple[int, int], list[Ranges]] = {}
    producer_id, coordinator_epoch = NO_PRODUCER_ID, -1
    for pair in combinations(range(len(logs)), 2):
        differences[pair] = None
        missing[pair], missing[pair[::-1]] = [], []
    for start, end, read in pieces(readers):
        parts = [part.take(part.batches.crc_ok != 0) for part in read]
        names = [batch_names(part.batches) for part in parts]
        for batches in (part.batches for part in parts if len(part)):
            producer_id = max(producer_id, int(batches.producer_id.max()))
            coordinator_epoch = max(coordinator_epoch, int(batches.coordinator_epoch.max()))
        for pair in combinations(range(len(logs)), 2):
            one, two = pair
            alone = (
                parts[one].take(~np.isin(names[one], names[two])),
                parts[two].take(~np.isin(names[two], names[one])),
            )
            lowest, lacked = _compare(alone, start, end)
            difference = differences[pair]
            if lowest is not None and (difference is None or lowest < difference):
                differences[pair] = lowest
            missing[pair].append(lacked[0])
            missing[pair[::-1]].append(lacked[1])
    return ComparedLogs(
        damage=tuple(
            (*(() if log is None else log.cut), *reader.damage)
            for log, reader in zip(logs, readers, strict=True)
        ),
        differences=differences,
        missing={pair: union(ranges) for pair, ranges in missing.items()},
        epochs=tuple(tuple(reader.epochs) for reader in readers),
        doubtful=tuple(map(tuple, doubtful)),
        largest_producer_id=producer_id,
        largest_coordinator_epoch=coordinator_epoch,
    )


def _compare(
    alone: tuple[BatchRows, BatchRows], start: int, end: int
) -> tuple[int | None, tuple[Ranges, Ranges]]:
    """Compare two logs between two offsets.

    Args:
        alone: Each log's batches without a twin in the other.

    Returns:
        The first offset at which they differ, and what the first lacks of the second, and the
        other way round.
    """
    is_met = alone[0].that_meet(alone[1]), alone[1].that_meet(alone[0])
    lacked: tuple[list[Ranges], list[Ranges]] = ([], [])
    lowest: int | None = None
    for number in (0, 1):
        lacked[1 - number].append(alone[number].take(~is_met[number]).offsets())
    met = alone[0].take(is_met[0]), alone[1].take(is_met[1])
    for matched in match_batches(met, start, end):
        if len(matched.other) and lowest is None:
            lowest = int(matched.other.min())
        for number, table in enumerate(matched.tables):
            lacked[1 - number].append(without(table, matched.same))
    ranges = [clip(union(parts), start=start, end=end) for parts in lacked]
    return lowest, (ranges[0], ranges[1])


def _between(rows: BatchRows, start: int, end: int) -> pa.Table:
    """Return the records of batches at offsets from start on, below end."""
    inside = rows.take((rows.lowest < end) & (rows.batches.last_offset >= start))
    table = inside.records()
    offset = table["offset"]
    return table.filter(pc.and_(pc.greater_equal(offset, start), pc.less(offset, end)))


@dataclass(frozen=True, slots=True)
class MatchedRecords:
    """Records of two logs, at the same offsets."""

    tables: tuple[pa.Table, pa.Table]  # each log's compared records, of ``log_batches.RECORDS``
    # int64[], offsets at which both have the same record; its epoch may be another.
    same: NDArray[np.int64]
    other: NDArray[np.int64]  # int64[], offsets at which anything differs, be it the epoch alone


def match_batches(
    rows: tuple[BatchRows, BatchRows], start: int, end: int
) -> Iterator[MatchedRecords]:
    """Read two logs' records between two offsets; match them by offset.

    Args:
        rows: Rows of each log; the first log's decide how many are in memory at once.
    """
    groups = [int(group.batches.last_offset.max()) + 1 for group in rows[0].groups()]
    for low, high in pairwise([start, *groups[:-1], end] if groups else []):
        tables = (_between(rows[0], low, high), _between(rows[1], low, high))
        yield MatchedRecords(tables, *_match(*tables))


def _match(first: pa.Table, second: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offsets of equal records, and of different ones. Epochs may differ: a reader
    sees the same record."""
    offsets, rows_1, rows_2 = np.intersect1d(
        first["offset"].to_numpy(), second["offset"].to_numpy(), return_indices=True
    )
    one, two = first.take(rows_1), second.take(rows_2)
    is_same = _have_same_headers(one["headers"], two["headers"])
    for name in ("timestamp", "key", "value"):
        is_same &= _are_equal(one[name], two[name])
    is_of_same_epoch = _are_equal(one["epoch"], two["epoch"])
    return offsets[is_same], offsets[~(is_same & is_of_same_epoch)]


def _are_equal(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Compare two columns by value; a null equals a null."""
    both_null = pc.and_(pc.is_null(first), pc.is_null(second))
    equal = pc.or_(pc.fill_null(pc.equal(first, second), fill_value=False), both_null)
    is_equal: NDArray[np.bool_] = np.asarray(equal, np.bool_)
    return is_equal


def _have_same_headers(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    counts = [np.asarray(pc.list_value_length(lists)) for lists in (first, second)]
    is_same: NDArray[np.bool_] = counts[0] == counts[1]
    owner = np.repeat(np.flatnonzero(is_same), counts[0][is_same])
    mask = pa.array(is_same)
    one, two = (pc.list_flatten(lists.filter(mask)) for lists in (first, second))
    for name in ("key", "value"):
        fields = [pc.struct_field(headers, name) for headers in (one, two)]
        is_same[owner[~_are_equal(*fields)]] = False
    return is_same


def without(table: pa.Table, same: NDArray[np.int64]) -> Ranges:
    """Return a table's data records at offsets other than the given. Data records exclude
    control records."""
    offsets = table["offset"].to_numpy()
    is_other = ~np.isin(offsets, same) & ~np.asarray(table["is_control"], np.bool_)
    return of_offsets(offsets[is_other], table["epoch"].to_numpy()[is_other])


def batch_names(batches: BatchTable, digests: NDArray[np.uint64] | None = None) -> NDArray[np.void]:
    """Return one comparable value for each batch.

    Args:
        digests: uint64[m, batches], of all their bytes; None to go by their headers.
    """
    columns = [
        batches.base_offset,
        batches.last_offset,
        batches.leader_epoch,
        batches.crc,
        batches.size,
        *(() if digests is None else digests.view(np.int64)),
    ]
    values = np.ascontiguousarray(np.stack(columns, axis=1))
    return values.view([(str(number), np.int64) for number in range(values.shape[1])]).ravel()
