"""One round of compaction on one partition directory, in process."""

import json
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from storage_core.commit import commit
from storage_core.config import CleanerConfig, LogConfig, OffsetMapHash
from storage_core.errors import (
    BadBytesError,
    KeylessRecordsError,
    NegativeTimestampError,
    OffsetOverflowError,
    located,
)
from storage_core.filenames import SCRATCH_PREFIX
from storage_core.json_values import field_values
from storage_core.log.batch_search import first_headers
from storage_core.log.loaded_log import LoadedLog, LogRepairs, SegmentState
from storage_core.log.log_loader import load_log
from storage_core.log.open_transactions import TransactionTracker
from storage_core.maintenance.compaction.commit import (
    find_split,
    plan_commit,
    plan_found_split,
    verify_inputs,
)
from storage_core.maintenance.compaction.index import IndexStats
from storage_core.maintenance.compaction.key_sidecar import PartitionSidecars, SidecarFolder
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.plan import (
    CleanableRange,
    CleanRequest,
    CompactionPlan,
    choose_range,
    group_segments,
    plan_compaction,
)
from storage_core.maintenance.compaction.rewrite import (
    CleanedGroup,
    MakeDurable,
    RewriteStats,
    clean_groups,
    measure_groups,
)
from storage_core.maintenance.partition_state import PartitionState, check_segment_ages
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.throttler import Throttler
from storage_core.store.base import LogStore, version_of
from storage_core.store.generations import current_location
from storage_core.store.local import LocalStore, storage_errors
from storage_core.store.syncing import Unsynced
from storage_core.threads import count_processors

# Run both passes of compaction over one partition.
#
# Tasks of jobs and `pylog partition` do it here. Nothing in the directory is replaced: what was
# cleaned lies in scratch files.


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedPartition:
    """The result of both passes over a partition."""

    end_offset: int
    groups: tuple[CleanedGroup, ...]
    index: IndexStats  # what pass one read and found
    spent_secs: float  # time spent on the passes, summed over tasks
    index_secs: float | None = None  # on pass one, None where that was not told apart
    sidecars: PartitionSidecars | None = None  # of the partition, staged; None for none

    @property
    def stats(self) -> RewriteStats:
        """Numbers of pass two."""
        return sum((group.stats for group in self.groups), RewriteStats())

    def publish_sidecars(self, store: LogStore, plan: CompactionPlan) -> None:
        """Publish the staged sidecars, if any, after the commit.

        Args:
            store: The partition as the commit left it.
        """
        if self.sidecars is None:
            return
        bases = {segment.base_offset for segment in plan.segments}
        for group in self.groups:
            bases.difference_update(group.base_offsets[1:])
        self.sidecars.publish(store, bases)


def run_passes(  # noqa: PLR0913  # what is read, and what becomes of it
    store: LogStore,
    plan: CompactionPlan,
    *,
    sidecar_folder: str,
    scratch: Callable[[], AbstractContextManager[Path]],
    attempt: str,
    keep: Callable[[CleanedGroup], CleanedGroup],
    throttler: Throttler,
    threads: int,
    make_durable: MakeDurable,
) -> CleanedPartition:
    """Run both passes over a whole partition in this process.

    Args:
        store: The partition; it is only read.
        sidecar_folder: Where key sidecars lie; empty for none.
        scratch: As `clean_groups`.
        keep: Takes the files of a group out of its scratch folder, if they cannot stay there.
        throttler: Slows reading and writing down.
        threads: How many threads to use; the result is the same.
        make_durable: As `clean_groups`.
    """
    started = time.perf_counter()
    plan, sidecars = _with_sidecars(store, plan, sidecar_folder)
    index = index_round(
        store, plan, throttler=throttler, keeps_hashes=sidecars is not None, threads=threads
    )
    indexed = time.perf_counter()
    cleaning = clean_groups(
        store,
        plan,
        index,
        group_segments(plan, index.end_offset),
        TransactionTracker(),
        scratch=scratch,
        attempt=attempt,
        throttler=throttler,
        sidecars=sidecars,
        threads=threads,
        make_durable=make_durable,
    )
    with closing(cleaning):
        groups = tuple(map(keep, cleaning))
    return CleanedPartition(
        end_offset=index.end_offset,
        groups=groups,
        index=index.stats,
        spent_secs=time.perf_counter() - started,
        index_secs=indexed - started,
        sidecars=sidecars,
    )


