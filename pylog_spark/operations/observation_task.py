"""Look once at each partition directory, for all steps of a run. Every step is planned from that
look.

A task lists a directory once and asks for each step what is due there. Directories in which nothing
unusual lies are decided about together, as arrays (``storage_core.maintenance.listings``): most of
them keep all they have, and that is all that is ever known of them. The look also reads what a load
would read of a log's end: damage is there, and no listing shows it. What is left over is looked at
alone, by the functions that know every case: their answers are the same ones.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pylog_spark.operations.retain.task import (
    RetentionContext,
    describe_known,
    kept_columns,
    observe_sweep,
    removal_columns,
)
from pylog_spark.options import HighWatermarkSource
from pylog_spark.outcomes import Reason, Status
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import OBSERVED, PARTITION, PLAN, RETENTION_PLAN
from pylog_spark.tasks.ahead import map_partitions
from pylog_spark.tasks.listing import open_partition
from pylog_spark.tasks.observe import (
    Step,
    admit_topic,
    is_only_replica,
    observe_partition,
    range_columns,
)
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.roles import Role, local_name
from storage_core.checkpoint.checkpoints import PartitionCheckpoints, parse_partition_metadata
from storage_core.commit.plan import digest_versions
from storage_core.config import LogConfig
from storage_core.errors import PylogError
from storage_core.filenames import PARTITION_METADATA_FILE, TopicPartition
from storage_core.kernels import retention_walk as walk
from storage_core.local_files import open_folder
from storage_core.maintenance.compaction.plan import (
    VERDICTS,
    CompactionFacts,
    find_undue_logs,
)
from storage_core.maintenance.listings import (
    NANOSECONDS_PER_MS,
    NO_END,
    NO_ENTRY,
    CheckpointColumns,
    DirectoryLook,
    Listings,
    Mask,
    Numbers,
    look_at,
)
from storage_core.maintenance.retention.ages import SegmentAges
from storage_core.maintenance.retention.plan import (
    HOLDS,
    NO_LIMIT,
    RetentionFacts,
    RetentionRules,
    sweep_logs,
)
from storage_core.roots.open_root import root_checkpoints
from storage_core.store import LogStore
from storage_core.store.folder_entries import FolderEntries

# So many directories are decided about together.
_ROWS_AT_ONCE: Final = 512
# Their rows travel as one value, which has to stay far below what a cell may have.
_ROWS_A_CELL: Final = 64
# Of a row that is looked at alone: which steps ask for it.
_STEPS: Final = "steps"
# In place of a step: rows that are left for another look.
_REST: Final = "rest"
_LOOKED_AT: Final = ("root", "topic", "partition", "role", "directory", "kind", "error_class")
_NAMES: Final = ("root", "topic", "partition", "directory")
# In which single files wait for their end.
_PURGED: Final = (DirectoryKind.PARTITION, DirectoryKind.FUTURE, DirectoryKind.STRAY)

Row = Mapping[str, Any]


SCHEMAS: Final[Mapping[Step, pa.Schema]] = {
    Step.RETAIN: RETENTION_PLAN,
    Step.COMPACT: PLAN,
    Step.SWEEP: RETENTION_PLAN,
    Step.PURGE: PARTITION,
}
_SWEEPS: Final = (Step.RETAIN, Step.SWEEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationContext:
    """The values that the tasks of an observation share."""

    run: RunContext
    steps: frozenset[Step]
    # As in `RetentionContext`, for the sweep of what is compacted.
    excluded: frozenset[str] = frozenset()
    # Whether what listings do not settle is left for ``observe_rest``.
    leaves_rest: bool = False

    def sweep(self, step: Step) -> RetentionContext:
        """Return what a sweep is told."""
        return RetentionContext(
            run=self.run,
            step=step,
            excluded=self.excluded if step is Step.SWEEP else frozenset(),
        )


def observe_steps(
    batches: Iterator[pa.RecordBatch], context: ObservationContext
) -> Iterator[pa.RecordBatch]:
    """Turn rows of ``schemas.PARTITION`` into rows of ``schemas.OBSERVED``."""
    observer = _Observer(context)
    for batch in batches:
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield from _encoded(observer.observe(batch.slice(first, _ROWS_AT_ONCE)))


def observe_rest(
    batches: Iterator[pa.RecordBatch], context: ObservationContext
) -> Iterator[pa.RecordBatch]:
    """Turn rows that ``observe_steps`` has left into rows of ``schemas.OBSERVED``."""
    observer = _Observer(context)
    for batch in batches:
        yield from _encoded(observer.look_alone(batch, batch.column(_STEPS).to_pylist()))


def decode_steps(observed: pa.Table, step: Step) -> pa.Table:
    """Return one step's rows, decoded from rows of ``schemas.OBSERVED``. They are of the step's
    own schema."""
    parts = _decoded(observed, step)
    return pa.concat_tables(parts) if parts else SCHEMAS[step].empty_table()


def decode_rest(observed: pa.Table) -> pa.RecordBatch | None:
    """Return the rows that are left for ``observe_rest``; None for none."""
    parts = _decoded(observed, _REST)
    return pa.concat_tables(parts).combine_chunks().to_batches()[0] if parts else None


def _decoded(observed: pa.Table, name: str) -> list[pa.Table]:
    cells = zip(observed["step"].to_pylist(), observed["rows"], strict=True)
    return [pa.ipc.open_stream(cell.as_buffer()).read_all() for of, cell in cells if of == name]


def _encoded(seen: Iterable[tuple[str, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    for name, rows in seen:
        yield pa.RecordBatch.from_pylist([encode_rows(name, rows)], schema=OBSERVED)


def encode_rows(step: str, rows: pa.RecordBatch) -> dict[str, Any]:
    """Encode a batch of one step as a single compressed value. Columns of nulls, of which there
    are most, take no room so."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    return {"step": str(step), "rows": sink.getvalue().to_pybytes()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    """What decides about every partition of a topic in one root."""

    config: LogConfig | None  # its configuration; None where no step concerns it
    # What that says about old segments; None where the topic is not swept at all.
    rules: RetentionRules | None
    refusals: Mapping[Step, Reason]  # why a step leaves its partitions alone, for the steps that do
    topic_id: str | None  # what the catalogue says; None where nobody does


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    """A partition in which nothing unusual lies, with what decides about it."""

    number: int  # of its row in the batch
    row: Row
    topic: _Topic
    marks: PartitionCheckpoints
    look: DirectoryLook


class _Observer:
    """Observes the partitions of one task."""

    def __init__(self, context: ObservationContext) -> None:
        self._context = context
        self._run = context.run
        self._is_log_end = context.run.options.high_watermark is HighWatermarkSource.LOG_END
        self._plans = [step for step in Step if step in context.steps and step is not Step.PURGE]
        self._checkpoints_of = cache(root_checkpoints)
        self._topic_of = cache(self._read_topic)

    def observe(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield for each step rows of its schema, and maybe what is left."""
        rows = batch.select(list(_LOOKED_AT)).to_pylist()
        is_listed = batch.column("file_names").is_valid().to_pylist()
        seen = {
            number: self._look(number, row)
            for number, row in enumerate(rows)
            if not is_listed[number] and _is_local(row)
        }
        if Step.PURGE in self._context.steps:
            looks = {number: look for number, (look, _) in seen.items()}
            purged = [n for n, row in enumerate(rows) if _may_be_purged(row, looks.get(n))]
            if purged:
                yield Step.PURGE, batch.take(pa.array(purged, pa.int64()))
        usual = [partition for _, partition in seen.values() if partition is not None]
        listings = Listings.of_looks([each.look for each in usual])
        plain = [usual[place] for place in listings.places]
        numbers = np.array([each.number for each in plain], np.int64)
        is_alone: dict[Step, Mask] = {step: np.ones(len(rows), np.bool_) for step in self._plans}
        for step in self._plans if plain else ():
            for is_told, columns in self._tell(step, plain, listings):
                told = numbers[is_told]
                is_alone[step][told] = False
                if len(told):
                    names = batch.select(list(_NAMES)).take(pa.array(told))
                    yield step, _fill(SCHEMAS[step], names, _pick(columns, is_told))
        (left,) = np.nonzero(sum(is_alone.values(), np.zeros(len(rows), np.bool_)))
        if not len(left):
            return
        rest = batch.take(pa.array(left))
        steps = [[step for step in self._plans if is_alone[step][number]] for number in left]
        if self._context.leaves_rest:
            yield _REST, rest.append_column(_STEPS, pa.array(steps, pa.list_(pa.string())))
        else:
            yield from self.look_alone(rest, steps)

    def _look(self, number: int, row: Row) -> tuple[DirectoryLook | None, _Partition | None]:
        """Look at a local directory where a step wants to know what is in it. Return what is
        there, and the partition if it is usual."""
        topic = marks = None
        if row["kind"] == DirectoryKind.PARTITION:
            topic = self._topic_of(row["root"], row["topic"])
        is_unclean = self._run.is_unclean(row["root"], row["directory"])
        refusals = {} if topic is None else topic.refusals
        is_asked = topic is not None and not is_unclean
        wanted = {step for step in self._plans if is_asked and step not in refusals}
        is_closed = Role(row["role"]).facts.is_owned_by_broker
        if not wanted and not (is_closed and Step.PURGE in self._context.steps):
            return None, None
        if row["kind"] == DirectoryKind.PARTITION:
            marks = self._read_marks(row)
        # A copy was never closed: of its end only a round asks.
        asks_end = marks and wanted and (is_closed or Step.COMPACT in wanted)
        rules = topic.rules if topic and wanted else None
        config = topic.config if topic else None
        look = look_at(
            row["directory"],
            needs_age=rules is not None and rules.age_limit_ms is not None,
            needs_topic_id=bool(topic and wanted),
            log_start=marks.log_start_offset or 0 if marks and asks_end else None,
            most_index_bytes=config.segment_index_bytes if config else 0,
        )
        if topic is None or marks is None or look is None or is_unclean:
            return look, None
        partition = _Partition(number=number, row=row, topic=topic, marks=marks, look=look)
        return look, partition if self._is_usual(partition) else None

    def _read_marks(self, row: Row) -> PartitionCheckpoints | None:
        """Return a partition's checkpoint entries; None if unreadable."""
        partition = TopicPartition(row["topic"], row["partition"])
        try:
            return self._checkpoints_of(row["root"]).of(partition)
        except PylogError:
            return None  # whoever looks at it alone finds out why

    def _read_topic(self, root: str, topic: str) -> _Topic | None:
        """Return a topic's config and refusals; None for a possible error."""
        try:
            answers = {step: admit_topic(step, root, topic, self._run) for step in self._plans}
        except PylogError:
            return None
        configs = {step: each for step, each in answers.items() if isinstance(each, LogConfig)}
        swept = [config for step, config in configs.items() if step in _SWEEPS]
        return _Topic(
            config=next(iter(configs.values()), None),
            rules=RetentionRules.of(swept[0]) if swept else None,
            refusals={step: each for step, each in answers.items() if isinstance(each, Reason)},
            topic_id=self._run.catalogs[root].topic_id(topic),
        )

    def _is_usual(self, partition: _Partition) -> bool:
        """Return whether nothing of a partition has to be looked at alone."""
        row, topic, look = partition.row, partition.topic, partition.look
        if partition.marks.high_watermark is None and is_only_replica(row, self._run):
            return False
        if not _has_id(look.metadata, topic.topic_id):
            return False
        # The zeros of a time index that a broker had open are no entry.
        return Role(row["role"]).facts.is_owned_by_broker or any(look.oldest_entry or b"\1")

    def _tell(
        self, step: Step, plain: Sequence[_Partition], listings: Listings
    ) -> Iterator["_Answer"]:
        """Yield what is sure of plain partitions: which step refuses them, or has nothing to do."""
        excluded = self._context.excluded if step is Step.SWEEP else frozenset()
        is_sure = np.array([each.row["directory"] not in excluded for each in plain])
        reasons = [self._reason(step, each) for each in plain]
        is_refused = np.array([reason is not None for reason in reasons])
        yield is_sure & is_refused, _SKIPPED | {"reason": np.array(reasons, object)}
        is_asked = is_sure & ~is_refused
        if step in _SWEEPS:
            is_closed = np.array([Role(e.row["role"]).facts.is_owned_by_broker for e in plain])
            is_asked &= ~is_closed | (listings.log_ends != NO_END)
            yield from self._find_swept(plain, listings, is_asked, is_closed)
        else:
            is_found, columns = self._find_undue(plain, listings)
            yield is_asked & is_found, columns

    def _reason(self, step: Step, partition: _Partition) -> Reason | None:
        """Return why a step leaves a partition alone; None if it does not."""
        if step in partition.topic.refusals:
            return partition.topic.refusals[step]
        has_mark = self._is_log_end or partition.marks.high_watermark is not None
        return None if has_mark else Reason.NO_HIGH_WATERMARK

    def _counted(self, checkpoints: CheckpointColumns) -> CheckpointColumns:
        """Return the entries that count for decisions."""
        return checkpoints.up_to_log_ends() if self._is_log_end else checkpoints

    def _find_swept(
        self,
        plain: Sequence[_Partition],
        listings: Listings,
        is_asked: Mask,
        is_closed: Mask,
    ) -> Iterator["_Answer"]:
        """Yield what retention takes of partitions, where that is sure: nothing, or some segments
        of logs that a broker would load."""
        now_ms = self._run.options.now_ms
        checkpoints = CheckpointColumns.of([each.marks for each in plain])
        counted = self._counted(checkpoints)
        rules = [each.topic.rules for each in plain]
        size_limits = _limits(rule.size_limit if rule else None for rule in rules)
        age_limits = _limits(rule.age_limit_ms if rule else None for rule in rules)
        facts = RetentionFacts.of_listings(
            listings, counted, size_limits=size_limits, age_limits_ms=age_limits
        )
        answers = facts.decide(now_ms=now_ms)
        may_be_due = (answers[walk.MISSING] == walk.TIMESTAMP) | (answers[walk.ALL_GONE] > 0)
        may_be_due &= is_asked & is_closed & (answers[walk.MISSING] != walk.LOG_END)
        places = np.flatnonzero(may_be_due).tolist()
        # Before more of them is read: who commits it asks for the same files.
        digests = np.full(len(plain), None, object)
        digests[places] = [_digest(plain[place]) for place in places]
        may_be_due &= digests.astype(np.bool_)
        ages = SegmentAges([each.row["directory"] for each in plain], listings)
        answers = ages.complete(facts, answers, may_be_due, now_ms=now_ms)
        logs = sweep_logs(facts, answers, now_ms=now_ms)
        sizes = listings.total_bytes
        left = sizes - logs.removed_bytes.sum(axis=0)
        columns = _SKIPPED | kept_columns(
            {
                "bytes": sizes,
                "segments": listings.counts,
                "first_base_offset": logs.first_base_offsets,
                "log_start_offset": logs.log_starts,
                "log_start_checkpoint": _entries(counted.log_start_offsets),
                "high_watermark": _entries(counted.high_watermarks),
                # Also where the log's end counts.
                "is_replicated": logs.log_starts <= checkpoints.high_watermarks,
                "percent": np.where(size_limits > 0, left * 100 // np.maximum(size_limits, 1), 0),
                "blocked_by": np.array(HOLDS, object)[logs.holds],
                "blocked_offset": logs.blocked_offsets,
                "blocked_timestamp": np.ma.array(logs.timestamps, mask=~logs.has_timestamp),
                "wait_ms": np.ma.array(logs.waits_ms, mask=~logs.has_wait),
                "retention_ms": age_limits,
                "retention_bytes": size_limits,
            }
        )
        if self._run.options.dry_run:
            columns["operations"] = "[]"
        yield is_asked & logs.is_sure & ~logs.is_due, columns
        is_due = may_be_due & logs.is_due
        if is_due.any():
            is_due &= ages.agree(logs.removed, is_due, now_ms - age_limits)
            newest, has_newest, is_read = ages.newest(is_due & (logs.removed[walk.BY_TIME] > 0))
            is_due &= is_read
            bases = listings.base_offsets.tolist()
            gone = zip(listings.starts.tolist(), logs.removed.sum(axis=0).tolist(), strict=True)
            removed = np.empty(len(plain), object)
            removed[:] = [bases[first : first + count] for first, count in gone]
            columns |= removal_columns(logs.removed, logs.removed_bytes, removed) | {
                "status": Status.PLANNED,
                "reason": None,
                "old_log_start_offset": logs.old_log_starts,
                "bytes_after": left,
                "segments_after": listings.counts - logs.removed.sum(axis=0),
                "newest_timestamp": np.ma.array(newest, mask=~has_newest),
                "loaded_files": digests,
                "log_end": listings.log_ends,
            }
            if self._run.options.dry_run:
                steps = np.full(len(plain), None, object)
                for place in np.flatnonzero(is_due).tolist():
                    steps[place] = self._describe(plain[place], logs.removed[:, place].tolist())
                columns["operations"] = steps
                is_due &= steps.astype(np.bool_)
            yield is_due, columns

    def _describe(self, partition: _Partition, counts: Sequence[int]) -> str | None:
        """Return the steps of a partition's retention; None for an error, which a look at it alone
        tells."""
        start = partition.marks.log_start_offset
        try:
            return describe_known(open_partition(partition.row), counts, start, self._run)
        except PylogError:
            return None

    def _find_undue(self, plain: Sequence[_Partition], listings: Listings) -> "_Answer":
        """Find the partitions of which no round is due."""
        configs = [each.topic.config for each in plain]
        checkpoints = CheckpointColumns.of([each.marks for each in plain])
        facts = CompactionFacts.of_listings(listings, configs, self._counted(checkpoints))
        ranges = find_undue_logs(facts, now_ms=self._run.options.now_ms)
        return ranges.is_undue, _SKIPPED | range_columns(
            ranges,
            size_bytes=listings.total_bytes,
            segments=listings.counts,
            log_start_checkpoint=np.array([each.marks.log_start_offset or 0 for each in plain]),
        ) | {"reason": np.array(VERDICTS, object)[ranges.verdicts]}

    def look_alone(
        self, batch: pa.RecordBatch, steps: Sequence[Sequence[str]]
    ) -> Iterator[tuple[Step, pa.RecordBatch]]:
        """Yield the rows of partitions, each looked at alone, for the steps that ask for it. Each
        is opened once: the manifest of a managed one is read once for all steps.
        """
        for first in range(0, batch.num_rows, _ROWS_A_CELL):
            places = range(first, min(first + _ROWS_A_CELL, batch.num_rows))
            asked = (
                batch.slice(place, 1).to_pylist()[0] | {_STEPS: [*map(Step, steps[place])]}
                for place in places
            )
            answered = list(map_partitions(self._answer_alone, asked))
            for step in self._plans:
                rows = [answer[step] for answer in answered if step in answer]
                if rows:
                    yield step, rows_to_batch(SCHEMAS[step], rows)

    def _answer_alone(self, row: Row) -> dict[Step, dict[str, Any]]:
        """Return each step's row for one partition, damaged or not."""
        open_once = cache(lambda: open_partition(row))

        def opened(_: Row) -> LogStore:
            return open_once()

        return {
            step: observe_partition(row, self._run, self._checkpoints_of, opened)
            if step is Step.COMPACT
            else observe_sweep(row, self._context.sweep(step), self._checkpoints_of, opened)
            for step in row[_STEPS]
        }


# Of some partitions: for which of them the columns are right, and the columns of them all. A
# column is an array, masked where it is null, or the one value that all rows have.
_Answer = tuple[Mask, dict[str, Any]]
_SKIPPED: Final = {"status": Status.SKIPPED, "duration_ms": 0}


def _is_local(row: Row) -> bool:
    """Return whether a row is of a directory on a local disk whose files say what it is."""
    return (
        row["error_class"] is None
        and not Role(row["role"]).facts.has_manifests
        and DirectoryKind(row["kind"]) in _PURGED
        and local_name(row["directory"]) is not None
    )


def _digest(partition: _Partition) -> str | None:
    """Return the digest of a partition's files; None where they have changed since the look."""
    look = partition.look
    try:
        with open_folder(partition.row["directory"]) as folder:
            found = FolderEntries.of_folder(folder)
    except OSError:
        return None
    if {*found.names} != {*look.logs, *look.others}:
        return None
    facts = zip(found.names, found.sizes, found.modified_ns, strict=True)
    logs = {name: (size, at // NANOSECONDS_PER_MS) for name, size, at in facts if name in look.logs}
    return digest_versions(found) if logs == look.logs else None


def _may_be_purged(row: Row, look: DirectoryLook | None) -> bool:
    """Return whether a directory may hold something to purge. Such a thing only waits for its
    end."""
    if not Role(row["role"]).facts.is_owned_by_broker:
        return False
    if row["error_class"] is not None or row["kind"] == DirectoryKind.DELETE:
        return True
    return row["kind"] in _PURGED and (look is None or look.has_deleted)


def _has_id(metadata: bytes | None, expected: str | None) -> bool:
    """Return whether a broker can read a partition's topic id, and it is the expected one. A
    partition without an id contradicts nothing."""
    if metadata is None:
        return True
    topic_id = _id_of(metadata)
    return topic_id is not None and expected in {None, topic_id}


@lru_cache(maxsize=256)
def _id_of(metadata: bytes) -> str | None:
    """Return the id in ``partition.metadata``, None where that is malformed."""
    try:
        return parse_partition_metadata(metadata, file=PARTITION_METADATA_FILE).topic_id
    except PylogError:
        return None


def _limits(values: Iterable[int | None]) -> Numbers:
    return np.array([NO_LIMIT if value is None else value for value in values], np.int64)


def _entries(offsets: Numbers) -> Any:
    return np.ma.masked_equal(offsets, NO_ENTRY)


def _pick(columns: Mapping[str, Any], is_told: Mask) -> dict[str, Any]:
    """Return columns of some of the partitions."""
    return {
        name: cells[is_told] if isinstance(cells, np.ndarray) else cells
        for name, cells in columns.items()
    }


def _fill(schema: pa.Schema, names: pa.RecordBatch, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return rows of a schema: names of partitions, some columns, and nulls."""
    arrays = []
    for field in schema:
        cells = columns.get(field.name)
        if field.name in _NAMES:
            arrays.append(names.column(field.name))
        elif isinstance(cells, np.ndarray):
            arrays.append(pa.array(cells, field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(cells, field.type), names.num_rows))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
