"""``pylog partition retain``: Kafka's deletion pass."""

from dataclasses import asdict
from functools import partial
from typing import Any

from pylog_spark.cli.partition import commit_or_describe, named_log_directory
from pylog_spark.options.load import whole_config
from pylog_spark.options.of_partitions import (
    CLOCK,
    DIRECTORY,
    HIGH_WATERMARK,
    LOG_START,
)
from pylog_spark.options.option import CommandLine
from storage_core.log.loaded_log import LoadedLog
from storage_core.maintenance.retention.partition import RetainResult, plan_retain
from storage_core.maintenance.retention.plan import RetentionPlan
from storage_core.store import LocalStore


def retain(line: CommandLine) -> int:
    """Make the deletion pass or plan it; print JSON; return the status. The JSON is one object;
    the status is the exit status."""
    config, cleaner = whole_config(line)
    decision, log = plan_retain(
        LocalStore(named_log_directory(line[DIRECTORY])),
        config=config,
        cleaner=cleaner,
        now_ms=line[CLOCK],
        high_watermark=line[HIGH_WATERMARK],
        log_start_offset=line[LOG_START],
    )
    result = RetainResult.of(decision, log)
    return commit_or_describe(line, log, result, partial(_describe, decision, log))


def _describe(decision: RetentionPlan, log: LoadedLog) -> dict[str, Any]:
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
        "operations": list(log.plan.describe()),
    }
