"""Inspect log directories by listings, small files and a few headers.

Nothing is written, and damage is a fact like any other: what can be read is reported, beside the
error that stopped the rest. A partition costs a listing, its small files, and the headers behind
its last offset index entry.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any, Final

import numpy as np

from storage_core.catalog.cluster_metadata import read_broker_metadata
from storage_core.catalog.log_directories import (
    DirectoryKind,
    SubDirectory,
)
from storage_core.catalog.roles import Role, guess_role
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.checkpoint.broker_files import MetaProperties, is_same_broker
from storage_core.checkpoint.checkpoints import (
    UPKEEP_FILES,
    Checkpoints,
    PartitionCheckpoints,
    read_checkpoints,
)
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import BadBytesError, DecompressionError, PylogError, describe_failure
from storage_core.filenames import (
    CLUSTER_METADATA_TOPIC,
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    MAX_OFFSET,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    kind_of,
    log_file,
    offset_of,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import TimeIndex, read_last_entry
from storage_core.log.batch_search import checked_start
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import load_log
from storage_core.log.settled_store import settle
from storage_core.records.payload import DEFAULT_LIMITS, decode_records
from storage_core.records.reader import CrcCheck, Large, Tail, Window, scan_headers, scan_windows
from storage_core.roots.open_root import find_root, observe_root
from storage_core.roots.own_catalog import metadata_of, read_own_catalog
from storage_core.roots.partition_facts import partition_checkpoints
from storage_core.roots.remote_logs import RemoteLogs
from storage_core.roots.root import Root
from storage_core.store import FileInfo, LogStore, open_store
from storage_core.store.local import LocalStore
from storage_core.store.open_store import split_location
from storage_core.store.tier_archive import Tier, TierSegment, names_archive, parse_archive

_WINDOW_BYTES: Final = 1 << 20
# Enough for the first batches; it grows to a larger one.
_FIRST_WINDOW_BYTES: Final = 1 << 14
_KNOWN_NAMES: Final = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE})
# Directories that Kafka is done with: their files are counted, their records are nobody's.
_ONLY_COUNTED: Final = frozenset({DirectoryKind.DELETE, DirectoryKind.STRAY})
# Directories that hold no log.
_NO_LOG: Final = frozenset({DirectoryKind.CACHE, DirectoryKind.FOREIGN})

Row = dict[str, Any]
# Of a log, its config, its checkpoints, and the clock.
WeighDirt = Callable[[LoadedLog, LogConfig, PartitionCheckpoints, int], Row]

# Of ``inspect_partition``.
PARTITION_COLUMNS: Final = (
    "root",
    "topic",
    "partition",
    "directory",
    "kind",
    "topic_id",
    "cleanup_policy",
    "segments",
    "size_bytes",
    "index_bytes",
    "oldest_timestamp",
    "newest_timestamp",
    "log_start_offset",
    "log_end_offset",
    "last_stable_offset",
    "high_watermark",
    "cleaner_checkpoint",
    "dirty_bytes",
    "dirty_ratio",
    "recovery_point",
    "recovery_segments",
    "recovery_bytes",
    "leftover_files",
    "unknown_files",
    "error_class",
    "error",
    "local_log_start_offset",
    "tier_end_offset",
    "tier_problem",
)
# Of ``inspect_segments``.
SEGMENT_COLUMNS: Final = (
    "directory",
    "file",
    "base_offset",
    "size_bytes",
    "index_bytes",
    "time_index_bytes",
    "txn_index_bytes",
    "newest_timestamp",
    "modified_ms",
    "is_active",
    # Of a tier alone.
    "topic_id",
    "segment_id",
    "end_offset",
    "is_complete",
    "error",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootView:
    """One log directory, observed."""

    row: Row  # what is known of the directory itself
    files: Root
    entries: tuple[SubDirectory, ...]  # its sub-directories, those that hold no log included
    checkpoints: Checkpoints  # what its checkpoint files say; empty where they are broken
    # Up to where each of its logs is on disk for certain; None where all of them are to the end,
    # after a clean shutdown and in a managed root.
    recovery_points: Checkpoints | None = None
    # What is known of its topics; empty where nothing is.
    catalog: TopicCatalog = field(default_factory=TopicCatalog)
    # Where the cluster's metadata lies that tells it; None where none was seen.
    metadata: Path | None = None
    properties: MetaProperties | None = None  # whose it is; None where it does not say
    remote: RemoteLogs  # what the brokers said of segments in a tier

    @property
    def has_metadata(self) -> bool:
        """Whether the cluster's metadata lies here, or its place is known."""
        kinds = {entry.kind for entry in self.entries}
        return self.metadata is not None or DirectoryKind.METADATA in kinds

    def is_tiered(self, topic: str) -> bool | None:
        """Whether a topic is tiered; None if its config is unknown."""
        try:
            config = self.catalog.config_for(topic)
        except PylogError:
            return None
        return None if config is None else config.remote_storage_enable

    @property
    def metadata_note(self) -> str:
        """Reason for unknown topic policies; empty if known or without a home."""
        # Brokers of ZooKeeper's time, whose file has version 0, have none at all.
        is_of_kraft = self.properties is not None and self.properties.version > 0
        if not is_of_kraft or self.has_metadata:
            return ""
        return (
            f"{self.row['root']} has no {CLUSTER_METADATA_TOPIC}: policies are not known. It "
            "lies in one of a broker's log directories (metadata.log.dir): give that one too"
        )


