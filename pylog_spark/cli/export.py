"""``pylog export``: a topic's records as Parquet, Delta, CSV, JSON lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pylog_spark.cli.record_choice import (
    are_several_topics,
    find_open_ends,
    missing_partitions,
    read_chosen,
    with_topic_and_roots,
)
from pylog_spark.cli.runner import Call, ProgressLine, Tasks, Work, load_options
from pylog_spark.cli.value_formats import key_format, registry_columns, value_format
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.export import (
    Exported,
    ExportedTopic,
    ExportPlan,
    PlannedTopic,
    export,
    plan_export,
)
from pylog_spark.operations.export_out import check_out
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
from pylog_spark.record_columns import columns_beside
from pylog_spark.report import size_text
from pylog_spark.run.guards import check_outside
from pylog_spark.view import OutputLine, Verbatim, View
from storage_core import kafka_log
from storage_core.catalog.roles import guess_role
from storage_core.errors import ConfigError
from storage_core.filenames import TopicPartition
from storage_core.reading.ranges import schema_of
from storage_core.redaction import plain_places
from storage_core.roots.open_root import LogRoot
from storage_core.store.open_objects import MANAGED_PREFIX, is_url
from storage_core.values.registry_columns import RegistryColumns
from storage_core.wording import count_text

# So many missing partitions are named.
_MOST_NAMED = 5
# What a dry run says of records and bytes.
_ESTIMATES = ("most_records", "read_bytes")
# What is said of keys and values where nobody says it.
_UNSAID = {
    ExportFormat.PARQUET: BytesFormat.RAW,
    ExportFormat.DELTA: BytesFormat.RAW,
    ExportFormat.CSV: BytesFormat.TEXT,
    ExportFormat.JSONL: BytesFormat.BASE64,
}
# They have columns of any type.
_TYPED = {ExportFormat.PARQUET, ExportFormat.DELTA}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is exported, how, and whether each topic has a folder of its own."""

    request: ExportRequest
    # What makes columns of keys and values, by folder; empty where they stay bytes.
    typed: Mapping[str, RegistryColumns]
    has_folders: bool

    def topics(self, line: CommandLine) -> Sequence[str]:
        """Return the topics with a folder of their own."""
        return line[TOPIC] if self.has_folders else ()


def _prepare(line: CommandLine) -> Call:
    has_folders = are_several_topics(line)
    line = with_topic_and_roots(line, needs_out=True)
    options = load_options(line)
    to, out = line[EXPORT_FORMAT], line[OUT]
    check_out(out, to)
    if is_url(out):
        _check_outside_of_roots(out, line[ROOTS])
    else:
        roots = [LogRoot(location=it, role=guess_role(it), is_said=False) for it in line[ROOTS]]
        check_outside(OUT.label, out, roots)
    columns = line[COLUMNS] or kafka_log.COLUMNS
    if to is ExportFormat.JSONL and line[COLUMNS]:
        raise ConfigError(COLUMNS.label, ",".join(columns), "JSON lines have all columns")
    if to in {ExportFormat.CSV, ExportFormat.JSONL}:
        refuse_raw(line, f"{to} has no place for raw bytes: text, hex, base64 or json")
    formats = {"key": key_format(line), "value": value_format(line)}
    typed = registry_columns(line, line[TOPIC], formats if to in _TYPED else {})
    if typed:
        first = next(iter(typed.values()))  # columns have the same names of all topics
        if set(columns) <= set(kafka_log.COLUMNS):  # else the reader refuses them
            columns = tuple(first.schema(schema_of(columns)).names)
        formats |= dict.fromkeys(first.columns, BytesFormat.RAW)
    request = ExportRequest(
        folder="",
        to=to,
        columns=columns,
        keys=formats["key"] or _UNSAID[to],
        values=formats["value"] or _UNSAID[to],
    )
    by_folder = {topic if has_folders else "": each for topic, each in typed.items()}
    subject = _Subject(request=request, typed=by_folder, has_folders=has_folders)
    return Call(line=line, options=options, subject=subject)


def _check_outside_of_roots(out: str, roots: Sequence[str]) -> None:
    """Refuse a prefix within a root: other programs take its objects for their own."""
    for root in roots:
        url = plain_places(root).removeprefix(MANAGED_PREFIX).rstrip("/")
        if f"{out}/".startswith(f"{url}/"):
            raise ConfigError(OUT.label, out, f"lies inside the log directory {root}")


# What was exported, or is to be; which partitions of the topics have no log here; where open
# transactions end a committed read.
_Answer = tuple[Exported | ExportPlan, list[TopicPartition], list[str]]


