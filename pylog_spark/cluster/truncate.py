"""Cut replicas as they would cut themselves to follow a leader.

An audit says where each follower is cut. The plan holds the cuts; what applies it works as a
recovery does, which comes first where a log was not closed.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pylog_spark.cluster.audit.driver import Audit, audit
from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.recover.recovered_logs import LogKey, recover_chosen
from pylog_spark.operations.recover.task import RecoveryWork
from pylog_spark.operations.recover.waves import DueRecovery, RecoveryStages
from pylog_spark.options import JobOptions
from pylog_spark.options.declared import LEADER
from pylog_spark.run.guards import check_truncation, owner_of
from pylog_spark.run.job import new_job
from pylog_spark.run.plan_file import SavedPlan
from pylog_spark.run.plan_table import Outcome
from pylog_spark.run.run_report import RunReport
from pylog_spark.run.upkeep import open_upkeep
from pylog_spark.schemas import Action, Status
from storage_core.clock import Clock
from storage_core.errors import ConfigError, StorageError
from storage_core.filenames import RECOVERY_POINT_FILE
from storage_core.roots.root import HeldRoot

_ACTION: Final = Action.TRUNCATE.value


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerTruncation:
    """The cuts that let one replica follow a leader."""

    leader: int  # node id of the leader
    truncations: tuple[int, ...]  # offsets of the cuts, in order
    committed_records: int
    stays_eligible: bool  # whether its broker may stay in ISR and ELR afterwards

    def __post_init__(self) -> None:
        if not self.truncations:
            raise ValueError("a follower has no cuts")


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
            work.ref.partition: min(work.recovery_point, offset)
            for work, offset in most.items()
            if work.recovery_point
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
    touched = dict.fromkeys(root for root, _, _ in cuts)
    report = truncate(place, list(touched) or roots, replace(options, dry_run=True), followers=cuts)
    if not cuts:
        notes.append(f"no other replica has to be cut to follow broker {leader}")
    return report.with_notes([comparison.belief, *notes])


def truncate(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    clock: Clock | None = None,
    saved: SavedPlan | None = None,
    followers: Mapping[LogKey, FollowerTruncation] | None = None,
) -> RunReport:
    """Cut replicas to follow a leader, as planned. A dry run only says what goes.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        options: What may be cut, and what keeps it.
        clock: For the times in the ledger; what is decided follows ``options.now_ms``.
        followers: The cuts that are planned, by root, topic and partition.
    """
    log_roots = resolve_roots(roots, role=options.role)
    check_truncation(log_roots, options)
    job = new_job(_ACTION, log_roots, options, clock=clock, saved=saved)
    if followers is None:
        followers = _saved_cuts(job.saved)
    columns_of = {
        key: {
            "leader": follower.leader,
            "truncations": list(follower.truncations),
            "committed_records": follower.committed_records,
            "stays_eligible": follower.stays_eligible,
        }
        for key, follower in followers.items()
    }
    with open_upkeep(place, job) as run:
        logs = recover_chosen(
            run, columns_of, TruncationStages, action=Action.TRUNCATE, what="followers"
        )
    leaders = sorted({follower.leader for follower in followers.values()})
    return run.report(
        RunReport,
        logs.results(),
        notes=[
            *logs.readable_cut_notes(options.salvage),
            *(
                f"broker {leader} has to lead; `pylog audit --up {leader},...` says whether it will"
                for leader in leaders
                if saved is not None
            ),
        ],
        cuts=logs.cuts(),
        recoveries=logs.recoveries(),
    )


def _saved_cuts(saved: SavedPlan | None) -> dict[LogKey, FollowerTruncation]:
    if saved is None:
        raise ConfigError(
            "ACTION", _ACTION, f"is planned by an audit: pylog audit ROOT... {LEADER.flag} N"
        )
    try:
        return {
            (noted.root, str(noted.topic), int(noted.partition or 0)): FollowerTruncation(
                leader=int(noted.plan["leader"]),
                truncations=tuple(map(int, noted.plan["truncations"])),
                committed_records=int(noted.plan["committed_records"]),
                # Plans of releases before said nothing of it.
                stays_eligible=noted.plan.get("stays_eligible") is True,
            )
            for noted in saved.partitions
            if noted.action == _ACTION and noted.plan
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("PLAN", saved.run_id, f"is no saved plan: {error}") from error


def _find_cuts(
    comparison: Audit, leader: int
) -> tuple[dict[LogKey, FollowerTruncation], list[str]]:
    """Return the cuts under a leader, with notes on untouched replicas."""
    cuts: dict[LogKey, FollowerTruncation] = {}
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
                cuts[each["root"], answer["topic"], answer["partition"]] = FollowerTruncation(
                    leader=leader,
                    truncations=tuple(each["rounds"]),
                    committed_records=each["committed"],
                    stays_eligible=each["stays_eligible"],
                )
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
