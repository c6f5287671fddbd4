"""One round of compaction on one partition directory, in process."""

import secrets
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from storage_core.commit import commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import BadBytesError, OffsetOverflowError, located
from storage_core.filenames import SCRATCH_PREFIX
from storage_core.log.loaded_log import LoadedLog, LogRepairs
from storage_core.log.log_loader import load_log
from storage_core.maintenance.compaction.candidates import (
    CleanRequest,
    choose_range,
)
from storage_core.maintenance.compaction.commit import (
    find_split,
    plan_commit,
    plan_found_split,
    verify_inputs,
)
from storage_core.maintenance.compaction.guards import refuse_before_lag, refuse_keyless
from storage_core.maintenance.compaction.passes import CleanedPartition, run_passes
from storage_core.maintenance.compaction.plan import CompactionPlan, plan_compaction
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.throttler import Throttler
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from storage_core.threads import count_processors

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
        checkpoint = request.cleaner_checkpoint
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
        cleaned = run_passes(
            store,
            plan,
            sidecar_folder=cleaner.key_sidecars,
            scratch=lambda: nullcontext(directory),
            attempt=attempt,
            keep=lambda group: group,
            throttler=Throttler(cleaner.io_max_bytes_per_second),
            threads=count_processors() if threads is None else threads,
        )
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
        log_start_checkpoint=request.log_start_offset or 0,
        high_watermark=request.high_watermark,
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
            cleaned.end_offset if request.first_dirty_offset is None else request.cleaner_checkpoint
        ),
    )
