"""Compare the replicas of several brokers. It says what differs, who may lead, and what would be
lost."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pylog_spark.cluster.audit.elections import (
    Starts,
    Surroundings,
    add_elections,
    controller_of,
    find_remarks,
    find_starting,
    own_replicas,
)
from pylog_spark.cluster.audit.task import audit_partitions
from pylog_spark.cluster.differences_task import PlacesSize, measure_places
from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action
from pylog_spark.rows import spark_frame
from pylog_spark.run.guards import check_outside
from pylog_spark.run.job import Job, new_job
from pylog_spark.run.planning import (
    LOOK_TASKS_PER_SLOT,
    WorkItem,
    are_looked_at_here,
    are_read_here,
)
from pylog_spark.run.run import Run
from pylog_spark.schemas import AUDIT, AuditRow
from storage_core.catalog.cluster_metadata import (
    ClusterMetadata,
    PartitionVersion,
    list_partition_versions,
    read_broker_metadata,
    read_cluster_metadata,
)
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.roles import local_path
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.broker_files import CleanShutdown, validate_one_cluster
from storage_core.checkpoint.lock import query_lock
from storage_core.cluster.places import (
    MAX_STATE_BYTES,
    PartitionPlaces,
    PartitionRegistration,
    TopicIdPartition,
    find_places,
    parse_states,
    states_of,
)
from storage_core.config import merge_broker_layers
from storage_core.errors import ConfigError, PylogError, StorageError
from storage_core.maintenance.verification.log_directories import observe_each
from storage_core.maintenance.verification.observed_root import ObservedRoot
from storage_core.wording import count_text, time_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Write election files for Kafka's commands. By them the best candidate of each partition leads.

# What kafka-reassign-partitions.sh and kafka-leader-election.sh take.
REASSIGNMENT_FILE: Final = "reassignment.json"
ELECTION_FILE: Final = "election.json"
# What kafka-reassign-partitions.sh takes once the brokers are back that were left out before.
RESTORE_FILE: Final = "restore.json"

_Row = dict[str, Any]


def find_manual_leaders(answers: Sequence[_Row]) -> dict[TopicIdPartition, int]:
    """Return whom to elect by hand, by partition."""
    return {
        (answer["topic"], answer["partition"], answer["topic_id"]): elections["manual"]
        for answer in answers
        if (elections := answer.get("elections")) and elections["manual"] is not None
    }


def write_election_files(
    folder: Path,
    leaders: Mapping[TopicIdPartition, int],
    states: Mapping[TopicIdPartition, PartitionRegistration],
    live: Sequence[int],
) -> list[str]:
    """Write files of elections to hold and replica orders for them. Each leader-to-be is first in
    its order.

    An unclean election takes the first live replica in that order. The command refuses brokers that
    are away: they are left out, and come back by a file of their own.

    Args:
        leaders: Node id of each partition's leader-to-be.
        live: Node ids of the brokers that run, the leaders among them.

    Returns:
        The names of the files: the first two only where they are needed.
    """
    reassigned, restored, elected = [], [], []
    for key, leader in sorted(leaders.items()):
        name = {"topic": key[0], "partition": key[1]}
        elected.append(name)
        replicas = states[key].replicas
        present = [broker for broker in replicas if broker in live]
        if present[0] != leader:
            order = [leader, *(broker for broker in present if broker != leader)]
            away = [broker for broker in replicas if broker not in present]
            reassigned.append(_replicas(name, order))
            if away:
                restored.append(_replicas(name, [*order, *away]))
    contents: dict[str, _Row] = {
        REASSIGNMENT_FILE: {"version": 1, "partitions": reassigned},
        RESTORE_FILE: {"version": 1, "partitions": restored},
        ELECTION_FILE: {"partitions": elected},
    }
    contents = {name: content for name, content in contents.items() if content["partitions"]}
    try:
        folder.mkdir()
        for file, content in contents.items():
            with (folder / file).open("x", encoding="utf-8") as writer:
                json.dump(content, writer, indent=1)
                writer.write("\n")
    except OSError as error:
        reason = f"expected a folder that is not there yet: {error.strerror or error}"
        raise ConfigError("--election-out", str(folder), reason) from error
    return list(contents)


def _replicas(name: _Row, order: Sequence[int]) -> _Row:
    return {**name, "replicas": list(order), "log_dirs": ["any"] * len(order)}


# Of a row for programs. The last lists are null where a partition could not be compared.
ANSWER_KEYS: Final = (
    *("topic", "partition", "topic_id", "high_watermark", "divergence", "unseen", "safe"),
    *("lost_records", "lost_committed", "error_class", "error", "replicas", "candidates"),
    *("remarks", "elections", "assignment"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootMarker:
    """One log directory's clean-shutdown marker, and the controller's view of it."""

    root: str
    broker: int | None  # node id, None where no file says it
    is_there: bool  # whether it has a marker of a clean shutdown
    broker_epoch: int  # what that names; UNKNOWN_BROKER_EPOCH for nothing
    # What the broker got when it last registered, None where nothing says it.
    registered_epoch: int | None
    registered_directories: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The answer about partitions."""

    rows: pa.Table  # of ``schemas.AUDIT``, by topic, partition and topic id
    belief: str  # whose word on ISR, epochs and assignment was taken, and how old it is
    engine: str  # what did the tasks: ``spark`` or ``local``, which is this machine
    notes: Sequence[str] = ()  # what else a person should know of the log directories
    unread: Mapping[str, str] = field(default_factory=dict)
    markers: Sequence[RootMarker] = ()
    # What the brokers lose that start, None where no start was asked about.
    starts: Starts | None = None
    # Node id of the leader that files for Kafka's commands choose, by partition.
    leaders: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    # Node ids of which it can be asked whom the controller elects; none where nothing is known of
    # partitions.
    brokers: Sequence[int] = ()
    election_files: Sequence[str] = ()
    # How many partitions of the brokers have no log in a log directory that was named, while their
    # broker registered more of them.
    unread_partitions: int = 0

    def answers(self) -> Iterator[dict[str, Any]]:
        """Yield all that is known of each partition, under ``ANSWER_KEYS``."""
        for row in self.rows.to_pylist():
            answer = json.loads(row["answer"] or "{}")
            yield {name: answer.get(name, row.get(name)) for name in ANSWER_KEYS}

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """Return the rows as a DataFrame."""
        return spark_frame(spark, self.rows)


