"""``pylog groups`` and ``pylog transactions``: what coordinators left in log directories."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from rich.console import Console

from pylog_spark.cli.chosen_topics import check_topics, topics_of, write_notes
from pylog_spark.cli.row_lines import RowLines
from pylog_spark.cli.runner import Call, Work, load_options
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.arguments import said_as
from pylog_spark.options.broker import broker_config
from pylog_spark.options.declared import ROOTS, WIDE
from pylog_spark.options.option import CommandLine
from pylog_spark.report import (
    number_column,
    number_text,
    partition_name,
    time_column,
)
from pylog_spark.tasks.coordinators import (
    COMMIT_SCHEMA,
    HOLDING_SCHEMA,
    CoordinatorSettings,
    Told,
    observe_groups,
    observe_transactions,
)
from pylog_spark.text_table import (
    NOTHING,
    Column,
    Row,
    TextTable,
    write_lines,
    write_paragraphs,
    write_table,
)
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.filenames import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from storage_core.maintenance.inspection import RootView, group_by_broker, inspect_root
from storage_core.wording import count_text

_BAD: Final = "bold red"
# Of what is no row of the answer, but the last to be said.
_NOTE: Final = "note"
_Observe = Callable[..., Iterator[Told]]
# The topic of the coordinators that an observer reads, and what only that tells.
_COORDINATORS: Final[Mapping[_Observe, tuple[str, str]]] = {
    observe_groups: (CONSUMER_OFFSETS_TOPIC, "which has the groups"),
    observe_transactions: (
        TRANSACTION_STATE_TOPIC,
        "which has the transactional ids, and tells whether an open transaction hangs",
    ),
}


def _prepare(line: CommandLine) -> Call[None]:
    return Call(line=line, options=load_options(line), subject=None)


def _observe(call: Call[None], observe: _Observe) -> Iterator[Told]:
    options = call.options
    settings = CoordinatorSettings(
        now_ms=options.now_ms,
        broker=broker_config(options),
        said=frozenset({*options.broker_settings, *options.broker_overrides}),
    )
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    there: set[str] = set()

    def is_asked_for(topic: str) -> bool:
        there.add(topic)  # groups have places in logs of other brokers
        return topics.admits(topic)

    views: list[RootView] = []
    for root in call.line[ROOTS]:
        with said_as("ROOT", root):
            views.append(inspect_root(root))
        for error in views[-1].row["errors"]:
            yield "log_directory", {"root": views[-1].row["root"], "error": error}
    there |= topics_of(entry.name for view in views for entry in view.entries)
    topic, what = _COORDINATORS[observe]
    if topic not in there:
        note = (
            f"no partition of {topic} is here, {what}: it may lie in the broker's other log "
            "directories (log.dirs); give all of them, or those of another broker"
        )
        yield _NOTE, {"note": note}
    for of_broker in group_by_broker(views):
        yield from observe(of_broker, settings, is_asked_for=is_asked_for)
    for note in check_topics(topics.topics, topics.exclude, there, call.line[ROOTS]):
        yield _NOTE, {"note": note}


def _show(
    call: Call[None],
    told: Iterable[Told],
    write: Callable[[Call[None], Console, dict[str, list[Row]]], None],
    in_csv: tuple[str, Sequence[str]],
) -> int:
    """Print the rows, and return the exit status."""
    rows: dict[str, list[Row]] = {}
    is_whole = True
    lines = None if call.is_for_person else RowLines(call.output, *in_csv)
    notes = []
    for kind, row in told:
        if kind == _NOTE:
            notes.append(row["note"])
            continue
        is_whole &= row.get("error") is None
        if lines is not None:
            lines.add(kind, row)
        else:
            rows.setdefault(kind, []).append(row)
    if lines is None:
        console = Console()
        is_wide = call.line[WIDE]
        write(call, console, rows)
        undecoded = map(_undecoded, rows.get("undecoded", []))
        write_paragraphs(console, undecoded, is_wide=is_wide, style="yellow")
        failed = (*rows.get("log_directory", []), *rows.get("partition", []))
        errors = (f"{row.get('directory') or row['root']}: {row['error']}" for row in failed)
        write_paragraphs(console, errors, is_wide=is_wide, style=_BAD)
    write_notes(notes, is_for_person=call.is_for_person, is_wide=call.is_wide)
    return ExitCode.DONE if is_whole else ExitCode.PARTLY_FAILED


def _write_groups(call: Call[None], console: Console, rows: dict[str, list[Row]]) -> None:
    is_wide = call.line[WIDE]
    groups, commits = rows.get("group", []), rows.get("commit", [])
    write_table(
        console,
        _GROUP_TABLE,
        groups,
        is_wide=is_wide,
        footer=[count_text(len(groups), "group") if groups else "no groups"],
    )
    if commits:
        console.print()
        footer = [f"{len(commits)} places"]
        write_table(console, _COMMIT_TABLE, commits, is_wide=is_wide, footer=footer)
    committed = (row for row in commits if row["commit_ms"] is not None)
    without_log = sorted(
        {partition_name(row) for row in committed if row["log_end_offset"] is None}
    )
    if without_log:
        more = f" and {len(without_log) - 1} more" if without_log[1:] else ""
        note = (
            f"no log here of {without_log[0]}{more}: end and lag are not known. Give all log "
            "directories of the broker (log.dirs), or those of another broker that has the log"
        )
        write_paragraphs(console, [note], is_wide=is_wide)
    pending = (
        f"{row['group']}: offset {row['offset']} of {partition_name(row)} is part of a "
        f"transaction of producer {row['producer_id']} that has not ended"
        for row in rows.get("pending_commit", [])
    )
    write_paragraphs(console, pending, is_wide=is_wide)


def _write_transactions(call: Call[None], console: Console, rows: dict[str, list[Row]]) -> None:
    is_wide = call.line[WIDE]
    holding, known = rows.get("open_transaction", []), rows.get("transaction", [])
    count = f"{len(holding)} open transactions" if holding else "no transaction is open in a log"
    write_table(console, _HOLDING_TABLE, holding, is_wide=is_wide, footer=[count])
    write_lines(console, (f"  {row['command']}" for row in holding if row["command"]))
    if known:
        console.print()
        footer = [f"{len(known)} transactional ids"]
        write_table(console, _KNOWN_TABLE, known, is_wide=is_wide, footer=footer)


def _columns(schema: pa.Schema) -> list[str]:
    """Return the keys of such rows, without the error.

    An error is a row of its own here.
    """
    return [name for name in schema.names if name != "error"]


def _undecoded(row: Row) -> str:
    kind = row["record_type"] or f"type {row['type_id']}"
    version = "" if row["version"] is None else f" version {row['version']}"
    return (
        f"{row['directory']}: {row['count']} records of {kind}{version} are not understood "
        f"({row['problem']}), the first at offset {row['first_offset']}: {row['reason']}"
    )


def _state(row: Row) -> str:
    return f"{row['state']}, overdue" if row["is_overdue"] else str(row["state"])


def _group_lag(row: Row) -> str:
    """Return a group's lag, with "at least" where it is incomplete."""
    is_part = row["commits_without_log"] and row["lag"] is not None
    return f"at least {number_text(row['lag'])}" if is_part else number_text(row["lag"])


