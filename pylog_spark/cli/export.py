"""``pylog export``: a topic's records as Parquet, Delta, CSV, JSON lines."""

from functools import partial
from typing import Any

from pylog_spark.cli.record_choice import (
    find_open_ends,
    missing_partitions,
    read_chosen,
    with_topic_and_roots,
)
from pylog_spark.cli.runner import Call, ProgressLine, Tasks, Work, load_options
from pylog_spark.cli.value_formats import key_format, value_format
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.export import Exported, check_out, export
from pylog_spark.operations.export_task import ExportRequest
from pylog_spark.options.arguments import refuse_raw
from pylog_spark.options.choices import BytesFormat, ExportFormat, Isolation
from pylog_spark.options.declared import (
    COLUMNS,
    EXPORT_FORMAT,
    ISOLATION,
    OUT,
    PARTITIONS,
    ROOTS,
    TOPIC,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.record_text import NAMES, is_json
from pylog_spark.report import size_text
from pylog_spark.run.guards import check_outside
from pylog_spark.view import OutputLine, Verbatim, View
from storage_core import kafka_log
from storage_core.catalog.roles import guess_role, local_path
from storage_core.errors import ConfigError
from storage_core.filenames import TopicPartition
from storage_core.roots.open_root import LogRoot
from storage_core.wording import count_text

# So many missing partitions are named.
_MOST_NAMED = 5
# What is said of keys and values where nobody says it.
_UNSAID = {
    ExportFormat.PARQUET: BytesFormat.RAW,
    ExportFormat.DELTA: BytesFormat.RAW,
    ExportFormat.CSV: BytesFormat.TEXT,
    ExportFormat.JSONL: BytesFormat.BASE64,
}


def _prepare(line: CommandLine) -> Call:
    line = with_topic_and_roots(line, needs_out=True)
    options = load_options(line)
    to = line[EXPORT_FORMAT]
    if local_path(str(line[OUT])) is None:
        raise ConfigError(
            OUT.label, line[OUT], "expected a folder of this machine, or one it mounts"
        )
    check_out(line[OUT])
    roots = [LogRoot(location=root, role=guess_role(root), is_said=False) for root in line[ROOTS]]
    check_outside(OUT.label, line[OUT], roots)
    columns = line[COLUMNS] or kafka_log.COLUMNS
    if to is ExportFormat.JSONL and line[COLUMNS]:
        raise ConfigError(COLUMNS.label, ",".join(columns), "JSON lines have all columns")
    if to in {ExportFormat.CSV, ExportFormat.JSONL}:
        refuse_raw(line, f"{to} has no place for raw bytes: text, hex, base64 or json")
    request = ExportRequest(
        folder="",
        to=to,
        columns=columns,
        keys=key_format(line) or _UNSAID[to],
        values=value_format(line) or _UNSAID[to],
    )
    return Call(line=line, options=options, subject=request)


# What was exported; which partitions of the topics have no log here; where open transactions end a
# committed read.
_Answer = tuple[Exported, list[TopicPartition], list[str]]


def _operate(call: Call, place: Any) -> _Answer:
    request: ExportRequest = call.subject
    names = NAMES if is_json(request.keys) or is_json(request.values) else ()
    read = partial(read_chosen, call.line, dict.fromkeys([*request.columns, *names]))
    with ProgressLine(is_shown=call.has_progress) as progress:
        exported = export(place, read, call.line[OUT], request, on_progress=progress.on_progress)
    if exported.failures:
        return exported, [], []
    missing: list[TopicPartition] = []
    if not call.line[PARTITIONS]:
        missing = missing_partitions(call.line[ROOTS], call.line[TOPIC])
    return exported, missing, list(find_open_ends(call.line))


def _view(call: Call, answer: _Answer) -> View:
    request: ExportRequest = call.subject
    exported, missing, open_ends = answer
    topics, to = tuple(dict.fromkeys(call.line[TOPIC])), request.to
    if exported.failures:
        errors = [str(failure.error) for failure in exported.failures]
        errors.append(f"{exported.out}: nothing written: {len(errors)} parts failed")
        return View(lines=(), blocks=(), errors=errors, status=ExitCode.PARTLY_FAILED)
    row = {
        "topic": ",".join(topics),
        "roots": list(call.line[ROOTS]),
        "out": exported.out,
        "format": to.value,
        "records": exported.records,
        "files": exported.files,
        "size_bytes": exported.size_bytes,
        "missing_partitions": sorted({each.partition for each in missing}),
        "missing": list(map(str, missing)),
        "open_ends": open_ends,
    }
    files = count_text(exported.files, "file")
    records = f"{count_text(exported.records, 'record')} of {', '.join(topics)}"
    sentences = [f"{records} in {exported.out}: {files}, {size_text(exported.size_bytes)}, {to}"]
    if call.line[ISOLATION] is Isolation.READ_UNCOMMITTED and exported.records:
        sentences.append(
            f"{Isolation.READ_UNCOMMITTED}: records of aborted transactions are among them if "
            f"there are any; {ISOLATION.label} {Isolation.READ_COMMITTED} leaves them out"
        )
    sentences += open_ends
    if missing:
        absent = count_text(len(missing), "partition")
        names = ", ".join(map(str, missing[:_MOST_NAMED]))
        more = ", ..." if len(missing) > _MOST_NAMED else ""
        sentences.append(
            f"{absent} of {', '.join(topics)} not in these directories ({names}{more}), as the "
            "cluster's metadata knows them: give all log directories of the broker (log.dirs), and "
            "those of brokers that have the others"
        )
    return View(
        lines=[OutputLine("export", row)], blocks=map(Verbatim, sentences), status=ExitCode.DONE
    )


EXPORT = Work(
    name="export", prepare=_prepare, operate=_operate, view=_view, tasks=Tasks.HERE_IF_FEW
)
