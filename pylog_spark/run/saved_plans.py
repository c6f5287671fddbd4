"""Save plans, and check runs against saved plans, for every operation.

Each operation calls ``settle_plans`` when it knows what is to be done and has done none of it. With
``--plan-out`` the plan is noted, to be written when the run ends. Within ``pylog apply`` it is held
against the saved one: what was not planned then, or is not the same any more, is left out.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pylog_spark.outcomes import Action, Reason, Status
from pylog_spark.run.plan_file import (
    PartitionKey,
    PlannedPartition,
    SavedPlan,
    planned_topics,
    restrict_catalog,
    write_plan_file,
)
from pylog_spark.run.planning import ITEM_OVERHEAD_BYTES, WorkItem, are_looked_at_here, pack_units
from pylog_spark.run.run import Run
from pylog_spark.schemas import RETENTION_PLAN
from pylog_spark.tasks.message import (
    FileFacts,
    Fingerprint,
    decode_files,
    fingerprint_partitions,
)
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.run_context import RunContext
from storage_core.errors import InconsistentClusterIdError, InconsistentTopicIdError
from storage_core.json_values import from_json, read_value, to_json
from storage_core.roots.killed_runs import find_unfinished_commits
from storage_core.store.generations import GENERATION_MARK
from storage_core.store.log_identity import LogIdentity
from storage_core.store.open_objects import names_manifest

_NAMES: Final = ("root", "topic", "partition", "directory", "status", "reason")
# The deletion pass over compacted partitions, after their rounds.
SWEEP: Final = "sweep"
# The key of a partition's topic id and cluster id in its plan.
_IDENTITY: Final = "identity"
_COMPACT: Final = Action.COMPACT.value
_LISTED_AT_ONCE: Final = 200
_NO_FILE: Final = "no such file"
# One ranged read of an object.
_READ_BYTES: Final = 16 * 1024 * 1024
# Both passes of a round read what is dirty.
_PASSES: Final = 2
# History and head of a manifest.
_COMMIT_PUTS: Final = 2
_NOT_DECIDED: Final = frozenset(
    {
        "root",
        "topic",
        "partition",
        "directory",
        "status",
        "reason",
        "operations",
        "duration_ms",
        "error_class",
        "error",
        "loaded_files",
        "load_writes",
        "log_end",
        # They decided, but what came of it is what counts.
        "retention_ms",
        "retention_bytes",
    }
)
_RECOVERY_NAMES: Final = (
    "is_clean",
    "recovery_point",
    "log_start_offset",
    "high_watermark",
    "scan_offsets",
    "scan_bytes",
)

# Not the recovery point: a run that was killed has lowered it, and may be made again.
_TRUNCATION_NAMES: Final = (
    *("is_clean", "log_start_offset", "high_watermark", "cleaner_offset"),
    *("leader", "truncations", "committed_records", "stays_eligible"),
)

_HEALING_NAMES: Final = ("is_clean", "log_start_offset", "high_watermark", "healing")

Row = Mapping[str, Any]


def settle_plans(
    run: Run,
    context: RunContext,
    rows: pa.Table,
    *,
    action: str,
) -> pa.Table:
    """Note the planned rows, or hold them against a saved plan. With a saved plan its partitions
    are returned, changed ones as refused. Without ``--plan-out`` and outside of ``pylog apply`` the
    rows stay as they are.

    Args:
        rows: What was observed; with root, topic, partition, directory, status, reason, error.
    """
    job = run.job
    if job.options.plan_out is None and job.saved is None:
        return rows
    before: dict[PartitionKey, PlannedPartition] = {}
    compacted: set[str] = set()
    if job.saved is not None:
        saved = [noted for noted in job.saved.partitions if noted.plan]
        if action == SWEEP:
            # They look as this run's own compaction left them; nothing can be held against them.
            compacted = {noted.directory for noted in saved if noted.action == _COMPACT}
            compacted -= run.plans.outdated
        before = {
            noted.key: noted
            for noted in saved
            if noted.action == action and noted.directory not in compacted
        }
        rows = _only(rows, before, compacted, action)
    else:
        rows = _without_unfinished(run, rows)
    listed = rows.to_pylist()
    prints = _look(run, listed, action)
    planned = [_planned(row, prints.get(number), action) for number, row in enumerate(listed)]
    if job.saved is not None:
        refusals = {
            number: refusal
            for number, noted in enumerate(planned)
            if noted.key in before
            and (
                refusal := _different_log(before[noted.key], prints.get(number), noted.directory)
                or _refuse(noted, before[noted.key], listed[number]["error"])
            )
            is not None
        }
        failed = {n for n, row in enumerate(listed) if row["status"] == Status.FAILED.value}
        run.plans.refuse(listed[number]["directory"] for number in refusals.keys() | failed)
        rows = _left_out(
            rows, {number: (Reason.INPUTS_CHANGED, why) for number, why in refusals.items()}
        )
        keys = {noted.key for noted in planned}
        gone = [noted for key, noted in before.items() if key not in keys]
        rows = _with_missing(rows, gone)
    run.plans.note(planned, context.catalogs)
    return rows


def _without_unfinished(run: Run, rows: pa.Table) -> pa.Table:
    """Leave out partitions that the applying run changes first. It finishes the commits of
    killed runs before it compares files with the plan."""
    unfinished = {
        root.location: find_unfinished_commits(Path(root.location))
        for root in run.job.roots
        if root.role.facts.is_owned_by_broker
    }
    return _left_out(
        rows,
        {
            number: (Reason.COMMIT_UNFINISHED, "a killed run is in the middle of its commit here")
            for number, row in enumerate(rows.select(["root", "directory", "status"]).to_pylist())
            if row["status"] == Status.PLANNED.value
            and Path(row["directory"]).name in unfinished.get(row["root"], ())
        },
    )


def write_planned(run: Run) -> None:
    """Write what was noted into the file of ``--plan-out``."""
    job = run.job
    if job.options.plan_out is None:
        return
    catalogs = {
        root: restrict_catalog(catalog, planned_topics(run.plans.partitions, root))
        for root, catalog in run.plans.catalogs.items()
    }
    plan = SavedPlan(
        run_id=job.run_id,
        action=job.action,
        now_ms=job.options.now_ms,
        roots=job.roots,
        options=job.options,
        catalogs=catalogs,
        partitions=run.plans.partitions,
    )
    write_plan_file(Path(job.options.plan_out), plan)


def note_operations(run: Run, action: str, texts: Mapping[str, str | None]) -> None:
    """Add operations to the noted plan. A recovery's are known only after its tasks have read."""
    if run.job.options.plan_out is None:
        return

    def add(noted: PlannedPartition, text: str | None) -> PlannedPartition:
        return replace(noted, plan={**noted.plan, "operations": json.loads(text or "[]")})

    run.plans.revise(action, texts, add)


