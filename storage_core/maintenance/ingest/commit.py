"""Commit an ingest: copy or adopt segments as the partition's next generation.

Records are copied object by object, by the store itself where mirror and managed root are on the
same one; the small files of each segment become one object. Then one manifest names them all. A
crash before that leaves objects that nothing names; a rerun copies them again, under another name,
and ends in the same state.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from storage_core.checkpoint.checkpoint_files import (
    PartitionMetadata,
    encode_leader_epochs,
    encode_partition_metadata,
)
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.errors import ChangedWhileReadError
from storage_core.filenames import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE
from storage_core.maintenance.ingest.partition import (
    CompanionFiles,
    IngestRules,
    MirrorPartition,
    PlannedIngest,
    own_epochs,
)
from storage_core.maintenance.ingest.plan import IngestPlan, TakenSegment
from storage_core.store.copying import copy_object
from storage_core.store.listing import ListedFile
from storage_core.store.managed_root import place_url
from storage_core.store.managed_store import ManagedStore
from storage_core.store.manifest import FileEntry, data_key
from storage_core.store.uploads import encode_location


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
    mirror: MirrorPartition,
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


def _copy_all(
    planned: PlannedIngest, mirror: MirrorPartition, target: ManagedStore, threads: int
) -> None:
    """Copy the records, several objects at a time, and small files."""

    def copy(one: TakenSegment) -> FileEntry:
        return _copy_log(mirror, target, one)

    plan = planned.plan
    with ThreadPoolExecutor(max_workers=max(1, threads)) as pool:
        copies = [pool.submit(copy, one) for one in plan.segments]
        for one in plan.segments:
            for file in one.segment.companions:
                _take_in(planned.companions, mirror, target, file)
        if plan.snapshot is not None:
            _take_in(planned.companions, mirror, target, plan.snapshot)
        for one, copied in zip(plan.segments, copies, strict=True):
            target.promote(encode_location(copied.result()), one.segment.log.name)


def _copy_log(mirror: MirrorPartition, target: ManagedStore, one: TakenSegment) -> FileEntry:
    log = one.segment.log
    key = etag = ""
    if log.size_bytes:
        key = data_key(target.partition, target.attempt_id, log.name)
        source = f"{mirror.directory}/{log.name}"
        etag = copy_object(mirror.objects, source, log.etag, target.objects, key)
    return FileEntry(
        key=key, start=0, size_bytes=log.size_bytes, etag=etag, modified_ms=log.modified_ms
    )


def _take_in(
    companions: CompanionFiles, mirror: MirrorPartition, target: ManagedStore, file: ListedFile
) -> None:
    content = companions.take(file.name)
    if len(content) != file.size_bytes:
        raise ChangedWhileReadError(
            f"{mirror.location}/{file.name}", f"{file.size_bytes} bytes", f"{len(content)}"
        )
    target.write_file(file.name, content, modified_ms=file.modified_ms)


def _adopt_all(plan: IngestPlan, mirror: MirrorPartition, target: ManagedStore) -> None:
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
    if not is_there or plan.epochs != own_epochs(target):
        target.write_file(LEADER_EPOCH_FILE, encode_leader_epochs(plan.epochs))
    if plan.topic_id is not None:
        target.set_topic_id(plan.topic_id)
        if PARTITION_METADATA_FILE not in target.manifest.files:
            metadata = PartitionMetadata(version=0, topic_id=plan.topic_id)
            target.write_file(PARTITION_METADATA_FILE, encode_partition_metadata(metadata))


def _checkpoints(
    plan: IngestPlan, current: PartitionCheckpoints, *, is_new: bool
) -> PartitionCheckpoints:
    """Return the checkpoints of the next generation.

    Where the log starts, and where its cleaner goes on, is the managed root's own business from
    its first generation on: the mirror's broker may keep less than it does.
    """
    marks = [mark for mark in (current.high_watermark, plan.high_watermark) if mark is not None]
    return PartitionCheckpoints(
        log_start_offset=plan.log_start_offset if is_new else current.log_start_offset,
        recovery_point=plan.end_offset,
        high_watermark=max(marks, default=None),
        cleaner_offset=plan.cleaner_offset if is_new else current.cleaner_offset,
    )
