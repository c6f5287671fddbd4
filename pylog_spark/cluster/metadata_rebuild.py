"""Make a cluster's metadata anew, for a new quorum of controllers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from pylog_spark.cluster.audit.driver import measure
from pylog_spark.cluster.metadata_rebuild_task import RebuildFacts, read_partitions
from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action
from pylog_spark.run.catalogs import read_meta_properties
from pylog_spark.run.job import new_job
from pylog_spark.run.planning import WorkItem, are_read_here
from pylog_spark.run.run import Run
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    Voter,
    read_cluster_metadata,
    read_cut_records,
)
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.release_features import Release
from storage_core.catalog.roles import local_path
from storage_core.catalog.topic_catalog import INTERNAL_TOPICS, TopicCatalog, build_topic_catalog
from storage_core.checkpoint.broker_files import validate_directory_ids, validate_one_cluster
from storage_core.checkpoint.lock import require_stopped
from storage_core.cluster.metadata_copies import (
    has_at_most_format,
    has_only_metadata,
    read_copy,
)
from storage_core.cluster.metadata_rebuild import (
    BootstrapTarget,
    RebuiltMetadata,
    RebuiltPartition,
    UnknownFact,
    UnknownPart,
    plan_metadata,
    plan_targets,
    register_brokers,
    write_bootstrap,
)
from storage_core.cluster.places import PartitionPlaces, PartitionRegistration, find_places
from storage_core.config import LogConfig
from storage_core.errors import (
    ConfigError,
    GuardRefusedError,
    InconsistentClusterIdError,
    InconsistentDirectoriesError,
    PylogError,
)
from storage_core.filenames import META_PROPERTIES_FILE, offset_of, sorted_logs
from storage_core.log.leader_epoch_cache import NO_EPOCH
from storage_core.maintenance.verification.log_directories import observe_each
from storage_core.maintenance.verification.observed_root import ObservedRoot
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.remote_logs import RemoteLogs
from storage_core.store.local import LocalStore

# Of ``meta.properties``, without which a broker of Kafka 4 does not start.
_KRAFT_VERSION: Final = 1
_TITLE: Final = "pylog metadata rebuild"
_MOVE_ALONE: Final = (
    "a move between log directories was making it, and the log itself is in no directory that was "
    "given: it is left out, and a broker sets it aside"
)
_SET_ASIDE: Final = (
    "a broker set it aside: it is left out; give it the name of its partition to take it in"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """Metadata that were made anew, and where they lie."""

    cluster_id: str
    rebuilt: RebuiltMetadata
    targets: Sequence[BootstrapTarget]
    # Of these the log directories that had their identity before. What a former call wrote, which
    # was killed before it said so, is not taken for it.
    formatted: frozenset[Path]


def rebuild_metadata(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    targets: Mapping[int, Path],
    release: Release,
    voters: Sequence[Voter] = (),
    older: Path | None = None,
) -> Rebuild:
    """Make a cluster's metadata anew, for a new quorum of controllers.

    Args:
        place: Where partitions are read: a Spark session, or this machine (``Local``).
        roots: Paths of all log directories of the cluster's brokers.
        options: Configs of topics, the clock, and whether something is written.
        targets: Log directories of controllers, by node id.
        voters: Voters that the log is to have, with directory id and endpoints; empty where the
            configuration of each node names them.
        older: A log directory with an older copy of the metadata, or that copy; None without one.
    """
    log_roots = resolve_roots(roots, role=options.role, must_open=False)
    observed, unread = observe_each([(root.location, root.role) for root in log_roots])
    for location, reason in unread.items():
        raise ConfigError("ROOT", location, f"cannot be read: {reason}")
    cluster_id = check_brokers(observed, now_ms=options.now_ms)
    planned = plan_targets(targets, cluster_id=cluster_id, voters=voters)
    places = find_places(observed, ())
    metadata = None if older is None else _read_older(older, cluster_id)
    catalog = _catalog(places, metadata, options)
    _check_tiers(observed, catalog)
    job = new_job(Action.VERIFY.value, log_roots, replace(options, dry_run=True))
    with Run(place, job) as run:
        partitions = _read(run, observed, places, catalog)
    rebuilt = plan_metadata(
        partitions,
        release=release,
        brokers=register_brokers(observed),
        catalog=catalog,
        older=metadata,
    )
    rebuilt = replace(
        rebuilt,
        unknowns=(
            *rebuilt.unknowns,
            *_damage(older),
            *_strays(observed),
            *_unfinished_moves(places),
        ),
    )
    if not options.dry_run:
        for root in observed:  # reading took its time
            _require_stopped(root.location)
        write_bootstrap(planned, rebuilt.metadata, voters=voters, timestamp_ms=options.now_ms)
    formatted = frozenset(
        each.directory
        for each in planned
        if each.is_formatted and not (each.replaced_topics and has_only_metadata(each.directory))
    )
    return Rebuild(cluster_id=cluster_id, rebuilt=rebuilt, targets=planned, formatted=formatted)


def check_brokers(observed: Sequence[ObservedRoot], *, now_ms: int, option: str = "ROOT") -> str:
    """Return the cluster id of stopped brokers' log directories without a copy of the metadata.

    Args:
        option: What names them on the command line.
    """
    owners = {root.location: root.meta_properties for root in observed}
    for location, owner in owners.items():
        if owner is None or owner.cluster_id is None or owner.node_id is None:
            reason = (
                f"expected cluster.id and node.id in {META_PROPERTIES_FILE}: `pylog doctor` says "
                "how to write it again"
            )
            raise ConfigError(option, location, reason)
        if owner.node_id < 0:  # which says in a partition's record that there is no leader
            raise ConfigError(option, location, f"no node has the id {owner.node_id}")
        if owner.version != _KRAFT_VERSION:
            text = f"version=1, cluster.id={owner.cluster_id} and node.id={owner.node_id}"
            reason = f"is of a broker with ZooKeeper; expected {text} in {META_PROPERTIES_FILE}"
            raise ConfigError(option, location, reason)
    named = {location: owner for location, owner in owners.items() if owner is not None}
    try:
        validate_one_cluster(named)
        validate_directory_ids(named)
    except (InconsistentClusterIdError, InconsistentDirectoriesError) as error:
        raise ConfigError(option, None, str(error)) from error
    for location in owners:
        if has_at_most_format(_require_stopped(location, option)):
            continue
        copy = read_copy(location, named[location], now_ms=now_ms)
        if copy.error:
            text = f"cannot be read ({copy.error})"
        else:
            text = f"goes to offset {copy.log_end_offset:,}: `pylog metadata promote` gives it to"
            text += " a voter"
        raise GuardRefusedError(
            "METADATA_COPY_PRESENT",
            f"{location}: its copy of the metadata {text}; to do without it, move "
            f"{CLUSTER_METADATA_DIRECTORY} away",
        )
    for entry in (entry for root in observed for entry in root.entries):
        if entry.kind is DirectoryKind.PARTITION and entry.is_link:
            reason = (
                "is a link, and no link is followed: mount the folder in its place (mount --bind), "
                "or move it there"
            )
            raise ConfigError(option, entry.path, reason)
    (cluster_id,) = {str(owner.cluster_id) for owner in named.values()}
    return cluster_id


def _require_stopped(location: str, option: str = "ROOT") -> Path:
    """Return the path of a root whose broker does not run."""
    path = local_path(location)
    if path is None:
        raise ConfigError(option, location, "expected a directory of this machine")
    require_stopped(path, "its broker runs; stop it first")
    return path


def _log_of_older(path: Path) -> Path:
    below = path / CLUSTER_METADATA_DIRECTORY
    return below if below.is_dir() else path


def _damage(older: Path | None) -> Iterator[UnknownFact]:
    """Yield what an older copy does not say for it is damaged."""
    if older is None:
        return
    directory = _log_of_older(older)
    try:
        read_cluster_metadata(directory)
    except PylogError as error:
        metadata = read_cluster_metadata(directory, is_recovered=True)
        detail = f"{error}: settings are those of offset {metadata.end_offset}"
        if metadata.cut is not None:
            records = read_cut_records(directory, metadata)
            detail += f", and records behind it are of {records.describe()}"
        detail += "; compare them with what the cluster had before a broker starts"
        yield UnknownFact(part=UnknownPart.TOPIC_CONFIG, subject=str(older), detail=detail)


def _read_older(path: Path, cluster_id: str) -> ClusterMetadata:
    directory = _log_of_older(path)
    try:
        owner = None if directory == path else read_meta_properties(str(path))
        metadata = read_cluster_metadata(directory, is_recovered=True)
    except (PylogError, OSError) as error:
        raise ConfigError("--older-copy", path, str(error)) from error
    if owner is not None and owner.cluster_id not in {None, cluster_id}:
        reason = f"is of cluster {owner.cluster_id}, the log directories of {cluster_id}"
        raise ConfigError("--older-copy", path, reason)
    return metadata


def _catalog(
    places: Sequence[PartitionPlaces], older: ClusterMetadata | None, options: JobOptions
) -> TopicCatalog:
    """Return topics' configs, by topic id where a copy has them."""
    ids = {each.topic_id for each in places}
    if older is not None:
        topics = {key: topic for key, topic in older.topics.items() if key in ids}
        older = replace(older, topics=topics)
    return build_topic_catalog(
        metadata=older,
        dumps=() if options.topic_dump is None else (options.topic_dump,),
        explicit=options.topic_configs,
        assume_defaults=options.assume_defaults,
        broker=options.broker_settings,
        broker_overrides=options.broker_overrides,
        settings=options.topic_settings,
    )