def _text_column(heading: str, name: str, *, rank: int = 0, folds: bool = False) -> Column:
    return Column(heading=heading, cell=lambda row: row[name] or NOTHING, rank=rank, folds=folds)


def _id_column(heading: str, name: str, *, rank: int) -> Column:
    return Column(heading=heading, cell=lambda row: str(row[name]), rank=rank, is_number=True)


_GROUP_TABLE: Final = TextTable(
    columns=(
        _text_column("group", "group", folds=True),
        _text_column("type", "group_type", rank=3),
        _text_column("state", "state", rank=1),
        Column(
            heading="members",
            cell=lambda row: number_text(len(row["members"])),
            rank=2,
            is_number=True,
        ),
        number_column("commits", "commits", rank=2),
        Column(heading="lag", cell=_group_lag, value=lambda row: row["lag"], is_number=True),
    )
)
_COMMIT_TABLE: Final = TextTable(
    columns=(
        _text_column("group", "group", folds=True),
        Column(heading="partition", cell=partition_name, folds=True),
        Column(
            heading="offset",
            cell=lambda row: number_text(None if row["commit_ms"] is None else row["offset"]),
            rank=1,
            is_number=True,
        ),
        number_column("start", "log_start_offset", rank=4),
        number_column("end", "log_end_offset", rank=3),
        number_column("lag", "lag", rank=0),
        time_column("committed", "commit_ms", rank=5),
        time_column("expires", "expires_ms", rank=6),
    ),
    note=lambda row: ", ".join(row["findings"]),
    note_heading="findings",
    note_style=lambda _: _BAD,
)
_HOLDING_TABLE: Final = TextTable(
    columns=(
        Column(heading="partition", cell=partition_name, folds=True),
        Column(
            heading="verdict",
            cell=lambda row: row["verdict"],
            style=lambda row: _BAD if row["verdict"] == "hanging" else "",
        ),
        number_column("from offset", "first_offset", rank=1),
        number_column("end", "log_end_offset", rank=4),
        _id_column("producer", "producer_id", rank=3),
        _id_column("epoch", "producer_epoch", rank=6),
        time_column("last write", "last_timestamp", rank=2),
        _text_column("transactional id", "transactional_id", rank=5, folds=True),
        _text_column("state", "state", rank=7),
    )
)
_KNOWN_TABLE: Final = TextTable(
    columns=(
        _text_column("transactional id", "transactional_id", folds=True),
        Column(heading="state", cell=_state),
        _id_column("producer", "producer_id", rank=3),
        _id_column("epoch", "producer_epoch", rank=4),
        time_column("since", "start_ms", rank=1),
        time_column("changed", "update_ms", rank=2),
    ),
    note=lambda row: ", ".join(row["partitions"]),
    note_heading="partitions",
)


def _observe_groups(call: Call[None], _session: None) -> Iterator[Told]:
    return _observe(call, observe_groups)


def _show_groups(call: Call[None], told: Iterator[Told]) -> int:
    return _show(call, told, _write_groups, ("commit", _columns(COMMIT_SCHEMA)))


def _observe_transactions(call: Call[None], _session: None) -> Iterator[Told]:
    return _observe(call, observe_transactions)


def _show_transactions(call: Call[None], told: Iterator[Told]) -> int:
    return _show(call, told, _write_transactions, ("open_transaction", _columns(HOLDING_SCHEMA)))


GROUPS: Final = Work(name="groups", prepare=_prepare, operate=_observe_groups, show=_show_groups)
TRANSACTIONS: Final = Work(
    name="transactions",
    prepare=_prepare,
    operate=_observe_transactions,
    show=_show_transactions,
)
