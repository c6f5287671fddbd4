"""``df.write.format("kafka-log")``: the tasks of a write, and its commit on the driver."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pylog_spark.tasks.worker import freeze_modules
from storage_core.writing.publication import abort_write, commit_write
from storage_core.writing.staging import StagedRecords, WriteRun, stage_records


class StagedMessage(WriterCommitMessage):
    """A task's message for the driver; None after an earlier commit."""

    def __init__(self, staged: StagedRecords | None) -> None:
        self.staged: Final = staged


class KafkaLogWriter(DataSourceArrowWriter):
    """One write to a log, in every process of it. Spark pickles the writer into tasks and into the
    process of the commit.

    Args:
        columns: The DataFrame's columns to write.
    """

    def __init__(self, run: WriteRun, columns: tuple[str, ...]) -> None:
        self._run = run
        self._columns = list(columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the records of one task."""
        freeze_modules()
        if self._run.is_done:
            return StagedMessage(None)
        context = TaskContext.get()
        task_id = 0 if context is None else context.partitionId()
        batches = (batch.select(self._columns) for batch in iterator)
        return StagedMessage(stage_records(self._run, batches, task_id=task_id))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all tasks' staged records, in the order of the messages."""
        staged = [each.staged for each in messages if isinstance(each, StagedMessage)]
        commit_write(self._run, [each for each in staged if each is not None])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what tasks have staged."""
        del messages
        abort_write(self._run)
