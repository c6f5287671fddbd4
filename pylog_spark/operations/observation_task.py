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
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pylog_spark.operations.retain.task import RetentionContext, observe_sweep
from pylog_spark.options import HighWatermarkSource
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import OBSERVED, PARTITION, PLAN, RETENTION_PLAN, Reason, Status
from pylog_spark.tasks.ahead import map_partitions
from pylog_spark.tasks.listing import open_partition
from pylog_spark.tasks.observe import Step, admit_topic, is_only_replica, observe_partition
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.log_directories import DirectoryKind
from storage_core.catalog.roles import Role, local_path
from storage_core.checkpoint.checkpoints import PartitionCheckpoints, parse_partition_metadata
from storage_core.config import LogConfig
from storage_core.errors import PylogError
from storage_core.filenames import PARTITION_METADATA_FILE, TopicPartition
from storage_core.kernels import compaction_walk as walk
from storage_core.maintenance.compaction.plan import VERDICTS, CompactionFacts
from storage_core.maintenance.listings import (
    NO_END,
    NO_ENTRY,
    CheckpointColumns,
    DirectoryLook,
    Listings,
    look_at,
)
from storage_core.maintenance.retention.plan import (
    HOLDS,
    NO_LIMIT,
    Predicate,
    RetentionFacts,
    RetentionRules,
    find_kept_logs,
)
from storage_core.roots.open_root import root_checkpoints
from storage_core.store import LogStore

# So many directories are decided about together.
_ROWS_AT_ONCE: Final = 512
# Their rows travel as one value, which has to stay far below what a cell may have.
_ROWS_A_CELL: Final = 64
# Of a row that is looked at alone: which steps ask for it.
_STEPS: Final = "steps"
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
            for step, rows in observer.observe(batch.slice(first, _ROWS_AT_ONCE)):
                yield pa.RecordBatch.from_pylist([encode_rows(step, rows)], schema=OBSERVED)


def decode_steps(observed: pa.Table, step: Step) -> pa.Table:
    """Return one step's rows, decoded from rows of ``schemas.OBSERVED``. They are of the step's
    own schema."""
    cells = zip(observed["step"].to_pylist(), observed["rows"], strict=True)
    parts = [
        pa.ipc.open_stream(cell.as_buffer()).read_all() for name, cell in cells if name == step
    ]
    return pa.concat_tables(parts) if parts else SCHEMAS[step].empty_table()


