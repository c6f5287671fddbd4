"""Write a log as a replica of another cluster, all or nothing.

The segments are the source's bytes, with another leader epoch in each batch: it lies outside of the
checksum. Behind them comes a segment with the markers that end open transactions, then an empty,
active one. Markers take their times from the log: a repeat writes the same bytes. Producers stand
in a snapshot at its base, as after a roll: whatever a broker then has to recover, it begins there.
The rest is made by a recovery of these segments.

Everything is made in a folder of the log directory that is named as what is left of a deleted
partition: a broker that starts removes it. Tasks make replicas there, each attempt in a folder of
its own. Whoever holds the log directories writes their checkpoints, then renames give the replicas
their names.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import (
    MAX_LEADER_EPOCH_BYTES,
    PartitionMetadata,
    encode_partition_metadata,
    log_start_entry,
    parse_leader_epochs,
)
from storage_core.cluster.transplant.source import SourceLog
from storage_core.commit import CommitPlan, DeleteFile, SyncDirectory, WriteFile, commit
from storage_core.commit.scratch import TRANSPLANTED, remove_unfinished, unfinished_name
from storage_core.commit.trash import TRANSPLANT
from storage_core.commit.undo import keep_replaced
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import (
    CorruptRecordError,
    GuardRefusedError,
    PylogError,
    StorageError,
)
from storage_core.filenames import (
    CLEANER_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    LOG_SUFFIX,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    SNAPSHOT_SUFFIX,
    TopicPartition,
    kind_of,
    log_file,
    offset_of,
    snapshot_file,
    sorted_logs,
)
from storage_core.formats.batch_v2 import LEADER_EPOCH_AT
from storage_core.local_files import create_file, facts_in, is_there, open_folder, write_all
from storage_core.log.loaded_log import LogBounds
from storage_core.log.log_loader import LogLoader
from storage_core.log.producer_snapshot import (
    NO_OFFSET,
    ProducerEntry,
    encode_producer_snapshot,
)
from storage_core.records.batch_builder import end_txn_marker
from storage_core.records.reader import scan_windows
from storage_core.roots.root import HeldRoot
from storage_core.store.local import LocalStore, make_folder_like, storage_errors
from storage_core.store.syncing import WriteBehind, sync

_FORMER: Final = "former"
_EPOCH_BYTES: Final = np.arange(LEADER_EPOCH_AT, LEADER_EPOCH_AT + 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPartition:
    """A partition of another cluster that is to get a log."""

    partition: TopicPartition
    topic_id: str = ""  # its topic's id there
    leader_epoch: int = 0
    config: LogConfig = field(default_factory=LogConfig)
    keeps_producers: bool = False  # whether it remembers the source's producers
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLog:
    """A log for the replicas of a partition of another cluster."""

    target: TargetPartition
    source: SourceLog
    # Producers whose open transactions are committed; those of others are aborted.
    committed: frozenset[int]

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record gets."""
        return self.source.log_end_offset + len(self.source.open_producers)

    def markers(self) -> bytes:
        """Return the batches that end open transactions."""
        batches = [
            end_txn_marker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                is_abort=producer.producer_id not in self.committed,
                timestamp=max(producer.last_timestamp, 0),
                coordinator_epoch=max(producer.coordinator_epoch, 0),
                base_offset=self.source.log_end_offset + number,
                leader_epoch=self.target.leader_epoch,
            )
            for number, producer in enumerate(self.source.open_producers)
        ]
        return b"".join(batch.tobytes() for batch in batches)

    def producers(self) -> list[ProducerEntry]:
        """Return the producers of its snapshot."""
        if not self.target.keeps_producers:
            return []
        return [
            producer
            if producer.current_txn_first_offset == NO_OFFSET
            else replace(
                producer,
                current_txn_first_offset=NO_OFFSET,
                coordinator_epoch=max(producer.coordinator_epoch, 0),
            )
            for producer in self.source.producers
        ]

    def sizes(self) -> dict[str, int]:
        """Return the bytes of its segments, by name of the file."""
        markers = {log_file(self.source.log_end_offset): len(self.markers())}
        return {**self.source.sizes, **markers, log_file(self.log_end_offset): 0}

    @property
    def size_bytes(self) -> int:
        """Bytes of its segments."""
        return sum(self.source.sizes.values()) + len(self.markers())


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltReplicas(LogBounds):
    """Replicas of a partition in scratch folders."""

    partition: TopicPartition
    homes: tuple[Path, ...]  # the log directories that get them; at least one
    # Whether its log start lies below the first segment, in a tier.
    begins_in_tier: bool = False


