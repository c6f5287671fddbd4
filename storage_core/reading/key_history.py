"""Find all remaining versions of keys, and the erased offsets around. All places with records are
searched.

A log has the versions that neither compaction nor deletion has taken away. Others may be left in
files that Kafka has renamed, in former generations of a managed root, and in the trash of runs.
Nothing is written, and no lock is taken.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.roles import local_path
from storage_core.checkpoint.checkpoints import Checkpoints, read_checkpoints
from storage_core.commit.purge import find_runs
from storage_core.commit.trash import KEPT_FOLDER, list_commits, read_commit
from storage_core.coordinators.transactions import TransactionOutcome
from storage_core.errors import OffsetsInTierError, PylogError, describe_failure
from storage_core.filenames import (
    CLEANER_FILE,
    DELETED_SUFFIX,
    LOG_START_FILE,
    LOG_SUFFIX,
    MAX_OFFSET,
    TopicPartition,
    kind_of,
    log_file,
    offset_of,
    sorted_logs,
)
from storage_core.log.batch_search import ListedSegment
from storage_core.log.committed_view import find_last_stable_offset, scan_batch_tables
from storage_core.log.settled_store import SettledStore, settle
from storage_core.reading.ranges import (
    ReadRange,
    is_compacted_topic,
    is_tiered_topic,
    read_range,
)
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import DEFAULT_LIMITS
from storage_core.roots.open_root import find_root
from storage_core.roots.partition_facts import partition_checkpoints
from storage_core.roots.remote_logs import RemoteLogs
from storage_core.roots.root import Root
from storage_core.store import FileInfo, LogStore, ManagedStore, open_store
from storage_core.store.garbage import kept_generations
from storage_core.store.generations import partition_location
from storage_core.store.local import plain_path

LOG: Final = "log"
DELETED: Final = "deleted"
DIRECTORY: Final = "directory"
GENERATION: Final = "generation"
TRASH: Final = "trash"

ABORTED: Final = "aborted"
UNDECIDED: Final = "undecided"

_COLUMNS: Final = ("key", "value", "offset", "timestamp", "headers")
_MICROSECONDS: Final = 1000
# Default bounds: versions of a key in memory, and bytes of their values and headers.
MOST_VERSIONS: Final = 100_000
_MOST_BYTES: Final = 256 << 20
# Offset, timestamp and value of a version, equal in all its copies.
_Identity: TypeAlias = tuple[int, int | None, bytes | None]
# Directories of a partition that Kafka has renamed.
_RENAMED: Final = frozenset({DirectoryKind.DELETE, DirectoryKind.FUTURE, DirectoryKind.STRAY})
_LOGS: Final = frozenset({DirectoryKind.PARTITION, DirectoryKind.METADATA})


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Where a version is left."""

    # LOG; DELETED, a file that Kafka has renamed; DIRECTORY, one that Kafka has renamed;
    # GENERATION, of a managed root; TRASH, of a run.
    kind: str
    name: str  # name of the directory, the generation, or the run; empty for the log itself
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One record of a key."""

    partition: TopicPartition
    key: bytes | None  # the key, None for null
    offset: int
    timestamp_ms: int | None  # epoch milliseconds; None beyond the range of a calendar
    value: bytes | None  # None for a tombstone
    copies: tuple[Copy, ...]  # where it is left; at least one
    headers: tuple[tuple[str, bytes | None], ...] = ()  # names and values
    is_visible: bool = False  # whether a consumer gets it from the log
    # ABORTED; UNDECIDED where its log is not stable yet, or by `with_outcomes` COMMIT or ABORT of
    # TransactionOutcome; else None.
    transaction: str | None = None
    producer_id: int | None = None  # of the transaction where the log is not stable yet, else None
    # Offset of the next version of the key that is left; None for the newest one that was read, and
    # for one of an aborted transaction, which never was a version.
    superseded_by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHistory:
    """What one partition has of some keys."""

    partition: TopicPartition
    versions: tuple[Version, ...] = ()  # by key and offset; the newest ones where there are many
    left_out: int = 0  # how many records of the keys were read that none of the versions is of
    # First offset that a consumer may see; None without a log, and where it cannot be read.
    log_start_offset: int | None = None
    is_whole: bool = True  # whether the log was read to its end; without a log, all that there is
    # Just past the newest of the versions, or the log's end without any: what was erased is counted
    # up to here. None where nothing is known of that.
    end_offset: int | None = None
    erased_offsets: int = 0
    erased_from_offset: int | None = None  # None of them lies below; None where there are none
    cleaner_offset: int | None = None  # entry of the cleaner's checkpoint, None without
    # Whether it is known that compaction worked here: by that, or by the topic's policy. Else
    # offsets may be missing for another reason.
    is_compacted: bool = False
    errors: tuple[Mapping[str, str | None], ...] = ()

    @property
    def sentence(self) -> str:
        """A sentence for people: what is certain about missing versions."""
        start, end = self.log_start_offset, self.end_offset
        if start is None:
            return f"{self.partition} has no log that can be read: versions may be missing"
        text = f"{self.partition} starts at offset {start}"
        if start:
            text += ": what lay below was deleted, or never copied"
        torn = (
            ""
            if self.is_whole
            else "; it was not read to its end: newer versions may be there (pylog verify)"
        )
        if end is None:
            return f"{text}{torn or '; its batches could not be counted (pylog verify)'}"
        if not self.erased_offsets:
            whole = f"; nothing from there to offset {end} was erased"
            return text + whole + (torn or ("" if start else ": no version is missing"))
        since = (
            ""
            if self.erased_from_offset in {None, start}
            else (f", none of them below {self.erased_from_offset}")
        )
        # A recovery that cuts a batch out of the middle leaves the same gap as a cleaner.
        why = (
            ": compaction or a cut has taken them, and"
            if self.is_compacted
            else " (compaction, a cut or damage: pylog verify);"
        )
        return (
            f"{text}; {self.erased_offsets:,} of the {end - start:,} offsets from there to {end} "
            f"have no record any more{since}{why} older versions of the key may have been among "
            f"them{torn}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentFolder:
    """Segments of a partition that lie together."""

    copy: Copy  # the place of a version in reports, with the directory's path
    location: str
    files: Mapping[str, FileInfo]
    growing: str = ""  # the segment that somebody may append to

    @property
    def logs(self) -> dict[int, FileInfo]:
        """The record files by base offset, in order. A name may have a number in another form
        than Kafka's; opening the file reports it."""
        return {_base_of(name): self.files[name] for name in sorted_logs(self.files)}