def _with_sidecars(
    store: LogStore, plan: CompactionPlan, folder: str
) -> tuple[CompactionPlan, PartitionSidecars | None]:
    """Return a round with a folder's secret, and its partition's sidecars. The round knows keys by
    that secret.

    Args:
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


# Rounds that are refused: before their lag, of records without keys, of negative timestamps.
#
# Kafka's cleaner makes the first two. It gives a log up where a batch with a timestamp below -1
# loses other records, for it cannot write such a batch anew. Only a round tells; so one is made
# without output where the first batch of a segment shows such a timestamp, and nowhere else.


def refuse_before_lag(
    store: LogStore,
    state: PartitionState,
    cleanable: CleanableRange,
    config: LogConfig,
    *,
    now_ms: int,
) -> None:
    """Refuse segments that are old enough only by an age that their records contradict. Records
    younger than ``min.compaction.lag.ms`` stay, whatever a time index says of them."""
    if config.min_compaction_lag_ms > 0:
        first, end = cleanable.first_dirty_offset, cleanable.first_uncleanable_offset
        check_segment_ages(
            store,
            {file.name for file in store.list_files()},
            [each for each in state.segments if first <= each.base_offset < end],
            limit_ms=now_ms - config.min_compaction_lag_ms + 1,
        )


def refuse_keyless(location: str, *, keyless: int, records: int) -> None:
    """Refuse a round that would drop most records for lacking a key.

    Kafka drops records without a key. A log that was written under the policy delete consists of
    them.

    Args:
        keyless: Records without a key that the round drops.
    """
    if 2 * keyless > records:
        raise KeylessRecordsError(location, keyless, records)


def refuse_negative_timestamps(store: LogStore, plan: CompactionPlan) -> None:
    """Refuse a round with a negative timestamp, if cheaply visible. The round would end at it."""
    sources = plan.segments_below(plan.first_uncleanable_offset)
    if plan.keeps_negative_timestamps or not _begin_negative(store, sources):
        return
    try:
        index = index_round(store, plan)
        groups = group_segments(plan, index.end_offset)
        with closing(measure_groups(store, plan, index, groups, TransactionTracker())) as measured:
            for _ in measured:
                pass
    except NegativeTimestampError:
        raise
    except BadBytesError:
        return  # the round itself tells of it


def _begin_negative(store: LogStore, segments: Iterable[SegmentState]) -> bool:
    """Whether the header of a segment's first batch shows a negative timestamp."""
    tables = first_headers(store, [segment.log_file for segment in segments])
    return any(table.has_negative_timestamp.any() for table in tables)


HASH_KEY_BYTES = 16
# Names the scratch files of a round in process.
IN_PROCESS = "in-process"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """What a round did."""

    next_offset: int | None = None  # where the next round begins, None where nothing was cleaned
    messages_read: int = 0  # records looked at while cleaning
    messages_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    map_messages_read: int = 0  # records read while the offset map was built
    invalid_messages_read: int = 0  # records without a key that were dropped
    segments: int
    size: int
    # What the partition's entry in the cleaner checkpoint should be now, None for no entry.
    cleaner_checkpoint: int | None
    nothing_to_clean: bool = False


