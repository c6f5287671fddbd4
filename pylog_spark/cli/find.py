"""``pylog find``: every remaining version of a key, and possible gaps. A gap is a place where
other versions are missing."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from pylog_spark.cli.record_choice import find_open_transactions, keys_of
from pylog_spark.cli.runner import ProgressLine, show, topics_of
from pylog_spark.cli.tiers import tell_requests, with_tiers
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
from pylog_spark.view import (
    NOTHING,
    Block,
    Column,
    OutputLine,
    Row,
    Sentence,
    Table,
    TableKind,
    View,
)
from storage_core.catalog.topic_filter import nearest_name
from storage_core.clock import SystemClock
from storage_core.coordinators.transactions import TransactionOutcome
from storage_core.errors import ConfigError
from storage_core.filenames import TopicPartition
from storage_core.reading.key_history import (
    DELETED,
    DIRECTORY,
    GENERATION,
    LOG,
    MOST_VERSIONS,
    PartitionHistory,
    Version,
    find_history,
    with_outcomes,
)
from storage_core.reading.key_history import (
    TRASH as IN_TRASH,
)
from storage_core.roots.open_root import find_root
from storage_core.wording import count_text

_BAD: Final = "bold red"
# Of ``_version_row``.
_VERSION_COLUMNS: Final = (
    *("root", "topic", "partition", "offset", "timestamp", "is_tombstone", "is_visible"),
    *("transaction", "superseded_by", "copies", "key", "value"),
)
_HEADERS: Final = "headers"  # of a row, for its value alone
_SHOWN_BYTES: Final = 32
_NEWEST: Final = "the newest"
# Of open transactions: their markers are still to come.
_DECIDED: Final = {
    TransactionOutcome.COMMIT: "commit decided",
    TransactionOutcome.ABORT: "abort decided",
}
_PLACES: Final = {
    LOG: "log",
    DELETED: "deleted file",
    DIRECTORY: "directory",
    GENERATION: "generation",
    IN_TRASH: "trash",
}


def find(line: CommandLine) -> int:
    """Print all versions of the keys, and return the exit status."""
    search = _Search(with_tiers(line))
    view = View(
        lines=search.lines(),
        csv=("version", _VERSION_COLUMNS),
        blocks=search.blocks(),
        status=lambda: ExitCode.DONE if search.is_whole else ExitCode.PARTLY_FAILED,
    )
    status = show(view, line)
    tell_requests(line[ROOTS])
    return status


class _Search:
    """Looks for keys, partition by partition.

    Attributes:
        is_whole: Whether all that was looked at so far could be read.
    """

    def __init__(self, line: CommandLine) -> None:
        self._line = line
        self._keys = keys_of(line) or []
        # None where nobody says how they are written.
        self._formats = {"key": key_format(line), "value": value_format(line)}
        self._open: dict[TopicPartition, list[dict[str, Any]]] | None = None
        self.is_whole = True

    def _with_outcomes(self, root: str, history: PartitionHistory) -> PartitionHistory:
        """Return a history with what coordinators in all of the roots have decided."""
        if all(version.producer_id is None for version in history.versions):
            return history
        if self._open is None:
            self._open = {}
            for row in find_open_transactions(self._line[ROOTS], self._line[TOPIC]):
                place = TopicPartition(row["topic"], row["partition"])
                self._open.setdefault(place, []).append(row)
        location = find_root(root)[0].location
        rows = [row for row in self._open.get(history.partition, ()) if row["root"] == location]

        def outcome_of(producer_id: int, offset: int) -> str | None:
            outcomes = (
                str(row["outcome"])
                for row in rows
                if row["producer_id"] == producer_id and row["first_offset"] <= offset
            )
            return next(outcomes, None)

        return with_outcomes(history, outcome_of)

    def _histories(self, progress: ProgressLine) -> Iterator[tuple[str, PartitionHistory]]:
        """Yield the history of the keys in each partition, with its root."""
        line, now_ms = self._line, SystemClock().now_ms()
        trash = line[TRASH]
        if trash is not None and not Path(trash).is_dir():
            raise ConfigError(TRASH.label, trash, "there is no such folder")
        missing = {*line[TOPIC]}
        for root in line[ROOTS]:
            started = time.monotonic()

            def on_read(done_bytes: int, total_bytes: int, started: float = started) -> None:
                seconds = time.monotonic() - started
                progress.on_progress(
                    Progress(done_bytes=done_bytes, total_bytes=total_bytes, seconds=seconds)
                )

            for topic in dict.fromkeys(line[TOPIC]):
                with said_as("ROOT", root):
                    for history in find_history(
                        root,
                        topic,
                        self._keys,
                        now_ms=now_ms,
                        trash=None if trash is None else Path(trash),
                        numbers=line[PARTITIONS],
                        on_read=on_read,
                        most=line[MAX_RECORDS] or MOST_VERSIONS,
                    ):
                        missing.discard(topic)
                        self.is_whole &= not history.errors
                        yield root, self._with_outcomes(root, history)
        for topic in sorted(missing):
            topics = topics_of(name for root in line[ROOTS] for name in find_root(root)[1])
            near = None if topic in topics else nearest_name(topic, topics)
            meant = "" if near is None else f"; did you mean {near}?"
            reason = f"no such topic or partition in {', '.join(line[ROOTS])}{meant}"
            raise ConfigError("--topic", topic, reason)

    def lines(self) -> Iterator[OutputLine]:
        """Yield versions, partition by partition, with each partition's history."""
        default = BytesFormat.BASE64
        if self._line[OUTPUT] is OutputFormat.CSV:
            default = BytesFormat.TEXT
        for root, history in self._histories(ProgressLine(is_shown=False)):
            for version in history.versions:
                row = _version_row(root, version)
                beside = {*self._formats, _HEADERS}
                facts = {name: value for name, value in row.items() if name not in beside}
                data = {
                    name: _format(row, name, how or default) for name, how in self._formats.items()
                }
                yield OutputLine("version", facts, data)
            place = {
                "root": root,
                "topic": history.partition.topic,
                "partition": history.partition.partition,
            }
            facts = {
                **place,
                "versions": len(history.versions),
                "left_out": history.left_out,
                "log_start_offset": history.log_start_offset,
                "is_whole": history.is_whole,
                "end_offset": history.end_offset,
                "erased_offsets": history.erased_offsets,
                "erased_from_offset": history.erased_from_offset,
                "cleaned_to": history.cleaner_offset,
                "sentence": history.sentence,
            }
            yield OutputLine("history", facts)
            yield from (OutputLine("partition", {**place, **error}) for error in history.errors)

    def blocks(self) -> Iterator[Block]:
        """Yield a table of all versions, and facts about each partition."""
        is_wide = self._line[WIDE]
        with ProgressLine(is_shown=True) as progress:
            histories = list(self._histories(progress))
        rows = [
            _version_row(root, version)
            for root, history in histories
            for version in history.versions
        ]
        torn = {
            (root, history.partition.topic, history.partition.partition)
            for root, history in histories
            if not history.is_whole
        }

        def state(row: Row) -> str:
            text = _state(row)
            if text.startswith(_NEWEST) and (row["root"], row["topic"], row["partition"]) in torn:
                return text.replace(_NEWEST, f"{_NEWEST} that was read")
            return text

        def state_style(row: Row) -> str:
            if row["transaction"] is not None:
                return "yellow"
            return "dim" if row["superseded_by"] is not None else "green"

        kind = TableKind(
            columns=(
                Column(heading="partition", cell=partition_name, rank=4),
                Column(heading="key", cell=partial(self._text, "key"), rank=5, folds=True),
                number_column("offset", "offset", rank=0),
                time_column("time", "timestamp", rank=3),
                Column(
                    heading="value",
                    cell=partial(self._text, "value"),
                    folds=is_wide,
                    style=lambda row: "dim" if row["is_tombstone"] else "",
                ),
                Column(heading="is", cell=state, style=state_style),
                Column(heading="left in", cell=partial(_places, is_wide=is_wide), rank=1),
            )
        )
        yield Table(kind=kind, rows=rows)
        yield f"{len(rows)} version{'s' * (len(rows) > 1)}" if rows else "no version is left"
        left_out = sum(history.left_out for _, history in histories)
        if left_out:
            others = "1 older record is" if left_out == 1 else f"{left_out:,} older records are"
            yield f"{others} left out; {MAX_RECORDS.flag} says how many versions of a key are told"
        runs = Counter(
            copy["name"] for row in rows for copy in row["copies"] if copy["kind"] == IN_TRASH
        )
        yield from (f"{count} of them in the trash of run {run}" for run, count in runs.items())
        yield from _sentences([history for _, history in histories], is_wide=is_wide)
        for root, history in histories:
            for error in history.errors:
                yield Sentence(f"{root}: {history.partition}: {error['error']}", _BAD)

    def _text(self, name: str, row: Row) -> str:
        """Return a version's key or value for a table."""
        value: bytes | None = row[name]
        if value is None:
            return "null"
        how, is_wide = self._formats[name] or BytesFormat.TEXT, self._line[WIDE]
        limit = len(value) if is_wide else _SHOWN_BYTES
        if how in {BytesFormat.TEXT, BytesFormat.RAW}:
            return readable_bytes(value, limit=limit)
        whole = _format(row, name, how)
        text = escaped(whole) if is_json(how) else whole.strip('"')
        return text if is_wide or len(text) <= limit else f"{text[:limit]}..."


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
        _HEADERS: version.headers,
    }


