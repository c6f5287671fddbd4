"""Keep the bytes cut by a recovery: raw, and as readable segments.

A broker may cut freely, it fetches the rest from other replicas; whoever has no other replica wants
to look first. For each partition a directory of its name receives

- ``cut-<base offset>-<position>.raw``: the bytes of each cut as they were,
- ``cuts.json``: where each was, and why it was cut; whose log it was (topic id, cluster id) and
  the leader epochs that it had, and
- segments with indexes: the whole batches in them whose checksum is right, which Kafka, or this
  program, opens as a log of their own. A batch whose offsets were salvaged before is left to the
  raw copy.

What was salvaged has owner and mode of what it was cut from, its directory those of the
partition's: nobody can read more than before.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.errors import (
    BadBytesError,
    CheckpointError,
    CorruptRecordError,
    DecompressionError,
    GuardRefusedError,
    InconsistentClusterIdError,
    InconsistentEpochsError,
    InconsistentTopicIdError,
    InvalidNameError,
    LogDirectoryNotFoundError,
    StorageError,
)
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    MAX_OFFSET,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    kind_of,
    log_file,
    offset_of,
    parse_partition_directory,
    segment_file,
)
from storage_core.formats.batch_v2 import BATCH_LENGTH_AT, LENGTH_OVERHEAD
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET
from storage_core.json_values import MAX_JSON_BYTES, OMITTED, Count, JsonFile, SystemText, word
from storage_core.local_files import (
    create_in,
    open_folder,
    open_in,
    require_as_private,
    scan_folder,
    scan_open,
)
from storage_core.log.leader_epoch_cache import NO_EPOCH, LeaderEpochCache, are_batches_believed
from storage_core.log.loaded_log import Cut, segments_from
from storage_core.log.loading_log import read_epochs
from storage_core.log.segment_scan import scan_segment
from storage_core.log.unified_log import UnifiedLog
from storage_core.records.batch_table import BatchTable
from storage_core.records.checked_headers import BatchFinder
from storage_core.records.payload import DEFAULT_LIMITS, open_batches
from storage_core.records.reader import (
    CrcCheck,
    Large,
    Tail,
    Window,
    read_whole,
    scan_windows,
)
from storage_core.store.base import FileReader, LogStore, data_end_of, read_range
from storage_core.store.local import LocalStore, make_folder, storage_errors
from storage_core.store.log_identity import LogIdentity, read_identity
from storage_core.store.syncing import sync

RAW_SUFFIX: Final = ".raw"
CUTS_FILE: Final = "cuts.json"
_FORMER: Final = frozenset({LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX})
# Mode of the folders on the way: the owner of salvaged files gets through, and nobody lists them.
_PASSAGE_MODE: Final = 0o711
_UNKNOWN: Final = LogIdentity()
_Epoch = Annotated[str, word(r"[0-9]{1,10}")]


def lost_batches(store: LogStore, cut: Cut) -> Iterator[tuple[int, BatchTable]]:
    """Yield the valid whole batches in the cut bytes, in file order.

    After a batch that is none the search goes on where its length says that the next one begins,
    or, where none does, byte by byte.

    Yields:
        (position, batches): where in the file the batches' positions count from, and the batches.
    """
    end = cut.position + cut.size_bytes
    with closing(store.open_file(cut.file)) as reader:
        finder, next_offset = BatchFinder(reader, min(end, data_end_of(reader))), cut.base_offset
        position: int | None = cut.position
        while position is not None and position < end:
            after = position
            try:
                for window in scan_windows(
                    reader,
                    start=position,
                    end=end,
                    crc=CrcCheck.NOTE,
                    tail=Tail.STOP,
                    large=Large.HEADER,
                ):
                    after = window.file_position + window.data.size
                    batches = readable_batches(reader, window)
                    if len(batches):
                        next_offset = max(next_offset, int(batches.last_offset.max()) + 1)
                        yield window.file_position, batches
            except CorruptRecordError:
                pass
            position = _next_start(reader, after, end)
            if position is None or not finder.is_batch(position):
                position = finder.find(after + 1, next_offset, MAX_OFFSET)


def count_lost_records(store: LogStore, cut: Cut) -> int:
    """Return how many records the readable batches in a cut have."""
    return sum(int(count_records(batches).sum()) for _, batches in lost_batches(store, cut))


def measure_cuts(store: LogStore, cuts: Iterable[Cut]) -> tuple[int, tuple[int, int]]:
    """Count the readable records in cuts; return the count and their end.

    Returns:
        How many there are, then epoch and end of the last; (-1, 0) without one.
    """
    records, end = 0, (-1, 0)
    for cut in cuts:
        for _, batches in lost_batches(store, cut):
            records += int(count_records(batches).sum())
            ends = zip(batches.leader_epoch.tolist(), batches.last_offset.tolist(), strict=True)
            end = max(end, *((epoch, last + 1) for epoch, last in ends))
    return records, end


def readable_batches(reader: FileReader, window: Window) -> BatchTable:
    """Return the batches of a window whose checksum is right.

    A compressed message of an old format is opened: only that tells its first offset, and how many
    messages there are inside. One that cannot be opened counts as one message.

    Args:
        window: A window of a scan that checks checksums.
    """
    good = np.flatnonzero(window.batches.crc_ok == 1)
    batches = BatchTable(window.batches.columns[:, good])
    sets = np.flatnonzero(batches.is_message_set)
    batches.record_count[sets] = 1
    for row in sets.tolist():
        wanted = np.zeros(len(window.batches), np.bool_)
        wanted[good[row]] = True
        with suppress(BadBytesError, DecompressionError):
            whole = read_whole(reader, window)
            opened = open_batches(whole, wanted, int(good[row]), DEFAULT_LIMITS).batches
            batches.base_offset[row] = opened.base_offset[good[row]]
            batches.record_count[row] = opened.record_count[good[row]]
    return batches


def count_records(batches: BatchTable) -> NDArray[np.int64]:
    """Return how many records each of ``readable_batches`` has."""
    return np.where(batches.is_message_set, batches.record_count, batches.counted_records)


def _next_start(reader: FileReader, position: int, end: int) -> int | None:
    """Return an unreadable batch's end by its own length, else None."""
    field = np.empty(LENGTH_OVERHEAD, np.uint8)
    if reader.read_into(position, field) < LENGTH_OVERHEAD:
        return None
    length = int.from_bytes(field[BATCH_LENGTH_AT:].tobytes(), "big", signed=True)
    after = position + LENGTH_OVERHEAD + length
    return after if length > 0 and after < end else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """The kept bytes and records of one partition."""

    directory: SystemText
    raw_bytes: int
    segments: int
    records: int


