"""Every operation on both engines: the same bytes, the same rows, the same ledger."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pylog_spark.cluster.transplant import TransplantOptions, transplant
from pylog_spark.engines.choice import Local, Place
from pylog_spark.ledger import LedgerTable
from pylog_spark.operations.apply import ApplyOptions, apply_plan
from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.ingest import ingest
from pylog_spark.operations.materialize import materialize
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.purge import purge
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.retain.driver import retain
from pylog_spark.operations.survey import survey
from pylog_spark.operations.undo import undo
from pylog_spark.operations.verify.driver import VerifyRequest, verify
from pylog_spark.options import JobOptions, RunLimits, Strategy, Tuning
from pylog_spark.run.run_report import Report
from storage_core.catalog.roles import Role
from storage_core.clock import ManualClock
from storage_core.filenames import TopicPartition
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.materialize import STATE_FILE
from storage_core.store import ManagedStore, open_object_store
from storage_core.store.generations import find_root, list_partitions
from tests.cluster.transplant.clusters import Target
from tests.kit.source_disk import NOW_MS, write_source
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.crashed_roots import crashed_directory, tear
from tests.pylog_spark.managed_roots import read_store
from tests.storage_core.catalog import metadata_bytes as md

pytestmark = pytest.mark.spark

CLEANED = ["clean-headers-none-s101", "clean-hw-none-s161", "clean-group-all-s211"]
CRASHED = ["clean-everything-mixed-s151-3", "clean-sparse-none-s221", "clean-group-all-s211"]
SWEPT = ["retain-size-s501", "retain-size-small-s501", "retain-logstart-mid-s501"]
# Every segment is a task of its own.
SPREAD = Tuning(unit_min_bytes=1, unit_max_bytes=1, shuffle_bucket_bytes=256)
ANYTHING = RunLimits(max_delete_ratio=1.0, overrides=frozenset({"CLOCK_PAST_RETENTION"}))
LONG_AFTERWARDS_MS = 2_000_000_000_000
STOPPED = IngestRules(settle_ms=0, sync_has_stopped=True)
# What differs from run to run, on one engine as well.
VOLATILE = {"run_id", "at", "duration_ms", "read_ms", "elapsed_secs", "elapsed_index_secs"}
VOLATILE |= {"options", "plan", "loaded_files"}  # the last is of the folder's own files


@dataclass(frozen=True)
class Stage:
    """What an operation is given."""

    place: Place  # what it runs on
    folder: Path  # has the log directory ``log``, and what operations make
    options: JobOptions  # of all operations
    reports: list[Report]  # of the operations before

    def path(self, name: str) -> Path:
        return self.folder / name


Operation = Callable[[Stage], Report]


def cleaned(path: Path) -> JobOptions:
    return broker_directory(path, CLEANED).options(FIRST_ROUNDS_MS)


def swept(path: Path) -> JobOptions:
    return broker_directory(path, SWEPT).options(FIRST_ROUNDS_MS)


def crashed(path: Path) -> JobOptions:
    root = crashed_directory(path, CRASHED)
    tear(path / f"{CRASHED[0]}-0", segment=0)
    return root.options


def mixed(path: Path) -> JobOptions:
    root = crashed_directory(path, [*CLEANED, *SWEPT])
    return root.with_options(now_ms=FIRST_ROUNDS_MS)


def on_log(operation: Callable[..., Report], *more: Any, **changes: Any) -> Operation:
    """Return an operation on the log directory."""

    def run(stage: Stage) -> Report:
        options = replace(stage.options, **changes)
        return operation(stage.place, [stage.path("log")], options, *more)

    return run


def clocked(operation: Callable[..., Report], **more: Any) -> Callable[..., Report]:
    return partial(operation, clock=ManualClock(FIRST_ROUNDS_MS), **more)


def night_with_trash(stage: Stage) -> Report:
    options = replace(stage.options, trash=str(stage.path("trash")))
    return run_nightly(stage.place, [stage.path("log")], options)


def undo_last(stage: Stage) -> Report:
    options = replace(stage.options, trash=str(stage.path("trash")))
    return undo(stage.reports[-1].run_id, options, place=stage.place)


def purge_trash(stage: Stage) -> Report:
    options = replace(
        stage.options,
        trash=str(stage.path("trash")),
        now_ms=LONG_AFTERWARDS_MS,
    )
    return purge([stage.path("log")], options, place=stage.place)


def apply_saved_plan(stage: Stage) -> Report:
    """Save the plan of a dry run, and apply it."""
    plan, options = stage.path("plan.json"), stage.options
    dry = replace(options, ledger=None, dry_run=True, plan_out=str(plan))
    run_nightly(stage.place, [stage.path("log")], dry)
    said = ApplyOptions(ledger=options.ledger, overrides=options.limits.overrides)
    return apply_plan(stage.place, plan, said, clock=ManualClock(FIRST_ROUNDS_MS))


def take_in(stage: Stage) -> Report:
    mirror, managed = str(stage.path("log")), str(stage.path("managed"))
    return ingest(stage.place, mirror, managed, stage.options, rules=STOPPED)


def on_managed(operation: Callable[..., Report]) -> Operation:
    def run(stage: Stage) -> Report:
        options = replace(stage.options, role=Role.MANAGED)
        return operation(stage.place, [str(stage.path("managed"))], options)

    return run


def write_out(stage: Stage) -> Report:
    managed, out = str(stage.path("managed")), stage.path("out")
    return materialize(stage.place, managed, out, stage.options)


def undo_managed_night(stage: Stage) -> Report:
    night = stage.reports[-3].run_id
    return undo(night, stage.options, roots=[str(stage.path("managed"))], place=stage.place)


def given_away(path: Path) -> JobOptions:
    """Write a source of two topics."""
    for topic in ("orders", "bills"):
        write_source(path, name=f"{topic}-0")
    return JobOptions(role=Role.BROKER, now_ms=NOW_MS)


def give_away(stage: Stage) -> Report:
    """Give both topics to the disks of a cluster."""
    values = [
        value
        for topic, topic_id in (("orders", md.ID_A), ("bills", md.ID_B))
        for value in (md.topic(topic, topic_id), md.partition(0, topic_id, replicas=(1, 2)))
    ]
    disks = Target(folder=stage.path("out"), values=values).as_brokers()
    # Of the open transactions no coordinator's records are here.
    consent = TransplantOptions(aborts_undecided=True)
    return transplant(stage.place, [stage.path("log")], disks, stage.options, consent)


DEEP = VerifyRequest(is_deep=True)
# Of each story: what lies in the log directory, what is done there, options. Those with a ledger
# have rows in all of its tables together; its appends take Spark seconds.
STORIES: Mapping[
    str, tuple[Callable[[Path], JobOptions], Sequence[Operation], Mapping[str, Any]]
] = {
    "compact by broadcast": (
        *(cleaned, [on_log(clocked(compact, strategy=Strategy.BROADCAST))]),
        {},
    ),
    "compact by shuffle": (cleaned, [on_log(clocked(compact, strategy=Strategy.SHUFFLE))], {}),
    "compact exactly dry": (cleaned, [on_log(clocked(compact), dry_run=True, exact=True)], {}),
    "retain": (swept, [on_log(clocked(retain))], {}),
    "verify and survey": (
        *(crashed, [on_log(verify), on_log(verify, DEEP), on_log(survey)]),
        {"ledger": "ledger"},
    ),
    "recover, dry and for good": (
        *(crashed, [on_log(clocked(recover), dry_run=True), on_log(clocked(recover))]),
        {},
    ),
    "run, undo, purge": (
        *(mixed, [night_with_trash, undo_last, purge_trash]),
        {"ledger": "ledger"},
    ),
    "apply": (swept, [apply_saved_plan], {}),
    "transplant": (given_away, [give_away], {}),
    "ingest and materialize": (
        cleaned,
        [
            *(take_in, take_in, on_managed(survey), on_managed(verify)),
            *(on_managed(run_nightly), write_out, write_out, undo_managed_night),
        ],
        {"ledger": "ledger"},
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What a story leaves, operation by operation, but for what no two runs have in common."""

    exit_codes: list[int]
    notes: list[list[str]]
    rows: list[dict[str, list[str]]]
    ledger: dict[str, list[str]]
    files: list[dict[str, bytes]]


