"""Take partitions of a mirror into a managed root. Each gets one row of ``schemas.INGEST``.

First every partition is held against its manifest: one GET, and what has nothing new is done with.
The others are looked at again, some time after they were listed, and what both looks agree about
is taken. A task that runs twice finds its own commit in the manifest and returns the same row.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.options import HighWatermarkSource
from pylog_spark.outcomes import Reason, Status
from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import INGEST
from pylog_spark.tasks.ahead import BYTES_AT_ONCE, Room, map_ahead
from pylog_spark.tasks.listing import (
    LISTING_COLUMNS,
    REASON_OF_KIND,
    left_alone,
    listed_files,
    listing_columns,
    open_partition,
    rows_of,
)
from pylog_spark.tasks.message import attempt_row, error_of
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.off_switch import is_switched_off
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import (
    UPKEEP_FILES,
    Checkpoints,
    PartitionCheckpoints,
    read_checkpoints,
)
from storage_core.clock import SystemClock
from storage_core.errors import GuardRefusedError, InconsistentTopicIdError
from storage_core.filenames import LOG_SUFFIX, MAX_OFFSET, TopicPartition, kind_of
from storage_core.maintenance.ingest.partition import (
    Commitment,
    IngestRules,
    MirrorPartition,
    PlannedIngest,
    Source,
    TierPartition,
    commit_ingest,
    list_store,
    new_bytes,
    observe_and_plan,
)
from storage_core.maintenance.ingest.plan import IngestPlan
from storage_core.reading.ranges import is_tiered_topic
from storage_core.roots.open_root import open_root
from storage_core.roots.remote_logs import RemoteLogs
from storage_core.roots.root import Root
from storage_core.store import ManagedStore, open_object_store, open_store
from storage_core.store.lease import LeaseProof, require_lease
from storage_core.store.open_store import open_tier
from storage_core.store.tier_archive import names_archive

# Objects of one partition that are copied at the same time.
_COPIES_AT_ONCE: Final = 8
_ROW: Final = "row"
# What a mirror's directory is refused for; another guard, as the lease, fails what it is met in.
_REFUSALS: Final = frozenset(
    {
        Reason.OVERLAPPING_SEGMENTS,
        Reason.MIXED_REPLICAS,
        Reason.MISSING_SEGMENTS,
        Reason.OFFSETS_IN_TIER,
        Reason.UNFINISHED_SWAP,
    }
)
# What the driver holds of each partition: its files stay where tasks are.
INGESTED: Final = pa.schema(
    [field for field in INGEST if field.name not in {*LISTING_COLUMNS, "listed_ms"}]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestContext:
    """What every task of an ingest is told: values only."""

    run_id: str
    mirror: str
    root: str  # path or URL of the managed root
    rules: IngestRules  # what the owner says about the mirror
    high_watermark: HighWatermarkSource
    lease: LeaseProof | None  # of the managed root; None for a dry run, which writes nothing


def compare_with_manifests(
    batches: Iterator[pa.RecordBatch], context: IngestContext
) -> Iterator[pa.RecordBatch]:
    """Turn rows of ``schemas.PARTITION``, files included, into rows of ``schemas.INGEST``. Those
    with something new are planned, with their bytes at most, and keep their files; the others have
    their reason."""
    compared = map_ahead(lambda row: _compare(row, context), rows_of(batches))
    yield from rows_to_batches(INGEST, compared)


def only_planned(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield those rows of ``schemas.INGEST`` that are planned."""
    for batch in batches:
        yield batch.filter(pc.equal(batch["status"], Status.PLANNED.value))


