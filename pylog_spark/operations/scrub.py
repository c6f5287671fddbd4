"""Scrub a tier: is what brokers uploaded there, whole, and known to them? Nothing is written.

The driver lists the tier once, reads ``__remote_log_metadata`` if a broker's log directories are
given, and hands the partitions out. A task lists its own again: what only one of the two listings
shows was uploaded or deleted meanwhile.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.scrub_task import TierTarget, place_in_tier, scrub_partitions
from pylog_spark.operations.verify.driver import (
    DEFAULT_SHOWN,
    OnFindings,
    VerifiedRoots,
    VerifyReport,
    gather,
    report_verification,
    watching,
)
from pylog_spark.operations.verify.task import VerifiedRow
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action
from pylog_spark.run.guards import check_ledger
from pylog_spark.run.job import new_job
from pylog_spark.run.planning import WorkItem, are_read_here
from pylog_spark.run.progress import OnProgress
from pylog_spark.run.run import Run
from pylog_spark.structured_logs import log_fields
from storage_core.catalog.roles import Role, local_path
from storage_core.clock import Clock
from storage_core.errors import ConfigError, PylogError
from storage_core.filenames import REMOTE_LOG_TOPIC, TopicPartition
from storage_core.maintenance.verification.finding_kinds import severity_of
from storage_core.maintenance.verification.findings import Code, Finding, Severity, VerifyOptions
from storage_core.maintenance.verification.tier import Recorded, ScrubOptions
from storage_core.roots.open_root import LogRoot
from storage_core.roots.remote_logs import RemoteLogs
from storage_core.store.object_store import KeepsParts, ObjectInfo
from storage_core.store.tier_archive import (
    ArchivePlace,
    Tier,
    TierFolder,
    names_archive,
    parse_archive,
)
from storage_core.wording import count_text

# So many folders of unknown objects are findings of their own.
_MOST_FOLDERS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRequest:
    """What a scrub is asked for, beside the options of all jobs."""

    roots: tuple[str, ...] = ()  # log directories with ``__remote_log_metadata``
    decryption_key: str | None = None  # path of the private key of an encrypted tier
    is_deep: bool = False  # also read every object
    grace_ms: int = 3_600_000  # an unfinished upload younger than this may be under way
    recheck_ms: int = 2_000  # least time between two looks at what the first one finds
    # Findings of this severity or worse make the exit status 1; None for none.
    fail_on: Severity | None = Severity.ERROR
    shown: int = DEFAULT_SHOWN  # how many findings the report holds, worst first


def archive_of(archive: str) -> LogRoot:
    """Return a tier as the root of a run, which is only read."""
    place = parse_archive(archive).place if names_archive(archive) else archive
    path = local_path(place)
    location = place if path is None else str(path.absolute())
    return LogRoot(location=location, role=Role.MIRROR, is_said=False)


def scrub(
    place: Place,
    archive: str,
    options: JobOptions,
    request: ScrubRequest | None = None,
    *,
    clock: Clock | None = None,
    on_findings: OnFindings | None = None,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Scrub all partitions of a tier; record and report the findings.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        archive: Path or URL of the tier.
        options: Which topics, where the ledger is.
        request: How deep to look, and what makes the run fail.
        clock: For the times in the ledger.
        on_findings: Takes all findings, some at a time, however many there are.
        on_progress: Told how far the reading of objects has come.
    """
    root = archive_of(archive)
    check_ledger([root], options.ledger)
    request = request or ScrubRequest()
    job = new_job(
        Action.SCRUB.value, [root], options, clock=clock, request=asdict(request), outputs=()
    )
    with Run(place, job) as run, log_fields(step=Action.SCRUB.value), ExitStack() as stack:
        known = _find_targets(run, request)
        items = [
            WorkItem(value=target, size_bytes=target.size_bytes if request.is_deep else 0)
            for target in known.targets
        ]
        units = run.pack(items)
        scrub_options = ScrubOptions(
            verify=VerifyOptions(now_ms=options.now_ms, threads=run.readers_of(units)),
            is_deep=request.is_deep,
            grace_ms=request.grace_ms,
        )
        work = partial(scrub_partitions, options=scrub_options, recheck_ms=request.recheck_ms)
        rows = run.engine.spread([known.rows], iter, VerifiedRow)
        if units:
            of_units = run.engine.spread([unit.values for unit in units], work, VerifiedRow)
            title = f"{job.title} {job.places}: scrub"
            watch = watching(run, stack, on_progress) if request.is_deep else None
            if watch is not None:
                watch([0, *(unit.size_bytes for unit in units)])
            rows = run.engine.keep(rows.union(of_units), title, is_look=are_read_here(items))
        return report_verification(
            run,
            gather(run, rows, shown=request.shown),
            VerifiedRoots(observed=(), rows=(), targets=()),
            fail_on=request.fail_on,
            on_findings=on_findings,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the driver knows of a tier."""

    targets: tuple[TierTarget, ...]
    rows: tuple[VerifiedRow, ...]  # findings that are of no partition


def _find_targets(run: Run, request: ScrubRequest) -> _Known:
    """List the tier, and read what brokers know of it."""
    (root,) = run.job.roots
    place = ArchivePlace(place=root.location, decryption_key=request.decryption_key)
    tier = place.open()
    folders, others = tier.listing
    remote = _remote_logs(request.roots) if request.roots else None
    uploaded = frozenset() if remote is None else remote.uploaded_ids()
    if remote is not None and not uploaded.issubset(_segment_ids(folders)):
        # What is not there was uploaded since, or is being deleted, or is lost: the next records
        # tell, read after another listing.
        tier = place.open()
        folders, others = tier.listing
        remote = _remote_logs(request.roots)
    recorded = set() if remote is None else remote.partitions()
    if not folders and not recorded:
        reason = "holds no segment of a tier, as LocalTieredStorage or Aiven's plugin writes it"
        raise ConfigError("ARCHIVE", root.location, reason)
    listed = {
        _key(folder): {each: len(kinds) for (_, each), kinds in folder.segments.items()}
        for folder in folders
    }
    findings = [
        *_unknown_objects(others),
        *_unfinished_uploads(run, tier, request),
        *_topics_of_one_name(folders, run),
    ]
    without_objects = recorded - {_key(folder) for folder in folders}
    targets: list[TierTarget] = []
    gaps: Counter[str] = Counter()
    for key, folder in sorted(
        [*((_key(each), each) for each in folders), *((key, None) for key in without_objects)],
        key=lambda each: (each[0][1], each[0][0]),
    ):
        topic_id, partition = key
        if not run.job.topics.admits(partition.topic):
            continue
        known = None
        if remote is not None:
            uploads = remote.uploads_of(topic_id, partition)
            gaps.update(filter(None, [uploads.gap]))
            if not uploads.gap:
                known = Recorded(
                    segments=uploads.segments,
                    listed=listed.get(key, {}),
                    uploaded=uploaded.intersection(
                        each.identity.segment_id for each in uploads.segments
                    ),
                )
        targets.append(_target(place, len(targets), partition, folder, known))
    run.note(
        f"{count_text(count, 'partition')} not compared with the brokers' records: {gap}"
        for gap, count in gaps.items()
    )
    return _Known(
        targets=tuple(targets),
        rows=tuple(
            place_in_tier(finding, root=root.location, partition=None) for finding in findings
        ),
    )


def _remote_logs(roots: Sequence[str]) -> RemoteLogs:
    """Return the brokers' records in some log directories."""
    remote = RemoteLogs([root.open() for root in resolve_roots(roots, role=None)])
    if not remote.has_records:
        reason = f"has no partition of {REMOTE_LOG_TOPIC}; name the directories of all brokers"
        raise ConfigError("--root", ", ".join(roots), reason)
    return remote


def _segment_ids(folders: Iterable[TierFolder]) -> set[str]:
    return {segment_id for folder in folders for _, segment_id in folder.segments}


def _key(folder: TierFolder) -> tuple[str, TopicPartition]:
    return folder.topic_id, folder.partition


def _target(
    place: ArchivePlace,
    ordinal: int,
    partition: TopicPartition,
    folder: TierFolder | None,
    recorded: Recorded | None,
) -> TierTarget:
    kinds = [] if folder is None else folder.segments.values()
    return TierTarget(
        ordinal=ordinal,
        place=replace(place, folders=() if folder is None else (folder.key,)),
        folder="" if folder is None else folder.key,
        partition=partition,
        recorded=recorded,
        size_bytes=sum(each["log"].size_bytes for each in kinds if "log" in each),
    )


# Findings that are of no partition.


def _unknown_objects(others: Iterable[ObjectInfo]) -> list[Finding]:
    """Report objects that are no segment's, folder by folder."""
    folders: dict[str, list[ObjectInfo]] = defaultdict(list)
    for info in others:
        folders[info.key.rpartition("/")[0]].append(info)
    findings = []
    for number, (_, infos) in enumerate(sorted(folders.items())):
        if number == _MOST_FOLDERS:
            message = f"{len(folders) - number} more folders have such objects"
            findings.append(_finding(Code.TIER_OBJECT_UNKNOWN, message))
            break
        count = count_text(len(infos), "object")
        total = sum(info.size_bytes for info in infos)
        message = f"{count} of {total} bytes in this folder, with other names than a segment's"
        findings.append(_finding(Code.TIER_OBJECT_UNKNOWN, message, min(infos).key))
    return findings


def _unfinished_uploads(run: Run, tier: Tier, request: ScrubRequest) -> list[Finding]:
    """Report uploads in parts that have been left; a store that does not list them is a note."""
    if not isinstance(tier.objects, KeepsParts):
        return []
    latest = run.job.options.now_ms - request.grace_ms
    try:
        return [
            _finding(
                Code.TIER_UPLOAD_UNFINISHED,
                f"upload {upload.upload_id} was begun and not ended",
                upload.key,
            )
            for upload in tier.objects.list_uploads()
            if upload.began_ms <= latest
        ]
    except PylogError as error:
        run.note([f"unfinished uploads cannot be listed: {error}"])
        return []


def _topics_of_one_name(folders: Iterable[TierFolder], run: Run) -> list[Finding]:
    ids: dict[str, dict[str, str]] = defaultdict(dict)
    for folder in folders:
        if run.job.topics.admits(folder.partition.topic):
            ids[folder.partition.topic].setdefault(folder.topic_id, folder.key)
    return [
        _finding(
            Code.TIER_TOPIC_TWICE,
            f"{topic} has {len(several)} topic ids: {', '.join(sorted(several))}",
            min(several.values()),
        )
        for topic, several in sorted(ids.items())
        if len(several) > 1
    ]


def _finding(code: Code, message: str, file: str = "") -> Finding:
    return Finding(code=code, severity=severity_of(code), message=message, file=file)