def is_written(directory: Path, log: NewLog) -> bool:
    """Return whether a directory is what ``build_replicas`` makes of a log."""
    store = LocalStore(directory)
    sizes = {f.name: f.size_bytes for f in store.list_files() if kind_of(f.name) == LOG_SUFFIX}
    if sizes != log.sizes() or not store.has(LEADER_EPOCH_FILE):
        return False
    content = store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
    epochs = parse_leader_epochs(content, file=LEADER_EPOCH_FILE)
    if any(entry.epoch != log.target.leader_epoch for entry in epochs):
        return False
    markers = log_file(log.source.log_end_offset)
    if store.read_file(markers, limit_bytes=sizes[markers]) != log.markers():
        return False
    # Logs of equal batches have equal sizes, whatever is in their records.
    return all(_is_copy(store, log, name) for name, size in log.source.sizes.items() if size)


def _is_copy(store: LocalStore, log: NewLog, name: str) -> bool:
    """Return whether a segment has the source's batches, restamped."""
    end = 0
    with closing(store.open_file(name)) as reader:
        for wanted in _stamped_batches(log, name):
            content = np.empty(wanted.size, np.uint8)
            if reader.read_into(end, content) != wanted.size or (content != wanted).any():
                return False
            end += wanted.size
    return True


def is_empty(directory: Path) -> bool:
    """Return whether a log has never had a record."""
    # A swap of segments that was cut short leaves records under other names.
    logs = {e.name: e.facts for e in LocalStore(directory).scan() if LOG_SUFFIX in e.name}
    return logs.keys() <= {log_file(0)} and not any(facts.st_size for facts in logs.values())


@contextmanager
def scratch_folder(directory: Path) -> Iterator[Path]:
    """Lend a folder for new replicas in a log directory. It is removed at the end, and those of
    killed calls are at the beginning."""
    remove_unfinished(directory)
    scratch = directory / unfinished_name(TRANSPLANTED)
    # A broker looks into what a kill has left of it.
    make_folder_like(LocalStore(directory, may_be_link=True), scratch)
    try:
        yield scratch
    finally:
        remove_unfinished(directory)


def build_replicas(log: NewLog, scratches: Sequence[Path]) -> None:
    """Make replicas of a log in scratch folders; all durable. It may be done twice, at the same
    time as well.

    Args:
        scratches: Folders of ``scratch_folder`` in the log directories.
    """
    name = str(log.target.partition)
    attempts = {scratch / uuid.uuid4().hex: scratch for scratch in scratches}
    try:
        for attempt, scratch in attempts.items():
            home = LocalStore(scratch.parent, may_be_link=True)
            make_folder_like(home, attempt)
            _build(log, attempt / name, home)
        log.source.require_unchanged()
        for attempt, scratch in attempts.items():
            _hand_over(attempt / name, scratch / name)
    finally:
        for attempt in attempts:
            shutil.rmtree(attempt, ignore_errors=True)


def put_in_place(
    built: Sequence[BuiltReplicas],
    scratches: Mapping[Path, Path],
    held: Mapping[Path, HeldRoot],
    *,
    trash: Path | None = None,
    action: str = TRANSPLANT,
) -> dict[TopicPartition, PylogError]:
    """Give replicas their names, with their checkpoints; all durable.

    A kill leaves each log directory without a log, or with all of it. The trash has a record of
    each log before it gets an entry in a checkpoint: an undo takes back the entries of all logs.

    Args:
        held: The log directories under their locks.
        trash: The run's folder in the trash, for an undo; None for none.
        action: Of the run, for the same: ``transplant`` or ``attach``.

    Returns:
        Errors of partitions: somebody has written there meanwhile, so that no replica was changed;
        or a disk failed, while replicas got their names perhaps.
    """
    errors: dict[TopicPartition, PylogError] = {}
    changes: dict[Path, dict[str, dict[TopicPartition, int | None]]] = {}
    for each in built:
        try:
            offsets = _prepare(each, scratches, trash, action)
        except PylogError as error:
            errors[each.partition] = error
            continue
        for home in each.homes:
            for name, offset in offsets.items():
                changes.setdefault(home, {}).setdefault(name, {})[each.partition] = offset
    # Before a start can find the logs.
    for home, files in changes.items():
        held[home].write_checkpoints(files)
    for each in built:
        if each.partition in errors:
            continue
        try:
            for home in each.homes:
                if (failure := held[home].failure) is not None:
                    raise failure
            for home in each.homes:
                held[home].validate()
                _give_name(scratches[home], str(each.partition))
        except StorageError as error:
            errors[each.partition] = error
    return errors


def _build(log: NewLog, directory: Path, home: LocalStore) -> None:
    """Make a replica in a scratch folder."""
    make_folder_like(home, directory)
    modified_ms = {file.name: file.modified_ms for file in log.source.store.list_files()}
    for name in log.sizes():
        path = directory / name
        with storage_errors(path), os.fdopen(create_file(path), "wb") as file:
            home.hand_on_ownership(file.fileno(), name)
            if log.source.sizes.get(name):
                _copy_segment(log, name, file.fileno())
            elif name == log_file(log.source.log_end_offset):
                file.write(log.markers())
            file.flush()
            time_ns = modified_ms.get(name, log.target.now_ms) * 1_000_000
            os.utime(file.fileno(), ns=(time_ns, time_ns))
            sync(file.fileno())
    store = LocalStore(directory)
    metadata = encode_partition_metadata(PartitionMetadata(version=0, topic_id=log.target.topic_id))
    store.write_file(PARTITION_METADATA_FILE, metadata)
    _recover(log, store)


