"""Give partitions to another, stopped cluster, and groups their places in it.

Tasks read the logs that may go, then build the replicas in folders that a broker takes for deleted
partitions. The driver, which holds the target's log directories, gives them their names, wave by
wave: what a killed run has put in place stays, and the next one goes on.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pylog_spark.cluster.transplant_task import (
    TargetContext,
    build_transplants,
    homes_of,
    plan_transplants,
    target_of,
)
from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.transfer import TransferReport
from pylog_spark.options import JobOptions
from pylog_spark.options.declared import TRASH
from pylog_spark.outcomes import Action, Status
from pylog_spark.rows import table_of
from pylog_spark.run.catalogs import read_meta_properties
from pylog_spark.run.guards import check_ledger, check_outside
from pylog_spark.run.job import new_job, run_trash
from pylog_spark.run.planning import LOOK_TASKS_PER_SLOT, WorkItem, are_read_here
from pylog_spark.run.run import Run
from pylog_spark.run.upkeep import begin_trash
from pylog_spark.schemas import Failure, TransplantRow
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY, ClusterMetadata
from storage_core.catalog.topic_catalog import INTERNAL_TOPICS
from storage_core.checkpoint.broker_files import MetaProperties
from storage_core.checkpoint.checkpoints import read_checkpoints
from storage_core.checkpoint.lock import require_stopped
from storage_core.clock import Clock
from storage_core.cluster.metadata_copies import (
    MetadataCopy,
    compare_copies,
    read_copy,
)
from storage_core.cluster.transplant.plan import (
    Assignment,
    TargetDirectory,
    TargetRoom,
    TransplantReason,
    TransplantRequest,
    assign_logs,
)
from storage_core.cluster.transplant.replica import (
    BuiltReplicas,
    put_in_place,
    scratch_folder,
)
from storage_core.cluster.transplant.source import (
    SourcePlace,
    find_places,
    read_commits,
    read_transactions,
)
from storage_core.coordinators.transactions import TransactionCoordinators
from storage_core.errors import ConfigError, PylogError
from storage_core.filenames import (
    LOG_SUFFIX,
    META_PROPERTIES_FILE,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    kind_of,
)
from storage_core.roots.broker import BrokerRoot, HeldBrokerRoot
from storage_core.roots.guards import check_local_directory
from storage_core.store.local import LocalStore, plain_path, storage_errors
from storage_core.wording import count_text

_TO: Final = "--to"
_MAP: Final = "--map"
_RUNS: Final = "its broker runs; stop its whole cluster first"
_TARGET_RUNS: Final = "its broker runs; create the topics in it, then stop its whole cluster"
_MOST_REPLICAS: Final = 3
# So many groups are named.
_MOST_GROUPS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """A committed offset, by the topic's name in the target."""

    group: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic of the source that the target does not have."""

    topic: str
    partitions: int  # how many it has; without the source's metadata, at least
    replicas: int  # how many each can have in the target, at most three
    config: Mapping[str, str]  # its own config in the source, by key


@dataclass(frozen=True, slots=True, kw_only=True)
class TransplantOptions:
    """What a transplant does besides."""

    # Other names of topics in the target, by their own.
    names: Mapping[str, str] = field(default_factory=dict)
    keeps_producers: bool = False  # whether the target remembers the source's producers
    # Whether open transactions may be aborted that were committed perhaps.
    aborts_undecided: bool = False
    offsets_out: Path | None = None  # the file for committed offsets, None for none


@dataclass(frozen=True, slots=True, kw_only=True)
class TransplantReport(TransferReport):
    """The report of a transplant; its details are rows of ``schemas.TRANSPLANT``."""

    cluster_id: str
    metadata: ClusterMetadata
    offsets: Sequence[GroupOffset]  # what groups had committed in the partitions that go
    missing_topics: Sequence[NewTopic]


def transplant(
    place: Place,
    sources: Sequence[str | Path],
    targets: Sequence[Path],
    options: JobOptions,
    request: TransplantOptions,
    *,
    clock: Clock | None = None,
) -> TransplantReport:
    """Give partitions to another, stopped cluster. Everything is looked at before anything is
    written; what cannot go stays, the others go.

    Args:
        place: Where it runs: a Spark session, whose executors have to be on this host, or this
            machine (``Local``).
        sources: Paths of log directories. Of one that is a target's as well, only what its broker
            has set aside as stray is taken.
        targets: Paths of log directories of the target, the one with its metadata among them.
        options: Which topics; the run's clock, ledger and trash, and whether it is only planned.
        clock: For the times in the ledger.
    """
    roots = resolve_roots(sources, role=options.role)
    # By these names an undo finds what was put there.
    by_place = {path.resolve(): plain_path(path) for path in targets}
    targets = list(by_place.values())
    own = {root.location for root in roots if Path(root.location).resolve() in by_place}
    foreign = {
        Path(root.location): read_meta_properties(root.location)
        for root in roots
        if root.location not in own
    }
    for source in foreign:
        require_stopped(source, _RUNS)
    # Topics of one name in two clusters have nothing in common, nor have their groups.
    _require_one_cluster("ROOT", foreign)
    for target in targets:
        if not target.is_dir():
            raise ConfigError(_TO, target, "no such directory")
        check_local_directory(str(target), frozenset())
        if options.dry_run:
            require_stopped(target, _TARGET_RUNS)
    check_ledger(roots, options.ledger)
    check_outside(TRASH.label, options.trash, roots, log_directories=targets)
    job = new_job(
        Action.TRANSPLANT.value,
        roots,
        options,
        clock=clock,
        request=asdict(request),
        outputs=tuple(map(str, targets)),
    )
    with Run(place, job) as run:
        # Nobody starts while they are read and written.
        held = {
            target: run.hold(
                BrokerRoot(target).hold(run_id=job.run_id, mark_clean=True, is_alone=False)
            )
            for target in (() if options.dry_run else targets)
        }
        begin_trash(job, list(map(str, held)), run.held)
        copy, directories = _read_target(targets, now_ms=options.now_ms)
        assert copy.metadata is not None  # noqa: S101  # the copy was read
        places = [
            each
            for root in roots
            for each in find_places(Path(root.location), only_strays=root.location in own)
        ]
        metadata, notes = _read_metadata(foreign, now_ms=options.now_ms)
        places = _with_sync(places, foreign, metadata)
        counts = {
            topic.name: len(topic.partitions) for each in metadata for topic in each.topics.values()
        }
        wanted = TransplantRequest(
            places=places,
            topics=_choose_topics(run, places, request),
            names=request.names,
            counts=counts,
            metadata=copy.metadata,
            directories=directories,
            keeps_producers=request.keeps_producers,
            aborts_undecided=request.aborts_undecided,
            now_ms=options.now_ms,
        )
        coordinators = _read_transactions(places, metadata, now_ms=options.now_ms)
        notes += _absent_partitions(wanted)
        assignments = assign_logs(wanted)
        planned = _plan(run, assignments, coordinators)
        rows: list[TransplantRow] = []
        ended = _write(run, assignments, planned, held, coordinators) if held else iter(planned)
        results = run.recorder.each_result(_results(ended, rows), action=job.action)
        offsets, remarks = _read_offsets(wanted, rows, coordinators)
        notes += remarks
        if request.offsets_out is not None and not options.dry_run:
            _write_offsets(request.offsets_out, offsets)
    return run.report(
        TransplantReport,
        results,
        notes=notes,
        details=table_of(TransplantRow, sorted(rows, key=lambda row: row.name.topic_partition)),
        cluster_id=copy.cluster_id or "",
        metadata=copy.metadata,
        offsets=offsets,
        missing_topics=_missing_topics(
            rows,
            counts,
            configs={name: own for each in metadata for name, own in each.topic_configs.items()},
            brokers=len(copy.metadata.brokers),
        ),
    )


def _read_target(
    targets: Sequence[Path], *, now_ms: int
) -> tuple[MetadataCopy, list[TargetDirectory]]:
    """Return the longest copy of the target's metadata, and its directories."""
    directories, copies = [], []
    owners: dict[Path, MetaProperties] = {}
    for target in targets:
        properties = read_meta_properties(str(target))
        if properties is None or properties.node_id is None or properties.cluster_id is None:
            reason = f"expected cluster and node in its {META_PROPERTIES_FILE}"
            raise ConfigError(_TO, target, reason)
        owners[target] = properties
        directories.append(
            TargetDirectory(
                path=target, node_id=properties.node_id, directory_id=properties.directory_id
            )
        )
        read_checkpoints(BrokerRoot(target))  # lines are added: a damaged one is an error now
        if (target / CLUSTER_METADATA_DIRECTORY).is_dir():
            copies.append(read_copy(str(target), properties, now_ms=now_ms))
    for copy in copies:
        if copy.error:  # it may be the longest
            reason = f"its metadata cannot be read: {copy.error}; leave it out to do without it"
            raise ConfigError(_TO, copy.root, reason)
        if copy.damage:  # a topic may have another id by now
            reason = f"its metadata is damaged: {copy.damage}; `pylog doctor` says what to do"
            raise ConfigError(_TO, copy.root, reason)
    if not copies:
        reason = (
            f"expected the target's metadata: give the directory with {CLUSTER_METADATA_DIRECTORY} "
            "as well, of a broker or a controller"
        )
        raise ConfigError(_TO, ", ".join(map(str, targets)), reason)
    # First the directory with the metadata: it says which cluster is meant.
    _require_one_cluster(_TO, {Path(copies[0].root): copies[0].properties, **owners})
    return compare_copies(copies)[0].copies[0], directories


