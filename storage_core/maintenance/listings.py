"""Keep listings of very many partition directories as arrays.

A partition is a stretch of numbers. Most partitions of a cluster keep all they have, and their
listings alone tell it. These are decided about all at once (`retention.plan`,
`compaction.candidates`), and no object is made of one. Only plain directories take part: whole
segments under the names that Kafka spells, each with its indexes, and Kafka's own small files.
Whatever else lies in a directory, its partition is looked at alone, by those who know every case.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import MAX_PARTITION_METADATA_BYTES, PartitionCheckpoints
from storage_core.filenames import (
    DELETED_SUFFIX,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    MAX_OFFSET,
    PARTITION_METADATA_FILE,
    SEGMENT_FILE_SUFFIXES,
    TIME_INDEX_SUFFIX,
    log_file,
    offset_of,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.local_files import OpenFolder, list_open, open_folder, open_in, read_limited
from storage_core.log.batch_search import MAX_INDEX_BYTES
from storage_core.log.log_loader import MAX_LOG_BYTES
from storage_core.log.log_truncation import read_clean_end
from storage_core.records.file_starts import (
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TXN_INDEX,
    FolderFiles,
    Folders,
)

PLAIN_FILES: Final = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE})
NANOSECONDS_PER_MS: Final = 1_000_000
_OFFSET_DIGITS: Final = 20
_ZERO: Final = np.uint8(ord("0"))
_NINE: Final = np.uint8(9)
_POWERS: Final = 10 ** np.arange(_OFFSET_DIGITS - 2, -1, -1, dtype=np.uint64)
# In place of a log end offset that is not known.
NO_END: Final = -1
# In place of an offset that a checkpoint file does not have. A file may well say -1.
NO_ENTRY: Final = -(2**63)

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
# Base offsets of logs, ascending, and their lengths.
Logs = tuple[tuple[int, ...], tuple[int, ...]]


def parse_file_names(names: Sequence[str]) -> tuple[Numbers, NDArray[np.int8]]:
    """Return offsets and kinds of very many file names, all at once.

    Only the names of ``segment_file`` count: 20 digits and a suffix. ``offset_of`` and ``kind_of``
    accept more, as Kafka does.

    Returns:
        (offsets, kinds): of each name the offset, and which of ``SEGMENT_FILE_SUFFIXES`` it has;
        kind -1, and any offset, for all other names.
    """
    plain, joined = names, "".join(names)
    if not joined.isascii():
        plain = [name if name.isascii() else "" for name in names]
        joined = "".join(plain)
    lengths = np.fromiter(map(len, plain), np.int64, len(plain))
    text = np.frombuffer(joined.encode("ascii"), np.uint8)
    starts = np.cumsum(lengths) - lengths
    offsets = np.zeros(len(plain), np.int64)
    kinds = np.full(len(plain), -1, np.int8)
    for kind, suffix in enumerate(SEGMENT_FILE_SUFFIXES):
        (rows,) = np.nonzero(lengths == _OFFSET_DIGITS + len(suffix))
        spelled = text[starts[rows, None] + np.arange(_OFFSET_DIGITS + len(suffix))]
        digits = spelled[:, :_OFFSET_DIGITS] - _ZERO  # what is below "0" wraps to more than 9
        has_suffix = spelled[:, _OFFSET_DIGITS:] == np.frombuffer(suffix.encode(), np.uint8)
        # Of 20 digits the first one is 0: so the others fit in 64 bits, if not always in 63.
        numbers = digits[:, 1:].astype(np.uint64) @ _POWERS
        is_one = has_suffix.all(axis=1) & (digits <= _NINE).all(axis=1) & (digits[:, 0] == 0)
        is_one &= numbers <= MAX_OFFSET
        offsets[rows[is_one]] = numbers[is_one].astype(np.int64)
        kinds[rows[is_one]] = kind
    return offsets, kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLook:
    """What one look at a partition directory on a local disk shows."""

    # Length and time of the last modification, epoch milliseconds, of each file that ends in
    # ``.log``, by name.
    logs: dict[str, tuple[int, int]]
    others: list[str] = field(default_factory=list)  # names of everything else, in any order
    are_files: bool = True  # whether all of it is regular files
    # The last entry of the oldest segment's time index; empty without one, None where it was not
    # asked for.
    oldest_entry: bytes | None = None
    # What ``partition.metadata`` holds; None without one, or where it was not asked.
    metadata: bytes | None = None
    # The end of the log; None where only a load of the log tells it, or more than it, or where it
    # was not asked for.
    end: int | None = None

    @property
    def has_deleted(self) -> bool:
        """Whether there is something that only waits for its end."""
        # A name has no slash: so one ends where the next one begins.
        return DELETED_SUFFIX + "/" in "/".join((*self.others, ""))


def look_at(
    directory: str | Path,
    *,
    needs_age: bool,
    needs_topic_id: bool,
    log_start: int | None = None,
    most_index_bytes: int = MAX_INDEX_BYTES,
) -> DirectoryLook | None:
    """List a partition directory; read the few bytes most decisions need.

    Args:
        needs_age: Whether the age of the oldest segment is wanted.
        needs_topic_id: Whether ``partition.metadata`` is wanted.
        log_start: Where the end of the log is wanted, the partition's entry in the log-start
            checkpoint, 0 without one; else None.
        most_index_bytes: ``segment.index.bytes``; an active segment with a larger index has no end.

    Returns:
        What is there; None where it cannot be told, or files come and go: who looks at the
        partition alone finds out why.
    """
    try:
        with open_folder(directory) as descriptor:
            folder = OpenFolder(descriptor)
            facts, others, are_files = list_open(descriptor, LOG_SUFFIX)
            has_metadata = needs_topic_id and PARTITION_METADATA_FILE in others
            return DirectoryLook(
                logs={
                    name: (fact.st_size, fact.st_mtime_ns // NANOSECONDS_PER_MS)
                    for name, fact in facts.items()
                },
                others=others,
                are_files=are_files,
                oldest_entry=read_last_time(folder, min(facts)) if needs_age and facts else None,
                metadata=_read_metadata(descriptor) if has_metadata else None,
                end=read_end(folder, directory, facts, others, log_start, most_index_bytes)
                if log_start is not None and are_files
                else None,
            )
    except OSError:
        return None


def sizes_by_offset(logs: Mapping[str, int]) -> Logs:
    """Return the base offsets of logs, ascending, and their lengths. Names that Kafka does not
    write are left out.

    Args:
        logs: Lengths by name of what ends in ``.log``.
    """
    sizes = {
        base: size
        for name, size in logs.items()
        if (base := offset_of(name)) is not None and name == log_file(base)
    }
    bases = tuple(sorted(sizes))
    return bases, tuple(map(sizes.__getitem__, bases))


def list_logs(directories: Sequence[str]) -> dict[str, Logs]:
    """Return the base offsets and lengths, as of ``sizes_by_offset``, of all logs in those of some
    local directories that have plain files only."""
    folders = Folders(directories)
    files = folders.list_files()
    (logs,) = np.nonzero(files.kinds == LOG)
    found = folders.read(files.parts(logs, most_bytes=0), most_of_folder=0)
    is_plain = files.is_listed.copy()
    is_plain[files.folders[logs[found.lengths < 0]]] = False
    bounds = np.searchsorted(files.folders[logs], np.arange(len(directories) + 1)).tolist()
    bases, sizes = files.offsets[logs].tolist(), found.sizes.tolist()
    return {
        directory: (tuple(bases[first:end]), tuple(sizes[first:end]))
        for directory, (first, end), is_one in zip(
            directories, pairwise(bounds), is_plain, strict=True
        )
        if is_one
    }


def read_last_time(folder: OpenFolder, log_name: str) -> bytes:
    """Return the last whole entry of the time index beside a log; empty without one."""
    name = log_name.removesuffix(LOG_SUFFIX) + TIME_INDEX_SUFFIX
    return folder.read_last(name, TIME_INDEX_ENTRY.itemsize, 1)[0]


def read_end(
    folder: OpenFolder,
    directory: str | Path,
    logs: Collection[str],
    others: Collection[str],
    log_start: int,
    most_index_bytes: int,
) -> int | None:
    """Return the end of a log, None where only a load tells it."""
    if not logs:
        return None
    oldest, newest = offset_of(min(logs)), offset_of(max(logs))
    if oldest is None or newest is None:
        return None
    return read_clean_end(
        folder,
        directory,
        bases=(oldest, newest),
        log_start=log_start,
        others=others,
        most_index_bytes=most_index_bytes,
    )


def _read_metadata(folder: int) -> bytes:
    descriptor = open_in(folder, PARTITION_METADATA_FILE)
    try:
        return read_limited(descriptor, MAX_PARTITION_METADATA_BYTES)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listings:
    """The segments, at least one each, of plain partitions by base offset."""

    places: Numbers
    starts: Numbers  # where the segments of each begin in the arrays below
    base_offsets: Numbers
    sizes: Numbers
    times_ms: Numbers
    # By partition, what the last entry of the oldest segment's time index says; NO_TIMESTAMP where
    # there is none, or it was not asked for.
    oldest_timestamps: Numbers
    has_age: Mask  # by partition, whether that was asked for
    log_ends: Numbers  # by partition, offset of the next record; NO_END where `end` has none

    @classmethod
    def of_looks(cls, looks: Sequence[DirectoryLook | None]) -> "Listings":
        """Return the plain ones among some partitions."""
        numbered = [(n, k) for n, k in enumerate(looks) if k is not None and k.are_files and k.logs]
        counts = np.array([len(look.logs) for _, look in numbered], np.int64)
        owners = np.repeat(np.arange(len(numbered)), counts)
        facts = [fact for _, look in numbered for fact in look.logs.values()]
        sizes, times = np.array(facts, np.int64).reshape(-1, 2).T
        bases, kinds = parse_file_names([name for _, look in numbered for name in look.logs])
        is_plain = _none_of(owners, (kinds != LOG) | (sizes > MAX_LOG_BYTES), len(numbered))
        order = np.lexsort((bases, owners))
        bases, sizes, times = bases[order], sizes[order], times[order]
        is_plain &= _are_plain([look.others for _, look in numbered], owners, bases)
        is_of_plain = is_plain[owners]
        counts = counts[is_plain]
        plain = [numbered[n][1] for n in np.flatnonzero(is_plain)]
        return cls(
            places=np.array([place for place, _ in numbered], np.int64)[is_plain],
            starts=np.cumsum(counts) - counts,
            base_offsets=bases[is_of_plain],
            sizes=sizes[is_of_plain],
            times_ms=times[is_of_plain],
            oldest_timestamps=np.array(
                [_timestamp_of(look.oldest_entry) for look in plain], np.int64
            ),
            has_age=np.array([look.oldest_entry is not None for look in plain], np.bool_),
            log_ends=np.array(
                [NO_END if look.end is None else look.end for look in plain], np.int64
            ),
        )

    def __len__(self) -> int:
        return len(self.places)

    @property
    def counts(self) -> Numbers:
        """Segments of each partition."""
        counts: Numbers = np.diff(np.append(self.starts, len(self.sizes)))
        return counts

    @property
    def total_bytes(self) -> Numbers:
        """Bytes of all segments of each partition."""
        if not len(self):
            return np.zeros(0, np.int64)
        sums: Numbers = np.add.reduceat(self.sizes, self.starts)
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointColumns:
    """Checkpointed offsets of very many partitions; NO_ENTRY without one."""

    log_start_offsets: Numbers
    high_watermarks: Numbers
    cleaner_offsets: Numbers

    @classmethod
    def of(cls, partitions: Sequence[PartitionCheckpoints]) -> "CheckpointColumns":
        """Return the entries of some partitions."""

        def column(offsets: Iterable[int | None]) -> Numbers:
            values = [NO_ENTRY if each is None else max(each, NO_ENTRY + 1) for each in offsets]
            return np.array(values, np.int64)

        return cls(
            log_start_offsets=column(each.log_start_offset for each in partitions),
            high_watermarks=column(each.high_watermark for each in partitions),
            cleaner_offsets=column(each.cleaner_offset for each in partitions),
        )

    def up_to_log_ends(self) -> "CheckpointColumns":
        """Return the entries without high watermarks: logs count to their ends."""
        return replace(self, high_watermarks=np.full_like(self.high_watermarks, NO_ENTRY))


def _none_of(owners: Numbers, is_one: Mask, count: int) -> Mask:
    """Return by owner whether none of its things is such a one."""
    has_none: Mask = np.bincount(owners[is_one], minlength=count) == 0
    return has_none


def _are_plain(names: Sequence[Sequence[str]], owners: Numbers, bases: Numbers) -> Mask:
    """Return by partition whether all files beside its logs are plain."""
    everything = [name for some in names for name in some]
    holders = np.repeat(np.arange(len(names)), [len(some) for some in names])
    offsets, kinds = parse_file_names(everything)
    is_odd = kinds < 0
    for place in np.flatnonzero(is_odd):
        is_odd[place] = everything[place] not in PLAIN_FILES
    answer = _none_of(holders, is_odd, len(names))
    return answer & _have_companions(len(names), owners, bases, holders, offsets, kinds)


def _have_companions(
    count: int,
    owners: Numbers,
    bases: Numbers,
    holders: Numbers,
    offsets: Numbers,
    kinds: NDArray[np.signedinteger[Any]],
) -> Mask:
    """Return by partition whether each log has its indexes, and each index its log.

    Args:
        owners: int64[n], of each log its partition.
        bases: int64[n], their base offsets, ascending within a partition.
        holders: int64[m], of each other file its partition.
        offsets: int64[m], in their names.
        kinds: int64[m], which of ``SEGMENT_FILE_SUFFIXES``.
    """
    logs = np.bincount(owners, minlength=count)
    answer = np.ones(count, np.bool_)
    for kind in (OFFSET_INDEX, TIME_INDEX):
        these = kinds == kind
        has_as_many = np.bincount(holders[these], minlength=count) == logs
        these &= has_as_many[holders]
        order = np.lexsort((offsets[these], holders[these]))
        compared = has_as_many[owners]
        differs = offsets[these][order] != bases[compared]
        answer &= has_as_many & _none_of(owners[compared], differs, count)
    these = kinds == TXN_INDEX
    if these.any():
        # Each follows its log, if there is one, when both are sorted together.
        both_owners = np.concatenate([owners, holders[these]])
        both_bases = np.concatenate([bases, offsets[these]])
        is_index = np.arange(len(both_bases)) >= len(bases)
        order = np.lexsort((is_index, both_bases, both_owners))
        both_owners, both_bases, is_index = both_owners[order], both_bases[order], is_index[order]
        follows = np.zeros(len(order), np.bool_)
        follows[1:] = (both_owners[1:] == both_owners[:-1]) & (both_bases[1:] == both_bases[:-1])
        answer &= _none_of(both_owners, is_index & ~follows, count)
    return answer


def have_plain_names(files: FolderFiles) -> Mask:
    """Return by folder whether its files are logs with their indexes, and small ones."""
    is_log = files.kinds == LOG
    return files.have(is_log) & _have_companions(
        len(files.is_listed),
        files.folders[is_log],
        files.offsets[is_log],
        files.folders[~is_log],
        files.offsets[~is_log],
        files.kinds[~is_log],
    )


def _timestamp_of(entry: bytes | None) -> int:
    if not entry:
        return NO_TIMESTAMP
    timestamp = np.frombuffer(entry, TIME_INDEX_ENTRY, 1)["timestamp"][0]
    return max(int(timestamp), NO_TIMESTAMP)