def run_on(
    place: Place, operations: Sequence[Operation], folder: Path, options: JobOptions
) -> Outcome:
    ledger = None if options.ledger is None else str(folder / options.ledger)
    stage = Stage(place, folder, replace(options, ledger=ledger), [])
    files = []
    for operation in operations:
        stage.reports.append(operation(stage))
        files.append(
            {**files_of(folder, "log"), **files_of(folder, "out"), **managed_files(folder)}
        )
    engine = "local" if isinstance(place, Local) else "spark"
    assert {report.engine for report in stage.reports} == {engine}

    def plain(rows: Sequence[Mapping[str, Any]]) -> list[str]:
        kept = [{k: v for k, v in row.items() if k not in VOLATILE} for row in rows]
        return sorted(hide(json.dumps(row, default=repr, sort_keys=True)) for row in kept)

    def hide(text: str) -> str:
        """Return a text without what is of this run or this folder."""
        for name in (str(folder), str(folder)[1:], *(report.run_id for report in stage.reports)):
            text = text.replace(name, "")
        return text.replace("\\", "")

    tables = {} if ledger is None else {table: delta_rows(ledger, table) for table in LedgerTable}
    return Outcome(
        exit_codes=[report.exit_code for report in stage.reports],
        notes=[[hide(note) for note in report.notes] for report in stage.reports],
        rows=[
            {name: plain(rows) for name, rows in tables_of(report).items()}
            for report in stage.reports
        ],
        ledger={name: plain(rows) for name, rows in tables.items()},
        files=files,
    )


