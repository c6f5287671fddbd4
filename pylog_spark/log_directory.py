"""The public Python interface: a log directory and its operations."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pylog_spark.cluster.attest import Attestation, attest
from pylog_spark.cluster.audit.driver import Audit, Timeline, audit, read_timeline
from pylog_spark.cluster.copies import CopyReport, list_copy_differences
from pylog_spark.cluster.differences import DifferenceReport, list_differences
from pylog_spark.cluster.truncate import plan_followers
from pylog_spark.options.choices import Level
from pylog_spark.upkeep_directory import Inspection, Plan, UpkeepDirectory

__all__ = ("Inspection", "LogDirectory", "Plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory(UpkeepDirectory):
    """A Kafka log directory, a mirror of one, or a managed root.

    ``LogDirectory.for_path(spark, "/var/lib/kafka", role=Role.BROKER).compact(dry_run=True)``
    ``LogDirectory.for_path(spark, "s3://bucket/managed", role=Role.MANAGED).retain()``
    ``LogDirectory.for_path(Local(), "/var/lib/kafka", role=Role.BROKER).compact_with_report()``

    Whatever returns DataFrames needs a session; the reports have the same rows as Arrow tables.
    """

    def audit(
        self,
        *others: str | Path,
        state: Path | None = None,
        up: Sequence[int] = (),
        leader_epoch: int | None = None,
        election_out: Path | None = None,
        most_keys: int = 0,
    ) -> Audit:
        """Compare its replicas with those of other brokers' directories; nothing is written.

        Args:
            others: Log directories; several of one broker count as one.
            state: A file of ISR, epochs and assignment; None for the newest metadata among them.
            up: Node ids of brokers that start, in this order; the answers then have elections.
            election_out: A new folder for the files of Kafka's own commands.
            most_keys: How many keys of what each leader loses the answers have, of each partition.

        Raises:
            PylogError: A directory cannot be listed, or they are of several clusters.
        """
        roots = [self.path, *others]
        return audit(
            self._place,
            roots,
            self.options,
            state=state,
            up=up,
            leader_epoch=leader_epoch,
            election_out=election_out,
            most_keys=most_keys,
        )

    def attest(self, *others: str | Path) -> Attestation:
        """Let brokers with recovered directories keep ISR and ELR places.

        Args:
            others: The log directories of all brokers that have replicas of the same partitions.

        Raises:
            GuardRefusedError: Replicas differ or are missing, or a directory was not recovered.
            PylogError: A directory cannot be read or written.
        """
        return attest(self._place, [self.path, *others], self.options)

    def differences(
        self,
        *others: str | Path,
        level: Level | str = Level.OFFSETS,
        state: Path | None = None,
    ) -> DifferenceReport:
        """List the differences between its replicas and those of other brokers.

        Args:
            others: Log directories; several of one broker count as one.
            level: How much to read: ``offsets``, ``headers`` or ``bytes``.

        Raises:
            PylogError: As ``audit``.
        """
        roots = [self.path, *others]
        return list_differences(self._place, roots, self.options, level=Level(level), state=state)

    def copy_differences(
        self,
        *copies: str | Path,
        prefix: str = "",
        offset_map: Path | None = None,
        state: Path | None = None,
    ) -> CopyReport:
        """List the differences between its topics and their copies in another cluster.

        Args:
            offset_map: CSV, or the directory of a partition with MirrorMaker's offset syncs; None
                where all offsets should be equal.

        Raises:
            PylogError: As ``audit``; the map is none, or of other topics.
        """
        return list_copy_differences(
            self._place,
            [self.path],
            copies,
            self.options,
            prefix=prefix,
            offset_map=offset_map,
            state=state,
        )

    def timeline(self, *others: str | Path) -> Timeline:
        """Return each change of leader, epoch, ISR and ELR, by the newest metadata in the roots.

        Args:
            others: Further log directories of the cluster's nodes.

        Raises:
            PylogError: As ``audit``; none of them has the cluster's metadata.
        """
        return read_timeline([self.path, *others], self.options)

    def plan_followers(self, *others: str | Path, leader: int, state: Path | None = None) -> Plan:
        """Return the cuts for other brokers' replicas to follow one broker.

        Args:
            leader: Node id of the broker that is to lead; one of these directories is its.

        Raises:
            PylogError: The broker has no replica that can lead, or as for ``audit``.
        """
        operation = partial(plan_followers, leader=leader, state=state)
        return self._plan([self.path, *others], operation)
