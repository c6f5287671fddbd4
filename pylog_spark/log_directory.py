"""The public face: a log directory, and what can be done with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pylog_spark.discovery import discover_partitions, discover_segments, resolve_roots
from pylog_spark.engines.choice import Local, Place
from pylog_spark.operations.compact import compact
from pylog_spark.operations.recover import recover
from pylog_spark.operations.retain import retain
from pylog_spark.operations.verify import verify
from pylog_spark.operations.verify_report import VerifyReport, VerifyRequest
from pylog_spark.options import JobOptions
from pylog_spark.run.run_report import RunReport
from pylog_spark.tasks.listing import TopicFilter
from storage_core.catalog.roles import Role
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What lies in a log directory, as listings tell it, and the ends of unfinished swaps.

    Attributes:
        partitions: A row of ``schemas.PARTITION`` for each sub-directory.
        segments: A row of ``schemas.SEGMENT`` for each segment.
    """

    partitions: "DataFrame"
    segments: "DataFrame"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """A log directory of Kafka, a mirror of one, or a managed root.

    ``LogDirectory.for_path(spark, "/var/lib/kafka", role=Role.BROKER).compact(dry_run=True)``
    ``LogDirectory.for_path(spark, "s3://bucket/managed", role=Role.MANAGED).retain()``
    ``LogDirectory.for_path(Local(), "/var/lib/kafka", role=Role.BROKER).compact_with_report()``

    Whatever returns DataFrames needs a session; the reports have the same rows as Arrow tables.

    Attributes:
        path: Where it is: a path or a URL.
        options: What all operations on it are told.
    """

    path: str
    options: JobOptions
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
            path: Path or URL of the directory.
            role: What it is; whatever writes needs it said.
            options: As on the command line; None for the defaults and the clock of now.

        Raises:
            ConfigError: There is no such directory.
        """
        chosen = options or JobOptions(now_ms=SystemClock().now_ms())
        if role is not None:
            chosen = replace(chosen, role=role)
        resolve_roots([path], said=chosen.role)
        return cls(path=str(path), options=chosen, _place=place)

    def _require_session(self) -> "SparkSession":
        """Return the session that makes DataFrames.

        Raises:
            ConfigError: The work is done on this machine, without Spark.
        """
        if isinstance(self._place, Local):
            raise ConfigError("PLACE", "Local", "makes no DataFrames: ask for the report instead")
        return self._place

    def with_topics(self, topics: Mapping[str, Mapping[str, str]]) -> Self:
        """Return the same directory with topics' settings said, by name or glob."""
        return replace(self, options=replace(self.options, topic_configs=topics))

    def inspect(self) -> Inspection:
        """Return what lies in the directory, as DataFrames."""
        # A run on this machine needs no pyspark.
        from pylog_spark.engines.spark_engine import SparkEngine  # noqa: PLC0415

        roots = resolve_roots([self.path], said=self.options.role)
        topics = TopicFilter(topics=self.options.include, exclude=self.options.exclude)
        engine = SparkEngine(self._require_session(), tag="pylog-inspect")
        partitions = discover_partitions(engine, roots, topics, file_list=self.options.file_list)
        segments = discover_segments(partitions)
        return Inspection(partitions=partitions.frame, segments=segments.frame)

    def verify(self, *, deep: bool = False, live: bool = False) -> "DataFrame":
        """Check every partition and return the findings, of ``schemas.FINDING``; none is best.

        Spark keeps the rows as long as the session lives; ``verify_with_report`` can let them go.

        Args:
            deep: Also open every batch: its records, and snapshots against a replay.
            live: Somebody may be writing meanwhile: files may vanish or grow.

        Raises:
            StorageError: The directory cannot be listed.
        """
        self._require_session()
        return self.verify_with_report(deep=deep, live=live).findings_frame()

    def verify_with_report(self, *, deep: bool = False, live: bool = False) -> VerifyReport:
        """Do what ``verify`` does, and return all that is known of the run."""
        request = VerifyRequest(is_deep=deep, is_live=live)
        return verify(self._place, [self.path], self.options, request)

    def compact(self, *, dry_run: bool = False) -> "DataFrame":
        """Compact every partition that is due and return the result rows.

        Args:
            dry_run: Only say what would be done; nothing is written.

        Raises:
            ConfigError: The options contradict the directory.
            GuardRefusedError: The role was not said or is read-only, or the directory is in use.
        """
        session = self._require_session()
        return self.compact_with_report(dry_run=dry_run).results_frame(session)

    def recover(self, *, dry_run: bool = False) -> "DataFrame":
        """Recover every partition, as a broker does after a crash, and return the result rows.

        Args:
            dry_run: Only say what would be done; everything is read, nothing is written.

        Raises:
            ConfigError: The options contradict the directory.
            GuardRefusedError: The role was not said, or the directory is in use.
        """
        session = self._require_session()
        return self.recover_with_report(dry_run=dry_run).results_frame(session)

    def retain(self, *, dry_run: bool = False) -> "DataFrame":
        """Remove the segments that have expired and return the result rows.

        Args:
            dry_run: Only say what would be done; nothing is written.

        Raises:
            ConfigError: The options contradict the directory.
            GuardRefusedError: The role was not said or is read-only, or the directory is in use.
        """
        session = self._require_session()
        return self.retain_with_report(dry_run=dry_run).results_frame(session)

    def retain_with_report(self, *, dry_run: bool = False) -> RunReport:
        """Do what ``retain`` does, and return all that is known of the run: what stays, and why."""
        options = replace(self.options, dry_run=dry_run)
        return retain(self._place, [self.path], options)

    def recover_with_report(self, *, dry_run: bool = False) -> RunReport:
        """Do what ``recover`` does, and return all that is known of the run, its cuts as well."""
        options = replace(self.options, dry_run=dry_run)
        return recover(self._place, [self.path], options)

    def compact_with_report(self, *, dry_run: bool = False) -> RunReport:
        """Do what ``compact`` does, and return all that is known of the run."""
        options = replace(self.options, dry_run=dry_run)
        return compact(self._place, [self.path], options)