@located
def clean_and_load(
    directory: Path,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    request: CleanRequest,
    threads: int | None = None,
    believes_ages: bool = False,
    drops_keyless: bool = False,
) -> tuple[CleanResult, LoadedLog]:
    """Load a closed partition, clean it once, and close it again. It was closed cleanly.

    Args:
        directory: The partition directory; scratch files lie in it while the round runs.
        threads: How many threads to use, None for as many as there are processors. What comes of it
            is the same.
        believes_ages: Whether segments are old enough by an age that their records contradict.
        drops_keyless: Whether a round may drop most of its records for they have no key.

    Returns:
        (result, log): what the round did, and the log from before it.
    """
    store = LocalStore(directory, is_ours=True)
    log = _load(store, config, cleaner, request)
    state = PartitionState.of_log(log)
    cleanable = choose_range(state, config, request)
    if not cleanable.is_due:
        commit(log.plan, store)
        checkpoint = request.checkpoints.cleaner_offset
        if checkpoint is not None and cleanable.checkpoint_is_invalid:
            checkpoint = cleanable.first_dirty_offset
        nothing = CleanResult(
            segments=len(log.segments),
            size=log.size_bytes,
            cleaner_checkpoint=checkpoint,
            nothing_to_clean=True,
        )
        return nothing, log
    if not believes_ages:
        refuse_before_lag(store, state, cleanable, config, now_ms=request.now_ms)
    plan = plan_compaction(
        log,
        config,
        cleaner,
        cleanable,
        now_ms=request.now_ms,
        hash_key=secrets.token_bytes(HASH_KEY_BYTES),
    )
    # Never the names of a killed round: the load operations sweep its scratch files away.
    attempt = f"{IN_PROCESS}-{secrets.token_hex(8)}"
    try:
        with Unsynced() as unsynced:
            cleaned = run_passes(
                store,
                plan,
                sidecar_folder=cleaner.key_sidecars,
                scratch=lambda: nullcontext(directory),
                attempt=attempt,
                keep=lambda group: group,
                throttler=Throttler(cleaner.io_max_bytes_per_second),
                threads=count_processors() if threads is None else threads,
                make_durable=unsynced.add,
            )
            with storage_errors(directory):
                unsynced.sync()
        if not drops_keyless:
            stats = cleaned.stats
            refuse_keyless(
                store.location, keyless=stats.invalid_messages_read, records=stats.messages_read
            )
        verify_inputs(store, plan)
        operations = plan_commit(log, plan, cleaned.groups)
    except BaseException as error:
        for file in directory.glob(f"{SCRATCH_PREFIX}{attempt}-*"):
            file.unlink(missing_ok=True)
        if isinstance(error, OffsetOverflowError):
            _split(store, log, plan, error.file)
        raise
    commit(operations, store)
    cleaned.publish_sidecars(store, plan)
    return _done(log, cleaned, request), log


def load_for_round(
    store: LogStore, config: LogConfig, cleaner: CleanerConfig, request: CleanRequest
) -> LoadedLog:
    """Load the log for a round, with the request's clock and checkpoints."""
    return load_log(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_checkpoint=request.checkpoints.log_start_offset or 0,
        high_watermark=request.checkpoints.high_watermark,
        # A round asks for the age of records where these have to be of an age.
        needs_max_timestamps=config.min_compaction_lag_ms > 0,
    )


def _split(store: LocalStore, log: LoadedLog, plan: CompactionPlan, file: str) -> None:
    """Split a segment as Kafka's cleaner does; postpone the round.

    One that is damaged, not long, is left as it is: what the round complained about says so.
    """
    try:
        split = find_split(store, plan, file)
    except BadBytesError:
        return
    # These rename and delete, but change no byte of a segment: loading it had nothing to repair.
    commit(log.plan, store)
    commit(plan_found_split(store, split), store)


def _load(
    store: LocalStore, config: LogConfig, cleaner: CleanerConfig, request: CleanRequest
) -> LoadedLog:
    """Load a log as a broker does, after its repairs. What loading would repair is repaired
    first."""
    checkpoint = request.checkpoints.log_start_offset or 0
    log = plan_recovery(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_offset=checkpoint,
        clean_shutdown=True,
        high_watermark=request.checkpoints.high_watermark,
    )
    if log.repairs == LogRepairs():
        return log
    commit(log.plan, store)
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


def _done(log: LoadedLog, cleaned: CleanedPartition, request: CleanRequest) -> CleanResult:
    stats = cleaned.stats
    sources = {base for group in cleaned.groups for base in group.base_offsets}
    untouched = [s for s in log.segments if s.base_offset not in sources]
    return CleanResult(
        next_offset=cleaned.end_offset,
        messages_read=stats.messages_read,
        messages_written=stats.messages_written,
        bytes_read=stats.bytes_read,
        bytes_written=stats.bytes_written,
        map_messages_read=cleaned.index.messages_read,
        invalid_messages_read=stats.invalid_messages_read,
        segments=len(untouched) + len(cleaned.groups),
        size=sum(s.size_bytes for s in untouched) + stats.bytes_written,
        # A range of the caller's own choice says nothing of what lies before it.
        cleaner_checkpoint=(
            cleaned.end_offset
            if request.first_dirty_offset is None
            else request.checkpoints.cleaner_offset
        ),
    )