def _look(run: Run, rows: Sequence[Row], action: str) -> dict[int, Fingerprint]:
    """Return how planned partitions, and those of a saved plan, look."""
    items = [
        WorkItem(value=(number, row["directory"]), size_bytes=0, disk=run.disks.of(row["root"]))
        for number, row in enumerate(rows)
        if row["status"] == Status.PLANNED.value or run.job.saved is not None
    ]
    if not items:
        return {}
    unit_bytes = _LISTED_AT_ONCE * ITEM_OVERHEAD_BYTES
    packed = pack_units(items, unit_bytes=unit_bytes, per_disk=run.disks.per_disk)
    units = [unit.values for unit in packed]
    title = f"{run.job.title}: fingerprints of what is planned to {action}"
    is_look = are_looked_at_here(len(items))
    prints = run.engine.ask(units, fingerprint_partitions, Fingerprint, title, is_look=is_look)
    return {each.ordinal: each for each in prints}


def _planned(row: Row, look: Fingerprint | None, action: str) -> PlannedPartition:
    is_planned = row["status"] == Status.PLANNED.value
    decided_of, figures_of = _TOLD_OF[action]
    identity = None if look is None or look.identity is None else json.loads(look.identity)
    return PlannedPartition(
        action=action,
        **{name: row[name] for name in _NAMES},
        figures=_plain(figures_of(row)) if is_planned else {},
        plan=_plain({**decided_of(row), _IDENTITY: identity or {}}) if is_planned else {},
        files=() if look is None else decode_files(look.files),
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they come out of JSON, so that they compare."""
    return dict(json.loads(json.dumps(values, default=str)))


def _only(
    rows: pa.Table, before: Mapping[PartitionKey, object], compacted: set[str], action: str
) -> pa.Table:
    """Return the rows of the partitions that a saved plan works on."""
    keys = zip(*(rows[name].to_pylist() for name in _NAMES[:4]), strict=True)
    mask = [
        (action, *name, place.partition(GENERATION_MARK)[0]) in before or place in compacted
        for *name, place in keys
    ]
    return rows.filter(pa.array(mask, pa.bool_()))


def _refuse(now: PlannedPartition, saved: PlannedPartition, error: str | None) -> str | None:
    """Return why a partition differs from its saved plan, or None. A partition that differs is
    skipped. One that could not be observed, though its files are those of the plan, has failed:
    its own error says why.

    Args:
        error: What the observation says of it.
    """
    if now.status == Status.PLANNED.value:
        return _different_file(saved.files, now.files) or _different_plan(saved, now)
    # The files say why, where they can be listed.
    difference = _different_file(saved.files, now.files) if now.files else None
    if difference is not None or now.status == Status.FAILED.value:
        return difference
    return ": ".join(filter(None, (f"it was planned, and now is {now.status}", now.reason, error)))


def _different_log(saved: PlannedPartition, look: Fingerprint | None, directory: str) -> str | None:
    """Return how the ids of a log differ, or None. A plan of a former version has none."""
    try:
        expected = read_value(LogIdentity, dict(saved.plan.get(_IDENTITY) or {}), _IDENTITY)
        if look is not None and look.identity is not None:
            from_json(LogIdentity, look.identity).require(expected, directory)
    except (ValueError, TypeError, InconsistentTopicIdError, InconsistentClusterIdError) as error:
        return f"the plan is of another log: {error}"
    return None


def _different_file(saved: Sequence[FileFacts], now: Sequence[FileFacts]) -> str | None:
    before = {name: (size, time) for name, size, time in saved}
    after = {name: (size, time) for name, size, time in now}
    for name in sorted(before.keys() | after.keys()):
        expected, actual = before.get(name), after.get(name)
        if expected != actual:
            return (
                f"{name}: changed since the plan was made: expected {_facts(expected)}, "
                f"found {_facts(actual)}"
            )
    return None


def _facts(facts: tuple[int, int] | None) -> str:
    return _NO_FILE if facts is None else f"{facts[0]} bytes of {facts[1]} ms"


def _different_plan(saved: PlannedPartition, now: PlannedPartition) -> str | None:
    """Return how a plan differs with equal files, or None. A checkpoint, or another version of
    this program, may have changed it."""
    for name in sorted(now.plan.keys() - {_IDENTITY}):
        if saved.plan.get(name) != now.plan[name]:
            expected, actual = json.dumps(saved.plan.get(name)), json.dumps(now.plan[name])
            return f"{name} of the plan: expected {expected[:200]}, found {actual[:200]}"
    return None


def _left_out(rows: pa.Table, refusals: Mapping[int, tuple[Reason, str]]) -> pa.Table:
    """Return the rows, some of them skipped with reason and words."""
    if not refusals:
        return rows
    columns = {name: rows[name].to_pylist() for name in ("status", "reason", "error")}
    for number, (reason, why) in refusals.items():
        columns["status"][number] = Status.SKIPPED.value
        columns["reason"][number] = reason.value
        columns["error"][number] = why
    for name, values in columns.items():
        place = rows.column_names.index(name)
        rows = rows.set_column(place, rows.schema.field(name), pa.array(values, pa.string()))
    return rows


def _with_missing(rows: pa.Table, gone: Sequence[PlannedPartition]) -> pa.Table:
    """Add a row for each planned partition with its directory gone."""
    missing = [
        {
            **{name: getattr(noted, name) for name in _NAMES[:4]},
            "status": Status.SKIPPED.value,
            "reason": Reason.INPUTS_CHANGED.value,
            "error": f"{noted.directory}: expected the directory of the plan, found none",
            "duration_ms": 0,
        }
        for noted in gone
    ]
    if not missing:
        return rows
    return pa.concat_tables([rows, pa.Table.from_pylist(missing, schema=rows.schema)])


# What a plan says of one partition: what was decided, and what it costs at most.
#
# What was decided has to come out the same from the same files, config and clock: no durations, no
# random keys. The costs are bounds, made for people; nothing is held against them.


def _compaction_plan_of(row: Row) -> dict[str, Any]:
    """Return the decisions of a row of ``schemas.PLAN``: the round. Its secret key is not among
    them."""
    plan: dict[str, Any] = json.loads(to_json(decode_plan(row["plan"])))
    del plan["hash_key"]
    return plan | {"log_start_checkpoint": row["log_start_checkpoint"]}


def _compaction_figures_of(row: Row) -> dict[str, Any]:
    """Return the bounds of a row of ``schemas.PLAN``."""
    sizes = row["segment_bytes"]
    figures = {
        "bytes_before": row["bytes"],
        "bytes_after_at_most": row["bytes_after"],
        "read_bytes_at_most": _PASSES * sum(sizes),
        "extra_disk_bytes_at_most": row["peak_extra_bytes"],
        "groups": row["groups"],
    }
    if names_manifest(row["directory"]):
        reads = sum(-(-size // _READ_BYTES) + 1 for size in sizes)
        figures["get_requests_about"] = _PASSES * reads
        figures["put_requests_about"] = 2 * (row["groups"] or 0) + _COMMIT_PUTS
    return figures


def _retention_plan_of(row: Row) -> dict[str, Any]:
    """Return what was decided of a row of ``schemas.RETENTION_PLAN``."""
    return {name: row[name] for name in RETENTION_PLAN.names if name not in _NOT_DECIDED}


def _retention_figures_of(row: Row) -> dict[str, Any]:
    """Return the bounds of a row of ``schemas.RETENTION_PLAN``."""
    figures = {"bytes_before": row["bytes"], "bytes_after": row["bytes_after"]}
    if names_manifest(row["directory"]):
        figures["put_requests_about"] = _COMMIT_PUTS
    return figures


def _recovery_plan_of(row: Row) -> dict[str, Any]:
    """Return the decisions of a recovery's ``schemas.RECOVERY_WORK`` row. They are what has to
    be read."""
    return {name: row[name] for name in _RECOVERY_NAMES}


def _truncation_plan_of(row: Row) -> dict[str, Any]:
    """Return the decisions of a follower's ``schemas.RECOVERY_WORK`` row."""
    return {name: row[name] for name in _TRUNCATION_NAMES}


def _healing_plan_of(row: Row) -> dict[str, Any]:
    """Return the decisions of a healing's ``schemas.RECOVERY_WORK`` row."""
    return {name: row[name] for name in _HEALING_NAMES}


def _recovery_figures_of(row: Row) -> dict[str, Any]:
    """Return the bounds of a row of ``schemas.RECOVERY_WORK``."""
    return {"bytes_before": row["bytes"], "read_bytes_at_most": sum(row["scan_bytes"])}


# By action, what returns what was decided of a planned row, and what returns its bounds.
_TOLD_OF: Final[Mapping[str, tuple[Callable[[Row], Row], Callable[[Row], Row]]]] = {
    _COMPACT: (_compaction_plan_of, _compaction_figures_of),
    Action.RETAIN.value: (_retention_plan_of, _retention_figures_of),
    SWEEP: (_retention_plan_of, _retention_figures_of),
    Action.RECOVER.value: (_recovery_plan_of, _recovery_figures_of),
    Action.TRUNCATE.value: (_truncation_plan_of, _recovery_figures_of),
    Action.HEAL.value: (_healing_plan_of, _recovery_figures_of),
}
