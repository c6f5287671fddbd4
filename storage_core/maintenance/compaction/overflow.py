"""A source segment whose offsets do not fit it, met while cleaning: it is split, as Kafka does.

The round is given up then, and the partition is cleaned by another one, over the new segments.
"""

from contextlib import closing

from storage_core.commit import DeleteFile, Operation, Plan
from storage_core.errors import CorruptRecordError
from storage_core.filenames import SCRATCH_PREFIX, snapshot_file
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leftovers import settle_leftovers
from storage_core.log.segment_split import SegmentSplit, find_parts, plan_parts
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.store.base import LogStore


def find_split(store: LogStore, plan: CompactionPlan, file: str) -> SegmentSplit:
    """Read a segment once for the parts whose offsets fit; nothing is planned.

    Args:
        store: The partition directory.
        plan: The round that met the segment.
        file: Its .log file, by the name that the plan has it under.

    Raises:
        CorruptRecordError: It cannot be split: a batch alone does not fit, or is not whole; or its
            offsets do not lie between it and the next segment, so that it is damaged, not long.
        PylogError: As ``find_parts``.
        StorageError: The file cannot be read.
    """
    bases = [segment.base_offset for segment in plan.segments if segment.log_file == file]
    if not bases:
        raise CorruptRecordError(file, 0, "no segment of the round has this name")
    (base_offset,) = bases
    with closing(store.open_file(file)) as reader:
        split = find_parts(
            reader,
            base_offset,
            index_interval_bytes=plan.index_interval_bytes,
            max_index_bytes=plan.segment_index_bytes,
            limits=plan.limits,
        )
    later = (s.base_offset for s in plan.segments if s.base_offset > base_offset)
    end = min(later, default=None)
    lowest, highest = split.lowest_offset, split.highest_offset
    if lowest < base_offset or (end is not None and highest >= end):
        found = f"found {lowest} to {highest}"
        raise CorruptRecordError(file, 0, f"expected offsets from {base_offset} to {end}, {found}")
    return split


def plan_found_split(store: LogStore, split: SegmentSplit) -> Plan:
    """Plan to replace a segment by its parts.

    What a crash inside of another swap left is settled first: a ``.swap`` may be the segment that
    was read, and next to a ``.cleaned`` file a loader would drop the parts of a stopped split.
    Scratch files stay: a run may still need its own.

    Args:
        store: The partition directory.
        split: The parts; the bytes of the segment are still those that were read.

    Raises:
        InvalidNameError: An unfinished file belongs to no segment.
        StorageError: The directory cannot be listed.
    """
    view = DirectoryView(store)
    settle_leftovers(view)
    plan_parts(view, split)
    operations = [step for step in view.operations if not _is_of_scratch(step)]
    snapshot = snapshot_file(split.base_offset)
    if split.base_offset not in split.base_offsets and snapshot in view:
        reason = f"no segment begins at {split.base_offset} any more"
        operations.append(DeleteFile(name=snapshot, reason=reason))
    return Plan(location=store.location, operations=tuple(operations))


def plan_split(store: LogStore, plan: CompactionPlan, file: str) -> Plan:
    """Plan to replace a segment by parts whose offsets fit.

    Args:
        store: The partition directory.
        plan: The round that met the segment.
        file: Its .log file.

    Raises:
        PylogError: As `find_split`.
        StorageError: A file cannot be read.
    """
    return plan_found_split(store, find_split(store, plan, file))


def _is_of_scratch(step: Operation) -> bool:
    return isinstance(step, DeleteFile) and step.name.startswith(SCRATCH_PREFIX)
