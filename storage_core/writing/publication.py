"""Begin and commit a write on the driver, all or nothing.

A commit has three steps. First the staged batches become segments in the write's own folder, by the
append path: each partition's records get the offsets behind its log, in the order of the tasks, in
new segments. Then a file in that folder says that the write is decided, and what is to be done.
Then the segments are renamed into the directory. Whoever is killed before the second step leaves a
folder that the next write removes; whoever is killed after it, one that the next write finishes.
Between two renames each partition is a log that Kafka loads, with all of its new segments up to one
of them.
"""

import logging
import os
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from storage_core.checkpoint.checkpoints import (
    CHECKPOINT_FILES,
    PartitionMetadata,
    encode_partition_metadata,
)
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.clock import Clock, ManualClock
from storage_core.commit import (
    CommitPlan,
    Operation,
    PromoteFile,
    SyncDirectory,
    commit,
)
from storage_core.commit.scratch import scratch_home
from storage_core.config import CleanerConfig
from storage_core.errors import GuardRefusedError, InvalidNameError, StorageError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    STAGING_PREFIX,
    TEMPORARY_SUFFIX,
    TopicPartition,
    kind_of,
    offset_of,
    parse_partition_directory,
    segment_file,
)
from storage_core.json_values import parse_json, read_value, to_json
from storage_core.local_files import (
    facts_in,
    folder_names,
    is_there,
    open_folder,
    require_ours,
    scan_folder,
)
from storage_core.log.log_loader import load_log
from storage_core.log.unified_log import UnifiedLog
from storage_core.roots.broker import write_checkpoints
from storage_core.roots.guards import check_off_switch
from storage_core.roots.open_root import root_checkpoints
from storage_core.store.local import (
    PUBLIC_MODE,
    LocalStore,
    make_folder,
    storage_errors,
    write_record,
)
from storage_core.writing.staging import (
    DESTINATION,
    POSITION,
    SIZE,
    StagedRecords,
    WriteRequest,
    WriteRun,
    read_extents,
    superseded,
)

# A log directory owned by writes: its lock, state and staging folders.
#
# A file of ours in the directory, which Kafka ignores, says that it is one, which write was the
# last and which transactions were committed. Only an absent, an empty or such a directory is
# written, and not once it is a broker's: other replicas would not have the records.
#
# A write waits for its commit in a folder of its own beside the directory. There is one write at
# a time: whoever begins one takes the folders of all others away, so that what is left of a
# killed write, a task of it that still runs included, comes to nothing.

STATE_FILE: Final = "pylog-write.json"
_MARKER_FORMAT: Final = "pylog-write"
_MARKER_VERSION: Final = 1
_REMOVALS_BESIDE_TASKS: Final = 20
_MAX_STATE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What the file of a written directory says."""

    run_id: str = ""  # the last write that was committed; empty before the first
    # Last committed version by application.
    transactions: Mapping[str, int] = field(default_factory=dict)
    format: str = _MARKER_FORMAT
    version: int = _MARKER_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDirectory:
    """A directory that nobody else writes at this moment."""

    state: TargetState
    lock: LogDirectoryLock


@contextmanager
def hold_directory(directory: Path) -> Iterator[HeldDirectory]:
    """Hold a directory, made if missing, for the block under Kafka's lock."""
    read_target(directory)
    with storage_errors(directory):
        make_folder(directory, mode=PUBLIC_MODE)
    check_off_switch(directory)
    with LogDirectoryLock(directory) as lock:
        state = read_target(directory)
        if not LocalStore(directory, may_be_link=True).has(STATE_FILE):
            write_target(directory, state)
        yield HeldDirectory(state=state, lock=lock)


def read_target(directory: Path) -> TargetState:
    """Return a directory's state; absent or empty ones have a new one."""
    with storage_errors(directory):
        there = directory.exists()
        entries = scan_folder(directory, may_be_link=True) if there else []
    names = {entry.name for entry in entries}
    # Remains of a write that was killed in its first step.
    if names <= {STATE_FILE + TEMPORARY_SUFFIX, LOCK_FILE}:
        return TargetState()
    if META_PROPERTIES_FILE in names:
        raise GuardRefusedError(
            "TARGET_IS_A_BROKERS",
            f"{directory} is a broker's log directory ({META_PROPERTIES_FILE}): records that are "
            "written into it would be on no other replica; write a directory of its own",
        )
    if STATE_FILE not in names:
        other = min(names - {LOCK_FILE})
        raise GuardRefusedError(
            "TARGET_NOT_EMPTY",
            f"{directory} has {other} and was not begun by a write; name an empty one",
        )
    store = LocalStore(directory, may_be_link=True)
    content = store.read_file(STATE_FILE, limit_bytes=_MAX_STATE_BYTES)
    try:
        state: TargetState = read_value(
            TargetState, parse_json(content, limit_bytes=_MAX_STATE_BYTES), "state"
        )
    except ValueError as error:
        reason = f"is not what this program writes: {error}"
        raise StorageError(str(directory / STATE_FILE), reason) from error
    if (state.format, state.version) != (_MARKER_FORMAT, _MARKER_VERSION):
        reason = (
            f"expected {_MARKER_FORMAT} {_MARKER_VERSION}, found {state.format} {state.version}"
        )
        raise StorageError(str(directory / STATE_FILE), reason)
    return state


