"""``pylog partition retain``: Kafka's deletion pass."""

from dataclasses import asdict
from typing import Any

import typer

from pylog_spark.cli.partition import named_log_directory
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.assignments import whole_config
from pylog_spark.options.declared import DRY_RUN
from pylog_spark.options.of_partitions import (
    CLOCK,
    DIRECTORY,
    HIGH_WATERMARK,
    LOG_START,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.text import to_json
from storage_core.commit import Plan
from storage_core.maintenance.retention.partition import plan_retain, retain_partition
from storage_core.maintenance.retention.plan import RetentionPlan
from storage_core.store import LocalStore


def retain(line: CommandLine) -> int:
    """Make the deletion pass or plan it; print JSON; return the status.

    The JSON is one object; the status is the exit status.

    Raises:
        PylogError: As ``retain_partition``.
    """
    directory = named_log_directory(line[DIRECTORY])
    config, cleaner = whole_config(line)
    if not line[DRY_RUN]:
        result = retain_partition(
            directory,
            config=config,
            cleaner=cleaner,
            now_ms=line[CLOCK],
            high_watermark=line[HIGH_WATERMARK],
            log_start_offset=line[LOG_START],
        )
        typer.echo(to_json(asdict(result)))
        return ExitCode.DONE
    store = LocalStore(directory)
    decision, log = plan_retain(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=line[CLOCK],
        high_watermark=line[HIGH_WATERMARK],
        log_start_offset=line[LOG_START],
    )
    plan = Plan(location=store.location, operations=log.operations)
    answer = {
        "dry_run": True,
        "deleted_segments": len(decision.removals),
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "segments": len(log.segments),
        "size": log.size_bytes,
    }
    answer |= _describe(decision) | {"operations": list(plan.describe())}
    typer.echo(to_json(answer))
    return ExitCode.DONE


def _describe(decision: RetentionPlan) -> dict[str, Any]:
    """Return the deletions with reasons, and the rest's, as plain values."""
    return {
        "removals": [
            {
                "base_offset": removal.segment.base_offset,
                "size_bytes": removal.segment.size_bytes,
                "reason": removal.predicate.value,
            }
            for removal in decision.removals
        ],
        "blocks": [asdict(block) for block in decision.blocks],
        "percent_of_retention_bytes": decision.percent_of_retention_bytes,
    }
