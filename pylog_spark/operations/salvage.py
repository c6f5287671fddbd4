"""List salvaged records and append them to their logs again. Runs put them beside the logs that
they were cut from.

What goes back is appended to closed logs of a broker's directory, under Kafka's lock, with the
offsets that it had. The marker of a clean shutdown is gone before the first byte and comes back
after the last: who finds the directory in between recovers it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

from pylog_spark.discovery import resolve_roots
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action, Reason, Status
from pylog_spark.run.catalogs import build_catalogs, require_known
from pylog_spark.run.guards import check_outside, check_roots
from pylog_spark.run.job import new_job
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.broker_files import read_clean_shutdown
from storage_core.checkpoint.checkpoints import RECOVERY_FILES
from storage_core.errors import (
    ConfigError,
    GuardRefusedError,
    InconsistentClusterIdError,
    InconsistentEpochsError,
    InconsistentTopicIdError,
    PylogError,
    describe_failure,
)
from storage_core.filenames import RECOVERY_POINT_FILE, TopicPartition
from storage_core.log.unified_log import UnifiedLog
from storage_core.maintenance.recovery.salvage import (
    Contents,
    SalvagedLog,
    describe_salvaged,
    find_salvaged,
    replay,
    require_own,
)
from storage_core.maintenance.verification.prescription import recover_command
from storage_core.roots.broker import BrokerRoot, HeldBrokerRoot
from storage_core.roots.open_root import LogRoot, root_checkpoints
from storage_core.store.local import LocalStore
from storage_core.store.log_identity import topic_id_of

_FOLDER: Final = "FOLDER"
_OTHER_LOG: Final[Mapping[type[PylogError], Reason]] = {
    InconsistentTopicIdError: Reason.INCONSISTENT_TOPIC_ID,
    InconsistentClusterIdError: Reason.INCONSISTENT_CLUSTER_ID,
    InconsistentEpochsError: Reason.INCONSISTENT_EPOCHS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagedRow:
    """What one run salvaged from one partition, beside the log."""

    salvaged: SalvagedLog
    log: Path | None  # the directory of the log that it is compared with; None where there is none
    contents: Contents


@dataclass(slots=True, kw_only=True)
class ReplayRow:
    """What became of the salvage of one partition."""

    partition: TopicPartition
    directory: Path | None  # of the log; None where no root has it
    status: Status = Status.PLANNED  # DONE, PLANNED, SKIPPED or FAILED
    reason: Reason | None = None  # why it was skipped
    doubled: int = 0
    appended: int = 0  # records that went back, or would
    passed: int = 0  # records whose offsets the log has gone past
    # Where the log ends before: what is appended lies from there on.
    old_log_end_offset: int | None = None
    log_end_offset: int | None = None
    error_class: str | None = None  # of what went wrong
    error: str | None = None  # what went wrong
    # A salvaged folder that does not say whose log it is; None without one.
    unnamed: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replay:
    """One partition of a replay: row, salvaged logs, and log directory."""

    row: ReplayRow
    logs: list[SalvagedLog] = field(default_factory=list)
    root: str = ""


def look_at_salvage(
    folder: Path, roots: Sequence[str | Path], topics: TopicFilter
) -> list[SalvagedRow]:
    """Return what a salvage folder holds; nothing is written.

    Args:
        roots: Log directories that have the logs; without any, those that they were cut from.
    """
    rows = []
    for salvaged in _chosen(folder, topics):
        log = _log_of(salvaged, [str(root) for root in roots])
        store = None if log is None else LocalStore(log)
        rows.append(
            SalvagedRow(salvaged=salvaged, log=log, contents=describe_salvaged(salvaged, store))
        )
    return rows


def replay_salvage(
    folder: Path, roots: Sequence[str | Path], options: JobOptions
) -> list[ReplayRow]:
    """Append salvaged records to their logs again. A log has to end before them. A dry run only
    says what would be appended.

    Args:
        options: Which topics, what their settings are, whether it is a dry run.
    """
    log_roots = resolve_roots(roots, role=options.role)
    check_replay(folder, log_roots, options)
    catalogs = build_catalogs(log_roots, options)
    require_known(catalogs)
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    replays = _replays(_chosen(folder, topics), [root.location for root in log_roots], catalogs)
    run_id = new_job(Action.RECOVER.value, log_roots, options).run_id
    for location, of_root in groupby(
        sorted(replays, key=lambda each: each.root), key=lambda each: each.root
    ):
        due = [each for each in of_root if each.row.status is Status.PLANNED]
        if due and not options.dry_run:
            root = BrokerRoot(Path(location)).hold(run_id=run_id, mark_clean=True)
            with root as held:
                _append(held, due, catalogs[location], options)
    return [each.row for each in replays]


def check_replay(folder: Path, roots: Sequence[LogRoot], options: JobOptions) -> None:
    """Refuse a replay that may not be made."""
    check_outside(_FOLDER, folder, roots)
    check_roots(roots, options)
    for root in roots:
        if not root.role.facts.is_owned_by_broker:
            reason = f"is a {root.role.value} root; records go back into a broker's directory only"
            raise ConfigError("ROOT", root.location, reason)
        if read_clean_shutdown(BrokerRoot(Path(root.location))) is None:
            raise GuardRefusedError(
                "UNCLEAN_SHUTDOWN",
                f"{root.location} was not closed: what its logs end with is not known. Recover it "
                f"first: {recover_command([each.location for each in roots])}",
            )


def _chosen(folder: Path, topics: TopicFilter) -> list[SalvagedLog]:
    return [each for each in find_salvaged(folder) if topics.admits(each.partition.topic)]


def _log_of(salvaged: SalvagedLog, roots: Sequence[str]) -> Path | None:
    """Return the directory of the log, None where no root has it."""
    places = [Path(root, str(salvaged.partition)) for root in roots]
    if not roots and salvaged.saved is not None:
        places = [Path(salvaged.saved.directory)]
    return next((place for place in places if place.is_dir()), None)


def _replays(
    salvaged: Iterable[SalvagedLog], roots: Sequence[str], catalogs: Mapping[str, TopicCatalog]
) -> list[_Replay]:
    """Return what is to be done for each partition."""
    replays = []
    for partition, logs in groupby(salvaged, key=lambda each: each.partition):
        listed = list(logs)
        directory = _log_of(listed[0], roots)
        row = ReplayRow(partition=partition, directory=directory)
        root = "" if directory is None else str(directory.parent)
        replays.append(_Replay(row=row, logs=listed, root=root))
        if directory is None:
            row.status, row.error_class = Status.FAILED, "PartitionNotFoundError"
            row.error = f"{partition} is in none of the log directories that were named"
            continue
        store, topic_id = LocalStore(directory), catalogs[root].topic_id(partition.topic)
        try:
            own = topic_id_of(store)
            if topic_id is not None and own is not None and topic_id != own:
                row.status, row.reason = Status.SKIPPED, Reason.INCONSISTENT_TOPIC_ID
                row.error = f"the directory is of topic {own}, the cluster knows {topic_id}"
                continue
            for each in listed:
                require_own(each, directory)
            _compare(row, listed, store)
        except PylogError as error:
            row.status = Status.FAILED
            row.error_class, row.error = _failure(error)
    return replays


def _compare(row: ReplayRow, logs: Iterable[SalvagedLog], store: LocalStore) -> None:
    for each in logs:
        contents = describe_salvaged(each, store)
        row.doubled += contents.doubled
        row.appended += contents.free
        row.passed += contents.passed
        if contents.free and not each.is_named:
            row.unnamed = each.directory
        row.old_log_end_offset = row.log_end_offset = contents.log_end_offset
        if contents.other_log is not None and row.reason is None:
            row.status = Status.SKIPPED
            row.reason = _OTHER_LOG[type(contents.other_log)]
            row.error = f"{contents.other_log}; salvaged to {each.directory}"
    if row.reason is not None:
        row.appended = 0
    elif not row.appended:
        row.status = Status.SKIPPED
        row.reason = Reason.NOTHING_TO_RECOVER


def _append(
    held: HeldBrokerRoot, due: Iterable[_Replay], catalog: TopicCatalog, options: JobOptions
) -> None:
    """Append salvaged records to the logs of one log directory. Its marker of a clean shutdown
    comes back where all of that succeeds."""
    held.begin_writing()
    held.claim_unclean()
    is_whole = True
    for each in due:
        try:
            held.access.validate()
            _append_one(held, each, catalog, options)
        except PylogError as error:
            is_whole = False
            each.row.status = Status.FAILED
            each.row.error_class, each.row.error = _failure(error)
    if is_whole:
        held.claim_clean()


def _append_one(
    held: HeldBrokerRoot, each: _Replay, catalog: TopicCatalog, options: JobOptions
) -> None:
    partition = each.row.partition
    read = root_checkpoints(held.location, RECOVERY_FILES, strict=False).of(partition)
    directory = Path(held.location, str(partition))
    log = UnifiedLog.open(
        directory,
        config=catalog.config_or_defaults(partition.topic),
        cleaner=options.cleaner,
        log_start_offset=read.log_start_offset or 0,
        recovery_point=read.recovery_point or 0,
    )
    with log:
        each.row.appended = replay(each.logs, log, LocalStore(directory))
        each.row.log_end_offset = log.log_end_offset
    held.write_checkpoints({RECOVERY_POINT_FILE: {partition: log.log_end_offset}})
    each.row.status = Status.DONE


def _failure(error: PylogError) -> tuple[str, str]:
    failure = describe_failure(error)
    return failure["error_class"], failure["error"]