def write_target(directory: Path, state: TargetState) -> None:
    """Write the file of a directory that says what it is."""
    content = to_json(state).encode()
    LocalStore(directory, may_be_link=True).write_file(STATE_FILE, content)


def staging_home(directory: Path) -> Path:
    """Return the folder beside a directory in which writes have theirs."""
    home = scratch_home(directory, STAGING_PREFIX)
    if home is None:
        raise GuardRefusedError(
            "NO_STAGING",
            f"{directory} is a mount point, or lies in a broker's log directory: nothing beside it "
            "can be renamed into it; name a folder below the mount point",
        )
    return home


def staged_runs(home: Path, owner: int) -> list[str]:
    """Return the names of the writes with a folder beside a directory.

    Args:
        owner: User id of the directory's owner.
    """
    with storage_errors(home):
        if not is_there(home, may_be_link=True):
            return []
        with open_folder(home) as opened:
            require_ours(os.fstat(opened), owner)
        return [entry.name for entry in scan_folder(home) if entry.is_folder]


def remove_staging(folder: Path) -> None:
    """Remove a write's folder, and the folder above if empty then."""
    # A task that was told to end, or was superseded, may still put a file into a folder that is
    # being emptied, or take one out; once the folder is removed, it cannot.
    for _ in range(_REMOVALS_BESIDE_TASKS):
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)  # which follows no link
    with storage_errors(folder):
        if folder.is_dir():
            shutil.rmtree(folder)
    remove_if_empty(folder.parent)


def remove_if_empty(home: Path) -> None:
    """Remove the folder of all writes to a directory if empty."""
    with storage_errors(home):
        if home.is_dir() and not scan_folder(home):
            home.rmdir()


RECORD_FILE: Final = "commit.json"
_READY: Final = "ready"
_FORMER: Final = "former"
_FORMAT: Final = "pylog-write-commit"
_VERSION: Final = 1
_MAX_RECORD_BYTES: Final = 1 << 30
_MOST_THREADS: Final = 8
_log: Final = logging.getLogger(__name__)

# The place of an extent of a partition: file, position, bytes.
_Extent = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A file that a commit gives its place in a partition's directory."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """What a commit does to one partition."""

    partition: str
    is_new: bool  # whether the directory is put in place as a whole; else its files one by one
    first_offset: int
    end_offset: int
    files: tuple[StagedFile, ...]  # files of the new segments, in the order of their renames


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDecision:
    """The decision on a write: from now on anybody may finish it."""

    run_id: str
    removed: tuple[str, ...]
    changes: tuple[PartitionChange, ...]
    app_id: str = ""  # application id of its transaction, empty without one
    app_version: int = 0
    format: str = _FORMAT
    version: int = _VERSION


def begin_write(request: WriteRequest, *, clock: Clock) -> WriteRun:
    """Begin a write on the driver: settle former writes, make its folder. Remains of former
    writes are finished or removed. It is called once."""
    directory = Path(request.directory)
    with hold_directory(directory) as held:
        home = staging_home(directory)
        state = _settle_others(directory, held.state, home)
        counts: dict[str, int] = {}
        for name in _partitions_of(directory):
            counts[name.topic] = max(counts.get(name.topic, 0), name.partition + 1)
        if request.is_overwrite and request.partitions is not None:
            counts = {}
        run_id = uuid.uuid4().hex
        run = WriteRun(
            request=request,
            run_id=run_id,
            staging=str(home / run_id),
            now_ms=clock.now_ms(),
            counts=counts,
            is_done=_is_committed(request, state),
        )
        if run.is_done:
            _log.info("%s: this write was committed before; nothing to do", directory)
            return run
        with storage_errors(home):
            make_folder(Path(run.staging))
        return run


