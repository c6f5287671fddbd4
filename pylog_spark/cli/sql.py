"""``pylog sql``: a query over topics as tables, by DuckDB."""

import json
import math
import os
import re
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pylog_spark.cli.cat import is_watched
from pylog_spark.cli.error_text import write_line
from pylog_spark.cli.runner import ProgressLine, show
from pylog_spark.cli.sql_file import check_file, unlike, write_file
from pylog_spark.cli.sql_tables import quoted_where_needed, system_columns, system_tables
from pylog_spark.cli.tiers import tell_requests, with_tiers
from pylog_spark.cli.value_formats import key_format, registry_columns, value_format
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.choices import AnswerFormat, BytesFormat, OutputFormat
from pylog_spark.options.declared import (
    ALLOW_DATA_LOSS,
    EXPORT_FORMAT,
    ISOLATION,
    LATENESS,
    MAX_RECORDS,
    OUT,
    OUTPUT,
    ROOTS,
    WIDE,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.record_columns import batch_not_in_format, text_column
from pylog_spark.record_text import NotInFormatError, RegistryFormat, ValueFormat
from pylog_spark.report import size_text
from pylog_spark.run.progress import Progress
from pylog_spark.view import NOTHING, Column, OutputLine, Table, TableKind, Verbatim, View
from storage_core import kafka_log
from storage_core.errors import ConfigError
from storage_core.kafka_log import open_logs
from storage_core.reading.arrow_dataset import LogDataset
from storage_core.store.open_objects import is_url
from storage_core.temporary_folder import temporary_folder
from storage_core.wording import count_text

_ROW: Final = "row"  # the kind of a line for a program
# So many rows are shown to a person who does not say how many.
_SHOWN_ROWS: Final = 100
_SHOWN_CHARACTERS: Final = 60  # of a value, without --wide
_ROWS_AT_A_TIME: Final = 4096
# Most answers are there before somebody would look for progress.
_PATIENCE_SECONDS: Final = 2.0
# Less than this is not worth a word about how to read less.
_LEAST_DOUBTFUL_BYTES: Final = 1 << 20
# A query reads what it names: neither Python's variables nor extensions from elsewhere.
_SETTINGS: Final = {
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
# DuckDB's own tree of a query as JSON; it makes none of a statement that changes something.
_PARSE: Final = """
    SELECT tree->>'$.error', tree->>'$.error_type', tree->>'$.error_message',
        json_array_length(tree->'$.statements'), tree->>'$..table_name'
    FROM (SELECT json_serialize_sql(?::VARCHAR)::JSON AS tree)
"""
_ALL_TABLES: Final = '"tables"'  # what SHOW TABLES reads, in that tree
_NAMED_TABLES: Final = 10


def sql(line: CommandLine) -> int:
    """Print the rows of a query; return the exit status."""
    *roots, query = line[ROOTS]
    if not roots and line.place is not None and not _is_place(query):
        roots += line.place.values.get(ROOTS.name, ())
    has_prompt = _is_place(query) and sys.stdin.isatty() and sys.stdout.isatty()
    if has_prompt:
        roots.append(query)
    elif not roots or _is_place(query):
        reason = 'expected ROOT... "SELECT ..."; a prompt needs a terminal'
        raise ConfigError("QUERY", query, reason)
    if has_prompt and OUT in line:
        raise ConfigError(OUT.label, line[OUT], "needs a query")
    line = with_tiers(line.with_written({ROOTS: roots}))
    to = None
    if OUT in line:
        to = check_file(line)
    elif EXPORT_FORMAT in line:
        raise ConfigError(
            EXPORT_FORMAT.label, line.written(EXPORT_FORMAT), f"is for {OUT.label} FILE"
        )
    duckdb = _import_duckdb()
    # By default DuckDB makes a folder `.tmp` in the working directory. Kafka refuses such a log
    # directory.
    with (
        temporary_folder("pylog-sql-") as scratch,
        duckdb.connect(config=_SETTINGS | {"temp_directory": str(scratch)}) as connection,
    ):
        connection.execute("SET TimeZone = 'UTC'")
        if has_prompt:
            from pylog_spark.cli.sql_prompt import run_prompt  # noqa: PLC0415  # for a person alone

            run_prompt(
                lambda text: _answer(connection, line, text, None),
                partial(_columns, line),
                connection.interrupt,
            )
            status = int(ExitCode.DONE)
        else:
            status = _answer(connection, line, query, to)
    tell_requests(roots)
    return status


def _is_place(text: str) -> bool:
    """Whether an argument is a root, not a query."""
    return is_url(text) or os.path.isdir(text)  # noqa: PTH112  # a query may be no name at all


def _columns(line: CommandLine) -> dict[str, list[str]]:
    """Return the columns of each table there is, by name."""
    topics = open_logs(*line[ROOTS]).topics()
    return {topic: list(kafka_log.COLUMNS) for topic in topics} | system_columns()


def _answer(connection: Any, line: CommandLine, query: str, to: AnswerFormat | None) -> int:
    """Show the rows of a query, or write them to a file; return the exit status."""
    duckdb = _import_duckdb()
    read: list[LogDataset] = []
    is_table = to is not None or line[OUTPUT] is OutputFormat.TABLE
    try:
        with ProgressLine(
            is_shown=is_table or is_watched(), after_seconds=_PATIENCE_SECONDS
        ) as progress:
            read += _register_tables(connection, line, query)
            _watch(read, progress)
            if to is not None:
                view = _view_of_file(line, write_file(connection, query, line, to), to)
            else:
                view = _view_of_rows(line, connection.sql(query).to_arrow_reader(_ROWS_AT_A_TIME))
            if not is_table:
                status = show(view, line)
        if is_table:
            status = show(view, line)
    except duckdb.Error as error:
        for dataset in read:
            if dataset.failure is not None:
                raise dataset.failure from error
        reason = " ".join(str(error).split())
        if isinstance(error, duckdb.CatalogException):
            # DuckDB's guess knows only tables that are made.
            logs = open_logs(*line[ROOTS])
            tables = [*logs.topics(), *system_tables(line, logs)][:_NAMED_TABLES]
            reason = f"{reason.partition(' Did you mean')[0]} There are {', '.join(tables)}, ..."
            reason += _missing_quotes(query, logs.topics())
        raise ConfigError("QUERY", query, reason) from error
    _tell_read(read)
    return status


def _watch(read: Sequence[LogDataset], progress: ProgressLine) -> None:
    """Show how far a query has read its topics."""
    started = time.monotonic()

    def show_progress() -> None:
        done_bytes = sum(each.done_bytes for each in read)
        progress.on_progress(
            Progress(
                done_bytes=done_bytes,
                total_bytes=max(done_bytes, sum(each.planned_bytes for each in read)),
                seconds=time.monotonic() - started,
            )
        )

    for each in read:
        each.on_read = show_progress


def _tell_read(read: Sequence[LogDataset]) -> None:
    """Write to standard error how much of the topics a query has read."""
    if not read:
        return
    total, whole, doubtful = (
        sum(getattr(each, name) for each in read)
        for name in ("read_bytes", "size_bytes", "doubtful_bytes")
    )
    text = f"read {size_text(total)} from segments of {size_text(whole)}"
    if doubtful >= _LEAST_DOUBTFUL_BYTES:
        text += (
            f"; {size_text(doubtful)} of it lies behind the latest timestamp, where late records "
            f"may be: {LATENESS.label} TIME ends the reading there"
        )
    write_line(text)


def _view_of_file(line: CommandLine, count: int, to: AnswerFormat) -> View:
    out = Path(line[OUT])
    size = out.stat().st_size
    row = {"out": str(out), "format": to.value, "records": count, "size_bytes": size}
    sentence = f"{count_text(count, 'row')} in {out}: {size_text(size)}, {to}"
    return View(
        lines=[OutputLine("file", row)],
        csv=("file", row),
        blocks=[Verbatim(sentence)],
        status=ExitCode.DONE,
    )


def _import_duckdb() -> Any:
    try:
        import duckdb  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        reason = "duckdb is not installed: pip install 'pylog-spark[sql]'"
        raise ConfigError("sql", None, reason) from error
    return duckdb


def _register_tables(connection: Any, line: CommandLine, query: str) -> Iterator[LogDataset]:
    """Make tables of what a query names; yield those of topics."""
    logs = open_logs(*line[ROOTS])
    topics = logs.topics()
    how = {"isolation": line[ISOLATION].value, "fail_on_data_loss": not line[ALLOW_DATA_LOSS]}
    most_ms = line[LATENESS]
    lateness = None if most_ms is None else timedelta(milliseconds=most_ms)
    formats = {"key": key_format(line), "value": value_format(line)}
    texts: dict[str, Callable[[pa.RecordBatch], pa.Array]] = {
        name: partial(_as_text, name=name, how=written or BytesFormat.TEXT)
        for name, written in formats.items()
        if written is not BytesFormat.RAW and not isinstance(written, RegistryFormat)
    }
    tables = system_tables(line, logs)
    for name in _meant_tables(
        query, _table_names(connection, query, topics), [_ALL_TABLES, *topics, *tables]
    ):
        if name == _ALL_TABLES:
            for table in (*topics, *tables):
                connection.register(table, pa.table({"of": pa.nulls(0)}))
        elif name in topics:
            typed = registry_columns(line, [name], formats).get(name)
            dataset = LogDataset(logs, name, how, texts, typed=typed, lateness=lateness)
            connection.register(name, dataset)
            yield dataset
        else:
            connection.register(name, tables[name]())


def _as_text(batch: pa.RecordBatch, *, name: str, how: ValueFormat) -> pa.Array:
    try:
        return text_column(batch.column(name), how)
    except NotInFormatError as error:
        raise batch_not_in_format(batch, error) from error


def _table_names(connection: Any, query: str, topics: Iterable[str]) -> list[str]:
    """Return the tables that a query names, and its own names among them.

    Raises:
        ConfigError: It is not one query: malformed, several, or a statement that changes something.
    """
    ((is_refused, kind, reason, count, names),) = connection.execute(_PARSE, [query]).fetchall()
    if is_refused == "true":
        if kind == "not implemented":  # a statement without a tree
            reason = "expected a SELECT, DESCRIBE, SUMMARIZE or SHOW TABLES"
        raise ConfigError("QUERY", query, reason + _missing_quotes(query, topics))
    if count != 1:
        raise ConfigError("QUERY", query, f"expected one query, found {count}")
    return list(dict.fromkeys(names))


def _missing_quotes(query: str, topics: Iterable[str]) -> str:
    """Return a hint at topics that a query names without the quotes that they need."""
    for topic in topics:
        name = quoted_where_needed(topic)
        if name != topic and re.search(rf"(?<![\w\"'-]){re.escape(topic)}(?![\w\"'-])", query):
            return f"; the topic needs quotes: {name}"
    return ""


def _meant_tables(query: str, names: Iterable[str], tables: Sequence[str]) -> list[str]:
    """Return the tables that the names of a query mean.

    To DuckDB `Orders` and `orders` are one name; to Kafka they are two topics.

    Raises:
        ConfigError: The query means two such tables, or does not say which.
    """
    meant: dict[str, set[str]] = {}
    for name in names:
        like = [table for table in tables if table.lower() == name.lower()]
        meant.setdefault(name.lower(), set()).update([name] if name in like else like)
    for several in meant.values():
        if len(several) > 1:
            text = " and ".join(sorted(several))
            raise ConfigError(
                "QUERY", query, f"{text} are one name in SQL: ask for one of them, as it is written"
            )
    return [name for (name,) in filter(None, meant.values())]


def _view_of_rows(line: CommandLine, reader: pa.RecordBatchReader) -> View:
    """Return the rows of a result: those of a table at once, others while they are printed."""
    names = unlike(reader.schema.names, taken=["type"])  # a line's kind has that name
    most = line[MAX_RECORDS]
    values = (
        row
        for batch in reader
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    if line[OUTPUT] is OutputFormat.TABLE:
        shown = list(islice(values, most or _SHOWN_ROWS))
        columns = tuple(
            _column(field, name, is_wide=line[WIDE])
            for field, name in zip(reader.schema, names, strict=True)
        )
        notes = [] if shown else ["no rows"]
        if most is None and next(values, None) is not None:
            notes = [f"these are the first {_SHOWN_ROWS} rows: --max N, or --output json, has more"]
        rows = [dict(zip(names, row, strict=True)) for row in shown]
        table = Table(kind=TableKind(columns=columns), rows=rows)
        return View(lines=(), blocks=[table], notes=notes, status=ExitCode.DONE)
    kinds = reader.schema.types
    lines = (
        OutputLine(_ROW, {}, data=dict(zip(names, map(_json_text, row, kinds), strict=True)))
        for row in islice(values, most)
    )
    return View(lines=lines, csv=(_ROW, names), blocks=(), status=ExitCode.DONE)


def _json_text(value: Any, kind: pa.DataType) -> str:
    return json.dumps(_plain(value, kind), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value as JSON has it: times in ISO 8601, bytes in Base64.

    Args:
        kind: Its type, which tells maps from lists.
    """
    match value:
        case None | bool() | int() | str():
            plain: Any = value
        case datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            plain = aware.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case bytes():
            plain = b64encode(value).decode()
        case Decimal() if value == value.to_integral_value():
            plain = int(value)
        case float() if math.isfinite(value):
            plain = value
        case pa.MonthDayNano():
            plain = _span_text(value)
        case list() if pa.types.is_map(kind):
            plain = {
                str(_plain(name, kind.key_type)): _plain(each, kind.item_type)
                for name, each in value
            }
        case list():
            plain = [_plain(each, getattr(kind, "value_type", kind)) for each in value]
        case dict():
            plain = {name: _plain(each, kind.field(name).type) for name, each in value.items()}
        case _:
            plain = str(value)
    return plain


def _span_text(span: Any) -> str:
    """Return an interval in ISO 8601, such as P1DT2H."""
    seconds = Decimal(span.nanoseconds).scaleb(-9)
    days = "".join(f"{n}{unit}" for n, unit in ((span.months, "M"), (span.days, "D")) if n)
    return f"P{days}" + (f"T{seconds.normalize():f}S" if seconds or not days else "")


def _column(field: pa.Field, name: str, *, is_wide: bool) -> Column:
    kind = field.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return Column(
        heading=name,
        cell=partial(_cell, name=name, kind=kind, limit=None if is_wide else _SHOWN_CHARACTERS),
        is_number=is_number,
        folds=not is_number,
    )


def _cell(row: Mapping[str, Any], *, name: str, kind: pa.DataType, limit: int | None) -> str:
    value = row[name]
    if value is None:
        return NOTHING
    # A person is shown all of a decimal's places.
    plain = f"{value:f}" if isinstance(value, Decimal) else _plain(value, kind)
    text = plain if isinstance(plain, str) else _json_text(value, kind)
    return text if limit is None or len(text) <= limit else f"{text[: limit - 3]}..."
