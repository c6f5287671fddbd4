"""Sort a partition directory's files by kind; report wrong names."""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES
from storage_core.filenames import (
    ANCIENT_SUFFIX,
    CHECKPOINT_DELETED_SUFFIX,
    CLEANED_SUFFIX,
    CLUSTER_SNAPSHOT_SUFFIX,
    DELETED_SUFFIX,
    LEADER_EPOCH_FILE,
    LOCK_FILE,
    LOG_SUFFIX,
    MANIFEST_FILE,
    MAX_OFFSET,
    META_PROPERTIES_FILE,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    QUORUM_STATE_FILE,
    SCRATCH_PREFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    is_of_no_segment,
    kind_of,
    offset_of,
    parse_cluster_snapshot,
    segment_file,
)
from storage_core.local_files import ROOT_USER, Entry, open_folder, scan_open
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.findings import BrokerUser, Code, Severity
from storage_core.store.base import FileInfo
from storage_core.store.tier_archive import is_in_tier

# Find files of a log directory closed to the broker's user. This program's user may be able to
# open them.
#
# The doctor is often run as root, and so was what left the files: a broker that is another user
# takes a log directory offline for one file of its that it may not open. Who that user is, no file
# says; most of what lies in a log directory is its own.

_READ: Final = 0o4
_READ_WRITE: Final = 0o6
_LIST: Final = 0o5
_CHANGE: Final = 0o7
_READ_FILES: Final = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, QUORUM_STATE_FILE})


def find_forbidden(path: Path, findings: FindingCollector) -> BrokerUser | None:
    """Report a log directory's files, but partitions', forbidden to its broker.

    Returns:
        The broker's user; None where it is root, who may do everything.
    """
    with open_folder(path, may_be_link=True) as folder:
        own, entries = os.fstat(folder), scan_open(folder)
    owners = Counter(entry.facts.st_uid for entry in entries).most_common(1)
    if not owners or owners[0][0] == ROOT_USER:
        return None
    user = BrokerUser(owners[0][0])
    if not user.may(own, _LIST):
        findings.add(Code.FILE_FORBIDDEN, _message(user, own))
    elif not user.may(own, _CHANGE):
        findings.add(Code.LOG_DIRECTORY_FORBIDDEN, _message(user, own))
    for entry in entries:
        access = _READ if entry.name in {META_PROPERTIES_FILE, *CHECKPOINT_FILES} else 0
        if entry.is_folder:
            access = _CHANGE
        elif entry.name == LOCK_FILE:
            access = _READ_WRITE
        if not entry.is_link and not user.may(entry.facts, access):
            findings.add(Code.FILE_FORBIDDEN, _message(user, entry.facts), file=entry.name)
    return user


def check_rights(
    entries: Iterable[Entry], user: BrokerUser, *, last_base: int, findings: FindingCollector
) -> None:
    """Report a partition's files closed to a broker at its start.

    Args:
        last_base: Base offset of the last segment, whose indexes take new entries.
    """
    for entry in entries:
        kind, access = kind_of(entry.name), 0
        is_index = kind in {OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX}
        is_written = is_index and offset_of(entry.name) == last_base
        if kind in {LOG_SUFFIX, TXN_INDEX_SUFFIX} or is_written:
            access = _READ_WRITE
        elif kind is not None or entry.name in _READ_FILES or parse_cluster_snapshot(entry.name):
            access = _READ
        if entry.is_file and not user.may(entry.facts, access):
            findings.add(Code.FILE_FORBIDDEN, _message(user, entry.facts), file=entry.name)


def _message(user: BrokerUser, facts: os.stat_result) -> str:
    mode = stat.filemode(facts.st_mode)
    return (
        f"user {facts.st_uid} owns it ({mode}), most of the log directory is user {user.number}'s"
    )