def _require_one_cluster(option: str, directories: Mapping[Path, MetaProperties | None]) -> None:
    """Refuse log directories of several clusters."""
    first: str | None = None
    for directory, properties in directories.items():
        cluster = None if properties is None else properties.cluster_id
        first = first or cluster
        if cluster not in {None, first}:
            raise ConfigError(option, directory, f"is of cluster {cluster}, not of {first}")


def _read_metadata(
    sources: Mapping[Path, MetaProperties | None], *, now_ms: int
) -> tuple[list[ClusterMetadata], list[str]]:
    """Return the sources' own metadata, by the longest copies, and notes."""
    copies = [
        read_copy(str(source), properties, now_ms=now_ms)
        for source, properties in sources.items()
        if (source / CLUSTER_METADATA_DIRECTORY).is_dir()
    ]
    clusters = compare_copies(copy for copy in copies if not copy.error)
    longest = [cluster.copies[0] for cluster in clusters]
    notes = [
        f"{copy.root}: its metadata cannot be read: {copy.error}" for copy in copies if copy.error
    ]
    notes += [
        f"{copy.root}: its metadata is damaged, so the configs in it do not count: {copy.damage}"
        for copy in longest
        if copy.damage
    ]
    return [
        replace(copy.metadata, topic_configs={}) if copy.damage else copy.metadata
        for copy in longest
        if copy.metadata is not None
    ], notes