def _check_tiers(observed: Sequence[ObservedRoot], catalog: TopicCatalog) -> None:
    """Refuse configs by which a broker would begin a log behind what lies in its tier."""
    remote = RemoteLogs(BrokerRoot(Path(root.location)) for root in observed)
    for checkpoints, entry in (
        (root.checkpoints, each) for root in observed for each in root.entries
    ):
        partition = entry.topic_partition
        if entry.kind is not DirectoryKind.PARTITION or partition is None:
            continue
        own = checkpoints.of(partition)
        if own.log_start_offset is None or _config(partition.topic, catalog).remote_storage_enable:
            continue
        store = LocalStore(Path(entry.path))
        bases = [offset_of(name) for name in sorted_logs(file.name for file in store.list_files())]
        base = next((each for each in bases if each is not None), 0)
        # Of another topic the entry may be old.
        if own.start_in_tier(base) is not None and remote.uploads(store, partition).ranges:
            reason = (
                f"expected remote.storage.enable=true: {entry.path} begins in its tier, at offset "
                f"{own.log_start_offset}, and a broker would begin it at offset {base}"
            )
            raise ConfigError("--config", partition.topic, reason)


def _read(
    run: Run,
    observed: Sequence[ObservedRoot],
    places: Sequence[PartitionPlaces],
    catalog: TopicCatalog,
) -> list[RebuiltPartition]:
    """Read all partitions that have a replica."""
    directory_ids = {root.location: root.directory_id or "" for root in observed}
    unnamed = frozenset(
        entry.path
        for root in observed
        for entry in root.entries
        if entry.kind is DirectoryKind.PARTITION and entry.topic_id is None and not entry.problem
    )
    due = [_registered(each, catalog) for each in places if each.replicas]
    items = [
        WorkItem(value=item, size_bytes=size.bytes)
        for item, size in zip(enumerate(due), measure(run, due), strict=True)
    ]
    answers = run.engine.ask(
        [unit.values for unit in run.pack(items)],
        partial(read_partitions, now_ms=run.job.options.now_ms, unnamed=unnamed),
        RebuildFacts,
        f"{_TITLE}: {len(due):,} partitions",
        is_look=are_read_here(items),
    )
    return [
        _rebuilt(due[facts.ordinal], facts, directory_ids, unnamed)
        for facts in sorted(answers, key=lambda facts: facts.ordinal)
    ]


