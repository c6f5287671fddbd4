"""``pylog undo`` and ``purge``, with engine and ledger as for jobs. What does their tasks, and
writes their ledger, is chosen as for jobs."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow.compute as pc

from pylog_spark.cli.chosen_topics import topic_notes
from pylog_spark.cli.jobs import view_run
from pylog_spark.cli.runner import Call, Tasks, Work, load_options
from pylog_spark.discovery import resolve_roots
from pylog_spark.operations.purge.driver import purge
from pylog_spark.operations.undo.driver import check_undo, undo
from pylog_spark.options import JobOptions
from pylog_spark.options.declared import ROOTS, RUN_ID
from pylog_spark.options.option import CommandLine
from pylog_spark.run.guards import check_roots
from pylog_spark.run.run_report import RunReport, note_of_empty_root
from pylog_spark.tasks.listing import list_partitions
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.roots.open_root import LogRoot
from storage_core.store import open_object_store
from storage_core.store.managed_root import list_partitions as list_managed


def _prepare_undo(line: CommandLine) -> Call:
    options = load_options(line)
    roots = check_undo(line[RUN_ID], options, line[ROOTS])
    return Call(line=line, options=options, roots=roots, notes=topic_notes(options, roots))


def _undo(call: Call, place: Any) -> RunReport:
    report = undo(call.line[RUN_ID], call.options, roots=call.line[ROOTS], place=place)
    present = set(pc.unique(report.results["root"]).to_pylist())
    of_what = " of a topic that --topics and --exclude ask for" if call.are_topics_chosen else ""
    notes = (
        f"{root}: the run left nothing to undo there{of_what}"
        for root in call.locations
        if root not in present
    )
    return report.with_notes((*notes, *call.notes))


def _prepare_purge(line: CommandLine) -> Call:
    options = load_options(line)
    roots = resolve_roots(line[ROOTS], role=options.role) if line[ROOTS] else []
    check_roots(roots, options)
    notes = (*topic_notes(options, roots), *_notes_of_empty_roots(roots, options))
    return Call(line=line, options=options, notes=notes)


def _purge(call: Call, place: Any) -> RunReport:
    report = purge(call.line[ROOTS], call.options, place=place)
    return report.with_notes(call.notes)


def _notes_of_empty_roots(roots: Sequence[LogRoot], options: JobOptions) -> tuple[str, ...]:
    """Return a line for each root without a partition to purge. The purge was asked for there.

    A purge has no row of a partition that has nothing to purge, so its rows do not tell.
    """
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    return tuple(
        note_of_empty_root(
            root.location, are_topics_chosen=bool(options.include or options.exclude)
        )
        for root in roots
        if not _has_partition(root, topics)
    )


def _has_partition(root: LogRoot, topics: TopicFilter) -> bool:
    if root.role.facts.has_manifests:
        partitions = list_managed(open_object_store(root.location))
        return any(topics.admits(partition.topic) for partition in partitions)
    return bool(list_partitions(root.location, root.role.value, topics))


UNDO: Final = Work(
    name="undo",
    prepare=_prepare_undo,
    operate=_undo,
    view=view_run,
    tasks=Tasks.HERE,
)
PURGE: Final = Work(
    name="purge",
    prepare=_prepare_purge,
    operate=_purge,
    view=view_run,
    tasks=Tasks.HERE,
)
