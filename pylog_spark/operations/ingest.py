"""Take new closed segments of a mirror into a managed root. An ingest observes, plans, commits and
records.

The mirror is listed page by page, or an inventory takes that place, and held against the manifests:
a run with nothing to do asks for one manifest a partition and reads no data. What is new is looked
at a second time, not sooner than some time after the first, and then taken, partition by
partition, each by one conditional PUT.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import discover_partitions, resolve_managed, resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.ingest_task import (
    INGESTED,
    IngestContext,
    compare_with_manifests,
    ingest_partitions,
    only_planned,
    without_files,
)
from pylog_spark.operations.transfer import TransferReport, sort_details, transfer_results
from pylog_spark.options import HighWatermarkSource, JobOptions
from pylog_spark.outcomes import Action, Status
from pylog_spark.run.catalogs import build_catalogs, require_known
from pylog_spark.run.job import Job, new_job
from pylog_spark.run.planning import count_look_tasks
from pylog_spark.run.progress import OnProgress, ProgressMeter
from pylog_spark.run.run import Run
from pylog_spark.schemas import INGEST
from pylog_spark.tasks.observe import REMOTE_KEY
from storage_core.catalog.roles import Role, local_path
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.clock import Clock
from storage_core.errors import ConfigError, GuardRefusedError, PylogError
from storage_core.filenames import CLUSTER_METADATA_TOPIC
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.roots.guards import check_off_switch
from storage_core.roots.managed import HeldManagedRoot
from storage_core.roots.open_root import LogRoot
from storage_core.roots.own_catalog import carry_configs, read_own_catalog
from storage_core.store import ObjectStore, open_object_store
from storage_core.store.bucket_settings import inspect_bucket
from storage_core.store.generations import create_root, find_root, record_adopted
from storage_core.store.lease import LeaseProof
from storage_core.store.tier_archive import names_archive, parse_archive

_log: Final = logging.getLogger(__name__)


def ingest(
    place: Place,
    mirror: str,
    managed: str,
    options: JobOptions,
    *,
    rules: IngestRules | None = None,
    clock: Clock | None = None,
    on_progress: OnProgress | None = None,
) -> TransferReport:
    """Take a mirror's closed segments still missing in a managed root.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        managed: Path or URL of the managed root; made if it is not there.
        options: Which topics, who attests high watermarks, an inventory; its dry run plans all of
            it and writes nothing.
        rules: What the owner says about the mirror.
        clock: For the lease and the times in the ledger.
        on_progress: Told how far the tasks have come that take segments.
    """
    rules = rules or IngestRules()
    source, target = check_places(mirror, managed, rules, dry_run=options.dry_run)
    high_watermark = options.high_watermark
    if names_archive(source.location) and not parse_archive(source.location).with_local:
        # Brokers upload closed segments below the last stable offset, and change none later.
        rules = replace(rules, sync_has_stopped=True, settle_ms=0)
        high_watermark = HighWatermarkSource.LOG_END
    job = new_job(
        Action.INGEST.value, (source, target), options, clock=clock, outputs=(target.location,)
    )
    with Run(place, job) as run:
        lease = None if options.dry_run else _hold(run, target)
        if rules.in_place and lease is not None:
            record_adopted(open_object_store(target.location), source.location)
        run.note(_remarks(target))
        context = IngestContext(
            run_id=job.run_id,
            mirror=source.location,
            root=target.location,
            rules=rules,
            high_watermark=high_watermark,
            lease=lease,
        )
        details = _take(run, source, context, on_progress)
        if lease is not None:
            run.note(_carry(run, source, target, details))
        results = _results(details, job)
        run.recorder.results(results)
    return run.report(TransferReport, results, notes=_notes(details), details=details)


def check_places(
    mirror: str, managed: str, rules: IngestRules, *, dry_run: bool
) -> tuple[LogRoot, LogRoot]:
    """Check the places of an ingest; return mirror and managed root. It asks the managed root's
    store what is there."""
    (source,) = resolve_roots([mirror], role=Role.MIRROR, may_be_tiers=True)
    is_tier = names_archive(source.location)
    if is_tier and rules.in_place:
        raise ConfigError("--in-place", mirror, "is a tier: brokers own its objects")
    path = local_path(managed)
    if path is not None:
        if path.exists() and not path.is_dir():
            raise ConfigError("MANAGED", managed, "is no directory")
        location = str(path.absolute())
    else:
        (root,) = resolve_managed([managed])
        location = root.location
    target = LogRoot(location=location, role=Role.MANAGED, is_said=True)
    objects = open_object_store(location)
    is_managed = not is_tier and find_root(open_object_store(source.location)) is not None
    if is_managed and location != source.location:
        raise ConfigError("MIRROR", mirror, "is a managed root itself")
    if location == source.location and not rules.in_place:
        raise ConfigError("MANAGED", managed, "is the mirror itself; --in-place adopts one so")
    if not dry_run and path is not None:
        check_off_switch(path)
        _refuse_foreign(objects, rules)
    return source, target


def _refuse_foreign(objects: ObjectStore, rules: IngestRules) -> None:
    """Refuse to make a managed root of a folder with other contents."""
    if rules.in_place or find_root(objects) is not None:
        return
    first_object = next(iter(objects.list()), None)
    if first_object is not None:
        raise GuardRefusedError(
            "TARGET_NOT_EMPTY",
            f"{objects.url} is no managed root, and has {first_object.key}: "
            "expected an empty place",
        )


def _hold(run: Run, target: LogRoot) -> LeaseProof:
    """Take the managed root's lease for this run; create missing roots."""
    job = run.job
    create_root(open_object_store(target.location), now_ms=job.clock.now_ms())
    held = run.hold(HeldManagedRoot(target.location, run_id=job.run_id, clock=job.clock))
    return held.access.lease


