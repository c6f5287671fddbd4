"""What speaks for or against the deletions of a run: who said a limit, how late it is, what was."""

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812  # Spark's own habit

from pylog_spark.ledger import LedgerTable, read_table
from pylog_spark.operations.deletion_guard import FormerLimits, TopicPlace
from pylog_spark.options import JobOptions
from pylog_spark.run.open_run import OpenRun
from pylog_spark.schemas import ALLOWED_BY, NEWEST_RECORD, RESULT, Action
from pylog_spark.tasks.retention import observe_newest
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.topic_catalog import TopicCatalog, TopicConfigSource
from storage_core.config.log_config import TOPIC_KEYS

# More names than these are not sent to Spark: it is asked for all topics.
_MOST_NAMED: Final = 1000
_FORMER: Final = pa.schema(
    [RESULT.field(name) for name in ("root", "topic", "run_id", "retention_ms", "retention_bytes")]
)


class RunEvidence:
    """The evidence of one run; what costs a stage is looked for once, when somebody asks.

    Args:
        run: The run.
        context: What its tasks share.
    """

    def __init__(self, run: OpenRun, context: RunContext) -> None:
        self._run = run
        self._context = context
        self._doubts: dict[tuple[str, str, str], str | None] = {}
        self._newest: dict[TopicPlace, int] | None = None

    @property
    def now_ms(self) -> int:
        """The run's clock."""
        return self._context.now_ms

    def doubt(self, root: str, topic: str, key: str) -> str | None:
        """Return why a setting in force may not be the cluster's own, None where it is."""
        place = (root, topic, key)
        if place not in self._doubts:
            found = self._doubt(root, topic, key)
            self._doubts[place] = None if found is None else f"its {key} {found}"
        return self._doubts[place]

    def _doubt(self, root: str, topic: str, key: str) -> str | None:
        options, catalog = self._run.job.options, self._context.catalogs[root]
        entry = catalog.find(topic)
        if entry is None or entry.source is TopicConfigSource.ASSUMED:
            return "is an assumed default (--assume-defaults)"
        if key in catalog.explicit_settings(topic):
            return "is what --set or a --config file says"
        if entry.source is TopicConfigSource.EXPLICIT:
            return "is a default of a topic that only a --config file knows"
        if entry.source is TopicConfigSource.IMPORTED_DUMP and self._is_old(entry.taken_ms):
            return "is of a --topic-dump that is older than topic_dump_max_age"
        return None if key in entry.config_overrides else _doubt_default(key, catalog, options)

    def _is_old(self, taken_ms: int | None) -> bool:
        """Whether an export was made too long ago, or nobody knows when."""
        max_age_ms = self._run.job.options.topic_dump_max_age_ms
        return taken_ms is None or self.now_ms - taken_ms > max_age_ms

    def newest_records(self) -> Mapping[TopicPlace, int]:
        """Return the time of the newest record of every topic that the run is about."""
        if self._newest is None:
            what = f"find the newest records in {self._run.job.places}"
            found = self._run.observe(observe_newest, NEWEST_RECORD, what)
            names = ["root", "topic", "newest_timestamp"]
            self._newest = {}
            for row in found.select(names).to_pylist():
                place, at = (row["root"], row["topic"]), row["newest_timestamp"]
                if at is not None:
                    self._newest[place] = max(at, self._newest.get(place, at))
        return self._newest

    def checkpoint_ms(self, root: str) -> int | None:
        """Return when the broker last wrote a checkpoint, None where that tells nothing.

        It is the time of a file by the machine's clock: no measure of a clock that somebody said.
        """
        return None if self._run.job.options.now_is_said else self._run.checkpoint_times.get(root)

    def former_limits(self, topics: Collection[TopicPlace]) -> Mapping[TopicPlace, FormerLimits]:
        """Return what the ledger knows of these topics.

        A limit that was refused, be it in one partition, was not enforced: the one before counts.

        Raises:
            pyspark.errors.PySparkException: The ledger cannot be read.
        """
        options = self._run.job.options
        if options.ledger is None:
            return {}
        try:
            rows = read_table(self._run.spark, options.ledger, LedgerTable.RESULTS)
        except AnalysisException:
            if options.dry_run:
                return {}  # nobody has made the ledger yet, and a dry run does not
            raise
        if "retention_ms" not in rows.columns:
            return {}
        names = sorted({topic for _, topic in topics})
        chosen = rows.where(
            (F.col("action") == Action.RETAIN.value)
            & F.col("retention_ms").isNotNull()
            & (F.col("run_id") != self._run.job.run_id)
        )
        if len(names) <= _MOST_NAMED:
            chosen = chosen.where(F.col("topic").isin(names))
        # Partitions in which nothing expired say the limit, too, of which others were refused.
        refusal = F.when(F.col("reason").isin(sorted(ALLOWED_BY)), 1).otherwise(0)
        limits = F.struct(*_FORMER.names[2:])
        runs = chosen.groupBy("root", "topic", "run_id").agg(
            F.max(refusal).alias("refusals"), F.max(limits).alias("limits")
        )
        # Names of runs sort by time.
        last = F.max_by("limits", "run_id").alias("last")
        enforced = runs.where(F.col("refusals") == 0).groupBy("root", "topic").agg(last)
        frame = enforced.select("root", "topic", "last.*")
        title = f"{self._run.job.title}: what retention topics had"
        found = self._run.dispatcher.collect(frame, _FORMER, title).to_pylist()
        return {
            (row["root"], row["topic"]): FormerLimits(
                row["run_id"], row["retention_ms"], row["retention_bytes"]
            )
            for row in found
        }


def _doubt_default(key: str, catalog: TopicCatalog, options: JobOptions) -> str | None:
    """Return why the broker-wide value of a key may not be the broker's own, None if it is."""
    names = {name.name for name in TOPIC_KEYS[key].broker_names}
    if names & options.broker_overrides.keys():
        return "is what --set says of the broker"
    if names & catalog.broker.keys() or options.broker_settings:
        return None
    return "is Kafka's default: the broker's own is in no --server-properties"
