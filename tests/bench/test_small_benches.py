"""Each bench at a size that takes seconds: that it runs, and that what it finds is shown and kept.

Nothing is said of how fast anything is.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.bench import (
    bench_append,
    bench_arrow,
    bench_audit,
    bench_audit_many,
    bench_commits,
    bench_compaction,
    bench_cores,
    bench_count,
    bench_dump,
    bench_export,
    bench_growth,
    bench_incremental,
    bench_json,
    bench_ledger,
    bench_many,
    bench_many_keys,
    bench_memory,
    bench_nightly,
    bench_protobuf,
    bench_real_size,
    bench_recover,
    bench_scale,
    bench_single_records,
    bench_skew,
    bench_tier,
    bench_tiny,
    bench_values,
    bench_verify,
)
from tests.bench.figures import DOCS, FOLDER, PAGE, TABLES, keep
from tests.bench.shared import show
from tests.kit.spark_classes import QUICK

pytestmark = pytest.mark.thorough

MIB = 1 << 20
SOME_RECORDS = 6000
SOME_PLACES = {"bytes": 20, "missing": 30, "epoch": 40}


def audit(folder: Path) -> Any:
    roots = bench_audit.write_replicas(folder, 3 * MIB, SOME_PLACES)
    assert bench_audit.compare(roots).rows.num_rows
    return bench_audit.beside_verify(roots[0] / "t-0", rounds=2)


def cores(_: Path) -> Any:
    *read, cleaned = show(
        bench_cores.measure(rounds=1, records=SOME_RECORDS, keys=500, segment_mib=1, kafka=True)
    )
    return [cleaned.beside_kafka("compaction"), *(each.beside_one_thread("read") for each in read)]


def real_size(_: Path) -> Any:
    case = bench_real_size.case_of(
        name="small", text="two small partitions", segments=2, partitions=2, size=MIB, keys=100
    )
    report = bench_real_size.work_a_night(case)
    assert (report.status, report.statuses) == (0, {"done": 2}), report.errors
    return report


# By table, what each bench finds; those whose figures are not kept have none.
WITHOUT_TABLE = ""
FOUND: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "append": ("rates", lambda _: bench_append.measure(megabytes=2, rounds=2).figures()),
    "arrow": ("rates", lambda _: bench_arrow.measure(records=SOME_RECORDS, rounds=2)),
    "audit": ("rates", audit),
    "audit_many": (
        "audits",
        lambda _: bench_audit_many.measure(partitions=(2, 4), ways=(bench_audit_many.OFFSETS,)),
    ),
    "compaction": (
        "rates",
        lambda _: bench_compaction.measure(
            rounds=2, records=SOME_RECORDS, keys=500, codec="lz4"
        ).figures(),
    ),
    "cores": ("rates", cores),
    "count": (
        WITHOUT_TABLE,
        lambda _: bench_count.measure(
            partitions=bench_count.PREMADE_TASKS, records=SOME_RECORDS, rounds=1
        ),
    ),
    "disk": ("commits", lambda _: bench_commits.measure_disk(files=2)),
    "dump": ("rates", lambda _: bench_dump.measure(records=SOME_RECORDS, rounds=1)),
    "export": (WITHOUT_TABLE, lambda _: bench_export.measure(rounds=1, records=SOME_RECORDS)),
    "growth": (
        "growth",
        lambda _: bench_growth.measure(gigabytes=(0.001, 0.002), segments=(), partitions=()),
    ),
    "incremental": (
        "rates",
        lambda _: bench_incremental.measure(rounds=2, records=SOME_RECORDS).figures(),
    ),
    "json": ("rates", lambda _: bench_json.measure(values=SOME_RECORDS, rounds=2)),
    "ledger": ("costs", lambda _: bench_ledger.measure(rounds=1, engine="local")),
    "many": (
        "many",
        lambda _: bench_many.measure(partitions=(2, 4), segments=2, engine="local"),
    ),
    "many_keys": (
        WITHOUT_TABLE,
        lambda _: bench_many_keys.measure(keys=SOME_RECORDS, segment_bytes=MIB),
    ),
    "memory": ("memory", lambda _: bench_memory.measure(rounds=1, scale=0.002)),
    "nightly": (
        "rates",
        lambda _: bench_nightly.measure(gigabytes=0.004, partitions=2, rounds=1, cold=True),
    ),
    "protobuf": ("rates", lambda _: bench_protobuf.measure(values=SOME_RECORDS, rounds=2)),
    "real_size": (WITHOUT_TABLE, real_size),
    "recover": (
        "rates",
        lambda _: bench_recover.measure(megabytes=2, partitions=1, rounds=2).figure(),
    ),
    "scale": (WITHOUT_TABLE, lambda _: bench_scale.run(sizes=(20,))),
    "single_records": (
        "rates",
        lambda _: bench_single_records.measure(
            records=SOME_RECORDS,
            keys=500,
            codecs=("lz4",),
            works=bench_single_records.WORKS[:-1],  # the last one is that of "arrow"
            rounds=2,
        ),
    ),
    "skew": (
        WITHOUT_TABLE,
        lambda _: bench_skew.measure(megabytes=4, small=2, segment_bytes=MIB),
    ),
    "tier": ("rates", lambda _: bench_tier.measure(records=SOME_RECORDS, rounds=2)),
    "tiny": (
        "rates",
        lambda _: bench_tiny.measure(partitions=(20,), places=("disk",), rounds=2),
    ),
    "values": ("rates", lambda _: bench_values.measure(values=SOME_RECORDS, rounds=2)),
    "verify": (
        "rates",
        lambda _: list(bench_verify.measure(records=SOME_RECORDS, rounds=2, processes=(1,)))[-1:],
    ),
}
# Looks and commits of few partitions are in test_benches.py.
ELSEWHERE = {"commits"}
NEEDS_KAFKA = {
    *("append", "arrow", "compaction", "cores", "dump", "incremental", "memory", "nightly"),
    *("recover", "single_records", "tiny", "verify"),
}


@pytest.fixture(autouse=True)
def _no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """JVMs compile quickly, which is enough where nothing is measured; no disk is waited for."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(QUICK))
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.oracle if name in NEEDS_KAFKA else ()) for name in FOUND],
)
# kafka-python reads its own schemas that way.
@pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
def test_a_bench_runs_and_what_it_finds_is_kept(name: str, tmp_path: Path) -> None:
    if name == "arrow":
        pytest.importorskip("aiokafka")
    table, find = FOUND[name]
    found = find(tmp_path)
    rows = list(found) if isinstance(found, Iterable) else [found]
    assert rows
    if table:
        keep_in(tmp_path, name, show(rows), table)


def keep_in(folder: Path, name: str, rows: list[Any], table: str) -> None:
    """Keep rows beside a copy of the page: none of its tables has room for their number."""
    docs = folder / "docs"
    docs.mkdir()
    shutil.copy(DOCS / PAGE, docs)
    keep(name, rows, table=table, docs=docs)
    assert (docs / FOLDER / f"{name}.json").exists()
    page = (docs / PAGE).read_text()
    width = len(TABLES[table])
    for row in rows:
        assert row.line() in page
        assert row.line().count(" | ") == width - 1


def test_every_bench_is_run() -> None:
    modules = {
        path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")
    }
    assert modules == set(FOUND) - {"disk"} | ELSEWHERE
