"""``pylog cat``: a topic's records, in kcat's format or as JSON lines."""

import logging
import os
import stat
import sys
import time
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
from pylog_spark.cli.tiers import tell_requests
from pylog_spark.cli.value_formats import key_format, value_format
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.arguments import refuse_raw
from pylog_spark.options.choices import BytesFormat, OutputFormat
from pylog_spark.options.declared import (
    KEYS,
    MAX_RECORDS,
    NULL,
    OUTPUT,
    RECORD_FORMAT,
    ROOTS,
    SAMPLE,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.record_columns import batch_not_in_format, columns_beside, json_lines
from pylog_spark.record_text import NotInFormatError, ValueFormat
from storage_core.errors import ConfigError
from storage_core.kafka_log import COLUMNS
from storage_core.reading.request import DEFAULT_RANGE_BYTES
from storage_core.reading.sampling import WINDOW_BYTES

_log: Final = logging.getLogger(__name__)
# So often progress is shown: after so many bytes of files.
_WATCHED_BYTES: Final = 16 << 20
# A Python object a value: so many rows at a time.
_ROWS_AT_A_TIME = 4096


def cat(line: CommandLine) -> int:
    """Write records to standard output; return the exit status."""
    line = with_topic_and_roots(line)
    read: Callable[[CommandLine, Iterable[str]], Iterable[pa.RecordBatch]] = read_chosen
    if line[SAMPLE] is not None:
        read = _read_sample
    elif line[MAX_RECORDS] is None and is_watched():
        read = _read_watched
    write_records(line, partial(read, line))
    if line[MAX_RECORDS] is None:
        for sentence in find_open_ends(line):
            _log.warning("%s", sentence)
    tell_requests(line[ROOTS])
    return ExitCode.DONE


def _read_sample(line: CommandLine, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Return records at even distances."""
    most = line[SAMPLE] or 0
    for option in (MAX_RECORDS, KEYS):
        if option in line:
            reason = f"goes with no {option.label}: it chooses among all records"
            raise ConfigError(SAMPLE.label, most, reason)
    read = partial(read_chosen, line, columns, has_ends=True)
    records = read()
    range_bytes = max(records.size_bytes // most, WINDOW_BYTES)
    if range_bytes < DEFAULT_RANGE_BYTES:
        records = read(range_bytes=range_bytes)
    return records.sample(most)


def is_watched() -> bool:
    """Whether records go into a file while somebody looks at a terminal. In a pipe they may be on
    their way to the same terminal."""
    try:
        return sys.stderr.isatty() and stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except OSError:
        return False


def _read_watched(line: CommandLine, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the records that are asked for, and show how far their reading has come."""
    from pylog_spark.cli.runner import ProgressLine  # noqa: PLC0415  # as the next one
    from pylog_spark.run.progress import Progress  # noqa: PLC0415  # for a terminal alone

    records = read_chosen(line, columns, range_bytes=_WATCHED_BYTES)
    started, done_bytes = time.monotonic(), 0
    with ProgressLine(is_shown=True) as shown:
        for part in records.parts(_WATCHED_BYTES):
            yield from part
            done_bytes += part.size_bytes
            shown.on_progress(
                Progress(
                    done_bytes=done_bytes,
                    total_bytes=records.size_bytes,
                    seconds=time.monotonic() - started,
                )
            )


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
    records = read(dict.fromkeys([*form.columns, *columns_beside(keys, values)]))
    for batch in first_rows(records, line[MAX_RECORDS]):
        part, failure = batch, None
        while True:
            try:
                sys.stdout.buffer.write(form.render(part))
                break
            except NotInFormatError as error:  # of a key, perhaps behind such a value
                part, failure = batch.slice(0, error.row), error
        if failure is not None:
            raise batch_not_in_format(batch, failure) from failure


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
                sys.stdout.writelines(json_lines(part.slice(0, error.row), keys, values))
                raise batch_not_in_format(part, error) from error
