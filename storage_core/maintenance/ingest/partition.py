"""Observe one partition of a mirror and plan its ingest, without writing."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from storage_core.checkpoint.checkpoint_files import (
    MAX_LEADER_EPOCH_BYTES,
    EpochEntry,
    parse_leader_epochs,
)
from storage_core.errors import GuardRefusedError
from storage_core.filenames import LEADER_EPOCH_FILE
from storage_core.maintenance.ingest.observe import (
    MAX_COMPANION_BYTES,
    ManagedFacts,
    MirrorFacts,
    MirrorListing,
    group_files,
    read_edges,
    read_epochs,
    read_topic_id,
)
from storage_core.maintenance.ingest.plan import (
    IngestCost,
    IngestPlan,
    choose_candidates,
    cost_of,
    plan_ingest,
)
from storage_core.store.base import LogStore
from storage_core.store.copying import is_server_side
from storage_core.store.listing import ListedFile
from storage_core.store.managed_store import ManagedStore
from storage_core.store.object_store import ObjectStore

# Small files that the plan has read are kept for the commit, up to this many bytes.
_KEPT_BYTES: Final = 128 << 20
# Longer than a sync pauses between two parts of one file.
DEFAULT_SETTLE_MS: Final = 60_000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRules:
    """The owner's rules for a mirror."""

    # Nothing is written to it any more: the newest segment is closed, too.
    sync_has_stopped: bool = False
    # Its objects are adopted where they are; they belong to the managed root then.
    in_place: bool = False
    # How long the second of the two looks at it has to be after the first.
    settle_ms: int = DEFAULT_SETTLE_MS

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


def has_candidates(first: Iterable[ListedFile], target: ManagedStore, rules: IngestRules) -> bool:
    """Whether the first listing has anything new for the managed partition. A partition with
    nothing new is neither listed again nor read."""
    listing = group_files(first)
    candidates = choose_candidates(
        listing,
        listing,
        end_offset=ingested_of(target).end_offset,
        sync_has_stopped=rules.sync_has_stopped,
    )
    return bool(candidates.segments)


def ingested_of(target: ManagedStore) -> ManagedFacts:
    """Return a managed partition's progress on its mirror, with defaults for new."""
    manifest = target.manifest
    if not manifest.generation:
        return ManagedFacts()
    return ManagedFacts(
        end_offset=manifest.checkpoints.recovery_point,
        topic_id=manifest.topic_id,
        epochs=own_epochs(target),
    )


def observe_and_plan(
    mirror: MirrorPartition,
    target: ManagedStore,
    rules: IngestRules,
    *,
    high_watermark: int | None,
    log_start_offset: int | None,
    cleaner_offset: int | None,
) -> PlannedIngest:
    """List a mirror's directory again, read new segments' edges, and plan.

    Args:
        target: The managed partition; one that is new was opened so.
        rules: The owner's rules.
        high_watermark: The high watermark by the mirror's checkpoint or its owner, None without
            either.
        log_start_offset: The log start of the mirror's checkpoint, None without one.
        cleaner_offset: The cleaner offset of the mirror's checkpoint, None without one.
    """
    first, second = group_files(mirror.first), group_files(mirror.list_again())
    for listing in (first, second):
        if listing.unfinished:
            raise GuardRefusedError(
                "UNFINISHED_SWAP",
                f"{mirror.location} was copied while its broker replaced segments: "
                f"{listing.unfinished[0]} is there",
            )
    ingested = ingested_of(target)
    candidates = choose_candidates(
        first,
        second,
        end_offset=ingested.end_offset,
        sync_has_stopped=rules.sync_has_stopped,
    )
    companions = CompanionFiles(mirror.files)
    edges = [read_edges(mirror.files, segment, companions.look) for segment in candidates.segments]
    plan = plan_ingest(
        mirror.location,
        candidates,
        edges,
        _attested(mirror, second, high_watermark, log_start_offset, cleaner_offset),
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
            is_server_side=is_server_side(mirror.objects, target.objects),
        ),
        is_new=not target.manifest.generation,
    )


def _attested(
    mirror: MirrorPartition,
    listing: MirrorListing,
    high_watermark: int | None,
    log_start_offset: int | None,
    cleaner_offset: int | None,
) -> MirrorFacts:
    return MirrorFacts(
        topic_id=read_topic_id(mirror.files, listing),
        epochs=read_epochs(mirror.files, listing),
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        cleaner_offset=cleaner_offset,
    )


def own_epochs(target: ManagedStore) -> tuple[EpochEntry, ...]:
    """Return a managed partition's leader epochs, none without a file of them."""
    if LEADER_EPOCH_FILE not in target.manifest.files:
        return ()
    content = target.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
    return tuple(parse_leader_epochs(content, file=f"{target.location}/{LEADER_EPOCH_FILE}"))
