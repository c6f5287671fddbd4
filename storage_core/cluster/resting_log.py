"""Observe a replica's log on disk without recovery or reading records."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import (
    MAX_LEADER_EPOCH_BYTES,
    EpochEntry,
    PartitionCheckpoints,
    parse_leader_epochs,
)
from storage_core.cluster.places import PartitionRegistration, ReplicaPlace
from storage_core.errors import BadBytesError, CheckpointError, PylogError, StorageError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.log.batch_search import ListedSegment, find_start_position
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leader_epoch_cache import EpochRun, LeaderEpochCache
from storage_core.log.loaded_log import LogBounds
from storage_core.log.settled_store import settle
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.epochs_and_snapshots import check_epochs
from storage_core.maintenance.verification.findings import Code, DirectoryContext, Finding, Severity
from storage_core.maintenance.verification.partition import check_checkpoints
from storage_core.records.reader import scan_headers
from storage_core.store import open_store
from storage_core.store.base import held

_MAX_OFFSET: Final = 2**63 - 1
NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RestingLog(LogBounds):
    """The log of a replica at rest."""

    place: ReplicaPlace
    # Its directory; None for a replica that is missing or cannot be read.
    view: DirectoryView | None = None
    base_offsets: tuple[int, ...] = ()
    size_bytes: int = 0
    end_position: int = 0
    epochs: tuple[EpochEntry, ...] = ()  # epochs of the epoch file, by the rules of Kafka's cache
    error: str = ""  # why it cannot be read, else empty
    cache: LeaderEpochCache = field(default_factory=LeaderEpochCache, repr=False, compare=False)

    @property
    def last_file(self) -> str:
        """Name of the last segment's file, empty without one."""
        if self.view is None or not self.base_offsets:
            return ""
        return self.view.place(log_file(self.base_offsets[-1]))[0]

    @property
    def checkpoints(self) -> PartitionCheckpoints:
        """Checkpoint entries for this log; none for a copy on its way."""
        is_own = self.place.kind is DirectoryKind.PARTITION
        return self.place.checkpoints if is_own else PartitionCheckpoints()


def observe_log(place: ReplicaPlace) -> RestingLog:
    """Observe a replica's listing, epoch file and last batches. What prevents that is the
    replica's error."""
    error = place.problem
    if not error and not place.is_missing:
        try:
            store = open_store(place.directory)
            with held(store):
                return _observe(place, DirectoryView(settle(store)))
        except PylogError as failure:
            error = str(failure)
    return RestingLog(place=place, log_start_offset=0, log_end_offset=0, error=error)


def _observe(place: ReplicaPlace, view: DirectoryView) -> RestingLog:
    logs = [name for name in view.names if kind_of(name) == LOG_SUFFIX]
    bases = sorted(offset for offset in map(offset_of, logs) if offset is not None)
    start = place.checkpoints.log_start_offset or 0
    end, position = (start, 0) if not bases else _find_end(view, bases[-1])
    epochs = _read_epochs(view)
    return RestingLog(
        place=place,
        view=view,
        base_offsets=tuple(bases),
        size_bytes=sum(view.source(name).size_bytes for name in logs),
        log_start_offset=max([start, *bases[:1]]),
        log_end_offset=end,
        end_position=position,
        epochs=epochs.entries,
        cache=epochs,
    )


def _find_end(view: DirectoryView, base_offset: int) -> tuple[int, int]:
    """Return the end of a segment's last batch: offset and position."""
    name, index = log_file(base_offset), segment_file(base_offset, OFFSET_INDEX_SUFFIX)
    listed = ListedSegment(
        base_offset=base_offset,
        size_bytes=view.source(name).size_bytes,
        has_offset_index=index in view,
        has_time_index=False,
    )
    start = find_start_position(view.store, listed, _MAX_OFFSET) if listed.size_bytes else 0
    end, position = base_offset, start
    with closing(view.open(name)) as reader:
        try:
            for window in scan_headers(reader, start=start):
                end = max(end, int(window.batches.last_offset[-1]) + 1)
                position = window.file_position + window.size_bytes
        except BadBytesError:
            pass  # the log is read up to there; deeper levels report damage
    return end, position


def _read_epochs(view: DirectoryView) -> LeaderEpochCache:
    """Return the epochs of the epoch file; none if it is unreadable. Another finding reports an
    unreadable file."""
    if LEADER_EPOCH_FILE not in view:
        return LeaderEpochCache()
    try:
        content = view.read(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
        return LeaderEpochCache(parse_leader_epochs(content, file=LEADER_EPOCH_FILE))
    except (StorageError, CheckpointError, ValueError):
        return LeaderEpochCache()


def check_log(
    log: RestingLog, runs: Sequence[EpochRun], state: PartitionRegistration | None
) -> list[Finding]:
    """Return what contradicts itself within one replica: offsets, checkpoints, epochs.

    Args:
        runs: The epochs of its batches, in order; none where they were not read.
        state: The partition's registration, None if unknown.
    """
    if log.view is None:
        return []
    findings = FindingCollector()
    check_checkpoints(
        log.log_start_offset,
        log.log_end_offset,
        log.checkpoints,
        DirectoryContext(role=Role.BROKER, is_clean=log.place.is_clean),
        findings,
    )
    check_epochs(
        log.view.store,
        runs,
        has_file=LEADER_EPOCH_FILE in log.view,
        log_start_offset=log.log_start_offset,
        findings=findings,
    )
    if not runs and log.log_end_offset > log.log_start_offset and LEADER_EPOCH_FILE not in log.view:
        message = "the log has records, and no file says of which epochs"
        findings.add(Code.EPOCH_FILE_MISSING, message, file=LEADER_EPOCH_FILE)
    last = log.epochs[-1] if log.epochs else None
    if (
        last is not None
        and state is not None
        and last.start_offset >= log.log_end_offset
        and last.epoch == state.leader_epoch
        and state.leader not in {NO_LEADER, log.place.broker}
    ):
        findings.add(
            Code.EPOCH_FILE_WRONG,
            f"epoch {last.epoch} has no records here; only the file of its leader, broker "
            f"{state.leader}, has such an epoch",
            file=LEADER_EPOCH_FILE,
            offset=last.start_offset,
            severity=Severity.INFO,
        )
    if PARTITION_METADATA_FILE not in log.view:
        findings.add(
            Code.PARTITION_METADATA_MISSING, "the file is not there", file=PARTITION_METADATA_FILE
        )
    return findings.findings()
