"""``pylog groups`` and ``pylog transactions``: what coordinators left in log directories."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from pylog_spark.cli.runner import Call, Work, check_topics, load_options, topics_of
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.arguments import said_as
from pylog_spark.options.declared import ROOTS
from pylog_spark.options.load import broker_config
from pylog_spark.options.option import CommandLine
from pylog_spark.report import (
    PARTITION,
    number_column,
    number_text,
    partition_name,
    text_column,
    time_column,
)
from pylog_spark.tasks.coordinators import (
    COMMIT_SCHEMA,
    HOLDING_SCHEMA,
    CoordinatorRow,
    CoordinatorSettings,
    observe_groups,
    observe_transactions,
    views_beside,
)
from pylog_spark.view import (
    NOTHING,
    Block,
    Column,
    OutputLine,
    Row,
    Sentence,
    Table,
    TableKind,
    Verbatim,
    View,
)
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.coordinators.transactions import TransactionOutcome
from storage_core.filenames import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from storage_core.reading.inspection import RootView, group_by_broker, inspect_root
from storage_core.wording import count_text

_BAD: Final = "bold red"
_ENDS: Final = {
    TransactionOutcome.COMMIT: ": its coordinator has decided to commit it, and does when it runs",
    TransactionOutcome.ABORT: ": no commit of it was decided",
}
_Observe = Callable[..., Iterator[CoordinatorRow]]
# The topic of the coordinators that an observer reads, and what only that tells.
_COORDINATORS: Final[Mapping[_Observe, tuple[str, str]]] = {
    observe_groups: (CONSUMER_OFFSETS_TOPIC, "which has the groups"),
    observe_transactions: (
        TRANSACTION_STATE_TOPIC,
        "which has the transactional ids, and tells whether an open transaction hangs",
    ),
}


def _prepare(line: CommandLine) -> Call:
    return Call(line=line, options=load_options(line))


def _observe(call: Call, observe: _Observe) -> Iterator[OutputLine | str]:
    """Yield what coordinators left, and notes on what is not there."""
    options = call.options
    settings = CoordinatorSettings(
        now_ms=options.now_ms,
        broker=broker_config(options),
        explicit_names=frozenset({*options.broker_settings, *options.broker_overrides}),
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
            yield OutputLine("log_directory", {"root": views[-1].row["root"], "error": error})
    there |= topics_of(entry.name for view in views for entry in view.entries)
    topic, what = _COORDINATORS[observe]
    if topic not in there and not (observe is observe_groups and SHARE_STATE_TOPIC in there):
        yield (
            f"no partition of {topic} is here, {what}: it may lie in the broker's other log "
            "directories (log.dirs); give all of them, or those of another broker"
        )
    brokers = group_by_broker(views)
    for of_broker in brokers:
        beside = views_beside(of_broker, brokers)
        for kind, row in observe(of_broker, settings, is_asked_for=is_asked_for, beside=beside):
            yield OutputLine(kind, row)
    yield from check_topics(topics.topics, topics.exclude, there, call.line[ROOTS])


def _view(
    answer: Iterable[OutputLine | str],
    blocks_of: Callable[[dict[str, list[Row]]], Iterator[Block]],
    csv: tuple[str, pa.Schema],
) -> View:
    notes: list[str] = []
    failed: list[Row] = []

    def lines() -> Iterator[OutputLine]:
        for each in answer:
            if isinstance(each, str):
                notes.append(each)  # the last to be said
                continue
            if each.row.get("error") is not None:
                failed.append(each.row)
            yield each

    def blocks() -> Iterator[Block]:
        rows: dict[str, list[Row]] = {}
        for line in lines():
            rows.setdefault(line.kind, []).append(line.row)
        yield from blocks_of(rows)
        yield from (Sentence(_undecoded(row), "yellow") for row in rows.get("undecoded", []))
        for row in (*rows.get("log_directory", []), *rows.get("partition", [])):
            yield Sentence(f"{row.get('directory') or row['root']}: {row['error']}", _BAD)

    # An error is a row of its own here.
    kind, schema = csv
    return View(
        lines=lines(),
        csv=(kind, [name for name in schema.names if name != "error"]),
        blocks=blocks(),
        notes=notes,
        status=lambda: ExitCode.PARTLY_FAILED if failed else ExitCode.DONE,
    )


def _group_blocks(rows: dict[str, list[Row]]) -> Iterator[Block]:
    groups, commits = rows.get("group", []), rows.get("commit", [])
    yield Table(kind=_GROUP_TABLE, rows=groups)
    yield count_text(len(groups), "group") if groups else "no groups"
    if commits:
        yield ""
        yield Table(kind=_COMMIT_TABLE, rows=commits)
        yield f"{len(commits)} places"
    committed = (row for row in commits if row["commit_ms"] is not None)
    without_log = sorted(
        {partition_name(row) for row in committed if row["log_end_offset"] is None}
    )
    if without_log:
        more = f" and {len(without_log) - 1} more" if without_log[1:] else ""
        yield (
            f"no log here of {without_log[0]}{more}: end and lag are not known. Give all log "
            "directories of the broker (log.dirs), or those of another broker that has the log"
        )
    for row in rows.get("pending_commit", []):
        yield (
            f"{row['group']}: offset {row['offset']} of {partition_name(row)} is part of a "
            f"transaction of producer {row['producer_id']} that has not ended"
            f"{_ENDS.get(row['outcome'], '')}"
        )


def _transaction_blocks(rows: dict[str, list[Row]]) -> Iterator[Block]:
    holding, ids = rows.get("open_transaction", []), rows.get("transaction", [])
    yield Table(kind=_HOLDING_TABLE, rows=holding)
    yield f"{len(holding)} open transactions" if holding else "no transaction is open in a log"
    yield from (Verbatim(f"  {row['command']}") for row in holding if row["command"])
    if any(row["command"] and row["outcome"] == TransactionOutcome.UNDECIDED for row in holding):
        yield Sentence(
            "undecided ones were committed perhaps: before you abort one, read its records with "
            "`pylog cat ROOT --topic TOPIC --from OFFSET`",
            "yellow",
        )
    if ids:
        yield ""
        yield Table(kind=_TRANSACTION_TABLE, rows=ids)
        yield f"{len(ids)} transactional ids"


def _undecoded(row: Row) -> str:
    kind = row["record_type"] or f"type {row['type_id']}"
    version = "" if row["version"] is None else f" version {row['version']}"
    effect = "; a broker ignores them"
    if row["stops_load"]:
        effect = "; a broker's coordinator does not load this partition"
    return (
        f"{row['directory']}: {row['count']} records of {kind}{version} are not understood "
        f"({row['problem']}), the first at offset {row['first_offset']}: {row['reason']}"
        f"{effect}"
    )


def _group_lag(row: Row) -> str:
    """Return a group's lag, with "at least" where it is incomplete."""
    is_part = row["commits_without_log"] and row["lag"] is not None
    return f"at least {number_text(row['lag'])}" if is_part else number_text(row["lag"])


