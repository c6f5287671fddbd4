"""A log directory and the operations of upkeep."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ParamSpec, Self

import pyarrow as pa

from pylog_spark.discovery import discover_partitions, discover_segments, resolve_roots
from pylog_spark.engines.choice import Local, Place
from pylog_spark.operations.apply import OPERATIONS, ApplyOptions, apply_saved, options_of
from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.doctor.driver import Diagnosis, diagnose, release_to_start
from pylog_spark.operations.explain import explain
from pylog_spark.operations.ingest import ingest
from pylog_spark.operations.materialize import materialize
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.past_runs import PastRun, list_past_runs
from pylog_spark.operations.purge import purge
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.retain.driver import retain
from pylog_spark.operations.survey import survey
from pylog_spark.operations.transfer import TransferReport
from pylog_spark.operations.undo import undo
from pylog_spark.operations.verify.driver import VerifyReport, VerifyRequest, verify
from pylog_spark.options import JobOptions
from pylog_spark.options.load import broker_config, options_of_release
from pylog_spark.outcomes import Action
from pylog_spark.rows import spark_frame, table_of
from pylog_spark.run.plan_file import SavedPlan, read_plan_file, write_plan_file
from pylog_spark.run.run_report import Report, RunReport, RunSummary
from pylog_spark.schemas import EXPLANATION
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.clock import SystemClock
from storage_core.config import NEWEST_RELEASE
from storage_core.errors import ConfigError
from storage_core.maintenance.ingest.partition import IngestRules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A log directory's listed partitions and segments, with unfinished swaps. The facts come
    from listings, and from the ends of unfinished swaps."""

    partitions: "DataFrame"  #: A row of ``schemas.PARTITION`` for each sub-directory
    segments: "DataFrame"  #: A row of ``schemas.SEGMENT`` for each segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An operation's plan for a log directory, to be applied exactly. It changes nothing before
    ``apply``."""

    report: RunReport
    saved: SavedPlan  #: what was decided, as ``--plan-out`` writes it down
    #: Path or URL of the ledger that an application is written to; None for none.
    ledger: str | None
    _place: Place = field(repr=False)

    @property
    def df(self) -> "DataFrame":
        """A row of ``schemas.RESULT`` for each partition. Each tells the planned change, or why
        there is none.

        Raises:
            ConfigError: The plan was made on this machine, without Spark.
        """
        return self.report.frame(_session_of(self._place))

    def summary(self) -> RunSummary:
        """Return the numbers: partitions, bytes before and, at most, after."""
        return self.report.summary

    def save(self, path: str | Path) -> None:
        """Write the plan for ``pylog apply``: Parquet by its name, else JSON.

        Raises:
            StorageError: The disk failed.
        """
        write_plan_file(Path(path), self.saved)

    def apply(
        self,
        *,
        dry_run: bool = False,
        trash: str | None = None,
        overrides: Collection[str] = (),
    ) -> RunReport:
        """Apply the plan, except to partitions with changed files. Such a partition is refused,
        with the file's name.

        Args:
            dry_run: Only look which partitions are still as planned.
            trash: Folder that keeps what is replaced or removed; None for that of the options.
            overrides: Guards that are switched off.

        Raises:
            PylogError: As the operation that made the plan.
        """
        options = ApplyOptions(
            dry_run=dry_run, ledger=self.ledger, trash=trash, overrides=frozenset(overrides)
        )
        return apply_saved(self._place, self.saved, options_of(self.saved, None, options))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepDirectory:
    """A log directory without the operations on several brokers that ``LogDirectory`` adds."""

    path: str
    options: JobOptions  #: what all operations on it are told
    _place: Place = field(repr=False)

    @classmethod
    def for_path(
        cls,
        place: Place,
        path: str | Path,
        *,
        role: Role | None = None,
        options: JobOptions | None = None,
    ) -> Self:
        """Return the log directory at a path.

        Args:
            place: What does the work: a Spark session, or this machine (``Local``).
            role: What it is; whatever writes needs it said.
            options: As on the command line; None for the defaults and the clock of now.

        Raises:
            ConfigError: There is no such directory.
        """
        settings = options or JobOptions(now_ms=SystemClock().now_ms())
        settings = replace(settings, role=role or settings.role)
        resolve_roots([path], role=settings.role)
        return cls(path=str(path), options=settings, _place=place)

    def _require_session(self) -> "SparkSession":
        return _session_of(self._place)

    def _frame(
        self, operate: Callable[P, Report], *args: P.args, **kwargs: P.kwargs
    ) -> "DataFrame":
        """Return an operation's report as a DataFrame; without a session, do not begin it."""
        session = self._require_session()
        return operate(*args, **kwargs).frame(session)

    def with_topics(self, topics: Mapping[str, Mapping[str, str]]) -> Self:
        """Return the same directory with topics' settings said, by name or glob."""
        return replace(self, options=replace(self.options, topic_configs=topics))

    def with_options(self, **changes: Any) -> Self:
        """Return this directory with other options, named as in ``JobOptions``.

        Raises:
            TypeError: There is no such option.
        """
        return replace(self, options=replace(self.options, **changes))

    def inspect(self) -> Inspection:
        """Return what lies in the directory, as DataFrames."""
        # A run on this machine needs no pyspark.
        from pylog_spark.engines.spark_engine import SparkEngine  # noqa: PLC0415

        roots = resolve_roots([self.path], role=self.options.role)
        topics = TopicFilter(topics=self.options.include, exclude=self.options.exclude)
        engine = SparkEngine(self._require_session(), tag="pylog-inspect")
        partitions = discover_partitions(engine, roots, topics, file_list=self.options.file_list)
        segments = discover_segments(partitions)
        return Inspection(partitions=partitions.frame, segments=segments.frame)

    def verify(self, *, deep: bool = False, live: bool = False) -> "DataFrame":
        """Check every partition and return the findings, of ``schemas.FINDING``; none is best.
        Spark keeps the rows as long as the session lives; ``verify_with_report`` can free them.

        Args:
            deep: Also open every batch: its records, and snapshots against a replay.
            live: Somebody may be writing meanwhile: files may vanish or grow.

        Raises:
            StorageError: The directory cannot be listed.
        """
        return self._frame(self.verify_with_report, deep=deep, live=live)

    def verify_with_report(self, *, deep: bool = False, live: bool = False) -> VerifyReport:
        """Verify, and return the full report of the run. The rest is as in ``verify``."""
        request = VerifyRequest(is_deep=deep, is_live=live)
        return verify(self._place, [self.path], self.options, request)

    def doctor(self, *, deep: bool = False, release_version: str = NEWEST_RELEASE) -> Diagnosis:
        """Return the faults, a starting broker's reaction, and the next commands.

        Args:
            release_version: Release of Kafka that is to start, 3.9 to 4.4.

        Raises:
            ConfigError: The release's rules are not known, or it refuses a setting of the options.
            StorageError: The directory cannot be listed, or a file in it not be read.
        """
        release = release_to_start(release_version)
        options = options_of_release(self.options, release)
        threads = broker_config(options).num_recovery_threads_per_data_dir
        request = VerifyRequest(is_deep=deep, release=release)
        return diagnose(self._place, [self.path], options, request, broker_threads=threads)

    def explain(self) -> "DataFrame":
        """Return why partitions are cleaned or deleted from, now, later or never. Rows of
        ``schemas.EXPLANATION``: for each partition one about cleaning and one about deletion.

        Raises:
            PylogError: The directory's own files cannot be read.
        """
        session = self._require_session()
        rows = [answer for row in explain([self.path], self.options) for answer in _answers(row)]
        return spark_frame(session, pa.Table.from_pylist(rows, schema=EXPLANATION))

    def plan(self, action: Action | str) -> Plan:
        """Return the plan of an operation, to inspect, save or apply unchanged.

        Args:
            action: ``compact``, ``retain``, ``recover`` or ``run``, all that a night does.

        Raises:
            ConfigError: There are no plans of such an action, or the options contradict the
                directory.
        """
        operation = OPERATIONS.get(action)
        if operation is None:
            raise ConfigError("ACTION", action, f"expected one of {', '.join(OPERATIONS)}")
        return self._plan([self.path], operation)

    def _plan(self, roots: Sequence[str | Path], operation: Callable[..., RunReport]) -> Plan:
        with TemporaryDirectory(prefix="pylog-plan-") as folder:
            file = Path(folder, "plan.json")
            options = replace(self.options, dry_run=True, plan_out=str(file))
            report = operation(self._place, roots, options)
            saved = read_plan_file(file)
        return Plan(report=report, saved=saved, ledger=self.options.ledger, _place=self._place)

    def run(self, *, dry_run: bool = False) -> "DataFrame":
        """Recover, retain, compact and purge, as nightly; return the result rows.

        Args:
            dry_run: Only say what would be done; nothing is written.

        Raises:
            ConfigError: The options contradict the directory.
            GuardRefusedError: The role was not said or is read-only, or the directory is in use.
        """
        return self._frame(self.run_with_report, dry_run=dry_run)

    def compact(self, *, dry_run: bool = False) -> "DataFrame":
        """Compact every partition that is due; otherwise as ``run``."""
        return self._frame(self.compact_with_report, dry_run=dry_run)

    def recover(self, *, dry_run: bool = False) -> "DataFrame":
        """Recover every partition as a broker does after a crash. The rest is as in ``run``. A dry
        run reads everything, too."""
        return self._frame(self.recover_with_report, dry_run=dry_run)

    def retain(self, *, dry_run: bool = False) -> "DataFrame":
        """Remove the segments that have expired; otherwise as ``run``."""
        return self._frame(self.retain_with_report, dry_run=dry_run)

    def purge(self, *, dry_run: bool = False) -> "DataFrame":
        """Remove a broker's startup leftovers and empty the trash. A broker would remove them at
        its start. The rest is as in ``run``."""
        return self._frame(self.purge_with_report, dry_run=dry_run)

    def undo(self, run_id: str, *, dry_run: bool = False) -> "DataFrame":
        """Restore each partition to its state before a run. The rest is as in ``run``.

        Args:
            run_id: The run, as its report and the ledger name it.
            dry_run: Only say what would come back.
        """
        return self._frame(self.undo_with_report, run_id, dry_run=dry_run)

    def survey(self) -> "DataFrame":
        """Return what retention and compaction would do, by listings alone. The rows are of
        ``schemas.SURVEY``.

        Raises:
            PylogError: The directory's own files, or an inventory, cannot be read.
        """
        return self._frame(self.survey_with_report)

    def ingest(
        self, managed: str, *, rules: IngestRules | None = None, dry_run: bool = False
    ) -> "DataFrame":
        """Copy from this mirror whatever a managed root lacks. The result has rows of
        ``schemas.INGEST``.

        Args:
            managed: Path or URL of the managed root; made if it is not there.
            rules: What the owner says about the mirror.

        Raises:
            ConfigError: A place is none.
            GuardRefusedError: Another run holds the managed root's lease.
        """
        return self._frame(self.ingest_with_report, managed, rules=rules, dry_run=dry_run)

    def materialize(self, directory: str | Path, *, dry_run: bool = False) -> "DataFrame":
        """Write partitions of this managed root as a directory that Kafka opens. The result has
        rows of ``schemas.MATERIALIZED``.

        Args:
            directory: Absent, empty, or begun by a former run from the same root.

        Raises:
            ConfigError: This is no managed root.
            GuardRefusedError: The directory has somebody else's files, or too little room.
        """
        return self._frame(self.materialize_with_report, directory, dry_run=dry_run)

    def past_runs(self, *, last: int = 20) -> "DataFrame":
        """Return the last runs of the options' ledger and trash, newest first. Rows of ``PastRun``.

        Raises:
            ConfigError: The options name neither.
        """
        session = self._require_session()
        runs = list_past_runs(self.options.ledger, self.options.trash, last=last)
        return spark_frame(session, table_of(PastRun, runs))

    def run_with_report(self, *, dry_run: bool = False) -> RunReport:
        """Do what ``run`` does, and return all that is known of it."""
        return run_nightly(self._place, [self.path], self._options(dry_run=dry_run))

    def compact_with_report(self, *, dry_run: bool = False) -> RunReport:
        """Compact, and return the full report of the run. The rest is as in ``compact``."""
        return compact(self._place, [self.path], self._options(dry_run=dry_run))

    def recover_with_report(self, *, dry_run: bool = False) -> RunReport:
        """Recover, and return the full report with all cuts. The rest is as in ``recover``."""
        return recover(self._place, [self.path], self._options(dry_run=dry_run))

    def retain_with_report(self, *, dry_run: bool = False) -> RunReport:
        """Retain, and return the full report with deletions and their limits. The rest is as in
        ``retain``."""
        return retain(self._place, [self.path], self._options(dry_run=dry_run))

    def purge_with_report(self, *, dry_run: bool = False) -> RunReport:
        """Purge, and return the full report of the run. The rest is as in ``purge``."""
        return purge([self.path], self._options(dry_run=dry_run), place=self._place)

    def undo_with_report(self, run_id: str, *, dry_run: bool = False) -> RunReport:
        """Undo a run, and return the full report. The rest is as in ``undo``."""
        role = self.options.role
        return undo(
            run_id,
            self._options(dry_run=dry_run),
            # Those of local log directories stand in the trash.
            roots=[self.path] if role and role.facts.keeps_generations else [],
            place=self._place,
        )

    def survey_with_report(self) -> TransferReport:
        """Survey, and return the full report of the run. The rest is as in ``survey``."""
        return survey(self._place, [self.path], self.options)

    def ingest_with_report(
        self, managed: str, *, rules: IngestRules | None = None, dry_run: bool = False
    ) -> TransferReport:
        """Ingest, and return the full report of the run. The rest is as in ``ingest``."""
        options = self._options(dry_run=dry_run)
        return ingest(self._place, self.path, managed, options, rules=rules)

    def materialize_with_report(
        self, directory: str | Path, *, dry_run: bool = False
    ) -> TransferReport:
        """Materialize, and return the full report of the run. The rest is as in ``materialize``."""
        return materialize(self._place, self.path, directory, self._options(dry_run=dry_run))

    def _options(self, *, dry_run: bool) -> JobOptions:
        return replace(self.options, dry_run=dry_run)


def _answers(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield answers of an explanation, else its error, with partition names."""
    names = {name: row[name] for name in EXPLANATION.names if name in row}
    for answer in row["answers"] or [{}]:
        yield names | answer


def _session_of(place: Place) -> "SparkSession":
    """Return the session that makes DataFrames.

    Raises:
        ConfigError: The work is done on this machine, without Spark.
    """
    if isinstance(place, Local):
        raise ConfigError("PLACE", "Local", "makes no DataFrames: ask for the report instead")
    return place
