"""A batch query of ``kafka-log``: its plan and its tasks.

Each Python worker of Spark imports this module, and what it imports, before its first task: nothing
that a task does not need.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pylog_spark.source.options import SourceOptions, warn_of_meaningless
from pylog_spark.tasks.views import VIEWS, FileView, RangeView, ViewPart
from pylog_spark.tasks.worker import freeze_modules
from storage_core.clock import SystemClock
from storage_core.reading.ranges import ReadRange, read_range
from storage_core.store.requests import logged_requests


def decoded(batches: Iterable[pa.RecordBatch], options: SourceOptions) -> Iterable[pa.RecordBatch]:
    """Return records with the columns of a query, decoded where it asks for that."""
    if options.typed is None:
        return batches
    from pylog_spark.source.typed_columns import typed_batches  # noqa: PLC0415  # if asked

    return typed_batches(batches, options.typed, options.columns)


class RangesPartition(InputPartition):
    """The ranges of one task, as Spark carries them to it."""

    def __init__(self, ranges: Sequence[ReadRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class FilesPartition(InputPartition):
    """One task's part of a view of files, in Spark's envelope."""

    def __init__(self, part: ViewPart) -> None:
        super().__init__(part)
        self.part = part


class KafkaLogReader(DataSourceReader):
    """Plans the tasks of a query and does one."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return what the query's tasks read; an empty list for no records."""
        # Only the planning process needs it.
        from pylog_spark.source.task_planning import plan_parts, plan_tasks  # noqa: PLC0415

        warn_of_meaningless(self._options.without_meaning)
        now_ms = SystemClock().now_ms()
        view = VIEWS.get(self._options.view)
        with logged_requests("the plan of kafka-log"):
            if isinstance(view, FileView):
                request = self._options.request
                parts = plan_parts(request, is_of_roots=view.is_of_roots, now_ms=now_ms)
                return [FilesPartition(part) for part in parts]
            tasks = plan_tasks(self._options, now_ms=now_ms)
            return [RangesPartition(ranges) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task as Arrow batches."""
        freeze_modules()
        with logged_requests("a task of kafka-log"):
            yield from self._read(partition)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        view = VIEWS.get(self._options.view)
        if view is None and isinstance(partition, RangesPartition):
            batches = chain.from_iterable(map(read_range, partition.ranges))
            yield from decoded(batches, self._options)
        elif isinstance(view, RangeView) and isinstance(partition, RangesPartition):
            for wanted in partition.ranges:
                yield from self._select(view.read(wanted))
        elif isinstance(view, FileView) and isinstance(partition, FilesPartition):
            yield from self._select(view.show(partition.part))

    def _select(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the columns that were asked for."""
        for batch in batches:
            yield batch.select(self._options.columns)
