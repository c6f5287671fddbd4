"""Make ``kafka-log`` known to a Spark session, the function ``kafka_log``, and views of topics."""

import importlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pylog_spark.engines.session_facts import setting
from pylog_spark.rows import spark_ddl
from pylog_spark.schemas import SQL_PREFIX, SQL_VIEWS
from pylog_spark.source.data_source import FORMAT_NAME, KafkaLogDataSource
from pylog_spark.source.options import (
    PLAIN_COLUMNS,
    RECORDS,
    parse_options,
    parse_spark_bytes,
    warn_of_meaningless,
)
from pylog_spark.tasks.worker import freeze_modules
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError
from storage_core.reading.planning import plan_ranges
from storage_core.reading.ranges import read_range, schema_of

# The table function ``kafka_log``: records for users of SQL alone.
#
# ``SELECT * FROM kafka_log('/var/lib/kafka', topic => 'orders')``
#
# Spark gives a call of a function in Python to one task, has its columns fixed when it is
# registered, and lets no such function that speaks Arrow stand in a lateral join or in a function
# of SQL. So this is for a look; the format spreads over tasks, has all columns and all views.

FUNCTION_NAME: Final = "kafka_log"
_INSTEAD: Final = "CREATE TEMPORARY VIEW ... USING `kafka-log` OPTIONS (...)"
# A view costs a process of Python that says its columns.
_VIEWS_AT_ONCE: Final = 4

_log: Final = logging.getLogger(__name__)


