"""Planning without the bytes: how wall time and the driver's memory grow with the partitions.

A catalogue that is not there is listed from a store that answers each LIST after 100 ms, and read
from an inventory; retention and compaction are planned from that, and reported. Each measurement
is a process of its own, so that its peaks are its own. The session is local: what Spark's executors
need is part of the JVM's heap here. ``python -m tests.bench.bench_scale 100000`` is one size.
"""

import json
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

from pylog_spark.cli.runner import RowLines
from pylog_spark.cli.transfer import transfer_lines
from pylog_spark.operations.survey import survey
from pylog_spark.options import JobOptions
from pylog_spark.options.choices import OutputFormat
from pylog_spark.session import build_session
from storage_core.catalog.roles import Role
from tests.bench.synthetic_catalogue import (
    NOW_MS,
    ROOT,
    TOPIC_CONFIGS,
    NoCheckpoints,
    SyntheticListing,
    write_inventory,
)

SIZES = (1_000, 10_000, 100_000)
SEGMENTS = 50
LATENCY_SECONDS = 0.1
DRIVER_MEMORY = "1g"
_MIB = 1 << 20


def plan_once(spark, partitions, *, segments=SEGMENTS, latency_seconds=0.0, inventory=None):
    """Survey a synthetic mirror and return the report."""
    options = JobOptions(
        now_ms=NOW_MS,
        role=Role.MIRROR,
        topic_configs=TOPIC_CONFIGS,
        file_list=None if inventory is None else str(inventory),
    )
    listing = SyntheticListing(partitions, segments, latency_seconds)
    return survey(spark, [ROOT], options, opener=listing, read_checkpoints=NoCheckpoints())


def measure(partitions: int, *, use_inventory: bool, folder: Path) -> dict[str, float]:
    """Plan and report in this process; return seconds, and mebibytes at the peak."""
    inventory = None
    if use_inventory:
        inventory = folder / f"inventory-{partitions}.parquet"
        if not inventory.exists():
            # Elsewhere: what writing it takes is none of the planner's memory.
            writer = get_context("spawn").Process(
                target=write_inventory, args=(inventory, partitions, SEGMENTS)
            )
            writer.start()
            writer.join()
    conf = {"spark.driver.memory": DRIVER_MEMORY, "spark.ui.enabled": "false"}
    spark = build_session("local[2]", conf, app_name="scale")
    spark.range(1).count()
    began = _peak_resident("self")
    started = time.perf_counter()
    report = plan_once(spark, partitions, latency_seconds=LATENCY_SECONDS, inventory=inventory)
    planned = time.perf_counter()
    with (folder / "report.jsonl").open("w") as out:
        lines = RowLines(OutputFormat.JSON, report.action, (), write=out.write)
        lines.write(transfer_lines(report, is_csv=False))
    ended = time.perf_counter()
    assert report.details.num_rows == partitions
    found = {
        "partitions": partitions,
        "plan_s": planned - started,
        "report_s": ended - planned,
        "python_start_mib": began,
        "python_mib": _peak_resident("self"),
        "table_mib": (report.details.nbytes + report.results.nbytes) / _MIB,
        **_heap(spark),
    }
    spark.stop()
    return found


def _peak_resident(process) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


def _heap(spark) -> dict[str, float]:
    """Return the JVM's heap: its peak, garbage included, and what is live now."""
    jvm = spark.sparkContext._jvm
    management = jvm.java.lang.management.ManagementFactory
    pools = [p for p in management.getMemoryPoolMXBeans() if p.getType().name() == "HEAP"]
    peak = sum(pool.getPeakUsage().getUsed() for pool in pools)
    jvm.System.gc()
    live = management.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    limit = jvm.Runtime.getRuntime().maxMemory()
    return {"heap_mib": peak / _MIB, "live_mib": live / _MIB, "heap_limit_mib": limit / _MIB}


def run(sizes=SIZES) -> list[dict[str, float]]:
    """Measure each size both ways, in processes of their own, and print a table."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="pylog-scale-") as folder:
        for way in ("listing", "inventory"):
            for partitions in sizes:
                done = subprocess.run(
                    [sys.executable, "-m", "tests.bench.bench_scale", str(partitions), way, folder],
                    check=True,
                    capture_output=True,
                    text=True,
                )
                rows.append({"way": way, **json.loads(done.stdout.splitlines()[-1])})
                print(_line(rows[-1]), flush=True)  # noqa: T201  # what bench is for
    return rows


def _line(row) -> str:
    return (
        f"{row['way']:>9} {row['partitions']:>8,} partitions: planned in {row['plan_s']:7.1f} s, "
        f"reported in {row['report_s']:5.1f} s; Python {row['python_mib']:5.0f} MiB "
        f"({row['python_start_mib']:.0f} at the start, tables {row['table_mib']:.0f}), "
        f"heap {row['heap_mib']:5.0f} of {row['heap_limit_mib']:.0f} MiB "
        f"({row['live_mib']:.0f} live)"
    )


if __name__ == "__main__":
    size, way, place = int(sys.argv[1]), *(sys.argv[2:4] or ("listing", tempfile.gettempdir()))
    found = measure(size, use_inventory=way == "inventory", folder=Path(place))
    print(json.dumps(found))  # noqa: T201  # what bench is for
