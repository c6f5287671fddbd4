"""One round of compaction on one partition directory, in process."""

import secrets
from collections.abc import Iterable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from storage_core.commit import Plan, commit
from storage_core.config import CleanerConfig, LogConfig, OffsetMapHash
from storage_core.errors import BadBytesError, OffsetOverflowError, located
from storage_core.log.loaded_log import LoadedLog, LogRepairs
from storage_core.log.log_loader import load_log
from storage_core.log.transaction_tracker import TransactionTracker
from storage_core.maintenance.compaction.candidates import (
    CleanableRange,
    CleanRequest,
    choose_range,
)
from storage_core.maintenance.compaction.commit import (
    find_split,
    plan_commit,
    plan_found_split,
    verify_inputs,
)
from storage_core.maintenance.compaction.index import CompactionIndex
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.plan import (
    CompactionPlan,
    group_segments,
    plan_compaction,
)
from storage_core.maintenance.compaction.rewrite import CleanedGroup, RewriteStats, clean_groups
from storage_core.maintenance.compaction.sidecar_folder import PartitionSidecars, SidecarFolder
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.throttler import Throttler
from storage_core.store.base import LogStore, version_of
from storage_core.store.generations import current_location
from storage_core.store.local import LocalStore
from storage_core.threads import count_processors

HASH_KEY_BYTES = 16
# Names the scratch files of a round in process.
IN_PROCESS = "in-process"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """What a round did.

    Attributes:
        next_offset: Where the next round begins, None where nothing was cleaned.
        messages_read: Records looked at while cleaning.
        messages_written: Records kept.
        bytes_read: Bytes of batches read while cleaning.
        bytes_written: Bytes of batches kept.
        map_messages_read: Records read while the offset map was built.
        invalid_messages_read: Records without a key that were dropped.
        segments: Segments that the log has now.
        size: Bytes of their records.
        cleaner_checkpoint: What the partition's entry in the cleaner checkpoint should be now,
            None for no entry.
        nothing_to_clean: Whether there was nothing to do.
    """

    next_offset: int | None
    messages_read: int
    messages_written: int
    bytes_read: int
    bytes_written: int
    map_messages_read: int
    invalid_messages_read: int
    segments: int
    size: int
    cleaner_checkpoint: int | None
    nothing_to_clean: bool


@located
def clean_partition(
    directory: Path,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    request: CleanRequest,
    threads: int | None = None,
) -> CleanResult:
    """Load a closed partition, clean it once, and close it again.

    It was closed cleanly.

    Args:
        directory: The partition directory; scratch files lie in it while the round runs.
        config: The topic's configuration.
        cleaner: How to clean.
        request: Clock and checkpoints.
        threads: How many threads to use, None for as many as there are processors. What comes of
            it is the same.

    Raises:
        OffsetOverflowError: Offsets of a segment do not fit it. As Kafka's cleaner does, the round
            has split it into segments that they fit, and is given up: the next one cleans. Of a
            segment that is damaged, not long, every byte is as it was.
        PylogError: Something else is wrong with the partition; it is untouched then, but for what
            loading it repairs, unless the store itself failed while the result was put into place.
    """
    return clean_and_load(
        directory, config=config, cleaner=cleaner, request=request, threads=threads
    )[0]


@located
def clean_and_load(
    directory: Path,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    request: CleanRequest,
    threads: int | None = None,
) -> tuple[CleanResult, LoadedLog]:
    """Do as `clean_partition`; return also the log from before the round."""
    store = LocalStore(directory, is_ours=True)
    log = _load(store, config, cleaner, request)
    cleanable = choose_range(PartitionState.of_log(log), config, request)
    if not cleanable.is_due:
        commit(Plan(location=store.location, operations=log.operations), store)
        return _nothing(log, cleanable, request), log
    plan = plan_compaction(
        log,
        config,
        cleaner,
        cleanable,
        now_ms=request.now_ms,
        hash_key=secrets.token_bytes(HASH_KEY_BYTES),
    )
    plan, sidecars = with_sidecars(store, plan, cleaner.key_sidecars)
    throttler = Throttler(cleaner.io_max_bytes_per_second)
    threads = count_processors() if threads is None else threads
    index = index_round(
        store,
        plan,
        throttler=throttler,
        keeps_hashes=sidecars is not None,
        threads=threads,
    )
    groups: list[CleanedGroup] = []
    try:
        # Never the names of a killed round: the load operations sweep its scratch files away.
        attempt = f"{IN_PROCESS}-{secrets.token_hex(8)}"
        cleaning = clean_groups(
            store,
            plan,
            index,
            group_segments(plan, index.end_offset),
            TransactionTracker(),
            scratch=lambda: nullcontext(directory),
            attempt=attempt,
            throttler=throttler,
            sidecars=sidecars,
            threads=threads,
        )
        with closing(cleaning):
            groups.extend(cleaning)
        verify_inputs(store, plan)
        operations = plan_commit(log, plan, groups)
    except OffsetOverflowError as error:
        _discard(groups)
        _split(store, log, plan, error.file)
        raise
    except BaseException:
        _discard(groups)
        raise
    commit(operations, store)
    if sidecars is not None:
        sidecars.publish(store, bases_after(plan, groups))
    return _done(log, index, groups, request), log