def commit_write(run: WriteRun, staged: Sequence[StagedRecords]) -> None:
    """Commit a write's staged tasks at once, on the driver. A second call changes nothing.

    Args:
        staged: The staged records of one attempt of each task, in the order of the tasks: the order
            of the records in each partition.
    """
    if run.is_done:
        return
    directory, staging = Path(run.request.directory), Path(run.staging)
    with hold_directory(directory) as held:
        if held.state.run_id == run.run_id:
            return
        if not LocalStore(staging).has(RECORD_FILE):
            if not staging.is_dir():
                raise superseded(run)
            if _is_committed(run.request, held.state):
                remove_staging(staging)
                return
            record = _assemble(run, staged)
            held.lock.validate_held()
            write_record(staging / RECORD_FILE, to_json(record).encode())
        try:
            _publish(directory, held.state, staging)
        except (GuardRefusedError, StorageError) as error:
            error.add_note(
                f"The write is decided; the next write to {directory} finishes it. A repetition "
                "would write the records twice, unless it has its txnAppId and txnVersion."
            )
            raise
    records = sum(each.records for each in staged)
    _log.info("%s: %d records written by write %s", directory, records, run.run_id)


def abort_write(run: WriteRun) -> None:
    """Remove what a write has staged, unless it was decided."""
    staging = Path(run.staging)
    if run.is_done or LocalStore(staging).has(RECORD_FILE):
        return
    remove_staging(staging)


def _is_committed(request: WriteRequest, state: TargetState) -> bool:
    transaction = request.transaction
    if transaction is None:
        return False
    return state.transactions.get(transaction.app_id, -1) >= transaction.version


def _settle_others(directory: Path, state: TargetState, home: Path) -> TargetState:
    """Finish the decided write, if any, and remove all others' folders."""
    with storage_errors(directory):
        owner = directory.stat().st_uid
    for name in staged_runs(home, owner):
        folder = home / name
        if LocalStore(folder).has(RECORD_FILE) and state.run_id != name:
            _log.warning("%s: finishes write %s, which was killed in its commit", directory, name)
            state = _publish(directory, state, folder)
        else:
            _log.warning("%s: removes what write %s has left", directory, name)
            remove_staging(folder)
    remove_if_empty(home)
    return state


def _partitions_of(directory: Path) -> list[TopicPartition]:
    with storage_errors(directory):
        names = folder_names(directory)
    partitions = []
    for name in names:
        try:
            partitions.append(parse_partition_directory(name))
        except InvalidNameError as error:
            raise GuardRefusedError(
                "TARGET_NOT_EMPTY", f"{directory} has {name}, which no write has put there"
            ) from error
    return partitions


# From batches to segments, in the write's own folder.


