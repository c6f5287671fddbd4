"""What an observation tells one step of a run, in this process."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from pylog_spark.operations.observation_task import ObservationContext, decode_steps, observe_steps
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import OBSERVED, PARTITION
from pylog_spark.tasks.observe import Step
from pylog_spark.tasks.run_context import RunContext


def observed(
    partitions: Iterable[dict[str, Any]], run: RunContext, step: Step, **more: Any
) -> pa.Table:
    """Return the rows of a step for rows of ``schemas.PARTITION``; more of its context by name."""
    context = ObservationContext(run=run, steps=frozenset({step}), **more)
    batch = rows_to_batch(PARTITION, partitions)
    found = list(observe_steps(iter([batch]), context))
    return decode_steps(pa.Table.from_batches(found, OBSERVED), step)