def audit(  # noqa: PLR0913 - each is a word of the command line
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    state: Path | None = None,
    up: Sequence[int] = (),
    leader_epoch: int | None = None,
    election_out: Path | None = None,
    most_keys: int = 0,
    holds_roots: bool = False,
) -> Audit:
    """Compare the replicas of several brokers; write nothing to their directories.

    A log directory that cannot be read counts as one that was not given; the answer names it.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        roots: Paths of log directories; several of one broker count as one.
        state: A file that says ISR, epochs and assignment; None for the newest metadata of the
            cluster that lies in the roots.
        up: Node ids of brokers that start, in this order; empty for no elections, or for all
            brokers whose directories are there where files for elections are asked for.
        leader_epoch: Epoch that the next leader is to have; one that is known already is a remark.
        election_out: A folder that is not there yet: files for Kafka's commands, by which the best
            candidate leads that no start makes the leader. Not made where there is none.
        most_keys: How many keys of what each leader loses the answers have, of each partition.
        holds_roots: Whether this process holds the locks of the roots.
    """
    job, places, observed, cluster = open_places(roots, options, state, holds_roots=holds_roots)
    if election_out is not None:
        check_outside("--election-out", election_out, job.roots)
        if election_out.exists():
            raise ConfigError("--election-out", election_out, "expected a folder that is not there")
    starts = None
    with Run(place, job) as run:
        rows = _judge(run, places, most_keys)
        texts = rows["answer"].to_pylist()
        answers = [None if text is None else json.loads(text) for text in texts]
        partition_answers = [answer for answer in answers if answer is not None]
        beside = _beside(observed, places, cluster, leader_epoch)
        for answer in partition_answers:
            answer["remarks"] = find_remarks(answer, beside)
        if election_out is not None and cluster.states and not up:
            up = _broker_ids(observed, cluster.metadata)
        if up:
            controller = controller_of(
                cluster.metadata, cluster.states, is_by_file=state is not None
            )
            starting, notes = find_starting(up, observed, cluster.metadata)
            starts = add_elections(partition_answers, cluster.states, controller, starting, notes)
        leaders, files = {}, list[str]()
        if election_out is not None and starts is not None and starts.manual is not None:
            leaders = find_manual_leaders(partition_answers)
            live = starts.manual.start.brokers
            files = write_election_files(election_out, leaders, beside.states, live)
        unnamed = list(_unnamed_directories(observed, places, cluster, job.topics))
        texts = [None if answer is None else json.dumps(answer) for answer in answers]
        column = rows.schema.get_field_index("answer")
        rows = rows.set_column(column, rows.schema.field(column), pa.array(texts, pa.string()))
        return Audit(
            rows=rows,
            belief=cluster.belief,
            notes=[
                *cluster.notes,
                *_uncounted(partition_answers, beside.states),
                *map(_unnamed_note, unnamed),
            ],
            unread_partitions=sum(each.partitions for each in unnamed),
            unread=cluster.unread,
            markers=[
                _marker_of(root, cluster.metadata)
                for root in observed
                if root.context.role.facts.is_owned_by_broker
            ],
            engine=run.engine.name,
            starts=starts,
            leaders=leaders,
            brokers=_broker_ids(observed, cluster.metadata) if cluster.states else (),
            election_files=files,
        )