def salvage_cuts(
    store: LocalStore,
    cuts: tuple[Cut, ...],
    directory: Path,
    *,
    index_interval_bytes: int,
    max_index_bytes: int,
    source: LogStore | None = None,
    epochs: Sequence[EpochEntry] = (),
) -> Salvage:
    """Copy the bytes of cuts before the cut; replace older files. Older files are of a former
    attempt.

    Args:
        cuts: The planned cuts, in file order.
        directory: Where to; named like the partition directory, outside of every log directory.
        source: The partition as it is when it is cut; None where no other change comes before.
        epochs: The leader epochs that the log keeps.
    """
    source = store if source is None else source
    cuts = tuple(cut for cut in cuts if cut.lost_bytes)
    try:
        make_folder(directory, mode=_PASSAGE_MODE)
        with open_folder(directory) as folder:
            store.hand_on_ownership(folder)
            for entry in scan_open(folder):
                if entry.is_file and Path(entry.name).suffix in _FORMER:
                    os.unlink(entry.name, dir_fd=folder)
            raw_bytes = sum(_copy_raw(store, source, cut, folder) for cut in cuts)
            bases = _write_segments(store, source, cuts, folder)
            if cuts:
                with _create(store, cuts[0], folder, CUTS_FILE) as file:
                    file.write(_CUTS.encode(_saved_cuts(store, cuts, epochs)))
    except OSError as error:
        raise StorageError(str(directory), error.strerror or str(error)) from error
    records = 0
    target = LocalStore(directory)
    for base_offset in bases:
        with closing(target.open_file(log_file(base_offset))) as reader:
            scan = scan_segment(
                reader,
                base_offset,
                index_interval_bytes=index_interval_bytes,
                max_index_bytes=max_index_bytes,
            )
        target.write_file(segment_file(base_offset, OFFSET_INDEX_SUFFIX), scan.offset_index)
        target.write_file(segment_file(base_offset, TIME_INDEX_SUFFIX), scan.time_index)
        records += scan.records
    _sync(directory)
    return Salvage(
        directory=str(directory), raw_bytes=raw_bytes, segments=len(bases), records=records
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCuts:
    """What a run wrote down of the cuts of one partition."""

    directory: SystemText
    cuts: tuple[Cut, ...]  # each cut, in file order
    # Whose log it was; former versions did not say.
    identity: Annotated[LogIdentity, OMITTED] = _UNKNOWN
    # Start offsets of its leader epochs, by epoch: of those that it kept, and of those that its
    # epoch file had behind the first cut. A former version did not say.
    epoch_starts: Annotated[Mapping[_Epoch, Count], OMITTED] = field(default_factory=dict)

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """The leader epochs that the log had."""
        return tuple(EpochEntry(int(epoch), start) for epoch, start in self.epoch_starts.items())


_CUTS: Final = JsonFile(SavedCuts, "pylog-salvage")


def _saved_cuts(
    store: LocalStore, cuts: tuple[Cut, ...], epochs: Sequence[EpochEntry]
) -> SavedCuts:
    """Return what is written down of the cuts of a partition."""
    entries: tuple[EpochEntry, ...] = ()
    # A file that cannot be parsed says nothing about the log.
    with suppress(CheckpointError):
        entries = read_epochs(store).entries
    end_offset = min(cut.first_offset for cut in cuts)
    lost = [entry for entry in entries if entry.start_offset >= end_offset]
    all_epochs = LeaderEpochCache([*(epochs or entries), *lost]).entries
    return SavedCuts(
        directory=str(store.directory),
        cuts=cuts,
        identity=read_identity(store),
        epoch_starts={str(entry.epoch): entry.start_offset for entry in all_epochs},
    )


def read_cuts(directory: Path) -> SavedCuts | None:
    """Return the cuts with reasons; None from a version without records."""
    store = LocalStore(directory)
    if not store.has(CUTS_FILE):
        return None
    content = store.read_file(CUTS_FILE, limit_bytes=MAX_JSON_BYTES)
    return _CUTS.parse(content, str(directory / CUTS_FILE))


def _sync(directory: Path) -> None:
    """Make everything in a directory durable before its origin is removed."""
    with storage_errors(directory), open_folder(directory) as folder:
        for entry in scan_open(folder):
            if entry.is_file:
                with os.fdopen(open_in(folder, entry.name), "rb") as file:
                    sync(file.fileno())
        sync(folder)


def _copy_raw(store: LocalStore, source: LogStore, cut: Cut, folder: int) -> int:
    name = f"cut-{cut.base_offset:020d}-{cut.position}{RAW_SUFFIX}"
    with closing(source.open_file(cut.file)) as reader, _create(store, cut, folder, name) as file:
        _copy(reader, cut.position, cut.lost_bytes, file)
        # The zeros are a hole, of perhaps a gigabyte.
        file.truncate(cut.size_bytes)
        return cut.lost_bytes


def _create(store: LocalStore, cut: Cut, folder: int, name: str) -> BinaryIO:
    """Create a file readable only to the readers of the cut bytes."""
    file = os.fdopen(create_in(folder, name), "wb")
    try:
        store.hand_on_ownership(file.fileno(), cut.file)
    except BaseException:
        file.close()
        raise
    return file


def _copy(reader: FileReader, position: int, size_bytes: int, file: BinaryIO) -> None:
    file.writelines(data.data for data in read_range(reader, position, position + size_bytes))


def _write_segments(
    store: LocalStore, source: LogStore, cuts: tuple[Cut, ...], folder: int
) -> list[int]:
    """Write the readable batches as segments and return their base offsets."""
    bases: list[int] = []
    next_offset = -1
    for cut in cuts:
        # Each cut gets a segment of its own.
        base_offset: int | None = None
        for position, size_bytes, first, last in _runs(source, cut):
            if first < next_offset:
                continue
            if base_offset is None or last - base_offset > MAX_RELATIVE_OFFSET:
                base_offset = first
                bases.append(base_offset)
                _create(store, cut, folder, log_file(base_offset)).close()
            with (
                closing(source.open_file(cut.file)) as reader,
                os.fdopen(
                    open_in(folder, log_file(base_offset), os.O_WRONLY | os.O_APPEND), "ab"
                ) as file,
            ):
                _copy(reader, position, size_bytes, file)
            next_offset = last + 1
    return bases


def _runs(store: LogStore, cut: Cut) -> Iterator[tuple[int, int, int, int]]:
    """Yield (position, bytes, first offset, last offset) of runs of adjacent batches.

    Offsets rise within a run; the last one is at most 2^31 - 1 above the first.
    """
    for file_position, batches in lost_batches(store, cut):
        position, last = batches.position, batches.last_offset
        breaks: NDArray[np.bool_] = position[1:] != position[:-1] + batches.size[:-1]
        breaks = breaks | (batches.base_offset[1:] <= last[:-1])
        breaks = breaks | (last[1:] - batches.base_offset[0] > MAX_RELATIVE_OFFSET)
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(batches)], strict=True):
            first = int(batches.base_offset[start])
            if not 0 <= first <= int(last[end - 1]):
                continue
            size_bytes = int(batches.size[start:end].sum())
            yield file_position + int(position[start]), size_bytes, first, int(last[end - 1])


