"""``pylog find``: every remaining version of a key, and possible gaps.

A gap is a place where other versions are missing.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from pylog_spark.cli.chosen_topics import topics_of
from pylog_spark.cli.progress_line import ProgressLine
from pylog_spark.cli.record_choice import keys_of
from pylog_spark.cli.row_lines import RowLines
from pylog_spark.cli.value_formats import key_format, value_format
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.arguments import said_as
from pylog_spark.options.choices import BytesFormat, OutputFormat
from pylog_spark.options.declared import (
    MAX_RECORDS,
    OUTPUT,
    PARTITIONS,
    ROOTS,
    TOPIC,
    TRASH,
    WIDE,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.record_text import (
    NotInFormatError,
    ValueFormat,
    format_value,
    is_json,
    not_in_format,
)
from pylog_spark.report import number_column, partition_name, time_column
from pylog_spark.run.progress import Progress
from pylog_spark.text import escaped, readable_bytes
from pylog_spark.text_table import NOTHING, Column, Row, TextTable, write_paragraphs, write_table
from storage_core.catalog.topic_filter import nearest_name
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError
from storage_core.reading.key_history import (
    DELETED,
    DIRECTORY,
    GENERATION,
    LOG,
    MOST_VERSIONS,
    PartitionHistory,
    Version,
    find_history,
)
from storage_core.reading.key_history import (
    TRASH as IN_TRASH,
)
from storage_core.roots.open_root import find_root
from storage_core.wording import count_text

# How keys and values are written; None where nobody says it.
_Formats = tuple[ValueFormat | None, ValueFormat | None]

_BAD: Final = "bold red"
_DATA: Final = ("key", "value")
# Of ``_version_row``.
_VERSION_COLUMNS: Final = (
    *("root", "topic", "partition", "offset", "timestamp", "is_tombstone", "is_visible"),
    *("transaction", "superseded_by", "copies", "key", "value"),
)
_SHOWN_BYTES: Final = 32
_NEWEST: Final = "the newest"
_PLACES: Final = {
    LOG: "log",
    DELETED: "deleted file",
    DIRECTORY: "directory",
    GENERATION: "generation",
    IN_TRASH: "trash",
}


def find(line: CommandLine) -> int:
    """Print all versions of the keys, and return the exit status.

    Raises:
        ConfigError: There is no such root or topic, a key is malformed, or a value is not in the
            format that is wanted.
        StorageError: A root or the trash cannot be listed.
    """
    keys = keys_of(line) or []
    said = key_format(line), value_format(line)
    rows: list[Row] = []
    histories: list[tuple[str, PartitionHistory]] = []
    is_found, is_whole = False, True
    is_table = line[OUTPUT] is OutputFormat.TABLE
    lines = None if is_table else RowLines(line[OUTPUT], "version", _VERSION_COLUMNS)
    with ProgressLine(is_shown=is_table) as progress:
        for root, history in _histories(line, keys, progress):
            is_found, is_whole = True, is_whole and not history.errors
            told = [_version_row(root, version) for version in history.versions]
            if lines is not None:
                _write_rows(lines, said, root, history, told)
                continue
            histories.append((root, history))
            rows += told
    if not is_found:
        there = topics_of(name for root in line[ROOTS] for name in find_root(root)[1])
        near = None if line[TOPIC] in there else nearest_name(line[TOPIC], there)
        meant = "" if near is None else f"; did you mean {near}?"
        reason = f"no such topic or partition in {', '.join(line[ROOTS])}{meant}"
        raise ConfigError("--topic", line[TOPIC], reason)
    if is_table:
        _write_table(line, said, rows, histories)
    return ExitCode.DONE if is_whole else ExitCode.PARTLY_FAILED


def _histories(
    line: CommandLine, keys: Sequence[bytes], progress: ProgressLine
) -> Iterator[tuple[str, PartitionHistory]]:
    now_ms = SystemClock().now_ms()
    trash = line[TRASH]
    if trash is not None and not Path(trash).is_dir():
        raise ConfigError(TRASH.label, trash, "there is no such folder")
    for root in line[ROOTS]:
        started = time.monotonic()

        def on_read(done_bytes: int, total_bytes: int, started: float = started) -> None:
            seconds = time.monotonic() - started
            progress.on_progress(
                Progress(done_bytes=done_bytes, total_bytes=total_bytes, seconds=seconds)
            )

        with said_as("ROOT", root):
            for history in find_history(
                root,
                line[TOPIC],
                keys,
                now_ms=now_ms,
                trash=None if trash is None else Path(trash),
                numbers=line[PARTITIONS],
                on_read=on_read,
                most=line[MAX_RECORDS] or MOST_VERSIONS,
            ):
                yield root, history


def _version_row(root: str, version: Version) -> Row:
    return {
        "root": root,
        "topic": version.partition.topic,
        "partition": version.partition.partition,
        "offset": version.offset,
        "timestamp": version.timestamp_ms,
        "is_tombstone": version.value is None,
        "is_visible": version.is_visible,
        "transaction": version.transaction,
        "superseded_by": version.superseded_by,
        "copies": [
            {"kind": copy.kind, "name": copy.name or None, "path": copy.path}
            for copy in version.copies
        ],
        "key": version.key,
        "value": version.value,
    }


def _write_rows(
    lines: RowLines,
    said: _Formats,
    root: str,
    history: PartitionHistory,
    rows: Sequence[Row],
) -> None:
    unsaid = BytesFormat.TEXT if lines.is_csv else BytesFormat.BASE64
    formats = dict(zip(_DATA, said, strict=True))
    for row in rows:
        fields = {name: value for name, value in row.items() if name not in formats}
        data = {name: _format(row, name, how or unsaid) for name, how in formats.items()}
        lines.add("version", fields, data)
    place = {
        "root": root,
        "topic": history.partition.topic,
        "partition": history.partition.partition,
    }
    facts: dict[str, Any] = {
        **place,
        "versions": len(rows),
        "left_out": history.left_out,
        "log_start_offset": history.log_start_offset,
        "is_whole": history.is_whole,
        "end_offset": history.end_offset,
        "erased_offsets": history.erased_offsets,
        "erased_from_offset": history.erased_from_offset,
        "cleaned_to": history.cleaned_to,
        "sentence": history.sentence,
    }
    lines.add("history", facts)
    for error in history.errors:
        lines.add("partition", {**place, **error})


def _format(row: Row, name: str, how: ValueFormat) -> str:
    """Return a version's key or value as JSON text.

    Raises:
        ConfigError: It is not in its format.
    """
    try:
        return format_value(row[name], how)
    except NotInFormatError as error:
        raise not_in_format(f"{row['offset']} of {partition_name(row)}", error) from error


def _write_table(
    line: CommandLine,
    said: _Formats,
    rows: Sequence[Row],
    histories: Sequence[tuple[str, PartitionHistory]],
) -> None:
    console, is_wide = Console(), line[WIDE]
    keys, values = (how or BytesFormat.TEXT for how in said)

    def shown(row: Row, name: str, how: ValueFormat) -> str:
        value: bytes | None = row[name]
        if value is None:
            return "null"
        limit = len(value) if is_wide else _SHOWN_BYTES
        if how in {BytesFormat.TEXT, BytesFormat.RAW}:
            return readable_bytes(value, limit=limit)
        whole = _format(row, name, how)
        text = escaped(whole) if is_json(how) else whole.strip('"')
        return text if is_wide or len(text) <= limit else f"{text[:limit]}..."

    torn = {
        (root, history.partition.topic, history.partition.partition)
        for root, history in histories
        if not history.is_whole
    }

    def state(row: Row) -> str:
        told = _state(row)
        if told.startswith(_NEWEST) and (row["root"], row["topic"], row["partition"]) in torn:
            return told.replace(_NEWEST, f"{_NEWEST} that was read")
        return told

    table = TextTable(
        columns=(
            Column(heading="partition", cell=partition_name, rank=4),
            Column(heading="key", cell=lambda row: shown(row, "key", keys), rank=5, folds=True),
            number_column("offset", "offset", rank=0),
            time_column("time", "timestamp", rank=3),
            Column(
                heading="value",
                cell=lambda row: shown(row, "value", values),
                folds=is_wide,
                style=lambda row: "dim" if row["is_tombstone"] else "",
            ),
            Column(heading="is", cell=state, style=_state_style),
            Column(heading="left in", cell=partial(_places, is_wide=is_wide), rank=1),
        )
    )
    count = f"{len(rows)} version{'s' * (len(rows) > 1)}" if rows else "no version is left"
    footer = [count, *_left_out(histories), *_runs(rows), *_sentences(histories, is_wide=is_wide)]
    write_table(console, table, rows, is_wide=is_wide, footer=footer)
    errors = (
        f"{root}: {history.partition}: {error['error']}"
        for root, history in histories
        for error in history.errors
    )
    write_paragraphs(console, errors, is_wide=is_wide, style=_BAD)


def _left_out(histories: Sequence[tuple[str, PartitionHistory]]) -> Iterator[str]:
    """Yield how many records are not told, if any."""
    count = sum(history.left_out for _, history in histories)
    if count:
        others = "1 older record is" if count == 1 else f"{count:,} older records are"
        yield f"{others} left out; {MAX_RECORDS.flag} says how many versions of a key are told"


def _sentences(
    histories: Sequence[tuple[str, PartitionHistory]], *, is_wide: bool
) -> Iterator[str]:
    """Yield the certain facts about partitions with versions.

    If wide, they are about all partitions.
    """
    told = [history for _, history in histories if history.versions or is_wide]
    yield from (history.sentence for history in told)
    if told:
        return
    erased = sum(
        bool(history.erased_offsets or history.log_start_offset) for _, history in histories
    )
    count = len(histories)
    what = count_text(count, "partition")
    torn = sum(not history.is_whole for _, history in histories)
    if torn:
        was = "was" if torn == 1 else "were"
        yield f"of {what}, {torn} {was} not read to the end: versions of the key may be there"
    if erased:
        yield (
            f"of {what}, {erased} {'has' if erased == 1 else 'have'} lost offsets to compaction, "
            "deletion, damage or a cut: versions of the key may have been among them; --wide "
            "says which"
        )
    elif not any(history.errors for _, history in histories):
        yield f"all of {what} was read, and nothing was ever erased there: there was no such key"


def _state(row: Row) -> str:
    if row["transaction"] is not None:
        return str(row["transaction"])
    if row["superseded_by"] is not None:
        return f"superseded by {row['superseded_by']:,}"
    return f"{_NEWEST}: deleted" if row["is_tombstone"] else _NEWEST


def _state_style(row: Row) -> str:
    if row["transaction"] is not None:
        return "yellow"
    return "dim" if row["superseded_by"] is not None else "green"


def _places(row: Row, *, is_wide: bool) -> str:
    places = (
        f"{_PLACES[copy['kind']]} {copy['name'] or ''}".rstrip()
        if is_wide
        else _PLACES[copy["kind"]]
        for copy in row["copies"]
    )
    return ", ".join(dict.fromkeys(places)) or NOTHING


def _runs(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each run with versions in its trash."""
    counts = Counter(
        copy["name"] for row in rows for copy in row["copies"] if copy["kind"] == IN_TRASH
    )
    yield from (f"{count} of them in the trash of run {run}" for run, count in counts.items())