def open_places(
    roots: Sequence[str | Path],
    options: JobOptions,
    state: Path | None,
    *,
    holds_roots: bool = False,
) -> "tuple[Job, list[PartitionPlaces], Sequence[ObservedRoot], ClusterFacts]":
    """Return a read-only job, its partitions, its roots, and their states. Arguments and errors
    as of ``audit``."""
    log_roots = resolve_roots(roots, role=options.role, must_open=False)
    observed, unread = observe_each([(root.location, root.role) for root in log_roots])
    if not observed:
        raise StorageError(", ".join(unread), f"cannot be read: {'; '.join(unread.values())}")
    log_roots = [root for root in log_roots if root.location not in unread]
    job = new_job(Action.VERIFY.value, log_roots, replace(options, dry_run=True))
    validate_one_cluster(
        {root.location: root.meta_properties for root in observed if root.meta_properties}
    )
    cluster = find_cluster_facts(observed, state, options, unread, holds_roots=holds_roots)
    metadata = cluster.metadata
    places = find_places(
        observed,
        cluster.states,
        registered=None
        if metadata is None
        else {broker.broker_id: broker.log_directories for broker in metadata.brokers.values()},
        are_all_read=not unread,
    )
    places = [each for each in places if job.topics.admits(each.topic)]
    return job, places, observed, cluster


def _beside(
    observed: Sequence[ObservedRoot],
    places: Sequence[PartitionPlaces],
    cluster: "ClusterFacts",
    leader_epoch: int | None,
) -> Surroundings:
    states: dict[TopicIdPartition, PartitionRegistration] = {
        each.key: each for each in cluster.states
    }
    topics = {} if cluster.metadata is None else cluster.metadata.topics
    ids_of: dict[tuple[str, int], set[str]] = {}
    keys = [each.key for each in places if each.replicas]
    for topic, partition, topic_id in (*states, *keys):
        if topic_id is not None:
            ids_of.setdefault((topic, partition), set()).add(topic_id)
    starting, _ = find_starting(_broker_ids(observed, cluster.metadata), observed, cluster.metadata)
    return Surroundings(
        states=states,
        topic_ids=frozenset((*topics, *(state.topic_id for state in cluster.states))),
        ids_of=ids_of,
        unclean=frozenset(each.broker for each in starting if not each.is_clean),
        leader_epoch=leader_epoch,
        unread=cluster.unread,
        in_use=cluster.in_use,
    )