def _with_sync(
    places: Iterable[SourcePlace],
    sources: Mapping[Path, MetaProperties | None],
    metadata: Sequence[ClusterMetadata],
) -> list[SourcePlace]:
    """Return places with what the sources' metadata say of their replicas."""
    by_id = {topic_id: topic for each in metadata for topic_id, topic in each.topics.items()}
    by_name = {topic.name: topic for topic in by_id.values()}
    known = []
    for place in places:
        properties = sources.get(Path(place.location).parent)
        node = None if properties is None else properties.node_id
        name = place.partition.topic
        topic = by_name.get(name) if place.topic_id is None else by_id.get(place.topic_id)
        record = None if topic is None else topic.partitions.get(place.partition.partition)
        if node is not None and record is not None:
            in_sync = sorted({*record.isr, *record.eligible_leader_replicas})
            place = replace(  # noqa: PLW2901  # the same place, with more known of it
                place,
                is_in_sync=node in in_sync,
                in_sync_nodes=tuple(in_sync),
                metadata_epoch=record.leader_epoch,
            )
        known.append(place)
    return known


def _read_transactions(
    places: Sequence[SourcePlace], metadata: Sequence[ClusterMetadata], *, now_ms: int
) -> TransactionCoordinators:
    """Return what the sources' coordinators know of transactions. A replica that was not in sync
    tells nothing: others have later records."""
    count = None
    for each in metadata:
        topic = each.topics_by_name().get(TRANSACTION_STATE_TOPIC)
        count = 0 if topic is None else len(topic.partitions)
    current = [
        place
        for place in places
        if place.partition.topic != TRANSACTION_STATE_TOPIC or place.is_in_sync is not False
    ]
    return read_transactions(current, partition_count=count, now_ms=now_ms)