_KNOWN_NAMES: Final = frozenset(
    {LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, MANIFEST_FILE, QUORUM_STATE_FILE}
)
# Description of a name that a broker does not see; see ``filenames.is_text``.
NOT_TEXT: Final = "the name is not UTF-8: a broker does not see it"
_OURS_OR_GOING: Final = (DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """One segment as a listing shows it."""

    base_offset: int
    log: FileInfo
    next_base_offset: int | None  # base offset of the following segment, None for the last one
    offset_index: FileInfo | None  # its .index, None without one
    time_index: FileInfo | None  # its .timeindex, None without one
    txn_index: FileInfo | None  # its .txnindex, None without one

    @property
    def is_last(self) -> bool:
        """Whether it is the segment that takes appends."""
        return self.next_base_offset is None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFiles:
    """The files of a partition."""

    names: frozenset[str]
    segments: tuple[SegmentFiles, ...]  # in order of base offsets, the active one last
    snapshots: tuple[int, ...] = field(default=())  # offsets of the producer snapshots, rising

    @property
    def size_bytes(self) -> int:
        """Bytes of all .log files."""
        return sum(segment.log.size_bytes for segment in self.segments)


def sort_files(listing: Iterable[FileInfo]) -> PartitionFiles:
    """Sort a listing into segments, snapshots and other names. A segment's name must be written
    as Kafka writes it."""
    files = {file.name: file for file in listing}
    bases = sorted(
        base
        for name in files
        if kind_of(name) == LOG_SUFFIX
        and (base := offset_of(name)) is not None
        and name == segment_file(base, LOG_SUFFIX)
    )
    following: list[int | None] = [*bases[1:], None]
    segments = tuple(
        SegmentFiles(
            base_offset=base,
            log=files[segment_file(base, LOG_SUFFIX)],
            next_base_offset=after,
            offset_index=files.get(segment_file(base, OFFSET_INDEX_SUFFIX)),
            time_index=files.get(segment_file(base, TIME_INDEX_SUFFIX)),
            txn_index=files.get(segment_file(base, TXN_INDEX_SUFFIX)),
        )
        for base, after in zip(bases, following if bases else [], strict=True)
    )
    snapshots = sorted(
        offset
        for name in files
        if kind_of(name) == SNAPSHOT_SUFFIX and (offset := offset_of(name)) is not None
    )
    return PartitionFiles(names=frozenset(files), segments=segments, snapshots=tuple(snapshots))


def check_names(files: PartitionFiles, findings: FindingCollector) -> None:
    """Report leftovers, foreign files, and names fatal to a broker."""
    bases = {segment.base_offset for segment in files.segments}
    for name in sorted(files.names):
        if name in _KNOWN_NAMES or name.endswith(
            (CLUSTER_SNAPSHOT_SUFFIX, CHECKPOINT_DELETED_SUFFIX)
        ):
            continue
        if is_of_no_segment(name):
            findings.add(Code.FILE_NAME_INVALID, "expected an offset before the suffix", file=name)
        elif name.endswith(SWAP_SUFFIX):
            findings.add(Code.SWAP_UNFINISHED, "a swap was under way", file=name)
        elif _is_ours_or_kafkas(name):
            findings.add(Code.LEFTOVER, "left by a deletion, a cleaning or a crash", file=name)
        elif name.endswith((*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)):
            _check_segment_file(name, bases, findings)
        elif name.endswith(ANCIENT_SUFFIX) and offset_of(name) is not None and not bases:
            findings.add(Code.FILE_ANCIENT, "records of Kafka 0.7 or older", file=name)
        elif (base := base_of_renamed(name)) is None or base in bases:
            findings.add(Code.FILE_UNKNOWN, "not a name that Kafka gives", file=name)


def base_of_renamed(name: str) -> int | None:
    """Return the base offset of a renamed segment, else None."""
    stem, _, suffix = name.partition(LOG_SUFFIX)  # .1.gz, .zst, or -20261128.gz behind it
    base = offset_of(f"{stem}{LOG_SUFFIX}") if suffix and not _is_ours_or_kafkas(name) else None
    return base if base is not None and stem == segment_file(base, "") else None


def _is_ours_or_kafkas(name: str) -> bool:
    return name.startswith(SCRATCH_PREFIX) or name.endswith((*_OURS_OR_GOING, SWAP_SUFFIX))


def check_folders(
    names: Iterable[str], files: PartitionFiles, *, log_end_offset: int, findings: FindingCollector
) -> None:
    """Report folders in the place of files.

    A start opens the small files, each transaction index, and the other indexes of the last
    segment; it writes a snapshot of the producers at the log's end, and looks at no other one.
    """
    last = files.segments[-1].base_offset if files.segments else 0
    opened = {LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, QUORUM_STATE_FILE}
    opened |= {segment_file(last, suffix) for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)}
    if log_end_offset <= MAX_OFFSET:  # a hostile batch may end at the last offset that there is
        opened.add(segment_file(log_end_offset, SNAPSHOT_SUFFIX))
    for name in names:
        message = "expected a file, found a folder"
        if name in opened or kind_of(name) == TXN_INDEX_SUFFIX:
            findings.add(Code.FILE_IS_FOLDER, message, file=name)
        elif kind_of(name) in {OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX}:
            findings.add(Code.FILE_IS_FOLDER, message, file=name, severity=Severity.ERROR)


def check_side_files(segments: Sequence[SegmentFiles], findings: FindingCollector) -> None:
    """Report segments whose offset or time index is not there."""
    for segment in segments:
        for code, file, suffix in (
            (Code.OFFSET_INDEX_MISSING, segment.offset_index, OFFSET_INDEX_SUFFIX),
            (Code.TIME_INDEX_MISSING, segment.time_index, TIME_INDEX_SUFFIX),
        ):
            # In a tier a segment of which only a part counts has no indexes.
            if file is None and not is_in_tier(segment.log):
                name = segment_file(segment.base_offset, suffix)
                findings.add(code, f"{segment.log.name} has no {name}", file=name)


def _check_segment_file(name: str, bases: set[int], findings: FindingCollector) -> None:
    offset, kind = offset_of(name), kind_of(name)
    if offset is None or kind is None:
        findings.add(Code.FILE_NAME_INVALID, "expected an offset before the suffix", file=name)
    elif name != segment_file(offset, kind):
        expected = segment_file(offset, kind)
        findings.add(Code.FILE_NAME_UNPADDED, f"expected the name {expected}", file=name)
    elif kind not in {LOG_SUFFIX, SNAPSHOT_SUFFIX} and offset not in bases:
        expected = segment_file(offset, LOG_SUFFIX)
        findings.add(Code.INDEX_WITHOUT_LOG, f"there is no {expected}", file=name)
