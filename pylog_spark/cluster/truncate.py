"""Cut replicas as they would cut themselves to follow a leader.

An audit says where each follower is cut. The plan holds the cuts; what applies it works as a
recovery does, which comes first where a log was not closed.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pylog_spark.cluster.audit.driver import Audit, audit
from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.recover.recovered_logs import ChosenRecovery, LogKey, Planned
from pylog_spark.operations.recover.task import RecoveryWork
from pylog_spark.operations.recover.waves import DueRecovery, RecoveryStages
from pylog_spark.options import JobOptions
from pylog_spark.options.declared import LEADER
from pylog_spark.outcomes import Action, Status
from pylog_spark.run.guards import owner_of
from pylog_spark.run.plan_file import PlannedPartition
from pylog_spark.run.plan_table import Outcome
from pylog_spark.run.run_report import RunReport
from storage_core.errors import ConfigError, StorageError
from storage_core.filenames import RECOVERY_POINT_FILE
from storage_core.roots.root import HeldRoot


class TruncationStages(RecoveryStages):
    """The stages to cut a wave's followers, each after its recovery. Followers are cut side by
    side."""

    def title(self, due: Sequence[DueRecovery]) -> str:
        """Return what the wave does."""
        return f"{self._run.job.title} {self._run.job.places}: cut {len(due)} followers"

    def prepare(self, root: HeldRoot, due: Sequence[DueRecovery]) -> None:
        """Lower the recovery points to the cuts, before the first byte goes.

        High watermarks stay until then: they say what was committed, should nothing be cut. A
        marker keeps the broker's epoch where the controller counts on nothing that is cut: the
        broker would else leave ISR and ELR of all its partitions.
        """
        if not all(each.work.stays_eligible for each in due):
            super().prepare(root, due)
        self._write_points(root, {each.work: min(each.work.truncations) for each in due})

    def settle(
        self, root: HeldRoot, due: Sequence[DueRecovery], outcomes: Mapping[int, Outcome]
    ) -> None:
        """Write the checkpoints of the cut partitions in one log directory. A partition that was
        left alone has its own recovery point back."""
        super().settle(root, due, outcomes)
        alone = [
            each.work
            for each in due
            if outcomes[each.ref.ordinal].columns["status"] != Status.DONE
            and not outcomes[each.ref.ordinal].was_touched
        ]
        self._write_points(root, dict.fromkeys(alone, sys.maxsize))

    def _write_points(self, root: HeldRoot, most: Mapping[RecoveryWork, int]) -> None:
        """Write the logs' recovery points, each at most at an offset. A log that has none gets
        none."""
        points = {
            work.ref.partition: min(point, offset)
            for work, offset in most.items()
            if (point := work.checkpoints.recovery_point)
        }
        root.write_checkpoints({RECOVERY_POINT_FILE: points})


def plan_followers(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    leader: int,
    state: Path | None = None,
) -> RunReport:
    """Plan the cuts for all replicas to follow one broker. No log is changed.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        roots: Paths of log directories of several brokers.
        options: Which topics; what may be cut, and what keeps it; the file that gets the plan.
        leader: Node id of the broker that is to lead.
    """
    owners = map(owner_of, resolve_roots(roots, role=options.role, must_open=False))
    brokers = {each.node_id for each in owners if each is not None and each.node_id is not None}
    up = [leader, *sorted(brokers - {leader})] if leader in brokers else []
    comparison = audit(place, roots, replace(options, plan_out=None), state=state, up=up)
    if comparison.unread:
        reason = f"no replica is cut while this is so: {'; '.join(comparison.unread.values())}"
        raise StorageError(", ".join(comparison.unread), reason)
    cuts, notes = _find_cuts(comparison, leader)
    touched = list(dict.fromkeys(root for root, _, _ in cuts))
    planning = replace(options, dry_run=True)
    report: RunReport = truncate(place, touched or roots, planning, chosen=cuts)
    if not cuts:
        notes.append(f"no other replica has to be cut to follow broker {leader}")
    return report.with_notes([comparison.belief, *notes])


def _planned_cut(partition: PlannedPartition) -> Planned:
    plan = partition.plan
    truncations = list(map(int, plan["truncations"]))
    if not truncations:
        raise ValueError("a follower has no cuts")
    return {
        "leader": int(plan["leader"]),
        "truncations": truncations,
        "committed_records": int(plan["committed_records"]),
        # Plans of releases before said nothing of it.
        "stays_eligible": plan.get("stays_eligible") is True,
    }


def _leader_notes(cuts: Iterable[Planned]) -> Iterator[str]:
    for leader in sorted({cut["leader"] for cut in cuts}):
        yield f"broker {leader} has to lead; `pylog audit --up {leader},...` says whether it will"


truncate: Final = ChosenRecovery(
    action=Action.TRUNCATE,
    stages=TruncationStages,
    what="followers",
    planned_by=f"an audit: pylog audit ROOT... {LEADER.flag} N",
    planned=_planned_cut,
    notes=_leader_notes,
)


def _find_cuts(comparison: Audit, leader: int) -> tuple[dict[LogKey, Planned], list[str]]:
    """Return the cuts under a leader, with notes on untouched replicas."""
    cuts: dict[LogKey, Planned] = {}
    notes = []
    candidates: set[int] = set()
    others: dict[int | None, list[str]] = {}
    unfit: dict[int, list[str]] = {}
    for answer in comparison.answers():
        name = f"{answer['topic']}-{answer['partition']}"
        if answer["candidates"] is None:
            notes.append(f"{name} stays as it is: {answer['error']}")
            continue
        candidates |= {each["broker"] for each in answer["candidates"]} - {None}
        candidate = next((each for each in answer["candidates"] if each["broker"] == leader), None)
        if candidate is None:
            notes.append(f"{name} stays as it is: broker {leader} has no replica that could lead")
            continue
        elected = (answer["elections"] or {"leader": leader})["leader"]
        if elected != leader:
            others.setdefault(elected, []).append(name)
        clean = {each["root"] for each in answer["replicas"] if each["clean"]}
        notes += [
            f"{each['root']}: {name} stays as it is: {each['error']}"
            for each in answer["replicas"]
            if each.get("error")
        ]
        for each in candidate["truncations"]:
            if each["never_in_sync"] is not None:
                epoch, offset = (each["never_in_sync"][key] for key in ("epoch", "offset"))
                notes.append(
                    f"{each['root']}: {name} never is in sync with broker {leader}, for leader "
                    f"epoch {epoch} at offset {offset}: run `pylog heal` first"
                )
            if each["rounds"]:
                cuts[each["root"], answer["topic"], answer["partition"]] = {
                    "leader": leader,
                    "truncations": each["rounds"],
                    "committed_records": each["committed"],
                    "stays_eligible": each["stays_eligible"],
                }
                if each["root"] in clean and not each["stays_eligible"]:
                    unfit.setdefault(each["broker"], []).append(name)
    if leader not in candidates:
        able = ", ".join(map(str, sorted(candidates))) or "none"
        reason = f"has no replica that could lead; brokers that have one: {able}"
        raise ConfigError(LEADER.label, leader, reason)
    notes += [
        f"broker {broker} counts as killed afterwards, and leaves ISR and ELR of all its "
        f"partitions: it is cut below the high watermark of {_names_of(names)}"
        for broker, names in sorted(unfit.items())
    ]
    notes += [
        f"{'nobody' if other is None else f'broker {other}'} leads {_names_of(names)} when broker "
        f"{leader} starts first: have leaders elected by hand (--up, --election-out)"
        for other, names in others.items()
    ]
    if cuts and not others:
        notes.append(f"start broker {leader} first, then the others")
    return cuts, notes


def _names_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"
