"""Plans that are saved, and plans that were: the one hook that every operation has.

Each operation calls ``settle_plans`` when it knows what is to be done and has done none of it. With
``--plan-out`` the plan is noted, to be written when the run ends. Within ``pylog apply`` it is held
against the saved one: what was not planned then, or is not the same any more, is left out.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from pylog_spark.engines.engine import AnyEngine
from pylog_spark.run.disks import Disks
from pylog_spark.run.job import Job
from pylog_spark.run.plan_file import (
    PartitionKey,
    PlannedPartition,
    SavedPlan,
    planned_topics,
    restrict_catalog,
    write_plan_file,
)
from pylog_spark.run.planning import (
    ITEM_OVERHEAD_BYTES,
    MOST_LOOKS_HERE,
    WorkItem,
    pack_units,
)
from pylog_spark.schemas import FINGERPRINT, Action, Reason, Status
from pylog_spark.tasks.fingerprints import FileFacts, decode_files, fingerprint_partitions
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.store.generations import GENERATION_MARK

_NAMES: Final = ("root", "topic", "partition", "directory", "status", "reason")
# The deletion pass over compacted partitions, after their rounds.
SWEEP: Final = "sweep"
_COMPACT: Final = Action.COMPACT.value
_LISTED_AT_ONCE: Final = 200
_NO_FILE: Final = "no such file"

Row = Mapping[str, Any]


class PlanningRun(Protocol):
    """What of an open run is needed here."""

    job: Job
    engine: AnyEngine
    disks: Disks
    planned: list[PlannedPartition]
    context: RunContext | None
    refused: set[str]


def settle_plans(
    run: PlanningRun,
    context: RunContext,
    rows: pa.Table,
    *,
    action: str,
    plan_of: Callable[[Row], Mapping[str, Any]],
    figures_of: Callable[[Row], Mapping[str, Any]],
) -> pa.Table:
    """Note what is planned; of a saved plan, return its partitions, those that changed refused.

    Without ``--plan-out`` and outside of ``pylog apply`` the rows stay as they are.

    Args:
        run: The run.
        context: What its tasks are told.
        rows: What was observed; with root, topic, partition, directory, status, reason, error.
        action: What is going to be done.
        plan_of: What was decided, of a planned row; JSON values, the same from the same files.
        figures_of: Its bounds; JSON values.

    Raises:
        pyspark.errors.PySparkException: Spark failed.
    """
    job = run.job
    if job.options.plan_out is None and job.saved is None:
        return rows
    run.context = run.context or context
    before: dict[PartitionKey, PlannedPartition] = {}
    compacted: set[str] = set()
    if job.saved is not None:
        saved = [noted for noted in job.saved.partitions if noted.plan]
        if action == SWEEP:
            # They look as this run's own compaction left them; nothing can be held against them.
            compacted = {noted.directory for noted in saved if noted.action == _COMPACT}
            compacted -= run.refused
        before = {
            noted.key: noted
            for noted in saved
            if noted.action == action and noted.directory not in compacted
        }
        rows = _only(rows, before, compacted, action)
    listed = rows.to_pylist()
    files = _list_files(run, listed, action)
    planned = [
        _planned(row, files.get(number), action, plan_of, figures_of)
        for number, row in enumerate(listed)
    ]
    if job.saved is not None:
        refusals = {
            number: refusal
            for number, noted in enumerate(planned)
            if noted.key in before and (refusal := _refuse(noted, before[noted.key])) is not None
        }
        run.refused |= {listed[number]["directory"] for number in refusals}
        rows = _refused(rows, refusals)
        found = {noted.key for noted in planned}
        gone = [noted for key, noted in before.items() if key not in found]
        rows = _with_missing(rows, gone)
    run.planned += planned
    return rows


def write_planned(run: PlanningRun) -> None:
    """Write what was noted into the file of ``--plan-out``.

    Args:
        run: The run, at its end.

    Raises:
        StorageError: The disk failed.
    """
    job, context = run.job, run.context
    if job.options.plan_out is None:
        return
    catalogs: dict[str, TopicCatalog] = {
        root: restrict_catalog(catalog, planned_topics(run.planned, root))
        for root, catalog in ({} if context is None else context.catalogs).items()
    }
    plan = SavedPlan(
        run_id=job.run_id,
        action=job.action,
        now_ms=job.options.now_ms,
        roots=job.roots,
        options=job.options,
        catalogs=catalogs,
        partitions=tuple(run.planned),
    )
    write_plan_file(Path(job.options.plan_out), plan)


def note_operations(run: PlanningRun, action: str, texts: Mapping[str, str | None]) -> None:
    """Add operations to what is noted: those of a recovery are known when its tasks have read.

    Args:
        run: The run.
        action: What it does.
        texts: Operations as JSON, by directory.
    """
    if run.job.options.plan_out is None:
        return
    run.planned[:] = [
        replace(
            noted, plan={**noted.plan, "operations": json.loads(texts[noted.directory] or "[]")}
        )
        if noted.action == action and noted.plan and noted.directory in texts
        else noted
        for noted in run.planned
    ]


def _list_files(
    run: PlanningRun, rows: Sequence[Row], action: str
) -> dict[int, tuple[FileFacts, ...]]:
    """Return the files of the planned partitions, by number; none where listing failed."""
    items = [
        WorkItem(value=(number, row["directory"]), size_bytes=0, disk=run.disks.of(row["root"]))
        for number, row in enumerate(rows)
        if row["status"] == Status.PLANNED.value
    ]
    if not items:
        return {}
    unit_bytes = _LISTED_AT_ONCE * ITEM_OVERHEAD_BYTES
    packed = pack_units(items, unit_bytes=unit_bytes, per_disk=run.disks.per_disk)
    units = [unit.values for unit in packed]
    rows_of_files = run.engine.spread(units, fingerprint_partitions, FINGERPRINT)
    title = f"{run.job.title}: fingerprints of what is planned to {action}"
    is_look = len(items) <= MOST_LOOKS_HERE
    table = run.engine.collect(rows_of_files, FINGERPRINT, title, is_look=is_look)
    return {row["ordinal"]: decode_files(row["files"]) for row in table.to_pylist()}


def _planned(
    row: Row,
    files: tuple[FileFacts, ...] | None,
    action: str,
    plan_of: Callable[[Row], Mapping[str, Any]],
    figures_of: Callable[[Row], Mapping[str, Any]],
) -> PlannedPartition:
    is_planned = row["status"] == Status.PLANNED.value
    return PlannedPartition(
        action=action,
        **{name: row[name] for name in _NAMES},
        figures=_plain(figures_of(row)) if is_planned else {},
        plan=_plain(plan_of(row)) if is_planned else {},
        files=files or (),
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they come out of JSON, so that they compare."""
    return dict(json.loads(json.dumps(values, default=str)))


