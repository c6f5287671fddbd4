"""The leader epoch file against the batches: for every offset it has to name the batch's epoch."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from storage_core.checkpoint.checkpoint_files import (
    MAX_LEADER_EPOCH_BYTES,
    EpochEntry,
    parse_leader_epochs,
)
from storage_core.errors import CheckpointError, StorageError
from storage_core.filenames import LEADER_EPOCH_FILE
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.findings import Code
from storage_core.maintenance.verification.segment_facts import EpochRun
from storage_core.store.base import LogStore


def check_epochs(
    store: LogStore,
    runs: Sequence[EpochRun],
    *,
    has_file: bool,
    log_start_offset: int,
    findings: FindingCollector,
) -> None:
    """Report errors in the epochs of a log and in its epoch file.

    Args:
        store: The partition directory.
        runs: Of all segments, in order; a run may go on in the next segment.
        has_file: Whether there is an epoch file.
        log_start_offset: Below it the file says nothing.
        findings: Where to report.
    """
    if not has_file:
        if runs:
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
        _check_order(entries, findings)
        _compare(cache.entries, runs, log_start_offset, findings)


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


def _compare(
    entries: Sequence[EpochEntry],
    runs: Sequence[EpochRun],
    log_start_offset: int,
    findings: FindingCollector,
) -> None:
    starts = [entry.start_offset for entry in entries]
    highest = -1
    for run in runs:
        # What an earlier leader wrote after a later one is a finding of its own.
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
