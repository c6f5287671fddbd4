"""Observe one partition of a mirror or a tier and plan its ingest, without writing."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from storage_core.checkpoint.checkpoints import (
    MAX_LEADER_EPOCH_BYTES,
    EpochEntry,
    PartitionCheckpoints,
    PartitionMetadata,
    encode_leader_epochs,
    encode_partition_metadata,
    parse_leader_epochs,
)
from storage_core.config import LogConfig
from storage_core.errors import ChangedWhileReadError, CorruptRecordError, GuardRefusedError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    TIME_INDEX_SUFFIX,
    segment_file,
)
from storage_core.log.segment_recovery import find_parts
from storage_core.maintenance.ingest.plan import (
    MAX_COMPANION_BYTES,
    IngestCost,
    IngestPlan,
    MirrorSegment,
    SmallFacts,
    TakenSegment,
    choose_candidates,
    cost_of,
    group_files,
    plan_ingest,
    read_edges,
    read_epochs,
    read_topic_id,
)
from storage_core.records.payload import DEFAULT_LIMITS
from storage_core.store.base import FileReader, LogStore
from storage_core.store.copying import copy_object, is_server_side, upload_file
from storage_core.store.generations import FileEntry, data_key, place_url
from storage_core.store.listing import ListedFile
from storage_core.store.managed_store import ManagedStore, encode_location
from storage_core.store.object_store import ObjectStore
from storage_core.store.tier_archive import TierStore

# Small files that the plan has read are kept for the commit, up to this many bytes.
_KEPT_BYTES: Final = 128 << 20
# Longer than a sync pauses between two parts of one file.
DEFAULT_SETTLE_MS: Final = 60_000


class Source(Protocol):
    """A partition that segments are taken from."""

    @property
    def location(self) -> str:
        """Path or URL of the directory."""
        ...

    @property
    def files(self) -> LogStore:
        """Its files."""
        ...

    @property
    def first(self) -> tuple[ListedFile, ...]:
        """The first listing of it."""
        ...

    def list_again(self) -> list[ListedFile]:
        """Return a new listing of the directory."""
        ...

    def is_copied_by(self, target: ObjectStore) -> bool:
        """Whether a store copies the records without moving them through this machine."""
        ...

    def copy_log(self, log: ListedFile, target: ObjectStore, key: str) -> str:
        """Copy the listed version of a segment's records, and return the copy's tag."""
        ...

    def missing_indexes(self, segment: MirrorSegment) -> Mapping[str, bytes]:
        """Return indexes that a segment lacks and that are made from its batches, by name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPartition:
    """A partition's directory in a mirror."""

    objects: ObjectStore
    directory: str
    files: LogStore
    first: tuple[ListedFile, ...]

    @property
    def location(self) -> str:
        """Path or URL of the directory."""
        return f"{self.objects.url}/{self.directory}"

    def list_again(self) -> list[ListedFile]:
        """Return a new listing of the directory."""
        return [
            ListedFile(info.key.rpartition("/")[2], info.size_bytes, info.modified_ms, info.etag)
            for info in self.objects.list_folder(f"{self.directory}/")
        ]

    def is_copied_by(self, target: ObjectStore) -> bool:
        """Whether a store copies the records without moving them through this machine."""
        return is_server_side(self.objects, target)

    def copy_log(self, log: ListedFile, target: ObjectStore, key: str) -> str:
        """Copy the listed version of a segment's records, and return the copy's tag."""
        return copy_object(self.objects, f"{self.directory}/{log.name}", log.etag, target, key)

    def missing_indexes(self, segment: MirrorSegment) -> Mapping[str, bytes]:
        """Return none: what the mirror lacks, its broker makes again, and the sync copies."""
        del segment
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPartition:
    """A partition of a tier (KIP-405), alone or with the log on a broker's disk."""

    files: TierStore
    first: tuple[ListedFile, ...]

    @property
    def location(self) -> str:
        """As ``open_store`` takes it."""
        return self.files.location

    def list_again(self) -> list[ListedFile]:
        """Return the listing of the files that are read: it is younger than the first one."""
        return list_store(self.files)

    def is_copied_by(self, target: ObjectStore) -> bool:
        """No: most of its records lie there transformed."""
        del target
        return False

    def copy_log(self, log: ListedFile, target: ObjectStore, key: str) -> str:
        """Copy the listed version of a segment's records, and return the copy's tag."""
        with closing(self._open(log)) as reader:
            return upload_file(reader, log.size_bytes, f"{self.location}/{log.name}", target, key)

    def missing_indexes(self, segment: MirrorSegment) -> Mapping[str, bytes]:
        """Return the indexes of a segment of which only a part counts: those in the tier are of
        other positions."""
        log, base_offset = segment.log, segment.base_offset
        has_index = any(file.name.endswith(OFFSET_INDEX_SUFFIX) for file in segment.companions)
        if has_index or not log.size_bytes:
            return {}
        defaults = LogConfig()
        with closing(self._open(log)) as reader:
            split = find_parts(
                reader,
                base_offset,
                index_interval_bytes=defaults.index_interval_bytes,
                max_index_bytes=defaults.segment_index_bytes,
                limits=DEFAULT_LIMITS,
            )
        if split.base_offsets != [base_offset]:
            reason = f"expected offsets of one segment, found those of {split.base_offsets}"
            raise CorruptRecordError(f"{self.location}/{log.name}", 0, reason)
        (part,) = split.parts
        return {
            segment_file(base_offset, OFFSET_INDEX_SUFFIX): part.offset_index,
            segment_file(base_offset, TIME_INDEX_SUFFIX): part.time_index,
        }

    def _open(self, log: ListedFile) -> FileReader:
        reader = self.files.open_identified(log.name, log.etag)
        if reader is None:
            raise ChangedWhileReadError(f"{self.location}/{log.name}", log.etag, "none")
        return reader