def _format(row: Row, name: str, how: ValueFormat) -> str:
    """Return a version's key or value as JSON text."""
    try:
        return format_value(row[name], how, row[_HEADERS])
    except NotInFormatError as error:
        raise not_in_format(f"{row['offset']} of {partition_name(row)}", error) from error


def _sentences(histories: Sequence[PartitionHistory], *, is_wide: bool) -> Iterator[str]:
    """Yield the certain facts about partitions with versions. If wide, they are about all
    partitions."""
    sentences = [history.sentence for history in histories if history.versions or is_wide]
    yield from sentences
    if sentences:
        return
    erased = sum(bool(history.erased_offsets or history.log_start_offset) for history in histories)
    what = count_text(len(histories), "partition")
    torn = sum(not history.is_whole for history in histories)
    if torn:
        was = "was" if torn == 1 else "were"
        yield f"of {what}, {torn} {was} not read to the end: versions of the key may be there"
    if erased:
        yield (
            f"of {what}, {erased} {'has' if erased == 1 else 'have'} lost offsets to compaction, "
            "deletion, damage or a cut: versions of the key may have been among them; --wide "
            "says which"
        )
    elif not any(history.errors for history in histories):
        yield f"all of {what} was read, and nothing was ever erased there: there was no such key"


def _state(row: Row) -> str:
    if row["transaction"] is not None:
        return _DECIDED.get(row["transaction"], str(row["transaction"]))
    if row["superseded_by"] is not None:
        return f"superseded by {row['superseded_by']:,}"
    return f"{_NEWEST}: deleted" if row["is_tombstone"] else _NEWEST


def _places(row: Row, *, is_wide: bool) -> str:
    places = (
        f"{_PLACES[copy['kind']]} {copy['name'] or ''}".rstrip()
        if is_wide
        else _PLACES[copy["kind"]]
        for copy in row["copies"]
    )
    return ", ".join(dict.fromkeys(places)) or NOTHING
