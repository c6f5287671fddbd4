"""Gather what speaks against deletions: doubtful configs, newest records, former limits."""

from collections.abc import Collection, Mapping
from typing import Any

from pylog_spark.ledger import last_limits
from pylog_spark.operations.retain.deletion_guard import FormerLimits, TopicPlace
from pylog_spark.operations.retain.task import (
    observe_newest,
)
from pylog_spark.options import JobOptions
from pylog_spark.run.run import Run
from pylog_spark.schemas import (
    NEWEST_RECORD,
)
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.topic_catalog import TopicCatalog, TopicConfigSource
from storage_core.config.log_config import TOPIC_KEYS


class RunEvidence:
    """The evidence of one run, gathered on demand. What costs a stage is looked for once."""

    def __init__(self, run: Run, context: RunContext) -> None:
        self._run = run
        self._context = context
        self._doubts: dict[tuple[str, str, str], str | None] = {}
        self._newest: dict[TopicPlace, int] | None = None

    @property
    def now_ms(self) -> int:
        """The run's clock."""
        return self._run.job.options.now_ms

    def doubt(self, root: str, topic: str, key: str) -> str | None:
        """Return why a setting may not be the cluster's own, or None."""
        place = (root, topic, key)
        if place not in self._doubts:
            doubt = self._doubt(root, topic, key)
            self._doubts[place] = None if doubt is None else f"its {key} {doubt}"
        return self._doubts[place]

    def _doubt(self, root: str, topic: str, key: str) -> str | None:
        options, catalog = self._run.job.options, self._context.catalogs[root]
        entry = catalog.find(topic)
        if entry is None or entry.source is TopicConfigSource.ASSUMED:
            return "is an assumed default (--assume-defaults)"
        if key in catalog.explicit_settings(topic):
            return "is what --set or a --config file says"
        if entry.source is TopicConfigSource.EXPLICIT:
            if key in entry.config_overrides:
                return "is what a --config file said at the ingest"
            return "is a default of a topic that only a --config file knows"
        if entry.source is TopicConfigSource.IMPORTED_DUMP and self._is_old(entry.taken_ms):
            return "is of a --topic-dump that is older than topic_dump_max_age"
        return None if key in entry.config_overrides else _doubt_default(key, catalog, options)

    def _is_old(self, taken_ms: int | None) -> bool:
        """Whether an export was made too long ago, or nobody knows when."""
        max_age_ms = self._run.job.options.topic_dump_max_age_ms
        return taken_ms is None or self.now_ms - taken_ms > max_age_ms

    def newest_records(self) -> Mapping[TopicPlace, int]:
        """Return the time of each topic's newest record. The topics are all that the run is
        about."""
        if self._newest is None:
            what = f"find the newest records in {self._run.job.places}"
            table = self._run.observe(observe_newest, NEWEST_RECORD, what)
            names = ["root", "topic", "newest_timestamp"]
            self._newest = {}
            for row in table.select(names).to_pylist():
                place, at = (row["root"], row["topic"]), row["newest_timestamp"]
                if at is not None:
                    self._newest[place] = max(at, self._newest.get(place, at))
        return self._newest

    def checkpoint_ms(self, root: str) -> int | None:
        """Return the time of the broker's last checkpoint write. None where that tells nothing.

        It is the time of a file by the machine's clock: no measure of a clock that somebody said.
        """
        return None if self._run.job.options.now_is_said else self._run.checkpoint_times.get(root)

    def former_limits(self, topics: Collection[TopicPlace]) -> Mapping[TopicPlace, FormerLimits]:
        """Return what the ledger knows of these topics."""
        job, engine = self._run.job, self._run.engine
        ledger, names = job.options.ledger, {topic for _, topic in topics}
        if ledger is None:
            return {}

        def ask() -> list[dict[str, Any]]:
            return last_limits(
                self._run.place,
                ledger,
                names,
                run_id=job.run_id,
                # Nobody has made the ledger yet, and a dry run does not.
                may_be_missing=job.options.dry_run,
            )

        engine.describe(f"{job.title}: what retention topics had")
        rows = engine.wait_for(engine.alongside(ask))
        return {
            (row["root"], row["topic"]): FormerLimits(
                row["run_id"], row["retention_ms"], row["retention_bytes"]
            )
            for row in rows
        }


def _doubt_default(key: str, catalog: TopicCatalog, options: JobOptions) -> str | None:
    """Return why a broker-wide value may not be the broker's own. None if it is."""
    names = {name.name for name in TOPIC_KEYS[key].broker_names}
    if names & options.broker_overrides.keys():
        return "is what --set says of the broker"
    if names & catalog.broker.keys() or options.broker_settings:
        return None
    return "is Kafka's default: the broker's own is in no --server-properties"
