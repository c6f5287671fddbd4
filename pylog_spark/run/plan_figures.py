"""What a saved plan says of one partition: what was decided, and what it costs at most.

What was decided has to come out the same from the same files, config and clock: no durations, no
random keys. The costs are bounds, made for people; nothing is held against them.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from pylog_spark.schemas import RETENTION_PLAN
from pylog_spark.tasks.observe import decode_plan
from storage_core.store.open_objects import is_managed

# One ranged read of an object.
_READ_BYTES: Final = 16 * 1024 * 1024
# Both passes of a round read what is dirty.
_PASSES: Final = 2
# History and head of a manifest.
_COMMIT_PUTS: Final = 2
_NOT_DECIDED: Final = frozenset(
    {
        "root",
        "topic",
        "partition",
        "directory",
        "status",
        "reason",
        "operations",
        "duration_ms",
        "error_class",
        "error",
        # They decided, but what came of it is what counts.
        "retention_ms",
        "retention_bytes",
    }
)
_RECOVERY_NAMES: Final = (
    "is_clean",
    "recovery_point",
    "log_start_offset",
    "high_watermark",
    "scan_offsets",
    "scan_bytes",
)

Row = Mapping[str, Any]


def compaction_plan_of(row: Row) -> dict[str, Any]:
    """Return what was decided of a row of ``schemas.PLAN``: the round, without its secret key."""
    plan: dict[str, Any] = json.loads(decode_plan(row["plan"]).to_json())
    del plan["hash_key"]
    return plan | {"log_start_checkpoint": row["log_start_checkpoint"]}


def compaction_figures_of(row: Row) -> dict[str, Any]:
    """Return the bounds of a row of ``schemas.PLAN``."""
    sizes = row["segment_bytes"]
    figures = {
        "bytes_before": row["bytes"],
        "bytes_after_at_most": row["bytes_after"],
        "read_bytes_at_most": _PASSES * sum(sizes),
        "extra_disk_bytes_at_most": row["peak_extra_bytes"],
        "groups": row["groups"],
    }
    if is_managed(row["directory"]):
        reads = sum(-(-size // _READ_BYTES) + 1 for size in sizes)
        figures["get_requests_about"] = _PASSES * reads
        figures["put_requests_about"] = 2 * (row["groups"] or 0) + _COMMIT_PUTS
    return figures


def retention_plan_of(row: Row) -> dict[str, Any]:
    """Return what was decided of a row of ``schemas.RETENTION_PLAN``."""
    return {name: row[name] for name in RETENTION_PLAN.names if name not in _NOT_DECIDED}


def retention_figures_of(row: Row) -> dict[str, Any]:
    """Return the bounds of a row of ``schemas.RETENTION_PLAN``."""
    figures = {"bytes_before": row["bytes"], "bytes_after": row["bytes_after"]}
    if is_managed(row["directory"]):
        figures["put_requests_about"] = _COMMIT_PUTS
    return figures


def recovery_plan_of(row: Row) -> dict[str, Any]:
    """Return what was decided of a row of ``schemas.RECOVERY_WORK``: what has to be read."""
    return {name: row[name] for name in _RECOVERY_NAMES}


def recovery_figures_of(row: Row) -> dict[str, Any]:
    """Return the bounds of a row of ``schemas.RECOVERY_WORK``."""
    return {"bytes_before": row["bytes"], "read_bytes_at_most": sum(row["scan_bytes"])}