def group_by_broker(views: Sequence[RootView]) -> list[list[RootView]]:
    """Return roots broker by broker, each with its broker's catalog. One broker's disks share
    the cluster's metadata, the groups' offsets and the logs; all brokers share what they said of
    the tier."""
    groups: list[list[RootView]] = []
    remote = RemoteLogs([view.files for view in views])
    for view in (replace(view, remote=remote) for view in views):
        group = next((group for group in groups if _are_one_broker(view, group[0])), None)
        if group is None:
            groups.append([view])
        else:
            group.append(view)
    return [_with_shared_catalog(group) for group in groups]


def _are_one_broker(one: RootView, other: RootView) -> bool:
    has_manifests = one.files.has_manifests or other.files.has_manifests
    return not has_manifests and is_same_broker(one.properties, other.properties)


def _with_shared_catalog(group: list[RootView]) -> list[RootView]:
    holder = next((view for view in group if view.has_metadata), group[0])
    copies = [view.metadata for view in group if view.metadata is not None]
    if len(copies) > 1:
        try:
            read_broker_metadata(copies)
        except PylogError as error:
            holder = replace(holder, catalog=TopicCatalog(metadata_problem=str(error)))
            return [
                replace(
                    view,
                    metadata=view.metadata or holder.metadata,
                    catalog=holder.catalog,
                    row=view.row | {"errors": [*dict.fromkeys([*view.row["errors"], str(error)])]},
                )
                for view in group
            ]
    return [
        view
        if view.has_metadata
        else replace(view, metadata=holder.metadata, catalog=holder.catalog)
        for view in group
    ]


def inspect_root(path: str | Path) -> RootView:
    """Observe a root, or one partition directory as its only one.

    Args:
        path: Path or URL; behind ``managed+`` that of a managed root.
    """
    root, names = find_root(path)
    state = observe_root(root, names)
    properties = state.meta_properties
    problems: list[PylogError] = []
    checkpoints = Checkpoints()
    catalog = TopicCatalog()
    try:
        checkpoints = read_checkpoints(root, UPKEEP_FILES)
    except PylogError as error:
        problems.append(error)
    recovery_points = None
    is_closed = root.has_manifests or names_archive(root.location)  # and has no marker
    if state.clean_shutdown is None and not is_closed:
        recovery_points = Checkpoints()
        try:
            recovery_points = read_checkpoints(root, [RECOVERY_POINT_FILE])
        except PylogError as error:
            problems.append(error)
    try:
        # Not an entry of the state where one partition is looked at alone.
        catalog = read_own_catalog(root, node_id=None if properties is None else properties.node_id)
    except PylogError as error:
        problems.append(error)
        catalog = TopicCatalog(metadata_problem=str(error))
    row = {
        "root": root.location,
        "guessed_role": (Role.MANAGED if root.has_manifests else guess_role(root.location)).value,
        "is_cleanly_shut_down": state.clean_shutdown is not None,
        "cluster_id": None if properties is None else properties.cluster_id,
        "node_id": None if properties is None else properties.node_id,
        "directory_id": None if properties is None else properties.directory_id,
        "errors": [str(problem) for problem in problems],
    }
    return RootView(
        metadata=metadata_of(root),
        properties=properties,
        remote=RemoteLogs([root]),
        row=row,
        files=root,
        entries=state.entries,
        checkpoints=checkpoints,
        recovery_points=recovery_points,
        catalog=catalog,
    )