def with_sidecars(
    store: LogStore, plan: CompactionPlan, folder: str
) -> tuple[CompactionPlan, PartitionSidecars | None]:
    """Return a round with a folder's secret, and its partition's sidecars.

    The round knows keys by that secret.

    Args:
        store: The partition.
        plan: The round, which is done by one process.
        folder: Where sidecars lie; empty for none, and then the plan is as it was. So it is where
            the folder cannot be used, keys are known by MD5, or the store does not tell one version
            of a file from another.
    """
    if not folder or plan.offset_map_hash is not OffsetMapHash.SIPHASH:
        return plan, None
    with closing(store.open_file(plan.segments[0].log_file)) as reader:
        if not version_of(reader):
            return plan, None
    sidecars = SidecarFolder(Path(folder)).of(current_location(plan.location))
    if sidecars is None:
        return plan, None
    return replace(plan, hash_key=sidecars.secret.hex()), sidecars


def bases_after(plan: CompactionPlan, groups: Iterable[CleanedGroup]) -> set[int]:
    """Return the base offsets of the segments after a round."""
    bases = {segment.base_offset for segment in plan.segments}
    for group in groups:
        bases.difference_update(group.base_offsets[1:])
    return bases


def load_for_round(
    store: LogStore, config: LogConfig, cleaner: CleanerConfig, request: CleanRequest
) -> LoadedLog:
    """Load the log for a round, with the request's clock and checkpoints.

    Raises:
        PylogError: It cannot be loaded, or has to be recovered first.
    """
    return load_log(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_checkpoint=request.log_start_offset or 0,
        high_watermark=request.high_watermark,
    )


def _discard(groups: Iterable[CleanedGroup]) -> None:
    """Delete what was cleaned for nothing."""
    for cleaned in groups:
        for file in cleaned.files:
            Path(file.path).unlink(missing_ok=True)


def _split(store: LocalStore, log: LoadedLog, plan: CompactionPlan, file: str) -> None:
    """Split a segment as Kafka's cleaner does; postpone the round.

    One that is damaged, not long, is left as it is: what the round complained about says so.
    """
    try:
        split = find_split(store, plan, file)
    except BadBytesError:
        return
    # These rename and delete, but change no byte of a segment: loading it had nothing to repair.
    commit(Plan(location=store.location, operations=log.operations), store)
    commit(plan_found_split(store, split), store)


def _load(
    store: LocalStore, config: LogConfig, cleaner: CleanerConfig, request: CleanRequest
) -> LoadedLog:
    """Load a log as a broker does, after its repairs.

    What loading would repair is repaired first.
    """
    checkpoint = request.log_start_offset or 0
    log = plan_recovery(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_offset=checkpoint,
        clean_shutdown=True,
        high_watermark=request.high_watermark,
    )
    if log.repairs == LogRepairs():
        return log
    commit(Plan(location=store.location, operations=log.operations), store)
    # Only the files are looked at again: a second load, of a log whose start lies at its end,
    # would forget the snapshot and the epoch that the first one left there.
    repaired = load_log(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_checkpoint=checkpoint,
    )
    return replace(log, segments=repaired.segments, operations=())


def _nothing(log: LoadedLog, cleanable: CleanableRange, request: CleanRequest) -> CleanResult:
    checkpoint = request.cleaner_checkpoint
    if checkpoint is not None and cleanable.checkpoint_is_invalid:
        checkpoint = cleanable.first_dirty_offset
    return CleanResult(
        next_offset=None,
        messages_read=0,
        messages_written=0,
        bytes_read=0,
        bytes_written=0,
        map_messages_read=0,
        invalid_messages_read=0,
        segments=len(log.segments),
        size=log.size_bytes,
        cleaner_checkpoint=checkpoint,
        nothing_to_clean=True,
    )


def _done(
    log: LoadedLog, index: CompactionIndex, groups: list[CleanedGroup], request: CleanRequest
) -> CleanResult:
    stats = sum((group.stats for group in groups), RewriteStats())
    sources = {base for group in groups for base in group.base_offsets}
    untouched = [s for s in log.segments if s.base_offset not in sources]
    return CleanResult(
        next_offset=index.end_offset,
        messages_read=stats.messages_read,
        messages_written=stats.messages_written,
        bytes_read=stats.bytes_read,
        bytes_written=stats.bytes_written,
        map_messages_read=index.stats.messages_read,
        invalid_messages_read=stats.invalid_messages_read,
        segments=len(untouched) + len(groups),
        size=sum(s.size_bytes for s in untouched) + stats.bytes_written,
        # A range of the caller's own choice says nothing of what lies before it.
        cleaner_checkpoint=(
            index.end_offset if request.first_dirty_offset is None else request.cleaner_checkpoint
        ),
        nothing_to_clean=False,
    )