def _registered(places: PartitionPlaces, catalog: TopicCatalog) -> PartitionPlaces:
    """Return places with a registration: all assigned, and none in sync."""
    brokers = tuple(each.broker for each in places.replicas if each.broker is not None)
    for broker in brokers:
        own = [each.root for each in places.replicas if each.broker == broker]
        if len(own) > 1:
            reason = f"broker {broker} has {places.name} in {own[0]} as well"
            raise ConfigError("ROOT", own[1], f"{reason}: no start takes both; move one away")
    config = _config(places.topic, catalog)
    state = PartitionRegistration(
        topic=places.topic,
        partition=places.partition,
        topic_id=places.topic_id or "",
        replicas=brokers,
        isr=(),
        leader_epoch=NO_EPOCH,
        is_compacted=config.is_compacted,
        segment_index_bytes=config.segment_index_bytes,
    )
    return replace(places, state=state)


def _config(topic: str, catalog: TopicCatalog) -> LogConfig:
    """Return a topic's config; that of Kafka for an internal one without."""
    entry = catalog.find(topic)
    own_settings = INTERNAL_TOPICS.get(topic, {}) if entry is None else {}
    return LogConfig.from_topic_overrides(
        own_settings if entry is None else entry.config_overrides, broker=catalog.broker
    )


def _rebuilt(
    places: PartitionPlaces,
    facts: RebuildFacts,
    directory_ids: Mapping[str, str],
    unnamed: frozenset[str],
) -> RebuiltPartition:
    directories = {
        each.broker: directory_ids[each.root] for each in places.replicas if each.broker is not None
    }
    head = RebuiltPartition(
        topic=places.topic,
        partition=places.partition,
        topic_id=places.topic_id,
        directories=directories,
        unnamed=tuple(e.directory for e in places.replicas if e.directory in unnamed),
    )
    if facts.failure:
        raise ConfigError(
            "ROOT",
            places.name,
            f"cannot be read: {facts.failure.error}: `pylog doctor` says what to do",
        )
    return replace(
        head,
        isr=facts.isr,
        detail=facts.detail or "",
        leader_epoch=facts.leader_epoch,
        has_records=facts.has_records,
        producer_id=facts.producer_id,
        coordinator_epoch=facts.coordinator_epoch,
        doubtful=facts.doubtful or "",
    )


def _strays(observed: Sequence[ObservedRoot]) -> Iterator[UnknownFact]:
    for root in observed:
        for entry in root.entries:
            if entry.kind is DirectoryKind.STRAY:
                yield UnknownFact(part=UnknownPart.STRAY, subject=entry.path, detail=_SET_ASIDE)


def _unfinished_moves(places: Sequence[PartitionPlaces]) -> Iterator[UnknownFact]:
    """Yield copies of moves between log directories, without the log itself."""
    own = {(place.broker, each.topic, each.partition) for each in places for place in each.replicas}
    for each in places:
        for place in each.beside:
            is_alone = (place.broker, each.topic, each.partition) not in own
            if place.kind is DirectoryKind.FUTURE and is_alone:
                yield UnknownFact(
                    part=UnknownPart.REPLICA, subject=place.directory, detail=_MOVE_ALONE
                )
