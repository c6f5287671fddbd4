"""Give the tier of a lost cluster to a new, stopped one, topic ids kept.

The driver reads the tier and writes all directories itself: they are small. Nothing is written
unless all of it can be. Directories are built in folders that a broker takes for deleted
partitions, then get their names: what a killed run has put in place stays, and the next run goes
on.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pylog_spark.cluster.metadata_rebuild import check_brokers
from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.transfer import TransferReport
from pylog_spark.options import JobOptions
from pylog_spark.options.arguments import said_as
from pylog_spark.options.declared import TOPIC_ID, TOPICS, TRASH
from pylog_spark.outcomes import Action, Status
from pylog_spark.rows import table_of
from pylog_spark.run.guards import check_ledger, check_outside
from pylog_spark.run.job import Job, new_job, run_trash
from pylog_spark.run.run import Run
from pylog_spark.run.upkeep import begin_trash
from pylog_spark.schemas import AttachRow, Failure, PartitionName
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import INTERNAL_TOPICS
from storage_core.cluster.attachment import (
    AttachedLog,
    AttachReason,
    AttachRules,
    NewDirectory,
    plan_log,
    plan_metadata_topic,
)
from storage_core.cluster.transplant.replica import put_in_place, scratch_folder
from storage_core.errors import ConfigError, PylogError
from storage_core.filenames import (
    CLUSTER_METADATA_TOPIC,
    META_PROPERTIES_FILE,
    REMOTE_LOG_TOPIC,
    TopicPartition,
)
from storage_core.maintenance.verification.log_directories import observe_each
from storage_core.maintenance.verification.observed_root import ObservedRoot
from storage_core.roots.broker import BrokerRoot, HeldBrokerRoot
from storage_core.roots.guards import check_local_directory
from storage_core.roots.open_root import LogRoot
from storage_core.store.local import plain_path, storage_errors
from storage_core.store.open_objects import open_object_store
from storage_core.store.tier_archive import (
    ArchivePlace,
    Tier,
    TierFolder,
    names_archive,
    parse_archive,
)

_INTO: Final = "--into"
_ARCHIVE: Final = "ARCHIVE"
# Partitions that a tier may lack below others of their topics.
_MOST_ABSENT: Final = 10_000
# Of each topic, until its owner says more. A tier has no configs, and by Kafka's defaults the
# brokers would delete whatever is older than a week.
SAFE_CONFIG: Final[Mapping[str, str]] = {
    "remote.storage.enable": "true",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """What a person asks for besides."""

    rules: AttachRules
    metadata_partitions: int
    topics_out: Path | None = None  # the file for the topics' configs, None for none


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachReport(TransferReport):
    """The report of an attachment; its details are rows of ``schemas.ATTACH``."""

    cluster_id: str


def locate_archive(
    location: str, *, decryption_key: Path | None = None, topic_ids: Sequence[str] = ()
) -> ArchivePlace:
    """Return where a tier is.

    Args:
        location: A path or URL, also behind ``archive+``.
    """
    place = parse_archive(location) if names_archive(location) else ArchivePlace(place=location)
    with said_as(_ARCHIVE, location):
        open_object_store(place.place)  # asks nothing of the store
    key = place.decryption_key if decryption_key is None else str(decryption_key.absolute())
    return replace(
        place, with_local=(), decryption_key=key, topic_ids=(*place.topic_ids, *topic_ids)
    )


def resolve_targets(targets: Sequence[Path]) -> list[LogRoot]:
    """Check the log directories of the new brokers and describe them."""
    for path in targets:
        if not (path / META_PROPERTIES_FILE).is_file():
            reason = "expected a formatted log directory (kafka-storage.sh format)"
            raise ConfigError(_INTO, path, reason)
    return resolve_roots([plain_path(path) for path in targets], role=Role.BROKER)


def attach(
    place: Place,
    archive: ArchivePlace,
    targets: Sequence[Path],
    options: JobOptions,
    request: AttachOptions,
) -> AttachReport:
    """Give a tier to the brokers of a new, stopped cluster. Each partition gets one replica.

    Args:
        place: What writes the ledger.
        targets: Paths of formatted log directories of the new brokers; partitions take turns.
        options: Which topics; the run's clock, ledger and trash, and whether it is only planned.
    """
    roots = resolve_targets(targets)
    homes = [Path(root.location) for root in roots]
    for home in homes:
        check_local_directory(str(home), frozenset())
    observed, unread = observe_each([(root.location, root.role) for root in roots])
    for location, reason in unread.items():
        raise ConfigError(_INTO, location, f"cannot be read: {reason}")
    cluster_id = check_brokers(observed, now_ms=options.now_ms, option=_INTO)
    check_ledger(roots, options.ledger)
    check_outside(TRASH.label, options.trash, roots, log_directories=homes)
    job = new_job(
        Action.ATTACH.value,
        roots,
        options,
        request={"archive": str(archive), **asdict(request)},
    )
    with Run(place, job) as run:
        # Nobody starts while they are written.
        held = {
            home: run.hold(
                BrokerRoot(home).hold(run_id=job.run_id, mark_clean=True, is_alone=False)
            )
            for home in (() if options.dry_run else homes)
        }
        begin_trash(job, list(map(str, held)), run.held)
        tier = archive.open()
        nodes = {Path(root.location): _node_of(root) for root in observed}
        logs = _plan(tier, _choose_folders(archive, tier, job), request.rules, nodes)
        segments = [segment for log in logs for segment in log.segments]

        def directories() -> Iterator[NewDirectory]:
            # The topics last: with them alone a broker would take their tier for an empty one.
            count = request.metadata_partitions
            yield from plan_metadata_topic(segments, homes, count=count, cluster_id=cluster_id)
            yield from (log.directory(tier) for log in logs)

        logs = _check_targets(logs, observed, directories())
        by_partition = {log.partition: log for log in logs}
        is_refused = any(log.is_refused for log in logs)
        ended = _write(job, directories() if not is_refused else (), held)
        rows = [_row(directory, status, by_partition) for directory, status in ended]
        rows += [_refused(log) for log in logs if is_refused]
        results = run.recorder.each_result(_results(rows), action=job.action)
        if request.topics_out is not None and held and not is_refused:
            _write_topics(request.topics_out, {log.partition.topic for log in logs})
    rows.sort(key=lambda row: (row.name.topic == REMOTE_LOG_TOPIC, row.name.topic_partition))
    return run.report(
        AttachReport,
        results,
        details=table_of(AttachRow, rows),
        cluster_id=cluster_id,
    )


def _node_of(root: ObservedRoot) -> int:
    properties = root.meta_properties
    assert properties is not None  # noqa: S101  # it was checked
    assert properties.node_id is not None  # noqa: S101
    return properties.node_id


def _choose_folders(archive: ArchivePlace, tier: Tier, job: Job) -> list[TierFolder]:
    """Return the folders of the chosen topics, one for each partition."""
    folders, _ = tier.listing
    if not folders:
        raise ConfigError(_ARCHIVE, archive.place, "has no segment of a tier")
    folders = [each for each in folders if job.topics.admits(each.partition.topic)]
    if not folders:
        raise ConfigError(TOPICS.label, None, f"no topic of {archive.place} is chosen")
    ids: defaultdict[str, set[str]] = defaultdict(set)
    names: defaultdict[str, set[str]] = defaultdict(set)
    for each in folders:
        ids[each.partition.topic].add(each.topic_id)
    chosen = []
    for each in folders:
        topic, own = each.partition.topic, ids[each.partition.topic]
        own = own & set(archive.topic_ids) or own
        if topic in INTERNAL_TOPICS or topic == CLUSTER_METADATA_TOPIC:
            raise ConfigError(_ARCHIVE, each.key, f"no broker tiers {topic}: --exclude {topic}")
        if len(own) > 1:
            reason = f"{archive.place} has {len(own)} topics of the name {topic}: say one of "
            raise ConfigError(TOPIC_ID.label, None, reason + ", ".join(sorted(own)))
        if each.topic_id in own:
            names[each.topic_id].add(topic)
            chosen.append(each)
    for topic_id, topics in names.items():
        if len(topics) > 1:
            reason = f"{' and '.join(sorted(topics))} have one id, {topic_id}: --exclude one"
            raise ConfigError(_ARCHIVE, archive.place, reason)
    count = Counter(each.partition for each in chosen)
    for each in chosen:
        if count[each.partition] > 1:
            reason = f"{each.partition} has segments in several folders"
            raise ConfigError(_ARCHIVE, each.key, reason)
    return chosen


def _plan(
    tier: Tier,
    folders: Sequence[TierFolder],
    rules: AttachRules,
    nodes: Mapping[Path, int],
) -> list[AttachedLog]:
    """Return the logs of all partitions, by name. A partition that the tier lacks below another
    one of its topic is an empty log: no topic has a gap in the numbers."""
    by_partition = {each.partition: each for each in folders}
    counts = {each.partition.topic: each.partition.partition + 1 for each in folders}
    ids = {each.partition.topic: each.topic_id for each in folders}
    absent = sum(counts.values()) - len(folders)
    if absent > _MOST_ABSENT:  # nobody has made so many: a name is wrong
        reason = (
            f"lacks {absent:,} partitions below others of their topics, at most {_MOST_ABSENT:,}"
        )
        raise ConfigError(_ARCHIVE, tier.objects.url, reason)
    homes = list(nodes)
    logs: list[AttachedLog] = []
    for topic, count in sorted(counts.items()):
        for partition in (TopicPartition(topic, number) for number in range(count)):
            home = homes[len(logs) % len(homes)]
            empty = AttachedLog(
                partition=partition,
                topic_id=ids[topic],
                home=home,
                log_start_offset=0,
                log_end_offset=0,
                notes=("the tier has no segment of it: it starts empty",),
            )
            folder = by_partition.get(partition)
            try:
                log = (
                    empty
                    if folder is None
                    else plan_log(tier, folder, rules, home=home, node=nodes[home])
                )
            except ConfigError:  # without the key none can be read
                raise
            except PylogError as error:
                log = replace(empty, notes=(), error=error)
            logs.append(log)
    return logs


def _check_targets(
    logs: Sequence[AttachedLog],
    observed: Sequence[ObservedRoot],
    directories: Iterable[NewDirectory],
) -> list[AttachedLog]:
    """Return the logs, with a reason if a target has their topic, or a topic of their id. What a
    killed run has put in place is no reason."""
    topics = {log.partition.topic for log in logs} | {REMOTE_LOG_TOPIC}
    present = [
        (entry.topic_partition.topic, entry)
        for root in observed
        for entry in root.entries
        if entry.kind is DirectoryKind.PARTITION and entry.topic_partition is not None
    ]
    ours = set()
    if any(topic in topics for topic, _ in present):
        ours = {str(each.path) for each in directories if each.is_written()}
    taken = {
        topic: entry.path for topic, entry in present if topic in topics and entry.path not in ours
    }
    by_id = {entry.topic_id: entry.path for topic, entry in present if topic not in topics}

    def check(log: AttachedLog) -> AttachedLog:
        other, own = by_id.get(log.topic_id), taken.get(log.partition.topic)
        own = own or taken.get(REMOTE_LOG_TOPIC)
        if log.is_refused or not (other or own):
            return log
        if other:
            detail = f"{other} has the topic id {log.topic_id}"
            return replace(log, reason=AttachReason.TOPIC_ID_TAKEN, detail=detail)
        detail = f"{own} is there, and this command did not write it as it is"
        return replace(log, reason=AttachReason.TARGET_HAS_TOPIC, detail=detail)

    return [check(log) for log in logs]


def _write(
    job: Job, directories: Iterable[NewDirectory], held: Mapping[Path, HeldBrokerRoot]
) -> list[tuple[NewDirectory, Status | PylogError]]:
    """Write directories, unless this is a dry run; return what became of each."""
    ended: dict[TopicPartition, tuple[NewDirectory, Status | PylogError]] = {}
    with ExitStack() as stack:
        scratches = {home: stack.enter_context(scratch_folder(home)) for home in held}
        built = []
        for each in directories:
            status = Status.SKIPPED if each.is_written() else Status.PLANNED
            if held and status is Status.PLANNED:
                built.append(each.build(scratches[each.home]))
                status = Status.DONE
            ended[each.partition] = (replace(each, files={}), status)
        errors = put_in_place(built, scratches, held, trash=run_trash(job), action=job.action)
    for partition, error in errors.items():
        ended[partition] = (ended[partition][0], error)
    return list(ended.values())


def _row(
    directory: NewDirectory,
    status: Status | PylogError,
    logs: Mapping[TopicPartition, AttachedLog],
) -> AttachRow:
    """Return the row of a directory."""
    log = logs.get(directory.partition)
    notes = () if log is None else log.notes
    if status is Status.SKIPPED:
        notes = (*notes, "a former call has written it")
    failure = Failure.of(status) if isinstance(status, PylogError) else Failure()
    row = AttachRow(
        name=PartitionName(
            root=str(directory.home),
            topic=directory.partition.topic,
            partition=directory.partition.partition,
        ),
        status=Status.FAILED.value if isinstance(status, PylogError) else status.value,
        detail="; ".join(notes),
        directory=str(directory.path),
        log_start_offset=directory.log_start_offset,
        log_end_offset=directory.log_end_offset,
        failure=failure,
    )
    return row if log is None else replace(row, **_of_log(log))


def _refused(log: AttachedLog) -> AttachRow:
    """Return the row of a log that is not written, for it or another one is refused."""
    reason = log.reason
    return AttachRow(
        name=PartitionName(
            root=str(log.home), topic=log.partition.topic, partition=log.partition.partition
        ),
        status=Status.FAILED.value if log.error else Status.SKIPPED.value,
        reason=None if reason is None else reason.value,
        failure=Failure.of(log.error) if log.error else Failure(),
        detail=log.detail or "not written, because others cannot be",
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        **_of_log(log),
    )


def _of_log(log: AttachedLog) -> dict[str, Any]:
    """Return the columns that only a log of the tier has."""
    opened = [each.current_txn_first_offset for each in log.open_transactions]
    return {
        "topic_id": log.topic_id,
        "segments": len(log.segments),
        "left_out_segments": log.left_out,
        "tier_bytes": sum(each.size_bytes for each in log.segments),
        "open_transactions": len(opened),
        "open_offset": min(opened, default=None),
    }


def _results(rows: Iterable[AttachRow]) -> Iterator[dict[str, Any]]:
    """Yield columns of ``schemas.RESULT``."""
    for row in rows:
        yield {
            **asdict(row.name),
            **asdict(row.failure),
            "status": row.status,
            "reason": row.reason,
            "directory": row.directory,
        }


def _write_topics(path: Path, topics: Iterable[str]) -> None:
    """Write the topics' configs as ``--config`` of a rebuild reads them."""
    text = json.dumps({"topics": {topic: dict(SAFE_CONFIG) for topic in sorted(topics)}}, indent=2)
    with storage_errors(path), path.open("w", encoding="utf-8") as file:
        file.write(f"{text}\n")
