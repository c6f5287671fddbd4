"""What tasks of a run are told, and what an observation tells one of its steps, in this process."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pylog_spark.operations.observation_task import ObservationContext, decode_steps, observe_steps
from pylog_spark.options import JobOptions
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import OBSERVED, PARTITION
from pylog_spark.tasks.observe import Step
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.topic_catalog import TopicCatalog


def run_context(
    location: str, configs: Mapping[str, Mapping[str, str]], options: JobOptions, /, **changes: Any
) -> RunContext:
    """Return what tasks are told of a run over one root, by the configs of its topics."""
    context = RunContext(
        run_id="run",
        options=options,
        hash_key=bytes(range(16)),
        catalogs={location: TopicCatalog(explicit=configs)},
        unclean_roots=frozenset(),
    )
    return replace(context, **changes)


def observed(
    partitions: Iterable[dict[str, Any]], run: RunContext, step: Step, **more: Any
) -> pa.Table:
    """Return the rows of a step for rows of ``schemas.PARTITION``; more of its context by name."""
    context = ObservationContext(run=run, steps=frozenset({step}), **more)
    batch = rows_to_batch(PARTITION, partitions)
    found = list(observe_steps(iter([batch]), context))
    return decode_steps(pa.Table.from_batches(found, OBSERVED), step)
