"""A source segment whose offsets do not fit it, met while cleaning: it is split, as Kafka does.

The round is given up then, and the partition is cleaned by another one, over the new segments.
"""

from contextlib import closing

from storage_core.errors import CorruptRecordError
from storage_core.filenames import LOG_SUFFIX, kind_of, log_file, offset_of, snapshot_file
from storage_core.log.directory_view import DirectoryView
from storage_core.log.segment_split import split_segment
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.plan.operations import DeleteFile
from storage_core.plan.plan import Plan
from storage_core.records.reader import CrcCheck, Tail, scan_windows
from storage_core.store.base import LogStore


def plan_split(store: LogStore, plan: CompactionPlan, file: str) -> Plan:
    """Plan to replace a segment by parts whose offsets fit.

    Args:
        store: The partition directory.
        plan: The round that met the segment.
        file: Its .log file.

    Raises:
        CorruptRecordError: It cannot be split: a batch alone does not fit, or is not whole; or its
            offsets do not lie between it and the next segment, so that it is damaged, not long.
        StorageError: A file cannot be read.
    """
    segments = [segment for segment in plan.segments if segment.log_file == file]
    if not segments:
        raise CorruptRecordError(file, 0, "no segment of the round has this name")
    base_offset = segments[0].base_offset
    view = DirectoryView(store)
    bases = (offset_of(name) for name in view.names if kind_of(name) == LOG_SUFFIX)
    end = min((base for base in bases if base is not None and base > base_offset), default=None)
    parts = split_segment(
        view,
        base_offset,
        index_interval_bytes=plan.index_interval_bytes,
        max_index_bytes=plan.segment_index_bytes,
        limits=plan.limits,
    )
    lowest, highest = _offsets_of(store, file)
    if lowest < base_offset or (end is not None and highest >= end):
        found = f"found {lowest} to {highest}"
        raise CorruptRecordError(file, 0, f"expected offsets from {base_offset} to {end}, {found}")
    operations = list(view.operations)
    snapshot = snapshot_file(base_offset)
    if log_file(base_offset) not in map(log_file, parts) and snapshot in view:
        reason = f"no segment begins at {base_offset} any more"
        operations.append(DeleteFile(name=snapshot, reason=reason))
    return Plan(location=store.location, operations=tuple(operations))


def _offsets_of(store: LogStore, file: str) -> tuple[int, int]:
    """Return the lowest and the highest offset that a batch of a file begins or ends with.

    Both of each: a damaged batch may end before it begins.
    """
    lowest, highest = [], []
    with closing(store.open_file(file)) as reader:
        for window in scan_windows(reader, crc=CrcCheck.SKIP, tail=Tail.STOP):
            batches = window.batches
            lowest.append(min(int(batches.base_offset.min()), int(batches.last_offset.min())))
            highest.append(max(int(batches.base_offset.max()), int(batches.last_offset.max())))
    return min(lowest), max(highest)
