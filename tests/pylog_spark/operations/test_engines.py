"""Every operation on both engines: the same bytes, the same rows, the same ledger."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pytest

from pylog_spark.engines.choice import Local, Place
from pylog_spark.ledger import LedgerTable
from pylog_spark.operations.apply import ApplyOptions, apply_plan
from pylog_spark.operations.compact import compact
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.recover import recover
from pylog_spark.operations.retain import retain
from pylog_spark.options import JobOptions, RunLimits, Strategy, Tuning
from pylog_spark.run.run_report import RunReport
from storage_core.clock import ManualClock
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.crashed_roots import crashed_directory, tear

pytestmark = pytest.mark.spark

CLEANED = ["clean-headers-none-s101", "clean-hw-none-s161", "clean-group-all-s211"]
CRASHED = ["clean-everything-mixed-s151-3", "clean-sparse-none-s221", "clean-group-all-s211"]
SWEPT = ["retain-size-s501", "retain-size-small-s501", "retain-logstart-mid-s501"]
# Every segment is a task of its own.
SPREAD = Tuning(unit_min_bytes=1, unit_max_bytes=1, shuffle_bucket_bytes=256)
ANYTHING = RunLimits(max_delete_ratio=1.0, overrides=frozenset({"CLOCK_PAST_RETENTION"}))
# What differs from run to run, on one engine as well.
VOLATILE = {"run_id", "duration_ms", "elapsed_secs", "elapsed_index_secs", "options", "plan"}
TABLES = ("results", "plans", "cuts", "recoveries", "retentions", "cleanings")

Operation = Callable[[Place, list[Path], JobOptions], RunReport]


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


def apply_saved_plan(place: Place, roots: list[Path], options: JobOptions) -> RunReport:
    """Save the plan of a dry run, and apply it."""
    plan = roots[0].parent / "plan.json"
    run_nightly(place, roots, replace(options, ledger=None, dry_run=True, plan_out=str(plan)))
    said = ApplyOptions(ledger=options.ledger, overrides=options.limits.overrides)
    return apply_plan(place, plan, said, clock=ManualClock(FIRST_ROUNDS_MS))


def clocked(operation: Callable[..., RunReport], **more: Any) -> Operation:
    return partial(operation, clock=ManualClock(FIRST_ROUNDS_MS), **more)


OPERATIONS: Mapping[str, tuple[Callable[[Path], JobOptions], Operation, Mapping[str, Any]]] = {
    "compact by broadcast": (cleaned, clocked(compact, strategy=Strategy.BROADCAST), {}),
    "compact by files": (cleaned, clocked(compact, strategy=Strategy.FILES), {}),
    "compact by shuffle": (cleaned, clocked(compact, strategy=Strategy.SHUFFLE), {}),
    "compact exactly dry": (cleaned, clocked(compact), {"dry_run": True, "exact": True}),
    "retain": (swept, clocked(retain), {}),
    "recover": (crashed, clocked(recover), {}),
    "recover dry": (crashed, clocked(recover), {"dry_run": True}),
    # With all steps, and so with rows in all tables of the ledger: its appends take Spark seconds.
    "run": (mixed, clocked(run_nightly), {"ledger": "ledger"}),
    "apply": (swept, apply_saved_plan, {}),
}


@dataclass(frozen=True)
class Outcome:
    """What a run leaves, but for what no two runs have in common."""

    exit_code: int
    notes: list[str]
    rows: dict[str, list[str]]
    ledger: dict[str, list[str]]
    files: dict[str, bytes]


def run_on(place: Place, operation: Operation, folder: Path, options: JobOptions) -> Outcome:
    ledger = None if options.ledger is None else str(folder / options.ledger)
    report = operation(place, [folder / "log"], replace(options, ledger=ledger))
    assert report.engine == ("local" if isinstance(place, Local) else "spark")

    def plain(rows: list[dict[str, Any]]) -> list[str]:
        kept = [{k: v for k, v in row.items() if k not in VOLATILE} for row in rows]
        texts = [json.dumps(row, default=repr, sort_keys=True) for row in kept]
        return sorted(
            text.replace(str(folder), "").replace(report.run_id, "").replace("\\", "")
            for text in texts
        )

    tables = {} if ledger is None else {table: delta_rows(ledger, table) for table in LedgerTable}
    return Outcome(
        exit_code=report.exit_code,
        notes=[note.replace(str(folder), "") for note in report.notes],
        rows={name: plain(getattr(report, name).to_pylist()) for name in TABLES},
        ledger={name: plain(rows) for name, rows in tables.items()},
        files={
            str(file.relative_to(folder)): file.read_bytes()
            for file in sorted((folder / "log").rglob("*"))
            if file.is_file()
        },
    )


def delta_rows(ledger: str, table: LedgerTable) -> list[dict[str, Any]]:
    rows = deltalake.DeltaTable(f"{ledger}/{table}").to_pyarrow_table().to_pylist()
    return list(rows)


@pytest.mark.parametrize("name", OPERATIONS)
def test_both_engines_leave_the_same_bytes_rows_and_ledger(spark, tmp_path, name):
    prepare, operation, changes = OPERATIONS[name]
    options = prepare(tmp_path / "log")
    options = replace(options, tuning=SPREAD, limits=ANYTHING, **changes)
    found = {}
    for engine, place in {"spark": spark, "local": Local(2)}.items():
        folder = tmp_path / engine
        folder.mkdir()
        shutil.copytree(tmp_path / "log", folder / "log")
        found[engine] = run_on(place, operation, folder, options)
    assert found["local"] == found["spark"]
    if not options.dry_run:
        before = {file.name for file in (tmp_path / "log").rglob("*")}
        assert {file.rpartition("/")[2] for file in found["local"].files} != before