def _broker_ids(observed: Sequence[ObservedRoot], metadata: ClusterMetadata | None) -> list[int]:
    """Return the brokers of which there is a log directory, rising. A node that is registered as
    none and has no log is a controller."""
    brokers = set()
    for root in observed:
        node = None if root.meta_properties is None else root.meta_properties.node_id
        has_log = any(entry.kind is DirectoryKind.PARTITION for entry in root.entries)
        if node is not None and (metadata is None or node in metadata.brokers or has_log):
            brokers.add(node)
    return sorted(brokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnnamedDirectories:
    """A broker's unnamed log directories, and its partitions without a log."""

    broker: int
    registered: int
    named: int
    partitions: int


def _unnamed_directories(
    observed: Sequence[ObservedRoot],
    places: Sequence[PartitionPlaces],
    cluster: "ClusterFacts",
    topics: TopicFilter,
) -> Iterator[_UnnamedDirectories]:
    present = {each.key for each in places}
    nodes = Counter(
        root.meta_properties.node_id for root in observed if root.meta_properties is not None
    )
    brokers = {} if cluster.metadata is None else cluster.metadata.brokers
    for node, named in nodes.items():
        own = None if node is None else brokers.get(node)
        registered = 0 if own is None else len(own.log_directories)
        if node is not None and named < registered:
            count = sum(
                node in state.replicas and state.key not in present and topics.admits(state.topic)
                for state in cluster.states
            )
            if count:
                yield _UnnamedDirectories(
                    broker=node, registered=registered, named=named, partitions=count
                )


def _unnamed_note(unnamed: _UnnamedDirectories) -> str:
    return (
        f"broker {unnamed.broker} registered {unnamed.registered} log directories, here "
        f"{unnamed.named}: without the others a start makes "
        f"{count_text(unnamed.partitions, 'partition')} anew, empty"
    )


def _uncounted(
    answers: Sequence[dict[str, Any]],
    states: Mapping[TopicIdPartition, PartitionRegistration],
) -> Iterator[str]:
    """Yield notes about in-sync brokers without a log here. Nobody else was in sync of those
    partitions: what only these brokers had is not counted."""
    counts = Counter[tuple[int, ...]]()
    for answer in answers:
        state = states.get((answer["topic"], answer["partition"], answer["topic_id"]))
        in_sync = state and (state.isr or state.elr or state.last_known_elr)
        here = {
            each["broker"]
            for each in own_replicas(answer)
            if "log_end" in each and not each.get("missing")
        }
        if in_sync and here.isdisjoint(in_sync):
            counts[in_sync] += 1
    for brokers, partitions in sorted(counts.items()):
        names = " and ".join(map(str, brokers))
        yield (
            f"only broker {names} was in sync of {count_text(partitions, 'partition')}, and has no "
            "log here: what nobody else had is not counted"
        )


def _judge(run: Run, places: Sequence[PartitionPlaces], most_keys: int) -> pa.Table:
    if not places:
        return AUDIT.empty_table()
    engine, options = run.engine, run.job.options
    items = [
        WorkItem(value=each, size_bytes=size.bytes)
        for each, size in zip(places, measure(run, places), strict=True)
    ]
    work = partial(audit_partitions, now_ms=options.now_ms, most_keys=most_keys)
    units = [unit.values for unit in run.pack(items)]
    rows = engine.collect(
        engine.spread(units, work, AuditRow),
        AUDIT,
        f"pylog audit: {len(places):,} partitions",
        is_look=are_read_here(items),
    )
    return rows.sort_by([(name, "ascending") for name in ("topic", "partition", "topic_id")])


def measure(run: Run, places: Sequence[PartitionPlaces]) -> list[PlacesSize]:
    """Return how large partitions are, in their order."""
    items = list(enumerate(places))
    tasks = max(1, min(len(items), LOOK_TASKS_PER_SLOT * run.engine.slots))
    units = [items[number::tasks] for number in range(tasks)]
    sizes = run.engine.ask(
        units,
        measure_places,
        PlacesSize,
        f"pylog: measure {len(places):,} partitions",
        is_look=are_looked_at_here(sum(len(each.replicas) for each in places)),
    )
    return sorted(sizes, key=lambda size: size.ordinal)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What is known of the cluster."""

    states: Sequence[PartitionRegistration]
    metadata: ClusterMetadata | None
    directory: str  # where these lie; empty without them
    belief: str  # who says what is known of partitions
    notes: Sequence[str] = ()  # what else a person should know of the log directories
    unread: Mapping[str, str] = field(default_factory=dict)
    in_use: frozenset[str] = frozenset()  # log directories whose lock somebody holds


def _marker_of(root: ObservedRoot, metadata: ClusterMetadata | None) -> RootMarker:
    node = None if root.meta_properties is None else root.meta_properties.node_id
    registered = None if metadata is None or node is None else metadata.brokers.get(node)
    return RootMarker(
        root=root.location,
        broker=node,
        is_there=root.marker is not None,
        broker_epoch=(root.marker or CleanShutdown()).broker_epoch,
        registered_epoch=None if registered is None else registered.broker_epoch,
        registered_directories=0 if registered is None else len(registered.log_directories),
    )


def find_cluster_facts(
    roots: Sequence[ObservedRoot],
    file: Path | None,
    options: JobOptions,
    unread: Mapping[str, str],
    *,
    holds_roots: bool,
) -> ClusterFacts:
    """Return partition states from a file, or from the newest metadata. The metadata are those that
    lie in the roots.

    Args:
        file: Of whoever asks; None for the metadata.
        options: Settings that the metadata lack, and those that come before them.
        holds_roots: Whether this process holds their locks.
    """
    newest, broken = _find_metadata(roots, options)
    states: Sequence[PartitionRegistration] = ()
    in_use = {root.location for root in roots if not holds_roots and _is_in_use(root)}
    notes = [f"{reason}: nothing of it was compared" for reason in unread.values()]
    notes += [f"{each} is in use: what is written meanwhile may be missing" for each in in_use]
    notes += broken
    if newest is not None:
        notes += [f"{newest.directory}: {note}" for note in newest.metadata.notes]
    if file is not None:
        try:
            with file.open("rb") as reader:
                content = reader.read(MAX_STATE_BYTES + 1)
        except OSError as error:
            raise ConfigError("--state", str(file), error.strerror or str(error)) from error
        states = parse_states(content, str(file), options.topic_settings)
        belief = f"ISR, epochs and assignment by {file}"
    elif newest is not None:
        states = newest.states
        at = newest.metadata.last_timestamp_ms
        belief = f"ISR, epochs and assignment by {newest.directory}, "
        belief += f"offset {newest.metadata.end_offset}"
        belief += f", of {time_text(at)}" if at >= 0 else ""
    else:
        belief = "nothing says ISR, epochs and assignment: every replica is a candidate"
    return ClusterFacts(
        states=states,
        metadata=None if newest is None else newest.metadata,
        directory="" if newest is None else newest.directory,
        belief=belief,
        notes=notes,
        unread=unread,
        in_use=frozenset(in_use),
    )


def _is_in_use(root: ObservedRoot) -> bool:
    path = local_path(root.location)
    if not root.context.role.facts.is_owned_by_broker or path is None:
        return False
    try:
        return query_lock(path).is_held
    except StorageError:
        return False  # who may not look at the lock file is told what else it may not


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateCopy:
    """A copy of the cluster's metadata."""

    directory: str
    metadata: ClusterMetadata
    states: Sequence[PartitionRegistration]


def _find_metadata(
    roots: Sequence[ObservedRoot], options: JobOptions
) -> tuple[_StateCopy | None, list[str]]:
    """Return the newest metadata of the cluster, and why copies say nothing."""
    broker = merge_broker_layers(options.broker_settings, options.broker_overrides)
    copies: list[_StateCopy] = []
    broken: list[str] = []
    of_broker: dict[tuple[str | None, int | None], list[Path]] = {}
    for root in roots:
        owner = root.meta_properties
        node = (None, None) if owner is None else (owner.cluster_id, owner.node_id)
        for entry in root.entries:
            path = local_path(entry.path)
            if entry.kind is not DirectoryKind.METADATA or entry.is_link or path is None:
                continue
            try:
                metadata = read_cluster_metadata(path, is_recovered=True)
                states = list(
                    states_of(metadata, broker, options.topic_settings, release=options.release)
                )
            except PylogError as error:
                broken.append(f"{entry.path}: {error}")
                continue
            of_broker.setdefault(node, []).append(path)
            # A snapshot with which a quorum is to begin ends before offset 0, whatever it has.
            if metadata.end_offset or metadata.topics:
                copies.append(_StateCopy(directory=entry.path, metadata=metadata, states=states))
            else:
                notes = metadata.notes or ("it has no topic",)
                broken += [f"{entry.path}: {note}" for note in notes]
    for directories in of_broker.values():
        try:
            read_broker_metadata(directories)
        except PylogError as error:
            broken.append(f"{error}: ISR, epochs and assignment may be others by now")
    return max(copies, key=lambda copy: copy.metadata.end_offset, default=None), broken


# Tell leaders, ISR and ELR of partitions over time. The cluster's metadata log says them.

_BROKERS: Final = pa.list_(pa.int64())
TIMELINE: Final = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int64(),
        "topic_id": pa.string(),
        "offset": pa.int64(),  # null if a snapshot has the version
        "timestamp_ms": pa.int64(),
        "leader": pa.int64(),  # -1 for nobody
        "leader_epoch": pa.int64(),
        "partition_epoch": pa.int64(),
        "isr": _BROKERS,
        "elr": _BROKERS,
        "last_known_elr": _BROKERS,
        "replicas": _BROKERS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The versions of partitions."""

    rows: pa.Table  # of ``TIMELINE``, by partition, then in the order of the log
    belief: str  # whose metadata they are, and how old
    notes: Sequence[str] = ()  # what else a person should know of the log directories
    unread: Mapping[str, str] = field(default_factory=dict)

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """Return the rows as a DataFrame."""
        return spark_frame(spark, self.rows)


def read_timeline(roots: Sequence[str | Path], options: JobOptions) -> Timeline:
    """Return the versions of the chosen partitions from the newest metadata in the roots."""
    job, _, _, cluster = open_places(roots, options, None)
    if cluster.metadata is None:
        reasons = "; ".join([cluster.belief, *cluster.notes])
        raise ConfigError("ROOT", None, f"expected metadata of the cluster: {reasons}")
    versions = [
        version
        for version in list_partition_versions(Path(cluster.directory))
        if job.topics.admits(version.topic)
    ]
    versions.sort(key=lambda each: (each.topic, each.state.topic_id, each.state.partition))
    return Timeline(
        rows=pa.Table.from_pylist(list(map(_timeline_row, versions)), schema=TIMELINE),
        belief=cluster.belief,
        notes=cluster.notes,
        unread=cluster.unread,
    )


def _timeline_row(version: PartitionVersion) -> _Row:
    state = version.state
    return {
        "topic": version.topic,
        "partition": state.partition,
        "topic_id": state.topic_id,
        "offset": version.offset,
        "timestamp_ms": version.timestamp_ms,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "isr": state.isr,
        "elr": state.eligible_leader_replicas,
        "last_known_elr": state.last_known_eligible_leader_replicas,
        "replicas": state.replicas,
    }