def list_store(store: LogStore) -> list[ListedFile]:
    """Return a listing of a partition's files, with their identities as tags."""
    return [
        ListedFile(file.name, file.size_bytes, file.modified_ms, file.identity)
        for file in store.list_files()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRules:
    """The owner's rules for a mirror."""

    # Nothing is written to it any more: the newest segment is closed, too.
    sync_has_stopped: bool = False
    # Its objects are adopted where they are; they belong to the managed root then.
    in_place: bool = False
    # How long the second of the two looks at it has to be after the first.
    settle_ms: int = DEFAULT_SETTLE_MS
    # A log that begins in a tier is taken from the mirror's first segment on.
    allows_data_loss: bool = False

    def __post_init__(self) -> None:
        """Refuse to adopt objects that a sync may replace."""
        if self.in_place and not self.sync_has_stopped:
            raise GuardRefusedError(
                "SYNC_MAY_WRITE",
                "objects can be adopted in place only where no sync writes any more, and nobody "
                "said so",
                "--sync-stopped",
            )


class CompanionFiles:
    """A mirror's small files, each read once for plan and commit."""

    def __init__(self, files: LogStore) -> None:
        self._files = files
        self._kept: dict[str, bytes] = {}
        self._room = _KEPT_BYTES

    def look(self, name: str) -> bytes:
        """Return a file's content, and keep it if there is room."""
        content = self._read(name)
        if len(content) <= self._room:
            self._kept[name] = content
            self._room -= len(content)
        return content

    def take(self, name: str) -> bytes:
        """Return a file's content, and keep it no longer."""
        content = self._kept.pop(name, None)
        if content is None:
            return self._read(name)
        self._room += len(content)
        return content

    def _read(self, name: str) -> bytes:
        return self._files.read_file(name, limit_bytes=MAX_COMPANION_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedIngest:
    """A plan with what its commit needs."""

    plan: IngestPlan
    companions: CompanionFiles
    cost: IngestCost
    is_new: bool  # whether the managed root does not have the partition yet

    @property
    def has_work(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.plan.segments)


def new_bytes(first: Iterable[ListedFile], target: ManagedStore, rules: IngestRules) -> int | None:
    """Return how many bytes of segments the first listing has that are new for the managed
    partition, at most. None without new segments: then it is neither listed again nor read."""
    listing = group_files(first)
    candidates = choose_candidates(
        listing,
        listing,
        end_offset=_ingested(target).checkpoints.recovery_point,
        sync_has_stopped=rules.sync_has_stopped,
    )
    if not candidates.segments:
        return None
    return sum(segment.log.size_bytes for segment in candidates.segments)


def _ingested(target: ManagedStore) -> SmallFacts:
    """Return what a managed partition has of its mirror, with defaults for new."""
    manifest = target.manifest
    if not manifest.generation:
        return SmallFacts()
    return SmallFacts(
        topic_id=manifest.topic_id, epochs=own_epochs(target), checkpoints=manifest.checkpoints
    )


def observe_and_plan(
    mirror: Source,
    target: ManagedStore,
    rules: IngestRules,
    checkpoints: PartitionCheckpoints,
) -> PlannedIngest:
    """List a mirror's directory again, read new segments' edges, and plan.

    Args:
        target: The managed partition; one that is new was opened so.
        rules: The owner's rules.
        checkpoints: The mirror's; the high watermark may be by its owner.
    """
    first, second = group_files(mirror.first), group_files(mirror.list_again())
    for listing in (first, second):
        if listing.unfinished:
            raise GuardRefusedError(
                "UNFINISHED_SWAP",
                f"{mirror.location} was copied while its broker replaced segments: "
                f"{listing.unfinished[0]} is there",
            )
    ingested = _ingested(target)
    candidates = choose_candidates(
        first,
        second,
        end_offset=ingested.checkpoints.recovery_point,
        sync_has_stopped=rules.sync_has_stopped,
    )
    companions = CompanionFiles(mirror.files)
    edges = [read_edges(mirror.files, segment, companions.look) for segment in candidates.segments]
    plan = plan_ingest(
        mirror.location,
        candidates,
        edges,
        SmallFacts(
            topic_id=read_topic_id(mirror.files, second),
            epochs=read_epochs(mirror.files, second),
            checkpoints=checkpoints,
        ),
        ingested,
    )
    return PlannedIngest(
        plan=plan,
        companions=companions,
        cost=cost_of(
            plan,
            candidates,
            second,
            in_place=rules.in_place,
            is_server_side=mirror.is_copied_by(target.objects),
        ),
        is_new=not target.manifest.generation,
    )


def own_epochs(target: ManagedStore) -> tuple[EpochEntry, ...]:
    """Return a managed partition's leader epochs, none without a file of them."""
    if LEADER_EPOCH_FILE not in target.manifest.files:
        return ()
    content = target.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
    return tuple(parse_leader_epochs(content, file=f"{target.location}/{LEADER_EPOCH_FILE}"))


# Commit an ingest: copy or adopt segments as the partition's next generation.
#
# Records are copied object by object, by the store itself where mirror and managed root are on the
# same one; the small files of each segment become one object. Then one manifest names them all. A
# crash before that leaves objects that nothing names; a rerun copies them again, under another
# name, and ends in the same state.


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """The committing run, its fence, and the result to keep."""

    run_id: str
    fencing_token: int = 0
    # Raises where the lease is gone; called right before the commit.
    fence: Callable[[], None] | None = None
    result: Mapping[str, Any]  # the commit's result in the manifest


def commit_ingest(
    planned: PlannedIngest,
    mirror: Source,
    target: ManagedStore,
    rules: IngestRules,
    *,
    commitment: Commitment,
    threads: int = 1,
) -> None:
    """Copy or adopt a plan's segments as the partition's next generation.

    Args:
        planned: By ``observe_and_plan``, with the same mirror and target.
        rules: The owner's rules.
        threads: How many objects to copy at the same time.
    """
    plan = planned.plan
    if rules.in_place:
        _adopt_all(plan, mirror, target)
    else:
        _copy_all(planned, mirror, target, threads)
    timestamps = {
        one.segment.base_offset: one.largest_timestamp
        for one in plan.segments
        if one.largest_timestamp is not None
    }
    target.set_largest_timestamps(timestamps)
    _write_small_files(plan, target)
    target.set_checkpoints(_checkpoints(plan, target.checkpoints, is_new=planned.is_new))
    target.publish(
        run_id=commitment.run_id,
        fencing_token=commitment.fencing_token,
        fence=commitment.fence,
        result=commitment.result,
    )


def _copy_all(planned: PlannedIngest, mirror: Source, target: ManagedStore, threads: int) -> None:
    """Copy the records, several objects at a time, and small files."""

    def copy(one: TakenSegment) -> FileEntry:
        return _copy_log(mirror, target, one)

    plan = planned.plan
    with ThreadPoolExecutor(max_workers=max(1, threads)) as pool:
        copies = [pool.submit(copy, one) for one in plan.segments]
        for one in plan.segments:
            for file in one.segment.companions:
                _take_in(planned.companions, mirror, target, file)
            for name, content in mirror.missing_indexes(one.segment).items():
                target.write_file(name, content, modified_ms=one.segment.log.modified_ms)
        if plan.snapshot is not None:
            _take_in(planned.companions, mirror, target, plan.snapshot)
        for one, copied in zip(plan.segments, copies, strict=True):
            target.promote(encode_location(copied.result()), one.segment.log.name)


def _copy_log(mirror: Source, target: ManagedStore, one: TakenSegment) -> FileEntry:
    log = one.segment.log
    key = etag = ""
    if log.size_bytes:
        key = data_key(target.partition, target.attempt_id, log.name)
        etag = mirror.copy_log(log, target.objects, key)
    return FileEntry(
        key=key, start=0, size_bytes=log.size_bytes, etag=etag, modified_ms=log.modified_ms
    )


def _take_in(
    companions: CompanionFiles, mirror: Source, target: ManagedStore, file: ListedFile
) -> None:
    content = companions.take(file.name)
    if len(content) != file.size_bytes:
        raise ChangedWhileReadError(
            f"{mirror.location}/{file.name}", f"{file.size_bytes} bytes", f"{len(content)}"
        )
    target.write_file(file.name, content, modified_ms=file.modified_ms)


def _adopt_all(plan: IngestPlan, mirror: Source, target: ManagedStore) -> None:
    url = place_url(mirror.location)
    for file in plan.files:
        is_empty = not file.size_bytes
        target.adopt(
            file.name,
            FileEntry(
                key=f"{url}/{file.name}",
                start=0,
                size_bytes=file.size_bytes,
                etag="" if is_empty else file.etag,
                modified_ms=file.modified_ms,
            ),
        )


def _write_small_files(plan: IngestPlan, target: ManagedStore) -> None:
    """Write the files that are about the whole partition, where they changed."""
    is_there = LEADER_EPOCH_FILE in target.manifest.files
    epochs, topic_id = plan.after.epochs, plan.after.topic_id
    if not is_there or epochs != own_epochs(target):
        target.write_file(LEADER_EPOCH_FILE, encode_leader_epochs(epochs))
    if topic_id is not None:
        target.set_topic_id(topic_id)
        if PARTITION_METADATA_FILE not in target.manifest.files:
            metadata = PartitionMetadata(version=0, topic_id=topic_id)
            target.write_file(PARTITION_METADATA_FILE, encode_partition_metadata(metadata))


def _checkpoints(
    plan: IngestPlan, current: PartitionCheckpoints, *, is_new: bool
) -> PartitionCheckpoints:
    """Return the checkpoints of the next generation.

    Where the log starts, and where its cleaner goes on, is the managed root's own business from
    its first generation on: the mirror's broker may keep less than it does.
    """
    after = plan.after.checkpoints
    marks = [mark for mark in (current.high_watermark, after.high_watermark) if mark is not None]
    return replace(
        after if is_new else current,
        recovery_point=after.recovery_point,
        high_watermark=max(marks, default=None),
    )
