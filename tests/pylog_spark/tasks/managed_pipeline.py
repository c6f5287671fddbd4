"""Observation and commits over a managed root in this process: what tasks of a run would do."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from pylog_spark.operations.compact.task import CompactionCommit, CompactionWork, clean_partitions
from pylog_spark.operations.retain.task import (
    RetentionContext,
    SweepWork,
    commit_sweeps,
)
from pylog_spark.options import JobOptions
from pylog_spark.rows import row_reader, row_writer
from pylog_spark.run.plan_table import read_planned
from pylog_spark.tasks.message import PartitionCommit
from pylog_spark.tasks.observe import Step, observe_partition
from pylog_spark.tasks.run_context import WriteContext
from storage_core.config import CleanerConfig
from storage_core.roots import managed
from storage_core.roots.managed import HeldManagedRoot
from storage_core.roots.open_root import root_checkpoints
from storage_core.store import ObjectStore
from storage_core.store.generations import list_partitions
from tests.pylog_spark.managed_roots import ManagedTwin
from tests.pylog_spark.tasks.observed import observed, run_context


class ManagedPipeline:
    """The stages over every due partition of a managed root."""

    def __init__(
        self,
        twin: ManagedTwin,
        now_ms: int,
        *,
        run_id: str = "run",
        cleaner: CleanerConfig | None = None,
    ) -> None:
        self.twin = twin
        self.run = run_context(
            twin.location,
            twin.origin.configs,
            JobOptions(now_ms=now_ms, cleaner=cleaner or CleanerConfig()),
            run_id=run_id,
        )

    def listed(self) -> list[dict[str, Any]]:
        """Return the rows of ``schemas.PARTITION``."""
        return [
            {
                "root": self.twin.location,
                "topic": partition.topic,
                "partition": partition.partition,
                "role": "managed",
                "directory": self.twin.directory(partition.topic),
                "kind": "partition",
                "error_class": None,
                "error": None,
            }
            for partition in sorted(list_partitions(self.twin.objects))
        ]

    def observe(self) -> list[dict[str, Any]]:
        return [observe_partition(row, self.run, root_checkpoints) for row in self.listed()]

    def works(self) -> list[CompactionWork]:
        due = [row for row in self.observe() if row["status"] == "planned"]
        return [
            row_reader(CompactionWork)(row | {"ordinal": ordinal})
            for ordinal, row in enumerate(due)
        ]

    def sweeps(self) -> list[SweepWork]:
        """Return the partitions of which something has expired."""
        return list(read_planned(SweepWork, observed(self.listed(), self.run, Step.RETAIN)))

    def sweep(self, works: list[SweepWork], context: WriteContext) -> list[dict[str, Any]]:
        """Let go what has expired."""
        sweeping = RetentionContext(run=self.run, step=Step.RETAIN)
        return list(map(row_writer(PartitionCommit), commit_sweeps(works, sweeping, context)))

    @contextmanager
    def held(self, **options: Any):
        """Hold the root's lease and yield what tasks are told."""
        with HeldManagedRoot(self.twin.location, run_id=self.run.run_id, **options) as root:
            yield self.context(root)

    def context(self, root: HeldManagedRoot) -> WriteContext:
        return WriteContext(run=self.run, roots={self.twin.location: root.access})

    def later(self, run_id: str) -> "ManagedPipeline":
        """Return the same pipeline as another run."""
        found = ManagedPipeline(self.twin, self.run.options.now_ms, run_id=run_id)
        found.run = replace(self.run, run_id=run_id)
        return found


def clean(works: list[CompactionWork], context: WriteContext) -> list[dict[str, Any]]:
    return list(map(row_writer(CompactionCommit), clean_partitions(works, context)))


def work_once(pipeline: ManagedPipeline, context: WriteContext) -> list[str | None]:
    """Do what is due and return each partition's error, None for none."""
    rows = clean(pipeline.works(), context)
    rows += pipeline.sweep(pipeline.sweeps(), context)
    return [row["error"] for row in rows]


@contextmanager
def through(wrapper: ObjectStore) -> Iterator[None]:
    """Let every partition and lease that tasks open be reached through a wrapper."""
    with pytest.MonkeyPatch.context() as patch:
        # The module has the name of the function in it, which the package exports.
        for module in (managed, sys.modules["storage_core.store.open_store"]):
            patch.setattr(module, "open_object_store", lambda _url: wrapper)
        yield
