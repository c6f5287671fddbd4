"""``pylog salvage``: the records of recoveries' cuts, and their replay. A replay is the way back
into a log."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pylog_spark.cli.cat import write_records
from pylog_spark.cli.error_text import write_line
from pylog_spark.cli.runner import check_topics, load_options, show
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.salvage import (
    ReplayRow,
    SalvagedRow,
    look_at_salvage,
    replay_salvage,
)
from pylog_spark.options.declared import (
    AS_RECORDS,
    DRY_RUN,
    EXCLUDE,
    ROOTS,
    SALVAGED,
    TOPICS,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.outcomes import Status
from pylog_spark.report import PARTITION, error_text, number_column, size_column, text_column
from pylog_spark.view import Row, Table, TableKind, View, lines_of
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.kafka_log import open_logs
from storage_core.maintenance.recovery.salvage import find_salvaged
from storage_core.wording import count_text

_SHOWN_REASONS: Final = 3


def _why_cut(row: Row) -> str:
    cuts: Sequence[Any] = row["cuts"]
    more = len(cuts) - _SHOWN_REASONS
    reasons = [cut["why"] for cut in cuts[:_SHOWN_REASONS]]
    return "; ".join([*reasons, *([f"and {count_text(more, 'more cut')}"] if more > 0 else [])])


_SALVAGE_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        number_column("records", "records", rank=0),
        number_column("from", "first_offset", rank=1),
        number_column("to", "last_offset", rank=1),
        number_column("in the log", "doubled_records", rank=0),
        number_column("behind its end", "free_records", rank=0),
        number_column("passed", "passed_records", rank=0),
        size_column("raw", "raw_bytes", rank=2),
    ),
    note=_why_cut,
    note_heading="why it was cut",
)
_REPLAY_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        text_column("status", "status"),
        number_column("appended", "appended_records", rank=0),
        number_column("in the log", "doubled_records", rank=0),
        number_column("passed", "passed_records", rank=0),
        number_column("from", "old_log_end_offset", rank=2),
        number_column("log ends at", "log_end_offset", rank=1),
    ),
    note=lambda row: error_text(row) if row["error"] else row["reason"] or "",
)


def show_salvage(line: CommandLine) -> int:
    """Print a salvage folder's content beside the logs; return the exit status."""
    _check_topics(line)
    topics = TopicFilter(topics=line[TOPICS], exclude=line[EXCLUDE])
    salvaged = look_at_salvage(line[SALVAGED], line[ROOTS], topics)
    rows = [_salvage_row(each) for each in salvaged]
    view = View(
        lines=lines_of("salvaged", rows),
        csv=("salvaged", rows[0] if rows else ()),
        blocks=[
            Table(kind=_SALVAGE_TABLE, rows=rows),
            *_salvage_notes(line[SALVAGED], salvaged),
        ],
        status=ExitCode.DONE,
    )
    return show(view, line)


def replay(line: CommandLine) -> int:
    """Append salvaged records or write them out; return the exit status."""
    _check_topics(line)
    if line[AS_RECORDS]:
        return _write_records(line)
    rows = replay_salvage(line[SALVAGED], line[ROOTS], load_options(line))
    if any(row.status is Status.FAILED for row in rows):
        status = ExitCode.PARTLY_FAILED
    elif any(row.error is not None for row in rows):
        status = ExitCode.REFUSED
    else:
        status = ExitCode.FINDINGS if any(row.passed for row in rows) else ExitCode.DONE
    described = [_replay_row(row) for row in rows]
    view = View(
        lines=lines_of("replayed", described),
        blocks=[Table(kind=_REPLAY_TABLE, rows=described), *_replay_notes(line, rows)],
        status=status,
    )
    return show(view, line)


def _check_topics(line: CommandLine) -> None:
    """Refuse an unknown topic name; report patterns without a topic. The topics are those of the
    salvage folder."""
    folder = line[SALVAGED]
    topics = {each.partition.topic for each in find_salvaged(folder)}
    for note in check_topics(line[TOPICS], line[EXCLUDE], topics, [str(folder)]):
        write_line(note)


