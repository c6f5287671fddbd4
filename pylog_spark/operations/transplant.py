"""Give partitions to another, stopped cluster, and groups their places in it."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pylog_spark.run.catalogs import read_meta_properties
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY, ClusterMetadata
from storage_core.catalog.topic_catalog import INTERNAL_TOPICS
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.broker_files import MetaProperties
from storage_core.checkpoint.checkpoints import read_checkpoints
from storage_core.checkpoint.lock import LogDirectoryLock, require_stopped
from storage_core.errors import ConfigError, PylogError
from storage_core.filenames import META_PROPERTIES_FILE
from storage_core.maintenance.replication.metadata_copies import (
    MetadataCopy,
    compare_copies,
    read_copy,
)
from storage_core.maintenance.transplant.plan import (
    TargetDirectory,
    Transplant,
    TransplantRequest,
    plan_transplants,
)
from storage_core.maintenance.transplant.replica import scratch_folder, write_replicas
from storage_core.maintenance.transplant.source import SourcePlace, find_places, read_commits
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.guards import check_local_directory
from storage_core.store.local import storage_errors
from storage_core.wording import count_text

_TO: Final = "--to"
_MAP: Final = "--map"
_RUNS: Final = "its broker runs; stop its whole cluster first"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """A committed offset, by the topic's name in the target."""

    group: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransplantOptions:
    """What a transplant is to do.

    Attributes:
        topics: Which topics go.
        names: Other names of topics in the target, by their own.
        keeps_producers: Whether the target remembers the source's producers.
        offsets_out: The file for committed offsets, None for none.
        now_ms: The run's clock, epoch milliseconds.
        dry_run: Only plan it.
    """

    topics: TopicFilter
    names: Mapping[str, str] = field(default_factory=dict)
    keeps_producers: bool = False
    offsets_out: Path | None = None
    now_ms: int
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TransplantReport:
    """What was done, or would be.

    Attributes:
        cluster_id: Id of the target.
        metadata: Its metadata.
        transplants: The partitions.
        failures: Errors, by the partition's name in the source.
        offsets: What groups had committed in the partitions that go.
        notes: Notes for a person.
    """

    cluster_id: str
    metadata: ClusterMetadata
    transplants: Sequence[Transplant]
    failures: Mapping[str, PylogError]
    offsets: Sequence[GroupOffset]
    notes: Sequence[str]


