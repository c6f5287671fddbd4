"""Who is told when a run begins and how it ended, beside its ledger."""

from collections.abc import Iterator

from pylog_spark.options import JobOptions
from pylog_spark.run.run_log import RunLog
from pylog_spark.run.run_state import RunListener
from pylog_spark.structured_logs import is_json_logged


def open_listeners(options: JobOptions) -> tuple[RunListener, ...]:
    """Return who is told of a run with these options; of a dry run nobody is.

    Args:
        options: Of the run.
    """
    return () if options.dry_run else tuple(_listeners(options))


def _listeners(options: JobOptions) -> Iterator[RunListener]:
    # Each needs a package that the others do not.
    if is_json_logged():
        yield RunLog()
    if options.metrics_file is not None or options.metrics_push is not None:
        from pylog_spark.run.metrics import MetricsFile, MetricsPush  # noqa: PLC0415

        if options.metrics_file is not None:
            yield MetricsFile(options.metrics_file)
        if options.metrics_push is not None:
            yield MetricsPush(options.metrics_push)