def _write_records(line: CommandLine) -> int:
    """Write the records missing in the logs; count the others. The count goes to standard error."""
    topics = TopicFilter(topics=line[TOPICS], exclude=line[EXCLUDE])
    salvaged = look_at_salvage(line[SALVAGED], line[ROOTS], topics)

    def read(columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
        listed = tuple(columns)
        for each in salvaged:
            logs = open_logs(each.salvaged.directory)
            for first, last in each.contents.kept_offsets:
                yield from logs.read(
                    partitions=[each.salvaged.partition],
                    start=first,
                    end=last + 1,
                    columns=listed,
                    fail_on_data_loss=False,
                )

    write_records(line, read)
    sys.stdout.flush()
    doubled = sum(each.contents.doubled for each in salvaged)
    if doubled:
        write_line(f"left out: {count_text(doubled, 'record')} that the log has")
    return ExitCode.DONE


def _salvage_row(each: SalvagedRow) -> Row:
    saved, contents = each.salvaged.saved, each.contents
    return {
        "topic": each.salvaged.partition.topic,
        "partition": each.salvaged.partition.partition,
        "directory": str(each.salvaged.directory),
        "cut_from": None if saved is None else saved.directory,
        "log": None if each.log is None else str(each.log),
        "segments": contents.segments,
        "raw_bytes": contents.raw_bytes,
        "first_offset": contents.first_offset,
        "last_offset": contents.last_offset,
        "records": contents.records,
        "doubled_records": contents.doubled,
        "free_records": contents.free,
        "passed_records": contents.passed,
        "log_end_offset": contents.log_end_offset,
        "other_log": None if contents.other_log is None else str(contents.other_log),
        "cuts": [
            {"file": cut.file, "position": cut.position, "bytes": cut.size_bytes, "why": cut.reason}
            for cut in (() if saved is None else saved.cuts)
        ],
    }


def _salvage_notes(folder: Path, salvaged: Sequence[SalvagedRow]) -> list[str]:
    missing = sum(each.log is None for each in salvaged)
    notes = []
    if missing:
        what = count_text(missing, "partition")
        notes.append(f"{what} without a log to compare with: name its log directory behind FOLDER")
    notes += [
        f"{each.salvaged.partition} is another log than the one that was cut: "
        f"{each.contents.other_log}"
        for each in salvaged
        if each.contents.other_log is not None
    ]
    passed = sum(each.contents.passed for each in salvaged if each.contents.other_log is None)
    if passed:
        notes.append(
            f"{count_text(passed, 'record')} whose offsets or leader epoch the log has gone past: "
            "only a producer can send them again; `pylog salvage replay FOLDER ROOT --as-records` "
            "writes them"
        )
    notes += _unnamed_notes(
        each.salvaged.directory
        for each in salvaged
        if each.contents.free and not each.salvaged.is_named
    )
    roots = dict.fromkeys(str(each.log.parent) for each in salvaged if each.log is not None)
    if any(each.contents.free for each in salvaged):
        words = ["pylog", "salvage", "replay", str(folder), *roots, "--role", "broker", "--dry-run"]
        notes.append(f"the way back: {shlex.join(words)}")
    return notes


def _unnamed_notes(folders: Iterable[Path | None]) -> Iterator[str]:
    """Yield a note if a folder does not name its log."""
    unnamed = next((folder for folder in folders if folder is not None), None)
    if unnamed is not None:
        yield (
            f"{unnamed} does not say of which topic id and cluster id it is: only offsets and "
            "leader epochs were compared; look whether the topic was made again since"
        )


def _replay_row(row: ReplayRow) -> dict[str, Any]:
    return {
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "directory": None if row.directory is None else str(row.directory),
        "status": row.status.value,
        "reason": None if row.reason is None else row.reason.value,
        "appended_records": row.appended,
        "doubled_records": row.doubled,
        "passed_records": row.passed,
        "old_log_end_offset": row.old_log_end_offset,
        "log_end_offset": row.log_end_offset,
        "error_class": row.error_class,
        "error": row.error,
    }


def _replay_notes(line: CommandLine, rows: Sequence[ReplayRow]) -> list[str]:
    is_dry = line[DRY_RUN]
    wanted = Status.PLANNED if is_dry else Status.DONE
    appended = sum(row.appended for row in rows if row.status is wanted)
    what = "would be appended" if is_dry else "appended"
    dry = "dry run, nothing was written: " if is_dry else ""
    doubled = count_text(sum(row.doubled for row in rows), "record")
    notes = [f"{dry}{count_text(appended, 'record')} {what}, {doubled} left out that the log has"]
    if is_dry and appended:
        notes.append(
            "a replay has no undo: for a way back copy the partition directories first (cp -a). It "
            "only appends, each log from its end on, and the salvage stays as it is"
        )
    notes += _unnamed_notes(row.unnamed for row in rows)
    passed = sum(row.passed for row in rows if row.error is None)
    if passed:
        notes.append(
            f"{count_text(passed, 'record')} left out whose offsets or leader epoch the log has "
            "gone past: `--as-records` writes them for a producer"
        )
    return notes