def _missing_topics(
    rows: Iterable[TransplantRow],
    counts: Mapping[str, int],
    *,
    configs: Mapping[str, Mapping[str, str]],
    brokers: int,
) -> list[NewTopic]:
    """Return the topics that stay because the target does not have them.

    Args:
        counts: Partitions of the source's topics, where its metadata say them.
    """
    least: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.reason == TransplantReason.TARGET_TOPIC_MISSING:
            source, target = row.name.topic_partition, target_of(row)
            names = source.topic, target.topic
            least[names] = max(least.get(names, 0), target.partition + 1)
    return [
        NewTopic(
            topic=target,
            partitions=counts.get(source, count),
            replicas=max(min(_MOST_REPLICAS, brokers), 1),
            config=configs.get(source, {}),
        )
        for (source, target), count in least.items()
    ]


def _absent_partitions(request: TransplantRequest) -> Iterator[str]:
    """Yield a note for each topic with partitions on no disk."""
    there = Counter(partition.topic for partition in {p.partition for p in request.places})
    for topic in sorted(request.topics & request.counts.keys()):
        count = request.counts[topic]
        if there[topic] < count:
            absent = f"{count - there[topic]} of {count_text(count, 'partition')}"
            yield f"{topic}: {absent} are on none of the source's disks and stay empty"


def _choose_topics(
    run: Run, places: Iterable[SourcePlace], request: TransplantOptions
) -> frozenset[str]:
    """Return the chosen topics; a pattern takes no internal ones."""
    topics = run.job.topics
    there = {place.partition.topic for place in places}
    for topic in request.names:
        if topic not in there:
            raise ConfigError(_MAP, topic, "is no topic of the source")
    names = {topic for topic in there if topics.admits(topic)}
    names -= INTERNAL_TOPICS.keys() - set(topics.topics)
    for topic in request.names:
        if topic not in names:
            raise ConfigError(_MAP, topic, "is not among the topics that --topics names")
    return frozenset(names)


def _plan(
    run: Run, assignments: Sequence[Assignment], coordinators: TransactionCoordinators
) -> list[TransplantRow]:
    """Return what becomes of each partition, in their order; nothing is written."""
    if not assignments:
        return []
    items = [
        WorkItem(value=each, size_bytes=sum(map(_log_bytes, each.places))) for each in assignments
    ]
    units = [unit.values for unit in run.pack(items)]
    title = f"{run.job.title} {run.job.places}: read {count_text(len(items), 'partition')}"
    plan = partial(plan_transplants, coordinators=coordinators)
    rows = run.engine.ask(units, plan, TransplantRow, title, is_look=are_read_here(items))
    by_partition = {row.name.topic_partition: row for row in rows}
    room = TargetRoom()
    return [_with_room(by_partition[each.source], room) for each in assignments]


def _log_bytes(place: SourcePlace) -> int:
    """Return the bytes of a log; 0 if it cannot be listed. The task that opens it says why."""
    try:
        files = LocalStore(Path(place.location)).list_files()
    except PylogError:
        return 0
    return sum(file.size_bytes for file in files if kind_of(file.name) == LOG_SUFFIX)


def _with_room(row: TransplantRow, room: TargetRoom) -> TransplantRow:
    """Return a row, a refusal if the disks have no room."""
    if row.status != Status.PLANNED:
        return row
    detail = room.take(homes_of(row), row.size_bytes or 0)
    if not detail:
        return row
    return replace(
        row,
        status=Status.SKIPPED.value,
        reason=TransplantReason.TARGET_FULL.value,
        detail=detail,
        directories=(),
    )


