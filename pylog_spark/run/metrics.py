"""Export a run's numbers to Prometheus, by node_exporter's file or Pushgateway.

They are those of the run's own report; names are Kafka's gauges' where Kafka has one. A run that
has ended replaces the numbers of the one before, and nothing is written when it begins: whoever
wants to know whether a run died looks at ``pylog_run_end_time_seconds``.
"""

import socket
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow.compute as pc
from prometheus_client import CollectorRegistry, Gauge, push_to_gateway, write_to_textfile

from pylog_spark.outcomes import Status
from pylog_spark.run.run_report import RunState
from pylog_spark.text import valid_text
from storage_core.catalog.roles import local_path

_PREFIX: Final = "pylog_"
_JOB: Final = "pylog"
_PUSH_SECONDS: Final = 10.0
_OF_CLEANER: Final = "of the partitions of which compaction was due"

# What each number is, by its name without the prefix. What a report has of Kafka's gauges has the
# name of the gauge, with underscores.
METRICS: Final = {
    "run_start_time_seconds": "when the last run began, Unix time",
    "run_end_time_seconds": "when the last run ended, Unix time",
    "run_exit_status": "exit status of the last run: 0 or 1 is good",
    "run_duration_seconds": "how long the last run took",
    "run_partitions": "result rows of the last run, by their status",
    "run_skipped_partitions": "partitions that the last run left alone, by its reason",
    "run_bytes_before": "bytes of the partitions that the last run worked on",
    "run_bytes_after": "the same afterwards",
    "max_dirty_percent": f"dirty bytes of the dirtiest, {_OF_CLEANER}",
    "cleaner_recopy_percent": f"bytes written for 100 bytes read, {_OF_CLEANER}",
    "max_buffer_utilization_percent": f"fullest offset map, 0 without a limit, {_OF_CLEANER}",
    "max_clean_time_secs": f"the longest cleaning, summed over its tasks, {_OF_CLEANER}",
    "max_compaction_delay_secs": f"by which max.compaction.lag.ms was exceeded, {_OF_CLEANER}",
    "cleanable_partitions": "partitions of which compaction was due",
    "delayed_partitions": "those of them past max.compaction.lag.ms",
    "uncleanable_partitions_count": "those of them that could not be cleaned because of an error",
    "uncleanable_bytes": "dirty bytes of those",
    "remaining_logs_to_recover": "logs that a recovery has left to the next one, or to the broker",
    "remaining_segments_to_recover": "their segments that have to be read",
    "findings_fatal": "findings of that severity",
    "findings_error": "findings of that severity",
    "findings_warn": "findings of that severity",
    "findings_harmless": "findings of that severity",
    "findings_info": "findings of that severity",
}


class _Sample(NamedTuple):
    """One number of a root."""

    name: str
    value: float
    label: str | None = None
    label_value: str = ""


class MetricsFile:
    """A writer of a run's numbers into a whole text-format file.

    Args:
        path: Where to; node_exporter's textfile collector reads ``*.prom``.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.failure = f"{path}: metrics were not written"

    def tell(self, state: RunState) -> None:
        """Write the file when the run has ended."""
        if not state.is_start:
            write_to_textfile(self._path, registry_of(state, state.roots))


class MetricsPush:
    """A sender of a run's numbers to a Pushgateway, grouped by root. A path is one of this host:
    its group has the host's name as well."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.failure = f"{url}: metrics were not pushed"

    def tell(self, state: RunState) -> None:
        """Replace the group of each root when the run has ended."""
        for root in () if state.is_start else state.roots:
            group = {"action": str(state.row["action"]), "root": valid_text(root)}
            if local_path(root) is not None:
                group["instance"] = socket.gethostname()
            push_to_gateway(
                self._url,
                job=_JOB,
                registry=registry_of(state, [root]),
                grouping_key=group,
                timeout=_PUSH_SECONDS,
            )


def registry_of(state: RunState, roots: Iterable[str]) -> CollectorRegistry:
    """Return some roots' numbers, labelled with ``root`` and ``action``."""
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for root in roots:
        common = {"root": valid_text(root), "action": str(state.row["action"])}
        for name, value, label, label_value in _samples(state, root):
            labels = common if label is None else {**common, label: label_value}
            if name not in gauges:
                gauges[name] = Gauge(f"{_PREFIX}{name}", METRICS[name], labels, registry=registry)
            gauges[name].labels(**labels).set(value)
    return registry


def _samples(state: RunState, root: str) -> Iterator[_Sample]:
    yield _Sample("run_start_time_seconds", state.started.timestamp())
    yield _Sample("run_end_time_seconds", state.row["at"].timestamp())
    yield _Sample("run_exit_status", float(state.exit_code or 0))
    if state.report is None:
        return
    yield _Sample("run_duration_seconds", state.report.summary.duration_ms / 1000)
    rows = state.results_of(root)
    summary = state.summarise(rows, duration_ms=0)
    for status in (Status.DONE, Status.SKIPPED, Status.FAILED):
        count = getattr(summary, status.value)
        yield _Sample("run_partitions", count, "status", status.value)
    reasons = rows.filter(pc.equal(rows["status"], Status.SKIPPED.value))["reason"]
    for counted in pc.value_counts(reasons).to_pylist():
        reason = counted["values"] or ""
        yield _Sample("run_skipped_partitions", counted["counts"], "reason", reason)
    yield _Sample("run_bytes_before", summary.bytes_before)
    yield _Sample("run_bytes_after", summary.bytes_after)
    for gauge, value in state.report.gauges.get(root, {}).items():
        yield _Sample(gauge.replace("-", "_"), value)