# A salvage folder's content beside its log, and the way back.
#
# A batch of a salvage is doubled where the log has the same batch, free where the log ends before
# it, and passed where the log has gone on: other records have its offsets, it was cut for good,
# or a later leader epoch has begun. Free batches go back with the offsets that they had, as a
# follower appends what it fetched. They go back only into the log that they were cut from.

# Why what was salvaged is not of the log that is there now.
OtherLogError = InconsistentTopicIdError | InconsistentClusterIdError | InconsistentEpochsError
# Bytes that are appended at a time; Kafka takes at most a segment.
_APPEND_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagedLog:
    """One partition directory's cuts, with a folder for each run."""

    partition: TopicPartition
    directory: Path  # the folder with its segments and raw copies
    saved: SavedCuts | None  # the cuts with their reasons; None if the run did not write them down

    @property
    def is_named(self) -> bool:
        """Whether it says of which topic or cluster it is."""
        return self.saved is not None and self.saved.identity != LogIdentity()


@dataclass(slots=True, kw_only=True)
class Contents:
    """Counts of what a salvaged log holds."""

    first_offset: int | None = None  # the first one; None without records
    last_offset: int | None = None
    segments: int = 0
    raw_bytes: int = 0
    records: int = 0
    doubled: int = 0
    free: int = 0
    # Other records: below the end of the log, of a former leader epoch, of one that is not
    # believed, or of another log.
    passed: int = 0
    kept_offsets: list[tuple[int, int]] = field(default_factory=list)
    log_end_offset: int | None = None  # where the log ends; None where there is none
    # Why the log is not the one that they were cut from; None where nothing says so.
    other_log: OtherLogError | None = None


