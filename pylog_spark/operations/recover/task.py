"""Recover partitions: look at them, scan segments, repair each log.

A segment's scan does not depend on the segments before it, so scans run side by side on all
executors, also those of one partition. What depends on order (producers, epochs, which segment the
log ends in) is a fold over the scans of one partition, in one task, which then commits.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from pylog_spark.house import require_addition
from pylog_spark.outcomes import Action, Reason, Status
from pylog_spark.rows import Binary, Int32, Number, Text, Truth, column, rows_to_batches
from pylog_spark.schemas import RECOVERY_WORK, Failure
from pylog_spark.tasks.ahead import (
    BYTES_AT_ONCE,
    Room,
    map_in_turns,
    map_partitions,
)
from pylog_spark.tasks.listing import (
    REASON_OF_OTHER_KIND,
    left_alone,
    open_partition,
    reason_to_leave,
    rows_of,
)
from pylog_spark.tasks.message import (
    TaskMessage,
    attempt,
    attempt_directory,
    digest_operations,
    fill,
)
from pylog_spark.tasks.run_context import PartitionRef, RunContext, WriteContext
from storage_core.catalog.off_switch import is_switched_off
from storage_core.checkpoint.checkpoints import RECOVERY_FILES, Checkpoints, PartitionCheckpoints
from storage_core.commit import CommitPlan, Operation
from storage_core.commit.scratch import keep_scratch
from storage_core.errors import CheckpointError
from storage_core.filenames import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SCRATCH_PREFIX,
    TopicPartition,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.json_values import to_json
from storage_core.log.leader_epoch_cache import LeaderEpochCache, find_last_epoch, read_epoch_runs
from storage_core.log.loaded_log import FollowerEnd, LoadedLog, segments_from
from storage_core.log.loading_log import read_epochs
from storage_core.log.log_loader import find_former_end
from storage_core.log.segment_scan import SegmentScan, scan_segment
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.recovery.salvage import count_lost_records, salvage_cuts
from storage_core.roots.open_root import root_checkpoints
from storage_core.roots.partition_facts import has_expected_topic_id, partition_checkpoints
from storage_core.roots.root import TOUCHED, Prepared
from storage_core.store import LocalStore, LogStore, open_store
from storage_core.wording import count_text


class HealedStore(Protocol):
    """A partition that is about to get segments of other replicas' bytes."""

    @property
    def store(self) -> LogStore:
        """The partition as it will be; the segments have no indexes there yet."""

    def plan(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        """Return the operations of the swap, then those of a load of ``store``."""

    def write(self, operations: Sequence[Operation], scratch: Path) -> tuple[Operation, ...]:
        """Write the segments to scratch files; return the final operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryWork:
    """A partition to be recovered, as the first look left it."""

    ref: PartitionRef
    is_clean: bool  # whether its log directory has the clean-shutdown marker, and that is believed
    checkpoints: PartitionCheckpoints  # its entries; no recovery point where that is not believed
    # Where it is cut to follow a leader, once it is recovered; none for a recovery.
    truncations: tuple[int, ...] = ()
    committed_records: int = 0
    stays_eligible: bool = False  # whether its broker may stay in ISR and ELR after them
    healing: str | None = None  # what heals it before it is recovered, as JSON; None for a recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedSegment(TaskMessage):
    """A scan of one segment, for the task that recovers its partition."""

    unit: Int32 = column("number of the task that recovers the partition")
    base_offset: int = column("of the segment")
    scan: Binary = column("what was found in it, null with an error")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog(TaskMessage):
    """What recovery made, or would make, of one partition."""

    status: Text = column("planned, done, skipped or failed")
    reason: Text = column("stable code that says why it was refused")
    log_start_offset: Number = column("first offset of the log")
    log_end_offset: Number = column("next offset of the log")
    first_base_offset: Number = column("base offset of the first segment")
    bytes_after: Number = column("bytes of all .log files")
    segments_after: Number = column("segments of the partition")
    rebuilt_segments: Number = column("segments whose indexes were built anew")
    cuts: Text = column("what is lost, as JSON: file, position, bytes, records, reason")
    salvage: Text = column("where the cuts were set aside, as JSON; null if nowhere")
    is_repaired: Truth = column("whether anything is cut, split or built anew")
    doubtful_epoch: Text = column("epoch in the new epoch file that is not believed, null if none")
    next_offset: Number = column("entry of the cleaner checkpoint afterwards, null if it stays")
    steps: Number = column("operations on files")
    operations: Text = column("the operations, as JSON")
    touched: bool = column("whether files may have been changed before the error")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryContext:
    """The values that the tasks of a recovery share."""

    run: RunContext
    write: WriteContext | None  # what is needed to write; None where nothing is written
    threads: int = 1  # how many threads one task may use


def observe_recovery(
    batches: Iterator[pa.RecordBatch], context: RunContext
) -> Iterator[pa.RecordBatch]:
    """Turn rows of ``schemas.PARTITION`` into rows of ``schemas.RECOVERY_WORK``; only listings."""
    checkpoints_of = cache(partial(root_checkpoints, files=RECOVERY_FILES, strict=False))
    observed = map_partitions(
        lambda row: attempt_directory(row, partial(_look, row, context, checkpoints_of)),
        rows_of(batches),
    )
    yield from rows_to_batches(RECOVERY_WORK, observed)


def _look(
    row: Mapping[str, Any],
    context: RunContext,
    checkpoints_of: Callable[[str], Checkpoints],
) -> dict[str, Any]:
    reason = reason_to_leave(row, REASON_OF_OTHER_KIND)
    if reason is None and is_switched_off(row["directory"]):
        reason = Reason.SWITCHED_OFF
    if reason is not None:
        return left_alone(row, reason)
    root = row["root"]
    partition = TopicPartition(row["topic"], row["partition"])
    store = open_partition(row)
    files = {file.name: file for file in store.list_files()}
    logs = {
        offset: file.size_bytes
        for name, file in files.items()
        if kind_of(name) == LOG_SUFFIX and (offset := offset_of(name)) is not None
    }
    listing = {"bytes": sum(logs.values()), "segments": len(logs)}
    catalog = context.catalogs[root]
    if catalog.metadata_problem:
        return listing | {"status": Status.SKIPPED, "reason": Reason.METADATA_UNKNOWN}
    config = catalog.config_for(partition.topic)
    if config is None and root in context.remote_roots:
        # A tiered log is loaded otherwise, and only its config says that it is one.
        return listing | {"status": Status.SKIPPED, "reason": Reason.CONFIG_UNKNOWN}
    if config is not None and config.remote_storage_enable:
        return listing | {"status": Status.SKIPPED, "reason": Reason.TIERED}
    if not has_expected_topic_id(store, catalog.topic_id(partition.topic)):
        return listing | {"status": Status.SKIPPED, "reason": Reason.INCONSISTENT_TOPIC_ID}
    checkpoints = partition_checkpoints(store, partition, partial(checkpoints_of, root))
    point = 0 if context.options.from_start else checkpoints.recovery_point or 0
    is_clean = root not in context.unclean_roots and not context.options.from_start
    scan_offsets = _segments_to_scan(sorted(logs), set(files), None if is_clean else point)
    return listing | {
        "status": Status.PLANNED,
        "is_clean": is_clean,
        "recovery_point": point,
        "log_start_offset": checkpoints.log_start_offset or 0,
        "high_watermark": checkpoints.high_watermark,
        "scan_offsets": scan_offsets,
        "scan_bytes": [logs[base] for base in scan_offsets],
        "truncations": [],
        "committed_records": 0,
        "stays_eligible": False,
    }


def _segments_to_scan(
    base_offsets: Sequence[int], names: set[str], recovery_point: int | None
) -> list[int]:
    """Return the segments for a loader's full scan, by their names.

    What it decides by more than names, as for a bad transaction index, is read when it comes to it.
    """
    missing = {
        base
        for base in base_offsets
        if log_file(base) in names and segment_file(base, OFFSET_INDEX_SUFFIX) not in names
    }
    if recovery_point is None:
        return sorted(missing)
    return sorted(missing.union(segments_from(base_offsets, recovery_point)))


def scan_segments(
    items: Iterable[tuple[RecoveryWork, int]], units: Mapping[int, int], context: RecoveryContext
) -> Iterator[ScannedSegment]:
    """Read segments from end to end."""
    for work, base_offset in items:
        ordinal = work.ref.ordinal
        head = ScannedSegment(ordinal=ordinal, unit=units[ordinal], base_offset=base_offset)
        yield attempt(head, partial(_scan, work, context), work.ref.name)


def _scan(work: RecoveryWork, context: RecoveryContext, head: ScannedSegment) -> ScannedSegment:
    write, place = context.write, work.ref.directory
    store = open_store(place) if write is None else write.roots[work.ref.root].open(place)
    scan = _kind_of(work)(store, work, context).scan(head.base_offset)
    return replace(head, scan=scan.to_bytes())


def fold_partitions(
    scans: Iterable[ScannedSegment], works: Mapping[int, RecoveryWork], context: RecoveryContext
) -> Iterator[RecoveredLog]:
    """Recover partitions from their segments' scans.

    Several wait for their disks at once, as many as there is room for what their scans hold.

    Where a segment could not be read the partition has failed; unless an attempt had begun with its
    commit, which is finished then: scans that are done again find what it left of the segments.

    Args:
        scans: Ordered by partition and segment; all of a partition are there.
        works: The partitions of the wave, by ordinal.
    """
    room = Room(BYTES_AT_ONCE)

    def by_partition() -> Iterator[tuple[RecoveryWork, list[ScannedSegment], ExitStack]]:
        for ordinal, some in groupby(scans, key=attrgetter("ordinal")):
            of_partition, held = list(some), ExitStack()
            # Before the next ones are joined: those of a big log are as much as a task may hold.
            held.enter_context(room.take(sum(len(each.scan or b"") for each in of_partition)))
            yield works[ordinal], of_partition, held

    def fold(item: tuple[RecoveryWork, list[ScannedSegment], ExitStack]) -> RecoveredLog:
        work, segments, held = item
        with held:
            failure = next((each.failure for each in segments if each.failure), Failure())
            intact = {
                each.base_offset: SegmentScan.from_bytes(each.scan)
                for each in segments
                if each.scan is not None and not failure
            }
            log = _recover(work, intact, context, failure)
            spent_ms = sum(each.duration_ms for each in segments)
            return replace(log, duration_ms=log.duration_ms + spent_ms)

    return map_in_turns(fold, by_partition())


def recover_whole(
    items: Iterable[tuple[RecoveryWork, int]], context: RecoveryContext
) -> Iterator[RecoveredLog]:
    """Recover partitions, small ones beside each other."""
    room = Room(BYTES_AT_ONCE)

    def recover(item: tuple[RecoveryWork, int]) -> RecoveredLog:
        work, size_bytes = item
        # Of small ones, others are read beside it.
        threads = context.threads if size_bytes >= BYTES_AT_ONCE else 1
        with room.take(size_bytes):
            return _recover(work, {}, replace(context, threads=threads))

    return map_in_turns(recover, items)


def _recover(
    work: RecoveryWork,
    scans: Mapping[int, SegmentScan],
    context: RecoveryContext,
    failure: Failure = Failure(),
) -> RecoveredLog:
    """Recover a partition after its scans, or after the failure of one."""
    step = _plan if context.write is None else _commit
    head = RecoveredLog(
        ordinal=work.ref.ordinal, status=Status.FAILED, touched=False, failure=failure
    )
    return attempt(head, partial(step, work, scans, context), work.ref.name)


def _plan(
    work: RecoveryWork,
    scans: Mapping[int, SegmentScan],
    context: RecoveryContext,
    head: RecoveredLog,
) -> RecoveredLog:
    if head.failure:
        return head
    recovery = _kind_of(work)(open_store(work.ref.directory), work, context)
    answer = recovery.describe(recovery.load(scans))
    is_refused = answer["reason"] is not None
    return fill(head, answer | {"status": Status.SKIPPED if is_refused else Status.PLANNED})


def _commit(
    work: RecoveryWork,
    scans: Mapping[int, SegmentScan],
    context: RecoveryContext,
    head: RecoveredLog,
) -> RecoveredLog:
    """Recover a partition, unless already done or refused by a guard. Another attempt may have
    done it."""
    write = context.write
    if write is None:
        raise ValueError("nothing may be written")

    def prepare(store: LogStore) -> Prepared:
        if head.failure:
            return Prepared(result={TOUCHED: False}, plan=None)
        recovery = _kind_of(work)(store, work, context)
        log = recovery.load(scans)
        answer = recovery.describe(log)
        if answer["reason"] is not None:
            return Prepared(result=answer | {"status": Status.SKIPPED}, plan=None)
        if not _is_expected(work, answer, context.run):
            return Prepared(result=answer | _CHANGED, plan=None)
        answer |= recovery.salvage(log) | {"status": Status.DONE.value}
        return Prepared(result=answer, plan=recovery.plan(log, write))

    access = write.roots[work.ref.root]
    columns = access.commit(work.ref.directory, _kind_of(work).action.value, prepare)
    if head.failure and columns.get(TOUCHED) is False:
        return head
    return fill(replace(head, failure=Failure()), columns)


_CHANGED: Final = {
    "status": Status.SKIPPED,
    "reason": Reason.INPUTS_CHANGED,
    "error": "what recovery would do is not what the saved plan has",
}


def _is_expected(work: RecoveryWork, answer: Mapping[str, Any], run: RunContext) -> bool:
    """Return whether a recovery is as in the plan being applied. It is where no plan is applied."""
    expected = run.expected_recoveries
    if expected is None or work.ref.directory not in expected:
        return expected is None
    return expected[work.ref.directory] == digest_operations(answer["operations"])


class _Recovery:
    """Puts one log in order, as a broker does after a crash."""

    action = Action.RECOVER

    def __init__(self, store: LogStore, work: RecoveryWork, context: RecoveryContext) -> None:
        self.source = store  # what is loaded
        self.work = work
        self.run = context.run
        self.options = context.run.options
        self.threads = context.threads
        # Kafka's defaults where no source knows the topic. Of all settings only the density and
        # the size of rebuilt indexes matter to a loader.
        catalog = context.run.catalogs[work.ref.root]
        self.config = catalog.config_or_defaults(work.ref.partition.topic)

    def scan(self, base_offset: int) -> SegmentScan:
        """Read a segment from end to end."""
        with closing(self.source.open_file(log_file(base_offset))) as reader:
            return scan_segment(
                reader,
                base_offset,
                index_interval_bytes=self.config.index_interval_bytes,
                max_index_bytes=self.config.segment_index_bytes,
                window_bytes=self.options.cleaner.window_bytes,
                threads=self.threads,
            )

    def load(self, scans: Mapping[int, SegmentScan]) -> LoadedLog:
        """Load the log, with the operations that put it in order.

        Args:
            scans: Of segments, by base offset; others are read.
        """
        log = self._load(scans, self.work.truncations)
        return replace(log, operations=keep_scratch(self._operations(log), self.run.run_id))

    def _load(self, scans: Mapping[int, SegmentScan], truncations: Sequence[int]) -> LoadedLog:
        return plan_recovery(
            self.source,
            config=self.config,
            cleaner=self.options.cleaner,
            now_ms=self.options.now_ms,
            recovery_point=self.work.checkpoints.recovery_point or 0,
            log_start_offset=self.work.checkpoints.log_start_offset or 0,
            clean_shutdown=self.work.is_clean,
            truncations=truncations,
            scans=scans,
            threads=self.threads,
        )

    def _operations(self, log: LoadedLog) -> Sequence[Operation]:
        """Return the operations on files of a log as it was loaded."""
        return log.operations

    def plan(self, log: LoadedLog, _write: WriteContext) -> CommitPlan:
        """Return what is committed."""
        return log.plan

    def describe(self, log: LoadedLog) -> dict[str, Any]:
        """Return the partition's row as of after the operations."""
        # That an empty segment goes is no loss, nor are zeros: they are among the operations.
        lost = [cut for cut in log.repairs.cuts if cut.lost_bytes]
        cuts = [asdict(cut) | {"records": count_lost_records(self.source, cut)} for cut in lost]
        refusal = self.refuse(log, sum(cut["records"] for cut in cuts))
        steps, repairs = log.plan, log.repairs
        end = log.follower_end or FollowerEnd(
            log_end_offset=log.log_end_offset, clean_end_offset=None
        )
        cleaned_to = (self.work.checkpoints.cleaner_offset, end.clean_end_offset)
        points = [point for point in cleaned_to if point is not None]
        return {
            "reason": None if refusal is None else refusal[0].value,
            "error": None if refusal is None else refusal[1],
            "log_start_offset": log.log_start_offset,
            "log_end_offset": end.log_end_offset,
            "first_base_offset": log.segments[0].base_offset,
            "bytes_after": log.size_bytes,
            "segments_after": len(log.segments),
            "rebuilt_segments": len(repairs.rebuilt),
            "cuts": json.dumps(cuts),
            "next_offset": min(points) if len(points) > 1 else None,
            "is_repaired": bool(repairs.cuts or repairs.rebuilt or repairs.split),
            "doubtful_epoch": _find_doubtful_epoch(self.source, log),
            "steps": len(steps.operations),
            "operations": json.dumps(list(steps.describe())),
        }

    def refuse(self, log: LoadedLog, readable_records: int) -> tuple[Reason, str] | None:
        """Return why a guard refuses the operations, or None."""
        return self._refuse_beginning(log) or self._refuse_cuts(log, readable_records)

    def _refuse_beginning(self, log: LoadedLog) -> tuple[Reason, str] | None:
        """Return why a guard refuses to begin a log anew, or None."""
        names = [file.name for file in self.source.list_files()]
        marks = self.work.checkpoints
        end = find_former_end(names, marks.recovery_point, marks.high_watermark)
        if end is None or end <= log.log_end_offset or self.options.allow_truncate:
            return None
        why = (
            f"the log has no segment: it would begin anew at offset {log.log_end_offset}, though "
            f"its checkpoints and snapshots end it at {end}. Bring its .log files back; if it was "
            f"empty, make {log_file(end)} of 0 bytes, as the broker's user (override: "
            "--allow-truncate)"
        )
        return Reason.BEGINS_ANEW, why

    def _refuse_cuts(self, log: LoadedLog, readable_records: int) -> tuple[Reason, str] | None:
        """Return why a guard refuses what a recovery cuts, or None."""
        options, cut_bytes = self.options, log.repairs.lost_bytes
        mark = self.work.checkpoints.high_watermark
        # A log that ends there by itself, as after a power cut, loses nothing by being recovered.
        is_below = mark is not None and log.log_end_offset < mark
        if is_below and cut_bytes and not options.allow_truncate:
            why = (
                f"the log would end at offset {log.log_end_offset}, below its checkpointed high "
                f"watermark {mark}: records that were acknowledged would be lost unless another "
                "replica has them (override: --allow-truncate)"
            )
            return Reason.CUTS_BELOW_HIGH_WATERMARK, why
        if log.log_end_offset <= log.log_start_offset and cut_bytes and not options.allow_truncate:
            why = (
                f"nothing of the log would be left, {cut_bytes} bytes would be cut "
                "(override: --allow-truncate)"
            )
            return Reason.CUTS_WHOLE_LOG, why
        if mark is None and readable_records and not options.allow_truncate:
            why = (
                f"{count_text(readable_records, 'record')} that can still be read would be cut, "
                f"from offset {log.log_end_offset} on, and no high watermark says whether they "
                "were acknowledged: keep them with --salvage DIR, or take the log from another "
                "replica (override: --allow-truncate)"
            )
            return Reason.CUTS_READABLE_RECORDS, why
        if cut_bytes > options.max_truncate_bytes:
            why = (
                f"{cut_bytes} bytes would be cut, at most {options.max_truncate_bytes} may be "
                f"(override: --max-truncate-bytes {cut_bytes})"
            )
            return Reason.CUTS_TOO_MUCH, why
        return None

    def salvage(self, log: LoadedLog) -> dict[str, Any]:
        """Set aside the bytes to be cut, before the first cut. It is done again if a task runs
        twice."""
        if self.options.salvage is None or not log.repairs.lost_bytes:
            return {}
        store = LocalStore(Path(self.work.ref.directory))
        salvage = salvage_cuts(
            store,
            log.repairs.cuts,
            salvage_directory(self.options.salvage, self.run.run_id, store.directory),
            index_interval_bytes=self.config.index_interval_bytes,
            max_index_bytes=self.config.segment_index_bytes,
            source=self.source,
            epochs=log.epochs,
        )
        return {"salvage": to_json(salvage)}


class _Truncation(_Recovery):
    """Recovers a replica, then cuts it to follow a leader."""

    action = Action.TRUNCATE

    def refuse(self, _log: LoadedLog, _readable_records: int) -> tuple[Reason, str] | None:
        """Return why a guard refuses the cuts, or None: they were planned, and counted."""
        if not self.work.is_clean:
            # What opening cuts is judged as a recovery's: the audit saw only what that leaves.
            opened = self._load({}, ())
            readable = sum(count_lost_records(self.source, cut) for cut in opened.repairs.cuts)
            refusal = self._refuse_cuts(opened, readable)
            if refusal is not None:
                why = f"its log was not closed, and `pylog recover` refuses it: {refusal[1]}"
                return Reason.RECOVERY_REQUIRED, why
        committed = self.work.committed_records
        if committed and not (self.options.allow_truncate and self.options.salvage is not None):
            why = (
                f"{count_text(committed, 'committed record')} would be cut that the "
                "leader does not have: let another replica lead, or make the plan with "
                "--allow-committed-loss and --salvage DIR"
            )
            return Reason.CUTS_COMMITTED_RECORDS, why
        return None


class _Healing(_Recovery):
    """Gives a log segments of other replicas' bytes, and recovers it with them."""

    action = Action.HEAL

    def __init__(self, store: LogStore, work: RecoveryWork, context: RecoveryContext) -> None:
        super().__init__(store, work, context)
        open_healing: Callable[[LogStore, str], HealedStore] = require_addition(
            "open_healing", "the plan of a healing"
        )
        self._healed = open_healing(store, work.healing or "")
        self.source = self._healed.store

    def _operations(self, log: LoadedLog) -> Sequence[Operation]:
        return self._healed.plan(log.operations)

    def plan(self, log: LoadedLog, write: WriteContext) -> CommitPlan:
        """Write the new segments to scratch files; return what is committed."""
        ref = self.work.ref
        folder = write.roots[ref.root].shared_folder(ref.directory)
        if folder is None:
            raise ValueError("a root without a folder that its tasks share is not healed")
        scratch = folder / f"{SCRATCH_PREFIX}{self.run.run_id}-{ref.ordinal}"
        return replace(log.plan, operations=self._healed.write(log.operations, scratch))


def _kind_of(work: RecoveryWork) -> type[_Recovery]:
    """Return what is done to a log, by what was planned for it."""
    if work.healing is not None:
        return _Healing
    return _Truncation if work.truncations else _Recovery


def _find_doubtful_epoch(source: LogStore, log: LoadedLog) -> str | None:
    """Return a wrong epoch that recovery believes, as Kafka does.

    Batches are read for that only where the epoch file does not say the same before and after.
    """
    before = LeaderEpochCache()
    # A file that cannot be parsed says nothing about the log.
    with suppress(CheckpointError):
        before = read_epochs(source)
    after = LeaderEpochCache(log.epochs)
    if before.entries and before.first_difference(after, log.log_end_offset) is None:
        return None
    names = {file.name for file in source.list_files()}
    # A segment that the load makes is not there yet.
    bases = [each.base_offset for each in log.segments if log_file(each.base_offset) in names]
    runs = read_epoch_runs(source.open_file, bases)
    doubtful = find_last_epoch(runs, [before.entries]).doubtful
    is_written = doubtful is not None and any(doubtful.epoch == each.epoch for each in log.epochs)
    return str(doubtful) if is_written else None


def salvage_directory(salvage: str, run_id: str, directory: Path) -> Path:
    """Return where a run sets aside what it cuts from a partition.

    A folder of the run's own, and in it the partition's whole path: neither another run nor another
    root with a partition of that name writes there.

    Args:
        salvage: Folder that receives what runs cut.
    """
    path = directory.absolute()
    return Path(salvage, run_id, *path.parts[1:])