def inspect_partition(
    view: RootView, entry: SubDirectory, *, now_ms: int, weigh_dirt: WeighDirt | None = None
) -> Row:
    """Return the facts of one sub-directory, with any error as a column.

    Args:
        entry: One of the view's entries.
        weigh_dirt: Returns the columns about a log's dirty bytes; None leaves them empty.
    """
    partition = entry.topic_partition
    row: Row = dict.fromkeys(PARTITION_COLUMNS)
    row |= {
        "root": view.row["root"],
        "topic": None if partition is None else partition.topic,
        "partition": None if partition is None else partition.partition,
        "directory": entry.name,
        "kind": entry.kind.value,
        "topic_id": entry.topic_id,
    }
    if entry.problem:
        row |= {"error_class": "InvalidNameError", "error": entry.problem}
    if entry.kind in _NO_LOG:
        return row
    try:
        store = open_store(entry.path)
        files = store.list_files()
        row |= _describe_files(files)
        checkpoints = PartitionCheckpoints()
        if entry.topic_partition is not None:
            checkpoints = partition_checkpoints(
                store, entry.topic_partition, lambda: view.checkpoints
            )
        if entry.kind is DirectoryKind.METADATA:
            row["unknown_files"] = []  # it has files of its own kinds, which KRaft looks after
        if isinstance(store, LocalStore):
            row["unknown_files"] += store.list_unseen()
        if entry.kind not in _ONLY_COUNTED:
            row |= _describe_checkpoints(view, entry, checkpoints)
            settled = settle(store)
            row |= _describe_segments(settled.list_files())
            row |= _describe_recovery(view, entry, settled.list_files())
            row |= _describe_times(settled, _log_start(entry, checkpoints))
            row |= _describe_log(settled, view, entry, checkpoints, now_ms, weigh_dirt)
            row |= _describe_tier(store, view, entry, checkpoints, row["log_start_offset"])
    except Exception as error:  # noqa: BLE001  # a broken partition is a row, never the end
        row |= describe_failure(error)
    return row


def inspect_segments(entry: SubDirectory) -> Iterator[Row]:
    """Yield each segment's sizes and newest timestamp, a row a segment.

    Of a tier they are all that lie there, whether they count or not; of what is on a disk beside
    it, there are none.
    """
    if names_archive(entry.path):
        yield from _inspect_tier(parse_archive(split_location(entry.path)[0]).open(), entry)
        return
    store = settle(open_store(entry.path))
    files = store.list_files()
    sizes = {file.name: file.size_bytes for file in files}
    logs = _logs(files)
    for log in logs:
        stem = log.name.removesuffix(LOG_SUFFIX)
        yield {
            "directory": entry.name,
            "file": log.name,
            "base_offset": offset_of(log.name),
            "size_bytes": log.size_bytes,
            "index_bytes": sizes.get(stem + OFFSET_INDEX_SUFFIX),
            "time_index_bytes": sizes.get(stem + TIME_INDEX_SUFFIX),
            "txn_index_bytes": sizes.get(stem + TXN_INDEX_SUFFIX),
            "newest_timestamp": _newest_indexed(store, sizes, stem),
            "modified_ms": log.modified_ms,
            "is_active": log is logs[-1],
        }


def _inspect_tier(tier: Tier, entry: SubDirectory) -> Iterator[Row]:
    for folder in tier.listing[0]:
        if folder.partition != entry.topic_partition:
            continue
        for segment in tier.segments(folder):
            yield dict.fromkeys(SEGMENT_COLUMNS) | {
                "directory": entry.name,
                "file": log_file(segment.base_offset),
                "base_offset": segment.base_offset,
                "is_active": False,
                "topic": folder.partition.topic,
                "partition": folder.partition.partition,
                "topic_id": folder.topic_id,
                "segment_id": segment.identity.segment_id,
                "is_complete": segment.is_complete,
                "error": segment.problem or None,
                **(_describe_tier_segment(tier, segment) if segment.is_complete else {}),
            }


def _describe_tier_segment(tier: Tier, segment: TierSegment) -> Row:
    try:
        return {
            "end_offset": tier.end_offset(segment),
            "size_bytes": tier.log_bytes(segment),
            "index_bytes": tier.small_bytes(segment, OFFSET_INDEX_SUFFIX),
            "time_index_bytes": tier.small_bytes(segment, TIME_INDEX_SUFFIX),
            "txn_index_bytes": tier.small_bytes(segment, TXN_INDEX_SUFFIX),
            "modified_ms": tier.modified_ms(segment),
        }
    except PylogError as error:
        return {"error": str(error)}