def tables_of(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Return all rows that a report has, by the name of its field."""
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    tables = {
        name: value.to_pylist() for name, value in values.items() if isinstance(value, pa.Table)
    }
    named = {name: list(values.get(name, ())) for name in ("verified", "findings")}
    counts = [{"code": str(count)} for count in values.get("counts", ())]
    return {**tables, **named, "counts": counts}


def delta_rows(ledger: str, table: LedgerTable) -> list[dict[str, Any]]:
    rows = deltalake.DeltaTable(f"{ledger}/{table}").to_pyarrow_table().to_pylist()
    return list(rows)


def files_of(folder: Path, name: str) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted((folder / name).rglob("*"))
        # That one says which managed root it is of, by an id that no other has.
        if file.is_file() and file.name != STATE_FILE
    }


def managed_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a managed root's partitions, whatever its objects are called."""
    if not (folder / "managed").is_dir():
        return {}
    objects = open_object_store(str(folder / "managed"))
    assert find_root(objects) is not None
    stores: Mapping[TopicPartition, ManagedStore] = {
        partition: ManagedStore(objects, partition) for partition in list_partitions(objects)
    }
    return {
        f"{partition}/{name}": content
        for partition, store in stores.items()
        for name, content in read_store(store).items()
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", STORIES)
def test_both_engines_leave_the_same_bytes_rows_and_ledger(spark, tmp_path, name):
    prepare, operations, changes = STORIES[name]
    options = prepare(tmp_path / "log")
    options = replace(options, tuning=SPREAD, limits=ANYTHING, **changes)
    found = {}
    for engine, place in {"spark": spark, "local": Local(2)}.items():
        folder = tmp_path / engine
        folder.mkdir()
        shutil.copytree(tmp_path / "log", folder / "log")
        found[engine] = run_on(place, operations, folder, options)
    assert found["local"] == found["spark"]
    assert all(found["local"].rows[-1]["results"])
    assert 5 not in found["local"].exit_codes