def _copy_segment(log: NewLog, name: str, descriptor: int) -> None:
    """Write a segment's batches, each with the new leader epoch."""
    behind = WriteBehind(descriptor)
    end = 0
    for data in _stamped_batches(log, name):
        write_all(descriptor, data.data)
        end += data.size
        behind.reach(end)


def _stamped_batches(log: NewLog, name: str) -> Iterator[NDArray[np.uint8]]:
    """Yield a segment's batches in windows, each with the new leader epoch."""
    epoch = np.frombuffer(log.target.leader_epoch.to_bytes(4), np.uint8)
    end = 0
    with closing(log.source.store.open_file(name)) as reader:
        for window in scan_windows(reader):
            data = window.data[: window.size_bytes].copy()
            data[window.batches.position[:, np.newaxis] + _EPOCH_BYTES] = epoch
            end += data.size
            yield data
    if end != log.source.sizes[name]:
        reason = f"expected {log.source.sizes[name]} bytes of batches, found {end}"
        raise CorruptRecordError(name, end, reason)


def _recover(log: NewLog, store: LocalStore) -> None:
    """Let a recovery make the other files; write the producers' snapshot."""
    loader = LogLoader(
        store,
        config=log.target.config,
        cleaner=CleanerConfig(),
        now_ms=log.target.now_ms,
        log_start_checkpoint=log.source.log_start_offset,
    )
    loaded = loader.load().close()
    if loaded.repairs.cuts or loaded.log_end_offset != log.log_end_offset:
        reason = f"expected a log up to offset {log.log_end_offset}, found {loaded.log_end_offset}"
        raise CorruptRecordError(log.source.place.location, 0, reason)
    commit(loaded.plan, store)
    snapshots = [f.name for f in store.list_files() if kind_of(f.name) == SNAPSHOT_SUFFIX]
    reason = "the producers of its new cluster"
    snapshot = WriteFile(
        name=snapshot_file(log.log_end_offset),
        content=encode_producer_snapshot(log.producers()),
        reason=reason,
    )
    plan = CommitPlan(
        location=store.location,
        operations=(
            *(DeleteFile(name=name, reason=reason) for name in snapshots),
            snapshot,
            SyncDirectory(reason=reason),
        ),
    )
    commit(plan, store)


def _hand_over(directory: Path, place: Path) -> None:
    """Move a replica to its place, unless another attempt has."""
    with storage_errors(place):
        try:
            directory.rename(place)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise


def _require_empty(directory: Path) -> None:
    """Refuse a replica that has got records meanwhile."""
    with storage_errors(directory):
        has_records = is_there(directory, may_be_link=True) and not is_empty(directory)
    if has_records:
        raise GuardRefusedError("TARGET_NOT_EMPTY", f"{directory} has records")


def _prepare(
    built: BuiltReplicas, scratches: Mapping[Path, Path], trash: Path | None, action: str
) -> dict[str, int | None]:
    """Keep the empty logs; return the replicas' offsets by file."""
    for home in built.homes:
        _require_empty(home / str(built.partition))
    offsets = _checkpoints(built, scratches[built.homes[0]])
    for home in built.homes:
        _keep_former(home / str(built.partition), scratches[home], trash, action)
    return offsets


def _checkpoints(built: BuiltReplicas, scratch: Path) -> dict[str, int | None]:
    """Return a replica's offsets, by checkpoint file; None for no entry."""
    files = LocalStore(scratch / str(built.partition)).list_files()
    first = offset_of(sorted_logs(file.name for file in files)[0])
    assert first is not None  # noqa: S101  # that is how logs are named
    return {
        RECOVERY_POINT_FILE: built.log_end_offset,
        REPLICATION_FILE: built.log_end_offset,
        LOG_START_FILE: built.log_start_offset
        if built.begins_in_tier
        else log_start_entry(built.log_start_offset, first),
        CLEANER_FILE: None,
    }


def _keep_former(directory: Path, scratch: Path, trash: Path | None, action: str) -> None:
    if trash is not None:
        replica = LocalStore(scratch / directory.name)
        plan = keep_replaced(directory, replica, trash, action=action)
        commit(plan, LocalStore(directory))


def _give_name(scratch: Path, name: str) -> None:
    """Give a replica its name; an empty log of that name goes."""
    directory = scratch.parent
    with (
        storage_errors(directory / name),
        open_folder(directory, may_be_link=True) as above,
        open_folder(scratch) as below,
    ):
        if facts_in(above, name) is not None:
            former = f"{_FORMER}-{name}"
            os.rename(name, former, src_dir_fd=above, dst_dir_fd=below)
        os.rename(name, name, src_dir_fd=below, dst_dir_fd=above)
        sync(above)
