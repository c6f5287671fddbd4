"""Verify files beside a log, derived from it: epochs, producer snapshots.

For every offset the epoch file has to name the batch's epoch. A snapshot can be read, belongs to a
segment, and agrees with the log.
"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise

from storage_core.checkpoint.checkpoints import (
    MAX_LEADER_EPOCH_BYTES,
    EpochEntry,
    parse_leader_epochs,
)
from storage_core.errors import BadBytesError, CheckpointError, CorruptSnapshotError, StorageError
from storage_core.filenames import LEADER_EPOCH_FILE, log_file, snapshot_file
from storage_core.log.leader_epoch_cache import EpochRun, LeaderEpochCache, are_runs_believed
from storage_core.log.producer_snapshot import (
    MAX_SNAPSHOT_BYTES,
    ProducerEntry,
    parse_producer_snapshot,
)
from storage_core.log.producer_state import ProducerState, events_of_windows
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.files import PartitionFiles, SegmentFiles
from storage_core.maintenance.verification.findings import Code, VerifyOptions
from storage_core.records.reader import scan_headers
from storage_core.store.base import LogStore
from storage_core.wording import count_text


def check_epochs(
    store: LogStore,
    runs: Sequence[EpochRun],
    *,
    has_file: bool,
    log_start_offset: int,
    findings: FindingCollector,
    is_tiered: bool = False,
) -> None:
    """Report errors in a log's epochs and in its epoch file.

    Args:
        runs: Runs of all segments, in order; a run may go on in the next segment.
        log_start_offset: Below it the file says nothing.
        is_tiered: Whether ``check_tier`` reports that the file is not there.
    """
    if not has_file:
        _check_belief(runs, (), log_start_offset, findings)
        if runs and not is_tiered:
            findings.add(
                Code.EPOCH_FILE_MISSING,
                f"the batches have leader epochs, from {runs[0].epoch} on",
                file=LEADER_EPOCH_FILE,
            )
        return
    try:
        content = store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
        entries = parse_leader_epochs(content, file=LEADER_EPOCH_FILE)
        cache = LeaderEpochCache(entries)
    except StorageError as error:
        findings.add(Code.FILE_UNREADABLE, error.reason, file=LEADER_EPOCH_FILE)
    except CheckpointError as error:
        findings.add(Code.EPOCH_FILE_BROKEN, str(error), file=LEADER_EPOCH_FILE)
    except ValueError as error:
        findings.add(Code.EPOCH_FILE_BROKEN, f"negative number: {error}", file=LEADER_EPOCH_FILE)
    else:
        judge_epochs(entries, cache, runs, log_start_offset, findings)


def judge_epochs(
    entries: Sequence[EpochEntry],
    cache: LeaderEpochCache,
    runs: Sequence[EpochRun],
    log_start_offset: int,
    findings: FindingCollector,
) -> None:
    """Report errors in a log's epochs and in what its epoch file says.

    Args:
        entries: As they stand in the file.
        cache: What a broker makes of them.
    """
    _check_order(entries, findings)
    believed = _check_belief(runs, cache.entries, log_start_offset, findings)
    _compare_epochs(cache.entries, believed, log_start_offset, findings)


def _check_belief(
    runs: Sequence[EpochRun],
    entries: Sequence[EpochEntry],
    log_start_offset: int,
    findings: FindingCollector,
) -> list[EpochRun]:
    """Report epochs that are not believed; return the other runs. The file is not wrong where it
    does not have such an epoch."""
    believed = are_runs_believed(runs, [entries]).tolist()
    for run, is_so in zip(runs, believed, strict=True):
        if not is_so and run.last_offset >= log_start_offset:
            cache = LeaderEpochCache(entries)
            epoch = cache.epoch_for_offset(run.first_offset)
            findings.add(
                Code.EPOCH_DOUBTFUL,
                f"{count_text(run.batches, 'batch', 'batches')} with leader epoch {run.epoch}; "
                f"the epoch file says {'nothing' if epoch is None else epoch}",
                file=run.file,
                position=run.position if run.file else None,
                offset=run.first_offset,
            )
    return [run for run, is_so in zip(runs, believed, strict=True) if is_so]


def check_tier(
    store: LogStore,
    *,
    has_file: bool,
    tier_start_offset: int | None,
    findings: FindingCollector,
) -> None:
    """Report an epoch file without the epochs of remote segments.

    Args:
        store: The partition directory of a log with records, local or remote ones.
        tier_start_offset: First offset of the log; None where no checkpoint says it.
    """
    try:
        content = store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
        entries = parse_leader_epochs(content, file=LEADER_EPOCH_FILE)
    except (CheckpointError, StorageError):
        if has_file:
            return  # another finding reports it
        entries = []
    begins = entries[0].start_offset if entries else None
    if begins is not None and (tier_start_offset is None or begins <= tier_start_offset):
        return
    where = "the file has none" if begins is None else f"the file begins at offset {begins}"
    findings.add(
        Code.TIERED_EPOCHS_MISSING,
        f"expected the epochs from offset {tier_start_offset or 0} on, {where}",
        file=LEADER_EPOCH_FILE,
        offset=tier_start_offset,
    )


def _check_order(entries: Sequence[EpochEntry], findings: FindingCollector) -> None:
    for before, after in pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
            findings.add(
                Code.EPOCH_FILE_NOT_RISING,
                f"epoch {after.epoch} from offset {after.start_offset} follows epoch "
                f"{before.epoch} from offset {before.start_offset}",
                file=LEADER_EPOCH_FILE,
                offset=after.start_offset,
            )


def _compare_epochs(
    entries: Sequence[EpochEntry],
    runs: Sequence[EpochRun],
    log_start_offset: int,
    findings: FindingCollector,
) -> None:
    starts = [entry.start_offset for entry in entries]
    highest = -1
    first = entries[0] if entries else None
    if first is not None and _is_cut_at_start(first, runs, log_start_offset):
        lowest = max(runs[0].first_offset, log_start_offset)
        findings.add(
            Code.EPOCH_FILE_SHORT,
            f"the log begins at offset {lowest}, the file at {first.start_offset}",
            file=LEADER_EPOCH_FILE,
            offset=lowest,
        )
        log_start_offset = first.start_offset
    for run in runs:
        # Another finding reports an earlier leader's batch after a later one's.
        if run.epoch < highest:
            continue
        highest = run.epoch
        if run.last_offset < log_start_offset:
            continue
        for offset in (max(run.first_offset, log_start_offset), run.last_offset):
            at = bisect_right(starts, offset) - 1
            file_epoch = entries[at].epoch if at >= 0 else None
            if file_epoch != run.epoch:
                findings.add(
                    Code.EPOCH_FILE_WRONG,
                    f"the batch at offset {offset} has leader epoch {run.epoch}, the file says "
                    f"{'nothing' if file_epoch is None else file_epoch}",
                    file=LEADER_EPOCH_FILE,
                    offset=offset,
                )
                break


def _is_cut_at_start(first: EpochEntry, runs: Sequence[EpochRun], log_start_offset: int) -> bool:
    """Whether a file was cut at a log start without checkpoint. Its first entry then begins
    inside of the log, with the epoch of the batch there."""
    if not runs or first.start_offset <= max(runs[0].first_offset, log_start_offset):
        return False
    at = next((run for run in runs if run.last_offset >= first.start_offset), None)
    return at is not None and at.first_offset <= first.start_offset and at.epoch == first.epoch


def check_snapshots(
    store: LogStore, files: PartitionFiles, *, log_end_offset: int, findings: FindingCollector
) -> None:
    """Report unreadable snapshots and those due for deletion at the next start."""
    bases = {segment.base_offset for segment in files.segments}
    strays = [offset for offset in files.snapshots if offset not in bases]
    newest = strays[-1] if strays else None
    for offset in files.snapshots:
        name = snapshot_file(offset)
        if name not in files.names:
            continue  # another finding reports that its name is not padded
        try:
            _read_snapshot(store, offset)
        except StorageError as error:
            findings.add(Code.FILE_UNREADABLE, error.reason, file=name)
        except CorruptSnapshotError as error:
            findings.add(Code.SNAPSHOT_CORRUPT, error.reason, file=name, position=error.position)
        if offset > log_end_offset:
            message = f"the log ends at offset {log_end_offset}"
            findings.add(Code.SNAPSHOT_STRAY, message, file=name, offset=offset)
        elif offset not in bases and (offset != newest or offset < max(bases, default=0)):
            message = "no segment begins here, and there are newer ones"
            findings.add(Code.SNAPSHOT_STRAY, message, file=name, offset=offset)


def check_by_replay(
    store: LogStore,
    files: PartitionFiles,
    segment: SegmentFiles,
    options: VerifyOptions,
    findings: FindingCollector,
    *,
    end_offset: int,
) -> None:
    """Replay a segment from its base's snapshot; compare with its end's.

    Only producers with batches in this segment are compared: others may have expired. Without both
    snapshots nothing is compared.

    Args:
        end_offset: Just past its last batch: of the last segment, a close writes a snapshot there,
            and that is the one which a broker starts with.
    """
    offset = end_offset if segment.is_last else segment.next_base_offset
    if offset is None or offset == segment.base_offset or offset not in files.snapshots:
        return
    is_first = segment.base_offset == 0
    if not is_first and segment.base_offset not in files.snapshots:
        return
    try:
        state = ProducerState()
        before = [] if is_first else _read_snapshot(store, segment.base_offset)
        state.load(before, now_ms=0, expiration_ms=1)
        after = {entry.producer_id: entry for entry in _read_snapshot(store, offset)}
        with closing(store.open_file(log_file(segment.base_offset))) as reader:
            windows = scan_headers(reader, window_bytes=options.window_bytes)
            state.replay(reader.name, events_of_windows(windows))
    except BadBytesError:
        return  # damage of a segment or snapshot is reported elsewhere
    loaded = {entry.producer_id: entry for entry in before}
    for producer_id, entry in state.producers.items():
        if producer_id in after and entry != loaded.get(producer_id):
            _compare_snapshot(snapshot_file(offset), after[producer_id], entry, findings)


def _compare_snapshot(
    name: str, snapshot: ProducerEntry, replayed: ProducerEntry, findings: FindingCollector
) -> None:
    """Report a snapshot at odds with the log, or incomplete.

    A snapshot may know more than the log: compaction removes batches, and the records of markers,
    from which a producer without a batch has its epoch.
    """
    wrong = (
        [f"last offset {snapshot.last_offset}"]
        if snapshot.last_offset < replayed.last_offset
        else []
    )
    if snapshot.last_offset == replayed.last_offset:
        may_know_more = replayed.last_offset < 0
        wrong += [
            f"{field.replace('_', ' ')} {value}"
            for field in ("producer_epoch", "last_sequence")
            if (value := getattr(snapshot, field)) != (expected := getattr(replayed, field))
            and not (may_know_more and value > expected)
        ]
    first = replayed.current_txn_first_offset
    if first >= 0 and not 0 <= snapshot.current_txn_first_offset <= first:
        wrong.append(f"first offset of the open transaction {snapshot.current_txn_first_offset}")
    if wrong:
        findings.add(
            Code.SNAPSHOT_WRONG,
            f"producer {snapshot.producer_id}: found {', '.join(wrong)}; the log says: last offset "
            f"{replayed.last_offset}, epoch {replayed.producer_epoch}, last sequence "
            f"{replayed.last_sequence}, open transaction from {first}",
            file=name,
            offset=replayed.last_offset,
        )


def _read_snapshot(store: LogStore, offset: int) -> list[ProducerEntry]:
    name = snapshot_file(offset)
    return parse_producer_snapshot(name, store.read_file(name, limit_bytes=MAX_SNAPSHOT_BYTES))