def _operate(call: Call, place: Any) -> _Answer:
    subject: _Subject = call.subject
    request, typed = subject.request, subject.typed
    sources = request.columns
    if typed:
        sources = next(iter(typed.values())).sources(sources)
    beside = columns_beside(request.keys, request.values)
    read = partial(read_chosen, call.line, dict.fromkeys([*sources, *beside]))
    topics, out = subject.topics(call.line), call.line[OUT]
    exported: Exported | ExportPlan
    if call.options.dry_run:
        read = partial(read, has_ends=True)
        exported = plan_export(place, read, out, request, topics=topics)
    else:
        with ProgressLine(is_shown=call.has_progress) as progress:
            exported = export(
                place,
                read,
                out,
                request,
                topics=topics,
                typed=typed,
                on_progress=progress.on_progress,
            )
    if isinstance(exported, Exported) and exported.failures:
        return exported, [], []
    missing: list[TopicPartition] = []
    if not call.line[PARTITIONS]:
        missing = missing_partitions(call.line[ROOTS], call.line[TOPIC])
    return exported, missing, list(find_open_ends(call.line))


def _view(call: Call, answer: _Answer) -> View:
    exported, missing, open_ends = answer
    line, to = call.line, call.subject.request.to
    topics = tuple(dict.fromkeys(line[TOPIC]))
    if isinstance(exported, Exported) and exported.failures:
        errors = [str(failure.error) for failure in exported.failures]
        errors.append(f"{exported.out}: nothing written: {len(errors)} parts failed")
        return View(lines=(), blocks=(), errors=errors, status=ExitCode.PARTLY_FAILED)
    row = {
        "topic": ",".join(topics),
        "roots": list(line[ROOTS]),
        "out": exported.out,
        "format": to.value,
        **_figures(exported),
        "missing_partitions": sorted({each.partition for each in missing}),
        "missing": list(map(str, missing)),
        "open_ends": open_ends,
        "topics": [asdict(each) for each in exported.topics],
    }
    sentences = list(_sentences(exported, topics, to))
    if line[ISOLATION] is Isolation.READ_UNCOMMITTED and _has_records(exported):
        sentences.append(
            f"{Isolation.READ_UNCOMMITTED}: records of aborted transactions are among them if "
            f"there are any; {ISOLATION.label} {Isolation.READ_COMMITTED} leaves them out"
        )
    sentences += open_ends
    if isinstance(exported, Exported):
        row |= {"misfits": exported.misfits.count, "first_misfits": exported.misfits.first}
        sentences += [str(exported.misfits)] if exported.misfits.count else []
    if missing:
        absent = count_text(len(missing), "partition")
        names = ", ".join(map(str, missing[:_MOST_NAMED]))
        more = ", ..." if len(missing) > _MOST_NAMED else ""
        sentences.append(
            f"{absent} of {', '.join(topics)} not in these directories ({names}{more}), as the "
            "cluster's metadata knows them: give all log directories of the broker (log.dirs), and "
            "those of brokers that have the others"
        )
    kind = "export" if isinstance(exported, Exported) else "export_plan"
    return View(
        lines=[OutputLine(kind, row)], blocks=map(Verbatim, sentences), status=ExitCode.DONE
    )


def _figures(exported: Exported | ExportPlan) -> dict[str, int]:
    names = ("records", "size_bytes") if isinstance(exported, Exported) else _ESTIMATES
    return {name: getattr(exported, name) for name in (*names, "files")}


def _has_records(exported: Exported | ExportPlan) -> bool:
    return bool(exported.records if isinstance(exported, Exported) else exported.most_records)


def _sentences(
    exported: Exported | ExportPlan, topics: Sequence[str], to: ExportFormat
) -> Iterator[str]:
    yield f"{_amount(exported, ', '.join(topics))}, {to}"
    if isinstance(exported, ExportPlan):
        yield "estimated by offsets: a compacted log has fewer records; nothing was written"
    if len(exported.topics) > 1:
        for each in exported.topics:
            yield _amount(each, each.topic)


def _amount(it: Exported | ExportedTopic | ExportPlan | PlannedTopic, topics: str) -> str:
    files = count_text(it.files, "file")
    if isinstance(it, Exported | ExportedTopic):
        records = count_text(it.records, "record")
        return f"{records} of {topics} in {it.out}: {files}, {size_text(it.size_bytes)}"
    records = count_text(it.most_records, "record")
    read = f"{size_text(it.read_bytes)} to read"
    return f"at most {records} of {topics} to {it.out}: at most {files}, {read}"


EXPORT = Work(
    name="export",
    prepare=_prepare,
    operate=_operate,
    view=_view,
    tasks=Tasks.HERE_IF_FEW,
    reads=lambda call: call.line[ROOTS],
)