class KafkaLogFunction:
    """One call of the function; Spark makes it in the task."""

    def eval(self, path: Any, topic: Any = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield records of topics, by partition, in order of offsets.

        Args:
            topic: The option ``subscribe``; NULL for all topics.
            options: The format's others, by name. Each is an array of the one value that the call
                has, as Spark hands it over.

        Raises:
            ConfigError: An option is wrong, or asks for other columns than the function has.
            PylogError: A log cannot be read.
        """
        freeze_modules()
        arguments = {"path": path, "subscribe": topic, **options}
        texts = {name: _text(name, array) for name, array in arguments.items() if array is not None}
        asked = parse_options({name: text for name, text in texts.items() if text is not None})
        if (asked.view, asked.columns, asked.typed) != (RECORDS, PLAIN_COLUMNS, None):
            said = {name: text for name, text in texts.items() if text is not None}
            reason = (
                f"Spark fixes the columns of a function: {', '.join(PLAIN_COLUMNS)}; for others: "
                f"CREATE TEMPORARY VIEW {_quoted(said.get('subscribe', 'records'))} {_using(said)}"
            )
            raise ConfigError(FUNCTION_NAME, None, reason)
        warn_of_meaningless(asked.without_meaning)
        for wanted in plan_ranges(asked.request, now_ms=SystemClock().now_ms()):
            yield from read_range(wanted)


class MissingFunction:
    """The function on a PySpark that has none of this kind."""

    def eval(self, *arguments: object, **options: object) -> Iterator[tuple[object, ...]]:
        """Say what there is in its place.

        Raises:
            ConfigError: Always.
        """
        del arguments, options
        raise ConfigError(FUNCTION_NAME, None, f"needs pyspark 4.1; there is {_INSTEAD}")


def register_function(spark: SparkSession) -> None:
    """Make the function known to a session."""
    # A Spark Connect session accepts only functions of its own kind.
    package = type(spark.udtf).__module__.rpartition(".")[0]
    functions = importlib.import_module(f"{package}.functions")
    columns = spark_ddl(schema_of(PLAIN_COLUMNS))
    function = (
        functions.arrow_udtf(KafkaLogFunction, returnType=columns)
        if hasattr(functions, "arrow_udtf")
        else functions.udtf(MissingFunction, returnType=columns)
    )
    spark.udtf.register(FUNCTION_NAME, function)


def _text(name: str, array: Any) -> str | None:
    """Return an argument's value as the format's text."""
    values = array.to_pylist() if isinstance(array, pa.Array) else []
    if len(values) != 1 or not isinstance(values[0], str | bool | int | None):
        raise ConfigError(name, None, "expected a text, a number or a truth; no table")
    return None if values[0] is None else str(values[0])


_MAX_PARTITION_BYTES: Final = "spark.sql.files.maxPartitionBytes"


def register(spark: SparkSession) -> None:
    """Let a session read ``spark.read.format("kafka-log")``; a second time changes nothing. SQL
    gets the table function ``kafka_log`` beside it.

    How much a task reads is what the session says of files then: Spark does not tell a source
    in Python of its settings later.

    Args:
        spark: The session, classic or Connect.

    Raises:
        ConfigError: The session's ``spark.sql.files.maxPartitionBytes`` is no amount of bytes.
    """
    task_bytes = KafkaLogDataSource.max_partition_bytes
    # A serverless session does not tell.
    if (limit := setting(spark, _MAX_PARTITION_BYTES)) is not None:
        task_bytes = parse_spark_bytes(_MAX_PARTITION_BYTES, limit)

    class SessionDataSource(KafkaLogDataSource):
        """The format with the session's settings. Spark pickles a local class with its values."""

        max_partition_bytes = task_bytes

    spark.dataSource.register(SessionDataSource)
    register_function(spark)


def create_views(
    spark: SparkSession, path: str | Sequence[str], *, pattern: str | None = None, **options: str
) -> list[str]:
    """Make temporary views for SQL: one of each topic, with the name of the topic, and
    ``pylog_partitions``, ``pylog_segments``, ``pylog_groups``, ``pylog_consumer_offsets``,
    ``pylog_transactions`` and ``pylog_open_transactions``: the tables of ``pylog sql``.

    A view of the same name is replaced. One shows what was there at its first query: make the views
    again to see new records.

    Args:
        spark: The session, classic or Connect.
        path: As for ``load``.
        pattern: Regular expression for the whole names of topics; None for all but the cluster's
            own metadata log.
        options: The format's, for all topics, such as ``valueFormat="registry"``. A topic that they
            do not fit, as one without a schema, has no view; a warning says why.

    Returns:
        The names of the views that were made.

    Raises:
        AnalysisException: There is no topic, or the options fit none.
    """
    register(spark)
    places = [path] if isinstance(path, str) else list(path)
    where = {"path": places[0]} if len(places) == 1 else {"paths": json.dumps(places)}
    of_tiers = ("withLocal", "decryptionKey", "topicId")
    where |= {name: options.pop(name) for name in of_tiers if name in options}
    chosen = where if pattern is None else where | {"subscribePattern": pattern}
    listed = spark.read.format(FORMAT_NAME).options(**chosen, view="partitions", columns="topic")
    topics = sorted(row.topic for row in listed.load().distinct().collect())
    views = {topic: where | options | {"subscribe": topic} for topic in topics}
    views |= {f"{SQL_PREFIX}{name}": where | {"view": name} for name in SQL_VIEWS}

    def create(name: str) -> AnalysisException | None:
        try:
            spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {_quoted(name)} {_using(views[name])}")
        except AnalysisException as error:
            return error
        return None

    with ThreadPoolExecutor(_VIEWS_AT_ONCE) as threads:
        failures = dict(zip(views, threads.map(create, views), strict=True))
    errors = [(name, error) for name, error in failures.items() if error is not None]
    if errors and len(errors) >= len(topics):
        raise errors[0][1]
    for name, error in errors:
        reasons = re.findall(r"^\S+Error: (.*)$", str(error), re.MULTILINE) or [error]
        _log.warning("kafka-log: no view %s: %s", name, reasons[-1])
    return [name for name, error in failures.items() if error is None]


def _using(options: Mapping[str, str]) -> str:
    """Return the end of a statement that makes a view with some options."""
    said = ", ".join(f"{_quoted(name)} {_literal(text)}" for name, text in options.items())
    return f"USING {_quoted(FORMAT_NAME)} OPTIONS ({said})"


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