@dataclass(slots=True)
class _PartitionHistory:
    """What was found of one partition on the way."""

    partition: TopicPartition
    log: LogStore | None = None  # its log, None without
    log_bytes: int = 0  # size of the log's files
    others: list[_SegmentFolder] = field(default_factory=list)
    errors: list[Mapping[str, str | None]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """About how many bytes of files are read of it."""
        files = (file for place in self.others for file in place.files.values())
        return self.log_bytes + sum(file.size_bytes for file in files)


def find_history(  # each argument is a question of its own, most of them by name
    path: str,
    topic: str,
    keys: Collection[bytes | None],
    *,
    now_ms: int,
    trash: Path | None = None,
    numbers: Collection[int] = (),
    most: int = MOST_VERSIONS,
    on_read: Callable[[int, int], None] | None = None,
) -> Iterator[PartitionHistory]:
    """Yield each partition's versions of some keys, by partition number. A read error belongs to
    its partition, and hides nothing else.

    Args:
        path: Path or URL of a log directory, a managed root or one partition.
        now_ms: The reader's clock, epoch milliseconds.
        trash: The folder in which runs keep what they take away.
        numbers: Partition numbers; none for all.
        most: How many versions of each key, the newest ones; fewer where they are very long. At
            least 1.
        on_read: Told before and after each partition how many bytes were read, and how many there
            are to read, about.
    """
    root, names = find_root(path)

    def is_asked_for(partition: TopicPartition) -> bool:
        return partition.topic == topic and (not numbers or partition.partition in numbers)

    partitions = _look(root, names, trash, is_asked_for)
    # After the listings: a run that removes segments raises the log start first.
    files = [LOG_START_FILE, CLEANER_FILE]
    checkpoints = read_checkpoints(root, files) if partitions else Checkpoints()
    remote = RemoteLogs([root])
    total_bytes = sum(history.size_bytes for history in partitions.values())
    done_bytes = 0
    for _, history in sorted(partitions.items()):
        if on_read is not None:
            on_read(done_bytes, total_bytes)
        yield _history_of(history, keys, (checkpoints, remote), now_ms, most)
        done_bytes += history.size_bytes
    if on_read is not None:
        on_read(done_bytes, total_bytes)


def _look(
    root: Root,
    names: Iterable[str],
    trash: Path | None,
    is_asked_for: Callable[[TopicPartition], bool],
) -> dict[TopicPartition, _PartitionHistory]:
    """Return the requested partitions and all places with their segments."""
    partitions: dict[TopicPartition, _PartitionHistory] = {}
    for name in names:
        kind, partition = classify_directory(name)
        if partition is None or not is_asked_for(partition):
            continue
        history = partitions.setdefault(partition, _PartitionHistory(partition))
        with _noted(history):
            if kind in _LOGS:
                _look_at_log(history, root.locate(name))
            elif kind in _RENAMED:
                store = settle(open_store(root.locate(name)))
                history.others.append(_place_of(DIRECTORY, name, store))
    for partition, place in _places_in_trash(root, trash):
        if is_asked_for(partition):
            partitions.setdefault(partition, _PartitionHistory(partition)).others.append(place)
    return partitions


@contextmanager
def _noted(history: _PartitionHistory) -> Iterator[None]:
    """Note an error about a partition, and go on behind the block."""
    try:
        yield
    except PylogError as error:
        history.errors.append(describe_failure(error))


def _look_at_log(history: _PartitionHistory, location: str) -> None:
    """Take note of a partition's log, and of what is beside it."""
    store = open_store(location)
    history.log = store
    files = store.list_files()
    history.log_bytes = sum(file.size_bytes for file in files if kind_of(file.name) == LOG_SUFFIX)
    if isinstance(store, ManagedStore):
        history.others += _places_of_generations(store)
        return
    deleted = {
        file.name.removesuffix(DELETED_SUFFIX): file
        for file in files
        if file.name.endswith(DELETED_SUFFIX)
        and kind_of(file.name.removesuffix(DELETED_SUFFIX)) == LOG_SUFFIX
    }
    if deleted:
        copy = Copy(kind=DELETED, name="", path=store.location)
        history.others.append(_SegmentFolder(copy=copy, location=location, files=deleted))


def _places_of_generations(store: ManagedStore) -> Iterator[_SegmentFolder]:
    """Yield segments of former generations missing from all later ones. A segment's object never
    changes."""
    segments: set[tuple[str, int, int]] = set()
    for manifest in kept_generations(store.objects, store.partition, grace_start_ms=-MAX_OFFSET):
        files = {}
        for name, entry in manifest.files.items():
            place = (entry.key, entry.start, entry.size_bytes)
            if kind_of(name) == LOG_SUFFIX and entry.size_bytes and place not in segments:
                segments.add(place)
                files[name] = FileInfo(name, entry.size_bytes, entry.modified_ms)
        if files and manifest.generation != store.manifest.generation:
            location = partition_location(store.objects, store.partition, manifest.generation)
            copy = Copy(kind=GENERATION, name=str(manifest.generation), path=location)
            yield _SegmentFolder(copy=copy, location=location, files=files)


def _places_in_trash(
    root: Root, trash: Path | None
) -> Iterator[tuple[TopicPartition, _SegmentFolder]]:
    """Yield a log directory's segments in the trash, oldest run first."""
    directory = None if root.has_manifests else local_path(root.location)
    if trash is None or directory is None:
        return
    for run in find_runs(trash):
        for folder in sorted(list_commits(run)):
            commit = read_commit(folder)
            _, partition = classify_directory(commit.directory.name)
            if partition is None or commit.directory.parent != plain_path(directory):
                continue
            kept_folder = folder / KEPT_FOLDER
            if kept_folder.is_dir():
                store = open_store(str(kept_folder))
                # Segments were put aside as they were, whatever lies beside them.
                logs = {
                    file.name: file
                    for file in store.list_files()
                    if kind_of(file.name) == LOG_SUFFIX
                }
                place = _place_of(TRASH, commit.run_id, SettledStore(store, logs))
                if place.files:
                    yield partition, place


def _place_of(kind: str, name: str, store: SettledStore) -> _SegmentFolder:
    files = {plain: file for plain, file in store.files.items() if kind_of(plain) == LOG_SUFFIX}
    return _SegmentFolder(
        copy=Copy(kind=kind, name=name, path=store.location),
        location=store.location,
        files=files,
        growing=store.growing,
    )


def _history_of(
    sources: _PartitionHistory,
    keys: Collection[bytes | None],
    of_root: tuple[Checkpoints, RemoteLogs],
    now_ms: int,
    most: int,
) -> PartitionHistory:
    """Read all places of a partition."""
    checkpoints, remote = of_root
    places = list(sources.others)
    settled: SettledStore | None = None
    history = PartitionHistory(partition=sources.partition)
    start: int | None = None
    if sources.log is not None:
        with _noted(sources):
            settled = settle(sources.log)
            location = settled.location
            own = partition_checkpoints(sources.log, sources.partition, lambda: checkpoints)
            start = max(own.log_start_offset or 0, *map(_base_of, sorted_logs(settled.files)[:1]))
            history = replace(history, log_start_offset=start, cleaner_offset=own.cleaner_offset)
            places.insert(0, _place_of(LOG, "", settled))
            tier_start = remote.tier_start(
                sources.log,
                sources.partition,
                own,
                start,
                is_tiered=lambda: is_tiered_topic(location, sources.partition.topic),
            )
            if tier_start is not None:
                uploads = remote.uploads(sources.log, sources.partition)
                details = uploads.tell(tier_start, start)
                raise OffsetsInTierError(location, tier_start, start, details)
    newest = _NewestVersions(sources.partition, keys, most)
    # Beside a log, errors in other places do not make the history incomplete.
    needed = {LOG} if sources.log is not None else {place.copy.kind for place in places}
    is_whole = not sources.errors
    for place in places:
        errors = len(sources.errors)
        with _noted(sources):
            newest.add(place)
        is_whole &= place.copy.kind not in needed or len(sources.errors) == errors
    versions = newest.all()
    history = replace(history, left_out=newest.left_out, is_whole=is_whole)
    marked = versions
    if settled is not None and start is not None:
        with _noted(sources):
            last = max((version.offset for version in versions), default=None)
            erased = _Erasure(start, last)
            erased.scan(settled)
            if is_whole or last is not None:
                history = erased.told_in(history)
            if history.cleaner_offset is not None or (
                history.erased_offsets
                and is_compacted_topic(settled.location, sources.partition.topic)
            ):
                history = replace(history, is_compacted=True)
            log = _ConsumerView(settled, sources.partition, start, now_ms)
            marked = log.mark(versions, keys, has_transactions=erased.has_transactions)
    ordered = sorted(marked, key=lambda one: (one.key is not None, one.key or b"", one.offset))
    return replace(history, versions=tuple(_with_successors(ordered)), errors=tuple(sources.errors))


def with_outcomes(
    history: PartitionHistory, outcome_of: Callable[[int, int], str | None]
) -> PartitionHistory:
    """Return a history with what was decided of the transactions that are open in its log. A
    version whose coordinator has decided to commit it supersedes older ones.

    Args:
        outcome_of: By producer and offset; None where no such transaction is open.
    """
    decided = [
        version
        if version.producer_id is None
        else replace(
            version,
            transaction=outcome_of(version.producer_id, version.offset) or version.transaction,
        )
        for version in history.versions
    ]
    return replace(history, versions=tuple(_with_successors(decided)))


def _with_successors(versions: Sequence[Version]) -> Iterator[Version]:
    """Yield versions by key and offset, each with its successor's offset."""
    following: dict[bytes | None, int] = {}
    linked: list[Version] = []
    for version in reversed(versions):
        if version.transaction not in {None, TransactionOutcome.COMMIT}:
            linked.append(version)
            continue
        linked.append(replace(version, superseded_by=following.get(version.key)))
        following[version.key] = version.offset
    yield from reversed(linked)


class _NewestVersions:
    """A partition's newest versions of keys from all places, in bounded memory.

    Of each key there is an offset from which on all versions of all places are kept. It rises when
    there are too many of them, and what lies below it is let go.

    Args:
        most: How many versions of each are kept, at least 1.
    """

    def __init__(
        self, partition: TopicPartition, keys: Collection[bytes | None], most: int
    ) -> None:
        self._partition = partition
        self._most = most
        self._floors: dict[bytes | None, int] = dict.fromkeys(keys, 0)
        self._versions: dict[bytes | None, dict[_Identity, Version]] = {key: {} for key in keys}
        self._records = 0

    @property
    def left_out(self) -> int:
        """Number of the keys' records read, other than kept versions' copies."""
        return self._records - sum(len(version.copies) for version in self.all())

    def all(self) -> list[Version]:
        """Return the versions."""
        return [version for of_key in self._versions.values() for version in of_key.values()]

    def add(self, place: _SegmentFolder) -> None:
        """Read a place; what comes before damage counts."""
        tails = {key: _NewestRecords(self._most) for key in self._floors}
        try:
            for batch in _read(self._partition, place, self._floors):
                self._records += batch.num_rows
                for key, tail in tails.items():
                    tail.add(batch if len(tails) == 1 else batch.filter(_has_key(batch, key)))
        finally:
            for key, tail in tails.items():
                self._take(key, tail, place)

    def _take(self, key: bytes | None, tail: "_NewestRecords", place: _SegmentFolder) -> None:
        versions = self._versions[key]
        floor = max(self._floors[key], tail.floor)
        for version in _versions_in(self._partition, place, tail.batches):
            same = (version.offset, version.timestamp_ms, version.value)
            twin = versions.get(same)
            copies = (*twin.copies, *version.copies) if twin else version.copies
            versions[same] = replace(version, copies=copies)
        self._floors[key] = floor = max(floor, self._lowest(versions.values()))
        self._versions[key] = {
            same: version for same, version in versions.items() if same[0] >= floor
        }

    def _lowest(self, versions: Iterable[Version]) -> int:
        """Return the offset of the oldest version to keep; 0 for all. There is no room for older
        ones."""
        room, lowest = _MOST_BYTES, 0
        newest_first = sorted(versions, key=lambda version: version.offset, reverse=True)
        for count, version in enumerate(newest_first):
            room -= len(version.value or b"")
            room -= sum(len(name) + len(value or b"") for name, value in version.headers)
            if count and (count >= self._most or room < 0):
                return lowest
            lowest = version.offset
        return 0


class _NewestRecords:
    """The newest records of a key in one place.

    Args:
        most: About how many; never fewer, unless they have more than ``_MOST_BYTES``.

    Attributes:
        floor: Offset below which versions were dropped.
    """

    def __init__(self, most: int) -> None:
        self.batches: deque[pa.RecordBatch] = deque()
        self.floor = 0
        self._most = most
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next records."""
        if not batch.num_rows:
            return
        self.batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        while len(self.batches) > 1 and (
            self._rows - self.batches[0].num_rows >= self._most or self._bytes > _MOST_BYTES
        ):
            gone = self.batches.popleft()
            self._rows -= gone.num_rows
            self._bytes -= gone.nbytes
            self.floor = gone.column("offset")[-1].as_py() + 1


def _has_key(batch: pa.RecordBatch, key: bytes | None) -> pa.BooleanArray:
    keys = batch.column("key")
    return pc.is_null(keys) if key is None else pc.fill_null(pc.equal(keys, key), False)  # noqa: FBT003  # Arrow's


def _versions_in(
    partition: TopicPartition, place: _SegmentFolder, batches: Iterable[pa.RecordBatch]
) -> Iterator[Version]:
    logs = place.logs
    bases = list(logs)
    for batch in batches:
        times = batch.column("timestamp").cast("int64").to_pylist()
        names = ("key", "value", "offset", "headers")
        columns = (batch.column(name).to_pylist() for name in names)
        for key, value, offset, headers, at in zip(*columns, times, strict=True):
            file = logs[bases[max(bisect_right(bases, offset) - 1, 0)]]
            path = f"{place.copy.path}/{file.name}"
            yield Version(
                partition=partition,
                key=key,
                offset=offset,
                timestamp_ms=None if at is None else at // _MICROSECONDS,
                value=value,
                headers=tuple((each["key"], each["value"]) for each in headers or ()),
                copies=(replace(place.copy, path=path),),
            )


def _read(
    partition: TopicPartition,
    place: _SegmentFolder,
    keys: Collection[bytes | None],
    *,
    end_offset: int | None = None,
    is_committed: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of some keys in a place, in offset order."""
    logs = place.logs
    if not logs:
        return
    segments = tuple(
        ListedSegment(
            base_offset=base,
            size_bytes=file.size_bytes,
            has_offset_index=False,
            has_time_index=False,
        )
        for base, file in logs.items()
    )
    wanted = ReadRange(
        directory=place.location,
        partition=partition,
        segments=segments,
        files=place.files,
        growing=place.growing,
        next_base_offset=None,
        start_offset=0,
        end_offset=end_offset,
        is_cut=False,
        size_bytes=sum(segment.size_bytes for segment in segments),
        is_committed=is_committed,
        # Records missing between segments are reported for the whole log, not here.
        cleaned_to=MAX_OFFSET,
        fail_on_data_loss=False,
        columns=_COLUMNS,
        keys=frozenset(keys),
        limits=DEFAULT_LIMITS,
    )
    yield from read_range(wanted)


class _ConsumerView:
    """The log of a partition, for what a consumer gets of it."""

    def __init__(
        self, store: SettledStore, partition: TopicPartition, log_start_offset: int, now_ms: int
    ) -> None:
        self._store = store
        self._partition = partition
        self._log_start_offset = log_start_offset
        self._now_ms = now_ms

    def mark(
        self,
        versions: Iterable[Version],
        keys: Collection[bytes | None],
        *,
        has_transactions: bool,
    ) -> list[Version]:
        """Return versions with what a consumer sees of them."""
        in_log = [v for v in versions if any(copy.kind == LOG for copy in v.copies)]
        others = [v for v in versions if all(copy.kind != LOG for copy in v.copies)]
        outcome: dict[int, str] = {}
        if has_transactions and in_log:
            outcome = self._outcomes([v.offset for v in in_log], keys)
        unstable = [offset for offset, name in outcome.items() if name == UNDECIDED]
        producers = self._producers(unstable) if unstable else {}
        marked = [
            replace(
                version,
                transaction=outcome.get(version.offset),
                producer_id=producers.get(version.offset),
                is_visible=version.offset >= self._log_start_offset
                and outcome.get(version.offset) != ABORTED,
            )
            for version in in_log
        ]
        return [*marked, *others]

    def _outcomes(self, offsets: Sequence[int], keys: Collection[bytes | None]) -> dict[int, str]:
        """Return of those offsets that a committed read does not give, why."""
        stable = find_last_stable_offset(
            self._store, now_ms=self._now_ms, log_start_checkpoint=self._log_start_offset
        )
        place = _place_of(LOG, "", self._store)
        asked, committed = set(offsets), set()
        for batch in _read(self._partition, place, keys, end_offset=stable, is_committed=True):
            committed |= asked.intersection(batch.column("offset").to_pylist())
        return {
            offset: UNDECIDED if offset >= stable else ABORTED
            for offset in offsets
            if offset not in committed
        }

    def _producers(self, offsets: Collection[int]) -> dict[int, int]:
        """Return the producers of those offsets that are part of transactions."""
        bases = [_base_of(name) for name in sorted_logs(self._store.files)]
        wanted = np.array(sorted(offsets))
        producers: dict[int, int] = {}
        for base in bases[max(bisect_right(bases, int(wanted[0])) - 1, 0) :]:
            for batches in scan_batch_tables(self._store, log_file(base)):
                first = np.searchsorted(wanted, batches.base_offset)
                last = np.searchsorted(wanted, batches.last_offset, side="right")
                for row in np.flatnonzero(batches.is_transactional & (last > first)):
                    found = wanted[first[row] : last[row]].tolist()
                    producers |= dict.fromkeys(found, int(batches.producer_id[row]))
        return producers


class _Erasure:
    """Count the offsets without a record, from all batch headers.

    Args:
        newest: Last one that counts; None to count to the log's end.

    Attributes:
        has_transactions: Whether any batch is part of one.
    """

    def __init__(self, start: int, newest: int | None) -> None:
        self.has_transactions = False
        self._newest = newest
        self._next = start
        self._count = 0
        self._first: int | None = None

    def scan(self, store: SettledStore) -> None:
        """Scan a log's batch headers up to the newest offset that counts."""
        for name in sorted_logs(store.files):
            for batches in scan_batch_tables(store, log_file(_base_of(name))):
                self._add(batches)
                if self._newest is not None and self._next > self._newest:
                    return

    def _add(self, batches: BatchTable) -> None:
        self.has_transactions |= bool(batches.is_transactional.any())
        first, last = batches.base_offset, np.minimum(batches.last_offset, MAX_OFFSET - 1)
        ends = np.maximum.accumulate(np.concatenate([[self._next], last + 1]))
        before = ends[:-1]
        is_counted = first <= (MAX_OFFSET if self._newest is None else self._newest)
        # A wrapper of an old format names only its last offset.
        says_first = is_counted & ~batches.is_message_set
        between = np.where(says_first, np.maximum(first - before, 0), 0)
        inside = last - first + 1 - batches.counted_records
        is_whole = is_counted & ~batches.is_legacy & (first >= before)
        inside = np.where(is_whole, np.maximum(inside, 0), 0)
        rows = np.flatnonzero(between + inside)
        if rows.size and self._first is None:
            row = rows[0]
            self._first = int(before[row] if between[row] else first[row])
        self._count += int(between.sum()) + int(inside.sum())
        self._next = int(ends[-1])

    def told_in(self, history: PartitionHistory) -> PartitionHistory:
        """Return a history with what was counted."""
        return replace(
            history,
            end_offset=self._next if self._newest is None else self._newest + 1,
            erased_offsets=self._count,
            erased_from_offset=self._first,
        )


def _base_of(log: str) -> int:
    return offset_of(log) or 0
