"""``pylog cat``: a topic's records, in kcat's format or as JSON lines."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa

from pylog_spark.cli.record_choice import (
    RecordFormat,
    find_open_ends,
    first_rows,
    read_chosen,
    with_topic_and_roots,
)
from pylog_spark.cli.value_formats import key_format, value_format
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.arguments import refuse_raw
from pylog_spark.options.choices import BytesFormat, OutputFormat
from pylog_spark.options.declared import (
    MAX_RECORDS,
    NULL,
    OUTPUT,
    RECORD_FORMAT,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.record_text import (
    NAMES,
    NotInFormatError,
    ValueFormat,
    batch_not_in_format,
    is_json,
    json_lines,
)
from storage_core.kafka_log import COLUMNS

_log: Final = logging.getLogger(__name__)
# A Python object a value: so many rows at a time.
_ROWS_AT_A_TIME = 4096


def cat(line: CommandLine) -> int:
    """Write records to standard output; return the exit status."""
    line = with_topic_and_roots(line)
    write_records(line, partial(read_chosen, line))
    if line[MAX_RECORDS] is None:
        for sentence in find_open_ends(line):
            _log.warning("%s", sentence)
    return ExitCode.DONE


def write_records(
    line: CommandLine, read: Callable[[Iterable[str]], Iterable[pa.RecordBatch]]
) -> None:
    """Write records to standard output, as a command line asks for them.

    Args:
        line: Formats, and how many records at most.
        read: Returns the records with some columns of ``kafka_log.COLUMNS``; no batch is empty.
    """
    keys, values = _formats(line)
    if line[OUTPUT] is OutputFormat.JSON:
        _write_json(first_rows(read(COLUMNS), line[MAX_RECORDS]), keys, values)
        return
    null = line[NULL].encode("utf-8", "surrogateescape")
    form = RecordFormat(line[RECORD_FORMAT], keys=keys, values=values, null=null)
    names = NAMES if is_json(keys) or is_json(values) else ()
    records = read(dict.fromkeys([*form.columns, *names]))
    for batch in first_rows(records, line[MAX_RECORDS]):
        try:
            rendered = form.render(batch)
        except NotInFormatError as error:
            raise batch_not_in_format(batch, error) from error
        sys.stdout.buffer.write(rendered)


def _formats(line: CommandLine) -> tuple[ValueFormat, ValueFormat]:
    """Return how keys and values are written."""
    as_json = line[OUTPUT] is OutputFormat.JSON
    # A terminal acts upon control characters; a pipe takes what there is.
    for_person = BytesFormat.TEXT if _is_terminal() else BytesFormat.RAW
    unsaid = BytesFormat.BASE64 if as_json else for_person
    if as_json:
        refuse_raw(line, "JSON has no place for raw bytes: text, hex, base64 or json")
    return key_format(line) or unsaid, value_format(line) or unsaid


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _write_json(batches: Iterator[pa.RecordBatch], keys: ValueFormat, values: ValueFormat) -> None:
    for batch in batches:
        for first in range(0, batch.num_rows, _ROWS_AT_A_TIME):
            part = batch.slice(first, _ROWS_AT_A_TIME)
            try:
                sys.stdout.write("".join(json_lines(part, keys, values)))
            except NotInFormatError as error:
                raise batch_not_in_format(part, error) from error