# Numbers of a round and of a run, under Kafka's names. A round has those of ``CleanerStats``, a
# run those of the cleaner's gauges.


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerStats:
    """What one round on one partition read and wrote."""

    map_bytes_read: int
    map_messages_read: int  # records of those, markers included
    bytes_read: int  # bytes of batches read while cleaning
    bytes_written: int
    messages_read: int  # records looked at while cleaning; those of batches dropped whole are not
    messages_written: int
    invalid_messages_read: int  # records without a key that were dropped
    keys: int  # distinct keys of the dirty section
    # Share of the offset map's slots that were used; None without a limit.
    buffer_utilization: float | None
    elapsed_secs: float  # time that tasks spent on both passes, summed
    elapsed_index_secs: float | None  # on the first of them; None where they were not told apart

    @classmethod
    def of(
        cls,
        index: IndexStats,
        rewrite: RewriteStats,
        *,
        slots: int | None,
        elapsed_secs: float,
        elapsed_index_secs: float | None = None,
    ) -> "CleanerStats":
        """Put the numbers of both passes together.

        Args:
            rewrite: Of pass two.
            slots: Slots of a map of the configured size, None without a size.
            elapsed_secs: Time spent on both.
            elapsed_index_secs: Time spent on pass one, None where that is not known.
        """
        return cls(
            map_bytes_read=index.bytes_read,
            map_messages_read=index.messages_read,
            keys=index.keys,
            buffer_utilization=None if slots is None else index.keys / slots,
            elapsed_secs=elapsed_secs,
            elapsed_index_secs=elapsed_index_secs,
            bytes_read=rewrite.bytes_read,
            bytes_written=rewrite.bytes_written,
            messages_read=rewrite.messages_read,
            messages_written=rewrite.messages_written,
            invalid_messages_read=rewrite.invalid_messages_read,
        )

    @property
    def size_reduction(self) -> float:
        """Share of the bytes read that went; 0.0 where none were read."""
        return 1 - self.bytes_written / self.bytes_read if self.bytes_read else 0.0

    @property
    def message_reduction(self) -> float:
        """Share of the records read that went; 0.0 where none were read."""
        return 1 - self.messages_written / self.messages_read if self.messages_read else 0.0

    def to_json(self) -> str:
        """Return the numbers as one JSON object."""
        fields: dict[str, Any] = field_values(self) | {
            "size_reduction_percent": round(100 * self.size_reduction, 1),
            "message_reduction_percent": round(100 * self.message_reduction, 1),
        }
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> "CleanerStats":
        """Return the numbers that to_json wrote."""
        fields = json.loads(text)
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerTotals:
    """The totals of Kafka's cleaner over all its logs. Percentages are cut to whole ones, as
    there."""

    max_dirty_percent: int  # of the partition that was dirtiest among those due
    cleaner_recopy_percent: int  # bytes written for 100 bytes read
    max_buffer_utilization_percent: int  # of the fullest offset map; 0 without a limit of keys
    max_clean_time_secs: int  # of the partition that took longest
    max_compaction_delay_secs: int  # by which max.compaction.lag.ms was exceeded, at most
    cleanable_partitions: int
    delayed_partitions: int  # how many of them were past max.compaction.lag.ms
    uncleanable_partitions_count: int  # how many could not be cleaned because of an error
    uncleanable_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedLog:
    """What the totals need of one partition that was due."""

    cleanable_ratio: float  # its share of dirty bytes
    cleanable_bytes: int
    compaction_delay_ms: int  # by which max.compaction.lag.ms was exceeded, 0 if it was not
    has_failed: bool  # whether an error kept it from being cleaned
    stats: CleanerStats | None  # of its round; None if it was not cleaned


def total_of(logs: Iterable[CleanedLog]) -> CleanerTotals:
    """Return the totals of a run."""
    listed = list(logs)
    stats = [log.stats for log in listed if log.stats is not None]
    read, written = sum(s.bytes_read for s in stats), sum(s.bytes_written for s in stats)
    failed = [log for log in listed if log.has_failed]
    fills = [s.buffer_utilization or 0.0 for s in stats]
    delays = [log.compaction_delay_ms for log in listed]
    return CleanerTotals(
        max_dirty_percent=int(100 * max((log.cleanable_ratio for log in listed), default=0.0)),
        # As Kafka, which divides by at least one.
        cleaner_recopy_percent=int(100 * written / max(read, 1)),
        max_buffer_utilization_percent=int(100 * max(fills, default=0.0)),
        max_clean_time_secs=int(max((s.elapsed_secs for s in stats), default=0.0)),
        max_compaction_delay_secs=int(max(delays, default=0) / 1000),
        cleanable_partitions=len(listed),
        delayed_partitions=sum(delay > 0 for delay in delays),
        uncleanable_partitions_count=len(failed),
        uncleanable_bytes=sum(log.cleanable_bytes for log in failed),
    )