def transplant(
    sources: Sequence[str], targets: Sequence[Path], options: TransplantOptions
) -> TransplantReport:
    """Give partitions to another, stopped cluster.

    Everything is looked at before anything is written; what cannot go stays, the others go.

    Args:
        sources: Paths of log directories. Of one that is a target's as well, only what its broker
            has set aside as stray is taken.
        targets: Paths of log directories of the target, the one with its metadata among them.
        options: What is to be done.

    Raises:
        ConfigError: A target is nobody's; a log directory is of another cluster than the others of
            its side; the target's metadata is not there or cannot be read; a topic of ``names`` is
            not there, or does not go.
        GuardRefusedError: A broker of source or target runs; a target is not to be changed.
        PylogError: A log directory cannot be read.
    """
    by_place = {path.resolve(): path for path in targets}
    targets, own = list(by_place.values()), by_place.keys()
    strays_only = {source: Path(source).resolve() in own for source in sources}
    foreign = {
        Path(source): read_meta_properties(source)
        for source, is_own in strays_only.items()
        if not is_own
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
            require_stopped(target, _RUNS)
    with ExitStack() as stack:
        # Nobody starts while they are read and written.
        locks = [
            stack.enter_context(LogDirectoryLock(target))
            for target in (() if options.dry_run else targets)
        ]
        copy, directories = _read_target(targets, now_ms=options.now_ms)
        assert copy.metadata is not None  # noqa: S101  # the copy was read
        places = [
            place
            for source, is_own in strays_only.items()
            for place in find_places(Path(source), only_strays=is_own)
        ]
        counts, notes = _count_partitions(foreign, now_ms=options.now_ms)
        request = TransplantRequest(
            places=places,
            topics=_choose_topics(places, options),
            names=options.names,
            counts=counts,
            metadata=copy.metadata,
            directories=directories,
            keeps_producers=options.keeps_producers,
            now_ms=options.now_ms,
        )
        plans = plan_transplants(request)
        notes += _absent_partitions(request)
        failures = {} if options.dry_run else _write(plans, locks)
    offsets, errors = _read_offsets(request, plans, failures)
    notes += [f"{place}: its committed offsets cannot be read: {why}" for place, why in errors]
    if options.offsets_out is not None and not options.dry_run:
        _write_offsets(options.offsets_out, offsets)
    return TransplantReport(
        cluster_id=copy.cluster_id or "",
        metadata=copy.metadata,
        transplants=plans,
        failures=failures,
        offsets=offsets,
        notes=notes,
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


def _count_partitions(
    sources: Mapping[Path, MetaProperties | None], *, now_ms: int
) -> tuple[dict[str, int], list[str]]:
    """Return partition counts by the sources' own metadata, and notes."""
    copies = [
        read_copy(str(source), properties, now_ms=now_ms)
        for source, properties in sources.items()
        if (source / CLUSTER_METADATA_DIRECTORY).is_dir()
    ]
    counts: dict[str, int] = {}
    for cluster in compare_copies(copy for copy in copies if not copy.error):
        metadata = cluster.copies[0].metadata
        for topic in metadata.topics.values() if metadata is not None else ():
            counts[topic.name] = len(topic.partitions)
    unreadable = [copy for copy in copies if copy.error]
    notes = [f"{copy.root}: its metadata cannot be read: {copy.error}" for copy in unreadable]
    return counts, notes


def _absent_partitions(request: TransplantRequest) -> Iterator[str]:
    """Yield a note for each topic with partitions on no disk."""
    there = Counter(partition.topic for partition in {p.partition for p in request.places})
    for topic in sorted(request.topics & request.counts.keys()):
        count = request.counts[topic]
        if there[topic] < count:
            absent = f"{count - there[topic]} of {count_text(count, 'partition')}"
            yield f"{topic}: {absent} are on none of the source's disks and stay empty"


def _choose_topics(places: Iterable[SourcePlace], options: TransplantOptions) -> frozenset[str]:
    """Return the chosen topics; a pattern takes no internal ones."""
    there = {place.partition.topic for place in places}
    for topic in options.names:
        if topic not in there:
            raise ConfigError(_MAP, topic, "is no topic of the source")
    names = {topic for topic in there if options.topics.admits(topic)}
    names -= INTERNAL_TOPICS.keys() - set(options.topics.topics)
    for topic in options.names:
        if topic not in names:
            raise ConfigError(_MAP, topic, "is not among the topics that --topics names")
    return frozenset(names)


def _write(plans: Sequence[Transplant], locks: Sequence[LogDirectoryLock]) -> dict[str, PylogError]:
    """Write the replicas; return errors by the partition's name in the source."""

    def fence() -> None:
        for lock in locks:
            lock.validate_held()

    failures: dict[str, PylogError] = {}
    homes = dict.fromkeys(home for plan in plans for home in plan.homes if plan.log is not None)
    with ExitStack() as stack:
        scratches = {home: stack.enter_context(scratch_folder(home)) for home in homes}
        for plan in plans:
            if plan.log is None or not plan.homes:
                continue
            fence()
            try:
                write_replicas(plan.log, [scratches[home] for home in plan.homes], fence=fence)
            except PylogError as error:
                failures[str(plan.source)] = error
    return failures


def _read_offsets(
    request: TransplantRequest, plans: Iterable[Transplant], failures: Mapping[str, PylogError]
) -> tuple[list[GroupOffset], list[tuple[str, PylogError]]]:
    """Return committed offsets in the partitions that go, and errors by place."""
    targets = {
        (plan.source.topic, plan.source.partition): plan.target
        for plan in plans
        if plan.log is not None and str(plan.source) not in failures
    }
    commits, errors = read_commits(request.places, now_ms=request.now_ms)
    offsets = [
        GroupOffset(
            group=key.group,
            topic=targets[key.topic, key.partition].topic,
            partition=key.partition,
            offset=offset,
        )
        for key, offset in sorted(commits.items())
        if (key.topic, key.partition) in targets
    ]
    return offsets, list(errors.items())


def _write_offsets(path: Path, offsets: Sequence[GroupOffset]) -> None:
    """Write committed offsets as ``kafka-consumer-groups.sh --from-file`` reads them."""
    with storage_errors(path), path.open("w", encoding="utf-8", newline="") as file:
        rows = ((each.group, each.topic, each.partition, each.offset) for each in offsets)
        csv.writer(file, lineterminator="\n").writerows(rows)
