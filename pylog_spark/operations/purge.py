"""Purge files put aside by brokers or by our runs. They go for good, once their time is over.

In a broker's directory that are ``.deleted`` files and directories of deleted partitions, which
the broker would remove itself; in the trash, what runs replaced or removed; in a managed root,
generations and objects that no manifest within the grace period names. No records are read.
Tasks do it for managed roots; what lies on this host's disks goes from here.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Local, Place
from pylog_spark.operations.purge_task import purge_directory, purge_stretches
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action, Status
from pylog_spark.run.catalogs import build_catalogs, dump_notes
from pylog_spark.run.guards import check_roots
from pylog_spark.run.job import new_job
from pylog_spark.run.planning import are_looked_at_here, count_look_tasks
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.schemas import Failure
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.message import DirectoryResult, error_of
from storage_core.catalog.cluster_metadata import read_cluster_metadata
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.metadata_image import TopicMetadata
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.clock import Clock
from storage_core.commit.purge import Purged, apply_purge, find_runs, plan_purge_trash
from storage_core.commit.trash import hold_run
from storage_core.errors import ConfigError, PylogError
from storage_core.filenames import TopicPartition
from storage_core.reading.inspection import RootView, group_by_broker, inspect_root
from storage_core.roots.root import PurgeRequest, PurgeT, RootPurge, Stretch
from storage_core.store import open_store

# Describe ``-stray`` and ``-delete`` directories: bytes and present use. The lines say whether
# anybody misses them.
#
# A broker sets a log aside where the cluster's metadata does not give the partition to it. The
# same metadata says whether the topic lives, and which brokers have that partition.

_SET_ASIDE: Final = frozenset({DirectoryKind.STRAY, DirectoryKind.DELETE})
# So many partitions of a line are named.
_MOST_NAMED: Final = 5


def describe_set_aside(views: Sequence[RootView], topics: TopicFilter) -> Iterator[str]:
    """Yield one line per group of a topic's directories. The directories of a group share one
    answer.

    Args:
        views: Log directories; those of one broker share what its metadata says.
    """
    for broker in group_by_broker(views):
        logs = {
            (entry.topic_id, entry.topic_partition): entry.path
            for view in broker
            for entry in view.entries
            if entry.kind is DirectoryKind.PARTITION
        }
        for view in broker:
            yield from _describe(view, logs, topics)


def _describe(
    view: RootView,
    logs: Mapping[tuple[str | None, TopicPartition | None], str],
    topics: TopicFilter,
) -> Iterator[str]:
    entries = [
        (entry, entry.topic_partition)
        for entry in view.entries
        if entry.kind in _SET_ASIDE
        and entry.topic_partition is not None
        and topics.admits(entry.topic_partition.topic)
    ]
    metadata_topics = None
    if entries and view.metadata is not None:
        with suppress(PylogError):
            metadata_topics = read_cluster_metadata(view.metadata).topics
    node = None if view.properties is None else view.properties.node_id
    alike: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for entry, name in entries:
        with suppress(PylogError):
            size = sum(file.size_bytes for file in open_store(entry.path).list_files())
            owner = _owner(name, entry.topic_id, metadata_topics, node, logs)
            alike[entry.kind.value, name.topic, owner].append((name.partition, size))
    for (kind, topic, owner), directories in sorted(alike.items()):
        numbers = sorted(number for number, _ in directories)
        names = ", ".join(map(str, numbers[:_MOST_NAMED]))
        more = ", ..." if len(numbers) > _MOST_NAMED else ""
        size = sum(size for _, size in directories)
        yield (
            f"{view.row['root']}: {topic}, {len(numbers)} x -{kind} (partition {names}{more}), "
            f"{size:,} bytes: {owner}"
        )


def _owner(
    name: TopicPartition,
    topic_id: str | None,
    metadata_topics: Mapping[str, TopicMetadata] | None,
    node: int | None,
    logs: Mapping[tuple[str | None, TopicPartition | None], str],
) -> str:
    """Return who has the partition of a directory, or what tells."""
    if metadata_topics is None or topic_id is None:
        also = (
            "name its directory with __cluster_metadata-0, too, or "
            if metadata_topics is None
            else ""
        )
        return (
            "whether anybody misses it only the cluster's metadata can tell; "
            f"{also}ask a running cluster: kafka-topics.sh --describe --topic {name.topic}"
        )
    topic = metadata_topics.get(topic_id)
    if topic is None:
        return f"the metadata has no topic {topic_id}: it was deleted"
    record = topic.partitions.get(name.partition)
    if record is None:
        return "the topic lives, and has no such partition"
    if node in record.replicas:
        log = logs.get((topic_id, name))
        if log is None:
            return f"it is assigned to this node ({node}), and no log here has its place: keep it"
        return f"it is assigned to this node ({node}), and {log} has its place: compare the two"
    nodes = ", ".join(map(str, record.replicas))
    return f"it lives on node {nodes}: look there before this is removed"


def purge(
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    place: "Place | None" = None,
    clock: Clock | None = None,
) -> RunReport:
    """Purge log directories, managed roots and the trash, under their locks.

    Args:
        roots: Log directories and managed roots; none for the trash alone.
        options: The trash, the time, which topics, the ledger, and whether this is a dry run.
        place: What writes the ledger: a Spark session, or this machine, which None stands for.
        clock: For the name of the run, and the times in the ledger.
    """
    log_roots = resolve_roots(roots, role=options.role) if roots else []
    if not log_roots and options.trash is None:
        raise ConfigError("ROOT", None, "expected a log directory, a managed root or --trash")
    # Beside roots it may be that no run has kept anything there yet.
    if not log_roots and not Path(options.trash or "").is_dir():
        raise ConfigError("--trash", options.trash, "no such directory")
    check_roots(log_roots, options)
    job = new_job(Action.PURGE.value, log_roots, options, clock=clock)
    # A purge removes what was deleted, so its owner is looked up before.
    disks = []
    for root in log_roots:
        if root.role.facts.is_owned_by_broker:
            with suppress(PylogError):  # the report has the error
                disks.append(inspect_root(root.location))
    set_aside = tuple(describe_set_aside(disks, job.topics))
    with Run(place or Local(), job) as run:
        run.note(dump_notes(options))
        run.hold_roots()
        results = purge_step(run, build_catalogs(log_roots, options))
    failed = [
        f"{location}: the disk failed, and nothing more was purged there: {failure}"
        for location, failure in run.failures.items()
    ]
    return run.report(RunReport, results, notes=(*set_aside, *failed))


@log_fields(step=Action.PURGE.value)
def purge_step(
    run: Run, catalogs: Mapping[str, TopicCatalog], *, listed: pa.Table | None = None
) -> pa.Table:
    """Purge old leftovers; return a row per directory with any. They are rows of
    ``schemas.RESULT``.

    What is wrong with one directory is in its row and stops no other. The rows, and what was done,
    are in the run's record when this returns.

    Args:
        run: The run; it holds the roots, and its own trash stays.
        listed: Rows of ``schemas.PARTITION``: the directories of brokers in which there may be
            something; None to list them.
    """
    rows = chain(_purge_roots(run, catalogs, listed), _purge_trash(run))
    return run.recorder.each_result(rows, action=Action.PURGE.value)


def _purge_roots(
    run: Run, catalogs: Mapping[str, TopicCatalog], listed: pa.Table | None
) -> Iterator[dict[str, Any]]:
    options = run.job.options
    for root in run.job.roots:
        # Where the disk has failed the run says so in its notes, and does nothing more; a sync owns
        # what was put aside in a copy, too.
        if root.location in run.failures or root.role.facts.is_synced:
            continue
        names = None
        if listed is not None:
            of_root = listed.filter(pc.equal(listed["root"], root.location))
            rows = of_root.sort_by("directory").to_pylist()
            names = [row["directory"].rpartition("/")[2] for row in rows if not row["error_class"]]
            for row in rows:
                if (error := error_of(row)) is not None:
                    yield {
                        key: row[key] for key in ("root", "topic", "partition", "directory")
                    } | error
        request = PurgeRequest(
            topics=run.job.topics,
            catalog=catalogs[root.location],
            now_ms=options.now_ms,
            grace_ms=options.purge_after_ms,
            names=names,
        )
        try:
            purge = root.open().purge_of(request, run.roots.get(root.location))
            yield from _purge_root(run, root.location, purge)
        except PylogError as error:
            # The last step of a night: the rows of the others are not lost by it.
            ended = DirectoryResult(status=Status.FAILED.value, failure=Failure.of(error))
            yield {"root": root.location, **ended.columns()}


def _purge_root(run: Run, location: str, purge: RootPurge[PurgeT]) -> Iterator[dict[str, Any]]:
    """Purge a root, part by part.

    Yields:
        Columns of ``schemas.RESULT`` of each directory in which something was to be purged.
    """
    is_whole = True
    dry_run = run.job.options.dry_run
    purge.begin()
    for part in purge.parts():
        if purge.is_here:
            ended = purge_stretches(
                part, purge.find_due, purge.apply, is_here=True, dry_run=dry_run
            )
        else:
            ended = _purge_in_tasks(run, location, purge, part)
        for each in ended:
            is_whole = is_whole and each.status == Status.DONE.value
            yield {"root": location, **each.columns()}
    run.note(purge.end(is_whole=is_whole, now_ms=run.job.clock.now_ms()))


def _purge_in_tasks(
    run: Run, location: str, purge: RootPurge[PurgeT], part: Sequence[Stretch[PurgeT]]
) -> Iterator[DirectoryResult]:
    count = sum(map(len, part))
    tasks = min(count_look_tasks(count, slots=run.engine.slots), len(part))
    work = partial(
        purge_stretches,
        find_due=purge.find_due,
        apply=purge.apply,
        is_here=False,
        dry_run=run.job.options.dry_run,
    )
    # Each delete asks for the lease first, so that tasks may do it wherever they look.
    ended = run.engine.ask(
        [part[number::tasks] for number in range(tasks)],
        work,
        DirectoryResult,
        f"{run.job.title}: purge {location}",
        is_look=are_looked_at_here(count),
    )
    yield from sorted(ended, key=lambda each: (each.topic or "", each.partition or 0))


def _purge_trash(run: Run) -> Iterator[dict[str, Any]]:
    """Purge what runs have kept; what this run keeps itself stays."""
    options = run.job.options
    for folder in () if options.trash is None else find_runs(Path(options.trash)):
        if folder.name != run.job.run_id:
            work = partial(_purge_run, folder, options)
            ended = purge_directory(DirectoryResult(), work, dry_run=options.dry_run)
            if ended.status is not None:
                yield {"root": str(folder), **ended.columns()}


def _purge_run(folder: Path, options: JobOptions) -> Purged:
    with nullcontext() if options.dry_run else hold_run(folder):
        purge = plan_purge_trash(
            folder, now_ms=options.now_ms, older_than_ms=options.purge_after_ms
        )
        return apply_purge(purge, dry_run=options.dry_run)