def find_salvaged(folder: Path) -> list[SalvagedLog]:
    """Return the partitions in a salvage folder, of one run or all."""
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


def require_own(log: SalvagedLog, directory: Path) -> None:
    """Refuse salvaged files that more users than the log's may write."""
    with storage_errors(directory):
        around = directory.stat()
    with storage_errors(log.directory), open_folder(log.directory) as folder:
        looked_at = {log.directory: os.fstat(folder)}
        for entry in scan_open(folder):
            if entry.name == CUTS_FILE or kind_of(entry.name) == LOG_SUFFIX:
                looked_at[log.directory / entry.name] = entry.facts
    for path, facts in looked_at.items():
        try:
            require_as_private(facts, around)
        except OSError as error:
            text = f"{path}: {error.strerror}"
            raise GuardRefusedError("SALVAGE_OF_ANOTHER_USER", text) from error


class LogBatches:
    """A log's batches by their first offset.

    Args:
        store: The partition directory; None where there is no log.
        first_offset: Where the look-ups begin.

    Attributes:
        last_epoch: Its newest leader epoch, NO_EPOCH without one.
    """

    def __init__(self, store: LogStore | None, first_offset: int) -> None:
        tables: list[BatchTable] = []
        self.end_offset, self.last_epoch = 0, NO_EPOCH
        if store is not None:
            bases = sorted(
                offset
                for file in store.list_files()
                if kind_of(file.name) == LOG_SUFFIX and (offset := offset_of(file.name)) is not None
            )
            self.end_offset = bases[-1] if bases else 0
            wanted = segments_from(bases, first_offset)
            # The newest epoch is that of the last batch, wherever that lies.
            before = [base for base in reversed(bases) if base not in wanted]
            for base in wanted:
                tables += _tables(store, base)
            while before and not tables:
                tables += _tables(store, before.pop(0))
            self.last_epoch = _find_last_epoch(store, tables)
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


def _tables(store: LogStore, base_offset: int) -> list[BatchTable]:
    """Return the valid batches of a segment."""
    with closing(store.open_file(log_file(base_offset))) as reader:
        return [table for _, table in _batches(reader)]


def _find_last_epoch(store: LogStore, tables: Sequence[BatchTable]) -> int:
    """Return the newest epoch of a log's epoch file and batches."""
    epochs = read_epochs(store)
    if not tables:
        return epochs.latest_epoch
    batches = BatchTable(np.concatenate([table.columns for table in tables], axis=1))
    believed = batches.leader_epoch[are_batches_believed(batches, [epochs.entries])]
    return max(epochs.latest_epoch, int(believed.max(initial=NO_EPOCH)))


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


