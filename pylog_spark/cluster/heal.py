"""Heal logs: give them what other replicas have where they are damaged.

The plan holds the new segments of each log, as pieces of files. What applies it writes them, swaps
them in, and works as a recovery does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from pylog_spark.cluster.audit.driver import measure, open_places
from pylog_spark.cluster.heal_task import HealingMessage, HealingTarget, find_healings
from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.recover.recovered_logs import ChosenRecovery, LogKey, Planned
from pylog_spark.operations.recover.waves import DueRecovery, RecoveryStages
from pylog_spark.options import JobOptions
from pylog_spark.options.declared import DONORS
from pylog_spark.outcomes import Action, Status
from pylog_spark.rows import table_of
from pylog_spark.run.plan_file import PlannedPartition
from pylog_spark.run.plan_table import Outcome
from pylog_spark.run.planning import WorkItem
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.schemas import DAMAGE, DamageRow, Failure, PartitionName
from storage_core.catalog.roles import local_path
from storage_core.cluster.healing import DamageState, Healing
from storage_core.cluster.places import PartitionPlaces, ReplicaPlace
from storage_core.errors import ConfigError, StorageError
from storage_core.filenames import RECOVERY_POINT_FILE
from storage_core.json_values import from_json
from storage_core.roots.root import HeldRoot
from storage_core.store.open_objects import names_manifest
from storage_core.wording import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class HealReport(RunReport):
    """The report of a healing, real or planned."""

    # Rows of ``schemas.DAMAGE``; none where a plan is applied.
    damage: pa.Table = field(default_factory=DAMAGE.empty_table)


class HealingStages(RecoveryStages):
    """The stages to heal a wave's logs, each before its recovery."""

    def title(self, due: Sequence[DueRecovery]) -> str:
        """Return what the wave does."""
        return f"{self._run.job.title} {self._run.job.places}: heal {len(due)} logs"

    def prepare(self, root: HeldRoot, due: Sequence[DueRecovery]) -> None:
        """Prepare for the cuts of logs that were not closed. A marker keeps the broker's epoch
        where all were: nothing that it counted on goes."""
        if not all(each.work.is_clean for each in due):
            super().prepare(root, due)

    def settle(
        self, root: HeldRoot, due: Sequence[DueRecovery], outcomes: Mapping[int, Outcome]
    ) -> None:
        """Write the checkpoints of the healed partitions in one log directory. Recovery points
        stay: an undo brings back damage that a broker has to meet."""
        super().settle(root, due, outcomes)
        points = {
            each.work.ref.partition: min(
                each.work.checkpoints.recovery_point or 0,
                outcomes[each.ref.ordinal].columns["log_end_offset"],
            )
            for each in due
            if outcomes[each.ref.ordinal].columns["status"] == Status.DONE
        }
        root.write_checkpoints({RECOVERY_POINT_FILE: points})


def plan_heal(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    donors: Sequence[str | Path],
    quorum: int = 0,
) -> HealReport:
    """Plan what heals logs; nothing is written to them.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        options: Which topics; what may be cut of a log that was not closed, and what keeps it; the
            file that gets the plan.
        donors: Log directories with other replicas: of brokers, mirrors, managed roots.
        quorum: How many donors have to agree where they differ; 0: all.
    """
    own = {root.location for root in resolve_roots(roots, role=options.role, must_open=False)}
    others = {root.location for root in resolve_roots(donors, role=None, must_open=False)}
    if own & others:
        raise ConfigError(DONORS.label, min(own & others), "is itself to be healed")
    job, places, _, cluster = open_places([*roots, *donors], replace(options, role=None), None)
    unread = {root: why for root, why in cluster.unread.items() if root in own}
    if unread:
        raise StorageError(", ".join(unread), "; ".join(unread.values()))
    targets = list(_targets(places, own))
    with Run(place, job) as run:
        messages = _find(run, places, targets, quorum)
    healings: dict[LogKey, Planned] = {}
    rows: list[DamageRow] = []
    for target, message in zip(targets, messages, strict=True):
        healing = from_json(Healing, message.healing or "{}")
        rows += _rows_of(target, message.failure, healing)
        if message.healing is not None and healing.segments:
            name = target.name
            healings[name.root, str(name.topic), name.partition or 0] = {"healing": message.healing}
    touched = list(dict.fromkeys(root for root, _, _ in healings))
    report: HealReport = heal(
        place,
        touched or roots,
        replace(options, dry_run=True),
        chosen=healings,
        damage=table_of(DamageRow, rows),
        has_findings=_count_left(rows) > 0,
    )
    notes = [f"{root}: not read as a donor: {why}" for root, why in cluster.unread.items()]
    return report.with_notes([*notes, *_notes(rows)])