def _describe_files(files: Sequence[FileInfo]) -> Row:
    others = [
        file.name for file in files if file.name not in _KNOWN_NAMES and kind_of(file.name) is None
    ]
    # Transient files have a number in front as well, and a suffix behind the suffix.
    is_leftover = [offset_of(name) is not None for name in others]
    return _describe_segments(files) | {
        "leftover_files": list(compress(others, is_leftover)),
        "unknown_files": list(compress(others, map(not_, is_leftover))),
    }


def _describe_segments(files: Sequence[FileInfo]) -> Row:
    logs = _logs(files)
    return {
        "segments": len(logs),
        "size_bytes": sum(file.size_bytes for file in logs),
        "index_bytes": sum(
            file.size_bytes
            for file in files
            if kind_of(file.name) in {*INDEX_SUFFIXES, SNAPSHOT_SUFFIX}
        ),
    }


def _describe_checkpoints(
    view: RootView, entry: SubDirectory, checkpoints: PartitionCheckpoints
) -> Row:
    partition = entry.topic_partition
    if partition is None or entry.kind is not DirectoryKind.PARTITION:
        return {}
    config = view.catalog.config_for(partition.topic)
    policy = None if config is None else ",".join(sorted(config.cleanup_policy))
    return {
        "cleanup_policy": policy,
        "high_watermark": checkpoints.high_watermark,
        "cleaner_checkpoint": checkpoints.cleaner_offset,
    }


def _describe_recovery(view: RootView, entry: SubDirectory, files: Sequence[FileInfo]) -> Row:
    """Describe a recovery's reads: segments from the recovery point's one on."""
    partition = entry.topic_partition
    if partition is None or view.recovery_points is None:
        return {}
    point = view.recovery_points.of(partition).recovery_point or 0
    logs = _logs(files)
    first = max((n for n, log in enumerate(logs) if _base(log) <= point), default=0)
    return {
        "recovery_point": point,
        "recovery_segments": len(logs[first:]),
        "recovery_bytes": sum(log.size_bytes for log in logs[first:]),
    }


def _log_start(entry: SubDirectory, checkpoints: PartitionCheckpoints) -> int:
    """Return a partition's entry in the log-start checkpoint, 0 without one."""
    if entry.kind is not DirectoryKind.PARTITION:
        return 0
    return checkpoints.log_start_offset or 0


def _describe_times(store: LogStore, log_start: int) -> Row:
    """Describe the oldest and newest records' ages, and the log's end."""
    files = store.list_files()
    logs = _logs(files)
    if not logs:
        return {}
    sizes = {file.name: file.size_bytes for file in files}
    stems = [log.name.removesuffix(LOG_SUFFIX) for log in logs]
    times = [_newest_indexed(store, sizes, stem) for stem in stems]
    end_offset, tail_time = _read_tail(store, logs[-1], sizes)
    newest = max([tail_time, *(time for time in times if time is not None)], default=NO_TIMESTAMP)
    first = max((n for n, log in enumerate(logs) if _base(log) <= log_start), default=0)
    with_data = [log for log in logs[first:] if log.size_bytes]
    oldest = _oldest(store, with_data[0], log_start) if with_data else NO_TIMESTAMP
    return {
        "oldest_timestamp": None if oldest == NO_TIMESTAMP else oldest,
        "newest_timestamp": None if newest == NO_TIMESTAMP else newest,
        "log_end_offset": end_offset,
    }


def _describe_log(
    store: LogStore,
    view: RootView,
    entry: SubDirectory,
    checkpoints: PartitionCheckpoints,
    now_ms: int,
    weigh_dirt: WeighDirt | None,
) -> Row:
    """Load the log as after a clean stop; weigh its dirty bytes."""
    partition = entry.topic_partition
    config = None
    if partition is not None and entry.kind is DirectoryKind.PARTITION:
        config = view.catalog.config_for(partition.topic)
    log = load_log(
        store,
        config=config or LogConfig(),
        cleaner=CleanerConfig(),
        now_ms=now_ms,
        log_start_checkpoint=_log_start(entry, checkpoints),
    )
    row = {
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "last_stable_offset": log.last_stable_offset,
    }
    is_compacted = config is not None and config.is_compacted
    if weigh_dirt is not None and (is_compacted or checkpoints.cleaner_offset is not None):
        row |= weigh_dirt(log, config or LogConfig(), checkpoints, now_ms)
    return row


