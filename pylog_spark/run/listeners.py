"""Who is told when a run begins and how it ended, beside its ledger."""

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Final

from pylog_spark.options import JobOptions
from pylog_spark.run.run_log import RunLog
from pylog_spark.run.run_state import RunListener
from pylog_spark.structured_logs import is_json_logged

_log: Final = logging.getLogger(__name__)

# How OpenLineage's client is told where its events go.
_LINEAGE_VARIABLES: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")


def open_listeners(
    options: JobOptions, environment: Mapping[str, str] = os.environ
) -> tuple[RunListener, ...]:
    """Return who is told of a run with these options; of a dry run nobody is.

    Args:
        options: Of the run.
        environment: Variables of this process.
    """
    return () if options.dry_run else tuple(_listeners(options, environment))


def _listeners(options: JobOptions, environment: Mapping[str, str]) -> Iterator[RunListener]:
    # Each needs a package that the others do not.
    if is_json_logged():
        yield RunLog()
    if options.metrics_file is not None or options.metrics_push is not None:
        from pylog_spark.run.metrics import MetricsFile, MetricsPush  # noqa: PLC0415

        if options.metrics_file is not None:
            yield MetricsFile(options.metrics_file)
        if options.metrics_push is not None:
            yield MetricsPush(options.metrics_push)
    if any(name.startswith(_LINEAGE_VARIABLES) for name in environment):
        try:
            from pylog_spark.run.lineage import Lineage  # noqa: PLC0415
        except ImportError as error:
            _log.warning(
                "OpenLineage is not told of the run: %s: pip install 'pylog-spark[openlineage]'",
                error,
            )
        else:
            yield Lineage()
