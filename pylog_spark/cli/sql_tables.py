"""The tables of ``pylog sql`` beside the topics: what lies in the roots, and the runs of a ledger.

The rows are those of the commands and views that show the same things.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, partial

import pyarrow as pa

from pylog_spark.cli.runner import load_options
from pylog_spark.options.declared import ROOTS
from pylog_spark.options.option import CommandLine
from pylog_spark.schemas import SQL_PREFIX, SQL_ROOT_VIEWS, SQL_VIEWS
from storage_core.clock import SystemClock
from storage_core.kafka_log import Logs


def system_tables(line: CommandLine, logs: Logs) -> Mapping[str, Callable[[], pa.Table]]:
    """Return what makes each table, by name."""
    makers: dict[str, Callable[[], pa.Table]] = {
        "partitions": logs.partitions,
        "segments": logs.segments,
        **{name: partial(_view, line, name) for name in SQL_ROOT_VIEWS},
        "runs": partial(_runs, line),
    }
    return {f"{SQL_PREFIX}{name}": make for name, make in makers.items()}


def system_columns() -> dict[str, list[str]]:
    """Return the columns of each table, by name."""
    from pylog_spark.operations.past_runs import PastRun  # noqa: PLC0415  # deltalake
    from pylog_spark.tasks.views import VIEWS  # noqa: PLC0415  # takes its time

    columns = {name: VIEWS[name].schema.names for name in SQL_VIEWS}
    columns["runs"] = [each.name for each in fields(PastRun)]
    return {f"{SQL_PREFIX}{name}": names for name, names in columns.items()}


def quoted_where_needed(name: str) -> str:
    """Return the name of a table or column as a query writes it."""
    is_plain = name.isascii() and name.isidentifier() and name.lower() not in _reserved_words()
    return name if is_plain else quoted(name)


def quoted(name: str) -> str:
    """Return the name of a table or column in quotes, as a query may always write it."""
    return '"{}"'.format(name.replace('"', '""'))


@cache
def _reserved_words() -> frozenset[str]:
    import duckdb  # noqa: PLC0415  # an extra

    query = """
        SELECT keyword_name FROM duckdb_keywords()
        WHERE keyword_category IN ('reserved', 'type_function')
    """
    with duckdb.connect() as connection:
        return frozenset(word for (word,) in connection.execute(query).fetchall())


def _view(line: CommandLine, name: str) -> pa.Table:
    from pylog_spark.tasks.views import VIEWS, FileView, ViewPart  # noqa: PLC0415  # takes its time

    view = VIEWS[name]
    assert isinstance(view, FileView)  # noqa: S101  # as all that are of roots
    part = ViewPart(
        roots=tuple(line[ROOTS]), partitions=(), topics=None, now_ms=SystemClock().now_ms()
    )
    return pa.Table.from_batches(view.show(part), view.schema)


def _runs(line: CommandLine) -> pa.Table:
    """Return all runs of the ledger and the trash that a command line names."""
    from pylog_spark.operations.past_runs import PastRun, list_past_runs  # noqa: PLC0415  # deltalake
    from pylog_spark.rows import table_of  # noqa: PLC0415  # with it

    options = load_options(line)
    runs = list_past_runs(options.ledger, options.trash, last=sys.maxsize)
    return table_of(PastRun, runs)