def _describe_tier(
    store: LogStore,
    view: RootView,
    entry: SubDirectory,
    checkpoints: PartitionCheckpoints,
    local_start: int,
) -> Row:
    """Tell which offsets of a log lie in its tier; nothing of a log that has none."""
    partition = entry.topic_partition
    if partition is None or names_archive(entry.path):
        return {}
    is_tiered = view.is_tiered(partition.topic)
    start = view.remote.tier_start(
        store, partition, checkpoints, local_start, is_tiered=lambda: is_tiered
    )
    row: Row = {}
    if start is not None:
        row = {"log_start_offset": start, "local_log_start_offset": local_start}
    if is_tiered is False or not (start is not None or view.remote.has_tier):
        return row
    uploads = view.remote.uploads(store, partition)
    if start is None and is_tiered is None and not uploads.segments:
        return row
    problem = uploads.problem(local_start if start is None else start, local_start)
    return row | {"tier_end_offset": uploads.end_offset, "tier_problem": problem or None}


def _logs(files: Sequence[FileInfo]) -> list[FileInfo]:
    """Return the .log files in offset order."""
    logs = [file for file in files if kind_of(file.name) == LOG_SUFFIX]
    return sorted(logs, key=lambda file: offset_of(file.name) or 0)


def _newest_indexed(store: LogStore, sizes: dict[str, int], stem: str) -> int | None:
    """Return the last timestamp of a time index, None without one."""
    name = stem + TIME_INDEX_SUFFIX
    if not sizes.get(name):
        return None
    with closing(store.open_file(name)) as reader:
        last = read_last_entry(reader, TIME_INDEX_ENTRY, is_closed=False)
    timestamp = TimeIndex.parse(offset_of(name) or 0, last).last_timestamp
    return timestamp if timestamp > 0 else None


def _read_tail(store: LogStore, log: FileInfo, sizes: dict[str, int]) -> tuple[int, int]:
    """Return next offset and newest timestamp behind the last index entry."""
    base_offset = offset_of(log.name) or 0
    index_name = log.name.removesuffix(LOG_SUFFIX) + OFFSET_INDEX_SUFFIX
    last = b""
    if sizes.get(index_name):
        with closing(store.open_file(index_name)) as reader:
            last = read_last_entry(reader, OFFSET_INDEX_ENTRY, is_closed=False)
    position = int(np.frombuffer(last, OFFSET_INDEX_ENTRY)["position"][0]) if last else 0
    end_offset, newest = base_offset, NO_TIMESTAMP
    with closing(store.open_file(log.name)) as reader:
        start = checked_start(reader, base_offset, log.size_bytes, position, MAX_OFFSET)
        for window in scan_headers(
            reader, start=start, window_bytes=_WINDOW_BYTES, tail=Tail.ZEROS
        ):
            end_offset = int(window.batches.last_offset[-1]) + 1
            newest = max(newest, int(window.batches.max_timestamp.max()))
    return end_offset, newest


def _oldest(store: LogStore, log: FileInfo, log_start: int) -> int:
    """Return the timestamp of a segment's first readable record.

    NO_TIMESTAMP where it has none, where there is no such record, and where it cannot be read: what
    is wrong there is for others to say.
    """
    try:
        with closing(store.open_file(log.name)) as reader:
            for window in scan_windows(
                reader,
                window_bytes=_FIRST_WINDOW_BYTES,
                crc=CrcCheck.NOTE,
                tail=Tail.STOP,
                large=Large.VALID,
            ):
                timestamp = _first_timestamp(window, log_start)
                if timestamp is not None:
                    return timestamp
    except (BadBytesError, DecompressionError):
        pass
    return NO_TIMESTAMP


def _first_timestamp(window: Window, first_offset: int) -> int | None:
    """Return the timestamp of a window's first data record from an offset. None without such a
    record."""
    batches = window.batches
    may_hold = ~batches.is_control & (batches.last_offset >= first_offset)
    for row in np.flatnonzero(may_hold & (batches.record_count != 0)).tolist():
        wanted = np.zeros(len(batches), np.bool_)
        wanted[row] = True
        for records in decode_records(window, wanted, DEFAULT_LIMITS):
            timestamps = records.timestamp[records.offset >= first_offset]
            if timestamps.size:
                return int(timestamps[0])
    return None


def _base(log: FileInfo) -> int:
    return offset_of(log.name) or 0