def _group_state(row: Row) -> str:
    """Return a group's state, and whether its coordinator would not load."""
    states = [row["state"] or NOTHING, *(["not loaded"] if row["not_loaded"] else [])]
    return ", ".join(states)


def _local_start(row: Row) -> list[str]:
    """Return where a log that begins in a tier becomes local."""
    start = row["local_log_start_offset"]
    return [] if start is None else [f"local from {number_text(start)}"]


def _id_column(heading: str, name: str, *, rank: int) -> Column:
    return Column(heading=heading, cell=lambda row: str(row[name]), rank=rank, is_number=True)


_GROUP_TABLE: Final = TableKind(
    columns=(
        text_column("group", "group", folds=True, empty=NOTHING),
        text_column("type", "group_type", rank=3, empty=NOTHING),
        Column(heading="state", cell=_group_state, rank=1),
        number_column("members", lambda row: len(row["members"]), rank=2),
        number_column("commits", "commits", rank=2),
        Column(heading="lag", cell=_group_lag, value=lambda row: row["lag"], is_number=True),
    )
)
_COMMIT_TABLE: Final = TableKind(
    columns=(
        text_column("group", "group", folds=True, empty=NOTHING),
        PARTITION,
        number_column(
            "offset", lambda row: None if row["commit_ms"] is None else row["offset"], rank=1
        ),
        number_column("start", "log_start_offset", rank=4),
        number_column("end", "log_end_offset", rank=3),
        number_column("lag", "lag", rank=0),
        time_column("committed", "commit_ms", rank=5),
        time_column("expires", "expires_ms", rank=6),
    ),
    note=lambda row: ", ".join(row["findings"] + _local_start(row)),
    note_heading="findings",
    note_style=lambda _: _BAD,
)
_HOLDING_TABLE: Final = TableKind(
    columns=(
        PARTITION,
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
        text_column("transactional id", "transactional_id", rank=5, folds=True, empty=NOTHING),
        text_column("state", "state", rank=7, empty=NOTHING),
        text_column("outcome", "outcome", rank=8, empty=NOTHING),
    )
)
_TRANSACTION_TABLE: Final = TableKind(
    columns=(
        text_column("transactional id", "transactional_id", folds=True, empty=NOTHING),
        Column(
            heading="state",
            cell=lambda row: row["state"] + (", overdue" if row["is_overdue"] else ""),
        ),
        _id_column("producer", "producer_id", rank=3),
        _id_column("epoch", "producer_epoch", rank=4),
        time_column("since", "start_ms", rank=1),
        time_column("changed", "update_ms", rank=2),
    ),
    note=lambda row: ", ".join(row["partitions"]),
    note_heading="partitions",
)


GROUPS: Final = Work(
    name="groups",
    prepare=_prepare,
    operate=lambda call, _: _observe(call, observe_groups),
    view=lambda _, answer: _view(answer, _group_blocks, ("commit", COMMIT_SCHEMA)),
)
TRANSACTIONS: Final = Work(
    name="transactions",
    prepare=_prepare,
    operate=lambda call, _: _observe(call, observe_transactions),
    view=lambda _, answer: _view(answer, _transaction_blocks, ("open_transaction", HOLDING_SCHEMA)),
)
