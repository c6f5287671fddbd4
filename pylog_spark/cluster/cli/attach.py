"""``pylog attach``: the tier of a lost cluster for a new one."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pylog_spark.cli.runner import (
    Call,
    Tasks,
    Work,
    check_file_place,
    check_topics,
    load_options,
)
from pylog_spark.cli.transfer import closing_lines
from pylog_spark.cluster.attach import (
    SAFE_CONFIG,
    AttachOptions,
    AttachReport,
    attach,
    locate_archive,
    resolve_targets,
)
from pylog_spark.cluster.cli.commands import (
    ARCHIVE,
    METADATA_PARTITIONS,
    NEW_ROOTS,
    NEWEST,
    TOPICS_OUT,
)
from pylog_spark.cluster.refusals import GUARDS
from pylog_spark.options.declared import ALLOW_DATA_LOSS, DECRYPTION_KEY, TOPIC_ID, TRASH
from pylog_spark.options.option import CommandLine
from pylog_spark.report import PARTITION, STATUS, number_column, size_column, text_column
from pylog_spark.run.guards import check_outside
from pylog_spark.view import (
    NOTHING,
    Block,
    OutputLine,
    Row,
    Sentence,
    Table,
    TableKind,
    Verbatim,
    View,
    lines_of,
)
from storage_core.cluster.attachment import AttachRules
from storage_core.filenames import REMOTE_LOG_TOPIC
from storage_core.wording import count_text

_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        STATUS,
        text_column("reason", "reason", rank=0, empty=NOTHING),
        number_column("start", "log_start_offset", rank=2),
        number_column("end of the tier", "log_end_offset", rank=1),
        number_column("segments", "segments", rank=3),
        number_column("left out", "left_out_segments", rank=5),
        size_column("bytes in the tier", "tier_bytes", rank=4),
    ),
    note=lambda row: row["error"] or row["detail"],
)
_KEYS: Final = (
    *("topic", "partition", "status", "reason", "detail", "root", "directory", "topic_id"),
    *("log_start_offset", "log_end_offset", "segments", "left_out_segments", "tier_bytes"),
    *("open_transactions", "open_offset", "error", "error_class"),
)


def _prepare(line: CommandLine) -> Call:
    options = load_options(line)
    roots = resolve_targets(line[NEW_ROOTS])
    check_outside(TOPICS_OUT.label, line[TOPICS_OUT], roots, log_directories=line[NEW_ROOTS])
    check_file_place(TOPICS_OUT.label, line[TOPICS_OUT])
    archive = locate_archive(
        line[ARCHIVE], decryption_key=line[DECRYPTION_KEY], topic_ids=line[TOPIC_ID]
    )
    notes: tuple[str, ...] = ()
    if options.include or options.exclude:
        topics = {folder.partition.topic for folder in archive.open().listing[0]}
        notes = check_topics(options.include, options.exclude, topics, [archive.place])
    return Call(line=line, options=options, roots=roots, subject=archive, notes=notes)


def _attach(call: Call, place: Any) -> AttachReport:
    line = call.line
    report = attach(
        place,
        call.subject,
        line[NEW_ROOTS],
        call.options,
        AttachOptions(
            rules=AttachRules(takes_newest=line[NEWEST], allows_loss=line[ALLOW_DATA_LOSS]),
            metadata_partitions=line[METADATA_PARTITIONS],
            topics_out=line[TOPICS_OUT],
        ),
    )
    return report.with_notes(call.notes)


def _view(call: Call, report: AttachReport) -> View:
    rows = report.details.to_pylist()
    return View(
        lines=[
            *lines_of("result", report.results.to_pylist()),
            *lines_of("attach", rows),
            OutputLine(
                "target_cluster",
                {"cluster_id": report.cluster_id, "rebuild_command": _rebuild_line(call)},
            ),
            OutputLine("run", report.run_row()),
        ],
        csv=("attach", _KEYS),
        blocks=_blocks(call, report, rows),
        status=report.exit_code,
    )


def _blocks(call: Call, report: AttachReport, rows: Sequence[Row]) -> Iterator[Block]:
    of_tier = [row for row in rows if row["topic"] != REMOTE_LOG_TOPIC]
    yield Table(kind=_TABLE, rows=of_tier)
    yield from closing_lines(call, report)
    for reason in dict.fromkeys(row["reason"] for row in rows if row["reason"]):
        yield f"{reason}: {GUARDS[reason].way or GUARDS[reason].means}"
    if any(row["directory"] is None for row in rows):
        yield Sentence("nothing was written: all partitions are attached, or none", "bold yellow")
        return
    if report.summary.failed:
        yield Sentence("start no broker before this command has succeeded", "bold yellow")
    yield "records from the end of the tier on were on the disks only: they are not here"
    yield "a tier has no positions of consumer groups: set them (kafka-consumer-groups.sh)"
    yield from _transactions(of_tier)
    if report.summary.done and call.options.trash is not None:
        way_back = shlex.join(["pylog", "undo", report.run_id, TRASH.label, call.options.trash])
        yield f"the way back, before a broker starts: {way_back}"
    file = call.line[TOPICS_OUT]
    if file is None:
        config = ", ".join(f"{key}={value}" for key, value in SAFE_CONFIG.items())
        yield (
            f"a tier has no configs. Brokers with Kafka's defaults delete records older than a "
            f"week: give the topics {config} ({TOPICS_OUT.label} FILE writes it)"
        )
    yield "next, for all log directories of all brokers; then start the controllers and brokers:"
    yield Verbatim(_rebuild_line(call))


def _transactions(rows: Sequence[Row]) -> Iterator[Block]:
    """Yield the transactions that the tier leaves open, and the commands that end them."""
    opened = [row for row in rows if row["open_transactions"]]
    if not opened:
        return
    count = count_text(sum(row["open_transactions"] for row in opened), "open transaction")
    yield Sentence(
        f"{count} without an end in the tier, committed or not. Readers of committed records get "
        "its records and none behind them, until you abort it: do that before they start",
        "bold yellow",
    )
    for row in opened:
        yield Verbatim(
            f"kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {row['topic']} "
            f"--partition {row['partition']} --start-offset {row['open_offset']}"
        )


def _rebuild_line(call: Call) -> str:
    file = call.line[TOPICS_OUT]
    return shlex.join(
        [
            *("pylog", "metadata", "rebuild", *map(str, call.line[NEW_ROOTS])),
            *("--into", "NODE=DIR", "--release-version", "4.4"),
            *("--config", "FILE" if file is None else str(file)),
        ]
    )


ATTACH: Final = Work(
    name="attach",
    prepare=_prepare,
    operate=_attach,
    view=_view,
    tasks=Tasks.HERE_IF_FEW,
)
