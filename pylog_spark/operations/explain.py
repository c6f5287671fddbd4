"""Explain why partitions are not cleaned, not deleted, or so big. It also says from when on they
will be.

Read only, in this process: no Spark session is started, no lock is taken, no record is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any, Final

from pylog_spark.discovery import resolve_roots
from pylog_spark.options import HighWatermarkSource, JobOptions
from pylog_spark.options.load import broker_config
from pylog_spark.outcomes import Reason
from pylog_spark.refusals import way_out_of
from pylog_spark.run.catalogs import build_catalogs
from pylog_spark.run.job import unclean_roots
from pylog_spark.run.run_report import config_init_command
from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.catalog.off_switch import is_switched_off
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import describe_failure
from storage_core.filenames import RECOVERY_POINT_FILE, TopicPartition
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.maintenance.explain import (
    Answer,
    Explanation,
    PredicateResult,
    Statement,
    explain_after_recovery,
    explain_partition,
    explain_tiered,
    held_until_recovery,
    unknowable,
)
from storage_core.reading.inspection import RootView, inspect_root
from storage_core.roots.open_root import LogRoot, root_checkpoints
from storage_core.roots.partition_facts import manifest_timestamps, partition_checkpoints
from storage_core.roots.remote_logs import RemoteLogs
from storage_core.store import open_store
from storage_core.store.open_objects import name_root
from storage_core.wording import span_text

_NOT_A_LOG: Final = {
    DirectoryKind.METADATA: ("INTERNAL_METADATA", "the cluster's own metadata is never touched"),
    DirectoryKind.FUTURE: ("FUTURE_DIRECTORY", "a copy on its way to another directory"),
    DirectoryKind.DELETE: ("DELETE_DIRECTORY", "its partition was deleted: `pylog purge` removes"),
    DirectoryKind.STRAY: ("STRAY_DIRECTORY", "Kafka found that it does not belong here"),
    DirectoryKind.FOREIGN: ("INVALID_DIRECTORY_NAME", "its name is no partition's"),
}

# How the codes of all predicates end that ask for the high watermark.
_HIGH_WATERMARK: Final = "HIGH_WATERMARK"

Row = dict[str, Any]


def explain(roots: Sequence[str], options: JobOptions) -> Iterator[Row]:
    """Explain the partitions of some roots, one row after the other.

    Args:
        roots: Log directories, copies and managed roots; paths or URLs.

    Yields:
        root, topic, partition, directory, ``answers``, ``statements`` and, where a recovery has to
        come first, the answers ``after_recovery``; or the error. ``fix`` is the command that begins
        a file of configs where the topic's is unknown.
    """
    log_roots = resolve_roots(roots, role=options.role)
    catalogs = build_catalogs(log_roots, options)
    unclean = unclean_roots(tuple(log_roots))
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    views = [
        inspect_root(name_root(root.location, has_manifests=root.role.facts.has_manifests))
        for root in log_roots
    ]
    remote = RemoteLogs(view.files for view in views)
    for root, view in zip(log_roots, views, strict=True):
        explainer = _Explainer(replace(view, remote=remote), catalogs[root.location], options)
        for entry in view.entries:
            partition = entry.topic_partition
            if entry.kind is DirectoryKind.CACHE or not topics.admits(
                None if partition is None else partition.topic
            ):
                continue
            yield explainer.row(root, entry, is_unclean=root.location in unclean)


class _Explainer:
    """Explains the partitions of one root."""

    def __init__(self, view: RootView, catalog: TopicCatalog, options: JobOptions) -> None:
        self._view = view
        self._catalog = catalog
        self._options = options
        self._config_of = cache(catalog.config_for)
        self._checkpoint_ms = broker_config(options).replica_high_watermark_checkpoint_interval_ms

    def row(self, root: LogRoot, entry: SubDirectory, *, is_unclean: bool) -> Row:
        """Return the row of one sub-directory, whatever is wrong with it."""
        partition = entry.topic_partition
        row: Row = {
            "root": root.location,
            "topic": None if partition is None else partition.topic,
            "partition": None if partition is None else partition.partition,
            "directory": entry.name,
            "error_class": None,
            "error": None,
        }
        try:
            explanation = self._explain(root, entry, is_unclean=is_unclean)
        except Exception as error:  # noqa: BLE001  # the row carries it; the others go on
            nothing: Row = {"answers": [], "statements": [], "after_recovery": [], "fix": None}
            return row | nothing | describe_failure(error)
        is_unknown = any(one.held_by == Reason.CONFIG_UNKNOWN for one in explanation.answers)
        return row | {
            "answers": [_plain(answer) for answer in explanation.answers],
            "statements": [_plain(statement) for statement in explanation.statements],
            "after_recovery": [_plain(answer) for answer in explanation.after_recovery],
            "fix": config_init_command(root.location) if is_unknown else None,
        }

    def _explain(self, root: LogRoot, entry: SubDirectory, *, is_unclean: bool) -> Explanation:
        partition = entry.topic_partition
        if partition is None or entry.kind in _NOT_A_LOG:
            kind = DirectoryKind.FOREIGN if partition is None else entry.kind
            return unknowable(*_NOT_A_LOG[kind], "")
        explanation = self._explain_log(root, entry, partition, is_unclean=is_unclean)
        if not is_unclean:
            return explanation
        return held_until_recovery(
            explanation,
            "UNCLEAN_SHUTDOWN",
            "the log directory was not cleanly shut down",
            "it is recovered: `pylog recover`",
        )

    def _explain_log(
        self, root: LogRoot, entry: SubDirectory, partition: TopicPartition, *, is_unclean: bool
    ) -> Explanation:
        if is_switched_off(entry.path):
            text = "its owner switched this program off here, by the file pylog-off"
            return unknowable("SWITCHED_OFF", text, "the file pylog-off is removed")
        if self._catalog.metadata_problem:
            until = "the metadata are mended: `pylog doctor` says how"
            return unknowable(Reason.METADATA_UNKNOWN, self._catalog.metadata_problem, until)
        config = self._config_of(partition.topic)
        if config is None:
            text = f"nobody says what the config of topic {partition.topic} is"
            until = "--config, --topic-dump or --assume-defaults says it, or the cluster's metadata"
            return unknowable(Reason.CONFIG_UNKNOWN, text, until)
        store = open_store(entry.path)
        if config.remote_storage_enable:
            return explain_tiered(store, self._view.remote.uploads(store, partition))
        checkpoints = partition_checkpoints(store, partition, lambda: self._view.checkpoints)
        if self._options.high_watermark is HighWatermarkSource.LOG_END:
            checkpoints = replace(checkpoints, high_watermark=None)
        elif checkpoints.high_watermark is None and not (
            root.role.facts.is_owned_by_broker
            and self._catalog.has_other_replicas(partition) is False
        ):
            text = "no high watermark is known: what is replicated, and so may be touched, is not"
            until = (
                "replication-offset-checkpoint has an entry, which a broker writes every "
                f"{span_text(self._checkpoint_ms)}, or --high-watermark log-end is said"
            )
            return unknowable("NO_HIGH_WATERMARK", text, until)
        request = CleanRequest(now_ms=self._options.now_ms, checkpoints=checkpoints)
        explanation = None
        if not is_unclean:
            explanation = explain_partition(
                store,
                config=config,
                cleaner=self._options.cleaner,
                request=request,
                max_timestamps=manifest_timestamps(store),
                # A copy of a log that was being written has indexes that end in zeros.
                is_closed=root.role.facts.has_closed_logs,
            )
        if explanation is None or explanation.answers[0].held_by == "RECOVERY_REQUIRED":
            points = root_checkpoints(root.location, [RECOVERY_POINT_FILE], strict=False)
            after = explain_after_recovery(
                store,
                config=config,
                cleaner=self._options.cleaner,
                request=request,
                recovery_point=points.of(partition).recovery_point or 0,
            )
            explanation = after if explanation is None else _with_recovery(explanation, after)
        has_mark = checkpoints.high_watermark is not None
        return _with_age(explanation, self._checkpoint_ms) if has_mark else explanation


def _with_recovery(explanation: Explanation, after: Explanation) -> Explanation:
    """Join an unrecovered log's explanation with the one after its recovery."""
    return replace(
        explanation,
        statements=(*explanation.statements, *after.statements),
        after_recovery=after.answers,
    )


def _with_age(explanation: Explanation, checkpoint_ms: int) -> Explanation:
    """Add the age of a checkpointed high watermark to the texts. It is said wherever the high
    watermark holds a log back."""
    age = f"; that is a checkpoint, which a running broker lets grow {span_text(checkpoint_ms)} old"

    def aged(code: str | None, text: str) -> str:
        return text + age if code is not None and code.endswith(_HIGH_WATERMARK) else text

    return replace(
        explanation,
        answers=tuple(
            replace(one, text=aged(one.held_by, one.text)) for one in explanation.answers
        ),
        statements=tuple(
            replace(one, text=aged(one.code, one.text)) for one in explanation.statements
        ),
    )


def _plain(value: Answer | Statement) -> Row:
    """Return an answer or predicate as a row with its way out. That is the way out of what
    stands in its way."""
    row = asdict(value)
    row = {name: str(item) if name in {"about", "verdict"} else item for name, item in row.items()}
    if isinstance(value, Answer):
        return row | {"way_out": "" if value.held_by is None else way_out_of(value.held_by)}
    is_blocking = value.verdict is PredicateResult.BLOCKS
    return row | {"way_out": way_out_of(value.code) if is_blocking else ""}