def _write(
    run: Run,
    assignments: Sequence[Assignment],
    planned: Sequence[TransplantRow],
    held: Mapping[Path, HeldBrokerRoot],
    coordinators: TransactionCoordinators,
) -> Iterator[TransplantRow]:
    """Write the planned replicas; yield each row as it has ended."""
    due = [
        (assignment, row)
        for assignment, row in zip(assignments, planned, strict=True)
        if row.status == Status.PLANNED
    ]
    yield from (row for row in planned if row.status != Status.PLANNED)
    homes = dict.fromkeys(home for _, row in due for home in homes_of(row))
    context = TargetContext(
        access={home: held[home].access for home in homes},
        scratches={home: run.held.enter_context(scratch_folder(home)) for home in homes},
        coordinators=coordinators,
    )
    items = [WorkItem(value=each, size_bytes=each[1].size_bytes or 0) for each in due]
    units = [unit.values for unit in run.pack(items)]
    at_once = LOOK_TASKS_PER_SLOT * run.engine.slots
    for first in range(0, len(units), at_once):
        wave = units[first : first + at_once]
        count = count_text(sum(map(len, wave)), "partition")
        title = f"{run.job.title} {run.job.places}: write {count}"
        build = partial(build_transplants, context=context)
        rows = list(run.engine.ask(wave, build, TransplantRow, title))
        errors = put_in_place(
            [
                BuiltReplicas(
                    partition=target_of(row),
                    homes=homes_of(row),
                    log_start_offset=row.log_start_offset or 0,
                    log_end_offset=row.log_end_offset or 0,
                )
                for row in rows
                if row.status == Status.DONE
            ],
            context.scratches,
            held,
            trash=run_trash(run.job),
        )
        for row in rows:
            error = errors.get(target_of(row))
            yield (
                row
                if error is None
                else replace(row, status=Status.FAILED.value, failure=Failure.of(error))
            )


def _results(ended: Iterable[TransplantRow], rows: list[TransplantRow]) -> Iterator[dict[str, Any]]:
    """Yield columns of ``schemas.RESULT`` of rows as they come; keep the rows."""
    for row in ended:
        rows.append(row)
        yield {
            **asdict(row.name),
            **asdict(row.failure),
            "status": row.status,
            "reason": row.reason,
            "bytes_after": row.size_bytes,
            "duration_ms": row.duration_ms,
            "directory": row.source,
        }


def _read_offsets(
    request: TransplantRequest, rows: Iterable[TransplantRow], coordinators: TransactionCoordinators
) -> tuple[list[GroupOffset], list[str]]:
    """Return committed offsets in the partitions that go, and notes."""
    targets = {
        row.name.topic_partition: target_of(row).topic
        for row in rows
        if row.reason is None and row.status != Status.FAILED
    }
    commits = read_commits(request.places, coordinators, now_ms=request.now_ms)
    offsets = [
        GroupOffset(
            group=key.group,
            topic=targets[partition],
            partition=key.partition,
            offset=offset,
        )
        for key, offset in sorted(commits.offsets.items())
        for partition in (TopicPartition(key.topic, key.partition),)
        if partition in targets
    ]
    notes = [
        f"{where}: its committed offsets cannot be read: {why}"
        for where, why in commits.errors.items()
    ]
    undecided = [
        key for key in commits.undecided if TopicPartition(key.topic, key.partition) in targets
    ]
    if undecided:
        groups = ", ".join(sorted({key.group for key in undecided})[:_MOST_GROUPS])
        notes.append(
            f"left out, committed perhaps: {count_text(len(undecided), 'offset')} of groups "
            f"({groups}) in open transactions: {commits.reason}"
        )
    return offsets, notes


def _write_offsets(path: Path, offsets: Sequence[GroupOffset]) -> None:
    """Write committed offsets as ``kafka-consumer-groups.sh --from-file`` reads them."""
    with storage_errors(path), path.open("w", encoding="utf-8", newline="") as file:
        rows = ((each.group, each.topic, each.partition, each.offset) for each in offsets)
        csv.writer(file, lineterminator="\n").writerows(rows)
