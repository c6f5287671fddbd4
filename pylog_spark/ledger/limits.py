"""Find the retention that topics had when it was last enforced."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.schemas import ALLOWED_BY

_RUN_OF_TOPIC: Final = ("root", "topic", "run_id")
_LIMITS: Final = ("retention_ms", "retention_bytes")
# Columns of the results table that the answer needs.
COLUMNS: Final = (*_RUN_OF_TOPIC, "reason", *_LIMITS)


def last_enforced(rows: pa.Table) -> pa.Table:
    """Return the limits of each topic's last run without a refusal. Partitions in which nothing
    expired say the limit, too, of which others were refused.

    Args:
        rows: COLUMNS of partitions with a limit, of any runs; all partitions of a topic.

    Returns:
        root, topic, run_id, retention_ms and retention_bytes.
    """
    is_refused = pc.is_in(rows["reason"], value_set=pa.array(sorted(ALLOWED_BY), pa.string()))
    refused = rows.filter(is_refused).select(_RUN_OF_TOPIC)
    enforced = rows.join(refused, list(_RUN_OF_TOPIC), join_type="left anti")
    # Names of runs sort by time.
    latest = ("run_id", *_LIMITS)
    ordered = enforced.sort_by([(name, "descending") for name in latest])
    any_value = pc.ScalarAggregateOptions(skip_nulls=False)
    last = ordered.group_by(["root", "topic"], use_threads=False).aggregate(
        [(name, "first", any_value) for name in latest]
    )
    return last.select(["root", "topic", *(f"{name}_first" for name in latest)]).rename_columns(
        ["root", "topic", *latest]
    )
