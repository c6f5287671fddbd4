"""``pylog config``: effective settings, and a first file of topic configs."""

import json
import shlex
from collections.abc import Sequence
from typing import Final

import humanize
import typer

from pylog_spark.cli.runner import check_topics, show, topics_of
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.topic_evidence import TopicEvidence, gather_evidence
from pylog_spark.options.arguments import said_as
from pylog_spark.options.declared import EXCLUDE, ORIGIN, ROOTS, TOPICS
from pylog_spark.options.load import load_config
from pylog_spark.options.option import CommandLine
from pylog_spark.report import size_text, text_column
from pylog_spark.text import printable
from pylog_spark.view import Row, Table, TableKind, View, lines_of
from storage_core.catalog.topic_catalog import INTERNAL_TOPICS
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.clock import SystemClock
from storage_core.roots.open_root import find_root
from storage_core.wording import count_text, time_text

# Nothing here depends on the clock of a run.
_NO_CLOCK = 0
_WEEK_MS: Final = 7 * 24 * 3_600_000
_SETTING_TABLE: Final = TableKind(
    columns=(
        text_column("key", "key"),
        text_column("value", "value", folds=True),
        text_column("origin", "origin", folds=True),
        text_column("unit", "unit", rank=2),
    ),
    note=lambda row: row["doc"],
    note_heading="doc",
)


def show_config(line: CommandLine) -> int:
    """Print every setting in force, and return the exit status."""
    rows = [
        {
            "key": entry.key,
            "value": entry.value,
            **({"origin": entry.origin} if line[ORIGIN] else {}),
            "unit": entry.unit,
            "doc": entry.doc,
        }
        for entry in load_config(line, now_ms=_NO_CLOCK).entries
    ]
    view = View(
        lines=lines_of("setting", rows),
        csv=("setting", rows[0]),
        blocks=[Table(kind=_SETTING_TABLE, rows=rows)],
        status=ExitCode.DONE,
    )
    return show(view, line)


def init_config(line: CommandLine) -> int:
    """Print a YAML file for topics without config; return the exit status. As it is printed it
    says nothing: what is a guess is a comment."""
    now_ms = SystemClock().now_ms()
    topics = TopicFilter(topics=line[TOPICS], exclude=line[EXCLUDE])
    there: set[str] = set()
    for root in line[ROOTS]:
        with said_as("ROOT", root):
            there |= topics_of(find_root(root)[1])
    notes = check_topics(topics.topics, topics.exclude, there, line[ROOTS])
    evidence = gather_evidence(line[ROOTS], topics, now_ms=now_ms)
    command = shlex.join(["pylog", "config", "init", *line[ROOTS]])
    lines = [
        f"Configs of topics for --config, begun by `{command}` at {time_text(now_ms)[:19]}.",
        "As it stands it says nothing, for files tell no config: what follows are guesses.",
        "Ask the cluster (kafka-configs.sh --describe --entity-type topics), or who owns a topic;",
        "correct what is below, and take the # at the beginning of its lines away.",
        "A topic that stays a comment is left alone by run, retain and compact. Recovery and",
        "verification need no configs. Topic keys are Kafka's; those left out have its defaults.",
    ]
    if evidence.metadata_count:
        lines.append(
            f"{evidence.metadata_count} topics are left out: the cluster's metadata has theirs."
        )
    if not evidence.unknown and not evidence.notes:
        lines.append("There is no topic here of which the config is unknown.")
    lines += [
        *evidence.elsewhere,
        *notes,
        *(f"Could not be read: {note}" for note in evidence.notes),
    ]
    text = [f"# {printable(one)}" for one in lines]
    text += ["", "topics:"]
    for topic in evidence.unknown:
        text += ["", *_entry(topic)]
    typer.echo("\n".join(text))
    return ExitCode.PARTLY_FAILED if evidence.notes else ExitCode.DONE


def _entry(topic: TopicEvidence) -> list[str]:
    """Return a topic's evidence and a possible entry, all as comments."""
    rows = topic.rows
    size = size_text(sum(row["size_bytes"] or 0 for row in rows))
    segments = sum(row["segments"] or 0 for row in rows)
    partitions = len({row["partition"] for row in rows})
    counts = count_text(partitions, "partition")
    # Of several brokers.
    if len(rows) > partitions:
        counts += f", {count_text(len(rows), 'replica')}"
    counts += f", {count_text(segments, 'segment')}"
    facts = [f"{counts}, {size}{_time_span(rows)}"]
    facts.append(
        f"of its logs {topic.with_checkpoint} are in the cleaner checkpoint, "
        f"{topic.with_gaps} have gaps in their oldest offsets, {topic.deleted_below} begin above 0"
    )
    policy, why = topic.guess()
    facts.append(f"guess: {why}")
    entry = [f"{json.dumps(topic.topic)}:"]
    remark = {"compact": "  # or [compact, delete]", None: "delete  # the default"}.get(policy, "")
    entry.append(f"  cleanup.policy: {policy or ''}{remark}")
    if policy != "compact":
        own = INTERNAL_TOPICS.get(topic.topic, {}).get("retention.ms")
        entry.append(f"  retention.ms: {own or f'{_WEEK_MS}  # the default, 7 days'}")
    return [*(f"  # {printable(fact)}" for fact in facts), *(f"#  {one}" for one in entry)]


def _time_span(rows: Sequence[Row]) -> str:
    oldest = min((r["oldest_timestamp"] for r in rows if r["oldest_timestamp"]), default=None)
    newest = max((r["newest_timestamp"] for r in rows if r["newest_timestamp"]), default=None)
    if oldest is None or newest is None:
        return ""
    span = humanize.naturaldelta(max(newest - oldest, 0) / 1000)
    return f", records of {time_text(oldest)[:19]} to {time_text(newest)[:19]} ({span})"