def require_own_log(log: SalvagedLog, of_log: LogStore) -> None:
    """Check that a log is still the one that was cut. What a former version did not write down
    is not compared."""
    saved = log.saved
    if saved is None:
        return
    read_identity(of_log).require(saved.identity, of_log.location)
    former, own = LeaderEpochCache(saved.epochs), read_epochs(of_log)
    end_offset = min((cut.first_offset for cut in saved.cuts), default=0)
    at = former.first_difference(own, end_offset)
    if at is not None:
        expected, actual = former.epoch_for_offset(at), own.epoch_for_offset(at)
        path = f"{of_log.location}/{LEADER_EPOCH_FILE}"
        raise InconsistentEpochsError(path, at, expected or 0, actual or 0)


def describe_salvaged(log: SalvagedLog, of_log: LogStore | None) -> Contents:
    """Return a salvaged log's content, and how much the log has.

    Args:
        of_log: The partition directory of the log; None where there is none.
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
        try:
            require_own_log(log, of_log)
        except (
            InconsistentTopicIdError,
            InconsistentClusterIdError,
            InconsistentEpochsError,
        ) as error:
            contents.other_log = error
    for window in _windows(log):
        _count(contents, window, batches_of_log)
    return contents


class _SalvagedWindow(NamedTuple):
    """Salvaged batches that follow each other."""

    log: SalvagedLog
    base_offset: int
    position: int
    batches: BatchTable
    is_believed: NDArray[np.bool_]

    def find_free(self, end_offset: int, last_epoch: int) -> NDArray[np.bool_]:
        """Return a mask of batches that a log may get.

        Args:
            last_epoch: Its newest leader epoch.
        """
        epochs = self.batches.leader_epoch
        former = {entry.epoch for entry in self.log.saved.epochs} if self.log.saved else set()
        # Messages of old formats name no epoch.
        has_gone_on = bool(former) and last_epoch not in {NO_EPOCH, *former}
        is_recent = (epochs >= last_epoch) | ((epochs < 0) & (not has_gone_on))
        return (self.batches.base_offset >= end_offset) & is_recent & self.is_believed


def _windows(log: SalvagedLog) -> Iterator[_SalvagedWindow]:
    """Yield a salvaged log's batches, by segment and position."""
    store, tables = LocalStore(log.directory), []
    for base in _segments(log):
        with closing(store.open_file(log_file(base))) as reader:
            tables += [(base, *table) for table in _batches(reader)]
    if not tables:
        return
    columns = np.concatenate([batches.columns for _, _, batches in tables], axis=1)
    lineages = [log.saved.epochs] if log.saved is not None else []
    is_believed = are_batches_believed(BatchTable(columns), lineages)
    ends = np.cumsum([len(batches) for _, _, batches in tables])[:-1]
    for (base, position, batches), mask in zip(tables, np.split(is_believed, ends), strict=True):
        yield _SalvagedWindow(log, base, position, batches, mask)


def _count(contents: Contents, window: _SalvagedWindow, of_log: LogBatches) -> None:
    batches = window.batches
    records, last = count_records(batches), batches.last_offset
    if contents.other_log is None:
        is_doubled = of_log.has(batches)
        is_free = ~is_doubled & window.find_free(of_log.end_offset, of_log.last_epoch)
    else:
        is_doubled = is_free = np.zeros(len(batches), np.bool_)
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


def replay(logs: Sequence[SalvagedLog], log: UnifiedLog, store: LogStore) -> int:
    """Append batches at free offsets to a log; return the record count. The batches have their
    former offsets.

    Args:
        logs: The log's salvaged parts, by any runs.
    """
    for each in logs:
        require_own_log(each, store)
    windows = sorted(
        (window for each in logs for window in _windows(each)),
        key=lambda window: (window.base_offset, window.log.directory, window.position),
    )
    if not windows:
        return 0
    records, last_epoch = 0, LogBatches(store, log.log_end_offset).last_epoch
    for window in windows:
        is_free = window.find_free(log.log_end_offset, last_epoch)
        free = BatchTable(window.batches.columns[:, is_free])
        name = log_file(window.base_offset)
        with closing(LocalStore(window.log.directory).open_file(name)) as reader:
            for first, end in _pieces(free):
                piece = BatchTable(free.columns[:, first:end])
                data = np.empty(int(piece.size.sum()), np.uint8)
                reader.read_into(window.position + int(piece.position[0]), data)
                epoch = int(piece.leader_epoch.max())
                log.append_as_follower(data, leader_epoch=epoch)
                records += int(count_records(piece).sum())
                last_epoch = max(last_epoch, epoch)
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