def without_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of ``schemas.INGEST`` without what a listing says of their files."""
    for batch in batches:
        yield batch.select(INGESTED.names)


def ingest_partitions(
    batches: Iterator[pa.RecordBatch], context: IngestContext
) -> Iterator[pa.RecordBatch]:
    """Turn the planned rows of ``compare_with_manifests`` into what became of them. Small
    partitions are taken beside each other: they are mostly waiting for the stores."""
    mirror = open_root(context.mirror, role=Role.MIRROR)
    read_once = cache(lambda: read_checkpoints(mirror, UPKEEP_FILES))
    room, reading = Room(BYTES_AT_ONCE), threading.Lock()

    def checkpoints() -> Checkpoints:
        with reading:
            return read_once()

    def take(row: Mapping[str, Any]) -> dict[str, Any]:
        with room.take(sum(row["file_bytes"] or ())):
            return _attempt(row, context, mirror, checkpoints)

    yield from rows_to_batches(INGEST, map_ahead(take, rows_of(batches)))


def _compare(row: Mapping[str, Any], context: IngestContext) -> dict[str, Any]:
    name = row["directory"].rpartition("/")[2]
    place = {
        "root": context.root,
        "topic": row["topic"],
        "partition": row["partition"],
        "mirror": context.mirror,
        "directory": name,
        "listed_ms": SystemClock().now_ms(),
    }
    return attempt_row(place, partial(_look, row, context))


def _look(row: Mapping[str, Any], context: IngestContext) -> dict[str, Any]:
    if row["topic"] is not None and names_archive(row["directory"]):
        row = {**row, **listing_columns(list_store(open_store(row["directory"])))}
    failed = error_of(row)
    if failed is not None:
        return failed
    reason = REASON_OF_KIND.get(DirectoryKind(row["kind"]))
    if reason is not None:
        return left_alone(row, reason)
    target = _target(row, context)
    if is_switched_off(target.location):
        return {"status": Status.SKIPPED, "reason": Reason.SWITCHED_OFF}
    size = _size_of(target)
    if _is_own(target, context):
        return size | {"status": Status.PLANNED} | _files_of(row)
    most_bytes = new_bytes(listed_files(row) or (), target, context.rules)
    if most_bytes is None:
        return size | {"status": Status.SKIPPED, "reason": Reason.NOTHING_TO_INGEST}
    return size | {"status": Status.PLANNED, "taken_bytes": most_bytes} | _files_of(row)


def _attempt(
    row: Mapping[str, Any], context: IngestContext, root: Root, checkpoints: Any
) -> dict[str, Any]:
    columns = {
        name: row[name]
        for name in (
            "root",
            "topic",
            "partition",
            "mirror",
            "directory",
            "bytes_before",
            "segments_before",
        )
    }
    attempt = attempt_row(columns, lambda: _ingest(row, context, root, checkpoints()), _refusal_of)
    return attempt | {"duration_ms": attempt["duration_ms"] + row["duration_ms"]}


def _refusal_of(error: Exception) -> str | None:
    if isinstance(error, InconsistentTopicIdError):
        return Reason.INCONSISTENT_TOPIC_ID
    if isinstance(error, GuardRefusedError) and error.code in _REFUSALS:
        return error.code
    return None


def _ingest(
    row: Mapping[str, Any], context: IngestContext, root: Root, checkpoints: Checkpoints
) -> dict[str, Any]:
    target = _target(row, context)
    if _is_own(target, context):
        done: dict[str, Any] = dict(target.manifest.result[_ROW])
        return done
    _wait_until_settled(row["listed_ms"], context.rules.settle_ms)
    mirror = _mirror(row, context, root)
    attested = checkpoints.of(target.partition)
    if context.high_watermark is HighWatermarkSource.LOG_END:
        attested = replace(attested, high_watermark=MAX_OFFSET)
    planned = observe_and_plan(mirror, target, context.rules, attested)
    if planned.is_new and not context.rules.allows_data_loss:
        _refuse_tier(planned.plan, target.partition, RemoteLogs([root]), attested)
    result = _describe(planned)
    if not planned.has_work:
        return result | {"status": Status.SKIPPED.value, "reason": Reason.NOTHING_TO_INGEST.value}
    if context.lease is None:
        return result | {"status": Status.PLANNED.value}
    lease = context.lease
    result["status"] = Status.DONE.value
    commit_ingest(
        planned,
        mirror,
        target,
        context.rules,
        commitment=Commitment(
            run_id=context.run_id,
            fencing_token=lease.token,
            fence=lambda: require_lease(target.objects, lease, now_ms=SystemClock().now_ms()),
            result={_ROW: result},
        ),
        threads=_COPIES_AT_ONCE,
    )
    return result


def _refuse_tier(
    plan: IngestPlan,
    partition: TopicPartition,
    remote: RemoteLogs,
    attested: PartitionCheckpoints,
) -> None:
    """Refuse a log that surely begins in a tier. A mirror's checkpoint may be older than its
    segments."""
    base = plan.segments[0].segment.base_offset if plan.segments else 0
    start = attested.start_in_tier(base)
    if start is None:
        return
    is_tiered = is_tiered_topic(plan.location, partition.topic)
    uploads = remote.uploads(open_store(plan.location), partition)
    if is_tiered or (is_tiered is None and uploads.ranges):
        raise GuardRefusedError(
            Reason.OFFSETS_IN_TIER,
            f"{plan.location}: offsets {start} to {base - 1} are in no segment here: they lie in "
            f"the topic's tier (remote storage){uploads.tell(start, base)}",
        )


def _describe(planned: PlannedIngest) -> dict[str, Any]:
    plan = planned.plan
    skip_reasons = sorted(plan.skip_reasons.items())
    return {
        "taken_bytes": plan.record_bytes,
        "taken_segments": len(plan.segments),
        "left_segments": len(skip_reasons),
        "left_because": skip_reasons[0][1].value if skip_reasons else None,
        "end_offset": plan.end_offset,
        "high_watermark": plan.after.checkpoints.high_watermark,
        **asdict(planned.cost),
    }


def _target(row: Mapping[str, Any], context: IngestContext) -> ManagedStore:
    partition = TopicPartition(row["topic"], row["partition"])
    return ManagedStore(open_object_store(context.root), partition, is_new=True)


def _mirror(row: Mapping[str, Any], context: IngestContext, root: Root) -> Source:
    first = tuple(listed_files(row) or ())
    if names_archive(context.mirror):
        return TierPartition(files=open_tier(root.locate(row["directory"])), first=first)
    location = f"{context.mirror.rstrip('/')}/{row['directory']}"
    return MirrorPartition(
        objects=open_object_store(context.mirror),
        directory=row["directory"],
        files=open_partition({**row, "directory": location}),
        first=first,
    )


def _files_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in LISTING_COLUMNS}


def _size_of(target: ManagedStore) -> dict[str, Any]:
    logs = [
        entry.size_bytes
        for name, entry in target.manifest.files.items()
        if kind_of(name) == LOG_SUFFIX
    ]
    return {"bytes_before": sum(logs), "segments_before": len(logs)}


def _is_own(target: ManagedStore, context: IngestContext) -> bool:
    """Whether another attempt of this run has committed the partition already."""
    manifest = target.manifest
    return manifest.run_id == context.run_id and _ROW in manifest.result


def _wait_until_settled(listed_ms: int, settle_ms: int) -> None:
    """Wait for the time between both looks, if still needed. It is needed where the first look
    was taken again, after the driver's own waiting."""
    left_ms = listed_ms + settle_ms - SystemClock().now_ms()
    if left_ms > 0:
        time.sleep(min(left_ms, settle_ms) / 1000)