def _only(
    rows: pa.Table, before: Mapping[PartitionKey, object], compacted: set[str], action: str
) -> pa.Table:
    """Return the rows of the partitions that a saved plan works on."""
    keys = zip(*(rows[name].to_pylist() for name in _NAMES[:4]), strict=True)
    chosen = [
        (action, *name, place.partition(GENERATION_MARK)[0]) in before or place in compacted
        for *name, place in keys
    ]
    return rows.filter(pa.array(chosen, pa.bool_()))


def _refuse(now: PlannedPartition, saved: PlannedPartition) -> str | None:
    """Return why a partition is not worked on, None if its plan is the saved one."""
    difference = _different_file(saved.files, now.files)
    if difference is None and now.status != Status.PLANNED.value:
        difference = f"it was planned, and now is {now.status}: {now.reason}"
    return difference or _different_plan(saved, now)


def _different_file(saved: Sequence[FileFacts], now: Sequence[FileFacts]) -> str | None:
    before = {name: (size, time) for name, size, time in saved}
    after = {name: (size, time) for name, size, time in now}
    for name in sorted(before.keys() | after.keys()):
        expected, found = before.get(name), after.get(name)
        if expected != found:
            return (
                f"{name}: changed since the plan was made: expected {_facts(expected)}, "
                f"found {_facts(found)}"
            )
    return None


def _facts(facts: tuple[int, int] | None) -> str:
    return _NO_FILE if facts is None else f"{facts[0]} bytes of {facts[1]} ms"


def _different_plan(saved: PlannedPartition, now: PlannedPartition) -> str | None:
    """Return what of a plan differs although the files do not: a checkpoint, or another program."""
    for name in sorted(now.plan):
        if saved.plan.get(name) != now.plan[name]:
            expected, found = json.dumps(saved.plan.get(name)), json.dumps(now.plan[name])
            return f"{name} of the plan: expected {expected[:200]}, found {found[:200]}"
    return None


def _refused(rows: pa.Table, refusals: Mapping[int, str]) -> pa.Table:
    if not refusals:
        return rows
    columns = {name: rows[name].to_pylist() for name in ("status", "reason", "error")}
    for number, why in refusals.items():
        columns["status"][number] = Status.SKIPPED.value
        columns["reason"][number] = Reason.INPUTS_CHANGED.value
        columns["error"][number] = why
    for name, values in columns.items():
        place = rows.column_names.index(name)
        rows = rows.set_column(place, rows.schema.field(name), pa.array(values, pa.string()))
    return rows


def _with_missing(rows: pa.Table, gone: Sequence[PlannedPartition]) -> pa.Table:
    """Add a row for each planned partition whose directory is not there any more."""
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