def _assemble(run: WriteRun, staged: Sequence[StagedRecords]) -> WriteDecision:
    """Build the segments of all partitions in the write's folder, anew. Remains of a former
    commit are removed."""
    request, staging = run.request, Path(run.staging)
    ready = staging / _READY
    with storage_errors(ready):
        if ready.is_dir():
            shutil.rmtree(ready)
        make_folder(ready)
    _check_room(staging, staged)
    there = frozenset(_partitions_of(Path(request.directory)))
    extents = _extents_by_partition(LocalStore(staging), staged)
    wanted = sorted({*extents, *_empty_partitions(run, {name.topic for name in extents})})
    bases = {} if request.is_overwrite else _log_ends(request, there.intersection(wanted))
    with ThreadPoolExecutor(max_workers=min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        built = threads.map(
            lambda name: _build_partition(run, name, bases.get(name), extents.get(name, ())), wanted
        )
        changes = tuple(change for change in built if change is not None)
    transaction = request.transaction
    return WriteDecision(
        run_id=run.run_id,
        removed=tuple(map(str, sorted(there))) if request.is_overwrite else (),
        changes=changes,
        app_id="" if transaction is None else transaction.app_id,
        app_version=0 if transaction is None else transaction.version,
    )


def _check_room(staging: Path, staged: Sequence[StagedRecords]) -> None:
    needed = sum(each.size_bytes for each in staged)
    with storage_errors(staging):
        free = shutil.disk_usage(staging).free
    if needed > free:
        raise GuardRefusedError(
            "NO_SPACE",
            f"{staging} has {free} bytes of room, the segments of this write need {needed}",
        )


def _extents_by_partition(
    store: LocalStore, staged: Sequence[StagedRecords]
) -> dict[TopicPartition, list[_Extent]]:
    extents: defaultdict[TopicPartition, list[_Extent]] = defaultdict(list)
    for each in staged:
        names = [TopicPartition(topic, number) for topic, number in each.destinations]
        for row in read_extents(store, each).tolist():
            extents[names[row[DESTINATION]]].append((each.name, row[POSITION], row[SIZE]))
    return dict(extents)


def _empty_partitions(run: WriteRun, topics: set[str]) -> Iterator[TopicPartition]:
    """Yield all partitions of this write's new topics with a partition count."""
    request = run.request
    for topic in topics if request.topic is None else {*topics, request.topic}:
        is_new = request.is_overwrite or topic not in run.counts
        count = run.counts.get(topic, request.partitions) if is_new else None
        for number in range(count or 0):
            yield TopicPartition(topic, number)


def _log_ends(request: WriteRequest, names: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the log end offsets of partitions that get more records."""
    directory = Path(request.directory)
    checkpoints = root_checkpoints(request.directory, (LOG_START_FILE,))
    ends = {}
    for name in names:
        log = load_log(
            LocalStore(directory / str(name)),
            config=request.config,
            cleaner=CleanerConfig(),
            now_ms=0,
            log_start_checkpoint=checkpoints.of(name).log_start_offset or 0,
        )
        if log.producers or any(entry.epoch for entry in log.epochs):
            raise GuardRefusedError(
                "LOG_CHANGED",
                f"{directory / str(name)} has records of producers or of other leader epochs, "
                "which no write has put there",
            )
        ends[name] = log.log_end_offset
    return ends


def _build_partition(
    run: WriteRun, name: TopicPartition, base: int | None, extents: Sequence[_Extent]
) -> PartitionChange | None:
    """Build a partition's new segments; None if nothing changes.

    Args:
        base: Its log end offset; None for a new one.
        extents: Where its batches lie, in order.
    """
    if base is not None and not extents:
        return None
    request, staging = run.request, LocalStore(Path(run.staging))
    folder = staging.directory / _READY / str(name)
    with UnifiedLog.open(
        folder,
        config=request.config,
        clock=ManualClock(run.now_ms),
        log_start_offset=base or 0,
    ) as log:
        for file, position, size in extents:
            with closing(staging.open_file(file)) as reader:
                data = np.empty(size, np.uint8)
                count = reader.read_into(position, data)
            if count < size:
                place = f"{staging.location}/{file}"
                raise StorageError(place, f"ends after {position + count} of its bytes")
            log.append_batches(data)
        end = log.log_end_offset
    store = LocalStore(folder)
    topic_id = request.topic_ids.get(name.topic)
    if base is None and topic_id is not None:
        metadata = PartitionMetadata(version=0, topic_id=topic_id)
        store.write_file(PARTITION_METADATA_FILE, encode_partition_metadata(metadata))
    store.sync_directory()
    files = [
        StagedFile(name=file.name, size_bytes=file.size_bytes)
        for file in store.list_files()
        if base is None or file.name != LEADER_EPOCH_FILE
    ]
    # A segment's log is moved first: Kafka creates missing indexes, and removes those without a
    # log. Then the next segment follows.
    files.sort(key=lambda file: (offset_of(file.name) or 0, kind_of(file.name) != ".log"))
    return PartitionChange(
        partition=str(name),
        is_new=base is None,
        first_offset=base or 0,
        end_offset=end,
        files=tuple(files),
    )


# Into the directory, by any process that finishes the write.


def _publish(directory: Path, state: TargetState, staging: Path) -> TargetState:
    """Finish a decided write, perhaps finished in part, and remove its folder."""
    record = _read_record(staging)
    # A former clean shutdown, or recovery, does not cover the new segments.
    store = LocalStore(directory, may_be_link=True)
    if store.has(CLEAN_SHUTDOWN_FILE):
        store.delete(CLEAN_SHUTDOWN_FILE)
        store.sync_directory()
    new = {change.partition for change in record.changes}
    for name in record.removed:
        # If a new directory waits, that name is the former one's; else it is the new one's.
        if name not in new or is_there(staging / _READY / name):
            _move(directory / name, staging / _FORMER)
    for change in record.changes:
        if change.is_new:
            _require_none_or_its_files(directory / change.partition, change)
            _move(staging / _READY / change.partition, directory)
            if not is_there(directory / change.partition, may_be_link=True):
                raise StorageError(str(directory / change.partition), "is in neither place")
        else:
            _promote(directory / change.partition, staging / _READY / change.partition, change)
    store.sync_directory()
    _write_offsets(directory, record)
    transactions = dict(state.transactions)
    if record.app_id:
        transactions[record.app_id] = record.app_version
    state = replace(state, run_id=record.run_id, transactions=transactions)
    write_target(directory, state)
    remove_staging(staging)
    return state


def _read_record(staging: Path) -> WriteDecision:
    where = str(staging / RECORD_FILE)
    content = LocalStore(staging).read_file(RECORD_FILE, limit_bytes=_MAX_RECORD_BYTES)
    try:
        record: WriteDecision = read_value(
            WriteDecision, parse_json(content, limit_bytes=_MAX_RECORD_BYTES), "commit"
        )
        for name in (*record.removed, *(change.partition for change in record.changes)):
            parse_partition_directory(name)
        for change in record.changes:
            for file in change.files if not change.is_new else ():
                _require_segment_file(file.name)
    except (InvalidNameError, ValueError) as error:
        raise StorageError(where, f"is not what this program writes: {error}") from error
    if (record.format, record.version) != (_FORMAT, _VERSION):
        reason = f"expected {_FORMAT} {_VERSION}, found {record.format} {record.version}"
        raise StorageError(where, reason)
    return record


def _require_segment_file(name: str) -> None:
    offset, suffix = offset_of(name), kind_of(name)
    if offset is None or suffix is None or segment_file(offset, suffix) != name:
        raise InvalidNameError(name, "is no file of a segment")


def _move(source: Path, target: Path) -> None:
    """Move a partition's directory into a folder, if it is there. After a power loss its former
    name may be there as well."""
    with storage_errors(source):
        make_folder(target)
        with (
            open_folder(source.parent, may_be_link=True) as from_here,
            open_folder(target, may_be_link=True) as to_there,
        ):
            if facts_in(from_here, source.name) is None:
                return
            if facts_in(to_there, source.name) is None:
                os.rename(source.name, source.name, src_dir_fd=from_here, dst_dir_fd=to_there)
                os.fsync(to_there)
            else:
                shutil.rmtree(source)  # which follows no link
            os.fsync(from_here)


def _require_none_or_its_files(partition: Path, change: PartitionChange) -> None:
    """Refuse a directory in the new one's place, unless identical."""
    with storage_errors(partition):
        if not is_there(partition, may_be_link=True):
            return
    there = {file.name: file.size_bytes for file in LocalStore(partition).list_files()}
    if there != {file.name: file.size_bytes for file in change.files}:
        raise GuardRefusedError(
            "LOG_CHANGED", f"{partition} was made after a write was decided that begins it"
        )


def _promote(partition: Path, ready: Path, change: PartitionChange) -> None:
    """Move a partition's new segments into it, unless already there."""
    names = {file.name: file.size_bytes for file in change.files}
    store, waiting = LocalStore(partition), LocalStore(ready)
    there = {file.name: file.size_bytes for file in store.list_files()}
    for name, size_bytes in there.items():
        offset = offset_of(name)
        is_behind = kind_of(name) is not None and offset is not None
        if is_behind and (offset or 0) >= change.first_offset and size_bytes and name not in names:
            raise GuardRefusedError(
                "LOG_CHANGED",
                f"{partition} got {name} after a write was decided that continues the log at "
                f"offset {change.first_offset}",
            )
    steps: list[Operation] = []
    for file in change.files:
        if waiting.has(file.name):
            steps.append(
                PromoteFile(
                    scratch_path=str(ready / file.name),
                    name=file.name,
                    size_bytes=file.size_bytes,
                    reason="new records",
                )
            )
        elif there.get(file.name) != file.size_bytes:
            raise StorageError(str(partition / file.name), "is in neither place")
    steps.append(SyncDirectory(reason="new records"))
    commit(CommitPlan(location=store.location, operations=tuple(steps)), store)


def _write_offsets(directory: Path, record: WriteDecision) -> None:
    """Write recovery points and high watermarks; drop removed directories' entries."""
    ends = {
        parse_partition_directory(change.partition): change.end_offset for change in record.changes
    }
    gone: Mapping[TopicPartition, int | None] = {
        parse_partition_directory(name): None for name in record.removed
    }
    store = LocalStore(directory, may_be_link=True)
    files: dict[str, Mapping[TopicPartition, int | None]] = {
        name: gone for name in CHECKPOINT_FILES if gone and store.has(name)
    }
    for name in (RECOVERY_POINT_FILE, REPLICATION_FILE):
        files[name] = {**gone, **ends}
    write_checkpoints(directory, files)