def _planned_healing(partition: PlannedPartition) -> Planned:
    text = str(partition.plan["healing"])
    _check_pieces(from_json(Healing, text), f"{partition.topic}-{int(partition.partition or 0)}")
    return {"healing": text}


heal: Final = ChosenRecovery(
    action=Action.HEAL,
    stages=HealingStages,
    what="damaged logs",
    planned_by="`pylog heal ROOT... --donor DIR...`",
    planned=_planned_healing,
    report=HealReport,
)


def _targets(places: Sequence[PartitionPlaces], own: set[str]) -> Iterator[HealingTarget]:
    """Yield the logs in the roots, each with its donors."""
    ordinal = 0
    for each in places:
        present = [replica for replica in each.replicas if not replica.is_missing]
        donors = tuple(replica for replica in present if replica.root not in own)
        for replica in present:
            if replica.root in own:
                name = PartitionName(root=replica.root, topic=each.topic, partition=each.partition)
                yield HealingTarget(ordinal=ordinal, name=name, place=replica, donors=donors)
                ordinal += 1


def _find(
    run: Run,
    places: Sequence[PartitionPlaces],
    targets: Sequence[HealingTarget],
    quorum: int,
) -> list[HealingMessage]:
    """Return what heals each of the logs."""
    if not targets:
        return []
    sizes: dict[ReplicaPlace, int] = {
        replica: size.most_bytes
        for each, size in zip(places, measure(run, places), strict=True)
        for replica in each.replicas
    }
    items = [WorkItem(value=target, size_bytes=sizes[target.place]) for target in targets]
    units = [unit.values for unit in run.pack(items)]
    title = f"{run.job.title} {run.job.places}: look for damage in {len(targets)} logs"
    messages = run.engine.spread(units, partial(find_healings, quorum=quorum), HealingMessage)
    return sorted(
        run.engine.receive(messages, HealingMessage, title), key=lambda message: message.ordinal
    )


def _rows_of(target: HealingTarget, failure: Failure, healing: Healing) -> Iterator[DamageRow]:
    """Yield the rows of a log."""
    head = DamageRow(name=target.name, directory=target.place.directory)
    if failure:
        yield replace(head, failure=failure)
        return
    for each in healing.all_damage:
        yield replace(
            head,
            state=each.state.value,
            first_offset=each.first_offset,
            end_offset=each.end_offset,
            file=each.file or None,
            position=each.position if each.file else None,
            size_bytes=each.size_bytes,
            filled_bytes=each.filled_bytes,
            filled_batches=each.filled_batches,
            donors=each.donors,
            reason=each.reason or None,
        )


def _check_pieces(healing: Healing, partition: str) -> None:
    """Refuse pieces outside of the donors that the plan names."""
    donors = {donor for damage in healing.all_damage for donor in damage.donors}
    for piece in (piece for segment in healing.segments for piece in segment.pieces):
        place = None if names_manifest(piece.directory) else local_path(piece.directory)
        is_named = piece.directory in donors and (place is None or place.name == partition)
        if piece.directory and not is_named:
            raise ValueError(
                f"a piece of {partition} is {piece.directory}/{piece.file}, expected a file of its "
                f"donors: {', '.join(sorted(donors)) or 'none is named'}"
            )


def _count_left(rows: Sequence[DamageRow]) -> int:
    """Return how many damaged places nothing fills."""
    return sum(row.state != DamageState.FILLED for row in rows)


def _notes(rows: Sequence[DamageRow]) -> Iterator[str]:
    """Yield what a person does next."""
    if not rows:
        yield "no log is damaged"
    elif number := _count_left(rows):
        yield (
            f"nothing heals {count_text(number, 'damaged place')}: give other replicas with "
            "--donor, or let `pylog recover --salvage DIR` keep what it cuts"
        )
