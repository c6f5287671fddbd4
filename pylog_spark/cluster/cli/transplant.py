"""``pylog transplant``: partitions for another, stopped cluster."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from pylog_spark.cli.runner import Call, Tasks, Work, check_file_place, prepare_roots
from pylog_spark.cli.transfer import closing_lines
from pylog_spark.cluster.cli.commands import (
    ALLOW_ABORT,
    KEEP_PRODUCERS,
    NEW_NAMES,
    OFFSETS_OUT,
    TARGETS,
)
from pylog_spark.cluster.refusals import GUARDS
from pylog_spark.cluster.transplant import (
    NewTopic,
    TransplantOptions,
    TransplantReport,
    transplant,
)
from pylog_spark.options.declared import ROOTS, TRASH
from pylog_spark.options.option import CommandLine
from pylog_spark.report import (
    PARTITION,
    STATUS,
    number_column,
    size_column,
    text_column,
)
from pylog_spark.run.guards import check_of_brokers, check_outside
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
from storage_core.catalog.topic_catalog import build_topic_catalog
from storage_core.config import CleanupPolicy
from storage_core.filenames import parse_partition_directory
from storage_core.wording import count_text

_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        text_column("in the target", "target", rank=1),
        STATUS,
        text_column("reason", "reason", rank=0, empty=NOTHING),
        number_column("start", "log_start_offset", rank=3),
        number_column("end", "log_end_offset", rank=2),
        number_column("epoch", "leader_epoch", rank=5),
        number_column("aborted", "aborted_transactions", rank=6),
        size_column("bytes", "size_bytes", rank=4),
        number_column("replicas", "replicas", rank=7),
    ),
    note=lambda row: row["error"] or row["detail"],
)
_KEYS: Final = (
    *("topic", "partition", "target", "status", "reason", "detail", "source", "replicas"),
    *("directories", "topic_id", "leader_epoch", "log_start_offset", "log_end_offset"),
    *("aborted_transactions", "cut_bytes", "size_bytes", "error"),
    *("root", "newest_ms", "duration_ms", "error_class", "aborted_records"),
    *("committed_transactions", "committed_records"),
    *("undecided_transactions", "undecided_records"),
)
_NO_RESOURCE_NAME: Final = re.compile(r"[^a-z0-9.-]+")


def _prepare(line: CommandLine) -> Call:
    call = prepare_roots(
        line, lambda roots, _: check_of_brokers(roots, "only brokers' logs are whole replicas")
    )
    check_outside(OFFSETS_OUT.label, line[OFFSETS_OUT], call.roots, log_directories=line[TARGETS])
    check_file_place(OFFSETS_OUT.label, line[OFFSETS_OUT])
    return call


def _transplant(call: Call, place: Any) -> TransplantReport:
    line = call.line
    report = transplant(
        place,
        line[ROOTS],
        line[TARGETS],
        call.options,
        TransplantOptions(
            names=line[NEW_NAMES],
            keeps_producers=line[KEEP_PRODUCERS],
            aborts_undecided=line[ALLOW_ABORT],
            offsets_out=line[OFFSETS_OUT],
        ),
    )
    return report.with_notes(call.notes)


def _view(call: Call, report: TransplantReport) -> View:
    rows = [row | {"replicas": len(row["directories"])} for row in report.details.to_pylist()]
    return View(
        lines=[
            *lines_of("result", report.results.to_pylist()),
            *lines_of("transplant", rows),
            *lines_of("group_offset", map(asdict, report.offsets)),
            *lines_of("missing_topic", map(asdict, report.missing_topics)),
            *lines_of("kafka_topic", _manifests(report, rows)),
            OutputLine(
                "target_cluster",
                {"cluster_id": report.cluster_id, "format_command": _format_line(report)},
            ),
            OutputLine("run", report.run_row()),
        ],
        csv=("transplant", _KEYS),
        blocks=_blocks(call, report, rows),
        status=report.exit_code,
    )


def _blocks(call: Call, report: TransplantReport, rows: Sequence[Row]) -> Iterator[Block]:
    yield Table(kind=_TABLE, rows=rows)
    yield from closing_lines(call, report)
    if not rows:
        yield "the source has no such partition"
        return
    for reason in dict.fromkeys(row["reason"] for row in rows if row["reason"]):
        yield f"{reason}: {GUARDS[reason].way or GUARDS[reason].means}"
    if report.summary.failed and not report.dry_run:
        yield Sentence(
            "start no broker of the target before this command has succeeded: a replica that is "
            "still empty may be elected, and cuts the full ones to nothing",
            "bold yellow",
        )
    yield from _transactions(rows)
    yield from _retention(call, report, rows)
    if report.missing_topics:
        yield "create these topics in the running target, then stop it and run this command again:"
        yield from map(Verbatim, map(_create_line, report.missing_topics))
    if report.summary.done:
        trash = call.options.trash
        if trash is not None:
            way_back = shlex.join(["pylog", "undo", report.run_id, TRASH.label, trash])
            yield f"the way back, before the target starts: {way_back}"
        yield "next: start the target, the controllers first"
    if report.offsets:
        groups = list(dict.fromkeys(each.group for each in report.offsets))
        yield f"{count_text(len(report.offsets), 'committed offset')}; then, once the target runs:"
        file = call.line[OFFSETS_OUT]
        yield Verbatim(
            "kafka-consumer-groups.sh --bootstrap-server HOST:PORT "
            f"{shlex.join(word for group in groups for word in ('--group', group))} "
            "--reset-offsets --execute --from-file "
            f"{shlex.quote(str(file)) if file else 'FILE (give --offsets-out FILE)'}"
        )
    yield "only if the target gets one more, empty disk, it is formatted by:"
    yield Verbatim(_format_line(report))
    manifests = _manifests(report, rows)
    if manifests:
        yield "only where Strimzi runs the target: it deletes topics that have no such resource:"
    for manifest in manifests:
        # A document of YAML, of which JSON is a part.
        yield Verbatim("---")
        yield from (Verbatim(f"{key}: {json.dumps(value)}") for key, value in manifest.items())


def _transactions(rows: Sequence[Row]) -> Iterator[Block]:
    """Yield how the open transactions of the partitions that go end."""
    goes = [row for row in rows if row["reason"] is None]
    committed, aborted, undecided = (
        sum(row[f"{name}_records"] or 0 for row in goes)
        for name in ("committed", "aborted", "undecided")
    )
    if committed:
        yield f"{_records_text(committed)} committed: their coordinators had decided so"
    if aborted - undecided:
        yield f"{_records_text(aborted - undecided)} aborted: no commit of them was decided"
    if undecided:
        yield Sentence(
            f"{_records_text(undecided)} aborted by {ALLOW_ABORT.label}, committed or not: "
            "committed reads lack them",
            "bold yellow",
        )


def _records_text(count: int) -> str:
    """Return a number of records in open transactions, with a verb."""
    return f"{count_text(count, 'record')} in open transactions {'is' if count == 1 else 'are'}"


def _retention(call: Call, report: TransplantReport, rows: Sequence[Row]) -> Iterator[Block]:
    """Warn of topics whose records the target would delete at once."""
    catalog = build_topic_catalog(metadata=report.metadata)
    late: dict[str, int] = {}
    for row in rows:
        if row["reason"] is not None or row["newest_ms"] is None:
            continue
        topic = parse_partition_directory(row["target"]).topic
        config = catalog.config_or_defaults(topic)
        deletes = CleanupPolicy.DELETE in config.cleanup_policy and config.retention_ms >= 0
        if deletes and row["newest_ms"] + config.retention_ms < call.options.now_ms:
            late[topic] = config.retention_ms
    for topic, retention_ms in late.items():
        yield Sentence(
            f"{topic}: all records of a partition are older than retention.ms {retention_ms}: the "
            "target deletes them within minutes; set retention.ms=-1 there before it gets them",
            "bold yellow",
        )


def _create_line(topic: NewTopic) -> str:
    """Return the command that creates a topic as the source has it."""
    config = [
        word for each in sorted(topic.config.items()) for word in ("--config", "=".join(each))
    ]
    return shlex.join(
        [
            *("kafka-topics.sh", "--bootstrap-server", "HOST:PORT", "--create"),
            *("--topic", topic.topic, "--partitions", str(topic.partitions)),
            *("--replication-factor", str(topic.replicas), *config),
        ]
    )


def _format_line(report: TransplantReport) -> str:
    return (
        f"kafka-storage.sh format --cluster-id {shlex.quote(report.cluster_id)} "
        "--config server.properties --ignore-formatted"
    )


def _manifests(report: TransplantReport, rows: Sequence[Row]) -> list[Row]:
    """Return Strimzi's resource of each topic that gets partitions."""
    topics = report.metadata.topics_by_name()
    goes = (row["target"] for row in rows if row["reason"] is None and row["topic_id"])
    names = dict.fromkeys(parse_partition_directory(target).topic for target in goes)
    return [
        {
            "apiVersion": "kafka.strimzi.io/v1beta2",
            "kind": "KafkaTopic",
            "metadata": {
                "name": _NO_RESOURCE_NAME.sub("-", name.lower()).strip("-."),
                "labels": {"strimzi.io/cluster": "CLUSTER"},
            },
            "spec": {
                "topicName": name,
                "partitions": len(topics[name].partitions),
                "replicas": max(len(each.replicas) for each in topics[name].partitions.values()),
                "config": dict(sorted(report.metadata.topic_configs.get(name, {}).items())),
            },
        }
        for name in names
    ]


TRANSPLANT: Final = Work(
    name="transplant",
    prepare=_prepare,
    operate=_transplant,
    view=_view,
    tasks=Tasks.HERE_IF_FEW,
)
