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
from typing import Annotated, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.errors import (
    BadBytesError,
    CheckpointError,
    CorruptRecordError,
    DecompressionError,
    StorageError,
)
from storage_core.filenames import (
    LOG_SUFFIX,
    MAX_OFFSET,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    log_file,
    segment_file,
)
from storage_core.formats.batch_v2 import BATCH_LENGTH_AT, LENGTH_OVERHEAD
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET
from storage_core.json_values import MAX_JSON_BYTES, OMITTED, Count, JsonFile, SystemText, word
from storage_core.local_files import create_in, open_folder, open_in, scan_open
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.loaded_log import Cut
from storage_core.log.loading_log import read_epochs
from storage_core.log.segment_scan import scan_segment
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
from storage_core.threads import sync

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