def encode_rows(step: Step, rows: pa.RecordBatch) -> dict[str, Any]:
    """Encode a batch of one step as a single compressed value. Columns of nulls, of which there
    are most, take no room so."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    return {"step": step.value, "rows": sink.getvalue().to_pybytes()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    """What decides about every partition of a topic in one root."""

    config: LogConfig | None  # its configuration; None where no step concerns it
    # What that says about old segments; None where the topic is not swept at all.
    rules: RetentionRules | None
    refusals: Mapping[Step, Reason]  # why a step leaves its partitions alone, for the steps that do
    topic_id: str | None  # what the catalogue says; None where nobody does


class _Observer:
    """Observes the partitions of one task."""

    def __init__(self, context: ObservationContext) -> None:
        self._context = context
        self._plans = [step for step in Step if step in context.steps and step is not Step.PURGE]
        self._checkpoints_of = cache(root_checkpoints)
        self._topic_of = cache(self._read_topic)

    def observe(self, batch: pa.RecordBatch) -> Iterator[tuple[Step, pa.RecordBatch]]:
        """Yield for each step rows of its schema."""
        rows = batch.select(list(_LOOKED_AT)).to_pylist()
        has_files = batch.column("file_names").is_valid().to_pylist()
        looked, looks, marks = [], [], []
        for number, row in enumerate(rows):
            if not has_files[number] and self._is_looked_at(row):
                looked.append(number)
                marks.append(self._read_marks(row))
                looks.append(self._look(row, marks[-1]))
        if Step.PURGE in self._context.steps:
            by_number = dict(zip(looked, looks, strict=True))
            purge_rows = [n for n, row in enumerate(rows) if _may_be_purged(row, by_number.get(n))]
            if purge_rows:
                yield Step.PURGE, batch.take(pa.array(purge_rows, pa.int64()))
        listings = Listings.of_looks(looks)
        numbers = np.array(looked, np.int64)[listings.places]
        answers = self._answer(
            [rows[number] for number in numbers],
            [looks[place] for place in listings.places],
            [marks[place] for place in listings.places],
            listings,
        )
        lone_rows: dict[Step, NDArray[np.bool_]] = {}
        for step in self._plans:
            lone_rows[step] = np.ones(len(rows), np.bool_)
            for places, columns in answers.get(step, ()):
                lone_rows[step][numbers[places]] = False
                if len(places):
                    named = batch.select(list(_NAMES)).take(pa.array(numbers[places]))
                    yield step, _fill(SCHEMAS[step], named, columns)
        yield from self._look_alone(batch, lone_rows)

    def _look_alone(
        self, batch: pa.RecordBatch, lone_rows: Mapping[Step, NDArray[np.bool_]]
    ) -> Iterator[tuple[Step, pa.RecordBatch]]:
        """Yield the rows of the remaining partitions, looked at alone. They are for the steps that
        ask for them.

        Each is opened once: the manifest of a managed one is read once for all steps.
        """
        is_alone = np.logical_or.reduce([*lone_rows.values(), np.zeros(batch.num_rows, np.bool_)])
        (places,) = np.nonzero(is_alone)
        for first in range(0, len(places), _ROWS_A_CELL):
            some = places[first : first + _ROWS_A_CELL]
            asked = (
                batch.slice(number, 1).to_pylist()[0]
                | {_STEPS: [step for step in self._plans if lone_rows[step][number]]}
                for number in some.tolist()
            )
            answered = list(map_partitions(self._answer_alone, asked))
            for step in self._plans:
                step_rows = [answer[step] for answer in answered if step in answer]
                if step_rows:
                    yield step, rows_to_batch(SCHEMAS[step], step_rows)

    def _answer_alone(self, row: Row) -> dict[Step, dict[str, Any]]:
        """Return each step's row for one partition, damaged or not."""
        opened: list[LogStore] = []

        def open_once(row: Row) -> LogStore:
            if not opened:
                opened.append(open_partition(row))
            return opened[0]

        return {
            step: observe_partition(row, self._context.run, self._checkpoints_of, open_once)
            if step is Step.COMPACT
            else observe_sweep(row, self._context.sweep(step), self._checkpoints_of, open_once)
            for step in row[_STEPS]
        }

    def _is_looked_at(self, row: Row) -> bool:
        """Return whether a directory is local and worth a listing."""
        if row["error_class"] is not None or Role(row["role"]).facts.has_manifests:
            return False
        kind = DirectoryKind(row["kind"])
        if kind not in _PURGED or local_path(row["directory"]) is None:
            return False
        if Step.PURGE in self._context.steps and Role(row["role"]).facts.is_owned_by_broker:
            return True
        return bool(self._wanted(row))

    def _wanted(self, row: Row) -> list[Step]:
        """Return the steps that have to see what is in a directory."""
        if row["kind"] != DirectoryKind.PARTITION:
            return []
        topic = self._topic_of(row["root"], row["topic"])
        if topic is None or self._context.run.is_unclean(row["root"], row["directory"]):
            return []
        return [step for step in self._plans if step not in topic.refusals]

    def _read_marks(self, row: Row) -> PartitionCheckpoints | None:
        """Return a partition's checkpoint entries; None if unreadable."""
        if row["kind"] != DirectoryKind.PARTITION:
            return None
        partition = TopicPartition(row["topic"], row["partition"])
        try:
            return self._checkpoints_of(row["root"]).of(partition)
        except PylogError:
            return None  # whoever looks at it alone finds out why

    def _look(self, row: Row, marks: PartitionCheckpoints | None) -> DirectoryLook | None:
        wanted = self._wanted(row)
        topic = self._topic_of(row["root"], row["topic"]) if wanted else None
        rules = None if topic is None else topic.rules
        # A copy was never closed: of its end only a round asks.
        asks_end = Step.COMPACT in wanted or (
            bool(wanted) and Role(row["role"]).facts.is_owned_by_broker
        )
        needs_end = marks is not None and asks_end
        return look_at(
            Path(row["directory"]),
            needs_age=rules is not None and rules.age_limit_ms is not None,
            needs_topic_id=topic is not None and topic.topic_id is not None,
            log_start=(marks.log_start_offset or 0) if marks is not None and needs_end else None,
        )

    def _read_topic(self, root: str, topic: str) -> _Topic | None:
        """Return a topic's config and refusals; None for a possible error."""
        run = self._context.run
        try:
            answers = {step: admit_topic(step, root, topic, run) for step in self._plans}
        except PylogError:
            return None
        configs = {step: each for step, each in answers.items() if isinstance(each, LogConfig)}
        swept = [config for step, config in configs.items() if step in _SWEEPS]
        return _Topic(
            config=next(iter(configs.values()), None),
            rules=RetentionRules.of(swept[0]) if swept else None,
            refusals={step: each for step, each in answers.items() if isinstance(each, Reason)},
            topic_id=run.catalogs[root].topic_id(topic),
        )

    def _answer(
        self,
        rows: Sequence[Row],
        looks: Sequence[DirectoryLook | None],
        marks: Sequence[PartitionCheckpoints | None],
        listings: Listings,
    ) -> dict[Step, list["_Answer"]]:
        """Return the sure answers by step: partitions and row columns."""
        if not rows:
            return {}
        topics, is_usual = self._topics(rows, looks)
        is_usual &= [
            mark is not None
            and (mark.high_watermark is not None or not is_only_replica(row, self._context.run))
            for row, mark in zip(rows, marks, strict=True)
        ]
        checkpoints = CheckpointColumns.of([mark or PartitionCheckpoints() for mark in marks])
        answers: dict[Step, list[_Answer]] = {}
        for step in self._plans:
            reasons = [None if topic is None else topic.refusals.get(step) for topic in topics]
            if self._context.run.options.high_watermark is not HighWatermarkSource.LOG_END:
                reasons = [
                    Reason.NO_HIGH_WATERMARK if reason is None and mark == NO_ENTRY else reason
                    for reason, mark in zip(
                        reasons, checkpoints.high_watermarks.tolist(), strict=True
                    )
                ]
            is_sure = is_usual
            if step is Step.SWEEP and self._context.excluded:
                is_sure = is_usual & [
                    row["directory"] not in self._context.excluded for row in rows
                ]
            is_refused = np.array([reason is not None for reason in reasons], np.bool_)
            (refused,) = np.nonzero(is_sure & is_refused)
            skipped = _skipped(len(refused)) | {
                "reason": pa.array([reasons[place] for place in refused], pa.string())
            }
            answers[step] = [(refused, skipped)]
            is_asked = is_sure & ~is_refused
            if step in _SWEEPS:
                is_closed = np.array(
                    [Role(row["role"]).facts.is_owned_by_broker for row in rows], np.bool_
                )
                is_asked &= ~is_closed | (listings.log_ends != NO_END)
            answer = self._keep if step in _SWEEPS else self._leave
            answers[step].append(answer(listings, topics, checkpoints, is_asked))
        return answers

    def _topics(
        self, rows: Sequence[Row], looks: Sequence[DirectoryLook | None]
    ) -> tuple[list[_Topic | None], NDArray[np.bool_]]:
        """Return each partition's topic, and whether the partition is usual. A usual one has
        nothing that somebody must look at."""
        topics: list[_Topic | None] = []
        is_usual = np.zeros(len(rows), np.bool_)
        for place, (row, look) in enumerate(zip(rows, looks, strict=True)):
            is_log = row["kind"] == DirectoryKind.PARTITION
            topic = self._topic_of(row["root"], row["topic"]) if is_log else None
            topics.append(topic)
            is_usual[place] = (
                topic is not None
                and look is not None
                and not self._context.run.is_unclean(row["root"], row["directory"])
                and (topic.topic_id is None or _has_id(look.metadata, topic.topic_id))
                # The zeros of a time index that a broker had open are no entry.
                and (Role(row["role"]).facts.is_owned_by_broker or any(look.oldest_entry or b"\1"))
            )
        return topics, is_usual

    def _asked(self, checkpoints: CheckpointColumns) -> CheckpointColumns:
        """Return the entries that count for decisions."""
        is_log_end = self._context.run.options.high_watermark is HighWatermarkSource.LOG_END
        return checkpoints.up_to_log_ends() if is_log_end else checkpoints

    def _keep(
        self,
        listings: Listings,
        topics: Sequence[_Topic | None],
        checkpoints: CheckpointColumns,
        is_asked: NDArray[np.bool_],
    ) -> "_Answer":
        """Return the rows of the partitions that retention takes nothing of."""
        run = self._context.run
        asked = self._asked(checkpoints)
        rules = [None if topic is None else topic.rules for topic in topics]
        size_limits = _limits(rule.size_limit if rule else None for rule in rules)
        age_limits = _limits(rule.age_limit_ms if rule else None for rule in rules)
        retention = RetentionFacts.of_listings(
            listings, asked, size_limits=size_limits, age_limits_ms=age_limits
        )
        logs = find_kept_logs(retention, now_ms=run.options.now_ms)
        (places,) = np.nonzero(is_asked & logs.is_kept)
        count = len(places)
        sizes = listings.total_bytes
        limits = np.where(size_limits > 0, size_limits, 1)
        percents = np.where(size_limits > 0, sizes * 100 // limits, 0)
        starts, none = logs.log_starts, np.zeros(count, np.int64)
        # Also where the log's end counts.
        is_replicated = starts <= checkpoints.high_watermarks
        hold_names = pa.array([hold.value for hold in HOLDS], pa.string())
        columns = _skipped(count, Reason.NOTHING_TO_RETAIN) | {
            "bytes": sizes[places],
            "bytes_after": sizes[places],
            "segments": listings.counts[places],
            "segments_after": listings.counts[places],
            "deleted_bytes": none,
            "deleted_segments": none,
            "old_log_start_offset": starts[places],
            "log_start_offset": starts[places],
            "rolls": pa.repeat(pa.scalar(value=False), count),
            "percent": percents[places],
            "blocked_by": hold_names.take(pa.array(logs.holds[places])),
            "blocked_offset": listings.base_offsets[listings.starts][places],
            "blocked_timestamp": _nullable(logs.timestamps, logs.has_timestamp, places),
            "wait_ms": _nullable(logs.waits_ms, logs.has_wait, places),
            "first_base_offset": listings.base_offsets[listings.starts][places],
            "removed": pa.array([[]] * count, pa.list_(pa.int64())),
            "log_start_checkpoint": _entries(asked.log_start_offsets, places),
            "high_watermark": _entries(asked.high_watermarks, places),
            "is_replicated": pa.array(is_replicated[places]),
            "retention_ms": age_limits[places],
            "retention_bytes": size_limits[places],
        }
        for predicate in Predicate:
            name = f"by_{predicate.value.lower()}"
            columns |= {f"{name}_segments": none, f"{name}_bytes": none}
        if self._context.run.options.dry_run:
            columns["operations"] = pa.repeat(pa.scalar("[]"), count)
        return places, columns

    def _leave(
        self,
        listings: Listings,
        topics: Sequence[_Topic | None],
        checkpoints: CheckpointColumns,
        is_asked: NDArray[np.bool_],
    ) -> "_Answer":
        """Return the rows of the partitions of which no round is due."""
        configs = [None if topic is None else topic.config for topic in topics]
        facts = CompactionFacts.of_listings(listings, configs, self._asked(checkpoints))
        answers = facts.decide(now_ms=self._context.run.options.now_ms)
        is_sure = answers[walk.MISSING] == walk.NOTHING
        (places,) = np.nonzero(is_asked & is_sure & (answers[walk.VERDICT] != walk.DUE))
        answers = answers[:, places]
        clean, cleanable = answers[walk.CLEAN_BYTES], answers[walk.CLEANABLE_BYTES]
        log_starts = checkpoints.log_start_offsets[places]
        return places, _skipped(len(places)) | {
            "reason": pa.array(VERDICTS, pa.string()).take(pa.array(answers[walk.VERDICT])),
            "bytes": listings.total_bytes[places],
            "segments": listings.counts[places],
            "first_dirty_offset": answers[walk.FIRST_DIRTY_OFFSET],
            "first_uncleanable_offset": answers[walk.FIRST_UNCLEANABLE_OFFSET],
            "clean_bytes": clean,
            "cleanable_bytes": cleanable,
            "cleanable_ratio": cleanable / np.maximum(clean + cleanable, 1),
            "compaction_delay_ms": np.zeros(len(places), np.int64),
            "checkpoint_reset": answers[walk.HAS_INVALID_CHECKPOINT].astype(np.bool_),
            "log_start_checkpoint": np.where(log_starts == NO_ENTRY, 0, log_starts),
        }


# Places in some arrays of partitions, and the columns of their rows.
_Answer = tuple[NDArray[np.int64], dict[str, Any]]


def _may_be_purged(row: Row, look: DirectoryLook | None) -> bool:
    """Return whether a directory may hold something to purge. Such a thing only waits for its
    end."""
    if not Role(row["role"]).facts.is_owned_by_broker:
        return False
    if row["error_class"] is not None or row["kind"] == DirectoryKind.DELETE:
        return True
    return row["kind"] in _PURGED and (look is None or look.has_deleted)


def _has_id(metadata: bytes | None, expected: str) -> bool:
    """Return whether a topic id matches the expected one. A partition without an id contradicts
    nothing."""
    return metadata is None or _id_of(metadata) == expected


@lru_cache(maxsize=256)
def _id_of(metadata: bytes) -> str | None:
    """Return the id in ``partition.metadata``, None where that is malformed."""
    try:
        return parse_partition_metadata(metadata, file=PARTITION_METADATA_FILE).topic_id
    except PylogError:
        return None


def _skipped(count: int, reason: Reason | None = None) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "status": pa.repeat(pa.scalar(Status.SKIPPED.value), count),
        "duration_ms": np.zeros(count, np.int64),
    }
    return columns if reason is None else columns | {"reason": pa.repeat(reason.value, count)}


def _limits(values: Iterable[int | None]) -> NDArray[np.int64]:
    return np.array([NO_LIMIT if value is None else value for value in values], np.int64)


def _nullable(
    values: NDArray[np.int64], has_value: NDArray[np.bool_], places: NDArray[np.int64]
) -> pa.Array:
    return pa.array(values[places], mask=~has_value[places])


def _entries(offsets: NDArray[np.int64], places: NDArray[np.int64]) -> pa.Array:
    return _nullable(offsets, offsets != NO_ENTRY, places)


def _fill(schema: pa.Schema, names: pa.RecordBatch, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return rows of a schema: names of partitions, some columns, and nulls."""
    arrays = []
    for field in schema:
        if field.name in _NAMES:
            arrays.append(names.column(field.name))
        elif field.name in columns:
            arrays.append(pa.array(columns[field.name]).cast(field.type))
        else:
            arrays.append(pa.nulls(names.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
