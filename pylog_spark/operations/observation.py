"""Observe a run's partitions once for all steps, and changed ones again.

A step is planned from what was seen when the first one asked. A partition of which files were
changed since is looked at again; and whatever is changed is held against the directory right
before, under its lock, however it was planned.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.operations.observation_task import (
    ObservationContext,
    decode_rest,
    decode_steps,
    observe_rest,
    observe_steps,
)
from pylog_spark.rows import rows_to_batch
from pylog_spark.run.catalogs import problem_notes
from pylog_spark.run.job import brokers_of
from pylog_spark.run.plan_table import refuse_duplicates
from pylog_spark.run.planning import LEAST_TO_SPREAD
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import NOT_OF_THIS_STEP
from pylog_spark.schemas import OBSERVED, PARTITION
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.listing import directory_row
from pylog_spark.tasks.observe import Step
from pylog_spark.tasks.run_context import RunContext
from storage_core.store.generations import GENERATION_MARK, unpinned

_OBSERVE: Final = "observe"
_GENERATION: Final = f"(?s){GENERATION_MARK}.*"


class Observation:
    """The observation of a run's partitions, made at the first request.

    Args:
        steps: The steps that are going to ask.
    """

    def __init__(self, run: Run, context: RunContext, steps: Collection[Step]) -> None:
        self.context = context
        run.note(problem_notes(context.catalogs))
        self._run = run
        self._steps = frozenset(steps)
        self._brokers = brokers_of(run.job.roots)
        self._roles = {root.location: root.role.value for root in run.job.roots}
        self._seen: dict[Step, pa.Table] | None = None
        # Locations without generations, and the root of each.
        self._changed: dict[str, str] = {}

    def note_changes(self, plans: pa.Table, ordinals: Iterable[int]) -> None:
        """Note the begin of work on partitions, which outdates observations."""
        rows = plans.select(["root", "directory"]).take(pa.array(ordinals, pa.int64()))
        for row in rows.to_pylist():
            self._changed[unpinned(row["directory"])] = row["root"]

    def rows(
        self,
        step: Step,
        *,
        excluded: frozenset[str] = frozenset(),
        among: Collection[str] | None = None,
    ) -> pa.Table:
        """Return a step's rows, in its schema; refuse partitions held twice.

        Args:
            excluded: Partition directories that a sweep leaves alone: their compaction failed.
            among: Partition directories; where they are given, the rows of others are left out, and
                nobody looks at those again.
        """
        if self._seen is None:
            what = f"look what is due in {self._run.job.places}"
            messages = self._look(self._steps, what)
            self._seen = {each: decode_steps(messages, each) for each in self._steps}
        table = self._seen[step]
        if among is not None:
            asked = pa.array([unpinned(each) for each in among], pa.string())
            table = table.filter(pc.is_in(_locations(table), asked))
        if self._changed or excluded:
            table = self._look_again(table, step, excluded)
        return table if step is Step.PURGE else refuse_duplicates(table, self._brokers)

    def _look_again(self, table: pa.Table, step: Step, excluded: frozenset[str]) -> pa.Table:
        """Return a step's rows, made anew for changed or excluded partitions."""
        again = pa.array([*self._changed, *map(unpinned, excluded)], pa.string())
        is_again = pc.is_in(_locations(table), again)
        if step is Step.PURGE:
            places = self._changed  # it has no rows of directories with nothing to purge
        else:
            elsewhere = pa.array(sorted(NOT_OF_THIS_STEP), pa.string())
            is_again = pc.and_not(is_again, pc.is_in(table["reason"], elsewhere))
            # A row of a log directory that cannot be listed is of no partition.
            is_again = pc.and_(is_again, pc.is_valid(table["topic"]))
            stale = table.filter(is_again)
            roots = stale["root"].to_pylist()
            places = dict(zip(_locations(stale).to_pylist(), roots, strict=True))
        if not places:
            return table
        what = f"look again at {len(places)} partitions of {self._run.job.places}"
        rows = [self._listed(root, location) for location, root in places.items()]
        partitions = rows_to_batch(PARTITION, rows)
        messages = self._look({step}, what, partitions=partitions, excluded=excluded)
        return pa.concat_tables([table.filter(pc.invert(is_again)), decode_steps(messages, step)])

    def _listed(self, root: str, location: str) -> dict[str, Any]:
        """Return the ``schemas.PARTITION`` row of a partition to look at again."""
        row = directory_row(root, self._roles[root], location.rpartition("/")[2])
        if row is None:
            raise KeyError(f"{location}: no partition directory of {root}")
        return row

    def _look(
        self,
        steps: Collection[Step],
        what: str,
        *,
        partitions: pa.RecordBatch | None = None,
        excluded: frozenset[str] = frozenset(),
    ) -> pa.Table:
        context = ObservationContext(
            run=self.context,
            steps=frozenset(steps),
            excluded=excluded,
            leaves_rest=self._run.looks_alone(partitions),
        )

        def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return observe_steps(batches, context)

        def look_closer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return observe_rest(batches, context)

        with log_fields(step=_OBSERVE):
            seen = self._run.look(look, OBSERVED, what, partitions=partitions)
            rest = decode_rest(seen)
            if rest is None:
                return seen
            # Milliseconds each, where a listing takes tenths of one.
            is_look = rest.num_rows < LEAST_TO_SPREAD
            closer = self._run.look(look_closer, OBSERVED, what, partitions=rest, is_look=is_look)
            return pa.concat_tables([seen, closer])


def _locations(table: pa.Table) -> pa.ChunkedArray:
    """Return where partitions are, without their generations."""
    return pc.replace_substring_regex(table["directory"], _GENERATION, "")