def _take(
    run: Run, source: LogRoot, context: IngestContext, on_progress: OnProgress | None
) -> pa.Table:
    """Return a row of ``schemas.INGEST`` for each partition, without its files."""
    job, engine = run.job, run.engine
    partitions = discover_partitions(
        engine, [source], job.topics, file_list=job.options.file_list, with_files=True
    )

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return compare_with_manifests(batches, context)

    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return without_files(ingest_partitions(batches, context))

    tasks = count_look_tasks(None, slots=engine.slots)
    title = f"{job.title}: look for what is new in {source.location}"
    # The first look has to be the first one: what is lost of it is looked at again, and waited for.
    looked = engine.keep(partitions.deal_out(tasks).map(compare, INGEST), title)
    details = engine.collect(looked.map(without_files, INGESTED), INGESTED, title)
    planned = pc.equal(details["status"], Status.PLANNED.value)
    new = pc.sum(planned).as_py() or 0
    if not new:
        return sort_details(details, "taken_bytes")
    total_bytes = pc.sum(details.filter(planned)["taken_bytes"]).as_py() or 0
    meter = ProgressMeter(engine, total_bytes=total_bytes, report=on_progress)
    meter.tell(0, 0)
    time.sleep(context.rules.settle_ms / 1000)
    # Not as many as looked: the meter knows the tasks of a stage by their number.
    count = min(new, max(1, tasks - 1))
    spread = looked.map(only_planned, INGEST).deal_out(count).map(take, INGESTED)
    with meter.stage([(total_bytes // count, 0)] * count):
        results = engine.collect(
            spread, INGESTED, f"{job.title}: take what is new into {context.root}"
        )
    others = details.filter(pc.invert(planned))
    return sort_details(pa.concat_tables([results, others]), "taken_bytes")


def _carry(run: Run, source: LogRoot, target: LogRoot, details: pa.Table) -> Iterator[str]:
    """Write the configs of the topics into the managed root.

    What the mirror's own metadata, or a ``--config``, says: a night on the managed root needs it.

    Yields:
        Notes for the report.
    """
    topics = {*pc.unique(details["topic"]).to_pylist()} - {CLUSTER_METADATA_TOPIC}
    try:
        catalogs = build_catalogs([source], run.job.options)
        require_known(catalogs)
        catalog = catalogs[source.location]
        if local_path(source.location) is None:
            own = read_own_catalog(source.open())
            topics_of_both = {**catalog.topics, **own.topics}
            catalog = replace(
                catalog, topics=topics_of_both, broker={**catalog.broker, **own.broker}
            )
        if names_archive(source.location):
            catalog = _without_tiers(catalog)
        run.roots[target.location].begin_writing()
        objects = open_object_store(target.location)
        count, missing = carry_configs(objects, catalog, topics, now_ms=run.job.options.now_ms)
    except PylogError as error:
        # The segments are taken; runs of the managed root say which configs they lack.
        yield f"{target.location}: the configs of its topics were not written: {error}"
        return
    if missing:
        yield (
            f"{target.location}: carries configs of {count:,} topics; of {missing:,} neither the "
            "mirror nor --config says any, and runs leave them alone (CONFIG_UNKNOWN)"
        )


def _without_tiers(catalog: TopicCatalog) -> TopicCatalog:
    """Return a catalog in which no topic is tiered: a managed root has what was in the tier."""
    topics = {}
    for name, entry in catalog.topics.items():
        overrides = entry.config_overrides
        is_off = {REMOTE_KEY: "false"} if REMOTE_KEY in overrides else {}
        topics[name] = replace(entry, config_overrides={**overrides, **is_off})
    return replace(catalog, topics=topics)


def _results(details: pa.Table, job: Job) -> pa.Table:
    zero = pa.scalar(0, pa.int64())
    return transfer_results(
        job,
        details,
        bytes_after=pc.add(details["bytes_before"], pc.fill_null(details["taken_bytes"], zero)),
        segments_after=pc.add(
            details["segments_before"], pc.fill_null(details["taken_segments"], zero)
        ),
    )


def _remarks(target: LogRoot) -> tuple[str, ...]:
    """Say what writing there costs or means, before anything is written."""
    remarks = [f"{remark.code}: {remark.message}" for remark in inspect_bucket(target.location)]
    for remark in remarks:
        _log.warning("%s: %s", target.location, remark)
    return tuple(remarks)


def _notes(details: pa.Table) -> tuple[str, ...]:
    notes = []
    has_segments = pc.greater(pc.fill_null(details["taken_segments"], 0), 0)
    rows = details.filter(has_segments)
    if rows.num_rows:
        totals = {
            name: pc.sum(rows[name]).as_py() or 0
            for name in (
                "taken_segments",
                "taken_bytes",
                "copied_bytes",
                "moved_bytes",
                "list_requests",
                "get_requests",
                "head_requests",
                "copy_requests",
                "put_requests",
            )
        }
        notes.append("; ".join(f"{name.replace('_', ' ')} {n}" for name, n in totals.items()))
        unattested = pc.sum(pc.is_null(rows["high_watermark"])).as_py() or 0
        if unattested:
            notes.append(
                f"{unattested} partitions have no high watermark that the mirror attests: nothing "
                "of them is compacted or removed until one does"
            )
    return tuple(notes)
