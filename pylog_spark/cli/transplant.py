"""``pylog transplant``: partitions for another, stopped cluster."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from pylog_spark.cli.runner import Call, Work, check_file_place, prepare_roots
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.transplant import (
    TransplantOptions,
    TransplantReport,
    transplant,
)
from pylog_spark.options.of_transplants import KEEP_PRODUCERS, NEW_NAMES, OFFSETS_OUT, TARGETS
from pylog_spark.options.option import CommandLine
from pylog_spark.refusals import GUARDS
from pylog_spark.report import (
    PARTITION,
    STATUS,
    number_column,
    size_column,
    text_column,
)
from pylog_spark.run.guards import check_of_brokers, check_outside
from pylog_spark.schemas import Status
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
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.config import CleanupPolicy
from storage_core.maintenance.transplant.plan import Transplant
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
)
_NO_RESOURCE_NAME: Final = re.compile(r"[^a-z0-9.-]+")


def _prepare(line: CommandLine) -> Call:
    call = prepare_roots(
        line, lambda roots, _: check_of_brokers(roots, "only brokers' logs are whole replicas")
    )
    check_outside(OFFSETS_OUT.label, line[OFFSETS_OUT], call.roots, log_directories=line[TARGETS])
    check_file_place(OFFSETS_OUT.label, line[OFFSETS_OUT])
    return call


def _transplant(call: Call, _: Any) -> TransplantReport:
    return transplant(
        call.locations,
        [path.absolute() for path in call.line[TARGETS]],
        TransplantOptions(
            topics=TopicFilter(topics=call.options.include, exclude=call.options.exclude),
            names=call.line[NEW_NAMES],
            keeps_producers=call.line[KEEP_PRODUCERS],
            offsets_out=call.line[OFFSETS_OUT],
            now_ms=call.options.now_ms,
            dry_run=call.options.dry_run,
        ),
    )


def _view(call: Call, report: TransplantReport) -> View:
    rows = [_row(call, report, each) for each in report.transplants]
    status = ExitCode.DONE
    if any(each.reason for each in report.transplants):
        status = ExitCode.REFUSED
    if report.failures:
        status = ExitCode.PARTLY_FAILED
    return View(
        lines=[
            *lines_of("transplant", rows),
            *lines_of("group_offset", map(asdict, report.offsets)),
            *lines_of("kafka_topic", _manifests(report)),
            OutputLine(
                "target_cluster",
                {"cluster_id": report.cluster_id, "format_command": _format_line(report)},
            ),
        ],
        csv=("transplant", _KEYS),
        blocks=_blocks(call, report, rows),
        notes=[*call.notes, *report.notes],
        status=status,
    )


def _row(call: Call, report: TransplantReport, each: Transplant) -> Row:
    """Return a partition's row for programs, under ``_KEYS``."""
    error = report.failures.get(str(each.source))
    status = Status.PLANNED if call.options.dry_run else Status.DONE
    if each.reason is not None or each.is_done:
        status = Status.SKIPPED
    if error is not None:
        status = Status.FAILED
    row = dict.fromkeys(_KEYS) | {
        "topic": each.source.topic,
        "partition": each.source.partition,
        "target": str(each.target),
        "status": status.value,
        "reason": None if each.reason is None else each.reason.value,
        "detail": "a former call has written it" if each.is_done else each.detail,
        "source": each.location or None,
        "replicas": len(each.homes),
        "directories": [str(home / str(each.target)) for home in each.homes],
        "error": None if error is None else str(error),
    }
    log = each.log
    if log is None:
        return row
    return row | {
        "topic_id": log.topic_id,
        "leader_epoch": log.leader_epoch,
        "log_start_offset": log.source.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "aborted_transactions": len(log.source.open_producers),
        "cut_bytes": log.source.cut_bytes,
        "size_bytes": log.size_bytes,
    }


def _blocks(call: Call, report: TransplantReport, rows: Sequence[Row]) -> Iterator[Block]:
    yield Table(kind=_TABLE, rows=rows)
    if not rows:
        yield "the source has no such partition"
        return
    for reason in dict.fromkeys(each.reason for each in report.transplants if each.reason):
        yield f"{reason}: {GUARDS[reason].way or GUARDS[reason].means}"
    if report.failures:
        yield Sentence(
            "start no broker of the target before this command has succeeded: a replica that is "
            "still empty may be elected, and cuts the full ones to nothing",
            "bold yellow",
        )
    yield from _retention(call, report)
    if report.offsets:
        groups = list(dict.fromkeys(each.group for each in report.offsets))
        yield f"{count_text(len(report.offsets), 'committed offset')}; once the target runs:"
        file = call.line[OFFSETS_OUT]
        yield Verbatim(
            "kafka-consumer-groups.sh --bootstrap-server HOST:PORT "
            f"{shlex.join(word for group in groups for word in ('--group', group))} "
            "--reset-offsets --execute --from-file "
            f"{shlex.quote(str(file)) if file else 'FILE (give --offsets-out FILE)'}"
        )
    yield "a new disk is formatted for the target by:"
    yield Verbatim(_format_line(report))
    manifests = _manifests(report)
    if manifests:
        yield "where Strimzi looks after topics, it deletes those without such a resource:"
    for manifest in manifests:
        # A document of YAML, of which JSON is a part.
        yield Verbatim("---")
        yield from (Verbatim(f"{key}: {json.dumps(value)}") for key, value in manifest.items())


def _retention(call: Call, report: TransplantReport) -> Iterator[Block]:
    """Warn of topics whose records the target would delete at once."""
    late: dict[str, int] = {}
    for each in report.transplants:
        if each.log is None or each.newest_ms < 0:
            continue
        config = each.log.config
        deletes = CleanupPolicy.DELETE in config.cleanup_policy and config.retention_ms >= 0
        if deletes and each.newest_ms + config.retention_ms < call.options.now_ms:
            late[each.target.topic] = config.retention_ms
    for topic, retention_ms in late.items():
        yield Sentence(
            f"{topic}: all records of a partition are older than retention.ms {retention_ms}: the "
            "target deletes them within minutes; set retention.ms=-1 there before it gets them",
            "bold yellow",
        )


def _format_line(report: TransplantReport) -> str:
    return (
        f"kafka-storage.sh format --cluster-id {shlex.quote(report.cluster_id)} "
        "--config server.properties --ignore-formatted"
    )


def _manifests(report: TransplantReport) -> list[Row]:
    """Return Strimzi's resource of each topic that gets partitions."""
    topics = report.metadata.topics_by_name()
    names = dict.fromkeys(each.target.topic for each in report.transplants if each.log is not None)
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


TRANSPLANT: Final = Work(name="transplant", prepare=_prepare, operate=_transplant, view=_view)
