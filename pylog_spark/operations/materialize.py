"""Write a managed root's partitions as a plain log directory for Kafka.

Each partition is written from one generation, pinned before its first byte. A run that is killed
is finished by the next one with the same generations; what is whole is not written again.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import count_directories, discover_partitions, resolve_managed
from pylog_spark.engines.choice import Place
from pylog_spark.operations.materialize_task import (
    MaterializeContext,
    plan_materialize,
    write_partitions,
)
from pylog_spark.operations.transfer import TransferReport, sort_details, transfer_results
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action, Status
from pylog_spark.rows import batches_of
from pylog_spark.run.job import new_job
from pylog_spark.run.planning import (
    WorkItem,
    are_looked_at_here,
    count_look_tasks,
    pack_units,
)
from pylog_spark.run.run import Run
from pylog_spark.schemas import MATERIALIZED, MaterializedRow
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES
from storage_core.clock import Clock
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.filenames import TopicPartition
from storage_core.maintenance.materialize import (
    MaterializedTarget,
    hold_target,
    read_target,
    release_partition,
    write_target,
)
from storage_core.roots.broker import write_checkpoints
from storage_core.roots.open_root import LogRoot
from storage_core.store import open_object_store
from storage_core.store.generations import find_root

_NEXT_STEP: Final = (
    "it has no meta.properties: `kafka-storage.sh format` writes that; a broker that starts on it "
    "recovers from the recovery points on"
)


def materialize(
    place: Place,
    managed: str,
    directory: str | Path,
    options: JobOptions,
    *,
    clock: Clock | None = None,
) -> TransferReport:
    """Write the chosen partitions of a managed root into a directory.

    Args:
        place: Where it runs: a Spark session, whose executors have to see the directory, or this
            machine (``Local``).
        directory: Absent, empty, or begun by a former run from the same root.
        options: Which topics; its dry run writes nothing.
        clock: For the times in the ledger.
    """
    root, root_id, path = _resolve(managed, directory)
    job = new_job(Action.MATERIALIZE.value, [root], options, clock=clock, outputs=(str(path),))
    with Run(place, job) as run:
        if options.dry_run:
            details = _plan(run, path, read_target(path, root=root.location, root_id=root_id))
        else:
            state = run.held.enter_context(hold_target(path, root=root.location, root_id=root_id))
            details = _plan(run, path, state)
            _check_room(path, details)
            details = _write(run, path, details)
            _finish(path, state, details)
        results = transfer_results(
            job, details, bytes_after=details["bytes"], segments_after=details["segments"]
        )
        run.recorder.results(results)
    return run.report(TransferReport, results, notes=_notes(path, details), details=details)


def check_target(managed: str, directory: str | Path) -> LogRoot:
    """Check the directory to write to; return the managed root. It asks the managed root who it
    is."""
    root, root_id, path = _resolve(managed, directory)
    read_target(path, root=root.location, root_id=root_id)
    return root


def _resolve(managed: str, directory: str | Path) -> tuple[LogRoot, str, Path]:
    (root,) = resolve_managed([managed])
    facts = find_root(open_object_store(root.location))
    if facts is None:
        raise ConfigError("MANAGED", managed, "is no managed root")
    return root, facts.root_id, Path(directory).absolute()


def _plan(run: Run, path: Path, state: MaterializedTarget) -> pa.Table:
    job, engine = run.job, run.engine
    context = MaterializeContext(
        root=job.roots[0].location, directory=str(path), present=state.generations
    )

    def plan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches_of(MaterializedRow, plan_materialize(batches, context))

    partitions = discover_partitions(engine, job.roots, job.topics)
    spread = partitions.deal_out(count_look_tasks(None, slots=engine.slots))
    details = engine.collect(
        engine.map_rows(spread, plan, MATERIALIZED),
        MATERIALIZED,
        f"{job.title}: plan {job.places}",
        is_look=are_looked_at_here(count_directories(job.roots)),
    )
    return sort_details(details, "bytes")


def _write(run: Run, path: Path, details: pa.Table) -> pa.Table:
    """Write the planned partitions, big ones first. The other rows stay as they are."""
    job, engine = run.job, run.engine
    planned = pc.equal(details["status"], Status.PLANNED.value)
    rows = details.filter(planned).select(["topic", "partition", "generation", "all_bytes"])
    if not rows.num_rows:
        return details
    wanted = rows.to_pylist()
    total = sum(row["all_bytes"] for row in wanted)
    units = pack_units(
        [
            WorkItem(
                value=(TopicPartition(row["topic"], row["partition"]), row["generation"]),
                size_bytes=row["all_bytes"],
            )
            for row in wanted
        ],
        unit_bytes=run.unit_bytes(total),
    )
    context = MaterializeContext(root=job.roots[0].location, directory=str(path), present={})
    write = partial(write_partitions, context=context)
    frame = engine.spread([unit.values for unit in units], write, MaterializedRow)
    written = engine.collect(frame, MATERIALIZED, f"{job.title}: write {path}")
    others = details.filter(pc.invert(planned))
    return sort_details(pa.concat_tables([written, others]), "bytes")


def _finish(path: Path, state: MaterializedTarget, details: pa.Table) -> None:
    """Write the checkpoint files, list the whole partitions, remove the pins."""
    done = details.filter(pc.equal(details["status"], Status.DONE.value))
    rows: list[dict[str, Any]] = done.to_pylist()
    names = {TopicPartition(row["topic"], row["partition"]): row for row in rows}
    write_checkpoints(
        path,
        {
            file: {name: row[column] for name, row in names.items() if row[column]}
            for file, column in CHECKPOINT_FILES.items()
        },
    )
    new = {str(name): int(row["generation"]) for name, row in names.items()}
    whole = MaterializedTarget(
        root=state.root, root_id=state.root_id, generations={**state.generations, **new}
    )
    write_target(path, whole)
    for name in whole.generations:
        if (path / name).is_dir():
            release_partition(path / name)


def _check_room(path: Path, details: pa.Table) -> None:
    planned = details.filter(pc.equal(details["status"], Status.PLANNED.value))
    needed = pc.sum(planned["all_bytes"]).as_py() or 0
    free = shutil.disk_usage(path).free + _present_bytes(path, planned)
    if needed > free:
        raise GuardRefusedError(
            "NO_SPACE", f"{path} has {free} bytes of room for these partitions, they need {needed}"
        )


def _present_bytes(path: Path, planned: pa.Table) -> int:
    """Return how much a killed run wrote of the planned partitions."""
    names = zip(planned["topic"].to_pylist(), planned["partition"].to_pylist(), strict=True)
    folders = (path / str(TopicPartition(topic, number)) for topic, number in names)
    return sum(
        file.stat().st_size for folder in folders if folder.is_dir() for file in folder.iterdir()
    )


def _notes(path: Path, details: pa.Table) -> tuple[str, ...]:
    mask = pc.is_in(
        details["status"], pa.array([Status.DONE.value, Status.PLANNED.value], pa.string())
    )
    rows = details.filter(mask)
    if not rows.num_rows:
        return ()
    totals = {name: pc.sum(rows[name]).as_py() or 0 for name in ("all_bytes", "get_requests")}
    return (
        f"{path}: {totals['all_bytes']} bytes of files, by {totals['get_requests']} reads at least",
        _NEXT_STEP,
    )
